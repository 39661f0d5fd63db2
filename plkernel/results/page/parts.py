"""Parts of every section of the page: names of arms, marks for what leaks, and numbers with their intervals."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from plkernel.analysis.statistics.differences import Estimate, PairedDifference
from plkernel.common.cli import written
from plkernel.models.words import NOT_CAUSAL
from plkernel.results.comparison import ArmResult, Block, Comparison, Measure, blocks, short_name
from plkernel.results.page.document import Cell, Group, Line, Part, folded, number
from plkernel.results.sentences import interval_text, is_large, mean_text

LABEL = Line(NOT_CAUSAL, "label")


def mark(comparison: Comparison) -> str:
    """What every title and header says where an arm is not causal."""
    if comparison.causal:
        return ""
    mixed = any(arm.causal for arm in comparison.arms if arm.seeds)
    return f" ({'† ' if mixed else ''}{NOT_CAUSAL})"


def header_mark(comparison: Comparison) -> str:
    """What every header of a column of numbers says where none of them is a likelihood; a dagger marks single ones."""
    return "" if any(arm.causal for arm in comparison.arms if arm.seeds) else mark(comparison)


def grouped(
    comparison: Comparison, row: Callable[[Block, ArmResult], list[Any]], among: Callable[[Block], Iterable[ArmResult]]
) -> list[Group]:
    """The rows of every block's arms under the title of the block; `among` names the arms of a block to show."""
    found = ((part, [row(part, arm) for arm in among(part)]) for part in blocks(comparison))
    return [(group_title(part), rows) for part, rows in found if rows]


def group_title(part: Block) -> Cell:
    """The title of a block, and whether none of its numbers is a likelihood."""
    return Cell((Line(part.title), *([LABEL] if part.title and part.leaks else [])))


def aside(comparison: Comparison, title: str, content: Part) -> Part:
    """Content that is folded on the page of many arms, and stands open on that of few."""
    return folded(title, content) if is_large(comparison) else content


def arm_name(comparison: Comparison, part: Block, arm: ArmResult) -> Cell:
    """The arm by its name inside its block; one that is not causal says so where its block does not."""
    said = arm.causal or (part.title and part.leaks)
    return Cell((Line(short_name(comparison.study, arm.name)), *([] if said else [LABEL])))


def contrast(comparison: Comparison, part: Block, arm: ArmResult) -> Cell:
    """The arm, and which it is compared with where that is not what the table's caption says."""
    name = arm_name(comparison, part, arm)
    if arm.against == part.baseline and (part.title or len(comparison.baselines) == 1):
        return name
    return Cell((*name.lines, Line(f"minus {short_name(comparison.study, str(arm.against))}", "soft")))


def titles(measures: Iterable[Measure], label: str) -> list[str]:
    """The titles of measures as headers, marked with `label`."""
    return [f"{measure.title}{label}" for measure in measures]


def estimates(arm: ArmResult, measures: Iterable[Measure]) -> list[Cell]:
    """The mean and interval of an arm in each measure."""
    return [stacked(arm.estimates.get(measure.key), ".4f", arm) for measure in measures]


def stacked(estimate: Estimate | PairedDifference | None, form: str, *arms: ArmResult) -> Cell:
    """A mean with its interval below; its n too where that differs from the arm's."""
    if estimate is None:
        return number("-")
    few = [f"n = {estimate.n}"] if estimate.n != len(arms[0].seeds) else []
    interval = interval_text(estimate, form)
    return marked(mean_text(estimate, form), *arms, below=[*([interval] if interval else []), *few])


def finite(value: float, form: str) -> str:
    """A number as text; "not finite" where it is not."""
    return written(value, form) if math.isfinite(value) else "not finite"


def marked(text: str, *arms: ArmResult, below: Iterable[str] = ()) -> Cell:
    """The text of a number and what stands below it, with daggers where an arm behind it is not causal."""
    return number(minus(text), *map(minus, below), dagger=not all(arm.causal for arm in arms))


def several(values: Sequence[int]) -> Cell:
    """Whole numbers with their thousands apart."""
    return number(", ".join(f"{value:,}" for value in values) or "-")


def zero(difference: PairedDifference) -> str:
    """Where zero lies of the interval."""
    if math.isnan(difference.low):
        return "no interval"
    return "inside" if difference.contains_zero else "outside"


def minus(text: str) -> str:
    """The same text with a true minus sign before numbers."""
    return re.sub(r"(?<![^\s(])-(?=\d)", "\N{MINUS SIGN}", text)
