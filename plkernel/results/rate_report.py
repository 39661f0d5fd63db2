"""Curves over learning rates for readers: the answer, a table, cautions and a figure."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from plkernel.analysis.figures.style import (
    PAGE_WIDTH,
    legend_below,
    line_style,
    style,
)
from plkernel.common.cli import counted
from plkernel.results.rate_curves import CurveResult, RateCurve
from plkernel.results.statistics import ALPHA, PairedDifference, holm, with_p
from plkernel.results.wording import (
    interval_text,
    listed,
    mean_and_half_width,
    mean_and_interval,
    mean_text,
    p_text,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEADER = ("curve", "minimum", "best rate", "difference", "95 % interval by t", "p", "test", "n")
CAPTION = (
    "Minima over learning rates of the validation loss, in {unit}: every seed's losses at the"
    " rates within a factor of 2 of the best one, and at its neighbours, are fitted by a parabola"
    " in the logarithm of the rate. Differences of minima are paired by seed; p of the paired t"
    " test is corrected by Holm. Test: the same difference on {held_out}, with half of its 95 %"
    " interval."
)
FIGURE_CAPTION = (
    "Final validation loss against the learning rate: seeds (thin), their mean (dots) and its"
    " parabola near the minimum (thick, circle). Right: differences of minima, seeds (strokes) and"
    " their mean with its 95 % t interval."
)
POINTS = 60
"""Of a parabola that is drawn."""
ABOVE_ROW = 0.15
"""Where the name of a difference stands, in rows."""
STEEP = 6.0
"""Losses are shown up to so many times the range of the fitted ones above the least."""


def corrected(results: Sequence[CurveResult]) -> dict[str, float]:
    """p of every difference of minima, corrected for their number (Holm)."""
    return holm({one.curve.name: one.difference.p_value for one in results if one.difference})


def curves_tested(results: Sequence[CurveResult]) -> list[str]:
    """The curves whose difference of minima has a p: those that Holm corrects over."""
    return with_p(corrected(results))


def curve_clauses(results: Sequence[CurveResult], unit: str) -> str:
    """The minima in words: "at the best learning rate of each, short is behind long, +0.01"."""
    p_values = corrected(results)
    clauses = []
    for one in results:
        difference = one.difference
        if difference is None or not difference.n:
            continue
        name = one.curve.name
        numbers = mean_and_interval(difference, "+.3f")
        if p_values[name] < ALPHA:
            place = "behind" if difference.mean > 0 else "ahead of"
            clause = f"{name} is {place} {one.against}, {numbers}"
        else:
            clause = f"{name} cannot be distinguished from {one.against}, {numbers}"
        clauses.append(clause + _doubt_clause(one, results))
    if not clauses:
        return "no two curves have a minimum with a common seed"
    return f"at the best learning rate of each, {'; '.join(clauses)} {unit}"


def _doubt_clause(one: CurveResult, results: Sequence[CurveResult]) -> str:
    """Why a difference of minima is not to be trusted, in brackets; empty where nothing is."""
    (against,) = [other.curve for other in results if other.curve.name == one.against]
    doubts = [curve.doubt for curve in (one.curve, against) if not curve.waiting]
    known = [doubt for doubt in doubts if doubt is not None]
    return f" (not to be trusted: {'; '.join(known)})" if known else ""


def curve_rows(results: Sequence[CurveResult]) -> list[list[str]]:
    """A row of texts for every curve, under HEADER."""
    p_values = corrected(results)
    rows = []
    for one in results:
        estimate = one.curve.estimate
        fit = one.curve.fit
        row = [one.curve.name]
        row.append(mean_and_half_width(estimate, ".4f", estimate.n) if estimate.n else "-")
        row.append(f"{fit.rate:.2g}" if fit else "-")
        row += _difference_cells(one.difference, p_values.get(one.curve.name, math.nan))
        row.append(_test_cell(one.test))
        row.append(str(estimate.n))
        rows.append(row)
    return rows


def _difference_cells(one: PairedDifference | None, p_value: float) -> list[str]:
    if one is None:
        return ["", "", ""]
    if not one.n:
        return ["-", "", ""]
    return [mean_text(one), interval_text(one), p_text(p_value)]


def _test_cell(one: PairedDifference | None) -> str:
    """The difference on test text; empty for the baseline, "-" where no seed has one."""
    if one is None:
        return ""
    return mean_and_half_width(one, "+.4f", one.n) if one.n else "-"


def curve_table(results: Sequence[CurveResult]) -> list[dict[str, Any]]:
    """The numbers of every curve, for table.json."""
    p_values = corrected(results)
    table = []
    for one in results:
        curve = one.curve
        table.append(
            {
                "curve": curve.name,
                "against": one.against,
                "rates": sorted([*curve.losses, *curve.waiting]),
                "mean_losses": dict(zip(curve.rates, curve.means, strict=True)),
                "fitted": list(curve.fitted),
                "best_rate": curve.fit.rate if curve.fit else None,
                "at_edge": curve.at_edge,
                "per_seed": curve.minima,
                **vars(curve.estimate),
                "difference": vars(one.difference) if one.difference else None,
                "p_corrected": p_values.get(curve.name),
                "test_difference": vars(one.test) if one.test else None,
            }
        )
    return table


def curve_cautions(results: Sequence[CurveResult]) -> list[str]:
    """Sentences on curves without a minimum inside their rates, or without some of their runs.

    Of a curve that waits for some of its rates, nothing is said of its minimum but that.
    """
    sentences = _still_waiting(results)
    complete = [one.curve for one in results if not one.curve.waiting]
    at_edge: dict[str, list[str]] = {}
    for curve in complete:
        if curve.at_edge:
            at_edge.setdefault(curve.edge, []).append(curve.name)
    for edge, names in at_edge.items():
        sentences.append(
            f"{listed(names)}: the best learning rate is {edge}, so that the minimum may lie"
            " beyond: add rates."
        )
    for curve in complete:
        sentences += _at_ends_of_fit(curve)
    gaps: dict[tuple[float, float], list[str]] = {}
    for curve in complete:
        if curve.gap:
            gaps.setdefault(curve.gap, []).append(curve.name)
    for (low, high), names in gaps.items():
        sentences.append(
            f"{listed(names)}: the parabola spans learning rates {low:g} and {high:g} with none"
            " between them, too far for its minimum to be trusted: add rates there."
        )
    for one in results:
        sentences += _left_out(one.curve)
    for curve in complete:
        lack = curve.lack
        if lack is not None:
            remedy = f": {lack.remedy}" if lack.remedy else ""
            sentences.append(f"{lack.why}{remedy}.")
    return sentences


def _at_ends_of_fit(curve: RateCurve) -> list[str]:
    """Sentences on parabolas that are lowest at the first or last rate that is fitted."""
    if curve.fit is None or curve.at_edge:
        return []
    fitted = f"{curve.fit.lowest:g} to {curve.fit.highest:g}"
    if curve.at_end_of_fit:
        return [
            f"{curve.name}: the parabola is lowest at an end of the learning rates that it is"
            f" fitted to, {fitted}, so that its minimum is not to be trusted: add rates near"
            f" {curve.fit.rate:.2g}."
        ]
    some = len(curve.seeds_at_end_of_fit)
    if not some:
        return []
    return [
        f"{curve.name}: in {some} of {counted(len(curve.fits), 'seed', 'seeds')} the parabola is"
        f" lowest at an end of the learning rates {fitted}, where the minimum is then taken."
    ]


def _still_waiting(results: Sequence[CurveResult]) -> list[str]:
    """Sentences on learning rates that curves wait for, the same ones together."""
    names: dict[tuple[float, ...], list[str]] = {}
    for one in results:
        if one.curve.waiting:
            names.setdefault(one.curve.waiting, []).append(one.curve.name)
    sentences = []
    for waiting, of_these in names.items():
        rates = listed(f"{rate:g}" for rate in waiting)
        sentences.append(
            f"{listed(of_these)}: not every curve has an ended run at learning rate {rates} yet, so"
            " that minima are preliminary, over the other rates."
        )
    return sentences


def _left_out(curve: RateCurve) -> list[str]:
    """Sentences on the learning rates and the seeds that a curve goes without."""
    sentences = []
    rates = [f"{rate:g}" for rate in curve.losses if rate not in curve.rates]
    if curve.ended and rates:
        sentences.append(
            f"{curve.name}: without learning rate {listed(rates)}, at which fewer than half of the"
            " seeds finished as planned."
        )
    lost = [seed for seed in curve.ended if seed not in curve.seeds]
    if curve.rates and lost:
        sentences.append(
            f"{curve.name}: without seed {listed(lost)}, whose runs did not finish as planned at"
            " every learning rate."
        )
    return sentences


def rate_figure(results: Sequence[CurveResult], unit: str) -> "Figure | None":
    """Draw the curves of every arm, and the differences of their minima; None without a minimum."""
    from matplotlib.figure import Figure

    shown = [one for one in results if one.curve.fit]
    if not shown:
        return None
    compared = [one for one in shown if one.difference and one.difference.n]
    with style():
        rows_of_legend = math.ceil(len(shown) / 3)
        height = max(2.9, 0.9 + 0.42 * len(compared)) + 0.15 * rows_of_legend
        figure = Figure(figsize=(PAGE_WIDTH, height))
        ratios = [2.2, 1.0] if compared else [1.0]
        axes = list(figure.subplots(1, len(ratios), width_ratios=ratios, squeeze=False)[0])
        for index, one in enumerate(shown):
            _draw_curve(axes[0], one.curve, line_style(index))
        axes[0].set(xscale="log", xlabel="peak learning rate", ylabel=f"final validation, {unit}")
        _label_rates(axes[0], shown)
        axes[0].set_ylim(*_loss_limits(shown))
        if compared:
            _draw_differences(axes[1], shown, compared, unit)
        legend_below(figure, [one.curve.name for one in shown])
    return figure


def _draw_curve(axes: "Axes", curve: RateCurve, look: dict[str, Any]) -> None:
    """Draw the seeds, the mean and the parabola of one curve."""
    fit = curve.fit
    if fit is None:
        return
    color = look["color"]
    for seed in curve.seeds:
        own = [curve.losses[rate][seed] for rate in curve.rates]
        axes.plot(curve.rates, own, color=color, lw=0.5, alpha=0.4)
    axes.plot(curve.rates, curve.means, color=color, ls="", marker="o", ms=2.5)
    rates = np.geomspace(fit.lowest, fit.highest, POINTS)
    axes.plot(rates, fit.at(rates.tolist()), lw=1.5, **look)
    axes.plot([fit.rate], [fit.minimum], marker="o", ms=6, mfc="none", color=color)


def _label_rates(axes: "Axes", shown: Sequence[CurveResult]) -> None:
    """Write every rate that was tried below the axis."""
    rates = sorted({rate for one in shown for rate in one.curve.rates})
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.minorticks_off()


def _loss_limits(shown: Sequence[CurveResult]) -> tuple[float, float]:
    """The range of losses: all of them, but none STEEP times as far as the fitted ones."""
    fitted = []
    every = []
    for one in shown:
        curve = one.curve
        for rate in curve.rates:
            losses = [curve.losses[rate][seed] for seed in curve.seeds]
            every += losses
            if rate in curve.fitted:
                fitted += losses
    low = min(min(fitted), *(one.curve.fit.minimum for one in shown if one.curve.fit))
    high = min(max(every), low + STEEP * (max(fitted) - low))
    room = max(0.05 * (high - low), 1e-3)
    return low - room, high + room


def _draw_differences(
    axes: "Axes", shown: Sequence[CurveResult], compared: Sequence[CurveResult], unit: str
) -> None:
    """Draw a row for every difference of minima: its name, seeds, mean and interval."""
    centre_by_row = axes.get_yaxis_transform()
    axes.axvline(0.0, color="0.4", lw=0.6)
    for row, one in enumerate(compared):
        difference = one.difference
        assert difference is not None
        look = line_style([other.curve.name for other in shown].index(one.curve.name))
        height = len(compared) - 1 - row
        seeds = list(difference.per_seed.values())
        axes.plot(seeds, [height] * len(seeds), ls="", marker="|", color=look["color"], alpha=0.6)
        if difference.n > 1:
            axes.plot([difference.low, difference.high], [height] * 2, color=look["color"], lw=1.5)
        axes.plot([difference.mean], [height], marker="o", ms=5, color=look["color"])
        axes.text(
            0.5,
            height + ABOVE_ROW,
            f"{one.curve.name}\nminus {one.against}",
            transform=centre_by_row,
            ha="center",
            va="bottom",
            fontsize="x-small",
        )
    axes.set_yticks([])
    axes.set_ylim(-0.5, len(compared) - 0.2)
    axes.locator_params(axis="x", nbins=4)
    axes.set(xlabel=f"difference of minima,\n{unit}; below 0 is better")
