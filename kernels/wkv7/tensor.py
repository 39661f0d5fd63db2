"""WKV-7 in Triton on tensor cores: time split into chunks whose steps are solved for at once.

With D_t the product of the decays of a chunk before step t, E_t that after it, W that of all of
them, H the transposed state (K,V) before the chunk and u_t = S_{t-1} a_t what step t reads and adds
again along b_t

    u = (a D) H + A v + B u,   o = (r D w) H + Q v + R u,   H' = W H + (k E)^T v + (b E)^T u,

where A and B are sums over keys of a_t, the decays after i and before t, and k_i or b_i for i < t;
Q and R the same with r_t, the decay of step t too, and i <= t. With M = (I - B)^-1, and P = M a D,
N = M^T b E,

    u = P H + (M A) v,   o = (r D w + R P) H + (Q + R M A) v = G H + Z v,
    H' = W H + (b E)^T (P H) + (k E + A^T N)^T v = W H + (b E)^T (P H) + L^T v.

G, P, b E, L = k E + A^T N and Z need no state: all chunks find them at the same time (`_prepare`).
What follows from chunk to chunk is the last line alone (`_outputs`, or `_states` for the backward
pass, which at the same time carries the gradient of the state back by the transposed line). The
gradients of a chunk follow from the state before it and the gradient of that after it, again for
all chunks at the same time (`_gradients`).

The chunk is halved, the halves are halved, and so on: two steps t > i part at one of the halvings,
and the decays between them are those after i in its part times those before t in its own. So every
number that is exponentiated is the sum of ln w over a range of steps, at most 0; none is the
difference of two sums, and nothing is divided by a decay. M grows alike: that of two parts is
theirs and the product through what the later sees of the earlier.

Sums of ln w are float32: products of 1 and 0 with the three numbers of bfloat16 of which each ln w
is the sum. `precision` says how other products are taken: "bf16" rounds the operands of those
between steps to bfloat16 and those with a state to tf32, which loses less than rounding all inputs
to bfloat16 does; "tf32x3" takes operands as sums of two tf32 numbers, "ieee" as float32. M is
solved for in tf32x3 or better. All sums are float32.

Source: arXiv 2406.06484 for chunks of the delta rule.

Letters: B batch, T time, H heads, K key size, V value size. For shapes see `plkernel.kernels.wkv7`.
Inside a chunk, of C steps, t and i are rows. A unit is a head of a batch row.
"""

# The language of the kernels is Triton, not typed Python:
# mypy: disallow-untyped-defs=False, disable-error-code="assignment"

import math
import os
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_KEYS = 128  # a program holds all keys of a state
# Batch times heads from which chunks of 16 steps are faster than of 32: in series they take longer,
# at a time less. On an H200, at this number and two lengths: docs/evidence/speed.md.
MANY_UNITS = 64
TILE = 4096  # entries of the part of a state that a program holds at most
# Stands for every stronger decay: exp is 0 there already, and 0 * LEAST is not NaN.
LEAST = tl.constexpr(-1e4)
WEAK = tl.constexpr(-math.log(2))  # a decay above 1/2
# Compiled once for all lengths: nothing is gained from knowing that one is 1 or a multiple of 16.
LENGTHS = ("T", "H", "chunks")
OPTIONS = {"enable_fp_fusion": True}
# The interpreter has no products of bfloat16: it takes those of the rounded numbers in float32.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
# Parts of `rows`, the matrices (C,K) that are kept of every chunk.
P = tl.constexpr(0)
G = tl.constexpr(1)
BE = tl.constexpr(2)  # b E
L = tl.constexpr(3)
N = tl.constexpr(4)  # for the backward pass alone
# Parts of `weights`, the matrices (C,C).
Z = tl.constexpr(0)
MA = tl.constexpr(1)  # M A, for the backward pass alone
RM = tl.constexpr(2)  # R M, likewise


class Precision(NamedTuple):
    """Precision of products between steps of a chunk, with the state, and towards M; what is
    kept.
    """

    pairs: str
    state: str
    solve: str
    rows: torch.dtype
    states: torch.dtype


PRECISIONS = {
    "bf16": Precision("bf16", "tf32", "tf32x3", torch.float32, torch.float32),
    "tf32x3": Precision("tf32x3", "tf32x3", "tf32x3", torch.float32, torch.float32),
    "ieee": Precision("ieee", "ieee", "ieee", torch.float32, torch.float32),
}


