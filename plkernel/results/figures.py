"""The figures of a study: verdicts, differences, curves, context, memory. matplotlib is imported where it draws."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from plkernel.analysis.exponentials import Floats
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
from plkernel.memory.diagnostics import QUANTILES, Memory, memory_of, slope_range
from plkernel.memory.figures import (
    Influenced,
    Panel,
    Truncated,
    decades,
    draw_law,
    half_life_figure,
    influence_figure,
    kernel_figure,
    truncation_figure,
)
from plkernel.models.words import NOT_CAUSAL
from plkernel.results.comparison import ArmResult, Block, Comparison
from plkernel.results.registration import Outcome
from plkernel.results.statistics import (
    Band,
    Curve,
    Estimate,
    Judgement,
    Optimum,
    difference_curves,
    pointwise_band,
    simultaneous_band,
)
from plkernel.results.study import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOREST_FROM = 7
"""From so many compared arms on one figure shows all differences."""
FEWEST_FOR_WHOLE = 5
"""From so many seeds on a band for the whole curve is drawn: with fewer it leaves every frame."""
BESIDE, FAR = 3.0, 8.0
"""Intervals are cut at BESIDE times the largest difference of a seed; rows FAR times beyond the median are arrows."""
DOTTED = (0, (1, 1.2))

Arms = Mapping[str, Sequence[Curve]]
"""The curves of every arm's seeds, keyed by bytes read."""


@dataclass(frozen=True)
class Drawing:
    """A figure, the name of its files, the section of the page it belongs to, its text alternative, and its caption."""

    name: str
    section: str
    alt: str
    caption: str
    figure: "Figure"


def drawings(comparison: Comparison) -> Iterator[Drawing]:
    """Every figure of a study; the names of those of a block end in the block's levels."""
    if comparison.declared and (judged := [one for one in comparison.declared.outcomes if one.judgement.n]):
        alt = f"Difference and {comparison.declared.interval_title} of every hypothesis"
        yield Drawing("verdicts", "decided", alt, VERDICTS, forest({"": list(map(_hypothesis_row, judged))}))
    if len(comparison.others) >= FOREST_FROM:
        yield _forest(comparison)
    for part in comparison.blocks:
        yield from _curves(comparison, part)
    for part in comparison.blocks:
        yield from _context(comparison, part)
    for part in comparison.blocks:
        yield from _memory(comparison, part)
    if conditions := published_conditions(comparison):
        leaks = "" if all(arm.causal for arm in conditions[0]) else NOT_CAUSAL
        alt = "The three conditions of the published study: convergence, kernels at the start, half-lives"
        yield Drawing("published-figures", "published", alt, PUBLISHED, published_figure(*conditions[1:], leaks))


VERDICTS = (
    "A row per hypothesis, in bits per byte: strokes are seeds, the circle their mean (filled: confirmed), the line "
    "the interval of this hypothesis alone, the shaded range where the claim holds. An interval is cut at the frame; "
    "an arrow stands for a mean outside it."
)
FOREST = (
    "Every arm minus the one it is compared with: strokes are seeds, the circle their mean (filled: significant after "
    "Holm's correction), the line the 95 % t interval. An interval is cut at the frame; an arrow stands for a mean "
    "outside it."
)
CONVERGENCE = (
    "Convergence: thin lines are seeds, thick lines their mean; step 0, where nothing is learnt yet, is left out. "
    "Dotted, where drawn: n-grams, counts of so many bytes in a row of the same training text."
)
DIFFERENCES = (
    "Difference during training, paired by seed: thin lines are seeds, the thick line is their mean, the darker band "
    "its 95 % t interval at each position on its own. From five seeds on the lighter band is simultaneous: the whole "
    "true curve lies inside with 95 %. Bands are cut at the frame; one seed has none."
)
TRUNCATION = (
    "The same bytes of the test text, predicted from the last 1, 2, 4 .. bytes before them: bits per byte, and the "
    "loss against the whole context. Bands are 95 % t intervals of the mean over seeds. The broad grey line, where "
    "drawn, is the best possible: the source of the text is known."
)
INFLUENCE = (
    "Change of the prediction of a byte (Kullback-Leibler divergence, in bits) when the byte d before it in the test "
    "text is replaced by another, drawn by its frequency. Bands are 95 % t intervals of the mean over seeds. The grey "
    "line, where drawn, is the mutual information I(d) of the text, whose law is known."
)
KERNELS = (
    "Weight of an input t bytes later in the recurrent branch (root mean square over its entries), 1 at lag 1. Thin "
    "lines are blocks of the model, thick lines their geometric mean over blocks and seeds. The broad grey line is the "
    "power law of the arm, stated for the plain sum over channels; signs are random at initialisation, so channels add "
    "up as squares."
)
HALF_LIVES = (
    "Half-lives of the channels by block of the model: the box holds the middle half with the median in it, the line "
    "reaches from the shortest to the longest."
)
PUBLISHED = "The published figures, redrawn from these runs: convergence, kernels at the start, half-lives."


