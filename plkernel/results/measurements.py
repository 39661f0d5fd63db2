"""The numbers that hypotheses and gates speak of: which runs count, and what each measured."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from plkernel.config.factors import curves_of, means_of, opposite
from plkernel.config.schema import (
    OF_CURVES,
    OF_DISTANCE,
    OF_RECALL,
    Gate,
    Hypothesis,
    MeasuredNumber,
)
from plkernel.results.rate_curves import curve_against, rate_curve
from plkernel.results.study import FinishedRun, Study, StudyRun, as_planned, train_options

LEAST = {"target bytes": 16_000, "answers": 1_000}
"""Predictions that a gate must rest on, by what they are."""


class Basis(NamedTuple):
    """The predictions of a run behind a gate: so many target bytes, or answers of recall."""

    number: int
    unit: str = "target bytes"

    @property
    def is_enough(self) -> bool:
        """True if a gate may rest on them."""
        return self.number >= LEAST[self.unit]

    def __str__(self) -> str:
        return f"{self.number:,} {self.unit}"


def compared_arms(study: Study, hypothesis: Hypothesis) -> tuple[str, str | None]:
    """The arm of a hypothesis, and the one that is subtracted.

    Of minima they are curves; of means over the blocks of a design, means.
    """
    arm = hypothesis.arm
    if hypothesis.against:
        return arm, hypothesis.against
    if hypothesis.metric in OF_CURVES:
        is_curve = arm in curves_of(study.spec["arms"])
        return arm, curve_against(study, arm) if is_curve else None
    means = means_in(study)
    if arm in means:
        return arm, opposite(means, arm, study.against)
    other = study.against(arm) if arm in study.arms else None
    return arm, other


def means_in(study: Study) -> dict[str, dict[str, str]]:
    """The arms of every mean over blocks, by its name and the block; see `means_of`."""
    return means_of(study.spec["arms"], study.spec.get("within") or ())


def arms_measured(study: Study, measured: MeasuredNumber, names: Iterable[str | None]) -> set[str]:
    """The arms whose runs tell a number of each of `names`.

    Themselves, those of a curve, or those of a mean over blocks.
    """
    known = {name for name in names if name is not None}
    arms: set[str] = set()
    if measured.metric in OF_CURVES:
        curves = curves_of(study.spec["arms"])
        for name in known:
            arms.update(curves.get(name, {}).values())
        return arms
    means = means_in(study)
    for name in known:
        arms.update(means[name].values() if name in means else [name])
    return arms


def values(
    study: Study, arm: str | None, measured: MeasuredNumber, seeds: Sequence[int]
) -> dict[int, float]:
    """The measurement by seed: of an arm, a curve over learning rates, or a mean over blocks.

    Of a mean over blocks, a seed counts that has a number in every block.
    """
    if measured.metric in OF_CURVES:
        if arm is None or arm not in curves_of(study.spec["arms"]):
            return {}
        return rate_curve(study, arm, measured.metric, seeds).minima
    blocks = means_in(study).get(arm or "")
    if blocks is None:
        return _values_of_runs(study, arm, measured, seeds)
    return mean_over([values(study, one, measured, seeds) for one in blocks.values()])


def _values_of_runs(
    study: Study, arm: str | None, measured: MeasuredNumber, seeds: Sequence[int]
) -> dict[int, float]:
    """The measurement in every finished run of an arm that made it, by seed.

    What is measured at the end counts only in runs that took as many steps as planned.
    """
    at_end = measured.step is None
    found = {}
    for run in study.finished():
        if run.arm != arm or run.seed not in seeds:
            continue
        if at_end and not as_planned(study, run):
            continue
        value = _measurement(study, run, measured)
        if value is not None:
            found[run.seed] = value
    return found


def mean_over(blocks: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The mean over blocks by seed, of the seeds that every block has."""
    whole = set.intersection(*(set(block) for block in blocks))
    return {seed: fmean(block[seed] for block in blocks) for seed in sorted(whole)}


