"""WKV on a CPU: compiled matrix products over chunks of time, threads over batch rows and heads.

Inside a chunk everything has the type of the inputs as they are stored (half types in float32); the
equations are below. The state and its gradient are carried from chunk to chunk in float64.

The backward pass keeps nothing of the forward pass but its inputs: it runs the state once more,
keeps it at the start of each chunk, and takes the chunks from the last to the first. There states
lie as (V,K), so that both of the products with them are products of rows. Each head of each batch
row is one sequential sum, so the result does not depend on the number of threads.

With D_t the product of the decays of the chunk before step t, E_t that after it and S the state
before the chunk

    o_t = (r_t D_t) S + sum_{i<=t} P_ti v_i,
    S' = (D_t w_t of the last step) S + sum_i (k_i E_i)^T v_i,

where P_ti = sum over keys of r_t k_i and the product of the decays between i and t, or u for i = t.

Letters: B batch, T time, H heads, K key size, V value size. For shapes see `plkernel.kernels.wkv`.
"""

import math
from collections import namedtuple
from typing import Any

import torch
from torch import Tensor

from plkernel.kernels import chunks, lanes
from plkernel.kernels.chunks import (
    CHUNK,
    copy,
    flip,
    inner,
    load_decays,
    load_rows,
    product,
    scale,
    store_rows,
)
from plkernel.kernels.compiled import jit
from plkernel.kernels.lanes import (
    LANES,
    add,
    load,
    multiply,
    multiply_add,
    spread_from,
    store,
    zeros,
)
from plkernel.kernels.operators import as_array, narrow, summed, widen, zeros_of

R_T, K_T, W_T, BEFORE, AFTER, Q, KD, GRAD_R, GRAD_K, GRAD_Q, GRAD_KD, GRAD_W = range(12)
"""Rows of the buffer `keys`: inputs and decays; the products of decays before a step and after it;
r_t D_t and k_t E_t; gradients.
"""
V_T, O_T, GRAD_V = range(3)
"""Rows of the buffer `values`: v, o or its gradient, and the gradient of v."""


def _shapes(keys: int, values: int, kept: int) -> dict[str, tuple[int, ...]]:
    """Buffers of one thread, padded to LANES; all but decays and carry in the inputs' type.

    Spare columns are zero where inputs are loaded, and never loaded. The state is (K,V) forward and
    (V,K) backward, where so many of them are kept.
    """
    keys, values = chunks.padded(keys), chunks.padded(values)
    state = (values, keys) if kept else (keys, values)
    return {
        "keys": (GRAD_W + 1, CHUNK, keys),
        "values": (GRAD_V + 1, CHUNK, values),
        "keys_flipped": (keys, CHUNK),
        "values_flipped": (2, values, CHUNK),
        "weights": (2, CHUNK, CHUNK),
        "state": state,
        "sums": (LANES, state[1]),
        "state_flipped": (keys, values),
        "kept": (kept or 1, values, keys),
        "pairs": (CHUNK + 2, CHUNK, LANES),
        "decays": (3, CHUNK, keys),
        "carry": state,
    }


Room: Any = namedtuple("Room", _shapes(0, 0, 0), module=__name__)  # type: ignore[misc]


@inner
def pairs(r, k, w, u, x, p):  # type: ignore[no-untyped-def]
    """P (CHUNK,CHUNK), steps t down and i on the lanes; above the diagonal are numbers without a
    meaning.

    x (K,CHUNK) holds the keys k_i, each with the decays since i.
    """
    keys = r.shape[1]
    flip(k, x)
    for t in range(CHUNK):
        at = t * keys
        even = zeros(p)
        odd = zeros(p)
        own = zeros(p)
        for n in range(0, keys, 2):
            here, next = load(x, n * LANES), load(x, (n + 1) * LANES)
            even = multiply_add(spread_from(r, at + n), here, even)
            odd = multiply_add(spread_from(r, at + n + 1), next, odd)
            store(x, n * LANES, lanes.multiply_below(here, t, spread_from(w, at + n)))
            store(x, (n + 1) * LANES, lanes.multiply_below(next, t, spread_from(w, at + n + 1)))
        for j in range(0, keys, LANES):
            own = multiply_add(load(r, at + j), multiply(load(k, at + j), load(u, j)), own)
        store(p, t * LANES, add(even, odd))
        p[t, t] = lanes.total(own)


