"""Recall of a model: accuracy and bits by length, by distance and by the order of pairs."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from plkernel.context.measures import lengths, moments
from plkernel.data.recall import queries
from plkernel.training.evaluate import Predict, logits_of, losses_per_byte
from plkernel.training.recall_task import RecallTask, asked_in

FLOOR = {"accuracy": 1.0, "bits": 0.0}
"""Of the best prediction of the answers, whatever the sequence."""
ORDERS = 8
"""Groups of pairs by their order."""


def recall_results(predict: Predict, task: RecallTask, batch: int) -> dict[str, Any]:
    """The floor and all tests of a task, for JSON.

    Each has as many sequences as the test figure. A call of `predict` gets at most `batch` times
    the length of training in bytes, or one sequence.
    """
    tests = []
    for name, law in task.tests():
        windows = task.longer(law, task.train.test_windows)
        rows = max(1, batch * task.law.length // law.length)
        facts = {"test": name, "length": law.length, "pairs": law.pairs, "power": law.power}
        tests.append(facts | recalled(predict, windows, rows))
    return {"floor": FLOOR, "tests": tests}


def recalled(predict: Predict, windows: Tensor, batch: int) -> dict[str, Any]:
    """Accuracy and bits of the answers in windows (n, T+1) of whole sequences, for JSON.

    Their standard errors are those of n means of sequences. distance: by the bytes between the key
    in its pair and the key that asks, grouped up to 2, 4, 8 .. of them. order: by the number of the
    pair in its sequence, from 1, in ORDERS groups. Groups without a query are left out.
    """
    found = queries(windows[:, :-1].numpy())
    all_asked = asked_in(windows)
    bits = np.empty(found.query.shape)
    is_right = np.empty(found.query.shape)
    for start in range(0, len(windows), batch):
        end = start + batch
        logits = logits_of(predict, windows[start:end, :-1], start)
        asked = all_asked.rows(start, end).to(logits.device)
        logits = asked.logits(logits)
        bits[start:end] = losses_per_byte(logits, asked.answers).cpu().numpy()
        is_right[start:end] = (logits.argmax(-1) == asked.answers).cpu().numpy()
    means, errors = moments(np.stack([is_right.mean(axis=1), bits.mean(axis=1)]))
    known = [error if math.isfinite(error) else None for error in errors]
    pairs = found.query.shape[1]
    order = np.broadcast_to(np.arange(1, pairs + 1), bits.shape)
    ends = sorted({math.ceil(pairs * part / ORDERS) for part in range(1, ORDERS + 1)})
    return {
        "sequences": len(windows),
        "accuracy": means[0],
        "accuracy_error": known[0],
        "bits": means[1],
        "bits_error": known[1],
        "distance": by_group(found.distance, lengths(windows.shape[1] - 1), is_right, bits),
        "order": by_group(order, ends, is_right, bits),
    }


def by_group(
    values: NDArray[np.int64],
    ends: list[int],
    is_right: NDArray[np.float64],
    bits: NDArray[np.float64],
) -> dict[str, list[Any]]:
    """Accuracy and bits by `values`, all (n, K), grouped from above one of `ends` up to the next.

    Returns columns: the ends of groups that are not empty, the queries in each, and the two means.
    """
    group = np.searchsorted(ends, values).ravel()
    counts = np.bincount(group, minlength=len(ends))
    right = np.bincount(group, weights=is_right.ravel(), minlength=len(ends))
    total = np.bincount(group, weights=bits.ravel(), minlength=len(ends))
    known = np.flatnonzero(counts)
    return {
        "up_to": [ends[index] for index in known],
        "queries": counts[known].tolist(),
        "accuracy": (right[known] / counts[known]).tolist(),
        "bits": (total[known] / counts[known]).tolist(),
    }
