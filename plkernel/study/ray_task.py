"""The task of a Ray cluster: train one run of a study on the machine that it is on. Loads no torch itself."""

import hashlib
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from plkernel.common.files import refuse_links_of_run
from plkernel.results.layout import RESULT, SPEC
from plkernel.study.engine import Job, start_process

POLL_SECONDS = 0.2
SEEN_SECONDS = 60.0
"""How long a network file system may take to show on one machine what another has written."""


@dataclass(frozen=True)
class End:
    """How a run's process ended, as the machine that had it saw it: exit status, and its result.json if any."""

    status: int
    result: bytes | None


def work(job: Job, digest: str, environment: dict[str, str], directory: Path, lock: Path, patience: float) -> End:
    """Train `job` in a process of its own; when the task is cancelled, the run is saved first.

    digest       of the spec.json in the folder of the study, to know the folder by
    environment  what to add to that of this machine
    directory    where the command runs that started the study, which names of corpora may be relative to
    lock         of the run's folder, and how many seconds of patience to have with it

    Raises ValueError where the folder of the study is not on this machine.
    """
    _check(job, digest)
    refuse_links_of_run(job.folder)
    job.folder.mkdir(parents=True, exist_ok=True)
    with suppress(Timeout), FileLock(lock, timeout=patience):
        pass
    process = start_process([job], {**os.environ, **environment}, directory if directory.is_dir() else None)
    try:
        while process.poll() is None:
            time.sleep(POLL_SECONDS)  # which an interrupt ends, as it does not end wait()
    except KeyboardInterrupt:  # the task is cancelled
        process.terminate()  # workers of Ray block SIGINT, and so do their children
        process.wait()
    return End(process.returncode, result_of(job))


def digest_of(job: Job) -> str | None:
    """Of the spec.json of the study as this machine sees it; None where it sees none."""
    path = job.study / SPEC
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def result_of(job: Job) -> bytes | None:
    """The result.json of the run as this machine sees it; None where it sees none."""
    path = job.folder / RESULT
    return path.read_bytes() if path.exists() else None


def late(deadline: float) -> bool:
    """Whether that time of the monotonic clock has passed."""
    return time.monotonic() > deadline


def _check(job: Job, digest: str) -> None:
    """ValueError unless the study's folder is that of the machine that started it."""
    deadline = time.monotonic() + SEEN_SECONDS
    while digest_of(job) != digest:
        if late(deadline):
            raise ValueError(
                f"out: {job.study} on {socket.gethostname()} is not the folder of this study; give --out a folder on "
                "storage that all machines of the cluster share"
            )
        time.sleep(POLL_SECONDS)
