"""The states of the runs of a study, from its folders and the queue, without torch."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from plkernel.common.cli import USER_ERRORS, counted, text_table
from plkernel.common.files import (
    CHECKPOINT,
    CONFIG,
    DISK_FULL,
    FAILED,
    FINISHED,
    LOCK,
    LOG,
    METRICS,
    NOT_STARTED,
    TUNING,
    lack_of_room,
    name_at,
    run_folder,
)
from plkernel.config.schema import steps_of
from plkernel.config.spec import Spec
from plkernel.study.queue import (
    ALIVE,
    Queue,
    SavedJob,
    is_open,
    job_of,
    last_line,
    last_whole_line,
    lives,
    reason,
)
from plkernel.training.folder import RunFolder, locked, loss_unit

QUEUED = "queued"
RUNNING = "running"
DONE = "done"
STOPPED = "stopped"
UNKNOWN = "unknown"
UNREADABLE = "unreadable"
States = Mapping[str, str] | None
"""States of jobs by id; None where the queue does not answer."""


class FoundJob(NamedTuple):
    """The job of a run, None where it has none, or why its file cannot be read."""

    job: SavedJob | None
    error: str = ""


@dataclass(frozen=True)
class RunState:
    """One run: its state in a word, its job if it has one, its log, and what there is to say.

    state: queued, running, done, failed, diverged, stopped (begun, and nobody trains it), not
    started, unknown (its queue does not answer), or unreadable (its files cannot be read, or are
    damaged).
    """

    name: str
    state: str
    job: str
    log: Path | None
    note: str


def states_of(spec: Spec, out: Path, queue: Queue | None) -> list[RunState]:
    """Return the state of every run of a study, those of its search for learning rates first.

    queue: asked for the jobs that have no result yet; None where there is none.
    """
    places = list(_places(spec, out))
    jobs = _jobs(spec, out)
    states = queue.states() if queue is not None and _any_open(jobs) else None
    # a command that trains on this machine comes to all runs; jobs are queued by their own names
    waiting = is_locked(out) and all(found.job is None for found in jobs.values())
    return [_state(name, folder, jobs[folder], states, waiting) for name, folder in places]


def has_open_jobs(spec: Spec, out: Path) -> bool:
    """Return True if a run of a study has a job that can be read and has left no result."""
    return _any_open(_jobs(spec, out))


def _any_open(jobs: Mapping[Path, FoundJob]) -> bool:
    """Return True if one of the jobs, by the folders of their runs, has left no result."""
    for folder, found in jobs.items():
        if found.job is not None and is_open(folder, found.job):
            return True
    return False


def _jobs(spec: Spec, out: Path) -> dict[Path, FoundJob]:
    """Return the jobs of the runs of a study by their folders."""
    return {folder: _found_job(folder) for _, folder in _places(spec, out)}


def _places(spec: Spec, out: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name and the folder of every run that the spec asks for."""
    if spec.tuning.rates:
        for arm in spec.arms:
            rates = spec.rates_of(arm) if spec.arm(arm).learning_rate is None else ()
            for rate in rates:
                for seed in spec.tuning.seeds:
                    name = name_at(arm, rate)
                    yield f"{TUNING}: {name} seed {seed}", run_folder(out / TUNING, name, seed)
    for seed in spec.seeds:
        for arm in spec.arms:
            yield f"{arm} seed {seed}", run_folder(out, arm, seed)


def _found_job(folder: Path) -> FoundJob:
    """Return the job of a run as `job_of` reads it, or what that raises."""
    try:
        return FoundJob(job_of(folder))
    except USER_ERRORS as error:
        return FoundJob(None, str(error))


def _state(name: str, folder: Path, found: FoundJob, states: States, waiting: bool) -> RunState:
    """Return the state of one run; waiting: a command that trains the study is under way."""
    entry = found.job
    job = entry.id if entry else ""
    log = None
    try:
        log = _log(folder, entry)
        if found.error:
            state, note = UNREADABLE, found.error
        elif entry is not None and is_open(folder, entry):
            state, note = _of_open_job(folder, entry, states)
        else:
            state, note = _of_folder(folder, entry, log, waiting)
    except USER_ERRORS as error:  # of one run; the others are shown
        state, note = UNREADABLE, str(error)
    return RunState(name, state, job, log, note)


