"""N channels of a diagonal recurrence, the input gain they assume, and the power law they are meant to carry."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike

from plkernel.analysis.exponentials.sums import ExponentialSum, Floats

Gain = Literal["none", "ema", "lru", "clamp"]
Target = Literal["information", "correlation"]
Summation = Literal["coherent", "rms"]
Lag = Literal["state", "distance", "bonus"]
# How many decays fewer than the lag a byte has gone through.
AHEAD: dict[Lag, int] = {"state": 0, "distance": 1, "bonus": 2}


@dataclass(frozen=True)
class Nodes:
    """N channels: decay rates per step, projection multipliers, and the input gain they assume.

    Multipliers have mean 1 unless they were matched to the output of another node set.
    """

    rates: tuple[float, ...]
    projection: tuple[float, ...]
    gain: Gain

    def half_lives(self) -> Floats:
        """ln 2 / rate, in steps."""
        return np.log(2) / np.asarray(self.rates)

    def kernel(self) -> ExponentialSum:
        """The coherent kernel sum_i projection_i g(rate_i) exp(-rate_i t)."""
        weights = np.asarray(self.projection) * gain_at(self.rates, self.gain)
        return ExponentialSum(self.rates, tuple(weights.tolist()))

    def per_step(self, step: float) -> "Nodes":
        """The same kernel sum_i projection_i g(rate_i) exp(-rate_i t) for a layer whose step is `step` times as long.

        Rates become rate * step. The gain acts on the new rates, so each multiplier is divided by what its gain grew
        by, g(rate * step) / g(rate); all are then scaled back to their former mean.
        """
        if step == 1:
            return self
        rates, before = np.asarray(self.rates) * step, np.asarray(self.projection)
        after = before * gain_at(self.rates, self.gain) / gain_at(rates, self.gain)
        after *= before.mean() / after.mean()
        return Nodes(tuple(rates.tolist()), tuple(after.tolist()), self.gain)

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that JSON keeps exactly; `from_dict` gives back an equal object."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        return cls(tuple(values["rates"]), tuple(values["projection"]), values["gain"])


def gain_at(rates: ArrayLike, gain: Gain) -> Floats:
    """What the recurrence multiplies its input by: none 1, ema 1 - a, lru sqrt(1 - a**2), clamp min(1, lambda).

    a = exp(-lambda). Sources: exponential moving average, as in Mega (arXiv 2209.10655); LRU (arXiv 2303.06349),
    equation 7; clamp is what RWKV's K-clamp does to the key, k * exp(min(w_raw, 0)) with a = exp(-exp(w_raw)).
    """
    rates = np.asarray(rates, dtype=float)
    if gain == "none":
        return np.ones_like(rates)
    if gain == "ema":
        return -np.expm1(-rates)
    if gain == "lru":
        return np.sqrt(-np.expm1(-2 * rates))
    if gain == "clamp":
        return np.minimum(1.0, rates)
    raise ValueError(f"gain must be one of {', '.join(get_args(Gain))}, got {gain!r}")


@dataclass(frozen=True)
class Reading:
    """How N channels together are read as a kernel of any shape: `kernel` and `lag` as in `Aim`."""

    kernel: Summation = "coherent"
    lag: Lag = "state"

    def __post_init__(self) -> None:
        check_name("kernel", self.kernel, get_args(Summation))
        check_name("lag", self.lag, get_args(Lag))

    @property
    def power(self) -> int:
        """Which power of the amplitude adds up over channels: 1 coherent, 2 rms."""
        return 1 if self.kernel == "coherent" else 2


@dataclass(frozen=True)
class Aim:
    """The power law that N channels together should follow, d**-exponent.

    beta: the exponent of the mutual information. target: `information` gives the kernel the exponent beta, as
    published; `correlation` gives it beta/2, since mutual information is quadratic in correlation.

    kernel: `coherent` is the plain sum over channels, as if C and B had one sign; `rms` is the root of the expected
    square when C and B are random with mean zero, which is what a model has at initialisation.

    lag: what a lag of t means. `state`: a channel contributes a**t, t >= 1: the state t steps after a byte came in.
    `distance`: a channel contributes a**(t-1): the newest byte is already in the state that predicts the next one, so
    at prediction distance 1 nothing has decayed. A model that predicts the next step has `distance`; `state` is the
    default because the published weights and all tables of such kernels are stated in it. `bonus`: a**(t-2), t >= 2:
    an RWKV reads the state from before the newest byte, which it sees through its bonus u alone.
    """

    beta: float
    target: Target = "information"
    kernel: Summation = "coherent"
    lag: Lag = "state"

    def __post_init__(self) -> None:
        check_beta(self.beta)
        check_name("target", self.target, get_args(Target))
        Reading(self.kernel, self.lag)  # checks both

    @property
    def reading(self) -> Reading:
        """Without the law."""
        return Reading(self.kernel, self.lag)

    @property
    def exponent(self) -> float:
        """The exponent of the kernel."""
        return self.beta if self.target == "information" else self.beta / 2

    @property
    def power(self) -> int:
        """Which power of the amplitude adds up over channels: 1 coherent, 2 rms."""
        return self.reading.power

    def log_amplitude(self, rates: ArrayLike, gain: Gain) -> Floats:
        """ln of m(lambda) = lambda**exponent / g(lambda), times a**n for the n of `AHEAD`: C of log-spaced channels.

        Coherent: t**-e is proportional to the integral of C g exp(-lambda t) dln(lambda) with C = m. Rms: t**-2e is
        proportional to the integral of (C g)**2 exp(-2 lambda t) dln(lambda) with C = m. The factor a**n makes up for
        the n decays that a lag of t is ahead: none under `state`, 1 under `distance`, 2 under `bonus`.
        """
        rates = np.asarray(rates, dtype=float)
        return np.asarray(self.exponent * np.log(rates) - AHEAD[self.lag] * rates - np.log(gain_at(rates, gain)))

    def rate_range(self, max_lag: float, loss: float) -> tuple[float, float]:
        """Slowest and fastest rate for lags 1..max_lag: beyond either end lies the share `loss` of the kernel there.

        With P the regularised incomplete gamma function and k = power: the share of t**(-k e) that rates below
        lambda carry is P(k e, k lambda t). Set to 1 - loss at t = 1 and to loss at t = max_lag.
        """
        from scipy.special import gammaincinv

        shape = self.power * self.exponent
        slowest, fastest = gammaincinv(shape, [loss, 1 - loss]) / self.power
        return float(slowest / max_lag), float(fastest)


def as_lags(lags: ArrayLike, lag: Lag) -> Floats:
    """How many times each lag has decayed: t for `state`, t - 1 for `distance`, t - 2 for `bonus`."""
    check_name("lag", lag, get_args(Lag))
    return np.asarray(lags, dtype=float) - AHEAD[lag]


def check_beta(beta: float) -> None:
    """Raise ValueError unless beta is a positive finite number."""
    if not (np.isfinite(beta) and beta > 0):
        raise ValueError(f"beta must be a positive number (1.15 is typical of text), got {beta}")


def check_name(what: str, name: str, valid: Iterable[str]) -> None:
    """Raise ValueError unless `name` is one of the `valid` ones."""
    if name not in valid:
        raise ValueError(f"{what} must be one of {', '.join(valid)}, got {name!r}")
