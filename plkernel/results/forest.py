"""A forest: a row for every difference, with its seeds, their mean and its interval."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from plkernel.analysis.figures.style import COLOURS, GREY, INK, PAGE_WIDTH, style
from plkernel.results.claims import Judgement, region
from plkernel.results.comparison import Comparison
from plkernel.results.statistics import Estimate
from plkernel.results.verdicts import HypothesisOutcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BESIDE = 3.0
"""Intervals are cut at this many times the largest difference of a seed."""
FAR = 8.0
"""Rows this many times beyond the median are drawn as arrows at the edge."""
ROW_HEIGHT = 0.19
"""Inches of a row with a label of one line; further lines take half of that."""
LONGEST_LABEL = 44
"""Characters in a line of a hypothesis's label."""
ENOUGH_ROWS = 3
"""With fewer rows there is no telling which of them is far."""
LEAST_FRAME = 1e-3
"""Half the width of the frame where all differences are zero."""


class ForestRow(NamedTuple):
    """One difference.

    difference  None where there is none
    holds       fill the circle of the mean
    region      where the claim holds, shaded
    """

    label: str
    difference: Estimate | Judgement | None
    per_seed: Sequence[float]
    holds: bool
    region: tuple[float, float] | None = None


def hypothesis_row(outcome: HypothesisOutcome) -> ForestRow:
    """The row of a hypothesis, with the region where its claim holds."""
    return ForestRow(
        label=textwrap.fill(outcome.hypothesis.name, LONGEST_LABEL),
        difference=outcome.judgement,
        per_seed=list(outcome.per_seed.values()),
        holds=outcome.judgement.verdict == "confirmed",
        region=region(outcome.hypothesis.claim, outcome.hypothesis.margin),
    )


def difference_rows(comparison: Comparison) -> dict[str, list[ForestRow]]:
    """A row for every arm that is compared with another, under the title of its block."""
    groups: dict[str, list[ForestRow]] = {}
    for block in comparison.blocks:
        rows = groups.setdefault(block.title, [])
        for arm in block.arms:
            if arm.against is None:
                continue
            difference = comparison.differences.get(arm.name)
            per_seed = list(difference.per_seed.values()) if difference else []
            significant = arm.name in comparison.surviving
            name = comparison.label(arm, paired=True)
            rows.append(ForestRow(name, difference, per_seed, significant))
    return groups


def forest(groups: Mapping[str, Sequence[ForestRow]], label: str) -> "Figure":
    """Draw rows under headings: strokes are seeds, the circle their mean, the line its interval.

    label: of the axis.
    """
    from matplotlib.figure import Figure

    rows: list[ForestRow | str] = []
    for title, members in groups.items():
        if title:
            rows.append(title)
        rows += members
    reach = _frame([row for row in rows if isinstance(row, ForestRow)])
    labels = ["" if isinstance(row, str) else row.label for row in rows]
    most_lines = max(1 + label.count("\n") / 2 for label in labels)
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, ROW_HEIGHT * most_lines * len(rows) + 0.75))
        axes = figure.subplots()
        axes.axvline(0.0, color=INK, lw=0.6)
        for place, row in enumerate(rows):
            if isinstance(row, str):
                _draw_heading(axes, place, row)
            else:
                _draw_row(axes, place, row, reach)
        axes.set_yticks(range(len(rows)), labels)
        axes.set(xlim=(-reach, reach), ylim=(len(rows) - 0.4, -0.6))
        axes.set_xlabel(label)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x", lw=0.3, alpha=0.5)
    return figure


def _draw_heading(axes: "Axes", place: int, title: str) -> None:
    at_the_left = axes.get_yaxis_transform()
    axes.text(0.0, place, title, transform=at_the_left, va="center", fontweight="bold")


def _draw_row(axes: "Axes", place: int, row: ForestRow, reach: float) -> None:
    """Draw the region, the seeds, the interval and the mean of one row, cut at `reach`."""
    if row.region:
        start, end = np.clip(row.region, -reach, reach)
        axes.barh(place, end - start, 0.8, left=start, color=GREY, alpha=0.25, lw=0, zorder=0.5)
    one = row.difference
    if one is None or not math.isfinite(one.mean):
        text = " no common seed" if one is None else " not finite"
        axes.text(0.0, place, text, va="center", fontsize=6.5)
        return
    colour = COLOURS[0] if one.mean < 0 else COLOURS[1]
    places = [place] * len(row.per_seed)
    axes.plot(row.per_seed, places, "|", color=colour, ms=4, alpha=0.55, mew=0.7)
    axes.plot([one.low, one.high], [place, place], color=colour, lw=1.2, solid_capstyle="butt")
    axes.plot(
        [np.clip(one.mean, -reach, reach)],
        [place],
        _marker(one.mean, reach),
        ms=4.2,
        mew=1.0,
        color=colour,
        mfc=colour if row.holds else "none",
        clip_on=False,
    )


def _marker(mean: float, reach: float) -> str:
    """A circle, or an arrow to a mean outside of the frame."""
    if mean < -reach:
        return "<"
    return ">" if mean > reach else "o"


def _frame(rows: Sequence[ForestRow]) -> float:
    """Half the width of the frame: room for all rows but those far beyond the median."""
    known = [row for row in rows if row.difference]
    sizes = [largest_magnitude(row.per_seed) for row in known]
    farthest_shown = math.inf
    if len(known) >= ENOUGH_ROWS and median(sizes) > 0:
        farthest_shown = FAR * median(sizes)
    seeds: list[float] = []
    bounds: list[float] = []
    for row, size in zip(known, sizes, strict=True):
        if size <= farthest_shown and row.difference:
            seeds += row.per_seed
            bounds += [row.difference.low, row.difference.high]
    return half_frame(seeds, bounds)


def half_frame(seeds: Sequence[float], bounds: Sequence[float]) -> float:
    """Half a symmetric frame: room for every seed, and for bounds up to BESIDE times as far."""
    farthest_seed = largest_magnitude(seeds)
    farthest = max(farthest_seed, largest_magnitude(bounds))
    with_margin = 1.07 * min(farthest, BESIDE * farthest_seed)
    return with_margin or LEAST_FRAME


def largest_magnitude(values: Sequence[float]) -> float:
    """The largest magnitude of the finite values, 0 without any."""
    return max((abs(value) for value in values if math.isfinite(value)), default=0.0)
