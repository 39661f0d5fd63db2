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
from typing import Any

import pytest

from plkernel.common.files import LOG, load_json
from plkernel.config.reading import load_spec
from plkernel.study import engine as engines
from plkernel.study.engine import Engine, Job, LocalEngine, start_process
from plkernel.study.schedule import run_experiment
from plkernel.training.folder import RunFolder
from plkernel.training.loop import prepare

SpecWriter = Callable[..., Path]
Process = subprocess.Popen[bytes]
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


def test_the_engine_of_the_documentation_trains_a_study(
    tiny_spec: SpecWriter, tmp_path: Path, shown_engine: Callable[[str], type[Engine]]
) -> None:
    """The same rows as processes would write, and a run that fails is named."""
    in_this_process = shown_engine("InThisProcess")
    spec, out = load_spec(tiny_spec(steps=4)), tmp_path / "out"
    assert run_experiment(spec, out, engine=in_this_process()) == []
    rows = sorted(path.relative_to(out) for path in out.glob("*/seed-*/metrics.jsonl"))
    assert len(rows) == 4
    diverging = load_spec(tiny_spec(steps=4, learning_rate=1e30))
    lost = run_experiment(diverging, tmp_path / "lost", only=["uniform"], engine=in_this_process())
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


def test_the_log_of_a_run_that_is_killed_says_so(tmp_path: Path, begun: list[Process]) -> None:
    """The process itself cannot, as where memory is short."""
    job = Job(tmp_path, "uniform", 0, "cpu", 1, {})
    job.folder.mkdir(parents=True)
    (job.folder / LOG).write_text("step 20\n")
    engine = LocalEngine()
    engine.start(job)
    begun[0].kill()
    begun[0].wait()
    assert engine.ended() == [job]
    before, said = (job.folder / LOG).read_text().splitlines()
    assert before == "step 20"
    assert said == "ended by signal 9 (Killed); the system kills processes so where memory is short"


@pytest.mark.parametrize("printed", ["", "out of memory"])
def test_the_log_of_a_run_that_fails_in_silence_has_its_exit_status(
    printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has said why is left as it is."""
    job = Job(tmp_path, "uniform", 0, "cpu", 1, {})
    job.folder.mkdir(parents=True)
    log = job.folder / LOG
    log.write_text("step 20\n")
    program = f"import sys; sys.exit({printed!r} or 3)"

    def fail(job: Job, environment: dict[str, str]) -> Process:
        with log.open("ab") as output:
            process = subprocess.Popen([sys.executable, "-S", "-c", program], stderr=output)
        process.wait()
        return process

    monkeypatch.setattr(engines, "start_process", fail)
    engine = LocalEngine()
    engine.start(job)
    assert engine.ended() == [job]
    said = printed or "ended with exit status 3 and printed nothing"
    assert log.read_text() == f"step 20\n{said}\n"


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


class Ending:
    """Stands in for a process that has ended after some polls."""

    def __init__(self, polls: int = 0) -> None:
        self.polls = polls

    def poll(self) -> int | None:
        self.polls -= 1
        return 0 if self.polls < 0 else None


def test_runs_that_have_ended_are_given_once(tmp_path: Path) -> None:
    engine = LocalEngine()
    jobs = [Job(tmp_path, "a", seed, "cpu", 1, {}) for seed in range(3)]
    engine.active = [
        engines.Worker(job, Ending(polls))  # type: ignore[arg-type]
        for job, polls in zip(jobs, (0, 2, 0), strict=True)
    ]
    assert engine.ended() == [jobs[0], jobs[2]]
    assert engine.ended() == []
    assert engine.ended() == [jobs[1]]
    assert engine.active == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, []),
        ({"logger": "wandb"}, ["--logger", "wandb"]),
        ({"trusted": True}, ["--trust-code"]),
        ({"logger": "trackio", "trusted": True}, ["--logger", "trackio", "--trust-code"]),
    ],
)
def test_a_process_is_told_what_its_job_says(
    options: dict[str, Any], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It prints behind what is in its log, and its configuration is written once."""
    begun: list[tuple[Any, dict[str, Any]]] = []

    def popen(command: Any, **how: Any) -> None:
        begun.append((command, how))
        how["stdout"].write(b"more\n")

    monkeypatch.setattr(subprocess, "Popen", popen)
    job = Job(tmp_path, "a", 7, "cpu", 3, {"seed": 7}, **options)
    assert (job.name, job.folder) == ("a seed 7", tmp_path / "a" / "seed-7")
    start_process(job, {"X": "1", "OMP_NUM_THREADS": "9"})
    config = job.folder / "config.json"
    assert load_json(config) == {"seed": 7}
    config.write_text("{}")
    start_process(job, {})
    assert config.read_text() == "{}"
    assert (job.folder / "log.txt").read_text() == "more\nmore\n"
    command, how = begun[0]
    head = [sys.executable, "-m", "plkernel.run", str(config), "--stop-with", str(os.getpid())]
    assert command == [*head, "--code-tried", *words]
    assert how["env"] == {"X": "1", "OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3"}
    assert (how["stdin"], how["start_new_session"]) == (subprocess.DEVNULL, True)


@pytest.mark.parametrize(("visible", "gpus"), [("3,1", ["3", "1"]), ("5", ["5"])])
def test_gpus_are_those_that_the_environment_names(
    visible: str, gpus: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert engines.visible_gpus() == gpus
    assert LocalEngine().room(load_spec("quick"), "cuda") == len(gpus)
    for empty in ("", None):
        if empty is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", empty)
        monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
        assert engines.visible_gpus() == ["0", "1"]


def test_a_job_is_known_without_its_configuration(tmp_path: Path) -> None:
    one, same = (Job(tmp_path, "a", 0, "cpu", 1, {"x": x}) for x in (1, 2))
    assert one == same
    assert one != Job(tmp_path, "a", 1, "cpu", 1, {"x": 1})
    assert (one.trusted, one.logger) == (False, None)
