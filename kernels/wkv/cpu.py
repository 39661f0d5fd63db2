"""WKV on a CPU: compiled matrix products over chunks of time, threads over batch rows and heads.

Inside a chunk everything has the type of the inputs as they are stored (half types in float32); `chunks.py` here has
the equations. The state and its gradient are carried from chunk to chunk in float64.

The backward pass keeps nothing of the forward pass but its inputs: it runs the state once more, keeps it at the start
of each chunk, and takes the chunks from the last to the first. There states lie as (V,K), so that both of the products
with them are products of rows. Each head of each batch row is one sequential sum, so the result does not depend on the
number of threads.

Letters: B batch, T time, H heads, K key size, V value size. For shapes see `plkernel.kernels.wkv`.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from plkernel.kernels.chunks import (
    CHUNK,
    add_lower,
    add_upper,
    advance_columns,
    advance_rows,
    buffers,
    copy,
    flip,
    load_decays,
    load_rows,
    load_state,
    padded,
    product,
    scale,
    store_rows,
)
from plkernel.kernels.compiled import jit
from plkernel.kernels.lanes import LANES
from plkernel.kernels.subnormals import flush_subnormals, restore
from plkernel.kernels.tensors import widen
from plkernel.kernels.threads import take, together
from plkernel.kernels.wkv.chunks import between, pairs, pairs_backward, pairs_forward

SERIAL = 1 << 20  # entries of the state times steps below which handing work to a thread costs more than it saves


class Room(NamedTuple):
    """What one thread works in, K and V a multiple of LANES; all but the last two in the type of the inputs.

    Spare columns are zero where inputs are loaded, and never loaded.
    """

    keys: Any  # (12,CHUNK,K)
    values: Any  # (3,CHUNK,V)
    keys_flipped: Any  # (K,CHUNK)
    values_flipped: Any  # (2,V,CHUNK)
    weights: Any  # (2,CHUNK,CHUNK)
    state: Any  # (K,V) forward, (V,K) backward
    sums: Any  # (LANES,V) forward, (LANES,K) backward
    state_flipped: Any  # (K,V)
    kept: Any  # (chunks,V,K)
    pairs: Any  # (CHUNK + 2,CHUNK,LANES)
    decays: Any  # (3,CHUNK,K)
    carry: Any  # as the state


@jit
def _load_decays(w, b, h, start, count, room, fresh):  # type: ignore[no-untyped-def]
    """Decays and their products; a fixed decay has the same in all chunks that are not `fresh`."""
    if fresh or w.shape[1] > 1:
        logs, wide, through = room.decays[0], room.decays[1], room.decays[2, 0]
        load_decays(w, b, h, start, count, logs, wide, room.keys[2], room.keys[3], room.keys[4], through)


@jit
def _forward_chunk(r, k, v, w, u, b, h, start, count, out, room):  # type: ignore[no-untyped-def]
    rr, kk, ww, before, after = room.keys[0], room.keys[1], room.keys[2], room.keys[3], room.keys[4]
    q, kd, vv, oo, weights = room.keys[5], room.keys[6], room.values[0], room.values[1], room.weights[0]
    load_rows(r, b, h, start, count, rr)
    load_rows(k, b, h, start, count, kk)
    load_rows(v, b, h, start, count, vv)
    _load_decays(w, b, h, start, count, room, start == 0 or count < CHUNK)
    scale(rr, before, q)
    scale(kk, after, kd)
    flip(q, room.keys_flipped)
    product(room.keys_flipped, 0, room.state, oo)
    pairs(rr, kk, ww, u[h], room.keys_flipped, weights)
    add_lower(weights, vv, oo)
    store_rows(oo, b, h, start, count, out)
    advance_rows(room.carry, room.decays[2, 0], kd, vv, room.sums, room.state)


@jit
def _forward(r, k, v, w, u, state, out, last, room, counter, units):  # type: ignore[no-untyped-def]
    word = flush_subnormals()
    time, heads = r.shape[1:3]
    unit = take(counter)
    while unit < units:
        b, h = unit // heads, unit % heads
        load_state(state[b, h], room.carry, room.state)
        for start in range(0, time, CHUNK):
            _forward_chunk(r, k, v, w, u, b, h, start, min(CHUNK, time - start), out, room)
        copy(room.carry, last[b, h])
        unit = take(counter)
    restore(word)


@jit
def _keep_states(k, v, w, b, h, room):  # type: ignore[no-untyped-def]
    """The state (V,K) at the start of every chunk, from that of the first."""
    kk, after, kd, vv = room.keys[1], room.keys[4], room.keys[6], room.values[0]
    for c in range(room.kept.shape[0] - 1):
        load_rows(k, b, h, c * CHUNK, CHUNK, kk)
        load_rows(v, b, h, c * CHUNK, CHUNK, vv)
        _load_decays(w, b, h, c * CHUNK, CHUNK, room, c == 0)
        scale(kk, after, kd)
        advance_columns(room.carry, room.decays[2, 0], vv, kd, room.sums, room.kept[c + 1])


@jit
def _backward_chunk(r, k, v, w, u, b, h, start, count, fresh, grad_out, grad_u, state, room):  # type: ignore[no-untyped-def]
    """Gradients of a chunk into the buffers, from that of the state after it; then that of the state before it."""
    rr, kk, ww, before, after = room.keys[0], room.keys[1], room.keys[2], room.keys[3], room.keys[4]
    q, kd, gr, gk = room.keys[5], room.keys[6], room.keys[7], room.keys[8]
    gq, gkd, gw = room.keys[9], room.keys[10], room.keys[11]
    vv, oo, gv, vt, ot = room.values[0], room.values[1], room.values[2], room.values_flipped[0], room.values_flipped[1]
    weights, grad_weights, grad_state = room.weights[0], room.weights[1], room.state
    load_rows(r, b, h, start, count, rr)
    load_rows(k, b, h, start, count, kk)
    load_rows(v, b, h, start, count, vv)
    load_rows(grad_out, b, h, start, count, oo)
    _load_decays(w, b, h, start, count, room, fresh)
    through = room.decays[2, 0]
    scale(rr, before, q)
    scale(kk, after, kd)
    flip(kd, room.keys_flipped)
    flip(grad_state, room.state_flipped)
    product(room.keys_flipped, 0, room.state_flipped, gv)
    pairs(rr, kk, ww, u, room.keys_flipped, weights)
    add_upper(weights, oo, gv)
    flip(vv, vt)
    flip(oo, ot)
    product(ot, 0, vt, grad_weights)
    product(ot, 0, state, gq)
    product(vt, 0, grad_state, gkd)
    between(q, kd, gq, gkd, before, after, through, state, grad_state, gr, gk, gw)
    for j in range(0, rr.shape[1], LANES):
        pairs_forward(rr, kk, ww, u, grad_weights, gr, room.pairs, j)
        pairs_backward(rr, kk, ww, u, grad_weights, gk, gw, grad_u, room.pairs, room.pairs[CHUNK + 1], j)
    advance_columns(room.carry, through, oo, q, room.sums, grad_state)


@jit
def _store_decays(gw, b, h, start, count, grad_w):  # type: ignore[no-untyped-def]
    """Into grad_w (B,T,H,K), or summed over time into (B,1,H,K)."""
    if grad_w.shape[1] == 1:
        line = grad_w[b, 0, h]
        for t in range(count):
            for i in range(line.size):
                line[i] += gw[t, i]
    else:
        store_rows(gw, b, h, start, count, grad_w)


@jit
def _backward(  # type: ignore[no-untyped-def]
    r, k, v, w, u, state, grad_out, grad_last, grad_r, grad_k, grad_v, grad_w, grad_u, grad_state, room, counter, units
):
    word = flush_subnormals()
    time, heads = r.shape[1:3]
    chunks = room.kept.shape[0]
    unit = take(counter)
    while unit < units:
        b, h = unit // heads, unit % heads
        load_state(state[b, h].T, room.carry, room.kept[0])
        _keep_states(k, v, w, b, h, room)
        load_state(grad_last[b, h].T, room.carry, room.state)
        for c in range(math.ceil(time / CHUNK) - 1, -1, -1):
            start = c * CHUNK
            count = min(CHUNK, time - start)
            fresh = c >= chunks - 2  # the last may be short
            _backward_chunk(r, k, v, w, u[h], b, h, start, count, fresh, grad_out, grad_u[b, h], room.kept[c], room)
            store_rows(room.keys[7], b, h, start, count, grad_r)
            store_rows(room.keys[8], b, h, start, count, grad_k)
            store_rows(room.values[2], b, h, start, count, grad_v)
            _store_decays(room.keys[11], b, h, start, count, grad_w)
        copy(room.carry.T, grad_state[b, h])
        unit = take(counter)
    restore(word)


def forward(r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Every o_t (B,T,H,V) and the last state (B,H,K,V)."""
    if 0 in (*r.shape, *v.shape):
        return torch.zeros_like(v), state.clone()
    wide = [widen(x) for x in (r, k, v)]
    out, last = torch.empty_like(wide[2]), torch.empty_like(state)
    _run(_forward, None, *wide, _four_dimensional(log_decay), _padded(u, wide[0].dtype), state, out, last)
    return out.to(v.dtype), last


