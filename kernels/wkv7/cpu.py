"""WKV-7 on a CPU: compiled matrix products over chunks of time, threads over batch rows and heads.

Inside a chunk everything has the type of the inputs as they are stored (half types in float32); `chunks.py` here has
the equations. The state and its gradient are carried from chunk to chunk in float64.

The backward pass keeps nothing of the forward pass but its inputs: it runs the state once more, keeps it at the start
of each chunk with what the steps read and see of each other, and takes the chunks from the last to the first. Nothing
runs backwards in time by division. Each head of each batch row is one sequential sum, so the result does not depend on
the number of threads.

Letters: B batch, T time, H heads, K key size, V value size. For shapes see `plkernel.kernels.wkv7`.
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
from plkernel.kernels.wkv7.chunks import add_after, add_before, between, pairs, pairs_backward, pairs_forward

SERIAL = 1 << 20  # entries of the state times steps below which handing work to a thread costs more than it saves


class Room(NamedTuple):
    """What one thread works in, K and V a multiple of LANES; all but the last three in the type of the inputs.

    Spare columns are zero where inputs are loaded, and never loaded. Rows of two steps times CHUNK are what multiplies
    the state, r before a, or is added to it, b before k.
    """

    keys: Any  # (13,CHUNK,K)
    reads: Any  # (2,2 CHUNK,K), and their gradients
    writes: Any  # (2,2 CHUNK,K)
    values: Any  # (3 CHUNK,V): o, u and v forward, their gradients backward
    given: Any  # (2 CHUNK,V): u and v, backward
    keys_flipped: Any  # (K,2 CHUNK)
    values_flipped: Any  # (2,V,2 CHUNK)
    flipped: Any  # (K,CHUNK)
    grad_weights: Any  # (2 CHUNK,2 CHUNK)
    state: Any  # (K,V)
    grad_state: Any  # (V,K)
    sums: Any  # (LANES,V)
    grad_sums: Any  # (LANES,K)
    decayed: Any  # (CHUNK + 2,CHUNK,LANES)
    weights: Any  # (chunks,4,CHUNK,CHUNK)
    read: Any  # (chunks,CHUNK,V)
    states: Any  # (chunks,V,K)
    decays: Any  # (3,CHUNK,K)
    carry: Any  # (K,V)
    grad_carry: Any  # (V,K)


@jit
def _load(r, w, k, a, b, n, h, start, count, room):  # type: ignore[no-untyped-def]
    """What does not depend on the state: inputs, decays, reads and writes."""
    rr, aa, kk, bb = room.keys[0], room.keys[1], room.keys[2], room.keys[3]
    ww, before, after, into = room.keys[4], room.keys[5], room.keys[6], room.keys[7]
    load_rows(r, n, h, start, count, rr)
    load_rows(a, n, h, start, count, aa)
    load_rows(k, n, h, start, count, kk)
    load_rows(b, n, h, start, count, bb)
    load_decays(w, n, h, start, count, room.decays[0], room.decays[1], ww, before, after, room.decays[2, 0])
    scale(ww, before, into)
    scale(rr, into, room.reads[0, :CHUNK])
    scale(aa, before, room.reads[0, CHUNK:])
    scale(bb, after, room.writes[0, :CHUNK])
    scale(kk, after, room.writes[0, CHUNK:])


@jit
def _read(weights, v, u, room):  # type: ignore[no-untyped-def]
    """What the steps see of each other into `weights`, and u from (a_t D_t) H."""
    rr, aa, kk, bb, ww = room.keys[0], room.keys[1], room.keys[2], room.keys[3], room.keys[4]
    pairs(rr, aa, kk, ww, room.flipped, weights[0], weights[1])
    pairs(rr, aa, bb, ww, room.flipped, weights[2], weights[3])
    add_before(weights[1], v, u)
    add_before(weights[3], u, u)


@jit
def _forward(r, w, k, v, a, b, state, out, last, room, counter, units):  # type: ignore[no-untyped-def]
    word = flush_subnormals()
    time, heads = r.shape[1:3]
    weights, oo, uu, vv = room.weights[0], room.values[:CHUNK], room.values[CHUNK : 2 * CHUNK], room.values[2 * CHUNK :]
    unit = take(counter)
    while unit < units:
        n, h = unit // heads, unit % heads
        load_state(state[n, h].T, room.carry, room.state)
        for start in range(0, time, CHUNK):
            count = min(CHUNK, time - start)
            _load(r, w, k, a, b, n, h, start, count, room)
            load_rows(v, n, h, start, count, vv)
            flip(room.reads[0], room.keys_flipped)
            product(room.keys_flipped, 0, room.state, room.values[: 2 * CHUNK])
            _read(weights, vv, uu, room)
            add_lower(weights[0], vv, oo)
            add_lower(weights[2], uu, oo)
            store_rows(oo, n, h, start, count, out)
            advance_rows(room.carry, room.decays[2, 0], room.writes[0], room.values[CHUNK:], room.sums, room.state)
        copy(room.carry, last[n, h].T)
        unit = take(counter)
    restore(word)


@jit
def _keep_states(r, w, k, v, a, b, n, h, room):  # type: ignore[no-untyped-def]
    """The state (V,K) at the start of every chunk from that of the first, and what its steps read and see."""
    time, uu, vv = r.shape[1], room.given[:CHUNK], room.given[CHUNK:]
    for c in range(math.ceil(time / CHUNK)):
        start = c * CHUNK
        count = min(CHUNK, time - start)
        _load(r, w, k, a, b, n, h, start, count, room)
        load_rows(v, n, h, start, count, vv)
        flip(room.reads[0], room.keys_flipped)
        product(room.keys_flipped, CHUNK, room.state, uu)
        _read(room.weights[c], vv, uu, room)
        copy(uu, room.read[c])
        flip(room.state, room.states[c])
        advance_rows(room.carry, room.decays[2, 0], room.writes[0], room.given, room.sums, room.state)


@jit
def _backward_chunk(state, read, weights, room):  # type: ignore[no-untyped-def]
    """Gradients of a chunk from that of o, in the first rows of values, and that of the state after it; then before."""
    rr, aa, kk, bb, ww = room.keys[0], room.keys[1], room.keys[2], room.keys[3], room.keys[4]
    before, after, into = room.keys[5], room.keys[6], room.keys[7]
    gr, ga, gk, gb, gw = room.keys[8], room.keys[9], room.keys[10], room.keys[11], room.keys[12]
    go, gu, gv = room.values[:CHUNK], room.values[CHUNK : 2 * CHUNK], room.values[2 * CHUNK :]
    through, grad_state, grad_weights = room.decays[2, 0], room.grad_state, room.grad_weights
    outer, inner = room.values_flipped[0], room.values_flipped[1]
    flip(room.writes[0], room.keys_flipped)
    flip(grad_state, room.state)
    product(room.keys_flipped, 0, room.state, room.values[CHUNK:])
    add_upper(weights[2], go, gu)
    add_after(weights[3], gu, gu)
    add_upper(weights[0], go, gv)
    add_after(weights[1], gu, gv)
    copy(read, room.given[:CHUNK])
    flip(room.values[: 2 * CHUNK], outer)
    flip(room.given, inner)
    product(outer, 0, inner, grad_weights)
    product(outer, 0, state, room.reads[1])
    product(inner, 0, grad_state, room.writes[1])
    between(
        room.reads[0], room.writes[0], room.reads[1], room.writes[1], into, before, after, through, state, grad_state,
        gr, ga, gk, gb, gw,
    )  # fmt: skip
    for j in range(0, rr.shape[1], LANES):
        later = room.decayed[CHUNK + 1]
        pairs_forward(bb, ww, grad_weights, 0, gr, ga, room.decayed, j)
        pairs_backward(rr, aa, ww, grad_weights, 0, gb, gw, room.decayed, later, j)
        pairs_forward(kk, ww, grad_weights, CHUNK, gr, ga, room.decayed, j)
        pairs_backward(rr, aa, ww, grad_weights, CHUNK, gk, gw, room.decayed, later, j)
    advance_columns(room.grad_carry, through, room.values[: 2 * CHUNK], room.reads[0], room.grad_sums, grad_state)


@jit
def _backward(  # type: ignore[no-untyped-def]
    r, w, k, v, a, b, state, grad_out, grad_last, grad_r, grad_w, grad_k, grad_v, grad_a, grad_b, grad_state,
    room, counter, units,
):  # fmt: skip
    word = flush_subnormals()
    time, heads = r.shape[1:3]
    unit = take(counter)
    while unit < units:
        n, h = unit // heads, unit % heads
        load_state(state[n, h].T, room.carry, room.state)
        _keep_states(r, w, k, v, a, b, n, h, room)
        load_state(grad_last[n, h], room.grad_carry, room.grad_state)
        for c in range(math.ceil(time / CHUNK) - 1, -1, -1):
            start = c * CHUNK
            count = min(CHUNK, time - start)
            _load(r, w, k, a, b, n, h, start, count, room)
            load_rows(v, n, h, start, count, room.given[CHUNK:])
            load_rows(grad_out, n, h, start, count, room.values[:CHUNK])
            _backward_chunk(room.states[c], room.read[c], room.weights[c], room)
            store_rows(room.keys[8], n, h, start, count, grad_r)
            store_rows(room.keys[9], n, h, start, count, grad_a)
            store_rows(room.keys[10], n, h, start, count, grad_k)
            store_rows(room.keys[11], n, h, start, count, grad_b)
            store_rows(room.keys[12], n, h, start, count, grad_w)
            store_rows(room.values[2 * CHUNK :], n, h, start, count, grad_v)
        copy(room.grad_carry, grad_state[n, h])
        unit = take(counter)
    restore(word)


def forward(
    r: Tensor, log_decay: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Every o_t (B,T,H,V) and the last state (B,H,V,K)."""
    if 0 in (*r.shape, *v.shape):
        return torch.zeros_like(v), state.clone()
    wide = [widen(x) for x in (r, log_decay, k, v, a, b)]
    out, last = torch.empty_like(wide[3]), torch.empty_like(state)
    _run(_forward, 1, *wide, state, out, last)
    return out.to(v.dtype), last


