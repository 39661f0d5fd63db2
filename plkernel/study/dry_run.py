"""The price of a study before it is started: operations and memory by count, seconds by three real steps.

An operation is one multiplication or one addition: a product with a matrix of n entries is 2 n. Counted are products
with matrices and the recurrences at their own equations, but no norms, activations and updates. Steps are timed in as
many processes at once as will train, since runs share memory bandwidth; a run too large for that is timed with fewer
or shorter windows, and scaled by its operations.
"""

import heapq
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from plkernel.common.cli import text_table
from plkernel.common.environment import available_memory, keep_memory, peak_anonymous
from plkernel.config.condition import Condition, from_config
from plkernel.config.schema import CorpusSpec, TrainSpec
from plkernel.config.study import Spec
from plkernel.data.corpora import Corpus, Splits
from plkernel.models.ssm import SSMConfig
from plkernel.study.engine import cores
from plkernel.training.build import Prepared, build, started
from plkernel.training.evaluate import diagnose
from plkernel.training.folder import RunFolder
from plkernel.training.loop import Task, Training
from plkernel.training.objective import next_byte_loss

OPERATIONS = {"scan": (2, 4), "wkv": (5, 11), "wkv7": (9, 19)}
"""Per channel and step, forward and backward; of wkv and wkv7 times the size of a head."""
STATE = 16  # bytes of a parameter, its gradient and two moments
GPU_FLOPS, GPU_USE = 3e14, 0.3  # of a GPU that is not here: operations per second, and the share that is used
LARGEST_STEP = {"cpu": 5e10, "cuda": 1e14}
"""Operations of a step that is timed as it is, per thread: some seconds of a slow core, or one of a GPU."""
BASE, HOLES = 450e6, 1.5
"""Bytes of a process without its tensors, and memory over size of tensors, where they are not measured."""
STEPS, SHORTEST = 3, 64


@dataclass(frozen=True)
class Timing:
    """Seconds to start, of a step, of evaluating one window, and of the rest of an evaluation; bytes at the peak."""

    start: float
    step: float
    evaluation: float
    checkpoint: float = 0.0
    peak_bytes: float = 0.0


