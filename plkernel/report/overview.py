"""What a study of many arms shows, in a few sentences: how many differences, the largest, and what could be seen."""

from collections.abc import Iterator
from statistics import median

from plkernel.models.words import NOT_CAUSAL
from plkernel.report.blocks import blocks, full_name, short_factor, short_name
from plkernel.report.comparison import Arm, Comparison
from plkernel.report.effects import Effects, effects
from plkernel.report.evidence import ALPHA, Evidence, detectable
from plkernel.report.sentences import interval_text, listed, p_text, run_facts, sentences, span, summary

FEW_ARMS = 4
"""So many arms beside the baseline have a sentence each at the top."""
NAMED = 3
"""The largest differences that are named."""


def is_large(comparison: Comparison) -> bool:
    """Whether there are too many arms for a sentence each."""
    return len(comparison.others) > FEW_ARMS


def overview(comparison: Comparison) -> list[str]:
    """What was compared, and what may be said: a sentence per arm, or of many arms a few sentences on all."""
    if not is_large(comparison):
        return [summary(comparison), *sentences(comparison)]
    parts = (_compared, _counts, _strongest, _sensitivity, _effects)
    return [text for part in parts for text in part(comparison)]


def excluding(comparison: Comparison) -> list[str]:
    """The arms whose interval excludes zero, without any correction."""
    return [name for name, evidence in comparison.evidence.items() if evidence.excludes_zero]


def surviving(comparison: Comparison) -> list[str]:
    """The arms whose difference survives the correction: likelihoods first, of these the largest."""
    found = [name for name, evidence in comparison.evidence.items() if evidence.survives]
    return sorted(found, key=lambda name: (_leaks(comparison, name), -_size(comparison, name)))


def _compared(comparison: Comparison) -> Iterator[str]:
    study, parts = comparison.study, blocks(comparison)
    bases = list(dict.fromkeys(short_name(study, base.name) for base in comparison.baselines))
    arms = f"{study.name} compares {len(comparison.others)} arms"
    if any(part.title for part in parts):
        facts = f"with {listed(bases)}, in {len(parts)} {'block' if len(parts) == 1 else 'blocks'}"
        factors = study.spec["within"]
        facts += f" by {listed(short_factor(name, factors) for name in factors)}"
    else:
        facts = f"with {listed(bases) if len(bases) <= NAMED else f'{len(bases)} others'}"
    yield f"{arms} {facts}: {run_facts(comparison)}."


def _counts(comparison: Comparison) -> Iterator[str]:
    found = comparison.evidence
    tested = [name for name, evidence in found.items() if evidence.difference.n > 1]
    if not tested:
        yield "No arm has two seeds in common with the arm it is compared with: no interval, no claim."
        return
    out, kept = excluding(comparison), surviving(comparison)
    chance, have = ALPHA * len(tested), "has" if len(out) == 1 else "have"
    yield (
        f"Of {len(tested)} differences ({comparison.primary.title}) {len(out)} {have} a 95 % interval that excludes "
        f"zero{_signs(comparison, out)}; were there no difference anywhere, {chance:.1f} would on average. After the "
        f"correction for their number (Holm) {len(kept) or 'none'} can be told from none at the 5 % level"
        f"{_signs(comparison, kept)}."
    )


def _signs(comparison: Comparison, names: list[str]) -> str:
    below = sum(comparison.evidence[name].difference.mean < 0 for name in names)
    return f" ({below} below, {len(names) - below} above)" if names else ""


def _strongest(comparison: Comparison) -> Iterator[str]:
    kept = surviving(comparison)
    if not kept:
        return
    each = "; ".join(_measured(comparison, name) for name in kept[:NAMED])
    some = f"The largest {NAMED} of these" if len(kept) > NAMED else "They are"
    leak = "" if any(not _leaks(comparison, name) for name in kept) else f", all of them {NOT_CAUSAL}"
    yield f"{some}{leak}: {each}."


def _measured(comparison: Comparison, name: str) -> str:
    evidence = comparison.evidence[name]
    label = f" [{NOT_CAUSAL}]" if _leaks(comparison, name) else ""
    p = p_text(evidence.corrected)
    return (
        f"{full_name(comparison.study, name)} {evidence.difference.mean:+.4f}{label} bits per byte "
        f"(95 % interval {interval_text(evidence.difference, '+.4f')}, "
        f"corrected p {p if p.startswith('<') else f'= {p}'})"
    )


def _sensitivity(comparison: Comparison) -> Iterator[str]:
    found = list(comparison.evidence.values())
    alone = [seen for one in found if (seen := one.detectable) == seen]
    if not alone:
        return
    strict = [seen for one in found if (seen := detectable(one.difference, len(comparison.corrected))) == seen]
    yield (
        f"With {span(_seeds(found))} seeds and the spread they showed, a difference of {median(alone):.2g} bits per "
        f"byte or more (median over arms; {span(alone, '.2g')}) is found 8 times in 10 by one comparison on its own, "
        f"of {median(strict):.2g} or more ({span(strict, '.2g')}) at the level at which the correction begins."
    )


def _seeds(found: list[Evidence]) -> list[int]:
    return [one.difference.n for one in found if one.difference.n > 1]


def _effects(comparison: Comparison) -> Iterator[str]:
    found = effects(comparison)
    if found:
        yield effects_sentence(found[0])


def effects_sentence(found: Effects) -> str:
    """How many effects of the factors can be told from none, and the largest of them."""
    kept, number = found.surviving, len(found.factorial.contrasts)
    label = "" if found.causal else f" ({NOT_CAUSAL})"
    head = (
        f"Over the {found.factorial.cells} combinations of {listed(map(found.short, found.levels))}{label}, "
        f"{len(kept) or 'none'} of {number} main effects and interactions can be told from none after correction"
    )
    each = (f"{found.title(one)} {one.difference.mean:+.4f} bits per byte" for one in kept[:NAMED])
    return f"{head}{', the largest: ' if len(kept) > NAMED else ': ' if kept else ''}{'; '.join(each)}."


def _leaks(comparison: Comparison, name: str) -> bool:
    arm: Arm = comparison[name]
    return not (arm.causal and comparison[str(arm.against)].causal)


def _size(comparison: Comparison, name: str) -> float:
    return abs(comparison.evidence[name].difference.mean)
