"""Projections of channels whose decays are given, for a kernel of any shape: a smooth density over ln(rate), fitted."""

import numpy as np
from numpy.typing import ArrayLike

from plkernel.analysis.exponentials.sums import Floats
from plkernel.analysis.exponentials.targets import Target
from plkernel.analysis.nodes.moments import seen_lags
from plkernel.analysis.nodes.node_set import Gain, Nodes, Reading, as_lags, gain_at
from plkernel.analysis.nodes.placement import local_spacing

CLOSE = 0.1
"""The relative error to which a target is followed, besides its own. Less lets the projections of channels that are all
too slow, or too fast, span thousands to little avail: half-lives from 1 on miss t**-1.15 by 17 % instead of 13 %."""
POINTS = 160
STIFFNESS = 1.0
"""How much the slope of ln(density) is expected to change from one knot, an octave wide, to the next."""
LARGEST_LOG = 300.0


def smooth_nodes(rates: ArrayLike, target: Target, gain: Gain, reading: Reading) -> Nodes:
    """Channels of these `rates` (N,), per step, whose kernel follows `target` as nearly as a smooth density can.

    A channel's weight to the power k (1 coherent, 2 rms) is (p_i g_i)**k = rho(rate_i) dln(rate_i), the stretch of
    ln(rate) that it stands for, as in `projection_weights`. ln rho is a broken line over ln(rate), a knot for each
    octave, by least squares of ln(kernel / target) over 10 % and the target's own errors, and of
    the changes of its slope over `STIFFNESS`. Those vanish for a power law, of which rho is one too: stiffness costs a
    law nothing, and decides only what the target leaves open. Unlike non-negative least squares, which ends with most
    channels at zero, every projection is positive.

    Raises ValueError where this leads nowhere, as rates do that are too far from the lags of the target.
    """
    from scipy.optimize import least_squares

    rates = np.asarray(rates, dtype=float)
    if target.errors is None:
        known, counts = target.spread_lags(POINTS)
        precision = np.sqrt(counts / counts.mean()) / CLOSE
    else:
        known, precision = np.asarray(target.lags), 1 / np.hypot(CLOSE, target.errors)
    lags = seen_lags(known, reading.lag)
    scale = precision[-lags.size :] / reading.power
    wanted = reading.power * target.log_value(lags)

    slowest, fastest = float(np.log(rates.min())), float(np.log(rates.max()))
    knots = np.linspace(slowest, fastest, max(2, 1 + round((fastest - slowest) / np.log(2))))
    hats = np.stack([np.interp(np.log(rates), knots, unit) for unit in np.eye(knots.size)], axis=1)
    spacing = local_spacing(rates)
    exponents = np.log(spacing) - reading.power * np.outer(as_lags(lags, reading.lag), rates)
    bends = np.diff(np.eye(knots.size), 2, axis=0) / (STIFFNESS * np.log(2))

    def parts(density: Floats) -> tuple[Floats, Floats]:
        """ln(kernel / target) and the share of each channel in the kernel."""
        logs = exponents + hats @ density
        highest = logs.max(axis=1, keepdims=True)
        shares = np.exp(logs - highest)
        total = shares.sum(axis=1, keepdims=True)
        return (highest + np.log(total))[:, 0] - wanted, shares / total

    def residuals(density: Floats) -> Floats:
        return np.concatenate([parts(density)[0] * scale, bends @ density])

    def jacobian(density: Floats) -> Floats:
        return np.concatenate([(parts(density)[1] @ hats) * scale[:, None], bends])

    slope = (wanted[0] - wanted[-1]) / np.log(lags[-1] / lags[0])
    start = slope * knots
    start -= parts(start)[0].mean()
    found = least_squares(residuals, start, jacobian, method="lm").x
    if not np.abs(found).max() < LARGEST_LOG:
        half_lives = np.log(2) / rates
        raise ValueError(
            f"half-lives from {half_lives.min():.3g} to {half_lives.max():.3g} cannot follow {target.label}: use "
            "nodes 'terms'"
        )
    log_weights = (hats @ found + np.log(spacing)) / reading.power - np.log(gain_at(rates, gain))
    projection = np.exp(log_weights - log_weights.max())
    return Nodes(tuple(rates.tolist()), tuple((projection / projection.mean()).tolist()), gain)
