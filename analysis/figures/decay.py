"""The figure of decay curves: information against lag above, local slopes below."""

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
from plkernel.analysis.information.estimate import DecayCurve, Unit
from plkernel.analysis.information.laws import (
    CONFIDENCE,
    Measurement,
    ModelFit,
    PowerLaw,
    Verdict,
    local_slopes,
)
from plkernel.analysis.information.tokens import TokenLength
from plkernel.analysis.intervals import critical_value
from plkernel.analysis.nodes import Nodes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

WIDEST_SLOPE = 1.0
"""Half the interval of a local slope that is still drawn: in noise a slope takes any value."""
SLOPE_FRAME = (-0.5, 4.0)
"""The lower panel shows no more than this, and less when the slopes drawn need less."""
LONGEST_LABEL = 53
"""Characters in a line of a legend's entry that leave room for a second one beside it."""
LONGEST_TITLE = 75
"""Characters in a line of the title."""
DOTS = (0, (1.2, 1.2))
"""The line of floors."""
FIT = COLOURS[1]
"""Of what was fitted."""
EXACT = COLOURS[2]
"""Of a curve that is known exactly."""
FITTED: dict[str, Any] = {"lw": 1.6, "alpha": 0.7, "zorder": 1.9}
"""The look of what was fitted, behind the points."""


def decay_figure(
    curve: DecayCurve,
    law: PowerLaw | None = None,
    *,
    title: str = "",
    exact: tuple[ArrayLike, ArrayLike] | None = None,
    verdict: Verdict | None = None,
    tokens: TokenLength | None = None,
) -> "Figure":
    """Draw one corpus: above, information in bits with band, floor and fit; below, local slopes.

    law      drawn on the lags it was fitted to; None: no fit
    exact    (lags, values) of a curve known exactly, the values in the unit of `curve`: nats for
             the information
    verdict  if its shape is no power law, that is drawn in place of `law`
    tokens   how long a token is: a second axis has the lags in tokens, or in bytes where the curve
             counts in tokens

    Values that the axis cannot show, zero, negative or far below their error, are left out, and
    local slopes where their interval is wider than +-1.
    """
    shapes: list[tuple[ModelFit, Floats]] = []
    if verdict and verdict.kind != "power law":
        for fit in verdict.models:  # none where nothing could be fitted, on no lags
            if fit.name == verdict.kind:
                shapes.append((fit, np.geomspace(verdict.first_lag, verdict.last_lag, 200)))
    laws = {"": law} if law and not shapes else {}
    return _figure({"": curve}, laws, title, exact, shapes, tokens)


def measurement_figure(result: Measurement) -> "Figure":
    """Draw `decay_figure` of a measurement."""
    exact = (result.information.lags, result.exact) if result.exact else None
    curve = result.information
    return decay_figure(
        curve,
        result.law,
        title=f"{result.corpus.name}, {curve.size:,} {curve.unit}s",
        exact=exact,
        verdict=result.verdict,
        tokens=result.tokens,
    )


@style()
def kernels_figure(
    kernels: Sequence[tuple[Callable[[Floats], Floats], dict[str, Any]]],
    lags: Floats,
    half_lives: Floats,
    heights: ArrayLike,
    quantity: str,
) -> "Figure":
    """Left: kernels, each with its look, 1 at the first lag; right: a quantity over half-life."""
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
    """Local slopes (L,) and half their intervals (L,), NaN where half exceeds WIDEST_SLOPE."""
    lags, slopes, errors = local_slopes(curve)
    half = critical_value(len(curve.replicates[0]), CONFIDENCE) * errors
    known = half <= WIDEST_SLOPE
    at = np.isin(curve.lags, lags[known])
    known_slopes = np.full(len(curve.lags), np.nan)
    known_slopes[at] = slopes[known]
    known_half = np.full(len(curve.lags), np.nan)
    known_half[at] = half[known]
    return known_slopes, known_half


