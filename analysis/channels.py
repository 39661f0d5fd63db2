"""The channels that carry a fitted kernel: nodes for training, and weightings of log-spaced channels compared."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from plkernel.analysis.exponentials import ExponentialSum, Scores, Target
from plkernel.analysis.limits import HALF_LIVES, check_quantiles, check_rates
from plkernel.analysis.nodes import (
    LOSS,
    Aim,
    Gain,
    Nodes,
    Placement,
    Projection,
    Reading,
    check_loss,
    half_lives_of,
    node_scores,
    output_std,
    place,
    quantile_nodes,
    rates_from_half_lives,
    shaped,
    smooth_nodes,
    target_scores,
    term_nodes,
)

WEIGHTINGS: tuple[tuple[str, str, Projection, Gain | None], ...] = (
    ("1 (uniform)", "-", "uniform", None),
    ("lambda**(beta-1) (published)", "ema", "published", None),
    ("lambda**beta", "none", "gain-corrected", "none"),
    ("lambda**beta/(1-a)", "ema", "gain-corrected", "ema"),
    ("lambda**beta/sqrt(1-a^2)", "lru", "gain-corrected", "lru"),
    ("lambda**beta/min(1,lambda)", "clamp", "gain-corrected", "clamp"),
)
"""Formula, the gain it is right under, its projection, and the gain that this assumes."""
TEMPERING = 0.5
LONGEST_HALF_LIFE = 1000.0
"""In multiples of the last lag, up to which such a channel loses 0.07 % and cannot be told from one that keeps all."""


def weightings(beta: float, max_lag: int, channels: int, gain: Gain) -> list[dict[str, Any]]:
    """Projection weights of log-spaced channels, scored under `gain`: weight, belongs_to, range, scores and nodes."""
    rows = []
    for formula, belongs_to, projection, assumed in WEIGHTINGS:
        placed = place(channels, projection=projection, gain=assumed or gain, beta=beta)
        nodes = replace(placed, gain=gain)
        spread = max(nodes.projection) / min(nodes.projection)
        scores = node_scores(nodes, Aim(beta), max_lag)
        rows.append({"weight": formula, "belongs_to": belongs_to, "range": spread, "scores": scores, "nodes": nodes})
    return rows


@dataclass(frozen=True)
class Channels:
    """The node set that a training spec loads, its aim (a power law, or a target so read), and its scores."""

    placement: Placement
    aim: Aim | Reading
    nodes: Nodes
    scores: Scores
    clipped: float | None = None
    """The half-life that slower terms were given, where there were any."""

    def to_dict(self) -> dict[str, Any]:
        """Figures of the node set, for JSON."""
        figures = {"placement": self.placement, "output_std": output_std(self.nodes), "scores": asdict(self.scores)}
        return {**vars(self.aim), **figures}


def place_channels(
    channels: int,
    placement: Placement,
    target: Target,
    aim: Aim | Reading,
    gain: Gain,
    *,
    tempering: float | None = None,
    loss: float | None = None,
    terms: ExponentialSum,
) -> Channels:
    """`channels` nodes that carry `target` under `gain`: t**-exponent of an `Aim`, or any kernel under a `Reading`.

    terms      of the target to the power that adds up, for placement terms. A plateau is fitted by a half-life without
               end; channels get `LONGEST_HALF_LIFE` times max_lag at most, or the longest that float32 holds
    tempering  of placements quantile and terms, 0.5 if left out
    loss       of placement quantile, 0.05 if left out

    Other placements are gain-corrected for a law, and fitted (`smooth_nodes`) for other kernels. Raises ValueError for
    quantile nodes of a kernel that is no law, or too slow to be of use, and for decays that float32 does not hold.
    """
    max_lag, clipped = target.max_lag, None
    tempering = TEMPERING if tempering is None else tempering
    if placement == "quantile":
        if not isinstance(aim, Aim):
            raise ValueError(
                f"nodes 'quantile' lie at the quantiles of a power law's own measure, and {target.label} is none: use "
                "nodes 'terms', 'log-spaced', 'concentrated', 'chrono' or 'inverse-gamma'"
            )
        loss = LOSS if loss is None else loss
        check_loss(loss)
        slowest, _ = aim.rate_range(max_lag, loss)
        longest = np.log(2) / slowest if slowest else np.inf
        if longest > LONGEST_HALF_LIFE * max_lag:
            raise ValueError(
                f"nodes 'quantile' with exponent {aim.exponent:.3g} and loss {loss:g} reach half-lives of "
                f"{longest:.3g}, more than {LONGEST_HALF_LIFE:g} times max_lag {max_lag:g}: use a larger loss, or "
                "nodes 'log-spaced' or 'terms'"
            )
        check_quantiles(aim, max_lag, loss, 1)
        nodes = quantile_nodes(channels, aim, gain, tempering=tempering, loss=loss, max_lag=max_lag)
    elif placement == "terms":
        longest = min(LONGEST_HALF_LIFE * max_lag, HALF_LIVES[1])
        rates = np.maximum(terms.rates, aim.power * np.log(2) / longest)
        clipped = longest if (rates > terms.rates).any() else None
        nodes = term_nodes(replace(terms, rates=tuple(rates.tolist())), channels, aim, gain, tempering=tempering)
    else:
        rates = rates_from_half_lives(half_lives_of(placement, channels, max_lag=max_lag))
        nodes = (
            shaped(rates, "gain-corrected", gain, aim)
            if isinstance(aim, Aim)
            else smooth_nodes(rates, target, gain, aim)
        )
    check_rates("nodes", nodes.rates, 1)
    scores = node_scores(nodes, aim, int(max_lag)) if isinstance(aim, Aim) else target_scores(nodes, aim, target)
    return Channels(placement, aim, nodes, scores, clipped)
