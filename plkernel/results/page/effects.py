"""The page's section on the factors: main effects and interactions, where a part of the design is complete."""

from collections.abc import Mapping
from typing import Any

from plkernel.analysis.statistics.factorial import Contrast
from plkernel.models.words import NOT_CAUSAL
from plkernel.results.comparison import Comparison
from plkernel.results.effects import Effects, effects
from plkernel.results.page.document import Cell, Group, PageSection, Part, Table, lines, number, prose, section
from plkernel.results.page.parts import minus, zero
from plkernel.results.sentences import effects_sentence, interval_text, listed, mean_text, p_text

KINDS = {1: "main effects", 2: "interactions of two factors"}


def factor_effects(comparison: Comparison) -> list[PageSection]:
    """The effects of the factors; nothing where no part of a factorial design is complete."""
    found = effects(comparison)
    if not found:
        return []
    label = "" if all(one.causal for one in found) else f" († {NOT_CAUSAL})"
    shown = (part for one in found for part in _part(comparison, one))
    return section(f"Effects of the factors{label}", *shown)


def _part(comparison: Comparison, found: Effects) -> list[Part | None]:
    groups: list[Group] = []
    for order, kind in KINDS.items():
        rows = [_row(found, one) for one in found.factorial.contrasts if one.order == order]
        groups += [(kind, rows)] if rows else []
    header = ["effect", "mean", "95 % interval", "p", "corrected p", "zero lies"]
    sentence = prose("", [minus(effects_sentence(found))])
    return [sentence, Table.of(header, groups, _caption(comparison, found))]


def _row(found: Effects, contrast: Contrast) -> list[Any]:
    difference = contrast.difference
    first, *others = found.title(contrast).split(" x ")
    texts = [mean_text(difference, "+.4f"), interval_text(difference, "+.4f"), p_text(difference.p_value)]
    texts.append(p_text(found.corrected[contrast.name]))
    return [
        lines([first, *(f"x {other}" for other in others)]),
        *(_number(text, found) for text in texts),
        zero(difference),
    ]


def _number(text: str, found: Effects) -> Cell:
    return number(minus(text), dagger=not found.causal)


def _caption(comparison: Comparison, found: Effects) -> str:
    factorial = found.factorial
    dropped = f" (left out: {listed(factorial.dropped_seeds)}, not in every cell)" if factorial.dropped_seeds else ""
    reason = "not finished in every combination" if found.whole else "of leaking arms or not finished everywhere"
    parts = [
        f"{comparison.primary.title.capitalize()}, bits per byte{'' if found.causal else f' ({NOT_CAUSAL})'}, below "
        f"zero is better. {factorial.cells} combinations of {_named(found, found.levels)}; "
        f"seeds {', '.join(map(str, factorial.seeds))}{dropped}.",
        f"Fixed: {_named(found, {name: [level] for name, level in found.fixed.items()})}." if found.fixed else "",
        f"Levels left out, {reason}: {_named(found, found.left_out)}." if found.left_out else "",
        "A main effect is the mean over the combinations of the other factors, an interaction the difference of two "
        "differences; each is taken within a seed, then over seeds a t interval. Corrected p is for all "
        f"{len(factorial.contrasts)} (Holm). Where factors interact a main effect averages over unlike effects.",
    ]
    return " ".join(filter(None, parts))


def _named(found: Effects, levels: Mapping[str, Any]) -> str:
    return "; ".join(f"{found.short(name)} {', '.join(of)}" for name, of in levels.items())
