"""The search for learning rates: what was chosen for each arm, and how sure that is."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plkernel.common import files
from plkernel.common.files import DIVERGED, FINISHED, SPEC, TUNING
from plkernel.results.study import StudyRun, read_study


@dataclass(frozen=True)
class Choice:
    """The learning rate given to an arm.

    losses  mean validation bits per byte by learning rate, infinite if a run diverged
    seeds   the number of runs behind each mean
    """

    rate: float
    losses: Mapping[float, float]
    seeds: int

    @property
    def at_edge(self) -> bool:
        """True if a learning rate beyond the grid might be better still."""
        return self.rate in (min(self.losses), max(self.losses))

    def may_be(self, rate: float, noise: float) -> bool:
        """True if `rate` was tried and loses no more than noise / sqrt(seeds) to the chosen one."""
        tolerance = noise / math.sqrt(self.seeds)
        return self.losses.get(rate, math.inf) <= self.losses[self.rate] + tolerance

    def apart(self, other: "Choice", noise: float) -> bool:
        """True if the two learning rates differ, although one of them may be right for both."""
        if other.rate == self.rate:
            return False
        return self.may_be(other.rate, noise) or other.may_be(self.rate, noise)

    def rivals(self, noise: float) -> list[float]:
        """Learning rates for which `may_be` holds, without the neighbours of the chosen one."""
        order = sorted(self.losses)
        chosen = order.index(self.rate)
        distant = [rate for place, rate in enumerate(order) if abs(place - chosen) > 1]
        return [rate for rate in distant if self.may_be(rate, noise)]


def choices(grids: Mapping[str, Sequence[float]], out: Path) -> dict[str, Choice]:
    """The choice of each arm whose search has ended.

    grids  learning rates to try, by arm
    out    folder of the study
    """
    if not any(grids.values()) or not (out / TUNING / SPEC).exists():
        return {}
    runs = read_study(out / TUNING).runs
    chosen = {}
    for arm, rates in grids.items():
        by_rate = {}
        for rate in rates:
            name = files.name_at(arm, rate)
            by_rate[rate] = [run for run in runs if run.arm == name]
        choice = _choice(by_rate)
        if choice is not None:
            chosen[arm] = choice
    return chosen


def _choice(runs: Mapping[float, Sequence[StudyRun]]) -> Choice | None:
    """The best of the learning rates; None before all runs have ended, or if all diverged."""
    for tried in runs.values():
        if not tried or any(run.status not in (FINISHED, DIVERGED) for run in tried):
            return None
    losses = {rate: sum(map(_loss, tried)) / len(tried) for rate, tried in runs.items()}
    if min(losses.values(), default=math.inf) == math.inf:
        return None
    best = min(losses, key=lambda rate: losses[rate])
    return Choice(best, losses, min(map(len, runs.values())))


def _loss(run: StudyRun) -> float:
    """The loss at the end; infinite for a run that diverged, or whose loss is no number."""
    loss = run.result.final_val_bpb if run.result else math.inf
    return math.inf if math.isnan(loss) else loss
