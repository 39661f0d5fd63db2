"""Slurm as the queue of a study, through submitit."""

import getpass
import math
import re
import shlex
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plkernel.common.cli import nearest, shortened
from plkernel.config.condition import Condition
from plkernel.study.queue import JOBS, SavedJob, stamp_of
from plkernel.study.queued import QueuedRun

NAME = "slurm"
MOST_TIMES = 100
"""Time limits that a run may reach, each followed by another job."""
ARRAY = 1000
"""Jobs of an array: one less than Slurm's default limit of indices."""
MINUTES = 60
"""Time limit of a job where none is given."""
OWN = {
    "nodes": "each run is one process on one node",
    "ntasks_per_node": "each run is one process on one node",
    "dependency": "runs do not wait for each other",
    "num_gpus": "submitit has replaced it by gpus_per_node",
    "additional_parameters": "give options of sbatch as --slurm.sbatch.NAME",
}
"""Parameters of submitit that a study cannot have, and why."""
# How the text of a parameter is read; others stay texts.
NUMBERS = (
    "array_parallelism",
    "cpus_per_gpu",
    "cpus_per_task",
    "gpus_per_node",
    "gpus_per_task",
    "signal_delay_s",
)
LISTS = ("setup", "teardown", "srun_args")
FLAGS = ("exclusive", "stderr_to_stdout", "use_srun")
GPUS = ("gpus_per_node", "gpus_per_task", "gres")
"""Parameters that ask for GPUs."""
FURTHER = "sbatch."
"""Before the name of an option of sbatch that submitit does not know."""
# days-hours, :minutes and :seconds behind them if given; else one to three numbers.
TIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<hours>\d+)(?::(?P<minutes>\d+))?(?::(?P<seconds>\d+))?"
    r"|(?P<plain>\d+(?::\d+){0,2}))"
)
ANSWER_SECONDS = 60.0
"""Patience with a command of Slurm."""


def minutes(text: str) -> int:
    """Return a time limit in whole minutes, rounded up, of one of sbatch's forms.

    These are minutes, minutes:seconds, hours:minutes:seconds, and days-hours with further parts.
    Raises ValueError for others, and for no time at all.

    >>> minutes("90"), minutes("1:30"), minutes("2:00:00"), minutes("1-12"), minutes("1-0:30")
    (90, 2, 120, 2160, 1470)
    """
    found = TIME.fullmatch(text)
    if found is None:
        raise ValueError(
            f"slurm.time must be minutes, hours:minutes:seconds or days-hours, got {text!r}"
        )
    if found["plain"]:
        parts = [int(part) for part in found["plain"].split(":")]
        # One or two numbers begin with minutes, three with hours.
        hours = parts.pop(0) if len(parts) == 3 else 0
        total = 60 * hours + parts[0] + (parts[1] / 60 if len(parts) > 1 else 0)
    else:
        hours = 24 * int(found["days"]) + int(found["hours"])
        total = 60 * hours + int(found["minutes"] or 0) + int(found["seconds"] or 0) / 60
    if total <= 0:
        raise ValueError(f"slurm.time must be above 0, got {text!r}")
    return math.ceil(total)