# Differences at a glance


@dataclass(frozen=True)
class ForestRow:
    """One difference, None where there is none; filled where it holds; `region` is shaded."""

    label: str
    difference: Estimate | Judgement | None
    per_seed: Sequence[float]
    holds: bool
    region: tuple[float, float] | None = None


Groups = Mapping[str, Sequence[ForestRow]]
"""The rows under each heading; an empty heading is not written."""


def forest(groups: Groups, heading: str = "") -> "Figure":
    """A row per difference: strokes are seeds, the circle their mean (filled: holds), the line its interval."""
    from matplotlib.figure import Figure

    count = sum(len(rows) + bool(title) for title, rows in groups.items())
    low, high = forest_limits(groups)
    tall = 0.19 * max(1 + row.label.count("\n") / 2 for rows in groups.values() for row in rows)
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, tall * count + 0.75))
        axes = figure.subplots()
        axes.axvline(0.0, color=INK, linewidth=0.6)
        labels: list[str] = []
        for title, rows in groups.items():
            if title:
                axes.text(0.0, len(labels), title, transform=axes.get_yaxis_transform(), va="center", fontweight="bold")
                labels.append("")
            for row in rows:
                _forest_row(axes, len(labels), row, low, high)
                labels.append(row.label)
        axes.set_yticks(range(count), labels)
        axes.set(xlim=(low, high), ylim=(count - 0.4, -0.6), xlabel="difference in bits per byte, below 0 is better")
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x", linewidth=0.3, alpha=0.5)
        headline(figure, heading)
    return figure


def forest_limits(groups: Groups) -> tuple[float, float]:
    """The frame: seeds and intervals, but none further than three times the largest difference of a seed in it."""
    rows = [row for of in groups.values() for row in of if row.difference is not None]
    reaches = [_largest(row.per_seed) for row in rows]
    most = FAR * median(reaches) if len(reaches) > 2 else math.inf
    inside = [row for row, reach in zip(rows, reaches, strict=True) if reach <= most or not most]
    seeds = _largest(value for row in inside for value in row.per_seed)
    edges = _largest(edge for row in inside if row.difference for edge in (row.difference.low, row.difference.high))
    reach = 1.06 * min(max(seeds, edges), BESIDE * seeds) or 1e-3
    return -reach, reach


def _forest_row(axes: "Axes", place: int, row: ForestRow, low: float, high: float) -> None:
    one = row.difference
    if row.region:
        start, end = (min(max(edge, low), high) for edge in row.region)
        axes.barh(place, end - start, 0.8, left=start, color=GREY, alpha=0.25, linewidth=0, zorder=0.5)
    if one is None or not math.isfinite(one.mean):
        axes.text(0.0, place, " no common seed" if one is None else " not finite", va="center", fontsize=6.5)
        return
    colour = COLOURS[0] if one.mean < 0 else COLOURS[1]
    values = list(row.per_seed)
    axes.plot(values, [place] * len(values), "|", color=colour, markersize=4, alpha=0.55, markeredgewidth=0.7)
    if math.isfinite(one.low):
        axes.plot([one.low, one.high], [place, place], color=colour, linewidth=1.2, solid_capstyle="butt")
    marker = "<" if one.mean < low else ">" if one.mean > high else "o"
    face: Any = {"markerfacecolor": colour if row.holds else "none", "markersize": 4.2, "markeredgewidth": 1.0}
    axes.plot([min(max(one.mean, low), high)], [place], marker, color=colour, clip_on=False, **face)


