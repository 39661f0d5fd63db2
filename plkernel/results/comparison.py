"""A study in numbers: every measure of every arm, its paired difference to the baseline, and the evidence for it."""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean

from plkernel.common.layout import SPEC, TUNING
from plkernel.results.registration import Declared, declared
from plkernel.results.statistics import (
    Cell,
    Contrast,
    Estimate,
    PairedDifference,
    SignFlip,
    Speedup,
    StandardisedEffect,
    detectable_difference,
    factorial_effects,
    holm,
    mean_interval,
    paired_difference,
    sign_flip_test,
    speedup,
    standardised_effect,
)
from plkernel.results.study import Choice, Reference, Run, Study, choices, read_study

ALPHA = 0.05
COMMON_STEP, EXCESS = "val_bpb_common_step", "excess_bpb"
Levels = Mapping[str, tuple[str, ...]]
"""The levels of every factor, by name."""


@dataclass(frozen=True)
class Measure:
    """One number per run, in bits per byte: its key in files and its title in tables."""

    key: str
    title: str
    of: Callable[[Run], float | None]


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
    flips       the exact sign-flip test; None for one seed
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
class Cost:
    """Cost of some finished runs.

    seconds           mean wall time of a run, its evaluations included
    bytes_per_second  training bytes read in all, by all seconds; None for runs that took no time
    hours             of all runs together
    core_hours        hours times threads; None where a run was on a GPU or tells no threads
    """

    runs: int
    seconds: float
    bytes_per_second: float | None
    hours: float
    core_hours: float | None


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
    def causal(self) -> bool:
        """True if every number is a likelihood."""
        return all(arm.causal for arm in self.arms)

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
        return arm.removesuffix(end) if end and arm != end else arm

    @cached_property
    def blocks(self) -> list[Block]:
        """The blocks that have a finished run, in the order of the study; one without a title if it has no blocks."""
        groups: dict[tuple[str, ...], list[ArmResult]] = {}
        for arm in self.arms:
            groups.setdefault(tuple(self.levels(arm.name).values()), []).append(arm)
        blocks = []
        for levels, arms in groups.items():
            against = [arm.against for arm in arms if arm.against is not None]
            base = max(against, key=against.count) if against else arms[0].name
            slug = "".join(f"-{re.sub(r'[^A-Za-z0-9.-]+', '-', level)}" for level in levels)
            ordered = tuple(sorted(arms, key=lambda arm: arm.name != base))
            blocks.append(Block(self.title(ordered[0].name), slug, base, ordered))
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
        return holm({arm.name: arm.differences[key].p_value for arm in self.others if key in arm.differences})

    @cached_property
    def evidence(self) -> dict[str, Evidence]:
        """The evidence for the difference of every arm in the primary measure, for arms that have one."""
        evidence = {}
        for name, p in self.corrected.items():
            one = self[name].differences[self.primary.key]
            evidence[name] = Evidence(
                difference=one,
                corrected=p,
                flips=sign_flip_test(one.per_seed.values()) if one.n > 1 else None,
                effect=standardised_effect(one),
                detectable=detectable_difference(one.standard_deviation, one.n),
                earlier=speedup(self.study.curves(name), self.study.curves(str(self[name].against))),
            )
        return evidence

    @property
    def excluding(self) -> list[str]:
        """The arms whose interval excludes zero, without any correction."""
        return [name for name, one in self.evidence.items() if one.excludes_zero]

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
        levels = factor_levels(self.study)
        cells = {
            tuple(own[name] for name in levels): arm
            for arm in self.arms
            if len(levels) > 1 and levels.keys() <= (own := self.study.levels(arm.name)).keys()
        }
        every = {
            cell: {seed: value for seed, value in arm.values[self.primary.key].items() if math.isfinite(value)}
            for cell, arm in cells.items()
        }
        likelihoods = {cell: values for cell, values in every.items() if cells[cell].causal}
        effects = []
        for values in [likelihoods, every] if len(likelihoods) < len(every) else [every]:
            if chosen := _largest_part(levels, values):
                causal = all(cells[cell].causal for cell in itertools.product(*chosen.values()))
                effects.append(_effects(levels, chosen, values, causal))
        return effects

    def cost(self, arm: str | None = None) -> Cost | None:
        """Cost of the finished runs, of one arm or of all."""
        return _cost(self.study.finished(arm))

    @cached_property
    def search_cost(self) -> Cost | None:
        """Cost of the search for learning rates; None where there was none."""
        folder = self.study.folder / TUNING
        return _cost(read_study(folder).finished()) if (folder / SPEC).exists() else None

    @property
    def hardware(self) -> dict[str, int]:
        """Number of finished runs by machine, in words: processor or GPU, and threads."""
        machines: dict[str, int] = {}
        for run in self.study.finished():
            facts, threads = run.environment.get("hardware") or {}, run.environment.get("threads")
            name = str(facts.get("gpu") or facts.get("cpu") or "")
            name += f", {threads} {'thread' if threads == 1 else 'threads'}" if name and threads else ""
            if name:
                machines[name] = machines.get(name, 0) + 1
        return machines


