"""The engine trains the runs of a study, each in a process of its own, whose state is in its folder
alone.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plkernel.common.cli import TRUST
from plkernel.common.environment import COMMAND, command_line
from plkernel.common.files import CONFIG, LOG, refuse_links, run_folder, save_json
from plkernel.config.condition import Condition
from plkernel.config.study import Spec
from plkernel.training.curves import LoggerName

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Job:
    """A run to be trained: an arm at a seed of the study in folder `study`, on a device of type
    `device`.

    config: of the run (`Task.config`); a process that resolves to another one refuses to train.
    trusted: the user has consented to the code that it names, which is written to no file. logger:
    also receives the scalars of its curves.
    """

    study: Path
    arm: str
    seed: int
    device: str
    threads: int
    config: Mapping[str, Any] = field(compare=False, repr=False)
    trusted: bool = False
    logger: LoggerName | None = None

    @property
    def name(self) -> str:
        return f"{self.arm} seed {self.seed}"

    @property
    def folder(self) -> Path:
        return run_folder(self.study, self.arm, self.seed)


def start_process(job: Job, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Train `job` in a process that prints to log.txt in the folder of the run, and ends, saved,
    with this one.
    """
    refuse_links(job.folder.parent, job.folder, *job.folder.glob("*"))
    job.folder.mkdir(parents=True, exist_ok=True)
    config, threads = job.folder / CONFIG, str(job.threads)
    if not config.exists():
        save_json(config, job.config)
    command = [sys.executable, "-m", "plkernel.run", str(config), "--stop-with", str(os.getpid())]
    command += ["--code-tried"]  # by the study, before it began
    if job.logger:
        command += ["--logger", job.logger]
    if job.trusted:
        command += [TRUST]
    with (job.folder / LOG).open("ab") as log:
        return subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env={**environment, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
            start_new_session=True,  # Ctrl-C reaches the runs once, through stop()
        )


class Engine:
    """Trains runs in processes of this machine; a run on a GPU sees the one with the fewest runs on
    it.

    Only the folder of a run says how it ended.
    """

    def __init__(self) -> None:
        self.active: list[
            tuple[Job, str | None, subprocess.Popen[bytes]]
        ] = []  # with the GPU, and the process

    def device(self, condition: Condition) -> str:
        """Return the type of device of its runs, 'cpu' or 'cuda'; ValueError where there is
        none.
        """
        from plkernel.training.build import check_machine

        return check_machine(condition)

    def room(self, spec: Spec, device: str) -> int:
        """Return the number of runs of the spec that can be trained at a time now."""
        if device == "cuda":
            return len(visible_gpus())
        cores = (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
        return max(1, cores // spec.train.threads)

    def start(self, job: Job) -> None:
        """Begin a run, or go on with it."""
        environment, gpu = {**os.environ, COMMAND: command_line()}, None
        if job.device == "cuda":
            environment["CUDA_VISIBLE_DEVICES"] = gpu = min(
                visible_gpus(), key=[g for _, g, _ in self.active].count
            )
        self.active.append((job, gpu, start_process(job, environment)))

    def ended(self) -> list[Job]:
        """Return the runs that have ended, well or not, since the last call."""
        done = [worker for worker in self.active if worker[2].poll() is not None]
        self.active = [worker for worker in self.active if worker not in done]
        return [job for job, _, _ in done]

    def stop(self) -> None:
        """Ask every run to save and end, and wait for them."""
        for _, _, process in (
            self.active if os.name == "posix" else ()
        ):  # elsewhere Ctrl-C has reached them by itself
            process.send_signal(signal.SIGINT)
        for _, _, process in self.active:  # once all are asked, so that they save at the same time
            process.wait()


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else list(map(str, range(torch.cuda.device_count())))
