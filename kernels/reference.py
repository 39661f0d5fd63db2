"""The operators as loops over time in float64, differentiated by torch: the truth for every other backend.

Letters: B batch, T time, D channels, H heads, K key size, V value size.
"""

import torch
from torch import Tensor

Results = tuple[Tensor, Tensor]


def _gathered(outputs: list[Tensor], like: Tensor, carry: Tensor, state: Tensor) -> Results:
    out = torch.stack(outputs, 1) if outputs else like
    return out.to(like.dtype), carry.to(state.dtype, copy=True)


def scan(a: Tensor, b: Tensor, state: Tensor) -> Results:
    """h_t = a_t * h_{t-1} + b_t with h_0 = state; every h_t and the last one."""
    carry, outputs = state.double(), []
    for decay, step in zip(a.double().expand(b.shape).unbind(1), b.double().unbind(1), strict=True):
        carry = decay * carry + step
        outputs.append(carry)
    return _gathered(outputs, b, carry, state)


def wkv(r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, u: Tensor, state: Tensor) -> Results:
    """o_t = r_t (S_{t-1} + diag(u) k_t^T v_t) with S_t = diag(w_t) S_{t-1} + k_t^T v_t and S_0 = state.

    Source: arXiv 2404.05892, section 4, equations 8 and 9.
    """
    columns = (x.double()[..., None].unbind(1) for x in (r, k, log_decay.double().expand(r.shape).exp()))
    bonus, carry, outputs = u.double()[..., None], state.double(), []
    for r_t, k_t, w_t, v_t in zip(*columns, v.double()[..., None, :].unbind(1), strict=True):
        pair = k_t * v_t
        outputs.append((r_t * (carry + bonus * pair)).sum(-2))
        carry = w_t * carry + pair
    return _gathered(outputs, v, carry, state)


def wkv7(r: Tensor, log_decay: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor) -> Results:
    """S_t = S_{t-1} diag(w_t) + (S_{t-1} a_t) b_t^T + v_t k_t^T with S_0 = state, and o_t = S_t r_t.

    Source: arXiv 2503.14456, section 4, equations 15 to 17, with a = -kappa and b = kappa times the rate.
    """
    rows = (x.double()[..., None, :].unbind(1) for x in (r, log_decay.double().exp(), k, a, b))
    carry, outputs = state.double(), []
    for r_t, w_t, k_t, a_t, b_t, v_t in zip(*rows, v.double()[..., None].unbind(1), strict=True):
        read = (carry * a_t).sum(-1, keepdim=True)
        carry = carry * w_t + read * b_t + v_t * k_t
        outputs.append((carry * r_t).sum(-1))
    return _gathered(outputs, v, carry, state)
