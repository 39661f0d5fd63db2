"""Threads that share out a kernel's units of work: each takes the next as it gets to it.

Cut into equal parts, a kernel ends when its slowest thread does, and one that shares its core with other work, or with
a thread of torch's that spins in wait for its next operator, is many times slower. Here it does less instead.
Torch's own threads would not do: at the end of a region its caller waits for all of them, begun or not.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

TRIAL = 8  # calls with help that are judged together
LEAST = 1.15  # times as fast as one: each computes a little slower beside another, so that 1 would be a loss
PAUSE = (16, 256)  # calls without help after a trial that failed: at first, and at most, where trial after trial fails


def together(work: Callable[[], Any], threads: int) -> None:
    """Call `work` here and in up to `threads` - 1 other threads; return once it has here and wherever it has begun.

    Whoever calls `work` takes units until none is left: a thread that has not begun by then is no longer needed.
    """
    if threads == 1:
        work()
        return
    if threads not in _helpers:
        _helpers[threads] = Helpers(ThreadPoolExecutor(threads - 1, thread_name_prefix="kernel"), threads - 1)
    _helpers[threads].share(work)


class Helpers:
    """Threads that help another one, left out for a while when they bring nothing.

    Where other processes keep the cores busy, they take turns with the thread they help. The CPU seconds of all are
    about what one would need; over the seconds of the calls, they say how many times as fast as one they are together.
    """

    def __init__(
        self,
        pool: Executor,
        count: int,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.pool, self.count, self.clock, self.cpu_clock = pool, count, clock, cpu_clock
        self.alone, self.pause = 0, PAUSE[0]  # calls without help, now and after the next trial that fails
        self.calls, self.seconds, self.computed = 0, 0.0, 0.0  # of this trial

    def share(self, work: Callable[[], Any]) -> None:
        """Do `together` with these threads, and judge them at the end of a trial."""
        if self.alone > 0:
            self.alone -= 1
            work()
            return
        start = self.clock()
        jobs = [self.pool.submit(self._computed, work) for _ in range(self.count)]
        try:
            own = self._computed(work)
        finally:
            late = [job for job in jobs if not job.cancel()]
            helped = sum(job.result() for job in late)
        self.calls, self.computed = self.calls + 1, self.computed + own + helped
        self.seconds += self.clock() - start
        if self.calls < TRIAL:
            return
        if self.computed < LEAST * self.seconds:
            self.alone, self.pause = self.pause, min(2 * self.pause, PAUSE[1])
        else:
            self.pause = PAUSE[0]
        self.calls, self.seconds, self.computed = 0, 0.0, 0.0

    def _computed(self, work: Callable[[], Any]) -> float:
        """Return the CPU seconds of `work` in this thread."""
        start = self.cpu_clock()
        work()
        return self.cpu_clock() - start


_helpers: dict[int, Helpers] = {}  # by the number of threads
if hasattr(os, "register_at_fork"):  # systems that fork: a child has none of the threads
    os.register_at_fork(after_in_child=_helpers.clear)
