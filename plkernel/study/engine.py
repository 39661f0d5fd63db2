"""Engines, which train the runs of a study: their protocol, and processes of this machine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from plkernel.common.cli import MARK, TRUST
from plkernel.common.environment import COMMAND, command_line
from plkernel.common.files import CONFIG, LOG, refuse_links, run_folder, save_json
from plkernel.config.condition import Condition
from plkernel.config.spec import Spec
from plkernel.training.curves import LoggerName

POLL_SECONDS = 0.2
"""Between two looks at runs that are trained."""
ASK_AGAIN_SECONDS = 10.0
"""After this time a run that is to stop is asked again: one that only starts may not hear."""
MAIN = "__main__"
"""Name of the module of a program, which no other process can import."""
FIND = (
    "import sys; from importlib.util import find_spec;"
    " print(*(name for name in sys.argv[1:] if find_spec(name) is None))"
)
"""A program that prints those of its arguments that are no modules or packages."""


@dataclass(frozen=True)
class Job:
    """A run to be trained: an arm at a seed of the study in folder `study`.

    device   its type, 'cpu' or 'cuda'
    config   of the run (`Task.config`); a process that resolves to another one refuses to train
    trusted  the user has consented to the code that it names, which is written to no file
    logger   also receives the scalars of its curves
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


class LeftToQueueError(Exception):
    """The runs of a study go on without this process; the message says how to collect them."""


def start_process(
    job: Job, environment: Mapping[str, str], prepare: Callable[[], None] | None = None
) -> subprocess.Popen[bytes]:
    """Train `job` in a process that prints to log.txt in the folder of the run.

    prepare: is called in the new process, before it begins. The process ends, saved, with this one.
    Raises ValueError where a file of the folder is a link.
    """
    refuse_links(job.folder.parent, job.folder, *job.folder.glob("*"))
    job.folder.mkdir(parents=True, exist_ok=True)
    config = job.folder / CONFIG
    threads = str(job.threads)
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
            preexec_fn=prepare,
        )


def check_found(code: Mapping[str, str]) -> None:
    """Raise ValueError for code that a process of its own does not find; nothing is imported.

    code: options of a spec by the names of code, module:attribute, that they hold.
    """
    packages = {name: name.partition(MARK)[0].partition(".")[0] for name in code}
    asked = sorted(set(packages.values()) - {MAIN})
    missing = {MAIN}
    if asked:
        command = [sys.executable, "-c", FIND, *asked]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        missing.update(printed.split())
    for name, package in packages.items():
        if package in missing:
            raise ValueError(
                f"{code[name]} must name code that a process of its own finds, as every run is one,"
                f" got {name!r}; have its module in the working folder, or in one of PYTHONPATH"
            )


class Engine(Protocol):
    """Trains the runs of a study that it is given, some at a time.

    What it has to know of a run is in its job, and the folder of the run says how it ended: an
    engine may train in processes, on other machines or in a queue.
    """

    def device(self, condition: Condition) -> str:
        """Return the type of device of its runs, 'cpu' or 'cuda'; ValueError without one."""

    def room(self, spec: Spec, device: str) -> int:
        """Return the number of runs of the spec that can be trained at a time now.

        With 0 the study waits until there is room.
        """

    def start(self, job: Job) -> None:
        """Begin a run, or go on with it, and return at once."""

    def ended(self) -> list[Job]:
        """Return the runs that have ended since the last call, well or not, each once."""

    def stop(self) -> None:
        """Have every run save and end, and wait for them; called at the end of a study too."""


@dataclass(frozen=True)
class Worker:
    """A process that trains a run, and the GPU that it sees, if any.

    logged: bytes of the log of the run before the process began
    """

    job: Job
    process: subprocess.Popen[bytes]
    gpu: str | None = None
    logged: int = 0


class LocalEngine:
    """An `Engine` that trains runs in processes of this machine.

    A run on a GPU sees one alone, that with the fewest runs on it.
    """

    def __init__(self) -> None:
        self.active: list[Worker] = []

    def device(self, condition: Condition) -> str:
        """Return the type of device of its runs, 'cpu' or 'cuda'; ValueError without one."""
        from plkernel.training.build import check_machine

        return check_machine(condition)

    def room(self, spec: Spec, device: str) -> int:
        """Return the number of GPUs, or of cores over the threads of a run; at least 1."""
        if device == "cuda":
            return max(1, len(visible_gpus()))
        return max(1, available_cores() // spec.train.threads)

    def start(self, job: Job) -> None:
        """Begin a run, or go on with it; OSError where the GPUs have gone."""
        environment = {**os.environ, COMMAND: command_line()}
        gpu = None
        if job.device == "cuda":
            gpu = self._idlest_gpu()
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        logged = _log_size(job)
        process = start_process(job, environment)
        self.active.append(Worker(job, process, gpu, logged))

    def _idlest_gpu(self) -> str:
        gpus = visible_gpus()
        if not gpus:
            raise OSError("no GPU is visible any more: runs that are left need one")
        in_use = [worker.gpu for worker in self.active]
        return min(gpus, key=in_use.count)

    def ended(self) -> list[Job]:
        """Return the runs whose processes have ended, well or not, since the last call."""
        done = []
        left = []
        for worker in self.active:
            code = worker.process.poll()
            if code is None:
                left.append(worker)
                continue
            done.append(worker.job)
            if code < 0:
                _note(worker.job, _signalled(-code))
            elif code > 0 and _log_size(worker.job) == worker.logged:
                _note(worker.job, f"ended with exit status {code} and printed nothing")
        self.active = left
        return done

    def stop(self) -> None:
        """Ask every run to save and end, and wait for them."""
        while self.active:
            if os.name == "posix":  # elsewhere Ctrl-C has reached them by itself
                for worker in self.active:
                    worker.process.send_signal(signal.SIGINT)
            # once all are asked, so that they save at the same time
            deadline = time.monotonic() + ASK_AGAIN_SECONDS
            for worker in self.active:
                with suppress(subprocess.TimeoutExpired):
                    worker.process.wait(max(0.0, deadline - time.monotonic()))
            self.ended()


def _log_size(job: Job) -> int:
    """Return the bytes of the log of a run, 0 without one."""
    try:
        return (job.folder / LOG).stat().st_size
    except OSError:
        return 0


def _signalled(number: int) -> str:
    """Return which signal has ended a process."""
    ended = f"ended by signal {number} ({signal.strsignal(number)})"
    if number == signal.SIGKILL:
        ended += "; the system kills processes so where memory is short"
    return ended


def _note(job: Job, ended: str) -> None:
    """Write to log.txt how the process of a run has ended, which could not say it itself."""
    with suppress(OSError), (job.folder / LOG).open("a") as log:
        log.write(f"{ended}\n")


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return visible.split(",")
    return [str(number) for number in range(torch.cuda.device_count())]
