"""A study in numbers: every measure of every arm, its paired difference to the baseline, and the
evidence for it.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, NamedTuple

from plkernel.results import statistics as stats
from plkernel.results.registration import Declared, declared
from plkernel.results.statistics import Estimate, PairedDifference
from plkernel.results.study import Choice, Reference, Study, choices

ALPHA = 0.05
COMMON_STEP = "val_bpb_common_step"
TITLES = {
    "final_val_bpb": "final validation",
    "best_val_bpb": "best validation",
    "test_bpb": "test",
    "excess_bpb": "final validation above the floor",
}


@dataclass(frozen=True)
class ArmResult:
    """The finished runs of one arm: values by measure and seed, their means, and differences to
    `against`.

    `against` is None for a baseline, which has no differences; a measure without a common seed has
    none either. `bytes` are those at which a run reaches the final loss of `against`, over the
    bytes that it took there; infinite if never.
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
    bytes: Mapping[int, float]


class Block(NamedTuple):
    """Arms that are compared among themselves; the one that most are compared with comes first.

    title  the levels that all of them share, "gain none, patching bytes"; empty in a study without
    blocks
    slug   the same as the end of a file's name, "-none-bytes"
    """

    title: str
    slug: str
    arms: tuple[ArmResult, ...]


@dataclass(frozen=True)
class Comparison:
    """A study in numbers: every baseline (finished or not) and every arm that has a finished run.

    `measures` are the titles of the numbers of a run, in bits per byte, by their keys in files.
    `primary` is the one by which arms are compared: the final loss, or where runs took unequal
    numbers of steps the loss at the last step that all of them reached. `tuning` holds the learning
    rates that were searched for, `declared` the verdicts on the hypotheses of the study, None where
    it has none.
    """

    study: Study
    measures: Mapping[str, str]
    primary: str
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
        names = [self.study.baseline, *(str(arm.against) for arm in self.others)]
        return tuple(self[name] for name in dict.fromkeys(names))

    def leaks(self, arm: ArmResult) -> bool:
        """True if the arm's difference is not one of likelihoods."""
        return not (arm.causal and (arm.against is None or self[arm.against].causal))

    def levels(self, arm: str) -> dict[str, str]:
        """The levels of the factors within which `arm` is compared; empty in a study without
        blocks.
        """
        own = self.study.levels(arm)
        return {name: own[name] for name in self.study.spec.get("within") or () if name in own}

    def short(self, arm: str) -> str:
        """The name of an arm inside its block: log-spaced_uniform_none of the block gain none is
        log-spaced_uniform.
        """
        end = "".join(f"_{level}" for level in self.levels(arm).values())
        return arm.removesuffix(end) if arm != end else arm

    @cached_property
    def blocks(self) -> list[Block]:
        """The blocks that have a finished run, in the order of the study; one without a title if it
        has no blocks.
        """
        groups: dict[tuple[tuple[str, str], ...], list[ArmResult]] = {}
        for arm in self.arms:
            groups.setdefault(tuple(self.levels(arm.name).items()), []).append(arm)
        blocks = []
        for levels, arms in groups.items():
            against = Counter(arm.against for arm in arms if arm.against)
            base = max(against, key=against.__getitem__, default=arms[0].name)
            ends = [name.rpartition(".")[2] for name, _ in levels]  # gain of model.gain
            names = [
                end if ends.count(end) == 1 else name
                for end, (name, _) in zip(ends, levels, strict=True)
            ]
            title = ", ".join(
                f"{name} {level}" for name, (_, level) in zip(names, levels, strict=True)
            )
            slug = "".join(f"-{re.sub(r'[^A-Za-z0-9.-]+', '-', level)}" for _, level in levels)
            blocks.append(Block(title, slug, tuple(sorted(arms, key=lambda arm: arm.name != base))))
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
    def differences(self) -> dict[str, PairedDifference]:
        """The difference of every arm in the primary measure, for arms that have one."""
        return {
            arm.name: arm.differences[self.primary]
            for arm in self.others
            if self.primary in arm.differences
        }

    @cached_property
    def corrected(self) -> dict[str, float]:
        """p of each of `differences`, adjusted for their number (Holm)."""
        return stats.holm({name: one.p_value for name, one in self.differences.items()})

    @cached_property
    def detectable(self) -> dict[str, float]:
        """The smallest difference found 8 times in 10 at this spread, by each comparison on its
        own.
        """
        spread = {name: (one.standard_deviation, one.n) for name, one in self.differences.items()}
        return {name: stats.detectable_difference(*of) for name, of in spread.items()}

    @cached_property
    def surviving(self) -> list[str]:
        """The arms whose difference is significant after the correction: likelihoods first, of
        these the largest.
        """
        kept = [name for name, p in self.corrected.items() if p < ALPHA]
        return sorted(
            kept, key=lambda name: (self.leaks(self[name]), -abs(self.differences[name].mean))
        )


