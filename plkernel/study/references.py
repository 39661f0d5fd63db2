"""What a model is to be compared with: n-grams counted in the windows of a run, and LZMA."""

import lzma
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plkernel.analysis.exponentials import Floats
from plkernel.common import cli
from plkernel.common.files import REFERENCES, save_json
from plkernel.config.schema import TrainSpec
from plkernel.config.study import Spec
from plkernel.context.measures import moments
from plkernel.data.corpora import Splits
from plkernel.data.names import known_sequence
from plkernel.data.windows import Bytes, carried_windows, fixed_windows, training_windows
from plkernel.results.saved import REFERENCE_KEY, reference_entries
from plkernel.training.loop import open_corpus

Table = tuple[NDArray[np.uint64], NDArray[np.int64]]
"""Different keys (k,), ascending, and how often each was seen (k,), or its running total."""
AT_ONCE = 2**22
"""Bytes that are counted, or judged, at a time."""
ORDERS = 5
MOST_BYTES = 2**26
"""Training bytes that are counted at most: some ten seconds, and of text less than a gigabyte of
memory.
"""
WINDOWS = [2**12, 2**15, 2**18, 2**24]
"""Bytes that LZMA looks back."""


def save_references(spec: Spec, arms: Sequence[str], out: Path) -> None:
    """Write the losses of n-grams on every corpus of `arms` to out/references.json.

    They stand beside those of other corpora.

    An entry for the same corpus and the same windows is kept.
    """
    path, seed, train, steps = out / REFERENCES, spec.seeds[0], spec.train, spec.train.total_steps
    known = reference_entries(path)
    saved, there = [], steps * train.batch
    count = min(there, MOST_BYTES // train.context)
    words = f"those that the runs of seed {seed} read in {steps:,} steps"
    for section in dict.fromkeys(spec.condition(arm).corpus for arm in arms):
        corpus, splits = open_corpus(section, train.context)
        own = {"final_windows"} if train.final_windows else set()
        if train.carry:
            own.add("carry")
        protocol = train.model_dump(
            include={"context", "batch", "eval_windows", "test_windows"} | own
        )
        entry: dict[str, Any] = {
            "corpus": {
                **section.model_dump(mode="json"),
                "size": corpus.size,
                "sha256": corpus.sha256,
            },
            "train": {**protocol, "steps": steps},
            "seed": seed,
            "training_bytes": count * train.context,
        }
        text = known_sequence(section.name) is None
        if kept := [
            one for one in known if all(one.get(name) == entry[name] for name in REFERENCE_KEY)
        ]:
            saved.append(
                kept[0]
                if "lzma" in kept[0] or not text
                else {**kept[0], "lzma": compressed(splits)}
            )
            continue
        with cli.progress_bar(f"n-grams of {section.name}") as advance:
            blocks = _blocks(train, splits.train, seed, count)
            tables = n_grams((advance(len(block) / count) or block for block in blocks), ORDERS)
        entry |= {
            "model": "interpolated Witten-Bell n-grams of bytes",
            "training_windows": (
                words if count == there else f"the first {count:,} of {there:,} windows: {words}"
            ),
            "orders": list(range(1, ORDERS + 1)),
            **_losses(
                tables,
                splits.validation,
                train.context,
                train.final_windows or train.eval_windows,
                "val",
            ),
            **_losses(tables, splits.test, train.context, train.test_windows, "test"),
        }
        saved.append(entry | ({"lzma": compressed(splits)} if text else {}))
    corpora = [entry["corpus"] for entry in saved]
    saved += [entry for entry in known if entry["corpus"] not in corpora]
    if saved != known:
        save_json(path, {"references": saved})


def compressed(splits: Splits) -> dict[str, list[Any]]:
    """Bits per byte of LZMA on the validation text after the training text, by window.

    The difference of two sizes, with and without the validation text; at least 1 MiB of training
    text comes before it.
    """
    known: dict[str, list[Any]] = {"windows": WINDOWS, "val_bpb": []}
    with cli.progress_bar("LZMA") as advance, ThreadPoolExecutor(2) as pool:
        for window in WINDOWS:
            before, text = bytes(splits.train[-max(window, 2**20) :]), bytes(splits.validation)
            size = max(
                WINDOWS[0], min(window, len(before) + len(text))
            )  # a larger one only costs memory
            how = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": size}]
            encode = partial(lzma.compress, format=lzma.FORMAT_RAW, filters=how)
            whole, half = map(len, pool.map(encode, (before + text, before)))
            known["val_bpb"].append(8 * (whole - half) / len(text))
            advance(1 / len(WINDOWS))
    return known


def _losses(
    tables: tuple[Table, ...], text: Bytes, context: int, number: int, split: str
) -> dict[str, Any]:
    """Bits per byte of every order on windows of a split, and their errors over windows."""
    windows = fixed_windows(text, context, number)
    parts = windows.split(max(1, AT_ONCE // 4 // windows.shape[1]))
    each = [n_gram_losses(tables, part.numpy().astype(np.uint8)).mean(axis=2) for part in parts]
    means, errors = moments(np.concatenate(each, axis=1))
    return {f"{split}_bpb": list(means), f"{split}_error": list(errors)}


def _blocks(train: TrainSpec, data: Bytes, seed: int, count: int) -> Iterator[Bytes]:
    """The first `count` windows (n, context + 1) of training, some at a time."""
    batch = train.batch
    drawn_windows = carried_windows if train.carry else training_windows
    steps = max(1, AT_ONCE // (train.context + 1) // batch)
    for start in range(0, count, steps * batch):
        drawn = range(start // batch, min(start // batch + steps, -(-count // batch)))
        some = [
            drawn_windows(data, train.context, batch, seed, step).numpy().astype(np.uint8)
            for step in drawn
        ]
        yield np.concatenate(some)[: count - start]


def n_grams(blocks: Iterable[Bytes], orders: int = 5) -> tuple[Table, ...]:
    """Count the n-grams of blocks of windows (n, T + 1): T targets each, all after the first byte.

    Of every order 1 .. orders, at most 7, the n-grams as numbers to the base 256 (k,), ascending,
    and before each how many of all that were counted have a smaller one (k + 1,), with their number
    at the end. None reaches beyond its window, and repeated windows count repeatedly.
    """
    counted: list[list[Table]] = [
        [(np.empty(0, np.uint64), np.empty(0, np.int64))] for _ in range(orders)
    ]
    for block in blocks:
        rows = max(1, AT_ONCE // block.shape[1])
        for start in range(0, len(block), rows):
            for order, parts in enumerate(counted, start=1):
                parts.append(
                    np.unique(_keys(block[start : start + rows], order), return_counts=True)
                )
                if (
                    sum(keys.size for keys, _ in parts[1:]) >= parts[0][0].size
                ):  # each key is merged a few times
                    parts[:] = [_merged(parts)]
    return tuple((keys, np.r_[0, np.cumsum(counts)]) for keys, counts in map(_merged, counted))


def n_gram_losses(tables: Sequence[Table], windows: Bytes) -> Floats:
    """-log2 P_n of the targets of windows (n, T + 1), in bits: (orders, n, T).

    P_n(x|h) = (c(h,x) + N1+(h) P_{n-1}(x|h')) / (c(h) + N1+(h)), P_0 = 1/256: h are the n - 1 bytes
    before x, or as many as the window has, h' the same without the first of them, N1+(h) the number
    of different bytes seen after h; if h was never seen, P_n = P_{n-1}. Witten and Bell 1991
    (method C), interpolated as in Chen and Goodman 1999.
    """
    targets = len(windows), windows.shape[1] - 1
    losses = np.empty((len(tables), *targets))
    probability = np.full(targets, 1 / 256)
    for order, (known, before) in enumerate(tables, start=1):
        keys = _keys(windows, order)
        history = keys & ~np.uint64(255)
        first, end = (np.searchsorted(known, edge) for edge in (history, history + np.uint64(256)))
        this, after = (np.searchsorted(known, keys, side) for side in ("left", "right"))
        seen, different = before[end] - before[first], end - first
        lower = probability[:, targets[1] - keys.shape[1] :]
        mixed = before[after] - before[this] + different * lower
        np.divide(mixed, seen + different, out=lower, where=seen > 0)
        losses[order - 1] = -np.log2(probability)
    return losses


def _keys(windows: Bytes, order: int) -> NDArray[np.uint64]:
    """The n-grams that end at a target and begin in its window: (n, T), or fewer."""
    width = windows.shape[1]
    start = min(max(order - 1, 1), width)
    keys = np.zeros((len(windows), width - start), np.uint64)
    for back in range(order - 1, -1, -1):
        keys <<= np.uint64(8)
        keys |= windows[:, start - back : width - back]
    return keys


def _merged(tables: Sequence[Table]) -> Table:
    """Sum of tables of counts."""
    keys, at = np.unique(np.concatenate([keys for keys, _ in tables]), return_inverse=True)
    return keys, np.bincount(
        at, np.concatenate([counts for _, counts in tables]), keys.size
    ).astype(np.int64)
