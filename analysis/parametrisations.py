"""How layers compute their decays: the rate -ln a of a parameter x, its inverse, and its limits.

One table for readers of checkpoints (`plkernel.inspect`, `plkernel.watch`), for writers
(`plkernel.apply`) and for the gallery. Functions take arrays of numpy or tensors of torch of equal
shapes, and compute in the library and the type that they are given. Products in the exponent are
formed there, never as a decay, so that half-lives of any length keep their digits.
"""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plkernel.analysis.exponentials import Floats

Array = Any
"""An array of numpy or a tensor of torch."""
Limit = Any
"""A number, or an array."""
RWKV7_LARGEST_RATE = math.exp(-0.5)
"""Per byte: the decay of RWKV-7 is exp(-exp(-1/2) sigmoid(w)), arXiv 2503.14456."""
RG_LRU_SPEED = 8.0
"""c of a = sigmoid(Lambda)**(c r), arXiv 2402.19427."""
GLA_ROOT = 16.0
"""tau of a = sigmoid(b)**(1/tau), arXiv 2312.06635."""
ABOVE_ZERO = ("bound", "cap")
"""What forms need or take that must be above 0."""


def library(x: Array) -> Any:
    """The library of an array: torch for its tensors, else numpy."""
    of_torch = type(x).__module__.partition(".")[0] == "torch"
    return sys.modules["torch"] if of_torch else np


def softplus(x: Array) -> Array:
    """ln(1 + exp(x)) to the last digit, for any x."""
    xp = library(x)
    return xp.logaddexp(x, xp.zeros_like(x))


