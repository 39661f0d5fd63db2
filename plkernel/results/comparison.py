"""A study in numbers: every measure of every arm, its paired differences, and the evidence."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, NamedTuple

from plkernel.models import NOT_CAUSAL
from plkernel.results.measured import CONTROL, Measured, read_measurement
from plkernel.results.rate_curves import CurveResult, curve_results
from plkernel.results.rate_report import curve_table
from plkernel.results.saved import Reference
from plkernel.results.statistics import (
    ALPHA,
    Estimate,
    PairedDifference,
    detectable_difference,
    holm,
    mean_interval,
    paired_difference,
    reached,
    with_p,
)
from plkernel.results.study import FinishedRun, Study, StudyRun
from plkernel.results.tuning import Choice, choices
from plkernel.results.verdicts import Declared, declared

COMMON_STEP = "val_bpb_common_step"
"""The measure at the last step that all runs reached, where their numbers of steps differ."""
TITLES = {
    "final_val_bpb": "final validation",
    "best_val_bpb": "best validation",
    "test_bpb": "test",
    "excess_bpb": "final validation above the floor",
}
"""Titles of the measures that every study has, by their keys in files."""
Values = Mapping[str, Mapping[int, float]]
"""The numbers of one arm by measure and seed."""


@dataclass(frozen=True)
class ArmResult:
    """The finished runs of one arm.

    against      the arm it is compared with; None for a baseline, which has no differences
    values       by measure and seed
    estimates    the mean of every measure that a run has
    differences  to `against`, of every measure with a common seed; none where one of the two is on
                 recall and the other on text
    bytes_ratio  by seed the bytes at which a run reaches the final loss of `against`, over the
                 bytes that `against` read for it; infinite if never
    """

    name: str
    against: str | None
    causal: bool
    seeds: tuple[int, ...]
    parameters: tuple[int, ...]
    steps: tuple[int, ...]
    values: Values
    estimates: Mapping[str, Estimate]
    differences: Mapping[str, PairedDifference]
    bytes_ratio: Mapping[int, float]


class ArmBlock(NamedTuple):
    """Arms that are compared among themselves; the one that most are compared with comes first.

    title  the levels that all of them share, "gain none, patching bytes"; empty without blocks
    slug   the same as the end of a file's name, "-none-bytes"
    """

    title: str
    slug: str
    arms: tuple[ArmResult, ...]


@dataclass(frozen=True)
class Comparison:
    """A study in numbers: every baseline (finished or not) and every arm that has a finished run.

    measures  titles of the numbers of a run, in `unit`, by their keys in files
    primary   the measure by which arms are compared: the final loss, or where runs took unequal
              numbers of steps the loss at the last step that all of them reached
    tuning    the learning rates that were searched for, by arm
    declared  the verdicts on the hypotheses of the study, None where it has none
    curves    of a study of curves over learning rates, each beside the one it is compared with
    """

    study: Study
    measures: Mapping[str, str]
    primary: str
    arms: tuple[ArmResult, ...]
    tuning: Mapping[str, Choice]
    declared: Declared | None = None
    curves: tuple[CurveResult, ...] = ()

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
        names = [self.study.baseline]
        names += [str(arm.against) for arm in self.others]
        return tuple(self[name] for name in dict.fromkeys(names))

    @cached_property
    def measured(self) -> Measured | None:
        """The measurement of its text, which a trial has."""
        return read_measurement(self.study.folder)

    def marked(self, name: str) -> str:
        """The whole name of an arm, marked where its difference is not one of likelihoods."""
        return f"{name} ({NOT_CAUSAL})" if self.leaks(self[name]) else name

    def leaks(self, arm: ArmResult) -> bool:
        """True if the arm's difference is not one of likelihoods."""
        other_is_causal = arm.against is None or self[arm.against].causal
        return not (arm.causal and other_is_causal)

    def levels(self, arm: str) -> dict[str, str]:
        """The levels of the factors within which `arm` is compared; empty without blocks."""
        own = self.study.levels(arm)
        return {factor: own[factor] for factor in self.study.within if factor in own}

    def short(self, arm: str) -> str:
        """The name of an arm inside its block, without the levels of the block.

        log-spaced_uniform_none of the block gain none is log-spaced_uniform.
        """
        end = "".join(f"_{level}" for level in self.levels(arm).values())
        return arm if arm == end else arm.removesuffix(end)

    def label(self, arm: ArmResult, paired: bool = False) -> str:
        """Name of an arm in its block, marked where its loss is not one of a likelihood.

        paired: the label of its difference, with the other arm unless all have the same one.
        """
        text = self.short(arm.name)
        if paired and not self.one_baseline:
            text += f" minus {self.short(str(arm.against))}"
        leaks = self.leaks(arm) if paired else not arm.causal
        return f"{text} ({NOT_CAUSAL})" if leaks else text

    @cached_property
    def unit(self) -> str:
        """The unit of losses: of runs on recall they are those of the answers alone."""
        asked = {run.is_recall for run in self.study.finished()}
        if asked == {True}:
            return "bits per answer"
        return "bits per byte or answer" if True in asked else "bits per byte"

    @property
    def held_out(self) -> str:
        """Name of the data of losses at the end, beside validation: sequences if of recall."""
        return "test sequences" if self.unit == "bits per answer" else "test text"

    @property
    def one_baseline(self) -> str | None:
        """Name of the arm that all others of their block are compared with; None if several."""
        names = {self.short(base.name) for base in self.baselines}
        return names.pop() if len(names) == 1 else None

    @cached_property
    def blocks(self) -> list[ArmBlock]:
        """The blocks that have a finished run, in the order of the study.

        A study without blocks has one, without a title.
        """
        by_levels: dict[tuple[tuple[str, str], ...], list[ArmResult]] = {}
        for arm in self.arms:
            levels = tuple(self.levels(arm.name).items())
            by_levels.setdefault(levels, []).append(arm)
        return [_block(dict(levels), arms) for levels, arms in by_levels.items()]

    @cached_property
    def control(self) -> ArmBlock | None:
        """The arms of a trial on its control; None without one."""
        if not self.measured or not self.measured.control:
            return None
        for block in self.blocks:
            if self.levels(block.arms[0].name) == {"text": CONTROL}:
                return block
        return None

    @cached_property
    def text_blocks(self) -> list[ArmBlock]:
        """The blocks without that of the control."""
        return [block for block in self.blocks if block is not self.control]

    def reference(self, arm: ArmResult) -> Reference | None:
        """The n-grams that suit the arm; None where none were counted, or the arm is not causal."""
        return self.study.reference(arm.name) if arm.causal else None

    @cached_property
    def references(self) -> list[Reference]:
        """The n-grams that suit any arm, in the order of the study's file."""
        suiting = [self.reference(arm) for arm in self.arms]
        return [one for one in self.study.references if any(one is other for other in suiting)]

    @cached_property
    def differences(self) -> dict[str, PairedDifference]:
        """The difference of every arm in the primary measure, for arms that have one."""
        found = {}
        for arm in self.others:
            if self.primary in arm.differences:
                found[arm.name] = arm.differences[self.primary]
        return found

    @cached_property
    def on_text(self) -> dict[str, PairedDifference]:
        """`differences` without that of the control, which is no claim on an initialisation."""
        controls = self.control_names
        return {name: one for name, one in self.differences.items() if name not in controls}

    @cached_property
    def tested(self) -> list[str]:
        """The arms of `on_text` whose difference has a p: those that Holm corrects over."""
        return with_p({name: one.p_value for name, one in self.on_text.items()})

    @cached_property
    def control_names(self) -> set[str]:
        """The names of the arms of the control; none without one."""
        return {arm.name for arm in self.control.arms} if self.control else set()

    @cached_property
    def corrected(self) -> dict[str, float]:
        """p of each of `differences`, adjusted for their number (Holm), the control apart."""
        return self.corrected_in(self.primary)

    def corrected_in(self, measure: str) -> dict[str, float]:
        """p of every arm's difference in a measure, adjusted for their number (Holm).

        The control tells whether the study can show anything. It is a family of its own: it makes
        no claim on the text harder to find, and these make it no harder to see.
        """
        on_text: dict[str, float] = {}
        of_control: dict[str, float] = {}
        for arm in self.others:
            one = arm.differences.get(measure)
            if one is not None:
                family = of_control if arm.name in self.control_names else on_text
                family[arm.name] = one.p_value
        return {**holm(on_text), **holm(of_control)}

    @cached_property
    def detectable(self) -> dict[str, float]:
        """The smallest difference found 8 times in 10, by each comparison on its own."""
        return {
            name: detectable_difference(one.standard_deviation, one.n)
            for name, one in self.differences.items()
        }

    @cached_property
    def surviving(self) -> list[str]:
        """The arms whose difference is significant after the correction.

        Likelihoods come first, and of these the largest differences.
        """

        def order(name: str) -> tuple[bool, float]:
            return self.leaks(self[name]), -abs(self.differences[name].mean)

        return sorted((name for name, p in self.corrected.items() if p < ALPHA), key=order)


