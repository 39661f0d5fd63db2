"""The figures of a study: convergence of every arm, and its difference to the baseline along the way."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from plkernel.analysis.bands import Curve, pointwise_band
from plkernel.analysis.figures import (
    COLUMN_WIDTH,
    INK,
    PAGE_WIDTH,
    byte_unit,
    legend_below,
    line_style,
    plain_ticks,
    style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Arms = Mapping[str, Sequence[Curve]]
"""The curves of every arm's seeds, keyed by bytes read."""


def convergence(arms: Arms, bytes_per_step: float | None = None, heading: str = "") -> "Figure":
    """Validation bits per byte against bytes read (below) and steps (above): a thin line per seed, a thick mean.

    The first of `arms` is the baseline. Left the whole run on a log scale of bytes, right its second half.
    `heading` stands above both; without `bytes_per_step` (arms that differ in it) there is no axis of steps.
    """
    from matplotlib.figure import Figure

    last = _last(arms)
    unit, unit_name = byte_unit(last)
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 2.75 + 0.15 * -(-len(arms) // 3)))
        whole, late = figure.subplots(1, 2)
        for index, curves in enumerate(arms.values()):
            _seeds_and_mean(whole, curves, unit, line_style(index), start=1)
            _seeds_and_mean(late, curves, unit, line_style(index), start=last / 2)
        whole.set(xscale="log", title="whole run", ylabel="validation bits per byte")
        late.set(title="second half", xlim=(last / 2 / unit, last / unit))
        for axes in (whole, late):
            axes.set_xlabel(f"training bytes read ({unit_name})")
            _step_axis(axes, bytes_per_step, unit)
        legend_below(figure, list(arms))
        figure.suptitle(heading, fontsize=9, fontweight="bold")
    return figure


def differences(
    arms: Arms, baseline: str, bytes_per_step: float | None = None, heading: str = "", confidence: float = 0.95
) -> "Figure":
    """Arm minus baseline against bytes read, a panel per arm: seeds thin, mean thick, band pointwise.

    `arms` maps each arm but the baseline to its difference curves. The band is the t interval at each position on
    its own; with few seeds it is cut at the frame, so that the lines stay legible.
    """
    from matplotlib.figure import Figure

    unit, unit_name = byte_unit(_last(arms))
    columns = max(1, min(3, len(arms)))
    rows = -(-max(1, len(arms)) // columns)
    with style():
        figure = Figure(figsize=(PAGE_WIDTH if columns > 1 else 1.3 * COLUMN_WIDTH, 2.3 * rows + 0.5))
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for index, (axes, (arm, curves)) in enumerate(zip(grid.flat, arms.items(), strict=False), start=1):
            _band(axes, curves, unit, line_style(index), confidence)
            axes.set(title=arm, xlabel=f"training bytes read ({unit_name})")
            axes.xaxis.set_tick_params(labelbottom=True)
            _step_axis(axes, bytes_per_step, unit)
        for axes in grid.flat[len(arms) :]:
            axes.set_visible(False)
        grid[0, 0].set_ylim(*difference_limits(arms, confidence))
        for axes in grid[:, 0]:
            axes.set_ylabel(f"difference to {baseline}\n(bits per byte, below 0 is better)")
        figure.suptitle(heading, fontsize=9, fontweight="bold")
    return figure


def difference_limits(arms: Arms, confidence: float = 0.95) -> tuple[float, float]:
    """The frame of a difference figure: room for every seed's line, and for bands up to three times as wide.

    Symmetric about zero. The first tenth of the run, where curves cross steeply, does not set it.
    """
    start = _last(arms) / 10
    lines = _largest(value for curves in arms.values() for curve in curves for at, value in curve.items() if at > start)
    bands = [pointwise_band(curves, confidence) for curves in arms.values() if curves]
    edges = _largest(
        value for band in bands for edge in (band.low, band.high) for value in edge[band.at > start].tolist()
    )
    reach = 1.08 * min(max(lines, edges), 3 * lines) or 1e-3
    return -reach, reach


def _last(arms: Arms) -> int:
    return max((at for curves in arms.values() for curve in curves for at in curve), default=1)


def _largest(values: Any) -> float:
    return max((abs(value) for value in values if np.isfinite(value)), default=0.0)


def _seeds_and_mean(axes: "Axes", curves: Sequence[Curve], unit: float, look: dict[str, Any], start: float) -> None:
    for curve in curves:
        _seed(axes, curve, unit, look, start)
    if curves:
        mean = pointwise_band(curves)
        shown = mean.at >= start
        axes.plot(mean.at[shown] / unit, mean.mean[shown], linewidth=1.5, **look)


def _band(axes: "Axes", curves: Sequence[Curve], unit: float, look: dict[str, Any], confidence: float) -> None:
    axes.axhline(0.0, color=INK, linewidth=0.6)
    for curve in curves:
        _seed(axes, curve, unit, look)
    if curves:
        band = pointwise_band(curves, confidence)
        axes.fill_between(band.at / unit, band.low, band.high, color=look["color"], alpha=0.16, linewidth=0)
        axes.plot(band.at / unit, band.mean, linewidth=1.5, **look)


def _seed(axes: "Axes", curve: Curve, unit: float, look: dict[str, Any], start: float = 0.0) -> None:
    at = [x for x in sorted(curve) if x >= start]
    axes.plot([x / unit for x in at], [curve[x] for x in at], color=look["color"], linewidth=0.5, alpha=0.6)


def _step_axis(axes: "Axes", bytes_per_step: float | None, unit: float) -> None:
    """Steps along the top; both horizontal axes get plain digits when they are logarithmic."""
    log = axes.get_xscale() == "log"
    if log:
        plain_ticks(axes.xaxis)
    if not bytes_per_step:
        return
    per_step = bytes_per_step / unit

    def steps(x: Any) -> Any:
        return x / per_step

    def positions(step: Any) -> Any:
        return step * per_step

    above = axes.secondary_xaxis("top", functions=(steps, positions))
    above.set_xlabel("steps")
    above.spines["top"].set_visible(True)
    if log:
        plain_ticks(above.xaxis)
