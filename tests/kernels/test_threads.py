"""Threads of the CPU kernels: they take units in turn, and one that comes late is not waited for."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
from torch import Tensor

import plkernel
from plkernel.kernels import threads
from plkernel.kernels.scan import cpu as scan_cpu
from plkernel.kernels.wkv import cpu as wkv_cpu

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Also for small shapes."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    for kernel in (scan_cpu, wkv_cpu):
        monkeypatch.setattr(kernel, "SERIAL", 0)
    yield
    torch.set_num_threads(before)


def scan_step() -> tuple[Tensor, ...]:
    return scan_cpu.forward(torch.full((20,), 0.5), torch.ones(3, 40, 20), torch.zeros(3, 20))


def wkv_step() -> tuple[Tensor, ...]:
    x = torch.ones(2, 40, 2, 4)
    return wkv_cpu.forward(x, x, x, -x, torch.ones(2, 4), torch.zeros(2, 2, 4, 4))


@pytest.mark.parametrize("step", [scan_step, wkv_step])
@pytest.mark.usefixtures("two_threads")
def test_the_first_thread_finishes_alone_what_a_late_one_has_not_begun(
    step: Callable[[], tuple[Tensor, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, release = step(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setitem(threads._pools, 2, pool)
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


@pytest.mark.skipif(sys.platform != "linux", reason="other runtimes do not tell how long their threads spin")
@pytest.mark.parametrize(
    ("arguments", "given", "spins"),
    [
        (["-m", "plkernel.kernels.backends"], {}, False),
        pytest.param(["-m", "plkernel.kernels.backends"], {"OMP_WAIT_POLICY": "ACTIVE"}, True, marks=pytest.mark.slow),
        pytest.param(["-m", "plkernel.kernels.backends"], {"GOMP_SPINCOUNT": "77"}, True, marks=pytest.mark.slow),
        pytest.param(["-c", "import plkernel.kernels.backends"], {}, True, marks=pytest.mark.slow),
    ],
)
def test_between_operators_of_a_command_the_threads_of_torch_sleep(
    arguments: list[str], given: dict[str, str], spins: bool
) -> None:
    """Unless the user has said otherwise; a program that imports the package keeps what it has."""
    inherited = {name: value for name, value in os.environ.items() if name not in WAITING}
    environment = inherited | given | {"OMP_DISPLAY_ENV": "VERBOSE"}
    told = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120)
    counts = [line for line in told.stderr.splitlines() if "GOMP_SPINCOUNT" in line]
    if not counts:
        pytest.skip("torch has another OpenMP runtime than libgomp here")
    assert ("'0'" not in counts[0]) == spins


@pytest.mark.parametrize("said", ["", *WAITING])
def test_a_command_asks_for_sleep_unless_the_user_has_said_how_to_wait(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["-m"])
    for name in WAITING:
        monkeypatch.setenv(name, "ACTIVE")
        if name != said:
            monkeypatch.delenv(name)
    exec(Path(plkernel.__file__).read_text(), {})
    assert os.environ.get("OMP_WAIT_POLICY") == {"": "PASSIVE", "OMP_WAIT_POLICY": "ACTIVE"}.get(said)


def test_a_program_that_imports_the_package_keeps_how_its_threads_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WAITING:
        monkeypatch.delenv(name, raising=False)
    exec(Path(plkernel.__file__).read_text(), {})
    assert "OMP_WAIT_POLICY" not in os.environ
