"""Kernels and half-lives of trained models before and after training: a panel for every arm, or for one model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from plkernel.analysis.exponentials import Floats, power_law
from plkernel.analysis.figures.style import COLUMN_WIDTH, GREY, INK, PAGE_WIDTH, headline, line_style, style
from plkernel.analysis.trained.memory import Memory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

START = GREY
"""Of what stood before training."""
COLUMNS = 4
LONG_NAME = 24
START_DASHES = (0, (3, 1.2))
BOX_WIDTH, BOX_GAP = 0.32, 0.2
LAW: dict[str, Any] = {"color": INK, "lw": 4, "alpha": 0.18, "solid_capstyle": "butt", "zorder": 1}


@dataclass(frozen=True)
class Panel:
    """What an arm remembered before training and after; `exponent` is that of its power law, t**-exponent."""

    title: str
    before: Memory
    after: Memory
    exponent: float


def kernel_figure(panels: Sequence[Panel], heading: str = "") -> "Figure":
    """Kernels over lag, 1 at the first lag, a panel for each arm: grey before training, coloured after.

    Thin lines are blocks, each the geometric mean over runs; thick lines are the geometric mean over blocks. Behind
    them stands t**-exponent. The first panel is the baseline's.
    """
    figure, grid = _grid(panels, 1.6, heading)
    with style():
        for index, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
            draw_law(axes, panel.before.lags, panel.exponent)
            _kernels(axes, panel.before, {"color": START, "linestyle": START_DASHES})
            _kernels(axes, panel.after, {"color": line_style(index)["color"]})
            _title(axes, panel.title)
        _lag_axes(grid.flat[: len(panels)], panels)
        _outer_labels(grid, len(panels), "lag t (bytes)", "k(t) / k(1)")
        _legend(figure, [{**LAW, "label": _law_name({panel.exponent for panel in panels})}])
    return figure


def half_life_figure(panels: Sequence[Panel], heading: str = "") -> "Figure":
    """Half-lives of every block in bytes, a panel for each arm: grey before training, coloured after.

    A box holds the middle half of a block's channels with the median in it, a line reaches from the shortest to the
    longest. Quartiles and median are geometric means over runs, the ends the outermost of all runs.
    """
    figure, grid = _grid(panels, 1.45, heading)
    with style():
        for index, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
            draw_half_lives(axes, panel.before, panel.after, line_style(index)["color"])
            _title(axes, panel.title)
        _outer_labels(grid, len(panels), "block", "half-life (bytes)")
        _legend(figure, [])
    return figure


def model_figure(
    before: Memory | None,
    after: Memory,
    title: str = "",
    unit: str = "bytes",
    earlier: str = "at initialisation",
    block_name: str = "block",
) -> "Figure":
    """One model: the kernel of every block (left) and its half-lives (right), before training and after.

    Blocks are shaded from the first, dark, to the last; what stood before training is dashed, on the right grey.
    unit, earlier and block_name: what steps, the model before and blocks are called.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 2.9 + 0.15 * -(-after.blocks // 6)))
        kernels, half_lives = figure.subplots(1, 2, width_ratios=(1.2, 1))
        shades = colormaps["viridis"](np.linspace(0, 0.85, after.blocks))
        for block, shade in enumerate(shades):
            if before is not None:
                _line(kernels, before.lags, before.log_kernels()[block], color=shade, ls=START_DASHES, lw=0.9)
            _line(kernels, after.lags, after.log_kernels()[block], color=shade, lw=1.2, label=f"{block_name} {block}")
        _log_log(kernels)
        dashed, grey = (f" ({look}: {earlier})" if before is not None else "" for look in ("dashed", "grey"))
        kernels.set(xlabel=f"lag t ({unit})", ylabel="k(t) / k(1)", title=f"kernels{dashed}")
        draw_half_lives(half_lives, before, after, line_style(1)["color"])
        half_lives.set(xlabel=block_name, ylabel=f"half-life ({unit})", title=f"half-lives{grey}")
        figure.legend(loc="outside lower center", ncols=6)
        headline(figure, title)
    return figure


def mark_observed(figure: "Figure", quantiles: Floats) -> None:
    """Beside every box of a `model_figure` the half-lives that a text made: 5 to 95 % as a line, the median as a dot.

    quantiles: 5, 25, 50, 75 and 95 % of each block, (L,5); NaN is not drawn.
    """
    axes, (low, _, median, _, high) = figure.axes[1], quantiles.T
    at, (bottom, top) = np.arange(len(quantiles)) + 2 * BOX_GAP, axes.get_ylim()
    with style():
        axes.vlines(at, low, high, color=INK, lw=1.0)
        axes.plot(at, median, ".", color=INK, ms=4)
        axes.set_ylim(np.nanmin([bottom, *low / 1.5]), np.nanmax([top, *high * 1.5]))
        axes.set_xlabel(f"{axes.get_xlabel()} (black: on the text)")
        decades(axes.yaxis)


def draw_half_lives(axes: "Axes", before: Memory | None, after: Memory, colour: str) -> None:
    """Boxes of every block's half-lives at its number, before training (left, grey) and after."""
    for memory, side, shade in ((before, -BOX_GAP, START), (after, BOX_GAP, colour)):
        if memory is not None:
            _boxes(axes, np.arange(memory.blocks, dtype=float) + side, memory.half_life_quantiles(), shade)
    axes.set_yscale("log")
    axes.set_xticks(range(0, after.blocks, 1 + (after.blocks - 1) // 8))
    axes.set_xlim(-0.6, after.blocks - 0.4)
    decades(axes.yaxis)


def draw_law(axes: "Axes", lags: Floats, exponent: float) -> None:
    """t**-exponent as a broad pale line, 1 at the first lag."""
    axes.plot(lags, power_law(lags / lags[0], exponent), **LAW)


def decades(axis: "Axis") -> None:
    """Ticks of a log axis in plain digits: few, at powers of ten, or where two do not fit at 1, 2 and 5 of each."""
    from matplotlib.axis import XAxis
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axis.axes.get_xlim() if isinstance(axis, XAxis) else axis.axes.get_ylim()
    axis.set_major_locator(LogLocator(numticks=7) if high > 50 * low else LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}".replace("e-0", "e-"))


def _kernels(axes: "Axes", memory: Memory, look: dict[str, Any]) -> None:
    blocks = memory.log_kernels()
    for block in blocks if len(blocks) > 1 else ():
        _line(axes, memory.lags, block, lw=0.5, alpha=0.55, **look)
    _line(axes, memory.lags, blocks.mean(axis=0), lw=1.5, **look)


def _line(axes: "Axes", lags: Floats, log_kernel: Floats, **look: Any) -> None:
    """A kernel given by its logarithm; where it has vanished there is no line."""
    shown = np.isfinite(log_kernel)
    axes.plot(lags[shown], np.exp(log_kernel[shown]), **look)


def _boxes(axes: "Axes", at: Floats, quantiles: Floats, colour: str) -> None:
    """Quantiles 0, .1, .25, .5, .75, .9 and 1 (L, 7) as boxes at `at` (L,), each with a line through it."""
    shortest, _, low, median, high, _, longest = quantiles.T
    axes.vlines(at, shortest, longest, color=colour, lw=0.8)
    axes.bar(at, high - low, BOX_WIDTH, bottom=low, facecolor=colour, alpha=0.35)
    axes.hlines(median, at - BOX_WIDTH / 2, at + BOX_WIDTH / 2, color=colour, lw=1.6)


def _lag_axes(axes: Sequence["Axes"], panels: Sequence[Panel]) -> None:
    """Logarithmic scales, alike in all panels, for kernels and laws but not for what has all but vanished."""
    lowest = min(float((panel.before.lags[-1] / panel.before.lags[0]) ** -panel.exponent) for panel in panels)
    drawn = [np.asarray(line.get_ydata()) for one in axes for line in one.lines]
    smallest = min(float(values.min()) for values in drawn if values.size)
    axes[0].set_ylim(max(smallest / 1.5, lowest / 100), 1.6)
    for one in axes:
        _log_log(one)


def _log_log(axes: "Axes") -> None:
    axes.set(xscale="log", yscale="log")
    decades(axes.xaxis)
    decades(axes.yaxis)


def _grid(panels: Sequence[Panel], height: float, heading: str) -> tuple["Figure", Any]:
    """Axes for the panels, all on the same scales; those left over are empty."""
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    with style():
        width = PAGE_WIDTH if columns > 1 else 1.3 * COLUMN_WIDTH
        figure = Figure(figsize=(width, height * rows + 0.75))
        grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        headline(figure, heading)
    return figure, grid


def _title(axes: "Axes", name: str) -> None:
    """The name of an arm; long ones smaller, so that they stay over their panel."""
    axes.set_title(name, fontsize=8 if len(name) < LONG_NAME else 6.5)


def _outer_labels(grid: Any, panels: int, below: str, left: str) -> None:
    for axes in grid.flat[max(0, panels - grid.shape[1]) : panels]:
        axes.set_xlabel(below)
    for axes in grid[:, 0]:
        axes.set_ylabel(left)


def _law_name(exponents: set[float]) -> str:
    if len(exponents) == 1:
        return f"t**-{exponents.pop():g}"
    return "t**-x, x the exponent of the arm"


def _legend(figure: "Figure", first: Sequence[dict[str, Any]]) -> None:
    from matplotlib.lines import Line2D

    looks = [
        *first,
        {"color": START, "lw": 1.5, "ls": START_DASHES if first else "-", "label": "at initialisation"},
        {"color": INK, "lw": 1.5, "label": "after training (each arm in its colour)"},
    ]
    handles = [Line2D([], [], **look) for look in looks]
    figure.legend(handles=handles, loc="outside lower center", ncols=3 if figure.get_figwidth() > 6 else 1)