@inner
def between(  # type: ignore[no-untyped-def]
    q, kd, grad_q, grad_kd, before, after, through, state, grad_state, grad_r, grad_k, grad_w
):
    """Gradients of r_t = q_t / D_t, k_t and ln w_t through the state (V,K) before the chunk and
    that after it.

    ln w_t is in every q after t, in every k E before t, and in the decay of the state through the
    chunk.
    """
    keys = q.shape[1]
    for j in range(0, keys, LANES):
        even, odd = zeros(q), zeros(q)
        for at in range(j, state.size, 2 * keys):
            even = multiply_add(load(state, at), load(grad_state, at), even)
            odd = multiply_add(load(state, at + keys), load(grad_state, at + keys), odd)
        later = multiply(add(even, odd), lanes.convert(load(through, j), q))
        for at in range(j + (CHUNK - 1) * keys, -1, -keys):
            store(grad_w, at, later)
            later = multiply_add(load(q, at), load(grad_q, at), later)
            store(grad_r, at, multiply(load(before, at), load(grad_q, at)))
        earlier = zeros(q)
        for at in range(j, CHUNK * keys, keys):
            store(grad_w, at, add(load(grad_w, at), earlier))
            earlier = multiply_add(load(kd, at), load(grad_kd, at), earlier)
            store(grad_k, at, multiply(load(after, at), load(grad_kd, at)))


@inner
def pairs_forward(r, k, w, u, grad_p, grad_r, decayed, j):  # type: ignore[no-untyped-def]
    """For the keys j to j + LANES: what `pairs` did, kept in `decayed`, and what P adds to the
    gradient of r.
    """
    keys = r.shape[1]
    bonus = load(u, j)
    for t in range(CHUNK):
        at, here = t * keys + j, t * CHUNK * LANES
        w_t, k_t = load(w, at), load(k, at)
        x = multiply_add(spread_from(grad_p, t * CHUNK + t), multiply(bonus, k_t), load(grad_r, at))
        for i in range(t):
            past = load(decayed, here + i * LANES)
            x = multiply_add(spread_from(grad_p, t * CHUNK + i), past, x)
            store(decayed, here + (CHUNK + i) * LANES, multiply(past, w_t))
        store(decayed, here + (CHUNK + t) * LANES, k_t)
        store(grad_r, at, x)


@inner
def pairs_backward(r, k, w, u, grad_p, grad_k, grad_w, grad_u, decayed, later, j):  # type: ignore[no-untyped-def]
    """And what it adds to those of k, ln w and u, back in time; `later` holds the gradient of what
    was `decayed`.
    """
    keys = r.shape[1]
    bonus, grad_bonus = load(u, j), zeros(r)
    for i in range(CHUNK):
        store(later, i * LANES, zeros(r))
    for t in range(CHUNK - 1, -1, -1):
        at, here = t * keys + j, t * CHUNK * LANES
        w_t = load(w, at)
        r_t = load(r, at)
        x = load(grad_w, at)
        for i in range(t):
            y = multiply(w_t, load(later, i * LANES))
            x = multiply_add(load(decayed, here + i * LANES), y, x)
            store(later, i * LANES, multiply_add(spread_from(grad_p, t * CHUNK + i), r_t, y))
        store(grad_w, at, x)
        own = multiply(spread_from(grad_p, t * CHUNK + t), r_t)
        grad_bonus = multiply_add(own, load(k, at), grad_bonus)
        store(grad_k, at, multiply_add(own, bonus, add(load(grad_k, at), load(later, t * LANES))))
    store(grad_u, j, add(load(grad_u, j), lanes.convert(grad_bonus, grad_u)))


@jit
def _load_decays(w, b, h, start, count, room, fresh):  # type: ignore[no-untyped-def]
    """Decays and their products; a fixed decay has the same in all chunks that are not `fresh`."""
    if fresh or w.shape[1] > 1:
        logs = room.decays[0]
        wide = room.decays[1]
        through = room.decays[2, 0]
        load_decays(
            w,
            b,
            h,
            start,
            count,
            logs,
            wide,
            room.keys[W_T],
            room.keys[BEFORE],
            room.keys[AFTER],
            through,
        )