def _of_open_job(folder: Path, entry: SavedJob, states: States) -> tuple[str, str]:
    """Return the state of a run whose job is in the queue, and a note."""
    state, note = _of_job(entry.printed(folder), states, entry)
    if state in (UNKNOWN, FAILED) and is_locked(folder):
        return RUNNING, progress_of(folder)
    return state, note or progress_of(folder)


def _of_folder(
    folder: Path, entry: SavedJob | None, log: Path | None, waiting: bool
) -> tuple[str, str]:
    """Return the state of a run as its folder tells it, and a note; waiting: as in `_state`."""
    run = RunFolder(folder)
    if run.result is not None:
        return _of_result(run)
    if is_locked(folder):
        return RUNNING, progress_of(folder)
    if entry is not None and entry.ended is not None:
        return FAILED, entry.ended
    if (folder / CHECKPOINT).exists():
        return STOPPED, _why_stopped(folder, progress_of(folder))
    if waiting:
        return QUEUED, ""
    if log is not None:
        return STOPPED, _why_stopped(folder, last_line(log))
    return NOT_STARTED, ""


def _why_stopped(folder: Path, said: str) -> str:
    """Return what is known of a run that nobody trains, and that its disk is full, if it is.

    A disk to read from only is no reason: that on which the run stopped may have been mounted so
    for a look at it.
    """
    parts = (said, lack_of_room(folder, DISK_FULL))
    return "; ".join(part for part in parts if part)


def _log(folder: Path, entry: SavedJob | None) -> Path | None:
    """Return the log of a run, else what its job printed; None before either exists."""
    paths = [folder / LOG]
    if entry is not None:
        paths.append(entry.printed(folder))
    return next((path for path in paths if path.exists()), None)


def _of_result(run: RunFolder) -> tuple[str, str]:
    """Return the state of a run that has a result, and a note."""
    result = run.result or {}
    if run.status == FINISHED:
        return DONE, f"{result['final_val_bpb']:.4f} {loss_unit(result)}"
    return str(run.status), run.failure


def _of_job(output: Path, states: States, entry: SavedJob) -> tuple[str, str]:
    """Return the state of a run without a result, from that of its job, and a note."""
    if states is None:
        return UNKNOWN, f"{entry.queue} does not answer here"
    state = states.get(entry.id)
    if lives(state):
        word, _, why = state.partition(" ")
        return ALIVE[word], why
    return FAILED, reason(output, state)


def progress_of(folder: Path) -> str:
    """Return how far a run has come, '' before its first row."""
    step = None
    total = None
    with suppress(ValueError, KeyError, TypeError):
        step = json.loads(last_whole_line(folder / METRICS))["step"]
    with suppress(ValueError, KeyError, TypeError, OSError, ZeroDivisionError):
        train = json.loads((folder / CONFIG).read_text())["train"]
        total = train["steps"]
        if total is None:
            total = steps_of(None, train["bytes"], train["batch"], train["context"])
    if step is None:
        return ""
    return f"step {step} of {total}" if total else f"step {step}"


def is_locked(folder: Path) -> bool:
    """Return True while a process holds the lock of a folder."""
    if not (folder / LOCK).exists():
        return False
    try:
        with locked(folder, str(folder)):
            return False
    except ValueError:
        return True
    except OSError:  # a folder that may only be read
        return False


def render(name: str, runs: list[RunState]) -> str:
    """Return the states as a table under a line of counts."""
    counts = Counter(run.state for run in runs)
    summary = ", ".join(f"{number} {state}" for state, number in counts.items())
    rows = [[run.name, run.state, run.job or "-", str(run.log or "-"), run.note] for run in runs]
    title = f"{name}: {counted(len(runs), 'run', 'runs')}: {summary}"
    return f"{title}\n{_table(rows)}"


def _table(rows: list[list[str]]) -> str:
    """Return a table of texts, all columns left-aligned."""
    header = ["run", "state", "job", "log", ""]
    columns = zip(header, *rows, strict=True)
    widths = [max(map(len, column)) for column in columns]

    def padded(row: list[str]) -> list[str]:
        return [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]

    return text_table(padded(header), [padded(row) for row in rows])
