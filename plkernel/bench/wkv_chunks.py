"""WKV as chunks of matrix products in torch, both passes by hand: the fastest that was found without a kernel.

Letters: B batch, T time, H heads, N key and value size, C steps of a chunk, M = T / C chunks.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from plkernel.bench.wkv_problem import Problem, Step, differentiated, over_time

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


def _sides(x: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """The late and the early half of each part of x (M,B,H,C,N), as (M,B,H,parts,half,N)."""
    if half == WHOLE:
        return x[:, :, :, None], x[:, :, :, None]
    parts = x.unflatten(3, (-1, 2, half))
    return parts[..., 1, :, :], parts[..., 0, :, :]


def _pairs(x: Tensor, half: int) -> Tensor:
    """Where late meets early in x (M,B,H,C,C), as (M,B,H,parts,half,half): a view."""
    if half == WHOLE:
        return x[:, :, :, None]
    blocks = x.unflatten(4, (-1, 2, half)).unflatten(3, (-1, 2, half))[:, :, :, :, 1, :, :, 0]
    return blocks.diagonal(dim1=3, dim2=5).movedim(-1, 3)


def _product(x: Tensor, y: Tensor) -> Tensor:
    """x @ y; without a library call for each of many pairs of vectors."""
    if x.shape[-2:-1] == y.shape[-1:] == (1,):
        return (x * y.mT).sum(-1, keepdim=True)
    return x * y if x.shape[-1] == 1 else x @ y


def _factors(before: Tensor, after: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """Decay from the middle to each late step, and from each early step to the middle."""
    late, early = _sides(before, half)[0], _sides(after, half)[1]
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
        factors = []
        for half in parts:
            late, early = _factors(before, after, half)
            factors += [late, early]
            _pairs(weights, half).copy_(_product(_sides(r, half)[0] * late, (_sides(k, half)[1] * early).mT))
        weights.tril_(-1).diagonal(dim1=-2, dim2=-1).copy_((r * u[:, None] * k).sum(-1))
        into, out_of = before.exp_(), (through - after).exp_()
        states = r.new_empty((len(r) + 1, *state.shape))
        states[0] = state
        torch.matmul((k * out_of).mT, v, out=states[1:])
        for i, decay in enumerate(through.exp().mT):
            states[i + 1].addcmul_(decay, states[i])
        out = (weights @ v).add_((r * into) @ states[:-1])
        ctx.save_for_backward(r, k, v, u, weights, into, out_of, through, states, *factors)
        ctx.parts = parts
        return out, states[-1].clone()

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        r, k, v, u, weights, into, out_of, through, states, *factors = ctx.saved_tensors
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
        for half, late, early in zip(ctx.parts, factors[::2], factors[1::2], strict=True):
            block, (late_r, early_k) = _pairs(grad_weights, half), (_sides(r, half)[0], _sides(k, half)[1])
            _sides(grad_r, half)[0].addcmul_(_product(block, early_k * early), late)
            _sides(grad_k, half)[1].addcmul_(_product(block.mT, late_r * late), early)
        # ln w_t scales what later steps read, less what they read of later keys, and what leaves the chunk.
        read, written = grad_r * r, grad_k * k
        balance = (read - written).cumsum(3)
        grad_log_decay = (balance[..., -1:, :] + carried).sub(balance).sub_(written)
        grad_u = (present * r * k).sum((0, 1, 3))
        grad_r.addcmul_(present * u[:, None], k)
        grad_k.addcmul_(present * u[:, None], r)
        return grad_r, grad_k, grad_v, grad_log_decay, grad_u, grads[0], None
