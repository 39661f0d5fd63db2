"""N channels of a diagonal recurrence: their decays, and the multipliers of their projections.

A channel with rate lambda and input gain g(lambda) adds C g(lambda) exp(-lambda t) to the kernel.
Since t**-beta = 1/Gamma(beta) * integral of lambda**(beta-1) exp(-lambda t) dlambda, log-spaced
channels carry the power law when C is proportional to lambda**beta / g(lambda): lambda**beta
without gain, about lambda**(beta-1/2) under the LRU gain and lambda**(beta-1) under the EMA gain.
More generally the density of the nodes over ln(lambda) times C is that.

With random signs, as at initialisation, squares add up and the number of nodes counts half: with
node density lambda**r dln(lambda), gain lambda**gamma and C ~ lambda**s, the coherent kernel (all
signs equal) falls with the exponent gamma + s + r and the rms kernel with gamma + s + r/2.
"""

import math
import numbers
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from plkernel.analysis.exponentials import (
    ExponentialSum,
    Floats,
    Scores,
    Target,
    exponential_sum,
    score,
)
from plkernel.analysis.printing import whole
from plkernel.analysis.results import Result

Gain = Literal["none", "ema", "lru", "clamp"]
AimTarget = Literal["information", "correlation"]
Summation = Literal["coherent", "rms"]
Lag = Literal["state", "distance", "bonus"]
Placement = Literal["log-spaced", "concentrated", "quantile", "terms"]
Projection = Literal["uniform", "published", "gain-corrected"]
Bonus = Literal["scheme", "law"]

GAINS: dict[Gain, Callable[[Floats], Floats]] = {
    "none": np.ones_like,
    "ema": lambda rates: -np.expm1(-rates),
    "lru": lambda rates: np.sqrt(-np.expm1(-2 * rates)),
    "clamp": lambda rates: np.minimum(1.0, rates),
}
POWERS: dict[Summation, int] = {"coherent": 1, "rms": 2}
"""The power of the amplitude that adds up over channels."""
AHEAD: dict[Lag, int] = {"state": 0, "distance": 1, "bonus": 2}
"""Lag minus the number of decays that a byte has gone through."""
SHORTEST = 1.0
LONGEST = 2000.0
"""Half-lives of log-spaced nodes in bytes, unless others are given."""
BETA = 1.15
"""`beta` of power laws, the published one, unless another is given."""
LOSS = 0.05
TEMPERING = 1.0
HORIZON = 2048.0
"""`loss`, `tempering` and `max_lag` of quantile nodes, unless others are given."""
ANCHORS = (1.0, 10.0, 80.0, 2000.0)
SHARES = (0.40, 0.25, 0.20, 0.15)
"""Groups of the published concentrated half-lives, and their shares of the channels."""
FEWEST: dict[Placement, int] = {"log-spaced": 2, "concentrated": 5, "quantile": 2}
"""Channels that a placement needs: both ends of a range, or one in each group. With the placement
terms it is the number of terms."""
PLACEMENTS_OF: dict[str, tuple[Placement, ...]] = {
    "shortest": ("log-spaced",),
    "longest": ("log-spaced",),
    "tempering": ("quantile", "terms"),
    "loss": ("quantile",),
    "max_lag": ("quantile",),
    "terms": ("terms",),
    "fastest": ("quantile",),
}
"""The placements that an option has an effect on."""
CELLS = 2048
"""Cells of the cumulative of quantile nodes."""
ORDER = 6
"""Gauss-Legendre points in a cell."""
NEWTON_STEPS = 4
"""Steps of Newton's method that invert the cumulative within a cell."""
NOT_FOLLOWED = 1.0
"""Half the range of ln(kernel / target), in e-folds, above which a kernel does not follow it."""
LAW_POINTS = 32
"""Lags, evenly spaced in their logarithm, on which a placed kernel is held against its law."""
SMOOTH_POINTS = 160
"""Points of a continuous target that `smooth_nodes` follows."""
LARGEST_LOG = 300.0
"""A density whose logarithm is larger follows nothing."""
CLOSE = 0.1
"""The relative error to which `smooth_nodes` follows a target, besides its own. Less lets the
projections of channels that are all too slow, or too fast, span thousands to little avail:
half-lives from 1 on miss t**-1.15 by 17 % instead of 13 %."""
STIFFNESS = 1.0
"""Expected change of the slope of ln(density) from one knot to the next, an octave away."""

