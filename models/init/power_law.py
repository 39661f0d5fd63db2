"""Writes a node set into a diagonal recurrence: decays, and the shape of the projection that reads them."""

import torch
from torch import Tensor

from plkernel.analysis.nodes import Nodes


@torch.no_grad()
def apply_nodes_(log_rate: Tensor, projection: Tensor, nodes: Nodes) -> None:
    """Set log_rate = ln(lambda) and multiply column i of `projection` by the node's multiplier, in place.

    `log_rate` has shape (N,), `projection` (out, N) as in torch.nn.Linear, `nodes` N entries; multipliers have mean
    1. Raises ValueError when the sizes differ. The decay is a = exp(-exp(log_rate)).
    """
    channels = len(nodes.rates)
    if log_rate.shape != (channels,) or projection.shape[-1] != channels:
        raise ValueError(
            f"nodes has {channels} channels, but log_rate has shape {tuple(log_rate.shape)} "
            f"and projection {tuple(projection.shape)}: the last dimensions must be equal"
        )
    log_rate.copy_(torch.tensor(nodes.rates, dtype=torch.float64).log())
    projection.mul_(torch.tensor(nodes.projection, dtype=torch.float64).to(projection))
