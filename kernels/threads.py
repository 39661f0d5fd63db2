"""Threads that share out a kernel's units of work: each takes the next as it gets to it.

Cut into equal parts, a kernel ends when its slowest thread does, and one that shares its core with other work, or with
a thread of torch's that spins in wait for its next operator, is many times slower. Here it does less instead.
Torch's own threads would not do: at the end of a region its caller waits for all of them, begun or not.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_operation: Any = intrinsic  # a call of one, seen by a type checker, is that of the function it decorates
_pools: dict[int, ThreadPoolExecutor] = {}
if hasattr(os, "register_at_fork"):  # systems that fork
    os.register_at_fork(after_in_child=_pools.clear)


@_operation
def take(typingctx: Any, counter: Any) -> Any:
    """counter[0], left one higher; no two threads are given the same number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.atomic_rmw("add", array.data, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(counter), generate


def together(work: Callable[[], Any], threads: int) -> None:
    """Call `work` here and in up to `threads` - 1 other threads; return once it has here and wherever it has begun.

    Whoever calls `work` takes units until none is left: a thread that has not begun by then is no longer needed.
    """
    others = [_pool(threads).submit(work) for _ in range(threads - 1)]
    try:
        work()
    finally:
        late = [job for job in others if not job.cancel()]
        for job in late:
            job.result()


def _pool(threads: int) -> ThreadPoolExecutor:
    """One pool per number of threads; a forked process starts its own."""
    if threads not in _pools:
        _pools[threads] = ThreadPoolExecutor(threads - 1, thread_name_prefix="kernel")
    return _pools[threads]
