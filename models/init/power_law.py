"""Power-law decays and projections for any diagonal recurrence, in place, in the style of torch.nn.init.

`decays_` writes the rates of a node set into a parameter, whatever function of it the model takes; `projection_`
multiplies the columns of the matrix that reads the states. On a foreign model:

    nodes = place(16, placement="quantile", tempering=0.5, lag="distance")
    mixer = model.backbone.layers[0].mixer                                     # Mamba: A_log is (d_inner, d_state)
    decays_(mixer.A_log, nodes, "a_log", dt_bias=mixer.dt_proj.bias[:, None])  # d_state nodes in every channel
    projection_(mixer.x_proj.weight[-16:], nodes, dim=0)                       # the rows that make C
"""

import math
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from plkernel.analysis.nodes.heads import RWKV7_LARGEST_RATE, check_largest_rate
from plkernel.analysis.nodes.moments import output_std
from plkernel.analysis.nodes.node_set import Nodes

Parametrisation = Literal["log_rate", "exp_exp", "sigmoid", "a_log", "exp_sigmoid"]


@torch.no_grad()
def decays_(
    tensor: Tensor,
    nodes: Nodes,
    parametrisation: Parametrisation = "log_rate",
    *,
    dt_bias: Tensor | float | None = None,
) -> Tensor:
    """Fill `tensor` in place so that the recurrence it parametrises decays by a = exp(-rate) per step.

    log_rate, exp_exp: a = exp(-exp(x)), as here and in RWKV's time_decay. sigmoid: a = sigmoid(x). a_log:
    a = exp(-dt exp(x)) with dt = softplus(dt_bias), as Mamba and Mamba-2 have it while dt does not depend on the
    input; `dt_bias` is a number or broadcasts to `tensor`. exp_sigmoid: a = exp(-exp(-1/2) sigmoid(x)), as RWKV-7 has
    it in w0, where rates stay below exp(-1/2).

    N nodes fill a tensor whose last dimension is N, the same in every row: Mamba's A_log (d_inner, d_state) takes
    d_state nodes, so that each channel holds the whole power law. A tensor of N elements in any other shape is filled
    in order: RWKV's time_decay (1, 1, C), or A_log with one node per state of the layer. Mamba multiplies its input by
    dt alone: its gain is `none`. Computed in float64, rounded once to the tensor's type.

    Raises ValueError when the sizes differ, or when a decay in the tensor's type (float32 for narrower ones, as models
    compute it) is no longer between 0 and 1.
    """
    if parametrisation not in get_args(Parametrisation):
        raise ValueError(
            f"parametrisation must be one of {', '.join(get_args(Parametrisation))}, got {parametrisation!r}"
        )
    if (parametrisation == "a_log") != (dt_bias is not None):
        raise ValueError(f"dt_bias goes with parametrisation 'a_log' and must be given there, got {parametrisation!r}")
    rates = _laid_out(tensor, nodes)
    if parametrisation == "exp_sigmoid":
        check_largest_rate(float(rates.max()))
        share = rates / RWKV7_LARGEST_RATE
        return tensor.copy_((share.log() - torch.log1p(-share)).to(tensor.dtype))
    dt = torch.ones_like(rates) if dt_bias is None else _step_size(dt_bias, rates)
    found = (_logit(rates) if parametrisation == "sigmoid" else (rates / dt).log()).to(tensor.dtype)
    precise = torch.promote_types(tensor.dtype, torch.float32)
    seen = found.to(precise)
    decay = seen.sigmoid() if parametrisation == "sigmoid" else torch.exp(-dt.to(precise) * seen.exp())
    _check_reachable(decay, rates)
    return tensor.copy_(found)


