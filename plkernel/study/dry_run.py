"""The price of a study before it is started: operations by count, time and memory from real steps.

Counted are multiplications and additions of products with matrices, as torch counts them, and of
the recurrences, but not of norms, activations and updates. A step that is too large to be timed is
timed with fewer windows and scaled.
"""

import heapq
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from plkernel.common.children import end_with_parent
from plkernel.common.cli import counted, text_table
from plkernel.common.corpus_names import is_recall
from plkernel.common.environment import available_memory, keep_memory, peak_anonymous
from plkernel.config.condition import Condition, from_config
from plkernel.config.resolved import ResolvedSpec
from plkernel.config.schema import CorpusSpec
from plkernel.context.measures import lengths
from plkernel.data import corpora
from plkernel.data.corpora import Corpus, Splits
from plkernel.results.measurements import windows_held
from plkernel.study.engine import Engine, LocalEngine
from plkernel.training.build import Prepared, build, started
from plkernel.training.evaluate import PLACES, next_byte_loss
from plkernel.training.folder import RunFolder
from plkernel.training.graphs import CALLED
from plkernel.training.loop import Task, Training
from plkernel.training.recall_task import RecallTask, times_of

OPERATIONS = {"scan": (2, 4), "wkv": (5, 11), "wkv7": (9, 19)}
"""Per channel and step, forward and backward; of wkv and wkv7 times the size of a head."""
GPU_FLOPS = 1e14
"""Assumed operations per second of a GPU that is not here: a third of the peak of a large one."""
TIMED_OPERATIONS = {"cpu": 2e10, "cuda": 1e14}
"""Operations of a step that is timed as it is: some seconds of a slow core, or one of a GPU."""
STEPS = 3
"""Steps that are timed, after the first ones, which compile."""
EVALUATED = 8
"""Batches of an evaluation that is timed, at most. With one, what every evaluation costs whatever
its size, such as the checkpoint, counts as the price of its few windows.
"""
FREE = {
    "dropout",
    "learning_rate",
    "weight_decay",
    "beta1",
    "beta2",
    "eps",
    "decay_multiplier",
    "decay_weight_decay",
    "decay_dtype",
    "warmup",
    "warmup_from",
    "schedule",
    "final_fraction",
    "clip",
}
"""Options of training that change what a step does, not what it costs. Dropout costs if there is
any.
"""
FREE_IN_MODEL = {"gain", "scaling_length"}
"""Options of a model that are a factor alone."""
Forecast = dict[str, Any]


class StepTimes(NamedTuple):
    """Costs of a run: seconds to start it, of a step and of a window, and bytes at the peak.

    peak_bytes: NaN where the system does not tell
    """

    start: float
    step: float
    window: float
    peak_bytes: float


def estimate(
    study: ResolvedSpec,
    workers: int | None = None,
    search: ResolvedSpec | None = None,
    engine: Engine | None = None,
) -> Forecast:
    """Estimate a study with `workers` runs at a time, by default as many as `engine` has room for.

    search: a study that is run before it, that of the learning rates. Raises OSError when a step
    cannot be timed.
    """
    spec = study.spec
    present = torch.cuda.is_available()
    wanted = spec.train.device
    device = "cuda" if wanted == "cuda" or (wanted == "auto" and present) else "cpu"
    local = device == "cpu" or present
    at_once = workers or (engine or LocalEngine()).room(spec, device)
    rows = _rows(study, "", device, local)
    before = [] if search is None else _rows(search, "tuning: ", device, local)
    return {
        "name": spec.name,
        "device": device,
        "workers": at_once,
        "rows": [*before, *rows],
        "seconds": sum(_elapsed(phase, at_once) for phase in (before, rows)),
        "available": available_memory(device) if local else None,
        "measured": local,
    }


