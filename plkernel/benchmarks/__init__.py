"""Kernels and training against their peers and against the machine's own limits: checked first, then timed."""
