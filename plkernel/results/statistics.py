"""Statistics of arms that share their seeds: means, paired differences, curves and their bands."""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import nctdtr, stdtr

from plkernel.analysis.intervals import critical_value, student_interval

Floats = NDArray[np.float64]
ALPHA = 0.05
"""The significance level of reports."""
ROUNDING = 1e-12
"""A spread of differences is none if it is smaller beside the numbers that they are of."""
LossCurve = Mapping[int, float]
"""Values of one seed by position: a step, or bytes read."""
Key = TypeVar("Key")


@dataclass(frozen=True)
class Estimate:
    """The mean of n values with its t interval.

    Bounds and standard deviation are NaN where n = 1, all where n = 0.
    """

    n: int
    mean: float
    low: float
    high: float
    standard_deviation: float


@dataclass(frozen=True)
class PairedDifference(Estimate):
    """Arm minus baseline, seed by seed: mean, t interval, and p of the two-sided paired t test."""

    p_value: float
    per_seed: Mapping[int, float]


def mean_interval(values: Iterable[float], confidence: float = 0.95) -> Estimate:
    """mean +- t_{n-1} * sd / sqrt(n), the interval of Student (1908), sd with divisor n - 1."""
    data = np.asarray(list(values), dtype=np.float64)
    if data.size == 0:
        return Estimate(0, math.nan, math.nan, math.nan, math.nan)
    columns = student_interval(data[:, None], confidence)
    mean, spread, half = (float(column[0]) for column in columns)
    return Estimate(data.size, mean, mean - half, mean + half, spread)


def paired_difference(
    arm: Mapping[int, float], baseline: Mapping[int, float], confidence: float = 0.95
) -> PairedDifference:
    """Mean of arm[s] - baseline[s] over the seeds s of both, its t interval and p of the t test.

    Runs of one seed share data order and base weights, so their contribution cancels in the
    difference. Without any spread the t test has no scale: then p is that of sign flips, two-sided,
    2**(1 - n). It is NaN for n = 1 and where every difference is zero.
    """
    seeds = sorted(arm.keys() & baseline.keys())
    per_seed = {seed: float(arm[seed]) - float(baseline[seed]) for seed in seeds}
    one = mean_interval(per_seed.values(), confidence)
    if lacks_spread(per_seed.values(), [*arm.values(), *baseline.values()]):
        p_value = 2.0 ** (1 - one.n) if one.n > 1 and one.mean else math.nan
    else:
        p_value = 2.0 * float(stdtr(one.n - 1, -abs(t_statistic(one))))
    return PairedDifference(**vars(one), p_value=p_value, per_seed=per_seed)


def lacks_spread(values: Iterable[float], of: Iterable[float]) -> bool:
    """True if values differ by no more than the rounding of the numbers that they are made of."""
    data = np.asarray(list(values), dtype=np.float64)
    scale = max(map(abs, of), default=0.0)
    return data.size > 0 and bool(np.ptp(data) <= ROUNDING * scale)


def magnitude(one: PairedDifference) -> PairedDifference:
    """A difference without the sign of its mean: baseline minus arm where the arm is lower."""
    if not one.mean < 0:
        return one
    per_seed = {seed: -value for seed, value in one.per_seed.items()}
    return replace(one, mean=-one.mean, low=-one.high, high=-one.low, per_seed=per_seed)


def t_statistic(one: Estimate) -> np.float64:
    """mean * sqrt(n) / sd: infinite where there is no spread, NaN where the mean is zero too."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.float64(one.mean) * math.sqrt(one.n) / one.standard_deviation


def with_p(p_values: Mapping[Key, float]) -> list[Key]:
    """The keys whose p is not NaN: those that `holm` corrects over."""
    return [name for name, p in p_values.items() if not math.isnan(p)]


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """p times m - i + 1 for the i-th smallest of m, never below a smaller one's (Holm 1979).

    Comparing adjusted p with alpha keeps the chance of any false rejection at or below alpha,
    whatever the dependence between the tests. At most 1. NaN stays NaN and does not count in m,
    which is the number of keys of `with_p`.
    """
    ascending = sorted(with_p(p_values), key=p_values.__getitem__)
    adjusted = dict.fromkeys(p_values, math.nan)
    largest = 0.0
    for at, name in enumerate(ascending):
        largest = max(largest, (len(ascending) - at) * p_values[name])
        adjusted[name] = min(largest, 1.0)
    return adjusted


def detectable_difference(sd: float, n: int, power: float = 0.8) -> float:
    """The smallest true difference that a two-sided paired t test of n seeds finds with this power.

    The power is P(|T| > t_{n-1, 1-ALPHA/2}), T noncentral t with n - 1 degrees. The difference is
    proportional to `sd`, and has its unit: from a few seeds that is itself uncertain, by a factor
    of 2.4 at n = 5. NaN for n < 2 and unless sd is positive and finite.
    """
    if n < 2 or not 0.0 < sd < math.inf:
        return math.nan
    return sd / math.sqrt(n) * _detectable_shift(n, power)


@functools.cache
def _detectable_shift(n: int, power: float) -> float:
    """The smallest true difference that is found, in standard errors of the mean of n."""
    from scipy.optimize import brentq

    t = critical_value(n, 1.0 - ALPHA)

    def missing_power(shift: float) -> float:
        # nctdtr is NaN in tails that have vanished
        below, far_below = np.nan_to_num(nctdtr(n - 1, shift, [t, -t]))
        return float(below - far_below) - (1.0 - power)

    surely_found = 20.0 * (t + 1.0)
    return float(brentq(missing_power, 0.0, surely_found, xtol=1e-12, rtol=1e-12))


# Curves and their bands


class Band(NamedTuple):
    """Mean and interval of curves at the positions all of them have: arrays of shape (S,)."""

    at: NDArray[np.int64]
    mean: Floats
    low: Floats
    high: Floats


def difference_curves(
    arm: Mapping[int, LossCurve], baseline: Mapping[int, LossCurve]
) -> dict[int, dict[int, float]]:
    """Arm minus baseline by seed, for the seeds of both, at the positions of both."""
    curves = {}
    for seed in sorted(arm.keys() & baseline.keys()):
        own = arm[seed]
        base = baseline[seed]
        curves[seed] = {at: own[at] - base[at] for at in sorted(own.keys() & base.keys())}
    return curves


def reached(curve: LossCurve, loss: float) -> float:
    """The position where a curve is first at or below `loss`; infinite if nowhere.

    Between two positions the curve is linear in the logarithm of the position.
    """
    positions = sorted(position for position in curve if position > 0)
    for place, position in enumerate(positions):
        if curve[position] <= loss:
            before = positions[max(place - 1, 0)]
            falling = [-curve[before], -curve[position]]
            return math.exp(np.interp(-loss, falling, np.log([before, position])))
    return math.inf


def pointwise_band(curves: Sequence[LossCurve]) -> Band:
    """Mean and t interval of the curves at each position on its own; bounds are NaN for one curve.

    A whole curve leaves such a band more often than in 5 of 100 cases.
    """
    at = sorted(set.intersection(*map(set, curves)))
    rows = [[curve[position] for position in at] for curve in curves]
    values = np.array(rows, dtype=np.float64).reshape(len(curves), len(at))
    mean, _, half = student_interval(values, 0.95)
    return Band(np.array(at, dtype=np.int64), mean, mean - half, mean + half)