@jit
def _load_chunk(r, k, v, w, b, h, start, count, room, fresh):  # type: ignore[no-untyped-def]
    """Inputs and decays of a chunk; reads of the state before it and writes into that after it."""
    reads = room.keys[R_T]
    keys = room.keys[K_T]
    load_rows(r, b, h, start, count, reads)
    load_rows(k, b, h, start, count, keys)
    load_rows(v, b, h, start, count, room.values[V_T])
    _load_decays(w, b, h, start, count, room, fresh)
    scale(reads, room.keys[BEFORE], room.keys[Q])
    scale(keys, room.keys[AFTER], room.keys[KD])


@jit
def _forward_chunk(r, k, v, w, u, b, h, start, count, out, room):  # type: ignore[no-untyped-def]
    rr = room.keys[R_T]
    kk = room.keys[K_T]
    ww = room.keys[W_T]
    q = room.keys[Q]
    kd = room.keys[KD]
    vv = room.values[V_T]
    oo = room.values[O_T]
    weights = room.weights[0]
    _load_chunk(r, k, v, w, b, h, start, count, room, start == 0 or count < CHUNK)
    flip(q, room.keys_flipped)
    product(room.keys_flipped, 0, room.state, oo)
    pairs(rr, kk, ww, u[h], room.keys_flipped, weights)
    chunks.add_lower(weights, vv, oo, 1)
    store_rows(oo, b, h, start, count, out)
    chunks.advance(room.carry, room.decays[2, 0], True, kd, vv, room.sums, room.state)


@jit
def _forward(r, k, v, w, u, state, out, last, room, counter, units):  # type: ignore[no-untyped-def]
    word = lanes.flush_subnormals()
    time, heads = r.shape[1:3]
    unit = lanes.take(counter)
    while unit < units:
        b, h = unit // heads, unit % heads
        chunks.load_state(state[b, h], room.carry, room.state)
        for start in range(0, time, CHUNK):
            _forward_chunk(r, k, v, w, u, b, h, start, min(CHUNK, time - start), out, room)
        copy(room.carry, last[b, h])
        unit = lanes.take(counter)
    lanes.restore(word)


@jit
def _keep_states(k, v, w, b, h, room):  # type: ignore[no-untyped-def]
    """The state (V,K) at the start of every chunk, from that of the first."""
    kk = room.keys[K_T]
    after = room.keys[AFTER]
    kd = room.keys[KD]
    vv = room.values[V_T]
    for c in range(room.kept.shape[0] - 1):
        load_rows(k, b, h, c * CHUNK, CHUNK, kk)
        load_rows(v, b, h, c * CHUNK, CHUNK, vv)
        _load_decays(w, b, h, c * CHUNK, CHUNK, room, c == 0)
        scale(kk, after, kd)
        chunks.advance(room.carry, room.decays[2, 0], False, vv, kd, room.sums, room.kept[c + 1])


