"""A study in numbers: every measure of every arm, its paired difference to the baseline, and the evidence for it."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from plkernel.common.layout import SPEC, TUNING
from plkernel.results import statistics as stats
from plkernel.results.registration import Declared, declared
from plkernel.results.statistics import (
    Cell,
    Contrast,
    Estimate,
    PairedDifference,
    SignFlip,
    Speedup,
    StandardisedEffect,
)
from plkernel.results.study import Choice, Reference, Run, Study, choices, read_study

ALPHA = 0.05
COMMON_STEP = "val_bpb_common_step"
TITLES = {
    "final_val_bpb": "final validation",
    "best_val_bpb": "best validation",
    "test_bpb": "test",
    "excess_bpb": "final validation above the floor",
}
Levels = Mapping[str, tuple[str, ...]]
"""The levels of every factor, by name."""


class Measure(NamedTuple):
    """One number per run, in bits per byte: its key in files and its title in tables."""

    key: str
    title: str


@dataclass(frozen=True)
class ArmResult:
    """The finished runs of one arm: values by measure and seed, their means, and differences to `against`.

    `against` is None for a baseline, which has no differences; a measure without a common seed has none either.
    """

    name: str
    against: str | None
    causal: bool
    seeds: tuple[int, ...]
    parameters: tuple[int, ...]
    steps: tuple[int, ...]
    values: Mapping[str, Mapping[int, float]]
    estimates: Mapping[str, Estimate]
    differences: Mapping[str, PairedDifference]


@dataclass(frozen=True)
class Evidence:
    """One arm's difference in the primary measure, and the evidence for it.

    corrected   p of the paired t test, adjusted for the number of arms (Holm)
    flips       the exact sign-flip test; None for one seed, and for too many to count
    detectable  the smallest difference found 8 times in 10 at this spread, by this comparison on its own
    earlier     how much earlier the arm reaches the baseline's final value: a description, no test
    """

    difference: PairedDifference
    corrected: float
    flips: SignFlip | None
    effect: StandardisedEffect
    detectable: float
    earlier: Speedup | None

    @property
    def excludes_zero(self) -> bool:
        """True if the interval, which holds for one comparison, exists and excludes zero."""
        return math.isfinite(self.difference.low) and not self.difference.contains_zero

    @property
    def survives(self) -> bool:
        """True if the difference is significant after the correction for the number of arms."""
        return self.corrected < ALPHA


@dataclass(frozen=True)
class Block:
    """Arms that are compared among themselves, the baseline first.

    title     the levels that all of them share, "gain none, patching bytes"; empty in a study without blocks
    slug      the same as the end of a file's name, "-none-bytes"
    baseline  the arm that most of them are compared with
    """

    title: str
    slug: str
    baseline: str
    arms: tuple[ArmResult, ...]

    @property
    def leaks(self) -> bool:
        """True if no arm with a finished run gives a likelihood."""
        return not any(arm.causal for arm in self.arms if arm.seeds)

    @property
    def others(self) -> tuple[ArmResult, ...]:
        """The arms that are compared with another."""
        return tuple(arm for arm in self.arms if arm.against is not None)


@dataclass(frozen=True)
class Effects:
    """Main effects and two-way interactions in a complete part of a factorial design.

    levels     of the factors that vary in this part: the first is what the others are compared with
    fixed      the factors of which one level is left
    left_out   the levels that are not in this part
    causal     True if every cell gives a likelihood
    cells      number of combinations
    corrected  p of every contrast, adjusted for their number (Holm)
    """

    levels: Levels
    fixed: Mapping[str, str]
    left_out: Levels
    causal: bool
    cells: int
    seeds: tuple[int, ...]
    dropped_seeds: tuple[int, ...]
    contrasts: tuple[Contrast, ...]
    corrected: tuple[float, ...]

    @property
    def surviving(self) -> list[Contrast]:
        """The contrasts that are significant after the correction, the largest first."""
        kept = [one for one, p in zip(self.contrasts, self.corrected, strict=True) if p < ALPHA]
        return sorted(kept, key=lambda one: -abs(one.difference.mean))

    def short(self, factor: str) -> str:
        """A factor by the last part of its name."""
        return short_factor(factor, [*self.levels, *self.fixed])

    def title(self, contrast: Contrast) -> str:
        """The subtraction: "projection: published - uniform", joined by x for an interaction."""
        named = zip(contrast.factors, contrast.levels, strict=True)
        return " x ".join(f"{self.short(factor)}: {level} - {self.levels[factor][0]}" for factor, level in named)


@dataclass(frozen=True)
class Comparison:
    """A study in numbers: every baseline (finished or not) and every arm that has a finished run.

    `primary` is the measure by which arms are compared: the final loss, or where runs took unequal numbers of steps
    the loss at the last step that all of them reached. `tuning` holds the learning rates that were searched for,
    `declared` the verdicts on the hypotheses of the study, None where it has none.
    """

    study: Study
    measures: tuple[Measure, ...]
    primary: Measure
    arms: tuple[ArmResult, ...]
    tuning: Mapping[str, Choice]
    declared: Declared | None = None

    def __getitem__(self, name: str) -> ArmResult:
        """The arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)

    @property
    def others(self) -> tuple[ArmResult, ...]:
        """The arms that are compared with another."""
        return tuple(arm for arm in self.arms if arm.against is not None)

    @property
    def baselines(self) -> tuple[ArmResult, ...]:
        """The arms that others are compared with: the study's baseline first."""
        names = dict.fromkeys([self.study.baseline, *(arm.against for arm in self.arms if arm.against)])
        return tuple(self[name] for name in names)

    def leaks(self, arm: ArmResult) -> bool:
        """True if the arm's difference is not one of likelihoods."""
        return not (arm.causal and (arm.against is None or self[arm.against].causal))

    def levels(self, arm: str) -> dict[str, str]:
        """The levels of the factors within which `arm` is compared; empty in a study without blocks."""
        own = self.study.levels(arm)
        return {name: own[name] for name in self.study.spec.get("within") or () if name in own}

    def title(self, arm: str) -> str:
        """The title of an arm's block."""
        levels = self.levels(arm)
        return ", ".join(f"{short_factor(name, levels)} {level}" for name, level in levels.items())

    def short(self, arm: str) -> str:
        """The name of an arm inside its block: log-spaced_uniform_none of the block gain none is log-spaced_uniform."""
        end = "".join(f"_{level}" for level in self.levels(arm).values()) if arm in self.study.arms else ""
        return arm.removesuffix(end) if arm != end else arm

    @cached_property
    def blocks(self) -> list[Block]:
        """The blocks that have a finished run, in the order of the study; one without a title if it has no blocks."""
        groups: dict[tuple[str, ...], list[ArmResult]] = {}
        for arm in self.arms:
            groups.setdefault(tuple(self.levels(arm.name).values()), []).append(arm)
        blocks = []
        for levels, arms in groups.items():
            against = Counter(arm.against for arm in arms if arm.against)
            base = max(against, key=against.__getitem__, default=arms[0].name)
            slug = "".join(f"-{re.sub(r'[^A-Za-z0-9.-]+', '-', level)}" for level in levels)
            ordered = tuple(sorted(arms, key=lambda arm: arm.name != base))
            blocks.append(Block(self.title(arms[0].name), slug, base, ordered))
        return blocks

    def reference(self, arm: ArmResult) -> Reference | None:
        """The n-grams that suit the arm; None where none were counted, or the arm is not causal."""
        return self.study.reference(arm.name) if arm.causal else None

    @cached_property
    def references(self) -> list[Reference]:
        """The n-grams that suit any arm, in the order of the study's file."""
        suiting = [self.reference(arm) for arm in self.arms]
        return [one for one in self.study.references if any(one is other for other in suiting)]

    @cached_property
    def corrected(self) -> dict[str, float]:
        """p of every arm's difference in the primary measure, adjusted for their number (Holm)."""
        key = self.primary.key
        return stats.holm({arm.name: arm.differences[key].p_value for arm in self.others if key in arm.differences})

    @cached_property
    def evidence(self) -> dict[str, Evidence]:
        """The evidence for the difference of every arm in the primary measure, for arms that have one."""
        evidence = {}
        for name, p in self.corrected.items():
            one, curves = self[name].differences[self.primary.key], self.study.curves
            flips = stats.sign_flip_test([*one.per_seed.values()]) if one.n > 1 else None
            detectable = stats.detectable_difference(one.standard_deviation, one.n)
            earlier = stats.speedup(curves(name), curves(str(self[name].against)))
            evidence[name] = Evidence(one, p, flips, stats.standardised_effect(one), detectable, earlier)
        return evidence

    @property
    def surviving(self) -> list[str]:
        """The arms whose difference is significant after the correction: likelihoods first, of these the largest."""
        kept = [name for name, one in self.evidence.items() if one.survives]
        return sorted(kept, key=lambda name: (self.leaks(self[name]), -abs(self.evidence[name].difference.mean)))

    @cached_property
    def effects(self) -> list[Effects]:
        """Effects of the factors in the largest complete part of the design; where cells leak first without those.

        Empty where the study has fewer than two factors, or too little of them is finished for the same seeds.
        """
        levels, key = factor_levels(self.study), self.primary.key
        arms = [arm for arm in self.arms if len(levels) > 1 and levels.keys() <= self.study.levels(arm.name).keys()]
        cells = {tuple(self.study.levels(arm.name)[name] for name in levels): arm for arm in arms}
        effects = []
        for only in (True, False) if any(not arm.causal for arm in arms) else (False,):
            values = {
                cell: {seed: value for seed, value in arm.values[key].items() if math.isfinite(value)}
                for cell, arm in cells.items()
                if arm.causal or not only
            }
            if chosen := _complete_part(levels, values):
                causal = all(cells[cell].causal for cell in product(*chosen.values()))
                effects.append(_effects(levels, chosen, values, causal))
        return effects

    def cost(self, arm: str | None = None) -> dict[str, Any] | None:
        """Cost of the finished runs, of one arm or of all."""
        return cost_of(self.study.finished(arm))

    @cached_property
    def search_cost(self) -> dict[str, Any] | None:
        """Cost of the search for learning rates; None where there was none."""
        folder = self.study.folder / TUNING
        return cost_of(read_study(folder).finished()) if (folder / SPEC).exists() else None

    @property
    def hardware(self) -> dict[str, int]:
        """Number of finished runs by machine, in words: processor or GPU, and threads."""
        machines: Counter[str] = Counter()
        for run in self.study.finished():
            facts, threads = run.environment.get("hardware") or {}, run.environment.get("threads")
            if name := facts.get("gpu") or facts.get("cpu"):
                machines[name + (f", {threads} {'thread' if threads == 1 else 'threads'}" if threads else "")] += 1
        return dict(machines)


