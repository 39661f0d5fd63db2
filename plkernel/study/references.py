"""References to compare a model with: n-grams counted in the windows of a run, and LZMA."""

import lzma
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plkernel.analysis.exponentials import Floats
from plkernel.common import cli
from plkernel.common.corpus_names import is_synthetic
from plkernel.common.files import REFERENCES, save_json
from plkernel.config.resolved import ResolvedSpec
from plkernel.config.schema import MOST_ORDERS, CorpusSpec, TrainSpec
from plkernel.config.spec import Spec
from plkernel.context.measures import moments
from plkernel.data.corpora import Corpus, Splits
from plkernel.data.names import recall_of
from plkernel.data.windows import Bytes, carried_windows, fixed_windows, training_windows
from plkernel.results.saved import REFERENCE_KEY, reference_entries
from plkernel.training.loop import open_corpus

Counts = tuple[NDArray[np.uint64], NDArray[np.int64]]
"""Different keys (k,), ascending, and how often each was seen (k,), or its running total."""
ReferenceEntry = dict[str, Any]
"""Entry of one corpus in references.json."""
AT_ONCE = 2**22
"""Bytes that are counted at a time; a quarter as many are judged at a time, in float64."""
MOST_BYTES = 2**26
"""Training bytes that are counted at most: some ten seconds, and of text less than a gigabyte of
memory.
"""
WINDOWS = [2**12, 2**15, 2**18, 2**24]
"""Bytes that LZMA looks back."""


def save_references(study: ResolvedSpec, arms: Sequence[str], out: Path) -> None:
    """Write the losses of n-grams on every corpus of `arms` to out/references.json.

    Corpora of recall are left out: counts answer nothing there. Entries for other corpora, and one
    for the same corpus and the same windows, are kept.
    """
    path = out / REFERENCES
    known = reference_entries(path)
    saved = [
        _reference(study.spec, section, known)
        for section in dict.fromkeys(study.conditions[arm].corpus for arm in arms)
        if recall_of(section.name) is None
    ]
    corpora = [entry["corpus"] for entry in saved]
    saved += [entry for entry in known if entry["corpus"] not in corpora]
    if saved != known:
        save_json(path, {"references": saved})


def _reference(spec: Spec, section: CorpusSpec, known: Iterable[ReferenceEntry]) -> ReferenceEntry:
    """Return the entry of a corpus: that of `known` with the same key, or a new one."""
    corpus, splits = open_corpus(section, spec.train.context)
    key = _key(spec, section, corpus)
    same = [one for one in known if all(one.get(name) == key[name] for name in REFERENCE_KEY)]
    entry = same[0] if same else key | _counted(spec, section, splits)
    is_text = not is_synthetic(section.name)
    if is_text and "lzma" not in entry:
        entry = {**entry, "lzma": lzma_bits(splits)}
    return entry


def _key(spec: Spec, section: CorpusSpec, corpus: Corpus) -> ReferenceEntry:
    """Return what decides the numbers of an entry, see REFERENCE_KEY."""
    train = spec.train
    names = {"context", "batch", "eval_windows", "test_windows"}
    if train.final_windows:
        names.add("final_windows")
    if train.carry:
        names.add("carry")
    return {
        "corpus": {
            **section.model_dump(mode="json"),
            "size": corpus.size,
            "sha256": corpus.sha256,
        },
        "train": {**train.model_dump(include=names), "steps": train.total_steps},
        "seed": spec.seeds[0],
        "training_bytes": _window_count(train) * train.context,
    }


