"""WKV within a chunk of CHUNK steps, in buffers: rows (CHUNK,K) and (CHUNK,V), both a multiple of LANES wide.

With D_t the product of the decays of the chunk before step t, E_t that after it and S the state before the chunk

    o_t = (r_t D_t) S + sum_{i<=t} P_ti v_i,   S' = (D_t w_t of the last step) S + sum_i (k_i E_i)^T v_i,

where P_ti = sum over keys of r_t k_i and the product of the decays between i and t, or u for i = t. Decays are only
ever multiplied: none is divided by, so that none is too strong, and no sum is subtracted from another.

Steps past the end of a sequence have w = 1 and zeros; so have spare columns.
"""

from typing import Any

import numba

from plkernel.kernels.wkv.lanes import (
    LANES,
    add,
    convert,
    exponential,
    load,
    multiply,
    multiply_add,
    multiply_below,
    spread,
    spread_from,
    store,
    tile,
    tile_rows,
    total,
    transpose,
    wide_tile,
    wide_tile_rows,
    zeros,
)

_OPTIONS: Any = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
jit = numba.njit(**_OPTIONS)  # for calls from compiled code alone, whose cache has them
CHUNK = LANES  # the steps of a chunk lie on the lanes of P


@jit
def load_rows(x, b, h, start, count, rows):  # type: ignore[no-untyped-def]
    """Steps of x (B,T,H,K) into rows (CHUNK,K), zero past `count`."""
    for t in range(count):
        line, row = x[b, start + t, h], rows[t]
        for i in range(line.size):
            row[i] = line[i]
    rows[count:] = 0.0


@jit
def store_rows(rows, b, h, start, count, x):  # type: ignore[no-untyped-def]
    for t in range(count):
        line, row = x[b, start + t, h], rows[t]
        for i in range(line.size):
            line[i] = row[i]


@jit
def load_decays(x, b, h, start, count, logs, wide, w, before, after, through):  # type: ignore[no-untyped-def]
    """From ln w in x (B,T,H,K), or in x (1,1,H,K) for a fixed decay: w, D and E (CHUNK,K), and `through` (K), all of D.

    Products are taken in float64, in `wide` (CHUNK,K): rounded to float32 a weak decay would be off by 1e-4 after some
    thousand steps.
    """
    if x.shape[1] == 1:
        for t in range(count):
            load_rows(x, b % x.shape[0], h, 0, 1, logs[t : t + 1])
        logs[count:] = 0.0
    else:
        load_rows(x, b, h, start, count, logs)
    keys = w.shape[1]
    for j in range(0, keys, LANES):
        product = spread(1.0)
        for at in range(j, CHUNK * keys, keys):
            x_t = exponential(load(logs, at))
            store(wide, at, x_t)
            store(w, at, x_t)
            store(before, at, product)
            product = multiply(product, x_t)
        store(through, j, product)
        product = spread(1.0)
        for at in range(j + (CHUNK - 1) * keys, -1, -keys):
            store(after, at, product)
            product = multiply(product, load(wide, at))


@jit
def scale(x, factors, y):  # type: ignore[no-untyped-def]
    """y = x factors"""
    for at in range(0, x.size, LANES):
        store(y, at, multiply(load(x, at), load(factors, at)))


@jit
def flip(x, y):  # type: ignore[no-untyped-def]
    """y = x^T"""
    for i in range(0, x.shape[0], LANES):
        for j in range(0, x.shape[1], LANES):
            transpose(x, i * x.shape[1] + j, x.shape[1], y, j * y.shape[1] + i, y.shape[1])


@jit
def product(a, start, b, c):  # type: ignore[no-untyped-def]
    """c (N,M) = a^T b of N columns of a from `start` on and b (steps,M)."""
    width, steps = c.shape[1], b.shape[0]
    for i in range(0, c.shape[0], LANES):
        for j in range(0, width - LANES, 2 * LANES):
            for n in range(i, i + LANES, wide_tile_rows(c)):
                wide_tile(c, n * width + j, width, a, start + n, a.shape[1], b, j, width, steps)
        if width % (2 * LANES):
            j = width - LANES
            for n in range(i, i + LANES, tile_rows(c)):
                tile(c, n * width + j, width, a, start + n, a.shape[1], b, j, width, steps)


@jit
def add_lower(p, v, o):  # type: ignore[no-untyped-def]
    """o_t += sum_{i<=t} P_ti v_i; what comes later is not even multiplied by zero, for it may be NaN."""
    width = v.shape[1]
    for j in range(0, width, LANES):
        for t in range(CHUNK):
            x = load(o, t * width + j)
            for i in range(t + 1):
                x = multiply_add(spread_from(p, t * CHUNK + i), load(v, i * width + j), x)
            store(o, t * width + j, x)


@jit
def add_upper(p, x, y):  # type: ignore[no-untyped-def]
    """y_i += sum_{t>=i} P_ti x_t"""
    width = x.shape[1]
    for j in range(0, width, LANES):
        for i in range(CHUNK):
            z = load(y, i * width + j)
            for t in range(i, CHUNK):
                z = multiply_add(spread_from(p, t * CHUNK + i), load(x, t * width + j), z)
            store(y, i * width + j, z)


