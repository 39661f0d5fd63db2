"""The linear recurrence h_t = a_t * h_{t-1} + b_t, with derivatives, on any device."""

from torch import Tensor

from plkernel.kernels import backends
from plkernel.kernels.scan import derivatives
from plkernel.kernels.tensors import WIDE_TYPES, Row, check, check_axes, state_type


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
    check_axes("scan", "b", b, "batch, time, channels")
    batch, _, channels = b.shape
    fixed = a.dim() == 1
    rows: dict[str, Row] = {
        "b": (b, [tuple(b.shape)], {b.dtype}),
        "a": (a, [(channels,), tuple(b.shape)], {*WIDE_TYPES} if fixed else {*WIDE_TYPES, b.dtype}),
        "state": (state, [(batch, channels)], {b.dtype if state is None else state.dtype}),
    }
    check("scan", rows)
    if state is None:
        state = b.new_zeros((batch, channels), dtype=state_type(b))
    return derivatives.scan(a, b, state.to(state_type(b)), backends.choose("scan", backend, b.device))
