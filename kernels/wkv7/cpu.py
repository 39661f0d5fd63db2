"""WKV-7 on a CPU, for now as the reference differentiates it; in a thread of its own, where autograd records."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from plkernel.kernels.wkv7 import reference


def forward(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Every o_t (B,T,H,V) and the last state (B,H,V,K)."""
    out, last = reference.wkv7(*(x.detach() for x in inputs))
    return out.clone(), last


def backward(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Gradients of all seven inputs, from those of both results."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_backward, *tensors).result()


def _backward(*tensors: Tensor) -> tuple[Tensor, ...]:
    *inputs, grad_out, grad_last = tensors
    leaves = [x.detach().requires_grad_() for x in inputs]
    results = reference.wkv7(*leaves)
    grads = torch.autograd.grad(results, leaves, (grad_out, grad_last), allow_unused=True, materialize_grads=True)
    return tuple(x.clone() for x in grads)