def parameters(options: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of submitit that options NAME=VALUE, or NAME, stand for.

    Raises ValueError for one that submitit does not have, has no value, or cannot be one of a
    study's.
    """
    values: dict[str, Any] = {}
    further: dict[str, Any] = {}
    for option in options:
        name, given, text = option.partition("=")
        value = text if given else None
        if name.startswith(FURTHER):
            target = further
            key = name.removeprefix(FURTHER)
            parsed: Any = True if value is None else value
        else:
            target = values
            key = name.replace("-", "_")
            parsed = _parsed(key, value)
        if key in target:
            raise ValueError(f"slurm.{name} must be given once, got it twice")
        target[key] = parsed
    if further:
        values["additional_parameters"] = further
    return values


def _parsed(name: str, text: str | None) -> Any:
    """Return the value of one parameter of submitit from its text."""
    valid = _known()
    if name in OWN:
        raise ValueError(f"slurm.{name} must be left out of a study: {OWN[name]}")
    if name not in valid:
        hint = nearest(name, valid - OWN.keys())
        raise ValueError(
            f"slurm.{name} must be a parameter of submitit; {hint} An option of sbatch that"
            f" submitit does not know is given as --slurm.{FURTHER}{name.replace('_', '-')}"
        )
    if text is None or text == "":
        if name in FLAGS:
            return True
        raise ValueError(f"slurm.{name} must have a value, got nothing")
    if name == "time":
        return minutes(text)
    if name in NUMBERS:
        if not text.isascii() or not text.isdigit():
            raise ValueError(f"slurm.{name} must be a whole number, got {text!r}")
        return int(text)
    if name in LISTS:
        return [text]
    if name in FLAGS and text.lower() in ("true", "false"):
        return text.lower() == "true"
    return text


def _known() -> set[str]:
    """Return the names of submitit's parameters for Slurm."""
    return set(submitit().SlurmExecutor._valid_parameters())


def submitit() -> Any:
    """Import submitit; ValueError with the install line where it is missing."""
    try:
        import submitit as library
    except ImportError:
        raise ValueError(
            f"engine '{NAME}': submitit is not installed; pip install \"plkernel[{NAME}]\""
        ) from None
    return library


@dataclass(frozen=True)
class SlurmQueue:
    """Slurm's queue of this user, as a `Queue`.

    folder   of the study; jobs have its name
    given    parameters of submitit
    at_once  runs at a time, None for as many as Slurm lets run
    """

    folder: Path
    given: Mapping[str, Any] = field(default_factory=dict)
    at_once: int | None = None
    name: str = NAME

    def __post_init__(self) -> None:
        submitit()
        for command in ("sbatch", "squeue", "srun", "scancel"):
            if shutil.which(command) is None:
                raise ValueError(
                    f"engine '{NAME}': no {command} on PATH; run the study where Slurm's commands"
                    " are, such as a login node, or with --engine local"
                )

    @property
    def asks_for_gpus(self) -> bool:
        """True where the parameters ask for GPUs."""
        further = self.given.get("additional_parameters") or {}
        if any(self.given.get(name) for name in GPUS):
            return True
        return any(name.startswith("gpus") or name == "gres" for name in further)

    def device(self, condition: Condition) -> str:
        """Return 'cuda' where the spec asks for it, or leaves it open and jobs ask for GPUs."""
        wanted = condition.protocol.device
        if wanted == "auto":
            return "cuda" if self.asks_for_gpus else "cpu"
        return wanted

    def submit(self, runs: Sequence[QueuedRun]) -> list[SavedJob]:
        """Submit runs of one study that need the same; OSError with what sbatch says if refused."""
        executor = submitit().SlurmExecutor(
            folder=(runs[0].job.study / JOBS).absolute(), max_num_timeout=MOST_TIMES
        )
        stamps = [stamp_of(run.job.folder) for run in runs]
        try:
            executor.update_parameters(**self._parameters(runs[0]))
            jobs = []
            with _ctrl_c_blocked():
                for first in range(0, len(runs), ARRAY):
                    jobs += executor.submit_array(list(runs[first : first + ARRAY]))
        except (submitit().core.utils.FailedJobError, OSError) as error:
            raise OSError(f"sbatch: {_last(str(error))}") from error
        return [
            SavedJob(job.job_id, NAME, f"{JOBS}/{job.paths.stderr.name}", before=stamp)
            for job, stamp in zip(jobs, stamps, strict=True)
        ]

    def _parameters(self, run: QueuedRun) -> dict[str, Any]:
        """Return the parameters of submitit for runs like this one."""
        values: dict[str, Any] = {
            "job_name": self.folder.absolute().name,
            "time": MINUTES,
            "cpus_per_task": run.job.threads,
        }
        if run.job.device == "cuda" and not self.asks_for_gpus:
            values["gpus_per_node"] = 1
        if self.at_once is not None:
            values["array_parallelism"] = self.at_once
        values |= self.given
        values["setup"] = [*_paths(), *self.given.get("setup", [])]
        # srun does not take the number of cores from sbatch, since Slurm 22.05
        cores = f"--cpus-per-task={values['cpus_per_task']}"
        values["srun_args"] = [cores, *self.given.get("srun_args", [])]
        return values

    def states(self) -> Mapping[str, str] | None:
        """Return the states of the user's jobs by id; None while Slurm does not answer.

        Behind the state of a job that waits stands why.
        """
        command = ["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%r"]
        command += ["--user", getpass.getuser()]
        try:
            told = subprocess.run(
                command, capture_output=True, text=True, check=True, timeout=ANSWER_SECONDS
            ).stdout
        except (subprocess.SubprocessError, OSError):
            return None
        states = {}
        for line in told.splitlines():
            name, _, rest = line.strip().partition("|")
            state, _, why = rest.partition("|")
            if state:
                tells_why = state == "PENDING" and why not in ("", "None")
                states[name] = f"{state} {why}" if tells_why else state
        return states

    def cancel(self, ids: Sequence[str]) -> None:
        """Cancel jobs; OSError with what scancel says, or where it does not answer."""
        try:
            subprocess.run(
                ["scancel", *ids],
                capture_output=True,
                text=True,
                check=True,
                timeout=ANSWER_SECONDS,
            )
        except subprocess.CalledProcessError as error:
            raise OSError(f"scancel: {_last(error.stderr)}") from error
        except subprocess.TimeoutExpired as error:
            raise OSError(
                f"scancel: no answer within {ANSWER_SECONDS:g} s; run the same command again"
            ) from error


@contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Block Ctrl-C in this thread and in sbatch, which inherits that, until the end of the block.

    A terminal sends it to sbatch too, and jobs of an sbatch that it ends may be in the queue.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _paths() -> list[str]:
    """Return the lines of a job's script that put this package on its path, if it needs them."""
    root = Path(__file__).resolve().parents[2]
    if root in (Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("platlib"))):
        return []
    return [f'export PYTHONPATH={shlex.quote(str(root))}"${{PYTHONPATH:+:$PYTHONPATH}}"']


def _last(text: str) -> str:
    """Return the last line that sbatch or scancel said of an error, else the last one."""
    lines = text.strip().splitlines()
    if not lines:
        return "no reason given"
    of_errors = [line for line in lines if "error" in line.lower()]
    last = of_errors[-1] if of_errors else lines[-1]
    return shortened(last, 300)
