"""A chart as data: panels of one frame each, in them the traces of arms, each a few shapes that may be pointed at."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from plkernel.results.page.charts.axes import Axis, path

LINE, SEED, BAND, WIDE_BAND, DOT, BEFORE, THIN_BEFORE, LAW, BOX = (
    "line",
    "seed",
    "band",
    "wide-band",
    "dot",
    "before",
    "thin-before",
    "law",
    "box",
)
"""What a shape is: the page's style sheet draws each in its way."""


@dataclass(frozen=True)
class Shape:
    """One path of a kind, and what is said where a pointer rests on it."""

    kind: str
    path: str
    text: str = ""


@dataclass(frozen=True)
class Trace:
    """All shapes of one arm in one panel; `slot` is its number among the arms, which gives colour and dashes."""

    slot: int
    name: str
    shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class Across:
    """A line across a frame at a height in percent from above, and its name."""

    top: float
    name: str = ""


@dataclass(frozen=True)
class Panel:
    """A frame: its title, its scales (the name of `y` stands above it) and what is drawn in it."""

    title: str
    x: Axis
    y: Axis
    traces: tuple[Trace, ...]
    across: tuple[Across, ...] = ()

    @property
    def zero(self) -> float | None:
        """Where zero is in percent from above, where the scale holds it."""
        inside = not self.y.log and self.y.low <= 0 <= self.y.high
        return round(100 - self.y.percent(0.0), 2) if inside else None


@dataclass(frozen=True)
class Chart:
    """Panels that flow as the width allows, the names of their arms by slot, a description and a caption."""

    panels: tuple[Panel, ...]
    names: tuple[tuple[int, str], ...]
    description: str
    caption: str
    title: str = ""
    kind: ClassVar[str] = "chart"


def line(x: Axis, y: Axis, at: Sequence[float], values: Sequence[float], kind: str = LINE, text: str = "") -> Shape:
    """A line through the points that the scales can place."""
    points = [(x.place(a), y.place(b)) for a, b in zip(at, values, strict=True) if _fit(x, y, a, b)]
    return Shape(kind, path(points), text)


def band(x: Axis, y: Axis, at: Sequence[float], low: Sequence[float], high: Sequence[float], kind: str = BAND) -> Shape:
    """The region between two lines; on a logarithmic scale what is not above zero is cut."""
    floor = y.low if y.log else -float("inf")
    rows = [(a, max(b, floor), max(c, floor)) for a, b, c in zip(at, low, high, strict=True)]
    kept = [row for row in rows if _fit(x, y, row[0], row[1]) and _fit(x, y, row[0], row[2])]
    below = [(x.place(a), y.place(b)) for a, b, _ in kept]
    above = [(x.place(a), y.place(c)) for a, _, c in reversed(kept)]
    return Shape(kind, path([*below, *above], closed=True))


def dots(x: Axis, y: Axis, at: Sequence[float], values: Sequence[float], texts: Sequence[str]) -> list[Shape]:
    """Points that show and say themselves where a pointer rests on them."""
    return [
        Shape(DOT, f"{path([(x.place(a), y.place(b))])}h0", text)
        for a, b, text in zip(at, values, texts, strict=True)
        if _fit(x, y, a, b)
    ]


def _fit(x: Axis, y: Axis, at: float, value: float) -> bool:
    return x.holds(at) and y.holds(value)
