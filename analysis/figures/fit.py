"""The figure of a fit: kernels, weights against half-life, and the error that remains."""

from typing import TYPE_CHECKING

import numpy as np

from plkernel.analysis.figures.style import COLOURS, INK, PAGE_WIDTH, line_style, style
from plkernel.analysis.fit import FitResult
from plkernel.analysis.nodes import Nodes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def fit_figure(result: FitResult, nodes: Nodes) -> "Figure":
    """Left: kernels of target, optimum and channels, 1 at lag 1; middle: weight over half-life; right: error."""
    from matplotlib.figure import Figure

    optimal, target, active = result.optimal, result.target, result.active
    known = target.integer_lags()
    places = np.unique(np.geomspace(1, known.size, min(200, known.size)).round().astype(int)) - 1
    lags, first = known[places], known[:1]
    half_lives, shares = active.half_lives(), np.asarray(active.weights) / sum(active.weights)
    errors = 100 * (optimal.kernel(known) / target.value(known) - 1)
    worst, floor = int(np.argmax(np.abs(errors))), shares.min() / 5
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 2.9))
        left, middle, right = figure.subplots(1, 3, width_ratios=(1.25, 1, 1))
        values = target.value(lags) / target.value(first)
        left.plot(lags, values, label=f"target {target.label}", color=INK, lw=3, alpha=0.25)
        values = optimal.kernel(lags) / optimal.kernel(first)
        left.plot(lags, values, label=f"optimal weights ({result.method})", color=INK, lw=1)
        kernel = nodes.kernel()
        values = kernel.kernel(lags) / kernel.kernel(first)
        left.plot(lags, values, label=f"channels written, gain '{nodes.gain}'", lw=1.1, **line_style(1))
        left.set(xscale="log", yscale="log", xlabel="lag t (steps)", ylabel="k(t) / k(1)")
        left.set_title("kernels, 1 at lag 1")

        middle.vlines(half_lives, floor, shares, color=COLOURS[0], lw=1)
        middle.plot(half_lives, shares, "o", color=COLOURS[0], ms=3.5)
        middle.set(xscale="log", yscale="log", ylim=(floor, 2), xlabel="half-life (steps)", ylabel="share of weight")
        middle.set_title(f"{len(active.rates)} active of {len(optimal.rates)} nodes")

        right.axhline(0, color=INK, lw=0.5)
        right.plot(known, errors, color=COLOURS[0], lw=1)
        right.plot(known[worst], errors[worst], "o", color=COLOURS[1], ms=3.5)
        right.set(xscale="log", xlabel="lag t (steps)", ylabel="relative error (%)")
        right.set_title(f"largest {abs(errors[worst]):.1f} % at t = {known[worst]:.0f}")

        for axis in (left.xaxis, left.yaxis, middle.xaxis, middle.yaxis, right.xaxis):
            axis.set_major_formatter("{x:g}")
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
