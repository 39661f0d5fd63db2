"""The memory of every arm of a study before and after training, and what far context is worth to it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from plkernel.memory.diagnostics import Memory, memory_of, slope_range
from plkernel.memory.figures import Influenced, Truncated
from plkernel.records.study import Run, Study
from plkernel.results.comparison import ArmResult, Block, Comparison, short_name

BETA = 1.15  # of an arm that says nothing


@dataclass(frozen=True)
class Change:
    """An arm before and after training, its runs stacked: `name` in its block, exponent of the law it is held against.

    kind: of its model.

    before_outputs, after_outputs: "saturation" and "amplification" of every run.
    """

    arm: ArmResult
    name: str
    exponent: float
    before: Memory
    after: Memory
    before_outputs: tuple[Mapping[str, Any], ...]
    after_outputs: tuple[Mapping[str, Any], ...]
    kind: str = ""

    @property
    def unknown(self) -> list[str]:
        """What of its memory no row tells."""
        known = {"half-lives": self.has_half_lives, "kernels": self.has_kernels}
        return [name for name, there in known.items() if not there]

    @property
    def has_kernels(self) -> bool:
        return self.before.has_kernels and self.after.has_kernels

    @property
    def has_half_lives(self) -> bool:
        return self.before.has_half_lives and self.after.has_half_lives

    @property
    def has_outputs(self) -> bool:
        return bool(self.after_outputs)

    @property
    def slope_range(self) -> tuple[float, float] | None:
        """The lags over which kernels are compared by their slope; None where that cannot be."""
        both = {slope_range(memory.lags) for memory in (self.before, self.after)}
        return both.pop() if len(both) == 1 else None


def changes(comparison: Comparison, block: Block) -> list[Change]:
    """Every arm of a block that has a finished run, under its name in the block, the baseline first."""
    return [_change(comparison.study, arm) for arm in block.arms if arm.seeds]


def exponent_of(options: Mapping[str, Any]) -> float:
    """The exponent that an arm's kernel is held against: beta, and half of it where it aims at correlation."""
    beta = float(options.get("beta") or BETA)
    return beta / 2 if options.get("target") == "correlation" else beta


def _change(study: Study, arm: ArmResult) -> Change:
    runs = study.finished(arm.name)
    return Change(
        arm=arm,
        name=short_name(study, arm.name),
        exponent=exponent_of(study.spec["arms"][arm.name]),
        before=memory_of([run.first for run in runs]),
        after=memory_of([run.last for run in runs]),
        before_outputs=tuple(run.first for run in _with_outputs(runs)),
        after_outputs=tuple(run.last for run in _with_outputs(runs)),
        kind=str(runs[0].config["model"].get("kind", "")),
    )


def _with_outputs(runs: Iterable[Run]) -> list[Run]:
    return [run for run in runs if run.first.get("saturation") and run.last.get("saturation")]


def truncated(comparison: Comparison, arm: ArmResult) -> Truncated | None:
    """The curves of an arm's finished runs, which are of the same lengths; None where they have measured none."""
    found = [run.result.truncation for run in comparison.study.finished(arm.name) if run.result]
    curves = [curve for curve in found if curve and None not in curve["bpb"]]
    same = [curve for curve in curves if curve["given"] == curves[0]["given"]]
    if not same:
        return None
    floors = [curve["floor"] for curve in same if curve.get("floor")]
    floor = tuple(np.mean(floors, axis=0).tolist()) if floors else None
    return Truncated(tuple(same[0]["given"]), np.array([curve["bpb"] for curve in same]), floor)


def influenced(comparison: Comparison, arm: ArmResult) -> Influenced | None:
    """The influence in an arm's finished runs, at the lags they share; None where they have measured none."""
    found = [run.result.influence for run in comparison.study.finished(arm.name) if run.result]
    curves = [curve for curve in found if curve and None not in curve["bits"]]
    same = [curve for curve in curves if curve["lags"] == curves[0]["lags"]]
    if not same:
        return None
    text = same[0].get("information")
    return Influenced(
        tuple(same[0]["lags"]), np.array([curve["bits"] for curve in same]), tuple(text) if text else None
    )
