"""A comparison in words: what may be concluded, and what must be known before."""

import math
from collections.abc import Collection, Iterable, Iterator
from statistics import median
from typing import Any

from plkernel.analysis.figures.style import byte_unit
from plkernel.common.cli import finer, written
from plkernel.common.layout import FINISHED
from plkernel.memory.diagnostics import outlasting
from plkernel.models.words import NOT_CAUSAL
from plkernel.results.comparison import (
    ALPHA,
    COMMON_STEP,
    ArmResult,
    Comparison,
    Effects,
    short_factor,
)
from plkernel.results.statistics import Estimate, Judgement, PairedDifference, detectable_difference, sd_upper
from plkernel.results.study import Reference

FEW_ARMS = 4
"""So many arms beside the baseline have a sentence each at the top, and are named in warnings."""
NAMED = 3
"""The number of largest differences that are named."""


# Numbers as text


def interval_text(one: Estimate | Judgement, form: str = "+.4f") -> str:
    """The bounds as text, empty where there are none."""
    if not math.isfinite(one.low):
        return ""
    form = finer(form, one.low, one.high)
    return f"{written(one.low, form)} to {written(one.high, form)}"


def mean_text(one: Estimate | Judgement, form: str = "+.4f") -> str:
    """The mean as text, with as many digits as its interval; "not finite" where it is not."""
    if not math.isfinite(one.mean):
        return "not finite"
    text = f"{one.mean:{finer(form, one.low, one.high)}}"
    return text if float(text) else text.lstrip("+-")


def p_text(p: float) -> str:
    """A p value to two digits, never as zero.

    >>> p_text(0.0312), p_text(1e-9)
    ('0.031', '< 0.0001')
    """
    return "-" if math.isnan(p) else "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def span(values: Iterable[float], form: str = ",") -> str:
    """The smallest and largest of the values, "1 to 3", or the one they all are."""
    known = list(values)
    low, high = format(min(known, default=0), form), format(max(known, default=0), form)
    return low if low == high else f"{low} to {high}"


def listed(items: Iterable[Any]) -> str:
    """The items as words: "a, b and c"."""
    names = [str(item) for item in items]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) or "nothing that has finished yet"


def gram(order: int) -> str:
    """An order of n-grams by the bytes it counts: "n-gram, 3 bytes"."""
    return f"n-gram, {order} {'byte' if order == 1 else 'bytes'}"


def gram_name(comparison: Comparison, reference: Reference, order: int) -> str:
    """`gram`, and the name of the corpus where there are several."""
    return gram(order) + (f" ({reference.corpus.get('name')})" if len(comparison.references) > 1 else "")


# Sentences


def verdict(difference: PairedDifference) -> str:
    """What the interval allows one to say, in a plain sentence without a full stop."""
    n = difference.n
    if n == 1:
        return "one seed: no interval, no claim"
    if not math.isfinite(difference.mean):
        return "a run has no finite value: no interval, no claim"
    if all(value == 0.0 for value in difference.per_seed.values()):
        return f"no difference at all in any of {n} seeds: the runs are identical"
    if difference.contains_zero:
        return f"the interval contains zero: no difference is shown with {n} seeds"
    direction = "lower" if difference.mean < 0 else "higher"
    return f"the interval excludes zero: {direction} than the baseline over {n} seeds"


def sensitivity(difference: PairedDifference) -> str:
    """How small a difference these seeds could have shown, in a sentence without a full stop.

    From the spread that was observed, and in brackets from its 95 % upper bound.
    """
    n, sd = difference.n, difference.standard_deviation
    if not sd > 0.0 or not math.isfinite(sd):
        return "without any spread, the smallest detectable difference is unknown"
    seen, at_most = (detectable_difference(spread, n) for spread in (sd, sd_upper(sd, n)))
    return (
        f"with {n} seeds and this spread a difference of {seen:.2g} or more is found 8 times in 10 "
        f"(of {at_most:.2g} or more if the true spread is at its 95 % upper bound)"
    )


def is_large(comparison: Comparison) -> bool:
    """True if there are too many arms for a sentence each."""
    return len(comparison.others) > FEW_ARMS


