"""WKV-7 as a loop over time in float64, differentiated by torch: what every other backend is compared with.

Letters: B batch, T time, H heads, K key size, V value size. See `plkernel.kernels.wkv7` for shapes and dtypes.
"""

import torch
from torch import Tensor


def wkv7(
    r: Tensor, log_decay: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """S_t = S_{t-1} diag(w_t) + (S_{t-1} a_t) b_t^T + v_t k_t^T with S_0 = state, and o_t = S_t r_t.

    Source: arXiv 2503.14456, section 4, equations 15 to 17, with a = -kappa and b = kappa times the rate.
    """
    decay, carry, outputs = log_decay.double().exp(), state.double(), []
    for t in range(r.shape[1]):
        r_t, w_t, k_t, a_t, b_t = (x[:, t, :, None].double() for x in (r, decay, k, a, b))
        read = (carry * a_t).sum(-1, keepdim=True)
        carry = carry * w_t + read * b_t + v[:, t, :, :, None].double() * k_t
        outputs.append((carry * r_t).sum(-1))
    out = torch.stack(outputs, 1) if outputs else v
    return out.to(v.dtype), carry.to(state.dtype, copy=True)
