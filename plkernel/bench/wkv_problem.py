"""What every contender of the WKV benchmark is given, and the form in which it answers."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

Shape = tuple[int, int, int, int]
Step = Callable[[], tuple[Tensor, ...]]
STRONG_SHAPE: Shape = (1, 128, 2, 16)


class Problem(NamedTuple):
    """Inputs of WKV as its operator takes them, and the gradients of a loss by its two results."""

    r: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor
    u: Tensor
    state: Tensor
    grad_out: Tensor
    grad_last: Tensor

    def mapped(self, function: Callable[[Tensor], Tensor]) -> "Problem":
        """The same with a function applied to every tensor."""
        return Problem(*map(function, self))

    def rearranged(self, function: Callable[[Tensor], Tensor]) -> "Problem":
        """The same with a function applied to every tensor over time."""
        moved = {name: function(getattr(self, name)) for name in ("r", "k", "v", "log_decay", "grad_out")}
        return self._replace(**moved)


def problem(shape: Shape, device: str = "cpu") -> Problem:
    """Channels with half-lives from 1 to 2048 steps, every step's rate off by a factor exp(normal / 2); else normal."""
    rates = math.log(2) / torch.logspace(0, 11, shape[3], base=2.0)
    return _drawn(shape, lambda noise: -rates * torch.exp(noise / 2)).mapped(lambda x: x.to(device))


def strong_problem(device: str = "cpu") -> Problem:
    """ln w from -exp(-8) to -exp(2.5), one in sixteen -50: weak and strong decays side by side."""

    def decays(noise: Tensor) -> Tensor:
        uniform = torch.special.ndtr(noise)
        return torch.where(uniform < 1 / 16, -50.0, -torch.exp(10.5 * uniform - 8))

    return _drawn(STRONG_SHAPE, decays).mapped(lambda x: x.to(device))


def _drawn(shape: Shape, decays: Callable[[Tensor], Tensor]) -> Problem:
    batch, _, heads, size = shape
    generator = torch.Generator().manual_seed(0)
    state = (batch, heads, size, size)
    shapes = (shape, shape, shape, shape, (heads, size), state, shape, state)
    drawn = Problem(*(torch.randn(x, generator=generator) for x in shapes))
    return drawn._replace(log_decay=decays(drawn.log_decay))


def differentiated(function: Callable[..., Any], problem: Problem) -> Step:
    """A step of `function(r, k, v, log_decay, u, state)` and its gradients."""
    *inputs, grad_out, grad_last = problem
    leaves = [x.detach().requires_grad_() for x in inputs]

    def step() -> tuple[Tensor, ...]:
        out, last = function(*leaves)
        grads = torch.autograd.grad((out, last), leaves, (grad_out, grad_last))
        return out.detach(), last.detach(), *grads

    return step


def over_time(view: Callable[[Tensor], Tensor], results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A view of those results and gradients that have an axis of time."""
    out, last, grad_r, grad_k, grad_v, grad_log_decay, *others = results
    return view(out), last, *map(view, (grad_r, grad_k, grad_v, grad_log_decay)), *others
