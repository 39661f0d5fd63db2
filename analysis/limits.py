"""Nodes that float32 decays hold, and nodes that give the heads of an RWKV the memory a power law asks for."""

import math
from collections.abc import Mapping, Sequence
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
LARGEST_E_LOG = 1.0
RWKV7_LARGEST_RATE = math.exp(-0.5)
"""Per byte: the decay of RWKV-7 is exp(-exp(-1/2) sigmoid(w)), arXiv 2503.14456."""


def rounded_up(value: float) -> float:
    """To three digits, not below `value`."""
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    return math.ceil(value / unit) * unit


def _refuse(what: str, step: int, remedy: str = "") -> None:
    """ValueError with the half-lives, in bytes and rounded inwards, that a decay per `step` bytes holds."""
    first, last = rounded_up(HALF_LIVES[0] * step), -rounded_up(-HALF_LIVES[1] * step)
    patches = f" (patches of {step} bytes)" if step > 1 else ""
    raise ValueError(f"{what} that a float32 decay holds{patches}: use {first:.3g} to {last:.3g} bytes{remedy}")


def check_half_lives(named: Mapping[str, float], step: int) -> None:
    """ValueError for a half-life, in bytes, that a decay per `step` bytes does not hold."""
    for name, value in named.items():
        if not HALF_LIVES[0] * step <= value <= HALF_LIVES[1] * step:
            _refuse(f"{name} {value:g} is no half-life", step)


def check_rates(name: str, rates: Sequence[float], step: int) -> None:
    """ValueError for a rate per byte that a decay per `step` bytes does not hold."""
    for rate in rates:
        if not SLOWEST <= rate * step <= FASTEST:
            _refuse(f"{name}: {rate:g} per byte is no rate", step)


def check_quantiles(aim: Aim, max_lag: float, loss: float, step: int) -> None:
    """ValueError where decays per `step` bytes do not hold the quantile nodes of `aim` up to `max_lag` bytes."""
    if max_lag <= step:
        return
    slowest, fastest = aim.rate_range(max_lag / step, loss)
    if not SLOWEST <= slowest <= fastest <= FASTEST:
        law = f"beta {aim.beta:g} with loss {loss:g} and max_lag {max_lag:g} places half-lives beyond those"
        _refuse(law, step, ", with a beta nearer to 1, a shorter max_lag or a larger loss")


def check_multipliers(name: str, value: float, largest: float) -> None:
    """ValueError where the option `name` of this value makes a multiplier whose square float32 does not hold."""
    if not largest <= LARGEST_MULTIPLIER:
        raise ValueError(
            f"{name} {value:g} makes the largest multiplier of the projection {largest:.3g}, whose square float32 does "
            f"not hold: use at most {value * (LARGEST_MULTIPLIER / largest):.3g}"
        )


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
        key = "with k_clamp it is scaled by min(1, lambda)" if k_clamp else "without k_clamp it is not scaled"
        switch = f"the key has another: {key}; use nodes of gain {gain_of(k_clamp)!r}, or change k_clamp"
        reason = "RWKV-7 scales its key by no decay: use nodes of gain 'none'" if goose else switch
        raise ValueError(f"the shape is that of gain {nodes.gain!r}, but {reason}")
    if aim is None:
        return
    most = aim.beta * -math.log(SMALLEST_VALUE) / (aim.exponent * math.log(max_lag))
    if aim.beta > most:
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
