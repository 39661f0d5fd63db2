"""Runs of a study on a Ray cluster: a task starts the same process as on one machine, and waits for it.

The state of a run is in its folder alone, so that any machine goes on where another stopped. The folder of the study
must therefore be on storage that all machines share, with locks that hold between them; every task checks that it is.
Every machine needs plkernel, and a copy of the corpora: one with other bytes refuses the run.

When the worker or the machine of a run dies, or the run's process is killed, Ray gives the run to another, RETRIES
times at most. A process whose worker is gone saves and ends by itself; its folder stays locked until then, and the next
attempt waits for that. A run that fails by itself is not tried again.
"""

import hashlib
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from plkernel.common.environment import COMMAND, command_line
from plkernel.common.files import refuse_links
from plkernel.common.layout import LOCK, RESULT, SPEC
from plkernel.config.condition import Condition
from plkernel.config.study import Spec
from plkernel.study.engine import Job, start_process

CONNECT_SECONDS, POLL_SECONDS = 5.0, 0.2
SEEN_SECONDS = 60.0
"""How long a network file system may take to show on one machine what another has written."""
LOCK_SECONDS = 600.0
"""How long an attempt waits for the folder of a lost run."""
RETRIES = 3


@contextmanager
def connected(address: str | None = None) -> Iterator[Any]:
    """The module ray, connected to the cluster at `address`, else at $RAY_ADDRESS, else to the cores of this machine.

    Raises ValueError where Ray is not installed, OSError when no cluster answers.
    """
    try:
        import ray
    except ImportError:
        raise ValueError("engine 'ray': Ray is not installed; pip install \"plkernel[dist]\"") from None
    if ray.is_initialized():
        yield ray
        return
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
        yield ray
    finally:
        ray.shutdown()


def work(job: Job, digest: str | None, environment: dict[str, str], directory: Path) -> str | None:
    """Train `job` in a process of its own, on the machine of this task; when it is cancelled, the run is saved first.

    digest       of the spec.json in the folder of the study, to recognise the folder
    environment  what to add to that of this machine
    directory    where the command runs that started the study, as names of corpora may be relative to it

    Returns the digest of the run's result.json as seen here. Raises ValueError where the folder of the study is not on
    this machine, ConnectionError where the process was killed.
    """
    deadline = time.monotonic() + SEEN_SECONDS
    while digest_of(job.study / SPEC) != digest:
        if time.monotonic() > deadline:
            raise ValueError(
                f"out: {job.study} on {socket.gethostname()} is not the folder of this study; give --out a folder on "
                "storage that all machines of the cluster share"
            )
        time.sleep(POLL_SECONDS)
    refuse_links(job.folder.parent, job.folder, *job.folder.glob("*"))
    job.folder.mkdir(parents=True, exist_ok=True)
    with suppress(Timeout), FileLock(job.folder / LOCK, timeout=LOCK_SECONDS):
        pass
    process = start_process(job, {**os.environ, **environment}, directory if directory.is_dir() else None)
    try:
        while process.poll() is None:
            time.sleep(POLL_SECONDS)  # which an interrupt ends, unlike wait()
    except KeyboardInterrupt:  # the task is cancelled
        process.terminate()  # workers of Ray block SIGINT, and so do their children
        process.wait()
    if process.returncode < 0:
        raise ConnectionError(f"{job.name}: its process was ended by signal {-process.returncode}")
    return digest_of(job.folder / RESULT)


def digest_of(path: Path) -> str | None:
    """SHA-256 of a file; None where it does not exist."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


@dataclass
class RayEngine:
    """An `Engine` of tasks on the cluster that the module `ray` is connected to.

    A task takes train.threads cores, and a GPU where the cluster has any and train.device is not 'cpu'.
    """

    ray: Any
    active: dict[Any, Job] = field(default_factory=dict)
    """Runs by the reference of their task."""

    def device(self, condition: Condition) -> str:
        import torch

        from plkernel.training.build import check_machine

        train = condition.protocol
        gpus = self.ray.cluster_resources().get("GPU", 0)
        if train.device == "cuda" and not gpus:
            raise ValueError("train.device 'cuda': no machine of the cluster has a GPU: use 'cpu' or 'auto'")
        device = "cuda" if gpus and train.device != "cpu" else "cpu"
        if device == "cpu" or torch.cuda.is_available():
            check_machine(replace(condition, train=train.model_copy(update={"device": device})))
        return device

    def room(self, spec: Spec, device: str) -> int:
        room = 0
        for node in self.ray.nodes():
            if node["Alive"]:
                runs = int(node["Resources"].get("CPU", 0) // spec.train.threads)
                room += min(runs, int(node["Resources"].get("GPU", 0))) if device == "cuda" else runs
        return room

    def start(self, job: Job) -> None:
        options = {"num_cpus": job.threads, "num_gpus": int(job.device == "cuda")}
        task = self.ray.remote(max_retries=RETRIES, retry_exceptions=[ConnectionError], **options)(work)
        environment = {name: value for name, value in os.environ.items() if name.startswith("PLKERNEL_")}
        environment[COMMAND] = command_line()
        there = replace(job, study=job.study.absolute())
        self.active[task.remote(there, digest_of(job.study / SPEC), environment, Path.cwd())] = job

    def ended(self) -> list[Job]:
        references, jobs = list(self.active), []
        for reference in self.ray.wait(references, num_returns=len(references), timeout=0)[0] if references else ():
            jobs.append(job := self.active.pop(reference))
            try:
                result, deadline = self.ray.get(reference), time.monotonic() + SEEN_SECONDS
                while digest_of(job.folder / RESULT) != result and time.monotonic() < deadline:
                    time.sleep(POLL_SECONDS)
            except self.ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, ValueError):  # bad input
                    raise error.cause from None
                if not isinstance(error.cause, ConnectionError):
                    raise OSError(f"engine 'ray': a task failed, {error.cause}; every machine needs plkernel") from None
            except self.ray.exceptions.RayError:  # its worker was lost too often
                pass
        return jobs

    def stop(self) -> None:
        for reference in self.active:
            self.ray.cancel(reference)
        if self.active:
            self.ray.wait(list(self.active), num_returns=len(self.active))