SLOWEST = 2.0**-24
FASTEST = 126 * math.log(2)
"""Rates per step that a float32 decay holds: 1 - 2**-24 is the largest float32 below 1, and half a
step further on (2**-25) exp(-rate) is 1; 2**-126 is the least that has all its digits, and below
2**-150 exp(-rate) is 0. In half-lives 1/126 to 2**24 ln 2 = 1.16e7 steps."""
HALF_LIVES = math.log(2) / FASTEST, math.log(2) / SLOWEST
LARGEST_MULTIPLIER = 2.0**64
"""A norm squares what it gets, and float32 ends at 2**128."""
UNDERFLOWS = np.errstate(under="ignore")
"""Of functions in which a share that underflows is 0, even where a caller has numpy raise on it."""
MOST_WHOLE = 2**64
"""Whole numbers that are given are less in size; beyond, numpy and torch have none."""


@dataclass(frozen=True, repr=False)
class Nodes(Result):
    """N channels: decay rates per step, projection multipliers, and the input gain they assume.

    Multipliers have mean 1 unless they were matched to the output of another node set.
    """

    rates: tuple[float, ...]
    projection: tuple[float, ...]
    gain: Gain
    _figure = "plkernel.analysis.figures.decay:nodes_figure"

    def _title(self) -> str:
        lives = self.half_lives()
        return (
            f"{lives.size} channels, gain {self.gain!r}, half-lives {lives.min():.3g} to"
            f" {lives.max():.5g} steps"
        )

    def _table(self) -> Any:
        return {"half_life": self.half_lives(), "rate": self.rates, "projection": self.projection}

    def half_lives(self) -> Floats:
        """ln 2 / rate, in steps."""
        return np.log(2) / np.asarray(self.rates)

    def kernel(self) -> ExponentialSum:
        """The coherent kernel sum_i projection_i g(rate_i) exp(-rate_i t)."""
        weights = np.asarray(self.projection) * gain_at(self.rates, self.gain)
        return ExponentialSum(self.rates, tuple(weights.tolist()))

    def per_step(self, step: float) -> "Nodes":
        """The same kernel for a layer whose step is `step` times as long.

        sum_i projection_i g(rate_i) exp(-rate_i t). Rates become rate * step. The gain acts on the
        new rates, so each multiplier is divided by the growth of its gain, g(rate * step) /
        g(rate); all are then scaled back to their former mean.
        """
        if step == 1:
            return self
        rates = np.asarray(self.rates) * step
        before = np.asarray(self.projection)
        after = before * gain_at(self.rates, self.gain) / gain_at(rates, self.gain)
        after *= before.mean() / after.mean()
        return Nodes(tuple(rates.tolist()), tuple(after.tolist()), self.gain)

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that JSON keeps exactly."""
        return asdict(self)


def _nodes(rates: Floats, projection: Floats, gain: Gain) -> Nodes:
    """Nodes from arrays, the projection divided by its mean."""
    return Nodes(tuple(rates.tolist()), tuple((projection / projection.mean()).tolist()), gain)


@dataclass(frozen=True)
class Aim:
    """The power law that N channels together should follow, d**-exponent.

    beta    of the mutual information
    target  information: the kernel has the exponent beta, as published; correlation: beta/2, since
            mutual information is quadratic in correlation
    kernel  coherent: the plain sum over channels, as if C and B had one sign; rms: the root of the
            expected square when C and B are random with mean zero, as in a model at initialisation
    lag     of t. state: a channel contributes a**t, the state t steps after a byte came in, as in
            the published weights and all tables of such kernels. distance: a**(t-1), as the newest
            byte is already in the state that predicts the next one. bonus: a**(t-2), t >= 2, as an
            RWKV reads the state from before the newest byte, which it sees through its bonus u
            alone
    """

    beta: float
    target: AimTarget = "information"
    kernel: Summation = "coherent"
    lag: Lag = "state"

    def __post_init__(self) -> None:
        check_numbers(beta=self.beta)
        if not (np.isfinite(self.beta) and self.beta > 0):
            raise ValueError(f"beta must be a positive number, such as 1.15, got {self.beta}")
        check_name("target", self.target, get_args(AimTarget))
        check_name("kernel", self.kernel, POWERS)
        check_name("lag", self.lag, AHEAD)

    @property
    def exponent(self) -> float:
        """The exponent of the kernel."""
        return self.beta if self.target == "information" else self.beta / 2

    def log_amplitude(self, rates: ArrayLike, gain: Gain) -> Floats:
        """ln of m(lambda) = lambda**exponent / g(lambda), times a**n for the n of `AHEAD`.

        C of log-spaced channels. Coherent: t**-e is proportional to the integral of C g exp(-lambda
        t) dln(lambda) with C = m. Rms: t**-2e is proportional to the integral of (C g)**2 exp(-2
        lambda t) dln(lambda) with C = m.
        """
        rates = np.asarray(rates, dtype=float)
        gained = np.log(gain_at(rates, gain))
        return np.asarray(self.exponent * np.log(rates) - AHEAD[self.lag] * rates - gained)

    def rate_range(self, max_lag: float, loss: float) -> tuple[float, float]:
        """Slowest and fastest rate for lags 1..max_lag.

        Beyond either end lies the share `loss` of the kernel there. With P the regularised
        incomplete gamma function and k = 1 coherent, 2 rms: the share of t**(-k e) that rates below
        lambda carry is P(k e, k lambda t). Set to 1 - loss at t = 1 and to loss at t = max_lag.
        """
        from scipy.special import gammaincinv

        power = POWERS[self.kernel]
        slowest, fastest = gammaincinv(power * self.exponent, [loss, 1 - loss]) / power
        return float(slowest / max_lag), float(fastest)


def check_name(what: str, name: str, valid: Iterable[str]) -> None:
    """ValueError unless `name` is one of the `valid` ones."""
    if not isinstance(name, str) or name not in valid:
        raise ValueError(f"{what} must be one of {', '.join(valid)}, got {name!r}")


def check_numbers(kind: type[Any] = numbers.Real, **given: object) -> None:
    """Raise ValueError unless what is `given` is a number of this kind.

    The kind is numbers.Real or numbers.Integral. A whole number must be less than `MOST_WHOLE` in
    size: numpy and torch have no larger ones, and many are no floats.
    """
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, kind):
            is_whole = kind is numbers.Integral
            form = "a whole number such as 64" if is_whole else "a number such as 1.15"
            raise ValueError(f"{name} must be {form}, got {value!r}")
        if isinstance(value, numbers.Rational):  # a whole number, or a fraction
            floored: Any = value // 1
            floor = int(floored)
            if abs(floor) >= MOST_WHOLE:
                raise ValueError(f"{name} must be less than 2**64 in size, got {whole(floor)}")


def check_numbers_or_none(kind: type[Any] = numbers.Real, **given: object) -> None:
    """`check_numbers` of those that are not None."""
    check_numbers(kind, **{name: value for name, value in given.items() if value is not None})


def check_switches(**given: object) -> None:
    """Raise ValueError unless what is `given` is True or False, of Python or of numpy.

    Any other value would count as one of the two, "no" as True.
    """
    for name, value in given.items():
        if not isinstance(value, bool | np.bool_):
            raise ValueError(f"{name} must be true or false, got {value!r}")


def warn_outlasting(half_lives: ArrayLike, max_lag: float, *, by_beta: bool = False) -> None:
    """Warn where more than half of the half-lives (N,) exceed the longest lag, in the same unit.

    by_beta: they follow from the exponent of a power law, which may be larger.
    """
    values = np.asarray(half_lives, dtype=float)
    count = int((values > max_lag).sum())
    if 2 * count > values.size:
        larger = "a larger beta, or " if by_beta else ""
        warnings.warn(
            f"{count} of {values.size} half-lives, up to {values.max():,.0f}, are longer than"
            f" max_lag {max_lag:g} and hardly decay before it: use {larger}placement 'log-spaced'"
            " with longest=max_lag",
            stacklevel=3,
        )


def warn_not_followed(law: str, by: str, e_log: float, remedy: str) -> None:
    """Warn where a kernel that is told of as `by` misses its `law` by more than `NOT_FOLLOWED`.

    The warning points at the caller of the function that calls the caller of this one.
    """
    if e_log <= NOT_FOLLOWED:
        return
    warnings.warn(
        f"{law} is not followed by {by}, which at the best scale is wrong by a factor of"
        f" e**{e_log:.3g} either way: {remedy}",
        stacklevel=4,
    )


def gain_at(rates: ArrayLike, gain: Gain) -> Floats:
    """The factor on the input of the recurrence: none 1, ema 1 - a, lru sqrt(1 - a**2), clamp
    min(1, lambda), with a = exp(-lambda).

    Sources: exponential moving average, as in Mega (arXiv 2209.10655); LRU (arXiv 2303.06349),
    equation 7; clamp is what RWKV's K-clamp does to the key, k * exp(min(w_raw, 0)) with
    a = exp(-exp(w_raw)).
    """
    check_name("gain", gain, GAINS)
    return GAINS[gain](np.asarray(rates, dtype=float))


def log_kernel(nodes: Nodes, kernel: Summation, lags: ArrayLike, lag: Lag) -> Floats:
    """ln k(t) at `lags` (T,) in steps; nothing underflows.

    coherent  k(t) = sum_i projection_i g_i a_i**t
    rms       k(t) = sqrt(sum_i projection_i**2 g_i**2 a_i**(2 t)), which is sqrt(E k(t)**2) for
              C_i = projection_i z_i, with z_i and B_i independent, of mean 0 and variance 1
    """
    decays = np.asarray(lags, dtype=float) - AHEAD[lag]
    if kernel == "coherent":
        return nodes.kernel().log_kernel(decays)
    squared = exponential_sum(2 * np.asarray(nodes.rates), np.square(nodes.kernel().weights))
    return squared.log_kernel(decays) / 2


def falling_exponent(lags: ArrayLike, log_values: ArrayLike) -> Floats:
    """-d ln y / d ln t by least squares over `lags` (T,).

    For every ln y in `log_values` (..., T): 1.15 for t**-1.15. Infinite where y is 0 at one of the
    lags: it then falls faster than any power.
    """
    x = np.log(np.asarray(lags, dtype=float))
    y = np.asarray(log_values, dtype=float)
    if x.size < 2:
        raise ValueError(f"lags must be two or more for a slope, got {x.size}")
    x = x - x.mean()
    vanishes = np.isneginf(y)
    slope = np.where(vanishes, 0.0, y) @ x / (x @ x)
    return np.where(vanishes.any(axis=-1), np.inf, -slope)


def node_scores(
    nodes: Nodes, target: Target, kernel: Summation = "coherent", lag: Lag = "state"
) -> Scores:
    """Scores of the kernel of `nodes` against `target` at its `integer_lags`.

    kernel, lag: as in an `Aim`. Under lag `bonus` from t = 2, as the decays do not reach t = 1,
    which is seen through u.
    """
    lags = target.integer_lags()
    lags = lags[lags >= AHEAD[lag]]
    return score(log_kernel(nodes, kernel, lags, lag), target.value(lags), lags)


def output_std(nodes: Nodes) -> float:
    """sqrt(1/N sum_i projection_i**2 g_i**2 / (1 - a_i**2)).

    The rms output of white input of variance 1, over sqrt(N). It is the sum of the squared rms
    kernel over t >= 0, taken with B and C of variance 1 and divided by N. Slow nodes keep their
    digits: 1 - a**2 goes through expm1.
    """
    powers = np.square(nodes.kernel().weights) / -np.expm1(-2 * np.asarray(nodes.rates))
    return float(np.sqrt(powers.mean()))


def scaled_to(nodes: Nodes, std: float) -> Nodes:
    """The same nodes with all multipliers times one number, so that `output_std` is `std`."""
    factor = std / output_std(nodes)
    return replace(nodes, projection=tuple(factor * value for value in nodes.projection))


def place(
    channels: int,
    *,
    placement: Placement = "log-spaced",
    projection: Projection = "uniform",
    gain: Gain = "none",
    beta: float = BETA,
    shortest: float | None = None,
    longest: float | None = None,
    step: float = 1.0,
    target: AimTarget = "information",
    kernel: Summation = "coherent",
    lag: Lag = "state",
    tempering: float | None = None,
    loss: float | None = None,
    max_lag: float | None = None,
    terms: ExponentialSum | None = None,
    fastest: float | None = None,
) -> Nodes:
    """Nodes of `channels` channels by the name of their placement.

    Half-lives and lags are in bytes, and a step of the layer is `step` bytes: those of a token, as
    plkernel.measure finds them, for a layer of a language model. The nodes are in steps.

    placement   log-spaced: evenly in ln(half-life) from `shortest`, 1, to `longest`, 2000
                concentrated: the published groups
                quantile: at the quantiles of the power law's own measure up to `max_lag`, 2048
                (`quantile_nodes`, with `tempering`, 1, and `loss`, 0.05). Tempering 1, a uniform
                projection, reaches lags of about channels**(1/(k p)) steps and no further: k is 1
                for a coherent kernel and 2 for an rms one, p the exponent less 1/2 under lru and 1
                under ema and clamp. 1,024 channels without a gain follow t**-1.15 to about 400
                terms: the exponentials of `terms`, rates per byte, each on several channels
                (`term_nodes`, with `tempering`, 1)
    projection  uniform, published or gain-corrected (`shaped`); quantile and terms shape it
                themselves
    gain        the factor on the input of the recurrence, none, ema, lru or clamp
    beta, target, kernel, lag  the power law meant (`Aim`): quantile and gain-corrected follow it,
                published its beta alone, and uniform none. terms are a kernel themselves, read by
                `kernel` and `lag`
    fastest     the rate per step where quantile nodes end at the latest

    Warns if most half-lives are longer than `max_lag`, and if the kernel of quantile nodes misses
    its law by a factor of more than e either way at the best scale. Raises ValueError for an
    unknown name, an impossible range, and an option that belongs to another placement or
    projection.
    """
    check_numbers(numbers.Integral, channels=channels)
    check_numbers(step=step)
    check_numbers_or_none(
        fastest=fastest,
        shortest=shortest,
        longest=longest,
        tempering=tempering,
        loss=loss,
        max_lag=max_lag,
    )
    if not 0.0 < step < np.inf:
        raise ValueError(f"step must be above 0 and finite, got {step}")
    if fastest is not None and not fastest > 0.0:
        raise ValueError(f"fastest must be above 0, got {fastest}")
    aim = Aim(beta, target, kernel, lag)
    check_name("projection", projection, get_args(Projection))
    check_placement_options(
        placement,
        shortest=shortest,
        longest=longest,
        tempering=tempering,
        loss=loss,
        max_lag=max_lag,
        terms=terms,
        fastest=fastest,
    )
    _check_law(placement, projection, aim)
    tempering = TEMPERING if tempering is None else tempering
    if placement not in ("quantile", "terms"):
        with np.errstate(over="ignore"):
            rates = np.log(2) / half_lives_of(placement, channels, shortest, longest) * step
        _check_finite("shortest, longest and step", rates)
        return shaped(rates, projection, gain, aim)
    if projection != "uniform":
        raise ValueError(
            f"projection must be left out with placement {placement!r}, which shapes the projection"
            f" itself, got {projection!r}; set tempering instead"
        )
    if placement == "quantile":
        loss = LOSS if loss is None else loss
        reach = (HORIZON if max_lag is None else max_lag) / step
        end = np.inf if fastest is None else fastest
        nodes = quantile_nodes(channels, aim, gain, tempering, loss, reach, end)
        warn_outlasting(step * nodes.half_lives(), step * reach, by_beta=True)
        _warn_of_distance(nodes, aim, tempering, reach)
        return nodes
    if not isinstance(terms, ExponentialSum):
        raise ValueError(
            f"terms must be an exponential sum with placement 'terms', got {terms!r}; the channels"
            " share its terms"
        )
    per_step = replace(terms, rates=tuple(rate * step for rate in terms.rates))
    _check_finite("terms and step", np.asarray(per_step.rates))
    return term_nodes(per_step, channels, kernel, lag, gain, tempering)


def _warn_of_distance(nodes: Nodes, aim: Aim, tempering: float, max_lag: float) -> None:
    """Warn where the kernel of quantile nodes does not follow its law up to `max_lag` steps."""
    remedies = ["more channels", "a smaller max_lag"]
    if nodes.gain == "none":
        remedies.append("a gain if the recurrence has one")
    if tempering > 0:
        remedies.append("a smaller tempering, such as 0.25, which shapes the projection")
    warn_not_followed(
        f"t**-{aim.exponent:g} up to {max_lag:g} steps",
        f"the kernel of {len(nodes.rates)} channels",
        law_distance(nodes, aim, max_lag),
        f"give {', '.join(remedies[:-1])}, or {remedies[-1]}",
    )


@UNDERFLOWS
def law_distance(nodes: Nodes, aim: Aim, max_lag: float) -> float:
    """Half the range of ln(kernel / law), in e-folds, from the first lag to `max_lag` steps.

    On `LAW_POINTS` lags. The first lag is 1, or 2 where decays do not reach 1 (`AHEAD`).
    """
    first = min(max(1, AHEAD[aim.lag]), max_lag)
    lags = np.geomspace(first, max_lag, LAW_POINTS)
    logs = log_kernel(nodes, aim.kernel, lags, aim.lag)
    return float(np.ptp(logs + aim.exponent * np.log(lags))) / 2


def _check_law(placement: Placement, projection: Projection, aim: Aim) -> None:
    """Raise ValueError for a beta, and for a target, that no node would follow."""
    if aim.beta != BETA and placement != "quantile" and projection == "uniform":
        raise ValueError(
            f"beta must be left out with placement {placement!r} and projection 'uniform', which"
            f" follow no power law, got {aim.beta:g}; placement 'quantile' and projection"
            " 'gain-corrected' do"
        )
    if aim.target != "information" and placement == "terms":
        raise ValueError(
            "target must be left out with placement 'terms', whose terms are the kernel, got"
            f" {aim.target!r}; plkernel.fit gives the terms of another kernel"
        )


def _check_finite(names: str, rates: Floats) -> None:
    """Raise ValueError, headed by the arguments, unless rates (N,) and half-lives are above 0 and
    finite.
    """
    with np.errstate(divide="ignore", over="ignore"):
        half_lives = np.log(2) / rates
    if not ((rates > 0) & np.isfinite(rates) & np.isfinite(half_lives)).all():
        raise ValueError(
            f"{names} must give half-lives that are above 0 and finite, got rates per step of"
            f" {rates.min():g} to {rates.max():g}"
        )


def check_placement_options(placement: str, **options: object) -> None:
    """Raise ValueError for an unknown placement, and for options that it does not take.

    An option that is None is not given. Shares outside their range are refused too.
    """
    check_name("placement", placement, get_args(Placement))
    for name, value in options.items():
        if value is not None and placement not in PLACEMENTS_OF[name]:
            shown = f"{value:g}" if isinstance(value, numbers.Real) else "an exponential sum"
            raise ValueError(
                f"{name} must be left out with placement {placement!r}, got {shown}; it belongs to"
                f" placement {' or '.join(map(repr, PLACEMENTS_OF[name]))}"
            )
    loss = options.get("loss")
    tempering = options.get("tempering")
    if isinstance(loss, numbers.Real) and not 0 < float(loss) < 0.5:
        raise ValueError(f"loss must lie between 0 and 0.5 (0.05 is the default), got {loss}")
    if isinstance(tempering, numbers.Real) and not 0 <= float(tempering) <= 1:
        raise ValueError(
            f"tempering must lie between 0 (log-spaced) and 1 (uniform projection), got {tempering}"
        )


def check_channels(placement: Placement, channels: int, name: str = "channels") -> None:
    """Raise ValueError for fewer channels than the placement needs, which the option `name`
    counts.
    """
    fewest = FEWEST[placement]
    if channels < fewest:
        raise ValueError(
            f"{name} must be at least {fewest}, got {channels}, for {placement} half-lives"
        )


def half_lives_of(
    placement: Placement, channels: int, shortest: float | None = None, longest: float | None = None
) -> Floats:
    """The half-lives of a placement that no power law decides, in bytes; shape (channels,).

    log-spaced     evenly in ln(half-life) from `shortest` to `longest`, both included
    concentrated   one group per anchor of `ANCHORS`, log-spaced from anchor/2 to 2 anchor; sizes
                   are `SHARES` of the channels, rounded, and the last group takes the remainder
    """
    check_channels(placement, channels)
    if placement == "concentrated":
        sizes = [round(share * channels) for share in SHARES[:-1]]
        sizes.append(channels - sum(sizes))
        groups = []
        for anchor, size in zip(ANCHORS, sizes, strict=True):
            groups.append(np.geomspace(anchor / 2, anchor * 2, size))
        return np.concatenate(groups)
    shortest = SHORTEST if shortest is None else shortest
    longest = LONGEST if longest is None else longest
    if not 0 < shortest < longest < np.inf:
        raise ValueError(
            f"half-lives must satisfy 0 < shortest < longest, got shortest {shortest} and longest"
            f" {longest}"
        )
    return np.geomspace(shortest, longest, channels)


def shaped(rates: Floats, projection: Projection, gain: Gain, aim: Aim) -> Nodes:
    """Nodes at these rates (N,) per step, their projection shaped by name, of mean 1.

    uniform         1
    published       lambda**(beta-1), right under the EMA gain only
    gain-corrected  lambda**exponent * a**n * dln(lambda)**(1/k) / g(lambda), right for the gain it
                    names on any node set; n as in `Aim.log_amplitude`, k = 1 for a coherent kernel
                    and 2 for an rms one, where squares add up and the number of nodes counts half

    gain-corrected alone follows an `aim` with a target, kernel or lag. Raises ValueError where
    these are no numbers.
    """
    if aim != Aim(aim.beta) and projection != "gain-corrected":
        raise ValueError(
            f"projection must be 'gain-corrected' to follow a target, kernel or lag, got"
            f" {projection!r}; placement 'quantile' follows them too"
        )
    gains = gain_at(rates, gain)
    with np.errstate(all="ignore"):
        if projection == "uniform":
            weights = np.ones_like(rates)
        elif projection == "published":
            weights = rates ** (aim.beta - 1)
        else:
            spacing = local_spacing(rates) ** (1 / POWERS[aim.kernel])
            weights = rates**aim.exponent * np.exp(-AHEAD[aim.lag] * rates) * spacing / gains
        nodes = _nodes(rates, weights, gain)
    if not np.isfinite(nodes.projection).all():
        raise ValueError(
            "beta must be small enough for float64 to hold the multipliers of the projection, got"
            f" {aim.beta:g}"
        )
    return nodes


def local_spacing(rates: ArrayLike) -> Floats:
    """The width in ln(lambda) of each node: half the distance of its neighbours, ends mirrored."""
    log_rates = np.log(np.asarray(rates, dtype=float))
    order = np.argsort(log_rates)
    widths = np.empty_like(log_rates)
    widths[order] = np.gradient(log_rates[order])
    return widths


def _from_logs(rates: Floats, log_projection: Floats, gain: Gain) -> Nodes:
    """Nodes whose projection is given by its logarithm, up to a factor."""
    return _nodes(rates, np.exp(log_projection - log_projection.max()), gain)


@UNDERFLOWS
def quantile_nodes(
    channels: int,
    aim: Aim,
    gain: Gain,
    tempering: float,
    loss: float = LOSS,
    max_lag: float = HORIZON,
    fastest: float = np.inf,
) -> Nodes:
    """Node i at the quantile (i - 1/2)/N of the density m**(k s) over ln(lambda).

    C is proportional to m**(1 - s). m(lambda) = lambda**exponent / g(lambda) times a**n
    (`Aim.log_amplitude`), k = 1 for a coherent aim, 2 for rms, and s = `tempering` in [0, 1]: s = 1
    gives a uniform C and puts the whole law into the density of the nodes, s = 0 gives log-spaced
    nodes and puts it into C. The cumulative is inverted exactly, for any gain. The rates reach over
    `Aim.rate_range`, or to `fastest` where that is less. `max_lag` is in steps.

    A uniform C needs many slow channels: with m ~ lambda**p it reaches lags of about N**(1/(k p)),
    and no further. Prior art: time scales of LSTM units drawn from an inverse gamma law (arXiv
    2009.12727) is s = 1 without gain.
    """
    check_channels("quantile", channels)
    if not 1 < max_lag < np.inf:
        raise ValueError(f"max_lag must be more than one step, got {max_lag}")
    slowest, end = aim.rate_range(max_lag, loss)
    end = min(end, fastest)
    if not 0 < slowest < end < np.inf:
        raise ValueError(
            f"beta must be nearer to 1, or max_lag longer, got {aim.beta:g} and {max_lag:g}, which"
            f" place rates from {slowest:g} on, none above {end:g}"
        )

    power = POWERS[aim.kernel] * tempering

    def log_density(log_rates: Floats) -> Floats:
        return np.asarray(power * aim.log_amplitude(np.exp(log_rates), gain))

    shares = (np.arange(channels, 0, -1) - 0.5) / channels  # fastest first
    rates = np.exp(_quantiles(log_density, np.log(slowest), np.log(end), shares))
    return _from_logs(rates, (1 - tempering) * aim.log_amplitude(rates, gain), gain)


def _quantiles(
    log_density: Callable[[Floats], Floats], low: float, high: float, shares: Floats
) -> Floats:
    """The points below which these shares of exp(log_density) on [low, high] lie.

    The cumulative is known at the edges of CELLS by quadrature; Newton steps invert it in a cell.
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
    left = edges[cell]
    right = edges[cell + 1]
    at = left + (wanted - cumulative[cell]) / masses[cell] * (right - left)
    for _ in range(NEWTON_STEPS):
        excess = cumulative[cell] + measure(left, at) - wanted
        at = np.clip(at - excess / np.exp(log_density(at) - top), left, right)
    return np.asarray(at)


