"""Channels placed at the quantiles of a power law's own measure, and channels shared out among fitted terms."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from plkernel.analysis.exponentials.sums import ExponentialSum, Floats
from plkernel.analysis.nodes.float32_decays import rounded_up
from plkernel.analysis.nodes.node_set import AHEAD, Aim, Gain, Nodes, Reading, gain_at

CELLS = 2048
LOSS = 0.05
HORIZON = 2048.0
# Gauss-Legendre points per cell: the densities are smooth, and a cell is some 1e-2 wide in ln(lambda).
ORDER = 6
NEWTON_STEPS = 4
LONGEST_HALF_LIFE = 1000.0
"""In multiples of the last lag, up to which such a channel loses 0.07 % and cannot be told from one that keeps all."""


def quantile_nodes(
    channels: int,
    aim: Aim,
    gain: Gain = "none",
    *,
    tempering: float = 1.0,
    loss: float = LOSS,
    max_lag: float = HORIZON,
    fastest: float = np.inf,
) -> Nodes:
    """Node i at the quantile (i - 1/2)/N of the density m**(k s) over ln(lambda), with C proportional to m**(1 - s).

    m(lambda) = lambda**exponent / g(lambda) times a**n (`Aim.log_amplitude`), k = 1 for a coherent aim, 2 for rms, and
    s = `tempering` in [0, 1]: s = 1 gives a uniform C and puts the whole law into the density of the nodes, s = 0
    gives log-spaced nodes and puts it into C. The cumulative is inverted exactly, for any gain. The rates reach from
    gammaincinv(k e, loss) / (k max_lag) to gammaincinv(k e, 1 - loss) / k, e being the exponent of the aim, or
    to `fastest` where that is less: what faster channels would carry is then missing, at the shortest lags.

    A uniform C needs many slow channels: with m ~ lambda**p it reaches lags of about N**(1/(k p)), and no further.
    `max_lag` is in steps. Raises ValueError on values outside their range.
    Prior art: time scales of LSTM units drawn from an inverse gamma law (arXiv 2009.12727) is s = 1 without gain.
    """
    if channels < 2:
        raise ValueError(f"channels must be at least 2, got {channels}")
    check_tempering(tempering)
    check_loss(loss)
    if not (np.isfinite(max_lag) and max_lag > 1):
        raise ValueError(f"max_lag must be more than one step, got {max_lag}")
    slowest, end = aim.rate_range(max_lag, loss)
    if not (slowest > 0 and np.isfinite(end)):
        raise ValueError(f"beta {aim.beta:g} places rates from {slowest:g} to {end:g}: use one of about 0.1 to 100")
    end = min(end, fastest)
    if not slowest < end:
        raise ValueError(
            f"beta {aim.beta:g} with max_lag {max_lag:g} places rates from {slowest:g} on, but none above {fastest:g} "
            "exists: use a smaller beta or a longer max_lag"
        )
    shares = (np.arange(channels, 0, -1) - 0.5) / channels  # fastest first

    def log_density(log_rates: Floats) -> Floats:
        return np.asarray(aim.power * tempering * aim.log_amplitude(np.exp(log_rates), gain))

    rates = np.exp(_quantiles(log_density, np.log(slowest), np.log(end), shares))
    log_projection = (1 - tempering) * aim.log_amplitude(rates, gain)
    return Nodes(tuple(rates.tolist()), _mean_one(np.exp(log_projection - log_projection.max())), gain)


def term_nodes(
    terms: ExponentialSum, channels: int, aim: Aim | Reading, gain: Gain = "none", *, tempering: float = 1.0
) -> Nodes:
    """Share out `channels` among fitted terms, so that the channels of a term together give its weight.

    Term j, of weight w_j at rate lambda_j, needs the total projection c_j = w_j / g(lambda_j). It gets channels in
    proportion to c_j**tempering (at least one each, largest remainders first), all at its rate, each with the
    multiplier c_j / n_j. Under an rms aim the terms are those of the SQUARED kernel: the rates are halved, c_j is
    sqrt(w_j) / g and a channel's multiplier c_j / sqrt(n_j), so that the squares add up. Where a lag is n
    decays ahead of its state (`AHEAD`), c_j is multiplied by a**n. Terms of weight zero are left out; rates are per
    step. Raises ValueError when there are fewer channels than terms.
    """
    check_tempering(tempering)
    weights = np.asarray(terms.weights)
    kept = np.flatnonzero(weights > 0)
    if not 0 < kept.size <= channels:
        raise ValueError(f"channels must be at least the number of terms, {kept.size} (and one), got {channels}")
    rates = np.asarray(terms.rates)[kept] / aim.power
    needed = np.exp(np.log(weights[kept]) / aim.power - AHEAD[aim.lag] * rates) / gain_at(rates, gain)
    counts = allot(needed**tempering, channels)
    each = needed / counts ** (1 / aim.power)
    order = np.argsort(-rates, kind="stable")
    spread = [np.repeat(values[order], counts[order]) for values in (rates, each)]
    return Nodes(tuple(spread[0].tolist()), _mean_one(spread[1]), gain)


def check_longest(aim: Aim, max_lag: float, loss: float = LOSS) -> None:
    """ValueError, with what would work, where quantile nodes need half-lives above `LONGEST_HALF_LIFE` times max_lag.

    They do at small exponents e: what rates below lambda carry of the kernel at max_lag falls as (lambda max_lag)**e.
    """
    from scipy.special import gammainc

    check_loss(loss)
    slowest, _ = aim.rate_range(max_lag, loss)
    longest = np.log(2) / slowest if slowest else np.inf
    if longest <= LONGEST_HALF_LIFE * max_lag:
        return
    least = float(gammainc(aim.power * aim.exponent, aim.power * np.log(2) / LONGEST_HALF_LIFE))
    larger = f"a loss of at least {rounded_up(least):.3g}, or " if least < 0.495 else ""
    raise ValueError(
        f"nodes 'quantile' with exponent {aim.exponent:.3g} and loss {loss:g} reach half-lives of {longest:.3g}, more "
        f"than {LONGEST_HALF_LIFE:g} times max_lag {max_lag:g}: use {larger}nodes 'log-spaced' or 'terms'"
    )


def allot(shares: ArrayLike, seats: int) -> np.ndarray:
    """Whole numbers that sum to `seats`, at least 1 each, in proportion to `shares` by largest remainder.

    Parties that proportion would leave under one seat get one, the rest share what remains; a tie goes to the first.

    >>> allot([5.0, 3.0, 0.01], 9).tolist()
    [5, 3, 1]
    """
    shares = np.asarray(shares, dtype=float)
    counts = np.ones(shares.size, dtype=int)
    free = np.ones(shares.size, dtype=bool)
    while free.any():
        left = seats - counts[~free].sum()
        quota = left * shares / shares[free].sum()
        small = free & (quota < 1)
        if not small.any():
            break
        free &= ~small
    if free.any():
        counts[free] = np.floor(quota[free])
        remainders = np.where(free, quota - np.floor(quota), -1.0)
        counts[np.argsort(-remainders, kind="stable")[: seats - counts.sum()]] += 1
    return counts


def check_loss(loss: float) -> None:
    """Raise ValueError unless loss lies between 0 and a half."""
    if not 0 < loss < 0.5:
        raise ValueError(f"loss must lie between 0 and 0.5 (0.05 is the default), got {loss}")


def check_tempering(tempering: float) -> None:
    """Raise ValueError unless tempering lies in [0, 1]."""
    if not 0 <= tempering <= 1:
        raise ValueError(f"tempering must lie between 0 (log-spaced) and 1 (uniform projection), got {tempering}")


def _mean_one(values: Floats) -> tuple[float, ...]:
    return tuple((values / values.mean()).tolist())


def _quantiles(log_density: Callable[[Floats], Floats], low: float, high: float, shares: Floats) -> Floats:
    """The points below which the given shares of the measure exp(log_density) on [low, high] lie.

    The cumulative is summed by Gauss-Legendre quadrature over cells, and inverted inside a cell by Newton's method.
    """
    edges = np.linspace(low, high, CELLS + 1)
    points, weights = np.polynomial.legendre.leggauss(ORDER)
    top = log_density(edges).max()

    def measure(left: Floats, right: Floats) -> Floats:
        half = (right - left) / 2
        inside = (left + half)[:, None] + half[:, None] * points
        return np.asarray(np.exp(log_density(inside) - top) @ weights * half)

    masses = measure(edges[:-1], edges[1:])
    cumulative = np.concatenate([[0.0], np.cumsum(masses)])
    wanted = shares * cumulative[-1]
    cell = np.clip(np.searchsorted(cumulative, wanted, side="right") - 1, 0, CELLS - 1)
    left, right = edges[cell], edges[cell + 1]
    found = left + (wanted - cumulative[cell]) / masses[cell] * (right - left)
    for _ in range(NEWTON_STEPS):
        excess = cumulative[cell] + measure(left, found) - wanted
        found = np.clip(found - excess / np.exp(log_density(found) - top), left, right)
    return np.asarray(found)
