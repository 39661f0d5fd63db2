"""N channels whose C and B are random with mean zero, as at initialisation: second moments instead of sums.

With node density lambda**r dln(lambda), gain lambda**gamma and C ~ lambda**s, the coherent kernel (all signs equal)
falls with the exponent gamma + s + r and the rms kernel with gamma + s + r/2: squares add up, so that the number of
nodes counts half.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from plkernel.analysis.exponentials.sums import ExponentialSum, Floats, Scores, integer_lags, power_law, score
from plkernel.analysis.exponentials.targets import Target
from plkernel.analysis.nodes.node_set import AHEAD, Aim, Lag, Nodes, Reading, Summation, as_lags, gain_at


def log_rms_kernel(nodes: Nodes, lags: ArrayLike, lag: Lag = "state") -> Floats:
    """ln sqrt(E k(t)**2) = ln sqrt(sum_i projection_i**2 g_i**2 a_i**(2 t)), for C_i = projection_i z_i.

    z_i, B_i are independent, of mean 0 and variance 1. Nothing underflows. Shape of `lags`, (T,), in steps; under lag
    `distance` a_i**(2 (t - 1)), under `bonus` a_i**(2 (t - 2)).
    """
    weights = (np.asarray(nodes.projection) * gain_at(nodes.rates, nodes.gain)) ** 2
    squared = ExponentialSum(tuple(2 * rate for rate in nodes.rates), tuple(weights.tolist()))
    return squared.log_kernel(as_lags(lags, lag)) / 2


def falling_exponent(lags: ArrayLike, log_values: ArrayLike) -> Floats:
    """-d ln y / d ln t by least squares over `lags` (T,), for every ln y in `log_values` (..., T): 1.15 for t**-1.15.

    Infinite where y is 0 at one of the lags: it then falls faster than any power. Raises ValueError for fewer than two
    lags.

    >>> lags = np.array([1.0, 2.0, 4.0])
    >>> round(float(falling_exponent(lags, np.log(lags**-1.5))), 9)
    1.5
    """
    x, y = np.log(np.asarray(lags, dtype=float)), np.asarray(log_values, dtype=float)
    if x.size < 2:
        raise ValueError(f"lags must be two or more for a slope, got {x.size}")
    x = x - x.mean()
    vanishes = np.isneginf(y)
    slope = np.where(vanishes, 0.0, y) @ x / (x @ x)
    return np.where(vanishes.any(axis=-1), np.inf, -slope)


def node_scores(nodes: Nodes, aim: Aim, max_lag: int) -> Scores:
    """The kernel that `aim` speaks of, in its lag convention, against t**-exponent on t = 1..max_lag.

    Under lag `bonus` from t = 2: the decays do not reach t = 1, which is seen through u.
    """
    lags = seen_lags(integer_lags(max_lag), aim.lag)
    return score(log_kernel(nodes, aim.kernel, lags, aim.lag), power_law(lags, aim.exponent), lags)


def target_scores(nodes: Nodes, reading: Reading, target: Target) -> Scores:
    """`node_scores` for a target of any shape, at its integer lags or at those where it is known."""
    lags = seen_lags(target.integer_lags(), reading.lag)
    return score(log_kernel(nodes, reading.kernel, lags, reading.lag), target.value(lags), lags)


def seen_lags(lags: Floats, lag: Lag) -> Floats:
    """Those of `lags` that the decays reach: under `bonus` from t = 2, as t = 1 is seen through u."""
    return lags[lags >= AHEAD[lag]]


def log_kernel(nodes: Nodes, kernel: Summation, lags: Floats, lag: Lag) -> Floats:
    """ln of the plain sum over channels (`coherent`), or of the root mean square over random signs (`rms`)."""
    return log_rms_kernel(nodes, lags, lag) if kernel == "rms" else nodes.kernel().log_kernel(as_lags(lags, lag))


def output_std(nodes: Nodes) -> float:
    """sqrt(1/N sum_i projection_i**2 g_i**2 / (1 - a_i**2)): the rms output of white input of variance 1, over sqrt(N).

    It is the sum of the squared rms kernel over t >= 0, taken with B and C of variance 1 and divided by N. Slow
    nodes keep their digits: 1 - a**2 goes through expm1.
    """
    rates = np.asarray(nodes.rates)
    powers = (np.asarray(nodes.projection) * gain_at(rates, nodes.gain)) ** 2 / -np.expm1(-2 * rates)
    return float(np.sqrt(powers.mean()))


def scaled_to(nodes: Nodes, std: float) -> Nodes:
    """The same nodes with all multipliers times one number, so that `output_std` is `std` (positive)."""
    if not (np.isfinite(std) and std > 0):
        raise ValueError(f"output std must be a positive number, got {std}")
    factor = std / output_std(nodes)
    return replace(nodes, projection=tuple(factor * value for value in nodes.projection))