def compare(study: Study, registration: Path | None = None) -> Comparison:
    """Every finished run of a study, compared.

    registration: the file of the study's registration, where it is not in the folder. Raises ValueError where no run
    is finished.
    """
    runs = study.finished()
    if not runs:
        states = ", ".join(sorted({run.status for run in study.runs}))
        raise ValueError(f"folder: {study.folder} holds no finished run (only {states}), finish one first")
    common = max(set.intersection(*({row.step for row in run.evaluations} for run in runs)) - {0}, default=None)
    unequal = len({run.result.steps for run in runs if run.result}) > 1
    at = {COMMON_STEP: common} if common and unequal else {}
    at |= {f"val_bpb_step_{step}": step for step in study.spec.get("report_steps") or ()}
    titles = TITLES | {key: f"validation at step {step:,}" for key, step in at.items()}
    values: dict[str, dict[str, dict[int, float]]] = {arm: {key: {} for key in titles} for arm in study.arms}
    for run in runs:
        known = vars(run.result) | {key: run.at_step(step) for key, step in at.items()}
        known["excess_bpb"] = run.evaluations[-1].excess_bpb if run.evaluations else None
        for key, of in values[run.arm].items():
            if known[key] is not None:
                of[run.seed] = known[key]
    if COMMON_STEP in titles:
        titles[COMMON_STEP] += ", the last in common"
    measures = [Measure(key, title) for key, title in titles.items() if any(of[key] for of in values.values())]
    started = [arm for arm in study.arms if study.finished(arm)]
    needed = {study.baseline, *started, *(against for arm in started if (against := study.against(arm)))}
    names = sorted(needed, key=lambda name: (name != study.baseline, study.arms.index(name)))
    rates = (study.spec.get("tuning") or {}).get("rates") or ()
    return Comparison(
        study=study,
        measures=tuple(measures),
        primary=next((measure for measure in measures if measure.key == COMMON_STEP), measures[0]),
        arms=tuple(_arm(study, name, values) for name in names),
        tuning=choices({name: study.spec["arms"][name].get("rates") or rates for name in names}, study.folder),
        declared=declared(study, registration),
    )


