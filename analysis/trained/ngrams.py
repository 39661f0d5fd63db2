"""What counts of a few bytes reach: interpolated Witten-Bell n-grams, the measure of a model without memory."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Integers = NDArray[np.uint64]
Floats = NDArray[np.float64]
Table = tuple[Integers, NDArray[np.int64]]
"""Different keys (k,), ascending, and how often each was seen (k,)."""

LONGEST = 7
"""A key, and the first key of the next history, fit into 64 bits."""
AT_ONCE = 2**22
"""Bytes that are counted, or judged, at a time."""


@dataclass(frozen=True)
class NGrams:
    """P_n(x|h) = (c(h,x) + N1+(h) P_{n-1}(x|h')) / (c(h) + N1+(h)) for n = 1 .. orders, P_0 = 1/256.

    h are the n - 1 bytes before x, h' the same without the first of them, N1+(h) the number of different bytes seen
    after h; where h was never seen, P_n = P_{n-1}. Witten and Bell 1991 (method C), interpolated as in Chen and Goodman
    1999.

    tables: by order, the n-grams as numbers to the base 256 (k,), ascending, and before each how many of all that were
    counted have a smaller one (k + 1,), with their number at the end.
    """

    tables: tuple[Table, ...]

    @classmethod
    def of(cls, windows: Bytes | Iterable[Bytes], orders: int = 5) -> Self:
        """Count windows (n, T + 1), or an iterable of such blocks: T targets each, all after the window's first byte.

        No n-gram reaches beyond its window, and what is seen twice counts twice. ValueError for other orders than 1..7
        and for windows of another shape or type.
        """
        if not 1 <= orders <= LONGEST:
            raise ValueError(f"orders must lie between 1 and {LONGEST}, got {orders}")
        nothing = np.empty(0, np.uint64), np.empty(0, np.int64)
        counted = [[nothing] for _ in range(orders)]
        for block in [windows] if isinstance(windows, np.ndarray) else windows:
            rows = max(1, AT_ONCE // _checked(block).shape[1])
            for start in range(0, len(block), rows):
                for order, parts in enumerate(counted, start=1):
                    keys = _keys(block[start : start + rows], order)
                    _add(parts, np.unique(keys, return_counts=True))
        return cls(tuple(map(_cumulated, counted)))

    def losses(self, windows: Bytes) -> Floats:
        """-log2 P_n of the targets of windows (n, T + 1), in bits: (orders, n, T).

        The first targets of a window have fewer bytes before them, and every order takes those there are.
        """
        targets = _checked(windows).shape[0], windows.shape[1] - 1
        found = np.empty((len(self.tables), *targets))
        probability = np.full(targets, 1 / 256)
        for order, table in enumerate(self.tables, start=1):
            keys = _keys(windows, order)
            history = keys & ~np.uint64(255)
            first, end = (np.searchsorted(table[0], edge) for edge in (history, history + np.uint64(256)))
            this, after = (np.searchsorted(table[0], keys, side) for side in ("left", "right"))
            seen, different = table[1][end] - table[1][first], end - first
            lower = probability[:, targets[1] - keys.shape[1] :]
            mixed = table[1][after] - table[1][this] + different * lower
            np.divide(mixed, seen + different, out=lower, where=seen > 0)
            found[order - 1] = -np.log2(probability)
        return found


def _checked(windows: Bytes) -> Bytes:
    if windows.ndim != 2 or windows.shape[1] < 2 or windows.dtype != np.uint8:
        raise ValueError(f"windows must be bytes (n, T + 1) with T at least 1, got {windows.dtype} {windows.shape}")
    return windows


def _keys(windows: Bytes, order: int) -> Integers:
    """The n-grams that end at a target and begin in its window, as numbers: (n, T) or less by those at the start."""
    width = windows.shape[1]
    start = min(max(order - 1, 1), width)
    keys = np.zeros((len(windows), width - start), np.uint64)
    for back in range(order - 1, -1, -1):
        keys <<= np.uint64(8)
        keys |= windows[:, start - back : width - back]
    return keys


def _add(parts: list[Table], part: Table) -> None:
    """Add a table to others, which are merged while one is not smaller than that before it: each key a few times."""
    parts.append(part)
    while len(parts) > 1 and parts[-1][0].size >= parts[-2][0].size:
        parts.append(_merged(parts.pop(), parts.pop()))


def _merged(one: Table, other: Table) -> Table:
    keys, counts = (np.concatenate(pair) for pair in zip(one, other, strict=True))
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[order]
    first = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]][: keys.size])
    return keys[first], np.add.reduceat(counts, first)


def _cumulated(parts: list[Table]) -> Table:
    """All parts as one table of `NGrams`."""
    while len(parts) > 1:
        parts.append(_merged(parts.pop(), parts.pop()))
    keys, counts = parts.pop()
    return keys, np.r_[0, np.cumsum(counts)]
