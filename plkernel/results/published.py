"""The three conditions of the published study, found among the arms of a study by what they are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from plkernel.analysis.exponentials import Floats
from plkernel.analysis.figures.published import DrawnCondition, published_figure
from plkernel.analysis.trained.memory import memory_of
from plkernel.models.words import NOT_CAUSAL
from plkernel.records.study import Run, Study
from plkernel.results.comparison import ArmResult, Block, Comparison, blocks, short_name
from plkernel.results.memory import exponent_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PUBLISHED = "published"
CONDITIONS = (("log-spaced", "uniform"), ("log-spaced", PUBLISHED), ("concentrated", PUBLISHED))
OTHERWISE = ("match", "output_std", "tempering", "node_file", "node_rates")
"""An arm with one of these is no condition of the study, whatever its placement and projection."""


@dataclass(frozen=True)
class Reading:
    """The block of a study in which the three conditions are compared, and their arms in the study's order."""

    block: Block
    arms: tuple[ArmResult, ...]


def reading(comparison: Comparison) -> Reading | None:
    """The block with gain none and patching `published` if that has all three conditions, else the first that has.

    None where no block has them.
    """
    found = []
    for block in blocks(comparison):
        arms = [_condition(comparison.study, block, *condition) for condition in CONDITIONS]
        known = tuple(arm for arm in arms if arm is not None)
        if len(known) == len(CONDITIONS) and _alike(comparison.study, known) and _told(comparison.study, known):
            found.append(Reading(block, known))
    return max(found, key=lambda one: _nearness(_model(comparison.study, one.arms[0])), default=None)


def conditions(comparison: Comparison, found: Reading) -> tuple[list[DrawnCondition], float, float]:
    """The three conditions as they are drawn, the exponent of their law, and the longest lag of interest."""
    study = comparison.study
    context = max(run.config["train"]["context"] for run in study.finished(found.arms[0].name))
    return [_drawn(study, arm) for arm in found.arms], exponent_of(study.spec["arms"][found.arms[1].name]), context


def draw_published(comparison: Comparison, found: Reading) -> "Figure":
    """The figure of the three conditions."""
    leaks = "" if all(arm.causal for arm in found.arms) else NOT_CAUSAL
    return published_figure(*conditions(comparison, found), leaks)


def described(comparison: Comparison, found: Reading) -> str:
    """The gain and patching of a reading in words: "gain none, patches of 2 bytes as published"."""
    model = _model(comparison.study, found.arms[0])
    patching = model.get("patching") or {}
    size, mode = patching.get("size", 1), patching.get("mode")
    read = f"patches of {size} bytes, {'as published' if mode == PUBLISHED else 'causal'}" if size > 1 else "no patches"
    return f"gain {model.get('gain')}, {read}"


def _condition(study: Study, block: Block, placement: str, projection: str) -> ArmResult | None:
    """The first arm with a finished run that is this condition and nothing else."""
    for arm in block.arms:
        options = study.spec["arms"][arm.name]
        shape = options.get("placement") or "log-spaced", options.get("projection") or "uniform"
        if arm.seeds and shape == (placement, projection) and not any(options.get(name) for name in OTHERWISE):
            # Below 1 the published weights grow with the half-life: a control, not the condition.
            right = projection == "uniform" or exponent_of(options) > 1
            if right and _model(study, arm).get("kind", "ssm") == "ssm":
                return arm
    return None


def _alike(study: Study, arms: Sequence[ArmResult]) -> bool:
    """Whether the arms share their gain and patching."""
    models = [_model(study, arm) for arm in arms]
    return all(model.get(name) == models[0].get(name) for model in models for name in ("gain", "patching"))


def _told(study: Study, arms: Sequence[ArmResult]) -> bool:
    """Whether the runs say what they were made of; records of earlier versions and reduced ones do not."""
    runs = [run for arm in arms for run in study.finished(arm.name)]
    return all(isinstance((run.config.get("train") or {}).get("context"), int) for run in runs)


def _model(study: Study, arm: ArmResult) -> Mapping[str, Any]:
    model: Mapping[str, Any] = study.finished(arm.name)[0].config["model"]
    return model


def _nearness(model: Mapping[str, Any]) -> tuple[bool, bool]:
    """How much of the published reading a model has; of equals `max` takes the first."""
    patching = model.get("patching") or {}
    published = patching.get("mode") == PUBLISHED and patching.get("size", 1) > 1
    return published and model.get("gain") == "none", published


def _drawn(study: Study, arm: ArmResult) -> DrawnCondition:
    runs = study.finished(arm.name)
    return DrawnCondition(
        name=short_name(study, arm.name),
        curves=[{row.step: row.val_bpb for row in run.evaluations} for run in runs],
        before=memory_of([run.first for run in runs]),
        after=memory_of([run.last for run in runs]),
        coherent=_coherent(runs),
    )


def _coherent(runs: Sequence[Run]) -> Callable[[ArrayLike], Floats]:
    """ln of the coherent kernel of the nodes that a run started with, at lags in bytes."""
    import numpy as np

    from plkernel.config.condition import from_config

    condition = from_config(runs[0].config)
    kernel, step = condition.nodes.kernel(), condition.model.patching.size
    return lambda lags: kernel.log_kernel(np.asarray(lags, dtype=float) / step)
