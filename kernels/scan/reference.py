"""The scan as a loop over time in float64: what every other backend is compared with.

Letters: B batch, T time, D channels. See `plkernel.kernels.scan` for shapes and dtypes.
"""

import torch
from torch import Tensor


def forward(a: Tensor, b: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """h_t = a_t * h_{t-1} + b_t with h_0 = state; returns every h_t and the last one."""
    decay, step = a.double().expand(b.shape), b.double()
    h = torch.empty_like(step)
    carry = state.double()
    for t in range(b.shape[1]):
        carry = decay[:, t] * carry + step[:, t]
        h[:, t] = carry
    return h.to(b.dtype), carry.to(state.dtype, copy=True)


def backward(a: Tensor, state: Tensor, h: Tensor, grad_h: Tensor, grad_last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """g_t = grad_h_t + a_{t+1} * g_{t+1}; gradients of a (g_t * h_{t-1}), of b (g_t) and of the state (a_1 g_1)."""
    decay, output = a.double().expand(h.shape), h.double()
    grad_a, grad_b = torch.empty_like(output), torch.empty_like(output)
    carry = grad_last.double()
    for t in reversed(range(h.shape[1])):
        carry = grad_h[:, t].double() + carry
        grad_b[:, t] = carry
        grad_a[:, t] = carry * (output[:, t - 1] if t else state.double())
        carry = decay[:, t] * carry
    if a.dim() == 1:
        grad_a = grad_a.sum((0, 1))
    return grad_a.to(a.dtype), grad_b.to(h.dtype), carry.to(state.dtype, copy=True)
