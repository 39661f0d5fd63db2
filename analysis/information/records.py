"""Records of nearly the same length, such as the lines of a log, and a text that has these alone.

Where the composition of a line depends on the place in it, lines of nearly the same length share
information at every lag up to many of them. That is layout, not memory. It is measured in a text
whose lines are those of the data with the symbols at each place drawn from other lines of the same
length, in another order: it has the layout of the data, and no other dependence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plkernel.analysis.information.counts import LINE_BREAK, Bytes, Symbols

FEWEST_LINES = 200
"""Lines from which on their lengths say something."""
SPREAD = 0.25
"""The largest standard deviation of their lengths, as a share of the mean."""
EQUAL = 0.95
"""The share of lines of one length from which on they have a period."""
ALIKE = 8
"""Lines of one length below which their symbols are drawn from lines of any length."""
SHARE = 0.1
"""The least share of the information at the mean length that makes records worth naming."""
IN_PHASE = 1 << 14
"""Symbols within which a period keeps its phase."""
PERIODS = 64
"""Periods within which a longer one keeps it."""


@dataclass(frozen=True)
class Records:
    """Lines of nearly the same length.

    length     mean, with the line break
    low, high  5th and 95th percentile
    strength   nats that their layout alone shares at the measured lag nearest to the mean
    """

    length: float
    low: int
    high: int
    strength: float

    def brief(self) -> str:
        """The records in a few words."""
        return f"lines of {self.low} to {self.high} bytes, whose layout is not part of I"

    def sentence(self, beyond: Sequence[int]) -> str:
        """Lines of nearly the same length, and what the place in a line explains.

        beyond: lags after those of the verdict at which the information stands out, ascending
        """
        found = (
            f"records: lines of {self.low} to {self.high} bytes, {self.length:.1f} on average; the"
            f" place in a line explains {self.strength / log(2):.2g} bits near that lag, and what"
            " it explains is not part of I above"
        )
        if not beyond:
            return found
        lags = f"{len(beyond)} {'lag' if len(beyond) == 1 else 'lags'}"
        return (
            f"{found}. I stands out at {lags} beyond the verdict's, up to {beyond[-1]:,},"
            " as where a field of one line follows from that of the line before, such as a counter"
        )


def line_starts(data: Bytes) -> NDArray[np.int64] | None:
    """The starts of lines, (R,), if they are many and nearly, but not all, of one length."""
    breaks = np.flatnonzero(data == LINE_BREAK)
    if breaks.size < FEWEST_LINES:
        return None
    lengths = np.diff(breaks)
    most = np.bincount(lengths).max()
    if most >= EQUAL * lengths.size or lengths.std() > SPREAD * lengths.mean():
        return None
    starts = np.append(0, breaks + 1)
    return starts[starts < data.size].astype(np.int64)


def shuffled_records(data: Bytes, starts: NDArray[np.int64]) -> Bytes:
    """The layout of the records that begin at `starts`: symbols of the same place exchanged."""
    rng = np.random.default_rng(0)
    lengths = np.diff(np.append(starts, data.size))
    drawn = np.array(data)
    rare: list[int] = []
    for length in np.unique(lengths):
        alike = np.flatnonzero(lengths == length)
        if alike.size < ALIKE:
            rare += alike.tolist()
            continue
        at = starts[alike, None] + np.arange(length)
        drawn[at] = rng.permuted(drawn[at], axis=0)
    places = int(lengths[rare].max()) - 1 if rare else 0
    for place in range(places):  # place by place, among those lines that reach it
        at = starts[rare][lengths[rare] > place + 1] + place
        drawn[at] = rng.permutation(drawn[at])
    order = rng.permutation(starts.size)
    return np.concatenate([drawn[starts[i] : starts[i] + lengths[i]] for i in order])


def shuffled_phases(data: Symbols, length: int) -> Symbols:
    """`data` (n,) with symbols of the same phase exchanged, within stretches."""
    rng = np.random.default_rng(0)
    drawn = np.array(data)
    size = max(IN_PHASE, PERIODS * length) // length * length
    for start in range(0, data.size, size):
        piece = drawn[start : start + size]
        rows: Any = piece[: piece.size // length * length].reshape(-1, length)
        rows[:] = rng.permuted(rows, axis=0)
    return drawn


def common_symbols(data: Symbols) -> Bytes:
    """`data` (n,) as bytes: the 255 most frequent symbols apart, all others as one."""
    if data.dtype == np.uint8:
        return np.asarray(data, np.uint8)
    counts = np.bincount(data)
    kept = np.argsort(counts)[::-1][:255]
    rank = np.full(counts.size, 255, np.uint8)
    rank[kept] = np.arange(kept.size)
    return np.asarray(rank[data], np.uint8)
