"""WKV in Triton: time split into chunks, chunks into sub-chunks of ROWS steps, in three phases.

1. What every chunk but the last adds to the state, and the product of the chunk's decays.
2. The state that enters each chunk, carried over the chunks in float64.
3. `_forward` or `_backward` goes through every chunk from its right start, sub-chunk by sub-chunk.

A short sequence is one chunk and needs phase 3 alone.

Every number that is exponentiated is the sum of ln w over a range of steps, so at most 0. Three
kinds of range meet: from the start of a sub-chunk to a step, from a step to the end, and between
two steps of one sub-chunk. None is the difference of two longer sums, and nothing is ever divided
by a decay: beside a strong decay a weak one keeps its digits. The gradient of ln w_t is a sum over
the ranges that contain step t, each with its own factor w_t in it.

Products are float32 as the IEEE defines it (tf32 keeps 11 bits). A NaN also reaches the steps
before it in its sub-chunk.

Letters: B batch, T time, H heads, K key size, V value size. For shapes see `plkernel.kernels.wkv`.
Inside a sub-chunk t, j and s are rows: a key at j is seen at a later s, past every t between.
"""

# The language of the kernels is Triton, not typed Python:
# mypy: disallow-untyped-defs=False, disable-error-code="assignment"

import torch
import triton
import triton.language as tl
from torch import Tensor

from plkernel.kernels.operators import sum_parts

# Steps of a sub-chunk: the least that tl.dot takes; what they see of each other costs ROWS**2.
ROWS = 16
# Steps between two kept states; the backward pass computes those inside anew: CHUNK**2 work.
CHUNK = 64
TILE = 4096  # entries of the part of a state that one program holds, where K <= 256
MOST_KEYS = 512  # the sub-chunks of longer keys do not fit in the shared memory of every GPU
LANES = 256  # entries of the state that one program of phase 2 carries
GROUP = 8  # chunks loaded before the first of them is used: hides the latency of memory
# Stands for every stronger decay: exp is 0 there already, and 0 * LEAST is not NaN.
LEAST = tl.constexpr(-1e4)
# Compiled once for all lengths: nothing is gained from knowing that one is 1 or a multiple of 16.
LENGTHS = ("T", "H", "chunks")
# The fusion of a * h + b into one rounding is asked for by name: its default differs between
# versions of Triton. Products of float32 keep their operands in registers: with fewer warps those
# of a tile do not fit.
OPTIONS = {"num_warps": 8, "num_stages": 1, "enable_fp_fusion": True}


