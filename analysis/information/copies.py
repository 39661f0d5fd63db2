"""Copies within a text: of all of it, one after the other, and of parts of it, anywhere.

Pairs of symbols in copies count as often as these, so that intervals are too narrow and the bias of
few pairs stays in the estimates.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from plkernel.analysis.information.counts import Bytes, Symbols

HEAD = 4096
"""So many symbols of the beginning are looked for again, to find copies of a whole text."""
PLACES = 64
"""Places at which the beginning may stand again, of which each is compared to the end."""
SEARCHED = 1 << 16
"""Symbols that are compared, and searched, at a time."""
PIECES = 64
"""Pieces, spread evenly over a text, that are looked for elsewhere in it."""
LENGTH = 1024
"""Symbols of a piece: longer than a line, or than templates from which a log is made."""
HEAD_BYTES = 32
"""Bytes at the head of a piece, four words of eight, that are looked for at every place."""
MIXERS = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5], np.uint64
)
"""Odd factors by which the four words of a head are mixed into a key, modulo 2^64."""
KEY_BITS = 16
"""Upper bits of a key by which most places are ruled out."""
CHUNK = 1 << 20
"""Bytes whose places are looked at together."""
COMPARED = 1 << 10
"""Places whose whole pieces are compared together."""
OWN = 32
"""Symbols at the head of a piece that must stand in it once only: others repeat within it."""
MANY = 0.2
"""The share of pieces that stand elsewhere from which on copies are worth naming.

Sources of one project share licences and tables: some pieces of the standard library do.
"""


@dataclass(frozen=True)
class Copies:
    """How much of a text stands in it more than once.

    pieces  of `length` symbols that were looked at, spread evenly
    found   how many of these stand elsewhere, exactly and without overlap. Pieces that repeat
            themselves, such as blanks, are runs and not among these
    """

    pieces: int
    found: int
    length: int = LENGTH

    @property
    def share(self) -> float:
        """The share of the text, copies and what they are copied from together."""
        return self.found / self.pieces

    def brief(self) -> str:
        """The copies in a few words."""
        return f"about {self.share:.0%} of the text stands in it more than once"

    def sentence(self, unit: str) -> str:
        """How much of the text stands in it more than once, and what that does to the numbers.

        unit: what a symbol is
        """
        return (
            f"copies: {self.found} of {self.pieces} pieces of {self.length:,} {unit}s stand"
            f" elsewhere in the text too, about {self.share:.0%} of it; what was copied counts as"
            " often as its copies, so that intervals are too narrow and far lags show too much:"
            " remove copies and measure again"
        )


def copies_within(data: Symbols) -> Copies | None:
    """Look in `data` (n,) for copies of its parts; None unless a share of MANY has them."""
    last = data.size - LENGTH
    if last < LENGTH:
        return None
    starts = np.unique(np.linspace(0, last, PIECES).astype(np.int64)).tolist()
    own = [start for start in starts if not _repeats_itself(data[start : start + LENGTH])]
    found = len(_copied(np.ascontiguousarray(data), own))
    if found < MANY * len(starts):
        return None
    return Copies(pieces=len(starts), found=found)


def _repeats_itself(piece: Symbols) -> bool:
    """True if the head of a piece stands in it again."""
    return any(True for _ in _places(piece, piece[:OWN], 1, piece.size - OWN))


def _copied(data: Symbols, starts: Sequence[int]) -> set[int]:
    """Those of `starts` whose pieces of `data` (n,) stand elsewhere too, without overlap.

    A piece is compared as a whole where the key of its head is that of a place.
    """
    raw = data.view(np.uint8)
    width = data.itemsize
    pieces: dict[int, list[int]] = {}  # places in bytes, by the key of the head
    for start in starts:
        head = raw[start * width : start * width + HEAD_BYTES]
        (key,) = _keys(head).tolist()
        pieces.setdefault(key, []).append(start * width)
    found: set[int] = set()
    for key, places in _places_of_keys(raw, width, list(pieces)):
        for place in pieces[key]:
            if place not in found and _is_among(raw, place, places, LENGTH * width):
                found.add(place)
    return {place // width for place in found}


def _places_of_keys(
    raw: Bytes, width: int, wanted: Sequence[int]
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield the `wanted` keys that stand in `raw`, and where, as bytes from its beginning.

    One pass; a key comes again for every CHUNK. width: bytes of a symbol, from which places begin.
    """
    keys = np.array(wanted, np.uint64)
    unused = np.uint64(64 - KEY_BITS)
    is_possible = np.zeros(1 << KEY_BITS, bool)
    is_possible[keys >> unused] = True
    for begin in range(0, raw.size, CHUNK):
        chunk = raw[begin : begin + CHUNK + HEAD_BYTES - 1]
        for offset in range(0, 8, width):  # words of eight bytes from every symbol on
            of_places = _keys(chunk[offset:])
            places = np.flatnonzero(is_possible[of_places >> unused])
            for key in np.intersect1d(of_places[places], keys):
                same = places[of_places[places] == key]
                yield int(key), begin + offset + 8 * same


def _keys(raw: Bytes) -> NDArray[np.uint64]:
    """A key of the HEAD_BYTES from every eighth byte of `raw` on; empty if these are too few."""
    words = raw[: raw.size // 8 * 8].view(np.uint64)
    count = max(0, words.size - MIXERS.size + 1)
    mixed = np.zeros(count, np.uint64)
    for at, mixer in enumerate(MIXERS):
        mixed += words[at : at + count] * mixer
        mixed ^= mixed >> np.uint64(29)
        mixed *= mixer
    return mixed


def _is_among(raw: Bytes, place: int, places: NDArray[np.int64], size: int) -> bool:
    """True if the `size` bytes at `place` stand at one of `places` too, without overlap."""
    apart = places[(np.abs(places - place) >= size) & (places <= raw.size - size)]
    whole = raw[place : place + size]
    # Lines of one form have the head in common by the thousand, but seldom the end.
    ends = apart[:, None] + np.arange(size - HEAD_BYTES, size)
    likely = apart[(raw[ends] == whole[-HEAD_BYTES:]).all(axis=1)]
    for first in range(0, likely.size, COMPARED):
        at = likely[first : first + COMPARED, None] + np.arange(size)
        if (raw[at] == whole).all(axis=1).any():
            return True
    return False


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
