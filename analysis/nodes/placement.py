"""Where the decays of N channels are placed, and what each channel's projection is multiplied by.

A channel with rate lambda and input gain g(lambda) adds C g(lambda) exp(-lambda t) to the kernel. Since
t**-beta = 1/Gamma(beta) * integral of lambda**(beta-1) exp(-lambda t) dlambda, log-spaced channels carry the power law
when C is proportional to lambda**beta / g(lambda): lambda**beta without gain, about lambda**(beta-1/2) under the LRU
gain and lambda**(beta-1) under the EMA gain. More generally the density of the nodes over ln(lambda) times C is that.
"""

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from plkernel.analysis.exponentials.sums import ExponentialSum, Floats
from plkernel.analysis.nodes.node_set import AHEAD, Aim, Gain, Lag, Nodes, Summation, Target, check_name, gain_at
from plkernel.analysis.nodes.quantile import HORIZON, LOSS, quantile_nodes, term_nodes

Placement = Literal["log-spaced", "concentrated", "chrono", "inverse-gamma", "quantile", "terms"]
Projection = Literal["uniform", "published", "gain-corrected"]

SHORTEST, LONGEST = 1.0, 2000.0
LARGEST_LOG = 700.0
"""The largest logarithm of a number that float64 holds, and its reciprocal, rounded down."""
PLACEMENTS_OF: dict[str, tuple[Placement, ...]] = {
    "shortest": ("log-spaced",),
    "longest": ("log-spaced",),
    "tempering": ("quantile", "terms"),
    "loss": ("quantile",),
    "max_lag": ("quantile", "chrono"),
    "terms": ("terms",),
}
"""The placements that an option has an effect on."""
ANCHORS = (1.0, 10.0, 80.0, 2000.0)
SHARES = (0.40, 0.25, 0.20, 0.15)
INVERSE_GAMMA = 0.56
"""The shape of the published distribution of time scales, of scale 1 token."""


def rates_from_half_lives(half_lives: ArrayLike) -> Floats:
    """lambda = ln 2 / half-life, per step of the unit the half-lives are in."""
    return np.log(2) / np.asarray(half_lives, dtype=float)


def log_spaced(channels: int, shortest: float = SHORTEST, longest: float = LONGEST) -> Floats:
    """Half-lives spaced evenly in ln(half-life) from `shortest` to `longest`, both included; shape (channels,).

    >>> log_spaced(4, 1.0, 1000.0).round(6).tolist()
    [1.0, 10.0, 100.0, 1000.0]
    """
    check_half_lives(shortest, longest)
    if channels < 2:
        raise ValueError(f"channels must be at least 2, got {channels}")
    return np.geomspace(shortest, longest, channels)


def concentrated(channels: int) -> Floats:
    """Half-lives in one group per anchor, log-spaced from anchor/2 to 2 anchor; the published "concentrated" set.

    Group sizes are `SHARES` of the channels, rounded; the last group takes the remainder. Raises ValueError when a
    group would be empty.

    >>> [int(((h >= a / 2) & (h <= a * 2)).sum()) for h in [concentrated(256)] for a in (1, 10, 80, 2000)]
    [102, 64, 51, 39]
    """
    sizes = [round(share * channels) for share in SHARES[:-1]]
    sizes.append(channels - sum(sizes))
    if min(sizes) < 1:
        raise ValueError(f"channels must be large enough for {len(ANCHORS)} groups, got {channels}")
    groups = [np.geomspace(anchor / 2, anchor * 2, size) for anchor, size in zip(ANCHORS, sizes, strict=True)]
    return np.concatenate(groups)


def chrono(channels: int, max_lag: float) -> Floats:
    """Half-lives of forget gates a = sigmoid(b), exp(b) uniform on 1..max_lag - 1: at its quantiles; shape (channels,).

    About ln 2 times that uniform variable. The input gates of the paper start at 1 - a, which is the EMA gain. Raises
    ValueError unless max_lag is above 2. Source: Tallec and Ollivier 2018 (arXiv 1804.11188).

    >>> chrono(4, 2048.0).round(1).tolist()
    [178.3, 532.9, 887.4, 1241.9]
    """
    if not (np.isfinite(max_lag) and max_lag > 2):
        raise ValueError(f"max_lag must be above 2 under placement 'chrono', got {max_lag:g}")
    return np.log(2) / np.log1p(1 / (1 + (max_lag - 2) * levels(channels)))


