"""What comes before the runs of a study: the search for learning rates, and what n-grams reach on its windows.

The search is OUT/tuning, a study like any other. Each arm of a spec with tuning.rates that gives no learning rate is
trained at every rate of the grid on every tuning seed; the rate with the lowest mean validation loss at the end is the
arm's, and a run that diverges loses. The budget is the same for every arm: rates x seeds x steps.

n-grams are counted once, in the windows that the runs of the first seed read: OUT/references.json.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plkernel.common.cli import progress_bar
from plkernel.common.files import save_json
from plkernel.common.layout import REFERENCES, TUNING, name_at
from plkernel.config.schema import TrainSpec
from plkernel.config.study import Spec
from plkernel.data.corpora import Splits
from plkernel.data.windows import fixed_windows, training_windows
from plkernel.memory.diagnostics import AT_ONCE, Bytes, NGrams
from plkernel.results.study import REFERENCE_KEY, choices, reference_entries
from plkernel.training.loop import open_corpus

ORDERS = 5
MOST_BYTES = 2**26
"""Training bytes that are counted at most: some ten seconds, and of text less than a gigabyte of memory."""


def search_of(spec: Spec) -> Spec:
    """The study that looks for the learning rates of `spec`: an arm for every arm that has none, and rate."""
    tuning, train = spec.tuning, spec.train
    if tuning.steps is not None:
        train = train.model_copy(update={"steps": tuning.steps, "bytes": None, "minutes": None})
    train = train.model_copy(update={"truncation_windows": 0, "probe_windows": 0})  # which say nothing of a rate
    arms = {
        name_at(name, rate): arm.model_copy(
            update={"learning_rate": rate, "rates": None, "match": None, "against": None, "levels": None}
        )
        for name, arm in spec.arms.items()
        if arm.learning_rate is None
        for rate in spec.rates_of(name)
    }
    name, seeds, baseline = f"{spec.name}-{TUNING}", tuning.seeds, next(iter(arms))
    sections: dict[str, Any] = {"corpus": spec.corpus, "model": spec.model, "train": train, "arms": arms}
    return Spec(name=name, baseline=baseline, seeds=seeds, **sections).trusting(spec.trusted)


def tuned(spec: Spec, out: Path) -> Spec:
    """The spec with the learning rates that the search in `out` has found."""
    chosen = choices({name: spec.rates_of(name) for name in spec.arms}, out)
    arms = {
        name: arm.model_copy(update={"learning_rate": chosen[name].rate})
        if name in chosen and arm.learning_rate is None
        else arm
        for name, arm in spec.arms.items()
    }
    return spec.model_copy(update={"arms": arms})


def save_references(spec: Spec, arms: Sequence[str], out: Path) -> None:
    """Write what n-grams reach on every corpus of `arms` to out/references.json, beside what is there of others.

    Counted are the windows of the study's first seed; validation and test windows are those of the runs. An entry that
    is there for the same corpus and the same windows is kept, a file that is damaged is written anew.
    """
    path, seed, train = out / REFERENCES, spec.seeds[0], spec.train
    try:
        known = reference_entries(path)
    except ValueError as error:
        print(f"{error}; it is written anew", file=sys.stderr)
        known = []
    saved = []
    protocol = train.model_dump(include={"context", "batch", "eval_windows", "test_windows"})
    for section in dict.fromkeys(spec.condition(arm).corpus for arm in arms):
        corpus, splits = open_corpus(section, train.context)
        there = _there(train, splits.train)
        key = {
            "corpus": {**section.model_dump(mode="json"), "size": corpus.size, "sha256": corpus.sha256},
            "train": {**protocol, "steps": train.total_steps},
            "seed": None if train.total_steps is None else seed,
            "training_bytes": min(there, MOST_BYTES // train.context) * train.context,
        }
        kept = [entry for entry in known if all(entry.get(name) == key[name] for name in REFERENCE_KEY)]
        saved.append(kept[0] if kept else {**key, **_counted(train, splits, seed, key, section.name)})
    corpora = [entry["corpus"] for entry in saved]
    saved += [entry for entry in known if entry["corpus"] not in corpora]
    if saved != known:
        save_json(path, {"references": saved})


def _there(train: TrainSpec, data: Bytes) -> int:
    """Windows of a whole run; where its budget is time, of the training split."""
    return (data.size - 1) // train.context if train.total_steps is None else train.total_steps * train.batch


def _counted(train: TrainSpec, splits: Splits, seed: int, key: dict[str, Any], name: str) -> dict[str, Any]:
    """The rest of an entry: what was counted, and what it reaches."""
    count, there = key["training_bytes"] // train.context, _there(train, splits.train)
    if train.total_steps is None:
        words = "the training split from its beginning, since the budget of the runs is time"
    else:
        words = f"those that the runs of seed {seed} read in {train.total_steps:,} steps"
    with progress_bar(f"n-grams of {name}") as advance:

        def watched() -> Iterator[Bytes]:
            for block in _blocks(train, splits.train, seed, count):
                yield block
                advance(len(block) / count)

        model = NGrams.of(watched(), ORDERS)
    entry = {
        "model": "interpolated Witten-Bell n-grams of bytes, see analysis/trained/ngrams.py",
        "training_windows": words if count == there else f"the first {count:,} of {there:,} windows: {words}",
        "orders": list(range(1, ORDERS + 1)),
    }
    for split, text, number in (
        ("val", splits.validation, train.eval_windows),
        ("test", splits.test, train.test_windows),
    ):
        windows = fixed_windows(text, train.context, number)
        parts = windows.split(max(1, AT_ONCE // 4 // windows.shape[1]))
        each = np.concatenate([model.losses(part.numpy().astype(np.uint8)).mean(axis=2) for part in parts], axis=1)
        n = each.shape[1]  # windows are the units of the standard errors
        error = each.std(axis=1, ddof=1) / np.sqrt(n) if n > 1 else np.full(len(each), np.nan)
        entry |= {f"{split}_bpb": each.mean(axis=1).tolist(), f"{split}_error": error.tolist()}
    return entry


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
