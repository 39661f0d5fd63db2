"""Where over a numeric factor the loss is least, with the interval that a few seeds allow."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plkernel.analysis.statistics.differences import critical_value

LEAST_LEVELS = 3


@dataclass(frozen=True)
class Optimum:
    """The least point `at` of the mean parabola over n seeds, and its interval (Fieller 1954).

    low and high are infinite where the seeds do not bound the optimum on that side, NaN for one seed. `at` is NaN
    where the mean parabola has no least point.
    """

    at: float
    low: float
    high: float
    n: int
    levels: tuple[float, ...]

    @property
    def inside(self) -> bool:
        """Whether the whole interval lies between the smallest and the largest level that was tried."""
        return bool(min(self.levels) <= self.low and self.high <= max(self.levels))

    def bounds(self) -> str:
        """The interval in words."""
        if math.isnan(self.low):
            return "one seed has none"
        if math.isinf(self.low) or math.isinf(self.high):
            return "not bounded by these seeds"
        return f"{self.low:.2f} to {self.high:.2f}" + ("" if self.inside else ", beyond what was tried")


def quadratic_optimum(values: Mapping[float, Mapping[int, float]], confidence: float = 0.95) -> Optimum:
    """The x that minimises the loss, from `values`: loss by level x and seed, the same seeds at every level.

    Each seed's losses get a least-squares parabola a + b x + c x**2. The optimum is -mean(b) / (2 mean(c)); its
    interval holds the x at which the seeds' slopes b + 2 c x have a mean that a t test cannot tell from zero. Where the
    losses are parabolas with normal noise it covers the true optimum in a share `confidence` of repetitions. Raises
    ValueError for fewer than three levels, or seeds that differ between levels.
    """
    levels = sorted(values)
    seeds = sorted(values[levels[0]]) if levels else []
    if len(levels) < LEAST_LEVELS or not seeds:
        raise ValueError(f"levels: a parabola needs {LEAST_LEVELS} or more, each with a seed, got {levels}")
    for level in levels:
        if sorted(values[level]) != seeds:
            raise ValueError(f"seeds: level {level:g} has {sorted(values[level])}, level {levels[0]:g} has {seeds}")
    losses = np.array([[values[level][seed] for seed in seeds] for level in levels])
    curvature, slope, _ = np.polyfit(levels, losses, 2)
    at = -slope.mean() / (2 * curvature.mean()) if curvature.mean() > 0 else math.nan
    low, high = _fieller(slope, 2 * curvature, confidence)
    return Optimum(float(at), low, high, len(seeds), tuple(levels))


def _fieller(slope: NDArray[np.float64], bend: NDArray[np.float64], confidence: float) -> tuple[float, float]:
    """The x with mean(slope + bend x)**2 <= t**2 var(slope + bend x) / n, as an interval.

    (B**2 - t**2 Sbb/n) x**2 + 2 (A B - t**2 Sab/n) x + (A**2 - t**2 Saa/n) <= 0 with means A, B and covariances S.
    """
    n = slope.size
    if n < 2:
        return math.nan, math.nan
    share = critical_value(n, confidence) ** 2 / n
    covariance = np.cov(slope, bend)
    means = np.array([slope.mean(), bend.mean()])
    constant, cross, square = (means[i] * means[j] - share * covariance[i, j] for i, j in ((0, 0), (0, 1), (1, 1)))
    root = cross**2 - square * constant
    if square <= 0 or means[1] <= 0 or root < 0:  # the curvature itself may be zero or negative
        return -math.inf, math.inf
    low, high = sorted(((-cross - math.sqrt(root)) / square, (-cross + math.sqrt(root)) / square))
    return float(low), float(high)
