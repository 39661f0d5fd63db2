"""The figure of decay curves: information against lag with intervals, floors and fits, and local
slopes below.
"""

from collections.abc import Callable, Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plkernel.analysis.figures.style import (
    COLOURS,
    INK,
    PAGE_WIDTH,
    decades,
    line_style,
    plain_ticks,
    style,
)
from plkernel.analysis.information.estimate import DecayCurve
from plkernel.analysis.information.laws import (
    CONFIDENCE,
    Measurement,
    ModelFit,
    PowerLaw,
    Verdict,
    local_slopes,
)
from plkernel.analysis.intervals import critical_value
from plkernel.analysis.nodes import Nodes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

WIDEST_SLOPE = 1.0
"""Half the interval of a local slope that is still drawn: where a curve drowns in noise, its slope
takes any value.
"""
SLOPE_FRAME = (-0.5, 4.0)
"""The lower panel shows no more than this, and less when the slopes drawn need less."""
LONGEST_LABEL, LONGEST_TITLE = 53, 75
"""Characters in a line of a legend's entry that leave room for a second one beside it."""
DOTS = (0, (1.2, 1.2))
FIT, EXACT = COLOURS[1:3]


def decay_figure(
    curve: DecayCurve,
    law: PowerLaw | None = None,
    *,
    title: str = "",
    exact: tuple[ArrayLike, ArrayLike] | None = None,
    verdict: Verdict | None = None,
) -> "Figure":
    """Draw one corpus: above, information in bits with its band, floor and fit; below, local slope
    and exponent.

    law    drawn on the lags it was fitted to; None: no fit
    exact  (lags, values) of a curve known exactly, the values in the unit of `curve`: nats for the
    information
    verdict  if its shape is no power law, that is drawn in place of `law`

    Values that the axis cannot show, zero, negative or far below their error, are left out, and
    local slopes where their interval is wider than +-1.
    """
    shapes = (
        [fit for fit in verdict.models if fit.name == verdict.kind != "power law"]
        if verdict
        else []
    )
    fitted = [
        (fit, np.geomspace(verdict.first_lag, verdict.last_lag, 200)) for fit in shapes if verdict
    ]
    return _figure({"": curve}, {"": law} if law and not fitted else {}, title, exact, fitted)


def measurement_figure(result: Measurement) -> "Figure":
    """Draw `decay_figure` of a measurement."""
    exact = (result.information.lags, result.exact) if result.exact else None
    title = f"{result.corpus.name}, {result.information.size:,} bytes"
    return decay_figure(
        result.information, result.law, title=title, exact=exact, verdict=result.verdict
    )


