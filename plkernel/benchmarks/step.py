"""Training steps of whole models on one GPU, within a few minutes.

`step`: models of about 2, 10 and 100 million parameters beside other people's of equal size, in
three modes: called from Python, as one CUDA graph of the whole step, and as the graph of a model
that torch has compiled. `growth`: the time of a step over context at a constant number of bytes,
over width and over batch, and the steps per second of several runs at a time.

A step is forward and backward in bfloat16 autocast, clipping, and fused AdamW. Its operations are
6 for each number in a matrix and byte, and those of the recurrence (`OPERATIONS`) or of causal
attention, 6 times context and width in each layer; embeddings, norms and activations are not
counted.
"""

import math
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from importlib import import_module
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import nn

from plkernel.benchmarks.host import host_seconds
from plkernel.benchmarks.operators import described, progress, set_up
from plkernel.benchmarks.profile import (
    NO_TIME,
    WIDTH,
    card,
    chip,
    is_named,
    save,
    wall_seconds,
)
from plkernel.benchmarks.training import OPERATORS, gpt2, parameters_of, returning_logits
from plkernel.benchmarks.tuned import Task, briefly_on, compile_peers
from plkernel.common.cli import text_table
from plkernel.config.condition import resolve
from plkernel.config.schema import ModelSpec, TrainSpec
from plkernel.models import Device
from plkernel.models.kinds import KINDS
from plkernel.models.layers import BYTES
from plkernel.study.dry_run import OPERATIONS
from plkernel.study.together import COUNTS, timing
from plkernel.training.build import build, started
from plkernel.training.evaluate import autocast, next_byte_loss
from plkernel.training.graphs import recording

TimedRow = dict[str, Any]
"""A row about one model in one mode, for JSON."""
EAGER = "eager"
GRAPH = "graph"
COMPILED = "compiled"
"""Modes of a step: from Python, as one CUDA graph, and as the graph of a compiled model."""
OURS = ("ssm", "rwkv6", "rwkv7")
"""Kinds of models of this package that are timed."""
CORES = {"rwkv6": "wkv", "rwkv7": "wkv7"}
"""Models whose operator has forms on tensor cores."""
FIRST = 4
"""Steps before the first that is timed."""
BATCHES = 4
"""Batches that are taken in turns."""
SECONDS = 0.15
"""Seconds of steps that are timed together."""
TOGETHER = 0.5
"""Share of the seconds of `growth` that is kept for several runs at a time."""
APART = 0.05
"""Largest relative difference of a loss from that of the same model called from Python."""
SLOW_PEER = "fla"
"""Beginning of the names of peers that time many launches before they choose one."""
PREPARED = 0.3
"""Share of the seconds in which their kernels are compiled beforehand."""
SLOW = 45.0
"""Seconds that must be left before a slow peer or a compilation begins on a GPU."""
LARGEST = 500
"""Steps timed together at most."""
LONGEST_REASON = 120
"""Characters of the reason why a model is not timed, at most."""


class Size(NamedTuple):
    """A number of parameters to come near to with a width, and what a step reads."""

    name: str
    parameters: int
    width: int
    context: int
    batch: int


class TimedModel(NamedTuple):
    """A model that is timed.

    make      a function of a size, a number of layers, and whether the model is made to count its
              parameters alone
    operator  the name of its recurrence; None for attention
    during    what holds while it runs
    on_cpu    it is timed without a GPU, too
    """

    label: str
    make: Callable[[Size, int, bool], nn.Module]
    operator: str | None
    during: Callable[[], AbstractContextManager[Any]] = nullcontext
    on_cpu: bool = False


