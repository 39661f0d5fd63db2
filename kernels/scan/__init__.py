"""The linear recurrence h_t = a_t * h_{t-1} + b_t, with gradients, on any device."""

from plkernel.kernels.scan.operator import choose_backend, scan

__all__ = ["choose_backend", "scan"]