def _block(levels: Mapping[str, str], arms: Sequence[ArmResult]) -> ArmBlock:
    """The block of arms that share these levels, by factor."""
    against = Counter(arm.against for arm in arms if arm.against)
    base = against.most_common(1)[0][0] if against else arms[0].name
    # Of model.gain the name is gain, unless another factor ends so too.
    ends = [factor.rpartition(".")[2] for factor in levels]
    titles = []
    slug = ""
    for (factor, level), end in zip(levels.items(), ends, strict=True):
        name = end if ends.count(end) == 1 else factor
        titles.append(f"{name} {level}")
        plain = re.sub(r"[^A-Za-z0-9.-]+", "-", level)
        slug += f"-{plain}"
    base_first = sorted(arms, key=lambda arm: arm.name != base)
    return ArmBlock(", ".join(titles), slug, tuple(base_first))


def compare(study: Study) -> Comparison:
    """Every finished run of a study, compared; ValueError where no run is finished."""
    runs = study.finished()
    if not runs:
        states = ", ".join(sorted({run.status for run in study.runs}))
        raise ValueError(
            f"folder must hold a finished run, got {study.folder}, which has only {states} ones;"
            " finish one first"
        )
    at_steps = _measured_steps(study, runs)
    values = _values(study, runs, at_steps)
    measures = _measured(_titles(at_steps), values)
    primary = COMMON_STEP if COMMON_STEP in measures else next(iter(measures))
    arms = _compared_arms(study, runs)
    return Comparison(
        study=study,
        measures=measures,
        primary=primary,
        arms=tuple(_arm_result(study, arm, values) for arm in arms),
        tuning=choices(_grids(study, arms), study.folder),
        declared=declared(study),
        curves=curve_results(study),
    )


