"""Which nodes the heads of an RWKV can hold; without torch."""

import math

from plkernel.analysis.exponentials import power_law_target
from plkernel.analysis.nodes import NOT_FOLLOWED, SLOWEST, Aim, Gain, Nodes, node_scores
from plkernel.analysis.parametrisations import RWKV7_LARGEST_RATE

ZIGZAG = 2.5
"""Amplitude of the rise and fall of w0 of RWKV-7 in every head at the start, times
`models.spectrum.zigzag`."""
HIGHEST = 0.5
"""Level of the fastest channel of RWKV-7's ramp at the start; the zigzag is added to it."""


def time_constant(level: float) -> float:
    """1 / rate of RWKV-7 in bytes, where w0 is `level`."""
    return (1 + math.exp(-level)) / RWKV7_LARGEST_RATE


def level_of(constant: float) -> float:
    """w0 of RWKV-7 where 1 / rate is `constant` bytes."""
    return -math.log(RWKV7_LARGEST_RATE * constant - 1)


SPECTRUM = time_constant(HIGHEST), time_constant(level_of(1 / SLOWEST) + ZIGZAG)
"""Time constants in bytes that the slowest channel of RWKV-7's ramp may have, without the zigzag:
above the first, which is that of the fastest, and up to the second, from which the zigzag goes on
to the longest that a float32 decay holds."""


def gain_of(k_clamp: bool) -> Gain:
    """The input gain of an RWKV with or without K-clamp."""
    return "clamp" if k_clamp else "none"


def check_largest_rate(rate: float, what: str = "half-lives of nodes") -> None:
    """ValueError for a rate per byte that RWKV-7 cannot have.

    `what` has it, in the message.
    """
    if not rate < RWKV7_LARGEST_RATE:
        raise ValueError(
            f"{what} must be above {math.log(2) / RWKV7_LARGEST_RATE:.3f} bytes, since a decay of"
            f" RWKV-7 is above exp(-exp(-1/2)) = {math.exp(-RWKV7_LARGEST_RATE):.3f}, got"
            f" {math.log(2) / rate:.4g}; use 1.15 or more"
        )


def check_nodes(
    nodes: Nodes,
    aim: Aim | None,
    max_lag: float,
    *,
    head_size: int,
    k_clamp: bool,
    goose: bool = False,
) -> None:
    """ValueError, with the reason, where `nodes` cannot give an RWKV the memory of `aim`.

    That is: another number of nodes than `head_size`; nodes for another input gain than that of the
    key; for a `goose` (RWKV-7) a half-life that it cannot have; half the range of ln(k(d) /
    d**-exponent) on d = 2..max_lag (1..max_lag in a goose, which reads the newest byte out of its
    state), the Elog, above 1. `aim` None promises nothing, and its Elog is not looked at.
    """
    if len(nodes.rates) != head_size:
        raise ValueError(
            f"nodes must have as many channels as a head, {head_size}, got {len(nodes.rates)}"
        )
    if goose:
        check_largest_rate(max(nodes.rates))
    if nodes.gain != gain_of(k_clamp):
        raise ValueError(
            f"gain of nodes must be {gain_of(k_clamp)!r}, since {_key_scale(k_clamp, goose)}, got"
            f" {nodes.gain!r}{'' if goose else '; or change k_clamp'}"
        )
    if aim is not None:
        _check_law(nodes, aim, int(max_lag), k_clamp, goose)


def _key_scale(k_clamp: bool, goose: bool) -> str:
    """The factor on the key of an RWKV, in words."""
    if goose:
        return "RWKV-7 scales its key by no decay"
    if k_clamp:
        return "with k_clamp the key is scaled by min(1, lambda)"
    return "without k_clamp the key is not scaled"


def _check_law(nodes: Nodes, aim: Aim, max_lag: int, k_clamp: bool, goose: bool) -> None:
    """ValueError where the kernel of the nodes misses the law by more than NOT_FOLLOWED."""
    target = power_law_target(aim.exponent, max_lag)
    e_log = node_scores(nodes, target, aim.kernel, aim.lag).e_log
    if e_log <= NOT_FOLLOWED:
        return
    head_size = len(nodes.rates)
    nearest = 1 if goose else 2
    clamp = "" if k_clamp or goose else ", k_clamp = true"
    raise ValueError(
        f"kernel of {head_size} nodes must follow d**-{aim.exponent:g} on distances"
        f" {nearest}..{max_lag} within a factor of exp({NOT_FOLLOWED:g}) either way, got"
        f" exp({e_log:.3g}); use a head_size above {head_size}{clamp} or a smaller tempering"
    )
