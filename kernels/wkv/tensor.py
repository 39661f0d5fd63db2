"""WKV in Triton on tensor cores: time split into chunks of CHUNK steps, chunks into halves, halves
into halves.

0. `_ranges`: which steps the sums below are over, as matrices of 1 and 0.
1. `_increments`: what every chunk adds to the state, and the product of its decays.
2. `_carry`: the state that enters each chunk, carried over the chunks in float64.
3. `_outputs` or `_gradients`: every chunk from the state that enters it, all chunks at once.

What a step s takes of an earlier step j decays by the exponential of ln w summed over the steps
between them. A chunk is cut into segments of 1, 2, 4, ... steps. At exactly one of these lengths j
and s lie in neighbours, j in the earlier one of a pair (a segment of even number) and s in the
later one. The border between the two lies between j and s, so the sum is that from j to the end of
its segment, plus that from the start of the segment of s to s. Both are at most 0, and their
exponentials are factors of row j and of row s: the whole level is one product of matrices, with a
mask. An early row is a key at this level and a late row a query, so one tile of factors, x, serves
for both sides: x x^T.

So every number that is exponentiated is the sum of ln w over a range of steps and at most 0. None
is the difference of two longer sums, and nothing is ever divided by a decay: beside a strong decay
a weak one keeps its digits. The sums of the next level are those of this one, plus for a late row
the sum of the earlier neighbour, for an early row that of the later one. The gradient of ln w_t is
a sum over the ranges that contain step t, each with its own factor w_t in it.

A NaN also reaches the other steps of its chunk, earlier ones too.

`precision` says how the operands of the products are rounded (u: largest relative error); sums are
float32, and sums of ln w and their exponentials are not rounded further:
- "bf16": to bfloat16, u = 2**-8. The state that enters a chunk is stored so too.
- "tf32": to tf32, u = 2**-11; bfloat16 and float16 inputs are held exactly.
- "bf16x3", "tf32x3": x = h + l + e, where h is x rounded, l is x - h rounded and |e| <= u**2 |x|.
  Of (h + l)(h' + l') the product l l', at most u**2 of the whole, is left out: an error of at most
  3 u**2 to first order, 2**-14.4 and 2**-20.4, and in the mean far less.
- "ieee": not at all, and not on tensor cores.
Steps of a chunk are combined through three rounded operands, as r, k and v are three.

Letters: B batch, T time, H heads, K key size, V value size. For shapes see `plkernel.kernels.wkv`.
"""

# The language of the kernels is Triton, not typed Python:
# mypy: disallow-untyped-defs=False, disable-error-code="assignment"

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

from plkernel.kernels.operators import sum_parts
from plkernel.kernels.wkv.gpu import LEAST, LENGTHS, at, load_rows, state_block, store_rows

PRECISIONS = ("bf16", "bf16x3", "tf32", "tf32x3", "ieee")
CHUNK = 64  # steps between two kept states, a power of two and at least 16
MOST_KEYS = 128  # tiles of CHUNK rows of longer keys do not fit into the registers
VALUES = 64  # columns of V that a program holds at a time
LANES = 512  # entries of the state that one program of `_carry` carries
GROUP = 8  # chunks loaded before the first of them is used: hides the latency of memory
# The fusion of a * h + b into one rounding is asked for by name: its default differs between
# versions of Triton.
OPTIONS = {"num_stages": 1, "enable_fp_fusion": True}
WARPS = 4  # of a program
# Where a tile is narrower than NARROW: products of four warps (wgmma) were wrong there.
FEW_WARPS = 2
NARROW = 64
PARTS = {torch.bfloat16: 1, torch.float16: 2, torch.float32: 3}  # of ln w, in bfloat16
# Places of the matrices of `_ranges`.
BEFORE = tl.constexpr(0)
AFTER = tl.constexpr(1)
LEVEL = tl.constexpr(2)  # of level 0, with the other levels behind it
# numpy, in which Triton interprets, has no bfloat16: there the rounded operands stay float32.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def nearest(x, BITS: tl.constexpr):
    """The float32 number x rounded to a significand that is BITS shorter, ties away from zero."""
    bits = x.to(tl.int32, bitcast=True)
    bits = (bits + (1 << (BITS - 1))) & -(1 << BITS)
    return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)  # a NaN stays one


