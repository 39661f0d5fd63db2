"""The price of a study before it is started: operations by count, seconds and memory from three
real steps.

Counted are multiplications and additions of products with matrices, as torch counts them, and of
the recurrences, but not of norms, activations and updates. A step that is too large to be timed is
timed with fewer windows and scaled.
"""

import math
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from plkernel.common.cli import text_table
from plkernel.common.environment import available_memory, keep_memory, peak_anonymous
from plkernel.config.condition import Condition, from_config
from plkernel.config.schema import CorpusSpec
from plkernel.config.study import Spec
from plkernel.data import corpora
from plkernel.data.corpora import Corpus, Splits
from plkernel.study.engine import Engine
from plkernel.training.build import Prepared, build, started
from plkernel.training.evaluate import next_byte_loss
from plkernel.training.folder import RunFolder
from plkernel.training.loop import Task, Training

OPERATIONS = {"scan": (2, 4), "wkv": (5, 11), "wkv7": (9, 19)}
"""Per channel and step, forward and backward; of wkv and wkv7 times the size of a head."""
GPU_FLOPS = 1e14
"""Assumed operations per second of a GPU that is not here: a third of the peak of a large one."""
LARGEST_STEP = {"cpu": 2e10, "cuda": 1e14}
"""Operations of a step that is timed as it is: some seconds of a slow core, or one of a GPU."""
STEPS = 3
Row = dict[str, Any]


def estimate(spec: Spec, workers: int | None = None, search: Spec | None = None) -> Row:
    """Estimate `spec` with `workers` runs at a time, by default as many as plkernel.experiment
    would start.

    search: a study that is run before it, that of the learning rates. Raises OSError when a step
    cannot be timed.
    """
    present, wanted = torch.cuda.is_available(), spec.train.device
    device = "cuda" if wanted == "cuda" or (wanted == "auto" and present) else "cpu"
    local, rows = device == "cpu" or present, dict[Any, Row]()
    at_once = workers or max(1, Engine().room(spec, device))
    for phase, study in [("tuning: ", search), ("", spec)] if search else [("", spec)]:
        for arm in study.arms:
            prepared = Prepared.of(study.condition(arm))
            model, train = prepared.condition.model, prepared.condition.protocol
            key = (
                phase,
                prepared.parameters,
                model.kind,
                model.layers,
                model.patching.size,
                train.context,
                train.batch,
            )
            if key not in rows:
                rows[key] = {"arms": [], "runs": 0, **priced(prepared, device, local)}
            rows[key]["arms"].append(f"{phase}{arm}")
            rows[key]["runs"] += len(study.seeds)
    seconds = sum(math.ceil(row["runs"] / at_once) * row["seconds"] for row in rows.values())
    known = {
        "name": spec.name,
        "device": device,
        "workers": at_once,
        "rows": list(rows.values()),
        "seconds": seconds,
    }
    return {**known, "available": available_memory(device) if local else None, "measured": local}