@UNDERFLOWS
def term_nodes(
    terms: ExponentialSum, channels: int, kernel: Summation, lag: Lag, gain: Gain, tempering: float
) -> Nodes:
    """Share out `channels` among fitted terms; those of a term together give its weight.

    Term j, of weight w_j at rate lambda_j per step, needs the total projection c_j = a**n w_j /
    g(lambda_j), n as in `AHEAD`. It gets n_j channels in proportion to c_j**tempering (at least one
    each, largest remainders first), all at its rate, each with the multiplier c_j / n_j. For the
    rms kernel the terms are those of its SQUARE: rates are halved, c_j has sqrt(w_j) and the
    multiplier is c_j / sqrt(n_j). Terms of weight zero are left out.
    """
    power = POWERS[kernel]
    weights = np.asarray(terms.weights)
    kept = np.flatnonzero(weights > 0)
    if not 0 < kept.size <= channels:
        raise ValueError(
            f"channels must be at least the number of terms, {kept.size} (and one), got {channels}"
        )
    rates = np.asarray(terms.rates)[kept] / power
    needed = np.exp(np.log(weights[kept]) / power - AHEAD[lag] * rates) / gain_at(rates, gain)
    counts = allot(needed**tempering, channels)
    each = needed / counts ** (1 / power)
    fastest_first = np.argsort(-rates, kind="stable")
    order = np.repeat(fastest_first, counts[fastest_first])
    return _nodes(rates[order], each[order], gain)