def _measured_steps(study: Study, runs: Sequence[FinishedRun]) -> dict[str, int]:
    """The measures that are validation losses at one step, and their steps."""
    found = {}
    if len({run.result.steps for run in runs}) > 1:
        of_each_run = [{row.step for row in run.evaluations} for run in runs]
        common = set.intersection(*of_each_run) - {0}
        if common:
            found[COMMON_STEP] = max(common)
    for step in study.spec.get("report_steps") or ():
        found[f"val_bpb_step_{step}"] = step
    return found


def _titles(at_steps: Mapping[str, int]) -> dict[str, str]:
    """The title of every measure."""
    titles = dict(TITLES)
    for key, step in at_steps.items():
        titles[key] = f"validation at step {step:,}"
    if COMMON_STEP in titles:
        titles[COMMON_STEP] += ", the last in common"
    return titles


def _values(
    study: Study, runs: Sequence[FinishedRun], at_steps: Mapping[str, int]
) -> dict[str, dict[str, dict[int, float]]]:
    """Every number of every run, by arm, measure and seed."""
    keys = [*TITLES, *at_steps]
    values: dict[str, dict[str, dict[int, float]]] = {}
    for arm in study.arms:
        values[arm] = {key: {} for key in keys}
    for run in runs:
        known = _numbers(run, at_steps)
        for key in keys:
            if known[key] is not None:
                values[run.arm][key][run.seed] = known[key]
    return values


def _numbers(run: FinishedRun, at_steps: Mapping[str, int]) -> dict[str, Any]:
    """Every number of a run by measure, None where it has none."""
    losses = {row.step: row.val_bpb for row in run.evaluations}
    numbers = dict(vars(run.result))
    numbers["excess_bpb"] = run.evaluations[-1].excess_bpb if run.evaluations else None
    for key, step in at_steps.items():
        numbers[key] = losses.get(step)
    return numbers


def _measured(titles: Mapping[str, str], values: Mapping[str, Values]) -> dict[str, str]:
    """The titles of the measures that any run has."""
    measured = {}
    for key, title in titles.items():
        if any(of_arm[key] for of_arm in values.values()):
            measured[key] = title
    return measured


def _compared_arms(study: Study, runs: Sequence[StudyRun]) -> list[str]:
    """The arms that have a finished run and those they are compared with, the baseline first."""
    started = {run.arm for run in runs}
    needed = {study.baseline, *started}
    for arm in started:
        other = study.against(arm)
        if other is not None:
            needed.add(other)
    return sorted(needed, key=lambda arm: (arm != study.baseline, study.arms.index(arm)))


