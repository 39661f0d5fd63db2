"""Costs of runs: their wall time, the bytes they read in it, and hours of cores."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from plkernel.records.layout import SPEC, TUNING
from plkernel.records.study import Run, Study, read_study

HOUR = 3600.0


@dataclass(frozen=True)
class ArmCost:
    """Of a number of finished runs.

    seconds           mean wall time of a run, its evaluations included
    bytes_per_second  training bytes read in all, by all seconds; None for runs that took no time
    hours             of all runs together
    core_hours        hours times threads, of runs on a CPU; None where one was on a GPU or tells no threads
    """

    runs: int
    seconds: float
    bytes_per_second: float | None
    hours: float
    core_hours: float | None


def cost_of(runs: Iterable[Run]) -> ArmCost | None:
    """The cost of the finished ones of `runs`; None where there is none. Runs that failed or diverged tell no time."""
    ended = [(run, run.result) for run in runs if run.result is not None]
    if not ended:
        return None
    seconds = sum(result.seconds for _, result in ended)
    cores = [_core_seconds(run, result.seconds) for run, result in ended]
    known = [one for one in cores if one is not None]
    return ArmCost(
        runs=len(ended),
        seconds=fmean(result.seconds for _, result in ended),
        bytes_per_second=sum(result.bytes for _, result in ended) / seconds if seconds > 0 else None,
        hours=seconds / HOUR,
        core_hours=sum(known) / HOUR if len(known) == len(cores) else None,
    )


def search_cost(study: Study) -> ArmCost | None:
    """The cost of a study's search for learning rates; None where there was none."""
    folder = study.folder / TUNING
    return cost_of(read_study(folder).runs) if (folder / SPEC).exists() else None


def hardware(runs: Sequence[Run]) -> dict[str, int]:
    """How many of the finished runs were made on which machine, in words: processor or GPU, and threads."""
    found: dict[str, int] = {}
    for run in runs:
        name = _machine(run)
        if run.result is not None and name:
            found[name] = found.get(name, 0) + 1
    return found


def _machine(run: Run) -> str:
    facts, threads = run.environment.get("hardware") or {}, run.environment.get("threads")
    processor = str(facts.get("gpu") or facts.get("cpu") or "")
    return f"{processor}, {threads} {'thread' if threads == 1 else 'threads'}" if processor and threads else processor


def _core_seconds(run: Run, seconds: float) -> float | None:
    threads = run.environment.get("threads")
    on_gpu = (run.environment.get("hardware") or {}).get("gpu")
    return seconds * threads if isinstance(threads, int) and not on_gpu else None
