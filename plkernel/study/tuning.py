"""The learning rate of every arm, searched on seeds of its own before the study: OUT/tuning, a study like any other.

Each arm of a spec with tuning.rates that gives no learning rate is trained at every rate of the grid on every tuning
seed; the rate with the lowest mean validation loss at the end is the arm's, and a run that diverges loses. The budget
is the same for every arm: rates x seeds x steps.
"""

from pathlib import Path
from typing import Any

from plkernel.config.study import Spec
from plkernel.results.layout import TUNING, name_at
from plkernel.results.study import choices


def search_of(spec: Spec) -> Spec:
    """The study that looks for the learning rates of `spec`: an arm for every arm that has none, and rate."""
    tuning, train = spec.tuning, spec.train
    if tuning.steps is not None:
        train = train.model_copy(update={"steps": tuning.steps, "bytes": None, "minutes": None})
    train = train.model_copy(update={"truncation_windows": 0, "probe_windows": 0})  # which say nothing of a rate
    arms = {
        name_at(name, rate): arm.model_copy(
            update={"learning_rate": rate, "rates": None, "match": None, "against": None, "levels": None}
        )
        for name, arm in spec.arms.items()
        if arm.learning_rate is None
        for rate in spec.rates_of(name)
    }
    name, seeds, baseline = f"{spec.name}-{TUNING}", tuning.seeds, next(iter(arms))
    sections: dict[str, Any] = {"corpus": spec.corpus, "model": spec.model, "train": train, "arms": arms}
    return Spec(name=name, baseline=baseline, seeds=seeds, **sections).trusting(spec.trusted)


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
