"""How compiled kernels are kept and run on a CPU.

Machine code lies on disk, and units of work are shared out to threads. numba keeps machine code for
as long as the file of its function is what it was; the files of what was compiled into it may have
changed since. Here its files are named after the sources of all kernels, so that code of other
sources is never found: not after a change anywhere, nor while another version runs.

Each thread takes the next unit of work as it gets to it. Cut into equal parts, a kernel ends when
its slowest thread does, and one that shares its core with other work, or with a thread of torch's
that spins in wait for its next operator, is many times slower. Here it does less instead. Torch's
own threads would not do: at the end of a region its caller waits for all of them, begun or not.
"""

import hashlib
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
from filelock import FileLock
from numba.core.caching import IndexDataCacheFile

from plkernel.kernels.waiting import is_chosen

TRIAL = 8
"""Calls with help that are judged together."""
LEAST = 1.15
"""Times as fast as one: each computes a little slower beside another, so that 1 would be a loss."""
FIRST_PAUSE = 16
"""Calls without help after a trial that failed; twice as many after each further one."""
LONGEST_PAUSE = 256
"""Calls without help at most, where trial after trial fails."""


def jit(function: Callable[..., Any]) -> Any:
    """Compile without the interpreter lock.

    The machine code is kept on disk where some folder can be written.
    """
    options: Any = {"nogil": True, "error_model": "numpy"}
    try:
        kept = numba.njit(cache=True, **options)(function)
        disk = kept._cache
        name = f"{disk._impl.filename_base}-{_digest()}"
        stamp = disk._cache_file._source_stamp
        disk._cache_file = IndexDataCacheFile(disk._cache_path, name, stamp)
        load = disk.load_overload
        save = disk.save_overload
        folder = Path(disk._cache_path)
        index = Path(disk._cache_file._index_path)
    except (RuntimeError, AttributeError):  # nowhere, or a numba that keeps things in another way
        return numba.njit(**options)(function)

    def in_turn(*overload: Any) -> None:
        """Save one after another: numba would let two processes give one file to two signatures."""
        # On a full disk, or one without locks, the next process compiles again.
        with suppress(OSError, NotImplementedError):
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / "kernels.lock"):
                save(*overload)

    def undamaged(*overload: Any) -> Any:
        """Load what can be read; damaged files, as a crash leaves them, are compiled anew."""
        try:
            return load(*overload)
        except Exception:  # whatever unpickling damaged bytes raises
            with suppress(OSError):
                index.unlink(missing_ok=True)
            return None

    disk.save_overload = in_turn
    disk.load_overload = undamaged
    return kept


@cache
def _digest() -> str:
    """Return a name for the present sources of all kernels and the version of numba."""
    digest = hashlib.sha256(numba.__version__.encode())
    folder = Path(__file__).parent
    for path in sorted(folder.glob("**/*.py")):
        digest.update(
            f"{path.relative_to(folder)} {path.stat().st_size} ".encode() + path.read_bytes()
        )
    return digest.hexdigest()[:16]


def together(work: Callable[[], Any], threads: int) -> None:
    """Call `work` here and in up to `threads` - 1 other threads.

    Return once it has here and wherever it has begun. Whoever calls `work` takes units until none
    is left: a thread that has not begun by then is no longer needed.
    """
    if threads == 1:
        work()
        return
    if threads not in _helpers:
        _helpers[threads] = Helpers(_pool(threads - 1), threads - 1)
    _helpers[threads].share(work)


def _pool(count: int) -> Executor:
    """Threads that begin with their first jobs."""
    return ThreadPoolExecutor(count, thread_name_prefix="kernel")


class Helpers:
    """Threads that help another one, left out for a while when they bring nothing.

    Where other processes keep the cores busy, they take turns with the thread they help. The CPU
    seconds of all are about what one would need; over the seconds of the calls, they say how many
    times as fast as one they are together.
    """

    def __init__(self, pool: Executor, count: int) -> None:
        self.pool = pool
        self.count = count
        self.alone = 0  # calls without help that are left
        self.pause = FIRST_PAUSE  # the same after the next trial that fails
        self._begin_trial()

    def _begin_trial(self) -> None:
        """Nothing is measured yet: calls, their seconds, and the CPU seconds of all threads."""
        self.calls = 0
        self.seconds = 0.0
        self.computed = 0.0

    def share(self, work: Callable[[], Any]) -> None:
        """Do `together` with these threads, and judge them at the end of a trial."""
        if self.alone > 0:
            self.alone -= 1
            work()
            return
        start = time.perf_counter()
        jobs = self._begun(work)
        try:
            own = self._computed(work)
        finally:
            late = [job for job in jobs if not job.cancel()]
            helped = sum(job.result() for job in late)
        self.calls += 1
        self.computed += own + helped
        self.seconds += time.perf_counter() - start
        if self.calls < TRIAL:
            return
        if self.computed < LEAST * self.seconds:
            self.alone = self.pause
            self.pause = min(2 * self.pause, LONGEST_PAUSE)
            _say_that_cores_are_busy()
        else:
            self.pause = FIRST_PAUSE
        self._begin_trial()

    def _begun(self, work: Callable[[], Any]) -> list[Future[float]]:
        """The jobs of the helpers; fewer where none can begin.

        A thread, or a function of atexit, may outlast the main thread, after which the interpreter
        begins no threads; and a system may allow no more. A pool that cannot begin a thread has
        queued the job before it says so. A thread that it has may take the job, which therefore is
        among those returned.
        """
        pool = self.pool
        jobs: list[Future[float]] = []
        try:
            for _ in range(self.count):
                jobs.append(Future())
                pool.submit(self._do, jobs[-1], work)
        except RuntimeError:
            self._replace(pool)
        return jobs

    def _replace(self, pool: Executor) -> None:
        """Let go of a pool that cannot begin a thread, and so of its queue; ask none for a while.

        Without a thread to empty it the queue would keep all arrays of `work`.
        """
        self.pool = _pool(self.count)
        pool.shutdown(wait=False)
        self.alone = LONGEST_PAUSE
        self._begin_trial()

    def _do(self, job: Future[float], work: Callable[[], Any]) -> None:
        """Do a job in this thread unless it was cancelled."""
        if not job.set_running_or_notify_cancel():
            return
        try:
            job.set_result(self._computed(work))
        except BaseException as error:  # raised again in the thread that asks for the result
            job.set_exception(error)

    def _computed(self, work: Callable[[], Any]) -> float:
        """Return the CPU seconds of `work` in this thread."""
        start = time.thread_time()
        work()
        return time.thread_time() - start


@cache
def _say_that_cores_are_busy() -> None:
    """Say once why a second thread brings nothing, and what would help.

    Where other processes leave cores alone, it is torch's own threads that keep them busy. A log,
    not a warning: it must not become an error in the middle of a gradient.
    """
    if not is_chosen():
        logging.getLogger("plkernel").warning(
            "plkernel: a second thread does not make its kernels faster here, since cores are busy"
            " with other processes, or with torch's own threads, which spin between operators; set"
            " OMP_WAIT_POLICY=PASSIVE before torch is imported, or call torch.set_num_threads(1)"
        )


_helpers: dict[int, Helpers] = {}  # by the number of threads
if hasattr(os, "register_at_fork"):  # systems that fork: a child has none of the threads
    os.register_at_fork(after_in_child=_helpers.clear)
