"""What a comparison allows one to say, in plain sentences."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from plkernel.analysis.figures import byte_unit
from plkernel.analysis.power import sensitivity
from plkernel.analysis.statistics import Estimate, PairedDifference, verdict
from plkernel.comparison import COMMON_STEP, Arm, Comparison
from plkernel.models import NOT_CAUSAL
from plkernel.studies import FINISHED


def summary(comparison: Comparison) -> str:
    """What was compared, in one sentence: arms, seeds, size, steps, bytes and corpus."""
    arms, runs = comparison.arms, comparison.study.finished()
    seeds = _range(len(arm.seeds) for arm in arms)
    sizes = [size for arm in arms for size in arm.parameters]
    model = f" of a model of {_range(sizes)} parameters" if sizes else ""
    unit, unit_name = byte_unit(max(run.result.bytes for run in runs if run.result))
    volume = _range((run.result.bytes / unit for run in runs if run.result), ".1f")
    corpora = sorted({str(run.config["corpus"].get("name")) for run in runs})
    return (
        f"{comparison.study.name} compares {_contrasts(comparison)}: "
        f"{seeds} {'seed' if seeds == '1' else 'seeds'} each{model}, "
        f"{_range(steps for arm in arms for steps in arm.steps)} steps, "
        f"{volume} {unit_name} read of {', '.join(corpora)}."
    )


def _contrasts(comparison: Comparison) -> str:
    """Which arms are compared with which."""
    named = {
        base.name: _list(arm.name for arm in comparison.others if arm.against == base.name)
        for base in comparison.baselines
    }
    marked = " (the baseline)" if len(named) == 1 else ""
    return "; ".join(f"{base}{marked} with {arms}" for base, arms in named.items())


def sentences(comparison: Comparison) -> list[str]:
    """One plain sentence per arm other than the baseline: its difference, interval, p, and what may be said."""
    return [f"{arm.name}: {_sentence(comparison, arm)}." for arm in comparison.others]


def warnings(comparison: Comparison) -> list[str]:
    """What a reader must know before believing a number: leaks, unequal steps, divergence, mixed provenance."""
    rules = (_leak, _at_edge, _unequal_steps, _diverged, _unequal_sizes, _mixed, _incomplete, _unequal_seeds)
    return [text for rule in rules for text in rule(comparison)]


def interval_text(interval: Estimate | PairedDifference, form: str) -> str:
    """The bounds as text, empty where there are none."""
    return f"{interval.low:{form}} to {interval.high:{form}}" if math.isfinite(interval.low) else ""


def p_text(p: float) -> str:
    """A p value to two digits, never as zero.

    >>> p_text(0.0312), p_text(1e-9)
    ('0.031', '< 0.0001')
    """
    return "-" if math.isnan(p) else "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def _sentence(comparison: Comparison, arm: Arm) -> str:
    difference = arm.differences.get(comparison.primary.key)
    baseline = comparison[arm.against or comparison.study.baseline]
    if difference is None:
        return f"no finished seed in common with {baseline.name}, no difference to report"
    bounds = interval_text(difference, "+.4f")
    parts = [
        f"{difference.mean:+.4f} bits per byte against {baseline.name} ({comparison.primary.title})",
        f"95 % interval {bounds}" if bounds else "",
        f"n = {difference.n}" if difference.n > 1 else "",
        *(f"{name} {_equals(p_text(p))}" for name, p in _p_values(comparison, arm) if not math.isnan(p)),
    ]
    label = "" if arm.causal and baseline.causal else f" [{NOT_CAUSAL}]"
    seen = sensitivity(difference) if difference.contains_zero else ""
    return f"{', '.join(filter(None, parts))}{label}; {'; '.join(filter(None, (verdict(difference), seen)))}"


def _p_values(comparison: Comparison, arm: Arm) -> Iterator[tuple[str, float]]:
    """p of the paired t test, and where there are several arms the one adjusted for their number."""
    yield "p", arm.differences[comparison.primary.key].p_value
    if len(comparison.corrected) > 1:
        yield "corrected p", comparison.corrected[arm.name]


def _equals(text: str) -> str:
    return text if text.startswith("<") else f"= {text}"


def _leak(comparison: Comparison) -> Iterator[str]:
    names = [arm.name for arm in comparison.arms if not arm.causal]
    if names:
        leak = "a prediction sees part of its own target, so its bits per byte do not say how well it models text"
        yield f"{_list(names)}: {NOT_CAUSAL}; {leak}."


def _at_edge(comparison: Comparison) -> Iterator[str]:
    for name, choice in comparison.tuning.items():
        if choice.at_edge:
            yield (
                f"{name}: its learning rate {choice.rate:g} is at the edge of the rates that were tried, so a better "
                "one may lie beyond."
            )


def _unequal_steps(comparison: Comparison) -> Iterator[str]:
    arms = comparison.arms
    if len({steps for arm in arms for steps in arm.steps}) < 2:
        return
    each = "; ".join(f"{arm.name} {_list(f'{steps:,}' for steps in arm.steps)}" for arm in arms)
    where = "at the last step that all reached" if comparison.primary.key == COMMON_STEP else "as they ended"
    yield (
        f"Runs took unequal numbers of steps ({each}): final values favour whoever trained longer. "
        f"Arms are compared {where}."
    )


def _diverged(comparison: Comparison) -> Iterator[str]:
    for arm in comparison.arms:
        lost = [seed for seed, value in arm.values["final_val_bpb"].items() if not math.isfinite(value)]
        if lost:
            yield f"{arm.name}, seed {_list(lost)}: the loss is not finite, so the arm has no mean."


def _unequal_sizes(comparison: Comparison) -> Iterator[str]:
    if len({sizes for arm in comparison.arms for sizes in arm.parameters}) > 1:
        yield "Arms differ in their number of parameters."


def _mixed(comparison: Comparison) -> Iterator[str]:
    runs = comparison.study.finished()
    if len({run.environment.get("commit") for run in runs}) > 1:
        yield "Runs come from different commits of the code."
    if any(run.environment.get("dirty") for run in runs):
        yield "Some runs come from code that differs from its commit (dirty)."
    if len({run.config["corpus"].get("sha256") for run in runs}) > 1:
        yield "Runs were trained on different bytes (the sha256 of their corpora differ)."


def _incomplete(comparison: Comparison) -> Iterator[str]:
    study = comparison.study
    for base in comparison.baselines:
        if not base.seeds:
            yield f"No run of the baseline {base.name} is finished: there is nothing to compare with."
    missing = sum(run.status != FINISHED for run in study.runs)
    if missing:
        yield f"{missing} of {len(study.runs)} runs are not finished; every figure covers the others only."


def _unequal_seeds(comparison: Comparison) -> Iterator[str]:
    if len({arm.seeds for arm in comparison.arms if arm.seeds}) > 1:
        yield "Arms finished different seeds: their means are not comparable, their paired differences are."


def _range(values: Iterable[float], form: str = ",") -> str:
    """The smallest and largest of the values, or the one they all are."""
    known = list(values)
    low, high = format(min(known, default=0), form), format(max(known, default=0), form)
    return low if low == high else f"{low} to {high}"


def _list(items: Iterable[Any]) -> str:
    names = [str(item) for item in items]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) or "nothing that has finished yet"
