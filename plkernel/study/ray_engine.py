"""Runs of a study on a Ray cluster: a task starts the same process as on one machine, and waits for it.

What a run has reached stands in its folder and nowhere else, so that any machine goes on where another stopped. The
folder of the study must therefore be on storage that all machines share, with locks that hold between them; that it is
shared, every task checks. Every machine needs plkernel, and the corpora: each keeps its own flat copy, and one whose
bytes differ refuses the run.

Lost machines. When the worker or the machine that had a run dies, or the run's process is killed, the run is given to
another, three times at most. A process whose worker is gone saves and ends by itself; its folder stays locked until
then, or until the file system gives up a dead machine's lock, and the next attempt waits for that. A run that fails by
itself is not tried again.
"""

import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from plkernel.common.environment import COMMAND, command_line
from plkernel.config.condition import Condition
from plkernel.config.study import Spec
from plkernel.records.layout import LOCK
from plkernel.study.engine import Job
from plkernel.study.ray_task import SEEN_SECONDS, End, digest_of, late, result_of, work
from plkernel.training.task import check_machine

CONNECT_SECONDS = 5.0
RETRIES = 3
"""How often a run is given to another worker after the one that had it died."""
LOCK_SECONDS = 600.0
"""How long the folder of a lost run is waited for."""


@dataclass(frozen=True)
class Attempt:
    """The `number`-th time, from 0, that a run is given to the cluster."""

    job: Job
    number: int


@dataclass
class RayEngine:
    """An `Engine` of tasks on the cluster that the module `ray` is connected to.

    A task takes the cores that train.threads says, and a GPU where the cluster has any and the spec does not say 'cpu'.
    """

    ray: Any
    under_way: dict[Any, Attempt] = field(default_factory=dict)
    unseen: dict[Job, tuple[End, float]] = field(default_factory=dict)
    """Runs that have ended elsewhere and do not look so from here yet, and until when that is waited for."""

    def device(self, condition: Condition) -> str:
        train = condition.protocol
        wanted, gpus = train.device, self.ray.cluster_resources().get("GPU", 0)
        if wanted == "cuda" and not gpus:
            raise ValueError("train.device 'cuda': no machine of the cluster has a GPU: use 'cpu' or 'auto'")
        device = "cuda" if gpus and wanted != "cpu" else "cpu"
        if device == "cpu" or torch.cuda.is_available():
            check_machine(replace(condition, train=train.model_copy(update={"device": device})))
        return device

    def room(self, spec: Spec, device: str) -> int:
        machines = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        cores = [int(machine.get("CPU", 0) // spec.train.threads) for machine in machines]
        gpus = [int(machine.get("GPU", 0)) for machine in machines]
        return sum(map(min, cores, gpus)) if device == "cuda" else sum(cores)

    def together(self, condition: Condition, device: str) -> int:
        wanted = condition.protocol.together
        if wanted not in ("auto", 1):
            raise ValueError(f"train.together {wanted}: on a Ray cluster every run is trained alone: leave it out")
        return 1

    def start(self, *jobs: Job) -> None:
        for job in jobs:
            self._submit(Attempt(job, 0))

    def ended(self) -> list[Job]:
        references = list(self.under_way)
        done = self.ray.wait(references, num_returns=len(references), timeout=0)[0] if references else []
        lost = [attempt.job for attempt in map(self._take, done) if attempt]
        seen = [job for job, (end, deadline) in self.unseen.items() if result_of(job) == end.result or late(deadline)]
        for job in seen:
            del self.unseen[job]
        return lost + seen

    def stop(self) -> None:
        for reference in self.under_way:
            self.ray.cancel(reference)
        if self.under_way:
            self.ray.wait(list(self.under_way), num_returns=len(self.under_way))

    def _submit(self, attempt: Attempt) -> None:
        job = attempt.job
        # Ray itself tries nothing again: it would not wait for the folder that the lost run may still hold.
        options = {"num_cpus": job.threads, "num_gpus": int(job.device == "cuda"), "max_retries": 0}
        environment = {name: value for name, value in os.environ.items() if name.startswith("PLKERNEL_")}
        patience = LOCK_SECONDS if attempt.number else 0.0
        there = replace(job, study=job.study.absolute())
        own = {**environment, COMMAND: command_line()}
        task = self.ray.remote(**options)(work)
        reference = task.remote(there, digest_of(job), own, Path.cwd(), there.folder / LOCK, patience)
        self.under_way[reference] = attempt

    def _take(self, reference: Any) -> Attempt | None:
        """Look at how a task has ended; gives the attempt back when it was the last that a lost run had."""
        attempt = self.under_way.pop(reference)
        try:
            end = self.ray.get(reference)
            if end.status >= 0:
                self.unseen[attempt.job] = end, time.monotonic() + SEEN_SECONDS
                return None
            reason = f"its process was ended by signal {-end.status}"
        except self.ray.exceptions.RayTaskError as error:
            raise failure(error) from None
        except self.ray.exceptions.RayError as error:
            reason = f"the worker that had it was lost ({type(error).__name__})"
        again = attempt.number < RETRIES
        remedy = f"tried again, {attempt.number + 1} of {RETRIES}" if again else "not tried again"
        tqdm.write(f"{attempt.job.name}: {reason}; {remedy}", file=sys.stderr)
        if not again:
            return attempt
        self._submit(Attempt(attempt.job, attempt.number + 1))
        return None


@contextmanager
def connected(address: str | None = None) -> Iterator[Any]:
    """The module ray, connected to the cluster at `address`, else at $RAY_ADDRESS, else to the cores of this machine.

    What was connected here is disconnected at the end, what was started, stopped. Raises ValueError where Ray is not
    installed, OSError when no cluster answers.
    """
    try:
        import ray
    except ImportError:
        raise ValueError("engine 'ray': Ray is not installed; pip install \"plkernel[dist]\"") from None
    if ray.is_initialized():
        yield ray
        return
    name = "RAY_ADDRESS" if address is None else "ray_address"
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if port.isdigit():  # Ray itself would wait many minutes for an answer
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        except OSError as error:
            raise OSError(f"{name}={address}: no cluster answers ({error}); leave it out to stay here") from None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        try:
            ray.init(address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except RuntimeError as error:  # another version of Ray or Python there, no room for Ray here
            raise OSError(f"engine 'ray': {error}") from None
        yield ray
    finally:
        ray.shutdown()


def failure(error: Any) -> Exception:
    """The error of a task in one line; bad input is raised as it was there."""
    if isinstance(error.cause, ValueError):
        return error.cause
    reason = str(error.cause).strip().splitlines()[-1:]
    return OSError(f"engine 'ray': a task failed, {''.join(reason)}; every machine needs plkernel")
