"""What the steps of a chunk of WKV see of each other; `plkernel.kernels.chunks` has the buffers and what is left.

With D_t the product of the decays of the chunk before step t, E_t that after it and S the state before the chunk

    o_t = (r_t D_t) S + sum_{i<=t} P_ti v_i,   S' = (D_t w_t of the last step) S + sum_i (k_i E_i)^T v_i,

where P_ti = sum over keys of r_t k_i and the product of the decays between i and t, or u for i = t.
"""

from plkernel.kernels.chunks import CHUNK, flip, jit
from plkernel.kernels.lanes import (
    LANES,
    add,
    convert,
    load,
    multiply,
    multiply_add,
    multiply_below,
    spread_from,
    store,
    total,
    zeros,
)


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
