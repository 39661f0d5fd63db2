"""Two threads against one: both counts are timed, the neighbour goes again, and AVX2 means nothing wider."""

import shutil
import sys
from collections.abc import Iterator

import pytest
import torch

from plkernel.benchmarks import threads, threads_process
from plkernel.benchmarks.contest import spread


@pytest.fixture(autouse=True)
def count() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_both_counts_are_timed_in_turns() -> None:
    seen: list[int] = []
    found = threads_process.compare(lambda: seen.append(torch.get_num_threads()), rounds=4)
    assert seen.count(1) == seen.count(2) == 1 + 4 * threads_process.REPEAT
    assert found.keys() == {"one", "two", "speedup"}
    assert found["speedup"].runs == 4


def test_as_avx2_compiled_kernels_have_nothing_wider() -> None:
    variables = threads.as_avx2()
    if not variables:
        pytest.skip("this processor has nothing wider than AVX2")
    features = variables["NUMBA_CPU_FEATURES"].split(",")
    assert "+avx2" in features
    assert "-avx512f" in features
    assert not any(name.startswith(("+avx512", "+amx")) for name in features)


def test_what_is_wanted_stands_beside_what_was_found() -> None:
    one = spread([1.0, 1.2])
    rows = [threads.Threads(work, "a processor", beside, one, one, one) for work, beside in (("wkv", 0), ("scan", 1))]
    cells = threads.render(rows)
    assert [line[-1] for line in cells] == ["at least 1.4", "at least 0.95"]
    assert all(len(line) == len(threads.HEADER) for line in cells)


def test_a_process_that_cannot_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(OSError, match=r"plkernel\.bench\.threads_process train: failed in a process of its own"):
        threads.measure("train", 2)


@pytest.mark.slow
def test_a_process_that_fails_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError, match=r"plkernel\.bench\.threads_process train: failed in a process of its own"):
        threads.measure("train", 2)
    assert "AssertionError" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scan", "wkv"])
def test_two_threads_never_take_twice_as_long(name: str) -> None:
    """As equal parts they took five times as long beside another process."""
    alone, beside, *_ = threads.measure(name, 7)
    assert (alone.neighbours, beside.neighbours) == (0, 1)
    assert alone.speedup.median > 0.8
    assert beside.speedup.median > 0.5
