"""The figures of a decay curve: information against lag with its floor and its fit, and the local slope below."""

from collections.abc import Mapping
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from plkernel.analysis.figures.decay_panels import (
    CONFIDENCE,
    WIDEST_SLOPE,
    exact_slopes,
    hidden,
    known_slopes,
    panels,
    scale,
)
from plkernel.analysis.figures.style import COLOURS, INK, line_style, style
from plkernel.analysis.mutual_information.curve import DecayCurve
from plkernel.analysis.mutual_information.power_law_fit import PowerLaw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

LONGEST_LABEL = 53
"""Characters in a line of a legend's entry that leave room for a second one beside it."""
FLOOR_LABEL = "floor: shuffled corpus"
FLOOR, FIT, EXACT = COLOURS[:3]


def decay_figure(
    curve: DecayCurve, law: PowerLaw | None, *, title: str, exact: tuple[ArrayLike, ArrayLike] | None = None
) -> "Figure":
    """One corpus. Above: information in bits with its band, its floor and the fit; below: local slope and exponent.

    law    drawn strong on the lags it was fitted to and faint elsewhere, a vertical line at its last; None: no fit
    exact  (lags, values) of a curve known exactly, the values in the unit of `curve`: nats for the information

    Values that the axis cannot show, zero, negative or far below their error, are triangles on its lower edge. Local
    slopes are left out where their interval is wider than +-1.
    """
    with style():
        figure, above, below = panels([curve], [law] if law else [], height=4.3)
        _curve(above, curve, _confidence(law), line_style(0), f"measured, {_percent(law)} interval")
        _floor(above, curve, {"color": FLOOR, "linestyle": (0, (1.2, 1.2)), "lw": 1.1, "label": FLOOR_LABEL})
        _drift(above, curve)
        _slopes(below, curve, _confidence(law), line_style(0))
        if exact is not None:
            _exact(above, below, curve, exact)
        if law:
            _law(above, below, curve, law)
        above.set_title(title, fontsize=9, fontweight="bold")
        keys = [*above.get_legend_handles_labels()[0], *_triangle_key(above, {"": curve})]
        figure.legend(handles=keys, loc="outside lower center", ncols=3 if law and len(keys) == 3 else 2)
    return figure


def comparison_figure(curves: Mapping[str, DecayCurve], laws: Mapping[str, PowerLaw]) -> "Figure":
    """Several corpora. Above: information in bits with bands and floors, a ring where a fit ends; below: local slopes.

    `laws` may lack corpora that have no fit. Raises ValueError without curves, and for curves of different quantities
    or units, which share no axis.
    """
    _check(curves)
    laws = {name: laws[name] for name in curves if name in laws}
    with style():
        figure, above, below = panels(curves.values(), laws.values(), height=4.3 + 0.16 * len(curves))
        row = 0  # of triangles: each curve that needs some has its own
        for index, (name, curve) in enumerate(curves.items()):
            look, law = line_style(index), laws.get(name)
            _floor(above, curve, {"color": look["color"], "lw": 0.5})
            _curve(above, curve, _confidence(law), look, _named(name, law), row)
            _slopes(below, curve, _confidence(law), look)
            row += bool(hidden(above, curve).any())
            if law:
                _fit_end(above, curve, law, look)
        remark = f"bands and brackets: {_percent(next(iter(laws.values()), None))} intervals"
        above.set_title(remark, loc="right", fontsize=7)
        keys = [*above.get_legend_handles_labels()[0], *_shared_keys(bool(laws)), *_triangle_key(above, curves)]
        labels = [fill(str(key.get_label()), LONGEST_LABEL, break_on_hyphens=False) for key in keys]
        figure.legend(keys, labels, loc="outside lower center", ncols=2, columnspacing=1.0)
    return figure


def _check(curves: Mapping[str, DecayCurve]) -> None:
    kinds = sorted({f"{curve.quantity} per {curve.unit}" for curve in curves.values()})
    if len(kinds) != 1:
        raise ValueError(f"curves must be one or more, of one quantity and unit, got {' and '.join(kinds) or 'none'}")


def _curve(axes: "Axes", curve: DecayCurve, confidence: float, look: dict[str, Any], label: str, row: int = 0) -> None:
    """Line, points and band; triangles for what is hidden, on the lower edge or `row` rows above it."""
    lags, bottom = np.asarray(curve.lags), axes.get_ylim()[0]
    values, low, high = (scale(curve) * np.asarray(each) for each in (curve.values, *curve.interval(confidence)))
    absent = hidden(axes, curve)
    axes.fill_between(lags, low.clip(bottom), high.clip(bottom), color=look["color"], alpha=0.15, lw=0)
    axes.plot(lags, np.where(absent, np.nan, values), lw=1.1, marker="o", ms=1.8, label=label, **look)
    if absent.any():
        edge = 0.025 * (1 + row)
        axes.plot(lags[absent], [edge] * absent.sum(), transform=axes.get_xaxis_transform(), **_triangle(look["color"]))


