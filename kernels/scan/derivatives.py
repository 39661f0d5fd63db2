"""The scan as torch operators, with derivatives of every order, in reverse and forward mode, and vmap.

All of them are scans. With h_t = a_t h_{t-1} + b_t a tangent is h'_t = a_t h'_{t-1} + (a'_t h_{t-1} + b'_t), and a
gradient runs back in time, g_t = grad_h_t + a_{t+1} g_{t+1}; what its own gradient needs runs forward again.
"""

from typing import Any

import torch
from torch import Tensor

from plkernel.kernels import transforms


class _Scan(transforms.Rule):
    operator = transforms.operator("scan", "forward", dict.fromkeys(("a", "b", "state"), -1), ("b", "state"))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        a, _, state, ctx.backend = inputs
        transforms.save(ctx, a, state, output[0])

    @staticmethod
    def backward(ctx: Any, grad_h: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:
        return *scan_backward(*ctx.saved_tensors, grad_h, grad_last, ctx.backend), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, Tensor]:
        a, state, h = ctx.saved_tensors
        d_a, d_b, d_state = _filled(tangents, a, h, state)
        return scan(a, d_b + (d_a * _before(h, state)).to(h.dtype), d_state, ctx.backend)


class _ScanBackward(transforms.Rule):
    operator = transforms.operator(
        "scan", "backward", dict.fromkeys(("a", "state", "h", "grad_h", "grad_last"), -1), ("a", "h", "state")
    )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        a, state, h, _, _, ctx.backend = inputs
        transforms.save(ctx, a, state, h, output[1])

    @staticmethod
    def backward(ctx: Any, to_a: Tensor, to_b: Tensor, to_state: Tensor) -> tuple[Tensor | None, ...]:
        """From gradients of grad_a_t = g_t h_{t-1}, grad_b_t = g_t and grad_state = a_1 g_1, those of what made them.

        p_t = a_t p_{t-1} + to_b_t + to_a_t h_{t-1} with p_0 = to_state is the gradient of grad_h_t; that of a_t is
        g_t p_{t-1}, and that of h_{t-1} is to_a_t g_t.
        """
        a, state, h, g = ctx.saved_tensors
        p, last = scan(a, to_b + (to_a * _before(h, state)).to(h.dtype), to_state, ctx.backend)
        grad_before = to_a * g
        grad_h = torch.cat([grad_before[:, 1:], torch.zeros_like(g[:, :1])], 1)
        grad_a, grad_state = _like(a, _before(p, to_state) * g), grad_before[:, :1].sum(1).to(state.dtype)
        return grad_a, grad_state, grad_h.to(h.dtype), p, last, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, Tensor, Tensor]:
        a, state, h, g = ctx.saved_tensors
        d_a, d_state, d_h, d_grad_h, d_grad_last = _filled(tangents, a, state, h, g, state)
        pulled = (d_a * g)[:, 1:]  # by a tangent of a_{t+1} into g_t
        step = d_grad_h + torch.cat([pulled, torch.zeros_like(g[:, :1])], 1).to(h.dtype)
        d_g_before, d_g, d_grad_state = scan_backward(a, state, h, step, d_grad_last, ctx.backend)
        first = (d_a * g)[:, :1].sum(1).to(state.dtype)
        return d_g_before + _like(a, g * _before(d_h, d_state)), d_g, d_grad_state + first


scan = transforms.differentiable(_Scan)
scan_backward = transforms.differentiable(_ScanBackward)


def _before(h: Tensor, state: Tensor) -> Tensor:
    """h_{t-1} for every t, of which the first is the state."""
    return torch.cat([state[:, None].to(h.dtype), h], 1)[:, :-1]


def _like(a: Tensor, each: Tensor) -> Tensor:
    """A gradient of each a_t as that of a, which may be one for all batch rows and steps."""
    return (each if a.dim() == 3 else each.sum((0, 1))).to(a.dtype)


def _filled(tangents: tuple[Any, ...], *inputs: Tensor) -> list[Tensor]:
    """Tangents, zero where an input has none."""
    return [torch.zeros_like(x) if d is None else d for d, x in zip(tangents, inputs, strict=False)]
