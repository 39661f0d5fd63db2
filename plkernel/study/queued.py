"""A run of a study inside a job of a queue: what a node executes.

The job starts the run as a process of its own, as a study on one machine does. A signal from the
queue (USR2) has the run save and end, and the job is requeued with the same object.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plkernel.common.files import (
    DIVERGED,
    FINISHED,
    LOG,
    REPORT,
    RESULT,
    SPEC,
    TUNING,
    load_object,
    run_folder,
)
from plkernel.study.engine import ASK_AGAIN_SECONDS, POLL_SECONDS, Job, start_process
from plkernel.training.folder import RunFolder, locked

SIGNAL_PATIENCE = 60.0
"""Seconds that a job whose run was interrupted waits for the queue to end it."""
INTERRUPTED = (130, -signal.SIGINT, -signal.SIGTERM)
"""Exit statuses of a run that was asked to stop."""


class RunNotFinishedError(RuntimeError):
    """The run of a job did not finish; the queue then shows the job as failed."""


@dataclass
class QueuedRun:
    """A callable object that trains the run of `job`, and that submitit can requeue.

    environment  variables that the run gets beside those of the node
    directory    where relative paths begin
    report       the last run of a study writes its report

    The job carries the user's consent to the code of the spec: like that code, the file that
    submitit writes of it executes what its owner put there.
    """

    job: Job
    environment: Mapping[str, str]
    directory: Path
    report: bool = True
    process: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)

    def __call__(self) -> str:
        """Train the run, or go on with it; return its status.

        Raises RunNotFinishedError where it did not finish and can be tried again.
        """
        self._enter()
        environment = {**os.environ, **self.environment}
        self.process = start_process(self.job, environment, prepare=_ignore_usr2)
        _wait(self.process.pid)
        code = self.process.wait()
        run = RunFolder(self.job.folder)
        status = run.status
        if code in INTERRUPTED:
            # The queue sends SIGTERM before USR2, or before it ends the job itself.
            time.sleep(SIGNAL_PATIENCE)
        if status not in (FINISHED, DIVERGED):
            raise RunNotFinishedError(
                f"{self.job.name} {_end(run, code)}, see {self.job.folder / LOG}"
            )
        if self.report:
            report_if_last(self.job.study)
        return status

    def _enter(self) -> None:
        """Change to the directory of the command; OSError where this node does not see it."""
        try:
            os.chdir(self.directory)
        except OSError as error:
            raise OSError(
                error.errno,
                f"this node does not see {self.directory}: start the study from a folder on a file"
                " system that all nodes share",
            ) from error

    def checkpoint(self) -> Any:
        """Have the run save and end; return what is to be submitted again.

        submitit calls it in a handler of USR2, and then requeues the job.
        """
        from submitit.core.utils import DelayedSubmission

        _ignore_usr2()  # a second one would write the same files within the first
        if self.process is not None:
            _stop(self.process.pid)
        again = QueuedRun(self.job, self.environment, self.directory, self.report)
        return DelayedSubmission(again)


def _ignore_usr2() -> None:
    """Keep the signal of the queue, which all processes of a job receive, from ending the run."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def _ended(pid: int) -> bool:
    """Return True once a child has ended.

    Unlike `Popen.poll` it takes no lock, so that a handler of a signal may call it at any time.
    """
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _wait(pid: int, seconds: float | None = None) -> None:
    """Wait until a child has ended, or for `seconds`."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while not _ended(pid):
        if deadline is not None and time.monotonic() > deadline:
            return
        time.sleep(POLL_SECONDS)


def _stop(pid: int) -> None:
    """Ask a run to save and end, and wait for it; one that only starts is asked again."""
    while not _ended(pid):
        os.kill(pid, signal.SIGINT)
        _wait(pid, ASK_AGAIN_SECONDS)


def _end(run: RunFolder, code: int) -> str:
    """Return how a run that did not finish ended."""
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL; the node may have run out of memory)"
    if code in INTERRUPTED:
        return "was interrupted and is saved"
    return run.failure


def report_if_last(study: Path) -> bool:
    """Write the report of a study whose runs have all ended; return whether this call did.

    The command that waits for the runs holds the lock of the study, and reports itself.
    """
    if study.name == TUNING or not all_ended(study):
        return False
    try:
        with locked(study, f"study {study}"):
            if _is_reported(study):
                return False
            command = [sys.executable, "-m", "plkernel.report", str(study)]
            return subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode == 0
    except ValueError:
        return False


def results_of(study: Path) -> list[Path]:
    """Return where the result of every run of a study lies, once the run has ended."""
    spec = load_object(study / SPEC)
    return [run_folder(study, arm, seed) / RESULT for arm in spec["arms"] for seed in spec["seeds"]]


def all_ended(study: Path) -> bool:
    """Return True if every run of a study has a result."""
    return all(path.exists() for path in results_of(study))


def _is_reported(study: Path) -> bool:
    """Return True if the report is newer than every result."""
    try:
        written = (study / REPORT / "report.html").stat().st_mtime_ns
    except FileNotFoundError:
        return False
    return all(path.stat().st_mtime_ns <= written for path in results_of(study))