def overview(comparison: Comparison) -> list[str]:
    """What was compared, and what may be said: a sentence per arm, or of many arms a few sentences on all."""
    if not is_large(comparison):
        return [summary(comparison), *sentences(comparison)]
    effects = [effects_sentence(one) for one in comparison.effects[:1]]
    return [_compared(comparison), *_significant(comparison), *_detectable(comparison), *effects]


def summary(comparison: Comparison) -> str:
    """What was compared, in one sentence: arms, seeds, size, steps, bytes and corpus."""
    pairs = {
        base.name: listed(arm.name for arm in comparison.others if arm.against == base.name)
        for base in comparison.baselines
    }
    mark = " (the baseline)" if len(pairs) == 1 else ""
    contrasts = "; ".join(f"{base}{mark} with {arms}" for base, arms in pairs.items())
    return f"{comparison.study.name} compares {contrasts}: {run_facts(comparison)}."


def run_facts(comparison: Comparison) -> str:
    """Seeds, size, steps, bytes and corpus of the finished runs, "2 seeds each of a model of ..."."""
    arms, runs = comparison.arms, comparison.study.finished()
    seeds = span(len(arm.seeds) for arm in arms)
    sizes = [size for arm in arms for size in arm.parameters]
    model = f" of a model of {span(sizes)} parameters" if sizes else ""
    unit, unit_name = byte_unit(max(run.result.bytes for run in runs if run.result))
    volume = span((run.result.bytes / unit for run in runs if run.result), ".1f")
    corpora = sorted({str(run.config["corpus"].get("name")) for run in runs})
    steps = span(steps for arm in arms for steps in arm.steps)
    each = f"{seeds} {'seed' if seeds == '1' else 'seeds'} each{model}"
    return f"{each}, {steps} steps, {volume} {unit_name} read of {', '.join(corpora)}"


def sentences(comparison: Comparison) -> list[str]:
    """One plain sentence per arm other than the baseline: its difference, interval, p, and what may be said."""
    return [f"{arm.name}: {_sentence(comparison, arm)}." for arm in comparison.others]


def _sentence(comparison: Comparison, arm: ArmResult) -> str:
    difference = arm.differences.get(comparison.primary.key)
    if difference is None:
        return f"no finished seed in common with {arm.against}, no difference to report"
    p = {"p": difference.p_value}
    if len(comparison.corrected) > 1:
        p["corrected p"] = comparison.corrected[arm.name]
    bounds = interval_text(difference)
    parts = [f"{mean_text(difference)} bits per byte against {arm.against} ({comparison.primary.title})"]
    parts += [f"95 % interval {bounds}"] if bounds else []
    parts += [f"n = {difference.n}"] if difference.n > 1 else []
    parts += [f"{name} {_equals(value)}" for name, value in p.items() if not math.isnan(value)]
    label = f" [{NOT_CAUSAL}]" if comparison.leaks(arm) else ""
    said = [verdict(difference), *([sensitivity(difference)] if difference.contains_zero else [])]
    return f"{', '.join(parts)}{label}; {'; '.join(said)}"


def _equals(p: float) -> str:
    text = p_text(p)
    return text if text.startswith("<") else f"= {text}"


def _compared(comparison: Comparison) -> str:
    bases = list(dict.fromkeys(comparison.short(base.name) for base in comparison.baselines))
    count = len(comparison.blocks)
    if any(part.title for part in comparison.blocks):
        factors = comparison.study.spec["within"]
        within = f", in {count} {'block' if count == 1 else 'blocks'} by "
        facts = f"{listed(bases)}{within}{listed(short_factor(name, factors) for name in factors)}"
    else:
        facts = listed(bases) if len(bases) <= NAMED else f"{len(bases)} others"
    return f"{comparison.study.name} compares {len(comparison.others)} arms with {facts}: {run_facts(comparison)}."


