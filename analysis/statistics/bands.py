"""Difference curves over seeds, and their bands: pointwise, and simultaneous over all positions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plkernel.analysis.statistics.differences import critical_value, student_interval

Floats = NDArray[np.float64]

Curve = Mapping[int, float]
"""One seed's values by position (a step, or bytes read)."""

FEWEST_CURVES = 4
"""Fewer curves say too little about the correlation along them."""


@dataclass(frozen=True)
class Band:
    """Mean and interval of n curves at the positions all of them have: arrays of shape (S,)."""

    n: int
    at: NDArray[np.int64]
    mean: Floats
    low: Floats
    high: Floats


def difference_curves(arm: Mapping[int, Curve], baseline: Mapping[int, Curve]) -> dict[int, dict[int, float]]:
    """Arm minus baseline by seed, at the positions both have; seeds that only one has are left out."""
    return {
        seed: {at: curve[at] - baseline[seed][at] for at in sorted(curve) if at in baseline[seed]}
        for seed, curve in sorted(arm.items())
        if seed in baseline
    }


def pointwise_band(curves: Sequence[Curve], confidence: float = 0.95) -> Band:
    """Mean and t interval of the curves at each position that all of them have.

    Pointwise: each position on its own is covered with `confidence`; a whole curve leaves such a band more
    often. With one curve the bounds are NaN. Raises ValueError for no curves.
    """
    at, values = _table(curves)
    mean, _, half = student_interval(values, confidence)
    return Band(len(curves), at, mean, mean - half, mean + half)


def simultaneous_band(curves: Sequence[Curve], confidence: float = 0.95, draws: int = 4000, seed: int = 0) -> Band:
    """mean +- c * sd / sqrt(n) with one c for all positions: the whole true curve lies inside with `confidence`.

    c is the `confidence` quantile of max over s of |t_s|, found by drawing n Gaussian curves again and again and
    studentising each position as the band does, so that the heavy tails of few curves are in it. The curves drawn
    have the correlation of the given ones, in the wider of two ways, since n curves cannot tell much of it: the
    estimated matrix itself (right for smooth curves), and a Markov chain through the correlations of neighbours
    (right for rough ones, such as random walks). Bonferroni's c, t at (1 - confidence) / S, holds for any
    correlation: c is never larger, and below four curves it is used as it stands.

    Measured over 60 positions, 1000 repetitions each (standard error 0.007): of autoregressive curves (0.9), random
    walks with and without noise on top, smooth curves, white noise and heavy tails the band holds 0.935 to 0.98 at
    n = 5 and at n = 8, the pointwise band 0.05 to 0.80. It is wide: c is 6 to 9 at n = 5 and 4 to 5.6 at n = 8,
    where the pointwise band has 2.8 and 2.4.

    With one curve the bounds are NaN. Where all curves agree (step 0) the band has no width, and where one is not
    finite it is NaN; neither counts. Raises ValueError for no curves.
    """
    at, values = _table(curves)
    n = len(curves)
    mean, spread, half = student_interval(values, confidence)
    varies = np.isfinite(spread) & (spread > 0.0)
    if n > 1 and varies.any():
        half = spread / np.sqrt(n) * _simultaneous_value(values[:, varies], confidence, draws, seed)
    return Band(n, at, mean, mean - half, mean + half)


def _simultaneous_value(values: Floats, confidence: float, draws: int, seed: int) -> float:
    n, positions = values.shape
    bonferroni = critical_value(n, 1.0 - (1.0 - confidence) / positions)
    if n < FEWEST_CURVES:
        return bonferroni
    rng = np.random.default_rng(seed)
    residuals = values - values.mean(axis=0)
    residuals /= np.linalg.norm(residuals, axis=0)
    drawn = (_estimated(residuals, draws, rng), _markov(residuals, draws, rng))
    return min(bonferroni, max(float(np.quantile(_largest_t(columns), confidence)) for columns in drawn))


def _estimated(residuals: Floats, draws: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Position by position (n, draws) Gaussian values with the correlation matrix of the residuals (n, S)."""
    n = len(residuals)
    mixed = rng.normal(size=(n, n * draws))
    for column in residuals.T:
        yield (column @ mixed).reshape(n, draws)


def _markov(residuals: Floats, draws: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Likewise, with the correlation of neighbouring positions only: each value depends on the one before it."""
    shape = (len(residuals), draws)
    values = rng.normal(size=shape)
    yield values
    for correlation in np.clip((residuals[:, 1:] * residuals[:, :-1]).sum(axis=0), -1.0, 1.0):
        values = correlation * values + np.sqrt(1.0 - correlation**2) * rng.normal(size=shape)
        yield values


def _largest_t(columns: Iterable[Floats]) -> Floats:
    """max over positions of |t| of each draw (draws,), from n values each (n, draws)."""
    largest = np.zeros(1)
    for values in columns:
        n = len(values)
        mean = values.sum(axis=0) / n
        squares = ((values - mean) ** 2).sum(axis=0)
        largest = np.maximum(largest, n * (n - 1) * mean**2 / squares)
    return np.sqrt(largest)


def _table(curves: Sequence[Curve]) -> tuple[NDArray[np.int64], Floats]:
    """The positions that all curves have (S,), and the values there (n, S)."""
    if not curves:
        raise ValueError("curves: got none, give at least one")
    at = sorted(set.intersection(*(set(curve) for curve in curves)))
    values = np.array([[curve[x] for x in at] for curve in curves], dtype=np.float64).reshape(len(curves), len(at))
    return np.array(at, dtype=np.int64), values