def short_factor(name: str, factors: Iterable[str]) -> str:
    """The last part of a factor's name, gain of model.gain, where no other factor ends likewise."""
    last = name.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in factors) == 1 else name


def factor_levels(study: Study) -> Levels:
    """The levels of every factor in the order of the spec, those of the study's baseline first."""
    levels: dict[str, dict[str, None]] = {}
    for arm in (study.baseline, *study.arms):
        for name, level in study.levels(arm).items():
            levels.setdefault(name, {})[level] = None
    return {name: tuple(of) for name, of in levels.items()}


def _arm(study: Study, name: str, values: Mapping[str, Mapping[str, Mapping[int, float]]]) -> ArmResult:
    runs, against, own = study.finished(name), study.against(name), values[name]
    other = values[against] if against else {}
    return ArmResult(
        name=name,
        against=against,
        causal=all(run.result.causal for run in runs if run.result),
        seeds=tuple(run.seed for run in runs),
        parameters=tuple(sorted({size for run in runs if (size := run.config["model"].get("parameters"))})),
        steps=tuple(sorted({run.result.steps for run in runs if run.result})),
        values=own,
        estimates={key: stats.mean_interval(of.values()) for key, of in own.items() if of},
        differences={
            key: stats.paired_difference(own[key], of) for key, of in other.items() if of.keys() & own[key].keys()
        },
    )


