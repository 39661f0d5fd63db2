"""What the steps of a chunk of WKV-7 see of each other; `plkernel.kernels.chunks` has the buffers and what is left.

With D_t the product of the decays of the chunk before step t, E_t that after it, H the transposed state (K,V) before
the chunk and u_t = S_{t-1} a_t what step t reads and adds again along b_t

    u_t = (a_t D_t) H + sum_{i<t} A_ti v_i + B_ti u_i,   o_t = (r_t D_t w_t) H + sum_{i<=t} Q_ti v_i + R_ti u_i,
    H'  = diag(D_t w_t of the last step) H + sum_i (k_i E_i)^T v_i + (b_i E_i)^T u_i,

where A and B are sums over keys of a_t, the product of the decays after i and before t, and k_i or b_i; Q and R the
same with r_t and the decay of step t too. The u_t follow one from another: nothing is inverted.

Source: arXiv 2406.06484 for such chunks; here every product of decays is taken by itself.
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
    zeros,
)


@jit
def pairs(r, a, y, w, x, p_r, p_a):  # type: ignore[no-untyped-def]
    """Of y = k: Q and A; of y = b: R and B; (CHUNK,CHUNK), steps t down and i on the lanes.

    Above the diagonal, of A and B also on it, are numbers without a meaning. x (K,CHUNK) holds y_i, each with the
    decays since i.
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
            here = multiply_below(here, t, spread_from(w, at + n))
            next = multiply_below(next, t, spread_from(w, at + n + 1))
            r_even = multiply_add(spread_from(r, at + n), here, r_even)
            r_odd = multiply_add(spread_from(r, at + n + 1), next, r_odd)
            store(x, n * LANES, here)
            store(x, (n + 1) * LANES, next)
        store(p_r, t * LANES, add(r_even, r_odd))
        store(p_a, t * LANES, add(a_even, a_odd))


@jit
def add_before(p, x, y):  # type: ignore[no-untyped-def]
    """y_t += sum_{i<t} P_ti x_i, t ascending: with x = y the solution of y_t = (y_t before) + sum_{i<t} P_ti y_i."""
    width = x.shape[1]
    for j in range(0, width, LANES):
        for t in range(1, CHUNK):
            z = load(y, t * width + j)
            for i in range(t):
                z = multiply_add(spread_from(p, t * CHUNK + i), load(x, i * width + j), z)
            store(y, t * width + j, z)


@jit
def add_after(p, x, y):  # type: ignore[no-untyped-def]
    """y_i += sum_{t>i} P_ti x_t, i descending: the transpose of `add_before`."""
    width = x.shape[1]
    for j in range(0, width, LANES):
        for i in range(CHUNK - 2, -1, -1):
            z = load(y, i * width + j)
            for t in range(i + 1, CHUNK):
                z = multiply_add(spread_from(p, t * CHUNK + i), load(x, t * width + j), z)
            store(y, i * width + j, z)


@jit
def between(  # type: ignore[no-untyped-def]
    reads, writes, grad_reads, grad_writes, into, before, after, through, state, grad_state,
    grad_r, grad_a, grad_k, grad_b, grad_w,
):  # fmt: skip
    """Gradients of r, a, k, b and ln w through the state (V,K) before the chunk and that after it.

    `reads` (2 CHUNK,K) are r_t D_t w_t and a_t D_t, `writes` b_i E_i and k_i E_i. ln w_t is in the first from t on, in
    the second after t, in the writes before t, and in the decay of the state through the chunk.
    """
    keys = into.shape[1]
    half = CHUNK * keys
    for j in range(0, keys, LANES):
        even, odd = zeros(reads), zeros(reads)
        for at in range(j, state.size, 2 * keys):
            even = multiply_add(load(state, at), load(grad_state, at), even)
            odd = multiply_add(load(state, at + keys), load(grad_state, at + keys), odd)
        later = multiply(add(even, odd), convert(load(through, j), reads))
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


@jit
def pairs_forward(y, w, grad_p, column, grad_r, grad_a, decayed, j):  # type: ignore[no-untyped-def]
    """For the keys j to j + LANES: what `pairs` did, kept in `decayed`, and what it adds to the gradients of r and a.

    grad_p (2 CHUNK,2 CHUNK) has the gradients of R and Q, and below of B and A; those by y begin at `column`.
    """
    keys, width = w.shape[1], 2 * CHUNK
    for t in range(CHUNK):
        at, here, of_r, of_a = t * keys + j, t * CHUNK * LANES, t * width + column, (CHUNK + t) * width + column
        w_t, y_t, to_r, to_a = load(w, at), load(y, at), load(grad_r, at), load(grad_a, at)
        for i in range(t):
            past = load(decayed, here + i * LANES)
            to_a = multiply_add(spread_from(grad_p, of_a + i), past, to_a)
            past = multiply(past, w_t)
            to_r = multiply_add(spread_from(grad_p, of_r + i), past, to_r)
            store(decayed, here + (CHUNK + i) * LANES, past)
        store(decayed, here + (CHUNK + t) * LANES, y_t)
        store(grad_r, at, multiply_add(spread_from(grad_p, of_r + t), y_t, to_r))
        store(grad_a, at, to_a)


@jit
def pairs_backward(r, a, w, grad_p, column, grad_y, grad_w, decayed, later, j):  # type: ignore[no-untyped-def]
    """And what it adds to those of y and ln w, back in time; `later` holds the gradient of what was `decayed`."""
    keys, width = w.shape[1], 2 * CHUNK
    for i in range(CHUNK):
        store(later, i * LANES, zeros(r))
    for t in range(CHUNK - 1, -1, -1):
        at, here, of_r, of_a = t * keys + j, t * CHUNK * LANES, t * width + column, (CHUNK + t) * width + column
        w_t, r_t, a_t, to_w = load(w, at), load(r, at), load(a, at), load(grad_w, at)
        for i in range(t):
            x = multiply_add(spread_from(grad_p, of_r + i), r_t, load(later, i * LANES))
            to_w = multiply_add(load(decayed, here + (CHUNK + i) * LANES), x, to_w)
            store(later, i * LANES, multiply_add(spread_from(grad_p, of_a + i), a_t, multiply(w_t, x)))
        store(grad_w, at, to_w)
        own = multiply_add(spread_from(grad_p, of_r + t), r_t, load(later, t * LANES))
        store(grad_y, at, add(load(grad_y, at), own))
