"""The figure of a sweep: the loss over the exponent, its parabola and optimum, and the exponents that were expected."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from plkernel.analysis.figures.style import COLOURS, INK, PAGE_WIDTH, style
from plkernel.analysis.statistics.optimum import Optimum

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BEST, EXPECTED = COLOURS[1], (COLOURS[2], COLOURS[0], COLOURS[3])
MARGIN = 0.05


@dataclass(frozen=True)
class Sweep:
    """One panel: differences to the baseline by exponent and seed, in bits per byte, the best one and those expected.

    expected: exponents by what they are, each with the bounds of its interval, which are its own where it is exact.
    """

    name: str
    differences: Mapping[float, Mapping[int, float]]
    best: Optimum
    expected: Mapping[str, tuple[float, float, float]]


def sweep_figure(sweeps: Sequence[Sweep], columns: int | None = None) -> "Figure":
    """A panel per sweep: thin lines are seeds, points their means; bands are 95 % intervals of the exponents."""
    from matplotlib.figure import Figure

    columns = columns or len(sweeps)
    rows = -(-len(sweeps) // columns)
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 0.6 + 2.0 * rows))
        grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
        for panel, sweep in zip(grid.flat, sweeps, strict=True):
            _draw(panel, sweep)
        for panel in grid[:, 0]:
            panel.set_ylabel("bits per byte minus uniform")
        for panel in grid[-1]:
            panel.set_xlabel("exponent")
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
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
    points = [float(levels[0]), float(levels[-1]), *(at for at, _, _ in sweep.expected.values())]
    ends = min(points) - MARGIN, max(points) + MARGIN
    _mark(panel, (sweep.best.at, sweep.best.low, sweep.best.high), ends, BEST, "best for the model")
    for colour, (name, exponent) in zip(EXPECTED, sweep.expected.items(), strict=False):
        _mark(panel, exponent, ends, colour, name)
    panel.set_xlim(*ends)
    panel.set_title(sweep.name)


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
