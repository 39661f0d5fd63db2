"""The best linear predictor of the next symbol: correlations, exact or measured, and the weights that follow from them.

With e_t the indicator vector of the symbol at t and p its mean, the predictor with one number for each lag,

    e_t - p  =  sum_{k=1..L} w(k) (e_{t-k} - p) ,   solves   sum_k w(k) q(|d - k|) = q(d) ,  d = 1..L ,  q(0) = 1 ,

q(d) being the correlation of `repeat_correlations`. Of a mixture of lags, where a byte copies the one k before it with
probability w(k), they are exactly those probabilities, and the predictor is the true conditional distribution. So a
kernel that predicts follows w, neither the information nor q, which falls more slowly since copies are copied.

Source: Yule (1927) and Walker (1931); Raftery (JRSS B 47:528, 1985) for mixtures, equation of their correlations.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plkernel.analysis.information.counts import Bytes, block_edges, check_data, histogram
from plkernel.analysis.information.curve import BLOCKS, FEWEST_BLOCKS
from plkernel.analysis.information.estimate import Floats, each_left_out, half_width, jackknife_error, without_bias
from plkernel.analysis.information.laws import log_log_slope

REACH = 4
"""The predictor sees so many times the lags that are asked for: the weights near its end stand in for all beyond it."""
PER_OCTAVE = 4
FEWEST_BANDS = 3


def repeat_correlations(
    data: Bytes,
    longest: int,
    *,
    blocks: int = BLOCKS,
    threads: int = 1,
    progress: Callable[[float], Any] | None = None,
) -> Floats:
    """r(d) = (P(x_t = x_{t+d}) - sum p_i^2) / (1 - sum p_i^2) at every d = 1..longest, (longest, 1 + G).

    The autocorrelation E<e_t - p, e_{t+d} - p> / E|e_t - p|^2 of the indicator vectors e_t of the symbols. Where
    P_ij = (1 - q) p_i p_j + q p_i [i = j], as in a Potts sequence and a mixture of lags, it is q(d). Its sign is free
    and it is 0 on average without memory: there is no floor to subtract. The first column is the estimate, the others
    the estimate with each block left out, all less the bias of order 1/n (`without_bias`).

    Takes `longest` comparisons for each symbol of `data` (n,) uint8, some 0.3 s for 1 MB at longest 1024, and memory
    that does not grow with n. Raises ValueError for data too short, and for data of one symbol.
    """
    if blocks < FEWEST_BLOCKS:
        raise ValueError(f"blocks must be at least {FEWEST_BLOCKS} for a jackknife, got {blocks}")
    check_data(data, longest, blocks)
    data = np.asarray(data)  # a mapped file as a plain array
    edges, lags = block_edges(data.size, longest, blocks), np.arange(1, longest + 1)
    parts = np.stack([histogram(data[start:stop]) for start, stop in pairwise(edges)])
    if np.count_nonzero(parts.sum(axis=0)) < 2:
        raise ValueError(f"data holds one symbol only, {data[0]}: there is nothing to predict")

    def repeats(ends: tuple[int, int]) -> NDArray[np.int64]:
        start, stop = ends
        equal = [np.count_nonzero(data[start : min(stop, data.size - d)] == data[start + d : stop + d]) for d in lags]
        if progress is not None:
            progress((stop - start) / data.size)
        return np.array(equal)

    with ThreadPoolExecutor(threads) as workers:
        repeated = np.stack(list(workers.map(repeats, pairwise(edges.tolist()))), axis=1)
    sizes = np.diff(np.minimum(edges, (data.size - lags)[:, None]))
    chance = np.sum((each_left_out(parts.T) / each_left_out(parts.sum(axis=1))) ** 2, axis=0)
    return without_bias((each_left_out(repeated) / each_left_out(sizes) - chance) / (1 - chance), sizes)


def yule_walker(correlations: ArrayLike, ridge: float = 0.0) -> Floats:
    """w (L,) from the correlations q(1..L), with q(0) = 1 + ridge, by Levinson's recursion.

    Raises ValueError where these are the correlations of no sequence, so that the equations have no solution.

    >>> abs(yule_walker([0.5, 0.25, 0.125])).round(12).tolist()
    [0.5, 0.0, 0.0]
    """
    from scipy.linalg import solve_toeplitz

    q = np.asarray(correlations, dtype=np.float64)
    try:
        return np.asarray(solve_toeplitz(np.append(1 + ridge, q[:-1]), q))
    except np.linalg.LinAlgError as error:
        raise ValueError(f"correlations of {q.size} lags have no Yule-Walker solution ({error})") from error


def noise_ridge(correlations: ArrayLike, errors: ArrayLike) -> float:
    """The least ridge under which no eigenvalue of the measured equations is below the noise of their spectrum.

    The eigenvalues lie within the spectrum f(x) = 1 + 2 sum_d q(d) cos(d x), whose noise, as a root mean square over x,
    is sqrt(2 sum_d errors(d)^2) for independent errors. A spectrum that stays above its noise needs no ridge, and more
    data make the ridge vanish. q and errors (L,).
    """
    q = np.asarray(correlations, dtype=np.float64)
    spectrum = 2 * np.fft.rfft(np.append(0.5, q), 8 * q.size).real
    noise = np.sqrt(2 * np.sum(np.asarray(errors) ** 2))
    return float(max(0.0, noise - spectrum.min()))


@dataclass(frozen=True, eq=False)
class Bands:
    """Means of weights over bands of lags, evenly wide in ln d, in which noise averages out.

    edges       (B + 1,) integers: band b holds the lags edges[b] <= d < edges[b + 1]
    values      (B,)
    replicates  (B, G)
    """

    edges: NDArray[np.int64]
    values: Floats
    replicates: Floats

    @property
    def lags(self) -> Floats:
        """(B,) harmonic means of the lags: where weights ~ 1/d, close to which they are, have their mean."""
        reciprocal = np.add.reduceat(1 / np.arange(self.edges[0], self.edges[-1]), self.edges[:-1] - self.edges[0])
        return np.asarray(np.diff(self.edges) / reciprocal)

    def standard_errors(self) -> Floats:
        """(B,) by the delete-a-block jackknife."""
        return jackknife_error(self.replicates)

    def clear(self, confidence: float = 0.95) -> NDArray[np.intp]:
        """The bands whose interval is above 0, which a positive kernel can follow."""
        return np.flatnonzero(self.values > half_width(self.replicates, confidence))


@dataclass(frozen=True)
class Slope:
    """beta of weights ~ d**-beta on the bands of a range of lags, with its interval by the jackknife."""

    beta: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class PredictiveWeights:
    """Measured weights at d = 1..L: values (L,), replicates (L, G) with each block left out, and the ridge in both."""

    values: Floats
    replicates: Floats
    ridge: float

    def bands(self, first: int, last: int, per_octave: int = PER_OCTAVE) -> Bands:
        """Means over bands of first..last, both included; the ridge shrinks them."""
        count = max(2, 1 + round(per_octave * np.log2((last + 1) / first)))
        edges = np.unique(np.geomspace(first, last + 1, count).round().astype(np.int64))
        widths, starts = np.diff(edges), edges[:-1] - first

        def mean(values: Floats) -> Floats:
            return np.asarray((np.add.reduceat(values[first - 1 : last], starts, axis=0).T / widths).T)

        return Bands(edges, mean(self.values), mean(self.replicates))

    def slope(self, first: int, last: int, confidence: float = 0.95) -> Slope:
        """beta on first..last, each octave counting the same.

        Raises ValueError where fewer than three bands are positive. Bands that are not are left out.
        """
        bands = self.bands(first, last)
        used = np.flatnonzero(bands.values > 0)
        if used.size < FEWEST_BANDS:
            raise ValueError(f"weights on lags {first} to {last}: {used.size} positive bands, a slope needs 3")
        values, lags = bands.values[used], bands.lags[used]
        beta = log_log_slope(lags, values)
        steps = bands.replicates[used] / values[:, None] - 1  # of ln values, to first order
        each = np.array([log_log_slope(lags, values * np.exp(step)) for step in steps.T])
        half = float(half_width(each, confidence))
        return Slope(beta, beta - half, beta + half)


def predictive_weights(
    data: Bytes,
    lags: int,
    *,
    threads: int = 1,
    progress: Callable[[float], Any] | None = None,
) -> PredictiveWeights:
    """Measure the weights at d = 1..lags of the best predictor of `data` (n,) uint8 from `REACH` times as many symbols.

    From `repeat_correlations` with `noise_ridge`; the ridge of the replicates is that of all data. Raises ValueError as
    they do.
    """
    correlations = repeat_correlations(data, REACH * lags, threads=threads, progress=progress)
    ridge = noise_ridge(correlations[:, 0], jackknife_error(correlations[:, 1:]))
    weights = np.stack([yule_walker(column, ridge)[:lags] for column in correlations.T], axis=1)
    return PredictiveWeights(weights[:, 0], weights[:, 1:], ridge)
