"""Figures of memory: kernels and half-lives of blocks, before training and after."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from plkernel.analysis.exponentials import power_law
from plkernel.analysis.figures.style import (
    ABOVE,
    COLUMN_WIDTH,
    FAINTEST,
    GREY,
    INK,
    LAW,
    PAGE_WIDTH,
    decades,
    line_style,
    row_of_axes,
    style,
)
from plkernel.decays.memory import Memory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DRAWN = (1e-3, 1e9)
"""Half-lives in tokens that are drawn; those beyond are drawn at the edge."""
COLUMNS = 4
"""Panels in a row, at most."""
BEFORE_COLOUR = GREY
BEFORE_DASHES = (0, (3, 1.2))
"""The line of kernels before training, as matplotlib has it: where dashes begin, on and off."""
BOX_WIDTH = 0.32
"""Width of the boxes of half-lives, of which those of two blocks are 1 apart."""
BOX_GAP = 0.2
"""Distance of a box from the number of its block, to the left (before) or right (after)."""
MOST_TICKS = 8
"""Numbers of blocks on the axis of half-lives, about."""
LEGEND_COLUMNS = 6
"""Blocks in a row of the legend."""
LEGEND_ROW = 0.15
"""Inches of a row of the legend."""


class Panel(NamedTuple):
    """Memory of an arm before training and after, and the x of its law t**-x."""

    title: str
    before: Memory
    after: Memory
    exponent: float


@style()
def kernel_figure(panels: Sequence[Panel], heading: str = "") -> "Figure":
    """Kernels over lag, 1 at the first lag, a panel for each arm; grey before training, coloured
    after.

    Thin lines are blocks, each the geometric mean over runs; thick lines are the geometric mean
    over blocks. Behind them stands t**-exponent. The first panel is the baseline's.
    """
    same = len({panel.exponent for panel in panels}) == 1
    law = f"t**-{panels[0].exponent:g}" if same else "t**-x, x the exponent of the arm"
    labels = ("lag t (bytes)", "k(t) / k(1)")
    figure, grid = _panels(panels, 1.6, heading, labels, BEFORE_DASHES, [{**LAW, "label": law}])
    lowest = 1.0
    for index, (axes, panel) in enumerate(zip(grid, panels, strict=True)):
        lags = panel.before.lags
        expected = power_law(lags / lags[0], panel.exponent)
        axes.plot(lags, expected, **LAW)
        _kernels(axes, panel.before, {"color": BEFORE_COLOUR, "ls": BEFORE_DASHES})
        _kernels(axes, panel.after, {"color": line_style(index)["color"]})
        axes.set(xscale="log", yscale="log")
        lowest = min(lowest, float(expected[-1]) / 100)  # what has all but vanished takes no room
    grid[0].set_ylim(max(grid[0].get_ylim()[0], lowest), 1.6)
    for axes in grid:
        decades(axes.xaxis, axes.yaxis)
    return figure


def _kernels(axes: "Axes", memory: Memory, look: dict[str, Any]) -> None:
    """Kernels of the blocks as thin lines, and their geometric mean as a thick one."""
    blocks = memory.log_kernels()
    if len(blocks) > 1:
        axes.plot(memory.lags, np.exp(blocks.T), lw=0.5, alpha=0.55, **look)
    axes.plot(memory.lags, np.exp(blocks.mean(axis=0)), lw=1.5, **look)


@style()
def half_life_figure(panels: Sequence[Panel], heading: str = "") -> "Figure":
    """Half-lives of every block in bytes, a panel for each arm; grey before training, coloured
    after.

    A box holds the middle half of a block's channels with the median in it, a line reaches from the
    shortest to the longest. Quartiles and median are geometric means over runs, the ends the
    outermost of all runs.
    """
    figure, grid = _panels(panels, 1.45, heading, ("block", "half-life (bytes)"), "-", [])
    for index, (axes, panel) in enumerate(zip(grid, panels, strict=True)):
        _half_lives(axes, panel.before, panel.after, line_style(index)["color"])
    return figure


@style()
def model_figure(
    before: Memory | None, after: Memory, title: str = "", unit: str = "bytes"
) -> "Figure":
    """One model: kernels of every block (left) and half-lives (right), now and, if given, before.

    Blocks are shaded from the first, dark, to the last; the state before is dashed, on the right
    grey.
    """
    legend_rows = math.ceil(after.blocks / LEGEND_COLUMNS)
    height = 2.9 + LEGEND_ROW * legend_rows
    figure, (kernels, half_lives) = row_of_axes(
        2, PAGE_WIDTH, height, 1, title, width_ratios=(1.2, 1)
    )
    dashed = ""
    grey = ""
    if before is not None:
        dashed = " (dashed: before)"
        grey = " (grey: before)"
        _shaded_kernels(kernels, before, labelled=False, look={"ls": BEFORE_DASHES, "lw": 0.9})
    _shaded_kernels(kernels, after, labelled=True, look={"lw": 1.2})
    kernels.set(xscale="log", yscale="log")
    kernels.set_ylim(bottom=max(kernels.get_ylim()[0], FAINTEST))
    decades(kernels.xaxis, kernels.yaxis)
    kernels.set(xlabel=f"lag t ({unit})", ylabel="k(t) / k(1)", title=f"kernels{dashed}")
    _half_lives(half_lives, before, after, line_style(1)["color"])
    half_lives.set(xlabel="block", ylabel=f"half-life ({unit})", title=f"half-lives{grey}")
    figure.legend(loc="outside lower center", ncols=LEGEND_COLUMNS)
    return figure


def _shaded_kernels(axes: "Axes", memory: Memory, labelled: bool, look: dict[str, Any]) -> None:
    """Kernels of the blocks, from the first, dark, to the last."""
    from matplotlib import colormaps

    shades = colormaps["viridis"](np.linspace(0, 0.85, memory.blocks))
    # A model may say half-lives of more blocks than kernels.
    for block, (log_kernel, shade) in enumerate(zip(memory.log_kernels(), shades, strict=False)):
        label = f"block {block}" if labelled else None
        axes.plot(memory.lags, np.exp(log_kernel), color=shade, label=label, **look)


def _half_lives(axes: "Axes", before: Memory | None, after: Memory, colour: str) -> None:
    """Boxes of every block's half-lives, before training (left, grey) and after."""
    if before is not None:
        _boxes(axes, before, -BOX_GAP, BEFORE_COLOUR)
    _boxes(axes, after, BOX_GAP, colour)
    ticks = range(0, after.blocks, 1 + (after.blocks - 1) // MOST_TICKS)
    axes.set(yscale="log", xticks=ticks, xlim=(-0.6, after.blocks - 0.4))
    decades(axes.yaxis)


def _boxes(axes: "Axes", memory: Memory, side: float, shade: str) -> None:
    """A box for the half-lives of each block, so far right of its number."""
    at = np.arange(memory.blocks, dtype=float) + side
    shortest, _, low, median, high, _, longest = memory.half_life_quantiles().T
    axes.vlines(at, shortest, longest, color=shade, lw=0.8)
    axes.bar(at, high - low, BOX_WIDTH, bottom=low, facecolor=shade, alpha=0.35)
    axes.hlines(median, at - BOX_WIDTH / 2, at + BOX_WIDTH / 2, color=shade, lw=1.6)


def _panels(
    panels: Sequence[Panel],
    height: float,
    heading: str,
    labels: tuple[str, str],
    dashes: Any,
    first: list[Any],
) -> tuple["Figure", list["Axes"]]:
    """Axes for the panels, all on the same scale, with titles, outer labels and a legend.

    height  of a row of panels, in inches
    labels  of the lag or block axis, and of the other
    dashes  of lines before training
    first   looks of lines that stand first in the legend
    """
    from matplotlib.lines import Line2D

    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    width = PAGE_WIDTH if columns > 1 else 1.3 * COLUMN_WIDTH
    figure, grid = row_of_axes(columns, width, height * rows + 0.75, rows, heading, sharey=True)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    for index, (axes, panel) in enumerate(zip(grid, panels, strict=False)):
        axes.set_title(panel.title, fontsize=7, **ABOVE)
        axes.set_xlabel(labels[0] if index + columns >= len(panels) else "")
        axes.set_ylabel(labels[1] if index % columns == 0 else "")
    before = {"color": BEFORE_COLOUR, "lw": 1.5, "ls": dashes, "label": "at initialisation"}
    after = {"color": INK, "lw": 1.5, "label": "after training (each arm in its colour)"}
    handles = [Line2D([], [], **look) for look in (*first, before, after)]
    figure.legend(handles=handles, loc="outside lower center", ncols=3 if columns > 1 else 1)
    return figure, grid[: len(panels)]
