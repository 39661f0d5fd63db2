"""Engines train the runs of a study: this machine or a Ray cluster, behind one interface; each run is a process."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from plkernel.records.layout import CONFIG, LOG, run_folder
from plkernel.spec.condition import Condition
from plkernel.spec.study import Spec
from plkernel.tools.files import open_own, refuse_links_of_run, save_json

EngineName = Literal["local", "ray"]


@dataclass(frozen=True)
class Job:
    """A run to be trained: an arm at a seed of the study in folder `study`, on a device of type `device`.

    config: what it resolves to (`Task.config`); a process that makes something else of it refuses to train.
    """

    study: Path
    arm: str
    seed: int
    device: str
    threads: int
    config: Mapping[str, Any] = field(compare=False, repr=False)

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

    def start(self, job: Job) -> None:
        """Begin a run, or go on with it."""

    def ended(self) -> list[Job]:
        """The runs that have ended, well or not, since this was last asked."""

    def stop(self) -> None:
        """Ask every run to save and end, and wait for them."""


def start_process(job: Job, environment: Mapping[str, str], directory: Path | None = None) -> subprocess.Popen[bytes]:
    """Train `job` in a process of its own that ends, saved, with this one; it prints to log.txt in the run's folder."""
    refuse_links_of_run(job.folder)
    job.folder.mkdir(parents=True, exist_ok=True)
    if not (job.folder / CONFIG).exists():
        save_json(job.folder / CONFIG, job.config)
    threads = str(job.threads)
    with os.fdopen(open_own(job.folder / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "plkernel.run", str(job.folder / CONFIG), "--stop-with", str(os.getpid())],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env={**environment, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
            cwd=directory,
            start_new_session=True,  # Ctrl-C reaches the runs once, through stop()
        )
