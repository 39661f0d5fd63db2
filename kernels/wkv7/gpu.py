"""WKV-7 in Triton: one program for each head and block of values, step by step, which share nothing
but their inputs.

The state is carried in two float32 numbers, `high` + `low`: what an addition rounds away is kept,
so that errors do not add up with time. A weak decay is taken as w = 1 + (w - 1) with the second
term rounded, a strong one as it is: neither loses what a long memory or a nearly dead one consists
of, and nothing is ever divided by a decay.

The backward pass keeps nothing of the forward pass but its inputs: it runs the state once more,
keeps it every CHUNK steps, computes those of a chunk anew from there, and takes the chunks from the
last to the first. What each block of values adds to the gradients of keys is summed at the end, in
a fixed order.

Letters: B batch, T time, H heads, K key size, V value size. For shapes see `plkernel.kernels.wkv7`.
"""

# The language of the kernels is Triton, not typed Python:
# mypy: disallow-untyped-defs=False, disable-error-code="assignment"

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from plkernel.kernels.operators import sum_parts

CHUNK = 16  # steps between two kept states
TILE = 2048  # entries of the part of a state that one program holds
WEAK = tl.constexpr(-math.log(2))  # a decay w above 1/2
# Compiled once for all lengths: nothing is gained from knowing that one is 1 or a multiple of 16.
LENGTHS = ("T", "H")
# What an addition rounds away is found by subtracting again: no product may be fused into an
# addition.
OPTIONS = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False}


