"""The memory that published layers start with, as kernels to hold against a power law."""