@triton.jit
def place(H, chunks, blocks):
    """Batch, head, chunk and block of columns of this program."""
    program = tl.program_id(0)
    unit = program // (blocks * chunks)
    batch = (unit // H).to(tl.int64)
    head = unit % H
    chunk = (program // blocks) % chunks
    block = program % blocks
    return batch, head, chunk, block


@triton.jit
def at(batch, time, head, T, H, K, FIXED: tl.constexpr):
    """Row of a step in (B,T,H,...), that of its ln w, and how many numbers apart ln w of two steps
    are.
    """
    row = (batch * T + time) * H + head
    if FIXED:
        decay_row = head.to(tl.int64)
        stride = 0
    else:
        decay_row = row
        stride = H * K
    return row, decay_row, stride


@triton.jit
def parts_of(T, chunk, CHUNK: tl.constexpr, ROWS: tl.constexpr):
    """Sub-chunks of a chunk; the last may be shorter."""
    return tl.cdiv(tl.minimum(T - chunk * CHUNK, CHUNK), ROWS)


@triton.jit
def load_rows(x, start, count, stride, column, size, ROWS: tl.constexpr):
    """ROWS rows of `size` numbers in float32 (arithmetic in a half type is wrong in the
    interpreter), the first from number `start` on, the next `stride` numbers apart; zero beyond
    `count` and `size`.
    """
    i = tl.arange(0, ROWS)
    mask = (i < count)[:, None] & (column < size)[None, :]
    where = x + start + i[:, None] * stride + column[None, :]
    return tl.load(where, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store_rows(x, values, start, count, stride, column, size, ROWS: tl.constexpr):
    """The inverse of `load_rows`, in the dtype of x."""
    i = tl.arange(0, ROWS)
    mask = (i < count)[:, None] & (column < size)[None, :]
    where = x + start + i[:, None] * stride + column[None, :]
    tl.store(where, values, mask=mask)


@triton.jit
def dot(x, y):
    """x y in float32 as the IEEE defines it, never in tf32."""
    return tl.dot(x, y, input_precision="ieee")


@triton.jit
def order(ROWS: tl.constexpr):
    """Which row (columns of the result) comes before which (rows of the result), as 1 and 0."""
    i = tl.arange(0, ROWS)
    return (i[None, :] < i[:, None]).to(tl.float32)


@triton.jit
def decays(log_decay, start, count, stride, column, size, ROWS: tl.constexpr):
    """Sums of ln w over the rows of a sub-chunk before each row, over those after it, and over
    all.
    """
    log_w = load_rows(log_decay, start, count, stride, column, size, ROWS)
    log_w = tl.where(log_w < LEAST, LEAST, log_w)  # a maximum would hide a NaN
    earlier = order(ROWS)
    before = dot(earlier, log_w)
    after = dot(tl.trans(earlier), log_w)
    return before, after, tl.sum(log_w, 0)


@triton.jit
def state_block(x, index, key, value, K, V):
    """Where a block of columns of state number `index` of x (...,K,V) lies, and its mask."""
    where = x + index * K * V + key[:, None] * V + value[None, :]
    return where, (key < K)[:, None] & (value < V)[None, :]


@triton.jit
def next_state(state, k, v, after, total):
    """The state after a sub-chunk: each row decays by what comes after it.

    Of a gradient it is that before the sub-chunk, given r, grad_o and what comes before each row.
    """
    return tl.exp(total)[:, None] * state + dot(tl.trans(k * tl.exp(after)), v)


@triton.jit(do_not_specialize=LENGTHS)
def chunk_ends(
    x,
    y,
    log_decay,
    starts,
    factors,
    T,
    H,
    K,
    V,
    chunks,
    FIXED: tl.constexpr,
    REVERSE: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Phase 1: what chunk c adds to the state that leaves it, into starts[c + 1], and the product
    of its decays.

    The state leaves with sum_t exp(ln w of the steps after t) x_t^T y_t, x and y being k and v. In
    reverse it is a gradient and leaves with those of the steps before, x and y being r and grad_o.
    """
    batch, head, chunk, block = place(H, chunks - 1, tl.cdiv(V, VALUES))
    key = tl.arange(0, KEYS)
    value = block * VALUES + tl.arange(0, VALUES)
    slab = chunks - 1 - chunk if REVERSE else chunk  # in time: `chunk` is counted along the scan
    parts = parts_of(T, slab, CHUNK, ROWS)
    end = tl.zeros([KEYS, VALUES], tl.float32)
    past = tl.zeros([KEYS], tl.float64)  # sum of ln w from this sub-chunk to where the state leaves
    for n in range(parts):
        part = n if REVERSE else parts - 1 - n  # the one next to where the state leaves first
        time = slab * CHUNK + part * ROWS
        count = T - time
        row, decay_row, decay_stride = at(batch, time, head, T, H, K, FIXED)
        before, after, total = decays(log_decay, decay_row * K, count, decay_stride, key, K, ROWS)
        xs = load_rows(x, row * K, count, H * K, key, K, ROWS)
        ys = load_rows(y, row * V, count, H * V, value, V, ROWS)
        exponent = (before if REVERSE else after) + past.to(tl.float32)[None, :]
        end += dot(tl.trans(xs * tl.exp(exponent)), ys)
        past += total.to(tl.float64)
    unit = batch * H + head
    where, mask = state_block(starts, unit * chunks + chunk + 1, key, value, K, V)
    tl.store(where, end, mask=mask)
    writes = (key < K) & (block == 0)  # all blocks of values have the same decays
    factor = factors + (unit * (chunks - 1) + chunk) * K + key
    tl.store(factor, tl.exp(past), mask=writes)


@triton.jit(do_not_specialize=LENGTHS)
def chunk_starts(first, factors, starts, K, V, chunks, LANES: tl.constexpr, GROUP: tl.constexpr):
    """Phase 2, in place: starts (B,H,chunks,K,V), the state that enters each chunk, from what the
    chunk before adds to it. factors: the products of the chunks' decays (B,H,chunks - 1,K).
    """
    blocks = tl.cdiv(K * V, LANES)
    program = tl.program_id(0)
    unit = (program // blocks).to(tl.int64)
    lane = (program % blocks) * LANES + tl.arange(0, LANES)
    inside = lane < K * V
    carry = tl.load(first + unit * K * V + lane, mask=inside, other=0.0).to(tl.float64)
    start = starts + unit * chunks * K * V + lane
    tl.store(start, carry, mask=inside)
    factor = factors + unit * (chunks - 1) * K + lane // V
    count = chunks - 1
    while count > 0:
        added = ()
        kept = ()
        for i in tl.static_range(GROUP):
            mask = inside & (i < count)
            end = tl.load(start + (i + 1) * K * V, mask=mask, other=0.0)
            product = tl.load(factor + i * K, mask=mask, other=0.0)
            added = added + (end,)  # noqa: RUF005 - Triton does not unpack
            kept = kept + (product,)  # noqa: RUF005
        for i in tl.static_range(GROUP):
            carry = kept[i] * carry + added[i].to(tl.float64)
            start += K * V
            tl.store(start, carry, mask=inside & (i < count))
        factor += GROUP * K
        count -= GROUP


@triton.jit
def _pairs(
    r,
    log_decay,
    start,
    decay_start,
    stride,
    decay_stride,
    k,
    bonus,
    through,
    grad_r,
    grad_k,
    grad_w,
    count,
    key,
    K,
    BACK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Share that each row s takes of the value of each row j: (j, s). With BACK also the gradients,
    added to those given, from `through` (j, s), v_j . grad_o_s.

    Row s sees the past through the sums of ln w `between` each j and s, itself through u, and
    nothing of what comes. r and ln w are read row by row, from `start` and `decay_start` on.
    """
    i = tl.arange(0, ROWS)
    j = i[:, None]
    between = tl.zeros_like(k)  # sums of ln w, (j, key), from the step after j to that before s
    attention = tl.zeros([ROWS, ROWS], tl.float32)
    for s in range(ROWS):
        seen = tl.where(j < s, tl.exp(between), tl.where(j == s, bonus[None, :], 0.0))
        mask = (key < K) & (s < count)
        r_at = r + start + s * stride + key
        now = tl.load(r_at, mask=mask, other=0.0).to(tl.float32)[None, :]
        decay_at = log_decay + decay_start + s * decay_stride + key
        log_w = tl.load(decay_at, mask=mask, other=0.0).to(tl.float32)
        log_w = tl.where(log_w < LEAST, LEAST, log_w)  # a maximum would hide a NaN
        between = tl.where(j < s, between + log_w[None, :], 0.0)
        at_s = i[None, :] == s
        attention += tl.where(at_s, tl.sum(seen * k * now, 1)[:, None], 0.0)
        if BACK:
            back = tl.sum(tl.where(at_s, through, 0.0), 1)[:, None]  # column s, (j, 1)
            to_r = seen * k * back
            grad_r += tl.where((i == s)[:, None], tl.sum(to_r, 0)[None, :], 0.0)
            grad_k += seen * now * back
            straddling = (i[None, :] < j) & (i < s)[:, None]  # j < t < s, as (t, j)
            grad_w += dot(straddling.to(tl.float32), to_r * now)
    return attention, grad_r, grad_k, grad_w


@triton.jit(do_not_specialize=LENGTHS)
def _forward(
    r,
    k,
    v,
    log_decay,
    u,
    starts,
    out,
    last,
    T,
    H,
    K,
    V,
    chunks,
    FIXED: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Phase 3: every o_t of a chunk from the state that enters it; the last chunk also writes the
    last state.
    """
    batch, head, chunk, block = place(H, chunks, tl.cdiv(V, VALUES))
    key = tl.arange(0, KEYS)
    value = block * VALUES + tl.arange(0, VALUES)
    bonus = tl.load(u + head * K + key, mask=key < K, other=0.0).to(tl.float32)
    unit = batch * H + head
    where, mask = state_block(starts, unit * chunks + chunk, key, value, K, V)
    state = tl.load(where, mask=mask, other=0.0)
    for n in range(parts_of(T, chunk, CHUNK, ROWS)):
        time = chunk * CHUNK + n * ROWS
        count = T - time
        row, decay_row, decay_stride = at(batch, time, head, T, H, K, FIXED)
        before, after, total = decays(log_decay, decay_row * K, count, decay_stride, key, K, ROWS)
        rs = load_rows(r, row * K, count, H * K, key, K, ROWS)
        ks = load_rows(k, row * K, count, H * K, key, K, ROWS)
        vs = load_rows(v, row * V, count, H * V, value, V, ROWS)
        attention, _, _, _ = _pairs(
            r,
            log_decay,
            row * K,
            decay_row * K,
            H * K,
            decay_stride,
            ks,
            bonus,
            through=0,
            grad_r=0,
            grad_k=0,
            grad_w=0,
            count=count,
            key=key,
            K=K,
            BACK=False,
            ROWS=ROWS,
        )
        o = dot(rs * tl.exp(before), state) + dot(tl.trans(attention), vs)
        store_rows(out, o, row * V, count, H * V, value, V, ROWS)
        state = next_state(state, ks, vs, after, total)
    where, mask = state_block(last, unit, key, value, K, V)
    tl.store(where, state, mask=mask & (chunk == chunks - 1))


@triton.jit(do_not_specialize=LENGTHS)
def _backward(
    r,
    k,
    v,
    log_decay,
    u,
    grad_out,
    starts,
    ends,
    grad_r,
    grad_k,
    grad_v,
    grad_w,
    grad_u,
    grad_state,
    T,
    H,
    K,
    V,
    chunks,
    FIXED: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Phase 3 in reverse: all gradients of a chunk, from the state that enters it and the gradient
    of what leaves it.

    grad_r, grad_k and grad_w are (blocks of V,B,T,H,K), to be summed over the first axis; grad_u,
    and grad_w of a fixed decay, float64 (blocks of V,B,chunks,H,K), to be summed over the first
    three.
    """
    blocks = tl.cdiv(V, VALUES)
    batch, head, chunk, block = place(H, chunks, blocks)
    key = tl.arange(0, KEYS)
    value = block * VALUES + tl.arange(0, VALUES)
    bonus = tl.load(u + head * K + key, mask=key < K, other=0.0).to(tl.float32)
    unit = batch * H + head
    batches = tl.num_programs(0) // (blocks * chunks * H)
    # How many numbers the results of this block of V are from those of the first.
    apart = block.to(tl.int64) * batches * T * H * K
    where, mask = state_block(ends, unit * chunks + chunks - 1 - chunk, key, value, K, V)
    grad = tl.load(where, mask=mask, other=0.0)
    where, mask = state_block(starts, unit * chunks + chunk, key, value, K, V)
    summed_u = tl.zeros([KEYS], tl.float64)
    summed_w = tl.zeros([KEYS], tl.float64)
    earlier = order(ROWS)
    parts = parts_of(T, chunk, CHUNK, ROWS)
    for back in range(parts):
        # The state before sub-chunk n, computed anew from the one that enters the chunk.
        state = tl.load(where, mask=mask, other=0.0)
        n = parts - 1 - back
        for m in range(n):
            time = chunk * CHUNK + m * ROWS
            count = T - time
            row, decay_row, decay_stride = at(batch, time, head, T, H, K, FIXED)
            _, after, total = decays(log_decay, decay_row * K, count, decay_stride, key, K, ROWS)
            ks = load_rows(k, row * K, count, H * K, key, K, ROWS)
            vs = load_rows(v, row * V, count, H * V, value, V, ROWS)
            state = next_state(state, ks, vs, after, total)
        time = chunk * CHUNK + n * ROWS
        count = T - time
        row, decay_row, decay_stride = at(batch, time, head, T, H, K, FIXED)
        before, after, total = decays(log_decay, decay_row * K, count, decay_stride, key, K, ROWS)
        rs = load_rows(r, row * K, count, H * K, key, K, ROWS)
        ks = load_rows(k, row * K, count, H * K, key, K, ROWS)
        vs = load_rows(v, row * V, count, H * V, value, V, ROWS)
        go = load_rows(grad_out, row * V, count, H * V, value, V, ROWS)
        # What the sub-chunk exchanges with the steps before it and after it ...
        gr = tl.exp(before) * dot(go, tl.trans(state))
        gk = tl.exp(after) * dot(vs, tl.trans(grad))
        # ln w of a step decays the state, the r of later steps and the k of earlier ones.
        gw = (tl.exp(total) * tl.sum(state * grad, 1))[None, :] + dot(tl.trans(earlier), rs * gr)
        gw += dot(earlier, ks * gk)
        # ... and its steps among themselves.
        through = dot(vs, tl.trans(go))
        attention, gr, gk, gw = _pairs(
            r,
            log_decay,
            row * K,
            decay_row * K,
            H * K,
            decay_stride,
            ks,
            bonus,
            through=through,
            grad_r=gr,
            grad_k=gk,
            grad_w=gw,
            count=count,
            key=key,
            K=K,
            BACK=True,
            ROWS=ROWS,
        )
        gv = dot(ks * tl.exp(after), grad) + dot(attention, go)
        grad = next_state(grad, rs, go, before, total)
        store_rows(grad_r, gr, apart + row * K, count, H * K, key, K, ROWS)
        store_rows(grad_k, gk, apart + row * K, count, H * K, key, K, ROWS)
        store_rows(grad_v, gv, row * V, count, H * V, value, V, ROWS)
        itself = tl.sum(vs * go, 1)[:, None]
        summed_u += tl.sum(rs * ks * itself, 0).to(tl.float64)
        if FIXED:
            inside = (tl.arange(0, ROWS) < count)[:, None]
            summed_w += tl.sum(tl.where(inside, gw, 0.0), 0).to(tl.float64)
        else:
            store_rows(grad_w, gw, apart + row * K, count, H * K, key, K, ROWS)
    index = (((block * batches + batch) * chunks + chunk) * H + head) * K + key
    tl.store(grad_u + index, summed_u, mask=key < K)
    if FIXED:
        tl.store(grad_w + index, summed_w, mask=key < K)
    where, mask = state_block(grad_state, unit, key, value, K, V)
    tl.store(where, grad, mask=mask & (chunk == 0))


def forward(
    r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, u: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Every o_t (B,T,H,V) and the last state (B,H,K,V). ValueError for more than MOST_KEYS keys."""
    out = torch.empty_like(v)
    last = torch.empty_like(state)
    sizes, shapes, grid = launch(r, v, log_decay)
    with torch.cuda.device_of(r):  # kernels are launched on the current device
        starts = chunk_states(k, v, log_decay, state, reverse=False)
        _forward[grid](r, k, v, log_decay, u, starts, out, last, *sizes, **shapes, **OPTIONS)
    return out, last


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
    """Gradients of all six inputs, from those of both results; errors as of `forward`."""
    grad_v = torch.empty_like(v)
    grad_state = torch.empty_like(state)
    sizes, shapes, grid = launch(r, v, log_decay)
    # Partial sums, not atomic additions: the order of the sum is fixed, and so is its result.
    blocks = triton.cdiv(v.shape[3], shapes["VALUES"])
    chunks = sizes[-1]
    grad_r, grad_k, grad_w = (
        x.new_empty((blocks, *r.shape), dtype=x.dtype if blocks == 1 else torch.float32)
        for x in (r, k, log_decay)
    )
    grad_u = r.new_empty((blocks, r.shape[0], chunks, *r.shape[2:]), dtype=torch.float64)
    if log_decay.dim() == 2:
        grad_w = torch.empty_like(grad_u)
    with torch.cuda.device_of(r):  # kernels are launched on the current device
        starts = chunk_states(k, v, log_decay, state, reverse=False)
        ends = chunk_states(r, grad_out, log_decay, grad_last, reverse=True)
        _backward[grid](
            r,
            k,
            v,
            log_decay,
            u,
            grad_out,
            starts,
            ends,
            grad_r,
            grad_k,
            grad_v,
            grad_w,
            grad_u,
            grad_state,
            *sizes,
            **shapes,
            **OPTIONS,
        )
    return (
        sum_parts(grad_r, r),
        sum_parts(grad_k, k),
        grad_v,
        sum_parts(grad_w, log_decay),
        sum_parts(grad_u, u),
        grad_state,
    )


def chunk_states(
    x: Tensor, y: Tensor, log_decay: Tensor, first: Tensor, *, reverse: bool
) -> Tensor:
    """Phases 1 and 2: the state, or in reverse its gradient, that enters each chunk,
    (B,H,chunks,K,V).
    """
    sizes, shapes, grid = launch(x, y, log_decay)
    batch, heads, size, values = first.shape
    chunks = sizes[-1]
    if chunks == 1:
        return first
    starts = first.new_empty((batch, heads, chunks, size, values))
    factors = first.new_empty((batch, heads, chunks - 1, size), dtype=torch.float64)
    all_but_one = (grid[0] // chunks * (chunks - 1),)  # nothing reads what leaves the last chunk
    chunk_ends[all_but_one](
        x, y, log_decay, starts, factors, *sizes, REVERSE=reverse, **shapes, **OPTIONS
    )
    programs = batch * heads * triton.cdiv(size * values, LANES)
    chunk_starts[(programs,)](
        first, factors, starts, size, values, chunks, LANES=LANES, GROUP=GROUP, **OPTIONS
    )
    return starts


def launch(
    r: Tensor, v: Tensor, log_decay: Tensor
) -> tuple[tuple[int, ...], dict[str, int], tuple[int]]:
    """T, H, K, V and the number of chunks; the shapes compiled for; one program for each head,
    chunk and block of V. ValueError for keys that are too long.
    """
    batch, time, heads, size = r.shape
    if size > MOST_KEYS:
        raise ValueError(
            f"wkv: r must have a key size of at most {MOST_KEYS} with backend 'gpu', got {size}"
        )
    values = v.shape[3]
    chunks = triton.cdiv(time, CHUNK)
    keys, block = tiles(size, values)
    sizes = (time, heads, size, values, chunks)
    shapes = {
        "FIXED": log_decay.dim() == 2,
        "CHUNK": CHUNK,
        "ROWS": ROWS,
        "KEYS": keys,
        "VALUES": block,
    }
    programs = batch * heads * chunks * triton.cdiv(values, block)
    return sizes, shapes, (programs,)


def tiles(size: int, values: int) -> tuple[int, int]:
    """Rows (all) and columns of the part of a state (K,V) that one program holds: powers of two, at
    least 16.
    """
    keys = max(16, triton.next_power_of_2(size))
    block = min(triton.next_power_of_2(values), TILE // keys)
    return keys, max(16, block)