def _complete_part(levels: Levels, values: Mapping[Cell, Mapping[int, float]]) -> Levels | None:
    """Levels all of whose combinations share two seeds or more; None unless two factors are left.

    The level with the largest share of missing combinations goes first, of equals the later one, until none misses.
    """
    present = {cell for cell, of in values.items() if len(of) > 1}
    left = {name: list(of) for name, of in levels.items()}
    while missing := set(product(*left.values())) - present:
        shares = [
            (sum(cell[place] == level for cell in missing) * len(of), index, name)
            for place, (name, of) in enumerate(left.items())
            for index, level in enumerate(of)
            if len(of) > 1
        ]
        if not shares:
            return None
        _, index, name = max(shares)
        del left[name][index]
    seeds = set.intersection(*(set(values[cell]) for cell in product(*left.values())))
    enough = len(seeds) > 1 and sum(len(of) > 1 for of in left.values()) > 1
    return {name: tuple(of) for name, of in left.items()} if enough else None


def _effects(levels: Levels, chosen: Levels, values: Mapping[Cell, Mapping[int, float]], causal: bool) -> Effects:
    varying = {name: of for name, of in chosen.items() if len(of) > 1}
    kept = [place for place, name in enumerate(chosen) if name in varying]
    part = {tuple(cell[place] for place in kept): values[cell] for cell in product(*chosen.values())}
    contrasts = stats.factorial_effects(part, varying)
    left_out = {name: tuple(level for level in of if level not in chosen[name]) for name, of in levels.items()}
    seeds = tuple(contrasts[0].difference.per_seed)
    return Effects(
        levels=varying,
        fixed={name: of[0] for name, of in chosen.items() if len(of) == 1},
        left_out={name: of for name, of in left_out.items() if of},
        causal=causal,
        cells=len(part),
        seeds=seeds,
        dropped_seeds=tuple(sorted(set().union(*part.values()) - set(seeds))),
        contrasts=tuple(contrasts),
        corrected=tuple(stats.holm({str(at): one.difference.p_value for at, one in enumerate(contrasts)}).values()),
    )


