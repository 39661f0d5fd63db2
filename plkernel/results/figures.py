"""The figures of a study: the whole, verdicts, differences, curves, context, memory.

matplotlib is imported where it draws.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from plkernel.analysis.nodes import BETA
from plkernel.context.curve_figures import (
    Curves,
    beyond_figure,
    influence_figure,
    recall_figure,
    truncation_figure,
)
from plkernel.decays.memory import SLOPE_LAGS, memory_of, slope_range
from plkernel.decays.memory_figures import Panel, half_life_figure, kernel_figure
from plkernel.results.answer import words_of
from plkernel.results.comparison import ArmBlock, ArmResult, Comparison
from plkernel.results.forest import difference_rows, forest, hypothesis_row
from plkernel.results.longer import beyond_lines, recall_lines
from plkernel.results.loss_curves import difference_figure, difference_limits, loss_figure
from plkernel.results.picture import overview_figure
from plkernel.results.rate_report import FIGURE_CAPTION, rate_figure
from plkernel.results.statistics import difference_curves
from plkernel.results.wording import listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {
    "overview": (
        "answer",
        (
            "The study in one picture: information in the text with its interval, the floor of a"
            " shuffled text (dotted) and the power law (broad, grey) up to the last lag that the"
            " verdict counts (dashed); kernels at initialisation beside that law; the loss of seeds"
            " (thin) and their mean; differences with 95 % t intervals, not corrected for their"
            " number; an arrow: the interval goes on outside."
        ),
    ),
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
    "rates": ("rates", FIGURE_CAPTION),
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
    "recall": (
        "context",
        (
            "Recall: share of right answers in sequences as long as in training and longer, with"
            " the pairs of the corpus and with a pair for every four bytes; below, in the longest,"
            " by the bytes between a pair and its query, and by the number of the pair. With 95 % t"
            " intervals over seeds."
        ),
    ),
    "beyond": (
        "context",
        (
            "Beyond the length of training: bits by the bytes before, in long windows of test text,"
            " and at the same bytes what it costs to have read on instead of beginning anew every"
            " half context. With 95 % t intervals over seeds."
        ),
    ),
    "kernels": (
        "memory",
        (
            "Kernels: weight of an input t bytes later, 1 at lag 1, of blocks (thin) and their"
            " geometric mean (thick). Grey: the arm's power law. Slopes x of t**-x: over lags"
            f" {SLOPE_LAGS[0]:g} to {SLOPE_LAGS[1]:g}, or to the longest, before to after training."
        ),
    ),
    "half-lives": (
        "memory",
        (
            "Half-lives of channels by block, at initialisation (left) and after training (right):"
            " median, middle half (box), shortest to longest (line)."
        ),
    ),
}
"""Section of the page and caption of each kind of figure."""
CONTEXT = {"truncation": ("given", "bpb", "floor"), "influence": ("lags", "bits", "information")}
"""Keys of the positions, values and law of curves over the context in a result."""


class Drawing(NamedTuple):
    """A figure of the page.

    name     of its files
    section  of the page
    block    the block that it shows, empty if all
    """

    name: str
    section: str
    caption: str
    block: str
    figure: "Figure"


def _drawing(kind: str, figure: "Figure", block: ArmBlock | None = None, note: str = "") -> Drawing:
    """A figure of a kind, with its place and caption: of one block, or of the whole study.

    note: what else the caption says.
    """
    section, caption = KINDS[kind]
    caption += note
    if block is None:
        return Drawing(kind, section, caption, "", figure)
    return Drawing(f"{kind}{block.slug}", section, caption, block.title, figure)


def drawings(comparison: Comparison) -> Iterator[Drawing]:
    """Draw every figure of a study; the names of those of a block end in the block's levels."""
    yield from _of_study(comparison)
    limits = _shared_limits(comparison)
    for block in comparison.blocks:
        yield from _of_block(comparison, block, limits)


def _of_study(comparison: Comparison) -> Iterator[Drawing]:
    """Draw every figure of the whole study for which there are data."""
    kernels = {arm.name: memory_panel(comparison, arm).before for arm in comparison.arms}
    whole = overview_figure(comparison, kernels, words_of(comparison))
    if whole:
        yield _drawing("overview", whole)
    label = f"difference in {comparison.unit}, below 0 is better"
    if comparison.declared:
        judged = [one for one in comparison.declared.outcomes if one.judgement.n]
        if judged:
            rows = [hypothesis_row(outcome) for outcome in judged]
            yield _drawing("verdicts", forest({"": rows}, label))
    over_rates = rate_figure(comparison.curves, comparison.unit)
    if over_rates:
        yield _drawing("rates", over_rates)
    if comparison.differences:
        yield _drawing("forest", forest(difference_rows(comparison), label))


def _shared_limits(comparison: Comparison) -> tuple[float, float] | None:
    """Limits that hold the difference curves of every block; None where no arm has any."""
    of_blocks = [_paired_curves(comparison, block) for block in comparison.blocks]
    limits = [difference_limits(paired) for paired in of_blocks if paired]
    if not limits:
        return None
    return min(low for low, _ in limits), max(high for _, high in limits)