@jit
def pairs(r, k, w, u, x, p):  # type: ignore[no-untyped-def]
    """P (CHUNK,CHUNK), steps t down and i on the lanes; above the diagonal are numbers without a meaning.

    x (K,CHUNK) holds the keys k_i, each with the decays since i.
    """
    keys = r.shape[1]
    flip(k, x)
    for t in range(CHUNK):
        at, even, odd, own = t * keys, zeros(p), zeros(p), zeros(p)
        for n in range(0, keys, 2):
            here, next = load(x, n * LANES), load(x, (n + 1) * LANES)
            even = multiply_add(spread_from(r, at + n), here, even)
            odd = multiply_add(spread_from(r, at + n + 1), next, odd)
            store(x, n * LANES, multiply_below(here, t, spread_from(w, at + n)))
            store(x, (n + 1) * LANES, multiply_below(next, t, spread_from(w, at + n + 1)))
        for j in range(0, keys, LANES):
            own = multiply_add(load(r, at + j), multiply(load(k, at + j), load(u, j)), own)
        store(p, t * LANES, add(even, odd))
        p[t, t] = total(own)


@jit
def advance_rows(state, through, kd, v, sums, rounded):  # type: ignore[no-untyped-def]
    """state (K,V) = diag(through) state + kd^T v in float64, and a copy in the type of `rounded`."""
    width = state.shape[1]
    for start in range(0, state.shape[0], LANES):
        product(kd, start, v, sums)
        for i in range(LANES):
            decay = spread_from(through, start + i)
            for j in range(0, width, LANES):
                at = (start + i) * width + j
                x = multiply_add(decay, load(state, at), convert(load(sums, i * width + j), state))
                store(state, at, x)
                store(rounded, at, x)


@jit
def advance_columns(state, through, v, kd, sums, rounded):  # type: ignore[no-untyped-def]
    """The same for a state (V,K)."""
    width = state.shape[1]
    for start in range(0, state.shape[0], LANES):
        product(v, start, kd, sums)
        for i in range(LANES):
            for j in range(0, width, LANES):
                at = (start + i) * width + j
                x = multiply_add(load(through, j), load(state, at), convert(load(sums, i * width + j), state))
                store(state, at, x)
                store(rounded, at, x)


@jit
def between(q, kd, grad_q, grad_kd, before, after, through, state, grad_state, grad_r, grad_k, grad_w):  # type: ignore[no-untyped-def]
    """Gradients of r_t = q_t / D_t, k_t and ln w_t through the state (V,K) before the chunk and that after it.

    ln w_t is in every q after t, in every k E before t, and in the decay of the state through the chunk.
    """
    keys = q.shape[1]
    for j in range(0, keys, LANES):
        even, odd = zeros(q), zeros(q)
        for at in range(j, state.size, 2 * keys):
            even = multiply_add(load(state, at), load(grad_state, at), even)
            odd = multiply_add(load(state, at + keys), load(grad_state, at + keys), odd)
        later = multiply(add(even, odd), convert(load(through, j), q))
        for at in range(j + (CHUNK - 1) * keys, -1, -keys):
            store(grad_w, at, later)
            later = multiply_add(load(q, at), load(grad_q, at), later)
            store(grad_r, at, multiply(load(before, at), load(grad_q, at)))
        earlier = zeros(q)
        for at in range(j, CHUNK * keys, keys):
            store(grad_w, at, add(load(grad_w, at), earlier))
            earlier = multiply_add(load(kd, at), load(grad_kd, at), earlier)
            store(grad_k, at, multiply(load(after, at), load(grad_kd, at)))


@jit
def pairs_forward(r, k, w, u, grad_p, grad_r, decayed, j):  # type: ignore[no-untyped-def]
    """For the keys j to j + LANES: what `pairs` did, kept in `decayed`, and what P adds to the gradient of r."""
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


@jit
def pairs_backward(r, k, w, u, grad_p, grad_k, grad_w, grad_u, decayed, later, j):  # type: ignore[no-untyped-def]
    """And what it adds to those of k, ln w and u, back in time; `later` holds the gradient of what was `decayed`."""
    keys = r.shape[1]
    bonus, grad_bonus = load(u, j), zeros(r)
    for i in range(CHUNK):
        store(later, i * LANES, zeros(r))
    for t in range(CHUNK - 1, -1, -1):
        at, here = t * keys + j, t * CHUNK * LANES
        w_t, r_t, x = load(w, at), load(r, at), load(grad_w, at)
        for i in range(t):
            y = multiply(w_t, load(later, i * LANES))
            x = multiply_add(load(decayed, here + i * LANES), y, x)
            store(later, i * LANES, multiply_add(spread_from(grad_p, t * CHUNK + i), r_t, y))
        store(grad_w, at, x)
        own = multiply(spread_from(grad_p, t * CHUNK + t), r_t)
        grad_bonus = multiply_add(own, load(k, at), grad_bonus)
        store(grad_k, at, multiply_add(own, bonus, add(load(grad_k, at), load(later, t * LANES))))
    store(grad_u, j, add(load(grad_u, j), convert(grad_bonus, grad_u)))
