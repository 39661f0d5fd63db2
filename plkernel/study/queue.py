"""Studies in a queue: one job for each run, whose state lies in the folder of the run alone.

STUDY/ARM/seed-K/job.json   the job of the run: its id, its queue and the file that it prints to
STUDY/.jobs/                what submitit writes: scripts, pickled runs and the output of jobs

Any command that sees these folders can follow, collect or cancel the runs, on any machine.
"""

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol, TypeGuard

from plkernel.common.cli import counted, note, shortened
from plkernel.common.environment import COMMAND, command_line
from plkernel.common.files import LOG, RESULT, TUNING, load_object, refuse_links, save_json
from plkernel.config.condition import Condition
from plkernel.config.spec import Spec
from plkernel.study.engine import Job, LeftToQueueError
from plkernel.study.queued import QueuedRun

JOB = "job.json"
"""In the folder of a run."""
JOBS = ".jobs"
"""In the folder of a study."""
MOST = 1_000_000
"""Runs that a queue has room for."""
LOOK_SECONDS = 1.0
"""Between two looks at the folders of runs."""
ASK_SECONDS = 15.0
"""Between two questions to the queue, which says of jobs that have gone without a result."""
TAIL_BYTES = 65536
"""From the end of a file, in which its last line is looked for."""
ALIVE = {
    "PENDING": "queued",
    "CONFIGURING": "queued",
    "REQUEUED": "queued",
    "REQUEUE_FED": "queued",
    "REQUEUE_HOLD": "queued",
    "RESV_DEL_HOLD": "queued",
    "SPECIAL_EXIT": "queued",
    "PREEMPTED": "queued",
    "RUNNING": "running",
    "COMPLETING": "running",
    "RESIZING": "running",
    "SIGNALING": "running",
    "STAGE_OUT": "running",
    "STOPPED": "running",
    "SUSPENDED": "running",
}
"""States of Slurm in which a job may still train its run, and what a reader calls them."""


@dataclass(frozen=True)
class SavedJob:
    """The job of a run, as job.json holds it.

    queue   its kind
    output  the file, below the study, that the job prints to apart from the run
    before  time of the result that an earlier attempt left, in nanoseconds; None without one
    ended   how the job ended without a result; None while that is not known
    """

    id: str
    queue: str
    output: str
    before: int | None = None
    ended: str | None = None

    def save(self, folder: Path) -> None:
        """Write the entry to the folder of its run."""
        save_json(folder / JOB, asdict(self))

    def printed(self, folder: Path) -> Path:
        """Return where the job of the run in `folder` prints."""
        return folder.parents[1] / self.output


def job_of(folder: Path) -> SavedJob | None:
    """Read the job of a run; None where it has none, ValueError where the file is damaged."""
    path = folder / JOB
    if not path.exists():
        return None
    values = load_object(path)
    try:
        return SavedJob(**values)
    except TypeError as error:
        raise ValueError(f"{path} must describe a job, got none ({error}); remove it") from error


def jobs_of(study: Path) -> list[str]:
    """Return the jobs of a study that have left no result, those of its search too, by their ids.

    Jobs that are known to have ended are left out.
    """
    paths = [*study.glob(f"*/seed-*/{JOB}"), *study.glob(f"{TUNING}/*/seed-*/{JOB}")]
    found = [(path.parent, job_of(path.parent)) for path in sorted(paths)]
    return [entry.id for folder, entry in found if entry is not None and is_open(folder, entry)]


def stamp_of(folder: Path) -> int | None:
    """Return the time of the result of a run, in nanoseconds; None without a result."""
    try:
        return (folder / RESULT).stat().st_mtime_ns
    except FileNotFoundError:
        return None


def has_new_result(folder: Path, entry: SavedJob) -> bool:
    """Return True once the job of a run has written how the run ended."""
    return stamp_of(folder) not in (None, entry.before)


def lives(state: str | None) -> TypeGuard[str]:
    """Return True for the state of a job that may still train its run."""
    return state is not None and state.split()[0] in ALIVE