def _grids(study: Study, arms: Sequence[str]) -> dict[str, Sequence[float]]:
    """The learning rates that were to be tried for each arm."""
    shared = (study.spec.get("tuning") or {}).get("rates") or ()
    return {arm: study.spec["arms"][arm].get("rates") or shared for arm in arms}


def _arm_result(study: Study, name: str, values: Mapping[str, Values]) -> ArmResult:
    """The numbers of one arm and its differences to the one it is compared with."""
    runs = study.finished(name)
    against = study.against(name)
    own = values[name]
    differences: dict[str, PairedDifference] = {}
    bytes_ratio: dict[int, float] = {}
    # Bits per answer less bits per byte are a difference of nothing.
    if against and not differs_in_task(study, name, against):
        differences = _differences(own, values[against])
        bytes_ratio = _bytes_ratio(runs, study.finished(against))
    return ArmResult(
        name=name,
        against=against,
        causal=all(run.result.causal for run in runs),
        seeds=tuple(run.seed for run in runs),
        parameters=_sizes(runs),
        steps=tuple(sorted({run.result.steps for run in runs})),
        values=own,
        estimates={key: mean_interval(by_seed.values()) for key, by_seed in own.items() if by_seed},
        differences=differences,
        bytes_ratio=bytes_ratio,
    )


def differs_in_task(study: Study, name: str, against: str) -> bool:
    """True if of two arms one has finished runs on recall and the other on text."""
    tasks = {run.is_recall for arm in (name, against) for run in study.finished(arm)}
    return len(tasks) > 1


def _sizes(runs: Sequence[StudyRun]) -> tuple[int, ...]:
    """The different numbers of parameters of runs that tell them, ascending."""
    sizes = {run.config["model"].get("parameters") for run in runs}
    return tuple(sorted(size for size in sizes if size))


def _differences(own: Values, base: Values) -> dict[str, PairedDifference]:
    """The difference of every measure that has a common seed."""
    differences = {}
    for key, of_base in base.items():
        if own[key].keys() & of_base.keys():
            differences[key] = paired_difference(own[key], of_base)
    return differences


def _bytes_ratio(runs: Sequence[StudyRun], base: Sequence[StudyRun]) -> dict[int, float]:
    """Bytes at which each run is where the base of its seed ends, over all bytes of the base."""
    ends = {run.seed: run.evaluations[-1] for run in base if run.evaluations}
    ratios = {}
    for run in runs:
        end = ends.get(run.seed)
        if end is not None and end.bytes > 0:
            ratios[run.seed] = reached(run.curve, end.val_bpb) / end.bytes
    return ratios


# The table for files


def table(comparison: Comparison) -> dict[str, Any]:
    """Every number of the report, for table.json.

    Per arm and measure the values by seed, n, mean and interval.
    """
    values = {
        "study": comparison.study.name,
        "baseline": comparison.study.baseline,
        "confidence": 0.95,
        "interval": (
            "t, per comparison, not corrected for the number of arms; p_corrected (Holm) is"
        ),
        "unit": comparison.unit,
        "primary": comparison.primary,
        "surviving_correction": comparison.surviving,
        "declared": comparison.declared.to_dict() if comparison.declared else None,
        "arms": [_table_row(comparison, arm) for arm in comparison.arms],
    }
    if comparison.curves:
        values["curves"] = curve_table(comparison.curves)
    return values


def _table_row(comparison: Comparison, arm: ArmResult) -> dict[str, Any]:
    """The numbers of one arm, for table.json."""
    measures: dict[str, dict[str, Any]] = {}
    for key, estimate in arm.estimates.items():
        measures[key] = {"per_seed": arm.values[key], **vars(estimate)}
    for key, difference in arm.differences.items():
        measures[key]["difference_to_baseline"] = vars(difference)
    bytes_to_baseline = {}
    for seed, ratio in arm.bytes_ratio.items():
        bytes_to_baseline[seed] = ratio if ratio < inf else None
    p_corrected = comparison.corrected.get(arm.name)
    evidence = None
    if p_corrected is not None:
        evidence = {
            "survives_correction": arm.name in comparison.surviving,
            "detectable_difference": comparison.detectable.get(arm.name),
        }
    return {
        "arm": arm.name,
        "block": comparison.levels(arm.name),
        "levels": comparison.study.levels(arm.name),
        "against": arm.against,
        "causal": arm.causal,
        "seeds": arm.seeds,
        "parameters": arm.parameters,
        "steps": arm.steps,
        "bytes_to_baseline": bytes_to_baseline,
        "n": len(arm.seeds),
        "measures": measures,
        "p_corrected": p_corrected,
        "evidence": evidence,
    }
