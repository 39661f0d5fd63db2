"""Charts of training: bits per byte of every arm, and its difference to the arm it is compared with."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from plkernel.analysis.figures.curves import FEWEST_FOR_WHOLE, difference_limits
from plkernel.analysis.figures.style import byte_unit
from plkernel.analysis.statistics.bands import Band, Curve, difference_curves, pointwise_band, simultaneous_band
from plkernel.common.cli import written
from plkernel.results.comparison import CONFIDENCE, ArmResult, Block, Comparison, short_name
from plkernel.results.figures import arm_label, reference_losses
from plkernel.results.page.charts.axes import Axis, linear, logarithmic
from plkernel.results.page.charts.frames import (
    BAND,
    LINE,
    SEED,
    WIDE_BAND,
    Across,
    Chart,
    Panel,
    Shape,
    Trace,
    band,
    dots,
    line,
)

NAME_HEIGHT = 8
"""Percent of a frame that the name of a line takes."""
ROOM = 0.04
"""Above and below the values, as a share of the frame."""


@dataclass(frozen=True)
class Training:
    """The curves of a block's arms: `labels` are their names, `references` what n-grams reach by name."""

    comparison: Comparison
    block: Block
    labels: Mapping[str, str]
    references: Mapping[str, float]

    @cached_property
    def curves(self) -> dict[str, dict[int, dict[int, float]]]:
        """Validation bits per byte by arm, seed and bytes read, of all arms: some are compared outside their block."""
        return {arm.name: self.comparison.study.curves(arm.name) for arm in self.comparison.arms}

    @cached_property
    def slots(self) -> dict[str, int]:
        """The number of each arm, 0 for the baseline: its colour in every chart of the block."""
        return {arm.name: slot for slot, arm in enumerate(self.block.arms)}

    @cached_property
    def names(self) -> tuple[tuple[int, str], ...]:
        """The names of arms that have a curve, by slot."""
        return tuple((self.slots[arm.name], self.labels[arm.name]) for arm in self.block.arms if arm.seeds)

    @cached_property
    def last(self) -> int:
        """Bytes read at the end of the longest run."""
        every = (curve for arm in self.block.arms for curve in self.curves[arm.name].values())
        return max((at for curve in every for at in curve), default=1)

    @cached_property
    def unit(self) -> tuple[float, str]:
        """The unit of bytes read, and the name of the scale."""
        size, name = byte_unit(self.last)
        return size, f"training bytes read ({name})"

    @cached_property
    def paired(self) -> dict[str, list[Curve]]:
        """Difference curves of the arms that have some."""
        found: dict[str, list[Curve]] = {
            arm.name: list(difference_curves(self.curves[arm.name], self.curves[str(arm.against)]).values())
            for arm in self.block.others
            if arm.differences
        }
        return {name: curves for name, curves in found.items() if any(curves)}

    @cached_property
    def bands(self) -> dict[str, list[Band]]:
        """The bands of every difference: for each position on its own, and from five seeds on for the whole curve."""
        return {name: [pointwise_band(curves, CONFIDENCE), *_whole(curves)] for name, curves in self.paired.items()}

    @cached_property
    def limits(self) -> tuple[float, float]:
        """The frame of all differences."""
        return difference_limits(self.paired, self.bands)


def training_of(comparison: Comparison, block: Block) -> Training:
    """The curves of a block; arms that are not causal say so where their block does not."""
    labels = {arm.name: arm_label(comparison, block, arm) for arm in block.arms}
    return Training(comparison, block, labels, reference_losses(comparison, block))


def convergence(training: Training, description: str, caption: str) -> Chart:
    """The whole run on a logarithmic scale of bytes, and its second half."""
    panels = (_levels(training, "whole run", 0.0), _levels(training, "second half", 0.5))
    return Chart(panels, training.names, description, caption)


def differences(training: Training, arms: Iterable[ArmResult], description: str, caption: str) -> Chart:
    """A panel per arm: seeds, mean, and both bands."""
    found = [arm for arm in arms if arm.name in training.paired]
    panels = tuple(_difference(training, arm) for arm in found)
    return Chart(panels, tuple(one for one in training.names if one[0] in _slots(panels)), description, caption)


def at_a_glance(training: Training, description: str, caption: str, title: str = "") -> Chart:
    """Bits per byte over the whole run, and the differences of all arms in one frame."""
    x, y = _bytes(training, 0), _differences_scale(training)
    traces = tuple(_mean_difference(training, name, x, y) for name in training.paired)
    panels = [_levels(training, "", 0.0, seeds=False)]
    if traces:
        base = short_name(training.comparison.study, training.block.baseline)
        panels.append(Panel(f"minus {base}, below 0 is better", x, y, traces))
    return Chart(tuple(panels), training.names, description, caption, title)


