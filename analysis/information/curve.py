"""From bytes to a decay curve: mutual information against lag, with its floor and a jackknife over blocks."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plkernel.analysis.information.counts import Bytes, block_edges, check_data, check_lags, count_pairs, histogram
from plkernel.analysis.information.estimate import (
    ESTIMATORS,
    Estimator,
    Floats,
    correlation,
    correlation_drift,
    drift_table,
    each_left_out,
    expected_information,
    half_width,
    jackknife_error,
    mutual_information,
    pools,
    without_bias,
)

BLOCKS = 40
FEWEST_BLOCKS = 4
MAX_LAG = 1000
LAGS = 64
TABLE_BYTES = 1 << 26
"""Limit of the tables of one pass; lags beyond that wait for another pass."""


@dataclass(frozen=True)
class DecayCurve:
    """Decay of a dependence with the lag, and how far it can be trusted.

    quantity    'information' in nats, or 'correlation' (largest non-trivial singular value of the pair matrix)
    estimator   of the information; 'plugin' for the correlation
    unit        of the lags: 'byte' or 'word'
    size        symbols in the corpus
    symbols     different symbols in the corpus
    lags        (L,) ascending
    values      (L,)
    floor       (L,) mean of the plug-in estimate over all shuffles of the corpus, which have no memory
    drift       value that remains when each block of the jackknife is shuffled on its own: blocks of different
                composition, such as texts by several authors, show it at every lag
    replicates  (L, G) the values with block g of the corpus left out; of 'jackknife' corrected by `without_bias`
    """

    quantity: Literal["information", "correlation"]
    estimator: Estimator
    unit: str
    size: int
    symbols: int
    lags: tuple[int, ...]
    values: tuple[float, ...]
    floor: tuple[float, ...]
    drift: float
    replicates: tuple[tuple[float, ...], ...]

    def standard_errors(self) -> Floats:
        """(L,) by the delete-a-block jackknife (`jackknife_error`)."""
        return jackknife_error(np.asarray(self.replicates))

    def interval(self, confidence: float = 0.95) -> tuple[Floats, Floats]:
        """Lower and upper bounds (L,): value -+ t_{G-1} standard errors, at each lag on its own."""
        half = half_width(np.asarray(self.replicates), confidence)
        return np.asarray(self.values) - half, np.asarray(self.values) + half

    def last_above(self, limit: ArrayLike) -> int:
        """The last lag before the values first fall below `limit`, a number or (L,); 0 when the first lag does."""
        below = np.asarray(self.values) < limit
        count = int(np.argmax(below)) if below.any() else len(self.lags)
        return self.lags[count - 1] if count else 0


def log_lags(max_lag: int = MAX_LAG, count: int = LAGS) -> NDArray[np.int64]:
    """At most `count` different integers from 1 to max_lag, as evenly spaced in the logarithm as integers can be."""
    return np.unique(np.geomspace(1, max_lag, count).round().astype(np.int64))


def decay_curves(
    data: Bytes,
    lags: ArrayLike | None = None,
    *,
    estimator: Estimator = "jackknife",
    unit: str = "byte",
    blocks: int = BLOCKS,
    threads: int = 1,
    progress: Callable[[float], Any] | None = None,
) -> tuple[DecayCurve, DecayCurve]:
    """Information and correlation of the symbols of `data` (n,) uint8 at each of `lags`, from one count.

    lags       ascending, 1 or more; `log_lags(1000)` unless given
    estimator  treatment of the plug-in's bias, which is that of a corpus without memory, the floor, times about
               1 + 2 sum_k q(k)^2 where symbols k apart correlate by q(k):
               'shuffle': less the floor: exact for independent symbols, too little for any others; far lags of
               slowly decaying memory come out too high by more than their error, whatever the size of the corpus
               'jackknife': also less what remains beyond the floor, as the jackknife estimates it (`without_bias`).
               Not from the plug-in at once: with many rare symbols its bias does not fall as 1/n, that of the rest does
               'plugin', 'miller-madow', 'grassberger': the entropies as they are (`mutual_information`)
    blocks     of the jackknife. They must be longer than the memory, for its errors to be honest and for the correction
               to be whole: memory that a block is short beside stays in the values
    threads    lags counted at the same time; the curves do not depend on it
    progress   called with the share of the work done since the last call; the shares add up to 1

    Memory does not grow with n. Raises ValueError for unknown estimators, unusable lags, and data that are too short
    or hold one symbol only.

    >>> from plkernel.analysis.information.laws import fit_power_law
    >>> from plkernel.analysis.sequences import PottsCorpus
    >>> data = np.concatenate(list(PottsCorpus(beta=1.0, size=500_000).blocks()))
    >>> information, _ = decay_curves(data, log_lags(100))
    >>> law = fit_power_law(information)
    >>> bool(law.low < law.beta < law.high)
    True
    """
    if estimator not in ESTIMATORS:
        raise ValueError(f"estimator {estimator!r}: must be one of {', '.join(ESTIMATORS)}")
    lags = log_lags() if lags is None else check_lags(lags)
    longest = int(lags[-1])
    if blocks < FEWEST_BLOCKS:
        raise ValueError(f"blocks must be at least {FEWEST_BLOCKS} for a jackknife of either half, got {blocks}")
    check_data(data, longest, blocks)
    edges, counts = block_edges(data.size, longest, blocks), histogram(data)
    symbols = np.flatnonzero(counts).astype(np.uint8)
    if symbols.size < 2:
        raise ValueError(f"data holds one symbol only, {symbols[0]}: there is no information to share between lags")
    parts = np.stack([histogram(data[start:stop]) for start, stop in pairwise(edges)])[:, symbols]
    floors = np.array([expected_information(part) for part in (counts, *(counts[symbols] - parts))])
    drift, pool = drift_table(parts), pools(counts[symbols])
    report = progress or (lambda share: None)
    pairs = float(np.sum(data.size - lags))

    def estimate(tables: NDArray[Any]) -> tuple[Floats, Floats]:
        total = tables.sum(axis=0, dtype=np.int64)
        left = np.concatenate([total[None], total - tables])
        report(0.5 / lags.size)  # counting is the other half of the work
        return mutual_information(left, estimator), correlation(tables, pool)

    estimates: list[tuple[Floats, Floats]] = []
    at_once = max(1, TABLE_BYTES // (blocks * symbols.size**2 * np.dtype(np.uint32).itemsize))
    for first in range(0, lags.size, at_once):
        some, told = lags[first : first + at_once], lambda done: report(0.5 * done / pairs)
        tables = count_pairs(data, some, symbols=symbols, edges=edges, threads=threads, progress=told)
        with ThreadPoolExecutor(threads) as workers:
            estimates += workers.map(estimate, tables)
    information, correlations = (np.array(values) for values in zip(*estimates, strict=True))
    sizes = np.diff(np.minimum(edges, (data.size - lags)[:, None]))
    floor = floors * each_left_out(parts.sum(axis=1)) / each_left_out(sizes)
    if estimator in ("jackknife", "shuffle"):
        information = information - floor
    if estimator == "jackknife":
        information = without_bias(information, sizes)

    def curve(kind: Any, estimator: Estimator, values: Floats, floor: list[float], drift: float) -> DecayCurve:
        columns = tuple(lags.tolist()), tuple(values[:, 0].tolist()), tuple(floor)
        replicates = tuple(map(tuple, values[:, 1:].tolist()))
        return DecayCurve(kind, estimator, unit, int(data.size), int(symbols.size), *columns, drift, replicates)

    # The edge of the Marchenko-Pastur law for half the pairs; below half of it the singular vectors are noise.
    noise = 2 * np.sqrt(2 * pool.max() / (data.size - lags))
    return (
        curve("information", estimator, information, floor[:, 0].tolist(), float(mutual_information(drift))),
        curve("correlation", "plugin", correlations, noise.tolist(), correlation_drift(drift, pool)),
    )