@dataclass(frozen=True)
class Price:
    """The price of one run, for arms of equal cost.

    phase: "tuning", the search for learning rates, or "study". runs: of all these arms. forward, training: operations
    of one window. memory: bytes of the process, or on a GPU of torch's allocator. timing: None where no part fits;
    timed: in words, what it was measured on.
    """

    phase: str
    arms: tuple[str, ...]
    runs: int
    train: TrainSpec
    parameters: int
    forward: int
    training: int
    memory: float
    timing: Timing | None = None
    timed: str = "nothing"

    @property
    def steps(self) -> int | None:
        """Steps of a run; where the budget is minutes those that fit, None if nothing was timed."""
        train, timing = self.train, self.timing
        if train.total_steps is not None or timing is None:
            return train.total_steps
        evaluation = train.eval_windows * timing.evaluation + timing.checkpoint
        return max(1, round((60 * (train.minutes or 0) - evaluation) / (timing.step + evaluation / train.eval_every)))

    @property
    def evaluations(self) -> int:
        """Evaluations: one before the first step, one every eval_every steps, one after the last."""
        return 1 + -(-(self.steps or 0) // self.train.eval_every)

    @property
    def flops(self) -> int | None:
        """Operations of a run, evaluations included."""
        windows = self.evaluations * self.train.eval_windows + self.train.test_windows
        return None if self.steps is None else self.steps * self.train.batch * self.training + windows * self.forward

    @property
    def seconds(self) -> float | None:
        """Seconds of a run, from the start of its process; None if nothing was timed."""
        if (timing := self.timing) is None or self.steps is None:
            return None
        evaluating = self.evaluations * (self.train.eval_windows * timing.evaluation + timing.checkpoint)
        return timing.start + self.steps * timing.step + evaluating + self.train.test_windows * timing.evaluation


@dataclass(frozen=True)
class Forecast:
    """The price of a study, `workers` runs at a time; hours of all runs, and bytes of memory at hand, where known."""

    name: str
    device: str
    workers: int
    rows: tuple[Price, ...]
    hours: float | None
    available: float | None


def estimate(spec: Spec, workers: int | None = None, search: Spec | None = None) -> Forecast:
    """Estimate `spec` with `workers` runs at a time, by default as many as plkernel.experiment would start.

    Each distinct model takes some seconds, in which its steps are timed in a temporary folder. No corpus is opened: it
    is taken to have all the windows that are asked for. search: a study that is run before it, that of the learning
    rates. Raises OSError when a step cannot be timed.
    """
    present = torch.cuda.is_available()
    device = "cuda" if spec.train.device == "cuda" or (spec.train.device == "auto" and present) else "cpu"
    available = available_memory(device) if device == "cpu" or present else None
    gpus = max(1, torch.cuda.device_count())
    workers = workers or (gpus if device == "cuda" else max(1, cores() // spec.train.threads))
    timings: dict[str, tuple[Timing | None, str]] = {}
    rows: list[Price] = []
    spans: list[float | None] = []
    for phase, study in [("study", spec)] if search is None else [("tuning", search), ("study", spec)]:
        groups: dict[str, list[Prepared]] = {}
        for arm in study.arms:
            prepared = Prepared.of(study.condition(arm))
            groups.setdefault(shape_key(prepared), []).append(prepared)
        seconds: dict[str, float | None] = {}
        for key, group in groups.items():
            arms = tuple(prepared.condition.name for prepared in group)
            row = count(group[0], phase, arms, len(arms) * len(study.seeds), device)
            if key not in timings and device == "cuda" and not present:
                rate = GPU_FLOPS * GPU_USE
                timings[key] = Timing(0.0, row.train.batch * row.training / rate, row.forward / rate), "assumed"
            elif key not in timings:
                at_once = 1 if device == "cuda" else min(workers, len(study.arms) * len(study.seeds))
                timings[key] = timed(row, group[0].condition, at_once, available or 2e9, device)
            timing, words = timings[key]
            row = replace(row, timing=timing, timed=words, memory=(timing and timing.peak_bytes) or row.memory)
            rows.append(row)
            seconds |= dict.fromkeys(arms, row.seconds)
        spans.append(makespan([seconds[arm] for _ in study.seeds for arm in study.arms], workers))
    hours = None if None in spans else sum(span for span in spans if span is not None) / 3600
    return Forecast(spec.name, device, workers, tuple(rows), hours, available)


def shape_key(prepared: Prepared) -> str:
    """Equal for runs whose steps cost about the same, whatever the multipliers, the gain and the mode of patching."""
    model, train, config = prepared.condition.model, prepared.condition.protocol, prepared.config
    if config is not None:
        multipliers = dict.fromkeys(config.structure.multipliers, 0.5)
        config = replace(config, structure=replace(config.structure, multipliers=multipliers))
    if isinstance(config, SSMConfig):
        config = replace(config, gain="none", mode="causal")
    size = train.batch, train.context, train.threads, train.l2wrap > 0, train.dropout > 0
    return repr((config or model.model_dump_json(), *size))


def count(prepared: Prepared, phase: str, arms: tuple[str, ...], runs: int, device: str) -> Price:
    """Count the operations of a run and about its memory, of which nothing is allocated.

    A model of other people's code is really trained on one window, on the CPU; its activations grow with the windows.
    """
    condition, train, foreign = prepared.condition, prepared.condition.protocol, prepared.plan is None
    bare = replace(condition, train=train.model_copy(update={"backend": None}))  # a forced one may not exist here
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage.nbytes()
        return tensor

    with nullcontext() if foreign else FakeTensorMode():
        model = started(condition, 0) if foreign else build(bare)
        windows = torch.zeros((1 if foreign else train.batch, train.context + 1), dtype=torch.int64)
        half = torch.autocast("cpu", torch.bfloat16) if device == "cuda" and not foreign else nullcontext()
        with counter() as forward, torch.no_grad():
            model(windows[:1, :-1])
        with counter() as training:
            next_byte_loss(model, windows[:1]).backward()
        with half, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = next_byte_loss(model, windows, l2wrap=train.l2wrap)
        own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        activations = sum(size for place, size in saved.items() if place not in own)
        del loss
    fixed, tensors = STATE * prepared.parameters, activations * train.batch / len(windows)
    memory = fixed + tensors if device == "cuda" else BASE + HOLES * (fixed + tensors)
    flops = forward.get_total_flops(), training.get_total_flops()
    return Price(phase, arms, runs, train, prepared.parameters, *flops, memory)


def counter() -> FlopCounterMode:
    """A counter of the operations of products, as torch counts them, and of the recurrences of plkernel."""

    def formula(each: int, place: int, heads: bool) -> Any:
        return lambda *shapes, **_: each * math.prod(shapes[place]) * (shapes[place][-1] if heads else 1)

    known = {}
    for name, (forward, backward) in OPERATIONS.items():
        heads, operators = (
            name != "scan",
            torch.ops.plkernel,
        )  # the decay that a scan takes first may be one for all steps
        known[getattr(operators, name)] = formula(forward, 0 if heads else 1, heads)
        known[getattr(operators, f"{name}_backward")] = formula(backward, 0 if heads else 2, heads)
    return FlopCounterMode(display=False, custom_mapping=known)


def makespan(seconds: Sequence[float | None], workers: int) -> float | None:
    """When the last of the runs ends, each of which starts, in order, as soon as a worker is free.

    >>> makespan([3.0, 1.0, 1.0, 2.0], 2)
    4.0
    """
    free = [0.0] * workers
    for each in seconds:
        if each is None:
            return None
        heapq.heapreplace(free, free[0] + each)
    return max(free)


def timed(row: Price, whole: Condition, processes: int, available: float, device: str) -> tuple[Timing | None, str]:
    """The timing of a run with `processes` at once, and what was timed in words; None where no part of it fits.

    available: memory at hand for all processes, in bytes. Raises OSError where a process fails.
    """
    train = part = row.train
    fixed = BASE + STATE * row.parameters
    limit = LARGEST_STEP[device] * (train.threads if device == "cpu" else 1)
    while True:
        share = part.batch * part.context / (train.batch * train.context)
        fits = fixed + share * (row.memory - fixed) <= 0.5 * available / processes
        if fits and share * train.batch * row.training <= limit:
            break
        if part.batch > 1:
            part = part.model_copy(update={"batch": part.batch // 2})
        elif part.context > SHORTEST:
            part = part.model_copy(update={"context": max(SHORTEST, part.context // 2)})
        else:
            return None, "nothing"
    found = measure(replace(whole, train=part), processes)
    if part == train:
        return found, "the run itself"
    evaluation = found.evaluation * train.context / part.context
    larger = replace(found, step=found.step / share, evaluation=evaluation, peak_bytes=0.0)
    return larger, f"a part of it (batch {part.batch}, context {part.context})"


def measure(condition: Condition, processes: int) -> Timing:
    """Medians over `processes` that take their steps at the same time; OSError where one fails."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        work = [pool.submit(probe, condition.config, condition.trusted, time.time()) for _ in range(processes)]
        try:
            rows = [each.result() for each in work]
        except Exception as error:  # of whatever kind ends a process
            raise OSError(f"a step could not be timed, since its process failed: {error}") from error
    return Timing(*map(median, zip(*rows, strict=True)))


def probe(config: dict[str, Any], trusted: bool, begun: float) -> list[float]:
    """Measure a run on random bytes in this process, in a folder that goes; the fields of a `Timing`."""
    keep_memory()
    condition = from_config(config, trusted)
    train = condition.protocol
    windows = min(train.eval_windows, train.batch)
    data = np.random.default_rng(0).integers(0, 256, 4 * windows * (train.context + 1), np.uint8)
    short = train.model_copy(update={"eval_windows": windows})
    prepared = Prepared.of(replace(condition, train=short, corpus=CorpusSpec(name="random")))
    with tempfile.TemporaryDirectory() as name:
        folder, splits = Path(name), Splits(data, data, data)
        corpus = Corpus("random", "random", folder, data.size, "", 1)
        training = Training(Task(prepared, 0, corpus, splits, RunFolder(folder), train.device))
        training.evaluate()  # first, as in a run: it has the heap grow as it does there
        start, times = time.time() - begun, [time.perf_counter()]
        for _ in range(1 + STEPS):  # the first compiles
            training.step()
            training.settle()  # waits for a GPU
            times.append(time.perf_counter())
        training.evaluate()
        times.append(time.perf_counter())
        diagnose(training.model, training.validation, train.batch, training.device)
        *steps, whole, passing = np.diff([*times, time.perf_counter()]).tolist()
        on_gpu = training.device.type == "cuda"
        peak = float(torch.cuda.max_memory_reserved()) if on_gpu else peak_anonymous()
    return [start, median(steps[1:]), passing / windows, max(0.0, whole - passing), peak]


def text(found: Forecast) -> str:
    """The table for the terminal, and below it the totals, whether it fits, and what was measured."""
    header = ["arms", "runs", "parameters", "FLOPs/byte", "steps", "MB read", "FLOPs", "memory GB", "time"]
    runs, cells = sum(row.runs for row in found.rows), []
    for row in found.rows:
        arms = row.arms[0] if len(row.arms) == 1 else f"{row.arms[0]} and {len(row.arms) - 1} more"
        cells.append(
            [
                arms if row.phase == "study" else f"{row.phase}: {arms}",
                str(row.runs),
                f"{row.parameters:,}",
                f"{row.training / row.train.context:.3g}",
                "?" if row.steps is None else f"{row.steps:,}",
                "?" if row.steps is None else f"{row.steps * row.train.batch * row.train.context / 1e6:.4g}",
                "?" if row.flops is None else f"{row.flops:.2e}",
                f"{row.memory / 1e9:.2f}",
                "?" if row.seconds is None else _duration(row.seconds),
            ]
        )
    each = [row.flops and row.runs * row.flops for row in found.rows]
    total = "not known" if None in each else f"{sum(flops or 0 for flops in each):.2e}"
    hours = "not known" if found.hours is None else _duration(3600 * found.hours)
    title = f"{found.name}: {runs} runs, {found.workers} at a time, on {found.device}; of one run:"
    return "\n".join([title, text_table(header, cells), f"all runs: {total} FLOPs, {hours}", *_remarks(found, runs)])


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _remarks(found: Forecast, runs: int) -> Iterator[str]:
    """Whether the runs fit into memory, and where the times come from."""
    largest, wanted = max(row.memory for row in found.rows), min(found.workers, runs)
    if found.available is not None:
        place = "machine" if found.device == "cpu" else "GPU"
        fitting, room = int(found.available // largest), f"the {found.available / 1e9:.1f} GB of this {place}"
        if fitting < 1:
            yield f"a run of {largest / 1e9:.1f} GB does not fit in {room} that are free"
        elif found.device == "cpu" and fitting < wanted:
            one = f"{wanted} runs of {largest / 1e9:.1f} GB at a time"
            yield f"{one} do not fit in {room} that are free: use --workers {fitting}"
        else:
            yield f"memory: {wanted} at a time fit in {room} that are free"
    if any(row.timed == "assumed" for row in found.rows):
        yield (
            f"no GPU here: times are assumed, not measured, from {GPU_FLOPS:.3g} FLOPs per second used to "
            f"{GPU_USE:.0%}, without starts and checkpoints"
        )
    else:
        yield f"times are measured on {', '.join(dict.fromkeys(row.timed for row in found.rows))}"
