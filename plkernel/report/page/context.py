"""The part of the report page that says what far context is worth to the arms."""

from collections.abc import Mapping
from typing import Any

from plkernel.analysis.statistics.differences import mean_interval
from plkernel.report.comparison import ArmResult, Block, Comparison, blocks
from plkernel.report.figures import TRUNCATION, figure_name
from plkernel.report.memory import truncated
from plkernel.report.page.document import Figure, PageSection, Part, Table, folded, number, section
from plkernel.report.page.parts import arm_name, group_title, minus

COLUMNS = 6
"""So many lengths, the longest but the whole context, stand in the table."""


def context_sections(comparison: Comparison, figures: Mapping[str, Figure]) -> list[PageSection]:
    """Truncation curves, and in numbers what is lost; nothing where no run has measured it."""
    parts: list[Part] = []
    for block in blocks(comparison):
        if not any(truncated(comparison, arm) for arm in block.arms):
            continue
        drawing = figures.get(figure_name(TRUNCATION, block))
        shown: list[Part] = [*([drawing] if drawing else []), _table(comparison, block)]
        parts += [folded(group_title(block), *shown)] if block.title else shown
    return section("What far context is worth", *parts)


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
            interval = [] if found.n == 1 else [minus(f"{found.low:+.4f} to {found.high:+.4f}")]
            cells.append(number(minus(f"{found.mean:+.4f}"), *interval))
        return cells

    caption = (
        "Bits per byte lost where only so many bytes before the predicted one are given, against the whole context, at "
        "the same bytes of the test text: mean over seeds, under it the 95 % t interval of the mean. A model that "
        "loses nothing says nothing about memory."
    )
    header = ["arm", *(f"{length:,} given" for length in lengths)]
    return Table.of(header, [("", [row(arm) for arm, _ in arms])], caption)
