"""Power-law decays and projections for any diagonal recurrence, in place, as in torch.nn.init.

`decays_` writes the decay rates of a node set into a parameter, whatever function of it the model
takes; `projection_` multiplies the columns of the matrix that reads the states. Mamba's A_log, for
example, is (d_inner, d_state): d_state nodes in every channel. The last d_state rows of its x_proj
make C:

    nodes = place(16, placement="quantile", tempering=0.25, lag="distance")
    mixer = model.backbone.layers[0].mixer
    decays_(mixer.A_log, nodes, "a_log", dt_bias=mixer.dt_proj.bias[:, None])
    projection_(mixer.x_proj.weight[-16:], nodes, dim=0)
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from plkernel.analysis.nodes import Nodes, output_std
from plkernel.analysis.parametrisations import ABOVE_ZERO, FORMS, RateForm
from plkernel.models.inverted import decays_of, levels_of
from plkernel.models.spectrum import Ordered

Parametrisation = Literal[
    "log_rate",
    "exp_exp",
    "sigmoid",
    "sigmoid_root",
    "a_log",
    "dt_bias",
    "exp_sigmoid",
    "bounded",
    "rg_lru",
    "real_part",
    "log_real_part",
]
TensorsByName = dict[str, Tensor]
"""Tensors that a parametrisation takes beside the parameter, each of the shape of its tensor."""


@torch.no_grad()
def decays_(
    tensor: Tensor | Ordered,
    nodes: Nodes,
    parametrisation: Parametrisation | Callable[[Tensor], Tensor] = "log_rate",
    *,
    dt_bias: Tensor | float | None = None,
    a_log: Tensor | float | None = None,
    gate_bias: Tensor | float | None = None,
    bound: Tensor | float | None = None,
    cap: Tensor | float | None = None,
    log_step: Tensor | float | None = None,
) -> Tensor | Ordered:
    """Fill `tensor` in place so that its recurrence decays by a = exp(-rate) per step.

    log_rate, exp_exp  a = exp(-exp(x)): here, time_decay of RWKV-4 to 6, nu_log of LRU
    sigmoid            a = sigmoid(x), or sigmoid(cap tanh(x / cap)): forget gates of xLSTM
    sigmoid_root       a = sigmoid(x)**(1/16): GLA
    a_log              a = exp(-exp(x) softplus(dt_bias)): A_log of Mamba, Mamba-2 and gated delta
                       nets
    dt_bias            a = exp(-exp(a_log) softplus(x)): the other parameter of the same layers, and
                       of Kimi Delta Attention: one dt_bias for each channel, one A_log for each
                       head
    exp_sigmoid        a = exp(-exp(-1/2) sigmoid(x)): w0 of RWKV-7, which has no half-life of 1.143
                       steps or less
    bounded            a = exp(-bound sigmoid(exp(a_log) x)): dt_bias of Kimi Delta Attention with
                       lower_bound = -bound
    rg_lru             a = exp(-8 sigmoid(gate_bias) softplus(x)): recurrent parameter of RG-LRU
    real_part          |a| = exp(x exp(log_step)): Lambda_re of S5
    log_real_part      |a| = exp(-exp(x) exp(log_step)): log_A_real of S4D, whose log_dt is the
                       log_step

    or a function from x to a, both of the shape of `tensor`, as `plkernel.watch` takes it. Every
    decay must depend on its own x alone, and rise or fall with it wherever it is between 0 and 1.
    It is inverted by bisection in float64, and the x that was found is put into it once more.

    What else they name is a number or broadcasts to `tensor`. All stand for a layer whose gates and
    steps are at their bias, as they are without an input; delta rules forget by erasing too, so
    that there a half-life is an upper bound.

    N nodes fill a tensor whose last dimension is N, the same in every row: Mamba's A_log (d_inner,
    d_state) takes d_state nodes, so that each channel holds the whole power law. A tensor of N
    elements in any other shape is filled in order: RWKV's time_decay (1, 1, C), or A_log with one
    node per state of the layer. The gain of RG-LRU is `lru`, of all others `none`: Mamba multiplies
    its input by dt alone. S4D and S5 scale theirs as zero-order hold does, which is no gain here.
    Computed in float64, rounded once to the type of `tensor`.

    A `plkernel.models.spectrum.Ordered` in the place of the tensor takes the numbers as its levels,
    and nodes in the order of its channels (`Ordered.arranged`). Its rates rise with the level, so
    that `sigmoid`, `sigmoid_root` and `real_part`, in which they fall, are not for it.

    Raises ValueError for something that is no dense tensor of floating-point numbers, for one that
    is computed from parameters, as a parametrized `A_log` is (which cannot be told if it was
    computed under `torch.no_grad`), when the sizes differ, when an option does not belong, for a
    bound or cap that is not above 0, for a half-life that the parametrisation does not reach, and
    when a decay in the tensor's type (float32 for narrower ones, as models compute it) is no longer
    between 0 and 1. Sources: Mamba
    (arXiv 2312.00752), gated delta nets (2412.06464), Kimi Linear (2510.26692), RWKV-7
    (2503.14456), Griffin (2402.19427, equation 4), xLSTM (2503.13427), GLA (2312.06635), S5
    (2208.04933), S4D (2206.11893).
    """
    check_writable("tensor", tensor)
    form = _form_of(parametrisation)
    if isinstance(tensor, Ordered) and form.falls:
        rising = [name for name, one in FORMS.items() if not one.falls]
        raise ValueError(
            "parametrisation must be one whose rate rises with the level for ordered decays, one of"
            f" {', '.join(rising)}, got {parametrisation!r}, in which it falls"
        )
    every = {
        "dt_bias": dt_bias,
        "a_log": a_log,
        "gate_bias": gate_bias,
        "bound": bound,
        "cap": cap,
        "log_step": log_step,
    }
    options = {name: value for name, value in every.items() if value is not None}
    if isinstance(parametrisation, str):
        _check_options(parametrisation, form, options)
    elif options:
        raise ValueError(
            f"{', '.join(options)} must be left out with a function, which takes x alone: use it"
            " inside the function"
        )
    held = tensor() if isinstance(tensor, Ordered) else tensor
    rates = _rates_for(held, nodes)
    given = {name: _spread(name, value, rates) for name, value in options.items()}
    _check_above_zero(given)
    if isinstance(parametrisation, str):
        _check_reach(parametrisation, rates, given)
    levels = form.inverse(rates, **given)
    filled = levels.to(held.dtype)
    _check_decays(form, filled, rates, given)
    return tensor.set_(levels) if isinstance(tensor, Ordered) else tensor.copy_(filled)


def _form_of(parametrisation: Any) -> RateForm:
    """The form of that name, or one of a function; ValueError for anything else."""
    if isinstance(parametrisation, str) and parametrisation in FORMS:
        return FORMS[parametrisation]
    if not callable(parametrisation):
        is_name = isinstance(parametrisation, str)
        got = repr(parametrisation) if is_name else type(parametrisation).__name__
        raise ValueError(
            f"parametrisation must be one of {', '.join(FORMS)}, or a function from the tensor to"
            f" its decays, got {got}"
        )

    def rate(x: Tensor) -> Tensor:
        return -torch.log(decays_of(parametrisation, x))

    def inverse(rates: Tensor) -> Tensor:
        return levels_of(parametrisation, rates)

    return RateForm(rate, inverse, "f(x)")


def check_writable(name: str, value: Any) -> None:
    """ValueError unless floating-point numbers can be written into a tensor, or into `Ordered`.

    What is computed from parameters is told by its `grad_fn`: not under `torch.no_grad`, nor where
    no parameter is trained, where it looks like a tensor that is stored.
    """
    if isinstance(value, Ordered):
        check_writable(f"{name}.theta", value.theta)
        check_writable(f"{name}.delta", value.delta)
        return
    if not isinstance(value, Tensor):
        hint = f": give its weight, {name}.weight" if isinstance(value, nn.Module) else ""
        raise ValueError(f"{name} must be a tensor, got {type(value).__name__}{hint}")
    if hasattr(value, "to_local"):
        raise ValueError(
            f"{name} must be a whole tensor, got one in shards (DTensor); apply before the model is"
            " sharded, as before fully_shard"
        )
    if value.is_meta:
        raise ValueError(
            f"{name} must hold numbers, got a tensor on the meta device; materialise it first, as"
            f" by model.to_empty(device='cpu'), or pass over it in the layer: if not {name}.is_meta"
        )
    if value.is_inference() and not torch.is_inference_mode_enabled():
        raise ValueError(
            f"{name} must be a tensor that can be changed, got one of inference mode; clone it"
        )
    narrow = value.element_size() < 2
    if not value.is_floating_point() or narrow or value.layout is not torch.strided:
        kind = str(value.dtype) if value.layout is torch.strided else "a sparse tensor"
        raise ValueError(
            f"{name} must be a dense tensor of floating-point numbers of 16 bits or more, got"
            f" {kind}"
        )
    strides = zip(value.stride(), value.shape, strict=True)
    if any(step == 0 and size > 1 for step, size in strides):
        raise ValueError(
            f"{name} must have a place for each number, got an expanded tensor; give a copy"
        )
    # The memory of a view is that of its base, and only what autograd has computed has a grad_fn.
    stored = value if value._base is None else value._base
    if stored.grad_fn is not None:
        raise ValueError(
            f"{name} must be a tensor that a layer stores, got one that is computed from others"
            f" ({stored.grad_fn.name()}), so that nothing would change; give the stored one, as"
            " the original of a parametrization, or detach() it if it is to be written"
        )


def _check_options(name: str, form: RateForm, options: Mapping[str, Tensor | float]) -> None:
    """ValueError where the form `name` lacks an option, or is given one that it has not."""
    for option in form.needs:
        if option not in options:
            raise ValueError(f"{option} must be given with parametrisation {name!r}, got None")
    for option in options:
        if option not in (*form.needs, *form.takes):
            raise ValueError(
                f"{option} must be left out with parametrisation {name!r}, got"
                f" {_size_of(options[option])}"
            )


def _size_of(value: Tensor | float) -> str:
    """A number, or the shape of a tensor or array, for a message."""
    shape = getattr(value, "shape", ())
    return f"numbers of shape {tuple(shape)}" if shape else f"{float(value):g}"


def _rates_for(tensor: Tensor, nodes: Nodes) -> Tensor:
    """The rates of the nodes in the shape of `tensor`, float64 on its device."""
    rates = torch.tensor(nodes.rates, dtype=torch.float64, device="cpu")
    if not (rates.isfinite() & (rates > 0)).all():
        raise ValueError(
            f"nodes must have positive finite rates, got {min(nodes.rates):g} to"
            f" {max(nodes.rates):g}"
        )
    if tensor.numel() == rates.numel():
        rates = rates.view(tensor.shape)
    elif tensor.ndim == 0 or tensor.shape[-1] != rates.numel():
        raise ValueError(
            "nodes must be as many as the last dimension of the tensor"
            f" {tuple(tensor.shape)}, or as its elements, got {rates.numel()}"
        )
    return rates.to(tensor.device).expand(tensor.shape)


def _spread(name: str, value: Tensor | float, rates: Tensor) -> Tensor:
    """The option `name` in the type, shape and place of `rates`."""
    one = torch.as_tensor(value, dtype=rates.dtype, device=rates.device)
    try:
        return one.broadcast_to(rates.shape)
    except RuntimeError:
        raise ValueError(
            f"{name} must broadcast to the tensor's shape {tuple(rates.shape)}, got"
            f" {tuple(one.shape)}; Mamba's A_log needs dt_bias[:, None]"
        ) from None


def _check_above_zero(given: TensorsByName) -> None:
    """ValueError for a bound or cap that is not above 0."""
    for name in ABOVE_ZERO:
        if name not in given:
            continue
        out = ~(given[name] > 0)
        if out.any():
            raise ValueError(f"{name} must be above 0, got {float(given[name][out][0]):g}")


def _check_reach(parametrisation: str, rates: Tensor, given: TensorsByName) -> None:
    """ValueError for a rate that no number gives under this parametrisation."""
    slowest_limit, fastest_limit = FORMS[parametrisation].limits(**given)
    kind: Any = {"dtype": rates.dtype, "device": rates.device}
    slowest = torch.as_tensor(slowest_limit, **kind).expand(rates.shape)
    fastest = torch.as_tensor(fastest_limit, **kind).expand(rates.shape)
    out = ~((rates > slowest) & (rates < fastest))
    if not out.any():
        return
    least = _half_life(fastest[out][0])
    most = _half_life(slowest[out][0])
    below = f" and below {most:.4g}" if most < math.inf else ""
    raise ValueError(
        f"half-lives of nodes must be above {least:.4g} steps{below} for {parametrisation},"
        f" got {_half_life(rates[out][0]):.4g}"
    )


def _half_life(rate: Tensor) -> float:
    """ln 2 / rate of one number; infinite for 0."""
    return math.log(2) / float(rate) if rate > 0 else math.inf


def _check_decays(form: RateForm, filled: Tensor, rates: Tensor, given: TensorsByName) -> None:
    """ValueError where the decay of what is `filled` in is 0 or 1 in its type."""
    precise = torch.promote_types(filled.dtype, torch.float32)
    narrowed = {name: value.to(precise) for name, value in given.items()}
    decay = torch.exp(-form.rate(filled.to(precise), **narrowed))
    out = ~((decay > 0) & (decay < 1))
    if not out.any():
        return
    half_life = _half_life(rates[out][0])
    kind = str(decay.dtype).removeprefix("torch.")
    reason = f"so that decays are not {float(decay[out][0]):g} in {kind}"
    if given and 0.01 < half_life < 1e7:
        # The nodes are of an ordinary size, so that what stands beside the tensor is not.
        names = " and ".join(given)
        got = " and ".join(f"{float(value[out][0]):g}" for value in given.values())
        raise ValueError(
            f"{names} must be of an ordinary size, {reason}, got {got} for a half-life of"
            f" {half_life:.3g} steps"
        )
    raise ValueError(
        f"half-lives of nodes must be between about 0.01 and 1e7 steps, {reason}, got"
        f" {half_life:.3g} (rate {float(rates[out][0]):.3g}); or use a wider type"
    )


@torch.no_grad()
def projection_(
    weight: Tensor, nodes: Nodes, *, dim: int = -1, match: Nodes | None = None
) -> Tensor:
    """Multiply slice i of `weight` along `dim` by the multiplier of node i, in place.

    `dim` is the dimension of the N states: the last of a torch.nn.Linear from states to outputs.
    With `match`, all are scaled by one more number, so that the standard deviation of the output
    under white input, with C and B random, is what the nodes `match` would give on the same
    weights. Raises ValueError for something that is no dense tensor of floating-point numbers, for
    one that is computed from parameters, as in `decays_`, and when the size is not N.
    """
    check_writable("weight", weight)
    channels = len(nodes.projection)
    if not -weight.ndim <= dim < weight.ndim or weight.shape[dim] != channels:
        raise ValueError(
            f"nodes must be as many as dimension {dim} of weight {tuple(weight.shape)}, got"
            f" {channels}"
        )
    scale = output_std(match) / output_std(nodes) if match else 1.0
    multipliers = torch.tensor(nodes.projection, dtype=torch.float64, device="cpu") * scale
    shape = [1] * weight.ndim
    shape[dim] = channels
    precise = torch.promote_types(weight.dtype, torch.float32)
    return weight.copy_(weight.to(precise) * multipliers.to(weight.device, precise).view(shape))
