"""Curves of the loss against training bytes: of every arm, and of its difference to another."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from plkernel.analysis.figures.style import (
    ABOVE,
    COLUMN_WIDTH,
    INK,
    PAGE_WIDTH,
    byte_unit,
    headline,
    legend_below,
    line_style,
    plain_ticks,
    style,
)
from plkernel.results.forest import FAR, half_frame, largest_magnitude
from plkernel.results.statistics import Band, LossCurve, pointwise_band

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ArmCurves = Mapping[str, Sequence[LossCurve]]
"""The curves of every arm's seeds, keyed by bytes read."""
LEGEND_COLUMNS = 3
LONGEST_TITLE = 34
"""Characters in a line of a panel's title at full size."""


def loss_figure(arms: ArmCurves, heading: str = "", unit: str = "bits per byte") -> "Figure":
    """Draw losses against bytes read: left the whole run, right its second half.

    unit: of the losses.
    """
    from matplotlib.figure import Figure

    last = _last_position(arms)
    size, size_name = byte_unit(last)
    lines = sum(len(curves) for curves in arms.values())
    opacity = min(0.6, 12 / max(1, lines))  # many lines would hide the means
    legend_rows = math.ceil(len(arms) / LEGEND_COLUMNS)
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 2.8 + 0.15 * legend_rows))
        whole, late = figure.subplots(1, 2)
        for axes, start in ((whole, 1), (late, last / 2)):
            for index, curves in enumerate(arms.values()):
                _draw_curves(axes, curves, line_style(index), size, opacity, start)
            axes.set_xlabel(f"training bytes read ({size_name})")
        whole.set(xscale="log", title="whole run", ylabel=f"validation {unit}")
        plain_ticks(whole.xaxis)
        late.set(title="second half", xlim=(last / 2 / size, last / size))
        legend_below(figure, list(arms))
        headline(figure, heading)
    return figure


def difference_figure(
    arms: ArmCurves,
    heading: str = "",
    limits: tuple[float, float] | None = None,
    unit: str = "bits per byte",
) -> "Figure":
    """Draw difference curves against bytes read, a panel per arm, with a band for each point.

    limits: the lowest and the highest difference that is shown; `difference_limits` unless given.
    unit: of the differences.
    """
    from matplotlib.figure import Figure

    last = _last_position(arms)
    size, size_name = byte_unit(last)
    columns = 2 if len(arms) == 4 else min(3, len(arms))
    rows = math.ceil(len(arms) / columns)
    width = PAGE_WIDTH if columns > 1 else 1.3 * COLUMN_WIDTH
    with style():
        figure = Figure(figsize=(width, 2.2 * rows + 0.5))
        grid = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
        for axes in grid[len(arms) :]:
            axes.set_visible(False)
        for index, (title, curves) in enumerate(arms.items()):
            band = pointwise_band(curves)
            _draw_difference(grid[index], curves, band, line_style(index + 1), size)
            _set_title(grid[index], title)
            is_lowest = index + 1 + columns > len(arms)
            grid[index].xaxis.set_tick_params(labelbottom=is_lowest)
        grid[0].set_ylim(*(limits or difference_limits(arms)))
        figure.supxlabel(f"training bytes read ({size_name})", fontsize=8)
        figure.supylabel(f"difference in {unit}, below 0 is better", fontsize=8)
        headline(figure, heading)
    return figure


def _last_position(arms: ArmCurves) -> int:
    """The most bytes that any curve reaches; 1 without any."""
    positions = [at for curves in arms.values() for curve in curves for at in curve]
    return max(positions, default=1)


def _draw_curves(
    axes: "Axes",
    curves: Sequence[LossCurve],
    look: Mapping[str, Any],
    unit: float,
    opacity: float = 0.6,
    start: float = 0.0,
) -> None:
    """Draw each curve from `start` on as a thin line, and their mean as a thick one."""
    for curve in curves:
        at = [position for position in sorted(curve) if position >= start]
        shown = [position / unit for position in at]
        values = [curve[position] for position in at]
        axes.plot(shown, values, color=look["color"], lw=0.5, alpha=opacity)
    if curves:
        mean = pointwise_band(curves)
        late = mean.at >= start
        axes.plot(mean.at[late] / unit, mean.mean[late], lw=1.5, **look)


def _draw_difference(
    axes: "Axes", curves: Sequence[LossCurve], band: Band, look: Mapping[str, Any], unit: float
) -> None:
    """Draw difference curves over their band and a line at zero."""
    axes.fill_between(band.at / unit, band.low, band.high, color=look["color"], alpha=0.2, lw=0)
    axes.axhline(0.0, color=INK, lw=0.6)
    _draw_curves(axes, curves, look, unit)


def _set_title(axes: "Axes", title: str) -> None:
    """Set a title, smaller where a line of it would not fit."""
    longest = max(len(line) for line in title.split("\n"))
    scale = min(1.0, max(0.6, LONGEST_TITLE / longest))
    axes.set_title(title, fontsize=8.0 * scale, **ABOVE)


def difference_limits(arms: ArmCurves) -> tuple[float, float]:
    """The lowest and the highest difference to show, with some room.

    They hold the differences after the first tenth of the run, where curves cross steeply, of all
    arms but those whose differences are FAR times as large as the median's.
    """
    start = _last_position(arms) / 10
    panels = [_late_values(curves, pointwise_band(curves), start) for curves in arms.values()]
    typical = median(largest_magnitude(values) for values in panels)
    near = [values for values in panels if largest_magnitude(values) <= FAR * typical]
    low = min(min(values) for values in near)
    high = max(max(values) for values in near)
    room = 0.07 * (high - low) or 1e-3
    return low - room, high + room


def _late_values(curves: Sequence[LossCurve], band: Band, start: float) -> list[float]:
    """Zero, and what is to be seen from `start` on: seeds and bounds, within the frame of both."""
    seeds = [value for curve in curves for at, value in curve.items() if at >= start]
    late = band.at >= start
    bounds = [*band.low[late], *band.high[late]]
    reach = half_frame(seeds, bounds)
    known = [value for value in (0.0, *seeds, *bounds) if math.isfinite(value)]
    return [float(np.clip(value, -reach, reach)) for value in known]
