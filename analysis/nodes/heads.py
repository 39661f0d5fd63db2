"""Can these nodes give the heads of an RWKV the memory that a power law asks for?"""

import math
from typing import Literal, get_args

from plkernel.analysis.exponentials.targets import SMALLEST_VALUE
from plkernel.analysis.nodes.float32_decays import rounded_up
from plkernel.analysis.nodes.moments import node_scores
from plkernel.analysis.nodes.node_set import Aim, Gain, Nodes

Bonus = Literal["scheme", "law"]
ShapeOn = Literal["receptance", "output"]
LARGEST_E_LOG = 1.0
RWKV7_LARGEST_RATE = math.exp(-0.5)
"""Per byte: the decay of RWKV-7 is exp(-exp(-1/2) sigmoid(w)), arXiv 2503.14456."""


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
    if shape_on not in get_args(ShapeOn):
        raise ValueError(f"shape_on must be one of {', '.join(get_args(ShapeOn))}, got {shape_on!r}")
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
        clamp = [] if k_clamp or goose else ["k_clamp = true"]
        remedies = [f"a head_size above {head_size}", *clamp, "a smaller tempering"]
        raise ValueError(
            f"{head_size} nodes in a head miss d**-{aim.exponent:g} on distances {1 if goose else 2}..{int(max_lag)} "
            f"by a factor of exp({e_log:.3g}) either way (at most exp({LARGEST_E_LOG:g})): use "
            f"{', '.join(remedies[:-1])} or {remedies[-1]}"
        )