@style()
def kernels_figure(
    kernels: Sequence[tuple[Callable[[Floats], Floats], dict[str, Any]]],
    lags: Floats,
    half_lives: Floats,
    heights: ArrayLike,
    quantity: str,
) -> "Figure":
    """Left: kernels, each with its label and look, 1 at the first lag; right: a quantity over
    half-life.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PAGE_WIDTH, 2.9))
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    for kernel, look in kernels:
        left.plot(lags, kernel(lags) / kernel(lags[:1]), **look)
    left.set(xscale="log", yscale="log", xlabel="lag t (steps)", ylabel="k(t) / k(1)")
    right.plot(half_lives, heights, "o", color=COLOURS[0], ms=3.5)
    right.set(xscale="log", yscale="log", xlabel="half-life (steps)", ylabel=quantity)
    decades(left.xaxis, left.yaxis, right.xaxis, right.yaxis)
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def nodes_figure(nodes: Nodes) -> "Figure":
    """Draw the kernel of the channels, all signs equal, and their projection over half-life."""
    half_lives = nodes.half_lives()
    lags = np.geomspace(1, max(10.0, 2 * half_lives.max()), 200)
    look = {"label": f"{half_lives.size} channels, gain '{nodes.gain}'", "color": INK}
    return kernels_figure(
        [(nodes.kernel().kernel, look)], lags, half_lives, nodes.projection, "multiplier"
    )


def comparison_figure(curves: Mapping[str, DecayCurve], laws: Mapping[str, PowerLaw]) -> "Figure":
    """Draw several corpora as `decay_figure` draws one.

    The curves must be of one quantity. `laws` may lack corpora that have no fit.
    """
    return _figure(curves, {name: laws[name] for name in curves if name in laws})


def scale(curve: DecayCurve) -> float:
    """Factor from the values of `curve` to those drawn: nats to bits, 1 for a correlation."""
    return 1 / float(np.log(2)) if curve.quantity == "information" else 1.0


def known_slopes(curve: DecayCurve) -> tuple[Floats, Floats]:
    """Local slopes (L,) and half their intervals (L,), NaN where there is none or half exceeds
    WIDEST_SLOPE.
    """
    lags, slopes, errors = local_slopes(curve)
    half = critical_value(len(curve.replicates[0]), CONFIDENCE) * errors
    known = half <= WIDEST_SLOPE
    both = np.full((2, len(curve.lags)), np.nan)
    both[:, np.isin(curve.lags, lags[known])] = slopes[known], half[known]
    return both[0], both[1]


def _figure(
    curves: Mapping[str, DecayCurve],
    laws: Mapping[str, PowerLaw],
    title: str | None = None,
    exact: tuple[ArrayLike, ArrayLike] | None = None,
    shapes: Sequence[tuple[ModelFit, Floats]] = (),
) -> "Figure":
    """Values above and local slopes below, on the same lags, with limits that hold what is drawn
    and no noise.
    """
    from matplotlib.figure import Figure

    first, *_ = every = list(curves.values())
    letter, label = (
        ("I", "I(d) in bits") if first.quantity == "information" else ("q", "correlation q(d)")
    )
    lows, highs, slopes = (
        [],
        [],
        [np.array([0.0, 1.0]), *(np.array([law.low, law.high]) for law in laws.values())],
    )
    for curve in every:  # values below a tenth of the smallest error are noise
        values = np.asarray(curve.values)
        least = max(values[values > 0].min(initial=np.inf), curve.standard_errors().min() / 10)
        lows.append(min(*curve.floor, least))
        highs.append(max(*curve.floor, *values))
        slopes.append(known_slopes(curve)[0])
    reach = np.concatenate(slopes)
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 4.3 + 0.16 * (len(every) - 1)))
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.9, 1))
        above.set(xscale="log", yscale="log", ylabel=label)
        above.set_ylim(0.6 * scale(first) * min(lows), 1.8 * scale(first) * max(highs))
        above.set_xlim(
            min(curve.lags[0] for curve in every) / 1.15,
            max(curve.lags[-1] for curve in every) * 1.15,
        )
        below.set(xlabel="lag d (bytes)", ylabel=f"local slope\n-d ln {letter} / d ln d")
        below.set_ylim(
            *np.clip([np.nanmin(reach) - 0.2, np.nanmax(reach) + 0.2], *SLOPE_FRAME).tolist()
        )
        below.axhline(0, color=INK, lw=0.5, zorder=0)
        plain_ticks(below.xaxis)
        decades(above.yaxis)
        figure.align_ylabels()
        for index, (name, curve) in enumerate(curves.items()):
            _draw(above, below, name, curve, laws.get(name), index)
        if exact is not None:
            dashes = (0, (5, 1.6))
            above.plot(
                exact[0],
                scale(first) * np.asarray(exact[1]),
                color=EXACT,
                lw=1.1,
                ls=dashes,
                label="exact",
            )
        for shape, at in shapes:
            fitted = shape.values(at)
            look: dict[str, Any] = {"color": FIT, "lw": 1.6, "alpha": 0.7, "zorder": 1.9}
            above.plot(
                at,
                scale(first) * fitted,
                label=f"{shape}, lags {at[0]:.0f} to {at[-1]:.0f}",
                **look,
            )
            below.plot(at, -np.gradient(np.log(fitted), np.log(at)), **look)
        if title is None:
            above.set_title(
                f"bands: {100 * CONFIDENCE:g} % intervals; dotted: floors", loc="right", fontsize=7
            )
        else:
            above.set_title(
                fill(title, LONGEST_TITLE, break_on_hyphens=False), fontsize=9, fontweight="bold"
            )
        keys, labels = above.get_legend_handles_labels()
        lines = [fill(label, LONGEST_LABEL, break_on_hyphens=False) for label in labels]
        figure.legend(keys, lines, loc="outside lower center", ncols=2, columnspacing=1.0)
    return figure


def _draw(
    above: "Axes", below: "Axes", name: str, curve: DecayCurve, law: PowerLaw | None, index: int
) -> None:
    """Curve, band, floor and fit of one corpus; values below the frame are left out."""
    look, lags, bottom = line_style(index), np.asarray(curve.lags), above.get_ylim()[0]
    colour, unit = look["color"], scale(curve)
    values, low, high = (
        unit * np.asarray(each) for each in (curve.values, *curve.interval(CONFIDENCE))
    )
    slopes, half = known_slopes(curve)
    label, shown = (
        name or f"measured, {100 * CONFIDENCE:g} % interval",
        np.where(values > bottom, values, np.nan),
    )
    above.plot(lags, shown, lw=1.1, marker="o", ms=1.8, label=label, **look)
    below.plot(lags, slopes, lw=1.1, marker="o", ms=1.8, **look)
    bands: list[tuple[Any, ...]] = [
        (above, lags, low.clip(bottom), high.clip(bottom), colour),
        (below, lags, slopes - half, slopes + half, colour),
    ]
    floor: dict[str, Any] = {"label": "floor: shuffled corpus"} if not name else {}
    above.plot(lags, unit * np.asarray(curve.floor), color=colour, ls=DOTS, lw=0.9, **floor)
    if law:
        ends, colour = [law.first_lag, law.last_lag], colour if name else FIT
        fit: dict[str, Any] = {"color": colour, "lw": 1.6, "alpha": 0.7, "zorder": 1.9}
        told = (
            f"beta = {law.beta:.2f} ({law.low:.2f} to {law.high:.2f}), lags {ends[0]} to {ends[1]}"
        )
        above.plot(ends, unit * law.values(ends), label=f"{name or 'power law'}: {told}", **fit)
        below.plot(ends, [law.beta] * 2, **fit)
        bands.append((below, np.array(ends), law.low, law.high, colour))
    for axes, at, least, most, shade in bands:
        axes.fill_between(at, least, most, color=shade, alpha=0.13, lw=0)