def compare(study: Study, registration: Path | None = None) -> Comparison:
    """Compare every arm with the one it names or else the study's baseline, paired by seed.

    registration: of the study, where it is not in its folder. Raises ValueError when no run is finished.
    """
    runs = study.finished()
    if not runs:
        states = ", ".join(sorted({run.status for run in study.runs}))
        raise ValueError(f"folder: {study.folder} holds no finished run (only {states}), finish one first")
    measures = _measures(study, runs)
    started = [name for name in study.arms if study.finished(name)]
    needed = {study.baseline, *started, *filter(None, map(study.against, started))}
    names = sorted(needed, key=lambda name: (name != study.baseline, study.arms.index(name)))
    values: dict[str, dict[str, dict[int, float]]] = {
        name: {
            measure.key: {run.seed: value for run in study.finished(name) if (value := measure.of(run)) is not None}
            for measure in measures
        }
        for name in names
    }
    common = (study.spec.get("tuning") or {}).get("rates") or ()
    return Comparison(
        study=study,
        measures=measures,
        primary=next((measure for measure in measures if measure.key == COMMON_STEP), measures[0]),
        arms=tuple(_arm(study, name, values) for name in names),
        tuning=choices({name: study.spec["arms"][name].get("rates") or common for name in names}, study.folder),
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


def _measures(study: Study, runs: Sequence[Run]) -> tuple[Measure, ...]:
    def at(step: int) -> Callable[[Run], float | None]:
        return lambda run: run.at_step(step)

    titles = {"final_val_bpb": "final validation", "best_val_bpb": "best validation", "test_bpb": "test"}
    measures = [Measure(key, title, lambda run, key=key: getattr(run.result, key)) for key, title in titles.items()]  # type: ignore[misc]
    if any(run.evaluations and run.evaluations[-1].excess_bpb is not None for run in runs):
        measures.append(Measure(EXCESS, "final validation above the floor", lambda run: run.evaluations[-1].excess_bpb))
    shared = set.intersection(*({row.step for row in run.evaluations} for run in runs)) - {0}
    if shared and len({run.result.steps for run in runs if run.result}) > 1:
        last = max(shared)
        measures.append(Measure(COMMON_STEP, f"validation at step {last:,}, the last in common", at(last)))
    for step in study.report_steps:
        if any(run.at_step(step) is not None for run in runs):
            measures.append(Measure(f"val_bpb_step_{step}", f"validation at step {step:,}", at(step)))
    return tuple(measures)


def _arm(study: Study, name: str, values: Mapping[str, Mapping[str, Mapping[int, float]]]) -> ArmResult:
    runs, against = study.finished(name), study.against(name)
    differences = {}
    if against is not None:
        for key, own in values[name].items():
            if set(own) & set(values[against][key]):
                differences[key] = paired_difference(own, values[against][key])
    return ArmResult(
        name=name,
        against=against,
        causal=all(run.result.causal for run in runs if run.result),
        seeds=tuple(run.seed for run in runs),
        parameters=tuple(sorted({size for run in runs if (size := run.config["model"].get("parameters"))})),
        steps=tuple(sorted({run.result.steps for run in runs if run.result})),
        values=values[name],
        estimates={key: mean_interval(own.values()) for key, own in values[name].items() if own},
        differences=differences,
    )


def _largest_part(levels: Levels, values: Mapping[Cell, Mapping[int, float]]) -> dict[str, tuple[str, ...]] | None:
    """The complete part of the design that holds the most runs; None unless two factors and two seeds are left."""
    best, most = None, 0
    for least in sorted({len(one) for one in values.values()}):
        chosen = complete_part(levels, {cell for cell, of in values.items() if len(of) >= max(least, 2)})
        if chosen is None or sum(len(of) > 1 for of in chosen.values()) < 2:
            continue
        cells = list(itertools.product(*chosen.values()))
        seeds = len(set.intersection(*(set(values[cell]) for cell in cells)))
        if seeds > 1 and len(cells) * seeds > most:
            best, most = chosen, len(cells) * seeds
    return best


def complete_part(levels: Levels, present: set[Cell]) -> dict[str, tuple[str, ...]] | None:
    """Levels such that every combination of them is `present`; None where nothing is.

    The level with the largest share of missing combinations goes first, of equals the later one, until none misses.
    """
    left = {name: list(of) for name, of in levels.items()}
    while True:
        cells = list(itertools.product(*left.values()))
        missing = [cell for cell in cells if cell not in present]
        if not missing:
            return {name: tuple(of) for name, of in left.items()}
        shares = [
            (sum(cell[place] == level for cell in missing) * len(of) / len(cells), index, name)
            for place, (name, of) in enumerate(left.items())
            for index, level in enumerate(of)
            if len(of) > 1
        ]
        if not shares:
            return None
        _, index, name = max(shares)
        del left[name][index]


def _effects(levels: Levels, chosen: Levels, values: Mapping[Cell, Mapping[int, float]], causal: bool) -> Effects:
    varying = {name: of for name, of in chosen.items() if len(of) > 1}
    kept = [place for place, name in enumerate(chosen) if name in varying]
    part = {tuple(cell[place] for place in kept): values[cell] for cell in itertools.product(*chosen.values())}
    contrasts = factorial_effects(part, varying)
    left_out = {name: tuple(level for level in of if level not in chosen[name]) for name, of in levels.items()}
    seeds = tuple(contrasts[0].difference.per_seed)
    seen = {seed for of in part.values() for seed in of}
    p = holm({str(place): one.difference.p_value for place, one in enumerate(contrasts)})
    return Effects(
        levels=varying,
        fixed={name: of[0] for name, of in chosen.items() if len(of) == 1},
        left_out={name: of for name, of in left_out.items() if of},
        causal=causal,
        cells=len(part),
        seeds=seeds,
        dropped_seeds=tuple(sorted(seen - set(seeds))),
        contrasts=tuple(contrasts),
        corrected=tuple(p.values()),
    )


def _cost(runs: Iterable[Run]) -> Cost | None:
    ended = [(run, run.result) for run in runs if run.result is not None]
    if not ended:
        return None
    seconds, threads = sum(result.seconds for _, result in ended), []
    for run, _ in ended:
        on_gpu = (run.environment.get("hardware") or {}).get("gpu")
        threads.append(None if on_gpu else run.environment.get("threads"))
    known = [result.seconds * of for of, (_, result) in zip(threads, ended, strict=True) if of is not None]
    return Cost(
        runs=len(ended),
        seconds=fmean(result.seconds for _, result in ended),
        bytes_per_second=sum(result.bytes for _, result in ended) / seconds if seconds > 0 else None,
        hours=seconds / 3600,
        core_hours=sum(known) / 3600 if len(known) == len(ended) else None,
    )
