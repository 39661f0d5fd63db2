"""How often symbol j follows symbol i at a distance of d: counted once through a corpus, block by block.

Counts add up. The tables of two stretches of a corpus sum to the table of both, so threads, machines and the blocks of
a jackknife all rest on the same function, and every way of counting gives the same integers.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Bytes = NDArray[np.uint8]
Counter = Callable[[Bytes, Bytes, NDArray[np.uint32]], None]

SYMBOLS = 256
STRETCH = 1 << 24
"""Bytes counted at all lags before the next are touched: a corpus larger than memory is read once, not once a lag."""
PIECE = 1 << 16
"""Pairs that numpy counts at a time, so that its copies stay in the cache."""


@dataclass(frozen=True, eq=False)
class PairCounts:
    """Pair tables of some lags, kept apart by block.

    lags     (L,) ascending
    symbols  (S,) uint8, the byte values that occur, ascending
    tables   (L, G, S, S): tables[l, g, i, j] pairs with symbol i at position t in block g and j at t + lags[l]
    """

    lags: NDArray[np.int64]
    symbols: Bytes
    tables: NDArray[Any]


def check_lags(lags: ArrayLike) -> NDArray[np.int64]:
    """`lags` as ascending positive integers (L,); ValueError when they are anything else."""
    values = np.atleast_1d(np.asarray(lags))
    if values.ndim != 1 or not values.size or not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"lags must be a list of integers, got {values.dtype} of shape {values.shape}")
    if values.min() < 1:
        raise ValueError(f"lags must be 1 or more, got {values.min()}")
    if np.any(np.diff(values) <= 0):
        at = int(np.argmax(np.diff(values) <= 0))
        raise ValueError(f"lags must ascend without repeats, got {values[at]} before {values[at + 1]}: sort them")
    return values.astype(np.int64)


def check_data(data: Bytes, longest: int, blocks: int) -> None:
    """ValueError unless `data` is a vector of uint8 that leaves a pair in each block at lag `longest`."""
    if not isinstance(data, np.ndarray) or data.ndim != 1 or data.dtype != np.uint8:
        kind = f"{data.dtype} of shape {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise ValueError(f"data must be a vector of uint8, got {kind}; np.frombuffer(text, np.uint8) makes one")
    if blocks < 1:
        raise ValueError(f"blocks must be at least 1, got {blocks}")
    if data.size < longest + blocks:
        raise ValueError(
            f"data has {data.size:,} symbols, which is too short for lag {longest:,} in {blocks} blocks: "
            f"give at least {longest + blocks:,} or a smaller largest lag"
        )


def block_edges(size: int, longest: int, blocks: int) -> NDArray[np.int64]:
    """Where the blocks of first positions begin and end, (blocks + 1,), from 0 to `size`.

    Equal in length as far as lag `longest` has pairs; at shorter lags the last block has a few more.
    """
    edges = np.linspace(0, size - longest, blocks + 1).astype(np.int64)
    edges[-1] = size
    return edges


def histogram(data: Bytes) -> NDArray[np.int64]:
    """How often each of the 256 byte values occurs, (256,), in memory that does not grow with the data."""
    counts = np.zeros(SYMBOLS, np.int64)
    for start in range(0, data.size, STRETCH):
        counts += np.bincount(data[start : start + STRETCH], minlength=SYMBOLS)
    return counts


def count_pairs(
    data: Bytes,
    lags: ArrayLike,
    *,
    symbols: Bytes | None = None,
    edges: NDArray[np.int64] | None = None,
    threads: int = 1,
    progress: Callable[[int], Any] | None = None,
) -> PairCounts:
    """The pair tables of `data` (n,) uint8, which may be mapped from a file, at every lag, in one pass.

    symbols   the byte values to keep apart, ascending; those that occur unless given
    edges     (G + 1,) ascending: block g holds the pairs whose first symbol stands at edges[g] <= t < edges[g + 1];
              one block of all unless given
    threads   lags counted at the same time; the result does not depend on it
    progress  called with the number of pairs counted since the last call

    Memory beyond the result: 256 kB per thread. Raises ValueError for lags that do not ascend from 1, data too short
    for them, and symbols that leave out one that occurs.
    """
    lags = check_lags(lags)
    longest = int(lags[-1])
    check_data(data, longest, 1)
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    data = np.asarray(data)  # a mapped file as the plain array that it is
    edges = np.array([0, data.size]) if edges is None else edges
    present = np.flatnonzero(histogram(data)).astype(np.uint8) if symbols is None else symbols
    tables = np.zeros((lags.size, edges.size - 1, present.size, present.size), _dtype(edges))
    count = counter()

    def add(index: int, start: int, stop: int) -> int:
        return _add_stretch(count, data, int(lags[index]), (start, stop), edges, present, tables[index])

    with ThreadPoolExecutor(threads) as pool:
        for start in range(int(edges[0]), int(edges[-1]), STRETCH):
            stop = min(start + STRETCH, int(edges[-1]))
            for done in pool.map(add, range(lags.size), repeat(start), repeat(stop)):
                if progress is not None:
                    progress(done)
    return PairCounts(lags, present, tables)


def _add_stretch(
    count: Counter,
    data: Bytes,
    lag: int,
    stretch: tuple[int, int],
    edges: NDArray[np.int64],
    symbols: Bytes,
    tables: NDArray[Any],
) -> int:
    """Add the pairs whose first symbol stands in the stretch to the tables (G, S, S) of their blocks; their number."""
    start, end = stretch[0], min(stretch[1], data.size - lag)
    first, last = np.searchsorted(edges, [start, end - 1], side="right") - 1
    cells = (symbols.astype(np.intp)[:, None] * SYMBOLS + symbols).ravel()
    scratch = np.empty(SYMBOLS * SYMBOLS, np.uint32)
    total = 0
    for block in range(first, last + 1):
        left, right = max(start, int(edges[block])), min(end, int(edges[block + 1]))
        scratch.fill(0)
        count(data[left:right], data[left + lag : right + lag], scratch)
        kept = scratch[cells]
        if kept.sum(dtype=np.int64) != right - left:
            raise ValueError("symbols leave out a byte value that occurs in the data")
        tables[block] += kept.reshape(tables[block].shape)
        total += right - left
    return total


def _dtype(edges: NDArray[np.int64]) -> type[np.unsignedinteger[Any]]:
    return np.uint32 if int(np.diff(edges).max()) < 2**31 else np.uint64


def counter() -> Counter:
    """The fastest function here that adds pairs to a flat table (65536,): numba's where it is installed."""
    try:
        return _compiled()
    except ImportError:
        return count_with_numpy


def count_with_numpy(first: Bytes, second: Bytes, table: NDArray[np.uint32]) -> None:
    """table[256 i + j] += the pairs (i, j) of first (n,) and second (n,), by np.bincount on pieces of the data."""
    for start in range(0, first.size, PIECE):
        codes = first[start : start + PIECE].astype(np.intp)  # before the product: uint8 would overflow
        codes *= SYMBOLS
        codes += second[start : start + PIECE]
        table += np.bincount(codes, minlength=table.size).astype(np.uint32)


@cache
def _compiled() -> Counter:
    from numba import njit

    @njit(nogil=True)
    def count(first: Bytes, second: Bytes, table: NDArray[np.uint32]) -> None:
        for position in range(first.size):
            table[np.int64(first[position]) << 8 | second[position]] += 1

    return count
