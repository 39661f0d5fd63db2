"""What far context is worth: bits per byte against how many of the last bytes are given, a line per arm."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from plkernel.analysis.exponentials.sums import Floats
from plkernel.analysis.figures.style import COLUMN_WIDTH, INK, legend_below, line_style, style
from plkernel.analysis.statistics.differences import student_interval

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
        figure.suptitle(heading, fontsize=9, fontweight="bold")
    return figure


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