def _figure(
    curves: Mapping[str, DecayCurve],
    laws: Mapping[str, PowerLaw],
    title: str | None = None,
    exact: tuple[ArrayLike, ArrayLike] | None = None,
    shapes: Sequence[tuple[ModelFit, Floats]] = (),
    tokens: TokenLength | None = None,
) -> "Figure":
    """Values above and local slopes below, on the same lags.

    The limits hold what is drawn and no noise. title: of one corpus; None for several.
    """
    from matplotlib.figure import Figure

    unit = scale(next(iter(curves.values())))
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 4.3 + 0.16 * (len(curves) - 1)))
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.9, 1))
        _set_axes(above, below, list(curves.values()), list(laws.values()))
        figure.align_ylabels()
        if tokens is not None:
            _add_axis(above, next(iter(curves.values())).unit, tokens)
        for index, (name, curve) in enumerate(curves.items()):
            _draw(above, below, name, curve, line_style(index))
            if name in laws:
                colour = line_style(index)["color"] if name else FIT
                _draw_law(above, below, name or "power law", laws[name], unit, colour)
        if exact is not None:
            lags, values = exact
            look = {"color": EXACT, "lw": 1.1, "ls": (0, (5, 1.6))}
            above.plot(lags, unit * np.asarray(values), label="exact", **look)
        for shape, at in shapes:
            _draw_shape(above, below, shape, at, unit)
        if title is None:
            intervals = f"bands: {100 * CONFIDENCE:g} % intervals; dotted: floors"
            above.set_title(intervals, loc="right", fontsize=7)
        else:
            lines = fill(title, LONGEST_TITLE, break_on_hyphens=False)
            above.set_title(lines, fontsize=9, fontweight="bold")
        keys, labels = above.get_legend_handles_labels()
        wrapped = [fill(label, LONGEST_LABEL, break_on_hyphens=False) for label in labels]
        figure.legend(keys, wrapped, loc="outside lower center", ncols=2, columnspacing=1.0)
    return figure


def _add_axis(above: "Axes", unit: Unit, tokens: TokenLength) -> None:
    """Lags in tokens at the top, or in bytes where the curve counts in tokens."""
    if unit == "token":
        axis = above.secondary_xaxis("top", functions=(tokens.in_bytes, tokens.in_tokens))
        axis.set_xlabel("lag d (bytes)")
    else:
        axis = above.secondary_xaxis("top", functions=(tokens.in_tokens, tokens.in_bytes))
        axis.set_xlabel(f"lag d (tokens of {tokens.bytes_per_token:.2f} bytes)")
    plain_ticks(axis.xaxis)


def _set_axes(
    above: "Axes", below: "Axes", curves: Sequence[DecayCurve], laws: Sequence[PowerLaw]
) -> None:
    """Set scales, labels, limits and ticks for curves of one quantity."""
    is_information = curves[0].quantity == "information"
    letter = "I" if is_information else "q"
    unit = scale(curves[0])
    low, high = _value_limits(curves)
    above.set(xscale="log", yscale="log")
    of_repeats = ", of repeats" if any(curve.estimator == "repeats" for curve in curves) else ""
    above.set_ylabel(f"I(d) in bits{of_repeats}" if is_information else "correlation q(d)")
    above.set_ylim(0.6 * unit * low, 1.8 * unit * high)
    first_lag = min(curve.lags[0] for curve in curves)
    last_lag = max(curve.lags[-1] for curve in curves)
    above.set_xlim(first_lag / 1.15, last_lag * 1.15)
    units = ", ".join(dict.fromkeys(f"{curve.unit}s" for curve in curves))
    below.set(xlabel=f"lag d ({units})", ylabel=f"local slope\n-d ln {letter} / d ln d")
    below.set_ylim(*_slope_limits(curves, laws))
    below.axhline(0, color=INK, lw=0.5, zorder=0)
    plain_ticks(below.xaxis)
    decades(above.yaxis)


