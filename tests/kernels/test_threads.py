"""Threads of the CPU kernels: units are taken in turn, and a late thread is not waited for."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch
from torch import Tensor

import plkernel
from plkernel.kernels import threads
from plkernel.kernels.scan import cpu as scan_cpu
from plkernel.kernels.wkv import cpu as wkv_cpu
from plkernel.kernels.wkv7 import cpu as wkv7_cpu

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Also for small shapes."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    for kernel in (scan_cpu, wkv_cpu, wkv7_cpu):
        monkeypatch.setattr(kernel, "SERIAL", 0)
    yield
    torch.set_num_threads(before)


def scan_step() -> tuple[Tensor, ...]:
    return scan_cpu.forward(torch.full((20,), 0.5), torch.ones(3, 40, 20), torch.zeros(3, 20))


def wkv_step() -> tuple[Tensor, ...]:
    x = torch.ones(2, 40, 2, 4)
    return wkv_cpu.forward(x, x, x, -x, torch.ones(2, 4), torch.zeros(2, 2, 4, 4))


def wkv7_step() -> tuple[Tensor, ...]:
    x = torch.ones(2, 40, 2, 4)
    return wkv7_cpu.forward(x, -x, x, x, -x / 2, x / 2, torch.zeros(2, 2, 4, 4))


@pytest.mark.parametrize("step", [scan_step, wkv_step, wkv7_step])
@pytest.mark.usefixtures("two_threads")
def test_the_first_thread_finishes_alone_what_a_late_one_has_not_begun(
    step: Callable[[], tuple[Tensor, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, release = step(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setitem(threads._helpers, 2, threads.Helpers(pool, 1))
        late = pool.submit(release.wait, 30.0)
        shared = step()
        assert not late.done()
        release.set()
    assert all(torch.equal(*pair) for pair in zip(shared, expected, strict=True))


def test_a_thread_that_has_begun_is_waited_for() -> None:
    both, ended = threading.Barrier(2, timeout=30), []

    def work() -> None:
        both.wait()
        if threading.current_thread() is not threading.main_thread():
            threading.Event().wait(0.05)
        ended.append(threading.current_thread())

    threads.together(work, 2)
    assert len(set(ended)) == 2


def test_what_goes_wrong_in_another_thread_is_raised() -> None:
    both = threading.Barrier(2, timeout=30)

    def work() -> None:
        both.wait()
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        threads.together(work, 2)


class Machine(Executor):
    """One core or two, and no thread: what is submitted runs at once. Every `work` is a second of CPU time, that of a
    helper no time on the clock where it has a core of its own."""

    def __init__(self) -> None:
        self.cores, self.asked = 2, 0
        self.computed = self.helped = 0.0
        self.waited = self.delay = 0.0  # for something else, until now and in the next `work`

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.asked += 1
        done, before = Future[Any](), self.computed
        done.set_result(fn(*args, **kwargs))
        self.helped += self.computed - before
        return done

    def work(self) -> None:
        self.computed += 1.0
        self.waited, self.delay = self.waited + self.delay, 0.0

    def clock(self) -> float:
        return self.waited + self.computed - (self.helped if self.cores == 2 else 0.0)


def asked(machine: Machine, helpers: threads.Helpers, calls: int) -> int:
    """In how many of these calls the helper is asked."""
    before = machine.asked
    for _ in range(calls):
        helpers.share(machine.work)
    return machine.asked - before


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def helpers(machine: Machine) -> threads.Helpers:
    return threads.Helpers(machine, 1, clock=machine.clock, cpu_clock=lambda: machine.computed)


def test_threads_that_help_are_kept(machine: Machine, helpers: threads.Helpers) -> None:
    assert asked(machine, helpers, 1000) == 1000


def test_threads_that_only_take_turns_are_left_out_ever_longer(machine: Machine, helpers: threads.Helpers) -> None:
    machine.cores = 1
    first, most = threads.PAUSE
    pause = first
    for _ in range(10):
        assert asked(machine, helpers, threads.TRIAL) == threads.TRIAL
        assert asked(machine, helpers, pause) == 0
        pause = min(2 * pause, most)
    assert pause == most


def test_threads_that_help_again_are_kept_again(machine: Machine, helpers: threads.Helpers) -> None:
    machine.cores = 1
    calls = 2 * (threads.TRIAL + threads.PAUSE[1])
    assert asked(machine, helpers, calls) < calls / 2
    machine.cores = 2
    asked(machine, helpers, threads.PAUSE[1])
    assert asked(machine, helpers, 100) == 100
    machine.cores = 1  # the next pause is a short one
    assert asked(machine, helpers, 2 * threads.TRIAL + threads.PAUSE[0]) <= 2 * threads.TRIAL
    assert asked(machine, helpers, 1) == 1


def test_a_slow_call_among_others_counts_for_little(machine: Machine, helpers: threads.Helpers) -> None:
    for _ in range(20):
        machine.delay = 0.5 * threads.TRIAL
        assert asked(machine, helpers, threads.TRIAL) == threads.TRIAL


def test_a_thread_that_always_comes_late_is_left_out() -> None:
    """What it was asked is withdrawn, and counts for nothing."""
    done: list[str] = []

    def clock() -> float:
        return float(len(done))

    release = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(release.wait, 30.0)
        helpers = threads.Helpers(pool, 1, clock=clock, cpu_clock=clock)
        for _ in range(threads.TRIAL):
            assert helpers.alone == 0
            helpers.share(lambda: done.append(threading.current_thread().name))
        assert helpers.alone == threads.PAUSE[0]
        release.set()
    assert done == [threading.current_thread().name] * threads.TRIAL


def test_what_each_thread_computes_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock of its own CPU time, whatever else the machine does."""
    both, judged = threading.Barrier(2, timeout=30), []

    def work() -> None:
        both.wait()
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass

    with ThreadPoolExecutor(1) as pool:
        helpers = threads.Helpers(pool, 1)
        monkeypatch.setattr(helpers, "_judge", lambda seconds, computed: judged.append((seconds, computed)))
        helpers.share(work)
    [(seconds, computed)] = judged
    assert seconds >= 0.02
    assert computed >= 0.04