SIZES = {
    "cuda": (
        Size("10 M", 10_000_000, 512, 1024, 32),
        Size("100 M", 100_000_000, 768, 1024, 32),
        Size("2 M", 1_700_000, 256, 512, 8),
    ),
    "cpu": (Size("tiny", 60_000, 32, 32, 2),),
}
GROWTH: dict[str, dict[str, tuple[int, ...]]] = {
    "cuda": {
        "context": (1024, 2048, 4096, 8192, 16384, 32768, 65536),
        "width": (64, 128, 256, 512, 1024, 2048),
        "batch": (1, 4, 16, 64),
        "runs": (*COUNTS, 16),
    },
    "cpu": {"context": (16, 32), "width": (16, 32), "batch": (1, 2), "runs": (1, 2)},
}
BASE = {"cuda": Size("", 0, 512, 1024, 16), "cpu": Size("", 0, 16, 16, 2)}
"""Width, context and batch of `growth` where they do not vary."""
LAYERS = 4
"""Layers of the models of `growth`."""
CONSTANT = {"cuda": 65536, "cpu": 64}
"""Bytes of a step while the context varies."""
SMALL = ModelSpec(dim=128, layers=4)
"""The model of which several are trained at a time; a step reads 8 windows of 512 bytes."""


def ours(kind: str, size: Size, layers: int, counted: bool) -> nn.Module:
    """A model of this project; `counted` alone has no values."""
    has_heads = "head_size" in KINDS[kind].options
    heads: dict[str, Any] = {"head_size": min(64, size.width)} if has_heads else {}
    condition = resolve(ModelSpec(kind=kind, dim=size.width, layers=layers, **heads))
    return build(condition) if counted else started(condition, 0)


