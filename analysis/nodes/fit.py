"""One fit: a sum of exponentials for a power law, and the channels that carry it under an input gain."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from plkernel.analysis.exponentials.fits import Method, fit_sum
from plkernel.analysis.exponentials.minimax import Certificate, certificate
from plkernel.analysis.exponentials.sums import ExponentialSum, Floats, Scores, integer_lags, power_law, score
from plkernel.analysis.exponentials.targets import power_law_target
from plkernel.analysis.nodes.moments import node_scores, output_std
from plkernel.analysis.nodes.node_set import Aim, Gain, Nodes
from plkernel.analysis.nodes.placement import Placement, Projection, check_options, place

CORRECTED: dict[Gain, str] = {
    "none": "lambda**beta",
    "ema": "lambda**beta/(1-a)",
    "lru": "lambda**beta/sqrt(1-a^2)",
    "clamp": "lambda**beta/min(1,lambda)",
}
CHANNEL_HALF_LIVES = (1.0, 2000.0)
TEMPERING = 0.5


@dataclass(frozen=True)
class FitResult:
    """`optimal` against `uniform` weights on the same decays, both scored against t**-exponent on t = 1..max_lag."""

    exponent: float
    max_lag: int
    method: Method
    optimal: ExponentialSum
    uniform: ExponentialSum
    optimal_scores: Scores
    uniform_scores: Scores
    certificate: Certificate | None = None
    """Of method minimax: whether its errors are level, and how far from the least error it can be."""

    @property
    def active(self) -> ExponentialSum:
        """The terms that carry more than 1e-8 of the largest weight."""
        return self.optimal.active()

    @property
    def fastest_share(self) -> float:
        """The share of the total weight on the shortest half-life, in [0, 1]."""
        return self.optimal.weights[0] / sum(self.optimal.weights)

    @property
    def uniform_excess(self) -> float:
        """Uniform kernel over true kernel at t = max_lag, both 1 at t = 1."""
        first, last = self.uniform.kernel([1, self.max_lag])
        return float(last / first * self.max_lag**self.exponent)


def fit_exponentials(
    exponent: float, max_lag: int, method: Method, terms: int | None = None, half_lives: Floats | None = None
) -> FitResult:
    """Fit t**-exponent on t = 1..max_lag by `method` (see `fit_sum`); compare with uniform weights on its decays."""
    lags = integer_lags(max_lag)
    law = power_law(lags, exponent)
    target = power_law_target(exponent, max_lag)
    optimal = fit_sum(target, method, terms=terms, half_lives=half_lives)
    uniform = ExponentialSum(optimal.rates, (1.0,) * len(optimal.rates))
    optimal_scores, uniform_scores = (score(kernel.log_kernel(lags), law, lags) for kernel in (optimal, uniform))
    proof = certificate(optimal, target) if method == "minimax" else None
    return FitResult(exponent, max_lag, method, optimal, uniform, optimal_scores, uniform_scores, proof)


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


def weightings(beta: float, max_lag: int, channels: int, gain: Gain) -> list[Weighting]:
    """Uniform, published and gain-corrected projection weights of log-spaced channels, scored under `gain`."""
    aim = Aim(beta)

    def entry(formula: str, belongs_to: str, projection: Projection, assumed: Gain) -> Weighting:
        shortest, longest = CHANNEL_HALF_LIVES
        found = place(channels, projection=projection, gain_name=assumed, beta=beta, shortest=shortest, longest=longest)
        nodes = Nodes(found.rates, found.projection, gain)
        return Weighting(formula, belongs_to, nodes, node_scores(nodes, aim, max_lag))

    return [
        entry("1 (uniform)", "-", "uniform", gain),
        entry("lambda**(beta-1) (published)", "ema", "published", gain),
        *(entry(formula, name, "gain-corrected", name) for name, formula in CORRECTED.items()),
    ]


@dataclass(frozen=True)
class Channels:
    """The node set that a training spec loads, what it aims at, and how well it does."""

    placement: Placement
    aim: Aim
    nodes: Nodes
    scores: Scores

    def to_dict(self) -> dict[str, Any]:
        """Figures of the node set, for JSON."""
        return {**vars(self.aim), "placement": self.placement, "output_std": output_std(self.nodes)}


def place_channels(
    channels: int,
    placement: Placement,
    aim: Aim,
    gain: Gain,
    max_lag: int,
    *,
    tempering: float | None = None,
    loss: float | None = None,
    terms: ExponentialSum | None = None,
) -> Channels:
    """`channels` nodes that carry `aim` up to `max_lag` bytes under `gain`; the published placements gain-corrected.

    tempering: of quantile and terms, 0.5 if left out; loss: of quantile, 0.05 if left out. ValueError elsewhere.
    """
    check_options(placement, tempering=tempering, loss=loss)
    by_placement: dict[str, dict[str, Any]] = {
        "log-spaced": dict(zip(("shortest", "longest"), CHANNEL_HALF_LIVES, strict=True)),
        "quantile": {"tempering": tempering, "loss": loss, "max_lag": float(max_lag)},
        "terms": {"tempering": tempering, "terms": terms},
    }
    options = by_placement.get(placement, {})
    if options.get("tempering", 0.0) is None:
        options["tempering"] = TEMPERING
    nodes = place(
        channels,
        placement=placement,
        projection="gain-corrected" if placement in ("log-spaced", "concentrated") else "uniform",
        gain_name=gain,
        beta=aim.beta,
        target=aim.target,
        kernel=aim.kernel,
        lag=aim.lag,
        **options,
    )
    return Channels(placement, aim, nodes, node_scores(nodes, aim, max_lag))


def spread_of(nodes: Nodes) -> tuple[float, float]:
    """Shortest and longest half-life, in steps."""
    half_lives = nodes.half_lives()
    return float(np.min(half_lives)), float(np.max(half_lives))
