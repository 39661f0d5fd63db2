"""The learning rates that a search has found, read from its runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plkernel.records.layout import DIVERGED, FINISHED, SPEC, TUNING, name_at
from plkernel.records.study import Study, read_study


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


def _loss(study: Study, name: str) -> float | None:
    """Mean final validation loss of one arm of the search; None until every run of it has ended."""
    runs = [run for run in study.runs if run.arm == name]
    if not runs or any(run.status not in (FINISHED, DIVERGED) for run in runs):
        return None
    losses = [run.result.final_val_bpb if run.result else math.inf for run in runs]
    return sum(losses) / len(losses)
