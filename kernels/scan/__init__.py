"""The linear recurrence h_t = a_t * h_{t-1} + b_t, with derivatives, on any device."""

from typing import Any

import torch
from torch import Tensor

from plkernel.kernels.operators import Results, define, gathered


def scan(a: Tensor, b: Tensor, state: Tensor | None = None, *, backend: str | None = None) -> tuple[Tensor, Tensor]:
    """h_t = a_t * h_{t-1} + b_t for t = 1..T with h_0 = state: every h_t, and the last one.

    `scan` supports gradients of any order through a, b and state, forward mode (torch.func.jvp, jacfwd, hessian) and
    vmap. The carry is float64 on a CPU, float32 within a group of steps on a GPU.

    Args:
        a: decay per step, in (0, 1) for a memory that fades: (D,) fixed, or (B,T,D) one for each step. float32 or
            float64; a (B,T,D) decay may also have the dtype of b.
        b: input (B,T,D) in float32, float64, bfloat16 or float16; any T, also 0; any strides.
        state: h_0 (B,D), zero when left out. Kept in float32 (float64 when b is float64).
        backend: "reference" (a loop in float64), "cpu" or "gpu"; None takes the one for the device of b.

    Returns:
        h (B,T,D) in the dtype of b, and the last state (B,D) in float32 (float64 when b is float64).

    Raises:
        ValueError: shapes, dtypes or devices that do not fit, or a backend that does not work here.
        NotImplementedError: forward mode within forward mode.
    """
    return _scan(a, b, state, backend)


def _reference(a: Tensor, b: Tensor, state: Tensor) -> Results:
    """The loop over time in float64, differentiated by torch: the truth for every other backend."""
    carry, outputs = state.double(), []
    for decay, step in zip(a.double().expand(b.shape).unbind(1), b.double().unbind(1), strict=True):
        carry = decay * carry + step
        outputs.append(carry)
    return gathered(outputs, b, carry, state)


def _tangent(a: Tensor, state: Tensor, h: Tensor, backend: str, *tangents: Any) -> tuple[Tensor, Tensor]:
    """h'_t = a_t h'_{t-1} + (a'_t h_{t-1} + b'_t)."""
    d_a, d_b, d_state = (torch.zeros_like(x) if d is None else d for d, x in zip(tangents, (a, h, state), strict=False))
    return _scan(a, d_b + (d_a * _before(h, state)).to(h.dtype), d_state, backend)


def _gradients(
    a: Tensor, state: Tensor, h: Tensor, grad_h: Tensor, grad_last: Tensor, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    """g_t = grad_h_t + a_{t+1} g_{t+1} as a scan from the last step to the first, which has derivatives again.

    The gradients of a_t, b_t and the state are g_t h_{t-1}, g_t and a_1 g_1, in the precision of the state.
    """
    if h.shape[1] == 0:
        return torch.zeros_like(a), torch.zeros_like(h), grad_last
    wide = a.to(state.dtype).expand(h.shape)
    later = torch.cat([torch.ones_like(wide[:, :1]), wide.flip(1)[:, :-1]], 1)
    g, first = _scan(later, grad_h.to(state.dtype).flip(1), grad_last, backend)
    grad_a = g.flip(1) * _before(h.to(state.dtype), state)
    return (grad_a if a.dim() == 3 else grad_a.sum((0, 1))).to(a.dtype), g.flip(1).to(h.dtype), wide[:, 0] * first


def _before(h: Tensor, state: Tensor) -> Tensor:
    """h_{t-1} for every t, of which the first is the state."""
    return torch.cat([state[:, None].to(h.dtype), h], 1)[:, :-1]


_scan = define(
    "scan", "b", {"a": "D BTD", "b": "BTD", "state": "BD"}, _reference,
    like="b", precise=("a",), kept=("a", "state", "out"), tangent=_tangent, again=_gradients,
)  # fmt: skip
