"""Counts: how often symbol j follows symbol i at a distance of d, block by block.

Counts add up: the tables of two stretches of a corpus sum to the table of both, so threads and the
blocks of a jackknife rest on the same function.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, reduce
from itertools import pairwise, repeat
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Bytes = NDArray[np.uint8]
Symbols = NDArray[np.unsignedinteger[Any]]
"""Symbols (n,) by number: bytes, or tokens of a larger alphabet."""

FEWEST_BLOCKS = 4
"""Of a jackknife of either half of the blocks."""
MOST_BLOCKS = 1000
"""Of a jackknife."""
LINE_BREAK = 10
"""The byte that ends a line."""
SYMBOLS = 256
"""Values of a byte."""
STRETCH = 1 << 24
"""Bytes counted at all lags before the next are touched: a corpus larger than memory is read once,
not once a lag.
"""
SMALL = 1 << 16
"""Bytes up to which numpy counts: to load the compiled counter would take longer than counting."""
PIECE = 1 << 18
"""Bytes that a histogram counts at a time, so that copies stay in the cache."""

SPAN = 1 << 24
"""Range of integers up to which they are numbered by a table, in little memory, and not sorted."""


def check_lags(lags: ArrayLike) -> NDArray[np.int64]:
    """Return `lags` as ascending positive integers (L,); ValueError if they are anything else."""
    values = np.atleast_1d(np.asarray(lags))
    if values.ndim != 1 or not values.size or not np.issubdtype(values.dtype, np.integer):
        raise ValueError(
            f"lags must be a list of integers, got {values.dtype} of shape {values.shape}"
        )
    if values[0] < 1 or np.any(np.diff(values) <= 0):
        raise ValueError(
            f"lags must be 1 or more and ascend without repeats, got {values.tolist()}"
        )
    return values.astype(np.int64)


def check_counts(counts: NDArray[Any]) -> None:
    """Raise ValueError for a negative count, which would stand for another, or one not finite."""
    least = counts.min(initial=0)
    most = counts.max(initial=0)
    if not (least >= 0 and most < np.inf):
        got = most if least >= 0 else least
        raise ValueError(f"counts must be 0 or more and finite, got {got}")


def check_data(data: Symbols, longest: int, blocks: int, *, wide: bool = False) -> None:
    """Raise ValueError unless `data` are uint8 with a pair in each block at lag `longest`.

    Fewer than FEWEST_BLOCKS blocks and more than MOST_BLOCKS are refused too.

    wide: unsigned integers of any width are taken.
    """
    is_array = isinstance(data, np.ndarray)
    is_vector = is_array and data.ndim == 1
    if not is_vector or not (data.dtype == np.uint8 or (wide and data.dtype.kind == "u")):
        wanted = "uint8"
        remedy = "np.frombuffer(text, np.uint8) makes one of bytes"
        if wide:
            wanted = "unsigned integers"
            remedy = "counts.numbered makes one of any integers"
        got = f"{data.dtype} of shape {data.shape}" if is_array else type(data).__name__
        raise ValueError(f"data must be a vector of {wanted}, got {got}; {remedy}")
    if blocks < FEWEST_BLOCKS:
        raise ValueError(f"blocks must be at least {FEWEST_BLOCKS} for a jackknife, got {blocks}")
    if blocks > MOST_BLOCKS:
        raise ValueError(
            f"blocks must be at most {MOST_BLOCKS:,}, each of which takes a table of pairs, got"
            f" {blocks:,}"
        )
    if data.size < longest + blocks:
        raise ValueError(
            f"data must have at least {longest + blocks:,} symbols for lag {longest:,} in {blocks}"
            f" blocks, got {data.size:,}; give more data or a smaller max_lag"
        )


def check_different(symbols: int) -> None:
    """Raise ValueError where fewer than two different symbols occur."""
    if symbols < 2:
        raise ValueError(
            "data must hold two different symbols or more, got one symbol only, which tells nothing"
            " of any other"
        )


def block_edges(size: int, longest: int, blocks: int) -> NDArray[np.int64]:
    """Edges (blocks + 1,) of the blocks of first positions, from 0 to `size`.

    Equal in length as far as lag `longest` has pairs; at shorter lags the last block has a few
    more.
    """
    edges = np.linspace(0, size - longest, blocks + 1).astype(np.int64)
    edges[-1] = size
    return edges


def histogram(data: Bytes) -> NDArray[np.int64]:
    """Counts (256,) of each byte value, in memory that does not grow with the data."""
    counts = np.zeros(SYMBOLS, np.int64)
    for start in range(0, data.size, PIECE):
        counts += np.bincount(data[start : start + PIECE], minlength=SYMBOLS)
    return counts


def numbered(
    data: NDArray[np.integer[Any]], progress: Callable[[float], Any] | None = None
) -> Symbols:
    """Integers (n,) as the numbers 0, 1 .. of those that occur, in the same order, (n,).

    Of the smallest unsigned type that holds them: up to 256 different ones are uint8.

    progress: called with the share of the work done since the last call. The data are taken in
    pieces, so that it is called often, and Ctrl-C is heard.

    >>> numbered(np.array([-7, 50_000, -7]))
    array([0, 1, 0], dtype=uint8)
    """
    pieces = [data[start : start + PIECE] for start in range(0, data.size, PIECE)]
    if not pieces:
        return np.empty(0, np.uint8)
    report = progress or (lambda share: None)
    third = 1 / (3 * len(pieces))
    low = int(data[0])
    high = low
    for piece in pieces:
        low = min(low, int(piece.min()))
        high = max(high, int(piece.max()))
        report(third)
    if high - low < SPAN:
        number_of, most = _by_table(pieces, low, high, lambda: report(third))
    else:
        number_of, most = _by_search(pieces, lambda: report(third))
    found = np.empty(data.size, np.min_scalar_type(most))
    for index, piece in enumerate(pieces):
        found[index * PIECE : (index + 1) * PIECE] = number_of(piece)
        report(third)
    return found


def _by_table(
    pieces: Sequence[NDArray[np.integer[Any]]], low: int, high: int, done: Callable[[], Any]
) -> tuple[Callable[[NDArray[Any]], NDArray[np.int64]], int]:
    """The numbers of integers from `low` to `high` by a table, and the largest; little memory.

    done: called after each piece.
    """
    occurs = np.zeros(high - low + 1, bool)
    for piece in pieces:
        occurs[_above(piece, low)] = True
        done()
    rank = np.cumsum(occurs) - 1
    return lambda piece: rank[_above(piece, low)], int(rank[-1])


def _by_search(
    pieces: Sequence[NDArray[np.integer[Any]]], done: Callable[[], Any]
) -> tuple[Callable[[NDArray[Any]], NDArray[np.int64]], int]:
    """The numbers of any integers by a search among those that occur, and the largest.

    Those of pieces are joined with those of as many others, as in a merge sort: however many there
    are, each is touched a logarithm of times. done: called after each piece.
    """
    joined: list[NDArray[Any]] = []
    for count, piece in enumerate(pieces, start=1):
        joined.append(np.unique(piece))
        while count % 2 == 0:
            last = joined.pop()
            joined[-1] = np.union1d(joined[-1], last)
            count //= 2
        done()
    occurring = reduce(np.union1d, reversed(joined))
    return lambda piece: np.searchsorted(occurring, piece), occurring.size - 1


def _above(values: NDArray[np.integer[Any]], low: int) -> NDArray[np.int64]:
    """`values` less the least of them; those beyond int64 are uint64."""
    if values.dtype == np.uint64:
        return np.asarray(values - np.uint64(low), np.int64)
    return np.asarray(values, np.int64) - low


def count_repeats(
    data: Symbols,
    lags: ArrayLike,
    edges: NDArray[np.int64],
    *,
    threads: int = 1,
    progress: Callable[[float], Any] | None = None,
) -> NDArray[np.int64]:
    """The number of symbols of each block that stand again d places later, (L, G), d in `lags`.

    data      (n,) of any alphabet
    edges     (G + 1,) as of `count_pairs`
    threads   blocks counted at the same time; the result does not depend on it
    progress  called with the share of the data counted since the last call
    """
    steps = np.asarray(lags).tolist()

    def repeats(ends: tuple[int, int]) -> NDArray[np.int64]:
        start, stop = ends
        equal = [
            np.count_nonzero(data[start : min(stop, data.size - d)] == data[start + d : stop + d])
            for d in steps
        ]
        if progress is not None:
            progress((stop - start) / data.size)
        return np.array(equal, dtype=np.int64)

    with ThreadPoolExecutor(threads) as workers:
        return np.stack(list(workers.map(repeats, pairwise(edges.tolist()))), axis=1)


def count_pairs(
    data: Bytes,
    lags: ArrayLike,
    *,
    symbols: Bytes | None = None,
    edges: NDArray[np.int64] | None = None,
    threads: int = 1,
    progress: Callable[[int], Any] | None = None,
) -> NDArray[Any]:
    """Count the pairs of `data` (n,) uint8, also of a mapped file, at every lag in one pass.

    symbols   (S,) the byte values to keep apart, ascending; all 256 unless given
    edges     (G + 1,) ascending: block g holds the pairs whose first symbol stands at edges[g] <= t
              < edges[g + 1]; one block of all unless given
    threads   lags counted at the same time; the result does not depend on it
    progress  called with the number of pairs counted since the last call

    Returns tables (L, G, S, S): [l, g, i, j] pairs with symbol i at position t in block g and j at
    t + lags[l]. Memory beyond them: 256 kB per thread. Lags and data are taken as `check_lags` and
    `check_data` allow.
    """
    lags = np.asarray(lags)
    data = np.asarray(data)  # a mapped file as a plain array
    edges = np.array([0, data.size]) if edges is None else edges
    symbols = np.arange(SYMBOLS, dtype=np.uint8) if symbols is None else symbols
    dtype = np.uint32 if int(np.diff(edges).max()) < 2**31 else np.uint64
    tables = np.zeros((lags.size, edges.size - 1, symbols.size, symbols.size), dtype)
    small = int(edges[-1] - edges[0]) <= SMALL
    count = interpreted if small else compiled()

    def add(index: int, start: int, stop: int) -> int:
        lag = int(lags[index])
        stop = max(start, min(stop, data.size - lag))
        return count(data, lag, start, stop, edges, symbols, tables[index])

    with ThreadPoolExecutor(threads) as pool:
        for start in range(int(edges[0]), int(edges[-1]), STRETCH):
            stop = min(start + STRETCH, int(edges[-1]))
            for done in pool.map(add, range(lags.size), repeat(start), repeat(stop)):
                if progress is not None:
                    progress(done)
    return tables


def interpreted(
    data: Bytes,
    lag: int,
    start: int,
    stop: int,
    edges: NDArray[np.int64],
    symbols: Bytes,
    tables: NDArray[Any],
) -> int:
    """Count one lag as `compiled()` does, by numpy."""
    rank = np.full(SYMBOLS, -1)
    rank[symbols] = np.arange(symbols.size)
    first = rank[data[start:stop]]
    second = rank[data[start + lag : stop + lag]]
    kept = (first >= 0) & (second >= 0)
    block = np.searchsorted(edges, np.arange(start, stop), side="right") - 1
    cells = (block * symbols.size + first) * symbols.size + second
    np.add.at(tables.reshape(-1), cells[kept], 1)
    return int(np.count_nonzero(kept))


@cache
def compiled() -> Callable[..., int]:
    """Compile the counter of one lag, for one thread and without the interpreter's lock.

    It adds the pairs (data[t], data[t + lag]), start <= t < stop, to the table (S, S) of the block
    that holds t, and returns how many pairs were of two of the `symbols` and so were added.
    """
    from numba import njit

    def count(
        data: Bytes,
        lag: int,
        start: int,
        stop: int,
        edges: NDArray[np.int64],
        symbols: Bytes,
        tables: NDArray[Any],
    ) -> int:
        scratch = np.zeros(SYMBOLS * SYMBOLS, np.uint32)
        total = 0
        for block in range(edges.size - 1):
            left = max(start, edges[block])
            right = min(stop, edges[block + 1])
            if left >= right:
                continue
            first = data[left:right]
            second = data[left + lag : right + lag]
            table = tables[block]
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
