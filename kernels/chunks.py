"""Matrix-valued states in chunks of CHUNK steps, in buffers: rows (CHUNK,K) and (CHUNK,V), a multiple of LANES wide.

D_t is the product of the decays of the chunk before step t, E_t that after it. Decays are only ever multiplied: none is
divided by, so that none is too strong, and no sum is subtracted from another.

Steps past the end of a sequence have w = 1 and zeros; so have spare columns.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from plkernel.kernels.lanes import (
    LANES,
    convert,
    exponential,
    load,
    multiply,
    multiply_add,
    spread,
    spread_from,
    store,
    tile,
    tile_rows,
    transpose,
    wide_tile,
    wide_tile_rows,
)
from plkernel.kernels.threads import together

_OPTIONS: Any = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
inner = numba.njit(**_OPTIONS)  # for calls from compiled code alone, whose cache has them
CHUNK = LANES  # the steps of a chunk lie on the lanes of what its steps see of each other
SERIAL = 1 << 20  # entries of the state times steps below which handing work to a thread costs more than it saves
PRECISE = ("decays", "carry", "grad_carry")


def padded(size: int) -> int:
    """The next multiple of LANES."""
    return size + -size % LANES


def share(kernel: Any, room: Callable[..., Any], chunks: int, state: Tensor, *tensors: Tensor) -> None:
    """Share out the heads of all batch rows of a state (B,H,..); each thread has its own room, for so many chunks."""
    batch, heads = state.shape[:2]
    units, work = batch * heads, state.numel() * tensors[0].shape[1]
    threads = max(1, min(torch.get_num_threads() if work >= SERIAL else 1, units))
    arrays, counter = [tensor.detach().numpy() for tensor in tensors], np.zeros(1, np.int64)
    together(lambda: kernel(*arrays, room(chunks), counter, units), threads)


def filled(kind: Any, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> Any:
    """Return a room of zeros; decays and carries are float64. Memory of torch's is aligned to cache lines.

    Its own zeros would start threads.
    """
    arrays = {}
    for name, shape in shapes.items():
        arrays[name] = torch.empty(shape, dtype=torch.float64 if name in PRECISE else dtype).numpy()
        arrays[name].fill(0)
    return kind(**arrays)


@inner
def load_rows(x, b, h, start, count, rows):  # type: ignore[no-untyped-def]
    """Steps of x (B,T,H,K) into rows (CHUNK,K), zero past `count`."""
    for t in range(count):
        line, row = x[b, start + t, h], rows[t]
        for i in range(line.size):
            row[i] = line[i]
    rows[count:] = 0.0


@inner
def store_rows(rows, b, h, start, count, x):  # type: ignore[no-untyped-def]
    for t in range(count):
        line, row = x[b, start + t, h], rows[t]
        for i in range(line.size):
            line[i] = row[i]


@inner
def load_state(x, carry, rounded):  # type: ignore[no-untyped-def]
    """Into float64 and the type of `rounded`; spare entries are cleared of what a NaN elsewhere may have left there."""
    carry[:] = 0.0
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            carry[i, j] = x[i, j]
    copy(carry, rounded)


@inner
def copy(source, target):  # type: ignore[no-untyped-def]
    """The first entries of a matrix, as many as there are in another, into that one.

    Not target[:] = source, whose message about shapes takes numba seconds to compile.
    """
    for i in range(target.shape[0]):
        for j in range(target.shape[1]):
            target[i, j] = source[i, j]


@inner
def load_decays(x, b, h, start, count, logs, wide, w, before, after, through):  # type: ignore[no-untyped-def]
    """From ln w in x (B,T,H,K), or in x (1,1,H,K) for a fixed decay: w, D and E (CHUNK,K), and `through` (K), all of D.

    Products are taken in float64, in `wide` (CHUNK,K): rounded to float32 a weak decay would be off by 1e-4 after some
    thousand steps.
    """
    if x.shape[1] == 1:
        for t in range(count):
            load_rows(x, b % x.shape[0], h, 0, 1, logs[t : t + 1])
        logs[count:] = 0.0
    else:
        load_rows(x, b, h, start, count, logs)
    keys = w.shape[1]
    for j in range(0, keys, LANES):
        product = spread(1.0)
        for at in range(j, CHUNK * keys, keys):
            x_t = exponential(load(logs, at))
            store(wide, at, x_t)
            store(w, at, x_t)
            store(before, at, product)
            product = multiply(product, x_t)
        store(through, j, product)
        product = spread(1.0)
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
            transpose(x, i * x.shape[1] + j, x.shape[1], y, j * y.shape[1] + i, y.shape[1])


@inner
def product(a, start, b, c):  # type: ignore[no-untyped-def]
    """c (N,M) = a^T b of N columns of a from `start` on and b (steps,M)."""
    width, steps = c.shape[1], b.shape[0]
    for i in range(0, c.shape[0], LANES):
        for j in range(0, width - LANES, 2 * LANES):
            for n in range(i, i + LANES, wide_tile_rows(c)):
                wide_tile(c, n * width + j, width, a, start + n, a.shape[1], b, j, width, steps)
        if width % (2 * LANES):
            j = width - LANES
            for n in range(i, i + LANES, tile_rows(c)):
                tile(c, n * width + j, width, a, start + n, a.shape[1], b, j, width, steps)


@inner
def add_lower(p, v, o):  # type: ignore[no-untyped-def]
    """o_t += sum_{i<=t} P_ti v_i; what comes later is not even multiplied by zero, for it may be NaN."""
    width = v.shape[1]
    for j in range(0, width, LANES):
        for t in range(CHUNK):
            x = load(o, t * width + j)
            for i in range(t + 1):
                x = multiply_add(spread_from(p, t * CHUNK + i), load(v, i * width + j), x)
            store(o, t * width + j, x)


@inner
def add_upper(p, x, y):  # type: ignore[no-untyped-def]
    """y_i += sum_{t>=i} P_ti x_t"""
    width = x.shape[1]
    for j in range(0, width, LANES):
        for i in range(CHUNK):
            z = load(y, i * width + j)
            for t in range(i, CHUNK):
                z = multiply_add(spread_from(p, t * CHUNK + i), load(x, t * width + j), z)
            store(y, i * width + j, z)


@inner
def advance_rows(state, through, kd, v, sums, rounded):  # type: ignore[no-untyped-def]
    """state (K,V) = diag(through) state + kd^T v in float64, and a copy in the type of `rounded`."""
    width = state.shape[1]
    for start in range(0, state.shape[0], LANES):
        product(kd, start, v, sums)
        for i in range(LANES):
            decay = spread_from(through, start + i)
            for j in range(0, width, LANES):
                at = (start + i) * width + j
                x = multiply_add(decay, load(state, at), convert(load(sums, i * width + j), state))
                store(state, at, x)
                store(rounded, at, x)


@inner
def advance_columns(state, through, v, kd, sums, rounded):  # type: ignore[no-untyped-def]
    """The same for a state (V,K)."""
    width = state.shape[1]
    for start in range(0, state.shape[0], LANES):
        product(v, start, kd, sums)
        for i in range(LANES):
            for j in range(0, width, LANES):
                at = (start + i) * width + j
                x = multiply_add(load(through, j), load(state, at), convert(load(sums, i * width + j), state))
                store(state, at, x)
                store(rounded, at, x)
