"""The scan on a CPU: compiled loops over channels, threads over batch rows and channel blocks.

The carry from step to step and the sum behind the gradient of a fixed decay are float64, whatever
the storage. Half types are widened to float32 on the way in and rounded on the way out: a CPU has
no arithmetic for them. Every channel of every row is one sequential sum, so the result does not
depend on the number of threads.
"""

import ctypes
import math
import mmap
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plkernel.kernels.compiled import jit, together
from plkernel.kernels.lanes import take
from plkernel.kernels.operators import as_array, narrow, summed, widen

LINE = 16
"""float32 channels in a cache line: two threads never write the same one."""
WIDTH = 512
"""Most channels in a block: its carry, decay and sum stay in the L1 cache."""
NARROW = 256
"""Fewest channels of a row that is cut so that every thread has a piece: with fewer, one thread
alone is faster.
"""
SERIAL = 1 << 20
"""Elements below which handing work to a thread costs more than it saves."""
LARGE = 1 << 25
"""Bytes from which a result asks for large pages: touching small ones first costs as much as the
scan.
"""
TINY = 1e-290
"""A carry below it is set to zero: arithmetic below 1e-308 is some fifty times slower."""


_ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux
_MADVISE = ctypes.CDLL(None).madvise if _ADVICE is not None else None


@jit
def _advance(decay, carry, step, output):  # type: ignore[no-untyped-def]
    """One step of every channel. On its own, and short, so that the compiler turns it into vector
    instructions.
    """
    for d in range(carry.size):
        x = decay[d] * carry[d] + step[d]
        x = 0.0 if abs(x) < TINY else x
        carry[d] = x
        output[d] = x


@jit
def _advance_back_sum(decay, carry, step, before, output, total):  # type: ignore[no-untyped-def]
    """One step back, and its share of the gradient of a fixed decay, summed into `total`.

    From the last channel to the first: memory is then read strictly backwards, as it is prefetched.
    """
    for d in range(carry.size - 1, -1, -1):
        x = decay[d] * carry[d] + step[d]
        x = 0.0 if abs(x) < TINY else x
        carry[d] = x
        output[d] = x
        total[d] += x * before[d]


@jit
def _advance_back_each(decay, carry, step, before, output, product):  # type: ignore[no-untyped-def]
    """The same for a time-varying decay, whose gradient is a product for each step."""
    for d in range(carry.size - 1, -1, -1):
        x = decay[d] * carry[d] + step[d]
        x = 0.0 if abs(x) < TINY else x
        carry[d] = x
        output[d] = x
        product[d] = x * before[d]


@jit
def _store(x, row):  # type: ignore[no-untyped-def]
    """Not row[:] = x, whose message about shapes takes numba seconds to compile."""
    for d in range(row.size):
        row[d] = x[d]


@jit
def _unit(index, channels, width):  # type: ignore[no-untyped-def]
    """The batch row and the range of channels of one unit of work."""
    pieces = (channels + width - 1) // width
    low = index % pieces * width
    return index // pieces, low, min(low + width, channels)


@jit
def _forward(a, b, state, h, last, width, counter, units):  # type: ignore[no-untyped-def]
    """The decay a is (B,T,D), or (1,1,D) in float64."""
    rows, times = a.shape[:2]
    unit = take(counter)
    while unit < units:
        i, low, high = _unit(unit, b.shape[2], width)
        carry = state[i, low:high].astype(np.float64)
        for t in range(b.shape[1]):
            _advance(a[i % rows, t % times, low:high], carry, b[i, t, low:high], h[i, t, low:high])
        _store(carry, last[i, low:high])
        unit = take(counter)


