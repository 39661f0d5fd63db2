"""Recall beyond the length of training: the figure of a study, and its accuracy by distance.

A test is "persistence", with the pairs of the corpus, or "capacity", with a pair for every four
bytes. Lengths are in multiples of the length of training.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from plkernel.analysis.figures.style import INK, PAGE_WIDTH, legend_below, line_style, style
from plkernel.results.statistics import paired_difference
from plkernel.results.study import read_study

RECORDS = Path(__file__).resolve().parent
Floats = NDArray[np.float64]
FEWEST = 1000
"""Queries of a distance that are enough for a mean over seeds to be shown."""


def tests_of(study: str, test: str) -> dict[str, dict[int, dict[int, Any]]]:
    """Return a test of recall of every finished run, by arm, length and seed."""
    found: dict[str, dict[int, dict[int, Any]]] = {}
    for run in read_study(RECORDS / study).finished():
        assert run.result is not None
        context = run.config["train"]["context"]
        for one in (run.result.recall or {}).get("tests", ()):
            if one["test"] == test:
                by_length = found.setdefault(run.arm, {})
                by_length.setdefault(one["length"] // context, {})[run.seed] = one
    return found


def right_answers(runs: Mapping[int, Any]) -> dict[int, float]:
    """Return the accuracy in % of a test by seed."""
    return {seed: 100 * one["accuracy"] for seed, one in runs.items()}


def by_distance(runs: Mapping[int, Any]) -> dict[int, Floats]:
    """Return the right answers of each run, as a share, by the largest distance of a group.

    Groups are those that all runs have. Those with fewer than FEWEST queries in all runs together
    are left out.
    """
    columns = [one["distance"] for one in runs.values()]
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

    Means over seeds, and of the leads 95 % t intervals; strokes are seeds.
    """
    tests = tests_of(study, "persistence")
    baseline = str(read_study(RECORDS / study).baseline)
    longest = max(tests[baseline])
    (pairs,) = {one["pairs"] for one in tests[baseline][longest].values()}
    with style():
        drawing = Figure(figsize=(PAGE_WIDTH, 3.2))
        by_length, far, lead = drawing.subplots(1, 3, width_ratios=[1, 1, 1.1])
        for look, lengths in enumerate(tests.values()):
            _draw_lengths(by_length, look, lengths)
            _draw_distances(far, look, lengths[longest])
        _draw_leads(lead, tests, baseline, longest)
        by_length.set(title=f"{pairs} pairs", xlabel="length, in lengths of training")
        by_length.set(ylabel="right answers (%)", ylim=(None, 101))
        far.set(title=f"at {longest} times the length", xlabel="bytes from pair to query")
        lead.set(title=f"minus {baseline}, {longest} times", xlabel="points")
        legend_below(drawing, [*tests])
    return drawing


def _draw_lengths(axes: Axes, look: int, lengths: Mapping[int, Mapping[int, Any]]) -> None:
    """Draw the accuracy of an arm by length."""
    means = [np.mean([*right_answers(runs).values()]) for runs in lengths.values()]
    axes.plot([*lengths], means, lw=1.2, **line_style(look))
    _name_octaves(axes, lengths)


def _draw_distances(axes: Axes, look: int, runs: Mapping[int, Any]) -> None:
    """Draw the accuracy of an arm by distance."""
    found = by_distance(runs)
    means = [100 * values.mean() for values in found.values()]
    axes.plot([*found], means, lw=1.2, **line_style(look))
    _name_octaves(axes, found)


def _name_octaves(axes: Axes, values: Iterable[int]) -> None:
    """Give an axis the logarithmic scale of base 2, with a tick at each value."""
    axes.set_xscale("log", base=2)
    axes.set_xticks([*values], [f"{value:,}" for value in values])
    axes.minorticks_off()


def _draw_leads(axes: Axes, tests: Mapping[str, Any], baseline: str, longest: int) -> None:
    """Draw the paired differences of arms to the baseline at a length, one line an arm."""
    base = right_answers(tests[baseline][longest])
    arms = [arm for arm in tests if arm != baseline]
    for place, arm in enumerate(arms):
        found = paired_difference(right_answers(tests[arm][longest]), base)
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
    axes.set_yticks(range(len(arms)), arms)
    axes.invert_yaxis()
