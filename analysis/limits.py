"""Nodes that float32 decays hold, and nodes that give the heads of an RWKV the memory a power law asks for."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, get_args

from plkernel.analysis.exponentials import SMALLEST_VALUE
from plkernel.analysis.nodes import Aim, Gain, Nodes, check_name, node_scores

Bonus = Literal["scheme", "law"]
ShapeOn = Literal["receptance", "output"]

SLOWEST, FASTEST = 2.0**-24, 126 * math.log(2)
"""Rates per step that a float32 decay holds: 1 - 2**-24 is the largest float32 below 1, and half a step further on
(2**-25) exp(-rate) is 1; 2**-126 is the least that has all its digits, and below 2**-150 exp(-rate) is 0. In half-lives
1/126 to 2**24 ln 2 = 1.16e7 steps."""
HALF_LIVES = math.log(2) / FASTEST, math.log(2) / SLOWEST
LARGEST_MULTIPLIER = 2.0**64
"""A norm squares what it gets, and float32 ends at 2**128."""
BISECTIONS = 60
SMALLEST_BETA, LARGEST_BETA = 1e-3, 1e3
LARGEST_E_LOG = 1.0
RWKV7_LARGEST_RATE = math.exp(-0.5)
"""Per byte: the decay of RWKV-7 is exp(-exp(-1/2) sigmoid(w)), arXiv 2503.14456."""


def check_half_lives(named: Mapping[str, float], step: int) -> None:
    """ValueError for a half-life, in bytes, that a decay per `step` bytes does not hold."""
    shortest, longest = HALF_LIVES
    for name, value in named.items():
        if not shortest * step <= value <= longest * step:
            raise ValueError(
                f"{name} {value:g} is no half-life that a float32 decay holds{_per(step)}: use {_half_lives(step)}"
            )


def check_quantiles(aim: Aim, max_lag: float, loss: float, step: int) -> None:
    """ValueError where decays per `step` bytes do not hold the quantile nodes of `aim` up to `max_lag` bytes."""
    lags = max_lag / step
    if lags <= 1 or held(*aim.rate_range(lags, loss)):
        return
    betas = quantile_betas(aim, lags, loss)
    remedy = (
        f"a beta from {rounded_up(betas[0]):.3g} to {-rounded_up(-betas[1]):.3g}"
        if betas
        else "a shorter max_lag or a larger loss"
    )
    raise ValueError(
        f"beta {aim.beta:g} with loss {loss:g} and max_lag {max_lag:g} places half-lives beyond "
        f"{_half_lives(step)}, which is what float32 decays hold{_per(step)}: use {remedy}"
    )


def check_rates(name: str, rates: Sequence[float], step: int) -> None:
    """ValueError for a rate per byte that a decay per `step` bytes does not hold."""
    for rate in rates:
        if not held(rate * step, rate * step):
            raise ValueError(
                f"{name}: {rate:g} per byte is no rate that a float32 decay holds{_per(step)}: use "
                f"{SLOWEST / step:.3g} to {FASTEST / step:.3g}, half-lives of {_half_lives(step)}"
            )


def check_multipliers(name: str, value: float, largest: float) -> None:
    """ValueError where the option `name` of this value makes a multiplier whose square float32 does not hold."""
    if not largest <= LARGEST_MULTIPLIER:
        raise ValueError(
            f"{name} {value:g} makes the largest multiplier of the projection {largest:.3g}, whose square float32 does "
            f"not hold: use at most {value * (LARGEST_MULTIPLIER / largest):.3g}"
        )


def held(slowest: float, fastest: float) -> bool:
    """True if float32 decays hold the rates between these two, per step."""
    return SLOWEST <= slowest <= fastest <= FASTEST


def quantile_betas(aim: Aim, max_lag: float, loss: float) -> tuple[float, float] | None:
    """The least and the largest beta whose quantile nodes float32 decays hold, max_lag in steps; None where none does.

    Rates at both ends grow with beta (`Aim.rate_range`).
    """

    def end(which: int, limit: float) -> float:
        low, high = math.log(SMALLEST_BETA), math.log(LARGEST_BETA)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            above = replace(aim, beta=math.exp(middle)).rate_range(max_lag, loss)[which] > limit
            low, high = (low, middle) if above else (middle, high)
        return math.exp(high if which == 0 else low)

    least, most = end(0, SLOWEST), end(1, FASTEST)
    return (least, most) if least <= most else None


def rounded_up(value: float) -> float:
    """To three digits, not below `value`."""
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    return math.ceil(value / unit) * unit


def _half_lives(step: float) -> str:
    """The range of half-lives in words, in bytes where a step is `step` of them: rounded inwards."""
    shortest, longest = HALF_LIVES
    return f"{rounded_up(shortest * step):.3g} to {-rounded_up(-longest * step):.3g} bytes"


def _per(step: int) -> str:
    return f" (patches of {step} bytes)" if step > 1 else ""


def gain_of(k_clamp: bool) -> Gain:
    """The input gain of an RWKV with or without K-clamp."""
    return "clamp" if k_clamp else "none"


def check_largest_rate(rate: float, what: str = "nodes have a half-life of") -> None:
    """ValueError, with the number, for a rate per byte that RWKV-7 cannot have; `what` comes before its half-life."""
    if not rate < RWKV7_LARGEST_RATE:
        least = math.log(2) / RWKV7_LARGEST_RATE
        raise ValueError(
            f"{what} {math.log(2) / rate:.4g} bytes, but a decay of RWKV-7 is above exp(-exp(-1/2)) = "
            f"{math.exp(-RWKV7_LARGEST_RATE):.3f}, no half-life is {least:.3f} bytes or less: "
            f"use {rounded_up(least):g} or more"
        )


def check_nodes(
    nodes: Nodes,
    aim: Aim | None,
    max_lag: float,
    *,
    head_size: int,
    k_clamp: bool,
    shape_on: str = "receptance",
    goose: bool = False,
) -> None:
    """ValueError, with the reason, where `nodes` cannot give the heads of an RWKV the memory that `aim` speaks of.

    That is: another number of nodes than `head_size`; nodes for another input gain than that of the key; a shape on
    the output matrix; for a `goose` (RWKV-7) a half-life that it cannot have; half the range of ln(k(d) / d**-exponent)
    on d = 2..max_lag (1..max_lag in a goose, which reads the newest byte out of its state), the Elog, above 1. `aim`
    None promises nothing, and its Elog is not looked at.
    """
    check_name("shape_on", shape_on, get_args(ShapeOn))
    if shape_on == "output":
        raise ValueError(
            "shape_on 'output' has nothing to act on: the output matrix starts at zero, and its columns are channels "
            "of the value, which share every decay; use 'receptance'"
        )
    if len(nodes.rates) != head_size:
        raise ValueError(f"nodes has {len(nodes.rates)} channels, but a head has {head_size}: they must be equal")
    if goose:
        check_largest_rate(max(nodes.rates))
    if nodes.gain != gain_of(k_clamp):
        if goose:
            raise ValueError(
                f"the shape is that of gain {nodes.gain!r}, but RWKV-7 scales its key by no decay: use nodes of gain "
                "'none'"
            )
        key = "with k_clamp it is scaled by min(1, lambda)" if k_clamp else "without k_clamp it is not scaled"
        raise ValueError(
            f"the shape is that of gain {nodes.gain!r}, but the key has another: {key}; "
            f"use nodes of gain {gain_of(k_clamp)!r}, or turn k_clamp {'off' if k_clamp else 'on'}"
        )
    if aim is None:
        return
    if aim.exponent * math.log(max_lag) > -math.log(SMALLEST_VALUE):
        most = aim.beta * -math.log(SMALLEST_VALUE) / (aim.exponent * math.log(max_lag))
        raise ValueError(
            f"beta {aim.beta:g} makes d**-{aim.exponent:g} smaller than {SMALLEST_VALUE:g} at max_lag {max_lag:g}: use "
            f"a beta up to {most:.3g}"
        )
    e_log = node_scores(nodes, aim, int(max_lag)).e_log
    if not e_log <= LARGEST_E_LOG:
        clamp = "" if k_clamp or goose else ", k_clamp = true"
        raise ValueError(
            f"{head_size} nodes in a head miss d**-{aim.exponent:g} on distances {1 if goose else 2}..{int(max_lag)} "
            f"by a factor of exp({e_log:.3g}) either way (at most exp({LARGEST_E_LOG:g})): use "
            f"a head_size above {head_size}{clamp} or a smaller tempering"
        )