def _floor(axes: "Axes", curve: DecayCurve, look: dict[str, Any]) -> None:
    axes.plot(curve.lags, scale(curve) * np.asarray(curve.floor), **look)


def _slopes(axes: "Axes", curve: DecayCurve, confidence: float, look: dict[str, Any]) -> None:
    """Local slopes with their band, and a remark when some are missing, those of the outermost lags aside."""
    slopes, half = known_slopes(curve, confidence)
    axes.fill_between(curve.lags, slopes - half, slopes + half, color=look["color"], alpha=0.15, lw=0)
    axes.plot(curve.lags, slopes, lw=1.1, marker="o", ms=1.8, **look)
    if np.isnan(slopes[1:-1]).any():
        axes.set_title(f"shown where known to +-{WIDEST_SLOPE:g}", loc="right", fontsize=7, pad=2)


def _exact(above: "Axes", below: "Axes", curve: DecayCurve, exact: tuple[ArrayLike, ArrayLike]) -> None:
    look: dict[str, Any] = {"color": EXACT, "lw": 1.1, "ls": (0, (5, 1.6)), "label": "exact"}
    lags, values = exact
    above.plot(lags, scale(curve) * np.asarray(values), **look)
    below.plot(lags, exact_slopes(lags, values), **look)


def _drift(axes: "Axes", curve: DecayCurve) -> None:
    """The drift, where the axis reaches down to it."""
    level = scale(curve) * curve.drift
    if level > axes.get_ylim()[0]:
        label = "drift: each block shuffled"
        axes.plot(
            curve.lags[:: len(curve.lags) - 1], [level] * 2, color=FLOOR, lw=0.9, linestyle=(0, (6, 2)), label=label
        )


def _law(above: "Axes", below: "Axes", curve: DecayCurve, law: PowerLaw) -> None:
    """The law beneath the measured curve, so that it hides no point."""
    everywhere, fitted = np.array([curve.lags[0], curve.lags[-1]]), np.array([law.first_lag, law.last_lag])
    label = f"power law: beta = {_exponent(law)},\nfitted to lags {law.first_lag} to {law.last_lag}"
    strong: dict[str, Any] = {"color": FIT, "lw": 1.6, "zorder": 1.9, "label": label}
    faint: dict[str, Any] = {"color": FIT, "lw": 1.0, "zorder": 1.8, "alpha": 0.35}
    for lags, look in ((everywhere, faint), (fitted, strong)):
        above.plot(lags, scale(curve) * law.values(lags), **look)
        below.plot(lags, [law.beta] * 2, **look)
    below.fill_between(everywhere, law.low, law.high, color=FIT, alpha=0.12, lw=0)
    for axes in (above, below):
        axes.axvline(law.last_lag, color=FIT, lw=0.6, ls=(0, (4, 3)))


def _fit_end(axes: "Axes", curve: DecayCurve, law: PowerLaw, look: dict[str, Any]) -> None:
    lags, values = np.asarray(curve.lags), np.asarray(curve.values)
    last = np.flatnonzero((lags <= law.last_lag) & (values > 0))[-1]
    axes.plot(lags[last], scale(curve) * values[last], **_ring(look["color"]))


def _shared_keys(fitted: bool) -> list["Line2D"]:
    """The legend's entries for thin lines and for rings."""
    from matplotlib.lines import Line2D

    floor = Line2D([], [], color=INK, lw=0.5, label=FLOOR_LABEL)
    return [floor, Line2D([], [], **_ring(INK), label="end of the fit")] if fitted else [floor]


def _triangle_key(axes: "Axes", curves: Mapping[str, DecayCurve]) -> list["Line2D"]:
    """The legend's entry for values below the frame, which counts them and those not above zero; [] without any."""
    from matplotlib.lines import Line2D

    counts = []
    for name, curve in curves.items():
        absent, negative = int(hidden(axes, curve).sum()), sum(value <= 0 for value in curve.values)
        if absent:
            counts.append(f"{name} {absent} of {len(curve.lags)} lags ({negative} at or below 0)".lstrip())
    return [Line2D([], [], **_triangle(INK), label=f"below the frame: {', '.join(counts)}")] if counts else []


def _triangle(colour: str) -> dict[str, Any]:
    return {"color": colour, "marker": "v", "ms": 3.5, "mew": 0.7, "mfc": "none", "ls": "none"}


def _ring(colour: str) -> dict[str, Any]:
    return {"color": colour, "marker": "o", "ms": 5, "mew": 0.9, "mfc": "none", "ls": "none"}


def _confidence(law: PowerLaw | None) -> float:
    return law.confidence if law else CONFIDENCE


def _percent(law: PowerLaw | None) -> str:
    return f"{100 * _confidence(law):g} %"


def _exponent(law: PowerLaw) -> str:
    return f"{law.beta:.2f} ({law.low:.2f} to {law.high:.2f})"


def _named(name: str, law: PowerLaw | None) -> str:
    return (
        f"{name}: beta = {_exponent(law)}, lags {law.first_lag} to {law.last_lag}"
        if law
        else f"{name}: no power law fitted"
    )
