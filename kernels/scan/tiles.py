"""The scan in Triton without an exchange between programs: the warps of a program share the steps.

A program takes all steps of its channels, a tile at a time: each of WARPS warps has ROWS steps that
follow one another. It scans them from zero, the warps exchange what their steps contribute through
shared memory, and each scans its registers again from the carry that enters them. So every number
is read and written once, in one launch, and the loads of the next tiles are on their way meanwhile
(Triton's pipelining, asynchronous copies to shared memory). Batch and channels alone must fill the
GPU; a program has WARPS times as many warps as one of `plkernel.kernels.scan.stream`.

Accuracy: steps within a warp's rows are float32. What goes from warp to warp and from tile to tile
is float64 for float32 numbers, as in `plkernel.kernels.scan.gpu`. For half-precision numbers it is
float32: their own rounding is thousands of times as large.
"""

# The language of the kernels is Triton, not typed Python:
# mypy: disallow-untyped-defs=False, disable-error-code="assignment"

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from plkernel.kernels.scan.serial import Serial
from plkernel.kernels.scan.steps import serial_place, step


@triton.jit
def _after(
    factor, local, factor_before, local_before, factor2, local2, factor_before2, local_before2
):
    """Two runs of spans as one: product and contribution of all spans, and of all but the last."""
    return (
        factor * factor2,
        factor2 * local + local2,
        factor * factor_before2,
        factor_before2 * local + local_before2,
    )


@triton.jit
def _spans(
    decays,
    xs,
    carry,
    power,
    last,
    REVERSE: tl.constexpr,
    ROWS: tl.constexpr,
    POWER: tl.constexpr,
):
    """The carry (WARPS,LANES) that enters the steps of each warp, and (1,LANES) the one that leaves
    the tile. power: the product of the decays of a warp, if POWER; last: True in the last warp.
    """
    local = tl.zeros(xs[0].shape, tl.float32)
    factor = tl.full(xs[0].shape, 1.0, carry.dtype)
    for i in tl.static_range(ROWS):
        _, local = step(local, decays[i], xs[i], REVERSE)
        if not POWER:
            factor = factor * decays[i].to(carry.dtype)
    if POWER:
        factor = factor * power
    one = tl.full(factor.shape, 1.0, carry.dtype)
    zero = tl.zeros(factor.shape, carry.dtype)
    factor, whole, before, entered = tl.associative_scan(
        (factor, local.to(carry.dtype), one, zero), 0, _after
    )
    left = tl.where(last, factor * carry + whole, 0.0)
    return before * carry + entered, tl.sum(left, 0)[None, :]


@triton.jit
def _rows(pointer, stride, left, fill: tl.constexpr, ROWS: tl.constexpr, MASKED: tl.constexpr):
    """The next ROWS rows; if MASKED, `fill` from `left` on."""
    rows = ()
    for i in tl.static_range(ROWS):
        if MASKED:
            row = tl.load(pointer + i * stride, mask=i < left, other=fill)
        else:
            row = tl.load(pointer + i * stride)
        rows = rows + (row.to(tl.float32),)  # noqa: RUF005 - Triton does not unpack
    return rows


