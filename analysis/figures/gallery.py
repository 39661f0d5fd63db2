"""The figure of the gallery: the kernels of each family in a panel, over the power law they are held against."""

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from plkernel.analysis.exponentials.sums import Floats, power_law
from plkernel.analysis.figures.style import COLOURS, COLUMN_WIDTH, INK, PAGE_WIDTH, style
from plkernel.analysis.initialisations.gallery import Profile, families, slope_lags

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 4
POINTS = 200
RMS_DASHES = (0, (1.6, 1.1))
LEGEND: dict[str, Any] = {
    "handlelength": 1.2,
    "labelspacing": 0.2,
    "borderaxespad": 0.1,
    "borderpad": 0.2,
    "handletextpad": 0.5,
    "frameon": True,
    "framealpha": 0.8,
    "fancybox": False,
}
MINUS = "\N{MINUS SIGN}"
DECADES_BELOW = 1.9
"""How far the frame reaches below the target's last value."""


def gallery_figure(found: Sequence[Profile], beta: float, max_lag: int) -> "Figure":
    """A panel for each family: kernels over lag, 1 at lag 1, coherent solid and rms dashed; t**-beta in grey.

    Beside each name stands the log-log slope of its coherent kernel.
    """
    from matplotlib.figure import Figure

    groups = families(found)
    columns = min(COLUMNS, len(groups))
    rows = -(-len(groups) // columns)
    with style():
        width = max(COLUMN_WIDTH, PAGE_WIDTH * columns / COLUMNS)
        figure = Figure(figsize=(width, 1.65 * rows + (0.75 if columns == COLUMNS else 1.1)))
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axes, (family, members) in zip(grid.flat, groups.items(), strict=False):
            _panel(axes, family, members, beta, max_lag)
        _frame(grid, len(groups), beta, max_lag)
        _legend(figure, beta, max_lag, 3 if columns == COLUMNS else 1)
    return figure


def drawn_lags(max_lag: int) -> Floats:
    """The lags at which kernels are drawn: log-spaced and real, 1 and max_lag included."""
    return np.geomspace(1, max_lag, POINTS)


def _panel(axes: "Axes", family: str, members: Sequence[Profile], beta: float, max_lag: int) -> None:
    """One family; of kernels that coincide, the earlier ones are drawn wider."""
    lags = drawn_lags(max_lag)
    axes.plot(lags, power_law(lags, beta), color=INK, lw=4.5, alpha=0.2, solid_capstyle="butt", zorder=1)
    widths = np.linspace(1.9, 1.1, len(members)) if len(members) > 1 else [1.3]
    for member, colour, width in zip(members, cycle(COLOURS), widths, strict=False):
        start = member.initialisation
        for log_kernel, look in (
            (start.log_rms(lags), {"lw": 0.8, "ls": RMS_DASHES, "zorder": 2}),
            (start.log_coherent(lags), {"lw": width, "label": _label(member)}),
        ):
            axes.plot(lags, np.exp(log_kernel - log_kernel[0]), color=colour, **look)
    axes.set_title(family, fontweight="bold", pad=3)
    axes.legend(loc="lower left", fontsize=6, **LEGEND).get_frame().set_linewidth(0)


def _label(member: Profile) -> str:
    """The name with the slope; a single exponential has none, so its half-life."""
    start = member.initialisation
    if len(start.rates) == 1:
        return f"{start.name}, half-life {start.half_lives[0]:.3g}"
    return f"{start.name}  {member.slope:.2f}".replace("  -", f"  {MINUS}")


def _frame(grid: "np.ndarray", panels: int, beta: float, max_lag: int) -> None:
    """The scales, which all panels share, with names at the outer edge; places without a panel stay empty."""
    from matplotlib.ticker import LogLocator, NullLocator

    first = grid[0, 0]
    first.set(xscale="log", yscale="log", xlim=(1, max_lag), ylim=(max_lag**-beta * 10**-DECADES_BELOW, 1.5))
    for axis in (first.xaxis, first.yaxis):
        axis.set_major_locator(LogLocator(numticks=7))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: f"{value:g}".replace("e-0", "e-"))
    for axes in grid.flat[panels:]:
        axes.set_axis_off()
    for axes in grid.flat[max(0, panels - grid.shape[1]) : panels]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("lag t (steps)")
    for axes in grid[:, 0]:
        axes.set_ylabel("k(t) / k(1)")


def _legend(figure: "Figure", beta: float, max_lag: int, columns: int) -> None:
    from matplotlib.lines import Line2D

    first, last = slope_lags(max_lag)
    handles = [
        Line2D([], [], color=INK, lw=4.5, alpha=0.2, label=f"target t**-{beta:g}"),
        Line2D([], [], color=INK, lw=1.5, label=f"coherent, with its slope on lags {first:g}..{last:g}"),
        Line2D([], [], color=INK, lw=0.8, ls=RMS_DASHES, label="rms (random signs)"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)
