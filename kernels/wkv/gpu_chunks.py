"""Shared by the Triton kernels of WKV: loads, decays of a sub-chunk, and phases 1 and 2, the state of every chunk.

See `plkernel.kernels.wkv.gpu`, whose phase 3 these serve. Phase 1 computes what every chunk but the last adds to the
state, and the product of the chunk's decays; phase 2 carries the state over the chunks in float64. The gradient of the
state runs through both from the last step to the first; a chunk is counted in the direction of its scan.
"""

# The language of the kernels is Triton, not typed Python:
# mypy: disallow-untyped-defs=False, disable-error-code="assignment"

import torch
import triton
import triton.language as tl
from torch import Tensor

from plkernel.kernels.tensors import check_gpu

ROWS = 16  # steps of a sub-chunk: the least that tl.dot takes; what they see of each other costs ROWS**2
CHUNK = 64  # steps between two kept states; the backward pass computes those inside anew: CHUNK**2 work
TILE = 4096  # entries of the part of a state that one program holds, where K <= 256
MOST_KEYS = 512  # the sub-chunks of longer keys do not fit in the shared memory of every GPU
LANES = 256  # entries of the state that one program of phase 2 carries
GROUP = 8  # chunks loaded before the first of them is used: hides the latency of memory
LEAST = tl.constexpr(-1e4)  # stands for every stronger decay: exp is 0 there already, and 0 * LEAST is not NaN
# Compiled once for all lengths: nothing is gained from knowing that one is 1 or a multiple of 16.
LENGTHS = ("T", "H", "chunks")
# The fusion of a * h + b into one rounding is asked for by name: its default differs between versions of Triton.
# Products of float32 keep their operands in registers: with fewer warps those of a tile do not fit.
OPTIONS = {"num_warps": 8, "num_stages": 1, "enable_fp_fusion": True}


