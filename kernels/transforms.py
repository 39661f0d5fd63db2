"""Beside the gradients of operators: torch.func and forward mode noticed, and one axis more for vmap."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch import eager_transforms
from torch.autograd import forward_ad


def active() -> bool:
    """Whether torch.func or forward mode is at work: operators of torch.library know of neither, a Function does."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def register_vmap(operator: Any, inputs: Sequence[int], outputs: Sequence[int]) -> None:
    """Have vmap fold its axis into one along which the operator is many operators side by side, channels or heads.

    Args:
        operator: from torch.library.custom_op; its last argument is the backend.
        inputs: where that axis lies in each tensor it takes, counted from the end.
        outputs: and in each that it returns.
    """

    def vmapped(
        info: Any, in_dims: tuple[int | None, ...], *arguments: Any
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        *tensors, backend = arguments
        size = info.batch_size
        folded = [_fold(x, where, size, axis) for x, where, axis in zip(tensors, in_dims, inputs, strict=False)]
        results = operator(*folded, backend)
        return tuple(_unfold(x, size, axis) for x, axis in zip(results, outputs, strict=True)), (0,) * len(outputs)

    torch.library.register_vmap(operator, vmapped)


def _fold(x: Tensor, where: int | None, size: int, axis: int) -> Tensor:
    x = x.expand(size, *x.shape) if where is None else x.movedim(where, 0)
    return x.movedim(0, axis - 1).flatten(axis - 1, axis)


def _unfold(x: Tensor, size: int, axis: int) -> Tensor:
    return x.unflatten(axis, (size, x.shape[axis] // size)).movedim(axis - 1, 0)


def save(ctx: Any, *tensors: Tensor) -> None:
    """For the backward pass, and where tangents may flow for the forward one: torch wants both to be the same."""
    ctx.save_for_backward(*tensors)
    if active():
        ctx.save_for_forward(*tensors)


def differentiable(operator: Any, function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """The operator, or while a transform is active the Function with the same results that every transform knows.

    torch drops the outer tangents inside a Function's own rule, so forward mode within forward mode is refused.
    """

    def call(*arguments: Any) -> Any:
        if not active():
            return operator(*arguments)
        if eager_transforms.JVP_NESTING > 1:
            raise NotImplementedError(
                f"{operator._name.removeprefix('plkernel::')}: no forward mode within forward mode; "
                "for second derivatives use torch.func.hessian, or jacfwd of jacrev"
            )
        return function.apply(*arguments)

    return call
