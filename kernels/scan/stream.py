"""The scan in Triton without an exchange between programs: one program takes all steps of its
channels.

It reads and writes each number once, in one launch. Rows wait in shared memory: while a program
works on ROWS steps, the loads of the next STAGES - 1 times as many are on their way (Triton's
pipelining, asynchronous copies to shared memory). Batch and channels alone must fill the GPU.

Accuracy is that of `plkernel.kernels.scan.gpu`: float32 within ROWS steps, float64 from there on.
"""

# The language of the kernels is Triton, not typed Python:
# mypy: disallow-untyped-defs=False, disable-error-code="assignment"

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from plkernel.kernels.scan.serial import Serial
from plkernel.kernels.scan.steps import fixed_decay, load_rows, serial_place, step


@triton.jit
def _forward_rows(
    a,
    b,
    h,
    carry,
    fixed,
    power,
    row,
    lanes,
    D,
    FIXED: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The carry after ROWS steps, whose h are written; power: `fixed` to the power of ROWS."""
    left = tl.where(lanes, ROWS, 0)
    xs = load_rows(b + row, D, left, 0.0, ROWS)
    decays = () if FIXED else load_rows(a + row, D, left, 1.0, ROWS)
    value = carry.to(tl.float32)
    local = tl.zeros([LANES], tl.float32)
    factor = tl.full([LANES], 1.0, tl.float64)
    for i in tl.static_range(ROWS):
        decay = fixed if FIXED else decays[i]
        value, _ = step(value, decay, xs[i], False)
        _, local = step(local, decay, xs[i], False)
        if not FIXED:
            factor = factor * decay.to(tl.float64)
        tl.store(h + row + i * D, value, mask=lanes)
    if FIXED:
        factor = power.to(tl.float64)
    return factor * carry + local.to(tl.float64)


@triton.jit(do_not_specialize=("T",))
def _forward(
    a,
    b,
    state,
    h,
    last,
    T,
    D,
    FIXED: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Every h, and the last state."""
    batch, channel = serial_place(D, LANES)
    lanes = channel < D
    carry = tl.load(state + batch * D + channel, mask=lanes, other=0.0).to(tl.float64)
    fixed, whole, _ = fixed_decay(a + channel, lanes, 0, FIXED, ROWS)
    even = T - T % ROWS  # steps in whole groups; those left over are taken one at a time
    for time in tl.range(0, even, ROWS, num_stages=STAGES):
        row = (batch * T + time) * D + channel
        carry = _forward_rows(a, b, h, carry, fixed, whole, row, lanes, D, FIXED, LANES, ROWS)
    for time in tl.range(even, T, num_stages=1):
        row = (batch * T + time) * D + channel
        carry = _forward_rows(a, b, h, carry, fixed, fixed, row, lanes, D, FIXED, LANES, 1)
    tl.store(last + batch * D + channel, carry, mask=lanes)


@triton.jit
def _backward_rows(
    a,
    grad_h,
    hs,
    grad_a,
    grad_b,
    carry,
    fixed,
    power,
    row,
    lanes,
    D,
    FIXED: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The carry after ROWS steps, whose gradients are written, and the sum of those of a fixed
    decay. hs: the h before each step.
    """
    left = tl.where(lanes, ROWS, 0)
    xs = load_rows(grad_h + row, -D, left, 0.0, ROWS)
    decays = () if FIXED else load_rows(a + row, -D, left, 1.0, ROWS)
    into = carry.to(tl.float32)
    local = tl.zeros([LANES], tl.float32)
    summed = tl.zeros([LANES], tl.float32)
    factor = tl.full([LANES], 1.0, tl.float64)
    for i in tl.static_range(ROWS):
        decay = fixed if FIXED else decays[i]
        value, into = step(into, decay, xs[i], True)
        _, local = step(local, decay, xs[i], True)
        gradient = value * hs[i]
        tl.store(grad_b + row - i * D, value, mask=lanes)
        if FIXED:
            summed += gradient
        else:
            factor = factor * decay.to(tl.float64)
            tl.store(grad_a + row - i * D, gradient, mask=lanes)
    if FIXED:
        factor = power.to(tl.float64)
    return factor * carry + local.to(tl.float64), summed.to(tl.float64)


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
    D,
    FIXED: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """grad_b_t = g_t, grad_a_t = g_t * h_{t-1} and grad_state = a_1 * g_1, from the last step on.

    For a fixed decay grad_a is (B,D) in float64, the sum over time.
    """
    batch, channel = serial_place(D, LANES)
    lanes = channel < D
    carry = tl.load(grad_last + batch * D + channel, mask=lanes, other=0.0).to(tl.float64)
    before = tl.load(state + batch * D + channel, mask=lanes, other=0.0).to(tl.float32)
    fixed, whole, _ = fixed_decay(a + channel, lanes, 0, FIXED, ROWS)
    total = tl.zeros([LANES], tl.float64)
    # Steps in whole groups. The first step of all, before which lies the state, is left over.
    even = (T - 1) - (T - 1) % ROWS
    for done in tl.range(0, even, ROWS, num_stages=STAGES):
        row = (batch * T + T - 1 - done) * D + channel
        hs = load_rows(h + row - D, -D, tl.where(lanes, ROWS, 0), 0.0, ROWS)
        carry, summed = _backward_rows(
            a, grad_h, hs, grad_a, grad_b, carry, fixed, whole, row, lanes, D, FIXED, LANES, ROWS
        )
        total += summed
    for done in tl.range(even, T, num_stages=1):
        time = T - 1 - done
        row = (batch * T + time) * D + channel
        earlier = tl.load(h + row - D, mask=lanes & (time > 0), other=0.0).to(tl.float32)
        hs = (tl.where(time > 0, earlier, before),)
        carry, summed = _backward_rows(
            a, grad_h, hs, grad_a, grad_b, carry, fixed, fixed, row, lanes, D, FIXED, LANES, 1
        )
        total += summed
    if FIXED:
        tl.store(grad_a + batch * D + channel, total, mask=lanes)
    tl.store(grad_state + batch * D + channel, carry, mask=lanes)


@dataclass(frozen=True)
class Stream(Serial):
    """A plan of launches.

    Args:
        width: bytes of a row in one thread; asynchronous copies take 4, 8 or 16.
        rows: steps in float32 between two carries in float64.
        ahead: rows on their way, of all tensors together. Each is a group of asynchronous copies,
            of which a warp counts 63.
    """

    kernels = (_forward, _backward)

    width: int = 4
    rows: int = 4
    ahead: int = 56

    def lanes(self, size: int) -> int:
        """Channels of a program, whose only warp has 32 threads, for numbers of `size` bytes."""
        return 32 * max(1, self.width // size)

    def constants(self, tensors: int, size: int) -> dict[str, int]:
        """The constants of a kernel that reads so many tensors of numbers of `size` bytes."""
        stages = 1 + max(1, self.ahead // (self.rows * tensors))
        return {"LANES": self.lanes(size), "ROWS": self.rows, "STAGES": stages}

    @property
    def options(self) -> dict[str, Any]:
        """Options of the compiler for kernels. The fusion of a * h + b is asked for by name."""
        return {"num_warps": 1, "enable_fp_fusion": True}
