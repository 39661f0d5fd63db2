"""Matrix-valued states in chunks of CHUNK steps, in buffers.

Rows are (CHUNK,K) and (CHUNK,V), a multiple of LANES wide. D_t is the product of the decays of the
chunk before step t, E_t that after it. Decays are only ever multiplied: none is divided by, so that
none is too strong, and no sum is subtracted from another.

Steps past the end of a sequence have w = 1 and zeros; so have spare columns.
"""

import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from plkernel.kernels import lanes
from plkernel.kernels.compiled import together
from plkernel.kernels.lanes import LANES, convert, load, multiply, multiply_add, spread_from, store
from plkernel.kernels.operators import as_array

_OPTIONS: Any = {
    "nogil": True,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
inner = numba.njit(**_OPTIONS)  # for calls from compiled code alone, whose cache has them
CHUNK = LANES  # the steps of a chunk lie on the lanes of what its steps see of each other
# entries of the state times steps below which handing work to a thread costs more than it saves
SERIAL = 1 << 20
PRECISE = ("decays", "carry", "grad_carry")
LINE = 64  # bytes of a cache line
KEPT = 1 << 20  # bytes of the largest room that a thread keeps for its next call
MOST_ROOMS = 8  # that a thread keeps
_local = threading.local()


def padded(size: int) -> int:
    """The next multiple of LANES."""
    return size + -size % LANES


def share(
    kernel: Any,
    kind: Any,
    shapes: Callable[..., Mapping[str, tuple[int, ...]]],
    sizes: tuple[int, ...],
    state: Tensor,
    *tensors: Tensor,
) -> None:
    """Share out the heads of all batch rows of a state (B,H,..).

    Each thread has a room of `shapes(*sizes)` to work in.
    """
    batch, heads = state.shape[:2]
    units = batch * heads
    work = state.numel() * tensors[0].shape[1]
    threads = max(1, min(torch.get_num_threads() if work >= SERIAL else 1, units))
    arrays = [as_array(tensor) for tensor in tensors]
    counter = np.zeros(1, np.int64)
    element = arrays[0].dtype

    def run() -> None:
        kernel(*arrays, room(kind, shapes, sizes, element), counter, units)

    together(run, threads)


def room(
    kind: Any,
    shapes: Callable[..., Mapping[str, tuple[int, ...]]],
    sizes: tuple[int, ...],
    element: Any,
) -> Any:
    """Zeros of `shapes(*sizes)` for this thread alone, aligned to cache lines.

    Small ones are those of its last call, cleared.
    """
    rooms: dict[Any, Any] = _local.__dict__
    wanted = (kind, sizes, element)
    if wanted in rooms:
        memory, ready = rooms[wanted]
        memory.fill(0)
        return ready
    places = {}
    end = 0
    for name, shape in shapes(*sizes).items():
        dtype = np.dtype(np.float64 if name in PRECISE else element)
        places[name] = end, shape, dtype
        end += padded(math.prod(shape) * dtype.itemsize // 4) * 4  # LANES float32 are a line
    memory = np.zeros(end + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    memory = memory[start : start + end]
    ready = kind(
        **{
            name: np.ndarray(shape, dtype, memory, at)
            for name, (at, shape, dtype) in places.items()
        }
    )
    if end <= KEPT:
        if len(rooms) >= MOST_ROOMS:
            rooms.clear()
        rooms[wanted] = memory, ready
    return ready


@inner
def load_rows(x, b, h, start, count, rows):  # type: ignore[no-untyped-def]
    """Steps of x (B,T,H,K) into rows (CHUNK,K), zero past `count`."""
    for t in range(count):
        line = x[b, start + t, h]
        row = rows[t]
        for i in range(line.size):
            row[i] = line[i]
    rows[count:] = 0.0


@inner
def store_rows(rows, b, h, start, count, x):  # type: ignore[no-untyped-def]
    """The first `count` of rows (CHUNK,K) into steps of x (B,T,H,K), without spare columns."""
    for t in range(count):
        line = x[b, start + t, h]
        row = rows[t]
        for i in range(line.size):
            line[i] = row[i]


@inner
def load_state(x, carry, rounded):  # type: ignore[no-untyped-def]
    """Into float64 and the type of `rounded`; spare entries are cleared of what a NaN elsewhere may
    have left there.
    """
    carry[:] = 0.0
    copy(x, carry)
    copy(carry, rounded)


@inner
def copy(source, target):  # type: ignore[no-untyped-def]
    """The entries that two matrices share. Not target[:] = source: its message about shapes takes
    long to compile.
    """
    for i in range(min(source.shape[0], target.shape[0])):
        for j in range(min(source.shape[1], target.shape[1])):
            target[i, j] = source[i, j]


@inner
def load_decays(x, b, h, start, count, logs, wide, w, before, after, through):  # type: ignore[no-untyped-def]
    """From ln w in x (B,T,H,K), or in x (1,1,H,K) for a fixed decay: w, D and E (CHUNK,K), and
    `through` (K), all of D.

    Products are taken in float64, in `wide` (CHUNK,K): rounded to float32 a weak decay would be off
    by 1e-4 after some thousand steps.
    """
    if x.shape[1] == 1:
        for t in range(count):
            load_rows(x, b % x.shape[0], h, 0, 1, logs[t : t + 1])
        logs[count:] = 0.0
    else:
        load_rows(x, b, h, start, count, logs)
    keys = w.shape[1]
    for j in range(0, keys, LANES):
        product = lanes.spread(1.0)
        for at in range(j, CHUNK * keys, keys):
            x_t = lanes.exponential(load(logs, at))
            store(wide, at, x_t)
            store(w, at, x_t)
            store(before, at, product)
            product = multiply(product, x_t)
        store(through, j, product)
        product = lanes.spread(1.0)
        for at in range(j + (CHUNK - 1) * keys, -1, -keys):
            store(after, at, product)
            product = multiply(product, load(wide, at))


@inner
def scale(x, factors, y):  # type: ignore[no-untyped-def]
    """y = x factors"""
    for at in range(0, x.size, LANES):
        store(y, at, multiply(load(x, at), load(factors, at)))


@inner
def flip(x, y):  # type: ignore[no-untyped-def]
    """y = x^T"""
    for i in range(0, x.shape[0], LANES):
        for j in range(0, x.shape[1], LANES):
            lanes.transpose(x, i * x.shape[1] + j, x.shape[1], y, j * y.shape[1] + i, y.shape[1])


@inner
def product(a, start, b, c):  # type: ignore[no-untyped-def]
    """c (N,M) = a^T b of N columns of a from `start` on and b (steps,M)."""
    width = c.shape[1]
    steps = b.shape[0]
    for i in range(0, c.shape[0], LANES):
        for j in range(0, width - LANES, 2 * LANES):
            for n in range(i, i + LANES, lanes.wide_tile_rows(c)):
                lanes.wide_tile(
                    c, n * width + j, width, a, start + n, a.shape[1], b, j, width, steps
                )
        if width % (2 * LANES):
            j = width - LANES
            for n in range(i, i + LANES, lanes.tile_rows(c)):
                lanes.tile(c, n * width + j, width, a, start + n, a.shape[1], b, j, width, steps)


@inner
def add_lower(p, x, y, own):  # type: ignore[no-untyped-def]
    """y_t += sum_{i<t} P_ti x_i, t ascending, and P_tt x_t with `own` = 1.

    With x = y the solution of y_t = (y_t before) + sum_{i<t} P_ti y_i. What comes later is not even
    multiplied by zero, for it may be NaN.
    """
    width = x.shape[1]
    for j in range(0, width, LANES):
        for t in range(CHUNK):
            z = load(y, t * width + j)
            for i in range(t + own):
                z = multiply_add(spread_from(p, t * CHUNK + i), load(x, i * width + j), z)
            store(y, t * width + j, z)


@inner
def add_upper(p, x, y, own):  # type: ignore[no-untyped-def]
    """y_i += sum_{t>i} P_ti x_t, i descending: the transpose of `add_lower`."""
    width = x.shape[1]
    for j in range(0, width, LANES):
        for i in range(CHUNK - 1, -1, -1):
            z = load(y, i * width + j)
            for t in range(i + 1 - own, CHUNK):
                z = multiply_add(spread_from(p, t * CHUNK + i), load(x, t * width + j), z)
            store(y, i * width + j, z)


@inner
def advance(state, through, rows, a, b, sums, rounded):  # type: ignore[no-untyped-def]
    """state = diag(through) state + a^T b in float64, and a copy in the type of `rounded`.

    The decays go with the rows of a state (K,V), else with the columns of a state (V,K).
    """
    width = state.shape[1]
    for start in range(0, state.shape[0], LANES):
        product(a, start, b, sums)
        for i in range(LANES):
            decay = spread_from(through, start + i if rows else 0)
            for j in range(0, width, LANES):
                at = (start + i) * width + j
                decay = decay if rows else load(through, j)
                x = multiply_add(decay, load(state, at), convert(load(sums, i * width + j), state))
                store(state, at, x)
                store(rounded, at, x)
