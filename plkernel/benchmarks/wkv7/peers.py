"""Other ways to compute WKV-7 with its gradients: a loop over time, chunks, and flash-linear-attention's own reference.

A contender takes a `Problem` and returns a step; a step returns the two results and the seven gradients in the order of
the problem's fields, with the axis of time perhaps still cut in two. What a peer wants laid out differently is laid out
before the step, so that the time is the peer's own. A contender that is not installed raises ImportError.

As a module of its own it takes one step: the process whose memory `plkernel.bench wkv7` watches.

Letters: B batch, H heads, N key and value size, M chunks of C steps.
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
from plkernel.benchmarks.wkv_peers import SIZES, STRONG_SHAPE, WARM, Shape, Step, factors, pairs, product, sides
from plkernel.common.environment import ready


class Problem(NamedTuple):
    """Inputs of WKV-7 as its operator takes them, and the gradients of a loss by its two results."""

    r: Tensor
    log_decay: Tensor
    k: Tensor
    v: Tensor
    a: Tensor
    b: Tensor
    state: Tensor
    grad_out: Tensor
    grad_last: Tensor

    def mapped(self, function: Callable[[Tensor], Tensor]) -> "Problem":
        """The same with a function applied to every tensor."""
        return Problem(*map(function, self))

    def rearranged(self, function: Callable[[Tensor], Tensor]) -> "Problem":
        """The same with a function applied to every tensor over time."""
        kept = ("state", "grad_last")
        return Problem(**{name: x if name in kept else function(x) for name, x in self._asdict().items()})


def problem(shape: Shape, device: str = "cpu") -> Problem:
    """Normalised kappa, rates from 0 to 1 and half-lives from 1 to 2048 steps, each off by exp(normal / 2)."""
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
    r, noise, k, v, kappa, grad_out = (torch.randn(shape, generator=generator) for _ in range(6))
    first, grad_last = (torch.randn(state, generator=generator) for _ in range(2))
    kappa = torch.nn.functional.normalize(kappa, dim=-1)
    rate = torch.rand(shape, generator=generator)
    return Problem(r, decays(noise), k, v, -kappa, kappa * rate, first, grad_out, grad_last)


def differentiated(function: Callable[..., Any], problem: Problem) -> Step:
    """A step of `function(r, log_decay, k, v, a, b, state)` and its gradients."""
    return contest.differentiated(function, problem[:7], problem[7:])


def over_time(view: Callable[[Tensor], Tensor], results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A view of those results and gradients that have an axis of time."""
    out, last, *grads, grad_state = results
    return view(out), last, *map(view, grads), grad_state


def ours(problem: Problem) -> Step:
    """This project's WKV-7, on the backend for the device."""
    from plkernel.kernels.wkv7 import wkv7

    return differentiated(wkv7, problem)


def reference(problem: Problem) -> Step:
    """The loop in float64 that every contender is compared with."""
    from plkernel.kernels.wkv7 import wkv7

    return differentiated(partial(wkv7, backend="reference"), problem.mapped(Tensor.double))


