"""The page's section on results: what every arm reached."""

from collections.abc import Sequence
from typing import Any

from plkernel.records.references import Reference
from plkernel.results.comparison import ArmResult, Block, Comparison, Measure
from plkernel.results.page.document import Cell, PageSection, Part, Table, folded, number, section
from plkernel.results.page.parts import arm_name, aside, estimates, grouped, header_mark, mark, several, titles
from plkernel.results.sentences import gram_name

MOST_ARMS = 40
"""The table of more arms is folded: the differences below say what is to be said."""


def results(comparison: Comparison) -> list[PageSection]:
    """What every arm reached, mean and interval of each measure."""
    label = mark(comparison)
    named = [measure for measure in comparison.measures if measure.key.startswith("val_bpb_")]
    whole = [measure for measure in comparison.measures if measure not in named]
    caption = f"Bits per byte{label}: mean over seeds, under it the 95 % t interval of the mean (none for one seed)."
    header = ["arm", *titles(whole, header_mark(comparison)), "seeds", "parameters", "steps"]

    def row(part: Block, arm: ArmResult) -> list[Any]:
        facts = [len(arm.seeds), several(arm.parameters), several(arm.steps)]
        return [arm_name(comparison, part, arm), *estimates(arm, whole), *facts]

    groups = grouped(comparison, row, _arms)
    for found in comparison.references:
        caption += (
            f" N-grams: interpolated Witten-Bell counts of {found.training_bytes:,} bytes, {found.training_windows}; "
            "under a figure its standard error over windows."
        )
        groups.append(("for reference", _counts(comparison, found, whole)))
    shown = Table.of(header, groups, caption)
    many = len(comparison.arms) > MOST_ARMS
    parts: list[Part] = [folded(f"All {len(comparison.arms)} arms", shown) if many else shown]
    if named:
        rows = grouped(comparison, lambda part, arm: [arm_name(comparison, part, arm), *estimates(arm, named)], _arms)
        along = Table.of(["arm", *titles(named, header_mark(comparison))], rows, f"The same along the way{label}.")
        parts.append(aside(comparison, "Results along the way", along))
    return section(f"Results{label}", *parts)


def _counts(comparison: Comparison, found: Reference, measures: Sequence[Measure]) -> list[list[Any]]:
    """A row for every order of n-grams."""
    rows = []
    for at, order in enumerate(found.orders):
        known = {
            "final_val_bpb": (found.val_bpb[at], found.val_error[at]),
            "test_bpb": (found.test_bpb[at], found.test_error[at]),
        }
        cells = [_loss(*known[measure.key]) if measure.key in known else number() for measure in measures]
        rows.append([gram_name(comparison, found, order), *cells, *[number()] * 3])
    return rows


def _loss(value: float, error: float | None) -> Cell:
    return number(f"{value:.4f}", *([] if error is None else [f"\N{PLUS-MINUS SIGN} {error:.4f}"]))


def _arms(part: Block) -> tuple[ArmResult, ...]:
    return part.arms
