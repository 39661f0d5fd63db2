"""Runs of a study on this machine, several processes at a time."""

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from plkernel.common.environment import COMMAND, command_line
from plkernel.config.condition import Condition
from plkernel.config.study import Spec
from plkernel.study.engine import Job, start_process
from plkernel.together.shape import count
from plkernel.training.build import check_machine


@dataclass
class Worker:
    """A process that trains runs; `gpu` is what its CUDA_VISIBLE_DEVICES names, None on a CPU."""

    jobs: Sequence[Job]
    gpu: str | None
    process: subprocess.Popen[bytes]


@dataclass
class LocalEngine:
    """An `Engine` of processes of this machine; a run on a GPU sees the one with the fewest runs on it."""

    active: list[Worker] = field(default_factory=list)

    def device(self, condition: Condition) -> str:
        return check_machine(condition).type

    def room(self, spec: Spec, device: str) -> int:
        return default_workers(spec, len(visible_gpus()) if device == "cuda" else 1, device)

    def together(self, condition: Condition, device: str) -> int:
        return count(condition.protocol, condition.model.dim, device)

    def start(self, *jobs: Job) -> None:
        environment, gpu = {**os.environ, COMMAND: command_line()}, None
        if jobs[0].device == "cuda":
            environment["CUDA_VISIBLE_DEVICES"] = gpu = self.idlest(visible_gpus())
        self.active.append(Worker(jobs, gpu, start_process(jobs, environment)))

    def ended(self) -> list[Job]:
        done = [worker for worker in self.active if worker.process.poll() is not None]
        self.active = [worker for worker in self.active if worker not in done]
        return [job for worker in done for job in worker.jobs]

    def stop(self) -> None:
        for worker in self.active if os.name == "posix" else ():  # elsewhere Ctrl-C has reached them by itself
            worker.process.send_signal(signal.SIGINT)
        # Waited for once all are asked, so that they save at the same time.
        for worker in self.active:
            worker.process.wait()

    def idlest(self, gpus: list[str]) -> str:
        """The one of `gpus` with the fewest runs on it."""
        busy = [worker.gpu for worker in self.active]
        return min(gpus, key=busy.count)


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else list(map(str, range(torch.cuda.device_count())))


def default_workers(spec: Spec, devices: int, kind: str) -> int:
    """One run per GPU; on a CPU as many as the cores allow with the spec's threads each."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return devices if kind == "cuda" else max(1, cores // spec.train.threads)
