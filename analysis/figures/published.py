"""The three conditions of the published study in one figure: convergence, kernels, half-lives."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from plkernel.analysis.exponentials import Floats
from plkernel.analysis.figures.memory import decades, draw_law
from plkernel.analysis.figures.style import INK, PAGE_WIDTH, headline, line_style, style
from plkernel.analysis.statistics.bands import pointwise_band
from plkernel.analysis.trained.memory import QUANTILES, Memory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTTED = (0, (1, 1.2))
POINTS = 200


@dataclass(frozen=True)
class DrawnCondition:
    """One condition: bits per byte by step of every run, what it remembered at both ends, and its node set's kernel.

    coherent: ln of the plain sum over its nodes at lags in bytes, as if all signs were equal.
    """

    name: str
    curves: Sequence[Mapping[int, float]]
    before: Memory
    after: Memory
    coherent: Callable[[ArrayLike], Floats]


def published_figure(conditions: Sequence[DrawnCondition], beta: float, max_lag: float, heading: str = "") -> "Figure":
    """Validation bits per byte against steps; kernels at initialisation beside t**-beta; half-lives of all channels.

    The first condition is the baseline. Kernels reach to `max_lag` bytes.
    """
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 3.0))
        left, middle, right = figure.subplots(1, 3)
        draw_law(middle, np.array([1.0, max_lag]), beta)
        for index, condition in enumerate(conditions):
            colour = line_style(index)["color"]
            _convergence(left, condition, colour)
            _kernel(middle, condition, max_lag, colour)
            _half_lives(right, condition, colour)
        left.set(xlabel="steps", ylabel="validation bits per byte", title="convergence")
        middle.set(xscale="log", yscale="log", xlabel="lag t (bytes)", ylabel="k(t) / k(1)")
        middle.set_title(f"kernels at the start, t**-{beta:g}")
        right.set(xscale="log", xlabel="half-life (bytes)", ylabel="share of channels below", title="half-lives")
        for axis in (middle.xaxis, middle.yaxis, right.xaxis):
            decades(axis)
        _notes(middle, "lower left", {DOTTED: "sum of its nodes", "-": "in its models"})
        _notes(right, "lower right", {DOTTED: "at initialisation", "-": "after training"})
        _legend(figure, conditions)
        headline(figure, heading)
    return figure


def _convergence(axes: "Axes", condition: DrawnCondition, colour: str) -> None:
    """Seeds thin, their mean thick; step 0, where nothing is learned yet, would flatten the rest."""
    for curve in condition.curves:
        steps = sorted(step for step in curve if step > 0)
        axes.plot(steps, [curve[step] for step in steps], color=colour, lw=0.5, alpha=0.6)
    band = pointwise_band(condition.curves)
    axes.plot(band.at[band.at > 0], band.mean[band.at > 0], color=colour, lw=1.5)


def _kernel(axes: "Axes", condition: DrawnCondition, max_lag: float, colour: str) -> None:
    lags = np.geomspace(1, max_lag, POINTS)
    log_kernel = condition.coherent(lags)
    axes.plot(lags, np.exp(log_kernel - log_kernel[0]), color=colour, lw=1, ls=DOTTED)
    if condition.before.has_kernels:
        measured = np.exp(condition.before.log_kernels().mean(axis=0))
        axes.plot(condition.before.lags, measured, color=colour, lw=1.3)


def _half_lives(axes: "Axes", condition: DrawnCondition, colour: str) -> None:
    """Quantiles, geometric means over blocks and runs: dotted at the start, solid at the end."""
    for memory, dashes in ((condition.before, DOTTED), (condition.after, "-")):
        if memory.has_half_lives:
            values = np.exp(np.log(memory.half_lives).mean(axis=(0, 1)))
            axes.plot(values, QUANTILES, color=colour, lw=1.2, ls=dashes)


def _notes(axes: "Axes", place: Any, dashes: Mapping[Any, str]) -> None:
    """What solid and dotted lines are, in a corner of the panel."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=INK, lw=1.1, ls=dash, label=name) for dash, name in dashes.items()]
    axes.legend(handles=handles, loc=place, fontsize=6.5, handlelength=2)


def _legend(figure: "Figure", conditions: Sequence[DrawnCondition]) -> None:
    from matplotlib.lines import Line2D

    colours = [line_style(index)["color"] for index in range(len(conditions))]
    named = zip(colours, conditions, strict=True)
    handles = [Line2D([], [], color=colour, lw=1.5, label=condition.name) for colour, condition in named]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
