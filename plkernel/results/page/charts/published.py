"""The chart of the three published conditions: convergence, kernels at the start, half-lives."""

import numpy as np

from plkernel.analysis.exponentials import power_law
from plkernel.analysis.figures.published import POINTS, DrawnCondition
from plkernel.analysis.statistics.bands import pointwise_band
from plkernel.analysis.trained.memory import QUANTILES
from plkernel.results.comparison import Comparison
from plkernel.results.page.charts import captions
from plkernel.results.page.charts.axes import linear, logarithmic
from plkernel.results.page.charts.frames import LAW, LINE, SEED, Chart, Panel, Shape, Trace, line
from plkernel.results.published import Reading, conditions, described

START = "line dotted"
LOWEST = 1e-4
"""Kernels are shown down to so much of their value at lag 1."""


def published_chart(comparison: Comparison, found: Reading) -> Chart:
    """The three conditions, drawn from the rows of the study alone."""
    drawn, exponent, context = conditions(comparison, found)
    panels = (_convergence(drawn), _kernels(drawn, exponent, context), _half_lives(drawn))
    caption = (
        f"The three conditions of the published study in these runs ({described(comparison, found)}): how they "
        "converge, how their kernels compare with the power law, where their half-lives lie. Everything is drawn from "
        "the rows of this study, no curve or axis is taken over. First: thin lines are seeds, thick lines their mean. "
        "Second: dotted, the plain sum over the channels a condition places, which is how the published analysis "
        "scores it; solid, what its models hold at initialisation (root mean square over random signs, mean over "
        "blocks and seeds). Third: dotted, half-lives at initialisation; solid, after training."
    )
    names = tuple((slot, one.name) for slot, one in enumerate(drawn))
    return Chart(panels, names, captions.PUBLISHED_OF, f"{caption}{captions.leaks(found.arms)}")


def _convergence(drawn: list[DrawnCondition]) -> Panel:
    """Seeds thin, their mean thick; step 0, where nothing is learnt yet, would flatten the rest."""
    every = [(step, value) for one in drawn for curve in one.curves for step, value in curve.items() if step]
    values = [value for _, value in every if np.isfinite(value)]
    x = linear(0, max((step for step, _ in every), default=1), "steps")
    y = linear(min(values, default=0.0), max(values, default=1.0), "validation bits per byte")
    traces = []
    for slot, one in enumerate(drawn):
        kept = [{step: value for step, value in curve.items() if step} for curve in one.curves]
        band = pointwise_band(kept)
        thin = [line(x, y, list(curve), list(curve.values()), SEED) for curve in kept]
        mean = line(x, y, band.at.tolist(), band.mean.tolist(), f"{LINE} solid", one.name)
        traces.append(Trace(slot, one.name, (*thin, mean)))
    return Panel("convergence", x, y, tuple(traces))


def _kernels(drawn: list[DrawnCondition], exponent: float, context: float) -> Panel:
    lags = np.geomspace(1, context, POINTS // 4)
    x = logarithmic(1, context, "lag t (bytes)")
    y = logarithmic(max(LOWEST, float(context**-exponent)) / 3, 1.6, "k(t) / k(1)")
    law = line(x, y, lags.tolist(), power_law(lags, exponent).tolist(), LAW, f"t**-{exponent:g}")
    traces = [Trace(0, "the law", (law,))]
    for slot, one in enumerate(drawn):
        coherent = one.coherent(lags)
        shapes = [
            line(x, y, lags.tolist(), np.exp(coherent - coherent[0]).tolist(), START, f"{one.name}: sum of its nodes")
        ]
        if one.before.has_kernels:
            measured = np.exp(one.before.log_kernels().mean(axis=0)).tolist()
            shapes.append(line(x, y, one.before.lags.tolist(), measured, f"{LINE} solid", f"{one.name}: in its models"))
        traces.append(Trace(slot, one.name, tuple(shapes)))
    return Panel(f"kernels at the start, t**-{exponent:g}", x, y, tuple(traces))


def _half_lives(drawn: list[DrawnCondition]) -> Panel:
    """Quantiles, geometric means over blocks and runs: dotted at the start, solid at the end."""
    known = {
        (slot, kind): np.exp(np.log(memory.half_lives).mean(axis=(0, 1)))
        for slot, one in enumerate(drawn)
        for kind, memory in ((START, one.before), (f"{LINE} solid", one.after))
        if memory.has_half_lives
    }
    values = [float(value) for found in known.values() for value in found]
    x = logarithmic(min(values, default=1.0), max(values, default=10.0), "half-life (bytes)")
    y = linear(0, 1, "share of channels below")
    traces = []
    for slot, one in enumerate(drawn):
        shapes: list[Shape] = [
            line(x, y, known[slot, kind].tolist(), list(QUANTILES), kind, one.name)
            for kind in (START, f"{LINE} solid")
            if (slot, kind) in known
        ]
        traces.append(Trace(slot, one.name, tuple(shapes)))
    return Panel("half-lives", x, y, tuple(traces))
