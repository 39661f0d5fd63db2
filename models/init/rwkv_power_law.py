"""Power-law memory for Eagle, Finch and Goose: decays from a node set, the same in every head, and receptance rows.

Row i of a head's receptance reads the state's row i, whose decay is that of channel i. The output matrix cannot carry
the shape: its columns belong to channels of the value, which do not decay apart, and it starts at zero. GroupNorm
divides every head by its own size, so only the shape inside a head acts: each holds the whole law, in N nodes.

A byte at prediction distance d >= 2 is seen through a**(d-2), and at d = 1 through the bonus u alone (lag `bonus` of
`plkernel.analysis.nodes.Aim`). The key is not scaled by the decay (gain `none`) unless the K-clamp multiplies
it by min(1, lambda) (gain `clamp`). Goose reads the state after the newest byte, through a**(d-1) (lag `distance`),
and has no half-life below 1.143 bytes; what it erases comes on top of the decays.
"""

from dataclasses import replace
from typing import get_args

import torch

from plkernel.analysis.limits import Bonus, ShapeOn, check_nodes
from plkernel.analysis.nodes import HORIZON, Aim, Nodes
from plkernel.models.init.power_law import decays_, projection_
from plkernel.models.rwkv import RWKV, TimeMixing
from plkernel.models.rwkv7 import RWKV7, GooseMixing


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

    time_decay = ln(lambda) of the node, in Goose w0 = logit(lambda / exp(-1/2)); each row of the receptance times its
    node's multiplier; the rest stays as the scheme has it, how the data move the decay included. With `bonus` "law"
    also u = 2**exponent, which puts d = 1 on the law: there the decays would have to give 2**exponent times what they
    give at d = 2.

    `max_lag`: how far the law must hold, 2048 bytes if left out.

    Raises ValueError where the nodes do not fit the model (`check_nodes`), or where `bonus` is "law" without an `aim`.
    """
    if bonus not in get_args(Bonus):
        raise ValueError(f"bonus must be one of {', '.join(get_args(Bonus))}, got {bonus!r}")
    if bonus == "law" and aim is None:
        raise ValueError("bonus 'law' needs an aim, whose exponent it takes: give one, or use 'scheme'")
    config, goose = model.config, isinstance(model, RWKV7)
    if goose and bonus == "law":
        raise ValueError("bonus 'law' is not for RWKV-7, which sees distance 1 through its state: use 'scheme'")
    check_nodes(
        nodes,
        aim,
        max_lag or HORIZON,
        head_size=config.head_size,
        k_clamp=config.k_clamp,
        shape_on=shape_on,
        goose=goose,
    )
    every = replace(nodes, rates=nodes.rates * config.heads, projection=nodes.projection * config.heads)
    for mixing in model.mixings():
        projection_(mixing.receptance.weight, every, dim=0)
        if isinstance(mixing, GooseMixing):
            decays_(mixing.w0, every, "exp_sigmoid")
        elif isinstance(mixing, TimeMixing):
            decays_(mixing.time_decay, every, "exp_exp")
            if bonus == "law" and aim is not None:
                mixing.time_faaaa.fill_(2.0**aim.exponent)
    return model
