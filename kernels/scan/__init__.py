"""The linear recurrence h_t = a_t * h_{t-1} + b_t, with gradients, on any device."""

from torch import Tensor

from plkernel.kernels.operators import Results, define, gathered


def scan(
    a: Tensor, b: Tensor, state: Tensor | None = None, *, backend: str | None = None
) -> tuple[Tensor, Tensor]:
    """h_t = a_t * h_{t-1} + b_t for t = 1..T with h_0 = state: every h_t, and the last one.

    `scan` supports gradients through a, b and state. Only the reference supports second
    derivatives, forward mode and torch.func. The carry is float64 on a CPU, float32 within a group
    of steps on a GPU.

    Args:
        a: decay per step, in (0, 1) for a memory that fades: (D,) fixed, or (B,T,D) one for each
            step. float32 or float64; a (B,T,D) decay may also have the dtype of b.
        b: input (B,T,D) in float32, float64, bfloat16 or float16; any T, also 0; any strides.
        state: h_0 (B,D), zero when left out. Kept in float32 (float64 when b is float64).
        backend: "reference" (a loop in float64), "cpu" or "gpu"; None takes the one for the device
            of b.

    Returns:
        h (B,T,D) in the dtype of b, and the last state (B,D) in float32 (float64 when b is
        float64).

    Raises:
        ValueError: shapes, dtypes or devices that do not fit, or a backend that does not work here.
        NotImplementedError: second derivatives, forward mode or torch.func of another backend than
            the reference.
    """
    return _scan(a, b, state, backend, None)


def _reference(a: Tensor, b: Tensor, state: Tensor) -> Results:
    """The loop over time in float64, differentiated by torch: the truth for every other backend."""
    carry = state.double()
    outputs = []
    for decay, step in zip(a.double().expand(b.shape).unbind(1), b.double().unbind(1), strict=True):
        carry = decay * carry + step
        outputs.append(carry)
    return gathered(outputs, b, carry, state)


_INPUTS = {"a": "D BTD", "b": "BTD", "state": "BD"}
_scan = define(
    "scan", "b", _INPUTS, _reference, like="b", precise=("a",), kept=("a", "state", "out")
)
