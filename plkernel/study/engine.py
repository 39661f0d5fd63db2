"""Engines train the runs of a study, each in a process of its own: on this machine, or on a Ray cluster.

Nothing here loads torch before a device is asked for: workers of a cluster wait beside every run.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from plkernel.common.cli import TRUST
from plkernel.common.environment import COMMAND, command_line
from plkernel.common.files import refuse_links, save_json
from plkernel.common.layout import CONFIG, LOG, run_folder
from plkernel.config.condition import Condition
from plkernel.config.study import Spec

EngineName = Literal["local", "ray"]


@dataclass(frozen=True)
class Job:
    """A run to be trained: an arm at a seed of the study in folder `study`, on a device of type `device`.

    config: of the run (`Task.config`); a process that resolves to another one refuses to train. trusted: the user has
    consented to the code that it names, which is written to no file.
    """

    study: Path
    arm: str
    seed: int
    device: str
    threads: int
    config: Mapping[str, Any] = field(compare=False, repr=False)
    trusted: bool = False

    @property
    def name(self) -> str:
        return f"{self.arm} seed {self.seed}"

    @property
    def folder(self) -> Path:
        return run_folder(self.study, self.arm, self.seed)


class Engine(Protocol):
    """Trains runs, several at a time. Only the folder of a run says how it ended."""

    def device(self, condition: Condition) -> str:
        """The type of device of its runs, 'cpu' or 'cuda'; ValueError where there is none."""

    def room(self, spec: Spec, device: str) -> int:
        """Runs of the spec that can be trained at a time now."""

    def start(self, job: Job) -> None:
        """Begin a run, or go on with it."""

    def ended(self) -> list[Job]:
        """The runs that have ended, well or not, since the last call."""

    def stop(self) -> None:
        """Ask every run to save and end, and wait for them."""


def start_process(job: Job, environment: Mapping[str, str], directory: Path | None = None) -> subprocess.Popen[bytes]:
    """Train `job` in a process that prints to log.txt in the folder of the run, and ends, saved, with this one."""
    refuse_links(job.folder.parent, job.folder, *job.folder.glob("*"))
    job.folder.mkdir(parents=True, exist_ok=True)
    config, threads = job.folder / CONFIG, str(job.threads)
    if not config.exists():
        save_json(config, job.config)
    command = [sys.executable, "-m", "plkernel.run", str(config), "--stop-with", str(os.getpid())]
    with (job.folder / LOG).open("ab") as log:
        return subprocess.Popen(
            [*command, *([TRUST] if job.trusted else [])],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env={**environment, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
            cwd=directory,
            start_new_session=True,  # Ctrl-C reaches the runs once, through stop()
        )


@dataclass
class LocalEngine:
    """An `Engine` of processes of this machine; a run on a GPU sees the one with the fewest runs on it."""

    active: list[tuple[Job, str | None, subprocess.Popen[bytes]]] = field(default_factory=list)
    """Runs with the GPU that their CUDA_VISIBLE_DEVICES names, None on a CPU, and their process."""

    def device(self, condition: Condition) -> str:
        from plkernel.training.build import check_machine

        return check_machine(condition)

    def room(self, spec: Spec, device: str) -> int:
        return len(visible_gpus()) if device == "cuda" else max(1, cores() // spec.train.threads)

    def start(self, job: Job) -> None:
        environment, gpu = {**os.environ, COMMAND: command_line()}, None
        if job.device == "cuda":
            environment["CUDA_VISIBLE_DEVICES"] = gpu = min(visible_gpus(), key=[g for _, g, _ in self.active].count)
        self.active.append((job, gpu, start_process(job, environment)))

    def ended(self) -> list[Job]:
        done = [worker for worker in self.active if worker[2].poll() is not None]
        self.active = [worker for worker in self.active if worker not in done]
        return [job for job, _, _ in done]

    def stop(self) -> None:
        for _, _, process in self.active if os.name == "posix" else ():  # elsewhere Ctrl-C has reached them by itself
            process.send_signal(signal.SIGINT)
        for _, _, process in self.active:  # once all are asked, so that they save at the same time
            process.wait()


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else list(map(str, range(torch.cuda.device_count())))


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