@triton.jit
def operand(x, PRECISION: tl.constexpr):
    """x in the format that the name of the precision begins with."""
    if PRECISION == "bf16" or PRECISION == "bf16x3":
        if INTERPRETED:
            return nearest(x, 16)
        else:
            return x.to(tl.bfloat16)
    elif PRECISION == "ieee":
        return x
    else:
        return nearest(x, 13)


@triton.jit
def rest(x, large, PRECISION: tl.constexpr):
    """Remainder that `operand` cut off, as an operand; zero where x is infinite."""
    large = large.to(tl.float32)
    return operand(tl.where(large == x, 0.0, x - large), PRECISION)


@triton.jit
def multiply(x, y, PRECISION: tl.constexpr):
    """x y of two operands, with float32 sums."""
    if PRECISION == "ieee":
        return tl.dot(x, y, input_precision="ieee")
    else:
        return tl.dot(x, y, input_precision="tf32")  # of two operands in bfloat16 this says nothing


@triton.jit
def product(
    x,
    y,
    PRECISION: tl.constexpr,
    X_TURNED: tl.constexpr = False,
    Y_TURNED: tl.constexpr = False,
    X_EXACT: tl.constexpr = False,
    Y_EXACT: tl.constexpr = False,
):
    """x y, each transposed if it is TURNED. EXACT: the rounding of `operand` does not change it."""
    x_large = operand(x, PRECISION)
    y_large = operand(y, PRECISION)
    left = tl.trans(x_large) if X_TURNED else x_large
    right = tl.trans(y_large) if Y_TURNED else y_large
    result = multiply(left, right, PRECISION)
    if PRECISION == "bf16x3" or PRECISION == "tf32x3":
        if not X_EXACT:
            x_rest = rest(x, x_large, PRECISION)
            result += multiply(tl.trans(x_rest) if X_TURNED else x_rest, right, PRECISION)
        if not Y_EXACT:
            y_rest = rest(y, y_large, PRECISION)
            result += multiply(left, tl.trans(y_rest) if Y_TURNED else y_rest, PRECISION)
    return result


@triton.jit
def square(x, PRECISION: tl.constexpr):
    """x x^T, with two roundings where `product` has four."""
    large = operand(x, PRECISION)
    result = multiply(large, tl.trans(large), PRECISION)
    if PRECISION == "bf16x3" or PRECISION == "tf32x3":
        small = rest(x, large, PRECISION)
        result += multiply(small, tl.trans(large), PRECISION)
        result += multiply(large, tl.trans(small), PRECISION)
    return result


