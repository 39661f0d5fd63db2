"""A comparison in words: numbers as text, conclusions, and cautions."""

import math
from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

from plkernel.analysis.figures.style import byte_unit
from plkernel.common.cli import finer, written
from plkernel.common.layout import FINISHED
from plkernel.memory.diagnostics import outlasting
from plkernel.models import NOT_CAUSAL
from plkernel.results.comparison import COMMON_STEP, ArmResult, Comparison, Effects
from plkernel.results.statistics import Estimate, Judgement, PairedDifference

FEW = 4
"""Up to so many compared arms get a sentence each and are named in cautions; more are counted."""
NAMED = 3
"""Number of largest differences that are named."""


def mean_text(one: Estimate | Judgement, form: str = "+.4f") -> str:
    """Format the mean with as many digits as its interval needs; "not finite" where it is not."""
    if not math.isfinite(one.mean):
        return "not finite"
    text = f"{one.mean:{finer(form, one.low, one.high)}}"
    return text if float(text) else text.lstrip("+-")


def interval_text(one: Estimate | Judgement, form: str = "+.4f") -> str:
    """Format the bounds; empty where there are none."""
    form = finer(form, one.low, one.high)
    return f"{written(one.low, form)} to {written(one.high, form)}" if math.isfinite(one.low) else ""


def p_text(p: float) -> str:
    """Format a p value with two digits, never as zero.

    >>> p_text(0.0312), p_text(1e-9)
    ('0.031', '< 0.0001')
    """
    return "-" if math.isnan(p) else "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def span(values: Iterable[float], form: str = ",") -> str:
    """Format the smallest and largest value, "1 to 3", or the one value that all are."""
    known = list(values)
    low, high = format(min(known, default=0), form), format(max(known, default=0), form)
    return low if low == high else f"{low} to {high}"


def listed(items: Iterable[Any]) -> str:
    """Join items as words: "a, b and c"."""
    names = [str(item) for item in items]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) or "nothing that has finished yet"


# Conclusions


def overview(comparison: Comparison) -> list[str]:
    """Sentences on the whole study: the conclusion, the arms and their runs, differences, power and effects."""
    others = comparison.others
    named = others if len(others) <= FEW else [comparison[name] for name in comparison.surviving[:NAMED]]
    differences = [sentence(comparison, arm) for arm in named]
    effects = map(effects_sentence, comparison.effects[:1])
    return [_conclusion(comparison), _compared(comparison), *differences, *_detectable(comparison), *effects]


def _conclusion(comparison: Comparison) -> str:
    """Number of significant differences."""
    tested = [one.difference.n for one in comparison.evidence.values() if one.difference.n > 1]
    kept, many = comparison.surviving, len(tested)
    if not tested:
        return "No arm shares two seeds with the arm it is compared with: no interval, no claim."
    leak = f", {NOT_CAUSAL}" if kept and all(comparison.leaks(comparison[name]) for name in kept) else ""
    how = f"significant ({'Holm-corrected, ' if many > 1 else ''}{span(tested)} seeds){leak}"
    if many == 1:
        return f"The difference is {'' if kept else 'not '}{how}."
    if not kept:
        return f"{'Neither difference' if many == 2 else f'None of {many} differences'} is {how}."
    below = sum(comparison.evidence[name].difference.mean < 0 for name in kept)
    return (
        f"{len(kept)} of {many} differences {'is' if len(kept) == 1 else 'are'} {how}, {below} below the baseline and "
        f"{len(kept) - below} above."
    )


def sentence(comparison: Comparison, arm: ArmResult) -> str:
    """The difference of an arm, its interval and p, and what may be concluded."""
    difference = arm.differences.get(comparison.primary.key)
    if difference is None:
        return f"{arm.name}: no finished seed in common with {arm.against}, no difference to report."
    parts = [f"{mean_text(difference)} bits per byte against {arm.against} ({comparison.primary.title})"]
    parts += [f"95 % interval {bounds}"] if (bounds := interval_text(difference)) else []
    parts += [f"n = {difference.n}"] if difference.n > 1 else []
    p = {"p": difference.p_value}
    if len(comparison.corrected) > 1:
        p["corrected p"] = comparison.corrected[arm.name]
    told = {name: p_text(value) for name, value in p.items() if not math.isnan(value)}
    parts += [f"{name} {text}" if text[0] == "<" else f"{name} = {text}" for name, text in told.items()]
    label = f" [{NOT_CAUSAL}]" if comparison.leaks(arm) else ""
    return f"{arm.name}: {', '.join(parts)}{label}; {verdict(difference)}."


def _compared(comparison: Comparison) -> str:
    """Arms, baselines, seeds, size, steps, bytes and corpus in one sentence."""
    arms, others = comparison.arms, comparison.others
    bases = list(dict.fromkeys(comparison.short(base.name) for base in comparison.baselines))
    runs = [(run, run.result.bytes) for run in comparison.study.finished() if run.result]
    unit, unit_name = byte_unit(max(size for _, size in runs))
    seeds, sizes = span(len(arm.seeds) for arm in arms), [size for arm in arms for size in arm.parameters]
    facts = [
        f"{seeds} {'seed' if seeds == '1' else 'seeds'} each",
        *([f"{span(sizes)} parameters"] if sizes else []),
        f"{span(steps for arm in arms for steps in arm.steps)} steps",
        f"{span((size / unit for _, size in runs), '.1f')} {unit_name} read of "
        + listed(sorted({str(run.config["corpus"].get("name")) for run, _ in runs})),
    ]
    return (
        f"{comparison.study.name} compares {_arms([arm.name for arm in others])} with "
        f"{listed(bases) if len(bases) <= NAMED else f'{len(bases)} others'}: {', '.join(facts)}."
    )


