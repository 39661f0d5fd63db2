"""Cautions that a reader must know before believing a number of a study."""

import math
from collections.abc import Collection, Iterator

from plkernel.memory.diagnostics import outlasting
from plkernel.models.words import NOT_CAUSAL
from plkernel.records.layout import FINISHED
from plkernel.results.comparison import COMMON_STEP, Comparison, block_levels, short_factor
from plkernel.results.memory import truncated
from plkernel.results.sentences import listed

FEW_NAMES = 4


def warnings(comparison: Comparison) -> list[str]:
    """What a reader must know before believing a number: leaks, counts that do better, unequal runs, damage."""
    rules = (
        _leak,
        _beaten,
        _too_slow,
        _at_edge,
        _unequal_steps,
        _diverged,
        _unequal_sizes,
        _mixed,
        _damaged,
        _incomplete,
        _unequal_seeds,
    )
    return [text for rule in rules for text in rule(comparison)]


def _leak(comparison: Comparison) -> Iterator[str]:
    names = [arm.name for arm in comparison.arms if not arm.causal]
    if names:
        leak = "a prediction sees part of its own target, so its bits per byte do not say how well it models text"
        yield f"{_arms(comparison, names)}: {NOT_CAUSAL}; {leak}."


def _beaten(comparison: Comparison) -> Iterator[str]:
    """Likelihoods that are worse than counts of a few bytes: each arm beside the shortest n-gram that beats it."""
    found: dict[tuple[int, float], dict[str, float]] = {}
    for arm in comparison.arms:
        reference, final = comparison.reference(arm), arm.estimates.get("final_val_bpb")
        if reference and final:
            better = [pair for pair in zip(reference.orders, reference.val_bpb, strict=True) if pair[1] < final.mean]
            for pair in better[:1]:
                found.setdefault(pair, {})[arm.name] = final.mean
    for (order, loss), finals in sorted(found.items()):
        few = len(finals) <= FEW_NAMES
        arms = listed(f"{name} ({mean:.4f})" for name, mean in finals.items()) if few else _arms(comparison, finals)
        one = len(finals) == 1
        counts = {1: "single bytes", 2: "byte pairs"}.get(order, f"{order} bytes in a row")
        says, longer = "its loss says" if one else "their losses say", "longer " if order > 1 else ""
        memory = (
            f"which remember {order - 1} {'byte' if order == 2 else 'bytes'}" if order > 1 else "without any memory"
        )
        cut = any(truncated(comparison, comparison[name]) for name in finals)
        does = f"; what {'it loses' if one else 'they lose'} with fewer bytes given does" * cut
        yield (
            f"{arms} {'is' if one else 'are'} worse on the validation windows than counts of {counts} ({loss:.4f}), "
            f"{memory}: {says} nothing about {longer}memory{does}."
        )


def _too_slow(comparison: Comparison) -> Iterator[str]:
    for arm in comparison.arms:
        for run in comparison.study.finished(arm.name)[:1]:
            known = run.first.get("half_life_quantiles")
            if known and (words := outlasting(known, run.config["train"]["context"])):
                yield f"{arm.name}: {words}."


def _at_edge(comparison: Comparison) -> Iterator[str]:
    taken = {name: choice.rate for name, choice in comparison.tuning.items() if choice.at_edge}
    beyond = "at the edge of the rates that were tried, so a better one may lie beyond."
    if len(taken) > FEW_NAMES:
        rates = listed(f"{rate:g}" for rate in sorted(set(taken.values())))
        yield f"{_arms(comparison, taken)}: the learning rate taken, {rates}, is {beyond}"
        return
    for name, rate in taken.items():
        yield f"{name}: its learning rate {rate:g} is {beyond}"


def _arms(comparison: Comparison, names: Collection[str]) -> str:
    """Few arms by their names; of many what only they share, or else their number."""
    if len(names) <= FEW_NAMES:
        return listed(names)
    study = comparison.study
    everywhere = {arm.name: block_levels(study, arm.name) for arm in comparison.arms}
    for factor in study.spec.get("within") or ():
        levels = {of.get(factor) for name, of in everywhere.items() if name in names}
        level = levels.pop()
        if not levels and len(names) == sum(of.get(factor) == level for of in everywhere.values()):
            return f"All {len(names)} arms with {short_factor(factor, everywhere[next(iter(names))])} {level}"
    return f"{len(names)} of {len(everywhere)} arms"


def _unequal_steps(comparison: Comparison) -> Iterator[str]:
    arms = comparison.arms
    if len({steps for arm in arms for steps in arm.steps}) < 2:
        return
    taken: dict[str, list[str]] = {}
    for arm in arms:
        taken.setdefault(listed(f"{steps:,}" for steps in arm.steps), []).append(arm.name)
    each = "; ".join(f"{_arms(comparison, names)} {steps}" for steps, names in taken.items())
    where = "at the last step that all reached" if comparison.primary.key == COMMON_STEP else "as they ended"
    yield (
        f"Runs took unequal numbers of steps ({each}): final values favour whoever trained longer. "
        f"Arms are compared {where}."
    )


def _diverged(comparison: Comparison) -> Iterator[str]:
    for arm in comparison.arms:
        lost = [seed for seed, value in arm.values["final_val_bpb"].items() if not math.isfinite(value)]
        if lost:
            yield f"{arm.name}, seed {listed(lost)}: the loss is not finite, so the arm has no mean."


def _unequal_sizes(comparison: Comparison) -> Iterator[str]:
    if len({sizes for arm in comparison.arms for sizes in arm.parameters}) > 1:
        yield "Arms differ in their number of parameters."


def _mixed(comparison: Comparison) -> Iterator[str]:
    runs = comparison.study.finished()
    if len({run.environment.get("commit") for run in runs}) > 1:
        yield "Runs come from different commits of the code."
    if any(run.environment.get("dirty") for run in runs):
        yield "Some runs come from code that differs from its commit (dirty)."
    digests: dict[str, set[str]] = {}
    for run in runs:
        asked = {name: value for name, value in run.config["corpus"].items() if name not in ("sha256", "size")}
        digests.setdefault(str(asked), set()).add(run.config["corpus"].get("sha256"))
    if any(len(found) > 1 for found in digests.values()):
        yield "Runs were trained on different bytes (the sha256 of their corpora differ)."


def _damaged(comparison: Comparison) -> Iterator[str]:
    faults = {f"{run.arm}, seed {run.seed}": run.fault for run in comparison.study.finished() if run.fault}
    for name, fault in list(faults.items())[:FEW_NAMES]:
        yield f"{name}: {fault}; bring metrics.jsonl back, or remove the run's folder and train it again."
    if len(faults) > FEW_NAMES:
        yield f"The same holds of {len(faults) - FEW_NAMES} more runs: rows are missing or are not what results say."


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
