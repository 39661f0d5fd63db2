"""How fast a difference between two arms vanishes as they train: the exponent of its decay, with an interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plkernel.analysis.statistics.bands import Curve
from plkernel.analysis.statistics.differences import critical_value

SMALLEST, LARGEST = -2.0, 6.0
"""Exponents that are looked at: beyond these a difference grows or vanishes too fast to be called a power law."""
POINTS = 1601


@dataclass(frozen=True)
class Vanishing:
    """The exponent `at` of a mean difference over n seeds that falls as bytes**-at, and its interval.

    low and high are infinite where the seeds do not bound it within SMALLEST to LARGEST, NaN for one seed. `at` is
    NaN where the mean difference changes its sign, and so follows no power law; all three are where no exponent passes.
    """

    at: float
    low: float
    high: float
    n: int


def decay_exponent(differences: Sequence[Curve], confidence: float = 0.95) -> Vanishing:
    """The p for which E[d(b)] = c * b**-p, from `differences`: d by bytes read b, a curve for each seed.

    With the right p, d(b) * b**p has the same mean at every b: the slope of a line through it against ln b is zero on
    average. The interval holds the p at which the seeds' slopes have a mean that a t test cannot tell from zero (a
    test inverted, as Fieller 1954 does). It covers the true p in a share `confidence` of repetitions, whatever the
    correlation along a curve and however the noise grows, if it is normal over seeds. Positions are those that all
    curves have, but b = 0. Raises ValueError for no curves or fewer than two positions.

    >>> found = decay_exponent([{1: 0.1, 10: 0.01, 100: 0.001}, {1: 0.3, 10: 0.03, 100: 0.003}])
    >>> round(found.at, 6)
    1.0
    """
    shared = sorted(set.intersection(*(set(curve) for curve in differences)) - {0}) if differences else []
    if len(shared) < 2:
        raise ValueError(f"differences: an exponent needs a curve, and two positions or more, got {shared}")
    values = np.array([[curve[at] for at in shared] for curve in differences])
    logs = np.log(np.array(shared, dtype=float))
    logs -= logs.mean()
    exponents = np.linspace(SMALLEST, LARGEST, POINTS)
    slopes = (np.exp(exponents[:, None] * logs) * logs) @ values.T  # (exponents, seeds)
    means = slopes.mean(axis=1)
    one_sign = bool((values.mean(axis=0) > 0).all() or (values.mean(axis=0) < 0).all())
    at = _root(exponents, means) if one_sign else math.nan
    n = len(differences)
    if n < 2:
        return Vanishing(at, math.nan, math.nan, n)
    halves = critical_value(n, confidence) * slopes.std(axis=1, ddof=1) / math.sqrt(n)
    inside = np.flatnonzero(np.abs(means) <= halves)
    if inside.size == 0:  # between two points of the grid, or a law that no exponent follows
        return Vanishing(at, at, at, n)
    low = -math.inf if inside[0] == 0 else float(exponents[inside[0]])
    high = math.inf if inside[-1] == POINTS - 1 else float(exponents[inside[-1]])
    return Vanishing(at, low, high, n)


def _root(exponents: NDArray[np.float64], means: NDArray[np.float64]) -> float:
    """Where the mean slope crosses zero; infinite when it does beyond what is looked at.

    A mean difference of one sign crosses once: its terms, in the order of b, change their sign once.
    """
    rising = means if means[-1] >= means[0] else -means
    if rising[0] > 0 or rising[-1] < 0:
        return -math.inf if rising[0] > 0 else math.inf
    after = max(int(np.argmax(rising >= 0)), 1)
    return float(np.interp(0.0, rising[after - 1 : after + 1], exponents[after - 1 : after + 1]))
