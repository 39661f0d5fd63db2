"""WKV-7 on a CPU: compiled matrix products over chunks of time, threads over batch rows and heads.

Inside a chunk everything has the type of the inputs as they are stored (half types in float32); the
equations are below. The state and its gradient are carried from chunk to chunk in float64.

The backward pass keeps nothing of the forward pass but its inputs: it runs the state once more,
keeps it at the start of each chunk with what the steps read and see of each other, and takes the
chunks from the last to the first. Nothing runs backwards in time by division. Each head of each
batch row is one sequential sum, so the result does not depend on the number of threads.

With D_t the product of the decays of the chunk before step t, E_t that after it, H the transposed
state (K,V) before the chunk and u_t = S_{t-1} a_t what step t reads and adds again along b_t

    u_t = (a_t D_t) H + sum_{i<t} A_ti v_i + B_ti u_i,
    o_t = (r_t D_t w_t) H + sum_{i<=t} Q_ti v_i + R_ti u_i,
    H'  = diag(D_t w_t of the last step) H + sum_i (k_i E_i)^T v_i + (b_i E_i)^T u_i,

where A and B are sums over keys of a_t, the product of the decays after i and before t, and k_i or
b_i; Q and R the same with r_t and the decay of step t too. The u_t follow one from another: nothing
is inverted.

Source: arXiv 2406.06484 for such chunks; here every product of decays is taken by itself.

Letters: B batch, T time, H heads, K key size, V value size. For shapes see `plkernel.kernels.wkv7`.
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
from plkernel.kernels.operators import narrow, widen

R_T, A_T, K_T, B_T, W_T, BEFORE, AFTER, INTO, GRAD_R, GRAD_A, GRAD_K, GRAD_B, GRAD_W = range(13)
"""Rows of the buffer `keys`: inputs and decays; the products of decays before a step, after it, and
up to it with its own; gradients.
"""


def _shapes(keys: int, values: int, kept: int) -> dict[str, tuple[int, ...]]:
    """Buffers of one thread, padded to LANES; all but decays and carries in the inputs' type.

    Spare columns are zero where inputs are loaded, and never loaded. Rows of two steps times CHUNK
    are what multiplies the state, r before a, or is added to it, b before k. So many states and
    pairs are kept in a backward pass.
    """
    keys, values = chunks.padded(keys), chunks.padded(values)
    return {
        "keys": (GRAD_W + 1, CHUNK, keys),
        "reads": (2, 2 * CHUNK, keys),  # and their gradients
        "writes": (2, 2 * CHUNK, keys),
        "values": (3 * CHUNK, values),  # o, u and v forward, their gradients backward
        "given": (2 * CHUNK, values),  # u and v, backward
        "keys_flipped": (keys, 2 * CHUNK),
        "values_flipped": (2, values, 2 * CHUNK),
        "flipped": (keys, CHUNK),
        "grad_weights": (2 * CHUNK, 2 * CHUNK),
        "state": (keys, values),
        "grad_state": (values, keys),
        "sums": (LANES, values),
        "grad_sums": (LANES, keys),
        "decayed": (CHUNK + 2, CHUNK, LANES),
        "weights": (kept, 4, CHUNK, CHUNK),
        "read": (kept, CHUNK, values),
        "states": (kept, values, keys),
        "decays": (3, CHUNK, keys),
        "carry": (keys, values),
        "grad_carry": (values, keys),
    }


Room: Any = namedtuple("Room", _shapes(0, 0, 0), module=__name__)  # type: ignore[misc]


@inner
def pairs(r, a, y, w, x, p_r, p_a):  # type: ignore[no-untyped-def]
    """Of y = k: Q and A; of y = b: R and B; (CHUNK,CHUNK), steps t down and i on the lanes.

    Above the diagonal, of A and B also on it, are numbers without a meaning. x (K,CHUNK) holds y_i,
    each with the decays since i.
    """
    keys = r.shape[1]
    flip(y, x)
    for t in range(CHUNK):
        at = t * keys
        r_even, r_odd, a_even, a_odd = zeros(p_r), zeros(p_r), zeros(p_r), zeros(p_r)
        for n in range(0, keys, 2):
            here, next = load(x, n * LANES), load(x, (n + 1) * LANES)
            a_even = multiply_add(spread_from(a, at + n), here, a_even)
            a_odd = multiply_add(spread_from(a, at + n + 1), next, a_odd)
            here = lanes.multiply_below(here, t, spread_from(w, at + n))
            next = lanes.multiply_below(next, t, spread_from(w, at + n + 1))
            r_even = multiply_add(spread_from(r, at + n), here, r_even)
            r_odd = multiply_add(spread_from(r, at + n + 1), next, r_odd)
            store(x, n * LANES, here)
            store(x, (n + 1) * LANES, next)
        store(p_r, t * LANES, add(r_even, r_odd))
        store(p_a, t * LANES, add(a_even, a_odd))


@inner
def between(  # type: ignore[no-untyped-def]
    reads,
    writes,
    grad_reads,
    grad_writes,
    into,
    before,
    after,
    through,
    state,
    grad_state,
    grad_r,
    grad_a,
    grad_k,
    grad_b,
    grad_w,
):
    """Gradients of r, a, k, b and ln w through the state (V,K) before the chunk and that after it.

    `reads` (2 CHUNK,K) are r_t D_t w_t and a_t D_t, `writes` b_i E_i and k_i E_i. ln w_t is in the
    first from t on, in the second after t, in the writes before t, and in the decay of the state
    through the chunk.
    """
    keys = into.shape[1]
    half = CHUNK * keys
    for j in range(0, keys, LANES):
        even, odd = zeros(reads), zeros(reads)
        for at in range(j, state.size, 2 * keys):
            even = multiply_add(load(state, at), load(grad_state, at), even)
            odd = multiply_add(load(state, at + keys), load(grad_state, at + keys), odd)
        later = multiply(add(even, odd), lanes.convert(load(through, j), reads))
        for at in range(j + (CHUNK - 1) * keys, -1, -keys):
            grad_q, grad_p = load(grad_reads, at), load(grad_reads, half + at)
            later = multiply_add(load(reads, at), grad_q, later)
            store(grad_w, at, later)
            later = multiply_add(load(reads, half + at), grad_p, later)
            store(grad_r, at, multiply(load(into, at), grad_q))
            store(grad_a, at, multiply(load(before, at), grad_p))
        earlier = zeros(reads)
        for at in range(j, half, keys):
            grad_d, grad_c = load(grad_writes, at), load(grad_writes, half + at)
            store(grad_w, at, add(load(grad_w, at), earlier))
            earlier = multiply_add(load(writes, at), grad_d, earlier)
            earlier = multiply_add(load(writes, half + at), grad_c, earlier)
            store(grad_b, at, multiply(load(after, at), grad_d))
            store(grad_k, at, multiply(load(after, at), grad_c))


@inner
def pairs_forward(y, w, grad_p, column, grad_r, grad_a, decayed, j):  # type: ignore[no-untyped-def]
    """For the keys j to j + LANES: what `pairs` did, kept in `decayed`, and what it adds to the
    gradients of r and a.

    grad_p (2 CHUNK,2 CHUNK) has the gradients of R and Q, and below of B and A; those by y begin at
    `column`.
    """
    keys, width = w.shape[1], 2 * CHUNK
    for t in range(CHUNK):
        at = t * keys + j
        here = t * CHUNK * LANES
        of_r = t * width + column
        of_a = (CHUNK + t) * width + column
        w_t = load(w, at)
        y_t = load(y, at)
        to_r = load(grad_r, at)
        to_a = load(grad_a, at)
        for i in range(t):
            past = load(decayed, here + i * LANES)
            to_a = multiply_add(spread_from(grad_p, of_a + i), past, to_a)
            past = multiply(past, w_t)
            to_r = multiply_add(spread_from(grad_p, of_r + i), past, to_r)
            store(decayed, here + (CHUNK + i) * LANES, past)
        store(decayed, here + (CHUNK + t) * LANES, y_t)
        store(grad_r, at, multiply_add(spread_from(grad_p, of_r + t), y_t, to_r))
        store(grad_a, at, to_a)


@inner
def pairs_backward(r, a, w, grad_p, column, grad_y, grad_w, decayed, later, j):  # type: ignore[no-untyped-def]
    """And what it adds to those of y and ln w, back in time; `later` holds the gradient of what was
    `decayed`.
    """
    keys, width = w.shape[1], 2 * CHUNK
    for i in range(CHUNK):
        store(later, i * LANES, zeros(r))
    for t in range(CHUNK - 1, -1, -1):
        at = t * keys + j
        here = t * CHUNK * LANES
        of_r = t * width + column
        of_a = (CHUNK + t) * width + column
        w_t = load(w, at)
        r_t = load(r, at)
        a_t = load(a, at)
        to_w = load(grad_w, at)
        for i in range(t):
            x = multiply_add(spread_from(grad_p, of_r + i), r_t, load(later, i * LANES))
            to_w = multiply_add(load(decayed, here + (CHUNK + i) * LANES), x, to_w)
            store(
                later, i * LANES, multiply_add(spread_from(grad_p, of_a + i), a_t, multiply(w_t, x))
            )
        store(grad_w, at, to_w)
        own = multiply_add(spread_from(grad_p, of_r + t), r_t, load(later, t * LANES))
        store(grad_y, at, add(load(grad_y, at), own))


@jit
def _load(r, w, k, a, b, n, h, start, count, room):  # type: ignore[no-untyped-def]
    """Load everything that does not depend on the state: inputs, decays, reads and writes."""
    rr = room.keys[R_T]
    aa = room.keys[A_T]
    kk = room.keys[K_T]
    bb = room.keys[B_T]
    ww = room.keys[W_T]
    before = room.keys[BEFORE]
    after = room.keys[AFTER]
    into = room.keys[INTO]
    load_rows(r, n, h, start, count, rr)
    load_rows(a, n, h, start, count, aa)
    load_rows(k, n, h, start, count, kk)
    load_rows(b, n, h, start, count, bb)
    load_decays(
        w, n, h, start, count, room.decays[0], room.decays[1], ww, before, after, room.decays[2, 0]
    )
    scale(ww, before, into)
    scale(rr, into, room.reads[0, :CHUNK])
    scale(aa, before, room.reads[0, CHUNK:])
    scale(bb, after, room.writes[0, :CHUNK])
    scale(kk, after, room.writes[0, CHUNK:])


@jit
def _read(weights, v, u, room):  # type: ignore[no-untyped-def]
    """Write the weights of the steps for one another into `weights`, and u from (a_t D_t) H."""
    rr = room.keys[R_T]
    aa = room.keys[A_T]
    kk = room.keys[K_T]
    bb = room.keys[B_T]
    ww = room.keys[W_T]
    pairs(rr, aa, kk, ww, room.flipped, weights[0], weights[1])
    pairs(rr, aa, bb, ww, room.flipped, weights[2], weights[3])
    chunks.add_lower(weights[1], v, u, 0)
    chunks.add_lower(weights[3], u, u, 0)


@jit
def _forward(r, w, k, v, a, b, state, out, last, room, counter, units):  # type: ignore[no-untyped-def]
    word = lanes.flush_subnormals()
    time, heads = r.shape[1:3]
    through = room.decays[2, 0]
    weights = room.weights[0]
    oo = room.values[:CHUNK]
    uu = room.values[CHUNK : 2 * CHUNK]
    vv = room.values[2 * CHUNK :]
    unit = lanes.take(counter)
    while unit < units:
        n, h = unit // heads, unit % heads
        chunks.load_state(state[n, h].T, room.carry, room.state)
        for start in range(0, time, CHUNK):
            count = min(CHUNK, time - start)
            _load(r, w, k, a, b, n, h, start, count, room)
            load_rows(v, n, h, start, count, vv)
            flip(room.reads[0], room.keys_flipped)
            product(room.keys_flipped, 0, room.state, room.values[: 2 * CHUNK])
            _read(weights, vv, uu, room)
            chunks.add_lower(weights[0], vv, oo, 1)
            chunks.add_lower(weights[2], uu, oo, 1)
            store_rows(oo, n, h, start, count, out)
            chunks.advance(
                room.carry,
                through,
                True,
                room.writes[0],
                room.values[CHUNK:],
                room.sums,
                room.state,
            )
        copy(room.carry, last[n, h].T)
        unit = lanes.take(counter)
    lanes.restore(word)


@jit
def _keep_states(r, w, k, v, a, b, n, h, room):  # type: ignore[no-untyped-def]
    """The state (V,K) at the start of every chunk from that of the first, and what its steps read
    and see.
    """
    time = r.shape[1]
    uu = room.given[:CHUNK]
    vv = room.given[CHUNK:]
    through = room.decays[2, 0]
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
        chunks.advance(room.carry, through, True, room.writes[0], room.given, room.sums, room.state)


@jit
def _backward_chunk(state, read, weights, room):  # type: ignore[no-untyped-def]
    """Gradients of a chunk from that of o, in the first rows of values, and that of the state after
    it; then before.
    """
    rr = room.keys[R_T]
    aa = room.keys[A_T]
    kk = room.keys[K_T]
    bb = room.keys[B_T]
    ww = room.keys[W_T]
    before = room.keys[BEFORE]
    after = room.keys[AFTER]
    into = room.keys[INTO]
    gr = room.keys[GRAD_R]
    ga = room.keys[GRAD_A]
    gk = room.keys[GRAD_K]
    gb = room.keys[GRAD_B]
    gw = room.keys[GRAD_W]
    go = room.values[:CHUNK]
    gu = room.values[CHUNK : 2 * CHUNK]
    gv = room.values[2 * CHUNK :]
    through = room.decays[2, 0]
    grad_state = room.grad_state
    grad_weights = room.grad_weights
    outer = room.values_flipped[0]
    inner = room.values_flipped[1]
    flip(room.writes[0], room.keys_flipped)
    flip(grad_state, room.state)
    product(room.keys_flipped, 0, room.state, room.values[CHUNK:])
    chunks.add_upper(weights[2], go, gu, 1)
    chunks.add_upper(weights[3], gu, gu, 0)
    chunks.add_upper(weights[0], go, gv, 1)
    chunks.add_upper(weights[1], gu, gv, 0)
    copy(read, room.given[:CHUNK])
    flip(room.values[: 2 * CHUNK], outer)
    flip(room.given, inner)
    product(outer, 0, inner, grad_weights)
    product(outer, 0, state, room.reads[1])
    product(inner, 0, grad_state, room.writes[1])
    between(
        room.reads[0],
        room.writes[0],
        room.reads[1],
        room.writes[1],
        into,
        before,
        after,
        through,
        state,
        grad_state,
        gr,
        ga,
        gk,
        gb,
        gw,
    )
    for j in range(0, rr.shape[1], LANES):
        later = room.decayed[CHUNK + 1]
        pairs_forward(bb, ww, grad_weights, 0, gr, ga, room.decayed, j)
        pairs_backward(rr, aa, ww, grad_weights, 0, gb, gw, room.decayed, later, j)
        pairs_forward(kk, ww, grad_weights, CHUNK, gr, ga, room.decayed, j)
        pairs_backward(rr, aa, ww, grad_weights, CHUNK, gk, gw, room.decayed, later, j)
    chunks.advance(
        room.grad_carry,
        through,
        False,
        room.values[: 2 * CHUNK],
        room.reads[0],
        room.grad_sums,
        grad_state,
    )


@jit
def _backward(  # type: ignore[no-untyped-def]
    r,
    w,
    k,
    v,
    a,
    b,
    state,
    grad_out,
    grad_last,
    grad_r,
    grad_w,
    grad_k,
    grad_v,
    grad_a,
    grad_b,
    grad_state,
    room,
    counter,
    units,
):
    word = lanes.flush_subnormals()
    time, heads = r.shape[1:3]
    unit = lanes.take(counter)
    while unit < units:
        n, h = unit // heads, unit % heads
        chunks.load_state(state[n, h].T, room.carry, room.state)
        _keep_states(r, w, k, v, a, b, n, h, room)
        chunks.load_state(grad_last[n, h], room.grad_carry, room.grad_state)
        for c in range(math.ceil(time / CHUNK) - 1, -1, -1):
            start = c * CHUNK
            count = min(CHUNK, time - start)
            _load(r, w, k, a, b, n, h, start, count, room)
            load_rows(v, n, h, start, count, room.given[CHUNK:])
            load_rows(grad_out, n, h, start, count, room.values[:CHUNK])
            _backward_chunk(room.states[c], room.read[c], room.weights[c], room)
            store_rows(room.keys[GRAD_R], n, h, start, count, grad_r)
            store_rows(room.keys[GRAD_A], n, h, start, count, grad_a)
            store_rows(room.keys[GRAD_K], n, h, start, count, grad_k)
            store_rows(room.keys[GRAD_B], n, h, start, count, grad_b)
            store_rows(room.keys[GRAD_W], n, h, start, count, grad_w)
            store_rows(room.values[2 * CHUNK :], n, h, start, count, grad_v)
        copy(room.grad_carry, grad_state[n, h])
        unit = lanes.take(counter)
    lanes.restore(word)


def forward(
    r: Tensor, log_decay: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Every o_t (B,T,H,V) and the last state (B,H,V,K)."""
    wide = [widen(x) for x in (r, log_decay, k, v, a, b)]
    out, last = torch.empty_like(wide[3]), torch.empty_like(state)
    sizes = (r.shape[3], v.shape[3], 1)
    chunks.share(_forward, Room, _shapes, sizes, state, *wide, state, out, last)
    return narrow(out, v.dtype), last


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
    inputs = r, log_decay, k, v, a, b
    wide = [widen(x) for x in inputs]
    grads = [torch.empty_like(x) for x in (*wide, state)]
    incoming = (widen(grad_out), grad_last)
    sizes = (r.shape[3], v.shape[3], -(-r.shape[1] // CHUNK))
    chunks.share(_backward, Room, _shapes, sizes, state, *wide, state, *incoming, *grads)
    *grads, grad_state = grads
    return *[narrow(grad, x.dtype) for grad, x in zip(grads, inputs, strict=True)], grad_state