@pytest.mark.parametrize(
    ("rows", "channels", "number", "width"),
    [
        (8, 256, 2, 256),  # a row or more for every thread: none is cut
        (3, 256, 2, 256),
        (1, 256, 2, 256),  # half of it would take one thread as long
        (1, 512, 2, 256),
        (1, 2048, 2, 512),
        (1, 2048, 16, 256),
        (4, 1100, 1, 368),
        (2, 5, 1, 16),
    ],
)
def test_rows_of_the_scan_are_cut_for_want_of_them_and_never_small(
    rows: int, channels: int, number: int, width: int
) -> None:
    assert scan_cpu._block_width(rows, channels, number) == width


def test_every_unit_is_taken_once() -> None:
    @numba.njit(nogil=True)
    def mark(times, counter):  # type: ignore[no-untyped-def]
        unit = threads.take(counter)
        while unit < times.size:
            times[unit] += 1
            unit = threads.take(counter)

    times, counter = np.zeros(300_000, np.int64), np.zeros(1, np.int64)
    mark(times[:0], counter.copy())
    threads.together(lambda: mark(times, counter), 4)
    assert (times == 1).all()


@pytest.mark.parametrize(
    ("program", "said", "policy"),
    [
        ("-m", {}, "PASSIVE"),  # a command
        ("-m", {"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE"),
        ("-m", {"GOMP_SPINCOUNT": "77"}, "None"),
        ("train.py", {}, "None"),  # a program that imports the package
    ],
)
def test_a_command_lets_idle_threads_sleep_unless_told_otherwise(
    program: str, said: dict[str, str], policy: str
) -> None:
    code = f"import os, sys; sys.argv = [{program!r}]; import plkernel; print(os.environ.get('OMP_WAIT_POLICY'))"
    environment = {name: value for name, value in os.environ.items() if name not in WAITING} | said
    environment["PYTHONPATH"] = str(Path(plkernel.__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == policy
