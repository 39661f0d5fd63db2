"""The figures of a study: convergence, differences during training, and of many arms all differences at a glance."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from plkernel.analysis.statistics.bands import difference_curves
from plkernel.memory.figures import Panel, half_life_figure, influence_figure, kernel_figure, truncation_figure
from plkernel.models.words import NOT_CAUSAL
from plkernel.records.study import Run
from plkernel.results.comparison import (
    CONFIDENCE,
    ArmResult,
    Block,
    Comparison,
    blocks,
    short_name,
)
from plkernel.results.memory import Change, changes, influenced, truncated
from plkernel.results.published import draw_published, reading
from plkernel.results.sentences import gram

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOREST_FROM = 7
"""From so many compared arms on one figure shows all differences."""
PANELS = 12
"""At most so many panels share a figure."""
ROWS = 42
"""At most about so many rows, unless a single block has more: what a printed page holds."""


def drawings(comparison: Comparison) -> "dict[str, Figure]":
    """Every figure by the name of its files; those of a block end in the block's levels."""
    found = dict(_forests(comparison)) if len(comparison.others) >= FOREST_FROM else {}
    for part in blocks(comparison):
        found |= dict(_curves(comparison, part))
    return found


def _panels(part: Block) -> dict[str, list[ArmResult]]:
    """The arms in each figure of differences of a block, by the figure's name."""
    arms = [arm for arm in part.others if arm.differences]
    parts = [arms[start : start + PANELS] for start in range(0, len(arms), PANELS)]
    return {f"difference{part.slug}{f'-part{at}' if at > 1 else ''}": some for at, some in enumerate(parts, start=1)}


def _curves(comparison: Comparison, part: Block) -> "Iterator[tuple[str, Figure]]":
    from plkernel.analysis.figures.curves import convergence, differences

    study, heading = comparison.study, _heading(part)
    curves = {arm.name: study.curves(arm.name) for arm in comparison.arms}
    per_step = _bytes_per_step([run for arm in part.arms for run in study.finished(arm.name)])
    shown = {arm_label(comparison, part, arm): list(curves[arm.name].values()) for arm in part.arms}
    yield f"convergence{part.slug}", convergence(shown, per_step, heading, reference_losses(comparison, part))
    for name, arms in _panels(part).items():
        paired = {
            arm_label(comparison, part, arm): list(
                difference_curves(curves[arm.name], curves[str(arm.against)]).values()
            )
            for arm in arms
        }
        bases = {arm_label(comparison, part, arm): short_name(study, str(arm.against)) for arm in arms}
        yield name, differences(paired, bases, per_step, heading, CONFIDENCE)


def _forests(comparison: Comparison) -> "Iterator[tuple[str, Figure]]":
    from plkernel.analysis.figures.forest import ForestRow, forest, forest_limits

    groups: dict[str, list[ForestRow]] = {}
    for part in blocks(comparison):
        mark = f" ({NOT_CAUSAL})" if part.title and part.leaks else ""
        rows = [_forest_row(comparison, part, arm) for arm in part.others]
        groups |= {f"{part.title}{mark}": rows} if rows else {}
    limits = forest_limits(groups)
    heading = "" if comparison.causal or len(groups) > 1 else NOT_CAUSAL
    for at, some in enumerate(_pages(groups), start=1):
        name = f"forest{f'-part{at}' if at > 1 else ''}"
        yield name, forest({title: groups[title] for title in some}, limits, heading)


def _forest_row(comparison: Comparison, part: Block, arm: ArmResult):  # type: ignore[no-untyped-def]
    from plkernel.analysis.figures.forest import ForestRow

    evidence, label = comparison.evidence.get(arm.name), arm_label(comparison, part, arm)
    if len({one.against for one in part.others}) > 1:
        label = f"{label} minus {short_name(comparison.study, str(arm.against))}"
    return ForestRow(label, evidence.difference if evidence else None, evidence is not None and evidence.survives)


def _pages(groups: dict[str, list]) -> Iterator[list[str]]:  # type: ignore[type-arg]
    """Headings in as many figures as keep each to ROWS rows."""
    some: list[str] = []
    for title, rows in groups.items():
        if some and sum(len(groups[one]) + 1 for one in some) + len(rows) + 1 > ROWS:
            yield some
            some = []
        some.append(title)
    yield some


def reference_losses(comparison: Comparison, part: Block) -> dict[str, float]:
    """The validation loss of n-grams by name, where all arms of the block that are likelihoods share it."""
    found = [comparison.reference(arm) for arm in part.arms if arm.causal and arm.seeds]
    first = found[0] if found else None
    if first is None or any(one is not first for one in found):
        return {}
    return dict(zip(map(gram, first.orders), first.val_bpb, strict=True))


def _heading(part: Block) -> str:
    """What all panels share: the block, and that none of it is a likelihood."""
    return ": ".join(filter(None, (part.title, NOT_CAUSAL if part.leaks else "")))


def arm_label(comparison: Comparison, part: Block, arm: ArmResult) -> str:
    """The name of an arm in its block; where only some arms are not causal (no heading can say it), those say so."""
    name = short_name(comparison.study, arm.name)
    return name if arm.causal or part.leaks else f"{name} ({NOT_CAUSAL})"


def _bytes_per_step(runs: Sequence[Run]) -> float | None:
    """Training bytes per step, where all runs share one figure."""
    ratios = {run.result.bytes / run.result.steps for run in runs if run.result and run.result.steps}
    return ratios.pop() if len(ratios) == 1 else None


KERNELS, HALF_LIVES, PUBLISHED_FIGURES = "kernels", "half-lives", "published-figures"
TRUNCATION, INFLUENCE = "truncation", "influence"
MOST_PANELS = 8


def memory_drawings(comparison: Comparison) -> "dict[str, Figure]":
    """Figures by name, "kernels-none-bytes" for a block of gain none and patching bytes; none where rows lack them.

    Each shows the baseline and up to seven other arms of its block.
    """
    found = {name: drawn for block in blocks(comparison) for name, drawn in _of_block(comparison, block)}
    read = reading(comparison)
    if read is not None:
        found[PUBLISHED_FIGURES] = draw_published(comparison, read)
    return found


def figure_name(kind: str, block: Block) -> str:
    """The name of a block's figure."""
    return f"{kind}{block.slug}"


def _of_block(comparison: Comparison, block: Block) -> "Iterator[tuple[str, Figure]]":
    curves = {
        arm_label(comparison, block, arm): curve
        for arm in block.arms
        if (curve := truncated(comparison, arm)) is not None
    }
    if curves:
        yield figure_name(TRUNCATION, block), truncation_figure(curves, block.title, CONFIDENCE)
    read = {
        arm_label(comparison, block, arm): found
        for arm in block.arms
        if (found := influenced(comparison, arm)) is not None
    }
    if read:
        yield figure_name(INFLUENCE, block), influence_figure(read, block.title, CONFIDENCE)
    arms = changes(comparison, block)
    for kind, draw in ((KERNELS, kernel_figure), (HALF_LIVES, half_life_figure)):
        known = [arm for arm in arms if _has(arm, kind)]
        if known:
            panels = [Panel(arm.name, arm.before, arm.after, arm.exponent) for arm in known[:MOST_PANELS]]
            yield figure_name(kind, block), draw(panels, block.title)


def _has(change: Change, kind: str) -> bool:
    return change.has_kernels if kind == KERNELS else change.has_half_lives
