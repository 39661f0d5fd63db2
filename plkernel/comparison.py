"""What a study shows, in numbers: every measure of every arm, and its paired difference to the baseline."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from plkernel.analysis.statistics import Estimate, PairedDifference, mean_interval, paired_difference
from plkernel.studies import Run, Study

CONFIDENCE = 0.95
COMMON_STEP = "val_bpb_common_step"


@dataclass(frozen=True)
class Measure:
    """One number per run, in bits per byte: its key in files and its title in tables."""

    key: str
    title: str
    of: Callable[[Run], float | None]


@dataclass(frozen=True)
class Arm:
    """The finished runs of one arm: values by measure and seed, their means, and differences to the baseline.

    `differences` lacks the measures that no common seed has, and is empty for the baseline itself.
    """

    name: str
    causal: bool
    seeds: tuple[int, ...]
    parameters: tuple[int, ...]
    steps: tuple[int, ...]
    values: Mapping[str, Mapping[int, float]]
    estimates: Mapping[str, Estimate]
    differences: Mapping[str, PairedDifference]


@dataclass(frozen=True)
class Comparison:
    """A study in numbers: the baseline (finished or not) and every arm that has a finished run.

    `primary` is the measure by which arms are compared: the final loss, or where runs took unequal numbers of steps
    the loss at the last step that all of them reached.
    """

    study: Study
    measures: tuple[Measure, ...]
    primary: Measure
    arms: tuple[Arm, ...]

    @property
    def causal(self) -> bool:
        """Whether every number is a likelihood."""
        return all(arm.causal for arm in self.arms)

    @property
    def baseline(self) -> Arm:
        return next(arm for arm in self.arms if arm.name == self.study.baseline)

    @property
    def others(self) -> tuple[Arm, ...]:
        return tuple(arm for arm in self.arms if arm.name != self.study.baseline)


def compare(study: Study) -> Comparison:
    """Compare the finished runs of a study, paired by seed. Raises ValueError when no run is finished."""
    runs = study.finished()
    if not runs:
        states = ", ".join(sorted({run.status for run in study.runs}))
        raise ValueError(f"folder: {study.folder} holds no finished run (only {states}), finish one first")
    measures = tuple(_measures(study, runs))
    baseline = _arm(study, study.baseline, measures, None)
    others = [name for name in study.arms if name != study.baseline and study.finished(name)]
    arms = (baseline, *(_arm(study, name, measures, baseline) for name in others))
    primary = next((measure for measure in measures if measure.key == COMMON_STEP), measures[0])
    return Comparison(study, measures, primary, arms)


def common_step(runs: Iterable[Run]) -> int | None:
    """The last step at which every run was evaluated, if there is one after step 0."""
    steps = [{row.step for row in run.evaluations} for run in runs]
    return max((step for step in set.intersection(*steps) if step > 0), default=None) if steps else None


def _measures(study: Study, runs: list[Run]) -> Iterable[Measure]:
    yield Measure("final_val_bpb", "final validation", _result("final_val_bpb"))
    yield Measure("best_val_bpb", "best validation", _result("best_val_bpb"))
    yield Measure("test_bpb", "test", _result("test_bpb"))
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


def _arm(study: Study, name: str, measures: tuple[Measure, ...], baseline: Arm | None) -> Arm:
    runs = study.finished(name)
    values = {measure.key: _values(measure, runs) for measure in measures}
    return Arm(
        name=name,
        causal=all(run.result.causal for run in runs if run.result),
        seeds=tuple(run.seed for run in runs),
        parameters=tuple(sorted({size for run in runs if (size := run.config["model"].get("parameters"))})),
        steps=_steps(runs),
        values=values,
        estimates={key: mean_interval(found.values(), CONFIDENCE) for key, found in values.items() if found},
        differences={} if baseline is None else _differences(values, baseline.values),
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
