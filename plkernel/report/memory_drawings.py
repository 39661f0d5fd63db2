"""The figures of what training did to the memory of a study's arms, two for every block, and the published ones."""

from collections.abc import Iterator, Sequence

from plkernel.analysis.figures.memory import Panel, half_life_figure, kernel_figure
from plkernel.models.words import NOT_CAUSAL
from plkernel.report.blocks import Block, blocks
from plkernel.report.comparison import Comparison
from plkernel.report.figures import Drawing
from plkernel.report.memory import Change, changes
from plkernel.report.published import Reading, described, draw_published, reading

KERNELS, HALF_LIVES, PUBLISHED_FIGURES = "kernels", "half-lives", "published-figures"
MOST_PANELS = 8

DESCRIPTIONS = {
    KERNELS: "Kernels of every arm over lag, before training and after, beside the power law of the arm",
    HALF_LIVES: "Half-lives of every arm by block of the model, before training and after",
    PUBLISHED_FIGURES: "The three conditions of the published study: convergence, kernels and half-lives",
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