def allot(shares: ArrayLike, seats: int) -> np.ndarray:
    """Whole numbers, at least 1 each, that sum to `seats`, in proportion to `shares` (n,).

    By largest remainder, as parties get seats. Parties that proportion would leave
    under one seat get one, the rest share what remains; a tie goes to the first.
    """
    shares = np.asarray(shares, dtype=float)
    counts = np.ones(shares.size, dtype=int)
    free = np.ones(shares.size, dtype=bool)
    while free.any():
        quota = (seats - counts[~free].sum()) * shares / shares[free].sum()
        small = free & (quota < 1)
        if not small.any():
            counts[free] = np.floor(quota[free])
            remainders = np.where(free, quota - np.floor(quota), -1.0)
            counts[np.argsort(-remainders, kind="stable")[: seats - counts.sum()]] += 1
            break
        free &= ~small
    return counts


@UNDERFLOWS
def smooth_nodes(rates: Floats, target: Target, gain: Gain, kernel: Summation, lag: Lag) -> Nodes:
    """Channels of these `rates` (N,), per step, whose kernel follows `target` as nearly as a smooth
    density can.

    A channel's weight to the power k (1 coherent, 2 rms) is a density rho times the stretch of
    ln(rate) that it stands for,

        (p_i g_i)**k = rho(rate_i) dln(rate_i) .

    ln rho is a broken line over ln(rate), a knot for each octave, by least squares of ln(kernel /
    target) over 10 % and the target's own errors, and of the changes of its slope over `STIFFNESS`.
    Those vanish for a power law: stiffness decides only what the target leaves open. Unlike
    non-negative least squares, every projection is positive. Raises ValueError for rates too far
    from the lags of the target.
    """
    from scipy.optimize import least_squares

    power = POWERS[kernel]
    if target.errors is None:
        known, counts = target.spread_lags(SMOOTH_POINTS)
        precision = np.sqrt(counts / counts.mean()) / CLOSE
    else:
        known = np.asarray(target.lags)
        precision = 1 / np.hypot(CLOSE, target.errors)
    lags = known[known >= AHEAD[lag]]
    scale = precision[-lags.size :] / power
    wanted = power * np.log(target.value(lags))

    slowest = float(np.log(rates.min()))
    fastest = float(np.log(rates.max()))
    octaves = round((fastest - slowest) / np.log(2))
    knots = np.linspace(slowest, fastest, max(2, 1 + octaves))
    # Column j is 1 at knot j and falls to 0 at its neighbours: hats @ density is the broken line.
    hats = np.stack([np.interp(np.log(rates), knots, unit) for unit in np.eye(knots.size)], axis=1)
    spacing = local_spacing(rates)
    exponents = np.log(spacing) - power * np.outer(lags - AHEAD[lag], rates)
    bends = np.diff(np.eye(knots.size), 2, axis=0) / (STIFFNESS * np.log(2))

    def parts(density: Floats) -> tuple[Floats, Floats]:
        """ln(kernel / target) and the share of each channel in the kernel."""
        logs = exponents + hats @ density
        highest = logs.max(axis=1, keepdims=True)
        shares = np.exp(logs - highest)
        total = shares.sum(axis=1, keepdims=True)
        return (highest + np.log(total))[:, 0] - wanted, shares / total

    def residuals(density: Floats) -> Floats:
        errors, _ = parts(density)
        return np.concatenate([errors * scale, bends @ density])

    def jacobian(density: Floats) -> Floats:
        _, shares = parts(density)
        return np.concatenate([(shares @ hats) * scale[:, None], bends])

    slope = (wanted[0] - wanted[-1]) / np.log(lags[-1] / lags[0])
    start = slope * knots
    errors, _ = parts(start)
    density = least_squares(residuals, start - errors.mean(), jacobian, method="lm").x
    if not np.abs(density).max() < LARGEST_LOG:
        shortest = np.log(2) / rates.max()
        longest = np.log(2) / rates.min()
        raise ValueError(
            f"nodes must be 'terms' for half-lives from {shortest:.3g} to {longest:.3g}, which"
            f" cannot follow {target.label}"
        )
    log_weights = (hats @ density + np.log(spacing)) / power
    return _from_logs(rates, log_weights - np.log(gain_at(rates, gain)), gain)


def check_rates(what: str, rates: Iterable[float], step: int) -> None:
    """Raise ValueError, headed by `what`, for rates per step of `step` bytes that no float32 decay
    holds.
    """
    shortest, longest = HALF_LIVES
    first = shortest * step
    last = longest * step
    for rate in rates:
        if not SLOWEST <= rate <= FASTEST:
            value = math.log(2) / rate * step if rate else math.inf
            raise ValueError(
                f"{what} must be between {first:.3g} and {last:.3g} bytes for a float32 decay to"
                f" hold it, got {value:g}"
            )


def check_multipliers(name: str, value: float, largest: float) -> None:
    """Raise ValueError where a multiplier's square does not fit into float32.

    The multiplier is made by the option `name` of this value.
    """
    if not largest <= LARGEST_MULTIPLIER:
        raise ValueError(
            f"{name} must be at most {value * (LARGEST_MULTIPLIER / largest):.3g}, so that float32"
            f" holds the square of the largest multiplier of the projection, got {value:g}"
        )
