"""Other people's ways to compute h_t = a * h_{t-1} + b_t with a fixed decay, each in the layout that suits it best.

A contender takes (a, b, grad_h) and returns a step; a step returns (h, grad_a, grad_b), h and grad_b as (B,T,D). What
a peer wants laid out differently is laid out before the step, so that the time is the peer's own. A contender that is
not installed raises ImportError.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from plkernel.benchmarks import contest

Step = Callable[[], tuple[Tensor, ...]]
Contender = Callable[[Tensor, Tensor, Tensor], Step]


def differentiated(function: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor, grad_h: Tensor) -> Step:
    """A step of `function(a, b)` and its gradients."""
    return contest.differentiated(function, (a, b), (grad_h,))


def channels_first(function: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor, grad_h: Tensor) -> Step:
    """The same for a `function` whose b and h are (B,D,T)."""
    step = differentiated(function, a, b.transpose(1, 2).contiguous(), grad_h.transpose(1, 2).contiguous())

    def transposed() -> tuple[Tensor, ...]:
        h, grad_a, grad_b = step()
        return h.transpose(1, 2), grad_a, grad_b.transpose(1, 2)

    return transposed


def ours(a: Tensor, b: Tensor, grad_h: Tensor) -> Step:
    """This project's scan, on the backend for the device."""
    from plkernel.kernels.scan import scan

    return differentiated(lambda a, b: scan(a, b)[0], a, b, grad_h)


def loop(a: Tensor, b: Tensor, grad_h: Tensor) -> Step:
    """A Python loop over time under autograd; unbind and stack, the cheapest way to slice and to join."""

    def function(a: Tensor, b: Tensor) -> Tensor:
        carry = torch.zeros_like(b[:, 0])
        outputs = [carry := a * carry + step for step in b.unbind(1)]
        return torch.stack(outputs, 1)

    return differentiated(function, a, b, grad_h)


def mambapy(a: Tensor, b: Tensor, grad_h: Tensor) -> Step:
    """mambapy's parallel scan as (B,T,1,D): twice as fast there as with channels and states exchanged."""
    from mambapy.pscan import pscan

    def function(a: Tensor, b: Tensor) -> Tensor:
        return pscan(a.expand(b.shape).unsqueeze(2), b.unsqueeze(2)).squeeze(2)

    return differentiated(function, a, b, grad_h)


def associative(a: Tensor, b: Tensor, grad_h: Tensor) -> Step:
    """torch's associative_scan; the backward pass is another one in reverse, faster than torch's own derivative."""
    return differentiated(_AssociativeScan.apply, a, b, grad_h)


def associative_compiled(a: Tensor, b: Tensor, grad_h: Tensor) -> Step:
    """The same two scans, each compiled for this one shape. Compiling takes from half a minute to many minutes."""
    torch._dynamo.reset()
    forward = torch.compile(_associative_forward, dynamic=False)
    backward = torch.compile(_associative_backward, dynamic=False)

    def step() -> tuple[Tensor, ...]:
        h = forward(a, b)
        return h, *backward(a, h, grad_h)

    return step


def accelerated_scan(a: Tensor, b: Tensor, grad_h: Tensor) -> Step:
    """accelerated-scan's Triton kernel, (B,D,T); it has no fixed decay, so the decay is spread out in the step."""
    from accelerated_scan.triton import scan

    return channels_first(lambda a, b: scan(a[:, None].expand(b.shape).contiguous(), b), a, b, grad_h)


def mamba_ssm(a: Tensor, b: Tensor, grad_h: Tensor) -> Step:
    """mamba-ssm's selective scan, (B,D,T), one state per channel: A = ln a, and delta, B and C are one."""
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    batch, time, channels = b.shape
    delta, one = b.new_ones(batch, channels, time), b.new_ones(batch, 1, time)
    return channels_first(lambda a, b: selective_scan_fn(b, delta, a.log()[:, None], one, one), a, b, grad_h)


def flash_linear_attention(a: Tensor, b: Tensor, grad_h: Tensor) -> Step:
    """flash-linear-attention's chunked HGRN, (B,T,D), decay as its logarithm."""
    from fla.ops.hgrn import chunk_hgrn

    return differentiated(lambda a, b: chunk_hgrn(b, a.log().expand(b.shape).contiguous())[0], a, b, grad_h)


def _combine(left: Any, right: Any) -> Any:
    return left[0] * right[0], right[0] * left[1] + right[1]


def _associative_forward(a: Tensor, b: Tensor) -> Tensor:
    from torch._higher_order_ops.associative_scan import associative_scan

    return associative_scan(_combine, (a.expand(b.shape), b), dim=1, combine_mode="generic")[1]


def _associative_backward(a: Tensor, h: Tensor, grad_h: Tensor) -> tuple[Tensor, Tensor]:
    from torch._higher_order_ops.associative_scan import associative_scan

    grad_b = associative_scan(_combine, (a.expand(h.shape), grad_h), dim=1, reverse=True, combine_mode="generic")[1]
    return (grad_b[:, 1:] * h[:, :-1]).sum((0, 1)), grad_b


class _AssociativeScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        h = _associative_forward(a, b)
        ctx.save_for_backward(a, h)
        return h

    @staticmethod
    def backward(ctx: Any, grad_h: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        a, h = ctx.saved_tensors
        return _associative_backward(a, h, grad_h)


CPU: dict[str, Contender] = {"mambapy": mambapy, "associative_scan": associative, "loop": loop}
COMPILED: dict[str, Contender] = {"associative_scan, compiled": associative_compiled}
GPU: dict[str, Contender] = {
    "accelerated_scan": accelerated_scan,
    "mamba_ssm": mamba_ssm,
    "fla": flash_linear_attention,
}
PACKAGES = ("mambapy", "accelerated-scan", "mamba-ssm", "flash-linear-attention")