def transformer(size: Size, layers: int, _: bool) -> nn.Module:
    """GPT-2, with heads of 64 channels."""
    return gpt2(size.width, layers, max(1, size.width // 64), size.context)


def fla(name: str, size: Size, layers: int, _: bool) -> nn.Module:
    """flash-linear-attention's RWKV6 or RWKV7, with heads of 64 channels."""
    models = import_module("fla.models")
    options: dict[str, Any] = {"RWKV6": {"expand_k": 1.0, "num_heads": max(1, size.width // 64)}}
    config = getattr(models, f"{name}Config")(
        hidden_size=size.width,
        num_hidden_layers=layers,
        vocab_size=BYTES,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
        **options.get(name, {"head_dim": min(64, size.width)}),
    )
    return returning_logits(getattr(models, f"{name}ForCausalLM")(config))


def on_tensor_cores(kind: str, precision: str) -> AbstractContextManager[Any]:
    """While it holds, models of this kind take their operator with a precision."""
    module, name = OPERATORS[kind]
    return patch.object(module, name, partial(getattr(module, name), precision=precision))


def timed_models() -> dict[str, TimedModel]:
    """Ours, ours on tensor cores, and the peers."""
    made = [TimedModel(kind, partial(ours, kind), OPERATORS[kind][1], on_cpu=True) for kind in OURS]
    for kind, operator in CORES.items():
        during = partial(on_tensor_cores, kind, "bf16")
        made.append(TimedModel(f"{kind} tensor bf16", partial(ours, kind), operator, during))
    made.append(TimedModel("gpt2", transformer, None, on_cpu=True))
    made.append(TimedModel("fla rwkv6", partial(fla, "RWKV6"), "wkv"))
    made.append(TimedModel("fla rwkv7", partial(fla, "RWKV7"), "wkv7"))
    return {entry.label: entry for entry in made}


def order(device: str) -> Iterator[tuple[Size, str, str]]:
    """Size, entry and mode of each row, what decides first.

    Time may end before the last. Peers that time many launches before they choose one come last.
    """
    sizes = SIZES[device]
    slow = [label for label in timed_models() if label.startswith(SLOW_PEER)]
    for size in sizes:
        for label in timed_models():
            if label not in slow:
                yield size, label, EAGER
                yield size, label, GRAPH
    for label in ("ssm", "gpt2", *CORES):
        for size in sizes:
            yield size, label, COMPILED
    for size in sizes:
        for label in slow:
            yield size, label, EAGER
            yield size, label, GRAPH


@cache
def layers_for(entry: TimedModel, size: Size) -> int:
    """The number of layers with which an entry comes nearest to the parameters of a size."""
    with torch.device("meta"):
        two = parameters_of(entry.make(size, 2, True))
        three = parameters_of(entry.make(size, 3, True))
    return max(1, 2 + round((size.parameters - two) / (three - two)))


def training_operations(model: nn.Module, entry: TimedModel, size: Size, layers: int) -> float:
    """Operations of a training step: of its matrices, and of its recurrence or attention."""
    embeddings: set[int] = set()
    for module in model.modules():
        if "Embedding" in type(module).__name__:
            embeddings.update(id(one) for one in module.parameters(recurse=False))
    matrices = 0
    for parameter in model.parameters():
        is_matrix = sum(side > 1 for side in parameter.shape) >= 2
        if is_matrix and id(parameter) not in embeddings:
            matrices += parameter.numel()
    if entry.operator is None:
        mixing = 6 * size.context * size.width
    else:
        wide = 1 if entry.operator == "scan" else min(64, size.width)
        mixing = sum(OPERATIONS[entry.operator]) * size.width * wide
    return float(size.batch * size.context * (6 * matrices + layers * mixing))


class Stepper:
    """Training steps of a model in one of the modes, on random bytes."""

    def __init__(self, model: nn.Module, mode: str, size: Size, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (BATCHES, size.batch, size.context + 1)
        self.batches = torch.randint(0, BYTES, shape, generator=generator).to(device)
        self.turns = cycle(self.batches)
        self.windows = self.batches[0].clone()
        self.device = device
        self.model = model
        is_graph = mode != EAGER and device.type == "cuda"
        self.module: Any = torch.compile(model) if mode == COMPILED else model
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=1e-4, fused=True, capturable=is_graph
        )
        self.loss = torch.zeros((), device=device)
        self.work: Callable[[], Any] = self.once
        if is_graph:
            self._capture()
        else:
            for _ in range(FIRST):
                self()

    def once(self) -> None:
        """Forward, backward, clipping and update on `windows`; nothing waits for the device."""
        with autocast(self.device):
            loss = next_byte_loss(self.module, self.windows)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.loss.copy_(loss.detach())

    def __call__(self) -> None:
        """One step, on the next of the batches."""
        self.windows.copy_(next(self.turns))
        self.work()

    def _capture(self) -> None:
        """The first steps on a stream of their own, and then the whole step as a graph."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(FIRST - 1):
                self()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with recording(graph, torch.cuda.graph_pool_handle(), stream):
            self.once()
        self.work = graph.replay
        self()


def timed_model(
    entry: TimedModel, mode: str, size: Size, device: torch.device, layers: int | None = None
) -> TimedRow:
    """The row of an entry in a mode: its times and memory, or the reason why they are missing."""
    on_gpu = device.type == "cuda"
    if not on_gpu and (mode != EAGER or not entry.on_cpu):
        return {"reason": "needs a GPU"}
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    torch._dynamo.reset()
    begun = time.monotonic()
    try:
        with entry.during():
            layers = layers or layers_for(entry, size)
            model = entry.make(size, layers, False).to(device).train()
            row: TimedRow = {"layers": layers, "parameters": parameters_of(model)}
            row["operations"] = training_operations(model, entry, size, layers)
            step = Stepper(model, mode, size, device)
            row["loss"] = step.loss.item()
            row["first"] = time.monotonic() - begun
            once = wall_seconds(step, 1, device.type)
            calls = max(1, min(LARGEST, int(SECONDS / once)))
            row["seconds"] = wall_seconds(step, calls, device.type)
            row["host"] = host_seconds(step, min(calls, 10), device.type)
    except ImportError as reason:
        return {"reason": f"not installed ({reason})"}
    except Exception as reason:  # a peer may fail in any way: that is a result, the others go on
        return {"reason": f"failed: {described(reason)}"[:LONGEST_REASON]}
    if on_gpu:
        row["memory"] = torch.cuda.max_memory_allocated()
    return row


def step(device: Device, seconds: float, out: Path | None, only: Sequence[str] = ()) -> None:
    """Time steps beside peers of equal size; print a table, last, and save it as JSON.

    only: patterns of rows, such as "10 M fla*"; their record has a name of its own.
    """
    end = time.monotonic() + seconds
    place = set_up(1, torch.get_num_threads(), device, out)
    on_gpu = place.type == "cuda"
    rate = chip(place.type).matrix
    known = timed_models()
    chosen = []
    for size, label, mode in order(place.type):
        if not only or is_named(f"{size.name} {label} {mode}", only):
            chosen.append((size, label, mode))
    if on_gpu:
        tasks = first_steps([(size, label) for size, label, _ in chosen])
        compile_peers(tasks, seconds * PREPARED)
    losses: dict[tuple[str, str], float] = {}
    rows: list[TimedRow] = []
    for size, label, mode in chosen:
        row: TimedRow = {"size": size.name, "model": label, "mode": mode}
        is_slow = on_gpu and (mode == COMPILED or label.startswith(SLOW_PEER))
        if time.monotonic() > end - (SLOW if is_slow else 0.0):
            rows.append(row | NO_TIME)
            continue
        progress(f"{size.name} {label} {mode}")
        with briefly_on(place.type):
            found = timed_model(known[label], mode, size, place)
        found = _with_loss_checked(found, (size.name, label), losses)
        if "seconds" in found:
            found["share"] = found["operations"] / found["seconds"] / rate
        rows.append(row | found)
        _save("step-only" if only else "step", {"matrix": rate, "rows": rows}, place, out)
    print(
        f"{card(place.type)}: bf16 product {rate / 1e12:.1f} TFLOP/s; context and batch as in the"
        " JSON"
    )
    print(table_of_steps(rows))


def _with_loss_checked(
    found: TimedRow, key: tuple[str, str], losses: dict[tuple[str, str], float]
) -> TimedRow:
    """The row; a reason in place of it if its loss is not that of the same model in another mode.

    losses: by size and label, that of the first mode, which is noted here.
    """
    if "loss" not in found:
        return found
    loss = found["loss"]
    expected = losses.setdefault(key, loss)
    if abs(loss - expected) <= APART * abs(expected):
        return found
    return {"reason": f"wrong: a loss of {loss:.4g}, not {expected:.4g}"}


def first_steps(chosen: Sequence[tuple[Size, str]]) -> list[Task]:
    """The first steps of each of the slow peers among these models, once for each size."""
    tasks: list[Task] = []
    for size, label in dict.fromkeys(chosen):
        if label.startswith(SLOW_PEER):
            tasks.append(partial(step_once, label, size))
    return tasks


def step_once(label: str, size: Size) -> None:
    """Take the first steps of a model on a GPU, with two layers: others have the same kernels."""
    device = torch.device("cuda")
    model = timed_models()[label].make(size, 2, False).to(device).train()
    Stepper(model, EAGER, size, device)
    torch.cuda.synchronize()


def table_of_steps(rows: Sequence[TimedRow]) -> str:
    """One line a row that has times; below them the others, by their reason."""
    header = ["size", "model", "mode", "params", "ms", "host ms", "% of bf16", "GB", "first s"]
    lines = []
    reasons: dict[str, list[str]] = {}
    for row in rows:
        name = f"{row['size']} {row['model']} {row['mode']}"
        if "reason" in row:
            reasons.setdefault(row["reason"], []).append(name)
            continue
        line = [
            row["size"],
            row["model"],
            row["mode"],
            f"{row['parameters'] / 1e6:.1f} M",
            f"{1e3 * row['seconds']:.2f}",
            f"{1e3 * row['host']:.2f}",
            f"{100 * row['share']:.1f}",
            f"{row['memory'] / 1e9:.1f}" if "memory" in row else "-",
            f"{row['first']:.0f}",
        ]
        lines.append(line)
    missing = []
    for reason, names in reasons.items():
        text = f"{', '.join(names)}: {reason}"
        missing.append(textwrap.fill(text, WIDTH, subsequent_indent="  "))
    repaid = []
    for size, model, steps in repaid_after(rows):
        repaid.append(f"{size} {model}: compiling is repaid after {steps:,.0f} steps")
    return "\n".join([text_table(header, lines), *repaid, *missing])


def repaid_after(rows: Sequence[TimedRow]) -> Iterator[tuple[str, str, float]]:
    """Size, model and the steps after which a compiled run has caught up with an eager one.

    Infinity for never.
    """
    eager = {}
    for row in rows:
        if row["mode"] == EAGER and "seconds" in row:
            eager[row["size"], row["model"]] = row
    for row in rows:
        key = (row["size"], row["model"])
        if row["mode"] == COMPILED and "seconds" in row and key in eager:
            saved = eager[key]["seconds"] - row["seconds"]
            spent = row["first"] - eager[key]["first"]
            yield *key, spent / saved if saved > 0 else math.inf


def cells(device: str) -> Iterator[tuple[str, str, int, Size]]:
    """Axis, model, value and size of each cell of `growth`, the axes in turns."""
    base = BASE[device]
    axes = GROWTH[device]
    for kind in OURS:
        for value in axes["context"]:
            batch = CONSTANT[device] // value
            yield "context", kind, value, base._replace(context=value, batch=batch)
    for kind in OURS:
        for value in axes["width"]:
            yield "width", kind, value, base._replace(width=value)
    for kind in OURS:
        for value in axes["batch"]:
            yield "batch", kind, value, base._replace(batch=value)


def growth(device: Device, seconds: float, out: Path | None) -> None:
    """Time steps over context, width and batch, and runs at a time; tables last, and JSON."""
    end = time.monotonic() + seconds
    place = set_up(1, torch.get_num_threads(), device, out)
    mode = GRAPH if place.type == "cuda" else EAGER
    known = timed_models()
    rows: list[TimedRow] = []
    alone_until = end - TOGETHER * seconds
    for axis, kind, value, size in cells(place.type):
        row: TimedRow = {"axis": axis, "model": kind, "value": value}
        if time.monotonic() > alone_until:
            rows.append(row | NO_TIME)
            continue
        progress(f"{axis} {value} {kind}")
        rows.append(row | timed_model(known[kind], mode, size, place, LAYERS))
        _save("growth", {"mode": mode, "layers": LAYERS, "rows": rows}, place, out)
    if place.type == "cuda":
        torch.cuda.empty_cache()  # for the processes
    rows += at_a_time(place, end)
    _save("growth", {"mode": mode, "layers": LAYERS, "rows": rows}, place, out)
    print(f"{card(place.type)}: ms of a step ({mode}); steps/s of all runs at a time")
    print(tables_of_growth(rows))


def at_a_time(place: torch.device, end: float) -> Iterator[TimedRow]:
    """Steps per second of several runs of the small model at a time, before `end`."""
    on_gpu = place.type == "cuda"
    protocol = TrainSpec(context=512, batch=8, steps=10**6, device="cuda" if on_gpu else "cpu")
    if not on_gpu:
        protocol = protocol.model_copy(update={"context": 16, "batch": 1})
    condition = resolve(SMALL, train=protocol)
    for runs in GROWTH[place.type]["runs"]:
        row: TimedRow = {"axis": "runs", "model": "ssm", "value": runs}
        if time.monotonic() > end:
            yield row | NO_TIME
            continue
        progress(f"{runs} runs at a time")
        found = timing(condition, runs, seconds=2.0 if on_gpu else 0.2)
        if found is None:
            yield row | {"reason": "failed: see above"}
        else:
            yield row | {"steps": found.steps, "memory": found.memory}


def tables_of_growth(rows: Sequence[TimedRow]) -> str:
    """A table for each axis: a line for each model, a column for each value."""
    texts = []
    for axis in dict.fromkeys(row["axis"] for row in rows):
        group = [row for row in rows if row["axis"] == axis]
        values = list(dict.fromkeys(row["value"] for row in group))
        lines = []
        for model in dict.fromkeys(row["model"] for row in group):
            found = {row["value"]: row for row in group if row["model"] == model}
            lines.append([model, *[_cell(found.get(value, {})) for value in values]])
        texts.append(text_table([axis, *map(str, values)], lines))
        reasons = dict.fromkeys(row["reason"] for row in group if "reason" in row)
        texts += list(reasons)
    return "\n".join(texts)


def _cell(row: TimedRow) -> str:
    """Steps per second of several runs, or milliseconds of a step."""
    if "steps" in row:
        return f"{row['steps']:.3g}"
    return f"{1e3 * row['seconds']:.3g}" if "seconds" in row else "-"


def _save(name: str, found: TimedRow, place: torch.device, out: Path | None) -> None:
    """Write what is known so far, so that nothing is lost if time ends."""
    if out is not None:
        save(out, name, place.type, found)
