"""Accuracy of recall, and the cost of reading on, in windows longer than those of training."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from plkernel.config.schema import RecallTestName
from plkernel.context.curve_figures import Curves
from plkernel.results.comparison import ArmBlock, ArmResult, Comparison
from plkernel.results.saved import RunResult

RECALL_TESTS: tuple[RecallTestName, ...] = ("persistence", "capacity")
"""Tests of recall: with the pairs of the corpus, and with a pair for every four bytes."""
Tests = Sequence[Mapping[str, Any]]
"""The tests of one run, as its result holds them."""


class Lines(NamedTuple):
    """Curves of arms in one panel, with the labels of its axes."""

    curves: dict[str, Curves]
    below: str
    left: str


# Recall


def recall_figures(
    comparison: Comparison, arm: ArmResult, column: str
) -> dict[tuple[str, int], dict[int, float]]:
    """The accuracy of an arm, or its bits, by test and length of the sequences, then by seed.

    column: accuracy, or bits. Empty where runs do not tell it.
    """
    found: dict[tuple[str, int], dict[int, float]] = {}
    for run in comparison.study.finished(arm.name):
        for one in _tests(run.result):
            if one.get(column) is not None:
                of_test = found.setdefault((one["test"], one["length"]), {})
                of_test[run.seed] = one[column]
    return found


def recall_lines(comparison: Comparison, block: ArmBlock) -> list[Lines]:
    """Accuracy by length in both tests, by distance in the one and by order in the other.

    The last two are those of the longest sequences. Empty where no run was tested.
    """
    arms = {}
    for arm in block.arms:
        runs = _alike_runs(comparison, arm)
        if runs:
            arms[comparison.label(arm)] = runs
    if not arms:
        return []
    panels = [_lines_by_length(arms, name) for name in RECALL_TESTS]
    panels.append(_lines_by_group(arms, "persistence", "distance", "bytes from pair to query"))
    panels.append(_lines_by_group(arms, "capacity", "order", "number of the pair"))
    return panels


def _lines_by_length(arms: Mapping[str, Sequence[Tests]], name: str) -> Lines:
    """Accuracy by the length of the sequences of a test."""
    first_run = next(iter(arms.values()))[0]
    pairs = sorted({one["pairs"] for one in _of_name(first_run, name)})
    amount = f"{pairs[0]:,} pairs" if len(pairs) == 1 else "more pairs in longer ones"
    curves = {label: _by_length(runs, name) for label, runs in arms.items()}
    return Lines(curves, "length of the sequences (bytes)", f"accuracy, {amount}")


def _lines_by_group(
    arms: Mapping[str, Sequence[Tests]], name: str, groups: str, below: str
) -> Lines:
    """Accuracy in the longest sequences of a test, by distance or by order; below: the label."""
    first_run = next(iter(arms.values()))[0]
    longest = _longest(first_run, name)
    curves = {label: _by_group(runs, name, groups) for label, runs in arms.items()}
    left = f"accuracy, {longest['pairs']:,} pairs in {longest['length']:,} bytes"
    return Lines(curves, below, left)


def _tests(result: RunResult) -> list[dict[str, Any]]:
    """The tests in the result of a run; none where it was not tested."""
    return list(result.recall.get("tests", ())) if result.recall else []


def _alike_runs(comparison: Comparison, arm: ArmResult) -> list[list[dict[str, Any]]]:
    """The tests of an arm's finished runs; runs with other tests than the first are left out."""
    runs = [_tests(run.result) for run in comparison.study.finished(arm.name)]
    tested = [tests for tests in runs if tests]
    return [tests for tests in tested if _places(tests) == _places(tested[0])]


def _of_name(tests: Tests, name: str) -> list[Mapping[str, Any]]:
    """The tests of one name, one for each length."""
    return [one for one in tests if one["test"] == name]


def _longest(tests: Tests, name: str) -> Mapping[str, Any]:
    """The test of this name in the longest sequences."""
    return max(_of_name(tests, name), key=lambda one: int(one["length"]))


def _places(tests: Tests) -> list[Any]:
    """The properties that curves must share to be averaged: their tests, lengths and groups."""
    return [
        (one["test"], one["length"], one["distance"]["up_to"], one["order"]["up_to"])
        for one in tests
    ]


def _by_length(runs: Sequence[Tests], name: str) -> Curves:
    """Accuracy by the length of the sequences, a row for each run."""
    lengths = tuple(one["length"] for one in _of_name(runs[0], name))
    rows = [[one["accuracy"] for one in _of_name(tests, name)] for tests in runs]
    return Curves(lengths, np.array(rows))


def _by_group(runs: Sequence[Tests], name: str, groups: str) -> Curves:
    """Accuracy by distance or by order in the longest sequences, a row for each run."""
    kept = [_longest(tests, name) for tests in runs]
    at = tuple(kept[0][groups]["up_to"])
    return Curves(at, np.array([one[groups]["accuracy"] for one in kept], dtype=float))


# Beyond the length of training


class BeyondBits(NamedTuple):
    """The losses of an arm in windows that are longer than those of training.

    context     the length of training; zero where no run has read longer windows
    along       bits per byte by the most bytes before, from that length on, and by seed
    reading_on  by the same, what is lost by reading on
    """

    context: int
    along: dict[int, dict[int, float]]
    reading_on: dict[int, dict[int, float]]


def beyond_bits(comparison: Comparison, arm: ArmResult) -> BeyondBits:
    """The windows beyond the length of training of an arm's finished runs."""
    context = 0
    along: dict[int, dict[int, float]] = {}
    reading_on: dict[int, dict[int, float]] = {}
    for run in comparison.study.finished(arm.name):
        found = run.result.beyond
        if not found:
            continue
        context = found["context"]
        for key, columns in (("positions", along), ("reading_on", reading_on)):
            for given, bits in zip(found[key]["given"], found[key]["bpb"], strict=True):
                if given >= context and bits is not None:
                    columns.setdefault(given, {})[run.seed] = bits
    return BeyondBits(context, along, reading_on)


def beyond_lines(comparison: Comparison, block: ArmBlock) -> list[Lines]:
    """Bits by position in long windows, and what reading on costs; empty where no run has them."""
    labels = {
        "positions": "bits per byte",
        "reading_on": "lost by reading on, bits per byte",
    }
    panels = []
    for key, left in labels.items():
        curves = {}
        for arm in block.arms:
            found = _beyond_curves(comparison, arm, key)
            if found is not None:
                curves[comparison.label(arm)] = found
        if curves:
            panels.append(Lines(curves, "bytes before, in the window", left))
    return panels


def _beyond_curves(comparison: Comparison, arm: ArmResult, key: str) -> Curves | None:
    """A row for each finished run of an arm that read as long windows as the first; None if none.

    key: positions, or reading_on
    """
    found = []
    for run in comparison.study.finished(arm.name):
        if run.result.beyond:
            found.append(run.result.beyond[key])
    if not found:
        return None
    given = found[0]["given"]
    rows = [one["bpb"] for one in found if one["given"] == given]
    return Curves(tuple(given), np.array(rows, dtype=float))