def _hypothesis_row(outcome: Outcome) -> ForestRow:
    import textwrap

    one, judged = outcome.hypothesis, outcome.judgement
    region = {
        "lower": (-math.inf, -one.margin),
        "higher": (one.margin, math.inf),
        "equal": (-one.margin, one.margin),
    }[one.claim]
    return ForestRow(
        textwrap.fill(one.name, 44), judged, [*outcome.per_seed.values()], judged.verdict == "confirmed", region
    )


def _forest(comparison: Comparison) -> Drawing:
    groups: dict[str, list[ForestRow]] = {}
    for part in comparison.blocks:
        several = len({arm.against for arm in part.others}) > 1
        for arm in part.others:
            evidence = comparison.evidence.get(arm.name)
            one = evidence.difference if evidence else None
            minus = f" minus {comparison.short(str(arm.against))}" if several else ""
            title = part.title + (f" ({NOT_CAUSAL})" if part.title and part.leaks else "")
            row = ForestRow(
                f"{arm_label(comparison, part, arm)}{minus}",
                one,
                list(one.per_seed.values()) if one else [],
                evidence is not None and evidence.survives,
            )
            groups.setdefault(title, []).append(row)
    heading = "" if comparison.causal or len(groups) > 1 else NOT_CAUSAL
    alt = "Difference of every arm to the one it is compared with, and its 95 % interval"
    return Drawing("forest", "differences", alt, FOREST, forest(groups, heading))


def arm_label(comparison: Comparison, part: Block, arm: ArmResult) -> str:
    """The name of an arm in its block, marked where it leaks and the heading of its block does not say so."""
    name = comparison.short(arm.name)
    return name if arm.causal or part.leaks else f"{name} ({NOT_CAUSAL})"


# Curves


