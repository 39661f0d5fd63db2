"""Threads and machine code of the CPU kernels: a late thread is not waited for, and code is that of
its sources.
"""

import gc
import json
import logging
import math
import os
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from operators import OPERATORS, SCAN, Operator

from plkernel.kernels import chunks, compiled, waiting
from plkernel.kernels.scan import cpu as scan_cpu


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
    expected = one.call(**inputs)
    release = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setitem(compiled._helpers, 2, compiled.Helpers(pool, 1))
        late = pool.submit(release.wait, 30.0)
        shared = one.call(**inputs)
        assert not late.done()
        release.set()
    assert all(map(torch.equal, shared, expected))


@pytest.mark.parametrize("of_a_sum", [False, True])
@pytest.mark.parametrize("one", OPERATORS, ids=lambda one: one.name)
def test_no_thread_of_torch_is_started(one: Operator, of_a_sum: bool) -> None:
    """Beside a busy process the end of a parallel region of torch waits milliseconds for its second
    thread. The gradient of a sum is expanded from one number, so it has to be copied.
    """
    region = 2**15  # elements from which torch shares an operation out
    given = one.problem("varying", (2, 128, 160) if one is SCAN else (2, 128, 3, 80, 80))
    inputs = [given[name].requires_grad_() for name in one.inputs if name != "state"]
    incoming = torch.ones(()).expand(given["grad_out"].shape) if of_a_sum else given["grad_out"]
    with torch.profiler.profile(record_shapes=True) as record:
        one.call(*inputs)[0].backward(incoming)
    computed = {
        "aten::" + name for name in ("max", "amax", "zero_", "fill_", "copy_", "sum", "mul", "add")
    }
    sizes = [
        (event.name, [math.prod(shape) for shape in event.input_shapes])
        for event in record.events()
    ]
    assert any(name == f"{one.name}Backward" for name, _ in sizes)
    assert [
        name for name, shapes in sizes if name in computed and max(shapes, default=0) >= region
    ] == []


@pytest.mark.parametrize("one", OPERATORS, ids=lambda one: one.name)
def test_numbers_below_the_normal_range_are_those_of_before_behind_a_call(one: Operator) -> None:
    """Kernels take them for zero while they run; a caller's own sums must not lose them for it."""
    tiny = 2e-310  # half of it is no normal float64 either
    given = one.problem("varying", one.shape(40))
    inputs = [given[name].requires_grad_() for name in one.inputs if name != "state"]
    out = one.call(*inputs)[0]
    assert tiny * 0.5 > 0.0
    out.backward(given["grad_out"])
    assert tiny * 0.5 > 0.0


class OfTwo:
    """Work that this thread and another begin together, and that the other one ends late."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.both = threading.Barrier(2, timeout=30)
        self.error = error
        self.ended: list[threading.Thread] = []

    def work(self) -> None:
        self.both.wait()
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.05)
            if self.error is not None:
                raise self.error
        self.ended.append(threading.current_thread())


@pytest.mark.parametrize("error", [None, MemoryError("no room")])
def test_a_thread_that_has_begun_is_waited_for_and_its_error_raised(
    error: BaseException | None,
) -> None:
    of_two = OfTwo(error)
    if error is not None:
        with pytest.raises(type(error), match="no room"):
            compiled.together(of_two.work, 2)
    else:
        compiled.together(of_two.work, 2)
        assert len(set(of_two.ended)) == 2


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()])
def test_a_job_has_an_end_whatever_ends_it(error: BaseException) -> None:
    """Without one its caller would wait for ever."""

    def work() -> None:
        raise error

    helpers = compiled.Helpers(ThreadPoolExecutor(1), 1)
    job: Future[float] = Future()
    with suppress(SystemExit, KeyboardInterrupt):
        helpers._do(job, work)
    assert job.exception(timeout=0) is error


def test_the_threads_of_one_call_help_in_the_next_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """New ones for every call would cost a start each time, and would never be judged."""
    monkeypatch.setattr(compiled, "_helpers", {})
    made: list[int] = []

    def pool(count: int) -> ThreadPoolExecutor:
        made.append(count)
        return ThreadPoolExecutor(count)

    monkeypatch.setattr(compiled, "_pool", pool)
    for _ in range(3):
        compiled.together(OfTwo().work, 2)
    assert made == [1]


class Ended(ThreadPoolExecutor):
    """Begins one thread, and no further one: as where the main thread has ended."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._threads:
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")
        return super().submit(fn, *args, **kwargs)


