"""The page's section on what the study declared: how it was registered, what decided, and how sure that is."""

from plkernel.declared.rules import requirement, statement
from plkernel.declared.sentences import (
    basis,
    interval_title,
    late,
    mind,
    reading,
    registration,
    title,
)
from plkernel.declared.verdicts import Declared, Outcome
from plkernel.results.page.document import Cell, Line, PageSection, Table, folded, number, prose, section, table
from plkernel.results.page.parts import LABEL, minus
from plkernel.results.sentences import interval_text, mean_text, p_text

MOST_OPEN = 4
"""What would have changed so many verdicts stands open; that of more is folded."""


def declared_sections(found: Declared | None) -> list[PageSection]:
    """How it was declared, hypothesis by hypothesis, and the gates."""
    if found is None:
        return []
    changed = (
        prose("notes", [minus(f"What would have changed our mind. {' '.join(mind(found))}")])
        if found.outcomes
        else None
    )
    many = changed and len(found.outcomes) > MOST_OPEN
    return section(
        title(found),
        prose("summary", map(minus, registration(found))),
        _hypotheses(found) if found.outcomes else None,
        _gates(found) if found.gates else None,
        folded("What would have changed our mind", changed) if changed and many else changed,
    )


def _hypotheses(found: Declared) -> Table:
    names = list(dict.fromkeys(outcome.hypothesis.family for outcome in found.outcomes))
    several = len(names) > 1
    groups = [
        (
            basis(found, name) if several else "",
            [_row(found, outcome) for outcome in found.outcomes if outcome.hypothesis.family == name],
        )
        for name in names
    ]
    decided = "" if several else f" This is {basis(found, names[0])}."
    caption = (
        "The difference is the arm minus the one it is compared with, seed by seed, in bits per byte; "
        f"under it the {interval_title(found)}, which holds for one hypothesis. p are corrected for all of a family "
        "(Holm): confirming, against the opposite of the claim; refuting, against the claim. At most alpha decides."
        f"{decided}"
    )
    return Table.of(["hypothesis", "difference", "p confirming", "p refuting", "verdict"], groups, caption)


def _row(found: Declared, outcome: Outcome) -> list[Cell]:
    one, dagger = outcome.judgement, not outcome.causal
    name = Cell(
        (
            Line(outcome.hypothesis.name, "sentence"),
            Line(minus(statement(outcome.hypothesis)), "sentence soft"),
            *([Line("not declared before the runs", "label")] if late(found, outcome) else []),
            *([LABEL] if dagger else []),
        )
    )
    below = [text for text in (interval_text(one, "+.4f"), f"n = {one.n}") if text]
    shown = (
        number(minus(mean_text(one, "+.4f")), *map(minus, below), dagger=dagger)
        if one.n
        else number("-", outcome.missing)
    )
    tests = (number(p_text(p), dagger=dagger) for p in (one.p_family, one.p_opposite_family))
    return [name, shown, *tests, Cell.of(found.verdict(outcome))]


def _gates(found: Declared) -> Table:
    rows = [
        [
            Cell((Line(one.gate.name, "sentence"), Line(minus(requirement(one.gate)), "sentence soft"))),
            reading(one),
            "passed" if one.passed else "not passed",
        ]
        for one in found.gates
    ]
    return table(["gate", "found", "passed"], rows, "Gates: where one is not passed, no hypothesis is answered.")
