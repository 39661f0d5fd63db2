"""WKV as a loop over time in float64, differentiated by torch: what every other backend is compared with.

Letters: B batch, T time, H heads, K key size, V value size. See `plkernel.kernels.wkv` for shapes and dtypes.
"""

import torch
from torch import Tensor


def wkv(r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """o_t = r_t (S_{t-1} + diag(u) k_t^T v_t) with S_t = diag(w_t) S_{t-1} + k_t^T v_t and S_0 = state.

    Source: arXiv 2404.05892, section 4, equations 8 and 9.
    """
    decay = log_decay.double().expand(r.shape).exp()[..., None]
    bonus, carry, outputs = u.double()[..., None], state.double(), []
    for t in range(r.shape[1]):
        pair = k[:, t, :, :, None].double() * v[:, t, :, None, :].double()
        outputs.append((r[:, t, :, :, None].double() * (carry + bonus * pair)).sum(-2))
        carry = decay[:, t] * carry + pair
    out = torch.stack(outputs, 1) if outputs else v
    return out.to(v.dtype), carry.to(state.dtype, copy=True)