def inverse_softplus(y: Array) -> Array:
    """ln(exp(y) - 1) for y > 0, to the last digit of small and of large ones."""
    xp = library(y)
    return y + xp.log(-xp.expm1(-y))


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), for any x."""
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + library(x).exp(-x))


def logit(share: Array) -> Array:
    """ln(s / (1 - s)) for 0 < s < 1."""
    return library(share).log(share / (1.0 - share))


def anywhere(**given: Array) -> tuple[Limit, Limit]:
    """Limits of a form that reaches every rate."""
    return 0.0, math.inf


@dataclass(frozen=True)
class RateForm:
    """One parametrisation: the rate -ln a of a parameter x, and its exact inverse.

    rate, inverse  functions of x or of rates, and of what is given beside it, all of one shape
    words          the decay a
    needs          what must be given, by name
    takes          what may be given, by name, and the decay with it in words
    limits         the slowest and the fastest rate, neither of which x reaches
    falls          the rate falls as x rises
    """

    rate: Callable[..., Array]
    inverse: Callable[..., Array]
    words: str
    needs: tuple[str, ...] = ()
    takes: Mapping[str, str] = field(default_factory=dict)
    limits: Callable[..., tuple[Limit, Limit]] = anywhere
    falls: bool = False


def exp(x: Array) -> Array:
    """rate = exp(x)."""
    return library(x).exp(x)


def log(rates: Array) -> Array:
    """x = ln(rate)."""
    return library(rates).log(rates)


def gate_rate(x: Array, cap: Array | None = None) -> Array:
    """-ln sigmoid(x) = softplus(-x); with a soft cap c, of c tanh(x / c)."""
    return softplus(-(x if cap is None else cap * library(x).tanh(x / cap)))


def gate_inverse(rates: Array, cap: Array | None = None) -> Array:
    """x of `gate_rate`: the logit of the decay."""
    level = -inverse_softplus(rates)
    return level if cap is None else cap * library(rates).arctanh(level / cap)


def gate_limits(cap: Array | None = None) -> tuple[Limit, Limit]:
    """softplus(-c) and softplus(c) under a soft cap c."""
    return anywhere() if cap is None else (softplus(-cap), softplus(cap))


def root_rate(x: Array) -> Array:
    """-ln sigmoid(x)**(1/16)."""
    return gate_rate(x) / GLA_ROOT


def root_inverse(rates: Array) -> Array:
    """x of `root_rate`."""
    return gate_inverse(GLA_ROOT * rates)


def stepped_rate(
    a_log: Array, dt_bias: Array, shortest: float = 0.0, longest: float = math.inf
) -> Array:
    """exp(A_log) softplus(dt_bias), the time step softplus(dt_bias) within limits."""
    step = library(dt_bias).clip(softplus(dt_bias), shortest, longest)
    return exp(a_log) * step


def a_log_inverse(rates: Array, dt_bias: Array) -> Array:
    """A_log of `stepped_rate`."""
    return log(rates / softplus(dt_bias))


def dt_bias_rate(x: Array, a_log: Array) -> Array:
    """`stepped_rate` of dt_bias = x."""
    return stepped_rate(a_log, x)


def dt_bias_inverse(rates: Array, a_log: Array) -> Array:
    """dt_bias of `stepped_rate`."""
    return inverse_softplus(rates / exp(a_log))


def exp_sigmoid_rate(x: Array) -> Array:
    """exp(-1/2) sigmoid(x)."""
    return RWKV7_LARGEST_RATE * sigmoid(x)


def exp_sigmoid_inverse(rates: Array) -> Array:
    """x of `exp_sigmoid_rate`: logit(rate / exp(-1/2))."""
    return log(rates / (RWKV7_LARGEST_RATE - rates))


def exp_sigmoid_limits() -> tuple[Limit, Limit]:
    """0 and exp(-1/2)."""
    return 0.0, RWKV7_LARGEST_RATE


def bounded_rate(x: Array, bound: Array, a_log: Array | None = None) -> Array:
    """bound sigmoid(exp(a_log) x)."""
    return bound * sigmoid(x if a_log is None else x * exp(a_log))


def bounded_inverse(rates: Array, bound: Array, a_log: Array | None = None) -> Array:
    """x of `bounded_rate`."""
    level = log(rates / (bound - rates))
    return level if a_log is None else level / exp(a_log)


def bounded_limits(bound: Array, a_log: Array | None = None) -> tuple[Limit, Limit]:
    """0 and the bound."""
    return 0.0, bound


def rg_lru_rate(x: Array, gate_bias: Array) -> Array:
    """8 sigmoid(gate bias) softplus(x)."""
    return RG_LRU_SPEED * sigmoid(gate_bias) * softplus(x)


def rg_lru_inverse(rates: Array, gate_bias: Array) -> Array:
    """x of `rg_lru_rate`."""
    return inverse_softplus(rates / (RG_LRU_SPEED * sigmoid(gate_bias)))


def real_part_rate(x: Array, log_step: Array) -> Array:
    """-x exp(log_step): x is the negative real part of a pole."""
    return -x * exp(log_step)


def real_part_inverse(rates: Array, log_step: Array) -> Array:
    """x of `real_part_rate`."""
    return -rates / exp(log_step)


def log_real_part_rate(x: Array, log_step: Array) -> Array:
    """exp(x) exp(log_step): x is the logarithm of minus the real part of a pole."""
    return exp(log_step) * exp(x)


def log_real_part_inverse(rates: Array, log_step: Array) -> Array:
    """x of `log_real_part_rate`."""
    return log(rates / exp(log_step))


def ordered_levels(theta: Array, delta: Array) -> Array:
    """p_k = theta + sum_{j<k} softplus(delta_j): N levels that rise, (N,).

    theta: (1,). delta: (N-1,). Source: arXiv 2604.07658.
    """
    xp = library(theta)
    return xp.cumsum(xp.concatenate((theta, softplus(delta))), 0)


def position_exponents(levels: Array, log_length: Array) -> Array:
    """alpha_k = (N-1-k)/(N-1) + (c_k - k c_{N-1}/(N-1)) / ln T within 0 and 1, c_k = p_k - p_0.

    Of levels p (N,) in any order: k is the rank of each, and alpha is 1 of the slowest, 0 of the
    fastest. log_length: ln T, a number or of one element. At position t a level is p - alpha ln t.
    Raises ValueError for fewer than two levels. Source: arXiv 2604.07658, theorem 4.5.
    """
    if len(levels) < 2:
        raise ValueError(
            f"levels must be 2 or more for decays by position, got {len(levels)}; one alone is"
            " neither the slowest nor the fastest"
        )
    xp = library(levels)
    stable = {"kind": "stable"} if xp is np else {"stable": True}
    order = xp.argsort(levels, **stable)
    rising = levels[order]
    last = len(rising) - 1
    k = xp.cumsum(xp.ones_like(rising), 0) - 1
    risen = rising - rising[0]
    even = k * (risen[-1] / last)
    alpha = (last - k) / last + (risen - even) / log_length
    return xp.clip(alpha, 0, 1)[xp.argsort(order)]


EXPONENTIAL = RateForm(exp, log, "exp(-exp(x))")
FORMS: dict[str, RateForm] = {
    "log_rate": EXPONENTIAL,
    "exp_exp": EXPONENTIAL,
    "sigmoid": RateForm(
        gate_rate,
        gate_inverse,
        "sigmoid(x)",
        takes={"cap": "sigmoid(cap tanh(x / cap))"},
        limits=gate_limits,
        falls=True,
    ),
    "sigmoid_root": RateForm(root_rate, root_inverse, "sigmoid(x)**(1/16)", falls=True),
    "a_log": RateForm(
        stepped_rate, a_log_inverse, "exp(-exp(x) softplus(dt_bias))", needs=("dt_bias",)
    ),
    "dt_bias": RateForm(
        dt_bias_rate, dt_bias_inverse, "exp(-exp(a_log) softplus(x))", needs=("a_log",)
    ),
    "exp_sigmoid": RateForm(
        exp_sigmoid_rate,
        exp_sigmoid_inverse,
        "exp(-exp(-1/2) sigmoid(x))",
        limits=exp_sigmoid_limits,
    ),
    "bounded": RateForm(
        bounded_rate,
        bounded_inverse,
        "exp(-bound sigmoid(x))",
        needs=("bound",),
        takes={"a_log": "exp(-bound sigmoid(exp(a_log) x))"},
        limits=bounded_limits,
    ),
    "rg_lru": RateForm(
        rg_lru_rate,
        rg_lru_inverse,
        "exp(-8 sigmoid(gate_bias) softplus(x))",
        needs=("gate_bias",),
    ),
    "real_part": RateForm(
        real_part_rate, real_part_inverse, "exp(x exp(log_step))", needs=("log_step",), falls=True
    ),
    "log_real_part": RateForm(
        log_real_part_rate,
        log_real_part_inverse,
        "exp(-exp(x) exp(log_step))",
        needs=("log_step",),
    ),
}
"""Parametrisations by name, which `plkernel.models.power_law.decays_` explains."""


def lightning_rates(heads: int, layers: int, layer: int) -> Floats:
    """2**(-8 h / H) (1 - layer / (layers - 1 + 1e-5) + 1e-5) for head h = 1..H; (H,).

    Source: arXiv 2501.08313, and the code of transformers.
    """
    depth = layer / (layers - 1 + 1e-5)
    return np.exp2(-8.0 * np.arange(1, heads + 1) / heads) * (1.0 - depth + 1e-5)


def retnet_rates(heads: int) -> Floats:
    """-ln(1 - 2**(-5 - h)) for head h = 0..H-1; (H,). Source: arXiv 2307.08621."""
    return -np.log1p(-np.exp2(-5.0 - np.arange(heads)))


def half_open_rate(bound: Floats) -> Floats:
    """-ln(l + (1 - l) / 2) of HGRN: the gate at 1/2 above the lower bound l (arXiv 2311.04823)."""
    return -np.log((1.0 + bound) / 2.0)


def channel_ramp(channels: int, exponent: float) -> Floats:
    """x**exponent for x = 0 .. 1 over the channels."""
    ramp: Floats = (np.arange(channels) / max(1, channels - 1)) ** exponent
    return ramp


def rwkv_levels(channels: int, depth: float, low: float = -6.0, high: float = -1.0) -> Floats:
    """Initial ln(-ln a) of RWKV-4 to 6: low + (high - low) x**(0.7 + 1.3 depth), depth 0 .. 1.

    x runs from 0 to 1 over the channels. Source: BlinkDL/RWKV-LM, RWKV-v5/src/model.py.
    """
    return low + (high - low) * channel_ramp(channels, 0.7 + 1.3 * depth)


def rwkv7_levels(channels: int, depth: float, head_size: int = 64) -> Floats:
    """Initial w0 of RWKV-7: -5.5 + 6 x**(1 + depth**0.3) + 2.5 z |z|, depth 0 .. 1.

    x runs from 0 to 1 over the channels, z from -1 to 1 along each head; z is 0 in heads of one
    channel. Source: BlinkDL/RWKV-LM, RWKV-v7, where heads have 64; fla: layers/rwkv7.py, of any
    size.
    """
    ramp = channel_ramp(channels, 1.0 + depth**0.3)
    middle = (head_size - 1) / 2.0
    from_middle = np.arange(channels) % head_size - middle
    zigzag = from_middle / middle if middle else from_middle
    return -5.5 + 6.0 * ramp + 2.5 * zigzag * np.abs(zigzag)
