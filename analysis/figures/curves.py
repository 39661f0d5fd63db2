"""The figures of a study: convergence of every arm, and its difference to the baseline along the way."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from plkernel.analysis.figures.style import (
    COLUMN_WIDTH,
    GREY,
    INK,
    PAGE_WIDTH,
    byte_unit,
    headline,
    legend_below,
    line_style,
    plain_ticks,
    style,
)
from plkernel.analysis.statistics.bands import Band, Curve, pointwise_band, simultaneous_band

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEWEST_FOR_WHOLE = 5
"""From so many seeds on a band for the whole curve is drawn: with fewer it leaves every frame."""
SEEDS_SHOWN = 12
"""The lines of more seeds, of all arms together, grow paler: they would hide the means."""
NAME_HEIGHT = 0.055
"""Of a line across, as a share of the panel."""
PANELS_ACROSS = 3
NARROW = 34
"""Characters of a panel's title that fit at full size."""

Arms = Mapping[str, Sequence[Curve]]
"""The curves of every arm's seeds, keyed by bytes read."""


def convergence(
    arms: Arms,
    bytes_per_step: float | None = None,
    heading: str = "",
    references: Mapping[str, float] | None = None,
) -> "Figure":
    """Validation bits per byte against bytes read (below) and steps (above): a thin line per seed, a thick mean.

    The first of `arms` is the baseline. Left the whole run on a log scale of bytes, right its second half.
    `heading` stands above both; without `bytes_per_step` (arms that differ in it) there is no axis of steps.
    `references` are losses by name, dotted lines across: all on the left, on the right those between the curves.
    """
    from matplotlib.figure import Figure

    last = _last(arms)
    unit, unit_name = byte_unit(last)
    strength = min(0.6, SEEDS_SHOWN / max(1, sum(map(len, arms.values()))))
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 2.75 + 0.15 * -(-len(arms) // 3)))
        whole, late = figure.subplots(1, 2)
        for index, curves in enumerate(arms.values()):
            _seeds_and_mean(whole, curves, unit, line_style(index), 1, strength)
            _seeds_and_mean(late, curves, unit, line_style(index), last / 2, strength)
        whole.set(xscale="log", title="whole run", ylabel="validation bits per byte")
        late.set(title="second half", xlim=(last / 2 / unit, last / unit))
        low, high = late.get_ylim()
        _across(whole, references or {})
        _across(late, {name: loss for name, loss in (references or {}).items() if low < loss < high})
        for axes in (whole, late):
            axes.set_xlabel(f"training bytes read ({unit_name})")
            _step_axis(axes, bytes_per_step, unit)
        legend_below(figure, list(arms))
        headline(figure, heading)
    return figure


def differences(
    arms: Arms,
    baselines: Mapping[str, str],
    bytes_per_step: float | None = None,
    heading: str = "",
    confidence: float = 0.95,
) -> "Figure":
    """Arm minus baseline against bytes read, a panel per arm: seeds thin, mean thick, bands for point and curve.

    `arms` maps each arm but the baseline to its difference curves, `baselines` to the name of what was subtracted.
    The darker band is the t interval at each position on its own; the lighter one, drawn from five seeds on, holds
    for the whole curve (`simultaneous_band`). Both are cut at the frame, so that the lines stay legible.
    """
    from matplotlib.figure import Figure

    unit, unit_name = byte_unit(_last(arms))
    columns = max(1, min(3, len(arms)))
    rows = -(-max(1, len(arms)) // columns)
    bands = {arm: _bands(curves, confidence) for arm, curves in arms.items()}
    with style():
        figure = Figure(figsize=(PAGE_WIDTH if columns > 1 else 1.3 * COLUMN_WIDTH, 2.3 * rows + 0.5))
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for index, (axes, (arm, curves)) in enumerate(zip(grid.flat, arms.items(), strict=False), start=1):
            _difference(axes, curves, bands[arm], unit, line_style(index))
            _title(axes, arm, f"minus {baselines[arm]}")
            axes.xaxis.set_tick_params(labelbottom=index + columns > len(arms))
            if index <= columns:
                _step_axis(axes, bytes_per_step, unit)
        for axes in grid.flat[len(arms) :]:
            axes.set_visible(False)
        grid[0, 0].set_ylim(*difference_limits(arms, bands))
        figure.supxlabel(f"training bytes read ({unit_name})", fontsize=8)
        figure.supylabel("difference in bits per byte, below 0 is better", fontsize=8)
        headline(figure, heading)
    return figure


def effects(panels: Mapping[str, Arms], names: Mapping[str, str], linear: float) -> "Figure":
    """Difference to the baseline against bytes read, a panel per corpus, a line per arm: means and simultaneous bands.

    `panels` maps the title of a panel to difference curves by arm, `names` the arms to what the legend calls them; not
    every panel needs all. The scale of differences is linear up to +-`linear` and logarithmic beyond: they shrink over
    decades.
    """
    from matplotlib.figure import Figure

    unit, unit_name = byte_unit(max(map(_last, panels.values())))
    rows = -(-len(panels) // PANELS_ACROSS)
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 0.6 + 2.1 * rows))
        grid = figure.subplots(rows, -(-len(panels) // rows), sharex=True, sharey=True, squeeze=False)
        lines = {}
        for axes, (title, arms) in zip(grid.flat, panels.items(), strict=True):
            for index, (arm, name) in enumerate(names.items(), start=1):
                if arm not in arms:
                    continue
                band = simultaneous_band(arms[arm])
                read, look = band.at > 0, line_style(index)
                at = band.at[read] / unit
                axes.fill_between(at, band.low[read], band.high[read], color=look["color"], alpha=0.15, linewidth=0)
                (lines[name],) = axes.plot(at, band.mean[read], linewidth=1.5, **look)
            axes.axhline(0.0, color=INK, linewidth=0.6)
            axes.set(xscale="log", title=title)
            plain_ticks(axes.xaxis)
            axes.set_yscale("symlog", linthresh=linear)
            axes.yaxis.set_major_formatter("{x:g}")
        figure.legend(lines.values(), lines, loc="outside lower center", ncols=len(lines))
        for axes in grid[-1]:
            axes.set_xlabel(f"training bytes read ({unit_name})")
        figure.supylabel("bits per byte minus log-spaced", fontsize=8)
    return figure


def difference_limits(arms: Arms, bands: Mapping[str, Sequence[Band]]) -> tuple[float, float]:
    """The frame of a difference figure: room for every seed's line, and for bands up to three times as wide.

    Symmetric about zero. The first tenth of the run, where curves cross steeply, does not set it.
    """
    start = _last(arms) / 10
    lines = _largest(value for curves in arms.values() for curve in curves for at, value in curve.items() if at > start)
    edges = _largest(
        value
        for of in bands.values()
        for band in of
        for edge in (band.low, band.high)
        for value in edge[band.at > start].tolist()
    )
    reach = 1.08 * min(max(lines, edges), 3 * lines) or 1e-3
    return -reach, reach


def _bands(curves: Sequence[Curve], confidence: float) -> list[Band]:
    """The band for each position, and where there are seeds enough the one for the whole curve; none of no curves."""
    if not curves:
        return []
    whole = [simultaneous_band(curves, confidence)] if len(curves) >= FEWEST_FOR_WHOLE else []
    return [pointwise_band(curves, confidence), *whole]


def _title(axes: "Axes", *lines: str) -> None:
    """The lines above a panel, smaller where one is long."""
    longest = max(map(len, lines))
    axes.set_title("\n".join(lines), fontsize=8.0 * min(1.0, max(0.6, NARROW / longest)))


def _last(arms: Arms) -> int:
    return max((at for curves in arms.values() for curve in curves for at in curve), default=1)


def _largest(values: Any) -> float:
    return max((abs(value) for value in values if np.isfinite(value)), default=0.0)


def _seeds_and_mean(
    axes: "Axes", curves: Sequence[Curve], unit: float, look: dict[str, Any], start: float, strength: float
) -> None:
    for curve in curves:
        _seed(axes, curve, unit, look, start, strength)
    if curves:
        mean = pointwise_band(curves)
        shown = mean.at >= start
        axes.plot(mean.at[shown] / unit, mean.mean[shown], linewidth=1.5, **look)


def _across(axes: "Axes", references: Mapping[str, float]) -> None:
    """Lines across a panel; the names of lines that are close to one another stand above the highest of them."""
    for loss in references.values():
        axes.axhline(loss, color=GREY, linestyle=(0, (1, 2)), linewidth=0.8, zorder=0.9)
    low, high = axes.get_ylim()
    height = NAME_HEIGHT * (high - low)
    close: list[list[tuple[float, str]]] = []
    for loss, name in sorted((loss, name) for name, loss in references.items()):
        if close and loss - close[-1][-1][0] < height:
            close[-1].append((loss, name))
        else:
            close.append([(loss, name)])
    for lines in close:
        names, fits = "; ".join(name for _, name in lines), lines[-1][0] + height < high
        at, side = (lines[-1][0], "bottom") if fits else (lines[0][0], "top")
        axes.text(0.01, at, names, transform=axes.get_yaxis_transform(), va=side, fontsize=5.5, color=GREY)


def _difference(
    axes: "Axes", curves: Sequence[Curve], bands: Sequence[Band], unit: float, look: dict[str, Any]
) -> None:
    axes.axhline(0.0, color=INK, linewidth=0.6)
    for curve in curves:
        _seed(axes, curve, unit, look)
    for band, alpha in zip(bands, (0.2, 0.1), strict=False):
        axes.fill_between(band.at / unit, band.low, band.high, color=look["color"], alpha=alpha, linewidth=0)
    for band in bands[:1]:
        axes.plot(band.at / unit, band.mean, linewidth=1.5, **look)


def _seed(
    axes: "Axes", curve: Curve, unit: float, look: dict[str, Any], start: float = 0.0, strength: float = 0.6
) -> None:
    at = [x for x in sorted(curve) if x >= start]
    axes.plot([x / unit for x in at], [curve[x] for x in at], color=look["color"], linewidth=0.5, alpha=strength)


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
