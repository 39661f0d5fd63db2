"""Figures of the use of context: influence, the worth of context, the probe of a model."""

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

    Both are means over seeds.

    The first of `arms` is the baseline. Bands are t intervals of the mean over seeds. The broad
    grey line is the best possible with so many bytes, if the source of the text is known.
    """
    lost = {
        name: Curves(
            at[:-1],
            (bits - bits[:, -1:])[:, :-1],
            best and np.subtract(best, best[-1])[:-1].tolist(),
        )
        for name, (at, bits, best) in arms.items()
    }
    panels = [
        (arms, "bytes given", "bits per byte"),
        (lost, "bytes given", "bits per byte lost by the rest"),
    ]
    return _over_seeds(panels, heading)


def influence_figure(arms: Mapping[str, Curves], heading: str = "") -> "Figure":
    """Change of the prediction in bits when the byte at a lag is another.

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


@style()
def probe_figure(probe: Probe, heading: str = "") -> "Figure":
    """Influence, bits by position, and what less context or reading on costs.

    Bands are 95 % t intervals over windows. Beside influence and loss, in the same bits, stands the
    text's own I(d) if it is known.
    """
    unit, text, t = probe.unit, probe.information, critical_value(probe.windows)
    near, along, cut = probe.influence, probe.positions, probe.truncation
    lost = (cut.given[:-1], cut.cost[:-1], cut.standard_error[:-1])
    panels = [
        (
            near.lags,
            near.bits,
            near.standard_error,
            f"one {unit} replaced",
            f"lag d ({unit}s)",
            "change, bits",
        ),
        (
            along.given,
            along.bpb,
            along.standard_error,
            "by position",
            f"{unit}s before",
            f"bits per {unit}",
        ),
        (*lost, "the rest taken away", f"d: {unit}s given", f"lost, bits per {unit}"),
    ]
    if (far := probe.cost) is not None:
        words = "reading on", f"{unit}s before", f"lost since {probe.trained:,}, bits per {unit}"
        panels.append((far.given, far.bpb, far.standard_error, *words))
    figure, row = row_of_axes(len(panels), PAGE_WIDTH * len(panels) / 3, 2.7, 1, heading)
    ticks = [(4 if probe.context <= 1024 else 16) ** power for power in range(16)]
    for axes, (at, values, errors, title, below, left) in zip(row, panels, strict=True):
        _curve(axes, at, values, t * np.asarray(errors), lw=1.3, color=INK, label="model")
        if axes in row[:3:2]:
            if text is not None:
                half = critical_value(INFORMED) * np.asarray(text.standard_error)
                _curve(
                    axes,
                    text.lags,
                    text.bits,
                    half,
                    lw=1.3,
                    color=COLOURS[0],
                    label="I(d) of the text",
                )
            _positive(axes)
        axes.set(xlabel=below, ylabel=left, title=title, xlim=(1 / 1.3, 1.3 * probe.context))
        axes.set_xticks([tick for tick in ticks if tick <= probe.context], minor=False)
    if text is not None:
        row[0].legend()
    return figure


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
    rows = -(-len(panels) // width)
    legend = 0.15 * -(-len(arms) // (1 + width))
    figure, row = row_of_axes(width, width * COLUMN_WIDTH, 2.6 * rows + legend, rows, heading)
    for axes, (curves, below, left) in zip(row, panels, strict=True):
        for index, arm in enumerate(curves.values()):
            mean, _, half = student_interval(arm.bits, 0.95)
            _curve(axes, arm.at, mean, half, lw=1.5, **line_style(index))
        if best := next(
            ((arm.at, arm.best) for arm in curves.values() if arm.best is not None), None
        ):
            axes.plot(*best, **LAW)
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
    values, reach = (
        np.asarray(middle, dtype=np.float64),
        np.nan_to_num(np.asarray(half, dtype=np.float64)),
    )
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
