"""How many runs of a study go at a time on a GPU: measured, with 1, 2, 4 and 8 at once.

Small models leave a GPU idle between their launches, and runs beside each other fill it, until
memory or the GPU is full. Each count is timed with processes as a study starts them: steps on
random bytes, begun together. The number of all steps per second decides.
"""

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any, NamedTuple

from plkernel.common.children import end_with_parent
from plkernel.common.environment import available_memory, keep_memory
from plkernel.config.condition import Condition, from_config
from plkernel.config.spec import Spec
from plkernel.study.dry_run import on_random_bytes, peak_memory, random_training
from plkernel.study.engine import Engine, LocalEngine, visible_gpus
from plkernel.training.build import Prepared
from plkernel.training.graphs import CALLED
from plkernel.training.loop import Training

COUNTS = (1, 2, 4, 8)
"""Runs at a time that are tried."""
TIMING_SECONDS = 3.0
"""Of a timing, once all processes have made their first steps."""
GAIN = 1.1
"""Least gain of more runs at a time in steps per second, as a factor: less is within the spread."""
SHARE = 0.9
"""Of the free memory that runs may take together."""
FIRST = CALLED + 1
"""Steps before the timing: they compile, record a graph, and reach the peak of memory."""
STEPS_BETWEEN_WAITS = 8
"""Steps that are launched on a GPU before it is waited for."""
STARTED_WITHIN = 300.0
"""Seconds in which processes must have begun, compiled steps among them."""


class Timing(NamedTuple):
    """So many runs at a time: steps per second of them all, and the largest memory of one."""

    runs: int
    steps: float
    memory: float


def workers(spec: Spec, engine: Engine | None = None) -> int:
    """Runs at a time of a study: on a CPU one for each group of `train.threads` cores, on GPUs as
    many as measured on one of them, times their number.

    The arm with the most parameters is measured. Prints what was found.
    """
    engine = engine or LocalEngine()
    conditions = [spec.condition(arm) for arm in spec.arms]
    device = engine.device(conditions[0])
    if device == "cpu":
        return engine.room(spec, device)
    largest = max(conditions, key=lambda condition: Prepared.of(condition).parameters)
    available = available_memory(device) or math.inf
    found = chosen(lambda count: timing(largest, count), available)
    for one in found:
        print(f"{one.runs} at a time: {one.steps:.3g} steps/s, {one.memory / 1e9:.2f} GB each")
    return best(found).runs * len(visible_gpus())


def chosen(
    measure: Callable[[int], Timing | None], available: float, counts: Sequence[int] = COUNTS
) -> list[Timing]:
    """Timings of larger and larger counts, while each brings GAIN and the next has room.

    The last may bring less. A count that fails, None, ends them. available: bytes. Raises OSError
    where one run alone fails.
    """
    found: list[Timing] = []
    for count in counts:
        if found and count * found[-1].memory > SHARE * available:
            break
        one = measure(count)
        if one is None:
            break
        found.append(one)
        if len(found) > 1 and one.steps < GAIN * found[-2].steps:
            break
    if not found:
        raise OSError("workers auto: a run alone could not be timed; give a number")
    return found


def best(found: Sequence[Timing]) -> Timing:
    """The smallest count that no larger one beats by GAIN."""
    most = found[0]
    for one in found[1:]:
        if one.steps >= GAIN * most.steps:
            most = one
    return most


def timing(condition: Condition, count: int, seconds: float = TIMING_SECONDS) -> Timing | None:
    """Train `count` runs of a condition at a time; None where one of the processes fails."""
    batch = condition.protocol.batch
    smaller = on_random_bytes(condition, batch, most_evaluated=batch)
    context = get_context("spawn")
    barrier = context.Barrier(count)
    results = context.SimpleQueue()
    given = (smaller.config, condition.trusted, barrier, results, seconds)
    processes = [context.Process(target=train_for, args=given, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode != 0 for process in processes):
        return None
    rates, peaks = zip(*[results.get() for _ in processes], strict=True)
    return Timing(count, math.fsum(rates), max(peaks))


def steps_per_second(training: Training, seconds: float, queued: int) -> float:
    """The rate of steps over `seconds` or a little more, with a wait after `queued` of them."""
    steps = 0
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        for _ in range(queued):
            training.step()
        steps += queued
        training.settle()  # waits for a GPU
    return steps / (time.perf_counter() - begun)


def train_for(
    config: dict[str, Any], trusted: bool, barrier: Any, results: Any, seconds: float
) -> None:
    """Train in this process, timed from when all are ready; puts steps per second into `results`,
    and bytes at the peak.
    """
    end_with_parent()
    keep_memory()
    try:
        prepared = Prepared.of(from_config(config, trusted))
        with tempfile.TemporaryDirectory() as name:
            training = random_training(prepared, Path(name))
            for _ in range(FIRST):
                training.step()
            training.settle()
            barrier.wait(STARTED_WITHIN)
            on_gpu = training.device.type == "cuda"
            rate = steps_per_second(training, seconds, STEPS_BETWEEN_WAITS if on_gpu else 1)
            results.put((rate, peak_memory(training)))
    except BaseException:
        with suppress(BrokenBarrierError):
            barrier.abort()  # the others wait for nothing
        raise