@jit
def _backward_chunk(r, k, v, w, u, b, h, start, count, fresh, grad_out, grad_u, state, room):  # type: ignore[no-untyped-def]
    """Gradients of a chunk into the buffers, from that of the state after it; then that of the
    state before it.
    """
    rr = room.keys[R_T]
    kk = room.keys[K_T]
    ww = room.keys[W_T]
    before = room.keys[BEFORE]
    after = room.keys[AFTER]
    q = room.keys[Q]
    kd = room.keys[KD]
    gr = room.keys[GRAD_R]
    gk = room.keys[GRAD_K]
    gq = room.keys[GRAD_Q]
    gkd = room.keys[GRAD_KD]
    gw = room.keys[GRAD_W]
    vv = room.values[V_T]
    oo = room.values[O_T]
    gv = room.values[GRAD_V]
    vt = room.values_flipped[0]
    ot = room.values_flipped[1]
    weights = room.weights[0]
    grad_weights = room.weights[1]
    grad_state = room.state
    _load_chunk(r, k, v, w, b, h, start, count, room, fresh)
    load_rows(grad_out, b, h, start, count, oo)
    through = room.decays[2, 0]
    flip(kd, room.keys_flipped)
    flip(grad_state, room.state_flipped)
    product(room.keys_flipped, 0, room.state_flipped, gv)
    pairs(rr, kk, ww, u, room.keys_flipped, weights)
    chunks.add_upper(weights, oo, gv, 1)
    flip(vv, vt)
    flip(oo, ot)
    product(ot, 0, vt, grad_weights)
    product(ot, 0, state, gq)
    product(vt, 0, grad_state, gkd)
    between(q, kd, gq, gkd, before, after, through, state, grad_state, gr, gk, gw)
    for j in range(0, rr.shape[1], LANES):
        pairs_forward(rr, kk, ww, u, grad_weights, gr, room.pairs, j)
        pairs_backward(
            rr, kk, ww, u, grad_weights, gk, gw, grad_u, room.pairs, room.pairs[CHUNK + 1], j
        )
    chunks.advance(room.carry, through, False, oo, q, room.sums, grad_state)


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
    r,
    k,
    v,
    w,
    u,
    state,
    grad_out,
    grad_last,
    grad_r,
    grad_k,
    grad_v,
    grad_w,
    grad_u,
    grad_state,
    room,
    counter,
    units,
):
    word = lanes.flush_subnormals()
    time, heads = r.shape[1:3]
    unit = lanes.take(counter)
    while unit < units:
        b, h = unit // heads, unit % heads
        chunks.load_state(state[b, h].T, room.carry, room.kept[0])
        _keep_states(k, v, w, b, h, room)
        chunks.load_state(grad_last[b, h].T, room.carry, room.state)
        for c in range(math.ceil(time / CHUNK) - 1, -1, -1):
            start = c * CHUNK
            count = min(CHUNK, time - start)
            fresh = c >= room.kept.shape[0] - 2  # the last may be short
            _backward_chunk(
                r,
                k,
                v,
                w,
                u[h],
                b,
                h,
                start,
                count,
                fresh,
                grad_out,
                grad_u[b, h],
                room.kept[c],
                room,
            )
            store_rows(room.keys[GRAD_R], b, h, start, count, grad_r)
            store_rows(room.keys[GRAD_K], b, h, start, count, grad_k)
            store_rows(room.values[GRAD_V], b, h, start, count, grad_v)
            _store_decays(room.keys[GRAD_W], b, h, start, count, grad_w)
        copy(room.carry.T, grad_state[b, h])
        unit = lanes.take(counter)
    lanes.restore(word)


def forward(
    r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, u: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Every o_t (B,T,H,V) and the last state (B,H,K,V)."""
    inputs = _wide(r, k, v, log_decay, u)
    out, last = torch.empty_like(inputs[2]), torch.empty_like(state)
    sizes = (r.shape[3], v.shape[3], 0)
    chunks.share(_forward, Room, _shapes, sizes, state, *inputs, state, out, last)
    return narrow(out, v.dtype), last


def backward(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    u: Tensor,
    state: Tensor,
    grad_out: Tensor,
    grad_last: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of all six inputs, from those of both results."""
    batch, time, heads, size = r.shape
    inputs = _wide(r, k, v, log_decay, u)
    grads, grad_state = [torch.empty_like(x) for x in inputs[:3]], torch.empty_like(state)
    fixed = log_decay.dim() == 2
    if fixed or time == 1:  # what `_store_decays` adds to
        grad_w = zeros_of((batch, 1, heads, size), torch.float64 if fixed else inputs[0].dtype)
    else:
        grad_w = torch.empty_like(inputs[0])
    grad_u = zeros_of((batch, *inputs[4].shape), torch.float64)
    incoming = (widen(grad_out), grad_last)
    results = *grads, grad_w, grad_u, grad_state
    sizes = (size, v.shape[3], -(-time // CHUNK))
    chunks.share(_backward, Room, _shapes, sizes, state, *inputs, state, *incoming, *results)
    if fixed:
        grad_w = summed(grad_w.numpy()[:, 0], log_decay.dtype)
    grad_u = summed(grad_u.numpy()[..., :size], u.dtype)
    grad_r, grad_k, grad_v = [narrow(grad, r.dtype) for grad in grads]
    return grad_r, grad_k, grad_v, narrow(grad_w, log_decay.dtype), grad_u, grad_state


def _wide(r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, u: Tensor) -> list[Tensor]:
    """Inputs as the kernels take them: no half types, ln w as (B,T,H,K) or (1,1,H,K), and u
    padded.
    """
    if log_decay.dim() == 2:
        log_decay = log_decay[None, None]
    heads, size = u.shape
    wide = [widen(x) for x in (r, k, v, log_decay)]
    padded = zeros_of((heads, chunks.padded(size)), wide[0].dtype)
    padded.numpy()[:, :size] = as_array(widen(u))
    return [*wide, padded]
