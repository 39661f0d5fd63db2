"""The matrix-valued recurrence of RWKV-7 (Goose), a generalised delta rule, with gradients, on any device."""

from plkernel.kernels.wkv7.operator import wkv7

__all__ = ["wkv7"]
