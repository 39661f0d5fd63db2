"""Other ways to compute WKV with its gradients: loops over time under autograd, chunks, and other people's kernels.

A contender takes a `Problem` and returns a step; a step returns the two results and the six gradients in the order of
the problem's fields, with the axis of time perhaps still cut in two. What a peer wants laid out differently is laid out
before the step, so that the time is the peer's own. A contender that is not installed raises ImportError.

As a module of its own it takes one step: the process whose memory `plkernel.bench wkv` watches.

Letters: B batch, H heads, N key and value size.
"""

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plkernel.benchmarks import contest
from plkernel.benchmarks.contest import OURS
from plkernel.common.environment import ready

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


def problem(shape: Shape, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Problem:
    """Channels with half-lives from 1 to 2048 steps, every step's rate off by a factor exp(normal / 2); else normal.

    dtype: of r, k, v and grad_out.
    """
    rates = math.log(2) / torch.logspace(0, 11, shape[3], base=2.0)
    drawn = _drawn(shape, lambda noise: -rates * torch.exp(noise / 2)).mapped(lambda x: x.to(device))
    return drawn._replace(**{name: getattr(drawn, name).to(dtype) for name in ("r", "k", "v", "grad_out")})


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
    return contest.differentiated(function, problem[:6], problem[6:])


def over_time(view: Callable[[Tensor], Tensor], results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A view of those results and gradients that have an axis of time."""
    out, last, grad_r, grad_k, grad_v, grad_log_decay, *others = results
    return view(out), last, *map(view, (grad_r, grad_k, grad_v, grad_log_decay)), *others


WHOLE = 0  # in place of the half of a part: all pairs of a chunk around its middle


def chunked(size: int, safe: bool) -> Callable[[Problem], Step]:
    """Chunks of `size` steps as matrix products, the state carried from chunk to chunk; both passes by hand.

    A product of decays between two steps is factored around a step between them. With the middle of the chunk for all
    pairs this is fastest, and overflows once ln w summed over half a chunk falls below -88. The `safe` form halves the
    chunk again and again and takes the middle of each part for the pairs across it: then no exponent is above 0.
    """
    parts = tuple(size >> i for i in range(1, size.bit_length())) if safe else (WHOLE,)

    def make(problem: Problem) -> Step:
        def cut(x: Tensor) -> Tensor:
            return x.unflatten(1, (-1, size)).permute(1, 0, 3, 2, 4).contiguous()

        step = differentiated(lambda *inputs: _Chunked.apply(*inputs, parts), problem.rearranged(cut))
        return lambda: over_time(lambda x: x.permute(1, 0, 3, 2, 4), step())

    return make


def sides(x: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """The late and the early half of each part of x (M,B,H,C,N), as (M,B,H,parts,half,N)."""
    if half == WHOLE:
        return x[:, :, :, None], x[:, :, :, None]
    parts = x.unflatten(3, (-1, 2, half))
    return parts[..., 1, :, :], parts[..., 0, :, :]


def pairs(x: Tensor, half: int) -> Tensor:
    """Where late meets early in x (M,B,H,C,C), as (M,B,H,parts,half,half): a view."""
    if half == WHOLE:
        return x[:, :, :, None]
    blocks = x.unflatten(4, (-1, 2, half)).unflatten(3, (-1, 2, half))[:, :, :, :, 1, :, :, 0]
    return blocks.diagonal(dim1=3, dim2=5).movedim(-1, 3)


def product(x: Tensor, y: Tensor) -> Tensor:
    """x @ y; without a library call for each of many pairs of vectors."""
    if x.shape[-2:-1] == y.shape[-1:] == (1,):
        return (x * y.mT).sum(-1, keepdim=True)
    return x * y if x.shape[-1] == 1 else x @ y


def factors(before: Tensor, after: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """Decay from the middle to each late step, and from each early step to the middle."""
    late, early = sides(before, half)[0], sides(after, half)[1]
    middle = early[..., early.shape[-2] // 2 - 1, None, :] if half == WHOLE else early[..., -1:, :]
    return (late - middle).exp_(), (middle - early).exp_()


class _Chunked(torch.autograd.Function):
    """On r, k, v, log_decay (M,B,H,C,N), u (H,N) and state (B,H,N,N)."""

    @staticmethod
    def forward(
        ctx: Any, r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, u: Tensor, state: Tensor, parts: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        after = log_decay.cumsum(3)
        before, through = after - log_decay, after[..., -1:, :]
        weights = r.new_zeros((*r.shape[:-1], r.shape[-2]))
        saved: list[Tensor] = []
        for half in parts:
            late, early = factors(before, after, half)
            saved += [late, early]
            pairs(weights, half).copy_(product(sides(r, half)[0] * late, (sides(k, half)[1] * early).mT))
        weights.tril_(-1).diagonal(dim1=-2, dim2=-1).copy_((r * u[:, None] * k).sum(-1))
        into, out_of = before.exp_(), (through - after).exp_()
        states = r.new_empty((len(r) + 1, *state.shape))
        states[0] = state
        torch.matmul((k * out_of).mT, v, out=states[1:])
        for i, decay in enumerate(through.exp().mT):
            states[i + 1].addcmul_(decay, states[i])
        out = (weights @ v).add_((r * into) @ states[:-1])
        ctx.save_for_backward(r, k, v, u, weights, into, out_of, through, states, *saved)
        ctx.parts = parts
        return out, states[-1].clone()

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        r, k, v, u, weights, into, out_of, through, states, *saved = ctx.saved_tensors
        decays, grads = through.exp(), torch.empty_like(states)
        grads[-1] = grad_last
        torch.matmul((r * into).mT, grad_out, out=grads[:-1])
        for i in range(len(r) - 1, -1, -1):
            grads[i].addcmul_(decays[i].mT, grads[i + 1])
        grad_v = (weights.mT @ grad_out).add_((k * out_of) @ grads[1:])
        grad_r, grad_k = (grad_out @ states[:-1].mT).mul_(into), (v @ grads[1:].mT).mul_(out_of)
        carried = (grad_k * k).sum(3, keepdim=True) + decays * (states[:-1] * grads[1:]).sum(-1)[..., None, :]
        grad_weights = grad_out @ v.mT
        present = grad_weights.diagonal(dim1=-2, dim2=-1).clone()[..., None]
        grad_weights.tril_(-1)
        for half, late, early in zip(ctx.parts, saved[::2], saved[1::2], strict=True):
            block, (late_r, early_k) = pairs(grad_weights, half), (sides(r, half)[0], sides(k, half)[1])
            sides(grad_r, half)[0].addcmul_(product(block, early_k * early), late)
            sides(grad_k, half)[1].addcmul_(product(block.mT, late_r * late), early)
        # ln w_t scales what later steps read, less what they read of later keys, and what leaves the chunk.
        read, written = grad_r * r, grad_k * k
        balance = (read - written).cumsum(3)
        grad_log_decay = (balance[..., -1:, :] + carried).sub(balance).sub_(written)
        grad_u = (present * r * k).sum((0, 1, 3))
        grad_r.addcmul_(present * u[:, None], k)
        grad_k.addcmul_(present * u[:, None], r)
        return grad_r, grad_k, grad_v, grad_log_decay, grad_u, grads[0], None


Contender = Callable[[Problem], Step]


def ours(problem: Problem) -> Step:
    """This project's WKV, on the backend for the device."""
    from plkernel.kernels.wkv import wkv

    return differentiated(wkv, problem)


def reference(problem: Problem) -> Step:
    """The loop in float64 that every contender is compared with."""
    from plkernel.kernels.wkv import wkv

    return differentiated(partial(wkv, backend="reference"), problem.mapped(Tensor.double))


def loop(problem: Problem) -> Step:
    """The recurrence as it is written, step by step under autograd; unbind and stack are the cheapest way to slice."""

    def function(r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, u: Tensor, state: Tensor) -> Any:
        outputs, bonus = [], u[..., None]
        for r_t, k_t, v_t, w_t in _steps(r, k, v, log_decay):
            pair = k_t * v_t
            outputs.append((r_t * (state + bonus * pair)).sum(-2))
            state = w_t * state + pair
        return torch.stack(outputs), state

    return _time_first(function, problem)


def lean_loop(problem: Problem) -> Step:
    """The same with the term of u taken out of the loop and as few operations in it as torch allows."""

    def function(r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, u: Tensor, state: Tensor) -> Any:
        outputs = []
        for r_t, k_t, v_t, w_t in _steps(r, k, v, log_decay):
            outputs.append((r_t.mT @ state).squeeze(-2))
            state = torch.addcmul(k_t * v_t, w_t, state)
        return torch.stack(outputs) + (r * u * k).sum(-1, keepdim=True) * v, state

    return _time_first(function, problem)


def _steps(r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Any:
    """Columns r_t, k_t, w_t (B,H,N,1) and rows v_t (B,H,1,N) of each step."""
    columns = (x[..., None].unbind(0) for x in (r, k, log_decay.exp()))
    r_t, k_t, w_t = columns
    return zip(r_t, k_t, v[..., None, :].unbind(0), w_t, strict=True)


def _time_first(function: Callable[..., Any], problem: Problem) -> Step:
    step = differentiated(function, problem.rearranged(lambda x: x.transpose(0, 1).contiguous()))

    def transposed() -> tuple[Tensor, ...]:
        return over_time(lambda x: x.transpose(0, 1), step())

    return transposed


def flash_linear_attention(problem: Problem) -> Step:
    """flash-linear-attention's chunked kernel for a GPU, on the same layout."""
    from fla.ops.rwkv6 import chunk_rwkv6

    def function(r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, u: Tensor, state: Tensor) -> Any:
        return chunk_rwkv6(r, k, v, log_decay, u, scale=1.0, initial_state=state, output_final_state=True)

    return differentiated(function, problem)


LOOP, LEAN_LOOP = "loop", "loop, as few operations as possible"
CHUNKED, SAFE = "chunks of", "chunks, no exponent above 0, of"
SIZES = (16, 32, 64)
CONTENDERS: dict[str, Contender] = {
    OURS: ours,
    LOOP: loop,
    LEAN_LOOP: lean_loop,
    **{f"{CHUNKED} {size}": chunked(size, safe=False) for size in SIZES},
    **{f"{SAFE} {size}": chunked(size, safe=True) for size in SIZES},
}
GPU: dict[str, Contender] = {"fla": flash_linear_attention}
PACKAGES = ("flash-linear-attention",)


WARM: Shape = (1, 64, 1, 16)


def _work(name: str, *sizes: str) -> None:
    """Whatever is compiled or loaded at the first use is there before the watching begins, and so are the inputs."""
    torch.set_num_threads(1)
    batch, time, heads, size = map(int, sizes)
    CONTENDERS[name](problem(WARM))()
    step = CONTENDERS[name](problem((batch, time, heads, size)))
    ready()
    step()


if __name__ == "__main__":
    _work(*sys.argv[1:])
