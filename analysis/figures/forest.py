"""Differences of many arms at a glance: a row per arm with its seeds, its mean and its interval."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from plkernel.analysis.figures.style import COLOURS, INK, PAGE_WIDTH, headline, style
from plkernel.analysis.statistics.differences import PairedDifference

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW = 0.19
"""Inches of a row."""
BESIDE = 3.0
"""An interval is cut where it reaches further than so many times the largest difference of a seed."""
FAR = 8.0
"""A row lies outside the frame where its seeds reach further than so many times those of the middle one."""


@dataclass(frozen=True)
class ForestRow:
    """One arm: its difference, None where there is none, and whether it holds after correction."""

    label: str
    difference: PairedDifference | None
    holds: bool


Groups = Mapping[str, Sequence[ForestRow]]
"""The rows under each heading; an empty heading is not written."""


def forest(groups: Groups, limits: tuple[float, float] | None = None, heading: str = "") -> "Figure":
    """A row per arm: strokes are seeds, the circle their mean (filled: holds after correction), the line its interval.

    limits: the frame, where several figures are to share one (`forest_limits`).
    """
    from matplotlib.figure import Figure

    count = sum(len(rows) + bool(title) for title, rows in groups.items())
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, ROW * count + 0.75))
        axes = figure.subplots()
        frame = limits or forest_limits(groups)
        axes.axvline(0.0, color=INK, linewidth=0.6)
        labels: list[str] = []
        for title, rows in groups.items():
            if title:
                beside = axes.get_yaxis_transform()
                axes.text(0.0, len(labels), title, transform=beside, va="center", fontweight="bold", fontsize=7.5)
                labels.append("")
            for row in rows:
                _row(axes, len(labels), row, frame)
                labels.append(row.label)
        axes.set_yticks(range(count), labels)
        _look(axes, count, frame)
        axes.set_xlabel("difference in bits per byte, below 0 is better")
        headline(figure, heading)
    return figure


def forest_limits(groups: Groups) -> tuple[float, float]:
    """The frame: seeds and intervals, but none further than three times the largest difference of a seed in it."""
    found = [row.difference for rows in groups.values() for row in rows if row.difference is not None]
    reaches = [largest(one.per_seed.values()) for one in found]
    inside = [one for one, near in zip(found, nearby(reaches), strict=True) if near]
    seeds = largest(value for one in inside for value in one.per_seed.values())
    edges = largest(edge for one in inside for edge in (one.low, one.high))
    reach = 1.06 * min(max(seeds, edges), BESIDE * seeds) or 1e-3
    return -reach, reach


def nearby(reaches: Sequence[float]) -> list[bool]:
    """Which rows, by how far their seeds reach, share a frame: of two or less all."""
    most = FAR * median(reaches) if len(reaches) > 2 else math.inf
    return [reach <= most or not most for reach in reaches]


def largest(values: Iterable[float]) -> float:
    """The largest size of those that are finite; 0 for none."""
    return max((abs(value) for value in values if math.isfinite(value)), default=0.0)


def _row(axes: "Axes", place: int, row: ForestRow, frame: tuple[float, float]) -> None:
    difference = row.difference
    if difference is None or not math.isfinite(difference.mean):
        text = "no common seed" if difference is None else "not finite"
        axes.text(0.0, place, f" {text}", va="center", fontsize=6.5, color=INK)
        return
    colour = COLOURS[0] if difference.mean < 0 else COLOURS[1]
    values = list(difference.per_seed.values())
    axes.plot(values, [place] * len(values), "|", color=colour, markersize=4, alpha=0.55, markeredgewidth=0.7)
    if math.isfinite(difference.low):
        axes.plot([difference.low, difference.high], [place, place], color=colour, linewidth=1.2, solid_capstyle="butt")
    face = colour if row.holds else "none"
    low, high = frame
    mean = min(max(difference.mean, low), high)
    marker = "<" if difference.mean < low else ">" if difference.mean > high else "o"
    axes.plot(
        [mean],
        [place],
        marker,
        color=colour,
        markersize=4.2,
        markerfacecolor=face,
        markeredgewidth=1.0,
        clip_on=False,
    )


def _look(axes: "Axes", count: int, limits: tuple[float, float]) -> None:
    axes.set(xlim=limits, ylim=(count - 0.4, -0.6))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", linewidth=0.3, alpha=0.5)