@triton.jit
def place(H, chunks):
    """Batch, head and chunk of this program, and its head counted over all batch rows."""
    program = tl.program_id(0)
    unit = (program // chunks).to(tl.int64)
    batch = unit // H
    head = unit % H
    return batch, head, program % chunks, unit


@triton.jit
def load_decays(log_decay, row, count, stride, key, K, CHUNK: tl.constexpr):
    """ln w of the steps of a chunk, zero beyond the last one."""
    w = load_rows(log_decay, row, count, stride, key, K, CHUNK)
    return tl.where(w < LEAST, LEAST, w)  # a maximum would hide a NaN


@triton.jit
def split_decays(w, PRECISION: tl.constexpr):
    """ln w as a sum of three numbers in bfloat16, of which one holds bfloat16, two hold float16 and
    three hold float32 exactly: PARTS. With "ieee" ln w itself is the first.
    """
    if PRECISION == "ieee":
        return w, w, w
    else:
        first = operand(w, "bf16")
        w -= first.to(tl.float32)
        second = operand(w, "bf16")
        w -= second.to(tl.float32)
        return first, second, operand(w, "bf16")


@triton.jit
def load_ranges(ranges, number, CHUNK: tl.constexpr):
    """Matrix `number` of `_ranges`, (row, step)."""
    i = tl.arange(0, CHUNK)
    where = number * CHUNK * CHUNK + i[:, None] * CHUNK + i[None, :]
    return tl.load(ranges + where).to(tl.float32)


@triton.jit
def add_up(ranges, parts, PRECISION: tl.constexpr, PARTS: tl.constexpr):
    """Sums of ln w over the steps of the range of each row, from the parts of ln w.

    A number in bfloat16 times one is exact, and all terms of a sum have one sign.
    """
    if PRECISION == "ieee":
        return multiply(ranges, parts[0], "ieee")
    else:
        ones = operand(ranges, "bf16")
        total = multiply(ones, parts[PARTS - 1], "bf16")
        if PARTS == 3:
            total += multiply(ones, parts[1], "bf16")
        if PARTS > 1:
            total += multiply(ones, parts[0], "bf16")
        return total


@triton.jit
def halves(level, CHUNK: tl.constexpr):
    """At a level: which rows are late, as a column, and the pairs of rows that meet."""
    i = tl.arange(0, CHUNK)
    late = (((i >> level) & 1) == 1)[:, None]
    return late, ((i[:, None] ^ i[None, :]) >> level) == 1


@triton.jit
def load_halves(r, k, late, row, count, stride, key, K, CHUNK: tl.constexpr):
    """Late rows of r and early rows of k."""
    i = tl.arange(0, CHUNK)
    inside = (i < count)[:, None] & (key < K)[None, :]
    where = row + i[:, None] * stride + key[None, :]
    queries = tl.load(r + where, mask=inside & late, other=0.0).to(tl.float32)
    keys = tl.load(k + where, mask=inside & (late == 0), other=0.0).to(tl.float32)
    return tl.where(late, queries, keys)


@triton.jit
def _ranges(ranges, CHUNK: tl.constexpr):
    """Phase 0: which steps (columns) lie in the range of each row of a chunk, as 1 and 0.

    One program makes one matrix. BEFORE: all steps before the row; AFTER: all after it; from LEVEL
    on, one for each level: from the start of its segment to a late row, and from an early row to
    the end of its segment. The programs of other phases load them, which takes them fewer registers
    and instructions than comparing rows and steps.
    """
    number = tl.program_id(0)
    row = tl.arange(0, CHUNK)[:, None]
    step = tl.arange(0, CHUNK)[None, :]
    if number == BEFORE:
        inside = step < row
    elif number == AFTER:
        inside = step > row
    else:
        level = number - LEVEL
        late = ((row >> level) & 1) == 1
        in_segment = (row >> level) == (step >> level)
        inside = in_segment & (step != row) & ((step < row) == late)
    where = number * CHUNK * CHUNK + row * CHUNK + step
    tl.store(ranges + where, inside.to(tl.float32))


@triton.jit(do_not_specialize=LENGTHS)
def _increments(
    r,
    k,
    v,
    log_decay,
    grad_out,
    ends,
    grad_ends,
    factors,
    ranges,
    T,
    H,
    K,
    V,
    chunks,
    FIXED: tl.constexpr,
    BACK: tl.constexpr,
    CHUNK: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    BLOCKS: tl.constexpr,
    EXACT: tl.constexpr,
    PRECISION: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Phase 1: ends = sum_t exp(ln w of the steps after t) k_t^T v_t (B,H,chunks,K,V) of every
    chunk, and the product of its decays (B,H,chunks,K).

    BACK: also grad_ends = sum_t exp(ln w of the steps before t) r_t^T grad_o_t.
    """
    batch, head, chunk, unit = place(H, chunks)
    key = tl.arange(0, KEYS)
    time = chunk * CHUNK
    count = T - time
    row, decay_row, stride = at(batch, time, head, T, H, K, FIXED)
    w = load_decays(log_decay, decay_row * K, count, stride, key, K, CHUNK)
    total = tl.sum(w.to(tl.float64), 0)
    index = unit * chunks + chunk
    tl.store(factors + index * K + key, tl.exp(total), mask=key < K)
    parts = split_decays(w, PRECISION)
    after = add_up(load_ranges(ranges, AFTER, CHUNK), parts, PRECISION, PARTS)
    keys = load_rows(k, row * K, count, H * K, key, K, CHUNK) * tl.exp(after)
    if BACK:
        before = add_up(load_ranges(ranges, BEFORE, CHUNK), parts, PRECISION, PARTS)
        queries = load_rows(r, row * K, count, H * K, key, K, CHUNK) * tl.exp(before)
    for block in range(BLOCKS):
        value = block * VALUES + tl.arange(0, VALUES)
        vs = load_rows(v, row * V, count, H * V, value, V, CHUNK)
        end = product(keys, vs, PRECISION, X_TURNED=True, Y_EXACT=EXACT)
        where, mask = state_block(ends, index, key, value, K, V)
        tl.store(where, end, mask=mask)
        if BACK:
            go = load_rows(grad_out, row * V, count, H * V, value, V, CHUNK)
            end = product(queries, go, PRECISION, X_TURNED=True, Y_EXACT=EXACT)
            where, mask = state_block(grad_ends, index, key, value, K, V)
            tl.store(where, end, mask=mask)


@triton.jit(do_not_specialize=LENGTHS)
def _carry(
    first,
    factors,
    ends,
    starts,
    last,
    K,
    V,
    chunks,
    REVERSE: tl.constexpr,
    LANES: tl.constexpr,
    GROUP: tl.constexpr,
    ROUNDED: tl.constexpr,
):
    """Phase 2: the state that enters each chunk, and the last one; in reverse the gradient that
    enters a chunk from the steps after it, and that of the first state.
    """
    blocks = tl.cdiv(K * V, LANES)
    program = tl.program_id(0)
    unit = (program // blocks).to(tl.int64)
    lane = (program % blocks) * LANES + tl.arange(0, LANES)
    inside = lane < K * V
    carry = tl.load(first + unit * K * V + lane, mask=inside, other=0.0).to(tl.float64)
    step = -1 if REVERSE else 1
    index = unit * chunks
    if REVERSE:
        index += chunks - 1
    count = chunks
    while count > 0:
        added = ()
        kept = ()
        for i in tl.static_range(GROUP):
            mask = inside & (i < count)
            where = index + i * step
            end = tl.load(ends + where * K * V + lane, mask=mask, other=0.0)
            factor = tl.load(factors + where * K + lane // V, mask=mask, other=0.0)
            added = added + (end,)  # noqa: RUF005 - Triton does not unpack
            kept = kept + (factor,)  # noqa: RUF005
        for i in tl.static_range(GROUP):
            where = index + i * step
            start = carry.to(tl.float32)
            if ROUNDED:
                start = operand(start, "bf16")
            tl.store(starts + where * K * V + lane, start, mask=inside & (i < count))
            following = kept[i] * carry + added[i].to(tl.float64)
            carry = tl.where(i < count, following, carry)
        index += GROUP * step
        count -= GROUP
    tl.store(last + unit * K * V + lane, carry, mask=inside)


@triton.jit(do_not_specialize=LENGTHS)
def _outputs(
    r,
    k,
    v,
    log_decay,
    u,
    starts,
    out,
    ranges,
    T,
    H,
    K,
    V,
    chunks,
    FIXED: tl.constexpr,
    BACK: tl.constexpr,
    CHUNK: tl.constexpr,
    LEVELS: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    BLOCKS: tl.constexpr,
    EXACT: tl.constexpr,
    PRECISION: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Phase 3: every o_t of a chunk from the state that enters it.

    BACK: every grad_v_t from the gradient of the state that leaves it. Then v is grad_o, starts are
    those gradients and out is grad_v.
    """
    batch, head, chunk, unit = place(H, chunks)
    key = tl.arange(0, KEYS)
    time = chunk * CHUNK
    count = T - time
    row, decay_row, stride = at(batch, time, head, T, H, K, FIXED)
    w = load_decays(log_decay, decay_row * K, count, stride, key, K, CHUNK)
    parts = split_decays(w, PRECISION)
    rs = load_rows(r, row * K, count, H * K, key, K, CHUNK)
    ks = load_rows(k, row * K, count, H * K, key, K, CHUNK)
    bonus = tl.load(u + head * K + key, mask=key < K, other=0.0).to(tl.float32)
    itself = tl.sum(rs * bonus[None, :] * ks, 1)[:, None]
    i = tl.arange(0, CHUNK)
    attention = tl.where(i[:, None] == i[None, :], itself, 0.0)  # (s, j), back (j, s)
    for level in range(LEVELS):
        late, met = halves(level, CHUNK)
        range_ = load_ranges(ranges, LEVEL + level, CHUNK)
        x = load_halves(r, k, late, row * K, count, H * K, key, K, CHUNK)
        x *= tl.exp(add_up(range_, parts, PRECISION, PARTS))
        taking = (late == 0) if BACK else late
        attention = tl.where(met & taking, square(x, PRECISION), attention)
    if BACK:
        past = add_up(load_ranges(ranges, AFTER, CHUNK), parts, PRECISION, PARTS)
        x = load_rows(k, row * K, count, H * K, key, K, CHUNK) * tl.exp(past)
    else:
        past = add_up(load_ranges(ranges, BEFORE, CHUNK), parts, PRECISION, PARTS)
        x = load_rows(r, row * K, count, H * K, key, K, CHUNK) * tl.exp(past)
    for block in range(BLOCKS):
        value = block * VALUES + tl.arange(0, VALUES)
        where, mask = state_block(starts, unit * chunks + chunk, key, value, K, V)
        state = tl.load(where, mask=mask, other=0.0).to(tl.float32)
        vs = load_rows(v, row * V, count, H * V, value, V, CHUNK)
        o = product(x, state, PRECISION)
        o += product(attention, vs, PRECISION, Y_EXACT=EXACT)
        store_rows(out, o, row * V, count, H * V, value, V, CHUNK)


@triton.jit(do_not_specialize=LENGTHS)
def _gradients(
    r,
    k,
    v,
    log_decay,
    u,
    grad_out,
    starts,
    grad_starts,
    grad_r,
    grad_k,
    grad_w,
    grad_u,
    ranges,
    T,
    H,
    K,
    V,
    chunks,
    FIXED: tl.constexpr,
    CHUNK: tl.constexpr,
    LEVELS: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    BLOCKS: tl.constexpr,
    EXACT: tl.constexpr,
    PRECISION: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Phase 3 in reverse: the gradients of r, k, ln w and u of a chunk, from the state that enters
    it and the gradient of the one that leaves it.

    grad_u, and grad_w of a fixed decay, are float64 (B,chunks,H,K), to be summed over the first
    two axes.
    """
    batch, head, chunk, unit = place(H, chunks)
    key = tl.arange(0, KEYS)
    time = chunk * CHUNK
    count = T - time
    row, decay_row, stride = at(batch, time, head, T, H, K, FIXED)
    index = unit * chunks + chunk
    i = tl.arange(0, CHUNK)
    # What each row exchanges with the state that enters and with the gradient of what leaves.
    gr = tl.zeros([CHUNK, KEYS], tl.float32)
    gk = tl.zeros([CHUNK, KEYS], tl.float32)
    kept = tl.zeros([KEYS], tl.float32)
    through = tl.zeros([CHUNK, CHUNK], tl.float32)  # grad_o_s . v_j, (s, j)
    itself = tl.zeros([CHUNK], tl.float32)
    for block in range(BLOCKS):
        value = block * VALUES + tl.arange(0, VALUES)
        vs = load_rows(v, row * V, count, H * V, value, V, CHUNK)
        go = load_rows(grad_out, row * V, count, H * V, value, V, CHUNK)
        where, mask = state_block(starts, index, key, value, K, V)
        state = tl.load(where, mask=mask, other=0.0).to(tl.float32)
        where, mask = state_block(grad_starts, index, key, value, K, V)
        grad = tl.load(where, mask=mask, other=0.0).to(tl.float32)
        gr += product(go, state, PRECISION, Y_TURNED=True, X_EXACT=EXACT)
        gk += product(vs, grad, PRECISION, Y_TURNED=True, X_EXACT=EXACT)
        kept += tl.sum(state * grad, 1)
        through += product(go, vs, PRECISION, Y_TURNED=True, X_EXACT=EXACT, Y_EXACT=EXACT)
        itself += tl.sum(go * vs, 1)
    through = tl.where(i[:, None] > i[None, :], through, 0.0)
    through += tl.trans(through)  # symmetric: a late row reads it as s, an early one as j
    w = load_decays(log_decay, decay_row * K, count, stride, key, K, CHUNK)
    parts = split_decays(w, PRECISION)
    before = load_ranges(ranges, BEFORE, CHUNK)
    after = load_ranges(ranges, AFTER, CHUNK)
    kept *= tl.exp(tl.sum(w, 0))
    gr *= tl.exp(add_up(before, parts, PRECISION, PARTS))
    gk *= tl.exp(add_up(after, parts, PRECISION, PARTS))
    rs = load_rows(r, row * K, count, H * K, key, K, CHUNK)
    ks = load_rows(k, row * K, count, H * K, key, K, CHUNK)
    gw = product(after, rs * gr, PRECISION, X_EXACT=True)
    gw += product(before, ks * gk, PRECISION, X_EXACT=True)
    gw += kept[None, :]
    # What each row exchanges with itself ...
    bonus = tl.load(u + head * K + key, mask=key < K, other=0.0).to(tl.float32)[None, :]
    gr += itself[:, None] * bonus * ks
    gk += itself[:, None] * bonus * rs
    part = ((batch * chunks + chunk) * H + head) * K + key
    tl.store(grad_u + part, tl.sum(rs * ks * itself[:, None], 0).to(tl.float64), mask=key < K)
    # ... and with the other rows of the chunk.
    for level in range(LEVELS):
        late, met = halves(level, CHUNK)
        range_ = load_ranges(ranges, LEVEL + level, CHUNK)
        factor = tl.exp(add_up(range_, parts, PRECISION, PARTS))
        x = load_halves(r, k, late, row * K, count, H * K, key, K, CHUNK) * factor
        y = product(tl.where(met, through, 0.0), x, PRECISION)
        gw += product(range_, x * y, PRECISION, X_TURNED=True, X_EXACT=True)
        y *= factor
        gr += tl.where(late, y, 0.0)
        gk += tl.where(late, 0.0, y)
    store_rows(grad_r, gr, row * K, count, H * K, key, K, CHUNK)
    store_rows(grad_k, gk, row * K, count, H * K, key, K, CHUNK)
    if FIXED:
        gw = tl.where((i < count)[:, None], gw, 0.0)
        tl.store(grad_w + part, tl.sum(gw, 0).to(tl.float64), mask=key < K)
    else:
        store_rows(grad_w, gw, row * K, count, H * K, key, K, CHUNK)


def forward(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    u: Tensor,
    state: Tensor,
    *,
    precision: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Every o_t (B,T,H,V) and the last state (B,H,K,V).

    precision: how operands are rounded, see above; None takes "bf16" for bfloat16, "tf32" for
    float16 and "tf32x3" for float32.
    """
    precision = chosen(r, precision)
    out = torch.empty_like(v)
    sizes, shapes, grid = launch(r, v, log_decay, precision)
    levels = CHUNK.bit_length() - 1
    with torch.cuda.device_of(r):  # kernels are launched on the current device
        ranges = ranges_of(r.device)
        starts, last = chunk_states(r, k, v, log_decay, state, ranges, precision)
        _outputs[grid](
            r,
            k,
            v,
            log_decay,
            u,
            starts,
            out,
            ranges,
            *sizes,
            BACK=False,
            LEVELS=levels,
            **shapes,
            **OPTIONS,
        )
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
    *,
    precision: str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of all six inputs, from those of both results."""
    precision = chosen(r, precision)
    grad_r, grad_k, grad_v = (torch.empty_like(x) for x in (r, k, v))
    sizes, shapes, grid = launch(r, v, log_decay, precision)
    levels = CHUNK.bit_length() - 1
    # Partial sums, not atomic additions: the order of the sum is fixed, and so is its result.
    grad_u = r.new_empty((r.shape[0], sizes[-1], *r.shape[2:]), dtype=torch.float64)
    grad_w = torch.empty_like(grad_u if log_decay.dim() == 2 else log_decay)
    with torch.cuda.device_of(r):  # kernels are launched on the current device
        ranges = ranges_of(r.device)
        starts, _, grad_starts, grad_state = chunk_states(
            r, k, v, log_decay, state, ranges, precision, grad_out, grad_last
        )
        _gradients[grid](
            r,
            k,
            v,
            log_decay,
            u,
            grad_out,
            starts,
            grad_starts,
            grad_r,
            grad_k,
            grad_w,
            grad_u,
            ranges,
            *sizes,
            LEVELS=levels,
            **shapes,
            **OPTIONS,
        )
        _outputs[grid](
            r,
            k,
            grad_out,
            log_decay,
            u,
            grad_starts,
            grad_v,
            ranges,
            *sizes,
            BACK=True,
            LEVELS=levels,
            **shapes,
            **OPTIONS,
        )
    return (
        grad_r,
        grad_k,
        grad_v,
        sum_parts(grad_w, log_decay),
        sum_parts(grad_u, u),
        grad_state,
    )


def chunk_states(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    state: Tensor,
    ranges: Tensor,
    precision: str,
    grad_out: Tensor | None = None,
    grad_last: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Phases 1 and 2: the state that enters each chunk (B,H,chunks,K,V) and the last one; given
    gradients, also that of the state that leaves each chunk and that of the first one.
    """
    sizes, shapes, grid = launch(r, v, log_decay, precision)
    batch, heads, size, values = state.shape
    chunks = sizes[-1]
    back = grad_out is not None
    ends = state.new_empty((batch, heads, chunks, size, values))
    grad_ends = torch.empty_like(ends) if back else ends
    factors = state.new_empty((batch, heads, chunks, size), dtype=torch.float64)
    _increments[grid](
        r,
        k,
        v,
        log_decay,
        grad_out if back else v,
        ends,
        grad_ends,
        factors,
        ranges,
        *sizes,
        BACK=back,
        **shapes,
        **OPTIONS,
    )
    states = carried(state, factors, ends, precision, reverse=False)
    if grad_last is None:
        return states
    return *states, *carried(grad_last, factors, grad_ends, precision, reverse=True)


def carried(
    first: Tensor, factors: Tensor, ends: Tensor, precision: str, *, reverse: bool
) -> tuple[Tensor, Tensor]:
    """Phase 2: the state that enters each chunk (B,H,chunks,K,V) and the last one; in reverse
    gradients, from the last chunk to the first.
    """
    batch, heads, chunks, size, values = ends.shape
    rounded = precision == "bf16"  # what is rounded for the products in any case is stored rounded
    starts = torch.empty_like(ends, dtype=torch.bfloat16 if rounded else torch.float32)
    last = torch.empty_like(first)
    programs = batch * heads * triton.cdiv(size * values, LANES)
    _carry[(programs,)](
        first,
        factors,
        ends,
        starts,
        last,
        size,
        values,
        chunks,
        REVERSE=reverse,
        LANES=LANES,
        GROUP=GROUP,
        ROUNDED=rounded,
        num_warps=WARPS,
        **OPTIONS,
    )
    return starts, last


def chosen(r: Tensor, precision: str | None) -> str:
    """The precision for r; ValueError for an unknown one and for keys that are too long."""
    size = r.shape[3]
    if size > MOST_KEYS:
        raise ValueError(
            f"wkv: r must have a key size of at most {MOST_KEYS} on tensor cores, got {size};"
            " backend='gpu' takes longer keys"
        )
    if precision is None:
        defaults = {torch.bfloat16: "bf16", torch.float16: "tf32"}
        return defaults.get(r.dtype, "tf32x3")
    if precision not in PRECISIONS:
        raise ValueError(
            f"wkv: precision must be one of {', '.join(PRECISIONS)}, got {precision!r}"
        )
    return precision


def launch(
    r: Tensor, v: Tensor, log_decay: Tensor, precision: str
) -> tuple[tuple[int, ...], dict[str, int | bool | str], tuple[int]]:
    """T, H, K, V and the number of chunks; what is compiled for; one program for each head and
    chunk.
    """
    batch, time, heads, size = r.shape
    values = v.shape[3]
    chunks = triton.cdiv(time, CHUNK)
    keys, block = tiles(size, values)
    sizes = (time, heads, size, values, chunks)
    shapes = {
        "FIXED": log_decay.dim() == 2,
        "CHUNK": CHUNK,
        "KEYS": keys,
        "VALUES": block,
        "BLOCKS": triton.cdiv(values, block),
        "EXACT": exact(r.dtype, precision),
        "PRECISION": precision,
        "PARTS": PARTS[log_decay.dtype],
        "num_warps": WARPS if min(keys, block) >= NARROW else FEW_WARPS,
    }
    return sizes, shapes, (batch * heads * chunks,)


def ranges_of(device: torch.device) -> Tensor:
    """The matrices of `_ranges`, (matrix, row, step).

    Each pass makes its own. A tensor that is kept for all passes may be made while a CUDA graph is
    recorded: then its memory is that of the graph, and it has no values before the first replay.
    """
    count = LEVEL.value + CHUNK.bit_length() - 1
    ranges = torch.empty((count, CHUNK, CHUNK), dtype=torch.bfloat16, device=device)
    _ranges[(count,)](ranges, CHUNK=CHUNK, num_warps=WARPS, **OPTIONS)
    return ranges


def exact(dtype: torch.dtype, precision: str) -> bool:
    """True if operands of this precision hold every number of an input."""
    if precision.startswith("bf16"):
        return dtype == torch.bfloat16
    return dtype in (torch.bfloat16, torch.float16)


def tiles(size: int, values: int) -> tuple[int, int]:
    """Key rows (all) and columns of V of a tile: powers of two, at least 16."""
    keys = max(16, triton.next_power_of_2(size))
    block = min(triton.next_power_of_2(values), VALUES)
    return keys, max(16, block)
