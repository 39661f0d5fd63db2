"""Power-law decays and projections for any diagonal recurrence, in place, in the style of
torch.nn.init.

`decays_` writes the rates of a node set into a parameter, whatever function of it the model takes;
`projection_` multiplies the columns of the matrix that reads the states. On a model of other
people's:

    nodes = place(16, placement="quantile", tempering=0.5, lag="distance") mixer =
    model.backbone.layers[0].mixer                                     # Mamba: A_log is (d_inner,
    d_state) decays_(mixer.A_log, nodes, "a_log", dt_bias=mixer.dt_proj.bias[:, None])  # d_state
    nodes in every channel projection_(mixer.x_proj.weight[-16:], nodes, dim=0)
    # the rows that make C
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from plkernel.analysis.nodes import Nodes, output_std
from plkernel.models.rwkv_nodes import RWKV7_LARGEST_RATE

Parametrisation = Literal[
    "log_rate", "exp_exp", "sigmoid", "a_log", "dt_bias", "exp_sigmoid", "bounded", "rg_lru"
]


def softplus(x: Tensor) -> Tensor:
    """ln(1 + exp(x)) to the last digit: torch's own is x from 20 on."""
    return torch.logaddexp(x, torch.zeros_like(x))


def inverse_softplus(y: Tensor) -> Tensor:
    """ln(exp(y) - 1) for y > 0, to the last digit of small and of large ones."""
    return y + torch.log(-torch.expm1(-y))


class Form(NamedTuple):
    """One parametrisation: the rate -ln a of a parameter x and its exact inverse.

    Both are functions of a tensor and of what is given beside it, all of one shape: `needs` must
    be, `takes` may be. limits: the slowest and the fastest rate, which x reaches neither.
    """

    rate: Callable[..., Tensor]
    inverse: Callable[..., Tensor]
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    limits: Callable[..., tuple[Tensor | float, Tensor | float]] = lambda **given: (0.0, math.inf)


EXP = Form(torch.exp, torch.log)
FORMS: dict[str, Form] = {
    "log_rate": EXP,
    "exp_exp": EXP,
    "sigmoid": Form(  # -ln a = softplus(-logit(a))
        lambda x, cap=None: softplus(-(x if cap is None else cap * torch.tanh(x / cap))),
        lambda rates, cap=None: (
            -inverse_softplus(rates)
            if cap is None
            else cap * torch.atanh(-inverse_softplus(rates) / cap)
        ),
        takes=("cap",),
        limits=lambda cap=None: (0.0, math.inf) if cap is None else (softplus(-cap), softplus(cap)),
    ),
    "a_log": Form(
        lambda x, dt_bias: x.exp() * softplus(dt_bias),
        lambda rates, dt_bias: (rates / softplus(dt_bias)).log(),
        needs=("dt_bias",),
    ),
    "dt_bias": Form(
        lambda x, a_log: a_log.exp() * softplus(x),
        lambda rates, a_log: inverse_softplus(rates / a_log.exp()),
        needs=("a_log",),
    ),
    "exp_sigmoid": Form(
        lambda x: RWKV7_LARGEST_RATE * torch.sigmoid(x),
        lambda rates: torch.log(rates / (RWKV7_LARGEST_RATE - rates)),
        limits=lambda: (0.0, RWKV7_LARGEST_RATE),
    ),
    "bounded": Form(
        lambda x, bound, a_log=None: (
            bound * torch.sigmoid(x * (1.0 if a_log is None else a_log.exp()))
        ),
        lambda rates, bound, a_log=None: (
            torch.log(rates / (bound - rates)) / (1.0 if a_log is None else a_log.exp())
        ),
        needs=("bound",),
        takes=("a_log",),
        limits=lambda bound, a_log=None: (0.0, bound),
    ),
    "rg_lru": Form(
        lambda x, gate_bias: 8 * torch.sigmoid(gate_bias) * softplus(x),
        lambda rates, gate_bias: inverse_softplus(rates / (8 * torch.sigmoid(gate_bias))),
        needs=("gate_bias",),
    ),
}


