"""Engines: what a study asks of one, the one of the documentation, and processes that die or do
not hear.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plkernel.config.reading import load_spec
from plkernel.study import engine as engines
from plkernel.study.engine import Engine, Job, LocalEngine, start_process
from plkernel.study.schedule import run_experiment
from plkernel.training.folder import RunFolder
from plkernel.training.loop import prepare

SpecWriter = Callable[..., Path]
Process = subprocess.Popen[bytes]
PAGE = Path(__file__).parents[2] / "docs" / "studies" / "index.md"
SLEEP = "import time; time.sleep(600)"
HARD_OF_HEARING = """
import signal, sys, time
heard = []
signal.signal(signal.SIGINT, lambda *_: heard.append(1))
print("ready", flush=True)
while len(heard) < 2:
    time.sleep(0.01)
"""
"""A process that ends when it is asked for the second time."""


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Process]]:
    """Processes that sleep, in place of those that train."""
    processes: list[Process] = []

    def start(job: Job, environment: dict[str, str]) -> Process:
        processes.append(subprocess.Popen([sys.executable, "-S", "-c", SLEEP]))
        return processes[-1]

    monkeypatch.setattr(engines, "start_process", start)
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def engine_of_the_page() -> Engine:
    """The engine that the documentation of studies shows."""
    text = PAGE.read_text().partition("```python\n")[2].partition("```")[0]
    known: dict[str, type[Engine]] = {}
    exec(text, known)
    return known["InThisProcess"]()


def test_the_engine_of_the_documentation_trains_a_study(
    tiny_spec: SpecWriter, tmp_path: Path
) -> None:
    """The same rows as processes would write, and a run that fails is named."""
    spec, out = load_spec(tiny_spec(steps=4)), tmp_path / "out"
    assert run_experiment(spec, out, engine=engine_of_the_page()) == []
    rows = sorted(path.relative_to(out) for path in out.glob("*/seed-*/metrics.jsonl"))
    assert len(rows) == 4
    diverging = load_spec(tiny_spec(steps=4, learning_rate=1e30))
    lost = run_experiment(
        diverging, tmp_path / "lost", only=["uniform"], engine=engine_of_the_page()
    )
    assert lost == ["uniform seed 0", "uniform seed 1"]
    assert RunFolder(tmp_path / "lost" / "uniform" / "seed-1").status == "diverged"


def test_a_study_ends_when_all_its_workers_are_killed(
    tiny_spec: SpecWriter,
    tmp_path: Path,
    begun: list[Process],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One after the other: each end is noticed, the next run begins, and all are named."""

    class Killing(LocalEngine):
        def ended(self) -> list[Job]:
            for worker in self.active:
                os.kill(worker.process.pid, signal.SIGKILL)
            return super().ended()

    spec = load_spec(tiny_spec())
    begin = time.monotonic()
    lost = run_experiment(spec, tmp_path / "out", workers=2, engine=Killing())
    assert lost == [f"{arm} seed {seed}" for seed in (0, 1) for arm in ("uniform", "power-law")]
    assert len(begun) == 4
    assert time.monotonic() - begin < 300, "none sleeps to its end"


def test_a_process_that_does_not_hear_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C that a run does not hear, as it only starts, must not take as long as the run."""
    monkeypatch.setattr(engines, "ASK_AGAIN_SECONDS", 0.2)
    engine = LocalEngine()
    command = [sys.executable, "-S", "-c", HARD_OF_HEARING]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        monkeypatch.setattr(engines, "start_process", lambda job, environment: process)
        engine.start(Job(tmp_path, "uniform", 0, "cpu", 1, {}))
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        engine.stop()
        watchdog.cancel()
        ended = process.poll()
        process.kill()
    assert ended == 0, "by itself, not by the watchdog"
    assert engine.active == []


def test_a_study_whose_gpus_have_gone_ends(
    tmp_path: Path, begun: list[Process], monkeypatch: pytest.MonkeyPatch, tiny_spec: SpecWriter
) -> None:
    """Room for no run at all would have it wait for ever."""
    monkeypatch.setattr(engines, "visible_gpus", list)
    engine = LocalEngine()
    assert engine.room(load_spec(tiny_spec()), "cuda") == 1
    with pytest.raises(OSError, match="no GPU is visible any more"):
        engine.start(Job(tmp_path, "uniform", 0, "cuda", 1, {}))
    assert begun == []


@pytest.mark.parametrize("name", ["", "log.txt", "config.json"])
def test_no_process_writes_through_a_link(
    tiny_spec: SpecWriter, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that was made after the study had looked: of the folder of a run, or in it."""
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **kwargs: None)
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    config = prepare(load_spec(tiny_spec()), "uniform", 0, out).config
    job = Job(out, "uniform", 0, "cpu", 1, config)
    link = job.folder / name
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    with pytest.raises(ValueError, match=r"uniform/seed-0.* got a symbolic link to .*elsewhere"):
        start_process(job, {})
    assert not elsewhere.exists()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs the affinity of Linux")
def test_cores_are_those_that_this_process_may_use() -> None:
    """As taskset and the queue of a cluster leave them, not those of the machine."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert engines.available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert engines.available_cores() == len(allowed)


def test_cores_are_shared_by_the_threads_of_a_run(
    tiny_spec: SpecWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "available_cores", lambda: 7)
    rooms = [LocalEngine().room(load_spec(tiny_spec(threads=n)), "cpu") for n in (1, 2, 3, 8)]
    assert rooms == [7, 3, 2, 1]
