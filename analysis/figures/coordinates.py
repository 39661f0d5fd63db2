"""The figure of a check of an initialisation: activations over width, and the residual stream over depth."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from plkernel.analysis.figures.style import COLOURS, INK, PAGE_WIDTH, line_style, plain_ticks, style
from plkernel.analysis.trained.coordinates import Coordinates, Propagation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MINUS = "\N{MINUS SIGN}"


def coordinates_figure(found: Coordinates, depths: Sequence[Propagation], title: str) -> "Figure":
    """Left, rms(x_t - x_0) over width, with the slope beside each name; right, the stream and its gradient by block."""
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 3.1))
        figure.suptitle(title, x=0.01, ha="left", fontsize=8)
        width, forward, backward = figure.subplots(1, 3)
        _widths(width, found)
        for axes, name in ((forward, "forward"), (backward, "backward")):
            _depths(axes, depths, name)
        figure.legend(*width.get_legend_handles_labels(), loc="outside lower left", ncols=4, fontsize=6.5)
        forward.set_title("residual stream at the start, rms")
        backward.set_title("its gradient, rms")
    return figure


def _widths(axes: "Axes", found: Coordinates) -> None:
    for index, name in enumerate(found.names):
        values = np.asarray(found.change(name))
        slope = f"{found.slope(name).value:+.2f}".replace("-", MINUS)
        axes.plot(
            found.widths, np.where(values > 0, values, np.nan), lw=1.2, label=f"{name}  {slope}", **line_style(index)
        )
    axes.set(xscale="log", yscale="log", xlabel="width")
    axes.set_xticks(found.widths, [str(width) for width in found.widths])
    axes.set_xticks([], minor=True)
    _decades(axes)
    axes.set_title(f"change in {found.steps} steps, rms")


def _depths(axes: "Axes", depths: Sequence[Propagation], name: str) -> None:
    for colour, item in zip((INK, *COLOURS), depths, strict=False):
        growth = item.growth[name == "backward"]
        values = np.asarray(getattr(item, name))
        places = np.arange(item.depth + 1)
        label = f"{item.depth} blocks, {growth:.4g} per block"
        axes.plot(places, np.where(values > 0, values, np.nan), color=colour, lw=1.2, label=label)
    axes.set(yscale="log", xlabel="block")
    low, high = axes.get_ylim()
    axes.set_ylim(low / 1.5, high * 1.5)
    _decades(axes)
    axes.legend(loc="best", fontsize=6, handlelength=1.2)


def _decades(axes: "Axes") -> None:
    """Plain numbers on the vertical scale: 1, 2 and 5 of each decade, of many decades 1 alone."""
    from matplotlib.ticker import LogLocator

    low, high = axes.get_ylim()
    plain_ticks(axes.yaxis)
    if high > 300 * low:
        axes.yaxis.set_major_locator(LogLocator(numticks=8))
