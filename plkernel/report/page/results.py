"""The page's section on results: what every arm reached."""

from typing import Any

from plkernel.report.comparison import ArmResult, Block, Comparison
from plkernel.report.page.document import PageSection, Part, Table, folded, section
from plkernel.report.page.parts import arm_name, aside, estimates, grouped, header_mark, mark, several, titles

MOST_ARMS = 40
"""The table of more arms is folded: the differences below say what is to be said."""


def results(comparison: Comparison) -> list[PageSection]:
    """What every arm reached, mean and interval of each measure."""
    label = mark(comparison)
    named = [measure for measure in comparison.measures if measure.key.startswith("val_bpb_")]
    whole = [measure for measure in comparison.measures if measure not in named]
    caption = f"Bits per byte{label}: mean over seeds, under it the 95 % t interval of the mean (none for one seed)."
    header = ["arm", "seeds", "parameters", "steps", *titles(whole, header_mark(comparison))]

    def row(part: Block, arm: ArmResult) -> list[Any]:
        facts = [len(arm.seeds), several(arm.parameters), several(arm.steps)]
        return [arm_name(comparison, part, arm), *facts, *estimates(arm, whole)]

    shown = Table.of(header, grouped(comparison, row, _arms), caption)
    many = len(comparison.arms) > MOST_ARMS
    parts: list[Part] = [folded(f"All {len(comparison.arms)} arms", shown) if many else shown]
    if named:
        rows = grouped(comparison, lambda part, arm: [arm_name(comparison, part, arm), *estimates(arm, named)], _arms)
        along = Table.of(["arm", *titles(named, header_mark(comparison))], rows, f"The same along the way{label}.")
        parts.append(aside(comparison, "Results along the way", along))
    return section(f"Results{label}", *parts)


def _arms(part: Block) -> tuple[ArmResult, ...]:
    return part.arms