@torch.no_grad()
def decays_(
    tensor: Tensor,
    nodes: Nodes,
    parametrisation: Parametrisation = "log_rate",
    *,
    dt_bias: Tensor | float | None = None,
    a_log: Tensor | float | None = None,
    gate_bias: Tensor | float | None = None,
    bound: Tensor | float | None = None,
    cap: Tensor | float | None = None,
) -> Tensor:
    """Fill `tensor` in place so that the recurrence it parametrises decays by a = exp(-rate) per
    step.

    log_rate, exp_exp: a = exp(-exp(x)), as here, in RWKV-4 to 6's time_decay and in LRU's nu_log.
    sigmoid: a = sigmoid(x), or sigmoid(cap tanh(x / cap)), as the forget gates of xLSTM. a_log: a =
    exp(-exp(x) softplus(dt_bias)), as A_log of Mamba, Mamba-2 and gated delta nets. dt_bias: a =
    exp(-exp(a_log) softplus(x)): the other parameter of the same layers, and of Kimi Delta
    Attention, which has one dt_bias for each channel and one A_log for each head. exp_sigmoid: a =
    exp(-exp(-1/2) sigmoid(x)), as w0 of RWKV-7, which has no half-life of 1.143 steps or less.
    bounded: a = exp(-bound sigmoid(exp(a_log) x)), as dt_bias of Kimi Delta Attention with
    lower_bound = -bound. rg_lru: a = exp(-8 sigmoid(gate_bias) softplus(x)), as the recurrent
    parameter of RG-LRU.

    What else they name is a number or broadcasts to `tensor`. All stand for a layer whose gates and
    steps are at their bias, as they are without an input; delta rules forget by erasing too, so
    that there a half-life is an upper bound.

    N nodes fill a tensor whose last dimension is N, the same in every row: Mamba's A_log (d_inner,
    d_state) takes d_state nodes, so that each channel holds the whole power law. A tensor of N
    elements in any other shape is filled in order: RWKV's time_decay (1, 1, C), or A_log with one
    node per state of the layer. The gain of RG-LRU is `lru`, of all others `none`: Mamba multiplies
    its input by dt alone. Computed in float64, rounded once to the type of `tensor`.

    Raises ValueError when the sizes differ, when an option does not belong, for a half-life that
    the parametrisation does not reach, and when a decay in the tensor's type (float32 for narrower
    ones, as models compute it) is no longer between 0 and 1. Sources: Mamba (arXiv 2312.00752),
    gated delta nets (2412.06464), Kimi Linear (2510.26692), RWKV-7 (2503.14456), Griffin
    (2402.19427, equation 4), xLSTM (2503.13427).
    """
    if parametrisation not in FORMS:
        raise ValueError(
            f"parametrisation must be one of {', '.join(FORMS)}, got {parametrisation!r}"
        )
    form = FORMS[parametrisation]
    every = {"dt_bias": dt_bias, "a_log": a_log, "gate_bias": gate_bias, "bound": bound, "cap": cap}
    options = {name: value for name, value in every.items() if value is not None}
    for name in sorted(({*form.needs} ^ {*options}) - {*form.takes}):
        verb = "needs" if name in form.needs else "does not take"
        raise ValueError(f"parametrisation {parametrisation!r} {verb} {name}")
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
    rates = rates.to(tensor.device).expand(tensor.shape)
    given = {}
    for name, value in options.items():
        one = torch.as_tensor(value, dtype=rates.dtype, device=rates.device)
        try:
            given[name] = one.broadcast_to(rates.shape)
        except RuntimeError:
            raise ValueError(
                f"{name} of shape {tuple(one.shape)} does not broadcast to the tensor's shape"
                f" {tuple(rates.shape)}: Mamba's A_log needs dt_bias[:, None]"
            ) from None
    slowest, fastest = (
        torch.as_tensor(limit).to(rates).expand(rates.shape) for limit in form.limits(**given)
    )
    if (out := ~((rates > slowest) & (rates < fastest))).any():
        first, least, most = (
            math.log(2) / values[out][0].clamp(min=1e-300).item()
            for values in (rates, fastest, slowest)
        )
        below = f" and below {most:.4g}" if most < 1e299 else ""
        raise ValueError(
            f"nodes has a half-life of {first:.4g} steps, but {parametrisation} reaches only those"
            f" above {least:.4g}{below}"
        )
    filled = form.inverse(rates, **given).to(tensor.dtype)
    precise = torch.promote_types(tensor.dtype, torch.float32)
    decay = torch.exp(
        -form.rate(filled.to(precise), **{name: value.to(precise) for name, value in given.items()})
    )
    if (out := ~((decay > 0) & (decay < 1))).any():
        rate = float(rates[out][0])
        raise ValueError(
            f"nodes has a rate of {rate:.3g} per step (half-life {math.log(2) / rate:.3g} steps),"
            f" whose decay is {float(decay[out][0]):g} in"
            f" {str(decay.dtype).removeprefix('torch.')}: use half-lives between about 0.01 and 1e7"
            " steps, or a wider type"
        )
    return tensor.copy_(filled)


@torch.no_grad()
def projection_(
    weight: Tensor, nodes: Nodes, *, dim: int = -1, match: Nodes | None = None
) -> Tensor:
    """Multiply slice i of `weight` along `dim` by the multiplier of node i, in place.

    `dim` is the dimension of the N states: the last of a torch.nn.Linear from states to outputs.
    With `match`, all are scaled by one more number, so that the standard deviation of the output
    under white input, with C and B random, is what the nodes `match` would give on the same
    weights. Raises ValueError when the size is not N.
    """
    channels = len(nodes.projection)
    if not -weight.ndim <= dim < weight.ndim or weight.shape[dim] != channels:
        raise ValueError(
            f"nodes has {channels} channels, but weight has shape {tuple(weight.shape)} and dim"
            f" {dim}: that dimension must be equal"
        )
    scale = output_std(match) / output_std(nodes) if match else 1.0
    multipliers = torch.tensor(nodes.projection, dtype=torch.float64) * scale
    shape = [1] * weight.ndim
    shape[dim] = channels
    precise = torch.promote_types(weight.dtype, torch.float32)
    return weight.copy_(weight.to(precise) * multipliers.to(weight.device, precise).view(shape))
