"""States of runs, from what lies in their folders and what a queue says."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from plkernel.common.files import CHECKPOINT, CONFIG, LOG, METRICS, RESULT, TUNING
from plkernel.config.reading import parse_spec
from plkernel.config.spec import Spec
from plkernel.study import queue as queues
from plkernel.study.queue import (
    JOB,
    SavedJob,
    ending,
    has_new_result,
    is_open,
    job_of,
    jobs_of,
    last_line,
    last_whole_line,
    lives,
    reason,
    stamp_of,
)
from plkernel.study.queued import (
    INTERRUPTED,
    _end,
    _is_reported,
    all_ended,
    report_if_last,
    results_of,
)
from plkernel.study.status import is_locked, progress_of, render, states_of
from plkernel.training.folder import FIGURES, RunFolder, locked


class Asked:
    """A queue that says what it is told to, and how often it was asked."""

    name = "slurm"

    def __init__(self, told: dict[str, str] | None) -> None:
        self.told = told
        self.times = 0

    def states(self) -> dict[str, str] | None:
        self.times += 1
        return self.told


def a_spec(**tuning: Any) -> Spec:
    values = {
        "name": "s",
        "baseline": "a",
        "seeds": [0],
        "train": {"steps": 40},
        "arms": {"a": {}},
        **tuning,
    }
    return parse_spec(values, "here")


def state(out: Path, queue: Any = None, spec: Spec | None = None) -> tuple[str, str, str, str]:
    [run] = states_of(spec or a_spec(), out, queue)
    return run.state, run.job, run.log.name if run.log else "", run.note


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "a" / "seed-0"
    place.mkdir(parents=True)
    return place


def test_a_run_of_which_nothing_is_there_has_not_started(tmp_path: Path) -> None:
    [run] = states_of(a_spec(), tmp_path, None)
    assert (run.name, run.state, run.job, run.log, run.note) == (
        "a seed 0",
        "not started",
        "",
        None,
        "",
    )


def test_a_run_waits_while_a_command_trains_the_study(folder: Path, tmp_path: Path) -> None:
    with locked(tmp_path, "study"):
        assert state(tmp_path)[0] == "queued"
        (folder / LOG).write_text("begun\n")
        assert state(tmp_path) == ("queued", "", LOG, "")
    assert state(tmp_path) == ("stopped", "", LOG, "begun")


def test_a_run_with_a_checkpoint_is_stopped_and_one_that_is_locked_runs(
    folder: Path, tmp_path: Path
) -> None:
    (folder / CHECKPOINT).write_bytes(b"")
    (folder / METRICS).write_text('{"step": 4}\n{"step": 8')
    (folder / CONFIG).write_text('{"train": {"steps": 40}}')
    assert state(tmp_path) == ("stopped", "", "", "step 4 of 40")
    with locked(folder, "run"):
        assert state(tmp_path) == ("running", "", "", "step 4 of 40")


@pytest.mark.parametrize("name", [RESULT, JOB])
def test_a_run_whose_files_are_damaged_is_shown_beside_the_others(
    name: str, folder: Path, tmp_path: Path
) -> None:
    (folder / name).write_text("{")
    damaged, other = states_of(a_spec().model_copy(update={"seeds": (0, 1)}), tmp_path, None)
    assert (damaged.state, other.state) == ("unreadable", "not started")
    assert f"{name}: not readable as JSON" in damaged.note


def test_a_run_that_has_no_room_to_go_on_says_so(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plkernel.study.status.lack_of_room", lambda *_: "the disk is full")
    (folder / LOG).write_text("")
    assert state(tmp_path) == ("stopped", "", LOG, "the disk is full")
    (folder / LOG).write_text("begun\n")
    assert state(tmp_path)[3] == "begun; the disk is full"
    (folder / CHECKPOINT).write_bytes(b"")
    (folder / METRICS).write_text('{"step": 4}\n')
    assert state(tmp_path)[3] == "step 4; the disk is full"


@pytest.mark.parametrize(
    ("number", "note"), [(errno.ENOSPC, "No space left on device"), (errno.EROFS, "")]
)
def test_a_disk_to_read_from_only_is_no_lack_of_room(
    number: int, note: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    (folder / LOG).write_text("")
    expected = f"no file can be written in {folder}: {note}" if note else ""
    assert state(tmp_path) == ("stopped", "", LOG, expected)


def test_a_run_that_has_ended_says_how(folder: Path, tmp_path: Path) -> None:
    result = {"status": "finished", **dict.fromkeys(FIGURES, 1), "final_val_bpb": 2.34567}
    (folder / RESULT).write_text(json.dumps(result))
    assert state(tmp_path) == ("done", "", "", "2.3457 bits per byte")
    (folder / RESULT).write_text(json.dumps({**result, "test_accuracy": 0.5}))
    assert state(tmp_path)[3] == "2.3457 bits per answer"
    for status, note in (("diverged", "diverged at step 6"), ("failed", "failed (x at step 6)")):
        (folder / RESULT).write_text(json.dumps({"status": status, "error": "x at step 6"}))
        assert state(tmp_path) == (status, "", "", note)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"7": "PENDING Priority"}, ("queued", "Priority")),
        ({"7": "RUNNING"}, ("running", "")),
        ({"7": "SUSPENDED"}, ("running", "")),
        ({"7": "OUT_OF_MEMORY"}, ("failed", "job out of memory (killed)")),
        ({}, ("failed", "job gone from the queue (killed)")),
        (None, ("unknown", "slurm does not answer here")),
    ],
)
def test_a_job_without_a_result_is_as_its_queue_says(
    told: dict[str, str] | None, expected: tuple[str, str], folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "x.err").write_text("killed\n")
    SavedJob("7", "slurm", "x.err").save(folder)
    word, job, log, note = state(tmp_path, Asked(told))
    assert ((word, note), job, log) == (expected, "7", "x.err")
    (folder / METRICS).write_text('{"step": 4}\n')
    if not expected[1]:
        assert state(tmp_path, Asked(told))[3] == "step 4"
    with locked(folder, "run"):
        held = state(tmp_path, Asked(told))
    assert held[0] == (expected[0] if expected[0] == "queued" else "running")
    assert state(tmp_path)[0] == "unknown", "nobody can be asked"


def test_a_queue_is_asked_once_and_only_for_jobs_without_a_result(
    folder: Path, tmp_path: Path
) -> None:
    queue = Asked({})
    state(tmp_path, queue)
    assert queue.times == 0
    SavedJob("7", "slurm", "x.err", ended="job failed").save(folder)
    assert state(tmp_path, queue) == ("failed", "7", "", "job failed")
    assert queue.times == 0
    SavedJob("7", "slurm", "x.err").save(folder)
    state(tmp_path, queue)
    assert queue.times == 1


def test_runs_of_a_search_come_first_and_are_those_without_a_rate(tmp_path: Path) -> None:
    spec = a_spec(
        tuning={"rates": [0.5, 1], "seeds": [7]},
        arms={"a": {}, "b": {"learning_rate": 2}, "c": {"rates": [3, 4]}},
    )
    names = [run.name for run in states_of(spec, tmp_path, None)]
    assert names == [
        f"{TUNING}: a_rate-0.5 seed 7",
        f"{TUNING}: a_rate-1 seed 7",
        f"{TUNING}: c_rate-3 seed 7",
        f"{TUNING}: c_rate-4 seed 7",
        "a seed 0",
        "b seed 0",
        "c seed 0",
    ]


def test_states_are_a_table_under_their_counts(tmp_path: Path) -> None:
    spec = a_spec(arms={"a": {}, "b": {}, "c": {}})
    (tmp_path / "b" / "seed-0").mkdir(parents=True)
    (tmp_path / "b" / "seed-0" / CHECKPOINT).write_bytes(b"")
    first, header, _, *rows = render("s", states_of(spec, tmp_path, None)).splitlines()
    assert first == "s: 3 runs: 2 not started, 1 stopped"
    assert header.split() == ["run", "state", "job", "log"]
    assert [row.split("  ")[0] for row in rows] == ["a seed 0", "b seed 0", "c seed 0"]
    columns = {row.index("-") for row in rows if "-" in row}
    assert len(columns) == 1, "all columns are left-aligned"


BY_BYTES = '{"train": {"steps": null, "bytes": 1200, "batch": 4, "context": 32}}'


@pytest.mark.parametrize(
    ("metrics", "config", "told"),
    [
        (None, None, ""),
        ("", '{"train": {"steps": 9}}', ""),
        ('{"step": 3}\n', None, "step 3"),
        ('{"step": 3}\n', '{"train": {"steps": 9}}', "step 3 of 9"),
        ('{"step": 0}\n', '{"train": {"steps": null}}', "step 0"),
        ('{"step": 3}\n', BY_BYTES, "step 3 of 9"),
        ('{"step": 3}\n', BY_BYTES.replace("32", "0"), "step 3"),
        ('{"step": 3}\n', "{", "step 3"),
        ("[1]\n", None, ""),
    ],
)
def test_how_far_a_run_has_come(
    metrics: str | None, config: str | None, told: str, tmp_path: Path
) -> None:
    for name, text in ((METRICS, metrics), (CONFIG, config)):
        if text is not None:
            (tmp_path / name).write_text(text)
    assert progress_of(tmp_path) == told


def test_a_lock_is_held_by_a_process(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    with locked(tmp_path, "x"):
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)


# Jobs
# ------------------------------------------------------------------------------------------------


def test_a_job_is_open_until_it_leaves_a_new_result_or_is_known_to_have_ended(
    folder: Path, tmp_path: Path
) -> None:
    assert job_of(folder) is None
    assert stamp_of(folder) is None
    job = SavedJob("7", "slurm", "logs/x.err")
    job.save(folder)
    assert job_of(folder) == job
    assert job.printed(folder) == tmp_path / "logs" / "x.err"
    assert is_open(folder, job)
    assert not has_new_result(folder, job)
    (folder / RESULT).write_text("{}")
    assert has_new_result(folder, job)
    assert not is_open(folder, job)
    again = SavedJob("8", "slurm", "x.err", before=stamp_of(folder))
    assert is_open(folder, again)
    os.utime(folder / RESULT, ns=(1, 1))
    assert not is_open(folder, again)
    over = SavedJob("8", "slurm", "x.err", before=stamp_of(folder), ended="job failed")
    assert not is_open(folder, over)
    assert ending(folder) is None
    over.save(folder)
    assert ending(folder) == f"did not finish: job failed, see {folder / LOG}"
    (folder / JOB).write_text('{"id": "7"}')
    with pytest.raises(ValueError, match=r"job\.json must describe a job, got none"):
        job_of(folder)


def test_open_jobs_are_those_of_the_search_too(tmp_path: Path) -> None:
    for number, place in enumerate(("b/seed-0", "a/seed-1", f"{TUNING}/a/seed-9", "x/y/z/seed-0")):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        SavedJob(str(number), "slurm", "x").save(folder)
    assert jobs_of(tmp_path) == ["1", "0", "2"]
    SavedJob("0", "slurm", "x", ended="over").save(tmp_path / "b/seed-0")
    assert jobs_of(tmp_path) == ["1", "2"]


@pytest.mark.parametrize(
    ("word", "alive"),
    [
        *(("PENDING", True), ("RUNNING node", True)),
        *(("FAILED", False), ("COMPLETED", False), (None, False)),
    ],
)
def test_a_job_lives_while_it_waits_or_runs(word: str | None, alive: bool) -> None:
    assert lives(word) is alive


def test_the_end_of_a_job_is_told_with_its_last_line(tmp_path: Path) -> None:
    output = tmp_path / "x.err"
    assert reason(output, "NODE_FAIL x").startswith("job node fail, and it printed nothing: the")
    assert f"may not see {tmp_path}; give an --out" in reason(output, "NODE_FAIL x")
    assert "it may have been cancelled, or the node" in reason(output, None)
    assert reason(output, "CANCELLED") == "job cancelled before it printed anything"
    output.write_text("")
    assert reason(output, "TIMEOUT") == "job timeout"
    output.write_text("one\nlast\n\n")
    assert reason(output, None) == "job gone from the queue (last)"


def test_the_last_line_of_a_long_file_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    assert last_line(path) == ""
    path.write_text("a\nb\nhalf")
    assert last_line(path) == "half"
    assert last_whole_line(path) == "b"
    path.write_text("half")
    assert last_whole_line(path) == ""
    path.write_text("x" * 300 + "\n")
    assert len(last_line(path)) == 200
    assert len(last_whole_line(path)) == 300
    monkeypatch.setattr(queues, "TAIL_BYTES", 4)
    path.write_text("abcdefg\n")
    assert last_line(path) == "efg"


# The end of a study
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (-9, "was killed (SIGKILL; the node may have run out of memory)"),
        (130, "was interrupted and is saved"),
        (-2, "was interrupted and is saved"),
        (-15, "was interrupted and is saved"),
        (1, "did not finish"),
    ],
)
def test_how_a_run_in_a_job_ended(code: int, told: str, tmp_path: Path) -> None:
    assert _end(RunFolder(tmp_path), code) == told
    assert (code in INTERRUPTED) == ("interrupted" in told)


def test_a_study_is_reported_once_all_runs_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> Any:
        commands.append(command)
        return type("Done", (), {"returncode": len(commands) - 1})

    monkeypatch.setattr("plkernel.study.queued.subprocess.run", run)
    (tmp_path / "spec.json").write_text('{"arms": {"a": {}, "b": {}}, "seeds": [0]}')
    first, second = results_of(tmp_path)
    assert [path.relative_to(tmp_path).parts[0] for path in (first, second)] == ["a", "b"]
    for path in (first, second):
        assert not all_ended(tmp_path)
        assert not report_if_last(tmp_path)
        path.parent.mkdir(parents=True)
        path.write_text("{}")
        os.utime(path, ns=(5, 5))
    assert all_ended(tmp_path)
    with locked(tmp_path, "study"):
        assert not report_if_last(tmp_path), "the command that holds the study reports itself"
    assert commands == []
    assert report_if_last(tmp_path)
    assert not report_if_last(tmp_path), "the command has failed"
    assert commands[0][1:] == ["-m", "plkernel.report", str(tmp_path)]
    page = tmp_path / "report" / "report.html"
    page.parent.mkdir()
    page.write_text("")
    for time, reported in ((4, False), (5, True), (6, True)):
        os.utime(page, ns=(time, time))
        assert _is_reported(tmp_path) is reported
    assert not report_if_last(tmp_path)
    assert len(commands) == 2
    search = tmp_path / TUNING
    search.mkdir()
    assert not report_if_last(search)