def compare(study: Study) -> Comparison:
    """Every finished run of a study, compared; ValueError where no run is finished."""
    runs = study.finished()
    if not runs:
        states = ", ".join(sorted({run.status for run in study.runs}))
        raise ValueError(
            f"folder: {study.folder} holds no finished run (only {states}), finish one first"
        )
    common = max(
        set.intersection(*({row.step for row in run.evaluations} for run in runs)) - {0},
        default=None,
    )
    unequal = len({run.result.steps for run in runs if run.result}) > 1
    at = {COMMON_STEP: common} if common and unequal else {}
    at |= {f"val_bpb_step_{step}": step for step in study.spec.get("report_steps") or ()}
    titles = TITLES | {key: f"validation at step {step:,}" for key, step in at.items()}
    values: dict[str, dict[str, dict[int, float]]] = {
        arm: {key: {} for key in titles} for arm in study.arms
    }
    for run in runs:
        losses = {row.step: row.val_bpb for row in run.evaluations}
        known = vars(run.result) | {key: losses.get(step) for key, step in at.items()}
        known["excess_bpb"] = run.evaluations[-1].excess_bpb if run.evaluations else None
        for key, of in values[run.arm].items():
            if known[key] is not None:
                of[run.seed] = known[key]
    if COMMON_STEP in titles:
        titles[COMMON_STEP] += ", the last in common"
    measures = {
        key: title for key, title in titles.items() if any(of[key] for of in values.values())
    }
    started = {run.arm for run in runs}
    needed = {study.baseline, *started, *(study.against(arm) for arm in started)} - {None}
    names = sorted(
        map(str, needed), key=lambda name: (name != study.baseline, study.arms.index(name))
    )
    rates = (study.spec.get("tuning") or {}).get("rates") or ()
    return Comparison(
        study=study,
        measures=measures,
        primary=COMMON_STEP if COMMON_STEP in measures else next(iter(measures)),
        arms=tuple(_arm(study, name, values) for name in names),
        tuning=choices(
            {name: study.spec["arms"][name].get("rates") or rates for name in names}, study.folder
        ),
        declared=declared(study),
    )


def _arm(
    study: Study, name: str, values: Mapping[str, Mapping[str, Mapping[int, float]]]
) -> ArmResult:
    runs, against, own = study.finished(name), study.against(name), values[name]
    other = values[against] if against else {}
    ends = (
        {run.seed: run.evaluations[-1] for run in study.finished(against) if run.evaluations}
        if against
        else {}
    )
    ends = {seed: row for seed, row in ends.items() if row.bytes > 0}
    curves = {
        run.seed: {row.bytes: row.val_bpb for row in run.evaluations}
        for run in runs
        if run.seed in ends
    }
    return ArmResult(
        name=name,
        against=against,
        causal=all(run.result.causal for run in runs if run.result),
        seeds=tuple(run.seed for run in runs),
        parameters=tuple(
            sorted({size for run in runs if (size := run.config["model"].get("parameters"))})
        ),
        steps=tuple(sorted({run.result.steps for run in runs if run.result})),
        values=own,
        estimates={key: stats.mean_interval(of.values()) for key, of in own.items() if of},
        differences={
            key: stats.paired_difference(own[key], of)
            for key, of in other.items()
            if of.keys() & own[key].keys()
        },
        bytes={
            seed: stats.reached(of, ends[seed].val_bpb) / ends[seed].bytes
            for seed, of in curves.items()
        },
    )


def table(comparison: Comparison) -> dict[str, Any]:
    """Every number of the report, for table.json: per arm and measure the values by seed, n, mean
    and interval.
    """
    arms = []
    for arm in comparison.arms:
        measures = {
            key: {"per_seed": arm.values[key], **vars(estimate)}
            for key, estimate in arm.estimates.items()
        }
        for key, difference in arm.differences.items():
            measures[key]["difference_to_baseline"] = vars(difference)
        name, p, found = (
            arm.name,
            comparison.corrected.get(arm.name),
            comparison.detectable.get(arm.name),
        )
        row: dict[str, Any] = {
            "arm": name,
            "block": comparison.levels(name),
            "levels": comparison.study.levels(name),
        }
        row |= {
            key: getattr(arm, key) for key in ("against", "causal", "seeds", "parameters", "steps")
        }
        row["bytes_to_baseline"] = {
            seed: one if one < inf else None for seed, one in arm.bytes.items()
        }
        row |= {"n": len(arm.seeds), "measures": measures, "p_corrected": p}
        known = {
            "survives_correction": name in comparison.surviving,
            "detectable_difference": found,
        }
        arms.append({**row, "evidence": known if p is not None else None})
    return {
        "study": comparison.study.name,
        "baseline": comparison.study.baseline,
        "confidence": 0.95,
        "interval": (
            "t, per comparison, not corrected for the number of arms; p_corrected (Holm) is"
        ),
        "unit": "bits per byte",
        "primary": comparison.primary,
        "surviving_correction": comparison.surviving,
        "declared": comparison.declared and comparison.declared.to_dict(),
        "arms": arms,
    }
