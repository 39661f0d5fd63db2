"""A study in numbers: every measure of every arm, and its paired difference to the baseline."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from plkernel.analysis.statistics.differences import Estimate, PairedDifference, holm, mean_interval, paired_difference
from plkernel.declared.verdicts import Declared, declared
from plkernel.records.references import Reference
from plkernel.records.study import Run, Study
from plkernel.records.tuning import Choice, choices
from plkernel.results.evidence import Evidence, weigh

CONFIDENCE = 0.95
COMMON_STEP, EXCESS = "val_bpb_common_step", "excess_bpb"


@dataclass(frozen=True)
class Measure:
    """One number per run, in bits per byte: its key in files and its title in tables."""

    key: str
    title: str
    of: Callable[[Run], float | None]


@dataclass(frozen=True)
class ArmResult:
    """The finished runs of one arm: values by measure and seed, their means, and differences to the baseline.

    `against` is the arm that this one is compared with, None for a baseline. `differences` lacks the measures that no
    common seed has, and is empty for a baseline.
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
class Comparison:
    """A study in numbers: every baseline (finished or not) and every arm that has a finished run.

    `primary` is the measure by which arms are compared: the final loss, or where runs took unequal numbers of steps
    the loss at the last step that all of them reached. `tuning` holds the learning rates that were searched for,
    `declared` the verdicts on what the study declared, None where that is nothing.
    """

    study: Study
    measures: tuple[Measure, ...]
    primary: Measure
    arms: tuple[ArmResult, ...]
    tuning: Mapping[str, Choice]
    declared: Declared | None = None

    @property
    def causal(self) -> bool:
        """Whether every number is a likelihood."""
        return all(arm.causal for arm in self.arms)

    @property
    def baselines(self) -> tuple[ArmResult, ...]:
        """The arms that others are compared with: the study's baseline first."""
        names = dict.fromkeys([self.study.baseline, *(arm.against for arm in self.arms if arm.against)])
        return tuple(self[name] for name in names)

    def reference(self, arm: ArmResult) -> Reference | None:
        """What n-grams reach where the arm is judged; None where that was not counted, or the arm is not causal."""
        return self.study.reference(arm.name) if arm.causal else None

    @cached_property
    def references(self) -> list[Reference]:
        """What n-grams reach wherever an arm is judged, in the order of the study's file."""
        found = [self.reference(arm) for arm in self.arms]
        return [one for one in self.study.references if any(one is other for other in found)]

    @cached_property
    def corrected(self) -> dict[str, float]:
        """p of every arm's difference in the primary measure, adjusted for their number (Holm)."""
        found = {arm.name: arm.differences.get(self.primary.key) for arm in self.others}
        return holm({name: difference.p_value for name, difference in found.items() if difference is not None})

    @cached_property
    def evidence(self) -> dict[str, Evidence]:
        """What speaks for the difference of every arm in the primary measure, for arms that have one."""
        curves = self.study.curves
        return {
            arm.name: weigh(difference, self.corrected[arm.name], curves(arm.name), curves(arm.against))
            for arm in self.others
            if arm.against and (difference := arm.differences.get(self.primary.key)) is not None
        }

    @property
    def others(self) -> tuple[ArmResult, ...]:
        """The arms that are compared with another."""
        return tuple(arm for arm in self.arms if arm.against is not None)

    def __getitem__(self, name: str) -> ArmResult:
        """The arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)


def compare(study: Study, registration: Path | None = None) -> Comparison:
    """Compare every arm with the one it names or else the study's baseline, paired by seed.

    registration: of the study, where it is not in its folder. Raises ValueError when no run is finished.
    """
    runs = study.finished()
    if not runs:
        states = ", ".join(sorted({run.status for run in study.runs}))
        raise ValueError(f"folder: {study.folder} holds no finished run (only {states}), finish one first")
    measures = tuple(_measures(study, runs))
    started = [name for name in study.arms if study.finished(name)]
    needed = {study.baseline, *filter(None, map(study.against, started))}
    names = sorted({*needed, *started}, key=lambda name: (name != study.baseline, study.arms.index(name)))
    values = {name: _all_values(study, name, measures) for name in names}
    arms = tuple(_arm(study, name, values) for name in values)
    primary = next((measure for measure in measures if measure.key == COMMON_STEP), measures[0])
    common = (study.spec.get("tuning") or {}).get("rates") or ()
    grids = {name: study.spec["arms"][name].get("rates") or common for name in names}
    return Comparison(study, measures, primary, arms, choices(grids, study.folder), declared(study, registration))


def common_step(runs: Iterable[Run]) -> int | None:
    """The last step at which every run was evaluated, if there is one after step 0."""
    steps = [{row.step for row in run.evaluations} for run in runs]
    return max((step for step in set.intersection(*steps) if step > 0), default=None) if steps else None


def _measures(study: Study, runs: list[Run]) -> Iterable[Measure]:
    yield Measure("final_val_bpb", "final validation", _result("final_val_bpb"))
    yield Measure("best_val_bpb", "best validation", _result("best_val_bpb"))
    yield Measure("test_bpb", "test", _result("test_bpb"))
    if any(run.evaluations and run.evaluations[-1].excess_bpb is not None for run in runs):
        yield Measure(EXCESS, "final validation above the floor", lambda run: run.evaluations[-1].excess_bpb)
    last = common_step(runs)
    if last is not None and len(_steps(runs)) > 1:
        yield Measure(COMMON_STEP, f"validation at step {last:,}, the last in common", _at(last))
    for step in study.report_steps:
        if any(run.at_step(step) is not None for run in runs):
            yield Measure(f"val_bpb_step_{step}", f"validation at step {step:,}", _at(step))


def _result(key: str) -> Callable[[Run], float | None]:
    return lambda run: getattr(run.result, key)


def _at(step: int) -> Callable[[Run], float | None]:
    return lambda run: run.at_step(step)


Values = dict[str, dict[int, float]]
"""Values of one arm by measure and seed."""


def _all_values(study: Study, name: str, measures: Iterable[Measure]) -> Values:
    return {measure.key: _values(measure, study.finished(name)) for measure in measures}


def _arm(study: Study, name: str, values: Mapping[str, Values]) -> ArmResult:
    runs, against = study.finished(name), study.against(name)
    return ArmResult(
        name=name,
        against=against,
        causal=all(run.result.causal for run in runs if run.result),
        seeds=tuple(run.seed for run in runs),
        parameters=tuple(sorted({size for run in runs if (size := run.config["model"].get("parameters"))})),
        steps=_steps(runs),
        values=values[name],
        estimates={key: mean_interval(found.values(), CONFIDENCE) for key, found in values[name].items() if found},
        differences={} if against is None else _differences(values[name], values[against]),
    )


def _values(measure: Measure, runs: list[Run]) -> dict[int, float]:
    found = {run.seed: measure.of(run) for run in runs}
    return {seed: value for seed, value in found.items() if value is not None}


def _differences(
    values: Mapping[str, Mapping[int, float]], baseline: Mapping[str, Mapping[int, float]]
) -> dict[str, PairedDifference]:
    return {
        key: paired_difference(found, baseline[key], CONFIDENCE)
        for key, found in values.items()
        if set(found) & set(baseline[key])
    }


def _steps(runs: Iterable[Run]) -> tuple[int, ...]:
    return tuple(sorted({run.result.steps for run in runs if run.result}))


IN_FILE_NAMES = r"[^A-Za-z0-9.-]+"


@dataclass(frozen=True)
class Block:
    """Arms that are compared among themselves.

    levels    what all of them share, a level by factor; empty in a study without blocks
    baseline  the arm that most of them are compared with
    arms      the baseline first
    """

    levels: Mapping[str, str]
    baseline: str
    arms: tuple[ArmResult, ...]

    @property
    def title(self) -> str:
        """The levels in words, "gain none, patching bytes"; empty in a study without blocks."""
        return _title(self.levels)

    @property
    def slug(self) -> str:
        """The levels as the end of a file's name, "-none-bytes"; empty in a study without blocks."""
        return "".join(f"-{re.sub(IN_FILE_NAMES, '-', level)}" for level in self.levels.values())

    @property
    def causal(self) -> bool:
        """Whether every arm with a finished run gives a likelihood."""
        return all(arm.causal for arm in self.arms if arm.seeds)

    @property
    def leaks(self) -> bool:
        """Whether no arm with a finished run does."""
        return not any(arm.causal for arm in self.arms if arm.seeds)

    @property
    def others(self) -> tuple[ArmResult, ...]:
        """The arms that are compared with another."""
        return tuple(arm for arm in self.arms if arm.against is not None)