def convergence(
    arms: Arms,
    bytes_per_step: float | None = None,
    heading: str = "",
    references: Mapping[str, float] | None = None,
) -> "Figure":
    """Validation bits per byte against bytes read (below) and steps (above): a thin line per seed, a thick mean.

    The first of `arms` is the baseline. Left the whole run on a log scale of bytes, right its second half.
    Without `bytes_per_step` (arms that differ in it) there is no axis of steps. `references` are losses by name, dotted
    lines across: all on the left, on the right those between the curves.
    """
    from matplotlib.figure import Figure

    last = _last(arms)
    unit, unit_name = byte_unit(last)
    strength = min(0.6, 12 / max(1, sum(map(len, arms.values()))))  # many lines would hide the means
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 2.75 + 0.15 * -(-len(arms) // 3)))
        whole, late = figure.subplots(1, 2)
        for axes, start in ((whole, 1.0), (late, last / 2)):
            for index, curves in enumerate(arms.values()):
                _seeds_and_mean(axes, curves, unit, line_style(index), start, strength)
        whole.set(xscale="log", title="whole run", ylabel="validation bits per byte")
        late.set(title="second half", xlim=(last / 2 / unit, last / unit))
        low, high = late.get_ylim()
        _across(whole, references or {})
        _across(late, {name: loss for name, loss in (references or {}).items() if low < loss < high})
        for axes in (whole, late):
            axes.set_xlabel(f"training bytes read ({unit_name})")
            _step_axis(axes, bytes_per_step, unit)
        legend_below(figure, list(arms))
        headline(figure, heading)
    return figure


def differences(
    arms: Arms, baselines: Mapping[str, str], bytes_per_step: float | None = None, heading: str = ""
) -> "Figure":
    """Arm minus baseline against bytes read, a panel per arm: seeds thin, mean thick, bands for point and curve.

    `arms` maps each arm to its difference curves, `baselines` to the name of what was subtracted. The darker band is
    the t interval at each position on its own; the lighter one, from five seeds on, holds for the whole curve.
    """
    from matplotlib.figure import Figure

    unit, unit_name = byte_unit(_last(arms))
    columns = max(1, min(3, len(arms)))
    rows = -(-max(1, len(arms)) // columns)
    bands = {
        arm: [draw(curves) for draw in (pointwise_band, simultaneous_band)[: 1 + (len(curves) >= FEWEST_FOR_WHOLE)]]
        for arm, curves in arms.items()
        if curves
    }
    with style():
        figure = Figure(figsize=(PAGE_WIDTH if columns > 1 else 1.3 * COLUMN_WIDTH, 2.3 * rows + 0.5))
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for index, (axes, (arm, curves)) in enumerate(zip(grid.flat, arms.items(), strict=False), start=1):
            look = line_style(index)
            axes.axhline(0.0, color=INK, linewidth=0.6)
            for band, alpha in zip(bands.get(arm, ()), (0.2, 0.1), strict=False):
                axes.fill_between(band.at / unit, band.low, band.high, color=look["color"], alpha=alpha, linewidth=0)
            _seeds_and_mean(axes, curves, unit, look, 0.0, 0.6)
            longest = max(len(arm), len(baselines[arm]) + 6)
            axes.set_title(f"{arm}\nminus {baselines[arm]}", fontsize=8.0 * min(1.0, max(0.6, 34 / longest)))
            axes.xaxis.set_tick_params(labelbottom=index + columns > len(arms))
            if index <= columns:
                _step_axis(axes, bytes_per_step, unit)
        for axes in grid.flat[len(arms) :]:
            axes.set_visible(False)
        grid[0, 0].set_ylim(*difference_limits(arms, bands))
        figure.supxlabel(f"training bytes read ({unit_name})", fontsize=8)
        figure.supylabel("difference in bits per byte, below 0 is better", fontsize=8)
        headline(figure, heading)
    return figure


def difference_limits(arms: Arms, bands: Mapping[str, Sequence[Band]]) -> tuple[float, float]:
    """The frame of a difference figure: room for every seed's line, and for bands up to three times as wide.

    Symmetric about zero. The first tenth of the run, where curves cross steeply, does not set it.
    """
    start = _last(arms) / 10
    lines = _largest(value for curves in arms.values() for curve in curves for at, value in curve.items() if at > start)
    edges = _largest(
        value
        for band in (band for of in bands.values() for band in of)
        for edge in (band.low, band.high)
        for value in edge[band.at > start].tolist()
    )
    reach = 1.08 * min(max(lines, edges), BESIDE * lines) or 1e-3
    return -reach, reach


def effects(panels: Mapping[str, Arms], names: Mapping[str, str], linear: float) -> "Figure":
    """Difference to the baseline against bytes read, a panel per corpus, a line per arm: means and simultaneous bands.

    `panels` maps the title of a panel to difference curves by arm, `names` the arms to their names in the legend; not
    every panel needs all. The scale of differences is linear up to +-`linear` and logarithmic beyond.
    """
    from matplotlib.figure import Figure

    unit, unit_name = byte_unit(max(map(_last, panels.values())))
    rows = -(-len(panels) // 3)
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 0.6 + 2.1 * rows))
        grid = figure.subplots(rows, -(-len(panels) // rows), sharex=True, sharey=True, squeeze=False)
        lines = {}
        for axes, (title, arms) in zip(grid.flat, panels.items(), strict=True):
            for index, (arm, name) in enumerate(names.items(), start=1):
                if arm not in arms:
                    continue
                band, look = simultaneous_band(arms[arm]), line_style(index)
                read = band.at > 0
                at = band.at[read] / unit
                axes.fill_between(at, band.low[read], band.high[read], color=look["color"], alpha=0.15, linewidth=0)
                (lines[name],) = axes.plot(at, band.mean[read], linewidth=1.5, **look)
            axes.axhline(0.0, color=INK, linewidth=0.6)
            axes.set(xscale="log", title=title)
            plain_ticks(axes.xaxis)
            axes.set_yscale("symlog", linthresh=linear)
            axes.yaxis.set_major_formatter("{x:g}")
        figure.legend(lines.values(), lines, loc="outside lower center", ncols=len(lines))
        for axes in grid[-1]:
            axes.set_xlabel(f"training bytes read ({unit_name})")
        figure.supylabel("bits per byte minus log-spaced", fontsize=8)
    return figure


def _curves(comparison: Comparison, part: Block) -> Iterator[Drawing]:
    study, where = comparison.study, f"{part.title}: " if part.title else ""
    heading = ": ".join(filter(None, (part.title, NOT_CAUSAL if part.leaks else "")))
    results = [run.result for arm in part.arms for run in study.finished(arm.name) if run.result]
    ratios = {result.bytes / result.steps for result in results if result.steps}
    per_step = ratios.pop() if len(ratios) == 1 else None
    shown = {arm_label(comparison, part, arm): list(study.curves(arm.name).values()) for arm in part.arms}
    drawn = convergence(shown, per_step, heading, reference_losses(comparison, part))
    alt = f"{where}validation bits per byte against training bytes read, a line per arm and seed"
    yield Drawing(f"convergence{part.slug}", "curves", alt, CONVERGENCE, drawn)
    paired, bases = {}, {}
    for arm in part.others:
        if arm.differences:
            label, base = arm_label(comparison, part, arm), str(arm.against)
            paired[label] = list(difference_curves(study.curves(arm.name), study.curves(base)).values())
            bases[label] = comparison.short(base)
    if paired:
        alt = f"{where}difference of {', '.join(paired)} to the baseline against training bytes read"
        drawn = differences(paired, bases, per_step, heading)
        yield Drawing(f"difference{part.slug}", "curves", alt, DIFFERENCES, drawn)


def reference_losses(comparison: Comparison, part: Block) -> dict[str, float]:
    """The validation loss of n-grams by n, where all arms of the block that are likelihoods share it."""
    suiting = [comparison.reference(arm) for arm in part.arms if arm.causal and arm.seeds]
    first = suiting[0] if suiting else None
    if first is None or any(one is not first for one in suiting):
        return {}
    return dict(zip(map(str, first.orders), first.val_bpb, strict=True))


def _last(arms: Arms) -> int:
    return max((at for curves in arms.values() for curve in curves for at in curve), default=1)


def _largest(values: Iterable[float]) -> float:
    return max((abs(value) for value in values if math.isfinite(value)), default=0.0)


def _seeds_and_mean(
    axes: "Axes", curves: Sequence[Curve], unit: float, look: dict[str, Any], start: float, strength: float
) -> None:
    for curve in curves:
        at = [x for x in sorted(curve) if x >= start]
        values = [curve[x] for x in at]
        axes.plot([x / unit for x in at], values, color=look["color"], linewidth=0.5, alpha=strength)
    if curves:
        mean = pointwise_band(curves)
        shown = mean.at >= start
        axes.plot(mean.at[shown] / unit, mean.mean[shown], linewidth=1.5, **look)


def _across(axes: "Axes", references: Mapping[str, float]) -> None:
    """Dotted lines, named beside the panel."""
    for name, loss in references.items():
        axes.axhline(loss, color=GREY, linestyle=(0, (1, 2)), linewidth=0.8, zorder=0.9)
        axes.text(1.01, loss, name, transform=axes.get_yaxis_transform(), va="center", fontsize=6, color=GREY)


def _step_axis(axes: "Axes", bytes_per_step: float | None, unit: float) -> None:
    """Steps along the top; both horizontal axes get plain digits when they are logarithmic."""
    log = axes.get_xscale() == "log"
    if log:
        plain_ticks(axes.xaxis)
    if bytes_per_step:
        per_step = bytes_per_step / unit
        functions: Any = (lambda x: x / per_step, lambda step: step * per_step)
        above = axes.secondary_xaxis("top", functions=functions)
        above.set_xlabel("steps")
        above.spines["top"].set_visible(True)
        if log:
            plain_ticks(above.xaxis)


# Context and memory


def truncated(comparison: Comparison, arm: ArmResult) -> Truncated | None:
    """The truncation curves of an arm's finished runs, of the lengths of the first; None where there are none."""
    curves = [run.result.truncation for run in comparison.study.finished(arm.name) if run.result]
    known = [curve for curve in curves if curve and None not in curve.bpb]
    same = [curve for curve in known if curve.given == known[0].given]
    if not same:
        return None
    floors = [curve.floor for curve in same if curve.floor]
    floor = tuple(np.mean(np.array(floors, dtype=float), axis=0).tolist()) if floors else None
    return Truncated(tuple(same[0].given), np.array([curve.bpb for curve in same], dtype=float), floor)


def influenced(comparison: Comparison, arm: ArmResult) -> Influenced | None:
    """The influence in an arm's finished runs, at the lags of the first; None where there is none."""
    curves = [run.result.influence for run in comparison.study.finished(arm.name) if run.result]
    known = [curve for curve in curves if curve and None not in curve.bits]
    same = [curve for curve in known if curve.lags == known[0].lags]
    if not same:
        return None
    text = tuple(math.nan if value is None else value for value in same[0].information or ()) or None
    return Influenced(tuple(same[0].lags), np.array([curve.bits for curve in same], dtype=float), text)


def _context(comparison: Comparison, part: Block) -> Iterator[Drawing]:
    where = f"{part.title}: " if part.title else ""
    arms = [(arm_label(comparison, part, arm), arm) for arm in part.arms]
    if lost := {label: curve for label, arm in arms if (curve := truncated(comparison, arm))}:
        alt = f"{where}bits per byte of every arm against the number of bytes given, and the loss against all of them"
        yield Drawing(f"truncation{part.slug}", "context", alt, TRUNCATION, truncation_figure(lost, part.title))
    if read := {label: one for label, arm in arms if (one := influenced(comparison, arm))}:
        alt = f"{where}influence of one byte on the predictions of every arm, against its lag"
        yield Drawing(f"influence{part.slug}", "context", alt, INFLUENCE, influence_figure(read, part.title))


@dataclass(frozen=True)
class Change:
    """The memory of an arm before and after training, its runs stacked, and the exponent of its power law.

    before_outputs, after_outputs: state of every run that recorded its predictions, with "saturation".
    """

    arm: ArmResult
    kind: str
    exponent: float
    before: Memory
    after: Memory
    before_outputs: Sequence[Mapping[str, Any]]
    after_outputs: Sequence[Mapping[str, Any]]

    @property
    def has_kernels(self) -> bool:
        """True if kernels are known at both times."""
        return self.before.has_kernels and self.after.has_kernels

    @property
    def has_half_lives(self) -> bool:
        """True if half-lives are known at both times."""
        return self.before.has_half_lives and self.after.has_half_lives

    @property
    def slope_range(self) -> tuple[float, float] | None:
        """The lags over which kernels are compared by their slope; None where that cannot be."""
        both = {slope_range(memory.lags) for memory in (self.before, self.after)}
        return both.pop() if len(both) == 1 else None


def change_of(comparison: Comparison, arm: ArmResult) -> Change:
    """The memory of an arm with a finished run."""
    runs = comparison.study.finished(arm.name)
    told = [run for run in runs if run.first.get("saturation") and run.last.get("saturation")]
    return Change(
        arm=arm,
        kind=str(runs[0].config["model"].get("kind", "")),
        exponent=exponent_of(comparison.study.spec["arms"][arm.name]),
        before=memory_of([run.first for run in runs]),
        after=memory_of([run.last for run in runs]),
        before_outputs=[run.first for run in told],
        after_outputs=[run.last for run in told],
    )


def exponent_of(options: Mapping[str, Any]) -> float:
    """The exponent that an arm's kernel is compared with: beta, and half of it where its target is correlation."""
    beta = float(options.get("beta") or 1.15)
    return beta / 2 if options.get("target") == "correlation" else beta


def _memory(comparison: Comparison, part: Block) -> Iterator[Drawing]:
    where = f"{part.title}: " if part.title else ""
    arms = [change_of(comparison, arm) for arm in part.arms if arm.seeds]
    for kind, draw, known, alt, caption in (
        ("kernels", kernel_figure, [arm for arm in arms if arm.has_kernels], "kernels over lag", KERNELS),
        (
            "half-lives",
            half_life_figure,
            [arm for arm in arms if arm.has_half_lives],
            "half-lives by block",
            HALF_LIVES,
        ),
    ):
        if known:
            panels = [Panel(comparison.short(one.arm.name), one.before, one.after, one.exponent) for one in known]
            text = f"{where}{alt} of every arm, before training and after"
            yield Drawing(f"{kind}{part.slug}", "memory", text, caption, draw(panels, part.title))


# The three conditions of the published study

CONDITIONS = (("log-spaced", "uniform"), ("log-spaced", "published"), ("concentrated", "published"))
OTHERWISE = ("match", "output_std", "tempering", "node_file", "node_rates")
"""An arm with one of these is no condition of the published study."""


@dataclass(frozen=True)
class DrawnCondition:
    """One condition: bits per byte by step of every run, its memory at both ends, and ln of the sum over its nodes."""

    name: str
    curves: Sequence[Curve]
    before: Memory
    after: Memory
    coherent: Callable[[ArrayLike], Floats]


def published_conditions(
    comparison: Comparison,
) -> tuple[list[ArmResult], list[DrawnCondition], float, float] | None:
    """The arms that are the three published conditions, what is drawn of them, their exponent, and the longest lag.

    They are of the block with gain none and patching `published` if that has all three, else of the first that has;
    None where no block has them.
    """
    study, best, most = comparison.study, None, (False, False, False)

    def model(arm: ArmResult) -> Mapping[str, Any]:
        return dict(study.finished(arm.name)[0].config["model"])

    def fits(arm: ArmResult, condition: tuple[str, str]) -> bool:
        options = study.spec["arms"][arm.name]
        shape = options.get("placement") or "log-spaced", options.get("projection") or "uniform"
        if not arm.seeds or shape != condition or any(options.get(name) for name in OTHERWISE):
            return False
        # At an exponent of 1 or less the published weights grow with the half-life: a control, not the condition.
        right = condition[1] == "uniform" or exponent_of(options) > 1
        return right and model(arm).get("kind", "ssm") == "ssm"

    for part in comparison.blocks:
        arms = [next((arm for arm in part.arms if fits(arm, one)), None) for one in CONDITIONS]
        known = [arm for arm in arms if arm is not None]
        if len(known) < len(CONDITIONS):
            continue
        models = [model(arm) for arm in known]
        alike = all(one.get(name) == models[0].get(name) for one in models for name in ("gain", "patching"))
        runs = [run for arm in known for run in study.finished(arm.name)]
        told = all(isinstance((run.config.get("train") or {}).get("context"), int) for run in runs)
        patching = models[0].get("patching") or {}
        published = patching.get("mode") == "published" and patching.get("size", 1) > 1
        near = True, published and models[0].get("gain") == "none", published
        if alike and told and near > most:
            best, most = known, near
    if best is None:
        return None
    context = max(run.config["train"]["context"] for run in study.finished(best[0].name))
    drawn = [_condition(comparison, arm) for arm in best]
    return best, drawn, exponent_of(study.spec["arms"][best[1].name]), context


def _condition(comparison: Comparison, arm: ArmResult) -> DrawnCondition:
    runs: list[Run] = comparison.study.finished(arm.name)

    def coherent(lags: ArrayLike) -> Floats:
        from plkernel.config.condition import from_config

        condition = from_config(runs[0].config)
        return condition.nodes.kernel().log_kernel(np.asarray(lags, dtype=float) / condition.model.patching.size)

    curves = [{row.step: row.val_bpb for row in run.evaluations} for run in runs]
    first, last = memory_of([run.first for run in runs]), memory_of([run.last for run in runs])
    return DrawnCondition(comparison.short(arm.name), curves, first, last, coherent)


def published_figure(conditions: Sequence[DrawnCondition], beta: float, max_lag: float, heading: str = "") -> "Figure":
    """Validation bits per byte against steps; kernels at initialisation beside t**-beta; half-lives of all channels.

    The first condition is the baseline. Kernels reach to `max_lag` bytes.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    lags = np.geomspace(1, max_lag, 200)
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 3.0))
        left, middle, right = figure.subplots(1, 3)
        draw_law(middle, np.array([1.0, max_lag]), beta)
        for index, one in enumerate(conditions):
            colour = line_style(index)["color"]
            _seeds_and_mean(left, one.curves, 1.0, {"color": colour}, 1.0, 0.6)
            log_kernel = one.coherent(lags)
            middle.plot(lags, np.exp(log_kernel - log_kernel[0]), color=colour, lw=1, ls=DOTTED)
            if one.before.has_kernels:
                middle.plot(one.before.lags, np.exp(one.before.log_kernels().mean(axis=0)), color=colour, lw=1.3)
            for memory, dashes in ((one.before, DOTTED), (one.after, "-")):
                if memory.has_half_lives:  # geometric means over blocks and runs
                    right.plot(np.exp(np.log(memory.half_lives).mean(axis=(0, 1))), QUANTILES, color=colour, ls=dashes)
        left.set(xlabel="steps", ylabel="validation bits per byte", title="convergence")
        middle.set(xscale="log", yscale="log", xlabel="lag t (bytes)", ylabel="k(t) / k(1)")
        middle.set_title(f"kernels at the start, t**-{beta:g}")
        right.set(xscale="log", xlabel="half-life (bytes)", ylabel="share of channels below", title="half-lives")
        for axis in (middle.xaxis, middle.yaxis, right.xaxis):
            decades(axis)
        for axes, place, words in (
            (middle, "lower left", ("sum of its nodes", "in its models")),
            (right, "lower right", ("at initialisation", "after training")),
        ):
            looks = zip(words, (DOTTED, "-"), strict=True)
            notes = [Line2D([], [], color=INK, lw=1.1, ls=dash, label=word) for word, dash in looks]  # type: ignore[arg-type]
            axes.legend(handles=notes, loc=place, fontsize=6.5, handlelength=2)
        handles = [
            Line2D([], [], color=line_style(index)["color"], lw=1.5, label=one.name)
            for index, one in enumerate(conditions)
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
        headline(figure, heading)
    return figure


# Sweeps


@dataclass(frozen=True)
class Sweep:
    """One panel: differences to the baseline by exponent and seed, in bits per byte, the best one and those expected.

    expected: exponents by name, each with the bounds of its interval, which are its own where it is exact.
    """

    name: str
    differences: Mapping[float, Mapping[int, float]]
    best: Optimum
    expected: Mapping[str, tuple[float, float, float]]


def sweep_figure(sweeps: Sequence[Sweep], columns: int | None = None) -> "Figure":
    """A panel per sweep: thin lines are seeds, points their means; bands are 95 % intervals of the exponents."""
    from matplotlib.figure import Figure

    columns = columns or len(sweeps)
    rows = -(-len(sweeps) // columns)
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 0.6 + 2.0 * rows))
        grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
        for panel, sweep in zip(grid.flat, sweeps, strict=True):
            _draw_sweep(panel, sweep)
        for panel in grid[:, 0]:
            panel.set_ylabel("bits per byte minus uniform")
        for panel in grid[-1]:
            panel.set_xlabel("exponent")
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _draw_sweep(panel: "Axes", sweep: Sweep) -> None:
    levels = np.array(sorted(sweep.differences))
    values = np.array([[*sweep.differences[level].values()] for level in levels])
    panel.plot(levels, values, color=INK, linewidth=0.5, alpha=0.4)
    panel.plot(levels, values.mean(axis=1), "o", color=INK, markersize=3, label="mean over seeds")
    grid = np.linspace(levels[0], levels[-1], 100)
    parabola = np.polyval(np.polyfit(levels, values.mean(axis=1), 2), grid)
    panel.plot(grid, parabola, color=INK, linewidth=1.2, label="parabola")
    panel.axhline(0, color=INK, linewidth=0.5, linestyle=":")
    points = [float(levels[0]), float(levels[-1]), *(at for at, _, _ in sweep.expected.values())]
    start, end = min(points) - 0.05, max(points) + 0.05
    best = {"best for the model": (sweep.best.at, sweep.best.low, sweep.best.high)}
    colours = (COLOURS[1], COLOURS[2], COLOURS[0], COLOURS[3])
    for colour, (name, (at, low, high)) in zip(colours, {**best, **sweep.expected}.items(), strict=False):
        if max(low, start) < min(high, end):
            panel.axvspan(max(low, start), min(high, end), color=colour, alpha=0.15, linewidth=0)
        inside = [at, at] if start <= at <= end else []
        across = panel.get_xaxis_transform()
        panel.plot(inside, [0, 1][: len(inside)], color=colour, linewidth=1.2, transform=across, label=name)
    panel.set_xlim(start, end)
    panel.set_title(sweep.name)
