"""The two panels of a figure of decay curves: what they must hold, and what noise is kept out of them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plkernel.analysis.figures.style import INK, PAGE_WIDTH, plain_ticks
from plkernel.analysis.intervals import critical_value
from plkernel.analysis.mutual_information.curve import DecayCurve
from plkernel.analysis.mutual_information.power_law_fit import (
    FEWEST_LAGS,
    WINDOW,
    PowerLaw,
    local_slopes,
    log_log_slope,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
"""Of the bands, unless a fitted law brings its own."""
WIDEST_SLOPE = 1.0
"""Half the interval of a local slope that is still drawn: where a curve drowns in noise, its slope takes any value."""
SLOPE_FRAME = (-0.5, 4.0)
"""The lower panel shows no more than this, and less when the slopes drawn need less."""
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def panels(curves: Iterable[DecayCurve], laws: Iterable[PowerLaw], height: float) -> tuple["Figure", "Axes", "Axes"]:
    """A figure of two panels that share their lags, values above and local slopes below, ready to be drawn into.

    `height` in inches. The curves must be of one quantity and unit; limits also hold the exponents of `laws`.
    """
    from matplotlib.figure import Figure

    curves, laws = list(curves), list(laws)
    information = curves[0].quantity == "information"
    figure = Figure(figsize=(PAGE_WIDTH, height))
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.9, 1))
    first, last = min(curve.lags[0] for curve in curves), max(curve.lags[-1] for curve in curves)
    above.set(xscale="log", yscale="log", xlim=(first / 1.15, last * 1.15), ylim=_value_limits(curves, laws))
    below.set(xlabel=f"lag d ({curves[0].unit}s)", ylim=_slope_limits(curves, laws))
    above.set_ylabel("I(d) in bits" if information else "correlation q(d)")
    below.set_ylabel(f"local slope\n-d ln {'I' if information else 'q'} / d ln d")
    below.axhline(0, color=INK, lw=0.5, zorder=0)
    plain_ticks(below.xaxis)
    power_ticks(above)
    figure.align_ylabels()
    return figure, above, below


def scale(curve: DecayCurve) -> float:
    """Takes the values of `curve` to what is drawn: nats to bits, a correlation to itself."""
    return 1 / float(np.log(2)) if curve.quantity == "information" else 1.0


def hidden(axes: "Axes", curve: DecayCurve) -> NDArray[np.bool_]:
    """Where the values of `curve` lie on the lower end of `axes` or below it, (L,)."""
    return scale(curve) * np.asarray(curve.values) <= axes.get_ylim()[0]


def known_slopes(curve: DecayCurve, confidence: float) -> tuple[Floats, Floats]:
    """Local slopes (L,) and half their intervals (L,), NaN where there is none or half exceeds WIDEST_SLOPE."""
    lags, slopes, errors = local_slopes(curve)
    half = critical_value(len(curve.replicates[0]), confidence) * errors
    known = half <= WIDEST_SLOPE
    both = np.full((2, len(curve.lags)), np.nan)
    both[:, np.isin(curve.lags, lags[known])] = slopes[known], half[known]
    return both[0], both[1]


def exact_slopes(lags: ArrayLike, values: ArrayLike) -> Floats:
    """What `local_slopes` would give for a curve without error, (L,), NaN where it gives none."""
    at, exact = np.asarray(lags, dtype=np.float64), np.asarray(values, dtype=np.float64)
    windows = [(at >= lag / WINDOW) & (at <= lag * WINDOW) for lag in at]
    slopes = [log_log_slope(at[w], exact[w]) if w.sum() >= FEWEST_LAGS else np.nan for w in windows]
    return np.array(slopes)


def _value_limits(curves: Iterable[DecayCurve], laws: Iterable[PowerLaw]) -> tuple[float, float]:
    """Limits that hold every floor, and every value but those below a tenth of the smallest error, which are noise.

    They also hold the fitted lines, but give no more than half a decade to it.
    """
    lows, highs, unit = [], [], 1.0
    for curve in curves:
        unit, values, floor = scale(curve), np.asarray(curve.values), np.asarray(curve.floor)
        lows += [floor.min(), max(values[values > 0].min(initial=np.inf), curve.standard_errors().min() / 10)]
        highs += [floor.max(), values.max()]
    bottom, top = float(min(lows)), float(max(highs))
    ends = [end for law in laws for end in law.values([law.first_lag, law.last_lag]).tolist()]
    return 0.6 * unit * max(min([bottom, *ends]), bottom / 3), 1.8 * unit * min(max([top, *ends]), 3 * top)


def _slope_limits(curves: Iterable[DecayCurve], laws: Iterable[PowerLaw]) -> tuple[float, float]:
    """Limits that hold 0, 1, the exponents and the slopes that are drawn, within SLOPE_FRAME."""
    drawn = [np.array([0.0, 1.0]), *(np.array([law.low, law.high]) for law in laws)]
    for curve in curves:
        slopes, _ = known_slopes(curve, CONFIDENCE)
        drawn.append(slopes[np.isfinite(slopes)])
    reach = np.concatenate(drawn)
    low, high = np.clip([reach.min() - 0.2, reach.max() + 0.2], *SLOPE_FRAME)
    return float(low), float(high)


def power_ticks(axes: "Axes") -> None:
    """Powers of ten on the vertical axis; plain digits if there are fewer than two decades."""
    from matplotlib.ticker import NullFormatter

    bottom, top = axes.get_ylim()
    if top < 100 * bottom:
        plain_ticks(axes.yaxis)
        return
    axes.yaxis.set_major_formatter(lambda value, _: "10" + str(round(np.log10(value))).translate(SUPERSCRIPT))
    axes.yaxis.set_minor_formatter(NullFormatter())
