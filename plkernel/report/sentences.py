"""What a comparison allows one to say, in plain sentences."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from plkernel.analysis.figures.style import byte_unit
from plkernel.analysis.statistics.differences import Estimate, PairedDifference, verdict
from plkernel.analysis.statistics.power import sensitivity
from plkernel.models.words import NOT_CAUSAL
from plkernel.report.comparison import Arm, Comparison


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


def span(values: Iterable[float], form: str = ",") -> str:
    """The smallest and largest of the values, "1 to 3", or the one they all are."""
    known = list(values)
    low, high = format(min(known, default=0), form), format(max(known, default=0), form)
    return low if low == high else f"{low} to {high}"


def listed(items: Iterable[Any]) -> str:
    """The items as words: "a, b and c"."""
    names = [str(item) for item in items]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) or "nothing that has finished yet"
