"""Decay curves of any alphabet: pairs are counted where the sample allows it, repeats elsewhere.

The plug-in information of n pairs of K symbols is too large by about (K - 1)^2 / 2n nats. For pairs
without memory `expected_information` gives this bias exactly, whatever n is, and `decay_curves`
subtracts it. Memory enlarges it: where symbols k apart correlate by q(k), n pairs count as n / v
independent ones, v = 1 + 2 sum_k q(k)^2. With m = n / K^2 pairs a cell and equally likely symbols
the bias is

    B(m / v) ,  B(m) = E[N ln N] / m - ln m  ~  1 / 2m + 1 / 12m^2 ,  N ~ Poisson(m) .

The jackknife removes the first term of the rest, B(m / v) - B(m), and leaves about the second,
v^2 / 12m^2, a share of v^2 / 6m of the floor B(m). At m = 1 that is as much as the floor itself
for v = 2.4, so that memory seems to reach farther than it does; at m = 10 it is a tenth. Values
count as memory above the floor only. So pairs are counted where there are ten for each cell of the
table, n / v >= 10 K^2, or a bias of at most 1 / 20 nats, with v from the agreement of neighbours.

Source: Miller (1955), Note on the bias of information estimates, for the closed form; Paninski
(Neural Computation 15:1191, 2003) for the regime n ~ K^2.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from plkernel.analysis.information.counts import (
    Symbols,
    block_edges,
    check_data,
    check_lags,
)
from plkernel.analysis.information.estimate import (
    BLOCKS,
    ESTIMATORS,
    Counts,
    DecayCurve,
    Estimator,
    Floats,
    PairEstimator,
    corrected,
    decay_curves,
    drift_table,
    expected_information,
    information_of_sums,
    log_lags,
    mutual_information,
    sum_of_logarithms,
)
from plkernel.analysis.information.repeats import block_counts, repeat_curves

Progress = Callable[[float], Any]

PAIRS = 10
"""The fewest pairs for each cell of their table, on average."""
FREE = 16
"""Symbols up to which pairs are counted whatever the memory is."""


def effective_size(data: Symbols, counts: NDArray[np.int64]) -> float:
    """Independent pairs that pairs of `data` (n,) count as: n / v, v = (1 + r^2) / (1 - r^2).

    r is what agreement with the symbol before has above chance and three times its standard error,
    over the most that it can have. Exact where a symbol is its predecessor with probability r and
    drawn anew otherwise, so that symbols k apart correlate by r^k.
    """
    chance = float(((counts / data.size) ** 2).sum())
    if chance == 1:
        return float(data.size)
    agreement = np.count_nonzero(data[1:] == data[:-1]) / (data.size - 1)
    by_chance = chance + 3 * math.sqrt(chance * (1 - chance) / data.size)
    r = max(0.0, (agreement - by_chance) / (1 - chance))
    return data.size * (1 - r**2) / (1 + r**2)


def pairs_suffice(size: float, symbols: int) -> bool:
    """True if `size` pairs are enough for a table of symbols^2 cells: n >= PAIRS K^2."""
    return size >= fewest_pairs(symbols)


def fewest_pairs(symbols: int) -> int:
    """PAIRS K^2."""
    return PAIRS * symbols**2


def estimator_for(size: float, symbols: int) -> Estimator:
    """'jackknife' where `pairs_suffice`, and 'repeats' where they do not.

    size: of independent pairs, see `effective_size`.
    """
    return "jackknife" if pairs_suffice(size, symbols) else "repeats"


def symbol_curves(
    data: Symbols,
    lags: ArrayLike | None = None,
    *,
    estimator: Estimator | None = None,
    blocks: int = BLOCKS,
    threads: int = 1,
    progress: Progress | None = None,
    beside: Symbols | None = None,
) -> tuple[DecayCurve, DecayCurve]:
    """Information and correlation of `data` (n,), numbers of symbols, at each of `lags`.

    data       unsigned integers, those of `numbered`. For uint8 an estimator that counts pairs is
               that of `decay_curves`, of any sample: short texts are told by their floor. Of more
               symbols the correlation is r(d) of `repeat_curves`
    beside     a sequence that has the layout of the data alone, as of `decay_curves`
    estimator  as of `decay_curves`, or 'repeats' for `repeat_curves`; None for `estimator_for`

    Raises ValueError as these do, and where an estimator that counts pairs is asked for of an
    alphabet that is too large for the sample.
    """
    lags = log_lags() if lags is None else check_lags(lags)
    check_data(data, int(lags[-1]), blocks, wide=True)
    data = np.asarray(data)  # a mapped file as a plain array
    options: Any = {"blocks": blocks, "threads": threads, "progress": progress}
    if data.dtype == np.uint8 and estimator in ESTIMATORS:
        return decay_curves(data, lags, estimator=estimator, beside=beside, **options)
    parts = block_counts(data, block_edges(data.size, int(lags[-1]), blocks))
    counts = parts.sum(axis=0)
    symbols = int(np.count_nonzero(counts))
    chosen = estimator
    if chosen is None:
        size = data.size if symbols <= FREE else effective_size(data, counts)
        chosen = estimator_for(size, symbols)
    if chosen == "repeats":
        return repeat_curves(data, lags, parts=parts, beside=beside, **options)
    if chosen not in ESTIMATORS:
        names = ", ".join((*ESTIMATORS, "repeats"))
        raise ValueError(f"estimator must be one of {names}, got {chosen!r}")
    if data.dtype == np.uint8:
        return decay_curves(data, lags, estimator=chosen, beside=beside, **options)
    if not pairs_suffice(data.size, symbols):
        bias = expected_information(counts) / np.log(2)
        raise ValueError(
            f"data must have {fewest_pairs(symbols):,} symbols or more to count pairs of"
            f" {symbols:,} different ones, got {data.size:,}, which would show {bias:.2g} bits"
            " without any memory; give more data, or the estimator 'repeats', which needs no table"
            " of pairs"
        )
    return _pair_curves(data, lags, chosen, parts=parts, beside=beside, **options)


def _pair_curves(
    data: Symbols,
    lags: NDArray[np.int64],
    estimator: PairEstimator,
    blocks: int,
    threads: int,
    progress: Progress | None,
    parts: csr_array,
    beside: Symbols | None,
) -> tuple[DecayCurve, DecayCurve]:
    """`decay_curves` of more than 256 symbols, beside r(d) of `repeat_curves`."""
    edges = block_edges(data.size, int(lags[-1]), blocks)
    occurring = parts.sum(axis=0) > 0
    rank = np.cumsum(occurring) - 1
    data = rank[data]
    dense = parts.toarray()[:, occurring]
    report = progress or (lambda share: None)

    def estimate(lag: int) -> Floats:
        found = left_out_information(data, lag, edges)
        report(0.5 / lags.size)
        return found

    with ThreadPoolExecutor(threads) as workers:
        information = np.stack(list(workers.map(estimate, lags.tolist())))
        rest = dense.sum(axis=0) - dense
        floors = np.array(list(workers.map(expected_information, (dense.sum(axis=0), *rest))))
    sizes = np.diff(np.minimum(edges, (data.size - lags)[:, None]))
    information, floor = corrected(information, floors, dense, sizes, estimator)
    repeats, correlation = repeat_curves(
        data.astype(np.uint32),
        lags,
        blocks=blocks,
        threads=threads,
        progress=lambda share: report(0.5 * share),
        beside=None if beside is None else rank[beside].astype(np.uint32),
    )
    curve = replace(
        repeats,
        estimator=estimator,
        values=tuple(information[:, 0].tolist()),
        floor=tuple(floor[:, 0].tolist()),
        drift=float(mutual_information(drift_table(dense))),
        replicates=tuple(map(tuple, information[:, 1:].tolist())),
    )
    return curve, correlation


def left_out_information(data: NDArray[Any], lag: int, edges: NDArray[np.int64]) -> Floats:
    """Plug-in information in nats of pairs `lag` apart, and of those without each block, (1 + G,).

    `data` (n,) are numbers 0..K-1. A block changes the cells that its own pairs stand in, so that
    the sum over all cells is taken once. Memory: 16 bytes for each of the K^2 cells.
    """
    symbols = int(data.max()) + 1
    size = data.size - lag
    cells = data[:size].astype(np.int64) * symbols + data[lag:]
    joint = np.bincount(cells, minlength=symbols**2)
    table = joint.reshape(symbols, symbols)
    rows = table.sum(axis=1)
    columns = table.sum(axis=0)
    whole = sum_of_logarithms(joint)

    def information(pairs: int, cells: Floats, rows: Counts, columns: Counts) -> float:
        of_rows = sum_of_logarithms(rows)
        of_columns = sum_of_logarithms(columns)
        return float(information_of_sums(pairs, cells=cells, rows=of_rows, columns=of_columns))

    values = [information(size, whole, rows, columns)]
    for start, stop in pairwise(np.minimum(edges, size).tolist()):
        own, counts = np.unique(cells[start:stop], return_counts=True)
        kept = joint[own] - counts
        without = whole - sum_of_logarithms(joint[own]) + sum_of_logarithms(kept)
        kept_rows = rows - np.bincount(data[start:stop], minlength=symbols)
        kept_columns = columns - np.bincount(data[start + lag : stop + lag], minlength=symbols)
        values.append(information(size - (stop - start), without, kept_rows, kept_columns))
    return np.array(values)
