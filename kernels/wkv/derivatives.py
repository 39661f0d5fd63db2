"""WKV as torch operators, with gradients and vmap; asked for second derivatives or forward mode, they refuse."""

from typing import Any, NoReturn

from torch import Tensor

from plkernel.kernels import transforms


def check_sign(log_decay: Tensor) -> None:
    """Where values can be read without waiting for a device: a memory that grows is a sign forgotten."""
    if log_decay.device.type == "cpu" and log_decay.numel() and (largest := log_decay.detach().max().item()) > 0:
        raise ValueError(f"wkv: log_decay reaches {largest:.4g}; it is ln w of a decay w <= 1, so at most 0")


INPUTS = {"r": -2, "k": -2, "v": -2, "log_decay": -2, "u": -2, "state": -3}


class _Wkv(transforms.Rule):
    operator = transforms.operator("wkv", "forward", INPUTS, ("v", "state"), lambda *inputs: check_sign(inputs[3]))

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


class _WkvBackward(transforms.Rule):
    operator = transforms.operator("wkv", "backward", INPUTS | {"grad_out": -2, "grad_last": -3}, tuple(INPUTS))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.backend = inputs[-1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> NoReturn:
        _refuse("no second derivatives", ctx.backend)

    jvp = backward


def _refuse(what: str, backend: str) -> NoReturn:
    raise NotImplementedError(f"wkv: backend {backend!r} has {what}; backend='reference' does, slowly")


wkv = transforms.differentiable(_Wkv)
_gradients = transforms.differentiable(_WkvBackward)
