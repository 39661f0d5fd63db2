"""Configurations of peers are shared among processes, and each is timed briefly."""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plkernel.benchmarks import tuned

triton = pytest.importorskip("triton")


def defined(count: int) -> Any:
    """A kernel with so many configurations, told apart by their warps."""
    configs = [triton.Config({}, num_warps=2**place) for place in range(count)]
    return triton.autotune(configs=configs, key=[])(triton.jit(empty))


def empty() -> None:
    pass


def warps(kernel: Any) -> list[int]:
    return [config.num_warps for config in kernel.configs]


def test_shares_are_all_configurations_each_once() -> None:
    tried: list[int] = []
    for index in range(3):
        with tuned.briefly(index, 3):
            tried += warps(defined(5))
    assert sorted(tried) == warps(defined(5)) == [1, 2, 4, 8, 16]


def test_a_share_without_a_configuration_tries_the_first() -> None:
    with tuned.briefly(4, 8):
        assert warps(defined(2)) == [1]


def test_a_configuration_is_timed_for_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that were defined before, or are later, are timed as ever."""
    asked: list[dict[str, Any]] = []

    def timed(call: Any, **options: Any) -> str:
        asked.append(options)
        return "times"

    monkeypatch.setattr("triton.testing.do_bench", timed)
    with tuned.briefly():
        kernel = defined(2)
    assert kernel.do_bench(len, quantiles=(0.5,)) == "times"
    assert asked == [{"warmup": tuned.WARM_UP, "rep": tuned.TIMED, "quantiles": (0.5,)}]
    assert defined(2)._do_bench is None


def note_share(folder: Path) -> None:
    (folder / "-".join(map(str, warps(defined(4))))).touch()


class AtOnce:
    """A process whose task is done here, as it starts."""

    exitcode = 0

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], daemon: bool) -> None:
        self.run = partial(target, *args)

    def start(self) -> None:
        self.run()

    def join(self, seconds: float) -> None:
        pass

    def is_alive(self) -> bool:
        return False


def test_all_cores_share_the_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(tuned, "get_context", lambda _: SimpleNamespace(Process=AtOnce))
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    assert tuned.compile_ahead([partial(note_share, folder) for folder in folders], 60.0) == 4
    for folder in folders:
        assert {path.name for path in folder.iterdir()} == {"1-4", "2-8"}


def test_a_task_runs_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert tuned.compile_ahead([partial(note_share, tmp_path)], 60.0) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["1-2-4-8"]


def test_a_process_that_compiles_ends_with_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, a benchmark would leave a compiler on every core; it is asked before the task."""
    done: list[str] = []
    monkeypatch.setattr(tuned, "end_with_parent", lambda: done.append("end with parent"))
    tuned.run_share(lambda: done.append("task"), 0, 1)
    assert done == ["end with parent", "task"]


def test_a_process_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    begun = time.monotonic()
    assert tuned.compile_ahead([partial(time.sleep, 60.0)], 0.5) == 0
    assert time.monotonic() - begun < 30


def test_peers_are_compiled_where_they_are_installed_and_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[tuple[Any, ...]] = []
    monkeypatch.setattr(tuned, "find_spec", lambda name: name)
    monkeypatch.setattr(tuned, "compile_ahead", lambda *seen: given.append(seen))
    tasks = [empty]
    tuned.compile_peers([], 9.0)
    assert given == []
    tuned.compile_peers(tasks, 9.0)
    assert given == [(tasks, 9.0)]
    assert capsys.readouterr().err == "compiling the configurations of peers\n"
    monkeypatch.setattr(tuned, "find_spec", lambda name: None)
    tuned.compile_peers(tasks, 9.0)
    assert len(given) == 1
