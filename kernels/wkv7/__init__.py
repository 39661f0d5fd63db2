"""The matrix-valued recurrence of RWKV-7 (Goose), a generalised delta rule.

With gradients, on any device.
"""

import torch
from torch import Tensor

from plkernel.kernels.operators import EXACT, Results, TensorCores, define, gathered

GPU_PRECISION = {torch.bfloat16: "bf16", torch.float16: EXACT, torch.float32: EXACT}
"""Precision of precision=None on a GPU, by the dtype of r; EXACT on one older than sm_80.

On tensor cores bfloat16 is faster than exact and loses less than the rounding of the inputs to
bfloat16 does (runs/records/bench/h200/forms.json). The others are exact until a record shows one to
be faster and as good.
"""


def wkv7(
    r: Tensor,
    log_decay: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    state: Tensor | None = None,
    *,
    backend: str | None = None,
    precision: str | None = None,
) -> tuple[Tensor, Tensor]:
    """S_t = S_{t-1} diag(w_t) + (S_{t-1} a_t) b_t^T + v_t k_t^T, o_t = S_t r_t.

    S_0 = state; the results are every o_t and S_T. `wkv7` supports gradients through every input.
    Only the reference supports second derivatives, forward mode and torch.func. The model has a =
    -kappa and b = kappa times the in-context rate, kappa a normalised key; a = 0 leaves the state
    of WKV.

    Args:
        r: receptance (B,T,H,K) in float32, float64, bfloat16 or float16; any T, also 0. Any
            strides.
        log_decay: ln w (B,T,H,K), from -inf to 0, in float32, float64 or the dtype of r; half types
            hold a weak decay badly.
        k: key (B,T,H,K) in the dtype of r.
        v: value (B,T,H,V) in the dtype of r; V need not be K.
        a: what of the state is read (B,T,H,K), in the dtype of r.
        b: where what was read is added (B,T,H,K), in the dtype of r.
        state: S_0 (B,H,V,K), zero when left out. Kept in float32 (float64 when r is float64).
        backend: "reference" (a loop in float64), "cpu" or "gpu", which takes no float64; None takes
            the one for the device of r.
        precision: how the products of a GPU are taken. "exact": in float32, without tensor cores.
            "bf16", "tf32x3": on tensor cores for K up to 128, operands rounded as the name says; x3
            keeps most of what the rounding cuts off. "ieee": the same in float32. None takes
            GPU_PRECISION of the dtype of r, on a CPU "exact", which is all that it and the
            reference have.

    Returns:
        out (B,T,H,V) in the dtype of r, and S_T (B,H,V,K) in float32 (float64 when r is float64).

    Raises:
        ValueError: shapes, dtypes or devices that do not fit, a log_decay above 0 (not looked for
            on a GPU, where looking would wait for it), or a backend or precision that does not work
            here or not with these inputs.
        NotImplementedError: second derivatives, forward mode or torch.func of another backend than
            the reference.

    Source: arXiv 2503.14456, section 4, equations 15 to 17.
    """
    return _wkv7(r, log_decay, k, v, a, b, state, backend, precision)


def _reference(
    r: Tensor, log_decay: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor
) -> Results:
    """The loop over time in float64, differentiated by torch: the truth for every other backend."""
    rows = (x.double()[..., None, :].unbind(1) for x in (r, log_decay.double().exp(), k, a, b))
    carry = state.double()
    outputs = []
    for r_t, w_t, k_t, a_t, b_t, v_t in zip(*rows, v.double()[..., None].unbind(1), strict=True):
        read = (carry * a_t).sum(-1, keepdim=True)
        carry = carry * w_t + read * b_t + v_t * k_t
        outputs.append((carry * r_t).sum(-1))
    return gathered(outputs, v, carry, state)


_INPUTS = dict.fromkeys(("r", "log_decay", "k"), "BTHK") | {
    "v": "BTHV",
    "a": "BTHK",
    "b": "BTHK",
    "state": "BHVK",
}
_CORES = TensorCores(("bf16", "tf32x3", "ieee"), GPU_PRECISION, most_keys=128, default_keys=128)
_wkv7 = define("wkv7", "r", _INPUTS, _reference, like="v", precise=("log_decay",), cores=_CORES)