def priced(prepared: Prepared, device: str, local: bool) -> Row:
    """The price of one run: operations counted, and seconds and memory measured where the device is
    `local`.
    """
    train, (forward, training) = prepared.condition.protocol, operations(prepared)
    steps, windows = (
        train.total_steps,
        (1 + -(-train.total_steps // train.eval_every)) * train.eval_windows,
    )
    section = prepared.condition.corpus
    validation = int(
        (corpora.size_ahead(section.name, **section.reading) or 0) * section.validation
    )
    windows += train.test_windows + min(train.final_windows, validation // (train.context + 1))
    flops = steps * train.batch * training + windows * forward
    price = {"flops": flops, "seconds": flops / GPU_FLOPS, "memory": math.nan}
    if local:
        limit = LARGEST_STEP[device] * (train.threads if device == "cpu" else 1)
        batch = max(1, min(train.batch, int(limit / training)))
        start, step, window, memory = measure(prepared.condition, batch)
        whole = train.batch / batch
        price |= {
            "seconds": start + steps * step * whole + windows * window,
            "memory": memory * whole,
        }
    return {
        "parameters": prepared.parameters,
        "steps": steps,
        "flops_per_byte": training / train.context,
        **price,
    }


def operations(prepared: Prepared) -> tuple[int, int]:
    """Operations of one window, forward alone and in training; only a model of other people's code
    is really built.
    """
    condition, context = prepared.condition, prepared.condition.protocol.context
    bare = replace(condition, train=condition.protocol.model_copy(update={"backend": None}))

    def formula(each: int, place: int, *shapes: Any, **_: Any) -> int:
        return each * math.prod(shapes[place]) * (1 if place else shapes[0][-1])

    known = {}
    for name, pair in OPERATIONS.items():
        for back, each in enumerate(pair):
            # the decay of a scan may be one for all steps
            place = 1 + back if name == "scan" else 0
            known[getattr(torch.ops.plkernel, name + "_backward" * back)] = partial(
                formula, each, place
            )
    forward, training = (FlopCounterMode(display=False, custom_mapping=known) for _ in range(2))
    with nullcontext() if prepared.plan is None else FakeTensorMode():
        model = started(condition, 0) if prepared.plan is None else build(bare)
        windows = torch.zeros((1, context + 1), dtype=torch.int64)
        with forward, torch.no_grad():
            model(windows[:, :-1])
        with training:
            next_byte_loss(model, windows).backward()
    return forward.get_total_flops(), training.get_total_flops()


def measure(condition: Condition, batch: int) -> list[float]:
    """`probe` in a process of its own, with `batch` windows a step; OSError where it fails."""
    train = condition.protocol.model_copy(update={"batch": batch})
    train = train.model_copy(update={"eval_windows": min(train.eval_windows, batch)})
    smaller = replace(condition, train=train, corpus=CorpusSpec(name="random"))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(probe, smaller.config, condition.trusted, time.time()).result()
        except Exception as error:  # of whatever kind ends a process
            raise OSError(
                f"a step could not be timed, since its process failed: {error}"
            ) from error


def probe(config: dict[str, Any], trusted: bool, begun: float) -> list[float]:
    """Train on random bytes in this process: seconds to start, of a step and of a window, and bytes
    at the peak.
    """
    keep_memory()
    prepared = Prepared.of(from_config(config, trusted))
    train = prepared.condition.protocol
    data = np.random.default_rng(0).integers(
        0, 256, 4 * train.eval_windows * (train.context + 1), np.uint8
    )
    with tempfile.TemporaryDirectory() as name:
        corpus = Corpus("random", "random", Path(name), data.size, "", 1)
        training = Training(
            Task(prepared, 0, corpus, Splits(data, data, data), RunFolder(Path(name)), train.device)
        )
        seconds = [time.time() - begun]
        # An evaluation comes first, as in a run: it has the heap grow as it does there. The first
        # step compiles.
        for action in (training.evaluate, *[training.step] * (1 + STEPS), training.evaluate):
            before = time.perf_counter()
            action()
            training.settle()  # waits for a GPU
            seconds.append(time.perf_counter() - before)
    peak = torch.cuda.max_memory_reserved() if training.device.type == "cuda" else peak_anonymous()
    return [sum(seconds[:2]), median(seconds[3:-1]), seconds[-1] / train.eval_windows, float(peak)]


def text(forecast: Row) -> str:
    """The table for the terminal, and below it the totals, how many runs fit, and where the times
    come from.
    """
    rows, at_once, form = (
        forecast["rows"],
        forecast["workers"],
        "{runs}|{parameters:,}|{flops_per_byte:.3g}|{steps:,}",
    )
    cells = []
    for row in rows:
        more = f" and {len(row['arms']) - 1} more" if row["arms"][1:] else ""
        memory = f"{row['memory'] / 1e9:.2f}".replace(
            "nan", "-"
        )  # not known of a GPU that is not here
        numbers = [*form.format(**row).split("|"), f"{row['flops']:.2e}", memory]
        cells.append([row["arms"][0] + more, *numbers, duration(row["seconds"])])
    header = ["arms", "runs", "parameters", "FLOPs/byte", "steps", "FLOPs", "memory GB", "time"]
    runs, flops = sum(row["runs"] for row in rows), sum(row["runs"] * row["flops"] for row in rows)
    lines = [
        (
            f"{forecast['name']}: {runs} runs, {at_once} at a time, on {forecast['device']}; of one"
            " run:"
        ),
        text_table(header, cells),
        f"all runs: {flops:.2e} FLOPs, {duration(forecast['seconds'])}",
    ]
    if available := forecast["available"]:
        fitting = int(available // max(row["memory"] for row in rows))
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


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    return str(timedelta(seconds=round(seconds))) if seconds >= 0.5 else "under 1 s"
