"""Power-law decays for the heads of an RWKV."""

from dataclasses import replace

import torch

from plkernel.analysis.nodes import Nodes
from plkernel.models.power_law import decays_, projection_
from plkernel.models.rwkv import RWKV, TimeMixing
from plkernel.models.rwkv7 import GooseMixing


@torch.no_grad()
def power_law_(model: RWKV, nodes: Nodes, bonus: float | None = None) -> RWKV:
    """Write `nodes` into every head of an initialised RWKV, in place; return the model.

    time_decay = ln(lambda) of the node, in Goose w0 = logit(lambda / exp(-1/2)); each row of the
    receptance times its node's multiplier; the rest stays as the scheme has it, how the data move
    the decay included. `bonus`, where given, is the exponent in u = 2**exponent of Eagle and Finch,
    which puts d = 1 on the law: there the decays would have to give 2**exponent times what they
    give at d = 2. `plkernel.models.rwkv_nodes.check_nodes` says which nodes fit a model.

    Row i of a head's receptance reads the state's row i, whose decay is that of channel i. The
    output matrix cannot carry the shape: its columns belong to channels of the value, which do not
    decay apart, and it starts at zero. GroupNorm divides every head by its own size, so only the
    shape inside a head acts: each holds the whole law, in N nodes. A byte at prediction distance d
    >= 2 is seen through a**(d-2), and at d = 1 through the bonus u alone (lag `bonus` of
    `plkernel.analysis.nodes.Aim`). The key is not scaled by the decay (gain `none`) unless the
    K-clamp multiplies it by min(1, lambda) (gain `clamp`). Goose reads the state after the newest
    byte, through a**(d-1) (lag `distance`), and has no half-life below 1.143 bytes; what it erases
    comes on top of the decays.
    """
    config = model.config
    every = replace(
        nodes, rates=nodes.rates * config.heads, projection=nodes.projection * config.heads
    )
    for mixing in model.mixings():
        projection_(mixing.receptance.weight, every, dim=0)
        if isinstance(mixing, GooseMixing):
            decays_(mixing.w0, every, "exp_sigmoid")
        elif isinstance(mixing, TimeMixing):
            decays_(mixing.time_decay, every, "exp_exp")
            if bonus is not None:
                mixing.time_faaaa.fill_(2.0**bonus)
    return model