def test_it_computes_where_no_further_thread_can_begin() -> None:
    helpers = compiled.Helpers(Ended(3), 3)
    both = threading.Barrier(2, timeout=30)
    helpers.share(both.wait)  # the one that began is waited for
    ended: list[None] = []
    helpers.share(lambda: ended.append(None))
    assert len(ended) == 1


class Queueing(ThreadPoolExecutor):
    """Begins a thread and says that it cannot, as a pool whose threads are busy when asked."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        super().submit(fn, *args, **kwargs)
        raise RuntimeError("can't start new thread")


def test_a_thread_that_takes_a_job_of_a_pool_that_fails_is_waited_for() -> None:
    helpers = compiled.Helpers(Queueing(1), 1)
    of_two = OfTwo()
    helpers.share(of_two.work)
    assert len(set(of_two.ended)) == 2


def test_nothing_is_kept_where_no_thread_can_begin_and_none_is_asked_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[None] = []
    kept = []

    def no_thread(thread: threading.Thread) -> None:
        asked.append(None)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    helpers = compiled.Helpers(ThreadPoolExecutor(1), 1)
    turns = compiled.TRIAL + 1
    for _ in range(turns * (compiled.LONGEST_PAUSE + 1)):
        array = torch.zeros(1)
        helpers.share(array.zero_)
        kept.append(weakref.ref(array))
    assert len(asked) == turns
    del array
    gc.collect()
    assert [one for one in kept if one() is not None] == []


class Machine(Executor):
    """One core or two, and no thread: what is submitted runs at once. Every `work` is a second of
    CPU time, that of a helper no time on the clock where it has a core of its own."""

    def __init__(self) -> None:
        self.cores = 2
        self.asked = 0
        self.computed = 0.0
        self.helped = 0.0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.asked = self.asked + 1
        before = self.computed
        done = Future[Any]()
        done.set_result(fn(*args, **kwargs))
        self.helped += self.computed - before
        return done

    def thread_time(self) -> float:
        return self.computed

    def perf_counter(self) -> float:
        return self.computed - (self.helped if self.cores == 2 else 0.0)

    def work(self) -> None:
        self.computed += 1.0


def test_threads_that_only_take_turns_are_left_out_ever_longer_until_they_help_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine()
    helpers = compiled.Helpers(machine, 1)
    monkeypatch.setattr(compiled, "time", machine)

    def asked(cores: int, calls: int) -> int:
        """How often the helper is asked in so many calls."""
        machine.cores = cores
        before = machine.asked
        for _ in range(calls):
            helpers.share(machine.work)
        return machine.asked - before

    pause, most = compiled.FIRST_PAUSE, compiled.LONGEST_PAUSE
    for _ in range(10):
        assert asked(1, compiled.TRIAL) == compiled.TRIAL
        assert asked(1, pause) == 0
        pause = min(2 * pause, most)
    assert pause == most
    assert asked(2, 10 * compiled.TRIAL) == 10 * compiled.TRIAL
    assert (
        asked(1, compiled.TRIAL + compiled.FIRST_PAUSE + 1) == compiled.TRIAL + 1
    )  # the next pause is a short one


@pytest.mark.parametrize("chosen", [None, "PASSIVE"])
def test_it_is_said_once_that_cores_are_busy_unless_threads_sleep(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None
) -> None:
    for name in waiting.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    if chosen:
        monkeypatch.setenv(waiting.VARIABLES[0], chosen)
    machine = Machine()
    helpers = compiled.Helpers(machine, 1)
    monkeypatch.setattr(compiled, "time", machine)
    lines: list[str] = []
    monkeypatch.setattr(logging.getLogger("plkernel"), "warning", lines.append)
    compiled._say_that_cores_are_busy.cache_clear()

    def said(cores: int) -> int:
        """How many lines of the log trials on so many cores make."""
        machine.cores = cores
        for _ in range(10 * compiled.LONGEST_PAUSE):
            helpers.share(machine.work)
        return len(lines)

    assert said(2) == 0
    assert said(1) == (chosen is None)
    assert said(1) == (chosen is None)
    if chosen is None:
        assert "torch.set_num_threads(1)" in lines[0]
    compiled._say_that_cores_are_busy.cache_clear()


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
import json, os, pathlib, sys, time
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
    print(json.dumps([results, sum(stats.cache_hits.values())]), flush=True)
    os._exit(0)
for kinds in json.loads(sys.argv[1]):
    if isinstance(kinds, str):
        open("plkernel/kernels/toy/helper.py", "w").write(kinds)
        continue
    if isinstance(kinds, dict):
        kept = [path for path in pathlib.Path().rglob("*") if path.suffix in kinds]
        assert kept
        for path in kept:
            os.truncate(path, kinds[path.suffix])
        continue
    children = [os.fork() or call(kind, len(kinds) - 1) for kind in kinds]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """The folder of an operator whose kernel compiles in a moment."""
    kernels = tmp_path / "plkernel" / "kernels"
    (kernels / "toy").mkdir(parents=True)
    (tmp_path / "plkernel" / "__init__.py").touch()
    for module in (compiled, waiting):
        shutil.copy(str(module.__file__), kernels)
    (kernels / "toy" / "cpu.py").write_text(KERNEL)
    (kernels / "toy" / "helper.py").write_text(HELPER.format(factor=3))
    return kernels / "toy"


def calls(toy: Path, *kinds: list[str] | str | dict[str, int]) -> list[Any]:
    """Results and hits of processes that call the kernel with 2: those of a list at once, the
    lists in turn.

    A string in between is written into the helper's file. Of a dictionary, files with these
    suffixes are cut off after so many bytes.
    """
    root = toy.parents[2]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("NUMBA")
    }
    environment |= {
        "PYTHONPATH": str(root),
        "XDG_CACHE_HOME": str(root / "home"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-c", CALLS, json.dumps(kinds)]
    done = subprocess.run(
        command, env=environment, cwd=root, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return list(map(json.loads, done.stdout.splitlines()))


def test_a_change_in_another_file_is_compiled_and_nothing_is_compiled_twice(toy: Path) -> None:
    first, again, changed = calls(toy, ["int"], ["int"], HELPER.format(factor=5), ["int"])
    assert (first, again, changed) == ([[7], 0], [[7], 1], [[11], 0])


def test_damaged_machine_code_is_compiled_anew(toy: Path) -> None:
    """Once: the next process finds it."""
    cut_off = [{".nbi": 0}, {".nbi": 20}, {".nbc": 0}, {".nbc": 60}]
    turns = [turn for damage in cut_off for turn in (damage, ["int"], ["int"])]
    first, *others = calls(toy, ["int"], *turns)
    assert first == [[7], 0]
    assert others == [[[7], 0], [[7], 1]] * len(cut_off)


@pytest.mark.slow
def test_processes_that_write_at_once_keep_their_signatures_apart(toy: Path) -> None:
    *both, after = calls(toy, ["int", "float"], ["int,float"])
    assert {str(found[0]) for found in both} == {"[7]", "[7.0]"}
    assert after == [[7, 7.0], 2]


def test_it_compiles_where_no_folder_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    njit = compiled.numba.njit

    def unwritable(**options: Any) -> Any:
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return njit(**options)

    monkeypatch.setattr(compiled, "numba", SimpleNamespace(njit=unwritable))
    assert compiled.jit(lambda x: x + 1)(2) == 3
