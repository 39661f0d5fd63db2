"""Operators of torch.library and their derivatives: torch.func and forward mode noticed, one axis more for vmap."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._functorch import eager_transforms
from torch.autograd import forward_ad

from plkernel.kernels import backends

Check = Callable[..., None]


def active() -> bool:
    """Whether torch.func or forward mode is at work: operators of torch.library know of neither, a Function does."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def operator(
    package: str, method: str, axes: Mapping[str, int], like: Sequence[str], check: Check | None = None
) -> Any:
    """The operator of torch.library that runs `method` of the backend it is given last, on contiguous tensors.

    Args:
        package: of the backends.
        method: forward, or backward, of an operator with that ending.
        axes: the tensors it takes, and in each the axis along which it is many operators side by side, channels or
            heads, counted from the end: vmap folds its own into it.
        like: those of them that its results are like.
        check: called with the tensors first.
    """
    names = list(axes)

    def run(*arguments: Any) -> Any:
        *tensors, backend = arguments
        if check:
            check(*tensors)
        return getattr(backends.module(package, backend), method)(*(x.contiguous() for x in tensors))

    def vmapped(
        info: Any, in_dims: tuple[int | None, ...], *arguments: Any
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        *tensors, backend = arguments
        size = info.batch_size
        folded = [_fold(x, where, size, axis) for x, where, axis in zip(tensors, in_dims, axes.values(), strict=False)]
        results = defined(*folded, backend)
        return tuple(_unfold(x, size, axes[one]) for x, one in zip(results, like, strict=True)), (0,) * len(like)

    takes, gives = ", ".join(f"Tensor {name}" for name in names), ", ".join(["Tensor"] * len(like))
    name = f"plkernel::{package}" + "_backward" * (method == "backward")
    defined = torch.library.custom_op(name, run, mutates_args=(), schema=f"({takes}, str backend) -> ({gives})")
    defined.register_fake(lambda *given: tuple(x.new_empty(x.shape) for x in (given[names.index(one)] for one in like)))
    defined.register_vmap(vmapped)
    return defined


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


class Rule(torch.autograd.Function):
    """An operator as every transform knows it, with the same results."""

    generate_vmap_rule = True
    operator: Any

    @classmethod
    def forward(cls, *inputs: Any) -> Any:  # type: ignore[override]
        return cls.operator(*inputs)


def differentiable(rule: type[Rule]) -> Callable[..., Any]:
    """The operator, whose derivatives are those of its rule; while a transform is active, the rule itself.

    torch drops the outer tangents inside a Function's own rule, so forward mode within forward mode is refused.
    """
    operator = rule.operator  # torch.compile calls no attribute of a Function
    operator.register_autograd(rule.backward, setup_context=rule.setup_context)

    def call(*arguments: Any) -> Any:
        if not active():
            return operator(*arguments)
        if eager_transforms.JVP_NESTING > 1:
            raise NotImplementedError(
                f"{operator._name.removeprefix('plkernel::')}: no forward mode within forward mode; "
                "for second derivatives use torch.func.hessian, or jacfwd of jacrev"
            )
        return rule.apply(*arguments)

    return call


def once_differentiable(package: str, axes: Mapping[str, int], results: Sequence[str], check: Check) -> Any:
    """The operator with gradients and vmap; asked for second derivatives or forward mode, it refuses.

    Args:
        package: of the backends, whose `forward` takes the tensors and whose `backward` takes them and the gradients
            of both results.
        axes: as for `operator`.
        results: the inputs that its two results are like.
        check: called with the inputs first.
    """

    def refuse(what: str, backend: str) -> NoReturn:
        raise NotImplementedError(f"{package}: backend {backend!r} has {what}; backend='reference' does, slowly")

    incoming = {f"grad_of_{one}": axes[one] for one in results}
    run = operator(package, "forward", axes, results, check)
    run_back = operator(package, "backward", {**axes, **incoming}, tuple(axes))

    class Forward(Rule):
        operator = run

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
            *tensors, ctx.backend = inputs
            ctx.save_for_backward(*tensors)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
            return *gradients(*ctx.saved_tensors, *grads, ctx.backend), None

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> NoReturn:
            refuse("no forward-mode derivatives", ctx.backend)

    class Backward(Rule):
        operator = run_back

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
            ctx.backend = inputs[-1]

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> NoReturn:
            refuse("no second derivatives", ctx.backend)

        jvp = backward

    gradients = differentiable(Backward)
    return differentiable(Forward)
