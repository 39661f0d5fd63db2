"""WKV for users: checks and choice of backend."""

import torch
from torch import Tensor

from plkernel.kernels import backends, transforms
from plkernel.kernels.tensors import HALF_TYPES, WIDE_TYPES, check_device, check_sign, describe, dtype_name
from plkernel.kernels.wkv import reference

INPUTS = {"r": -2, "k": -2, "v": -2, "log_decay": -2, "u": -2, "state": -3}


def wkv(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    u: Tensor,
    state: Tensor | None = None,
    *,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """o_t = r_t (S_{t-1} + diag(u) k_t^T v_t), S_t = diag(w_t) S_{t-1} + k_t^T v_t, S_0 = state: every o_t and S_T.

    Gradients flow through every input from both results, also under torch.func (grad, vjp, jacrev, vmap). Second
    derivatives and forward mode (torch.func.jvp, jacfwd, hessian) has the reference alone. The carry is float64, on a
    GPU from one chunk of 64 steps to the next.

    Args:
        r: receptance (B,T,H,K) in float32, float64, bfloat16 or float16; any T, also 0. Any strides.
        k: key (B,T,H,K) in the dtype of r.
        v: value (B,T,H,V) in the dtype of r; V need not be K.
        log_decay: ln w, from -inf to 0: (B,T,H,K) one for each step (Finch), or (H,K) fixed (Eagle). float32, float64
            or the dtype of r; half types hold a weak decay badly.
        u: weight of the present step (H,K), in a dtype that log_decay may have.
        state: S_0 (B,H,K,V), zero when left out. Kept in float32 (float64 when r is float64).
        backend: "reference" (a loop in float64), "cpu" or "gpu", which takes no float64 and K up to 512; None takes
            the one for the device of r.

    Returns:
        out (B,T,H,V) in the dtype of r, and S_T (B,H,K,V) in float32 (float64 when r is float64).

    Raises:
        ValueError: shapes, dtypes or devices that do not fit, a log_decay above 0 (not looked for on a GPU, where
            looking would wait for it), or a backend that does not work here or not with these inputs.
        NotImplementedError: second derivatives or forward mode of another backend than the reference.

    Source: arXiv 2404.05892, section 4, equations 6, 8 and 9.
    """
    _check(r, k, v, log_decay, u, state)
    chosen = backends.choose("wkv", backend, r.device)
    state_type = torch.float64 if r.dtype == torch.float64 else torch.float32
    if state is None:
        state = r.new_zeros((r.shape[0], *r.shape[2:], v.shape[3]), dtype=state_type)
    inputs = (r, k, v, log_decay, u, state.to(state_type))
    if chosen == "reference":
        if not torch._C._functorch.is_functorch_wrapped_tensor(log_decay):  # by torch.func: vmap cannot look at values
            check_sign("wkv", log_decay)
        return reference.wkv(*inputs)
    return _compiled(*inputs, chosen)


_compiled = transforms.once_differentiable("wkv", INPUTS, ("v", "state"), lambda *inputs: check_sign("wkv", inputs[3]))


def _check(r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, u: Tensor, state: Tensor | None) -> None:
    if r.dim() != 4 or r.dtype not in HALF_TYPES + WIDE_TYPES:
        raise ValueError(f"wkv: r is {describe(r)}; it must be a floating-point tensor (batch, time, heads, key size)")
    batch, time, heads, size = r.shape
    if v.dim() != 4 or v.shape[:3] != r.shape[:3]:
        raise ValueError(f"wkv: v is {describe(v)}; for this r it must be {(batch, time, heads)} and the value size")
    shapes: dict[str, tuple[Tensor | None, list[tuple[int, ...]]]] = {
        "k": (k, [(batch, time, heads, size)]),
        "log_decay": (log_decay, [(batch, time, heads, size), (heads, size)]),
        "u": (u, [(heads, size)]),
        "state": (state, [(batch, heads, size, v.shape[3])]),
    }
    for name, (tensor, allowed) in shapes.items():
        if tensor is not None and tuple(tensor.shape) not in allowed:
            raise ValueError(
                f"wkv: {name} is {describe(tensor)}; for this r and v it must be {' or '.join(map(str, allowed))}"
            )
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype != r.dtype:
            raise ValueError(f"wkv: {name} is {describe(tensor)}; it must have the dtype of r, {dtype_name(r)}")
    for name, tensor in (("log_decay", log_decay), ("u", u)):
        if tensor.dtype not in (*WIDE_TYPES, r.dtype):
            raise ValueError(f"wkv: {name} is {describe(tensor)}; it must be float32, float64 or {dtype_name(r)}")
    check_device("wkv", {"r": r, "k": k, "v": v, "log_decay": log_decay, "u": u, "state": state})