def backward(
    r: Tensor, log_decay: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor,
    grad_out: Tensor, grad_last: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of all seven inputs, from those of both results."""
    inputs = r, log_decay, k, v, a, b
    if 0 in (*r.shape, *v.shape):
        return *(torch.zeros_like(x) for x in inputs), grad_last.clone()
    wide = [widen(x) for x in inputs]
    grads = [torch.empty_like(x) for x in (*wide, state)]
    _run(_backward, math.ceil(r.shape[1] / CHUNK), *wide, state, widen(grad_out), grad_last, *grads)
    return *(grad.to(x.dtype) for grad, x in zip(grads, inputs, strict=False)), grads[-1]


def _run(kernel: Any, chunks: int, *tensors: Tensor) -> None:
    """Share out the heads of all batch rows; each thread has its own room, in a backward pass for all `chunks`."""
    batch, time, heads, size = tensors[0].shape
    values = tensors[3].shape[3]
    units, work = batch * heads, batch * heads * time * size * values
    threads = max(1, min(torch.get_num_threads() if work >= SERIAL else 1, units))
    part = partial(kernel, *(tensor.detach().numpy() for tensor in tensors))
    room = partial(_room, padded(size), padded(values), chunks, tensors[0].dtype)
    counter = np.zeros(1, np.int64)
    together(lambda: part(room(), counter, units), threads)


def _room(keys: int, values: int, chunks: int, dtype: torch.dtype) -> Room:
    shapes = Room(
        keys=(13, CHUNK, keys),
        reads=(2, 2 * CHUNK, keys),
        writes=(2, 2 * CHUNK, keys),
        values=(3 * CHUNK, values),
        given=(2 * CHUNK, values),
        keys_flipped=(keys, 2 * CHUNK),
        values_flipped=(2, values, 2 * CHUNK),
        flipped=(keys, CHUNK),
        grad_weights=(2 * CHUNK, 2 * CHUNK),
        state=(keys, values),
        grad_state=(values, keys),
        sums=(LANES, values),
        grad_sums=(LANES, keys),
        decayed=(CHUNK + 2, CHUNK, LANES),
        weights=(chunks, 4, CHUNK, CHUNK),
        read=(chunks, CHUNK, values),
        states=(chunks, values, keys),
        decays=(3, CHUNK, keys),
        carry=(keys, values),
        grad_carry=(values, keys),
    )
    types = [dtype] * (len(shapes) - 3) + [torch.float64] * 3
    return Room(*buffers(shapes, types))