def is_open(folder: Path, entry: SavedJob) -> bool:
    """Return True where only the queue can tell what the job of a run does."""
    return entry.ended is None and not has_new_result(folder, entry)


class Queue(Protocol):
    """Takes jobs, and says of them."""

    @property
    def name(self) -> str:
        """Its name in messages."""

    def device(self, condition: Condition) -> str:
        """Return the type of device that the jobs of a condition ask for, 'cpu' or 'cuda'."""

    def submit(self, runs: Sequence[QueuedRun]) -> list[SavedJob]:
        """Submit runs of one device; return their jobs in this order. OSError if refused."""

    def states(self) -> Mapping[str, str] | None:
        """Return the states of the user's jobs by id; None while the queue does not answer.

        A state is a word of Slurm, and behind a space the reason, if there is one.
        """

    def cancel(self, ids: Sequence[str]) -> None:
        """Cancel jobs; those that run save first."""


class QueueEngine:
    """An `Engine` that submits runs to a queue, and looks at their folders for results.

    The runs of one round are submitted together. A run whose job is already in the queue is not
    submitted again.

    detach  once all are submitted, leave with LeftToQueueError
    report  the last run writes the report of the study, if no command waits for it

    Of the state: `fresh` are the runs of this round, `active` those that have been submitted, with
    their jobs, `missing` those of them whose jobs the queue did not know when it was asked last.
    `looked` and `asked` are the times of the last look and question, `silent` is True while the
    queue does not answer.
    """

    def __init__(self, queue: Queue, detach: bool = False, report: bool = True) -> None:
        self.queue = queue
        self.detach = detach
        self.report = report
        self.fresh: list[Job] = []
        self.active: dict[Job, SavedJob] = {}
        self.missing: set[Job] = set()
        self.looked = 0.0
        self.asked = 0.0
        self.silent = False

    def device(self, condition: Condition) -> str:
        """Return the type of device that the jobs of a condition ask for."""
        return self.queue.device(condition)

    def room(self, spec: Spec, device: str) -> int:
        """Return a number above that of all runs: the queue decides how many go at a time."""
        return MOST

    def start(self, job: Job) -> None:
        """Submit a run with the others of this round, or follow the job that it has.

        Raises OSError where it has one, and the queue does not say whether that is alive.
        """
        entry = job_of(job.folder)
        if entry is not None and is_open(job.folder, entry) and self._lives(entry):
            self.active[job] = entry
        else:
            self.fresh.append(job)

    def _lives(self, entry: SavedJob) -> bool:
        states = self.queue.states()
        if states is None:
            raise OSError(
                f"{self.queue.name} does not answer, and job {entry.id} may still be in its queue;"
                " run the same command again once it does"
            )
        return lives(states.get(entry.id))

    def ended(self) -> list[Job]:
        """Return the runs that have a result, or whose jobs have gone without one.

        Raises LeftToQueueError once all runs are submitted, if the engine is to detach.
        """
        self._submit()
        now = time.monotonic()
        if now - self.looked < LOOK_SECONDS:
            return []
        self.looked = now
        done = [job for job, entry in self.active.items() if has_new_result(job.folder, entry)]
        if now - self.asked >= ASK_SECONDS:
            self.asked = now
            done += self._lost(job for job in self.active if job not in done)
        for job in done:
            del self.active[job]
            self.missing.discard(job)  # a later job of the same run is asked for twice too
        if self.detach and self.active and not done:
            left = counted(len(self.active), "run is", "runs are")
            raise LeftToQueueError(f"{left} in the queue. {self.farewell}")
        return done

    @property
    def farewell(self) -> str:
        """Sentence about the runs that go on without the command."""
        if not self.active:
            return "no run of it is in the queue; run the same command again to submit them"
        if len(self.active) == 1:
            return (
                "It goes on without this command; the same command collects it, --status shows it,"
                " and --cancel ends it, saved"
            )
        return (
            "They go on without this command; the same command collects them, --status shows them,"
            " and --cancel ends them, saved"
        )

    def _submit(self) -> None:
        """Submit the runs of this round, those that need the same as one array."""
        kinds = dict.fromkeys((job.device, job.threads) for job in self.fresh)
        for kind in kinds:
            jobs = [job for job in self.fresh if (job.device, job.threads) == kind]
            for job in jobs:
                refuse_links(job.folder.parent, job.folder, *job.folder.glob("*"))
            with _without_ctrl_c():  # a job that no folder names would be submitted again
                entries = self.queue.submit([self._queued(job) for job in jobs])
                for job, entry in zip(jobs, entries, strict=True):
                    job.folder.mkdir(parents=True, exist_ok=True)
                    entry.save(job.folder)
                    self.active[job] = entry
        if self.fresh:
            self.looked = 0.0
            self.asked = time.monotonic()
        self.fresh = []

    def _queued(self, job: Job) -> QueuedRun:
        kept = {name: value for name, value in os.environ.items() if name.startswith("PLKERNEL_")}
        environment = {**kept, COMMAND: command_line()}
        return QueuedRun(job, environment, Path.cwd(), self.report)

    def _lost(self, jobs: Iterable[Job]) -> list[Job]:
        """Return the runs whose jobs have gone without a result, and note how they ended.

        A job that the queue does not know is asked for twice: it may be about to be requeued, and
        its result on the way through a network file system.
        """
        states = self.queue.states()
        self._tell_silence(states is None)
        if states is None:
            return []
        lost = []
        for job in jobs:
            entry = self.active[job]
            state = states.get(entry.id)
            if lives(state) or has_new_result(job.folder, entry):
                self.missing.discard(job)
            elif job not in self.missing:
                self.missing.add(job)
            else:
                ended = reason(entry.printed(job.folder), state)
                replace(entry, ended=ended).save(job.folder)
                lost.append(job)
        return lost

    def _tell_silence(self, silent: bool) -> None:
        """Say once that the queue does not answer, and once that it does again."""
        if silent != self.silent:
            words = "does not answer; waiting for results" if silent else "answers again"
            note(f"note: {self.queue.name} {words}")
        self.silent = silent

    def stop(self) -> None:
        """Leave all jobs to the queue, at the end of the study and after Ctrl-C."""
        self.active.clear()
        self.missing.clear()


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Hold Ctrl-C back until the end of the block.

    Elsewhere than in the main thread, which alone is interrupted, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
    if pressed:
        raise KeyboardInterrupt


