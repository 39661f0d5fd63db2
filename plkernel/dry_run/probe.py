"""One process that times a run here: steps, an evaluation and a checkpoint, on random bytes, in a folder that goes.

Started by plkernel.dry_run.timing. It is told a condition and when it was started, prints a line once everything
is compiled and built, starts on reading a line, and prints its `Timing`.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from plkernel.common.imports import TRUST
from plkernel.common.process_memory import anonymous_bytes, keep_memory, peak_anonymous, ready
from plkernel.config.condition import Condition, from_config
from plkernel.config.corpus import CorpusSpec
from plkernel.data.corpora import Corpus, Splits
from plkernel.training.evaluate import diagnose
from plkernel.training.folder import RunFolder
from plkernel.training.loop import Task
from plkernel.training.loop import Training

STEPS = 3
SECONDS = 8.0
"""No further step begins after this many seconds of steps, of which there are two at least."""
SHORTEST = 64
"""Bytes of a window below which time is no longer spent on what the operations are."""
TYPICAL_BASE = 450e6
"""Anonymous memory of a worker without its tensors, where the system does not tell."""


@dataclass(frozen=True)
class Timing:
    """What was measured, at the size that was measured; medians over the processes.

    start       seconds from the start of a process to its first evaluation, the reading of a command line left out
    step        seconds of an optimiser step, `update` of which clip gradients and move parameters
    evaluation  seconds of one window of an evaluation
    checkpoint  seconds of the rest of an evaluation: rows, curves, checkpoint
    base_bytes  anonymous memory of a process that has everything loaded, and hardly a tensor
    peak_bytes  the most anonymous memory it had; 0 where the system does not tell
    gpu_bytes   the most memory that torch reserved on a GPU; 0 on a CPU
    """

    start: float
    step: float
    update: float
    evaluation: float
    checkpoint: float
    base_bytes: float
    peak_bytes: float
    gpu_bytes: float


def _work(request: dict[str, Any], trusted: bool) -> Timing:
    """Measure in this process: everything once on a small window, then the sizes of the condition."""
    condition = from_config(request["condition"], trusted)
    with tempfile.TemporaryDirectory() as folder:
        tiny = condition.protocol.model_copy(update={"batch": 1, "context": SHORTEST, "eval_windows": 1})
        layer = condition.model.model_copy(update={} if condition.model.is_foreign else {"layers": 1})
        warm = on_random_bytes(replace(condition, train=tiny, model=layer), Path(folder) / "warm")
        warm.evaluate()
        warm.step()
        base = anonymous_bytes("self") or TYPICAL_BASE
        training = on_random_bytes(condition, Path(folder) / "real")
        start = time.time() - request["started"]
        training.evaluate()  # first, as in a run: it has the heap grow as it does there
        ready()
        return _timed(training, start, base)


def on_random_bytes(condition: Condition, folder: Path) -> Training:
    """A run on random bytes in `folder`."""
    train = condition.protocol
    windows, context = min(train.eval_windows, train.batch), train.context
    data = np.random.default_rng(0).integers(0, 256, 4 * windows * (context + 1), np.uint8)
    corpus = Corpus("random", "random", folder, data.size, "", 1)
    condition = replace(
        condition, train=train.model_copy(update={"eval_windows": windows}), corpus=CorpusSpec(name="random")
    )
    folder.mkdir()
    return Training(Task(condition, 0, corpus, Splits(data, data, data), RunFolder(folder)))


def _timed(training: Training, start: float, base: float) -> Timing:
    """Steps until there are enough or SECONDS are over, then an update and an evaluation."""
    begin = time.perf_counter()
    steps: list[float] = []
    while len(steps) < 1 + STEPS and (len(steps) < 2 or time.perf_counter() - begin < SECONDS):
        steps.append(wall_seconds(lambda: _step(training)))
    update = wall_seconds(lambda: _update(training))
    validation = training.validation
    whole = wall_seconds(training.evaluate)
    passing = wall_seconds(lambda: diagnose(training.model, validation, training.train.batch, training.device))
    gpu = _reserved() if training.device.type == "cuda" else 0.0
    evaluation, checkpoint = passing / len(validation), max(0.0, whole - passing)
    return Timing(start, median(steps[1:]), update, evaluation, checkpoint, base, peak_anonymous(), gpu)


def wall_seconds(call: Callable[[], Any]) -> float:
    """Of one call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _step(training: Training) -> None:
    training.step()
    training.settle()  # waits for a GPU


def _update(training: Training) -> None:
    """What a step does once its gradients are there."""
    parameters = list(training.model.parameters())
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    torch.nn.utils.clip_grad_norm_(parameters, training.train.clip)
    training.optimizer.step()
    training.optimizer.zero_grad(set_to_none=True)
    float(parameters[0].detach().sum())  # waits for a GPU


def _reserved() -> float:
    return float(torch.cuda.max_memory_reserved())


if __name__ == "__main__":
    keep_memory()
    print(json.dumps(asdict(_work(json.loads(sys.stdin.readline()), TRUST in sys.argv[1:]))))
