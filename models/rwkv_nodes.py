"""Which nodes the heads of an RWKV can hold; without torch."""

import math

from plkernel.analysis.exponentials import power_law_target
from plkernel.analysis.nodes import Aim, Gain, Nodes, node_scores
from plkernel.analysis.parametrisations import RWKV7_LARGEST_RATE

LARGEST_E_LOG = 1.0


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
        key = (
            "with k_clamp it is scaled by min(1, lambda)"
            if k_clamp
            else "without k_clamp it is not scaled"
        )
        switch = (
            f"the key has another: {key}; use nodes of gain {gain_of(k_clamp)!r}, or change k_clamp"
        )
        reason = "RWKV-7 scales its key by no decay: use nodes of gain 'none'" if goose else switch
        raise ValueError(f"the shape is that of gain {nodes.gain!r}, but {reason}")
    if aim is None:
        return
    e_log = node_scores(
        nodes, power_law_target(aim.exponent, int(max_lag)), aim.kernel, aim.lag
    ).e_log
    if not e_log <= LARGEST_E_LOG:
        clamp = "" if k_clamp or goose else ", k_clamp = true"
        raise ValueError(
            f"{head_size} nodes in a head miss d**-{aim.exponent:g} on distances"
            f" {1 if goose else 2}..{int(max_lag)} by a factor of exp({e_log:.3g}) either way (at"
            f" most exp({LARGEST_E_LOG:g})): use a head_size above {head_size}{clamp} or a smaller"
            " tempering"
        )
