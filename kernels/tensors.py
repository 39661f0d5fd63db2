"""Conversions of tensors that the operators share."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

HALF_TYPES = (torch.bfloat16, torch.float16)
WIDE_TYPES = (torch.float32, torch.float64)


def widen(x: Tensor) -> Tensor:
    """Convert half types to float32: a CPU has no arithmetic for them."""
    return x if x.dtype in WIDE_TYPES else x.float()


def dtype_name(x: Tensor) -> str:
    """Name of the dtype, as in float32."""
    return str(x.dtype).removeprefix("torch.")


def state_type(x: Tensor) -> torch.dtype:
    """The dtype of a state: float64 for float64 inputs, else float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def sum_parts(parts: Tensor, like: Tensor) -> Tensor:
    """Sum over leading axes in float64; a single part only changes its dtype."""
    extra = parts.dim() - like.dim()
    if parts.shape[:extra].numel() == 1:
        return parts.view(like.shape).to(like.dtype)
    return parts.sum(tuple(range(extra)), dtype=torch.float64).to(like.dtype)


def on(device: torch.device) -> AbstractContextManager[object]:
    """Make `device` current, because kernels are launched on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
