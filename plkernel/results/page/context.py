"""The parts of the report page that say what far context is worth to the arms, and how far back they read."""

from typing import Any

from plkernel.analysis.statistics.differences import mean_interval
from plkernel.results.comparison import ArmResult, Block, Comparison, blocks
from plkernel.results.figures import arm_label
from plkernel.results.memory import influenced, truncated
from plkernel.results.page.charts import captions
from plkernel.results.page.charts.frames import Chart
from plkernel.results.page.charts.memory import influence, truncation
from plkernel.results.page.document import PageSection, Part, Table, folded, number, section
from plkernel.results.page.parts import arm_name, group_title, minus
from plkernel.results.sentences import interval_text, mean_text

COLUMNS = 6
"""So many lengths, the longest but the whole context, stand in the table."""


def context_sections(comparison: Comparison) -> list[PageSection]:
    """Truncation curves, and in numbers what is lost; nothing where no run has measured it."""
    parts: list[Part] = []
    for block in blocks(comparison):
        if not any(truncated(comparison, arm) for arm in block.arms):
            continue
        shown: list[Part] = [_chart(comparison, block), _table(comparison, block)]
        parts += [folded(group_title(block), *shown)] if block.title else shown
    return section("What far context is worth", *parts)


def _chart(comparison: Comparison, block: Block) -> Chart:
    curves = {
        arm_label(comparison, block, arm): (slot, curve)
        for slot, arm in enumerate(block.arms)
        if (curve := truncated(comparison, arm)) is not None
    }
    where = f"{block.title}: " if block.title else ""
    return truncation(curves, f"{where}{captions.TRUNCATION_OF}", captions.TRUNCATION)


def influence_sections(comparison: Comparison) -> list[PageSection]:
    """Influence against lag, block by block; nothing where no run has measured it."""
    parts: list[Part] = []
    for block in blocks(comparison):
        curves = {
            arm_label(comparison, block, arm): (slot, curve)
            for slot, arm in enumerate(block.arms)
            if (curve := influenced(comparison, arm)) is not None
        }
        if curves:
            where = f"{block.title}: " if block.title else ""
            drawn = influence(curves, f"{where}{captions.INFLUENCE_OF}", captions.INFLUENCE)
            parts += [folded(group_title(block), drawn)] if block.title else [drawn]
    return section("How far back a byte is read", *parts)


def _table(comparison: Comparison, block: Block) -> Table:
    arms = [(arm, curve) for arm in block.arms if (curve := truncated(comparison, arm))]
    lengths = list(dict.fromkeys(length for _, curve in arms for length in curve.given[-1 - COLUMNS : -1]))

    def row(arm: ArmResult) -> list[Any]:
        curve = truncated(comparison, arm)
        cells: list[Any] = [arm_name(comparison, block, arm)]
        for length in lengths:
            if curve is None or length not in curve.given:
                cells.append(number("-"))
                continue
            found = mean_interval(curve.cost[:, curve.given.index(length)].tolist())
            interval = [] if found.n == 1 else [minus(interval_text(found, "+.4f"))]
            cells.append(number(minus(mean_text(found, "+.4f")), *interval))
        return cells

    caption = (
        "Bits per byte lost where only so many bytes before the predicted one are given, against the whole context, at "
        "the same bytes of the test text: mean over seeds, under it the 95 % t interval of the mean. A model that "
        "loses nothing says nothing about memory."
    )
    header = ["arm", *(f"{length:,} given" for length in lengths)]
    return Table.of(header, [("", [row(arm) for arm, _ in arms])], caption)