def cost_of(runs: Iterable[Run]) -> dict[str, Any] | None:
    """Mean seconds of a run, bytes read per second, hours of all, and core hours (None on a GPU); None for no runs."""
    ended = [(run.result, run.environment) for run in runs if run.result]
    seconds, read = sum(result.seconds for result, _ in ended), sum(result.bytes for result, _ in ended)
    cores = [None if (of.get("hardware") or {}).get("gpu") else of.get("threads") for _, of in ended]
    core_seconds = sum(result.seconds * (threads or 0) for threads, (result, _) in zip(cores, ended, strict=True))
    if not ended:
        return None
    return {
        "runs": len(ended),
        "seconds": seconds / len(ended),
        "bytes_per_second": read / seconds if seconds > 0 else None,
        "hours": seconds / 3600,
        "core_hours": None if None in cores else core_seconds / 3600,
    }


# table.json


def table(comparison: Comparison) -> dict[str, Any]:
    """Every number of the report: per arm and measure the values by seed, n, mean and interval; NaN stays NaN."""
    study, one = comparison.study, comparison.declared
    values = {
        "study": study.name,
        "baseline": study.baseline,
        "confidence": 0.95,
        "interval": "t, per comparison, not corrected for the number of arms; p_corrected (Holm) is",
        "unit": "bits per byte",
        "primary": comparison.primary.key,
        "excluding_zero": [name for name, each in comparison.evidence.items() if each.excludes_zero],
        "surviving_correction": comparison.surviving,
        "declared": one
        and {
            "summary": [one.headline, *one.provenance],
            "registration": one.registration
            and {"sha256": one.registration.sha256, "intact": one.registration.intact, "changes": one.changes},
            "gates": [{**dict(gate.gate), **vars(gate.estimate), "passed": gate.passed} for gate in one.gates],
            "hypotheses": [
                dict(each.hypothesis)
                | vars(each.judgement)
                | {"verdict": one.verdict(each), "registered": each.registered, "per_seed": each.per_seed}
                for each in one.outcomes
            ],
        },
        "arms": [_arm_row(comparison, arm) for arm in comparison.arms],
        "factorial": [
            {key: value for key, value in vars(of).items() if key != "corrected"}
            | {
                "contrasts": [
                    {"effect": of.title(each), "order": each.order, **vars(each.difference), "p_corrected": p}
                    for each, p in zip(of.contrasts, of.corrected, strict=True)
                ]
            }
            for of in comparison.effects
        ],
        "references": [of.model_dump(include=set(type(of).model_fields)) for of in study.references],
        "costs": {"study": comparison.cost(), "search": comparison.search_cost, "hardware": comparison.hardware},
        "runs": [{"arm": run.arm, "seed": run.seed, "status": run.status} for run in study.runs],
    }
    return dict(_plain(values))


def _arm_row(comparison: Comparison, arm: ArmResult) -> dict[str, Any]:
    measures = {key: {"per_seed": arm.values[key], **vars(estimate)} for key, estimate in arm.estimates.items()}
    for key, difference in arm.differences.items():
        measures[key]["difference_to_baseline"] = vars(difference)
    known = comparison.evidence.get(arm.name)
    evidence = known and {
        "excludes_zero": known.excludes_zero,
        "survives_correction": known.survives,
        "sign_flip": known.flips,
        "standardised_effect": known.effect,
        "detectable_difference": known.detectable,
        "earlier": known.earlier,
    }
    return {
        "arm": arm.name,
        "block": comparison.levels(arm.name),
        "levels": comparison.study.levels(arm.name),
        "p_corrected": comparison.corrected.get(arm.name),
        "n": len(arm.seeds),
        **{key: getattr(arm, key) for key in ("against", "causal", "seeds", "parameters", "steps")},
        "measures": measures,
        "evidence": evidence,
        "cost": comparison.cost(arm.name),
    }


def _plain(value: Any) -> Any:
    """Dataclasses and named tuples as objects; keys as texts."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    elif hasattr(value, "__dataclass_fields__"):
        value = vars(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