def _elapsed(rows: Sequence[Forecast], at_once: int) -> float:
    """The seconds of all runs of rows, `at_once` at a time, each begun as soon as one has ended."""
    runs = sum(row["runs"] for row in rows)
    ends = [0.0] * max(1, min(at_once, runs))
    for row in rows:
        for _ in range(row["runs"]):
            heapq.heapreplace(ends, ends[0] + row["seconds"])
    return max(ends)


def _rows(study: ResolvedSpec, phase: str, device: str, local: bool) -> list[Forecast]:
    """Return a row for all arms of the same cost, whose names `phase` heads."""
    rows: dict[Any, Forecast] = {}
    windows: dict[Any, int] = {}
    for arm, condition in study.conditions.items():
        prepared = Prepared.of(condition)
        cost = _cost_key(prepared)
        place = (cost, condition.corpus)
        if place not in windows:
            windows[place] = evaluated_windows(condition)
        key = (cost, windows[place])
        if key not in rows:
            rows[key] = {"arms": [], "runs": 0, **priced(prepared, device, local)}
        rows[key]["arms"].append(f"{phase}{arm}")
        rows[key]["runs"] += len(study.spec.seeds)
    return list(rows.values())


def _cost_key(prepared: Prepared) -> str:
    """All options that the price of a run follows from but its corpus.

    That counts by the windows that it has a run evaluate.
    """
    condition = prepared.condition
    arm = condition.arm
    decisive = (
        prepared.parameters,
        condition.model.model_dump(exclude=FREE_IN_MODEL),
        condition.protocol.model_dump(exclude=FREE),
        condition.protocol.dropout > 0,
        arm.shape_on == "multiplier",
        arm.init,
    )
    return repr(decisive)


def priced(prepared: Prepared, device: str, local: bool) -> Forecast:
    """Return the price of one run: operations counted, seconds and memory of real steps.

    Where the device is not `local`, seconds are those of GPU_FLOPS, and memory is NaN, as it is
    where the system does not tell.
    """
    train = prepared.condition.protocol
    forward, training = operations(prepared)
    steps = train.total_steps
    windows = evaluated_windows(prepared.condition)
    flops = steps * train.batch * training + windows * forward
    seconds = flops / GPU_FLOPS
    memory = math.nan
    if local:
        limit = TIMED_OPERATIONS[device] * (train.threads if device == "cpu" else 1)
        batch = max(1, min(train.batch, int(limit / training)))
        times = timed_apart(prepared.condition, batch)
        whole = train.batch / batch
        seconds = times.start + steps * times.step * whole + windows * times.window
        memory = times.peak_bytes * whole
    return {
        "parameters": prepared.parameters,
        "steps": steps,
        "flops_per_byte": training / train.context,
        "flops": flops,
        "seconds": seconds,
        "memory": memory,
    }


def evaluated_windows(condition: Condition) -> int:
    """Return the number of windows that a run evaluates: in training, at its end, and in all tests.

    Those at the end are bounded by the validation text, as far as its size is known ahead. What a
    test reads in other lengths counts by its bytes.
    """
    train = condition.protocol
    section = condition.corpus
    size = corpora.size_ahead(section.name, **section.reading) or 0
    disjoint = windows_held(
        int(size * section.validation), train.context, of_recall=is_recall(section.name)
    )
    evaluations = 1 + math.ceil(train.total_steps / train.eval_every)
    final = min(train.final_windows, disjoint)
    return evaluations * train.eval_windows + final + train.test_windows + _tests_at_end(condition)


def _tests_at_end(condition: Condition) -> int:
    """Windows of the tests that follow the figures of validation and test text; none if not causal.

    Without the few that are read twice, to see whether predictions repeat.
    """
    train = condition.protocol
    patching = condition.model.patching
    if patching.size > 1 and patching.mode == "published":
        return 0
    task = RecallTask.of(condition)
    if task is not None:
        read = train.test_windows * sum(law.length for _, law in task.tests())
        return read // train.context
    cut = math.ceil(sum(lengths(train.context)) * train.truncation_windows / train.context)
    replaced = (1 + PLACES) * train.probe_windows
    times = times_of(train, None)
    along = 0
    if times > 1:
        by_position = times
        read_on = times
        anew = 2 * (times - 1)  # every half context
        along = (by_position + read_on + anew) * math.ceil(train.test_windows / times)
    return cut + replaced + along


