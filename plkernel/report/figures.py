"""The figures of a study: convergence, differences during training, and of many arms all differences at a glance."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from plkernel.analysis.figures.context import truncation_figure
from plkernel.analysis.figures.memory import Panel, half_life_figure, kernel_figure
from plkernel.analysis.statistics.bands import difference_curves
from plkernel.models.words import NOT_CAUSAL
from plkernel.records.study import Run
from plkernel.report.comparison import (
    CONFIDENCE,
    ArmResult,
    Block,
    Comparison,
    blocks,
    compared_with,
    short_name,
)
from plkernel.report.memory import Change, changes, truncated
from plkernel.report.published import Reading, described, draw_published, reading
from plkernel.report.sentences import gram

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


def _panels(part: Block) -> dict[str, list[ArmResult]]:
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
    grams = _grams(comparison, part)
    drawn = convergence(shown, per_step, heading, grams)
    yield f"convergence{part.slug}", Drawing(drawn, f"{text}{_where(part)}", _convergence_caption(part, bool(grams)))
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


def _forest_row(comparison: Comparison, part: Block, arm: ArmResult):  # type: ignore[no-untyped-def]
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


def _grams(comparison: Comparison, part: Block) -> dict[str, float]:
    """The validation loss of n-grams by name, where all arms of the block that are likelihoods share it."""
    found = [comparison.reference(arm) for arm in part.arms if arm.causal and arm.seeds]
    first = found[0] if found else None
    if first is None or any(one is not first for one in found):
        return {}
    return dict(zip(map(gram, first.orders), first.val_bpb, strict=True))


def _convergence_caption(part: Block, grams: bool) -> str:
    counts = " Dotted: n-grams, counts of n bytes of the same training text; right, those between the curves." * grams
    return (
        "Convergence: validation bits per byte against the training bytes read (below) and steps (above). Thin lines "
        f"are seeds, thick lines their mean.{counts}{_mark(part.arms)}"
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


def _mark(arms: Iterable[ArmResult]) -> str:
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


def _label(comparison: Comparison, part: Block, arm: ArmResult) -> str:
    """The name of an arm in its block; where only some arms are not causal (no heading can say it), those say so."""
    name = short_name(comparison.study, arm.name)
    return name if arm.causal or part.leaks else f"{name} ({NOT_CAUSAL})"


def _bytes_per_step(runs: Sequence[Run]) -> float | None:
    """Training bytes per step, where all runs share one figure."""
    ratios = {run.result.bytes / run.result.steps for run in runs if run.result and run.result.steps}
    return ratios.pop() if len(ratios) == 1 else None


KERNELS, HALF_LIVES, PUBLISHED_FIGURES = "kernels", "half-lives", "published-figures"
TRUNCATION = "truncation"
MOST_PANELS = 8

DESCRIPTIONS = {
    KERNELS: "Kernels of every arm over lag, before training and after, beside the power law of the arm",
    HALF_LIVES: "Half-lives of every arm by block of the model, before training and after",
    PUBLISHED_FIGURES: "The three conditions of the published study: convergence, kernels and half-lives",
    TRUNCATION: "Bits per byte of every arm against how many of the last bytes are given, and what is lost",
}
CAPTIONS = {
    KERNELS: "What an input still weighs t bytes later in the recurrent branch of a block (root mean square over its "
    "entries), 1 at lag 1, so that constants of an initialisation do not count. Grey dashes: at initialisation; "
    "colour: after training. Thin lines are blocks of the model, thick lines their mean (geometric, over blocks and "
    "seeds). The broad grey line is the power law of the arm, stated for the plain sum over channels. Signs are "
    "random at initialisation: channels then add up as squares, and where the density of half-lives carries the law it "
    "counts half.",
    HALF_LIVES: "Half-lives of the channels by block of the model, in bytes: the box holds the middle half with the "
    "median in it, the line reaches from the shortest to the longest. Grey: at initialisation; colour: after training. "
    "Boxes are geometric means over seeds, the ends of the lines the outermost of all seeds.",
    TRUNCATION: "The same bytes of the test text, predicted from the last 1, 2, 4 .. bytes before them. Left: bits per "
    "byte; right: what is lost against the whole context. Lines are means over seeds, bands the 95 % t interval of the "
    "mean. The broad grey line, where there is one, is the best that can be done: the source of the text is known.",
}


def memory_drawings(comparison: Comparison) -> dict[str, Drawing]:
    """Figures by name, "kernels-none-bytes" for a block of gain none and patching bytes; none where rows lack them.

    Each shows the baseline and up to seven other arms of its block.
    """
    found = {name: drawn for block in blocks(comparison) for name, drawn in _of_block(comparison, block)}
    read = reading(comparison)
    if read is not None:
        found[PUBLISHED_FIGURES] = _published(comparison, read)
    return found


def figure_name(kind: str, block: Block) -> str:
    """The name of a block's figure."""
    return f"{kind}{block.slug}"


def _of_block(comparison: Comparison, block: Block) -> Iterator[tuple[str, Drawing]]:
    curves = {
        _label(comparison, block, arm): curve for arm in block.arms if (curve := truncated(comparison, arm)) is not None
    }
    if curves:
        where = f" ({block.title})" if block.title else ""
        drawn = truncation_figure(curves, block.title, CONFIDENCE)
        yield figure_name(TRUNCATION, block), Drawing(drawn, DESCRIPTIONS[TRUNCATION] + where, CAPTIONS[TRUNCATION])
    arms = changes(comparison, block)
    for kind, draw in ((KERNELS, kernel_figure), (HALF_LIVES, half_life_figure)):
        known = [arm for arm in arms if _has(arm, kind)]
        if known:
            panels = [Panel(arm.name, arm.before, arm.after, arm.exponent) for arm in known[:MOST_PANELS]]
            where = f" ({block.title})" if block.title else ""
            caption = CAPTIONS[kind] + _left_out(known)
            yield figure_name(kind, block), Drawing(draw(panels, block.title), DESCRIPTIONS[kind] + where, caption)


def _left_out(arms: Sequence[Change]) -> str:
    most = MOST_PANELS
    return f" Shown are the first {most} of {len(arms)} arms; the table has all." if len(arms) > most else ""


def _has(change: Change, kind: str) -> bool:
    return change.has_kernels if kind == KERNELS else change.has_half_lives


def _published(comparison: Comparison, found: Reading) -> Drawing:
    leaks = not all(arm.causal for arm in found.arms)
    caption = (
        f"The three conditions of the published study in these runs ({described(comparison, found)}): how they "
        "converge, how their kernels compare with the power law, where their half-lives lie. Everything is drawn from "
        "the rows of this study, no curve or axis is taken over. Left: thin lines are seeds, thick lines "
        "their mean. Middle: dotted, the plain sum over the channels a condition places, which is how the published "
        "analysis scores it; solid, what its models hold at initialisation (root mean square over random signs, mean "
        "over blocks and seeds). Right: dotted, half-lives at initialisation; solid, after training."
    )
    label = f" {NOT_CAUSAL.capitalize()}." if leaks else ""
    return Drawing(draw_published(comparison, found), DESCRIPTIONS[PUBLISHED_FIGURES], caption + label)
