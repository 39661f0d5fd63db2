"""The engine of a queue by a clock of the test: what it submits, when it looks, when it asks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from plkernel.common.files import RESULT
from plkernel.study import queue as queues
from plkernel.study.engine import Job, LeftToQueueError
from plkernel.study.queue import QueueEngine, SavedJob, job_of
from plkernel.study.queued import QueuedRun
from plkernel.study.slurm import minutes, parameters


@dataclass
class Numbering:
    """A queue that numbers its jobs, and counts how often it is asked."""

    told: dict[str, str] | None = field(default_factory=dict)
    arrays: list[list[str]] = field(default_factory=list)
    runs: list[QueuedRun] = field(default_factory=list)
    asked: int = 0
    name: str = "slurm"

    def device(self, condition: Any) -> str:
        return "cuda"

    def submit(self, runs: Sequence[QueuedRun]) -> list[SavedJob]:
        self.arrays.append([run.job.name for run in runs])
        self.runs += runs
        ids = [f"{len(self.arrays)}_{index}" for index in range(len(runs))]
        if self.told is not None:
            self.told |= dict.fromkeys(ids, "PENDING")
        return [SavedJob(one, self.name, f"{one}.err") for one in ids]

    def states(self) -> dict[str, str] | None:
        self.asked += 1
        return self.told

    def cancel(self, ids: Sequence[str]) -> None:
        raise AssertionError("nobody cancels")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(queues.time, "monotonic", lambda: now[0])
    return now


def a_job(out: Path, seed: int = 0, device: str = "cpu", threads: int = 1) -> Job:
    return Job(out, "a", seed, device, threads, {})


def finish(job: Job) -> None:
    (job.folder / RESULT).write_text("{}")


def test_runs_that_need_the_same_are_one_array(tmp_path: Path, clock: list[float]) -> None:
    queue = Numbering()
    engine = QueueEngine(queue)
    for seed, (device, threads) in enumerate((("cpu", 1), ("cuda", 1), ("cpu", 1), ("cpu", 2))):
        engine.start(a_job(tmp_path, seed, device, threads))
    assert queue.arrays == []
    assert engine.ended() == []
    assert queue.arrays == [["a seed 0", "a seed 2"], ["a seed 1"], ["a seed 3"]]
    saved = job_of(a_job(tmp_path, 2).folder)
    assert saved is not None
    assert saved.id == "1_1"
    assert engine.ended() == []
    assert len(queue.arrays) == 3, "once"
    any_spec: Any = None
    assert engine.room(any_spec, "cpu") == queues.MOST
    assert engine.device(any_spec) == "cuda"


def test_folders_are_looked_at_each_second_and_the_queue_is_asked_each_quarter_of_a_minute(
    tmp_path: Path, clock: list[float]
) -> None:
    queue = Numbering()
    engine = QueueEngine(queue)
    jobs = [a_job(tmp_path, seed) for seed in range(3)]
    for job in jobs:
        engine.start(job)
    assert engine.ended() == []
    finish(jobs[0])
    clock[0] += 0.99
    assert engine.ended() == [], "too early to look"
    clock[0] += 0.02
    assert engine.ended() == [jobs[0]]
    assert queue.asked == 0
    clock[0] += 13.0
    assert engine.ended() == []
    assert queue.asked == 0
    clock[0] += 1.0
    assert engine.ended() == []
    assert queue.asked == 1
    finish(jobs[1])
    clock[0] += 1.0
    assert engine.ended() == [jobs[1]]
    assert list(engine.active) == [jobs[2]]


def test_a_job_that_is_unknown_twice_has_gone(tmp_path: Path, clock: list[float]) -> None:
    queue = Numbering()
    engine = QueueEngine(queue)
    job = a_job(tmp_path)
    engine.start(job)
    engine.ended()
    for told, ended in (({}, []), ({"1_0": "RUNNING"}, []), ({}, []), ({}, [job])):
        queue.told = told
        clock[0] += 15.0
        assert engine.ended() == ended
    saved = job_of(job.folder)
    assert saved is not None
    assert saved.ended is not None
    assert saved.ended.startswith("job gone from the queue, and it printed nothing")
    queue.told = {}
    engine.start(job)
    engine.ended()
    assert queue.arrays == [["a seed 0"]] * 2, "it is submitted again"
    for ended in ([], [job]):
        queue.told = {}
        clock[0] += 15.0
        assert engine.ended() == ended, "its new job is asked for twice too"


@pytest.mark.parametrize("is_left", [False, True])
def test_a_later_job_of_a_run_is_asked_for_twice_whatever_its_first_one_did(
    is_left: bool, tmp_path: Path, clock: list[float]
) -> None:
    """Also with an engine that has a second study to run, or the same once more."""
    queue = Numbering()
    engine = QueueEngine(queue)
    job = a_job(tmp_path)
    engine.start(job)
    engine.ended()
    queue.told = {}
    clock[0] += 15.0
    assert engine.ended() == [], "unknown once"
    if is_left:
        engine.stop()
    else:
        finish(job)
        clock[0] += 1.0
        assert engine.ended() == [job]
        (job.folder / RESULT).unlink()
    queue.told = {"1_0": "RUNNING"}
    engine.start(job)
    assert list(engine.active) == [job]
    for ended in ([], [job]):
        queue.told = {}
        clock[0] += 15.0
        assert engine.ended() == ended


def test_a_job_that_is_still_there_is_followed(tmp_path: Path, clock: list[float]) -> None:
    queue = Numbering()
    first = QueueEngine(queue)
    job = a_job(tmp_path)
    first.start(job)
    first.ended()
    first.stop()
    assert not first.active
    second = QueueEngine(queue)
    second.start(job)
    clock[0] += 100.0
    assert second.ended() == []
    assert queue.arrays == [["a seed 0"]]
    queue.told = None
    with pytest.raises(OSError, match="slurm does not answer, and job 1_0 may still be in its"):
        QueueEngine(queue).start(job)


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (1, "1 run is in the queue. It goes on without this command; the same command collects it"),
        (2, "2 runs are in the queue. They go on without this command; the same command collects"),
    ],
)
def test_a_command_leaves_once_all_is_submitted(
    count: int, told: str, tmp_path: Path, clock: list[float]
) -> None:
    engine = QueueEngine(Numbering(), detach=True, report=False)
    for seed in range(count):
        engine.start(a_job(tmp_path, seed))
    with pytest.raises(LeftToQueueError) as left:
        engine.ended()
    assert str(left.value).startswith(told)
    assert str(left.value).endswith("saved")


@pytest.mark.parametrize("report", [True, False])
def test_a_job_has_the_variables_of_the_study_and_its_place(
    report: bool, tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLKERNEL_CACHE", "here")
    monkeypatch.setenv("PLKERNEL_COMMAND", "the study")
    monkeypatch.setenv("OTHER", "not this")
    monkeypatch.chdir(tmp_path)
    queue = Numbering()
    engine = QueueEngine(queue, report=report)
    engine.start(a_job(tmp_path))
    engine.ended()
    [run] = queue.runs
    assert (run.directory, run.report, run.process) == (tmp_path, report, None)
    assert run.environment["PLKERNEL_CACHE"] == "here"
    assert "OTHER" not in run.environment
    assert run.environment["PLKERNEL_COMMAND"] != "the study", "it is that of this process"


def test_nothing_is_submitted_through_a_link(tmp_path: Path, clock: list[float]) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "elsewhere")
    queue = Numbering()
    engine = QueueEngine(queue)
    engine.start(a_job(tmp_path))
    with pytest.raises(ValueError, match="got a symbolic link to"):
        engine.ended()
    assert queue.arrays == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ("0:01", 1), ("1:30", 2), ("0:00:30", 1), ("1-0:0:1", 1441), ("0-1", 60)],
)
def test_times_are_rounded_up_to_minutes(text: str, expected: int) -> None:
    assert minutes(text) == expected


@pytest.mark.parametrize("text", ["0", "0:00", "0-0", "0-0:0:0"])
def test_no_time_at_all_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"slurm\.time must be above 0"):
        minutes(text)


@pytest.mark.parametrize("text", ["", "1:2:3:4", "-1", "1h", "1-", "1.5"])
def test_other_forms_of_a_time_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"slurm\.time must be minutes, hours:minutes:seconds or"):
        minutes(text)


def test_options_of_sbatch_are_kept_apart() -> None:
    pytest.importorskip("submitit", reason="submitit, of the extra slurm, is absent")
    assert parameters([]) == {}
    assert parameters(["sbatch.hold", "sbatch.nice=5", "cpus-per-task=3"]) == {
        "cpus_per_task": 3,
        "additional_parameters": {"hold": True, "nice": "5"},
    }
    for twice in (["sbatch.hold", "sbatch.hold"], ["mem=1GB", "mem=2GB"]):
        with pytest.raises(ValueError, match=r"must be given once, got it twice"):
            parameters(twice)
