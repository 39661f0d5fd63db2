"""Steps before the runs of a study: the search for learning rates, and the losses of n-grams on its windows.

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
from plkernel.common.files import REFERENCES, TUNING, name_at, save_json
from plkernel.config.schema import TrainSpec
from plkernel.config.study import Spec
from plkernel.data.windows import fixed_windows, training_windows
from plkernel.memory.diagnostics import AT_ONCE, Bytes, Table, moments, n_gram_losses, n_grams
from plkernel.results.study import REFERENCE_KEY, choices, reference_entries
from plkernel.training.loop import open_corpus

ORDERS = 5
MOST_BYTES = 2**26
"""Training bytes that are counted at most: some ten seconds, and of text less than a gigabyte of memory."""


def search_of(spec: Spec) -> Spec:
    """The study that looks for the learning rates of `spec`: an arm for every arm that has none, and rate."""
    changes: dict[str, Any] = {"truncation_windows": 0, "probe_windows": 0}  # which say nothing of a rate
    if spec.tuning.steps is not None:
        changes |= {"steps": spec.tuning.steps, "bytes": None}
    alone = {"rates": None, "match": None, "against": None, "levels": None}
    arms = {
        name_at(name, rate): arm.model_copy(update={"learning_rate": rate, **alone})
        for name, arm in spec.arms.items()
        if arm.learning_rate is None
        for rate in spec.rates_of(name)
    }
    sections: dict[str, Any] = {"corpus": spec.corpus, "model": spec.model, "seeds": spec.tuning.seeds, "arms": arms}
    sections |= {"train": spec.train.model_copy(update=changes), "baseline": next(iter(arms))}
    return Spec(name=f"{spec.name}-{TUNING}", **sections).trusting(spec.trusted)


def tuned(spec: Spec, out: Path) -> Spec:
    """The spec with the learning rates that the search in `out` has found."""
    arms = dict(spec.arms)
    for name, choice in choices({name: spec.rates_of(name) for name in arms}, out).items():
        if arms[name].learning_rate is None:
            arms[name] = arms[name].model_copy(update={"learning_rate": choice.rate})
    return spec.model_copy(update={"arms": arms})


def save_references(spec: Spec, arms: Sequence[str], out: Path) -> None:
    """Write the losses of n-grams on every corpus of `arms` to out/references.json, beside those of other corpora.

    An entry for the same corpus and the same windows is kept, a damaged file is written anew.
    """
    path, seed, train, steps = out / REFERENCES, spec.seeds[0], spec.train, spec.train.total_steps
    try:
        known = reference_entries(path)
    except ValueError as error:
        print(f"{error}; it is written anew", file=sys.stderr)
        known = []
    saved, there = [], steps * train.batch
    count = min(there, MOST_BYTES // train.context)
    words = f"those that the runs of seed {seed} read in {steps:,} steps"
    for section in dict.fromkeys(spec.condition(arm).corpus for arm in arms):
        corpus, splits = open_corpus(section, train.context)
        protocol = train.model_dump(include={"context", "batch", "eval_windows", "test_windows"})
        entry: dict[str, Any] = {
            "corpus": {**section.model_dump(mode="json"), "size": corpus.size, "sha256": corpus.sha256},
            "train": {**protocol, "steps": steps},
            "seed": seed,
            "training_bytes": count * train.context,
        }
        if kept := [one for one in known if all(one.get(name) == entry[name] for name in REFERENCE_KEY)]:
            saved.append(kept[0])
            continue
        with progress_bar(f"n-grams of {section.name}") as advance:
            blocks = _blocks(train, splits.train, seed, count)
            tables = n_grams((advance(len(block) / count) or block for block in blocks), ORDERS)
        entry |= {
            "model": "interpolated Witten-Bell n-grams of bytes",
            "training_windows": words if count == there else f"the first {count:,} of {there:,} windows: {words}",
            "orders": list(range(1, ORDERS + 1)),
            **_losses(tables, splits.validation, train.context, train.eval_windows, "val"),
            **_losses(tables, splits.test, train.context, train.test_windows, "test"),
        }
        saved.append(entry)
    corpora = [entry["corpus"] for entry in saved]
    saved += [entry for entry in known if entry["corpus"] not in corpora]
    if saved != known:
        save_json(path, {"references": saved})


def _losses(tables: tuple[Table, ...], text: Bytes, context: int, number: int, split: str) -> dict[str, Any]:
    """Bits per byte of every order on the windows of a split, and their standard errors over windows."""
    windows = fixed_windows(text, context, number)
    parts = windows.split(max(1, AT_ONCE // 4 // windows.shape[1]))
    each = [n_gram_losses(tables, part.numpy().astype(np.uint8)).mean(axis=2) for part in parts]
    means, errors = moments(np.concatenate(each, axis=1))
    return {f"{split}_bpb": list(means), f"{split}_error": list(errors)}


def _blocks(train: TrainSpec, data: Bytes, seed: int, count: int) -> Iterator[Bytes]:
    """The first `count` windows (n, context + 1) of training, some at a time."""
    batch = train.batch
    steps = max(1, AT_ONCE // (train.context + 1) // batch)
    for start in range(0, count, steps * batch):
        drawn = range(start // batch, min(start // batch + steps, -(-count // batch)))
        some = [training_windows(data, train.context, batch, seed, step).numpy().astype(np.uint8) for step in drawn]
        yield np.concatenate(some)[: count - start]
