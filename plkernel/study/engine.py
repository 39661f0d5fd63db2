"""Engines train the runs of a study: this machine or a Ray cluster, behind one interface; runs are processes."""

import os
import subprocess
import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from plkernel.common.files import open_own, refuse_links_of_run, save_json
from plkernel.common.imports import TRUST
from plkernel.config.condition import Condition
from plkernel.config.study import Spec
from plkernel.results.layout import CONFIG, LOG, run_folder

EngineName = Literal["local", "ray"]


@dataclass(frozen=True)
class Job:
    """A run to be trained: an arm at a seed of the study in folder `study`, on a device of type `device`.

    config: what it resolves to (`Task.config`); a process that makes something else of it refuses to train.
    shape, together: runs of equal shape may share a process and its steps, so many at most; None: it is trained alone.
    trusted: whether the person has consented to the code that it names; nothing of that is written to its folder.
    """

    study: Path
    arm: str
    seed: int
    device: str
    threads: int
    config: Mapping[str, Any] = field(compare=False, repr=False)
    shape: Hashable = field(default=None, compare=False, repr=False)
    together: int = 1
    trusted: bool = False

    @property
    def name(self) -> str:
        return f"{self.arm} seed {self.seed}"

    @property
    def folder(self) -> Path:
        return run_folder(self.study, self.arm, self.seed)


class Engine(Protocol):
    """Trains runs, several at a time. How a run ended is said by its folder and by nothing else."""

    def device(self, condition: Condition) -> str:
        """The type of device that its runs are trained on, 'cpu' or 'cuda'; ValueError where there is none."""

    def room(self, spec: Spec, device: str) -> int:
        """How many runs of the spec can be trained at a time now."""

    def together(self, condition: Condition, device: str) -> int:
        """How many runs of equal shape share a process and its steps at most; ValueError where that is no choice."""

    def start(self, *jobs: Job) -> None:
        """Begin a run, or go on with it; several: of equal shape, in one process."""

    def ended(self) -> list[Job]:
        """The runs that have ended, well or not, since this was last asked."""

    def stop(self) -> None:
        """Ask every run to save and end, and wait for them."""


def start_process(
    jobs: Sequence[Job], environment: Mapping[str, str], directory: Path | None = None
) -> subprocess.Popen[bytes]:
    """Train `jobs` in a process of their own that ends, saved, with this one.

    It prints to log.txt in the folder of the first; in those of the others log.txt says so.
    """
    for job in jobs:
        refuse_links_of_run(job.folder)
        job.folder.mkdir(parents=True, exist_ok=True)
        if not (job.folder / CONFIG).exists():
            save_json(job.folder / CONFIG, job.config)
    first, threads = jobs[0], str(jobs[0].threads)
    for job in jobs[1:]:
        with _log(job) as log:
            log.write(f"trained together with {first.name}: see {first.folder / LOG}\n".encode())
    with _log(first) as log:
        configs = [str(job.folder / CONFIG) for job in jobs]
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "plkernel.run",
                *configs,
                "--stop-with",
                str(os.getpid()),
                *([TRUST] if first.trusted else []),
            ],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env={**environment, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
            cwd=directory,
            start_new_session=True,  # Ctrl-C reaches the runs once, through stop()
        )


def _log(job: Job) -> IO[bytes]:
    """The log of a run, to add to."""
    return os.fdopen(open_own(job.folder / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")
