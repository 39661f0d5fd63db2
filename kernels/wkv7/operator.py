"""WKV-7 for users: checks and choice of backend."""

import torch
from torch import Tensor

from plkernel.kernels import backends, transforms
from plkernel.kernels.tensors import HALF_TYPES, WIDE_TYPES, check_device, check_sign, describe, dtype_name
from plkernel.kernels.wkv7 import reference

INPUTS = dict.fromkeys(("r", "log_decay", "k", "v", "a", "b"), -2) | {"state": -3}


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
) -> tuple[Tensor, Tensor]:
    """S_t = S_{t-1} diag(w_t) + (S_{t-1} a_t) b_t^T + v_t k_t^T, o_t = S_t r_t, S_0 = state: every o_t and S_T.

    Gradients flow through every input from both results, also under torch.func (grad, vjp, jacrev, vmap). Second
    derivatives and forward mode (torch.func.jvp, jacfwd, hessian) has the reference alone. The model has a = -kappa
    and b = kappa times the in-context rate, kappa a normalised key; a = 0 leaves the state of WKV.

    Args:
        r: receptance (B,T,H,K) in float32, float64, bfloat16 or float16; any T, also 0. Any strides.
        log_decay: ln w (B,T,H,K), from -inf to 0, in float32, float64 or the dtype of r; half types hold a weak decay
            badly.
        k: key (B,T,H,K) in the dtype of r.
        v: value (B,T,H,V) in the dtype of r; V need not be K.
        a: what of the state is read (B,T,H,K), in the dtype of r.
        b: where what was read is added (B,T,H,K), in the dtype of r.
        state: S_0 (B,H,V,K), zero when left out. Kept in float32 (float64 when r is float64).
        backend: "reference" (a loop in float64), "cpu" or "gpu", which takes no float64; None takes the one for the
            device of r.

    Returns:
        out (B,T,H,V) in the dtype of r, and S_T (B,H,V,K) in float32 (float64 when r is float64).

    Raises:
        ValueError: shapes, dtypes or devices that do not fit, a log_decay above 0 (not looked for on a GPU, where
            looking would wait for it), or a backend that does not work here or not with these inputs.
        NotImplementedError: second derivatives or forward mode of another backend than the reference.

    Source: arXiv 2503.14456, section 4, equations 15 to 17.
    """
    _check(r, log_decay, k, v, a, b, state)
    chosen = backends.choose("wkv7", backend, r.device)
    state_type = torch.float64 if r.dtype == torch.float64 else torch.float32
    if state is None:
        state = r.new_zeros((r.shape[0], r.shape[2], v.shape[3], r.shape[3]), dtype=state_type)
    inputs = (r, log_decay, k, v, a, b, state.to(state_type))
    if chosen == "reference":
        if not torch._C._functorch.is_functorch_wrapped_tensor(log_decay):  # by torch.func: vmap cannot look at values
            check_sign("wkv7", log_decay)
        return reference.wkv7(*inputs)
    return _compiled(*inputs, chosen)


_compiled = transforms.once_differentiable(
    "wkv7", INPUTS, ("v", "state"), lambda *inputs: check_sign("wkv7", inputs[1])
)


def _check(r: Tensor, log_decay: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor | None) -> None:
    if r.dim() != 4 or r.dtype not in HALF_TYPES + WIDE_TYPES:
        raise ValueError(f"wkv7: r is {describe(r)}; it must be a floating-point tensor (batch, time, heads, key size)")
    batch, _, heads, size = r.shape
    if v.dim() != 4 or v.shape[:3] != r.shape[:3]:
        raise ValueError(f"wkv7: v is {describe(v)}; for this r it must be {tuple(r.shape[:3])} and the value size")
    keys = {"log_decay": log_decay, "k": k, "a": a, "b": b}
    shapes = dict.fromkeys(keys, tuple(r.shape)) | {"state": (batch, heads, v.shape[3], size)}
    for name, tensor in (keys | {"state": state}).items():
        if tensor is not None and tensor.shape != shapes[name]:
            raise ValueError(f"wkv7: {name} is {describe(tensor)}; for this r and v it must be {shapes[name]}")
    for name, tensor in (("k", k), ("v", v), ("a", a), ("b", b)):
        if tensor.dtype != r.dtype:
            raise ValueError(f"wkv7: {name} is {describe(tensor)}; it must have the dtype of r, {dtype_name(r)}")
    if log_decay.dtype not in (*WIDE_TYPES, r.dtype):
        raise ValueError(f"wkv7: log_decay is {describe(log_decay)}; it must be float32, float64 or {dtype_name(r)}")
    check_device("wkv7", {"r": r, "log_decay": log_decay, "k": k, "v": v, "a": a, "b": b, "state": state})