def _of_block(
    comparison: Comparison, block: ArmBlock, limits: tuple[float, float] | None
) -> Iterator[Drawing]:
    """Draw every figure of a block for which there are data; `limits` of difference curves."""
    title = block.title
    unit = comparison.unit
    losses = loss_figure(_loss_curves(comparison, block), title, unit)
    yield _drawing("convergence", losses, block)
    paired = _paired_curves(comparison, block)
    if paired:
        yield _drawing("difference", difference_figure(paired, title, limits, unit), block)
    truncation = _context_curves(comparison, block, "truncation")
    if truncation:
        yield _drawing("truncation", truncation_figure(truncation, title), block)
    influence = _context_curves(comparison, block, "influence")
    if influence:
        yield _drawing("influence", influence_figure(influence, title), block)
    recall = recall_lines(comparison, block)
    if recall:
        yield _drawing("recall", recall_figure(recall, title), block)
    beyond = beyond_lines(comparison, block)
    if beyond:
        yield _drawing("beyond", beyond_figure(beyond, title), block)
    yield from _of_memory(comparison, block)


def _of_memory(comparison: Comparison, block: ArmBlock) -> Iterator[Drawing]:
    """Draw the kernels and the half-lives of a block's arms, before training and after."""
    panels = [memory_panel(comparison, arm) for arm in block.arms if arm.seeds]
    note = _stated_at(comparison, block)
    kernels = [_with_slopes(panel) for panel in panels if _has_kernels(panel)]
    if kernels:
        yield _drawing("kernels", kernel_figure(kernels, block.title), block, note)
    half_lives = [panel for panel in panels if _has_half_lives(panel)]
    if half_lives:
        yield _drawing("half-lives", half_life_figure(half_lives, block.title), block, note)


def _stated_at(comparison: Comparison, block: ArmBlock) -> str:
    """Sentences on the arms whose decays depend on the position, and where they are stated."""
    arms: dict[float, list[str]] = {}
    for arm in block.arms:
        lengths = {run.scaling_length for run in comparison.study.finished(arm.name)}
        for length in lengths:
            if length is not None:
                arms.setdefault(length, []).append(comparison.short(arm.name))
    return "".join(
        f" Decays of {listed(names)} slow down with the position: those at byte {length:g}."
        for length, names in arms.items()
    )


def _has_kernels(panel: Panel) -> bool:
    return bool(panel.before.kernels.size and panel.after.kernels.size)


def _has_half_lives(panel: Panel) -> bool:
    return bool(panel.before.half_lives.size and panel.after.half_lives.size)


def _loss_curves(comparison: Comparison, block: ArmBlock) -> dict[str, list[dict[int, float]]]:
    """Curves of the seeds of every arm, by its label."""
    return {
        comparison.label(arm): list(comparison.study.curves(arm.name).values())
        for arm in block.arms
    }


def _paired_curves(comparison: Comparison, block: ArmBlock) -> dict[str, list[dict[int, float]]]:
    """Difference curves of the seeds of every arm that has any, by the title of a panel."""
    study = comparison.study
    paired = {}
    for arm in block.arms:
        if arm.against and arm.differences:
            curves = difference_curves(study.curves(arm.name), study.curves(arm.against))
            title = f"{comparison.label(arm)}\nminus {comparison.short(arm.against)}"
            paired[title] = list(curves.values())
    return paired


def _context_curves(comparison: Comparison, block: ArmBlock, kind: str) -> dict[str, Curves]:
    """Truncation or influence curves of every arm that has them, by its label."""
    found = {}
    for arm in block.arms:
        curves = context_of(comparison, arm, kind)
        if curves:
            found[comparison.label(arm)] = curves
    return found


def context_of(comparison: Comparison, arm: ArmResult, kind: str) -> Curves | None:
    """Truncation or influence curves of an arm's finished runs; None without any.

    Runs with a value that is not finite, or with other positions than the first, are left out.
    """
    position_key, value_key, law_key = CONTEXT[kind]
    found = [getattr(run.result, kind) for run in comparison.study.finished(arm.name)]
    finite = [curve for curve in found if curve and None not in getattr(curve, value_key)]
    if not finite:
        return None
    positions = getattr(finite[0], position_key)
    alike = [curve for curve in finite if getattr(curve, position_key) == positions]
    bits = [getattr(curve, value_key) for curve in alike]
    laws = [getattr(curve, law_key) for curve in alike if getattr(curve, law_key)]
    best = None
    if laws:
        best = tuple(np.array(laws, dtype=float).mean(axis=0).tolist())
    return Curves(tuple(positions), np.array(bits, dtype=float), best)


def memory_panel(comparison: Comparison, arm: ArmResult) -> Panel:
    """Memory of an arm's finished runs before training and after, and its power law."""
    runs = comparison.study.finished(arm.name)
    return Panel(
        title=comparison.short(arm.name),
        before=memory_of([run.first for run in runs]),
        after=memory_of([run.last for run in runs]),
        exponent=_exponent(comparison, arm),
    )


def _exponent(comparison: Comparison, arm: ArmResult) -> float:
    """The exponent of the kernel that an arm aims at: beta, or beta / 2 for a correlation."""
    options = comparison.study.spec["arms"][arm.name]
    beta = float(options.get("beta") or BETA)
    return beta / 2 if options.get("target") == "correlation" else beta


def _with_slopes(panel: Panel) -> Panel:
    """A panel titled also with the slopes x of t**-x before and after training.

    They are means over blocks and seeds.
    """
    states = (panel.before, panel.after)
    if any(slope_range(memory.lags) is None for memory in states):
        return panel
    slopes = " to ".join(f"{memory.exponents().mean():.2f}" for memory in states)
    return panel._replace(title=f"{panel.title}\nslope {slopes}")
