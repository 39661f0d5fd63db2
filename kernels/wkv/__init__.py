"""The matrix-valued recurrence of RWKV-5 (Eagle) and RWKV-6 (Finch).

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


def wkv(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    u: Tensor,
    state: Tensor | None = None,
    *,
    backend: str | None = None,
    precision: str | None = None,
) -> tuple[Tensor, Tensor]:
    """o_t = r_t (S_{t-1} + diag(u) k_t^T v_t), S_t = diag(w_t) S_{t-1} + k_t^T v_t.

    S_0 = state; the results are every o_t and S_T. `wkv` supports gradients through every input.
    Only the reference supports second derivatives, forward mode and torch.func. The carry is
    float64, on a GPU from one chunk of 64 steps to the next.

    Args:
        r: receptance (B,T,H,K) in float32, float64, bfloat16 or float16; any T, also 0. Any
            strides.
        k: key (B,T,H,K) in the dtype of r.
        v: value (B,T,H,V) in the dtype of r; V need not be K.
        log_decay: ln w, from -inf to 0: (B,T,H,K) one for each step (Finch), or (H,K) fixed
            (Eagle). float32, float64 or the dtype of r; half types hold a weak decay badly.
        u: weight of the present step (H,K), in a dtype that log_decay may have.
        state: S_0 (B,H,K,V), zero when left out. Kept in float32 (float64 when r is float64).
        backend: "reference" (a loop in float64), "cpu" or "gpu", which takes no float64 and K up to
            512; None takes the one for the device of r.
        precision: how the products of a GPU are taken. "exact": in float32, without tensor cores.
            "bf16", "bf16x3", "tf32", "tf32x3": on tensor cores for K up to 128, operands rounded as
            the name says; x3 keeps most of what the rounding cuts off. "ieee": the same in float32.
            "tf32x3" takes K up to 64 on GPUs of little shared memory (sm_86, sm_89, sm_120). None
            takes GPU_PRECISION of the dtype of r, on a CPU "exact", which is all that it and
            the reference have.

    Returns:
        out (B,T,H,V) in the dtype of r, and S_T (B,H,K,V) in float32 (float64 when r is float64).

    Raises:
        ValueError: shapes, dtypes or devices that do not fit, a log_decay above 0 (not looked for
            on a GPU, where looking would wait for it), or a backend or precision that does not work
            here or not with these inputs.
        NotImplementedError: second derivatives, forward mode or torch.func of another backend than
            the reference.

    Source: arXiv 2404.05892, section 4, equations 6, 8 and 9.
    """
    return _wkv(r, k, v, log_decay, u, state, backend, precision)


def _reference(
    r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, u: Tensor, state: Tensor
) -> Results:
    """The loop over time in float64, differentiated by torch: the truth for every other backend."""
    columns = (
        x.double()[..., None].unbind(1) for x in (r, k, log_decay.double().expand(r.shape).exp())
    )
    bonus = u.double()[..., None]
    carry = state.double()
    outputs = []
    for r_t, k_t, w_t, v_t in zip(*columns, v.double()[..., None, :].unbind(1), strict=True):
        pair = k_t * v_t
        outputs.append((r_t * (carry + bonus * pair)).sum(-2))
        carry = w_t * carry + pair
    return gathered(outputs, v, carry, state)


_INPUTS = {
    "r": "BTHK",
    "k": "BTHK",
    "v": "BTHV",
    "log_decay": "BTHK HK",
    "u": "HK",
    "state": "BHKV",
}
_CORES = TensorCores(
    ("bf16", "bf16x3", "tf32", "tf32x3", "ieee"),
    GPU_PRECISION,
    most_keys=128,
    default_keys=64,
    small_keys={"tf32x3": 64},  # of 128, gradients take 144 KB of shared memory
)
_wkv = define("wkv", "r", _INPUTS, _reference, like="v", precise=("log_decay", "u"), cores=_CORES)
