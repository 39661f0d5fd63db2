"""What the CPU kernels share: compilation that keeps its results, and threads that outlive a call."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba

_pools: dict[int, ThreadPoolExecutor] = {}
if hasattr(os, "register_at_fork"):  # systems that fork
    os.register_at_fork(after_in_child=_pools.clear)


def jit(function: Callable[..., Any]) -> Any:
    """Compile without the interpreter lock; keep the machine code on disk where some folder can be written."""
    options: Any = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:
        return numba.njit(**options)(function)


def pool(threads: int) -> ThreadPoolExecutor:
    """One pool per number of threads; a forked process starts its own."""
    if threads not in _pools:
        _pools[threads] = ThreadPoolExecutor(threads - 1, thread_name_prefix="kernel")
    return _pools[threads]
