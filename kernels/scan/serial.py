"""The launches of a scan in which one program takes all steps of its channels."""

from typing import Any, ClassVar

import torch
import triton
from torch import Tensor


class Serial:
    """A plan with one launch for each direction, whose kernels are those of a file beside it."""

    kernels: ClassVar[tuple[Any, Any]]
    """Forward and backward."""

    def constants(self, tensors: int, size: int) -> dict[str, Any]:
        """The constants of a kernel that reads so many tensors of numbers of `size` bytes.

        LANES, the channels of a program, is one of them.
        """
        raise NotImplementedError

    @property
    def options(self) -> dict[str, Any]:
        """Options of the compiler for kernels."""
        raise NotImplementedError

    def forward(self, a: Tensor, b: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """h_t = a_t * h_{t-1} + b_t with h_0 = state; returns every h_t and the last one."""
        fixed = a.dim() == 1
        h = torch.empty_like(b)
        last = torch.empty_like(state)
        batch, time, channels = b.shape
        constants = self.constants(1 if fixed else 2, b.element_size())
        programs = batch * triton.cdiv(channels, constants["LANES"])
        kernel, _ = self.kernels
        with torch.cuda.device_of(b):  # kernels are launched on the current device
            kernel[(programs,)](
                a,
                b,
                state,
                h,
                last,
                time,
                channels,
                FIXED=fixed,
                **constants,
                **self.options,
            )
        return h, last

    def backward(
        self, a: Tensor, state: Tensor, h: Tensor, grad_h: Tensor, grad_last: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """g_t = grad_h_t + a_{t+1} * g_{t+1}; gradients of a, b and the state."""
        fixed = a.dim() == 1
        grad_b = torch.empty_like(h)
        grad_state = torch.empty_like(state)
        batch, time, channels = h.shape
        if fixed:
            grad_a = h.new_empty((batch, channels), dtype=torch.float64)
        else:
            grad_a = torch.empty_like(a)
        constants = self.constants(2 if fixed else 3, h.element_size())
        programs = batch * triton.cdiv(channels, constants["LANES"])
        _, kernel = self.kernels
        with torch.cuda.device_of(h):  # kernels are launched on the current device
            kernel[(programs,)](
                a,
                grad_h,
                h,
                state,
                grad_last,
                grad_a,
                grad_b,
                grad_state,
                time,
                channels,
                FIXED=fixed,
                **constants,
                **self.options,
            )
        if fixed:
            grad_a = grad_a.sum(0).to(a.dtype)
        return grad_a, grad_b, grad_state
