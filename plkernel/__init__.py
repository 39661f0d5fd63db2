"""plkernel: the memory of a state-space model, held against the memory in its data."""

__version__ = "0.1.0"
