"""The figures of a study: verdicts, differences, curves, context, memory. matplotlib is imported where it draws."""

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from plkernel.analysis.figures.style import (
    COLOURS,
    COLUMN_WIDTH,
    GREY,
    INK,
    PAGE_WIDTH,
    byte_unit,
    headline,
    legend_below,
    line_style,
    plain_ticks,
    style,
)
from plkernel.memory.diagnostics import Memory, memory_of
from plkernel.memory.figures import (
    Curves,
    Panel,
    half_life_figure,
    influence_figure,
    kernel_figure,
    truncation_figure,
)
from plkernel.models import NOT_CAUSAL
from plkernel.results.comparison import ArmResult, Block, Comparison
from plkernel.results.registration import Outcome
from plkernel.results.statistics import (
    Band,
    Curve,
    Estimate,
    Judgement,
    difference_curves,
    pointwise_band,
    simultaneous_band,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOREST_FROM = 7
"""From so many compared arms on one figure shows all differences."""
FEWEST_FOR_WHOLE = 5
"""From so many seeds on the band for the whole curve is drawn: with fewer it leaves every frame."""
BESIDE, FAR = 3.0, 8.0
"""Intervals are cut at BESIDE times the largest difference of a seed; rows FAR times beyond the median are arrows."""
KINDS = {
    "verdicts": (
        "decided",
        "Hypotheses: strokes are seeds, the circle their mean (filled: confirmed), the line the interval of this "
        "hypothesis alone, the shaded range where the claim holds.",
    ),
    "forest": (
        "differences",
        "Every arm minus the one it is compared with: strokes are seeds, the circle their mean (filled: significant "
        "after Holm's correction), the line the 95 % t interval, an arrow a mean outside the frame.",
    ),
    "convergence": (
        "curves",
        "Validation bits per byte against training bytes read: thin lines are seeds, thick lines their mean.",
    ),
    "difference": (
        "curves",
        "Difference during training, paired by seed, with its 95 % t interval at each position (darker) and, from five "
        "seeds on, the 95 % band of the whole curve (lighter).",
    ),
    "truncation": (
        "context",
        "Bits per byte of the same text predicted from the last 1, 2, 4 .. bytes, and the loss against the whole "
        "context, with 95 % t intervals; the broad grey line is the best possible where the source is known.",
    ),
    "influence": (
        "context",
        "Influence: change of a prediction (Kullback-Leibler divergence, bits) when the byte d before it is replaced "
        "by another, with 95 % t intervals; the grey line is I(d) of a known law.",
    ),
    "kernels": (
        "memory",
        "Kernels: weight of an input t bytes later in the recurrent branch, 1 at lag 1, of blocks (thin) and their "
        "geometric mean over blocks and seeds (thick); the broad grey line is the power law of the arm.",
    ),
    "half-lives": (
        "memory",
        "Half-lives of the channels by block: the box holds the middle half with the median in it, the line reaches "
        "from the shortest to the longest.",
    ),
}
"""Section of the page and caption of each kind of figure."""
CONTEXT: dict[str, tuple[str, str, str]] = {
    "truncation": ("given", "bpb", "floor"),
    "influence": ("lags", "bits", "information"),
}
"""Keys of the positions, values and law of curves over the context in a result."""

Arms = Mapping[str, Sequence[Curve]]
"""The curves of every arm's seeds, keyed by bytes read."""


class Drawing(NamedTuple):
    """A figure: the name of its files, the section of the page it belongs to, the block it shows, and its caption."""

    name: str
    section: str
    block: str
    caption: str
    figure: "Figure"


def drawings(comparison: Comparison) -> Iterator[Drawing]:
    """Draw every figure of a study; the names of those of a block end in the block's levels."""
    one = comparison.declared
    if one and (judged := [outcome for outcome in one.outcomes if outcome.judgement.n]):
        yield _drawing("verdicts", forest({"": list(map(_hypothesis, judged))}))
    if len(comparison.others) >= FOREST_FROM:
        yield _drawing("forest", _all_differences(comparison))
    for part in comparison.blocks:
        yield from _of_block(comparison, part)


def _of_block(comparison: Comparison, part: Block) -> Iterator[Drawing]:
    study, title = comparison.study, titled(part)
    arms = {arm_label(comparison, part, arm): arm for arm in part.arms}
    curves = {label: list(study.curves(arm.name).values()) for label, arm in arms.items()}
    yield _drawing("convergence", convergence(curves, title), part)
    paired = {
        f"{label}\nminus {comparison.short(str(arm.against))}": list(
            difference_curves(study.curves(arm.name), study.curves(str(arm.against))).values()
        )
        for label, arm in arms.items()
        if arm.differences
    }
    if paired:
        yield _drawing("difference", differences(paired, title), part)
    for kind, draw in (("truncation", truncation_figure), ("influence", influence_figure)):
        if known := {label: one for label, arm in arms.items() if (one := context_of(comparison, arm, kind))}:
            yield _drawing(kind, draw(known, title), part)
    panels = [
        Panel(comparison.short(arm.name), *memories(comparison, arm), exponent_of(study.spec["arms"][arm.name]))
        for arm in part.arms
        if arm.seeds
    ]
    if shown := [one for one in panels if one.before.has_kernels and one.after.has_kernels]:
        yield _drawing("kernels", kernel_figure(shown, title), part)
    if shown := [one for one in panels if one.before.has_half_lives and one.after.has_half_lives]:
        yield _drawing("half-lives", half_life_figure(shown, title), part)


def _drawing(kind: str, figure: "Figure", part: Block | None = None) -> Drawing:
    section, caption = KINDS[kind]
    return Drawing(f"{kind}{part.slug if part else ''}", section, part.title if part else "", caption, figure)


# Data of an arm


def titled(part: Block) -> str:
    """Title of a block, marked where all of it leaks; empty in a study without blocks."""
    return part.title + (f" ({NOT_CAUSAL})" if part.title and part.leaks else "")


def arm_label(comparison: Comparison, part: Block, arm: ArmResult) -> str:
    """Name of an arm in its block, marked where it leaks and the title of its block does not say so."""
    name = comparison.short(arm.name)
    return name if arm.causal or (part.title and part.leaks) else f"{name} ({NOT_CAUSAL})"


def context_of(comparison: Comparison, arm: ArmResult, kind: str) -> Curves | None:
    """Truncation or influence curves of an arm's finished runs, at the positions of the first; None without any."""
    at, values, law = CONTEXT[kind]
    curves = [getattr(run.result, kind) for run in comparison.study.finished(arm.name)]
    known = [curve for curve in curves if curve and None not in getattr(curve, values)]
    same = [curve for curve in known if getattr(curve, at) == getattr(known[0], at)]
    if not same:
        return None
    laws = np.array([getattr(curve, law) for curve in same if getattr(curve, law)], dtype=float)
    measured = np.array([getattr(curve, values) for curve in same], dtype=float)
    return Curves(tuple(getattr(same[0], at)), measured, tuple(laws.mean(axis=0).tolist()) if len(laws) else None)


def memories(comparison: Comparison, arm: ArmResult) -> tuple[Memory, Memory]:
    """Memory of an arm's finished runs before training and after."""
    runs = comparison.study.finished(arm.name)
    return memory_of([run.first for run in runs]), memory_of([run.last for run in runs])


def exponent_of(options: Mapping[str, Any]) -> float:
    """Exponent that an arm's kernel is compared with: beta, and half of it where its target is correlation."""
    beta = float(options.get("beta") or 1.15)
    return beta / 2 if options.get("target") == "correlation" else beta


# Differences at a glance


class ForestRow(NamedTuple):
    """One difference, None where there is none; filled where it holds; `region` is shaded."""

    label: str
    difference: Estimate | Judgement | None
    per_seed: Sequence[float]
    holds: bool
    region: tuple[float, float] | None = None


Groups = Mapping[str, Sequence[ForestRow]]
"""The rows under each heading; an empty heading is not written."""


def _hypothesis(outcome: Outcome) -> ForestRow:
    one, judged, margin = outcome.hypothesis, outcome.judgement, outcome.hypothesis.margin
    region = {"lower": (-math.inf, -margin), "higher": (margin, math.inf), "equal": (-margin, margin)}[one.claim]
    seeds = list(outcome.per_seed.values())
    return ForestRow(textwrap.fill(one.name, 44), judged, seeds, judged.verdict == "confirmed", region)


def _all_differences(comparison: Comparison) -> "Figure":
    groups: dict[str, list[ForestRow]] = {}
    for part in comparison.blocks:
        several = len({arm.against for arm in part.others}) > 1
        for arm in part.others:
            minus = f" minus {comparison.short(str(arm.against))}" if several else ""
            one, label = comparison.evidence.get(arm.name), f"{arm_label(comparison, part, arm)}{minus}"
            seeds = list(one.difference.per_seed.values()) if one else []
            row = ForestRow(label, one.difference if one else None, seeds, one is not None and one.survives)
            groups.setdefault(titled(part), []).append(row)
    return forest(groups)


def forest(groups: Groups) -> "Figure":
    """Draw a row per difference: strokes are seeds, the circle their mean (filled: holds), the line its interval."""
    from matplotlib.figure import Figure

    count = sum(len(rows) + bool(title) for title, rows in groups.items())
    low, high = forest_limits(groups)
    tall = 0.19 * max(1 + row.label.count("\n") / 2 for rows in groups.values() for row in rows)
    labels: list[str] = []
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, tall * count + 0.75))
        axes = figure.subplots()
        axes.axvline(0.0, color=INK, lw=0.6)
        for title, rows in groups.items():
            if title:
                axes.text(0.0, len(labels), title, transform=axes.get_yaxis_transform(), va="center", fontweight="bold")
                labels.append("")
            for label, one, per_seed, holds, region in rows:
                place = len(labels)
                labels.append(label)
                if region:
                    start, end = np.clip(region, low, high)
                    axes.barh(place, end - start, 0.8, left=start, color=GREY, alpha=0.25, lw=0, zorder=0.5)
                if one is None or not math.isfinite(one.mean):
                    axes.text(
                        0.0, place, " no common seed" if one is None else " not finite", va="center", fontsize=6.5
                    )
                    continue
                look: dict[str, Any] = {"color": COLOURS[0] if one.mean < 0 else COLOURS[1]}
                axes.plot(per_seed, [place] * len(per_seed), "|", ms=4, alpha=0.55, mew=0.7, **look)
                axes.plot([one.low, one.high], [place, place], lw=1.2, solid_capstyle="butt", **look)
                look |= {"marker": "<" if one.mean < low else ">" if one.mean > high else "o", "clip_on": False}
                look["mfc"] = look["color"] if holds else "none"
                axes.plot([np.clip(one.mean, low, high)], [place], ms=4.2, mew=1.0, **look)
        axes.set_yticks(range(count), labels)
        axes.set(xlim=(low, high), ylim=(count - 0.4, -0.6), xlabel="difference in bits per byte, below 0 is better")
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x", lw=0.3, alpha=0.5)
    return figure


