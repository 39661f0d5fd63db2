"""Other ways to compute WKV with its gradients: loops over time under autograd, chunks, and other people's kernels.

A contender takes a `Problem` and returns a step; a step returns the two results and the six gradients in the order of
the problem's fields, with the axis of time perhaps still cut in two. What a peer wants laid out differently is laid out
before the step, so that the time is the peer's own. A contender that is not installed raises ImportError.

Letters: B batch, H heads, N key and value size.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from plkernel.bench.wkv_chunks import chunked
from plkernel.bench.wkv_problem import Problem, Step, differentiated, over_time

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


OURS, LOOP, LEAN_LOOP = "plkernel", "loop", "loop, as few operations as possible"
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
