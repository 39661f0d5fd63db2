"""A comparison for the terminal: what may be said, and a table that stays short for many arms."""

from collections.abc import Iterator

from plkernel.common.cli import text_table
from plkernel.declared.sentences import basis, gate_sentence, headline, interval_title, late, mind, registration
from plkernel.declared.verdicts import Declared, Outcome
from plkernel.models.words import NOT_CAUSAL
from plkernel.results.cautions import warnings
from plkernel.results.comparison import EXCESS, ArmResult, Block, Comparison, blocks, short_name
from plkernel.results.sentences import (
    gram_name,
    interval_text,
    is_large,
    mean_text,
    overview,
    p_text,
    sentences,
    summary,
)

MOST_ROWS = 40
"""Of more compared arms the table holds those with the smallest p only."""
SHOWN = 20


def text_report(comparison: Comparison) -> str:
    """What was declared, the summary, a table, the sentences where arms are few, and the warnings."""
    warned = [f"note: {text}" for text in warnings(comparison)]
    first = _declared(comparison.declared) if comparison.declared else []
    if is_large(comparison):
        return "\n".join([*first, *overview(comparison), "", *_blocks(comparison), "", *warned])
    header, rows = _header(comparison), [_row(comparison, arm) for arm in comparison.arms]
    shown = [[name, "", "", "", val, test] for name, val, test in _counts(comparison)]
    arms = text_table(header, rows + [row + [""] * (len(header) - len(row)) for row in shown])
    return "\n".join([*first, summary(comparison), "", arms, _note(comparison), "", *sentences(comparison), *warned])


def _declared(found: Declared) -> list[str]:
    """What the study declared and what came of it, before all else."""
    rows = [_outcome(found, outcome) for outcome in found.outcomes]
    header = ["hypothesis", "seeds", "difference", interval_title(found), "p confirming", "p refuting", "verdict"]
    families = dict.fromkeys(outcome.hypothesis.family for outcome in found.outcomes)
    note = "; ".join(basis(found, name) for name in families)
    return [
        headline(found),
        *registration(found),
        "",
        *([text_table(header, rows), f"(bits per byte; p after Holm; {note})", ""] if rows else []),
        *(f"gate {gate_sentence(gate)}" for gate in found.gates),
        *(["what would have changed our mind:", *(f"  {text}" for text in mind(found))] if rows else []),
        "",
    ]


def _outcome(found: Declared, outcome: Outcome) -> list[str]:
    one, name = outcome.judgement, outcome.hypothesis.name
    label = "" if outcome.causal else f" [{NOT_CAUSAL}]"
    return [
        f"{name}{' (not declared before)' if late(found, outcome) else ''}{label}",
        str(one.n),
        mean_text(one, "+.4f") if one.n else outcome.missing,
        interval_text(one, "+.4f"),
        p_text(one.p_family),
        p_text(one.p_opposite_family),
        found.verdict(outcome),
    ]


def _header(comparison: Comparison) -> list[str]:
    bases = comparison.baselines
    minus = [f"minus {bases[0].name}"] if len(bases) == 1 else ["minus", "is"]
    above = ["above the floor"] if _has_floor(comparison) else []
    return ["arm", "seeds", "steps", "best", "final", "test", *above, *minus, "95 % interval", "p", "corrected p"]


def _row(comparison: Comparison, arm: ArmResult) -> list[str]:
    names = ("best_val_bpb", "final_val_bpb", "test_bpb", *((EXCESS,) if _has_floor(comparison) else ()))
    shown = [arm.estimates.get(name) for name in names]
    return [
        arm.name if arm.causal else f"{arm.name} [{NOT_CAUSAL}]",
        str(len(arm.seeds)),
        ", ".join(map(str, arm.steps)) or "-",
        *(f"{estimate.mean:.4f}" if estimate else "-" for estimate in shown),
        *([arm.against or ""] if len(comparison.baselines) > 1 else []),
        *_difference(comparison, arm),
    ]


def _has_floor(comparison: Comparison) -> bool:
    """Whether the best that can be done is known for a corpus of the study."""
    return any(measure.key == EXCESS for measure in comparison.measures)


def _counts(comparison: Comparison) -> Iterator[list[str]]:
    """What n-grams reach: their names, final validation and test."""
    for found in comparison.references:
        for order, *losses in zip(found.orders, found.val_bpb, found.test_bpb, strict=True):
            yield [gram_name(comparison, found, order), *(f"{loss:.4f}" for loss in losses)]


def _difference(comparison: Comparison, arm: ArmResult) -> list[str]:
    difference = arm.differences.get(comparison.primary.key)
    if difference is None:
        return [""] * 4
    tests = (difference.p_value, comparison.corrected[arm.name])
    return [mean_text(difference, "+.4f"), interval_text(difference, "+.4f"), *map(p_text, tests)]


def _note(comparison: Comparison) -> str:
    label = f", {NOT_CAUSAL}" if not any(arm.causal for arm in comparison.arms if arm.seeds) else ""
    grams = "; n-grams: counts of the training bytes, for reference" if comparison.references else ""
    return f"(bits per byte{label}; difference: {comparison.primary.title}, paired by seed, below 0 is better{grams})"


def _blocks(comparison: Comparison) -> list[str]:
    """The differences of many arms, block by block, under short names."""
    shown = _shown(comparison)
    groups = {_heading(comparison, part): _block(comparison, part, shown) for part in blocks(comparison)}
    grams = [[f"  {name}", "", val, *[""] * 4] for name, val, _ in _counts(comparison)]
    groups |= {"for reference": grams}
    header = ["arm", "seeds", "final", "difference", "95 % interval", "p", "corrected p"]
    lines = text_table(header, [row for rows in groups.values() for row in rows]).splitlines()
    table, lines = lines[:2], lines[2:]
    for heading, rows in groups.items():
        table += [heading, *lines[: len(rows)]] if rows else []
        lines = lines[len(rows) :]
    every = len(comparison.others)
    few = [f"({len(shown)} of {every} arms, those with the smallest p; the page has all)"] if len(shown) < every else []
    return [*table, _note(comparison), *few]


def _shown(comparison: Comparison) -> set[str]:
    names = [arm.name for arm in comparison.others]
    if len(names) <= MOST_ROWS:
        return set(names)
    found = comparison.evidence
    return set(sorted(found, key=lambda name: found[name].difference.p_value)[:SHOWN])


def _block(comparison: Comparison, part: Block, shown: set[str]) -> list[list[str]]:
    """The rows of a block's arms that are shown."""
    rows = []
    for arm in part.others:
        if arm.name not in shown:
            continue
        name = short_name(comparison.study, arm.name)
        against = "" if arm.against == part.baseline else f" minus {short_name(comparison.study, str(arm.against))}"
        final = arm.estimates.get("final_val_bpb")
        facts = [str(len(arm.seeds)), f"{final.mean:.4f}" if final else "-", *_difference(comparison, arm)]
        label = "" if arm.causal or part.leaks else f" [{NOT_CAUSAL}]"
        rows.append([f"  {name}{against}{label}" if part.title else f"{name}{against}{label}", *facts])
    return rows


def _heading(comparison: Comparison, part: Block) -> str:
    base, label = short_name(comparison.study, part.baseline), f" [{NOT_CAUSAL}]" if part.leaks else ""
    return f"{part.title}, minus {base}{label}" if part.title else f"minus {base}{label}"
