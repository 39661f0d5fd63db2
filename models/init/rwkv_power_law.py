"""Power-law memory for Eagle and Finch: decays from a node set, the same in every head, and receptance rows to match.

Row i of a head's receptance reads the state's row i, whose decay is that of channel i. The output matrix cannot carry
the shape: its columns belong to channels of the value, which do not decay apart, and it starts at zero. GroupNorm
divides every head by its own size, so only the shape inside a head acts: each holds the whole law, in N nodes.

A byte at prediction distance d >= 2 is seen through a**(d-2), and at d = 1 through the bonus u alone (lag `bonus` of
`plkernel.analysis.nodes.node_set.Aim`). The key is not scaled by the decay (gain `none`) unless the K-clamp multiplies
it by min(1, lambda) (gain `clamp`).
"""

import math
from dataclasses import replace
from typing import Literal, get_args

import torch

from plkernel.analysis.exponentials.targets import SMALLEST_VALUE
from plkernel.analysis.nodes.moments import node_scores
from plkernel.analysis.nodes.placement import Aim, Gain, Nodes
from plkernel.analysis.nodes.quantile import MAX_LAG
from plkernel.models.init.power_law import decays_, projection_
from plkernel.models.rwkv import RWKV, TimeMixing

Bonus = Literal["scheme", "law"]
ShapeOn = Literal["receptance", "output"]
LARGEST_E_LOG = 1.0


def gain_of(k_clamp: bool) -> Gain:
    """The input gain of an RWKV with or without K-clamp."""
    return "clamp" if k_clamp else "none"


def check_nodes(
    nodes: Nodes, aim: Aim | None, max_lag: float, *, head_size: int, k_clamp: bool, shape_on: str = "receptance"
) -> None:
    """ValueError, with the reason, where `nodes` cannot give the heads of an RWKV the memory that `aim` speaks of.

    That is: another number of nodes than `head_size`; nodes for another input gain than that of the key; a shape on
    the output matrix; half the range of ln(k(d) / d**-exponent) on d = 2..max_lag (Elog) above 1. `aim` None promises
    nothing, and its Elog is not looked at.
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
    if nodes.gain != gain_of(k_clamp):
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
        remedies = [f"a head_size above {head_size}", *([] if k_clamp else ["k_clamp = true"]), "a smaller tempering"]
        raise ValueError(
            f"{head_size} nodes in a head miss d**-{aim.exponent:g} on distances 2..{int(max_lag)} by a factor of "
            f"exp({e_log:.3g}) either way (at most exp({LARGEST_E_LOG:g})): use {', '.join(remedies[:-1])} "
            f"or {remedies[-1]}"
        )


@torch.no_grad()
def power_law_(
    model: RWKV,
    nodes: Nodes,
    aim: Aim | None = None,
    max_lag: float | None = None,
    *,
    bonus: Bonus = "scheme",
    shape_on: ShapeOn = "receptance",
) -> RWKV:
    """Write `nodes` into every head of an initialised `model`, in place, and return it.

    time_decay = ln(lambda) of the node; each row of the receptance times its node's multiplier; the rest stays as the
    scheme has it, Finch's dependence of the decay on the data included. With `bonus` "law" also u = 2**exponent, which
    puts d = 1 on the law: there the decays would have to give 2**exponent times what they give at d = 2.

    `max_lag`: how far the law must hold, 2048 bytes if left out.

    Raises ValueError where the nodes do not fit the model (`check_nodes`), or where `bonus` is "law" without an `aim`.
    """
    if bonus not in get_args(Bonus):
        raise ValueError(f"bonus must be one of {', '.join(get_args(Bonus))}, got {bonus!r}")
    if bonus == "law" and aim is None:
        raise ValueError("bonus 'law' needs an aim, whose exponent it takes: give one, or use 'scheme'")
    config = model.config
    check_nodes(nodes, aim, max_lag or MAX_LAG, head_size=config.head_size, k_clamp=config.k_clamp, shape_on=shape_on)
    every = replace(nodes, rates=nodes.rates * config.heads, projection=nodes.projection * config.heads)
    for mixing in model.modules():
        if isinstance(mixing, TimeMixing):
            decays_(mixing.time_decay, every, "exp_exp")
            projection_(mixing.receptance.weight, every, dim=0)
            if bonus == "law" and aim is not None:
                mixing.time_faaaa.fill_(2.0**aim.exponent)
    return model