def backward(
    r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, u: Tensor, state: Tensor, grad_out: Tensor, grad_last: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of all six inputs, from those of both results."""
    batch, time, heads, size = r.shape
    if 0 in (*r.shape, *v.shape):
        grad_r, grad_k, grad_v, grad_w, grad_u = (torch.zeros_like(x) for x in (r, k, v, log_decay, u))
        return grad_r, grad_k, grad_v, grad_w, grad_u, grad_last.clone()
    wide = [widen(x) for x in (r, k, v)]
    bonus = _padded(u, wide[0].dtype)
    inputs = (*wide, _four_dimensional(log_decay), bonus, state, widen(grad_out), grad_last)
    grads = [torch.empty_like(x) for x in wide]
    fixed = log_decay.dim() == 2
    if fixed or time == 1:  # what `_store_decays` adds to
        grad_w = torch.zeros((batch, 1, heads, size), dtype=torch.float64 if fixed else wide[0].dtype)
    else:
        grad_w = torch.empty_like(wide[0])
    grad_u = torch.zeros((batch, *bonus.shape), dtype=torch.float64)
    grad_state = torch.empty_like(state)
    _run(_backward, max(1, math.ceil(time / CHUNK)), *inputs, *grads, grad_w, grad_u, grad_state)
    if fixed:
        grad_w = grad_w.sum((0, 1))
    grad_r, grad_k, grad_v = (grad.to(r.dtype) for grad in grads)
    grad_u = grad_u.sum(0)[:, :size].to(u.dtype).contiguous()
    return grad_r, grad_k, grad_v, grad_w.to(log_decay.dtype), grad_u, grad_state


def _four_dimensional(log_decay: Tensor) -> Tensor:
    """ln w as (B,T,H,K), or as (1,1,H,K) when it is fixed."""
    return widen(log_decay[None, None] if log_decay.dim() == 2 else log_decay)


def _padded(u: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.nn.functional.pad(u.to(dtype), (0, padded(u.shape[1]) - u.shape[1]))


def _run(kernel: Any, kept: int | None, *tensors: Tensor) -> None:
    """Share out the heads of all batch rows; each thread has its own room, in a backward pass for `kept` states."""
    batch, time, heads, size = tensors[0].shape
    values = tensors[2].shape[3]
    units, work = batch * heads, batch * heads * time * size * values
    threads = max(1, min(torch.get_num_threads() if work >= SERIAL else 1, units))
    part = partial(kernel, *(tensor.detach().numpy() for tensor in tensors))
    room = partial(_room, padded(size), padded(values), kept, tensors[0].dtype)
    counter = np.zeros(1, np.int64)
    together(lambda: part(room(), counter, units), threads)


def _room(keys: int, values: int, kept: int | None, dtype: torch.dtype) -> Room:
    state = (keys, values) if kept is None else (values, keys)
    shapes = Room(
        keys=(12, CHUNK, keys),
        values=(3, CHUNK, values),
        keys_flipped=(keys, CHUNK),
        values_flipped=(2, values, CHUNK),
        weights=(2, CHUNK, CHUNK),
        state=state,
        sums=(LANES, state[1]),
        state_flipped=(keys, values),
        kept=(kept or 1, values, keys),
        pairs=(CHUNK + 2, CHUNK, LANES),
        decays=(3, CHUNK, keys),
        carry=state,
    )
    types = [dtype] * (len(shapes) - 2) + [torch.float64] * 2
    return Room(*buffers(shapes, types))
