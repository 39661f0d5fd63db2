"""The figures of a decay curve: information against lag with its floor and its fit, and the local slope below."""

from collections.abc import Mapping
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from plkernel.analysis.figures.style import COLOURS, INK, PAGE_WIDTH, line_style, plain_ticks, style
from plkernel.analysis.information.curve import DecayCurve
from plkernel.analysis.information.laws import FEWEST_LAGS, WINDOW, PowerLaw, local_slopes, log_log_slope

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
LONGEST_LABEL = 53
"""Characters in a line of a legend's entry that leave room for a second one beside it."""
FLOOR_LABEL = "floor: shuffled corpus"
FLOOR, FIT, EXACT = COLOURS[:3]
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def decay_figure(
    curve: DecayCurve, law: PowerLaw | None, *, title: str, exact: tuple[ArrayLike, ArrayLike] | None = None
) -> "Figure":
    """Draw one corpus: above, information in bits with its band, floor and fit; below, local slope and exponent.

    law    drawn strong on the lags it was fitted to and faint elsewhere, a vertical line at its last; None: no fit
    exact  (lags, values) of a curve known exactly, the values in the unit of `curve`: nats for the information

    Values that the axis cannot show, zero, negative or far below their error, are triangles on its lower edge. Local
    slopes are left out where their interval is wider than +-1.
    """
    confidence, unit, laws = law.confidence if law else CONFIDENCE, scale(curve), [law] if law else []
    with style():
        figure, above, below = _panels([curve], laws, height=4.3)
        _curve(above, below, curve, confidence, line_style(0), f"measured, {100 * confidence:g} % interval")
        dots: dict[str, Any] = {"color": FLOOR, "linestyle": (0, (1.2, 1.2)), "lw": 1.1, "label": FLOOR_LABEL}
        above.plot(curve.lags, unit * np.asarray(curve.floor), **dots)
        if unit * curve.drift > above.get_ylim()[0]:
            long: dict[str, Any] = {"color": FLOOR, "lw": 0.9, "ls": (0, (6, 2)), "label": "drift: each block shuffled"}
            above.plot(curve.lags[:: len(curve.lags) - 1], [unit * curve.drift] * 2, **long)
        if exact is not None:
            look: dict[str, Any] = {"color": EXACT, "lw": 1.1, "ls": (0, (5, 1.6)), "label": "exact"}
            above.plot(exact[0], unit * np.asarray(exact[1]), **look)
            below.plot(exact[0], exact_slopes(*exact), **look)
        if law:  # beneath the measured curve, so that it hides no point
            label = f"power law: beta = {_exponent(law)},\nfitted to lags {law.first_lag} to {law.last_lag}"
            whole = curve.lags[0], curve.lags[-1]
            faint: dict[str, Any] = {"color": FIT, "lw": 1.0, "zorder": 1.8, "alpha": 0.35}
            strong: dict[str, Any] = {"color": FIT, "lw": 1.6, "zorder": 1.9, "label": label}
            for lags, look in ((whole, faint), ((law.first_lag, law.last_lag), strong)):
                above.plot(lags, unit * law.values(lags), **look)
                below.plot(lags, [law.beta] * 2, **look)
            below.fill_between(whole, law.low, law.high, color=FIT, alpha=0.12, lw=0)
            for axes in (above, below):
                axes.axvline(law.last_lag, color=FIT, lw=0.6, ls=(0, (4, 3)))
        above.set_title(title, fontsize=9, fontweight="bold")
        keys = [*above.get_legend_handles_labels()[0], *_triangle_key(above, {"": curve})]
        figure.legend(handles=keys, loc="outside lower center", ncols=3 if law and len(keys) == 3 else 2)
    return figure