def inverse_gamma(channels: int, shape: float = INVERSE_GAMMA) -> Floats:
    """ln 2 times quantiles of the inverse gamma distribution of `shape` and scale 1; half-lives, shape (channels,).

    The mean of exp(-t / T) is (1 + t)**-shape: time scales T so distributed carry a power law without gain, and
    `quantile` nodes under that gain do so for any exponent. Published for the second layer of an LSTM, T in words, with
    frozen forget gates exp(-1 / T) and input gates 1 - a, the EMA gain. Source: Mahto, Vo, Turek and Huth 2021 (arXiv
    2009.12727); the levels of their code end in T = 0, and here they are midpoints.

    >>> inverse_gamma(4).round(2).tolist()
    [0.53, 1.49, 4.46, 34.56]
    """
    from scipy.special import gammaincinv

    return np.log(2) / gammaincinv(shape, levels(channels))[::-1]


def levels(channels: int) -> Floats:
    """(i - 1/2) / channels for i = 1..channels, the levels at which quantiles are taken; ValueError below 2."""
    if channels < 2:
        raise ValueError(f"channels must be at least 2, got {channels}")
    return (np.arange(channels) + 0.5) / channels


def half_lives_of(
    placement: Placement,
    channels: int,
    shortest: float | None = None,
    longest: float | None = None,
    max_lag: float | None = None,
) -> Floats:
    """The half-lives of a placement that no power law decides, in bytes; shape (channels,)."""
    if placement == "concentrated":
        return concentrated(channels)
    if placement == "chrono":
        return chrono(channels, HORIZON if max_lag is None else max_lag)
    if placement == "inverse-gamma":
        return inverse_gamma(channels)
    return log_spaced(channels, SHORTEST if shortest is None else shortest, LONGEST if longest is None else longest)


def local_spacing(rates: ArrayLike) -> Floats:
    """The width in ln(lambda) that each node stands for: half the distance between its neighbours, ends mirrored."""
    log_rates = np.log(np.asarray(rates, dtype=float))
    order = np.argsort(log_rates)
    widths = np.empty_like(log_rates)
    widths[order] = np.gradient(log_rates[order])
    return widths


def projection_weights(rates: ArrayLike, beta: float, name: Projection, gain: Gain, aim: Aim | None = None) -> Floats:
    """Multipliers of the projection's columns, of mean 1; shape of `rates`.

    uniform: 1. published: lambda**(beta-1), right under the EMA gain only. gain-corrected:
    lambda**beta * dln(lambda) / g(lambda), right for the gain it names on any node set. Given an `aim`, gain-corrected
    follows it: lambda**exponent * a**n * dln(lambda)**(1/k) / g(lambda), n as in `Aim.log_amplitude`, k = 1 for a
    coherent kernel and 2 for an rms one, where squares add up and the number of nodes counts half. Raises ValueError
    where these are no numbers.
    """
    rates = np.asarray(rates, dtype=float)
    aim = aim or Aim(beta)
    check_name("gain", gain, get_args(Gain))
    forms: dict[str, Callable[[], Floats]] = {
        "uniform": lambda: np.ones_like(rates),
        "published": lambda: rates ** (beta - 1),
        "gain-corrected": lambda: _corrected(rates, aim, gain),
    }
    check_name("projection", name, forms)
    with np.errstate(all="ignore"):
        weights = forms[name]()
        weights = np.asarray(weights / weights.mean())
    if not np.isfinite(weights).all():
        most = LARGEST_LOG / np.abs(np.log(rates)).max()
        raise ValueError(
            f"beta {beta:g} takes the projection's weights, powers of rates from {rates.min():.3g} to "
            f"{rates.max():.3g}, out of float64: use a beta up to {most:.3g}"
        )
    return weights


def _corrected(rates: Floats, aim: Aim, gain: Gain) -> Floats:
    spacing = local_spacing(rates) ** (1 / aim.power)
    ahead = np.exp(-AHEAD[aim.lag] * rates)
    return np.asarray(rates**aim.exponent * ahead * spacing / gain_at(rates, gain))


