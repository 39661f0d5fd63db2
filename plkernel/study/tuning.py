"""The learning rate of every arm, searched on seeds of its own before the study: OUT/tuning, a study like any other.

Each arm of a spec with tuning.rates that gives no learning rate is trained at every rate of the grid on every tuning
seed; the rate with the lowest mean validation loss at the end is the arm's, and a run that diverges loses. The budget
is the same for every arm: rates x seeds x steps.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plkernel.records.study import DIVERGED, FINISHED, SPEC, TUNING, Study, read_study
from plkernel.spec.study import Spec, name_at


@dataclass(frozen=True)
class Choice:
    """The rate that an arm was given: `losses` are mean validation bits per byte by rate, infinite if a run diverged.

    at_edge: whether a rate beyond the grid might be better still.
    """

    rate: float
    losses: Mapping[float, float]

    @property
    def at_edge(self) -> bool:
        return self.rate in (min(self.losses), max(self.losses))


def search_of(spec: Spec) -> Spec:
    """The study that looks for the learning rates of `spec`: an arm for every arm that has none, and rate."""
    tuning, train = spec.tuning, spec.train
    if tuning.steps is not None:
        train = train.model_copy(update={"steps": tuning.steps, "bytes": None, "minutes": None})
    arms = {
        name_at(name, rate): arm.model_copy(
            update={"learning_rate": rate, "rates": None, "match": None, "against": None, "levels": None}
        )
        for name, arm in spec.arms.items()
        if arm.learning_rate is None
        for rate in spec.rates_of(name)
    }
    name, seeds, baseline = f"{spec.name}-{TUNING}", tuning.seeds, next(iter(arms))
    return Spec(name=name, baseline=baseline, seeds=seeds, corpus=spec.corpus, model=spec.model, train=train, arms=arms)


def choices(grids: Mapping[str, Sequence[float]], out: Path) -> dict[str, Choice]:
    """The choice of each arm whose search has ended; `grids` are rates by arm, `out` is the folder of the study."""
    if not any(grids.values()) or not (out / TUNING / SPEC).exists():
        return {}
    study = read_study(out / TUNING)
    found = {}
    for name, rates in grids.items():
        losses = {rate: _loss(study, name_at(name, rate)) for rate in rates}
        known = {rate: loss for rate, loss in losses.items() if loss is not None}
        if len(known) == len(losses) and min(known.values()) < math.inf:
            found[name] = Choice(min(known, key=lambda rate: known[rate]), known)
    return found


def tuned(spec: Spec, out: Path) -> Spec:
    """The spec with the learning rates that have been found."""
    found = choices({name: spec.rates_of(name) for name in spec.arms}, out)
    arms = {
        name: arm.model_copy(update={"learning_rate": found[name].rate})
        if name in found and arm.learning_rate is None
        else arm
        for name, arm in spec.arms.items()
    }
    return spec.model_copy(update={"arms": arms})


def _loss(study: Study, name: str) -> float | None:
    """Mean final validation loss of one arm of the search; None until every run of it has ended."""
    runs = [run for run in study.runs if run.arm == name]
    if not runs or any(run.status not in (FINISHED, DIVERGED) for run in runs):
        return None
    losses = [run.result.final_val_bpb if run.result else math.inf for run in runs]
    return sum(losses) / len(losses)
