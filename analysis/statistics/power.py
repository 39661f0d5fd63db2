"""How small an effect n seeds can see: power of the paired t test, standardised effects."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy.special import chdtri, gammaln, nctdtr

from plkernel.analysis.statistics.differences import PairedDifference, critical_value


@dataclass(frozen=True)
class StandardisedEffect:
    """Cohen's d_z of n paired differences with its exact interval, and Hedges' g, its unbiased version."""

    n: int
    d_z: float
    low: float
    high: float
    hedges_g: float


def power_of(difference: float, sd: float, n: int, alpha: float = 0.05) -> float:
    """P(|T| > t_{n-1, 1-alpha/2}) with T noncentral t, n - 1 degrees, noncentrality difference * sqrt(n) / sd.

    The chance that a two-sided paired t test of n seeds rejects at `alpha` when the true mean difference is
    `difference` and paired differences spread by `sd`, the true one. Exact for normal differences, from n = 2 on.
    Raises ValueError for n < 2, an sd that is not positive, or alpha outside (0, 1).
    """
    _check(sd, alpha, n)
    if not math.isfinite(difference):
        raise ValueError(f"difference: got {difference}, give a finite number")
    return _power(abs(difference) * math.sqrt(n) / sd, n, alpha)


def detectable_difference(sd: float, n: int, power: float = 0.8, alpha: float = 0.05) -> float:
    """The smallest true difference that a two-sided paired t test of n seeds finds with this power, in units of sd.

    The root of power_of(difference, sd, n, alpha) = power. It is proportional to `sd`: a standard deviation taken
    from few seeds is itself uncertain, so that the answer is too (a factor of 2.4 at n = 5); `sd_upper` gives a
    value for sd that is large enough. Raises ValueError as `power_of` does and unless alpha < power < 1.
    """
    _check(sd, alpha, n)
    _check_power(power, alpha)
    return sd * _noncentrality(lambda shift: _power(shift, n, alpha) - power, 0.0) / math.sqrt(n)


def sd_upper(sd: float, n: int, confidence: float = 0.95) -> float:
    """sd * sqrt((n - 1) / q), q the 1 - confidence quantile of chi-square with n - 1 degrees: one-sided upper bound.

    The true standard deviation of normal values lies below it in a share `confidence` of repetitions: 16 times the
    estimate at n = 2, 2.4 times at n = 5, 1.8 times at n = 8. Raises ValueError for n < 2 or an sd that is not
    positive.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence: got {confidence}, give a number between 0 and 1, such as 0.95")
    _check(sd, 1.0 - confidence, n)
    return sd * math.sqrt((n - 1) / float(chdtri(n - 1, confidence)))


def standardised_effect(difference: PairedDifference, confidence: float = 0.95) -> StandardisedEffect:
    """d_z = mean / sd of the differences, g = J d_z, J = Gamma(v/2) / (sqrt(v/2) Gamma((v-1)/2)), v = n - 1.

    J removes the bias of d_z (Hedges 1981): 0.80 at n = 5, 0.89 at n = 8; none exists at n = 2, where g is NaN. The
    interval holds every effect whose noncentral t distribution has the observed t between its tail quantiles; it
    excludes zero exactly when the t interval does. All NaN where there is no spread: n = 1, or equal differences.
    """
    n, sd = difference.n, difference.standard_deviation
    if not (sd > 0.0 and math.isfinite(difference.mean)):
        return StandardisedEffect(n, *[math.nan] * 4)
    d_z = difference.mean / sd
    low, high = _noncentral_interval(d_z * math.sqrt(n), n - 1, confidence)
    return StandardisedEffect(n, d_z, low / math.sqrt(n), high / math.sqrt(n), hedges_correction(n) * d_z)


def hedges_correction(n: int) -> float:
    """J such that J * mean / sd of n values has the expectation mu / sigma; NaN below n = 3, where no J does."""
    if n < 3:
        return math.nan
    v = n - 1
    return math.exp(gammaln(v / 2) - gammaln((v - 1) / 2)) / math.sqrt(v / 2)


def sensitivity(difference: PairedDifference, power: float = 0.8, alpha: float = 0.05) -> str:
    """How small a difference these seeds could have seen, in a plain sentence without a full stop.

    From the spread that was observed, and in brackets from the 95 % upper bound of it.
    """
    n, sd = difference.n, difference.standard_deviation
    if n < 2 or not math.isfinite(sd):
        return "no spread to judge by: how small a difference could have been seen is unknown"
    if sd == 0.0:
        return f"no spread in {n} seeds: how small a difference could have been seen is unknown"
    seen, at_most = (detectable_difference(spread, n, power, alpha) for spread in (sd, sd_upper(sd, n)))
    return (
        f"with {n} seeds and this spread a difference of {seen:.2g} or more is found {10 * power:g} times in 10 "
        f"(of {at_most:.2g} or more if the true spread is at its 95 % upper bound)"
    )


def _power(noncentrality: float, n: int, alpha: float) -> float:
    beyond = critical_value(n, 1.0 - alpha)
    return _cdf(n - 1, noncentrality, -beyond) + 1.0 - _cdf(n - 1, noncentrality, beyond)


def _cdf(degrees: int, noncentrality: float, t: float) -> float:
    """P(T <= t). The series behind `nctdtr` gives NaN in tails that have vanished (below 1e-13), here 0 or 1."""
    probability = float(nctdtr(degrees, noncentrality, t))
    return float(noncentrality < t) if math.isnan(probability) else probability


def _noncentral_interval(t: float, degrees: int, confidence: float) -> tuple[float, float]:
    """The noncentralities at which `t` is the upper and the lower tail quantile."""
    tail = (1.0 - confidence) / 2
    size = abs(t)
    low = _noncentrality(lambda shift: 1.0 - tail - _cdf(degrees, shift, size), -1.0)
    high = _noncentrality(lambda shift: tail - _cdf(degrees, shift, size), -1.0)
    return (low, high) if t >= 0 else (-high, -low)


def _noncentrality(excess: Callable[[float], float], low: float) -> float:
    """The root of a function that rises with the noncentrality; sought from `low`, or below if that is negative."""
    from scipy.optimize import brentq

    high = 1.0
    while excess(low) > 0.0:
        low *= 2.0
    while excess(high) < 0.0:
        high *= 2.0
    return float(brentq(excess, low, high, xtol=1e-12, rtol=1e-12))


def _check(sd: float, alpha: float, n: int) -> None:
    if n < 2:
        raise ValueError(f"n: got {n}, a spread needs at least 2 seeds")
    if not (sd > 0.0 and math.isfinite(sd)):
        raise ValueError(f"sd: got {sd}, give the standard deviation of paired differences, a positive number")
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha: got {alpha}, give a number between 0 and 1, such as 0.05")


def _check_power(power: float, alpha: float) -> None:
    if not alpha < power < 1.0:
        raise ValueError(f"power: got {power}, give a number between alpha = {alpha} and 1, such as 0.8")
