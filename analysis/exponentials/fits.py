"""Sums of exponentials for a target, by the name of the fit.

minimax        K terms with the least largest relative error (`minimax`)
least-squares  K terms with the least sum of squared logarithmic errors, for targets with errors (`free_terms`)
quadrature     McLean's rule for t**-beta, K terms
trapezoid      the trapezoid rule for t**-beta in ln(rate), K terms
nnls           weights on given half-lives, on the linear scale: the published fit
nnls-relative  weights on given half-lives, relative to the target: nearly exact, but keeps 30 to 60 terms
"""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plkernel.analysis.exponentials.free_terms import least_squares_terms
from plkernel.analysis.exponentials.minimax import minimax
from plkernel.analysis.exponentials.sums import ExponentialSum, nonnegative
from plkernel.analysis.exponentials.targets import Target

Floats = NDArray[np.float64]
Method = Literal["minimax", "least-squares", "quadrature", "trapezoid", "nnls", "nnls-relative"]
Rule = Callable[[Floats, float, float], tuple[Floats, Floats]]

METHODS: tuple[Method, ...] = get_args(Method)
PUBLISHED_HALF_LIVES = (1.0, 2048.0, 256)
RELATIVE_NODES = 256
RELATIVE_ROWS = 512
RELATIVE_ENDS = (0.1, 4.0)
"""Shortest half-life over the first lag and longest over the last, of the grid of `nnls-relative`."""
RULE_POINTS = 300
RULE_STARTS = 12


def fit_sum(
    target: Target, method: Method = "minimax", *, terms: int | None = None, half_lives: ArrayLike | None = None
) -> ExponentialSum:
    """The sum of exponentials that `method` finds for `target`.

    terms       how many, for minimax, least-squares, quadrature and trapezoid
    half_lives  (N,) in steps, which nnls and nnls-relative may use; those of `nnls` and `nnls_relative` unless given

    Raises ValueError for unknown methods, options that the method does not take, and what the method itself refuses.

    >>> from plkernel.analysis.exponentials.targets import power_law_target
    >>> len(fit_sum(power_law_target(1.15, 512), "quadrature", terms=6).rates)
    6
    """
    if method in BY_TERMS:
        if terms is None or half_lives is not None:
            raise ValueError(f"method {method!r} takes the number of terms, and no half-lives: pass terms")
        return BY_TERMS[method](target, terms)
    if method in BY_HALF_LIVES:
        if terms is not None:
            raise ValueError(
                f"method {method!r} chooses the number of terms itself, got terms {terms}: pass half_lives"
            )
        return BY_HALF_LIVES[method](target, half_lives)
    raise ValueError(f"method {method!r}: must be one of {', '.join(METHODS)}")


def nnls(target: Target, half_lives: ArrayLike | None = None) -> ExponentialSum:
    """Weights >= 0 with the least sum of (k - target)**2 over the integer lags, or over the lags of a discrete target.

    The first lags decide. half_lives: (N,), the published 256 from 1 to 2048 unless given. Where the target has errors,
    each difference is divided by error times value. Source: Lawson & Hanson, "Solving Least Squares Problems" (1974),
    chapter 23, as in scipy.optimize.nnls.
    """
    shortest, longest, count = PUBLISHED_HALF_LIVES
    rates = _rates(np.geomspace(shortest, longest, count) if half_lives is None else half_lives)
    lags = target.integer_lags()
    values = target.value(lags)
    scale = 1.0 if target.errors is None else 1 / (values * np.asarray(target.errors))
    return nonnegative(rates, lags, values, scale)


def nnls_relative(target: Target, half_lives: ArrayLike | None = None) -> ExponentialSum:
    """Weights >= 0 with the least sum of (k / target - 1)**2 over 512 lags spread in ln t, or over the target's errors.

    half_lives: (N,), 256 from 0.1 first lags to 4 last lags unless given, enough for exponents of 0.5 to 2: flatter
    targets need longer ones and steeper ones shorter. A target with errors is fitted at all its lags, each divided by
    its relative error.
    """
    shortest, longest = RELATIVE_ENDS[0] * target.lags[0], RELATIVE_ENDS[1] * target.max_lag
    rates = _rates(np.geomspace(shortest, longest, RELATIVE_NODES) if half_lives is None else half_lives)
    if target.errors is None:
        lags, counts = target.spread_lags(RELATIVE_ROWS)
        scale = np.sqrt(counts)
    else:
        lags, scale = np.asarray(target.lags), 1 / np.asarray(target.errors)
    return nonnegative(rates, lags, target.value(lags), scale / target.value(lags), balanced=True).active(0.0)


