"""Copies within a text: of all of it, one after the other, and of parts of it, anywhere.

Pairs of symbols in copies count as often as these, so that intervals are too narrow and the bias of
few pairs stays in the estimates.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from plkernel.analysis.information.counts import Symbols

HEAD = 4096
"""So many symbols of the beginning are looked for again, to find copies of a whole text."""
PLACES = 64
"""Places at which the beginning may stand again, of which each is compared to the end."""
SEARCHED = 1 << 16
"""Symbols that are compared, and searched, at a time."""
PIECES = 64
"""Pieces, spread evenly over a text, that are looked for elsewhere in it."""
LENGTH = 256
"""Symbols of a piece."""
OWN = 32
"""Symbols at the head of a piece that must stand in it once only: others repeat within it."""
MANY = 0.2
"""The share of pieces that stand elsewhere from which on copies are worth naming.

Sources of one project share licences and tables: a tenth of the pieces of the standard library do.
"""


@dataclass(frozen=True)
class Copies:
    """How much of a text stands in it more than once.

    pieces  that were looked for, of `length` symbols each
    found   how many of these stand elsewhere, exactly and without overlap
    """

    pieces: int
    found: int
    length: int = LENGTH

    @property
    def share(self) -> float:
        """The share of the text, copies and what they are copied from together."""
        return self.found / self.pieces


def copies_within(data: Symbols) -> Copies | None:
    """Look in `data` (n,) for copies of its parts; None unless a share of MANY has them.

    Pieces that repeat themselves, such as blanks, are left out: these are runs and no copies.
    """
    last = data.size - LENGTH
    if last < PIECES * LENGTH:
        return None
    starts = np.linspace(0, last, PIECES).astype(np.int64).tolist()
    pieces = {start: data[start : start + LENGTH] for start in starts}
    kept = {start: piece for start, piece in pieces.items() if not _repeats_itself(piece)}
    found = [start for start, piece in kept.items() if _stands_elsewhere(data, piece, start)]
    if len(found) < MANY * len(pieces):
        return None
    return Copies(pieces=len(kept), found=len(found))


def _repeats_itself(piece: Symbols) -> bool:
    """True if the head of a piece stands in it again."""
    return any(True for _ in _places(piece, piece[:OWN], 1, piece.size - OWN))


def _stands_elsewhere(data: Symbols, piece: Symbols, start: int) -> bool:
    """True if the piece at `start` stands at another place, without overlap."""
    size = piece.size
    before = _places(data, piece, 0, start - size)
    after = _places(data, piece, start + size, data.size - size)
    return any(True for places in (before, after) for _ in places)


def copied_length(data: Symbols) -> int | None:
    """Length P of the text of which `data` (n,) are copies, one after the other; None if of none.

    That is the least P up to n / 2 with data[t] = data[t - P] everywhere; the last copy may be cut
    off. None for one symbol over and over, which has no information, and where the beginning stands
    again at more than PLACES places.
    """
    half = data.size // 2
    head = data[: min(HEAD, half)]
    for place in islice(_places(data, head, 1, half), PLACES):
        if _is_shifted(data, place):
            return place if place > 1 else None
    return None


def _places(data: Symbols, wanted: Symbols, first: int, last: int) -> Iterator[int]:
    """Places from `first` to `last` of `data` (n,) at which `wanted` (m,) begins."""
    symbols = wanted.tobytes()
    if not symbols:
        return
    for start in range(first, last + 1, SEARCHED):
        stop = min(start + SEARCHED, last + 1)
        searched = data[start : stop + wanted.size - 1].tobytes()
        found = searched.find(symbols)
        while found >= 0:
            if found % data.itemsize == 0:
                yield start + found // data.itemsize
            found = searched.find(symbols, found + 1)


def _is_shifted(data: Symbols, length: int) -> bool:
    """True if every symbol is the one `length` before it."""
    end = data.size - length
    for start in range(0, end, SEARCHED):
        stop = min(start + SEARCHED, end)
        if not np.array_equal(data[start:stop], data[start + length : stop + length]):
            return False
    return True
