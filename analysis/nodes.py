"""Where the decays of N channels are placed, and what each channel's projection is multiplied by.

A channel with rate lambda and input gain g(lambda) adds C g(lambda) exp(-lambda t) to the kernel. Since
t**-beta = 1/Gamma(beta) * integral of lambda**(beta-1) exp(-lambda t) dlambda, log-spaced channels carry the power law
when C is proportional to lambda**beta / g(lambda): lambda**beta without gain, about lambda**(beta-1/2) under the LRU
gain and lambda**(beta-1) under the EMA gain.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike

from plkernel.analysis.exponentials import ExponentialSum, Floats

Gain = Literal["none", "ema", "lru"]
Placement = Literal["log-spaced", "concentrated"]
Projection = Literal["uniform", "published", "gain-corrected"]

ANCHORS = (1.0, 10.0, 80.0, 2000.0)
SHARES = (0.40, 0.25, 0.20, 0.15)


@dataclass(frozen=True)
class Nodes:
    """N channels: decay rates per step, projection multipliers of mean 1, and the input gain they assume."""

    rates: tuple[float, ...]
    projection: tuple[float, ...]
    gain: Gain

    def half_lives(self) -> Floats:
        """ln 2 / rate, in steps."""
        return np.log(2) / np.asarray(self.rates)

    def kernel(self) -> ExponentialSum:
        """The coherent kernel sum_i projection_i g(rate_i) exp(-rate_i t)."""
        weights = np.asarray(self.projection) * gain(self.rates, self.gain)
        return ExponentialSum(self.rates, tuple(weights.tolist()))

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that JSON keeps exactly; `from_dict` gives back an equal object."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        return cls(tuple(values["rates"]), tuple(values["projection"]), values["gain"])


def gain(rates: ArrayLike, name: Gain) -> Floats:
    """What the recurrence multiplies its input by: none 1, ema 1 - a, lru sqrt(1 - a**2), with a = exp(-rate).

    Sources: exponential moving average, as in Mega (arXiv 2209.10655); LRU (arXiv 2303.06349), equation 7.
    """
    rates = np.asarray(rates, dtype=float)
    if name == "none":
        return np.ones_like(rates)
    if name == "ema":
        return -np.expm1(-rates)
    if name == "lru":
        return np.sqrt(-np.expm1(-2 * rates))
    raise ValueError(f"gain must be one of {', '.join(get_args(Gain))}, got {name!r}")


def rates_from_half_lives(half_lives: ArrayLike) -> Floats:
    """lambda = ln 2 / half-life, per step of the unit the half-lives are in."""
    return np.log(2) / np.asarray(half_lives, dtype=float)


def log_spaced(channels: int, shortest: float = 1.0, longest: float = 2000.0) -> Floats:
    """Half-lives spaced evenly in ln(half-life) from `shortest` to `longest`, both included; shape (channels,).

    >>> log_spaced(4, 1.0, 1000.0).round(6).tolist()
    [1.0, 10.0, 100.0, 1000.0]
    """
    check_half_lives(shortest, longest)
    if channels < 2:
        raise ValueError(f"channels must be at least 2, got {channels}")
    return np.geomspace(shortest, longest, channels)


def concentrated(channels: int, anchors: Sequence[float] = ANCHORS, shares: Sequence[float] = SHARES) -> Floats:
    """Half-lives in one group per anchor, log-spaced from anchor/2 to 2 anchor; the published "concentrated" set.

    Group sizes are `shares` of the channels, rounded; the last group takes the remainder. Raises ValueError when a
    group would be empty.

    >>> [int(((h >= a / 2) & (h <= a * 2)).sum()) for h in [concentrated(256)] for a in (1, 10, 80, 2000)]
    [102, 64, 51, 39]
    """
    sizes = [round(share * channels) for share in shares[:-1]]
    sizes.append(channels - sum(sizes))
    if min(sizes) < 1:
        raise ValueError(f"channels must be large enough for {len(anchors)} groups, got {channels}")
    groups = [np.geomspace(anchor / 2, anchor * 2, size) for anchor, size in zip(anchors, sizes, strict=True)]
    return np.concatenate(groups)


def local_spacing(rates: ArrayLike) -> Floats:
    """The width in ln(lambda) that each node stands for: half the distance between its neighbours, ends mirrored."""
    log_rates = np.log(np.asarray(rates, dtype=float))
    order = np.argsort(log_rates)
    widths = np.empty_like(log_rates)
    widths[order] = np.gradient(log_rates[order])
    return widths


def projection_weights(rates: ArrayLike, beta: float, name: Projection, gain_name: Gain) -> Floats:
    """Multipliers of the projection's columns, of mean 1; shape of `rates`.

    uniform: 1. published: lambda**(beta-1), right under the EMA gain only. gain-corrected:
    lambda**beta * dln(lambda) / g(lambda), right for the gain it names on any node set.
    """
    rates = np.asarray(rates, dtype=float)
    forms: dict[str, Callable[[], Floats]] = {
        "uniform": lambda: np.ones_like(rates),
        "published": lambda: rates ** (beta - 1),
        "gain-corrected": lambda: rates**beta * local_spacing(rates) / gain(rates, gain_name),
    }
    if name not in forms:
        raise ValueError(f"projection must be one of {', '.join(forms)}, got {name!r}")
    weights = forms[name]()
    return np.asarray(weights / weights.mean())


def place(
    channels: int,
    *,
    placement: Placement = "log-spaced",
    projection: Projection = "uniform",
    gain_name: Gain = "none",
    beta: float = 1.15,
    shortest: float = 1.0,
    longest: float = 2000.0,
    step: float = 1.0,
) -> Nodes:
    """Nodes of `channels` channels by name; half-lives are in bytes and a step of the layer is `step` bytes.

    lambda = ln 2 * step / half-life. Raises ValueError for an unknown name or an impossible range.
    """
    check_beta(beta)
    placements: dict[str, Callable[[], Floats]] = {
        "log-spaced": lambda: log_spaced(channels, shortest, longest),
        "concentrated": lambda: concentrated(channels),
    }
    if placement not in placements:
        raise ValueError(f"placement must be one of {', '.join(placements)}, got {placement!r}")
    rates = rates_from_half_lives(placements[placement]()) * step
    weights = projection_weights(rates, beta, projection, gain_name)
    return Nodes(tuple(rates.tolist()), tuple(weights.tolist()), gain_name)


def check_beta(beta: float) -> None:
    """Raise ValueError unless beta is a positive finite number."""
    if not (np.isfinite(beta) and beta > 0):
        raise ValueError(f"beta must be a positive number (1.15 is typical of text), got {beta}")


def check_half_lives(shortest: float, longest: float) -> None:
    """Raise ValueError unless 0 < shortest < longest, both finite."""
    if not (np.isfinite(shortest) and np.isfinite(longest) and 0 < shortest < longest):
        raise ValueError(
            f"half-lives must satisfy 0 < shortest < longest, got shortest {shortest} and longest {longest}"
        )
