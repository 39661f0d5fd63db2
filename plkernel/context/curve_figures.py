"""Figures of the use of context: influence, the worth of context, the probe of a model."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from plkernel.analysis.figures.style import (
    COLOURS,
    COLUMN_WIDTH,
    FAINTEST,
    INK,
    LAW,
    PAGE_WIDTH,
    decades,
    legend_below,
    line_style,
    row_of_axes,
    style,
)
from plkernel.analysis.intervals import critical_value, student_interval
from plkernel.context.measures import INFORMED, Floats, Influence, Means, Probe, Truncation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


LEGEND_ROW = 0.15
"""Inches of a row of the legend."""


class Curves(NamedTuple):
    """Bits (S,L) of the seeds of an arm at lags, or with so many bytes given, (L,).

    best: (L,), the least bits per byte of any predictor, or the I(d) of the text; None if the law
    is unknown.
    """

    at: Sequence[int]
    bits: Floats
    best: Sequence[float] | None = None


def truncation_figure(arms: Mapping[str, Curves], heading: str = "") -> "Figure":
    """Left bits per byte against the bytes given, right the loss against the whole context.

    Both are means over seeds. The first of `arms` is the baseline. Bands are t intervals of the
    mean over seeds. The broad grey line is the best possible with so many bytes, if the source of
    the text is known.
    """
    lost = {name: _lost(curves) for name, curves in arms.items()}
    panels = [
        (arms, "bytes given", "bits per byte"),
        (lost, "bytes given", "bits per byte lost by the rest"),
    ]
    return _over_seeds(panels, heading)


def _lost(curves: Curves) -> Curves:
    """Bits above those of the last place, at all places before it."""
    bits = curves.bits - curves.bits[:, -1:]
    best = None
    if curves.best is not None:
        best = np.subtract(curves.best, curves.best[-1])[:-1].tolist()
    return Curves(curves.at[:-1], bits[:, :-1], best)


def influence_figure(arms: Mapping[str, Curves], heading: str = "") -> "Figure":
    """Change of the prediction in bits when the byte at a lag is another, means over seeds.

    I(d) of the text stands beside it if its law is known.
    """
    return _over_seeds([(arms, "lag d (bytes)", "change of the prediction, bits")], heading)


def recall_figure(
    panels: Sequence[tuple[Mapping[str, Curves], str, str]], heading: str = ""
) -> "Figure":
    """Accuracies over seeds in panels, two beside each other: curves by arm, labels of the axes."""
    figure = _over_seeds(panels, heading, columns=2, is_log=False)
    for axes in figure.axes:
        axes.set_ylim(-0.04, 1.04)
    return figure


def beyond_figure(
    panels: Sequence[tuple[Mapping[str, Curves], str, str]], heading: str = ""
) -> "Figure":
    """Left bits by position in long windows, right what reading on costs; zero is a thin line."""
    figure = _over_seeds(panels, heading, is_log=False)
    figure.axes[-1].axhline(0.0, color=INK, lw=0.6)
    return figure


def curve_figure(curve: Influence | Truncation | Means) -> "Figure":
    """Draw the influence, the worth of context, or the loss by position, of one model."""
    if isinstance(curve, Means):
        arms = {"model": Curves(curve.given, np.array([curve.bpb]))}
        return _over_seeds([(arms, "bytes before, in the window", "bits per byte")], "")
    if isinstance(curve, Influence):
        return influence_figure({"model": Curves(curve.lags, np.array([curve.bits]))})
    return truncation_figure({"model": Curves(curve.given, np.array([curve.bpb]), curve.floor)})


class _Panel(NamedTuple):
    """A curve of a probe at places (L,), with standard errors, and the words about it.

    title, below, left  of the panel, and of the axes below and left of it
    beside_text         the text's own I(d) is drawn beside it, on a logarithmic axis
    """

    at: Sequence[int]
    values: Sequence[float]
    errors: Sequence[float]
    title: str
    below: str
    left: str
    beside_text: bool = False


@style()
def probe_figure(probe: Probe, heading: str = "") -> "Figure":
    """Influence, bits by position, and what less context or reading on costs.

    Bands are 95 % t intervals over windows. Beside influence and loss, in the same bits, stands the
    text's own I(d) if it is known.
    """
    text = probe.information
    panels = _probe_panels(probe)
    figure, row = row_of_axes(len(panels), PAGE_WIDTH * len(panels) / 3, 2.7, 1, heading)
    base = 4 if probe.context <= 1024 else 16
    ticks = [base**power for power in range(16) if base**power <= probe.context]
    for axes, panel in zip(row, panels, strict=True):
        half = critical_value(probe.windows) * np.asarray(panel.errors)
        _curve(axes, panel.at, panel.values, half, lw=1.3, color=INK, label="model")
        if panel.beside_text:
            if text is not None:
                _text_curve(axes, text)
            _positive(axes)
        axes.set(xlabel=panel.below, ylabel=panel.left, title=panel.title)
        axes.set(xlim=(1 / 1.3, 1.3 * probe.context))
        axes.set_xticks(ticks, minor=False)
    if text is not None:
        row[0].legend()
    return figure


def _probe_panels(probe: Probe) -> list[_Panel]:
    """The panels of a probe; the last where windows are longer than those of training."""
    unit = probe.unit
    near = probe.influence
    along = probe.positions
    cut = probe.truncation
    far = probe.cost
    panels = [
        _Panel(
            near.lags,
            near.bits,
            near.standard_error,
            title=f"one {unit} replaced",
            below=f"lag d ({unit}s)",
            left="change, bits",
            beside_text=True,
        ),
        _Panel(
            along.given,
            along.bpb,
            along.standard_error,
            title="by position",
            below=f"{unit}s before",
            left=f"bits per {unit}",
        ),
        # The last place is the whole context, which costs nothing.
        _Panel(
            cut.given[:-1],
            cut.cost[:-1],
            cut.standard_error[:-1],
            title="the rest taken away",
            below=f"d: {unit}s given",
            left=f"lost, bits per {unit}",
            beside_text=True,
        ),
    ]
    if far is not None:
        reading_on = _Panel(
            far.given,
            far.bpb,
            far.standard_error,
            title="reading on",
            below=f"{unit}s before",
            left=f"lost since {probe.trained:,}, bits per {unit}",
        )
        panels.append(reading_on)
    return panels


def _text_curve(axes: "Axes", text: Influence) -> None:
    """I(d) of a text with its 95 % intervals, over INFORMED blocks."""
    half = critical_value(INFORMED) * np.asarray(text.standard_error)
    label = "I(d) of the text"
    _curve(axes, text.lags, text.bits, half, lw=1.3, color=COLOURS[0], label=label)


@style()
def _over_seeds(
    panels: Sequence[tuple[Mapping[str, Curves], str, str]],
    heading: str,
    columns: int | None = None,
    is_log: bool = True,
) -> "Figure":
    """Means over seeds with bands, and the best that is known.

    panels   curves by arm, and labels of the axes
    columns  panels beside each other, all unless given
    is_log   the axis of the last panel is logarithmic
    """
    arms = list(panels[0][0])
    width = columns or len(panels)
    rows = math.ceil(len(panels) / width)
    legend = LEGEND_ROW * math.ceil(len(arms) / (1 + width))
    figure, row = row_of_axes(width, width * COLUMN_WIDTH, 2.6 * rows + legend, rows, heading)
    for axes, (curves, below, left) in zip(row, panels, strict=True):
        for index, arm in enumerate(curves.values()):
            mean, _, half = student_interval(arm.bits, 0.95)
            _curve(axes, arm.at, mean, half, lw=1.5, **line_style(index))
        for arm in curves.values():
            if arm.best is not None:
                axes.plot(arm.at, arm.best, **LAW)
                break  # it is that of the text, the same for all arms
        axes.set(xlabel=below, ylabel=left)
    if is_log:
        _positive(row[-1])
    legend_below(figure, arms)
    return figure


def _curve(
    axes: "Axes", at: Sequence[int], middle: ArrayLike, half: ArrayLike, **look: Any
) -> None:
    """Points (L,) at powers of two, joined, and a band from `half` below to `half` above.

    No band where `half` is NaN.
    """
    values = np.asarray(middle, dtype=np.float64)
    reach = np.nan_to_num(np.asarray(half, dtype=np.float64))
    axes.plot(at, values, marker="o", ms=2.5, **look)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    if reach.any():
        axes.fill_between(at, values - reach, values + reach, color=look["color"], alpha=0.15, lw=0)


def _positive(axes: "Axes") -> None:
    """Set a log axis over six decades at most, if anything is above zero.

    The rest lies below its edge.
    """
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=np.float64) for line in axes.lines])
    if (values > 0).any():
        top = float(np.nanmax(values))
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(max(float(values[values > 0].min()) / 2, FAINTEST * top), 2 * top)
        decades(axes.yaxis)