def quadrature(target: Target, terms: int) -> ExponentialSum:
    """The trapezoid rule in x for t**-beta = integral of exp(-t rate) rate**(beta-1) d rate / Gamma(beta).

    Here rate = exp(x - exp(-x)) / T, which ends the integrand sharply on both sides. First node and step are those
    with the least largest relative error, after the best common scale.
    Source: McLean, "Exponential sum approximations for t^-beta" (2018, arXiv 1606.00123).
    """
    return _rule(target, terms, _mclean, (-3.0, 0.5), (0.0, 4.0))


def trapezoid(target: Target, terms: int) -> ExponentialSum:
    """The trapezoid rule for the integral of `quadrature` with rate = exp(x) / T, its nodes chosen likewise.

    Source: Beylkin & Monzon, "Approximation by exponential sums revisited", Appl. Comput. Harmon. Anal. 28 (2010).
    """
    return _rule(target, terms, _exponential, (-7.0, 0.5), (-1.0, 3.0))


BY_TERMS: dict[str, Callable[[Target, int], ExponentialSum]] = {
    "minimax": minimax,
    "least-squares": least_squares_terms,
    "quadrature": quadrature,
    "trapezoid": trapezoid,
}
BY_HALF_LIVES: dict[str, Callable[[Target, ArrayLike | None], ExponentialSum]] = {
    "nnls": nnls,
    "nnls-relative": nnls_relative,
}


def _rates(half_lives: ArrayLike) -> Floats:
    array = np.atleast_1d(np.asarray(half_lives, dtype=float))
    if array.ndim != 1 or not array.size or not (np.isfinite(array) & (array > 0)).all():
        raise ValueError("half_lives must be positive and finite, one or more")
    return np.asarray(np.log(2) / np.sort(array))


def _mclean(x: Floats, beta: float, max_lag: float) -> tuple[Floats, Floats]:
    """ln rates and ln weights, up to a common factor, of the nodes x."""
    log_rates = x - np.exp(-x)
    return log_rates - np.log(max_lag), beta * log_rates + np.log1p(np.exp(-x))


def _exponential(x: Floats, beta: float, max_lag: float) -> tuple[Floats, Floats]:
    return x - np.log(max_lag), beta * x


def _rule(
    target: Target, terms: int, rule: Rule, first: tuple[float, float], last: tuple[float, float]
) -> ExponentialSum:
    """The equidistant nodes with the least error; `first` and `last` (beyond ln T) bound where the search starts."""
    from scipy.optimize import minimize

    beta = target.beta
    if beta is None:
        raise ValueError(f"quadrature knows power laws only, not {target.label}: use minimax or least-squares")
    if terms < 2:
        raise ValueError(f"terms must be at least 2 for a rule with equal steps, got {terms}")
    first_lag, span = target.lags[0], target.max_lag / target.lags[0]
    lags, _ = target.spread_lags(RULE_POINTS)
    logs = target.log_value(lags)

    def kernel(ends: Sequence[float]) -> ExponentialSum:
        log_rates, log_weights = rule(np.linspace(ends[1], ends[0], terms), beta, span)
        return ExponentialSum(tuple((np.exp(log_rates) / first_lag).tolist()), tuple(np.exp(log_weights).tolist()))

    def spread(ends: Sequence[float]) -> float:
        return float(np.ptp(kernel(ends).log_kernel(lags) - logs))

    lasts = np.log(span) + np.linspace(*last, RULE_STARTS)
    starts = [(low, high) for low in np.linspace(*first, RULE_STARTS) for high in lasts]
    found = kernel(minimize(spread, min(starts, key=spread), method="Nelder-Mead").x)
    ratio = np.exp(found.log_kernel(lags) - logs)
    scale = 2 / (ratio.max() + ratio.min())
    return ExponentialSum(found.rates, tuple((scale * np.asarray(found.weights)).tolist()))