def comparison_figure(curves: Mapping[str, DecayCurve], laws: Mapping[str, PowerLaw]) -> "Figure":
    """Draw several corpora: information in bits with bands and floors, a ring where a fit ends; below, local slopes.

    `laws` may lack corpora that have no fit. Raises ValueError without curves, and for curves of different quantities
    or units, which share no axis.
    """
    from matplotlib.lines import Line2D

    kinds = sorted({f"{curve.quantity} per {curve.unit}" for curve in curves.values()})
    if len(kinds) != 1:
        raise ValueError(f"curves must be one or more, of one quantity and unit, got {' and '.join(kinds) or 'none'}")
    laws = {name: laws[name] for name in curves if name in laws}
    with style():
        figure, above, below = _panels(list(curves.values()), list(laws.values()), height=4.3 + 0.16 * len(curves))
        row = 0  # of triangles: each curve that needs some has its own
        for index, (name, curve) in enumerate(curves.items()):
            look, law, label = line_style(index), laws.get(name), f"{name}: no power law fitted"
            if law:
                label = f"{name}: beta = {_exponent(law)}, lags {law.first_lag} to {law.last_lag}"
            above.plot(curve.lags, scale(curve) * np.asarray(curve.floor), color=look["color"], lw=0.5)
            _curve(above, below, curve, law.confidence if law else CONFIDENCE, look, label, row)
            row += bool(_hidden(above, curve).any())
            if law:
                values = np.asarray(curve.values)
                last = np.flatnonzero((np.asarray(curve.lags) <= law.last_lag) & (values > 0))[-1]
                above.plot(curve.lags[last], scale(curve) * values[last], **_ring(look["color"]))
        confidence = next(iter(laws.values())).confidence if laws else CONFIDENCE
        above.set_title(f"bands and brackets: {100 * confidence:g} % intervals", loc="right", fontsize=7)
        shared = [Line2D([], [], color=INK, lw=0.5, label=FLOOR_LABEL)]
        shared += [Line2D([], [], **_ring(INK), label="end of the fit")] if laws else []
        keys = [*above.get_legend_handles_labels()[0], *shared, *_triangle_key(above, curves)]
        labels = [fill(str(key.get_label()), LONGEST_LABEL, break_on_hyphens=False) for key in keys]
        figure.legend(keys, labels, loc="outside lower center", ncols=2, columnspacing=1.0)
    return figure


def scale(curve: DecayCurve) -> float:
    """Factor from the values of `curve` to what is drawn: nats to bits, 1 for a correlation."""
    return 1 / float(np.log(2)) if curve.quantity == "information" else 1.0


def known_slopes(curve: DecayCurve, confidence: float) -> tuple[Floats, Floats]:
    """Local slopes (L,) and half their intervals (L,), NaN where there is none or half exceeds WIDEST_SLOPE."""
    lags, slopes, errors = local_slopes(curve)
    half = stdtrit(len(curve.replicates[0]) - 1, 0.5 + confidence / 2) * errors
    known = half <= WIDEST_SLOPE
    both = np.full((2, len(curve.lags)), np.nan)
    both[:, np.isin(curve.lags, lags[known])] = slopes[known], half[known]
    return both[0], both[1]


def exact_slopes(lags: ArrayLike, values: ArrayLike) -> Floats:
    """`local_slopes` of a curve without error, (L,), NaN where there is none."""
    at, exact = np.asarray(lags, dtype=np.float64), np.asarray(values, dtype=np.float64)
    windows = [(at >= lag / WINDOW) & (at <= lag * WINDOW) for lag in at]
    return np.array([log_log_slope(at[w], exact[w]) if w.sum() >= FEWEST_LAGS else np.nan for w in windows])


def _panels(curves: list[DecayCurve], laws: list[PowerLaw], height: float) -> tuple["Figure", "Axes", "Axes"]:
    """Values above and local slopes below, on the same lags, with limits that hold what is drawn and no noise."""
    from matplotlib.figure import Figure

    letter, label = ("I", "I(d) in bits") if curves[0].quantity == "information" else ("q", "correlation q(d)")
    figure = Figure(figsize=(PAGE_WIDTH, height))
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.9, 1))
    lows, highs, reach = [], [], [np.array([0.0, 1.0]), *(np.array([law.low, law.high]) for law in laws)]
    for curve in curves:  # values below a tenth of the smallest error are noise
        values, slopes = np.asarray(curve.values), known_slopes(curve, CONFIDENCE)[0]
        lows += [min(curve.floor), max(values[values > 0].min(initial=np.inf), curve.standard_errors().min() / 10)]
        highs += [max(curve.floor), values.max()]
        reach.append(slopes[np.isfinite(slopes)])
    unit, bottom, top = scale(curves[0]), float(min(lows)), float(max(highs))
    ends = [end for law in laws for end in law.values([law.first_lag, law.last_lag]).tolist()]  # half a decade at most
    bottom, top = 0.6 * unit * max(min([bottom, *ends]), bottom / 3), 1.8 * unit * min(max([top, *ends]), 3 * top)
    every = np.concatenate(reach)
    slope_limits = np.clip([every.min() - 0.2, every.max() + 0.2], *SLOPE_FRAME).tolist()
    first, last = min(curve.lags[0] for curve in curves), max(curve.lags[-1] for curve in curves)
    above.set(xscale="log", yscale="log", xlim=(first / 1.15, last * 1.15), ylim=(bottom, top), ylabel=label)
    below.set(xlabel=f"lag d ({curves[0].unit}s)", ylim=slope_limits, ylabel=f"local slope\n-d ln {letter} / d ln d")
    below.axhline(0, color=INK, lw=0.5, zorder=0)
    plain_ticks(below.xaxis)
    power_ticks(above)
    figure.align_ylabels()
    return figure, above, below