def reason(output: Path, state: str | None) -> str:
    """Return how a job ended without a result, and the last line that it printed to `output`."""
    word = state.split()[0] if state else "gone from the queue"
    ended = word.lower().replace("_", " ")
    if not output.exists():
        if word == "CANCELLED":
            return "job cancelled before it printed anything"
        why = "it may have been cancelled, or " if state is None else ""
        return (
            f"job {ended}, and it printed nothing: {why}the node may not see {output.parent}; give"
            " an --out on a file system that all nodes share"
        )
    line = last_line(output)
    return f"job {ended} ({line})" if line else f"job {ended}"


def last_line(path: Path) -> str:
    """Return the last line of a file that says something, shortened, '' without one."""
    return shortened(_last_said(_tail(path)), 200)


def last_whole_line(path: Path) -> str:
    """Return the last line of a file that is written to its end, '' without one."""
    text = _tail(path)
    end = text.rfind("\n") + 1
    return _last_said(text[:end])


def _tail(path: Path) -> str:
    """Return the last TAIL_BYTES of a file, '' without one."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        return file.read().decode(errors="replace")


def _last_said(text: str) -> str:
    """Return the last line of a text that says something, '' without one."""
    said = [line for line in text.splitlines() if line.strip()]
    return said[-1] if said else ""


def ending(folder: Path) -> str | None:
    """Return how the job of a run ended without a result; None where that is not known."""
    entry = job_of(folder)
    if entry is None or entry.ended is None:
        return None
    return f"did not finish: {entry.ended}, see {folder / LOG}"
