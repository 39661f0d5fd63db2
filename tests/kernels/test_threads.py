"""Threads and machine code of the CPU kernels: a late thread is not waited for, and code is that of its sources."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest
import torch
from operators import OPERATORS, Operator

import plkernel
from plkernel.kernels import chunks, compiled, threads
from plkernel.kernels.lanes import take
from plkernel.kernels.scan import cpu as scan_cpu

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Also for small shapes."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    for module in (scan_cpu, chunks):
        monkeypatch.setattr(module, "SERIAL", 0)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("one", OPERATORS, ids=lambda one: one.name)
@pytest.mark.usefixtures("two_threads")
def test_the_first_thread_finishes_alone_what_a_late_one_has_not_begun(
    one: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = one.problem("varying", one.shape(40))
    inputs = {name: given[name] for name in one.inputs}
    expected, release = one.call(**inputs), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setitem(threads._helpers, 2, threads.Helpers(pool, 1))
        late = pool.submit(release.wait, 30.0)
        shared = one.call(**inputs)
        assert not late.done()
        release.set()
    assert all(map(torch.equal, shared, expected))


@pytest.mark.parametrize("fails", [False, True])
def test_a_thread_that_has_begun_is_waited_for_and_its_error_raised(fails: bool) -> None:
    both, ended = threading.Barrier(2, timeout=30), []

    def work() -> None:
        both.wait()
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.05)
            if fails:
                raise MemoryError("no room")
        ended.append(threading.current_thread())

    if fails:
        with pytest.raises(MemoryError, match="no room"):
            threads.together(work, 2)
    else:
        threads.together(work, 2)
        assert len(set(ended)) == 2


class Machine(Executor):
    """One core or two, and no thread: what is submitted runs at once. Every `work` is a second of CPU time, that of a
    helper no time on the clock where it has a core of its own."""

    def __init__(self) -> None:
        self.cores, self.asked = 2, 0
        self.computed = self.helped = self.waited = 0.0
        self.helpers = threads.Helpers(self, 1, clock=self.clock, cpu_clock=lambda: self.computed)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.asked += 1
        done, before = Future[Any](), self.computed
        done.set_result(fn(*args, **kwargs))
        self.helped += self.computed - before
        return done

    def clock(self) -> float:
        return self.waited + self.computed - (self.helped if self.cores == 2 else 0.0)

    def asked_in(self, calls: int, delay: float = 0.0) -> int:
        """In how many of these calls the helper is asked; the first waits for something else."""
        before = self.asked

        def work() -> None:
            nonlocal delay
            self.computed += 1.0
            self.waited, delay = self.waited + delay, 0.0

        for _ in range(calls):
            self.helpers.share(work)
        return self.asked - before


def test_threads_that_help_are_kept_though_a_call_is_slow() -> None:
    machine = Machine()
    for _ in range(40):
        assert machine.asked_in(threads.TRIAL, delay=0.5 * threads.TRIAL) == threads.TRIAL


def test_threads_that_only_take_turns_are_left_out_ever_longer_until_they_help_again() -> None:
    machine = Machine()
    machine.cores = 1
    pause, most = threads.PAUSE
    for _ in range(10):
        assert machine.asked_in(threads.TRIAL) == threads.TRIAL
        assert machine.asked_in(pause) == 0
        pause = min(2 * pause, most)
    assert pause == most
    machine.cores = 2
    assert machine.asked_in(100) == 100
    machine.asked_in(-100 % threads.TRIAL)
    machine.cores = 1  # the next pause is a short one
    assert machine.asked_in(threads.TRIAL + threads.PAUSE[0] + 1) == threads.TRIAL + 1


def test_what_each_thread_computes_is_counted() -> None:
    """By the clock of its own CPU time, whatever else the machine does."""
    both = threading.Barrier(2, timeout=30)

    def work() -> None:
        both.wait()
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass

    with ThreadPoolExecutor(1) as pool:
        helpers = threads.Helpers(pool, 1)
        helpers.share(work)
    assert helpers.seconds >= 0.02
    assert helpers.computed >= 0.04


@pytest.mark.parametrize(
    ("rows", "channels", "number", "width"),
    [
        (8, 256, 2, 256),  # a row or more for every thread: none is cut
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
        unit = take(counter)
        while unit < times.size:
            times[unit] += 1
            unit = take(counter)

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


KERNEL = """
from plkernel.kernels.compiled import jit
from plkernel.kernels.toy.helper import tripled