def _significant(comparison: Comparison) -> Iterator[str]:
    """The number of significant differences, and the largest of them."""

    def signs(names: Collection[str]) -> str:
        below = sum(comparison.evidence[name].difference.mean < 0 for name in names)
        return f" ({below} below, {len(names) - below} above)" if names else ""

    tested = sum(one.difference.n > 1 for one in comparison.evidence.values())
    if not tested:
        yield "No arm has two seeds in common with the arm it is compared with: no interval, no claim."
        return
    out, kept = comparison.excluding, comparison.surviving
    yield (
        f"Of {tested} differences ({comparison.primary.title}) {len(out)} {'has' if len(out) == 1 else 'have'} a 95 % "
        f"interval that excludes zero{signs(out)}; by chance {ALPHA * tested:.1f} would on average. After Holm's "
        f"correction {len(kept) or 'none'} {'is' if len(kept) == 1 else 'are'} significant at the 5 % level"
        f"{signs(kept)}."
    )
    if kept:
        some = f"The largest {NAMED} of these" if len(kept) > NAMED else "They are"
        leak = f", all of them {NOT_CAUSAL}" if all(comparison.leaks(comparison[name]) for name in kept) else ""
        yield f"{some}{leak}: {'; '.join(_measured(comparison, name) for name in kept[:NAMED])}."


def _measured(comparison: Comparison, name: str) -> str:
    one, title = comparison.evidence[name], comparison.title(name)
    label = f" [{NOT_CAUSAL}]" if comparison.leaks(comparison[name]) else ""
    return (
        f"{comparison.short(name)}{f' ({title})' if title else ''} {mean_text(one.difference)}{label} bits per byte "
        f"(95 % interval {interval_text(one.difference)}, corrected p {_equals(one.corrected)})"
    )


def _detectable(comparison: Comparison) -> Iterator[str]:
    every = [one for one in comparison.evidence.values() if not math.isnan(one.detectable)]
    if not every:
        return
    level, alone = ALPHA / len(comparison.corrected), [one.detectable for one in every]
    pairs = [(one.difference.standard_deviation, one.difference.n) for one in every]
    strict = [detectable_difference(sd, n, alpha=level) for sd, n in pairs]
    seeds = span(one.difference.n for one in comparison.evidence.values() if one.difference.n > 1)
    yield (
        f"With {seeds} seeds and the spread they showed, a difference of {median(alone):.2g} bits per "
        f"byte or more (median over arms; {span(alone, '.2g')}) is found 8 times in 10 by one comparison on its own, "
        f"of {median(strict):.2g} or more ({span(strict, '.2g')}) at the level at which the correction begins."
    )


def effects_sentence(one: Effects) -> str:
    """The number of significant effects of the factors, and the largest of them."""
    kept, count = one.surviving, len(one.contrasts)
    each = (f"{one.title(each)} {mean_text(each.difference)} bits per byte" for each in kept[:NAMED])
    largest = f"{', the largest: ' if len(kept) > NAMED else ': '}{'; '.join(each)}" if kept else ""
    return (
        f"Over the {one.cells} combinations of {listed(map(one.short, one.levels))}"
        f"{'' if one.causal else f' ({NOT_CAUSAL})'}, {len(kept) or 'none'} of {count} main effects and interactions "
        f"{'is' if len(kept) == 1 else 'are'} significant after correction{largest}."
    )


# Warnings


def warnings(comparison: Comparison) -> list[str]:
    """What a reader must know before believing a number: leaks, counts that do better, unequal runs, damage."""
    rules = (_arms_at_fault, _beaten, _rates_at_edge, _unequal, _sources, _incomplete)
    return [text for rule in rules for text in rule(comparison)]


def _arms_at_fault(comparison: Comparison) -> Iterator[str]:
    if names := [arm.name for arm in comparison.arms if not arm.causal]:
        leak = "a prediction sees part of its own target, so its bits per byte do not say how well it models text"
        yield f"{_arms(comparison, names)}: {NOT_CAUSAL}; {leak}."
    for arm in comparison.arms:
        for run in comparison.study.finished(arm.name)[:1]:
            known, context = run.first.get("half_life_quantiles"), (run.config.get("train") or {}).get("context")
            if known and context and (words := outlasting(known, context)):
                yield f"{arm.name}: {words}."
        lost = [seed for seed, value in arm.values["final_val_bpb"].items() if not math.isfinite(value)]
        if lost:
            yield f"{arm.name}, seed {listed(lost)}: the loss is not finite, so the arm has no mean."


