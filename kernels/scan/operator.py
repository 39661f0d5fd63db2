"""The scan for users: checks and choice of backend."""

import torch
from torch import Tensor

from plkernel.kernels import backends
from plkernel.kernels.scan import derivatives
from plkernel.kernels.tensors import HALF_TYPES, WIDE_TYPES, check_device, describe


def scan(a: Tensor, b: Tensor, state: Tensor | None = None, *, backend: str | None = None) -> tuple[Tensor, Tensor]:
    """h_t = a_t * h_{t-1} + b_t for t = 1..T with h_0 = state: every h_t, and the last one.

    Gradients flow through a, b and state from both results; so do those of any higher order, tangents of forward mode
    (torch.func.jvp, jacfwd, hessian) and axes of vmap. The carry is float64 on a CPU, float32 on a GPU.

    Args:
        a: decay per step, in (0, 1) for a memory that fades: (D,) fixed, or (B,T,D) one for each step. float32 or
            float64; a (B,T,D) decay may also have the dtype of b.
        b: input (B,T,D) in float32, float64, bfloat16 or float16; any T, also 0. Any strides.
        state: h_0 (B,D), zero when left out. Kept in float32 (float64 when b is float64).
        backend: "reference" (a loop in float64), "cpu" or "gpu"; None takes the one for the device of b.

    Returns:
        h (B,T,D) in the dtype of b, and the last state (B,D) in float32 (float64 when b is float64).

    Raises:
        ValueError: shapes, dtypes or devices that do not fit, or a backend that does not work here.
        NotImplementedError: forward mode within forward mode.
    """
    _check(a, b, state)
    state_type = torch.float64 if b.dtype == torch.float64 else torch.float32
    batch, _, channels = b.shape
    if state is None:
        state = b.new_zeros((batch, channels), dtype=state_type)
    return derivatives.scan(a, b, state.to(state_type), backends.choose("scan", backend, b.device))


def _check(a: Tensor, b: Tensor, state: Tensor | None) -> None:
    if b.dim() != 3 or b.dtype not in HALF_TYPES + WIDE_TYPES:
        raise ValueError(f"scan: b is {describe(b)}; it must be a floating-point tensor (batch, time, channels)")
    if a.shape not in (b.shape, b.shape[2:]):
        raise ValueError(f"scan: a is {describe(a)}; for this b it must be {(b.shape[2],)} or {tuple(b.shape)}")
    if a.dtype not in WIDE_TYPES and (a.dim() == 1 or a.dtype != b.dtype):
        raise ValueError(f"scan: a is {describe(a)}; it must be float32 or float64 (with time also the dtype of b)")
    if state is not None and state.shape != (b.shape[0], b.shape[2]):
        raise ValueError(f"scan: state is {describe(state)}; for this b it must be {(b.shape[0], b.shape[2])}")
    check_device("scan", {"b": b, "a": a, "state": state})