def operations(prepared: Prepared) -> tuple[int, int]:
    """Operations of one window, forward alone and in training.

    Only a model of other people's code is really built.
    """
    # It loads Triton, which runs that are timed apart do without.
    from torch.utils.flop_counter import FlopCounterMode

    condition = prepared.condition
    context = condition.protocol.context
    bare = replace(condition, train=condition.protocol.model_copy(update={"backend": None}))
    forward, training = (
        FlopCounterMode(display=False, custom_mapping=_formulas()) for _ in range(2)
    )
    with nullcontext() if prepared.plan is None else FakeTensorMode():
        model = started(condition, 0) if prepared.plan is None else build(bare)
        windows = torch.zeros((1, context + 1), dtype=torch.int64)
        with forward, torch.no_grad():
            model(windows[:, :-1])
        with training:
            next_byte_loss(model, windows).backward()
    return forward.get_total_flops(), training.get_total_flops()


def _formulas() -> dict[Any, Callable[..., int]]:
    """Return the operations of every recurrence from the shapes of its arguments."""

    def of_scan(each: int, place: int, *shapes: Any, **_: Any) -> int:
        # Not the first argument: the decay may be one for all steps.
        channel_steps = math.prod(shapes[place])
        return each * channel_steps

    def of_heads(each: int, *shapes: Any, **_: Any) -> int:
        receptance = shapes[0]
        channel_steps = math.prod(receptance)
        head_size: int = receptance[-1]
        return each * channel_steps * head_size

    known: dict[Any, Callable[..., int]] = {}
    for name, (forward, backward) in OPERATIONS.items():
        run = getattr(torch.ops.plkernel, name)
        run_back = getattr(torch.ops.plkernel, f"{name}_backward")
        if name == "scan":
            known[run] = partial(of_scan, forward, 1)
            known[run_back] = partial(of_scan, backward, 2)
        else:
            known[run] = partial(of_heads, forward)
            known[run_back] = partial(of_heads, backward)
    return known


def timed_apart(condition: Condition, batch: int) -> StepTimes:
    """`time_steps` in a process of its own, with `batch` windows a step; OSError where it fails."""
    smaller = on_random_bytes(condition, batch, most_evaluated=EVALUATED * batch)
    spawn = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=end_with_parent) as pool:
        try:
            return pool.submit(time_steps, smaller.config, condition.trusted, time.time()).result()
        except Exception as error:  # of whatever kind ends a process
            raise OSError(
                f"a step could not be timed, since its process failed: {error}"
            ) from error


def on_random_bytes(condition: Condition, batch: int, most_evaluated: int) -> Condition:
    """The condition as it is timed: with `batch` windows a step, at most so many evaluated, and
    random bytes as its corpus.
    """
    train = condition.protocol
    changes = {
        "batch": batch,
        "eval_windows": min(train.eval_windows, most_evaluated),
        "curriculum": (),
    }
    random_bytes = CorpusSpec(name="random")
    return replace(condition, train=train.model_copy(update=changes), corpus=random_bytes)


def random_training(prepared: Prepared, folder: Path) -> Training:
    """A training on random bytes, enough for its windows of evaluation, with files in `folder`."""
    train = prepared.condition.protocol
    size = 4 * train.eval_windows * (train.context + 1)
    data = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    corpus = Corpus("random", "random", folder, data.size, "", 1)
    splits = Splits(data, data, data)
    return Training(Task(prepared, 0, corpus, splits, RunFolder(folder), train.device))


