"""The linear recurrence h_t = a_t * h_{t-1} + b_t, with gradients, on any device."""

from plkernel.kernels.scan.operator import scan

__all__ = ["scan"]
