"""WKV on a CPU: compiled loops over the rows of the state, threads over batch rows and heads.

All arithmetic is float64, whatever the storage: a decay near 1 rounded to float32 is off by 1e-4 after some thousand
steps. Time is cut into chunks of CHUNK steps. Within one, the inputs lie in small float64 buffers, values in panels of
LANES columns, and each row of a panel of the state goes through all steps of the chunk without leaving its registers.

The backward pass keeps nothing of the forward pass but its inputs: it runs the state once more, keeps it at the start
of each chunk, and takes the chunks from the last to the first, each row forwards (the states it needs fit in the L1
cache) and back. No decay is ever divided by. Each head of each batch row is one sequential sum, so the result does not
depend on the number of threads.

Letters: B batch, T time, H heads, K key size, V value size, P panels. For shapes see `plkernel.kernels.wkv.operator`.
"""

import math
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plkernel.kernels.compiled import jit, pool
from plkernel.kernels.wkv.lanes import LANES, load, multiply, multiply_add, spread, store, total

CHUNK = 32  # steps between two kept states
SERIAL = 1 << 18  # entries of the state times steps below which handing work to a thread costs more than it saves
TINY = 1e-290  # a carry that has died out is set to zero: arithmetic below 1e-308 is some fifty times slower


@jit
def _forward_panel(s, w, k, r, v, o, count):  # type: ignore[no-untyped-def]
    """Each row of a panel of the state through a chunk: o_t += r_t s, then s = w_t s + k_t v_t."""
    for i in range(s.shape[0]):
        x = load(s, i * LANES)
        for t in range(count):
            at = t * LANES
            store(o, at, multiply_add(spread(r[i, t]), x, load(o, at)))
            x = multiply_add(spread(w[i, t]), x, multiply(spread(k[i, t]), load(v, at)))
        store(s, i * LANES, x)


@jit
def _state_panel(s, w, k, v, end):  # type: ignore[no-untyped-def]
    """The state alone through a whole chunk, from s to `end`."""
    for i in range(s.shape[0]):
        x = load(s, i * LANES)
        for t in range(CHUNK):
            x = multiply_add(spread(w[i, t]), x, multiply(spread(k[i, t]), load(v, t * LANES)))
        store(end, i * LANES, x)


@jit
def _rerun_row(i, s, w, k, v, grad_o, kept, grad_r, count):  # type: ignore[no-untyped-def]
    """Row i of a panel forwards again, keeping it as it is before each step: grad_r_t += s . grad_o_t."""
    x = load(s, i * LANES)
    for t in range(count):
        at = t * LANES
        store(kept, at, x)
        grad_r[i, t] += total(multiply(x, load(grad_o, at)))
        x = multiply_add(spread(w[i, t]), x, multiply(spread(k[i, t]), load(v, at)))


@jit
def _return_row(i, g, w, k, r, v, grad_o, kept, grad_k, grad_v, grad_w, count):  # type: ignore[no-untyped-def]
    """The gradient g of row i back: those of k_t, v_t and ln w_t, then g = w_t g + r_t grad_o_t."""
    x = load(g, i * LANES)
    for t in range(count - 1, -1, -1):
        at = t * LANES
        grad_k[i, t] += total(multiply(x, load(v, at)))
        grad_w[i, t] += w[i, t] * total(multiply(x, load(kept, at)))
        store(grad_v, at, multiply_add(spread(k[i, t]), x, load(grad_v, at)))
        x = multiply_add(spread(w[i, t]), x, multiply(spread(r[i, t]), load(grad_o, at)))
    store(g, i * LANES, x)


@jit
def _backward_panel(s, g, w, k, r, v, grad_o, kept, grad_r, grad_k, grad_v, grad_w, count):  # type: ignore[no-untyped-def]
    """Each row of a panel forwards through a chunk from the state s, and its gradient g back."""
    for i in range(s.shape[0]):
        _rerun_row(i, s, w, k, v, grad_o, kept, grad_r, count)
        _return_row(i, g, w, k, r, v, grad_o, kept, grad_k, grad_v, grad_w, count)


@jit
def _load_rows(x, b, h, start, count, rows):  # type: ignore[no-untyped-def]
    """Steps of x (B,T,H,K) into rows (K,CHUNK)."""
    for t in range(count):
        line = x[b, start + t, h]
        for i in range(line.size):
            rows[i, t] = line[i]


@jit
def _load_decays(x, b, h, start, count, rows):  # type: ignore[no-untyped-def]
    """w, from ln w in x (B,T,H,K), or in x (1,1,H,K) for a fixed decay, into rows (K,CHUNK)."""
    if x.shape[1] == 1:
        line = x[b % x.shape[0], 0, h]
        for i in range(line.size):
            rows[i] = math.exp(np.float64(line[i]))
        return
    for t in range(count):
        line = x[b, start + t, h]
        for i in range(line.size):
            rows[i, t] = math.exp(np.float64(line[i]))


