"""How long a run's steps, evaluations and checkpoints take here: real ones, in as many processes as will run at a time.

Runs share memory bandwidth, caches and sometimes cores, so each is slower than alone: all processes take their steps at
the same time. A run that is too large for that is timed with fewer windows, shorter ones or fewer layers, in this
order, and scaled by its operations.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from plkernel.common.imports import TRUST
from plkernel.config.condition import Condition
from plkernel.dry_run.cost import FLOAT, MOMENTS, Cost, Flops, flops, without_backend
from plkernel.dry_run.probe import SHORTEST, STEPS, TYPICAL_BASE, Timing, on_random_bytes, wall_seconds
from plkernel.together.training import Batch
from plkernel.training.build import build, parameter_count

LARGEST_STEP = {"cpu": 5e10, "cuda": 1e14}
"""Operations of a step that is timed as it is, per thread: some seconds of a slow core, or one of a GPU."""
MOST_MEMORY = 0.5
"""Share of the memory at hand that the processes may take."""
HOLES = 1.5
"""Memory over size of small tensors where it was not measured: 1.4 to 1.6 for models of 0.3 to 2.5 M parameters."""


@dataclass(frozen=True)
class TimedRun:
    """The timing of one run, and what was timed for it.

    holes: memory over size of small tensors; size: what was timed, in words.
    """

    timing: Timing
    holes: float
    size: str


def calibrate(whole: Condition, cost: Cost, processes: int, available: float, device: str) -> TimedRun | None:
    """The timing of a condition's run with `processes` at once; None where not even one layer of it fits.

    available: memory at hand for all processes, in bytes. Raises OSError where a process fails.
    """
    room = MOST_MEMORY * available / processes - TYPICAL_BASE
    limit = LARGEST_STEP[device] * (whole.protocol.threads if device == "cpu" else 1)
    for part in smaller(whole):
        if _step(part, whole, cost) <= limit and _memory(part, whole, cost) <= room:
            return _scaled(measure(part, processes), part, whole, cost)
    return None


def smaller(condition: Condition) -> Iterator[Condition]:
    """The condition, then cheaper ones of the same width: half the batch, then the context, then the layers."""
    model, train = condition.model, condition.protocol
    while True:
        yield replace(condition, model=model, train=train)
        if train.batch > 1:
            train = train.model_copy(update={"batch": train.batch // 2})
        elif train.context > SHORTEST:
            train = train.model_copy(update={"context": max(SHORTEST, train.context // 2)})
        elif model.layers > 1 and not model.is_foreign:
            model = model.model_copy(update={"layers": model.layers // 2})
        else:
            return


def measure(condition: Condition, processes: int) -> Timing:
    """Medians over `processes` of the timing of a condition; OSError where one fails."""
    threads = str(condition.protocol.threads)
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    command = [sys.executable, "-m", "plkernel.dry_run.probe", *([TRUST] if condition.trusted else [])]
    request = json.dumps({"condition": condition.config, "started": time.time()})
    started = [subprocess.Popen(command, env=environment, text=True, **pipes) for _ in range(processes)]
    try:
        for process in started:
            _tell(process, request)
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        for process in started:
            _tell(process, "")
        rows = [asdict(_answer(process)) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    return Timing(**{field.name: median(row[field.name] for row in rows) for field in fields(Timing)})


def share_of_many(condition: Condition, alone: Timing, runs: int) -> Timing:
    """The timing of one of `runs` that are trained together, in this process; `alone` where that is no slower."""
    if runs == 1:
        return alone
    with tempfile.TemporaryDirectory() as folder:
        batch = Batch([on_random_bytes(condition, Path(folder) / str(number)) for number in range(runs)])

        def step_of_all() -> None:
            batch.step()
            for run in batch.runs:
                run.settle()  # waits for a GPU

        step_of_all()
        step = median(wall_seconds(step_of_all) for _ in range(STEPS))
    return alone if step >= runs * alone.step else replace(alone, start=alone.start / runs, step=step / runs)


def _tell(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has failed, and its answer says how
        process.stdin.write(f"{line}\n")
        process.stdin.flush()


def _answer(process: "subprocess.Popen[str]") -> Timing:
    printed, errors = process.communicate()
    if process.returncode:
        reason = "".join(errors.strip().splitlines()[-1:]) or f"exit {process.returncode}"
        raise OSError(f"a step could not be timed, since its process failed: {reason}")
    return Timing(**json.loads(printed.splitlines()[-1]))


def operations(condition: Condition) -> Flops:
    """Operations of one window; not of other people's models, which are counted as they run."""
    with torch.device("meta"):
        return flops(build(without_backend(condition)).config, condition.protocol.context)


def _window(part: Condition, whole: Condition, cost: Cost) -> Flops:
    """Operations of one window of a part of `whole`; of other people's models in proportion to its bytes."""
    if not part.model.is_foreign:
        return operations(part)
    share = part.protocol.context / whole.protocol.context
    return Flops(round(cost.flops.forward * share), round(cost.flops.training * share))


def _step(part: Condition, whole: Condition, cost: Cost) -> int:
    return part.protocol.batch * _window(part, whole, cost).training


def _memory(part: Condition, whole: Condition, cost: Cost) -> float:
    """About the memory of a part: what the parameters take, and of the rest its share of bytes and layers."""
    per_parameter = FLOAT * (2 + MOMENTS)
    volumes = [c.protocol.batch * c.protocol.context * c.model.layers for c in (part, whole)]
    rest = HOLES * (cost.tensor_bytes - per_parameter * cost.parameters) * volumes[0] / volumes[1]
    return per_parameter * parameter_count(part) + rest


def _scaled(timing: Timing, part: Condition, whole: Condition, cost: Cost) -> TimedRun:
    """What was measured of a part, for the whole: by operations, and by parameters for the update and checkpoint."""
    if part == whole:
        small = cost.tensor_bytes - cost.large_bytes
        measured = (timing.peak_bytes - timing.base_bytes - cost.large_bytes) / small if timing.peak_bytes else HOLES
        return TimedRun(timing, max(1.0, measured), "the run itself")
    share = parameter_count(whole) / parameter_count(part)
    update, window = timing.update * share, _window(whole, whole, cost)
    larger = replace(
        timing,
        step=update + max(0.0, timing.step - timing.update) * _step(whole, whole, cost) / _step(part, whole, cost),
        update=update,
        evaluation=timing.evaluation * window.forward / _window(part, whole, cost).forward,
        checkpoint=timing.checkpoint * share,
        peak_bytes=0.0,
        gpu_bytes=0.0,
    )
    train, layers = part.protocol, part.model.layers
    return TimedRun(larger, HOLES, f"a part of it (batch {train.batch}, context {train.context}, layers {layers})")
