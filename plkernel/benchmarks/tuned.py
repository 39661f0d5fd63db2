"""Peers that time many launches before they choose one, within a few minutes.

The kernels of flash-linear-attention have hundreds of configurations, and one process compiles them
one after another. `compile_ahead` shares them among processes, after which they are in the cache
of Triton; `briefly` then times each for milliseconds. `compile_peers` and `briefly_on` do so where
there is something to compile.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

from plkernel.benchmarks.operators import progress
from plkernel.common.children import end_with_parent

WARM_UP = 2
"""Milliseconds of launches before a configuration is timed."""
TIMED = 10
"""Milliseconds of launches of a configuration that are timed."""

Task = Callable[[], object]


@contextmanager
def briefly(index: int = 0, count: int = 1) -> Iterator[None]:
    """Kernels that are defined meanwhile time each of their configurations for milliseconds.

    They try the configurations index, index + count, .. alone, and at least one.
    """
    from triton import testing
    from triton.runtime.autotuner import Autotuner

    made = Autotuner.__init__

    def brief(call: Callable[[], Any], quantiles: Sequence[float] | None = None) -> Any:
        return testing.do_bench(call, warmup=WARM_UP, rep=TIMED, quantiles=quantiles)

    def made_brief(
        self: Any, kernel: Any, names: Any, configs: Sequence[Any], *given: Any, **options: Any
    ) -> None:
        tried = list(configs)[index::count] or list(configs)[:1]
        made(self, kernel, names, tried, *given, **options | {"do_bench": brief})

    with patch.object(Autotuner, "__init__", made_brief):
        yield


def briefly_on(device: str) -> AbstractContextManager[None]:
    """`briefly` on a GPU; nothing on a CPU, where Triton may be missing."""
    return briefly() if device == "cuda" else nullcontext()


def run_share(task: Task, index: int, count: int) -> None:
    """Run a task with a share of the configurations of the kernels that it defines."""
    end_with_parent()
    with briefly(index, count):
        task()


def compile_ahead(tasks: Sequence[Task], seconds: float) -> int:
    """Run tasks in processes, each with a share of the configurations; the number that ended well.

    All cores are used. Processes that have not ended after so many seconds are ended. A task must
    define its kernels, by importing them, and be picklable.
    """
    end = time.monotonic() + seconds
    count = max(1, (os.cpu_count() or 1) // max(1, len(tasks)))
    context = get_context("spawn")
    processes = []
    for task in tasks:
        for index in range(count):
            process = context.Process(target=run_share, args=(task, index, count), daemon=True)
            process.start()
            processes.append(process)
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
    return sum(process.exitcode == 0 for process in processes)


def compile_peers(tasks: Sequence[Task], seconds: float) -> None:
    """`compile_ahead`, where flash-linear-attention is installed and there is a task."""
    if tasks and find_spec("fla") is not None:
        progress("compiling the configurations of peers")
        compile_ahead(tasks, seconds)
