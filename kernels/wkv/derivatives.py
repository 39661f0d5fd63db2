"""WKV as torch operators, with gradients and vmap; asked for second derivatives or forward mode, they refuse."""

from typing import Any, NoReturn

import torch
from torch import Tensor

from plkernel.kernels import backends, transforms


@torch.library.custom_op("plkernel::wkv", mutates_args=())
def _wkv(
    r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, u: Tensor, state: Tensor, backend: str
) -> tuple[Tensor, Tensor]:
    check_sign(log_decay)
    return backends.module("wkv", backend).forward(*(x.contiguous() for x in (r, k, v, log_decay, u, state)))


@_wkv.register_fake
def _(
    r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, u: Tensor, state: Tensor, backend: str
) -> tuple[Tensor, Tensor]:
    return v.new_empty(v.shape), state.new_empty(state.shape)


@torch.library.custom_op("plkernel::wkv_backward", mutates_args=())
def _wkv_backward(
    r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, u: Tensor, state: Tensor,
    grad_out: Tensor, grad_last: Tensor, backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    inputs = (r, k, v, log_decay, u, state, grad_out, grad_last)
    return backends.module("wkv", backend).backward(*(x.contiguous() for x in inputs))


@_wkv_backward.register_fake
def _(
    r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, u: Tensor, state: Tensor,
    grad_out: Tensor, grad_last: Tensor, backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    r, k, v, log_decay, u, state = (x.new_empty(x.shape) for x in (r, k, v, log_decay, u, state))
    return r, k, v, log_decay, u, state


class _Wkv(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
        return _wkv(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.backend = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:
        return *_gradients(*ctx.saved_tensors, grad_out, grad_last, ctx.backend), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        _refuse("no forward-mode derivatives", ctx.backend)


class _WkvBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        return _wkv_backward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.backend = inputs[-1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> NoReturn:
        _refuse("no second derivatives", ctx.backend)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        _refuse("no second derivatives", ctx.backend)


def _refuse(what: str, backend: str) -> NoReturn:
    raise NotImplementedError(f"wkv: backend {backend!r} has {what}; backend='reference' does, slowly")


def check_sign(log_decay: Tensor) -> None:
    """Where values can be read without waiting for a device: a memory that grows is a sign forgotten."""
    if log_decay.device.type == "cpu" and log_decay.numel() and (largest := log_decay.detach().max().item()) > 0:
        raise ValueError(f"wkv: log_decay reaches {largest:.4g}; it is ln w of a decay w <= 1, so at most 0")


wkv = transforms.differentiable(_wkv, _Wkv)
_gradients = transforms.differentiable(_wkv_backward, _WkvBackward)
_wkv.register_autograd(_Wkv.backward, setup_context=_Wkv.setup_context)
_wkv_backward.register_autograd(_WkvBackward.backward, setup_context=_WkvBackward.setup_context)
transforms.register_vmap(_wkv, inputs=(-2, -2, -2, -2, -2, -3), outputs=(-2, -3))
transforms.register_vmap(_wkv_backward, inputs=(-2, -2, -2, -2, -2, -3, -2, -3), outputs=(-2, -2, -2, -2, -2, -3))