def forest_limits(groups: Groups) -> tuple[float, float]:
    """Frame that holds all seeds and intervals, except those of rows far beyond the others."""
    rows = [row for of in groups.values() for row in of if row.difference is not None]
    reaches = [_largest(row.per_seed) for row in rows]
    most = FAR * median(reaches) if len(reaches) > 2 else math.inf
    inside = [row for row, reach in zip(rows, reaches, strict=True) if reach <= most or not most]
    bounds = (edge for row in inside if row.difference for edge in (row.difference.low, row.difference.high))
    return _frame((value for row in inside for value in row.per_seed), bounds)


def _largest(values: Iterable[float]) -> float:
    return max((abs(value) for value in values if math.isfinite(value)), default=0.0)


def _frame(seeds: Iterable[float], bounds: Iterable[float]) -> tuple[float, float]:
    """Symmetric limits: room for every seed, and for bounds up to BESIDE times as far."""
    most = _largest(seeds)
    reach = 1.07 * min(max(most, _largest(bounds)), BESIDE * most) or 1e-3
    return -reach, reach


# Curves


def _last(arms: Arms) -> int:
    return max((at for curves in arms.values() for curve in curves for at in curve), default=1)


def _grid(count: int, columns: int, height: float, **shared: Any) -> tuple["Figure", list["Axes"]]:
    """Make a figure with `count` axes, row by row; inches of height are per row."""
    from matplotlib.figure import Figure

    columns = max(1, min(columns, count))
    rows = -(-max(1, count) // columns)
    figure = Figure(figsize=(PAGE_WIDTH if columns > 1 else 1.3 * COLUMN_WIDTH, height * rows + 0.5))
    grid = list(figure.subplots(rows, columns, squeeze=False, **shared).flat)
    for axes in grid[count:]:
        axes.set_visible(False)
    return figure, grid[:count]


def _draw(
    axes: "Axes", curves: Sequence[Curve], look: Mapping[str, Any], unit: float, thin: float = 0.6, start: float = 0.0
) -> None:
    """Draw each curve from `start` on as a thin line of opacity `thin`, and their mean thick."""
    for curve in curves:
        at = [x for x in sorted(curve) if x >= start]
        axes.plot([x / unit for x in at], [curve[x] for x in at], color=look["color"], lw=0.5, alpha=thin)
    if curves:
        mean = pointwise_band(curves)
        shown = mean.at >= start
        axes.plot(mean.at[shown] / unit, mean.mean[shown], lw=1.5, **look)


def convergence(arms: Arms, heading: str = "") -> "Figure":
    """Draw validation bits per byte against bytes read: left the whole run on a log scale, right its second half."""
    last = _last(arms)
    unit, unit_name = byte_unit(last)
    thin = min(0.6, 12 / max(1, sum(map(len, arms.values()))))  # many lines would hide the means
    with style():
        figure, (whole, late) = _grid(2, 2, 2.3 + 0.15 * -(-len(arms) // 3))
        for axes, start in ((whole, 1.0), (late, last / 2)):
            for index, curves in enumerate(arms.values()):
                _draw(axes, curves, line_style(index), unit, thin, start)
            axes.set_xlabel(f"training bytes read ({unit_name})")
        whole.set(xscale="log", title="whole run", ylabel="validation bits per byte")
        plain_ticks(whole.xaxis)
        late.set(title="second half", xlim=(last / 2 / unit, last / unit))
        legend_below(figure, list(arms))
        headline(figure, heading)
    return figure


def differences(arms: Arms, heading: str = "") -> "Figure":
    """Draw difference curves against bytes read, a panel per arm, with bands for each point and the whole curve."""
    unit, unit_name = byte_unit(_last(arms))
    with style():
        figure, grid = _grid(len(arms), 3, 2.2, sharex=True, sharey=True)
        every = []
        for index, (axes, (title, curves)) in enumerate(zip(grid, arms.items(), strict=True), start=1):
            bands = [pointwise_band(curves), *([simultaneous_band(curves)] if len(curves) >= FEWEST_FOR_WHOLE else [])]
            axes.axhline(0.0, color=INK, lw=0.6)
            look = line_style(index)
            for band, alpha in zip(bands, (0.2, 0.1), strict=False):
                axes.fill_between(band.at / unit, band.low, band.high, color=look["color"], alpha=alpha, lw=0)
            _draw(axes, curves, look, unit)
            axes.set_title(title, fontsize=8.0 * min(1.0, max(0.6, 34 / max(map(len, title.split("\n"))))))
            axes.xaxis.set_tick_params(labelbottom=index + 3 > len(arms))
            every += bands
        grid[0].set_ylim(*difference_limits(arms, every))
        figure.supxlabel(f"training bytes read ({unit_name})", fontsize=8)
        figure.supylabel("difference in bits per byte, below 0 is better", fontsize=8)
        headline(figure, heading)
    return figure


def difference_limits(arms: Arms, bands: Iterable[Band]) -> tuple[float, float]:
    """Frame of the differences after the first tenth of the run, where curves cross steeply."""
    start = _last(arms) / 10
    seeds = (value for curves in arms.values() for curve in curves for at, value in curve.items() if at > start)
    return _frame(seeds, (edge for band in bands for edge in np.r_[band.low, band.high][np.tile(band.at > start, 2)]))
