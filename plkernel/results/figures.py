"""The figures of a study: verdicts, differences, curves, context, memory. matplotlib is imported
where it draws.
"""

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from plkernel.context.curve_figures import Curves, influence_figure, truncation_figure
from plkernel.decays.memory import SLOPE_LAGS, memory_of, slope_range
from plkernel.decays.memory_figures import Panel, half_life_figure, kernel_figure
from plkernel.models import NOT_CAUSAL
from plkernel.results.comparison import ArmResult, Block, Comparison
from plkernel.results.registration import Outcome
from plkernel.results.statistics import (
    Curve,
    Estimate,
    Judgement,
    difference_curves,
    pointwise_band,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BESIDE, FAR = 3.0, 8.0
"""Intervals are cut at BESIDE times the largest difference of a seed; rows FAR times beyond the
median are arrows.
"""
KINDS = {
    "verdicts": (
        "decided",
        (
            "Hypotheses: seeds, mean (filled: confirmed), the table's interval, where the claim"
            " holds (shaded)."
        ),
    ),
    "forest": (
        "differences",
        (
            "Differences: seeds, mean (filled: significant after Holm's correction), 95 % t"
            " interval; arrow: outside."
        ),
    ),
    "convergence": (
        "curves",
        "Validation loss against training bytes read: seeds (thin) and their mean (thick).",
    ),
    "difference": (
        "curves",
        "Difference paired by seed, with the 95 % t interval at each position.",
    ),
    "truncation": (
        "context",
        (
            "Bits per byte predicted from the last 1, 2, 4 .. bytes only, and the loss against the"
            " whole context, with 95 % t intervals. Grey: the best possible, if the source is"
            " known."
        ),
    ),
    "influence": (
        "context",
        (
            "Influence: change of a prediction (Kullback-Leibler divergence, bits) when the byte d"
            " before it is another, with 95 % t intervals. Grey: I(d) of a known law."
        ),
    ),
    "kernels": (
        "memory",
        (
            "Kernels: weight of an input t bytes later, 1 at lag 1, of blocks (thin) and their"
            " geometric mean (thick). Grey: the arm's power law. Slopes x of t**-x: over lags"
            f" {SLOPE_LAGS[0]:g} to {SLOPE_LAGS[1]:g}, before to after training."
        ),
    ),
    "half-lives": (
        "memory",
        "Half-lives of channels by block: median, middle half (box), shortest to longest (line).",
    ),
}
"""Section of the page and caption of each kind of figure."""
CONTEXT = {"truncation": ("given", "bpb", "floor"), "influence": ("lags", "bits", "information")}
"""Keys of the positions, values and law of curves over the context in a result."""

Arms = Mapping[str, Sequence[Curve]]
"""The curves of every arm's seeds, keyed by bytes read."""


class Drawing(NamedTuple):
    """A figure: the name of its files, the section of the page it belongs to, its caption, and the
    block it shows.
    """

    name: str
    section: str
    caption: str
    block: str
    figure: "Figure"


def drawings(comparison: Comparison) -> Iterator[Drawing]:
    """Draw every figure of a study; the names of those of a block end in the block's levels."""
    one = comparison.declared
    if one and (judged := [outcome for outcome in one.outcomes if outcome.judgement.n]):
        yield Drawing(
            "verdicts", *KINDS["verdicts"], "", forest({"": list(map(_hypothesis, judged))})
        )
    if comparison.differences:
        groups: dict[str, list[ForestRow]] = {part.title: [] for part in comparison.blocks}
        for part in comparison.blocks:
            for arm in (arm for arm in part.arms if arm.against is not None):
                name, given = (
                    label(comparison, arm, paired=True),
                    comparison.differences.get(arm.name),
                )
                seeds = list(given.per_seed.values()) if given else []
                groups[part.title].append(
                    ForestRow(name, given, seeds, arm.name in comparison.surviving)
                )
        yield Drawing("forest", *KINDS["forest"], "", forest(groups))
    blocks = [
        Drawing(f"{kind}{part.slug}", *KINDS[kind], part.title, draw(data, part.title))
        for part in comparison.blocks
        for kind, (draw, data) in _of_block(comparison, part).items()
        if data
    ]
    shared = [one.figure.axes[0] for one in blocks if one.name.startswith("difference")]
    lows, highs = zip(*(axes.get_ylim() for axes in shared), strict=True) if shared else ((), ())
    for axes in shared:
        axes.set_ylim(min(lows), max(highs))
    yield from blocks


def _of_block(
    comparison: Comparison, part: Block
) -> dict[str, tuple[Callable[[Any, str], "Figure"], Any]]:
    """Function that draws each kind of figure, and its data, empty where there are none."""
    curves = {arm.name: comparison.study.curves(arm.name) for arm in comparison.arms}
    arms = {label(comparison, arm): arm for arm in part.arms}
    context, paired, panels = {}, {}, []
    for kind in CONTEXT:
        known = ((name, context_of(comparison, arm, kind)) for name, arm in arms.items())
        context[kind] = {name: one for name, one in known if one}
    for name, arm in arms.items():
        if arm.against and arm.differences:
            both = difference_curves(curves[arm.name], curves[arm.against])
            paired[f"{name}\nminus {comparison.short(arm.against)}"] = list(both.values())
    for arm in filter(lambda arm: arm.seeds, part.arms):
        options = comparison.study.spec["arms"][arm.name]
        exponent = float(options.get("beta") or 1.15) / (
            2 if options.get("target") == "correlation" else 1
        )
        runs = comparison.study.finished(arm.name)
        before, after = (
            memory_of([run.first for run in runs]),
            memory_of([run.last for run in runs]),
        )
        panels.append(Panel(comparison.short(arm.name), before, after, exponent))
    kernels = [one for one in panels if one.before.kernels.size and one.after.kernels.size]
    return {
        "convergence": (
            convergence,
            {name: [*curves[arm.name].values()] for name, arm in arms.items()},
        ),
        "difference": (differences, paired),
        "truncation": (truncation_figure, context["truncation"]),
        "influence": (influence_figure, context["influence"]),
        "kernels": (kernel_figure, [_with_slopes(one) for one in kernels]),
        "half-lives": (
            half_life_figure,
            [one for one in panels if one.before.half_lives.size and one.after.half_lives.size],
        ),
    }


def label(comparison: Comparison, arm: ArmResult, paired: bool = False) -> str:
    """Name of an arm in its block, marked where it leaks; of a difference also the other arm,
    unless all have one.
    """
    minus = (
        f" minus {comparison.short(str(arm.against))}"
        if paired and not one_baseline(comparison)
        else ""
    )
    leaks = comparison.leaks(arm) if paired else not arm.causal
    return f"{comparison.short(arm.name)}{minus}{f' ({NOT_CAUSAL})' if leaks else ''}"


def one_baseline(comparison: Comparison) -> str | None:
    """Name of the arm that all others of their block are compared with; None if they are
    several.
    """
    names = {comparison.short(base.name) for base in comparison.baselines}
    return names.pop() if len(names) == 1 else None


def _with_slopes(panel: Panel) -> Panel:
    """A panel titled also with the slopes x of t**-x before and after training, means over blocks
    and seeds.
    """
    states = panel.before, panel.after
    if any(slope_range(one.lags) is None for one in states):
        return panel
    slopes = " to ".join(f"{one.exponents().mean():.2f}" for one in states)
    return panel._replace(title=f"{panel.title}\nslope {slopes}")


def context_of(comparison: Comparison, arm: ArmResult, kind: str) -> Curves | None:
    """Truncation or influence curves of an arm's finished runs, at the positions of the first; None
    without any.
    """
    at, values, law = CONTEXT[kind]
    curves = [getattr(run.result, kind) for run in comparison.study.finished(arm.name)]
    known = [curve for curve in curves if curve and None not in getattr(curve, values)]
    same = [curve for curve in known if getattr(curve, at) == getattr(known[0], at)]
    if not same:
        return None
    laws = [getattr(curve, law) for curve in same if getattr(curve, law)]
    best = tuple(np.array(laws, dtype=float).mean(axis=0).tolist()) if laws else None
    return Curves(
        tuple(getattr(same[0], at)),
        np.array([getattr(curve, values) for curve in same], float),
        best,
    )


# Differences at a glance


class ForestRow(NamedTuple):
    """One difference, None where there is none; filled where it holds; `region` is shaded."""

    label: str
    difference: Estimate | Judgement | None
    per_seed: Sequence[float]
    holds: bool
    region: tuple[float, float] | None = None


def _hypothesis(outcome: Outcome) -> ForestRow:
    one, judged, margin = outcome.hypothesis, outcome.judgement, outcome.hypothesis.margin
    region = {
        "lower": (-math.inf, -margin),
        "higher": (margin, math.inf),
        "equal": (-margin, margin),
    }[one.claim]
    seeds = list(outcome.per_seed.values())
    return ForestRow(
        textwrap.fill(one.name, 44), judged, seeds, judged.verdict == "confirmed", region
    )


def forest(groups: Mapping[str, Sequence[ForestRow]]) -> "Figure":
    """Draw a row per difference, under headings: strokes are seeds, the circle their mean, the line
    its interval.
    """
    from matplotlib.figure import Figure

    rows = [row for title, of in groups.items() for row in ([title] if title else []) + list(of)]
    known = [row for row in rows if isinstance(row, ForestRow) and row.difference]
    typical = median(_most(row.per_seed) for row in known) if len(known) > 2 else math.inf
    near = [row for row in known if _most(row.per_seed) <= FAR * typical or not typical]
    bounds = [
        edge for row in near if row.difference for edge in (row.difference.low, row.difference.high)
    ]
    reach = _reach([value for row in near for value in row.per_seed], bounds)
    tall = 0.19 * max(1 + row.label.count("\n") / 2 for row in rows if isinstance(row, ForestRow))
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, tall * len(rows) + 0.75))
        axes = figure.subplots()
        axes.axvline(0.0, color=INK, lw=0.6)
        for place, row in enumerate(rows):
            if isinstance(row, str):
                axes.text(
                    0.0,
                    place,
                    row,
                    transform=axes.get_yaxis_transform(),
                    va="center",
                    fontweight="bold",
                )
                continue
            _, one, per_seed, holds, region = row
            if region:
                start, end = np.clip(region, -reach, reach)
                axes.barh(
                    place, end - start, 0.8, left=start, color=GREY, alpha=0.25, lw=0, zorder=0.5
                )
            if one is None or not math.isfinite(one.mean):
                text = " no common seed" if one is None else " not finite"
                axes.text(0.0, place, text, va="center", fontsize=6.5)
                continue
            colour = COLOURS[0] if one.mean < 0 else COLOURS[1]
            axes.plot(
                per_seed, [place] * len(per_seed), "|", color=colour, ms=4, alpha=0.55, mew=0.7
            )
            axes.plot(
                [one.low, one.high], [place, place], color=colour, lw=1.2, solid_capstyle="butt"
            )
            look: dict[str, Any] = {
                "color": colour,
                "mfc": colour if holds else "none",
                "clip_on": False,
            }
            mark = "<" if one.mean < -reach else ">" if one.mean > reach else "o"
            axes.plot([np.clip(one.mean, -reach, reach)], [place], mark, ms=4.2, mew=1.0, **look)
        axes.set_yticks(
            range(len(rows)), ["" if isinstance(row, str) else row.label for row in rows]
        )
        axes.set(xlim=(-reach, reach), ylim=(len(rows) - 0.4, -0.6))
        axes.set_xlabel("difference in bits per byte, below 0 is better")
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x", lw=0.3, alpha=0.5)
    return figure