def loop(problem: Problem) -> Step:
    """The recurrence step by step under autograd, with few operations; unbind is the cheapest way to slice."""

    def function(
        r: Tensor, log_decay: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        outputs = []
        rows = (x[..., None, :].unbind(0) for x in (log_decay.exp(), k, b))
        columns = (x[..., None].unbind(0) for x in (r, v, a))
        for w_t, k_t, b_t, r_t, v_t, a_t in zip(*rows, *columns, strict=True):
            state = torch.addcmul(torch.addcmul(state * w_t, state @ a_t, b_t), v_t, k_t)
            outputs.append((state @ r_t).squeeze(-1))
        return torch.stack(outputs), state

    step = differentiated(function, problem.rearranged(lambda x: x.transpose(0, 1).contiguous()))
    return lambda: over_time(lambda x: x.transpose(0, 1), step())


def chunked(size: int) -> Callable[[Problem], Step]:
    """Chunks of `size` steps as matrix products under autograd, and the reads of each from a triangular system.

    A product of decays between two steps is factored around a step between them: the middle of the smallest of the
    chunk's halves, quarters and so on that both are in. So no exponent is above 0, and no decay too strong.
    """
    parts = tuple(size >> i for i in range(1, size.bit_length()))

    def function(
        r: Tensor, log_decay: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        after = log_decay.cumsum(3)
        before, through = after - log_decay, after[..., -1:, :]
        decayed = r * log_decay.exp()
        weights = r.new_zeros((4 * len(r), *r.shape[1:-1], size))
        for half in parts:
            late, early = factors(before, after, half)
            reads = [sides(x, half)[0] * late for x in (decayed, a)]
            writes = [(sides(x, half)[1] * early).mT for x in (k, b)]
            pairs(weights, half).copy_(torch.cat([product(x, y) for x in reads for y in writes]))
        seen_k, seen_b, read_k, read_b = weights.chunk(4)
        seen_k, seen_b = (x + torch.diag_embed((r * y).sum(-1)) for x, y in ((seen_k, k), (seen_b, b)))
        into, out_of = before.exp(), (through - after).exp()
        system = torch.eye(size, device=r.device) - read_b
        of_state, of_values = torch.linalg.solve_triangular(
            system, torch.cat([a * into, read_k @ v], -1), upper=False, unitriangular=True
        ).split((r.shape[-1], v.shape[-1]), -1)
        written, again, decay = v.mT @ (k * out_of), b * out_of, through.exp()
        states, read = [], []
        for of_c, values_c, written_c, b_c, decay_c in zip(of_state, of_values, written, again, decay, strict=True):
            states.append(state)
            read.append(values_c + of_c @ state.mT)
            state = torch.addcmul(written_c + read[-1].mT @ b_c, state, decay_c)
        out = seen_k @ v + seen_b @ torch.stack(read) + (decayed * into) @ torch.stack(states).mT
        return out, state

    def make(problem: Problem) -> Step:
        def cut(x: Tensor) -> Tensor:
            return x.unflatten(1, (-1, size)).permute(1, 0, 3, 2, 4).contiguous()

        step = differentiated(function, problem.rearranged(cut))
        return lambda: over_time(lambda x: x.permute(1, 0, 3, 2, 4), step())

    return make


def fla_recurrence(problem: Problem) -> Step:
    """flash-linear-attention's reference in torch, a loop over time."""
    from fla.ops.generalized_delta_rule.dplr.naive import dplr_recurrence

    return _fla(dplr_recurrence, problem)


def fla_chunks(problem: Problem) -> Step:
    """flash-linear-attention's reference in torch for chunks, of 32 steps."""
    from fla.ops.generalized_delta_rule.dplr.naive import dplr_chunkwise

    return _fla(dplr_chunkwise, problem)


def _fla(reference: Callable[..., Any], problem: Problem) -> Step:
    """With heads before time, a transposed state and its own scale undone."""

    def function(*inputs: Tensor) -> Any:
        r, log_decay, k, v, a, b, state = inputs
        out, last = reference(r * r.shape[-1] ** 0.5, k, v, a, b, log_decay, initial_state=state.mT)
        return out, last.mT

    step = differentiated(function, problem.rearranged(lambda x: x.transpose(1, 2).contiguous()))
    return lambda: over_time(lambda x: x.transpose(1, 2), step())


def flash_linear_attention(problem: Problem) -> Step:
    """flash-linear-attention's chunked kernel for a GPU, on the same layout."""
    from fla.ops.rwkv7 import chunk_rwkv7

    def function(
        r: Tensor, log_decay: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        out, last = chunk_rwkv7(r, log_decay, k, v, a, b, scale=1.0, initial_state=state.mT, output_final_state=True)
        return out, last.mT

    return differentiated(function, problem)


Contender = Callable[[Problem], Step]
LOOP, CHUNKED = "loop", "chunks, no exponent above 0, of"
FLA_LOOP, FLA_CHUNKS = "fla's loop in torch", "fla's chunks in torch"
CONTENDERS: dict[str, Contender] = {
    OURS: ours,
    LOOP: loop,
    **{f"{CHUNKED} {size}": chunked(size) for size in SIZES},
    FLA_LOOP: fla_recurrence,
    FLA_CHUNKS: fla_chunks,
}
GPU: dict[str, Contender] = {"fla": flash_linear_attention}
PACKAGES = ("flash-linear-attention",)


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