@triton.jit
def _decays(
    pointer,
    stride,
    left,
    fixed,
    FIXED: tl.constexpr,
    ROWS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """The decays of ROWS steps; if MASKED, 1 from `left` on, where a step changes nothing."""
    decays = ()
    if FIXED:
        for i in tl.static_range(ROWS):
            decay = tl.where(i < left, fixed, 1.0) if MASKED else fixed
            decays = decays + (decay,)  # noqa: RUF005 - Triton does not unpack
    else:
        decays = _rows(pointer, stride, left, 1.0, ROWS, MASKED)
    return decays


@triton.jit
def _store(pointer, value, i, left, MASKED: tl.constexpr):
    """Row i of a warp's rows."""
    if MASKED:
        tl.store(pointer, value, mask=i < left)
    else:
        tl.store(pointer, value)


@triton.jit
def _forward_tile(
    a,
    b,
    h,
    carry,
    fixed,
    power,
    warp,
    tile,
    left,
    D: tl.constexpr,
    FIXED: tl.constexpr,
    WARPS: tl.constexpr,
    ROWS: tl.constexpr,
    WHOLE: tl.constexpr,
    MASKED: tl.constexpr,
):
    """The carry that leaves the tile, whose h are written."""
    xs = _rows(b + tile, D, left, 0.0, ROWS, MASKED)
    decays = _decays(a + tile, D, left, fixed, FIXED, ROWS, MASKED)
    entered, carry = _spans(
        decays, xs, carry, power, warp == WARPS - 1, False, ROWS, FIXED and WHOLE
    )
    value = entered.to(tl.float32)
    for i in tl.static_range(ROWS):
        value, _ = step(value, decays[i], xs[i], False)
        _store(h + tile + i * D, value, i, left, MASKED)
    return carry


@triton.jit
def _power(fixed, ROWS: tl.constexpr, ACC: tl.constexpr):
    """A fixed decay to the power of ROWS."""
    power = fixed.to(ACC)
    for _ in tl.static_range(ROWS - 1):
        power = power * fixed.to(ACC)
    return power


@triton.jit(do_not_specialize=("T",))
def _forward(
    a,
    b,
    state,
    h,
    last,
    T,
    D: tl.constexpr,
    FIXED: tl.constexpr,
    LANES: tl.constexpr,
    WARPS: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    ACC: tl.constexpr,
):
    """Every h, and the last state."""
    batch, channel = serial_place(D, LANES, True)
    lanes = channel < D
    warp = tl.arange(0, WARPS)[:, None]
    carry = tl.load(state + batch * D + channel, mask=lanes, other=0.0).to(ACC)
    fixed = 0.0
    power = 0.0
    if FIXED:
        fixed = tl.load(a + channel, mask=lanes, other=0.0).to(tl.float32)
        power = _power(fixed, ROWS, ACC)
    whole = T - T % (WARPS * ROWS)
    left = tl.where(lanes, ROWS, tl.zeros([WARPS, LANES], tl.int32))
    for time in tl.range(0, whole, WARPS * ROWS, num_stages=STAGES):
        tile = (batch * T + time + warp * ROWS) * D + channel
        carry = _forward_tile(
            a,
            b,
            h,
            carry,
            fixed,
            power,
            warp,
            tile,
            left,
            D,
            FIXED,
            WARPS,
            ROWS,
            True,
            D % LANES > 0,
        )
    if whole < T:
        tile = (batch * T + whole + warp * ROWS) * D + channel
        left = tl.where(lanes, T - whole - warp * ROWS, 0)
        carry = _forward_tile(
            a, b, h, carry, fixed, power, warp, tile, left, D, FIXED, WARPS, ROWS, False, True
        )
    tl.store(last + batch * D + channel, carry, mask=lanes)


@triton.jit
def _backward_tile(
    a,
    grad_h,
    hs,
    grad_a,
    grad_b,
    carry,
    fixed,
    power,
    warp,
    tile,
    left,
    D: tl.constexpr,
    FIXED: tl.constexpr,
    WARPS: tl.constexpr,
    ROWS: tl.constexpr,
    WHOLE: tl.constexpr,
    MASKED: tl.constexpr,
):
    """The carry that leaves the tile, whose gradients are written, and the sum of those of a fixed
    decay. hs: the h before each step.
    """
    xs = _rows(grad_h + tile, -D, left, 0.0, ROWS, MASKED)
    decays = _decays(a + tile, -D, left, fixed, FIXED, ROWS, MASKED)
    entered, carry = _spans(
        decays, xs, carry, power, warp == WARPS - 1, True, ROWS, FIXED and WHOLE
    )
    into = entered.to(tl.float32)
    summed = tl.zeros(into.shape, tl.float32)
    for i in tl.static_range(ROWS):
        value, into = step(into, decays[i], xs[i], True)
        gradient = value * hs[i]
        _store(grad_b + tile - i * D, value, i, left, MASKED)
        if FIXED:
            summed += tl.where(i < left, gradient, 0.0) if MASKED else gradient
        else:
            _store(grad_a + tile - i * D, gradient, i, left, MASKED)
    return carry, summed


@triton.jit(do_not_specialize=("T",))
def _backward(
    a,
    grad_h,
    h,
    state,
    grad_last,
    grad_a,
    grad_b,
    grad_state,
    T,
    D: tl.constexpr,
    FIXED: tl.constexpr,
    LANES: tl.constexpr,
    WARPS: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    ACC: tl.constexpr,
):
    """grad_b_t = g_t, grad_a_t = g_t * h_{t-1} and grad_state = a_1 * g_1, from the last step on.

    For a fixed decay grad_a is (B,D) in float64, the sum over time.
    """
    batch, channel = serial_place(D, LANES, True)
    lanes = channel < D
    warp = tl.arange(0, WARPS)[:, None]
    carry = tl.load(grad_last + batch * D + channel, mask=lanes, other=0.0).to(ACC)
    fixed = 0.0
    power = 0.0
    if FIXED:
        fixed = tl.load(a + channel, mask=lanes, other=0.0).to(tl.float32)
        power = _power(fixed, ROWS, ACC)
    total = tl.zeros([WARPS, LANES], tl.float64)
    whole = (T - 1) - (T - 1) % (WARPS * ROWS)  # the first step of all is not in a whole tile
    left = tl.where(lanes, ROWS, tl.zeros([WARPS, LANES], tl.int32))
    for done in tl.range(0, whole, WARPS * ROWS, num_stages=STAGES):
        tile = (batch * T + T - 1 - done - warp * ROWS) * D + channel
        hs = _rows(h + tile - D, -D, left, 0.0, ROWS, D % LANES > 0)
        carry, summed = _backward_tile(
            a,
            grad_h,
            hs,
            grad_a,
            grad_b,
            carry,
            fixed,
            power,
            warp,
            tile,
            left,
            D,
            FIXED,
            WARPS,
            ROWS,
            True,
            D % LANES > 0,
        )
        if FIXED:
            total += summed.to(tl.float64)
    tile = (batch * T + T - 1 - whole - warp * ROWS) * D + channel
    time = T - 1 - whole - warp * ROWS  # of a warp's first step
    left = tl.where(lanes, time + 1, 0)
    earlier = _rows(h + tile - D, -D, tl.where(lanes, time, 0), 0.0, ROWS, True)
    before = tl.load(state + batch * D + channel, mask=lanes, other=0.0).to(tl.float32)
    hs = ()
    for i in tl.static_range(ROWS):
        hs = hs + (tl.where(time == i, before, earlier[i]),)  # noqa: RUF005
    carry, summed = _backward_tile(
        a,
        grad_h,
        hs,
        grad_a,
        grad_b,
        carry,
        fixed,
        power,
        warp,
        tile,
        left,
        D,
        FIXED,
        WARPS,
        ROWS,
        False,
        True,
    )
    if FIXED:
        total += summed.to(tl.float64)
        tl.store(grad_a + batch * D + channel, tl.sum(total, 0)[None, :], mask=lanes)
    tl.store(grad_state + batch * D + channel, carry, mask=lanes)


@dataclass(frozen=True)
class Tiles(Serial):
    """A plan of launches.

    Args:
        warps: warps of a program, which share the steps of a tile.
        rows: steps of a warp in a tile, in float32.
        ahead: rows of a warp on their way, of all tensors together. Each is a group of asynchronous
            copies, of which a warp counts 63.
        width: bytes of a row in one thread; asynchronous copies take 4, 8 or 16.
    """

    kernels = (_forward, _backward)

    warps: int = 8
    rows: int = 16
    ahead: int = 48
    width: int = 4

    def constants(self, tensors: int, size: int) -> dict[str, Any]:
        """The constants of a kernel that reads so many tensors of numbers of `size` bytes."""
        stages = 1 + max(1, self.ahead // (self.rows * tensors))
        return {
            "LANES": 32 * max(1, self.width // size),
            "WARPS": self.warps,
            "ROWS": self.rows,
            "STAGES": stages,
            "ACC": tl.float64 if size > 2 else tl.float32,
        }

    @property
    def options(self) -> dict[str, Any]:
        """Options of the compiler for kernels. The fusion of a * h + b is asked for by name."""
        return {"num_warps": self.warps, "enable_fp_fusion": True}