def _detectable(comparison: Comparison) -> Iterator[str]:
    """The difference that so many seeds find, once for the study."""
    if every := [one for one in comparison.evidence.values() if not math.isnan(one.detectable)]:
        sizes = [one.detectable for one in every]
        yield (
            f"With {span(one.difference.n for one in every)} seeds and this spread, one comparison on its own finds a "
            f"difference of {median(sizes):.2g} bits per byte 8 times in 10 (median over arms; {span(sizes, '.2g')})."
        )


def effects_sentence(one: Effects) -> str:
    """Number of significant effects of the factors, and the largest of them."""
    kept = one.surviving
    each = "; ".join(f"{one.title(each)} {mean_text(each.difference)} bits per byte" for each in kept[:NAMED])
    return (
        f"Over the {one.cells} combinations of {listed(map(one.short, one.levels))}"
        f"{'' if one.causal else f' ({NOT_CAUSAL})'}, {len(kept) or 'none'} of {len(one.contrasts)} main effects and "
        f"interactions {'is' if len(kept) == 1 else 'are'} significant (Holm-corrected)"
        f"{f', the largest: {each}' if kept else ''}."
    )


def verdict(difference: PairedDifference) -> str:
    """Conclusion from the interval alone, without a full stop."""
    n = difference.n
    if n == 1:
        return "one seed: no interval, no claim"
    if not math.isfinite(difference.mean):
        return "a run has no finite value: no interval, no claim"
    if not any(difference.per_seed.values()):
        return f"no difference in any of {n} seeds: the runs are identical"
    if difference.contains_zero:
        return f"the interval contains zero: no difference is shown with {n} seeds"
    direction = "lower" if difference.mean < 0 else "higher"
    return f"the interval excludes zero: {direction} than the baseline over {n} seeds"


# Cautions


def warnings(comparison: Comparison) -> list[str]:
    """Cautions before any number is believed: leaks, n-grams that do better, unequal runs, damage."""
    study, arms, runs = comparison.study, comparison.arms, comparison.study.finished()
    leaking = [arm.name for arm in arms if not arm.causal]
    edge = {name: f"{choice.rate:g}" for name, choice in comparison.tuning.items() if choice.at_edge}
    common = "at the last step that all reached" if comparison.primary.key == COMMON_STEP else "as they ended"
    digests: dict[str, set[Any]] = {}
    for run in runs:
        asked = {name: value for name, value in run.config["corpus"].items() if name not in ("sha256", "size")}
        digests.setdefault(str(asked), set()).add(run.config["corpus"].get("sha256"))
    beaten: dict[tuple[int, float], list[str]] = {}
    for arm in arms:
        if (one := comparison.reference(arm)) and (final := arm.estimates.get("final_val_bpb")):
            better = [pair for pair in zip(one.orders, one.val_bpb, strict=True) if pair[1] < final.mean]
            for pair in better[:1]:
                beaten.setdefault(pair, []).append(arm.name)
    wrong = [run.name for run in runs if not run.agrees]
    missing = sum(run.status != FINISHED for run in study.runs)
    rules: dict[str, object] = {
        f"{_arms(leaking)}: {NOT_CAUSAL}; a prediction sees part of its own target, so its bits per byte do not say "
        "how well it models text.": leaking,
        **{text: True for arm in arms for text in _arm_at_fault(comparison, arm)},
        **{
            f"{_arms(names)}: worse on the validation windows than n-grams of order {order} "
            f"({loss:.4f}), so the loss says nothing about {'memory' if order == 1 else 'longer memory'}.": True
            for (order, loss), names in sorted(beaten.items())
        },
        f"{_arms(list(edge))}: learning rate {listed(dict.fromkeys(edge.values()))} is at the edge of those tried, a "
        "better one may lie beyond.": edge,
        "Runs took unequal numbers of steps: final values favour whoever trained longer. Arms are compared "
        f"{common}.": _differ(taken for arm in arms for taken in arm.steps),
        "Arms differ in their number of parameters.": _differ(size for arm in arms for size in arm.parameters),
        "Arms finished different seeds: their means are not comparable, their paired differences are.": _differ(
            arm.seeds for arm in arms if arm.seeds
        ),
        "Runs come from different commits of the code.": _differ(run.environment.get("commit") for run in runs),
        "Some runs come from code that differs from its commit (dirty).": any(
            run.environment.get("dirty") for run in runs
        ),
        "Runs were trained on different bytes (the sha256 of their corpora differ).": any(
            map(_differ, digests.values())
        ),
        f"The rows of {listed(wrong[:FEW])} are not those of its result: bring metrics.jsonl back, or remove the run's "
        "folder and train it again.": wrong,
        **{
            f"No run of the baseline {base.name} is finished: there is nothing to compare with.": not base.seeds
            for base in comparison.baselines
        },
        f"{missing} of {len(study.runs)} runs are not finished; every figure covers the others only.": missing,
    }
    return [text for text, condition in rules.items() if condition]


def _differ(values: Iterable[Any]) -> bool:
    return len(set(values)) > 1


def _arms(names: list[str]) -> str:
    """Few arms by their names, many by their number."""
    return listed(names) if len(names) <= FEW else f"{len(names)} arms"


def _arm_at_fault(comparison: Comparison, arm: ArmResult) -> Iterator[str]:
    for run in comparison.study.finished(arm.name)[:1]:
        known, context = run.first.get("half_life_quantiles"), (run.config.get("train") or {}).get("context")
        if known and context and (words := outlasting(known, context)):
            yield f"{arm.name}: {words}."
    if lost := [seed for seed, value in arm.values["final_val_bpb"].items() if not math.isfinite(value)]:
        yield f"{arm.name}, seed {listed(lost)}: the loss is not finite, so the arm has no mean."
