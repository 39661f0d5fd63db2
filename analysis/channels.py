"""The channels that carry a fitted kernel: nodes for training, and weightings of log-spaced channels compared."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from plkernel.analysis.exponentials import ExponentialSum, Scores, Target
from plkernel.analysis.limits import HALF_LIVES, check_quantiles, check_rates, rounded_up
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

CORRECTED: dict[Gain, str] = {
    "none": "lambda**beta",
    "ema": "lambda**beta/(1-a)",
    "lru": "lambda**beta/sqrt(1-a^2)",
    "clamp": "lambda**beta/min(1,lambda)",
}
CHANNEL_HALF_LIVES = (1.0, 2000.0)
TEMPERING = 0.5
LONGEST_HALF_LIFE = 1000.0
"""In multiples of the last lag, up to which such a channel loses 0.07 % and cannot be told from one that keeps all."""


@dataclass(frozen=True)
class Weighting:
    """One way to weight channels, the input gain it belongs to, and its scores under the gain in use."""

    formula: str
    belongs_to: str
    nodes: Nodes
    scores: Scores

    @property
    def projection_range(self) -> float:
        """Largest over smallest multiplier."""
        return max(self.nodes.projection) / min(self.nodes.projection)

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "weight": self.formula,
            "belongs_to": self.belongs_to,
            "range": self.projection_range,
            "scores": asdict(self.scores),
            "nodes": self.nodes.to_dict(),
        }


def weightings(beta: float, max_lag: int, channels: int, gain: Gain) -> list[Weighting]:
    """Uniform, published and gain-corrected projection weights of log-spaced channels, scored under `gain`."""
    shortest, longest = CHANNEL_HALF_LIVES

    def entry(formula: str, belongs_to: str, projection: Projection, assumed: Gain) -> Weighting:
        made = place(channels, projection=projection, gain=assumed, beta=beta, shortest=shortest, longest=longest)
        nodes = Nodes(made.rates, made.projection, gain)
        return Weighting(formula, belongs_to, nodes, node_scores(nodes, Aim(beta), max_lag))

    return [
        entry("1 (uniform)", "-", "uniform", gain),
        entry("lambda**(beta-1) (published)", "ema", "published", gain),
        *(entry(formula, name, "gain-corrected", name) for name, formula in CORRECTED.items()),
    ]


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

    terms      of the target to the power that adds up, for placement terms; slower ones than a channel can be of use
               are clipped (`clip_terms`)
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
        check_longest(aim, max_lag, loss)
        check_quantiles(aim, max_lag, loss, 1)
        nodes = quantile_nodes(channels, aim, gain, tempering=tempering, loss=loss, max_lag=max_lag)
    elif placement == "terms":
        terms, clipped = clip_terms(terms, max_lag, aim)
        nodes = term_nodes(terms, channels, aim, gain, tempering=tempering)
    else:
        rates = rates_from_half_lives(half_lives_of(placement, channels, *CHANNEL_HALF_LIVES, max_lag))
        if isinstance(aim, Aim):
            nodes = shaped(rates, "gain-corrected", gain, aim)
        else:
            nodes = smooth_nodes(rates, target, gain, aim)
    check_rates("nodes", nodes.rates, 1)
    scores = node_scores(nodes, aim, int(max_lag)) if isinstance(aim, Aim) else target_scores(nodes, aim, target)
    return Channels(placement, aim, nodes, scores, clipped)


def clip_terms(terms: ExponentialSum, max_lag: float, aim: Aim | Reading) -> tuple[ExponentialSum, float | None]:
    """The terms, of the kernel to the power that adds up, none slower than of use to a channel; and that half-life.

    A plateau is fitted by a half-life without end. `LONGEST_HALF_LIFE` times max_lag cannot be told from that, and is
    kept, or else the longest that float32 holds; None where no term is slower.
    """
    longest = min(LONGEST_HALF_LIFE * max_lag, HALF_LIVES[1])
    rates = np.maximum(terms.rates, aim.power * np.log(2) / longest)
    changed = bool((rates > terms.rates).any())
    return ExponentialSum(tuple(rates.tolist()), terms.weights), longest if changed else None


def check_longest(aim: Aim, max_lag: float, loss: float = LOSS) -> None:
    """ValueError, with what would work, where quantile nodes need half-lives above `LONGEST_HALF_LIFE` times max_lag.

    They do at small exponents e: the share of rates below lambda in the kernel at max_lag falls as (lambda max_lag)**e.
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