@torch.no_grad()
def projection_(weight: Tensor, nodes: Nodes, *, dim: int = -1, match: Nodes | None = None) -> Tensor:
    """Multiply slice i of `weight` along `dim` by the multiplier of node i, in place.

    `dim` is the dimension of the N states: the last of a torch.nn.Linear from states to outputs. With `match`, all
    are scaled by one more number, so that the standard deviation of the output under white input, with C and B random,
    is what the nodes `match` would give on the same weights. Raises ValueError when the size is not N.
    """
    channels = len(nodes.projection)
    if not -weight.ndim <= dim < weight.ndim or weight.shape[dim] != channels:
        raise ValueError(
            f"nodes has {channels} channels, but weight has shape {tuple(weight.shape)} and dim {dim}: "
            "that dimension must be equal"
        )
    scale = output_std(match) / output_std(nodes) if match else 1.0
    multipliers = torch.tensor(nodes.projection, dtype=torch.float64) * scale
    shape = [1] * weight.ndim
    shape[dim] = channels
    precise = torch.promote_types(weight.dtype, torch.float32)
    return weight.copy_(weight.to(precise) * multipliers.to(weight.device, precise).view(shape))


@torch.no_grad()
def apply_nodes_(log_rate: Tensor, projection: Tensor, nodes: Nodes, *, match: Nodes | None = None) -> None:
    """Set log_rate = ln(lambda) and multiply column i of `projection` by the node's multiplier, in place.

    `log_rate` has shape (N,), `projection` (out, N) as in torch.nn.Linear, `nodes` N entries; `match` as in
    `projection_`. Raises ValueError when the sizes differ. The decay is a = exp(-exp(log_rate)).
    """
    channels = len(nodes.rates)
    if log_rate.shape != (channels,) or projection.shape[-1] != channels:
        raise ValueError(
            f"nodes has {channels} channels, but log_rate has shape {tuple(log_rate.shape)} "
            f"and projection {tuple(projection.shape)}: the last dimensions must be equal"
        )
    decays_(log_rate, nodes)
    projection_(projection, nodes, match=match)


def _laid_out(tensor: Tensor, nodes: Nodes) -> Tensor:
    """The rates in float64, in the shape of `tensor` and on its device."""
    rates = torch.tensor(nodes.rates, dtype=torch.float64)
    if not (rates.isfinite() & (rates > 0)).all():
        raise ValueError("nodes must have positive finite rates")
    if tensor.numel() == rates.numel():
        rates = rates.view(tensor.shape)
    elif tensor.ndim == 0 or tensor.shape[-1] != rates.numel():
        raise ValueError(
            f"nodes has {rates.numel()} channels, but the tensor has shape {tuple(tensor.shape)}: "
            "its last dimension or its number of elements must be equal"
        )
    return rates.to(tensor.device).expand(tensor.shape)


def _step_size(dt_bias: Tensor | float, like: Tensor) -> Tensor:
    """softplus(dt_bias) in the shape of `like`."""
    bias = dt_bias if isinstance(dt_bias, Tensor) else torch.tensor(dt_bias, dtype=torch.float64)
    dt = F.softplus(bias.to(like))
    try:
        return dt.broadcast_to(like.shape)
    except RuntimeError:
        raise ValueError(
            f"dt_bias of shape {tuple(dt.shape)} does not broadcast to the tensor's shape {tuple(like.shape)}: "
            "Mamba's needs dt_bias[:, None]"
        ) from None


def _logit(rates: Tensor) -> Tensor:
    """ln(a / (1 - a)) of a = exp(-rate), through expm1 so that slow rates keep their digits."""
    return -rates - torch.log(-torch.expm1(-rates))


def _check_reachable(decay: Tensor, rates: Tensor) -> None:
    """ValueError where a decay, as the model computes it, has become 0 or 1."""
    wrong = ~((decay > 0) & (decay < 1))
    if wrong.any():
        rate = float(rates[wrong][0])
        raise ValueError(
            f"nodes has a rate of {rate:.3g} per step (half-life {math.log(2) / rate:.3g} steps), whose decay is "
            f"{float(decay[wrong][0]):g} in {str(decay.dtype).removeprefix('torch.')}: use half-lives between about "
            "0.01 and 1e7 steps, or a wider type"
        )
