"""Engines train the runs of a study, each in a process of its own: on this machine, or on a Ray cluster.

The state of a run is in its folder alone, so that any machine goes on where another stopped. On a cluster a task starts
the same process and waits for it, without torch. The folder of the study must be on storage that all machines share,
with locks that hold between them; every machine needs plkernel and a copy of the corpora. When a worker or a machine
dies, Ray gives the run to another; the run's process notices, saves and ends by itself.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from plkernel.common.cli import TRUST
from plkernel.common.environment import COMMAND, command_line
from plkernel.common.files import CONFIG, LOG, SPEC, refuse_links, run_folder, save_json
from plkernel.config.condition import Condition
from plkernel.config.study import Spec
from plkernel.training.curves import LoggerName

EngineName = Literal["local", "ray"]
POLL_SECONDS = 0.2
CONNECT_SECONDS = 5.0
RETRIES = 3


@dataclass(frozen=True)
class Job:
    """A run to be trained: an arm at a seed of the study in folder `study`, on a device of type `device`.

    config: of the run (`Task.config`); a process that resolves to another one refuses to train. trusted: the user has
    consented to the code that it names, which is written to no file. logger: also receives the scalars of its curves.
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
            [*command, *([TRUST] if job.trusted else []), *(["--logger", job.logger] if job.logger else [])],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env={**environment, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
            cwd=directory,
            start_new_session=True,  # Ctrl-C reaches the runs once, through stop()
        )


class LocalEngine:
    """Trains runs in processes of this machine; a run on a GPU sees the one with the fewest runs on it.

    Only the folder of a run says how it ended.
    """

    def __init__(self) -> None:
        self.active: list[tuple[Job, str | None, subprocess.Popen[bytes]]] = []  # with the GPU, and the process

    def device(self, condition: Condition) -> str:
        """Return the type of device of its runs, 'cpu' or 'cuda'; ValueError where there is none."""
        from plkernel.training.build import check_machine

        return check_machine(condition)

    def room(self, spec: Spec, device: str) -> int:
        """Return the number of runs of the spec that can be trained at a time now."""
        if device == "cuda":
            return len(visible_gpus())
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, cores // spec.train.threads)

    def start(self, job: Job) -> None:
        """Begin a run, or go on with it."""
        environment, gpu = {**os.environ, COMMAND: command_line()}, None
        if job.device == "cuda":
            environment["CUDA_VISIBLE_DEVICES"] = gpu = min(visible_gpus(), key=[g for _, g, _ in self.active].count)
        self.active.append((job, gpu, start_process(job, environment)))

    def ended(self) -> list[Job]:
        """Return the runs that have ended, well or not, since the last call."""
        done = [worker for worker in self.active if worker[2].poll() is not None]
        self.active = [worker for worker in self.active if worker not in done]
        return [job for job, _, _ in done]

    def stop(self) -> None:
        """Ask every run to save and end, and wait for them."""
        for _, _, process in self.active if os.name == "posix" else ():  # elsewhere Ctrl-C has reached them by itself
            process.send_signal(signal.SIGINT)
        for _, _, process in self.active:  # once all are asked, so that they save at the same time
            process.wait()


class RayEngine(LocalEngine):
    """Trains runs in tasks of the cluster that the module `ray` is connected to.

    A task takes train.threads cores, and a GPU where the cluster has any and train.device is not 'cpu'.
    """

    def __init__(self, ray: Any) -> None:
        self.ray, self.tasks = ray, dict[Any, Job]()

    def device(self, condition: Condition) -> str:
        train, gpus = condition.protocol, self.ray.cluster_resources().get("GPU", 0)
        if train.device == "cuda" and not gpus:
            raise ValueError("train.device 'cuda': no machine of the cluster has a GPU: use 'cpu' or 'auto'")
        if gpus and train.device != "cpu":
            return "cuda"
        return super().device(replace(condition, train=train.model_copy(update={"device": "cpu"})))

    def room(self, spec: Spec, device: str) -> int:
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        places = [int(node.get("CPU", 0) // spec.train.threads) for node in nodes]
        if device == "cuda":
            places = [min(place, int(node.get("GPU", 0))) for place, node in zip(places, nodes, strict=True)]
        return sum(places)

    def start(self, job: Job) -> None:
        options = {"num_cpus": job.threads, "num_gpus": int(job.device == "cuda"), "max_retries": RETRIES}
        task = self.ray.remote(retry_exceptions=[ConnectionError], **options)(work)
        environment = {name: value for name, value in os.environ.items() if name.startswith("PLKERNEL_")}
        there = replace(job, study=job.study.absolute())
        self.tasks[task.remote(there, {**environment, COMMAND: command_line()}, Path.cwd())] = job

    def ended(self) -> list[Job]:
        references = list(self.tasks)
        done = self.ray.wait(references, num_returns=len(references), timeout=0)[0] if references else []
        for reference in done:
            try:
                self.ray.get(reference)
            except self.ray.exceptions.RayTaskError as error:
                if not isinstance(error.cause, ConnectionError):
                    needs = "every machine needs plkernel, and the folder of the study on storage that all share"
                    raise OSError(f"engine 'ray': a task failed, {error.cause}; {needs}") from None
            except self.ray.exceptions.RayError:  # its worker was lost too often
                pass
        return [self.tasks.pop(reference) for reference in done]

    def stop(self) -> None:
        for reference in self.tasks:
            self.ray.cancel(reference)
        if self.tasks:
            self.ray.wait(list(self.tasks), num_returns=len(self.tasks))


def work(job: Job, environment: dict[str, str], directory: Path) -> None:
    """Train `job` in a process on the machine of this task; a cancelled run is saved first.

    directory: where the study was started. Raises FileNotFoundError where the folder of the study is not on this
    machine, ConnectionError where the process was killed.
    """
    if not (job.study / SPEC).exists():
        raise FileNotFoundError(f"{job.study} is no study on {socket.gethostname()}")
    process = start_process(job, {**os.environ, **environment}, directory if directory.is_dir() else None)
    try:
        while process.poll() is None:
            time.sleep(POLL_SECONDS)  # which an interrupt ends, unlike wait()
    except KeyboardInterrupt:  # the task is cancelled
        process.terminate()  # workers of Ray block SIGINT, and so do their children
        process.wait()
    if process.returncode < 0:
        raise ConnectionError(f"{job.name}: its process was ended by signal {-process.returncode}")


@contextmanager
def opened(name: EngineName = "local", address: str | None = None) -> Iterator[LocalEngine]:
    """Yield the engine of that name; address: of a Ray cluster, else $RAY_ADDRESS, else Ray is started here.

    Raises ValueError where Ray is not installed, OSError when no cluster answers.
    """
    if name == "local":
        yield LocalEngine()
        return
    try:
        import ray
    except ImportError:
        raise ValueError("engine 'ray': Ray is not installed; pip install \"plkernel[dist]\"") from None
    option = "RAY_ADDRESS" if address is None else "ray_address"
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    host, _, port = address.rpartition("/")[2].rpartition(":")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        if port.isdigit():  # where nothing answers Ray itself would wait many minutes
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        ray.init(address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError) as error:  # e.g. another version of Ray or Python there
        raise OSError(f"{option}={address}: no cluster answers ({error}); leave it out to stay here") from None
    try:
        yield RayEngine(ray)
    finally:
        ray.shutdown()


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else list(map(str, range(torch.cuda.device_count())))
