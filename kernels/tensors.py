"""What the operators ask of tensors and say of them."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

HALF_TYPES = (torch.bfloat16, torch.float16)
WIDE_TYPES = (torch.float32, torch.float64)


def widen(x: Tensor) -> Tensor:
    """Half types as float32: a CPU has no arithmetic for them."""
    return x if x.dtype in WIDE_TYPES else x.float()


def dtype_name(x: Tensor) -> str:
    """float32, not torch.float32."""
    return str(x.dtype).removeprefix("torch.")


def describe(x: Tensor) -> str:
    """Dtype and shape."""
    return f"{dtype_name(x)} {tuple(x.shape)}"


def check_device(operator: str, tensors: Mapping[str, Tensor | None]) -> None:
    """ValueError unless all are where the first is."""
    (own, device), *others = ((name, x.device) for name, x in tensors.items() if x is not None)
    for name, other in others:
        if other != device:
            raise ValueError(f"{operator}: {name} is on {other} and {own} on {device}; all must be on one device")


def check_sign(operator: str, log_decay: Tensor) -> None:
    """Where values can be read without waiting for a device: a memory that grows is a sign forgotten."""
    if log_decay.device.type == "cpu" and log_decay.numel() and (largest := log_decay.detach().max().item()) > 0:
        raise ValueError(f"{operator}: log_decay reaches {largest:.4g}; it is ln w of a decay w <= 1, so at most 0")


def check_gpu(operator: str, tensors: Mapping[str, Tensor], compiled: bool) -> None:
    """ValueError unless kernels that are `compiled`, or else interpreted, can take them."""
    for name, x in tensors.items():
        if x.dtype not in (torch.float32, *HALF_TYPES):
            takes = "the gpu backend takes float32, bfloat16 and float16"
            raise ValueError(f"{operator}: {name} is {dtype_name(x)}; {takes}")
    name, x = next(iter(tensors.items()))
    if compiled and not x.is_cuda:
        needs = "a GPU, or TRITON_INTERPRET=1 set before triton is imported"
        raise ValueError(f"{operator}: {name} is on {x.device}; the gpu backend needs {needs}")


def sum_parts(parts: Tensor, like: Tensor) -> Tensor:
    """Leading axes summed in float64; a single part only changes its dtype."""
    extra = parts.dim() - like.dim()
    if parts.shape[:extra].numel() == 1:
        return parts.view(like.shape).to(like.dtype)
    return parts.sum(tuple(range(extra)), dtype=torch.float64).to(like.dtype)


def on(device: torch.device) -> AbstractContextManager[object]:
    """Kernels are launched on the current device, which need not be that of the tensors."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
