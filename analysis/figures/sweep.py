"""The figure of a sweep: the loss over the exponent, its parabola and optimum, and the exponent that was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from plkernel.analysis.figures.style import COLOURS, INK, PAGE_WIDTH, style
from plkernel.analysis.statistics.optimum import Optimum

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEASURED, BEST = COLOURS[2], COLOURS[1]
MARGIN = 0.05


@dataclass(frozen=True)
class Sweep:
    """One panel: differences to the baseline by beta and seed, in bits per byte, and the two exponents.

    measured: exponent of the text with the bounds of its interval, None where it has none.
    """

    name: str
    differences: Mapping[float, Mapping[int, float]]
    best: Optimum
    measured: tuple[float, float, float] | None


def sweep_figure(sweeps: Sequence[Sweep]) -> "Figure":
    """A panel per text: thin lines are seeds, points their means; bands are 95 % intervals of the two exponents."""
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 2.6))
        axes = figure.subplots(1, len(sweeps), sharey=True, squeeze=False)[0]
        for panel, sweep in zip(axes, sweeps, strict=True):
            _draw(panel, sweep)
        axes[0].set_ylabel("bits per byte minus uniform")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def _draw(panel: "Axes", sweep: Sweep) -> None:
    levels = np.array(sorted(sweep.differences))
    seeds = list(sweep.differences[levels[0]])
    values = np.array([[sweep.differences[level][seed] for seed in seeds] for level in levels])
    panel.plot(levels, values, color=INK, linewidth=0.5, alpha=0.4)
    panel.plot(levels, values.mean(axis=1), "o", color=INK, markersize=3, label="mean over seeds")
    grid = np.linspace(levels[0], levels[-1], 100)
    parabola = np.polyval(np.polyfit(levels, values.mean(axis=1), 2), grid)
    panel.plot(grid, parabola, color=INK, linewidth=1.2, label="parabola")
    panel.axhline(0, color=INK, linewidth=0.5, linestyle=":")
    measured = sweep.measured or ()
    ends = min([float(levels[0]), *measured[:1]]) - MARGIN, max([float(levels[-1]), *measured[:1]]) + MARGIN
    _mark(panel, (sweep.best.at, sweep.best.low, sweep.best.high), ends, BEST, "best for the model")
    if sweep.measured is not None:
        _mark(panel, sweep.measured, ends, MEASURED, "measured in the text")
    panel.set_xlim(*ends)
    panel.set_title(sweep.name)
    panel.set_xlabel("beta of the projection")


def _mark(
    panel: "Axes", exponent: tuple[float, float, float], ends: tuple[float, float], colour: str, label: str
) -> None:
    """An exponent and its interval, as far as they lie between the ends of the panel."""
    at, low, high = exponent
    if max(low, ends[0]) < min(high, ends[1]):
        panel.axvspan(max(low, ends[0]), min(high, ends[1]), color=colour, alpha=0.15, linewidth=0)
    inside = [at, at] if ends[0] <= at <= ends[1] else []
    across = panel.get_xaxis_transform()
    panel.plot(inside, [0, 1][: len(inside)], color=colour, linewidth=1.2, transform=across, label=label)
