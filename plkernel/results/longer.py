"""What runs recall, and what reading on costs, in windows up to some times those of training."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from plkernel.context.curve_figures import Curves
from plkernel.results.comparison import ArmBlock, ArmResult, Comparison

RECALL_TESTS = ("persistence", "capacity")
"""Tests of recall: with the pairs of the corpus, and with a pair for every four bytes."""


class Lines(NamedTuple):
    """Curves of arms in one panel, with the labels of its axes."""

    curves: dict[str, Curves]
    below: str
    left: str


# Recall


def recall_accuracy(
    comparison: Comparison, arm: ArmResult
) -> dict[tuple[str, int], dict[int, float]]:
    """The share of right answers of an arm by test and length of the sequences, then by seed."""
    found: dict[tuple[str, int], dict[int, float]] = {}
    for run in comparison.study.finished(arm.name):
        for one in _tests(run.result):
            of_test = found.setdefault((one["test"], one["length"]), {})
            of_test[run.seed] = one["accuracy"]
    return found


def recall_lines(comparison: Comparison, block: ArmBlock) -> list[Lines]:
    """Accuracy by length in both tests, by distance in the one and by order in the other.

    The last two are those of the longest sequences. Empty where no run was tested.
    """
    arms = {comparison.label(arm): _seeds_of(comparison, arm) for arm in block.arms}
    arms = {label: runs for label, runs in arms.items() if runs}
    if not arms:
        return []
    tests = next(iter(arms.values()))[0]
    panels = []
    for name in RECALL_TESTS:
        of_test = [one for one in tests if one["test"] == name]
        pairs = sorted({one["pairs"] for one in of_test})
        amount = f"{pairs[0]:,} pairs" if len(pairs) == 1 else "more pairs in longer ones"
        curves = {label: _by_length(runs, name) for label, runs in arms.items()}
        panels.append(Lines(curves, "length of the sequences (bytes)", f"accuracy, {amount}"))
    for name, groups, below in (
        ("persistence", "distance", "bytes from pair to query"),
        ("capacity", "order", "number of the pair"),
    ):
        longest = max((one for one in tests if one["test"] == name), key=lambda one: one["length"])
        curves = {label: _by_group(runs, name, groups) for label, runs in arms.items()}
        left = f"accuracy, {longest['pairs']:,} pairs in {longest['length']:,} bytes"
        panels.append(Lines(curves, below, left))
    return panels


def _tests(result: Any) -> list[dict[str, Any]]:
    return list((result.recall or {}).get("tests", ())) if result else []


def _seeds_of(comparison: Comparison, arm: ArmResult) -> list[list[dict[str, Any]]]:
    """The tests of every finished run of an arm, of those that took the same as the first."""
    runs = [_tests(run.result) for run in comparison.study.finished(arm.name)]
    runs = [tests for tests in runs if tests]
    return [tests for tests in runs if _places(tests) == _places(runs[0])]


def _places(tests: Sequence[Mapping[str, Any]]) -> list[Any]:
    """What decides at which positions the curves of some tests stand."""
    return [
        (one["test"], one["length"], one["distance"]["up_to"], one["order"]["up_to"])
        for one in tests
    ]


def _by_length(runs: Sequence[Sequence[Mapping[str, Any]]], name: str) -> Curves:
    kept = [[one for one in tests if one["test"] == name] for tests in runs]
    lengths = tuple(one["length"] for one in kept[0])
    return Curves(lengths, np.array([[one["accuracy"] for one in tests] for tests in kept]))


def _by_group(runs: Sequence[Sequence[Mapping[str, Any]]], name: str, groups: str) -> Curves:
    """Accuracy by distance or by order in the longest sequences of a test."""
    kept = [
        max((one for one in tests if one["test"] == name), key=lambda one: int(one["length"]))
        for tests in runs
    ]
    at = tuple(kept[0][groups]["up_to"])
    return Curves(at, np.array([one[groups]["accuracy"] for one in kept], dtype=float))


# Beyond the length of training


class BeyondBits(NamedTuple):
    """What an arm does in windows that are longer than those of training.

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
        found = run.result.beyond if run.result else None
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
    panels = []
    for key, left in (
        ("positions", "bits per byte"),
        ("reading_on", "lost by reading on, bits per byte"),
    ):
        curves = {}
        for arm in block.arms:
            results = [run.result for run in comparison.study.finished(arm.name)]
            found = [one.beyond[key] for one in results if one is not None and one.beyond]
            found = [one for one in found if one["given"] == found[0]["given"]]
            if found:
                bits = np.array([one["bpb"] for one in found], dtype=float)
                curves[comparison.label(arm)] = Curves(tuple(found[0]["given"]), bits)
        if curves:
            panels.append(Lines(curves, "bytes before, in the window", left))
    return panels
