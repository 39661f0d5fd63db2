"""The scan in Triton: channels on lanes, serial in time in registers.

`VARIANTS` names the ways to launch it. The kernels of this file split time into chunks in three
phases:

1. `_chunk_ends` scans every chunk but the last from zero: its end, and the product of its decays.
2. `_chunk_starts` carries the state over the chunks.
3. `_forward` or `_backward` scans every chunk again from its right start and writes the results.

One chunk (a short sequence, or enough batch and channels to fill the GPU) needs phase 3 alone,
started from the state: b is then read once and h written once. The backward pass is the same scan
from the last step to the first, where the carry is a_{t+1} * g_{t+1}. A chunk is counted in the
direction of its scan.

Accuracy: values within a group of ROWS steps are float32. From group to group the carry is float64,
fed with what the group contributes when it starts from zero, so rounding errors do not add up over
a long sequence with decays near 1.

Letters: B batch, T time, D channels. See `plkernel.kernels.scan` for shapes and dtypes.
"""

# The language of the kernels is Triton, not typed Python:
# mypy: disallow-untyped-defs=False, disable-error-code="assignment"

from math import isqrt

import torch
import triton
import triton.language as tl
from torch import Tensor

from plkernel.kernels.scan.look_back import LookBack
from plkernel.kernels.scan.steps import fixed_decay, load_rows, step
from plkernel.kernels.scan.stream import Stream
from plkernel.kernels.scan.tiles import Tiles

ROWS = 16  # steps loaded before the first of them is used: hides the latency of memory
# The same in `_backward`, which loads from three tensors: 16 do not fit in registers.
BACKWARD_ROWS = 8
LANES = 64  # channels of one program: two for each thread of its only warp
FEW_LANES = 32  # for few channels, and for the small tensors between the phases
FULL = 512  # programs that keep the largest GPU (132 multiprocessors) busy
WANTED = 2048  # programs to aim for once time is split
ALONE = 256  # a sequence up to here costs less in one chunk than the launch of two more phases
SHORTEST = 64  # steps of a chunk
# Compiled once for all lengths: nothing is gained from knowing that one is 1 or a multiple of 16.
LENGTHS = ("T", "LENGTH", "chunks")
# The fusion of a * h + b into one rounding is asked for by name: its default differs between
# versions of Triton.
OPTIONS = {"num_warps": 1, "enable_fp_fusion": True}
THREE_PHASES = "three_phases"  # the kernels of this file
# How a scan can be launched. On an H200 none is fastest everywhere. Forward and backward together,
# at twelve sizes, the three phases take at most 1.24 times as long as the fastest, `look_back` 1.34
# times; forward alone, with fixed decays, `look_back` takes 0.71 to 0.93 of their time; `stream`
# needs tens of thousands of channels (runs/records/bench/h200/variants.json). `tiles` has been
# compiled for sm_90, interpreted and held against float64; it has not been timed.
VARIANTS: dict[str, LookBack | Stream | Tiles | None] = {
    THREE_PHASES: None,
    "look_back": LookBack(),
    "stream": Stream(),
    "tiles": Tiles(),
}
DEFAULT = THREE_PHASES


