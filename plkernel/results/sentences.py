"""Plain sentences for all that a comparison allows one to say."""

import math
from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

from plkernel.analysis.figures.style import byte_unit
from plkernel.analysis.statistics.differences import Estimate, PairedDifference, verdict
from plkernel.analysis.statistics.hypotheses import Judgement
from plkernel.analysis.statistics.power import sensitivity
from plkernel.common.cli import finer, written
from plkernel.models.words import NOT_CAUSAL
from plkernel.records.references import Reference
from plkernel.results.comparison import ArmResult, Comparison, blocks, full_name, short_factor, short_name
from plkernel.results.effects import Effects, effects
from plkernel.results.evidence import ALPHA, Evidence, detectable


def summary(comparison: Comparison) -> str:
    """What was compared, in one sentence: arms, seeds, size, steps, bytes and corpus."""
    return f"{comparison.study.name} compares {_contrasts(comparison)}: {run_facts(comparison)}."


def run_facts(comparison: Comparison) -> str:
    """Seeds, size, steps, bytes and corpus of the finished runs, "2 seeds each of a model of ..."."""
    arms, runs = comparison.arms, comparison.study.finished()
    seeds = span(len(arm.seeds) for arm in arms)
    sizes = [size for arm in arms for size in arm.parameters]
    model = f" of a model of {span(sizes)} parameters" if sizes else ""
    unit, unit_name = byte_unit(max(run.result.bytes for run in runs if run.result))
    volume = span((run.result.bytes / unit for run in runs if run.result), ".1f")
    corpora = sorted({str(run.config["corpus"].get("name")) for run in runs})
    return (
        f"{seeds} {'seed' if seeds == '1' else 'seeds'} each{model}, "
        f"{span(steps for arm in arms for steps in arm.steps)} steps, "
        f"{volume} {unit_name} read of {', '.join(corpora)}"
    )


def _contrasts(comparison: Comparison) -> str:
    """Which arms are compared with which."""
    named = {
        base.name: listed(arm.name for arm in comparison.others if arm.against == base.name)
        for base in comparison.baselines
    }
    marked = " (the baseline)" if len(named) == 1 else ""
    return "; ".join(f"{base}{marked} with {arms}" for base, arms in named.items())


def sentences(comparison: Comparison) -> list[str]:
    """One plain sentence per arm other than the baseline: its difference, interval, p, and what may be said."""
    return [f"{arm.name}: {_sentence(comparison, arm)}." for arm in comparison.others]


def interval_text(interval: Estimate | PairedDifference | Judgement, form: str) -> str:
    """The bounds as text, empty where there are none."""
    if not math.isfinite(interval.low):
        return ""
    form = finer(form, interval.low, interval.high)
    return f"{written(interval.low, form)} to {written(interval.high, form)}"


def mean_text(found: Estimate | PairedDifference | Judgement, form: str) -> str:
    """The mean as text, with as many digits as its interval; "not finite" where it is not."""
    if not math.isfinite(found.mean):
        return "not finite"
    text = f"{found.mean:{finer(form, found.low, found.high)}}"  # zero to the digits of its interval has no sign
    return text if float(text) else text.lstrip("+-")


def p_text(p: float) -> str:
    """A p value to two digits, never as zero.

    >>> p_text(0.0312), p_text(1e-9)
    ('0.031', '< 0.0001')
    """
    return "-" if math.isnan(p) else "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def _sentence(comparison: Comparison, arm: ArmResult) -> str:
    difference = arm.differences.get(comparison.primary.key)
    baseline = comparison[arm.against or comparison.study.baseline]
    if difference is None:
        return f"no finished seed in common with {baseline.name}, no difference to report"
    bounds = interval_text(difference, "+.4f")
    parts = [
        f"{mean_text(difference, '+.4f')} bits per byte against {baseline.name} ({comparison.primary.title})",
        f"95 % interval {bounds}" if bounds else "",
        f"n = {difference.n}" if difference.n > 1 else "",
        *(f"{name} {_equals(p_text(p))}" for name, p in _p_values(comparison, arm) if not math.isnan(p)),
    ]
    label = "" if arm.causal and baseline.causal else f" [{NOT_CAUSAL}]"
    seen = sensitivity(difference) if difference.contains_zero else ""
    return f"{', '.join(filter(None, parts))}{label}; {'; '.join(filter(None, (verdict(difference), seen)))}"


def _p_values(comparison: Comparison, arm: ArmResult) -> Iterator[tuple[str, float]]:
    """p of the paired t test, and where there are several arms the one adjusted for their number."""
    yield "p", arm.differences[comparison.primary.key].p_value
    if len(comparison.corrected) > 1:
        yield "corrected p", comparison.corrected[arm.name]


def _equals(text: str) -> str:
    return text if text.startswith("<") else f"= {text}"


def span(values: Iterable[float], form: str = ",") -> str:
    """The smallest and largest of the values, "1 to 3", or the one they all are."""
    known = list(values)
    low, high = format(min(known, default=0), form), format(max(known, default=0), form)
    return low if low == high else f"{low} to {high}"


def listed(items: Iterable[Any]) -> str:
    """The items as words: "a, b and c"."""
    names = [str(item) for item in items]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) or "nothing that has finished yet"


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
        f"{full_name(comparison.study, name)} {mean_text(evidence.difference, '+.4f')}{label} bits per byte "
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
    each = (f"{found.title(one)} {mean_text(one.difference, '+.4f')} bits per byte" for one in kept[:NAMED])
    return f"{head}{', the largest: ' if len(kept) > NAMED else ': ' if kept else ''}{'; '.join(each)}."


def _leaks(comparison: Comparison, name: str) -> bool:
    arm: ArmResult = comparison[name]
    return not (arm.causal and comparison[str(arm.against)].causal)


def _size(comparison: Comparison, name: str) -> float:
    return abs(comparison.evidence[name].difference.mean)


def gram_name(comparison: Comparison, reference: Reference, order: int) -> str:
    """An order of n-grams by the bytes it counts, and its corpus where there are several: "n-gram, 3 bytes"."""
    corpus = f" ({_text_of(comparison, reference)})" if len(comparison.references) > 1 else ""
    return f"{gram(order)}{corpus}"


def gram(order: int) -> str:
    """An order of n-grams by the bytes it counts: "n-gram, 3 bytes"."""
    return f"n-gram, {order} {'byte' if order == 1 else 'bytes'}"


def _text_of(comparison: Comparison, reference: Reference) -> str:
    """The block whose arms are held against a reference, where it is one; else the name of its corpus."""
    titles = {part.title for part in blocks(comparison) for arm in part.arms if comparison.reference(arm) is reference}
    return titles.pop() if len(titles) == 1 and all(titles) else str(reference.corpus.get("name"))
