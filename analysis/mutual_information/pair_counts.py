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
Counter = Callable[[Bytes, int, int, int, NDArray[np.int64], Bytes, NDArray[Any]], int]

SYMBOLS = 256
STRETCH = 1 << 24
"""Bytes counted at all lags before the next are touched: a corpus larger than memory is read once, not once a lag."""
PIECE = 1 << 18
"""Bytes that numpy counts at a time, so that its copies stay in the cache."""


@dataclass(frozen=True, eq=False)
class PairCounts:
    """Pair tables of some lags, kept apart by block.

    lags     (L,) ascending
    symbols  (S,) uint8, the byte values kept apart, ascending
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
        whole = isinstance(data, np.ndarray) and data.dtype.kind in "iu"
        way = "data.astype(np.uint8), if all are from 0 to 255," if whole else "np.frombuffer(text, np.uint8)"
        raise ValueError(f"data must be a vector of uint8, got {kind}; {way} makes one")
    if blocks < 1:
        raise ValueError(f"blocks must be at least 1, got {blocks}")
    if data.size < longest + blocks:
        raise ValueError(
            f"data has {data.size:,} symbols, which is too short for lag {longest:,} in {blocks} blocks: "
            f"give at least {longest + blocks:,} or a smaller max_lag"
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
    for start in range(0, data.size, PIECE):
        counts += np.bincount(data[start : start + PIECE], minlength=SYMBOLS)
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

    symbols   the byte values to keep apart, ascending; all 256 unless given
    edges     (G + 1,) ascending: block g holds the pairs whose first symbol stands at edges[g] <= t < edges[g + 1];
              one block of all unless given
    threads   lags counted at the same time; the result does not depend on it
    progress  called with the number of pairs counted since the last call

    Memory beyond the result: 256 kB per thread. Raises ValueError for lags that do not ascend from 1, data too short
    for them, and symbols that leave out one that occurs.
    """
    lags = check_lags(lags)
    check_data(data, int(lags[-1]), 1)
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    data = np.asarray(data)  # a mapped file as the plain array that it is
    edges = np.array([0, data.size]) if edges is None else edges
    symbols = np.arange(SYMBOLS, dtype=np.uint8) if symbols is None else symbols
    tables = np.zeros((lags.size, edges.size - 1, symbols.size, symbols.size), table_dtype(edges))
    count = counter()

    def add(index: int, start: int, stop: int) -> int:
        lag = int(lags[index])
        stop = max(start, min(stop, data.size - lag))
        counted = count(data, lag, start, stop, edges, symbols, tables[index])
        if counted != stop - start:
            raise ValueError("symbols leave out a byte value that occurs in the data")
        return counted

    with ThreadPoolExecutor(threads) as pool:
        for start in range(int(edges[0]), int(edges[-1]), STRETCH):
            stop = min(start + STRETCH, int(edges[-1]))
            for done in pool.map(add, range(lags.size), repeat(start), repeat(stop)):
                if progress is not None:
                    progress(done)
    return PairCounts(lags, symbols, tables)


def table_dtype(edges: NDArray[np.int64]) -> type[np.unsignedinteger[Any]]:
    """The smallest type of counts that the longest block cannot overflow."""
    return np.uint32 if int(np.diff(edges).max()) < 2**31 else np.uint64


def counter() -> Counter:
    """The fastest function here that does what `count_with_numpy` does: numba's where it is installed."""
    try:
        return _compiled()
    except ImportError:
        return count_with_numpy


def count_with_numpy(
    data: Bytes, lag: int, start: int, stop: int, edges: NDArray[np.int64], symbols: Bytes, tables: NDArray[Any]
) -> int:
    """Add the pairs (data[t], data[t + lag]), start <= t < stop, to the table (S, S) of the block that t lies in.

    By np.bincount on pieces of the data. Returns how many pairs were of two of the `symbols` and so were added.
    """
    cells = (symbols.astype(np.intp)[:, None] * SYMBOLS + symbols).ravel()
    total = 0
    for table, first, last in zip(tables, edges[:-1], edges[1:], strict=True):
        counts = np.zeros(SYMBOLS * SYMBOLS, np.int64)
        for left in range(max(start, int(first)), min(stop, int(last)), PIECE):
            right = min(left + PIECE, stop, int(last))
            codes = data[left:right].astype(np.intp)  # before the product: uint8 would overflow
            codes *= SYMBOLS
            codes += data[left + lag : right + lag]
            counts += np.bincount(codes, minlength=SYMBOLS * SYMBOLS)
        added = counts[cells]
        table += added.reshape(table.shape).astype(table.dtype)
        total += int(added.sum())
    return total


@cache
def _compiled() -> Counter:
    from numba import njit

    def count(
        data: Bytes, lag: int, start: int, stop: int, edges: NDArray[np.int64], symbols: Bytes, tables: NDArray[Any]
    ) -> int:
        scratch = np.zeros(SYMBOLS * SYMBOLS, np.uint32)
        total = 0
        for block in range(edges.size - 1):
            left, right = max(start, edges[block]), min(stop, edges[block + 1])
            if left >= right:
                continue
            first, second, table = data[left:right], data[left + lag : right + lag], tables[block]
            for position in range(right - left):
                scratch[np.int64(first[position]) << 8 | second[position]] += np.uint32(1)
            for i in range(symbols.size):
                for j in range(symbols.size):
                    cell = np.int64(symbols[i]) << 8 | symbols[j]
                    table[i, j] += scratch[cell]
                    total += scratch[cell]
                    scratch[cell] = 0
        return total

    try:
        return njit(nogil=True, cache=True)(count)
    except RuntimeError:  # nowhere to keep compiled code: compile once per process
        return njit(nogil=True)(count)