@triton.jit
def _place(T, D, LENGTH, chunks, REVERSE: tl.constexpr, LANES: tl.constexpr):
    """Batch, chunk and channels of this program; the time of its first step, and how many steps it
    has.
    """
    blocks = tl.cdiv(D, LANES)
    program = tl.program_id(0)
    channel = (program % blocks) * LANES + tl.arange(0, LANES)
    chunk = (program // blocks) % chunks
    batch = (program // (blocks * chunks)).to(tl.int64)
    done = chunk.to(tl.int64) * LENGTH
    count = tl.minimum(T - done, LENGTH).to(tl.int32)
    time = T - 1 - done if REVERSE else done
    return batch, chunk, channel, time, count


@triton.jit
def _factor(whole, part, count, FIXED: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr):
    """The product of a fixed decay over the next group of steps, of which `count` are left; else 1,
    which is yet to be multiplied by the decays of the steps.
    """
    return tl.where(count >= ROWS, whole, part) if FIXED else tl.full([LANES], 1.0, tl.float64)


@triton.jit(do_not_specialize=LENGTHS)
def _chunk_ends(
    a,
    x,
    ends,
    products,
    T,
    D,
    LENGTH,
    chunks,
    FIXED: tl.constexpr,
    REVERSE: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Phase 1: the carry that leaves each chunk when none enters it, and the product of the chunk's
    decays, both (B,chunks,D), where `chunks` counts all but the last.
    """
    batch, chunk, channel, time, count = _place(T, D, LENGTH, chunks, REVERSE, LANES)
    lanes = channel < D
    stride = -D if REVERSE else D
    row = (batch * T + time) * D
    fixed, whole, part = fixed_decay(a + channel, lanes, count, FIXED, ROWS)
    carry = tl.zeros([LANES], tl.float64)
    product = tl.full([LANES], 1.0, tl.float64)
    while count > 0:
        left = tl.where(lanes, count, 0)  # rows left to this lane
        xs = load_rows(x + row + channel, stride, left, 0.0, ROWS)
        decays = () if FIXED else load_rows(a + row + channel, stride, left, 1.0, ROWS)
        local = tl.zeros([LANES], tl.float32)
        factor = _factor(whole, part, count, FIXED, LANES, ROWS)
        for i in tl.static_range(ROWS):
            decay = tl.where(i < count, fixed, 1.0) if FIXED else decays[i]
            _, local = step(local, decay, xs[i], REVERSE)
            if not FIXED:
                factor = factor * decay.to(tl.float64)
        carry = factor * carry + local.to(tl.float64)
        product = product * factor
        row += ROWS * stride
        count -= ROWS
    index = (batch * chunks + chunk) * D + channel
    tl.store(ends + index, carry, mask=lanes)
    tl.store(products + index, product, mask=lanes)


@triton.jit(do_not_specialize=LENGTHS)
def _chunk_starts(
    ends, products, first, starts, D, chunks, LANES: tl.constexpr, ROWS: tl.constexpr
):
    """Phase 2: the carry that enters each chunk. ends and products (B,chunks-1,D), first (B,D),
    starts (B,chunks,D).
    """
    blocks = tl.cdiv(D, LANES)
    program = tl.program_id(0)
    channel = (program % blocks) * LANES + tl.arange(0, LANES)
    lanes = channel < D
    batch = (program // blocks).to(tl.int64)
    carry = tl.load(first + batch * D + channel, mask=lanes, other=0.0).to(tl.float64)
    row = batch * (chunks - 1) * D
    start = starts + batch * chunks * D + channel
    tl.store(start, carry, mask=lanes)
    count = chunks - 1
    while count > 0:
        left = tl.where(lanes, count, 0)
        factors = load_rows(products + row + channel, D, left, 0.0, ROWS, tl.float64)
        locals_ = load_rows(ends + row + channel, D, left, 0.0, ROWS, tl.float64)
        for i in tl.static_range(ROWS):
            carry = factors[i] * carry + locals_[i]
            start += D
            tl.store(start, carry, mask=i < left)
        row += ROWS * D
        count -= ROWS


@triton.jit(do_not_specialize=LENGTHS)
def _forward(
    a,
    b,
    starts,
    h,
    last,
    T,
    D,
    LENGTH,
    chunks,
    FIXED: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Phase 3: every h of a chunk from the carry that enters it; the last chunk also writes the
    last state.
    """
    batch, chunk, channel, time, count = _place(T, D, LENGTH, chunks, False, LANES)
    lanes = channel < D
    row = (batch * T + time) * D
    index = (batch * chunks + chunk) * D + channel
    carry = tl.load(starts + index, mask=lanes, other=0.0).to(tl.float64)
    fixed, whole, part = fixed_decay(a + channel, lanes, count, FIXED, ROWS)
    while count > 0:
        left = tl.where(lanes, count, 0)  # rows left to this lane
        xs = load_rows(b + row + channel, D, left, 0.0, ROWS)
        decays = () if FIXED else load_rows(a + row + channel, D, left, 1.0, ROWS)
        value = carry.to(tl.float32)
        local = tl.zeros([LANES], tl.float32)
        factor = _factor(whole, part, count, FIXED, LANES, ROWS)
        for i in tl.static_range(ROWS):
            decay = tl.where(i < count, fixed, 1.0) if FIXED else decays[i]
            value, _ = step(value, decay, xs[i], False)
            local, _ = step(local, decay, xs[i], False)
            if not FIXED:
                factor = factor * decay.to(tl.float64)
            tl.store(h + row + i * D + channel, value, mask=i < left)
        carry = factor * carry + local.to(tl.float64)
        row += ROWS * D
        count -= ROWS
    in_last = tl.where(chunk == chunks - 1, lanes, False)
    tl.store(last + batch * D + channel, carry, mask=in_last)


@triton.jit(do_not_specialize=LENGTHS)
def _backward(
    a,
    grad_h,
    h,
    state,
    starts,
    grad_a,
    grad_b,
    grad_state,
    T,
    D,
    LENGTH,
    chunks,
    FIXED: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Phase 3 in reverse: grad_b_t = g_t, grad_a_t = g_t * h_{t-1} and grad_state = a_1 * g_1.

    For a fixed decay grad_a is (B,chunks,D) in float64, the sum over each chunk.
    """
    batch, chunk, channel, time, count = _place(T, D, LENGTH, chunks, True, LANES)
    lanes = channel < D
    row = (batch * T + time) * D
    index = (batch * chunks + chunk) * D + channel
    carry = tl.load(starts + index, mask=lanes, other=0.0).to(tl.float64)
    before = tl.load(state + batch * D + channel, mask=lanes, other=0.0).to(tl.float32)
    fixed, whole, part = fixed_decay(a + channel, lanes, count, FIXED, ROWS)
    total = tl.zeros([LANES], tl.float64)
    while count > 0:
        left = tl.where(lanes, count, 0)  # rows left to this lane
        xs = load_rows(grad_h + row + channel, -D, left, 0.0, ROWS)
        decays = () if FIXED else load_rows(a + row + channel, -D, left, 1.0, ROWS)
        hs = load_rows(h + row - D + channel, -D, tl.minimum(left, time), 0.0, ROWS)
        into = carry.to(tl.float32)
        local = tl.zeros([LANES], tl.float32)
        group = tl.zeros([LANES], tl.float32)
        factor = _factor(whole, part, count, FIXED, LANES, ROWS)
        for i in tl.static_range(ROWS):
            decay = tl.where(i < count, fixed, 1.0) if FIXED else decays[i]
            value, into = step(into, decay, xs[i], True)
            _, local = step(local, decay, xs[i], True)
            # Row i is the step at time - i, and before the first step lies the state.
            gradient = value * tl.where(time == i, before, hs[i])
            tl.store(grad_b + row - i * D + channel, value, mask=i < left)
            if FIXED:
                group += tl.where(i < left, gradient, 0.0)
            else:
                factor = factor * decay.to(tl.float64)
                tl.store(grad_a + row - i * D + channel, gradient, mask=i < left)
        carry = factor * carry + local.to(tl.float64)
        total += group.to(tl.float64)
        row -= ROWS * D
        time -= ROWS
        count -= ROWS
    if FIXED:
        tl.store(grad_a + index, total, mask=lanes)
    in_last = tl.where(chunk == chunks - 1, lanes, False)
    tl.store(grad_state + batch * D + channel, carry, mask=in_last)


def forward(
    a: Tensor, b: Tensor, state: Tensor, *, variant: str | None = None
) -> tuple[Tensor, Tensor]:
    """h_t = a_t * h_{t-1} + b_t with h_0 = state; returns every h_t and the last one.

    variant: a name in `VARIANTS`; None takes `DEFAULT`. Raises ValueError for another name.
    """
    chosen = _chosen(variant)
    if chosen is not None:
        return chosen.forward(a, b, state)
    batch, time, channels = b.shape
    h = torch.empty_like(b)
    last = torch.empty_like(state)
    fixed = a.dim() == 1
    lanes, length, chunks = divided(batch, time, channels)
    grid = (batch * chunks * triton.cdiv(channels, lanes),)
    with torch.cuda.device_of(b):  # kernels are launched on the current device
        starts = _starts(a, b, state, lanes, length, chunks, reverse=False)
        _forward[grid](
            a,
            b,
            starts,
            h,
            last,
            time,
            channels,
            length,
            chunks,
            FIXED=fixed,
            LANES=lanes,
            ROWS=ROWS,
            **OPTIONS,
        )
    return h, last


def backward(
    a: Tensor,
    state: Tensor,
    h: Tensor,
    grad_h: Tensor,
    grad_last: Tensor,
    *,
    variant: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """g_t = grad_h_t + a_{t+1} * g_{t+1}; gradients of a (g_t * h_{t-1}), of b (g_t) and of the
    state (a_1 g_1).

    variant: a name in `VARIANTS`; None takes `DEFAULT`. Raises ValueError for another name.
    """
    chosen = _chosen(variant)
    if chosen is not None:
        return chosen.backward(a, state, h, grad_h, grad_last)
    batch, time, channels = h.shape
    grad_b = torch.empty_like(h)
    grad_state = torch.empty_like(state)
    fixed = a.dim() == 1
    lanes, length, chunks = divided(batch, time, channels)
    if fixed:
        # Partial sums, not atomic additions: the order of the sum is fixed, and so is its result.
        grad_a = a.new_empty((batch, chunks, channels), dtype=torch.float64)
    else:
        grad_a = torch.empty_like(a)
    grid = (batch * chunks * triton.cdiv(channels, lanes),)
    with torch.cuda.device_of(h):  # kernels are launched on the current device
        starts = _starts(a, grad_h, grad_last, lanes, length, chunks, reverse=True)
        _backward[grid](
            a,
            grad_h,
            h,
            state,
            starts,
            grad_a,
            grad_b,
            grad_state,
            time,
            channels,
            length,
            chunks,
            FIXED=fixed,
            LANES=lanes,
            ROWS=BACKWARD_ROWS,
            **OPTIONS,
        )
    if fixed:
        grad_a = grad_a.sum((0, 1)).to(a.dtype)
    return grad_a, grad_b, grad_state


def _chosen(variant: str | None) -> LookBack | Stream | Tiles | None:
    """The plan of a variant; None for the kernels of this file."""
    name = DEFAULT if variant is None else variant
    if name not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, got {name!r}")
    return VARIANTS[name]


def _starts(
    a: Tensor, x: Tensor, first: Tensor, lanes: int, length: int, chunks: int, *, reverse: bool
) -> Tensor:
    """Phases 1 and 2: the carry that enters each chunk, (B,chunks,D)."""
    if chunks == 1:
        return first
    batch, time, channels = x.shape
    but_the_last = chunks - 1  # nothing reads what leaves the last chunk
    ends = x.new_empty((batch, but_the_last, channels), dtype=torch.float64)
    products = torch.empty_like(ends)
    starts = x.new_empty((batch, chunks, channels), dtype=torch.float64)
    _chunk_ends[(batch * but_the_last * triton.cdiv(channels, lanes),)](
        a,
        x,
        ends,
        products,
        time,
        channels,
        length,
        but_the_last,
        FIXED=a.dim() == 1,
        REVERSE=reverse,
        LANES=lanes,
        ROWS=ROWS,
        **OPTIONS,
    )
    _chunk_starts[(batch * triton.cdiv(channels, FEW_LANES),)](
        ends, products, first, starts, channels, chunks, LANES=FEW_LANES, ROWS=ROWS, **OPTIONS
    )
    return starts


def divided(batch: int, time: int, channels: int) -> tuple[int, int, int]:
    """Channels of a program, steps of a chunk and number of chunks, for a tensor (batch, time,
    channels).

    One chunk where that fills the GPU or time is short. Else enough chunks to fill it, and at least
    so long that no phase has many more steps in series than another: sqrt(T) steps in sqrt(T)
    chunks.
    """
    lanes = FEW_LANES if channels <= FEW_LANES else LANES
    programs = batch * triton.cdiv(channels, lanes)
    if time <= ALONE or programs >= FULL:
        return lanes, time, 1
    length = max(SHORTEST, isqrt(time), triton.cdiv(time * programs, WANTED))
    length = ROWS * triton.cdiv(length, ROWS)
    return lanes, length, triton.cdiv(time, length)
