"""Intervals as pictures: rows of one frame each, with zero, the margin, seeds, the mean and its interval."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from plkernel.analysis.figures.forest import BESIDE, largest, nearby
from plkernel.results.page.charts.axes import Axis, Tick, linear

ROOM = 0.06


@dataclass(frozen=True)
class Estimated:
    """What a row draws: a mean with its interval (NaN for none), the values of seeds, and where a claim would hold."""

    mean: float
    low: float
    high: float
    seeds: tuple[float, ...] = ()
    claim: tuple[float, float] | None = None
    sure: bool = False


@dataclass(frozen=True)
class Mark:
    """An `Estimated` in percent of the frame's width; `side` is lower, higher or level with zero.

    beyond: where the mean is when the frame does not hold it, 'before' or 'after' all of it; else empty.
    """

    mean: float
    low: float
    width: float
    seeds: tuple[float, ...]
    claim: tuple[float, float] | None
    side: str
    sure: bool
    beyond: str


@dataclass(frozen=True)
class Row:
    """A name and what is said of it, a verdict in a word or two, the number and its interval, and the picture."""

    name: str
    said: str
    verdict: str
    tone: str
    number: str
    interval: str
    mark: Mark | None
    label: str = ""


@dataclass(frozen=True)
class Rows:
    """Rows that share a frame: a title, zero in percent, and ticks."""

    title: str
    zero: float
    ticks: tuple[Tick, ...]
    rows: tuple[Row, ...]
    label: str = ""


@dataclass(frozen=True)
class Forest:
    """Groups of rows, each with a scale of its own, and a caption."""

    groups: tuple[Rows, ...]
    caption: str
    compact: bool = False
    kind: ClassVar[str] = "forest"


def scale(found: Iterable[Estimated | None]) -> Axis:
    """A frame that holds zero, margins, the seeds of all rows but those far from the others, and their intervals as far
    as three times those.
    """
    finite = [one for one in found if one is not None and math.isfinite(one.mean)]
    near = nearby([largest((one.mean, *one.seeds)) for one in finite])
    known = [one for one, inside in zip(finite, near, strict=True) if inside]
    inner = [value for one in known for value in (one.mean, *one.seeds, *_edges(one.claim)) if math.isfinite(value)]
    reach = BESIDE * max((abs(value) for value in inner), default=0.0)
    outer = [edge for one in known for edge in (one.low, one.high) if math.isfinite(edge)]
    every = [0.0, *inner, *(min(max(edge, -reach), reach) for edge in outer)]
    low, high = min(every), max(every)
    room = ROOM * (high - low) or 1e-3
    return linear(low - room, high + room, signed=True, most=4)


def mark(one: Estimated, axis: Axis) -> Mark | None:
    """Where all of it lies; None where there is no finite mean."""
    if not math.isfinite(one.mean):
        return None
    known = math.isfinite(one.low)
    low, high = (_clipped(edge, axis) for edge in ((one.low, one.high) if known else (one.mean, one.mean)))
    side = "level" if not known or one.low <= 0 <= one.high else "lower" if one.mean < 0 else "higher"
    region = None
    if one.claim is not None:
        ends = [_clipped(edge, axis) for edge in one.claim]
        region = (ends[0], round(ends[1] - ends[0], 2))
    seeds = tuple(_clipped(value, axis) for value in one.seeds if math.isfinite(value))
    beyond = "before" if one.mean < axis.low else "after" if one.mean > axis.high else ""
    return Mark(_clipped(one.mean, axis), low, round(high - low, 2), seeds, region, side, one.sure, beyond)


def rows(title: str, axis: Axis, members: Sequence[Row], label: str = "") -> Rows:
    """A group of rows in one frame."""
    return Rows(title, axis.percent(0.0), axis.ticks, tuple(members), label)


def _clipped(value: float, axis: Axis) -> float:
    return 0.0 if value == -math.inf else 100.0 if value == math.inf else min(max(axis.percent(value), 0.0), 100.0)


def _edges(claim: tuple[float, float] | None) -> list[float]:
    return [edge for edge in claim or () if math.isfinite(edge)]