@triton.jit
def place(H, chunks, blocks):
    """Batch, head, chunk and block of columns of this program."""
    program = tl.program_id(0)
    unit = program // (blocks * chunks)
    return (unit // H).to(tl.int64), unit % H, (program // blocks) % chunks, program % blocks


@triton.jit
def at(batch, time, head, T, H, K, FIXED: tl.constexpr):
    """Row of a step in (B,T,H,...), that of its ln w, and how far apart ln w of two steps are."""
    row = (batch * T + time) * H + head
    if FIXED:
        decay_row, stride = head.to(tl.int64), 0
    else:
        decay_row, stride = row, H * K
    return row, decay_row, stride


@triton.jit
def parts_of(T, chunk, CHUNK: tl.constexpr, ROWS: tl.constexpr):
    """Sub-chunks of a chunk; the last may be shorter."""
    return tl.cdiv(tl.minimum(T - chunk * CHUNK, CHUNK), ROWS)


@triton.jit
def load_rows(x, row, count, stride, column, size, ROWS: tl.constexpr):
    """ROWS rows in float32 (arithmetic in a half type is wrong in the interpreter), zero beyond `count` and `size`."""
    i = tl.arange(0, ROWS)
    mask = (i < count)[:, None] & (column < size)[None, :]
    return tl.load(x + row + i[:, None] * stride + column[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store_rows(x, values, row, count, stride, column, size, ROWS: tl.constexpr):
    """The inverse of `load_rows`, in the dtype of x."""
    i = tl.arange(0, ROWS)
    mask = (i < count)[:, None] & (column < size)[None, :]
    tl.store(x + row + i[:, None] * stride + column[None, :], values, mask=mask)


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
def decays(log_decay, row, count, stride, column, size, ROWS: tl.constexpr):
    """Sums of ln w over the rows of a sub-chunk before each row, over those after it, and over all."""
    w = load_rows(log_decay, row, count, stride, column, size, ROWS)
    w = tl.where(w < LEAST, LEAST, w)  # a maximum would hide a NaN
    earlier = order(ROWS)
    return dot(earlier, w), dot(tl.trans(earlier), w), tl.sum(w, 0)


@triton.jit
def state_block(x, index, key, value, K, V):
    """A block of columns of state number `index`: where it lies, and its mask."""
    where = x + index * K * V + key[:, None] * V + value[None, :]
    return where, (key < K)[:, None] & (value < V)[None, :]


@triton.jit
def next_state(state, k, v, after, total):
    """The state after a sub-chunk: each row decays by what comes after it."""
    return tl.exp(total)[:, None] * state + dot(tl.trans(k * tl.exp(after)), v)


@triton.jit(do_not_specialize=LENGTHS)
def chunk_ends(
    x, y, log_decay, starts, factors, T, H, K, V, chunks,
    FIXED: tl.constexpr, REVERSE: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Phase 1: what chunk c adds to the state that leaves it, into starts[c + 1], and the product of its decays.

    The state leaves with sum_t exp(ln w of the steps after t) x_t^T y_t, x and y being k and v. In reverse it is a
    gradient and leaves with those of the steps before, x and y being r and grad_o.
    """
    batch, head, chunk, block = place(H, chunks - 1, tl.cdiv(V, VALUES))
    key, value = tl.arange(0, KEYS), block * VALUES + tl.arange(0, VALUES)
    slab = chunks - 1 - chunk if REVERSE else chunk
    parts = parts_of(T, slab, CHUNK, ROWS)
    end = tl.zeros([KEYS, VALUES], tl.float32)
    past = tl.zeros([KEYS], tl.float64)  # sum of ln w from this sub-chunk to where the state leaves
    for n in range(parts):
        time = slab * CHUNK + (n if REVERSE else parts - 1 - n) * ROWS
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
    tl.store(factors + (unit * (chunks - 1) + chunk) * K + key, tl.exp(past), mask=(key < K) & (block == 0))


@triton.jit(do_not_specialize=LENGTHS)
def chunk_starts(first, factors, starts, K, V, chunks, LANES: tl.constexpr, GROUP: tl.constexpr):
    """Phase 2, in place: starts (B,H,chunks,K,V) from what each chunk adds to the state that enters it."""
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
        added, decays = (), ()
        for i in tl.static_range(GROUP):
            mask = inside & (i < count)
            added = added + (tl.load(start + (i + 1) * K * V, mask=mask, other=0.0),)  # noqa: RUF005
            decays = decays + (tl.load(factor + i * K, mask=mask, other=0.0),)  # noqa: RUF005 - Triton does not unpack
        for i in tl.static_range(GROUP):
            carry = decays[i] * carry + added[i].to(tl.float64)
            start += K * V
            tl.store(start, carry, mask=inside & (i < count))
        factor += GROUP * K
        count -= GROUP


def chunk_states(x: Tensor, y: Tensor, log_decay: Tensor, first: Tensor, *, reverse: bool) -> Tensor:
    """Phases 1 and 2: the state, or in reverse its gradient, that enters each chunk, (B,H,chunks,K,V)."""
    sizes, shapes, grid = launch(x, y, log_decay)
    batch, heads, size, values = first.shape
    chunks = sizes[-1]
    if chunks == 1:
        return first
    starts = first.new_empty((batch, heads, chunks, size, values))
    factors = first.new_empty((batch, heads, chunks - 1, size), dtype=torch.float64)
    shorter = (grid[0] // chunks * (chunks - 1),)
    chunk_ends[shorter](x, y, log_decay, starts, factors, *sizes, REVERSE=reverse, **shapes, **OPTIONS)
    chunk_starts[(batch * heads * triton.cdiv(size * values, LANES),)](
        first, factors, starts, size, values, chunks, LANES=LANES, GROUP=GROUP, **OPTIONS
    )
    return starts


def launch(r: Tensor, v: Tensor, log_decay: Tensor) -> tuple[tuple[int, ...], dict[str, int], tuple[int]]:
    """T, H, K, V and the number of chunks; the shapes compiled for; one program for each head, chunk and block of V."""
    batch, time, heads, size = r.shape
    values, chunks = v.shape[3], triton.cdiv(time, CHUNK)
    keys, block = tiles(size, values)
    shapes = {"FIXED": log_decay.dim() == 2, "CHUNK": CHUNK, "ROWS": ROWS, "KEYS": keys, "VALUES": block}
    return (time, heads, size, values, chunks), shapes, (batch * heads * chunks * triton.cdiv(values, block),)


def tiles(size: int, values: int) -> tuple[int, int]:
    """Rows (all) and columns of the part of a state (K,V) that one program holds: powers of two, at least 16."""
    keys = max(16, triton.next_power_of_2(size))
    return keys, max(16, min(triton.next_power_of_2(values), TILE // keys))


def check(*inputs: Tensor) -> None:
    """Refuses r, k, v, log_decay and u that the kernels cannot take, with ValueError."""
    if (size := inputs[0].shape[3]) > MOST_KEYS:
        raise ValueError(f"wkv: r has key size {size}; the gpu backend takes at most {MOST_KEYS}")
    named = dict(zip(("r", "k", "v", "log_decay", "u"), inputs, strict=True))
    check_gpu("wkv", named, compiled=isinstance(chunk_ends, triton.JITFunction))
