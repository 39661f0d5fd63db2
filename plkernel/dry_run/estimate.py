"""The whole estimate of a study: every distinct model counted and timed once, and the hours of all runs together."""

import heapq
from collections.abc import Iterator, Sequence
from itertools import chain

import torch

from plkernel.common.environment import available_memory
from plkernel.config.schema import TrainSpec
from plkernel.config.study import Spec
from plkernel.dry_run.cost import Cost, cost, shape_key
from plkernel.dry_run.probe import TYPICAL_BASE, Timing
from plkernel.dry_run.table import Forecast, Gpu, RunForecast
from plkernel.dry_run.timing import HOLES, TimedRun, calibrate
from plkernel.study.local_engine import default_workers
from plkernel.together.shape import describe

WITHOUT_TELLING = 2e9
"""Bytes of memory that are counted on where the system does not tell."""


def estimate(spec: Spec, workers: int | None = None, *, search: Spec | None = None, gpu: Gpu | None = None) -> Forecast:
    """What `spec` takes with `workers` runs at a time, by default as many as plkernel.experiment would start.

    Each distinct model takes some ten seconds, in which its steps are timed (plkernel.dry_run.timing), in a temporary
    folder; nothing else is written. No corpus is opened here: it is taken to have all the windows that are asked for.

    search: a study that is run before it, such as that of the learning rates
    gpu: what to assume where the spec asks for a GPU that is not here

    Raises OSError when a step cannot be timed.
    """
    present = torch.cuda.is_available()
    device = "cuda" if spec.train.device == "cuda" or (spec.train.device == "auto" and present) else "cpu"
    absent = device == "cuda" and not present
    workers = workers or default_workers(spec, max(1, torch.cuda.device_count()), device)
    meter = Meter(device, workers, None if absent else available_memory(device), (gpu or Gpu()) if absent else None)
    phases = [("study", spec)] if search is None else [("tuning", search), ("study", spec)]
    rows = {phase: list(meter.rows(phase, study)) for phase, study in phases}
    spans = [_span(study, rows[phase], workers) for phase, study in phases]
    hours = None if None in spans else sum(span for span in spans if span is not None) / 3600
    everything = tuple(chain.from_iterable(rows.values()))
    together = describe([spec.condition(arm) for arm in spec.arms], len(spec.seeds), device)
    return Forecast(spec.name, device, workers, everything, hours, meter.available, meter.gpu, together)


class Meter:
    """Counts and times each distinct model once."""

    def __init__(self, device: str, workers: int, available: float | None, gpu: Gpu | None) -> None:
        self.device, self.workers, self.available, self.gpu = device, workers, available, gpu
        self.timed: dict[str, TimedRun | None] = {}

    def rows(self, phase: str, spec: Spec) -> Iterator[RunForecast]:
        """A row for every group of arms that cost the same."""
        groups: dict[str, list[str]] = {}
        for arm in spec.arms:
            groups.setdefault(shape_key(spec.condition(arm)), []).append(arm)
        for arms in groups.values():
            yield self._row(phase, spec, tuple(arms))

    def _row(self, phase: str, spec: Spec, arms: tuple[str, ...]) -> RunForecast:
        train, arm = spec.train, arms[0]
        counted = cost(spec.condition(arm), half=self.device == "cuda")
        found = self._calibration(spec, arm, counted)
        timing = found.timing if found else None
        steps = steps_of(train, timing)
        total = None
        if steps is not None:
            total = steps * train.batch * counted.flops.training + windows_of(train, steps) * counted.flops.forward
        return RunForecast(
            phase=phase,
            arms=arms,
            runs=len(arms) * len(spec.seeds),
            parameters=counted.parameters,
            flops_per_byte=counted.flops.training / train.context,
            steps=steps,
            bytes=None if steps is None else steps * train.batch * train.context,
            flops=total,
            memory=self._memory(counted, found),
            seconds=None if steps is None or timing is None else seconds_of(train, timing, steps),
            timed=found.size if found else "nothing",
        )

    def _calibration(self, spec: Spec, arm: str, counted: Cost) -> TimedRun | None:
        if self.gpu is not None:
            return TimedRun(self.gpu.timing(counted, spec.train.batch), 1.0, "assumed")
        key = shape_key(spec.condition(arm), rough=True)
        if key not in self.timed:
            runs = len(spec.arms) * len(spec.seeds)
            processes = 1 if self.device == "cuda" else min(self.workers, runs)
            room = self.available or WITHOUT_TELLING
            self.timed[key] = calibrate(spec.condition(arm), counted, processes, room, self.device)
        return self.timed[key]

    def _memory(self, counted: Cost, found: TimedRun | None) -> float:
        if self.device == "cuda":
            return (found.timing.gpu_bytes if found else 0.0) or float(counted.tensor_bytes)
        base, holes = (found.timing.base_bytes, found.holes) if found else (TYPICAL_BASE, HOLES)
        return base + counted.resident(holes)


def _span(spec: Spec, rows: list[RunForecast], workers: int) -> float | None:
    """Seconds of all runs of a study."""
    seconds = {arm: row.seconds for row in rows for arm in row.arms}
    order = [seconds[arm] for _ in spec.seeds for arm in spec.arms]
    return None if None in order else makespan([each for each in order if each is not None], workers)


def steps_of(train: TrainSpec, timing: Timing | None) -> int | None:
    """Steps of a run; those that fit between its evaluations where the budget is minutes, None if nothing was timed.

    The minutes count from the first evaluation, and hold all but the last.
    """
    if train.total_steps is not None or timing is None:
        return train.total_steps
    assert train.minutes is not None
    evaluation = evaluation_seconds(train, timing)
    each = timing.step + evaluation / train.eval_every
    return max(1, round((60 * train.minutes - evaluation) / each))


def evaluations(train: TrainSpec, steps: int) -> int:
    """How many: one before the first step, one every eval_every steps, one after the last."""
    return 1 + -(-steps // train.eval_every)


def windows_of(train: TrainSpec, steps: int) -> int:
    """Windows that a run evaluates in all."""
    return evaluations(train, steps) * train.eval_windows + train.test_windows


def evaluation_seconds(train: TrainSpec, timing: Timing) -> float:
    """Of one evaluation with its checkpoint."""
    return train.eval_windows * timing.evaluation + timing.checkpoint


def seconds_of(train: TrainSpec, timing: Timing, steps: int) -> float:
    """Of a whole run, from the start of its process."""
    evaluating = evaluations(train, steps) * evaluation_seconds(train, timing)
    return timing.start + steps * timing.step + evaluating + train.test_windows * timing.evaluation


def makespan(seconds: Sequence[float], workers: int) -> float:
    """When the last of the runs ends, each of which starts, in order, as soon as a worker is free.

    >>> makespan([3.0, 1.0, 1.0, 2.0], 2)
    4.0
    """
    free = [0.0] * workers
    for each in seconds:
        heapq.heapreplace(free, free[0] + each)
    return max(free)
