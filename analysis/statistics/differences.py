"""Means and paired differences over seeds: t intervals, p corrected for several arms, and what may be said."""

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit


@dataclass(frozen=True)
class Estimate:
    """The mean of n values and its interval; bounds are NaN where n = 1 leaves no spread to judge by."""

    n: int
    mean: float
    low: float
    high: float
    standard_deviation: float


@dataclass(frozen=True)
class PairedDifference:
    """Arm minus baseline, seed by seed: their mean, its interval, and p of the paired t test (two-sided)."""

    n: int
    mean: float
    low: float
    high: float
    standard_deviation: float
    p_value: float
    per_seed: Mapping[int, float]

    @property
    def contains_zero(self) -> bool:
        """Whether the interval exists and contains zero."""
        return bool(self.low <= 0.0 <= self.high)


def critical_value(n: int, confidence: float = 0.95) -> float:
    """t such that the interval of n values is mean +- t * sd / sqrt(n): 12.7 at n = 2, 2.78 at n = 5.

    NaN for n < 2. Raises ValueError unless 0 < confidence < 1.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence: got {confidence}, give a number between 0 and 1, such as 0.95")
    return float(stdtrit(n - 1, 0.5 + confidence / 2)) if n > 1 else float("nan")


def mean_interval(values: Iterable[float], confidence: float = 0.95) -> Estimate:
    """mean +- t_{n-1} * sd / sqrt(n), the interval of Student (1908), sd with n - 1 in the denominator.

    Covers the true mean in a share `confidence` of repetitions when the values are independent and normal.
    With n = 1 the bounds and the standard deviation are NaN. Raises ValueError for no values.
    """
    data = np.asarray(list(values), dtype=np.float64)
    if data.size == 0:
        raise ValueError("values: got none, give at least one")
    mean, spread, half = (column[0] for column in student_interval(data[:, None], confidence))
    return Estimate(data.size, float(mean), float(mean - half), float(mean + half), float(spread))


def paired_difference(
    arm: Mapping[int, float], baseline: Mapping[int, float], confidence: float = 0.95
) -> PairedDifference:
    """Mean of arm[s] - baseline[s] over the seeds s that both have, its t interval, p of the paired t test.

    Runs of one seed share data order and base weights, so what those contribute cancels in the difference. p is
    NaN for n = 1 and where every difference is zero. Raises ValueError when no seed is shared.
    """
    shared = [seed for seed in arm if seed in baseline]
    if not shared:
        raise ValueError(f"seeds: {_names(arm)} and {_names(baseline)} have none in common, nothing to pair")
    per_seed = {seed: float(arm[seed]) - float(baseline[seed]) for seed in sorted(shared)}
    estimate = mean_interval(per_seed.values(), confidence)
    return PairedDifference(**vars(estimate), p_value=_p_value(estimate), per_seed=per_seed)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """p adjusted for being one of m tests (Holm 1979): the i-th smallest times m - i + 1, never below a smaller one's.

    Comparing each adjusted p with alpha keeps the chance of any false rejection at or below alpha, whatever the
    dependence between the tests (arms share their baseline). At most 1. A NaN stays NaN and does not count in m.
    Order and names are those of `p_values`. Raises ValueError naming a p outside [0, 1].
    """
    for name, p in p_values.items():
        if p < 0.0 or p > 1.0:
            raise ValueError(f"p_values: {name} has p = {p}, give a number from 0 to 1, or NaN for a test not made")
    tested = sorted((p, name) for name, p in p_values.items() if not math.isnan(p))
    adjusted = dict.fromkeys(p_values, math.nan)
    largest = 0.0
    for rank, (p, name) in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - rank) * p))
        adjusted[name] = largest
    return adjusted


def student_interval(values: NDArray[np.float64], confidence: float) -> tuple[NDArray[np.float64], ...]:
    """Mean, standard deviation and half width of the t interval of each column of values (n, S); NaN where n = 1."""
    n = len(values)
    mean = values.mean(axis=0)
    spread = values.std(axis=0, ddof=1) if n > 1 else np.full(mean.shape, np.nan)
    return mean, spread, critical_value(n, confidence) * spread / np.sqrt(n)


def verdict(difference: PairedDifference) -> str:
    """What the interval allows one to say, in a plain sentence without a full stop."""
    n = difference.n
    if n == 1:
        return "one seed: no interval, no claim"
    if not np.isfinite(difference.mean):
        return "a run has no finite value: no interval, no claim"
    if all(value == 0.0 for value in difference.per_seed.values()):
        return f"no difference at all in any of {n} seeds: the runs are identical"
    if difference.contains_zero:
        return f"the interval contains zero: with {n} seeds these runs cannot tell the difference from none"
    direction = "lower" if difference.mean < 0 else "higher"
    return f"the interval excludes zero: {direction} than the baseline over {n} seeds"


def _p_value(difference: Estimate) -> float:
    if difference.n < 2 or not np.isfinite(difference.mean):
        return float("nan")
    if difference.standard_deviation == 0.0:
        return 0.0 if difference.mean else float("nan")
    t = difference.mean * np.sqrt(difference.n) / difference.standard_deviation
    return float(2.0 * stdtr(difference.n - 1, -abs(t)))


def _names(values: Iterable[Hashable]) -> str:
    return ", ".join(str(value) for value in values) or "none"
