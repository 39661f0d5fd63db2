"""The figure of a fit: kernels, weights against half-life, and the error that remains."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from plkernel.analysis.exponentials.sums import ExponentialSum
from plkernel.analysis.exponentials.targets import Target
from plkernel.analysis.figures.style import COLOURS, INK, PAGE_WIDTH, line_style, style
from plkernel.analysis.nodes.node_set import Nodes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def fit_figure(
    optimal: ExponentialSum, weightings: Mapping[str, Nodes], target: Target, gain: str, method: str = "nnls"
) -> "Figure":
    """Left: kernels normalised to 1 at lag 1; middle: weight against half-life; right: error of the optimum.

    `weightings` maps a label to the channels it weights; their kernels stand beside `target` and the optimum.
    """
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 2.9))
        kernels, weights, errors = figure.subplots(1, 3, width_ratios=(1.25, 1, 1))
        _kernels(kernels, optimal, weightings, target, method)
        _weights(weights, optimal)
        _errors(errors, optimal, target)
        title = f"kernels, gain '{gain}', 1 at lag 1"
        kernels.set(xscale="log", yscale="log", xlabel="lag t (steps)", ylabel="k(t) / k(1)", title=title)
        for axis in (kernels.xaxis, kernels.yaxis, weights.xaxis, weights.yaxis, errors.xaxis):
            axis.set_major_formatter("{x:g}")
        handles, labels = kernels.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _kernels(
    axes: "Axes", optimal: ExponentialSum, weightings: Mapping[str, Nodes], target: Target, method: str
) -> None:
    known = target.integer_lags()
    places = np.unique(np.geomspace(1, known.size, min(200, known.size)).round().astype(int)) - 1
    lags, first = known[places], known[:1]
    values = target.value(lags) / target.value(first)
    axes.plot(lags, values, label=f"target {target.label}", color=INK, lw=3, alpha=0.25)
    axes.plot(lags, optimal.kernel(lags) / optimal.kernel(first), label=f"optimal weights ({method})", color=INK, lw=1)
    for index, (label, nodes) in enumerate(weightings.items(), start=1):
        kernel = nodes.kernel()
        axes.plot(lags, kernel.kernel(lags) / kernel.kernel(first), label=label, lw=1.1, **line_style(index))


def _weights(axes: "Axes", optimal: ExponentialSum) -> None:
    active = optimal.active()
    half_lives, values = active.half_lives(), np.asarray(active.weights) / sum(active.weights)
    floor = values.min() / 5
    axes.vlines(half_lives, floor, values, color=COLOURS[0], lw=1)
    axes.plot(half_lives, values, "o", color=COLOURS[0], ms=3.5)
    axes.set(xscale="log", yscale="log", ylim=(floor, 2), xlabel="half-life (steps)", ylabel="share of weight")
    axes.set_title(f"{len(active.rates)} active of {len(optimal.rates)} nodes")


def _errors(axes: "Axes", optimal: ExponentialSum, target: Target) -> None:
    lags = target.integer_lags()
    relative = 100 * (optimal.kernel(lags) / target.value(lags) - 1)
    worst = int(np.argmax(np.abs(relative)))
    axes.axhline(0, color=INK, lw=0.5)
    axes.plot(lags, relative, color=COLOURS[0], lw=1)
    axes.plot(lags[worst], relative[worst], "o", color=COLOURS[1], ms=3.5)
    axes.set(xscale="log", xlabel="lag t (steps)", ylabel="relative error (%)")
    axes.set_title(f"largest {abs(relative[worst]):.1f} % at t = {lags[worst]:.0f}")