def blocks(comparison: Comparison) -> list[Block]:
    """The blocks that have a finished run, in the order of the study; one without levels where it has no blocks."""
    found: dict[tuple[str, ...], list[ArmResult]] = {}
    for arm in comparison.arms:
        found.setdefault(tuple(block_levels(comparison.study, arm.name).values()), []).append(arm)
    return [_block(comparison.study, arms) for arms in found.values()]


def block_levels(study: Study, arm: str) -> dict[str, str]:
    """The levels of the factors within which `arm` is compared; empty in a study without blocks."""
    levels = study.levels(arm)
    return {name: levels[name] for name in study.spec.get("within") or () if name in levels}


def short_name(study: Study, arm: str) -> str:
    """The name of an arm inside its block: without the levels that the block shares.

    An arm log-spaced_uniform_none of the block gain none is log-spaced_uniform.
    """
    end = "".join(f"_{level}" for level in block_levels(study, arm).values())
    return arm.removesuffix(end) if end and arm != end else arm


def compared_with(comparison: Comparison) -> str:
    """What is subtracted, in words."""
    names = {short_name(comparison.study, base.name) for base in comparison.baselines}
    if len(names) > 1:
        return "the arm it is compared with"
    within = " of its block" if len(comparison.baselines) > 1 else ""
    return f"{names.pop()}{within}"


def full_name(study: Study, arm: str) -> str:
    """The name of an arm inside its block, and the block: "concentrated_published (gain none, patching bytes)"."""
    title = _title(block_levels(study, arm))
    return f"{short_name(study, arm)} ({title})" if title else arm


def short_factor(name: str, factors: Mapping[str, object] | Sequence[str]) -> str:
    """The last part of a factor's name, gain of model.gain, where no other factor ends likewise."""
    last = name.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in factors) == 1 else name


def _title(levels: Mapping[str, str]) -> str:
    return ", ".join(f"{short_factor(name, levels)} {level}" for name, level in levels.items())


def _block(study: Study, arms: Sequence[ArmResult]) -> Block:
    against = [arm.against for arm in arms if arm.against is not None]
    baseline = max(against, key=against.count) if against else arms[0].name
    ordered = sorted(arms, key=lambda arm: arm.name != baseline)
    return Block(block_levels(study, ordered[0].name), baseline, tuple(ordered))