def peak_memory(training: Training) -> float:
    """Peak memory of a training in this process, on its device, in bytes; NaN if unknown."""
    if training.device.type == "cuda":
        return float(torch.cuda.max_memory_reserved())
    peak = peak_anonymous()
    return peak if peak > 0 else math.nan


def time_steps(config: dict[str, Any], trusted: bool, begun: float) -> StepTimes:
    """Train on random bytes in this process, which was begun at the time `begun`."""
    keep_memory()
    prepared = Prepared.of(from_config(config, trusted))
    with tempfile.TemporaryDirectory() as name:
        training = random_training(prepared, Path(name))

        def timed(action: Callable[[], Any]) -> float:
            before = time.perf_counter()
            action()
            training.settle()  # waits for a GPU
            return time.perf_counter() - before

        to_build = time.time() - begun
        # An evaluation comes first, as in a run: it has the heap grow as it does there.
        first_evaluation = timed(training.evaluate)
        for _ in range(1 if training.replayed is None else CALLED + 1):
            timed(training.step)  # compiles, and records a graph
        steps = [timed(training.step) for _ in range(STEPS)]
        evaluation = timed(training.evaluate)
    return StepTimes(
        start=to_build + first_evaluation,
        step=median(steps),
        window=evaluation / prepared.condition.protocol.eval_windows,
        peak_bytes=peak_memory(training),
    )


def render(forecast: Forecast) -> str:
    """The table for the terminal, the totals, how many runs fit, and where the times come from."""
    rows = forecast["rows"]
    at_once = forecast["workers"]
    cells = [_cells(row) for row in rows]
    header = ["arms", "runs", "parameters", "FLOPs/byte", "steps", "FLOPs", "memory GB", "time"]
    runs = sum(row["runs"] for row in rows)
    flops = sum(row["runs"] * row["flops"] for row in rows)
    lines = [
        (
            f"{forecast['name']}: {counted(runs, 'run', 'runs')}, {at_once} at a time, on"
            f" {forecast['device']}; of one run:"
        ),
        text_table(header, cells),
        f"all runs: {flops:.2e} FLOPs, {duration(forecast['seconds'])}",
    ]
    available = forecast["available"]
    largest = max(_known_memory(rows), default=0.0)
    if available and largest:
        fitting = int(available // largest)
        remedy = f": use --workers {fitting}" if 0 < fitting < min(at_once, runs) else ""
        lines.append(
            f"memory: {fitting} at a time fit in the {available / 1e9:.1f} GB that are free{remedy}"
        )
    assumed = (
        f"no GPU here: times are assumed, not measured, and at least those of {GPU_FLOPS:.0e} FLOPs"
        " per second"
    )
    alone = "times are those of a run alone: runs at a time share the bandwidth of memory"
    return "\n".join([*lines, alone if forecast["measured"] else assumed])


def _known_memory(rows: Sequence[Forecast]) -> list[float]:
    """The memory of every row; none where that of one is not known, which may be the largest."""
    memory = [row["memory"] for row in rows]
    return [] if any(math.isnan(one) for one in memory) else memory


def _cells(row: Forecast) -> list[str]:
    """The cells of a row of `estimate`."""
    more = f" and {len(row['arms']) - 1} more" if row["arms"][1:] else ""
    known = not math.isnan(row["memory"])
    return [
        row["arms"][0] + more,
        str(row["runs"]),
        f"{row['parameters']:,}",
        f"{row['flops_per_byte']:.3g}",
        f"{row['steps']:,}",
        f"{row['flops']:.2e}",
        f"{row['memory'] / 1e9:.2f}" if known else "-",
        duration(row["seconds"]),
    ]


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, with days before them from 24 hours on.

    >>> duration(3661), duration(0.1), duration(2e20)
    ('1:01:01', 'under 1 s', 'over 2,700,000 years')
    """
    if seconds < 0.5:
        return "under 1 s"
    if seconds > timedelta.max.total_seconds() - 1:
        return "over 2,700,000 years"
    return str(timedelta(seconds=round(seconds)))
