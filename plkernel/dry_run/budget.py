"""How long runs take, from the time of a step: of one run under its budget, and of many, so many at a time."""

import heapq
from collections.abc import Sequence

from plkernel.dry_run.probe import Timing
from plkernel.spec.train import TrainSpec


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