def _levels(training: Training, title: str, start: float, seeds: bool = True) -> Panel:
    """Bits per byte from that share of the run on; from 0 on a logarithmic scale, which leaves out step 0."""
    unit = training.unit[0]
    every = {arm.name: list(training.curves[arm.name].values()) for arm in training.block.arms}
    last = training.last
    inside = [
        (at, value)
        for curves in every.values()
        for curve in curves
        for at, value in curve.items()
        if at >= max(1, start * last) and math.isfinite(value)
    ]
    first = min((at for at, _ in inside), default=1)
    x = logarithmic(first / unit, last / unit, training.unit[1]) if not start else _bytes(training, start * last)
    y = _roomy([value for _, value in inside], "validation bits per byte")
    traces = tuple(
        Trace(training.slots[name], training.labels[name], _level(training.labels[name], curves, x, y, unit, seeds))
        for name, curves in every.items()
        if curves
    )
    return Panel(title, x, y, traces, tuple(_across(training.references, y)))


def _across(references: Mapping[str, float], y: Axis) -> Iterator[Across]:
    """The losses of n-grams inside the frame, from above; of lines that are close the highest names them all."""
    inside = {name: round(100 - y.percent(loss), 2) for name, loss in references.items() if y.low <= loss <= y.high}
    head, names = None, list[str]()
    ordered = sorted(inside.items(), key=lambda one: one[1])
    for at, (name, top) in enumerate(ordered):
        head, names = (top, [name]) if head is None else (head, [*names, name])
        last = at + 1 == len(ordered) or ordered[at + 1][1] - head > NAME_HEIGHT
        yield Across(top, "")
        if last:
            yield Across(head, "; ".join(names))
            head = None


def _level(name: str, curves: Sequence[Curve], x: Axis, y: Axis, unit: float, seeds: bool) -> tuple[Shape, ...]:
    mean = pointwise_band(curves)
    at = [float(place) / unit for place in mean.at]
    drawn = [line(x, y, [place / unit for place in curve], list(curve.values()), SEED) for curve in curves if seeds]
    texts = [
        f"{name}: {value:.4f} after {_read(place, x)}" for place, value in zip(at, mean.mean.tolist(), strict=True)
    ]
    return (*drawn, line(x, y, at, mean.mean.tolist(), LINE, name), *dots(x, y, at, mean.mean.tolist(), texts))


def _difference(training: Training, arm: ArmResult) -> Panel:
    x, y, name = _bytes(training, 0), _differences_scale(training), training.labels[arm.name]
    unit, seeds = training.unit[0], training.paired[arm.name]
    thin = [line(x, y, [at / unit for at in curve], list(curve.values()), SEED) for curve in seeds]
    mean = _mean_difference(training, arm.name, x, y, both=True)
    base = short_name(training.comparison.study, str(arm.against))
    return Panel(f"{name} minus {base}", x, y, (Trace(mean.slot, name, (*thin, *mean.shapes)),))


def _mean_difference(training: Training, arm: str, x: Axis, y: Axis, both: bool = False) -> Trace:
    """Mean and bands; one band, the one that holds for the most, where not both are asked for."""
    found, unit, name = training.bands[arm], training.unit[0], training.labels[arm]
    kinds = list(zip(found, (BAND, WIDE_BAND), strict=False))
    at = [float(place) / unit for place in found[0].at]
    mean = found[0].mean.tolist()
    regions = [
        band(x, y, at, one.low.tolist(), one.high.tolist(), kind) for one, kind in (kinds if both else kinds[-1:])
    ]
    texts = [f"{name}: {written(value, '+.4f')} after {_read(place, x)}" for place, value in zip(at, mean, strict=True)]
    return Trace(training.slots[arm], name, (*regions, line(x, y, at, mean, LINE, name), *dots(x, y, at, mean, texts)))


def _bytes(training: Training, start: float) -> Axis:
    """Bytes read on a linear scale, to the end of the longest run of the block."""
    unit, label = training.unit
    return linear(start / unit, training.last / unit, label)


def _differences_scale(training: Training) -> Axis:
    return linear(*training.limits, "difference in bits per byte", signed=True)


def _roomy(values: Sequence[float], label: str) -> Axis:
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = ROOM * (high - low)
    return linear(low - room, high + room, label)


def _whole(curves: Sequence[Curve]) -> list[Band]:
    return [simultaneous_band(curves, CONFIDENCE)] if len(curves) >= FEWEST_FOR_WHOLE else []


def _read(place: float, x: Axis) -> str:
    """Bytes read with their unit."""
    return f"{place:.3g} {x.label.partition('(')[2].rstrip(')')}"


def _slots(panels: Iterable[Panel]) -> set[int]:
    return {trace.slot for panel in panels for trace in panel.traces}