@jit
def kernel(x):
    return tripled(x) + 1
"""
HELPER = """
import numba

@numba.njit
def tripled(x):
    return {factor} * x
"""
CALLS = """
import json, os, sys, time
from numba.core.caching import IndexDataCacheFile
def call(kind, seconds):
    from plkernel.kernels.toy.cpu import kernel
    write = IndexDataCacheFile._save_index
    def late(self, overloads):  # another process writes between reading and writing
        time.sleep(seconds)
        write(self, overloads)
    IndexDataCacheFile._save_index = late
    results = [kernel(__builtins__.__dict__[name](2)) for name in kind.split(",")]
    stats = kernel.stats
    print(json.dumps([results, sum(stats.cache_hits.values()), stats.cache_path]), flush=True)
    os._exit(0)
for kinds in json.loads(sys.argv[1]):
    children = [os.fork() or call(kind, len(kinds) - 1) for kind in kinds]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """The folder of an operator whose kernel compiles in a moment."""
    kernels = tmp_path / "plkernel" / "kernels"
    (kernels / "toy").mkdir(parents=True)
    (tmp_path / "plkernel" / "__init__.py").touch()
    shutil.copy(compiled.__file__, kernels)
    (kernels / "toy" / "cpu.py").write_text(KERNEL)
    (kernels / "toy" / "helper.py").write_text(HELPER.format(factor=3))
    return kernels / "toy"


def calls(toy: Path, *kinds: list[str]) -> list[Any]:
    """Results, hits and cache of processes that call the kernel with 2: those of a list at once, the lists in turn."""
    root = toy.parents[2]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA")}
    environment |= {"PYTHONPATH": str(root), "XDG_CACHE_HOME": str(root / "home"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", CALLS, json.dumps(kinds)]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return list(map(json.loads, done.stdout.splitlines()))


def test_a_change_in_another_file_is_compiled_and_nothing_is_compiled_twice(toy: Path) -> None:
    first, again = calls(toy, ["int"], ["int"])
    assert (first[:2], again[:2]) == ([[7], 0], [[7], 1])
    (toy / "helper.py").write_text(HELPER.format(factor=5))
    assert calls(toy, ["int"])[0][:2] == [[11], 0]


@pytest.mark.slow
def test_where_the_sources_cannot_be_written_to_code_is_kept_in_the_home_folder(toy: Path) -> None:
    (toy / "__pycache__").touch()
    first, again = calls(toy, ["int"], ["int"])
    assert Path(first[2]).is_relative_to(toy.parents[2] / "home")
    assert (first[1], again[1]) == (0, 1)


@pytest.mark.slow
def test_processes_that_write_at_once_keep_their_signatures_apart(toy: Path) -> None:
    *both, after = calls(toy, ["int", "float"], ["int,float"])
    assert {str(found[0]) for found in both} == {"[7]", "[7.0]"}
    assert after[:2] == [[7, 7.0], 2]


def test_of_older_sources_only_the_latest_stay(tmp_path: Path) -> None:
    folders = []
    for version in range(compiled.VERSIONS + 2):
        (tmp_path / "helper.py").write_text(f"{version}")
        compiled.code_folder.cache_clear()
        folders.append(compiled.code_folder(tmp_path / "kept", tmp_path))
    assert len(set(folders)) == len(folders)
    assert set((tmp_path / "kept").iterdir()) == set(folders[2:])


def test_it_compiles_where_no_folder_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    njit = compiled.numba.njit

    def unwritable(**options: Any) -> Any:
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return njit(**options)

    monkeypatch.setattr(compiled, "numba", SimpleNamespace(njit=unwritable))
    assert compiled.jit(lambda x: x + 1)(2) == 3