def _beaten(comparison: Comparison) -> Iterator[str]:
    """Each arm whose likelihood is worse than counts of a few bytes, beside the shortest n-gram that beats it."""
    beaten: dict[tuple[int, float], dict[str, float]] = {}
    for arm in comparison.arms:
        reference, final = comparison.reference(arm), arm.estimates.get("final_val_bpb")
        if reference and final:
            better = (pair for pair in zip(reference.orders, reference.val_bpb, strict=True) if pair[1] < final.mean)
            if pair := next(better, None):
                beaten.setdefault(pair, {})[arm.name] = final.mean
    for (order, loss), finals in sorted(beaten.items()):
        one = len(finals) == 1
        few = len(finals) <= FEW_ARMS
        arms = listed(f"{name} ({mean:.4f})" for name, mean in finals.items()) if few else _arms(comparison, finals)
        counts = {1: "single bytes", 2: "byte pairs"}.get(order, f"{order} bytes in a row")
        memory = f"which remember {order - 1} {'byte' if order == 2 else 'bytes'}" if order > 1 else "without memory"
        yield (
            f"{arms} {'is' if one else 'are'} worse on the validation windows than counts of {counts} ({loss:.4f}), "
            f"{memory}: {'its loss says' if one else 'their losses say'} nothing about "
            f"{'longer ' if order > 1 else ''}memory."
        )


def _rates_at_edge(comparison: Comparison) -> Iterator[str]:
    taken = {name: choice.rate for name, choice in comparison.tuning.items() if choice.at_edge}
    beyond = "at the edge of the rates that were tried, so a better one may lie beyond."
    if len(taken) > FEW_ARMS:
        rates = listed(f"{rate:g}" for rate in sorted(set(taken.values())))
        yield f"{_arms(comparison, taken)}: the learning rate taken, {rates}, is {beyond}"
    else:
        yield from (f"{name}: its learning rate {rate:g} is {beyond}" for name, rate in taken.items())


def _unequal(comparison: Comparison) -> Iterator[str]:
    arms = comparison.arms
    if len({steps for arm in arms for steps in arm.steps}) > 1:
        taken: dict[str, list[str]] = {}
        for arm in arms:
            taken.setdefault(listed(f"{steps:,}" for steps in arm.steps), []).append(arm.name)
        each = "; ".join(f"{_arms(comparison, names)} {steps}" for steps, names in taken.items())
        where = "at the last step that all reached" if comparison.primary.key == COMMON_STEP else "as they ended"
        yield (
            f"Runs took unequal numbers of steps ({each}): final values favour whoever trained longer. "
            f"Arms are compared {where}."
        )
    if len({sizes for arm in arms for sizes in arm.parameters}) > 1:
        yield "Arms differ in their number of parameters."
    if len({arm.seeds for arm in arms if arm.seeds}) > 1:
        yield "Arms finished different seeds: their means are not comparable, their paired differences are."


def _sources(comparison: Comparison) -> Iterator[str]:
    runs = comparison.study.finished()
    if len({run.environment.get("commit") for run in runs}) > 1:
        yield "Runs come from different commits of the code."
    if any(run.environment.get("dirty") for run in runs):
        yield "Some runs come from code that differs from its commit (dirty)."
    digests: dict[str, set[Any]] = {}
    for run in runs:
        asked = {name: value for name, value in run.config["corpus"].items() if name not in ("sha256", "size")}
        digests.setdefault(str(asked), set()).add(run.config["corpus"].get("sha256"))
    if any(len(each) > 1 for each in digests.values()):
        yield "Runs were trained on different bytes (the sha256 of their corpora differ)."


def _incomplete(comparison: Comparison) -> Iterator[str]:
    study = comparison.study
    faults = {f"{run.arm}, seed {run.seed}": run.fault for run in study.finished() if run.fault}
    for name, fault in list(faults.items())[:FEW_ARMS]:
        yield f"{name}: {fault}; bring metrics.jsonl back, or remove the run's folder and train it again."
    if len(faults) > FEW_ARMS:
        yield f"{len(faults) - FEW_ARMS} more runs have the same fault: rows that are missing or contradict the result."
    for base in comparison.baselines:
        if not base.seeds:
            yield f"No run of the baseline {base.name} is finished: there is nothing to compare with."
    if missing := sum(run.status != FINISHED for run in study.runs):
        yield f"{missing} of {len(study.runs)} runs are not finished; every figure covers the others only."


def _arms(comparison: Comparison, names: Collection[str]) -> str:
    """Few arms by their names, of many their number."""
    return listed(names) if len(names) <= FEW_ARMS else f"{len(names)} of {len(comparison.arms)} arms"