def _window_count(train: TrainSpec) -> int:
    """Return the number of training windows that are counted."""
    return min(train.total_steps * train.batch, MOST_BYTES // train.context)


def _counted(spec: Spec, section: CorpusSpec, splits: Splits) -> ReferenceEntry:
    """Return the losses of n-grams that are counted in the windows of the first seed's runs."""
    train = spec.train
    seed = spec.seeds[0]
    count = _window_count(train)
    there = train.total_steps * train.batch
    words = f"those that the runs of seed {seed} read in {train.total_steps:,} steps"
    if count < there:
        words = f"the first {count:,} of {there:,} windows: {words}"
    with cli.progress_bar(f"n-grams of {section.name}") as advance:
        blocks = _blocks(train, splits.train, seed, count)
        tables = n_grams(_advancing(blocks, count, advance), MOST_ORDERS)
    validation_windows = train.final_windows or train.eval_windows
    return {
        "model": "interpolated Witten-Bell n-grams of bytes",
        "training_windows": words,
        "orders": list(range(1, MOST_ORDERS + 1)),
        **_losses(tables, splits.validation, train.context, validation_windows, "val"),
        **_losses(tables, splits.test, train.context, train.test_windows, "test"),
    }


def _advancing(
    blocks: Iterable[Bytes], count: int, advance: Callable[[float], Any]
) -> Iterator[Bytes]:
    """Yield blocks of `count` windows in all, and tell `advance` the share of each."""
    for block in blocks:
        advance(len(block) / count)
        yield block


def lzma_bits(splits: Splits) -> dict[str, list[Any]]:
    """Bits per byte of LZMA on the validation text after the training text, by window.

    The difference of two sizes, with and without the validation text. Before it comes the end of
    the training text: as many bytes as the window has, at least 1 MiB, or all of a shorter text.
    """
    losses: list[float] = []
    with cli.progress_bar("LZMA") as advance, ThreadPoolExecutor(2) as pool:
        for window in WINDOWS:
            before = bytes(splits.train[-max(window, 2**20) :])
            text = bytes(splits.validation)
            # a larger one only costs memory
            size = max(WINDOWS[0], min(window, len(before) + len(text)))
            how = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": size}]
            encode = partial(lzma.compress, format=lzma.FORMAT_RAW, filters=how)
            with_text, without = map(len, pool.map(encode, (before + text, before)))
            losses.append(8 * (with_text - without) / len(text))
            advance(1 / len(WINDOWS))
    return {"windows": WINDOWS, "val_bpb": losses}


def _losses(
    tables: tuple[Counts, ...], text: Bytes, context: int, number: int, split: str
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
    windows_of = carried_windows if train.carry else training_windows
    last_step = math.ceil(count / batch)
    together = max(1, AT_ONCE // (train.context + 1) // batch)
    for first in range(0, last_step, together):
        steps = range(first, min(first + together, last_step))
        drawn = [
            windows_of(data, train.context, batch, seed, step).numpy().astype(np.uint8)
            for step in steps
        ]
        left = count - first * batch
        yield np.concatenate(drawn)[:left]


def n_grams(blocks: Iterable[Bytes], orders: int = MOST_ORDERS) -> tuple[Counts, ...]:
    """Count the n-grams of blocks of windows (n, T + 1): T targets each, all after the first byte.

    Of every order 1 .. orders, at most 7, the n-grams as numbers to the base 256 (k,), ascending,
    and before each how many of all that were counted have a smaller one (k + 1,), with their number
    at the end. None reaches beyond its window, and repeated windows count repeatedly.
    """
    counted: list[list[Counts]] = [
        [(np.empty(0, np.uint64), np.empty(0, np.int64))] for _ in range(orders)
    ]
    for block in blocks:
        rows = max(1, AT_ONCE // block.shape[1])
        for start in range(0, len(block), rows):
            for order, parts in enumerate(counted, start=1):
                keys = _keys(block[start : start + rows], order)
                parts.append(np.unique(keys, return_counts=True))
                # so each key is merged a few times only
                if sum(keys.size for keys, _ in parts[1:]) >= parts[0][0].size:
                    parts[:] = [_merged(parts)]
    return tuple((keys, np.r_[0, np.cumsum(counts)]) for keys, counts in map(_merged, counted))


def n_gram_losses(tables: Sequence[Counts], windows: Bytes) -> Floats:
    """-log2 P_n of the targets of windows (n, T + 1), in bits: (orders, n, T).

    P_n(x|h) = (c(h,x) + N1+(h) P_{n-1}(x|h')) / (c(h) + N1+(h)), P_0 = 1/256: h are the n - 1 bytes
    before x, or as many as the window has, h' the same without the first of them, N1+(h) the number
    of different bytes seen after h; if h was never seen, P_n = P_{n-1}. Witten and Bell 1991
    (method C), interpolated as in Chen and Goodman 1999.
    """
    count = len(windows)
    length = windows.shape[1] - 1
    losses = np.empty((len(tables), count, length))
    probability = np.full((count, length), 1 / 256)
    for order, (known, before) in enumerate(tables, start=1):
        keys = _keys(windows, order)
        # The n-grams with the same history stand together, from h 00 to h ff.
        history = keys & ~np.uint64(255)
        first = np.searchsorted(known, history)
        end = np.searchsorted(known, history + np.uint64(256))
        seen = before[end] - before[first]
        different = end - first
        this = np.searchsorted(known, keys, "left")
        after = np.searchsorted(known, keys, "right")
        seen_with_target = before[after] - before[this]
        # Targets near the start of a window have no history so long, and keep the lower order.
        lower = probability[:, length - keys.shape[1] :]
        mixed = seen_with_target + different * lower
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


def _merged(tables: Sequence[Counts]) -> Counts:
    """Sum of tables of counts."""
    every_key = np.concatenate([keys for keys, _ in tables])
    every_count = np.concatenate([counts for _, counts in tables])
    keys, at = np.unique(every_key, return_inverse=True)
    return keys, np.bincount(at, every_count, keys.size).astype(np.int64)