def _reach(seeds: Sequence[float], bounds: Sequence[float]) -> float:
    """Half a symmetric frame: room for every seed, and for bounds up to BESIDE times as far."""
    return 1.07 * min(max(_most(seeds), _most(bounds)), BESIDE * _most(seeds)) or 1e-3


def _most(values: Sequence[float]) -> float:
    return max((abs(x) for x in values if math.isfinite(x)), default=0.0)


# Curves


def _last(arms: Arms) -> int:
    return max((at for curves in arms.values() for curve in curves for at in curve), default=1)


def _draw(
    axes: "Axes",
    curves: Sequence[Curve],
    look: Any,
    unit: float,
    thin: float = 0.6,
    start: float = 0.0,
) -> None:
    """Draw each curve from `start` on as a thin line of opacity `thin`, and their mean thick."""
    for curve in curves:
        at = [x for x in sorted(curve) if x >= start]
        axes.plot(
            [x / unit for x in at], [curve[x] for x in at], color=look["color"], lw=0.5, alpha=thin
        )
    if curves:
        mean = pointwise_band(curves)
        shown = mean.at >= start
        axes.plot(mean.at[shown] / unit, mean.mean[shown], lw=1.5, **look)


def convergence(arms: Arms, heading: str = "") -> "Figure":
    """Draw validation bits per byte against bytes read: left the whole run on a log scale, right
    its second half.
    """
    from matplotlib.figure import Figure

    last = _last(arms)
    unit, unit_name = byte_unit(last)
    thin = min(0.6, 12 / max(1, sum(map(len, arms.values()))))  # many lines would hide the means
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 2.8 + 0.15 * -(-len(arms) // 3)))
        whole, late = figure.subplots(1, 2)
        for axes, start in ((whole, 1), (late, last / 2)):
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
    """Draw difference curves against bytes read, a panel per arm, with a band for each point.

    The frame holds the differences after the first tenth of the run, where curves cross steeply, of
    all arms but those whose differences are FAR times as large as the median's.
    """
    from matplotlib.figure import Figure

    last, columns = _last(arms), 2 if len(arms) == 4 else min(3, len(arms))
    unit, unit_name = byte_unit(last)
    rows, spans = -(-len(arms) // columns), list[list[float]]()
    with style():
        figure = Figure(
            figsize=(PAGE_WIDTH if columns > 1 else 1.3 * COLUMN_WIDTH, 2.2 * rows + 0.5)
        )
        grid = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
        for axes in grid[len(arms) :]:
            axes.set_visible(False)
        for index, (axes, (title, curves)) in enumerate(
            zip(grid, arms.items(), strict=False), start=1
        ):
            look = line_style(index)
            band = pointwise_band(curves)
            axes.fill_between(
                band.at / unit, band.low, band.high, color=look["color"], alpha=0.2, lw=0
            )
            seeds = [value for curve in curves for at, value in curve.items() if at >= last / 10]
            bounds = [*band.low[band.at >= last / 10], *band.high[band.at >= last / 10]]
            reach = _reach(seeds, bounds)
            known = (value for value in (0.0, *seeds, *bounds) if math.isfinite(value))
            spans.append([float(np.clip(value, -reach, reach)) for value in known])
            axes.axhline(0.0, color=INK, lw=0.6)
            _draw(axes, curves, look, unit)
            axes.set_title(
                title, fontsize=8.0 * min(1.0, max(0.6, 34 / max(map(len, title.split("\n")))))
            )
            axes.xaxis.set_tick_params(labelbottom=index + columns > len(arms))
        near = [span for span in spans if _most(span) <= FAR * median(map(_most, spans))]
        low, high = min(map(min, near)), max(map(max, near))
        room = 0.07 * (high - low) or 1e-3
        grid[0].set_ylim(low - room, high + room)
        figure.supxlabel(f"training bytes read ({unit_name})", fontsize=8)
        figure.supylabel("difference in bits per byte, below 0 is better", fontsize=8)
        headline(figure, heading)
    return figure
