"""What far context is worth: bits against the bytes given, influence against lag, of arms; the probe of one model."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from plkernel.analysis.exponentials import Floats
from plkernel.analysis.figures.decay_panels import power_ticks
from plkernel.analysis.figures.style import (
    COLOURS,
    COLUMN_WIDTH,
    INK,
    PAGE_WIDTH,
    headline,
    legend_below,
    line_style,
    style,
)
from plkernel.analysis.statistics.differences import critical_value, student_interval
from plkernel.analysis.trained.influence import Probe

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FLOOR: dict[str, Any] = {"color": INK, "lw": 4, "alpha": 0.18, "solid_capstyle": "butt", "zorder": 1}


@dataclass(frozen=True)
class Truncated:
    """The truncation curves of an arm: `given` (L,) bytes, bits per byte (S,L) of its seeds.

    floor: (L,) of the best predictor there is, where the source of the text is known.
    """

    given: tuple[int, ...]
    bpb: Floats
    floor: tuple[float, ...] | None = None

    @property
    def cost(self) -> Floats:
        """(S,L): what is lost against the whole context."""
        return np.asarray(self.bpb - self.bpb[:, -1:])


def truncation_figure(arms: Mapping[str, Truncated], heading: str = "", confidence: float = 0.95) -> "Figure":
    """Left bits per byte against the bytes given, right what is lost against the whole context; means over seeds.

    The first of `arms` is the baseline. Bands are t intervals of the mean over seeds. The broad grey line is the best
    that can be done with so many bytes, where the source of the text is known.
    """
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(2 * COLUMN_WIDTH, 2.6 + 0.15 * -(-len(arms) // 3)))
        whole, lost = figure.subplots(1, 2)
        for index, arm in enumerate(arms.values()):
            _line(whole, arm.given, arm.bpb, index, confidence)
            _line(lost, arm.given[:-1], arm.cost[:, :-1], index, confidence)
        known = next((arm for arm in arms.values() if arm.floor is not None), None)
        if known is not None and known.floor is not None:
            floor = np.array(known.floor)
            whole.plot(known.given, floor, **FLOOR)
            above = (floor - floor[-1])[:-1]
            lost.plot(known.given[:-1], np.where(above > 0, above, np.nan), **FLOOR)
        for axes in (whole, lost):
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.set_xlabel("bytes given")
        whole.set_ylabel("bits per byte")
        lost.set_ylabel("bits per byte lost by the rest")
        _log_where_positive(lost, arms.values())
        legend_below(figure, list(arms))
        headline(figure, heading)
    return figure


@dataclass(frozen=True)
class Influenced:
    """Influence of a byte on the predictions of an arm: `lags` (L,), bits (S,L) of its seeds.

    information: (L,) in bits, the I(d) of the text, where its law is known.
    """

    lags: tuple[int, ...]
    bits: Floats
    information: tuple[float, ...] | None = None


def influence_figure(arms: Mapping[str, Influenced], heading: str = "", confidence: float = 0.95) -> "Figure":
    """Change of the prediction in bits when the byte at a lag is another, means over seeds with t intervals.

    The broad grey line is I(d) of the text where its law is known, in the same bits. Triangles on the lower edge are
    values at or below zero, or far below all others.
    """
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(COLUMN_WIDTH, 2.6 + 0.15 * -(-len(arms) // 2)))
        axes = figure.subplots()
        for index, arm in enumerate(arms.values()):
            _line(axes, arm.lags, arm.bits, index, confidence)
        known = next((arm for arm in arms.values() if arm.information is not None), None)
        if known is not None:
            axes.plot(known.lags, known.information or (), **FLOOR)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set(xlabel="lag d (bytes)", ylabel="change of the prediction, bits")
        _positive(axes)
        legend_below(figure, list(arms))
        headline(figure, heading)
    return figure


def probe_figure(probe: Probe, heading: str = "") -> "Figure":
    """Influence against lag, bits by position, and what is lost when only the last tokens are given.

    Bands are 95 % t intervals over windows. Beside influence and loss, in the same bits, stands the text's own I(d)
    where it is known. Triangles on the lower edge are values at or below zero, or far below all others.
    """
    from matplotlib.figure import Figure

    unit, text = probe.unit, probe.information_bits()
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 2.7))
        near, along, lost = figure.subplots(1, 3)
        shown = probe.influence, probe.positions, probe.truncation
        half = [critical_value(probe.windows) * np.asarray(curve.standard_error) for curve in shown]
        _banded(near, probe.influence.lags, probe.influence.bits, half[0], INK, "model")
        _banded(along, probe.positions.given, probe.positions.bpb, half[1], INK)
        _banded(lost, probe.truncation.given[:-1], probe.truncation.cost[:-1], half[2][:-1], INK)
        for axes in (near, lost):
            if text is not None:
                errors = critical_value(len(probe.information.replicates[0])) * text[1] if probe.information else 0
                _banded(axes, probe.influence.lags, text[0], errors, COLOURS[0], "I(d) of the text")
            _positive(axes)
        for axes, label in ((near, f"lag d ({unit}s)"), (along, f"{unit}s before"), (lost, f"d: {unit}s given")):
            axes.set(xlabel=label, xlim=(1 / 1.3, 1.3 * probe.context))
            axes.set_xscale("log", base=2)
            axes.set_xticks([4**power for power in range(16) if 4**power <= probe.context], minor=False)
            axes.xaxis.set_major_formatter("{x:g}")
        near.set(title=f"one {unit} replaced", ylabel="change, bits")
        along.set(title="by position", ylabel=f"bits per {unit}")
        lost.set(title="the rest taken away", ylabel=f"lost, bits per {unit}")
        if text is not None:
            near.legend()
        headline(figure, heading)
    return figure


def _banded(
    axes: "Axes", at: Sequence[int], values: ArrayLike, half: ArrayLike, colour: str, label: str | None = None
) -> None:
    middle, reach = np.asarray(values, dtype=np.float64), np.nan_to_num(np.asarray(half, dtype=np.float64))
    axes.fill_between(at, middle - reach, middle + reach, color=colour, alpha=0.15, lw=0)
    axes.plot(at, middle, lw=1.3, marker="o", ms=2.5, color=colour, label=label)


def _positive(axes: "Axes") -> None:
    """A log axis over six decades at most, where there is anything above zero."""
    lines = list(axes.get_lines())
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=np.float64) for line in lines])
    if not (values > 0).any():
        return
    top = float(values.max())
    bottom = max(float(values[values > 0].min()) / 2, 1e-6 * top)
    axes.set_yscale("log", nonpositive="clip")
    axes.set_ylim(bottom, 2 * top)
    power_ticks(axes)
    for row, line in enumerate(lines):
        x, y = (np.asarray(data, dtype=np.float64) for data in line.get_data())
        hidden = y < bottom
        line.set_ydata(np.where(hidden, np.nan, y))
        look: dict[str, Any] = {"color": line.get_color(), "marker": "v", "ms": 3.5, "mfc": "none", "ls": "none"}
        edge = np.full(int(hidden.sum()), 0.025 * (1 + row))
        axes.plot(x[hidden], edge, transform=axes.get_xaxis_transform(), **look)


def _line(axes: "Axes", given: Sequence[int], values: Floats, index: int, confidence: float) -> None:
    mean, _, half = student_interval(values, confidence)
    axes.plot(given, mean, lw=1.5, marker="o", ms=2.5, **line_style(index))
    if len(values) > 1:
        axes.fill_between(given, mean - half, mean + half, color=line_style(index)["color"], alpha=0.15, lw=0)


def _log_where_positive(axes: "Axes", arms: Iterable[Truncated]) -> None:
    """A log axis where something is lost at every length: what far bytes are worth spans decades."""
    costs = [arm.cost[:, :-1].mean(axis=0) for arm in arms]
    if all(cost.size and cost.min() > 0 for cost in costs):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.axhline(0, color=INK, lw=0.5)