def _measurement(study: Study, run: FinishedRun, measured: MeasuredNumber) -> float | None:
    """The number of one run; None where it was not measured."""
    result = run.result
    if measured.metric == "test_bpb":
        return result.test_bpb
    if measured.metric == "truncation_cost":
        return result.truncation_cost(measured.bytes or 0)
    if measured.times is not None:
        length = measured.times * _context(study, run)
        if measured.metric in OF_RECALL:
            return result.recalled(measured.metric, length, measured.distance)
        return result.bits_beyond(measured.metric, length)
    if measured.metric == "val_bpb" and measured.step is None:
        return result.final_val_bpb
    step = result.steps if measured.step is None else measured.step
    by_step = {row.step: getattr(row, measured.metric) for row in run.evaluations}
    return by_step.get(step)


def _context(study: Study, run: StudyRun) -> int:
    """The bytes of a training window of a run; ValueError where its configuration has none."""
    train = run.config.get("train") or {}
    context: int | None = train.get("context")
    if context is None:
        raise ValueError(
            f"{study.folder}: the configuration of run {run.name} must have train.context for a"
            " metric at times the context, got none"
        )
    return context


def answers_of_runs(
    study: Study, measured: MeasuredNumber, arms: Iterable[str], seeds: Sequence[int]
) -> int:
    """The answers of one run that a number of the tests of recall is a share of.

    The fewest of the finished runs of `arms`; 0 where none took the test.
    """
    counts = []
    for run in study.finished():
        if run.arm not in arms or run.seed not in seeds:
            continue
        length = (measured.times or 1) * _context(study, run)
        counts.append(run.result.answers(measured.metric, length, measured.distance))
    return min(counts, default=0)


def basis_of(
    spec: Mapping[str, Any],
    gate: Gate,
    corpus: Mapping[str, Any] | None = None,
    pairs: int = 0,
) -> Basis:
    """The predictions of a run that a gate is a mean of.

    For the cost of truncation one byte of each window counts, on a corpus of recall the answers,
    else all bytes.

    corpus  of the run, tells its size: windows beyond it do not exist
    pairs   of a sequence in a corpus of recall, 0 on a text
    """
    train = train_options(spec, gate.arm)
    option = windows_option(gate, train)
    windows = int(train.get(option) or 0)
    context = int(train.get("context") or 0)
    size = _part_size(corpus or {}, part_read(option))
    if gate.metric == "truncation_cost" and not pairs:
        return Basis(windows if size is None else min(windows, size - context))
    if size is not None:
        windows = min(windows, windows_held(size, context, of_recall=bool(pairs)))
    if pairs:
        return Basis(windows * pairs, "answers")
    return Basis(windows * context)


def windows_held(size: int, context: int, of_recall: bool) -> int:
    """The windows of evaluation that `size` bytes of a corpus hold, none of which overlap.

    Before the first byte that is predicted, a window of a text has one more, which a sequence of a
    corpus of recall, drawn as a whole, does without.
    """
    return size // (context if of_recall else context + 1)


def windows_option(measured: MeasuredNumber, train: Mapping[str, Any]) -> str:
    """The option of [train] that says on how many windows a number is measured."""
    if measured.metric == "truncation_cost":
        return "truncation_windows"
    if measured.metric in ("test_bpb", "test_bpb_minimum", *OF_DISTANCE):
        return "test_windows"
    at_end = measured.metric in ("val_bpb", "val_bpb_minimum") and measured.step is None
    return "final_windows" if at_end and train.get("final_windows") else "eval_windows"


def part_read(option: str) -> str:
    """The part of a corpus whose windows an option of [train] counts."""
    return "validation" if option in ("final_windows", "eval_windows") else "test"


def _part_size(corpus: Mapping[str, Any], part: str) -> int | None:
    """Bytes of the part of a corpus; None where the configuration does not tell."""
    share = corpus.get(part)
    size = corpus.get("size")
    return int(share * size) if share and size else None
