"""The figures of a study: convergence, differences during training, and of many arms all differences at a glance."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from plkernel.analysis.statistics.bands import difference_curves
from plkernel.models.words import NOT_CAUSAL
from plkernel.records.study import Run
from plkernel.report.blocks import Block, blocks, compared_with, short_name
from plkernel.report.comparison import CONFIDENCE, Arm, Comparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOREST_FROM = 7
"""From so many compared arms on one figure shows all differences."""
PANELS = 12
"""At most so many panels share a figure."""
ROWS = 42
"""At most about so many rows, unless a single block has more: what a printed page holds."""


class Drawing(NamedTuple):
    """A figure, what it shows for those who cannot see it, and its caption."""

    figure: "Figure"
    description: str
    caption: str


def drawings(comparison: Comparison) -> dict[str, Drawing]:
    """Every figure by the name of its files; those of a block end in the block's levels."""
    found = dict(_forests(comparison)) if len(comparison.others) >= FOREST_FROM else {}
    for part in blocks(comparison):
        found |= dict(_curves(comparison, part))
    return found


def curve_names(part: Block) -> list[str]:
    """The names of a block's figures of curves, in the order of the page."""
    return [f"convergence{part.slug}", *_panels(part)]


def _panels(part: Block) -> dict[str, list[Arm]]:
    """The arms in each figure of differences of a block, by the figure's name."""
    arms = [arm for arm in part.others if arm.differences]
    parts = [arms[start : start + PANELS] for start in range(0, len(arms), PANELS)]
    return {f"difference{part.slug}{f'-part{at}' if at > 1 else ''}": some for at, some in enumerate(parts, start=1)}


def _curves(comparison: Comparison, part: Block) -> Iterator[tuple[str, Drawing]]:
    from plkernel.analysis.figures.curves import convergence, differences

    study, heading = comparison.study, _heading(part)
    curves = {arm.name: {run.seed: run.curve() for run in study.finished(arm.name)} for arm in comparison.arms}
    per_step = _bytes_per_step([run for arm in part.arms for run in study.finished(arm.name)])
    shown = {_label(comparison, part, arm): list(curves[arm.name].values()) for arm in part.arms}
    text = "Validation bits per byte against training bytes read, a line per arm and seed"
    drawn = convergence(shown, per_step, heading)
    yield f"convergence{part.slug}", Drawing(drawn, f"{text}{_where(part)}", _convergence_caption(part))
    text = "Difference of each arm to the one it is compared with, against training bytes read, with its intervals"
    for name, arms in _panels(part).items():
        paired = {
            _label(comparison, part, arm): list(difference_curves(curves[arm.name], curves[str(arm.against)]).values())
            for arm in arms
        }
        bases = {_label(comparison, part, arm): short_name(study, str(arm.against)) for arm in arms}
        drawn = differences(paired, bases, per_step, heading, CONFIDENCE)
        most = max(map(len, paired.values()))
        yield name, Drawing(drawn, f"{text}{_where(part)}", _difference_caption(part, most))


def _forests(comparison: Comparison) -> Iterator[tuple[str, Drawing]]:
    from plkernel.analysis.figures.forest import ForestRow, forest, forest_limits

    groups: dict[str, list[ForestRow]] = {}
    for part in blocks(comparison):
        label = f" ({NOT_CAUSAL})" if part.title and part.leaks else ""
        rows = [_forest_row(comparison, part, arm) for arm in part.others]
        groups |= {f"{part.title}{label}": rows} if rows else {}
    limits = forest_limits(groups)
    heading = "" if comparison.causal or len(groups) > 1 else NOT_CAUSAL
    description = "Every arm's difference to the one it is compared with: seeds, mean and interval"
    for at, some in enumerate(_pages(groups), start=1):
        name = f"forest{f'-part{at}' if at > 1 else ''}"
        drawn = forest({title: groups[title] for title in some}, limits, heading)
        yield name, Drawing(drawn, description, _forest_caption(comparison))


def _forest_row(comparison: Comparison, part: Block, arm: Arm):  # type: ignore[no-untyped-def]
    from plkernel.analysis.figures.forest import ForestRow

    evidence, label = comparison.evidence.get(arm.name), _label(comparison, part, arm)
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


def _forest_caption(comparison: Comparison) -> str:
    return (
        f"Every arm minus {compared_with(comparison)}, {comparison.primary.title}, paired by seed. Strokes are seeds, "
        "the circle is their mean, the line its 95 % t interval, which holds for one comparison. A circle is filled "
        "where the difference can be told from none after the correction for the number of arms (Holm). Intervals "
        f"are cut where they leave the frame.{_mark(comparison.arms)}"
    )


def _convergence_caption(part: Block) -> str:
    return (
        "Convergence: validation bits per byte against the training bytes read (below) and steps (above). Thin lines "
        f"are seeds, thick lines their mean.{_mark(part.arms)}"
    )


def _difference_caption(part: Block, seeds: int) -> str:
    from plkernel.analysis.figures.curves import FEWEST_FOR_WHOLE

    text = (
        "Difference during training, paired by seed. Thin lines are seeds, the thick line is their mean, the darker "
        "band its 95 % t interval at each position on its own. "
    )
    if seeds >= FEWEST_FOR_WHOLE:
        text += (
            "The lighter band is simultaneous: the whole true curve lies inside with 95 %, so a curve departs from "
            "zero where the lighter band does. "
        )
    else:
        text += "That band does not hold for the curve as a whole. "
    return f"{text}Bands are cut where they leave the frame; one seed has none.{_mark(part.arms)}"


def _mark(arms: Iterable[Arm]) -> str:
    """What a caption says where an arm leaks; where others do not, the figure itself says which."""
    causal = [arm.causal for arm in arms if arm.seeds]
    if all(causal):
        return ""
    return f" Where marked: {NOT_CAUSAL}." if any(causal) else f" {NOT_CAUSAL.capitalize()}."


def _heading(part: Block) -> str:
    """What all panels share: the block, and that none of it is a likelihood."""
    return ": ".join(filter(None, (part.title, NOT_CAUSAL if part.leaks else "")))


def _where(part: Block) -> str:
    return f" ({part.title})" if part.title else ""


def _label(comparison: Comparison, part: Block, arm: Arm) -> str:
    """The name of an arm in its block; where only some arms are not causal (no heading can say it), those say so."""
    name = short_name(comparison.study, arm.name)
    return name if arm.causal or part.leaks else f"{name} ({NOT_CAUSAL})"


def _bytes_per_step(runs: Sequence[Run]) -> float | None:
    """Training bytes per step, where all runs share one figure."""
    ratios = {run.result.bytes / run.result.steps for run in runs if run.result and run.result.steps}
    return ratios.pop() if len(ratios) == 1 else None