@triton.jit
def _dot(x, y, PRECISION: tl.constexpr):
    """x y with sums in float32."""
    if PRECISION == "bf16":
        x = x.to(tl.bfloat16)
        y = y.to(tl.bfloat16)
        if INTERPRETED:
            x = x.to(tl.float32)
            y = y.to(tl.float32)
        result = tl.dot(x, y)
    else:
        result = tl.dot(x.to(tl.float32), y.to(tl.float32), input_precision=PRECISION)
    return result


@triton.jit
def _row(unit, time, T, H):
    """Row of a step in (B,T,H,...)."""
    return (unit // H * T + time) * H + unit % H


@triton.jit
def _load_rows(x, row, count, stride, column, size, ROWS: tl.constexpr):
    """ROWS rows of x (...,size) from number `row` on, `stride` numbers apart, in float32
    (arithmetic in a half type is wrong in the interpreter); zero beyond `count` and `size`.
    """
    i = tl.arange(0, ROWS)
    mask = (i < count)[:, None] & (column < size)[None, :]
    where = x + row * size + i[:, None] * stride + column[None, :]
    return tl.load(where, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _store_rows(x, values, row, count, stride, column, size, ROWS: tl.constexpr):
    """The inverse of `_load_rows`, in the dtype of x."""
    i = tl.arange(0, ROWS)
    mask = (i < count)[:, None] & (column < size)[None, :]
    where = x + row * size + i[:, None] * stride + column[None, :]
    tl.store(where, values, mask=mask)


@triton.jit
def _load_decays(log_decay, row, count, stride, key, K, ROWS: tl.constexpr):
    """ln w of the steps of a chunk, zero beyond the last one, where a step changes nothing."""
    w = _load_rows(log_decay, row, count, stride, key, K, ROWS)
    return tl.where(w < LEAST, LEAST, w)  # a maximum would hide a NaN


@triton.jit
def _tile(x, index, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Where tile number `index` of ROWS times COLUMNS numbers lies."""
    i = tl.arange(0, ROWS)
    j = tl.arange(0, COLUMNS)
    return x + index * (ROWS * COLUMNS) + i[:, None] * COLUMNS + j[None, :]


@triton.jit
def _load_tile(x, index, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Tile number `index` in float32."""
    return tl.load(_tile(x, index, ROWS, COLUMNS)).to(tl.float32)


@triton.jit
def _store_tile(x, values, index, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The inverse of `_load_tile`, in the dtype of x."""
    tl.store(_tile(x, index, ROWS, COLUMNS), values)


@triton.jit
def _transposed_state(x, unit, key, value, K, V):
    """Where the transpose of a block of state number `unit` of x (B,H,V,K) lies, and its mask."""
    where = x + unit * V * K + value[None, :] * K + key[:, None]
    return where, (key < K)[:, None] & (value < V)[None, :]


@triton.jit
def _parting(level, ROWS: tl.constexpr):
    """Which pairs of rows (t, s) part where two parts of 2**level rows meet."""
    t = tl.arange(0, ROWS)[:, None]
    s = tl.arange(0, ROWS)[None, :]
    return (tl.where(s < t, t ^ s, 0) >> level) == 1


@triton.jit
def _summed(level, ROWS: tl.constexpr):
    """Which rows (s) each row (t) sums ln w over: of its own part of 2**level rows those before it,
    if the part is the second of two, else those after it.
    """
    t = tl.arange(0, ROWS)[:, None]
    s = tl.arange(0, ROWS)[None, :]
    others = tl.where(s == t, ROWS, t ^ s)
    late = ((t >> level) & 1) == 1
    return ((others >> level) == 0) & ((s < t) == late)


@triton.jit
def _parts(x):
    """x (float32) as the sum of three numbers of bfloat16, exactly."""
    high = x.to(tl.bfloat16)
    rest = x - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
    return high, middle, low


@triton.jit
def _sums(which, parts):
    """Sums of the rows of x that `which`, (row of the sum, row of x), says; parts: `_parts(x)`.

    Products by 1 and 0 are exact, and the smallest numbers are added first.
    """
    high, middle, low = parts
    which = tl.where(which, 1.0, 0.0).to(tl.bfloat16)
    if INTERPRETED:
        which = which.to(tl.float32)
        high = high.to(tl.float32)
        middle = middle.to(tl.float32)
        low = low.to(tl.float32)
    total = tl.dot(which, low)
    total = tl.dot(which, middle, total)
    return tl.dot(which, high, total)


@triton.jit
def _decay(log_w):
    """W as the sum of 1 and W - 1, if it is weak, else of 0 and W: a long memory keeps its digits.

    W - 1 is a sum of 12 terms of the series of exp, the rest of which is below 2**-34 of it.
    """
    weak = log_w > WEAK
    x = tl.where(weak, log_w, 0.0)
    series = tl.full(x.shape, 1.0, tl.float32)
    for n in tl.static_range(12, 1, -1):
        series = 1.0 + series * x * (1.0 / n)
    return tl.where(weak, 1.0, 0.0), tl.where(weak, x * series, tl.exp(log_w))


@triton.jit
def _load_decay(factors, index, count, key, KEYS: tl.constexpr):
    """The two parts of W of chunk `index` of `count`, as columns."""
    kept = tl.load(factors + index * KEYS + key)
    factor = tl.load(factors + (count + index) * KEYS + key)
    return kept[:, None], factor[:, None]


@triton.jit(do_not_specialize=LENGTHS)
def _prepare(
    r,
    log_decay,
    k,
    a,
    b,
    rows,
    weights,
    factors,
    T,
    H,
    K,
    chunks,
    KEEP: tl.constexpr,
    CHUNK: tl.constexpr,
    LEVELS: tl.constexpr,
    KEYS: tl.constexpr,
    PAIRS: tl.constexpr,
    SOLVE: tl.constexpr,
):
    """Everything of a chunk that needs no state: P, G, b E, L and Z; with KEEP also N, M A and R M.

    `rows` (parts,B,H,chunks,C,KEYS), `weights` (parts,B,H,chunks,C,C), `factors` the two parts of W
    (2,B,H,chunks,KEYS).
    """
    index = tl.program_id(0).to(tl.int64)
    count = tl.num_programs(0)
    unit = index // chunks
    start = (index % chunks) * CHUNK
    row = _row(unit, start, T, H)
    left = T - start
    key = tl.arange(0, KEYS)
    i = tl.arange(0, CHUNK)
    log_w = _load_decays(log_decay, row, left, H * K, key, K, CHUNK)
    log_w_parts = _parts(log_w)
    rs = _load_rows(r, row, left, H * K, key, K, CHUNK)
    ks = _load_rows(k, row, left, H * K, key, K, CHUNK)
    aa = _load_rows(a, row, left, H * K, key, K, CHUNK)
    bs = _load_rows(b, row, left, H * K, key, K, CHUNK)
    rs_decayed = rs * tl.exp(log_w)
    same = i[:, None] == i[None, :]
    solved = same.to(tl.float32)
    from_k = tl.zeros([CHUNK, CHUNK], tl.float32)
    to_k = tl.where(same, tl.sum(rs * ks, 1)[:, None], 0.0)
    to_b = tl.where(same, tl.sum(rs * bs, 1)[:, None], 0.0)
    # At each level k and b are scaled by the decays after them in their part, r and a by those
    # before them in theirs. Parts of one step, of level 0, have none.
    # Warps share the columns of a result if, of products that follow from each other, the last has
    # more columns than rows: here and below that is so.
    decay = tl.full([CHUNK, KEYS], 1.0, tl.float32)
    for level in range(LEVELS):
        pairs = _parting(level, CHUNK)
        k_after = tl.trans(ks * decay)
        b_after = tl.trans(bs * decay)
        a_before = aa * decay
        r_before = rs_decayed * decay
        from_k = tl.where(pairs, _dot(a_before, k_after, PAIRS), from_k)
        to_k = tl.where(pairs, _dot(r_before, k_after, PAIRS), to_k)
        to_b = tl.where(pairs, _dot(r_before, b_after, PAIRS), to_b)
        from_b = tl.where(pairs, _dot(a_before, b_after, PAIRS), 0.0)
        solved += _dot(solved, _dot(from_b, solved, SOLVE), SOLVE)
        decay = tl.exp(_sums(_summed(level + 1, CHUNK), log_w_parts))
    through = _dot(solved, from_k, PAIRS)
    z = to_k + _dot(to_b, through, PAIRS)
    _store_tile(weights, z, Z * count + index, CHUNK, CHUNK)
    if KEEP:
        _store_tile(weights, through, MA * count + index, CHUNK, CHUNK)
        back = _dot(to_b, solved, PAIRS)
        _store_tile(weights, back, RM * count + index, CHUNK, CHUNK)
    after = decay  # of the last level, whose parts are the whole chunk
    b_after = bs * after
    _store_tile(rows, b_after, BE * count + index, CHUNK, KEYS)
    n = _dot(tl.trans(solved), b_after, PAIRS)
    if KEEP:
        _store_tile(rows, n, N * count + index, CHUNK, KEYS)
    added = ks * after + _dot(tl.trans(from_k), n, PAIRS)
    _store_tile(rows, added, L * count + index, CHUNK, KEYS)
    before = tl.exp(_sums(i[None, :] < i[:, None], log_w_parts))
    p = _dot(solved, aa * before, PAIRS)
    _store_tile(rows, p, P * count + index, CHUNK, KEYS)
    g = rs_decayed * before + _dot(to_b, p, PAIRS)
    _store_tile(rows, g, G * count + index, CHUNK, KEYS)
    kept, factor = _decay(tl.sum(log_w, 0))
    tl.store(factors + index * KEYS + key, kept)
    tl.store(factors + (count + index) * KEYS + key, factor)


@triton.jit(do_not_specialize=LENGTHS)
def _outputs(
    v,
    state,
    rows,
    weights,
    factors,
    out,
    last,
    T,
    H,
    K,
    V,
    chunks,
    CHUNK: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    PAIRS: tl.constexpr,
    STATE: tl.constexpr,
):
    """Every o_t and the last state, chunk after chunk."""
    blocks = tl.cdiv(V, VALUES)
    unit = (tl.program_id(0) // blocks).to(tl.int64)
    count = (tl.num_programs(0) // blocks).to(tl.int64) * chunks
    key = tl.arange(0, KEYS)
    value = (tl.program_id(0) % blocks) * VALUES + tl.arange(0, VALUES)
    where, mask = _transposed_state(state, unit, key, value, K, V)
    h = tl.load(where, mask=mask, other=0.0)
    first = _row(unit, 0, T, H)
    for chunk in range(chunks):
        index = unit * chunks + chunk
        row = first + chunk * CHUNK * H
        left = T - chunk * CHUNK
        kept, factor = _load_decay(factors, index, count, key, KEYS)
        vs = _load_rows(v, row, left, H * V, value, V, CHUNK)
        p = _load_tile(rows, P * count + index, CHUNK, KEYS)
        g = _load_tile(rows, G * count + index, CHUNK, KEYS)
        be = _load_tile(rows, BE * count + index, CHUNK, KEYS)
        added = _load_tile(rows, L * count + index, CHUNK, KEYS)
        z = _load_tile(weights, Z * count + index, CHUNK, CHUNK)
        o = _dot(g, h, STATE) + _dot(z, vs, PAIRS)
        _store_rows(out, o, row, left, H * V, value, V, CHUNK)
        read = _dot(p, h, STATE)
        h = kept * h + factor * h + _dot(tl.trans(added), vs, PAIRS)
        h += _dot(tl.trans(be), read, STATE)
    where, mask = _transposed_state(last, unit, key, value, K, V)
    tl.store(where, h, mask=mask)


@triton.jit
def _carry(
    x,
    state,
    rows,
    factors,
    carried,
    last,
    unit,
    units,
    block,
    T,
    H,
    K,
    V,
    chunks,
    READ: tl.constexpr,
    WRITE: tl.constexpr,
    ADD: tl.constexpr,
    BACK: tl.constexpr,
    CHUNK: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    PADDED: tl.constexpr,
    PAIRS: tl.constexpr,
    STATE: tl.constexpr,
):
    """h before W h + WRITE^T (READ h) + ADD^T x of each chunk into `carried`
    (B,H,chunks,KEYS,PADDED); BACK: from the last chunk to the first, and the last h into `last`.
    """
    count = units * chunks
    key = tl.arange(0, KEYS)
    column = block * VALUES + tl.arange(0, VALUES)
    where, mask = _transposed_state(state, unit, key, column, K, V)
    h = tl.load(where, mask=mask, other=0.0)
    first = _row(unit, 0, T, H)
    for n in range(chunks):
        chunk = chunks - 1 - n if BACK else n
        index = unit * chunks + chunk
        row = first + chunk * CHUNK * H
        kept, factor = _load_decay(factors, index, count, key, KEYS)
        xs = _load_rows(x, row, T - chunk * CHUNK, H * V, column, V, CHUNK)
        reading = _load_tile(rows, READ * count + index, CHUNK, KEYS)
        writing = _load_tile(rows, WRITE * count + index, CHUNK, KEYS)
        adding = _load_tile(rows, ADD * count + index, CHUNK, KEYS)
        tile = index * (KEYS * PADDED) + key[:, None] * PADDED + column[None, :]
        tl.store(carried + tile, h)
        read = _dot(reading, h, STATE)
        h = kept * h + factor * h + _dot(tl.trans(adding), xs, PAIRS)
        h += _dot(tl.trans(writing), read, STATE)
    if BACK:
        where, mask = _transposed_state(last, unit, key, column, K, V)
        tl.store(where, h, mask=mask)


@triton.jit(do_not_specialize=LENGTHS)
def _states(
    v,
    grad_out,
    state,
    grad_last,
    rows,
    factors,
    starts,
    ends,
    grad_state,
    T,
    H,
    K,
    V,
    chunks,
    CHUNK: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    PADDED: tl.constexpr,
    PAIRS: tl.constexpr,
    STATE: tl.constexpr,
):
    """The state before each chunk into `starts`, by half of the programs, and by the others the
    gradient of that after it into `ends`, both (B,H,chunks,KEYS,PADDED).

    H' = W H + (b E)^T (P H) + L^T v, and transposed gH = W gH' + P^T (b E gH') + G^T grad_o.
    """
    blocks = PADDED // VALUES
    half = tl.num_programs(0) // 2
    program = tl.program_id(0)
    units = (half // blocks).to(tl.int64)
    block = program % blocks
    if program < half:
        unit = (program // blocks).to(tl.int64)
        _carry(
            v,
            state,
            rows,
            factors,
            starts,
            grad_state,
            unit,
            units,
            block,
            T,
            H,
            K,
            V,
            chunks,
            READ=P,
            WRITE=BE,
            ADD=L,
            BACK=False,
            CHUNK=CHUNK,
            KEYS=KEYS,
            VALUES=VALUES,
            PADDED=PADDED,
            PAIRS=PAIRS,
            STATE=STATE,
        )
    else:
        unit = ((program - half) // blocks).to(tl.int64)
        _carry(
            grad_out,
            grad_last,
            rows,
            factors,
            ends,
            grad_state,
            unit,
            units,
            (program - half) % blocks,
            T,
            H,
            K,
            V,
            chunks,
            READ=BE,
            WRITE=P,
            ADD=G,
            BACK=True,
            CHUNK=CHUNK,
            KEYS=KEYS,
            VALUES=VALUES,
            PADDED=PADDED,
            PAIRS=PAIRS,
            STATE=STATE,
        )


@triton.jit(do_not_specialize=LENGTHS)
def _gradients(
    r,
    log_decay,
    k,
    v,
    a,
    b,
    grad_out,
    rows,
    weights,
    starts,
    ends,
    grad_r,
    grad_w,
    grad_k,
    grad_v,
    grad_a,
    grad_b,
    T,
    H,
    K,
    V,
    chunks,
    CHUNK: tl.constexpr,
    LEVELS: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    PADDED: tl.constexpr,
    PAIRS: tl.constexpr,
    STATE: tl.constexpr,
):
    """All gradients of the inputs of a chunk, from the state before it and the gradient of that
    after it.
    """
    index = tl.program_id(0).to(tl.int64)
    count = tl.num_programs(0)
    unit = index // chunks
    start = (index % chunks) * CHUNK
    row = _row(unit, start, T, H)
    left = T - start
    key = tl.arange(0, KEYS)
    i = tl.arange(0, CHUNK)

    # Through the state before the chunk and that after it, a block of values at a time.
    # `from_a_k`, (t, i), is the gradient of A, what a_t sees of k_i; the other three likewise.
    from_a_k = tl.zeros([CHUNK, CHUNK], tl.float32)
    from_a_b = tl.zeros([CHUNK, CHUNK], tl.float32)
    from_r_k = tl.zeros([CHUNK, CHUNK], tl.float32)
    from_r_b = tl.zeros([CHUNK, CHUNK], tl.float32)
    ga = tl.zeros([CHUNK, KEYS], tl.float32)
    gb = tl.zeros([CHUNK, KEYS], tl.float32)
    gr = tl.zeros([CHUNK, KEYS], tl.float32)
    gk = tl.zeros([CHUNK, KEYS], tl.float32)
    g_factor = tl.zeros([KEYS], tl.float32)
    for block in range(PADDED // VALUES):
        value = block * VALUES + tl.arange(0, VALUES)
        vs = _load_rows(v, row, left, H * V, value, V, CHUNK)
        go = _load_rows(grad_out, row, left, H * V, value, V, CHUNK)
        tile = index * (KEYS * PADDED) + key[:, None] * PADDED + value[None, :]
        h = tl.load(starts + tile).to(tl.float32)
        gh = tl.load(ends + tile).to(tl.float32)
        p = _load_tile(rows, P * count + index, CHUNK, KEYS)
        through = _load_tile(weights, MA * count + index, CHUNK, CHUNK)
        u = _dot(p, h, STATE) + _dot(through, vs, PAIRS)  # what the steps read
        n = _load_tile(rows, N * count + index, CHUNK, KEYS)
        back = _load_tile(weights, RM * count + index, CHUNK, CHUNK)
        gu = _dot(n, gh, STATE) + _dot(tl.trans(back), go, PAIRS)
        added = _load_tile(rows, L * count + index, CHUNK, KEYS)
        z = _load_tile(weights, Z * count + index, CHUNK, CHUNK)
        gv = _dot(added, gh, STATE) + _dot(tl.trans(z), go, PAIRS)
        _store_rows(grad_v, gv, row, left, H * V, value, V, CHUNK)
        from_a_k += _dot(gu, tl.trans(vs), STATE)
        from_a_b += _dot(gu, tl.trans(u), STATE)
        from_r_k += _dot(go, tl.trans(vs), PAIRS)
        from_r_b += _dot(go, tl.trans(u), STATE)
        ga += _dot(gu, tl.trans(h), STATE)
        gr += _dot(go, tl.trans(h), STATE)
        gk += _dot(vs, tl.trans(gh), STATE)
        gb += _dot(u, tl.trans(gh), STATE)
        g_factor += tl.sum(h * gh, 1)

    log_w = _load_decays(log_decay, row, left, H * K, key, K, CHUNK)
    log_w_parts = _parts(log_w)
    w = tl.exp(log_w)
    rs = _load_rows(r, row, left, H * K, key, K, CHUNK)
    ks = _load_rows(k, row, left, H * K, key, K, CHUNK)
    aa = _load_rows(a, row, left, H * K, key, K, CHUNK)
    bs = _load_rows(b, row, left, H * K, key, K, CHUNK)
    earlier = i[None, :] < i[:, None]
    later = i[None, :] > i[:, None]
    before = tl.exp(_sums(earlier, log_w_parts))
    after = tl.exp(_sums(later, log_w_parts))
    ga *= before
    gr *= before * w
    gk *= after
    gb *= after
    # ln w of a step is in its own row of r, in the later rows of r and a, in the earlier rows of k
    # and b, and in W.
    gw = rs * gr
    reading = _parts(gw + aa * ga)
    writing = _parts(ks * gk + bs * gb)
    gw += _sums(later, reading) + _sums(earlier, writing)
    gw += (g_factor * tl.exp(tl.sum(log_w, 0)))[None, :]
    same = i[:, None] == i[None, :]
    own_k = tl.sum(tl.where(same, from_r_k, 0.0), 1)[:, None]
    own_b = tl.sum(tl.where(same, from_r_b, 0.0), 1)[:, None]
    gr += own_k * ks + own_b * bs
    gk += own_k * rs
    gb += own_b * rs

    # And through what the steps see of each other, a level at a time as in `_prepare`.
    rs_decayed = rs * w
    for level in range(LEVELS):
        pairs = _parting(level, CHUNK)
        inside = _summed(level, CHUNK)
        decay = tl.exp(_sums(inside, log_w_parts))
        g_from_k = tl.where(pairs, from_a_k, 0.0)
        g_from_b = tl.where(pairs, from_a_b, 0.0)
        g_to_k = tl.where(pairs, from_r_k, 0.0)
        g_to_b = tl.where(pairs, from_r_b, 0.0)
        k_after = ks * decay
        b_after = bs * decay
        a_before = aa * decay
        r_before = rs_decayed * decay
        added_a = decay * (_dot(g_from_k, k_after, PAIRS) + _dot(g_from_b, b_after, PAIRS))
        added_r = decay * w * (_dot(g_to_k, k_after, PAIRS) + _dot(g_to_b, b_after, PAIRS))
        g_from_k = tl.trans(g_from_k)
        g_from_b = tl.trans(g_from_b)
        g_to_k = tl.trans(g_to_k)
        g_to_b = tl.trans(g_to_b)
        added_k = decay * (_dot(g_from_k, a_before, PAIRS) + _dot(g_to_k, r_before, PAIRS))
        added_b = decay * (_dot(g_from_b, a_before, PAIRS) + _dot(g_to_b, r_before, PAIRS))
        ga += added_a
        gr += added_r
        gk += added_k
        gb += added_b
        own = rs * added_r
        summed = own + aa * added_a + ks * added_k + bs * added_b
        summed_parts = _parts(summed)
        gw += own + _sums(tl.trans(inside), summed_parts)
    _store_rows(grad_r, gr, row, left, H * K, key, K, CHUNK)
    _store_rows(grad_w, gw, row, left, H * K, key, K, CHUNK)
    _store_rows(grad_k, gk, row, left, H * K, key, K, CHUNK)
    _store_rows(grad_a, ga, row, left, H * K, key, K, CHUNK)
    _store_rows(grad_b, gb, row, left, H * K, key, K, CHUNK)


def forward(
    r: Tensor,
    log_decay: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    state: Tensor,
    *,
    precision: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Every o_t (B,T,H,V) and the last state (B,H,V,K).

    precision: "bf16", "tf32x3" or "ieee"; None takes "bf16" for bfloat16, "tf32x3" for float16 and
    float32. Raises ValueError for another one, or for more than MOST_KEYS keys.
    """
    plan = planned(r, v, precision)
    if 0 in (*r.shape, *v.shape):
        return torch.zeros_like(v), state.clone()
    out = torch.empty_like(v)
    last = torch.empty_like(state)
    with torch.cuda.device_of(r):  # kernels are launched on the current device
        rows, weights, factors = _prepared(plan, r, log_decay, k, a, b, keep=False)
        blocks = triton.cdiv(v.shape[3], plan.carried)
        _outputs[(plan.units * blocks,)](
            v,
            state,
            rows,
            weights,
            factors,
            out,
            last,
            *plan.sizes,
            **plan.of_outputs(),
        )
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
    *,
    precision: str | None = None,
) -> tuple[Tensor, ...]:
    """Gradients of all seven inputs, from those of both results; for `precision` see `forward`."""
    plan = planned(r, v, precision)
    inputs = (r, log_decay, k, v, a, b)
    if 0 in (*r.shape, *v.shape):
        return *(torch.zeros_like(x) for x in inputs), grad_last.clone()
    grads = [torch.empty_like(x) for x in inputs]
    grad_state = torch.empty_like(state)
    starts = r.new_empty((plan.programs, plan.keys, plan.padded), dtype=plan.precision.states)
    ends = torch.empty_like(starts)
    with torch.cuda.device_of(r):  # kernels are launched on the current device
        rows, weights, factors = _prepared(plan, r, log_decay, k, a, b, keep=True)
        blocks = plan.padded // plan.carried
        programs = 2 * plan.units * blocks  # half of them for each direction
        _states[(programs,)](
            v,
            grad_out,
            state,
            grad_last,
            rows,
            factors,
            starts,
            ends,
            grad_state,
            *plan.sizes,
            **plan.of_states(),
        )
        _gradients[(plan.programs,)](
            *inputs,
            grad_out,
            rows,
            weights,
            starts,
            ends,
            *grads,
            *plan.sizes,
            **plan.of_gradients(),
        )
    return *grads, grad_state


class Launch(NamedTuple):
    """Sizes of a problem, and what its kernels are compiled for.

    sizes: T, H, K, V and the number of chunks; keys, padded: K and V as they are kept; values,
    carried: columns of a program of `_gradients`, and of one that carries the state; warps: of
    `_prepare`, of what carries the state, and of `_gradients`.
    """

    sizes: tuple[int, int, int, int, int]
    units: int
    chunk: int
    keys: int
    padded: int
    values: int
    carried: int
    warps: tuple[int, int, int]
    precision: Precision

    @property
    def programs(self) -> int:
        """Programs of the kernels that take one chunk of one unit each."""
        return self.units * self.sizes[-1]

    def of_prepare(self, *, keep: bool) -> dict[str, Any]:
        return {
            "KEEP": keep,
            "CHUNK": self.chunk,
            "LEVELS": self.chunk.bit_length() - 1,
            "KEYS": self.keys,
            "PAIRS": self.precision.pairs,
            "SOLVE": self.precision.solve,
            "num_warps": self.warps[0],
            "num_stages": 1,
            **OPTIONS,
        }

    def of_outputs(self) -> dict[str, Any]:
        return {
            "CHUNK": self.chunk,
            "KEYS": self.keys,
            "VALUES": self.carried,
            "PAIRS": self.precision.pairs,
            "STATE": self.precision.state,
            "num_warps": self.warps[1],
            "num_stages": 2,
            **OPTIONS,
        }

    def of_states(self) -> dict[str, Any]:
        return self.of_outputs() | {"PADDED": self.padded}

    def of_gradients(self) -> dict[str, Any]:
        return {
            "CHUNK": self.chunk,
            "LEVELS": self.chunk.bit_length() - 1,
            "KEYS": self.keys,
            "VALUES": self.values,
            "PADDED": self.padded,
            "PAIRS": self.precision.pairs,
            "STATE": self.precision.state,
            "num_warps": self.warps[2],
            "num_stages": 1,
            **OPTIONS,
        }


def planned(r: Tensor, v: Tensor, precision: str | None) -> Launch:
    """The plan for inputs r (B,T,H,K) and v (B,T,H,V); for `precision` and errors see `forward`."""
    batch, time, heads, size = r.shape
    values = v.shape[3]
    if size > MOST_KEYS:
        raise ValueError(
            f"wkv7: r must have a key size of at most {MOST_KEYS} on tensor cores, got {size};"
            " backend='gpu' takes more"
        )
    default = "bf16" if r.dtype == torch.bfloat16 else "tf32x3"
    chosen = default if precision is None else precision
    if chosen not in PRECISIONS:
        raise ValueError(
            f"wkv7: precision must be one of {', '.join(PRECISIONS)}, got {precision!r}"
        )
    keys = max(16, triton.next_power_of_2(size))
    padded = max(16, triton.next_power_of_2(values))
    units = batch * heads
    if keys > 64 or chosen != "bf16":
        chunk = 16
        warps = (8, 4, 8)
    elif units >= MANY_UNITS:
        chunk = 16
        warps = (2, 2, 4)
    else:
        chunk = 32
        warps = (4, 4, 8)
    return Launch(
        sizes=(time, heads, size, values, triton.cdiv(time, chunk)),
        units=units,
        chunk=chunk,
        keys=keys,
        padded=padded,
        values=min(padded, TILE // keys),
        carried=min(padded, chunk),
        warps=warps,
        precision=PRECISIONS[chosen],
    )


def _prepared(
    plan: Launch,
    r: Tensor,
    log_decay: Tensor,
    k: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Results of `_prepare` for every chunk; keep: with what the backward pass needs."""
    time, heads, size, _, chunks = plan.sizes
    kept = plan.precision.rows
    row_parts = 1 + (N if keep else L).value
    weight_parts = 1 + (RM if keep else Z).value
    rows = r.new_empty((row_parts, plan.programs, plan.chunk, plan.keys), dtype=kept)
    weights = r.new_empty((weight_parts, plan.programs, plan.chunk, plan.chunk), dtype=kept)
    factors = r.new_empty((2, plan.programs, plan.keys), dtype=torch.float32)
    _prepare[(plan.programs,)](
        r,
        log_decay,
        k,
        a,
        b,
        rows,
        weights,
        factors,
        time,
        heads,
        size,
        chunks,
        **plan.of_prepare(keep=keep),
    )
    return rows, weights, factors