@jit
def _load_panels(x, b, h, start, count, panels):  # type: ignore[no-untyped-def]
    """Steps of x (B,T,H,V) into panels (P,CHUNK,LANES), whose spare columns stay zero."""
    for t in range(count):
        line = x[b, start + t, h]
        for j in range(line.size):
            panels[j // LANES, t, j % LANES] = line[j]


@jit
def _store_rows(rows, b, h, start, count, x):  # type: ignore[no-untyped-def]
    for t in range(count):
        line = x[b, start + t, h]
        for i in range(line.size):
            line[i] = rows[i, t]


@jit
def _add_rows(rows, b, h, start, count, x):  # type: ignore[no-untyped-def]
    """Into x (B,T,H,K), zero so far, or summed over time into x (B,1,H,K)."""
    for t in range(count):
        line = x[b, (start + t) % x.shape[1], h]
        for i in range(line.size):
            line[i] += rows[i, t]


@jit
def _store_panels(panels, b, h, start, count, x):  # type: ignore[no-untyped-def]
    for t in range(count):
        line = x[b, start + t, h]
        for j in range(line.size):
            line[j] = panels[j // LANES, t, j % LANES]


@jit
def _load_state(x, panels):  # type: ignore[no-untyped-def]
    """x (K,V) into panels (P,K,LANES); the spare columns are cleared of what a NaN elsewhere may have left there."""
    panels[:] = 0.0
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            panels[j // LANES, i, j % LANES] = x[i, j]


@jit
def _store_state(panels, x):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] = panels[j // LANES, i, j % LANES]


@jit
def _settle(panels):  # type: ignore[no-untyped-def]
    """Dead entries to zero; once in a chunk is enough to keep them from lasting."""
    flat = panels.ravel()
    for i in range(flat.size):
        flat[i] = 0.0 if abs(flat[i]) < TINY else flat[i]


@jit
def _present_forward(r, k, u, v, o, count):  # type: ignore[no-untyped-def]
    """What a step sees of itself: o_t = (r_t . u k_t) v_t, which also clears o."""
    for t in range(count):
        weight = 0.0
        for i in range(u.size):
            weight += r[i, t] * u[i] * k[i, t]
        for p in range(v.shape[0]):
            for j in range(LANES):
                o[p, t, j] = weight * v[p, t, j]


@jit
def _present_backward(r, k, u, v, grad_o, grad_r, grad_k, grad_v, grad_u, count):  # type: ignore[no-untyped-def]
    """Gradients of the same; clears those of r, k and v, and adds to that of u."""
    for t in range(count):
        weight, through = 0.0, 0.0
        for i in range(u.size):
            weight += r[i, t] * u[i] * k[i, t]
        for p in range(v.shape[0]):
            for j in range(LANES):
                through += grad_o[p, t, j] * v[p, t, j]
                grad_v[p, t, j] = weight * grad_o[p, t, j]
        for i in range(u.size):
            grad_r[i, t] = through * u[i] * k[i, t]
            grad_k[i, t] = through * u[i] * r[i, t]
            grad_u[i] += through * r[i, t] * k[i, t]


@jit
def _forward(r, k, v, w, u, state, out, last, rows, panels, states, kept, slot, first, stop):  # type: ignore[no-untyped-def]
    time, heads = r.shape[1:3]
    rr, kk, ww = rows[slot, 0], rows[slot, 1], rows[slot, 2]
    vv, oo = panels[slot, 0], panels[slot, 1]
    carry = states[slot, 0]
    for unit in range(first, stop):
        b, h = unit // heads, unit % heads
        _load_state(state[b, h], carry)
        for start in range(0, time, CHUNK):
            count = min(CHUNK, time - start)
            _load_rows(r, b, h, start, count, rr)
            _load_rows(k, b, h, start, count, kk)
            _load_decays(w, b, h, start, count, ww)
            _load_panels(v, b, h, start, count, vv)
            _settle(carry)
            _present_forward(rr, kk, u[h], vv, oo, count)
            for p in range(carry.shape[0]):
                _forward_panel(carry[p], ww, kk, rr, vv[p], oo[p], count)
            _store_panels(oo, b, h, start, count, out)
        _store_state(carry, last[b, h])


@jit
def _keep_states(k, v, w, b, h, kk, ww, vv, starts):  # type: ignore[no-untyped-def]
    """The state at the start of every chunk, from that of the first."""
    for c in range(starts.shape[0]):
        _settle(starts[c])
        if c + 1 < starts.shape[0]:
            _load_rows(k, b, h, c * CHUNK, CHUNK, kk)
            _load_decays(w, b, h, c * CHUNK, CHUNK, ww)
            _load_panels(v, b, h, c * CHUNK, CHUNK, vv)
            for p in range(starts.shape[1]):
                _state_panel(starts[c, p], ww, kk, vv[p], starts[c + 1, p])


@jit
def _backward(  # type: ignore[no-untyped-def]
    r, k, v, w, u, state, grad_out, grad_last, grad_r, grad_k, grad_v, grad_w, grad_u, grad_state,
    rows, panels, states, kept, slot, first, stop,
):  # fmt: skip
    time, heads = r.shape[1:3]
    rr, kk, ww, gr, gk, gw = rows[slot, 0], rows[slot, 1], rows[slot, 2], rows[slot, 3], rows[slot, 4], rows[slot, 5]
    vv, oo, gv = panels[slot, 0], panels[slot, 1], panels[slot, 2]
    starts, carry, before = states[slot, 1:], states[slot, 0], kept[slot]
    for unit in range(first, stop):
        b, h = unit // heads, unit % heads
        _load_state(state[b, h], starts[0])
        _keep_states(k, v, w, b, h, kk, ww, vv, starts)
        _load_state(grad_last[b, h], carry)
        for c in range(starts.shape[0] - 1, -1, -1):
            start = c * CHUNK
            count = min(CHUNK, time - start)
            _load_rows(r, b, h, start, count, rr)
            _load_rows(k, b, h, start, count, kk)
            _load_decays(w, b, h, start, count, ww)
            _load_panels(v, b, h, start, count, vv)
            _load_panels(grad_out, b, h, start, count, oo)
            _settle(carry)
            gw[:] = 0.0
            _present_backward(rr, kk, u[h], vv, oo, gr, gk, gv, grad_u[b, h], count)
            for p in range(carry.shape[0]):
                _backward_panel(starts[c, p], carry[p], ww, kk, rr, vv[p], oo[p], before, gr, gk, gv[p], gw, count)
            _store_rows(gr, b, h, start, count, grad_r)
            _store_rows(gk, b, h, start, count, grad_k)
            _store_panels(gv, b, h, start, count, grad_v)
            _add_rows(gw, b, h, start, count, grad_w)
        _store_state(carry, grad_state[b, h])


def forward(r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Every o_t (B,T,H,V) and the last state (B,H,K,V)."""
    wide = [_widen(x) for x in (r, k, v)]
    out, last = torch.empty_like(wide[2]), torch.empty_like(state)
    _run(_forward, 1, *wide, _four_dimensional(log_decay), u.double(), state, out, last)
    return out.to(v.dtype), last


def backward(
    r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, u: Tensor, state: Tensor, grad_out: Tensor, grad_last: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of all six inputs, from those of both results."""
    batch, time, heads, size = r.shape
    wide = [_widen(x) for x in (r, k, v)]
    inputs = (*wide, _four_dimensional(log_decay), u.double(), state, _widen(grad_out), grad_last)
    grads = [torch.empty_like(x) for x in wide]
    fixed = log_decay.dim() == 2
    grad_w = torch.zeros((batch, 1 if fixed else time, heads, size), dtype=torch.float64 if fixed else wide[0].dtype)
    grad_u = torch.zeros((batch, heads, size), dtype=torch.float64)
    grad_state = torch.empty_like(state)
    _run(_backward, 1 + max(1, math.ceil(time / CHUNK)), *inputs, *grads, grad_w, grad_u, grad_state)
    if fixed:
        grad_w = grad_w.sum((0, 1))
    grad_r, grad_k, grad_v = (grad.to(r.dtype) for grad in grads)
    return grad_r, grad_k, grad_v, grad_w.to(log_decay.dtype), grad_u.sum(0).to(u.dtype), grad_state


def _four_dimensional(log_decay: Tensor) -> Tensor:
    """ln w as (B,T,H,K), or as (1,1,H,K) when it is fixed."""
    return _widen(log_decay[None, None] if log_decay.dim() == 2 else log_decay)


def _widen(x: Tensor) -> Tensor:
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def _run(kernel: Any, kept: int, *tensors: Tensor) -> None:
    """Give each thread an equal run of the heads of all batch rows, and room for `kept` states.

    The room comes from torch, whose memory is aligned to cache lines.
    """
    batch, time, heads, size = tensors[0].shape
    values = tensors[2].shape[3]
    units, count = batch * heads, math.ceil(values / LANES)
    work = units * time * size * values
    threads = max(1, min(torch.get_num_threads() if work >= SERIAL else 1, units))
    shapes = [(6, size, CHUNK), (3, count, CHUNK, LANES), (kept, count, size, LANES), (CHUNK, LANES)]
    room = [torch.zeros((threads, *shape), dtype=torch.float64) for shape in shapes]
    part = partial(kernel, *(tensor.detach().numpy() for tensor in (*tensors, *room)))
    cuts = [units * i // threads for i in range(threads + 1)]
    jobs = [pool(threads).submit(part, i, *cut) for i, cut in enumerate(pairwise(cuts)) if i]
    part(0, cuts[0], cuts[1])
    for job in jobs:
        job.result()
