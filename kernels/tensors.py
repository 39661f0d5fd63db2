"""Checks and conversions of tensors that the operators share."""

from collections.abc import Collection, Mapping, Sequence
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


Row = tuple[Tensor | None, Sequence[tuple[int, ...]], Collection[torch.dtype]]  # a tensor, its shapes and its dtypes


def check(operator: str, rows: Mapping[str, Row]) -> None:
    """Raise ValueError unless each tensor has one of its shapes and dtypes, and all are on the device of the first."""
    device, first = None, ""
    for name, (x, shapes, dtypes) in rows.items():
        if x is None:
            continue
        if tuple(x.shape) not in shapes or x.dtype not in dtypes:
            wanted = f"{' or '.join(sorted(str(one)[6:] for one in dtypes))} {' or '.join(map(str, shapes))}"
            raise ValueError(f"{operator}: {name} is {dtype_name(x)} {tuple(x.shape)}; here it must be {wanted}")
        if device is None:
            device, first = x.device, name
        if x.device != device:
            raise ValueError(f"{operator}: {name} is on {x.device} and {first} on {device}; all must be on one device")


def check_axes(operator: str, name: str, x: Tensor, axes: str) -> None:
    """Raise ValueError unless x is a floating-point tensor with these axes."""
    if x.dim() != axes.count(",") + 1 or x.dtype not in (*HALF_TYPES, *WIDE_TYPES):
        kind = f"{dtype_name(x)} {tuple(x.shape)}"
        raise ValueError(f"{operator}: {name} is {kind}; it must be a floating-point tensor ({axes})")


def state_type(x: Tensor) -> torch.dtype:
    """The dtype of a state: float64 for float64 inputs, else float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def check_sign(operator: str, log_decay: Tensor) -> None:
    """Raise ValueError for a log_decay above 0; checked on a CPU alone, where reading values waits for nothing."""
    if torch._C._functorch.is_functorch_wrapped_tensor(log_decay):  # vmap cannot read values
        return
    if log_decay.device.type == "cpu" and log_decay.numel() and (largest := log_decay.detach().max().item()) > 0:
        raise ValueError(f"{operator}: log_decay reaches {largest:.4g}; it is ln w of a decay w <= 1, so at most 0")


def check_gpu(operator: str, tensors: Mapping[str, Tensor], compiled: bool) -> None:
    """Raise ValueError unless the Triton kernels, `compiled` or interpreted, can take the tensors."""
    for name, x in tensors.items():
        if x.dtype not in (torch.float32, *HALF_TYPES):
            takes = "the gpu backend takes float32, bfloat16 and float16"
            raise ValueError(f"{operator}: {name} is {dtype_name(x)}; {takes}")
    name, x = next(iter(tensors.items()))
    if compiled and not x.is_cuda:
        needs = "a GPU, or TRITON_INTERPRET=1 set before triton is imported"
        raise ValueError(f"{operator}: {name} is on {x.device}; the gpu backend needs {needs}")


def sum_parts(parts: Tensor, like: Tensor) -> Tensor:
    """Sum over leading axes in float64; a single part only changes its dtype."""
    extra = parts.dim() - like.dim()
    if parts.shape[:extra].numel() == 1:
        return parts.view(like.shape).to(like.dtype)
    return parts.sum(tuple(range(extra)), dtype=torch.float64).to(like.dtype)


def on(device: torch.device) -> AbstractContextManager[object]:
    """Make `device` current, because kernels are launched on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