@triton.jit
def _place(H, V, VALUES: tl.constexpr):
    """Head counted over all batch rows, batch row, head, and the values (rows of the state) of this
    program.
    """
    blocks = tl.cdiv(V, VALUES)
    unit = (tl.program_id(0) // blocks).to(tl.int64)
    batch = unit // H
    head = unit % H
    value = (tl.program_id(0) % blocks) * VALUES + tl.arange(0, VALUES)
    return unit, batch, head, value


@triton.jit
def _load_row(x, row, column, size):
    """One step of x (B,T,H,size) in float32 (arithmetic in a half type is wrong in the
    interpreter), zero beyond `size`.
    """
    return tl.load(x + row * size + column, mask=column < size, other=0.0).to(tl.float32)


@triton.jit
def _tile(x, index, value, key, V, K):
    """Where the part of this program of state number `index` of x (...,V,K) lies, and its mask."""
    return (
        x + (index * V + value[:, None]) * K + key[None, :],
        (value < V)[:, None] & (key < K)[None, :],
    )


@triton.jit
def _decay(log_decay, factor, row, key, K):
    """ln w; w; and w - 1 for a weak decay, else w."""
    log_w = _load_row(log_decay, row, key, K)
    return log_w, tl.exp(log_w), _load_row(factor, row, key, K)


@triton.jit
def _sum(first, second, low):
    """first + second + low as a sum high + low, whose low is what the rounding of high cuts off.

    `lost` is taken by Knuth's TwoSum, for which neither number need be the larger.
    """
    total = first + second
    back = total - first
    lost = (first - (total - back)) + (second - back)
    low = low + lost
    high = total + low
    return high, low - (high - total)


@triton.jit
def _added(high, low, log_w, w, factor, added):
    """(high + low) diag(w) + added, as such a sum."""
    first = tl.where((log_w > WEAK)[None, :], high, 0.0)
    return _sum(first, factor[None, :] * high + added, w[None, :] * low)


@triton.jit
def _outer(x, y):
    """x^T y, a matrix."""
    return x[:, None] * y[None, :]


@triton.jit
def _step(high, low, log_decay, factor, k, v, a, b, row, key, value, K, V):
    """S diag(w_t) + (S a_t) b_t^T + v_t k_t^T, the state S = high + low after one more step."""
    log_w, w, rest = _decay(log_decay, factor, row, key, K)
    read = tl.sum(high * _load_row(a, row, key, K)[None, :], 1)
    added = _outer(read, _load_row(b, row, key, K)) + _outer(
        _load_row(v, row, value, V), _load_row(k, row, key, K)
    )
    return _added(high, low, log_w, w, rest, added)


@triton.jit(do_not_specialize=LENGTHS)
def _forward(
    r,
    log_decay,
    factor,
    k,
    v,
    a,
    b,
    state,
    out,
    last,
    kept,
    T,
    H,
    K,
    V,
    KEEP: tl.constexpr,
    CHUNK: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Every o_t and the last state; or with KEEP the state before every chunk, (B,H,chunks,V,K),
    alone.
    """
    unit, batch, head, value = _place(H, V, VALUES)
    key = tl.arange(0, KEYS)
    where, mask = _tile(state, unit, value, key, V, K)
    high = tl.load(where, mask=mask, other=0.0)
    low = tl.zeros_like(high)
    for t in range(T):
        row = (batch * T + t) * H + head
        if KEEP:
            where, mask = _tile(kept, unit * tl.cdiv(T, CHUNK) + t // CHUNK, value, key, V, K)
            tl.store(where, high, mask=mask & (t % CHUNK == 0))
        high, low = _step(high, low, log_decay, factor, k, v, a, b, row, key, value, K, V)
        if not KEEP:
            o = tl.sum(high * _load_row(r, row, key, K)[None, :], 1)
            tl.store(out + row * V + value, o, mask=value < V)
    if not KEEP:
        where, mask = _tile(last, unit, value, key, V, K)
        tl.store(where, high, mask=mask)


@triton.jit(do_not_specialize=LENGTHS)
def _backward(
    r,
    log_decay,
    factor,
    k,
    v,
    a,
    b,
    grad_out,
    grad_last,
    kept,
    inside,
    grad_r,
    grad_w,
    grad_k,
    grad_v,
    grad_a,
    grad_b,
    grad_state,
    T,
    H,
    K,
    V,
    CHUNK: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
):
    """All gradients, from the states before the chunks; those of keys (blocks of V,B,T,H,K), to be
    summed.

    `inside` (B,H,CHUNK,V,K) takes the states of the chunk at work, before each of its steps.
    """
    unit, batch, head, value = _place(H, V, VALUES)
    key = tl.arange(0, KEYS)
    blocks = tl.cdiv(V, VALUES)
    rows = (tl.num_programs(0) // (blocks * H)).to(tl.int64) * T * H
    apart = (tl.program_id(0) % blocks) * rows  # rows of one block of V from those of the first
    where, mask = _tile(grad_last, unit, value, key, V, K)
    high = tl.load(where, mask=mask, other=0.0)
    low = tl.zeros_like(high)
    chunks = tl.cdiv(T, CHUNK)
    for back in range(chunks):
        start = (chunks - 1 - back) * CHUNK
        count = tl.minimum(CHUNK, T - start)
        # The states inside the chunk, from the one before it: `inside`, and `state` after it.
        where, mask = _tile(kept, unit * chunks + chunks - 1 - back, value, key, V, K)
        state = tl.load(where, mask=mask, other=0.0)
        state_low = tl.zeros_like(state)
        for n in range(count):
            row = (batch * T + start + n) * H + head
            where, mask = _tile(inside, unit * CHUNK + n, value, key, V, K)
            tl.store(where, state, mask=mask)
            state, state_low = _step(
                state, state_low, log_decay, factor, k, v, a, b, row, key, value, K, V
            )
        tl.debug_barrier()  # what some threads have stored, others may load
        for n in range(count):
            t = start + count - 1 - n
            row = (batch * T + t) * H + head
            r_t = _load_row(r, row, key, K)
            k_t = _load_row(k, row, key, K)
            a_t = _load_row(a, row, key, K)
            b_t = _load_row(b, row, key, K)
            v_t = _load_row(v, row, value, V)
            grad_o = _load_row(grad_out, row, value, V)
            log_w, w, rest = _decay(log_decay, factor, row, key, K)
            # Here `state` is still the one after step t, and from the next load on that before it.
            place = (apart + row) * K  # of this step in the gradients of keys
            tl.store(grad_r + place + key, tl.sum(state * grad_o[:, None], 0), mask=key < K)
            where, mask = _tile(inside, unit * CHUNK + count - 1 - n, value, key, V, K)
            state = tl.load(where, mask=mask, other=0.0)
            high, low = _sum(high, _outer(grad_o, r_t), low)
            read = tl.sum(state * a_t[None, :], 1)
            grad_read = tl.sum(high * b_t[None, :], 1)
            tl.store(grad_k + place + key, tl.sum(high * v_t[:, None], 0), mask=key < K)
            tl.store(grad_b + place + key, tl.sum(high * read[:, None], 0), mask=key < K)
            tl.store(grad_a + place + key, tl.sum(state * grad_read[:, None], 0), mask=key < K)
            tl.store(grad_w + place + key, w * tl.sum(state * high, 0), mask=key < K)
            tl.store(grad_v + row * V + value, tl.sum(high * k_t[None, :], 1), mask=value < V)
            high, low = _added(high, low, log_w, w, rest, _outer(grad_read, a_t))
        tl.debug_barrier()  # what some threads load here, others overwrite for the next chunk
    where, mask = _tile(grad_state, unit, value, key, V, K)
    tl.store(where, high, mask=mask)


def forward(
    r: Tensor, log_decay: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Every o_t (B,T,H,V) and the last state (B,H,V,K)."""
    inputs = _taken(r, log_decay, k, v, a, b)
    out = torch.empty_like(v)
    last = torch.empty_like(state)
    sizes, shapes, grid = launch(r, v)
    with torch.cuda.device_of(r):  # kernels are launched on the current device
        no_kept = state  # in the place of a tensor that is not written
        _forward[grid](*inputs, state, out, last, no_kept, *sizes, KEEP=False, **shapes, **OPTIONS)
    return out, last


def backward(
    r: Tensor,
    log_decay: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    state: Tensor,
    grad_out: Tensor,
    grad_last: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients of all seven inputs, from those of both results."""
    inputs = _taken(r, log_decay, k, v, a, b)
    grad_v = torch.empty_like(v)
    grad_state = torch.empty_like(state)
    sizes, shapes, grid = launch(r, v)
    batch, time, heads, size = r.shape
    values = v.shape[3]
    # Partial sums, not atomic additions: the order of the sum is fixed, and so is its result.
    blocks = triton.cdiv(values, shapes["VALUES"])
    keys = (r, log_decay, k, a, b)
    grads = [
        x.new_empty((blocks, *r.shape), dtype=x.dtype if blocks == 1 else torch.float32)
        for x in keys
    ]
    grad_r, grad_w, grad_k, grad_a, grad_b = grads
    kept = state.new_empty((batch, heads, triton.cdiv(time, CHUNK), values, size))
    inside = state.new_empty((batch, heads, CHUNK, values, size))
    with torch.cuda.device_of(r):  # kernels are launched on the current device
        # In the places of `out` and `last`, which are not written then: both gradients are written
        # by the next kernel.
        _forward[grid](
            *inputs, state, grad_v, grad_state, kept, *sizes, KEEP=True, **shapes, **OPTIONS
        )
        _backward[grid](
            *inputs,
            grad_out,
            grad_last,
            kept,
            inside,
            grad_r,
            grad_w,
            grad_k,
            grad_v,
            grad_a,
            grad_b,
            grad_state,
            *sizes,
            **shapes,
            **OPTIONS,
        )
    grad_r, grad_w, grad_k, grad_a, grad_b = (
        sum_parts(grad, x) for grad, x in zip(grads, keys, strict=True)
    )
    return grad_r, grad_w, grad_k, grad_v, grad_a, grad_b, grad_state


def launch(r: Tensor, v: Tensor) -> tuple[tuple[int, ...], dict[str, int], tuple[int]]:
    """T, H, K and V; the shapes compiled for; one program for each head and block of V."""
    batch, time, heads, size = r.shape
    values = v.shape[3]
    keys, block = tiles(size, values)
    sizes = (time, heads, size, values)
    shapes = {"CHUNK": CHUNK, "KEYS": keys, "VALUES": block}
    programs = batch * heads * triton.cdiv(values, block)
    return sizes, shapes, (programs,)


def tiles(size: int, values: int) -> tuple[int, int]:
    """Columns (all) and rows of the part of a state (V,K) that one program holds: powers of two."""
    keys = triton.next_power_of_2(size)
    block = min(triton.next_power_of_2(values), TILE // keys)
    return keys, max(1, block)


def _taken(r: Tensor, log_decay: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """r, ln w, what the kernels take of w, and the others."""
    log_w = log_decay.float()
    factor = torch.where(log_w > WEAK.value, torch.expm1(log_w), log_w.exp())
    return r, log_w, factor, *others
