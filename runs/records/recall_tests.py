"""Recall beyond the length of training: the figure of a study, its accuracy by distance and order.

A test is "persistence", with the pairs of the corpus, or "capacity", with a pair for every four
bytes. Lengths are in multiples of the length of training.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from plkernel.analysis.figures.style import INK, PAGE_WIDTH, legend_below, line_style, style
from plkernel.results.statistics import Estimate, mean_interval, paired_difference
from plkernel.results.study import Study, read_study

RECORDS = Path(__file__).resolve().parent
Floats = NDArray[np.float64]
BELOW = ("length, in lengths of training", "bytes from pair to query", "points")
"""Labels of the three panels of a row."""
ROOM = 6
"""Ticks of an axis whose labels do not overlap."""
FEWEST = 1000
"""Queries of a distance that are enough for a mean over seeds to be shown."""


@cache
def study_of(name: str) -> Study:
    """Return a study of this folder, which is read once."""
    return read_study(RECORDS / name)


def tests_of(study: str, test: str) -> dict[str, dict[int, dict[int, Any]]]:
    """Return a test of recall of every finished run, by arm, length and seed."""
    found: dict[str, dict[int, dict[int, Any]]] = {}
    for run in study_of(study).finished():
        context = run.config["train"]["context"]
        for one in (run.result.recall or {}).get("tests", ()):
            if one["test"] == test:
                by_length = found.setdefault(run.arm, {})
                by_length.setdefault(one["length"] // context, {})[run.seed] = one
    return found


def right_answers(runs: Mapping[int, Any]) -> dict[int, float]:
    """Return the accuracy in % of a test by seed."""
    return {seed: 100 * one["accuracy"] for seed, one in runs.items()}


def by_group(runs: Mapping[int, Any], groups: str = "distance") -> dict[int, Floats]:
    """Return the right answers of each run, as a share, by the largest number of a group.

    groups: by distance from pair to query, or by order of the pair. They are those that all runs
    have; one with fewer than FEWEST queries in all runs together is left out.
    """
    columns = [one[groups] for one in runs.values()]
    ends = sorted(set.intersection(*(set(one["up_to"]) for one in columns)))
    found = {}
    for end in ends:
        places = [one["up_to"].index(end) for one in columns]
        queries = sum(one["queries"][at] for one, at in zip(columns, places, strict=True))
        if queries >= FEWEST:
            right = [one["accuracy"][at] for one, at in zip(columns, places, strict=True)]
            found[end] = np.array(right)
    return found


def figure(study: str) -> Figure:
    """Draw the accuracy of arms by length and by distance, and their leads at the longest length.

    Each block of the study has a row; queries are anywhere behind their pairs ("persistence").
    Means over seeds, and of the leads 95 % t intervals; strokes are seeds.
    """
    found = study_of(study)
    tests = tests_of(study, "persistence")
    baselines = [arm for arm in found.arms if found.against(arm) is None]
    longest = max(tests[baselines[0]])
    (pairs,) = {one["pairs"] for one in tests[baselines[0]][longest].values()}
    with style():
        drawing = Figure(figsize=(PAGE_WIDTH, 0.8 + 2.4 * len(baselines)))
        rows = drawing.subplots(
            len(baselines), 3, width_ratios=[1, 1, 1.1], sharex="col", sharey="col", squeeze=False
        )
        for (by_length, far, lead), baseline in zip(rows, baselines, strict=True):
            arms = [arm for arm in found.arms if baseline in (arm, found.against(arm))]
            for look, arm in enumerate(arms):
                _draw_lengths(by_length, look, tests[arm])
                _draw_distances(far, look, tests[arm][longest])
            _draw_leads(lead, [(start(found, arm), tests[arm][longest]) for arm in arms])
            at = block(found, baseline)
            by_length.set(title=", ".join([f"{pairs} pairs", *at]), ylabel="right answers (%)")
            far.set(title=f"at {longest} times the length")
            lead.set(title=f"minus {start(found, baseline)}, {longest} times")
        for axes, below in zip(rows[-1], BELOW, strict=True):
            axes.set(xlabel=below)
        legend_below(drawing, [start(found, arm) for arm in arms])
    return drawing


def block(found: Study, arm: str) -> list[str]:
    """Return the levels of the factors within which an arm is compared, as in "rate slow"."""
    return [f"{factor} {found.levels(arm)[factor]}" for factor in found.within]


def start(found: Study, arm: str) -> str:
    """Return the other levels of an arm, or its name where the study has no factors."""
    levels = found.levels(arm)
    others = [level for factor, level in levels.items() if factor not in found.within]
    return ", ".join(others) or arm


def _draw_lengths(axes: Axes, look: int, lengths: Mapping[int, Mapping[int, Any]]) -> None:
    """Draw the accuracy of an arm by length."""
    means = [np.mean([*right_answers(runs).values()]) for runs in lengths.values()]
    axes.plot([*lengths], means, lw=1.2, **line_style(look))
    _name_octaves(axes, lengths)


def _draw_distances(axes: Axes, look: int, runs: Mapping[int, Any]) -> None:
    """Draw the accuracy of an arm by distance."""
    found = by_group(runs)
    means = [100 * values.mean() for values in found.values()]
    axes.plot([*found], means, lw=1.2, **line_style(look))
    _name_octaves(axes, found)


def _name_octaves(axes: Axes, values: Iterable[int]) -> None:
    """Give an axis the logarithmic scale of base 2, with a tick at each value.

    Where there are more than ROOM of them, every other has a label, the last one among them.
    """
    ticks = [*values]
    every = 1 if len(ticks) <= ROOM else 2
    named = ticks[::-every]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:,}" if tick in named else "" for tick in ticks])
    axes.minorticks_off()


def _draw_leads(axes: Axes, arms: Sequence[tuple[str, Mapping[int, Any]]]) -> None:
    """Draw the paired differences of named arms to the first, at one length, one line an arm."""
    (_, baseline), *others = arms
    base = right_answers(baseline)
    for place, (_, runs) in enumerate(others):
        found = paired_difference(right_answers(runs), base)
        points = [*found.per_seed.values()]
        axes.plot(points, [place + 0.3] * len(points), "|", ms=4, color=INK, alpha=0.4)
        axes.errorbar(
            [found.mean],
            [place],
            xerr=[found.mean - found.low],
            fmt="o",
            ms=4,
            color=INK,
            capsize=2,
        )
    axes.axvline(0.0, color=INK, lw=0.6)
    axes.set_yticks(range(len(others)), [name for name, _ in others])
    axes.yaxis.set_inverted(True)  # also where the axis is shared


def changes_by_levelling(study: str) -> dict[str, dict[str, Estimate]]:
    """Return the points that levelled heads change right answers by at the longest length, by arm.

    By distance in "persistence", as `by_group` has it, and of all queries in "capacity".
    """
    found: dict[str, dict[str, Estimate]] = {}
    for arm in dict.fromkeys(row["arm"] for row in _levelled_rows(study)):
        before, after = _levelled(study, arm, "persistence")
        shares = by_group(before)
        columns = {
            f"{end:,}": mean_interval(100 * (changed - shares[end]))
            for end, changed in by_group(after).items()
        }
        before, after = _levelled(study, arm, "capacity")
        as_they_are = right_answers(before)
        points = [share - as_they_are[seed] for seed, share in right_answers(after).items()]
        columns["where pairs grow"] = mean_interval(points)
        found[arm] = columns
    return found


def growth(study: str, arm: str) -> float:
    """Return the size of what heads give at the longest length over that within training.

    The geometric mean over layers and seeds, in "persistence".
    """
    _, after = _levelled(study, arm, "persistence")
    sizes = np.array([one["layers"] for one in after.values()])
    return float(np.exp(np.log(sizes[:, :, -1] / sizes[:, :, 0]).mean()))


@cache
def _levelled_rows(study: str) -> list[dict[str, Any]]:
    """Return the rows of levelled.json, which is read once."""
    rows: list[dict[str, Any]] = json.loads((RECORDS / study / "levelled.json").read_text())["rows"]
    return rows


def _levelled(study: str, arm: str, test: str) -> tuple[dict[int, Any], dict[int, Any]]:
    """Return a test at the longest length by seed, of heads as they are and of levelled ones."""
    by_length = tests_of(study, test)[arm]
    before = by_length[max(by_length)]
    rows = _levelled_rows(study)
    longest = max(row["length"] for row in rows)
    by_seed = {
        row["seed"]: row
        for row in rows
        if (row["arm"], row["test"], row["length"]) == (arm, test, longest)
    }
    missing = before.keys() - by_seed.keys()
    assert not missing, f"levelled.json has no {arm} of seeds {sorted(missing)}"
    return before, {seed: by_seed[seed] for seed in before}