def _value_limits(curves: Sequence[DecayCurve]) -> tuple[float, float]:
    """The least and the largest value to show: those below a tenth of any error are noise."""
    lows = []
    highs = []
    for curve in curves:
        values = np.asarray(curve.values)
        least_positive = values[values > 0].min(initial=np.inf)
        noise = curve.standard_errors().min() / 10
        lows.append(min(*curve.floor, max(least_positive, noise)))
        highs.append(max(*curve.floor, *values))
    return min(lows), max(highs)


def _slope_limits(curves: Sequence[DecayCurve], laws: Sequence[PowerLaw]) -> tuple[float, float]:
    """Limits of the slopes: zero, one, all that are known and the laws, within SLOPE_FRAME."""
    slopes = [known_slopes(curve) for curve in curves]
    shown = np.concatenate([known for known, _ in slopes])
    bounds: list[float] = []
    for law in laws:
        bounds += [law.low, law.high]
    reach = np.concatenate([[0.0, 1.0], bounds, shown])
    low, high = np.clip([np.nanmin(reach) - 0.2, np.nanmax(reach) + 0.2], *SLOPE_FRAME)
    return float(low), float(high)


def _draw(
    above: "Axes", below: "Axes", name: str, curve: DecayCurve, look: Mapping[str, Any]
) -> None:
    """Curve, band and floor of one corpus; values below the frame are left out."""
    lags = np.asarray(curve.lags)
    colour = look["color"]
    unit = scale(curve)
    bottom = above.get_ylim()[0]
    values = unit * np.asarray(curve.values)
    low, high = curve.interval(CONFIDENCE)
    slopes, half = known_slopes(curve)
    shown = np.where(values > bottom, values, np.nan)
    label = name or f"measured, {100 * CONFIDENCE:g} % interval"
    above.plot(lags, shown, lw=1.1, marker="o", ms=1.8, label=label, **look)
    below.plot(lags, slopes, lw=1.1, marker="o", ms=1.8, **look)
    what = "noise" if curve.estimator == "repeats" else "shuffled corpus"
    floor: dict[str, Any] = {} if name else {"label": f"floor: {what}"}
    above.plot(lags, unit * np.asarray(curve.floor), color=colour, ls=DOTS, lw=0.9, **floor)
    _shade(above, lags, (unit * low).clip(bottom), (unit * high).clip(bottom), colour)
    _shade(below, lags, slopes - half, slopes + half, colour)


def _draw_law(
    above: "Axes", below: "Axes", name: str, law: PowerLaw, unit: float, colour: str
) -> None:
    """A power law on the lags that it was fitted to, and its exponent with its interval."""
    ends = [law.first_lag, law.last_lag]
    look: dict[str, Any] = {"color": colour, **FITTED}
    label = f"{name}: beta = {law.beta:.2f} ({law.low:.2f} to {law.high:.2f}), lags {ends[0]}"
    above.plot(ends, unit * law.values(ends), label=f"{label} to {ends[1]}", **look)
    below.plot(ends, [law.beta, law.beta], **look)
    _shade(below, np.array(ends), law.low, law.high, colour)


def _draw_shape(above: "Axes", below: "Axes", shape: ModelFit, at: Floats, unit: float) -> None:
    """A fitted shape at the lags `at`, and its local slope."""
    fitted = shape.values(at)
    look: dict[str, Any] = {"color": FIT, **FITTED}
    label = f"{shape}, lags {at[0]:.0f} to {at[-1]:.0f}"
    above.plot(at, unit * fitted, label=label, **look)
    below.plot(at, -np.gradient(np.log(fitted), np.log(at)), **look)


def _shade(axes: "Axes", at: Any, low: Any, high: Any, colour: str) -> None:
    """A pale band between two curves."""
    axes.fill_between(at, low, high, color=colour, alpha=0.13, lw=0)