def place(
    channels: int,
    *,
    placement: Placement = "log-spaced",
    projection: Projection = "uniform",
    gain: Gain = "none",
    beta: float = 1.15,
    shortest: float | None = None,
    longest: float | None = None,
    step: float = 1.0,
    target: Target = "information",
    kernel: Summation = "coherent",
    lag: Lag = "state",
    tempering: float | None = None,
    loss: float | None = None,
    max_lag: float | None = None,
    terms: ExponentialSum | None = None,
    fastest: float = np.inf,
    gain_name: Gain | None = None,
) -> Nodes:
    """Nodes of `channels` channels by name; half-lives and lags are in bytes and a step of the layer is `step` bytes.

    log-spaced: evenly in ln(half-life) from `shortest`, 1, to `longest`, 2000. concentrated: the published groups.
    chrono: forget gates for dependencies up to `max_lag`, 2048 (`chrono`). inverse-gamma: the published time scales of
    an LSTM of words (`inverse_gamma`), free here unless the arm's decays are not trained.
    quantile: at the quantiles of the power law's own measure up to `max_lag`, 2048 (`quantile_nodes`, with `tempering`,
    1, and `loss`, 0.05). terms: the exponentials of `terms`, rates per byte, each on several channels (`term_nodes`,
    with `tempering`, 1).
    `projection` belongs to all but the last two, which shape it themselves. `target`, `kernel` and `lag` say which
    power law is meant (`Aim`); projections `uniform` and `published` follow none, and there they are refused. `fastest`
    is the rate per step where quantile nodes end at the latest.

    `gain` is what the recurrence multiplies its input by, "none", "ema", "lru" or "clamp"; `gain_name` is its former
    name. lambda = ln 2 * step / half-life.

    Raises ValueError for an unknown name, an impossible range, and an option that belongs to another placement.
    """
    gain = gain_name or gain
    aim = Aim(beta, target, kernel, lag)
    check_name("placement", placement, get_args(Placement))
    check_name("projection", projection, get_args(Projection))
    check_options(
        placement, shortest=shortest, longest=longest, tempering=tempering, loss=loss, max_lag=max_lag, terms=terms
    )
    tempering = 1.0 if tempering is None else tempering
    if placement in ("quantile", "terms"):
        if projection != "uniform":
            raise ValueError(
                f"projection {projection!r} does not go with placement {placement!r}, which shapes the projection "
                "itself: leave it out and set tempering"
            )
        if placement == "quantile":
            loss, reach = LOSS if loss is None else loss, HORIZON if max_lag is None else max_lag
            options = {"tempering": tempering, "loss": loss, "max_lag": reach / step, "fastest": fastest}
            return quantile_nodes(channels, aim, gain, **options)
        if terms is None:
            raise ValueError("placement 'terms' needs terms: the exponential sum whose terms the channels share")
        per_step = ExponentialSum(tuple(rate * step for rate in terms.rates), terms.weights)
        return term_nodes(per_step, channels, aim, gain, tempering=tempering)
    rates = rates_from_half_lives(half_lives_of(placement, channels, shortest, longest, max_lag)) * step
    return shaped(rates, projection, gain, aim)


def shaped(rates: ArrayLike, projection: Projection, gain: Gain, aim: Aim) -> Nodes:
    """Nodes at these rates per step, their projection shaped by name (`projection_weights`).

    Raises ValueError for an aim that a projection does not follow.
    """
    if aim != Aim(aim.beta) and projection != "gain-corrected":
        raise ValueError(
            f"projection {projection!r} follows no target, kernel or lag: use projection 'gain-corrected' or "
            "placement 'quantile'"
        )
    rates = np.asarray(rates, dtype=float)
    weights = projection_weights(rates, aim.beta, projection, gain, aim)
    return Nodes(tuple(rates.tolist()), tuple(weights.tolist()), gain)


def check_options(placement: str, **options: object) -> None:
    """Raise ValueError for an option (not None) that does nothing under this placement."""
    for name, value in options.items():
        if value is not None and placement not in PLACEMENTS_OF[name]:
            shown = f"{value:g}" if isinstance(value, int | float) else "an exponential sum"
            raise ValueError(
                f"{name} {shown} belongs to placement {' or '.join(map(repr, PLACEMENTS_OF[name]))}, got placement "
                f"{placement!r}: leave it out"
            )


def check_half_lives(shortest: float, longest: float) -> None:
    """Raise ValueError unless 0 < shortest < longest, both finite."""
    if not (np.isfinite(shortest) and np.isfinite(longest) and 0 < shortest < longest):
        raise ValueError(
            f"half-lives must satisfy 0 < shortest < longest, got shortest {shortest} and longest {longest}"
        )
