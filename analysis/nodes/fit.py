"""One fit: a sum of exponentials for a target, and the channels that carry it under an input gain."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from plkernel.analysis.exponentials.fits import Method, fit_sum
from plkernel.analysis.exponentials.minimax import Certificate, certificate
from plkernel.analysis.exponentials.sums import ExponentialSum, Floats, Scores, score
from plkernel.analysis.exponentials.targets import Target
from plkernel.analysis.nodes.float32_decays import HALF_LIVES, check_quantiles, check_rates
from plkernel.analysis.nodes.moments import node_scores, output_std, target_scores
from plkernel.analysis.nodes.node_set import Aim, Gain, Nodes, Reading
from plkernel.analysis.nodes.placement import (
    Placement,
    Projection,
    check_options,
    half_lives_of,
    place,
    rates_from_half_lives,
)
from plkernel.analysis.nodes.quantile import LONGEST_HALF_LIFE, LOSS, check_longest, term_nodes
from plkernel.analysis.nodes.smooth import smooth_nodes

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
    """`optimal` against `uniform` weights on the same decays, both scored against `target` on its integer lags."""

    target: Target
    method: Method
    optimal: ExponentialSum
    uniform: ExponentialSum
    optimal_scores: Scores
    uniform_scores: Scores
    certificate: Certificate | None = None
    """Of method minimax: whether its errors are level, and how far from the least error it can be."""

    @property
    def max_lag(self) -> int:
        """The last lag."""
        return int(self.target.max_lag)

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
        """Uniform kernel over true kernel at the last lag, both 1 at the first."""
        ends = [self.target.lags[0], self.target.max_lag]
        (first, last), (true_first, true_last) = self.uniform.kernel(ends), self.target.value(ends)
        return float(last / first * true_first / true_last)


def fit_exponentials(
    target: Target, method: Method, terms: int | None = None, half_lives: Floats | None = None
) -> FitResult:
    """Fit `target` by `method` (see `fit_sum`); compare with uniform weights on its decays."""
    lags = target.integer_lags()
    values = target.value(lags)
    optimal = fit_sum(target, method, terms=terms, half_lives=half_lives)
    uniform = ExponentialSum(optimal.rates, (1.0,) * len(optimal.rates))
    optimal_scores, uniform_scores = (score(kernel.log_kernel(lags), values, lags) for kernel in (optimal, uniform))
    proof = certificate(optimal, target) if method == "minimax" else None
    return FitResult(target, method, optimal, uniform, optimal_scores, uniform_scores, proof)


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
        found = place(channels, projection=projection, gain=assumed, beta=beta, shortest=shortest, longest=longest)
        nodes = Nodes(found.rates, found.projection, gain)
        return Weighting(formula, belongs_to, nodes, node_scores(nodes, aim, max_lag))

    return [
        entry("1 (uniform)", "-", "uniform", gain),
        entry("lambda**(beta-1) (published)", "ema", "published", gain),
        *(entry(formula, name, "gain-corrected", name) for name, formula in CORRECTED.items()),
    ]


@dataclass(frozen=True)
class Channels:
    """The node set that a training spec loads, what it aims at (a power law, or a target so read), and how well."""

    placement: Placement
    aim: Aim | Reading
    nodes: Nodes
    scores: Scores
    clipped: float | None = None
    """The half-life that slower terms were given, where there were any."""

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
    """`channels` nodes that carry `aim` up to `max_lag` bytes under `gain`; all but quantile and terms gain-corrected.

    tempering: of quantile and terms, 0.5 if left out; loss: of quantile, 0.05 if left out. ValueError elsewhere, and
    for quantile nodes too slow to be of use (`check_longest`) or for float32. Terms as slow are clipped (`clip_terms`).
    """
    check_options(placement, tempering=tempering, loss=loss)
    if placement == "quantile":
        tail = LOSS if loss is None else loss
        check_longest(aim, max_lag, tail)
        check_quantiles(aim, max_lag, tail, 1)
    by_placement: dict[str, dict[str, Any]] = {
        "log-spaced": dict(zip(("shortest", "longest"), CHANNEL_HALF_LIVES, strict=True)),
        "chrono": {"max_lag": float(max_lag)},
        "quantile": {"tempering": tempering, "loss": loss, "max_lag": float(max_lag)},
        "terms": {"tempering": tempering, "terms": terms},
    }
    options, clipped = by_placement.get(placement, {}), None
    if placement == "terms" and terms is not None:
        options["terms"], clipped = clip_terms(terms, max_lag, aim)
    if options.get("tempering", 0.0) is None:
        options["tempering"] = TEMPERING
    nodes = place(
        channels,
        placement=placement,
        projection="uniform" if placement in ("quantile", "terms") else "gain-corrected",
        gain=gain,
        beta=aim.beta,
        target=aim.target,
        kernel=aim.kernel,
        lag=aim.lag,
        **options,
    )
    check_rates("nodes", nodes.rates, 1)
    return Channels(placement, aim, nodes, node_scores(nodes, aim, max_lag), clipped)


def follow_target(
    channels: int,
    placement: Placement,
    target: Target,
    reading: Reading,
    gain: Gain,
    *,
    tempering: float | None = None,
    terms: ExponentialSum,
) -> Channels:
    """`place_channels` for a target that is no power law: by `term_nodes`, or by `smooth_nodes` on published decays.

    `terms` are those of the target to the power that adds up. Raises ValueError for quantile, which knows laws only.
    """
    check_options(placement, tempering=tempering)
    if placement == "quantile":
        raise ValueError(
            f"nodes 'quantile' lie at the quantiles of a power law's own measure, and {target.label} is none: use "
            "nodes 'terms', 'log-spaced', 'concentrated', 'chrono' or 'inverse-gamma'"
        )
    clipped = None
    if placement == "terms":
        terms, clipped = clip_terms(terms, target.max_lag, reading)
        nodes = term_nodes(terms, channels, reading, gain, tempering=TEMPERING if tempering is None else tempering)
    else:
        half_lives = half_lives_of(placement, channels, *CHANNEL_HALF_LIVES, target.max_lag)
        nodes = smooth_nodes(rates_from_half_lives(half_lives), target, gain, reading)
    check_rates("nodes", nodes.rates, 1)
    return Channels(placement, reading, nodes, target_scores(nodes, reading, target), clipped)


def clip_terms(terms: ExponentialSum, max_lag: float, aim: Aim | Reading) -> tuple[ExponentialSum, float | None]:
    """The terms, of the kernel to the power that adds up, with none slower than a channel can be of use; what it was.

    A plateau is fitted by a half-life without end. `LONGEST_HALF_LIFE` times max_lag cannot be told from that, and is
    kept, or else the longest that float32 holds; None where no term is slower.
    """
    longest = min(LONGEST_HALF_LIFE * max_lag, HALF_LIVES[1])
    rates = np.maximum(terms.rates, aim.power * np.log(2) / longest)
    changed = bool((rates > terms.rates).any())
    return ExponentialSum(tuple(rates.tolist()), terms.weights), longest if changed else None


def spread_of(nodes: Nodes) -> tuple[float, float]:
    """Shortest and longest half-life, in steps."""
    half_lives = nodes.half_lives()
    return float(np.min(half_lives)), float(np.max(half_lives))
