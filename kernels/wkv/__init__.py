"""The matrix-valued recurrence of RWKV-5 (Eagle) and RWKV-6 (Finch), with gradients, on any device."""

from plkernel.kernels.wkv.operator import wkv

__all__ = ["wkv"]
