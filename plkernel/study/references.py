"""What n-grams reach on the windows of a study, counted once before its runs are trained: OUT/references.json."""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from plkernel.analysis.trained.ngrams import AT_ONCE, Bytes, NGrams
from plkernel.common.cli import progress_bar
from plkernel.common.files import save_json
from plkernel.config.study import Spec
from plkernel.config.train import TrainSpec
from plkernel.data.corpora import Splits
from plkernel.data.windows import fixed_windows, training_windows
from plkernel.results.layout import REFERENCES
from plkernel.results.study import REFERENCE_KEY, reference_entries
from plkernel.training.task import open_corpus

ORDERS = 5
MOST_BYTES = 2**26
"""Training bytes that are counted at most: some ten seconds, and of text less than a gigabyte of memory."""


def save_references(spec: Spec, arms: Sequence[str], out: Path) -> None:
    """Write what n-grams reach on every corpus of `arms` to out/references.json, beside what is there of others.

    Counted are the windows of the study's first seed; validation and test windows are those of the runs. An entry that
    is there for the same corpus and the same windows is kept, a file that is damaged is written anew.
    """
    path, seed = out / REFERENCES, spec.seeds[0]
    known, found = _known(path), []
    for section in dict.fromkeys(spec.condition(arm).corpus for arm in arms):
        corpus, splits = open_corpus(section, spec.train.context)
        described = {**section.model_dump(mode="json"), "size": corpus.size, "sha256": corpus.sha256}
        key = _key(spec.train, described, splits.train, seed)
        kept = [entry for entry in known if all(entry.get(name) == key[name] for name in REFERENCE_KEY)]
        found.append(kept[0] if kept else {**key, **_counted(spec.train, splits, seed, key, section.name)})
    corpora = [entry["corpus"] for entry in found]
    found += [entry for entry in known if entry["corpus"] not in corpora]
    if found != known:
        save_json(path, {"references": found})


def _known(path: Path) -> list[dict[str, Any]]:
    try:
        return reference_entries(path)
    except ValueError as error:
        print(f"{error}; it is written anew", file=sys.stderr)
        return []


def _key(train: TrainSpec, corpus: dict[str, Any], data: Bytes, seed: int) -> dict[str, Any]:
    """REFERENCE_KEY of an entry: what decides its numbers."""
    steps, context = train.total_steps, train.context
    protocol = train.model_dump(include={"context", "batch", "eval_windows", "test_windows"})
    windows = min(_there(train, data), MOST_BYTES // context)
    return {
        "corpus": corpus,
        "train": {**protocol, "steps": steps},
        "seed": None if steps is None else seed,
        "training_bytes": windows * context,
    }


def _there(train: TrainSpec, data: Bytes) -> int:
    """Windows of a whole run; where its budget is time, of the training split."""
    steps = train.total_steps
    return (data.size - 1) // train.context if steps is None else steps * train.batch


def _counted(train: TrainSpec, splits: Splits, seed: int, key: dict[str, Any], name: str) -> dict[str, Any]:
    """The rest of an entry: what was counted, and what it reaches."""
    count, there = key["training_bytes"] // train.context, _there(train, splits.train)
    if train.total_steps is None:
        words = "the training split from its beginning, since the budget of the runs is time"
    else:
        words = f"those that the runs of seed {seed} read in {train.total_steps:,} steps"
    with progress_bar(f"n-grams of {name}") as advance:
        model = NGrams.of(_watched(_blocks(train, splits.train, seed, count), count, advance), ORDERS)
    validation = _judged(model, fixed_windows(splits.validation, train.context, train.eval_windows))
    test = _judged(model, fixed_windows(splits.test, train.context, train.test_windows))
    return {
        "model": "interpolated Witten-Bell n-grams of bytes, see analysis/trained/ngrams.py",
        "training_windows": words if count == there else f"the first {count:,} of {there:,} windows: {words}",
        "orders": list(range(1, ORDERS + 1)),
        **dict(zip(("val_bpb", "val_error"), validation, strict=True)),
        **dict(zip(("test_bpb", "test_error"), test, strict=True)),
    }


def _blocks(train: TrainSpec, data: Bytes, seed: int, count: int) -> Iterator[Bytes]:
    """The first `count` windows (n, context + 1) of training, some at a time."""
    context, batch = train.context, train.batch
    rows = max(1, AT_ONCE // (context + 1))
    if train.total_steps is None:
        whole = np.lib.stride_tricks.sliding_window_view(data, context + 1)[::context]  # each byte is a target once
        for start in range(0, count, rows):
            yield whole[start : min(start + rows, count)]
        return
    steps = max(1, rows // batch)
    for start in range(0, count, steps * batch):
        drawn = range(start // batch, min(start // batch + steps, -(-count // batch)))
        some = [training_windows(data, context, batch, seed, step).numpy().astype(np.uint8) for step in drawn]
        yield np.concatenate(some)[: count - start]


def _watched(blocks: Iterator[Bytes], count: int, advance: Callable[[float], Any]) -> Iterator[Bytes]:
    for block in blocks:
        yield block
        advance(len(block) / count)


def _judged(model: NGrams, windows: Tensor) -> tuple[list[float], list[float]]:
    """Bits per byte by order, and their standard errors, for which the windows are the units (NaN for one)."""
    parts = windows.split(max(1, AT_ONCE // 4 // windows.shape[1]))
    each = np.concatenate([model.losses(part.numpy().astype(np.uint8)).mean(axis=2) for part in parts], axis=1)
    n = each.shape[1]
    error = each.std(axis=1, ddof=1) / np.sqrt(n) if n > 1 else np.full(len(each), np.nan)
    return each.mean(axis=1).tolist(), error.tolist()