@jit
def _backward(  # type: ignore[no-untyped-def]
    a, state, h, grad_h, grad_last, grad_a, grad_b, grad_state, fixed, width, counter, units
):
    """grad_a is (B,T,D), or the sum over time (B,1,D) in float64."""
    end, rows, times = h.shape[1] - 1, a.shape[0], a.shape[1]
    unit = take(counter)
    while unit < units:
        i, low, high = _unit(unit, h.shape[2], width)
        one, total = np.ones(high - low, a.dtype), np.zeros(high - low)
        carry = grad_last[i, low:high].astype(np.float64)
        for t in range(end, -1, -1):
            decay = a[i % rows, (t + 1) % times, low:high] if t < end else one
            before = h[i, t - 1, low:high] if t > 0 else state[i, low:high]
            step, output = grad_h[i, t, low:high], grad_b[i, t, low:high]
            if fixed:
                _advance_back_sum(decay, carry, step, before, output, total)
            else:
                _advance_back_each(decay, carry, step, before, output, grad_a[i, t, low:high])
        if fixed:
            _store(total, grad_a[i, 0, low:high])
        _store(a[i % rows, 0, low:high] * carry, grad_state[i, low:high])
        unit = take(counter)


def forward(a: Tensor, b: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """h_t = a_t * h_{t-1} + b_t with h_0 = state; returns every h_t and the last one."""
    wide_b = widen(b)
    h, last = _empty_like(wide_b), torch.empty_like(state)
    _run(_forward, b.shape, _three_axes(a), *map(as_array, (wide_b, state, h, last)))
    return narrow(h, b.dtype), last


def backward(
    a: Tensor, state: Tensor, h: Tensor, grad_h: Tensor, grad_last: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """g_t = grad_h_t + a_{t+1} * g_{t+1}; gradients of a (g_t * h_{t-1}), of b (g_t) and of the
    state (a_1 g_1).
    """
    wide_h = widen(h)
    grad_b, grad_state = _empty_like(wide_h), torch.empty_like(state)
    inputs = map(as_array, (state, wide_h, widen(grad_h), grad_last))
    results = map(as_array, (grad_b, grad_state))
    fixed = a.dim() == 1
    if fixed:
        sums = np.zeros((len(state), 1, len(a)))  # over time, for each row
        _run(_backward, h.shape, _three_axes(a), *inputs, sums, *results, fixed)
        grad_a = summed(sums[:, 0], a.dtype)
    else:
        wide_a = widen(a)
        grad_a = _empty_like(wide_a)
        _run(_backward, h.shape, as_array(wide_a), *inputs, as_array(grad_a), *results, fixed)
    return narrow(grad_a, a.dtype), narrow(grad_b, h.dtype), grad_state


def _three_axes(a: Tensor) -> Any:
    """The decay as the kernels take it, an array of no half type."""
    if a.dim() == 3:
        return as_array(widen(a))
    return as_array(a).astype(np.float64)[None, None]


def _empty_like(x: Tensor) -> Tensor:
    """An uninitialised tensor on large pages, where the system has them to give; asking is all that
    is done here.
    """
    empty = torch.empty_like(x)
    if _MADVISE is not None and empty.nbytes >= LARGE:
        start = -(-empty.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (empty.data_ptr() + empty.nbytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
        _MADVISE(ctypes.c_void_p(start), ctypes.c_size_t(length), _ADVICE)
    return empty


def _run(kernel: Any, shape: torch.Size, *inputs: Any) -> None:
    """Cut rows and channels into equal units and share them out."""
    rows, _, channels = shape
    threads = torch.get_num_threads() if shape.numel() >= SERIAL else 1
    width = _block_width(rows, channels, threads)
    units, counter = rows * math.ceil(channels / width), np.zeros(1, np.int64)
    together(partial(kernel, *inputs, width, counter, units), min(threads, units))


@lru_cache(1024)
def _block_width(rows: int, channels: int, threads: int) -> int:
    """Channels per unit: whole cache lines, at most WIDTH, and fewer where rows are too few for all
    threads.

    Steps of half a row take as long as those of a whole one, each being apart from the next in
    memory.
    """
    pieces = max(math.ceil(channels / WIDTH), min(math.ceil(threads / rows), channels // NARROW))
    return max(LINE, math.ceil(channels / pieces / LINE) * LINE)