def power_ticks(axes: "Axes") -> None:
    """Powers of ten on the vertical axis; plain digits if there are fewer than two decades."""
    from matplotlib.ticker import NullFormatter

    bottom, top = axes.get_ylim()
    if top < 100 * bottom:
        plain_ticks(axes.yaxis)
        return
    axes.yaxis.set_major_formatter(lambda value, _: "10" + str(round(np.log10(value))).translate(SUPERSCRIPT))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _curve(
    above: "Axes", below: "Axes", curve: DecayCurve, confidence: float, look: dict[str, Any], label: str, row: int = 0
) -> None:
    """Line, points and band; triangles for hidden values, on the lower edge or `row` rows above it; local slopes."""
    lags, bottom, absent = np.asarray(curve.lags), above.get_ylim()[0], _hidden(above, curve)
    values, low, high = (scale(curve) * np.asarray(each) for each in (curve.values, *curve.interval(confidence)))
    slopes, half = known_slopes(curve, confidence)
    above.fill_between(lags, low.clip(bottom), high.clip(bottom), color=look["color"], alpha=0.15, lw=0)
    above.plot(lags, np.where(absent, np.nan, values), lw=1.1, marker="o", ms=1.8, label=label, **look)
    if absent.any():
        edge = [0.025 * (1 + row)] * absent.sum()
        above.plot(lags[absent], edge, transform=above.get_xaxis_transform(), **_triangle(look["color"]))
    below.fill_between(lags, slopes - half, slopes + half, color=look["color"], alpha=0.15, lw=0)
    below.plot(lags, slopes, lw=1.1, marker="o", ms=1.8, **look)
    if np.isnan(slopes[1:-1]).any():
        below.set_title(f"shown where known to +-{WIDEST_SLOPE:g}", loc="right", fontsize=7, pad=2)


def _hidden(axes: "Axes", curve: DecayCurve) -> NDArray[np.bool_]:
    """True where the values of `curve` lie on the lower end of `axes` or below it, (L,)."""
    return scale(curve) * np.asarray(curve.values) <= axes.get_ylim()[0]


def _triangle_key(axes: "Axes", curves: Mapping[str, DecayCurve]) -> list[Any]:
    """The legend's entry for values below the frame, which counts them and those not above zero; [] without any."""
    from matplotlib.lines import Line2D

    counts = []
    for name, curve in curves.items():
        absent, negative = int(_hidden(axes, curve).sum()), sum(value <= 0 for value in curve.values)
        if absent:
            counts.append(f"{name} {absent} of {len(curve.lags)} lags ({negative} at or below 0)".lstrip())
    return [Line2D([], [], **_triangle(INK), label=f"below the frame: {', '.join(counts)}")] if counts else []


def _triangle(colour: str) -> dict[str, Any]:
    return {"color": colour, "marker": "v", "ms": 3.5, "mew": 0.7, "mfc": "none", "ls": "none"}


def _ring(colour: str) -> dict[str, Any]:
    return {"color": colour, "marker": "o", "ms": 5, "mew": 0.9, "mfc": "none", "ls": "none"}


def _exponent(law: PowerLaw) -> str:
    return f"{law.beta:.2f} ({law.low:.2f} to {law.high:.2f})"
