"""Scales of a frame: where a value lies, and where ticks stand with which words."""

import math
from dataclasses import dataclass

SIDE = 2000
"""A frame is so many units wide and high, whatever its size on a screen."""
MOST_TICKS = 5
DIGITS = ((1, 2, 5), range(1, 10))
"""Of each decade, where ticks of a logarithmic scale may stand."""
LEAST, MOST = 1e-200, 1e200
"""What no scale goes beyond, so that nothing computed on it overflows."""
BEYOND = 3
"""What lies further outside than so many frames is drawn there: it is cut in any case."""


@dataclass(frozen=True)
class Tick:
    """A tick: percent of the way along the axis, and its text."""

    at: float
    text: str


@dataclass(frozen=True)
class Axis:
    """A scale from `low` to `high`, linear or logarithmic, its name and its ticks."""

    low: float
    high: float
    label: str
    log: bool
    ticks: tuple[Tick, ...]

    def place(self, value: float) -> int:
        """Where a value lies, 0 at the low end and SIDE at the high one."""
        share = _share(value, self.low, self.high, self.log)
        return round(SIDE * min(max(share, -BEYOND), 1 + BEYOND))

    def percent(self, value: float) -> float:
        """The same in percent of the way."""
        return round(100 * _share(value, self.low, self.high, self.log), 2)

    def holds(self, value: float) -> bool:
        """Whether a value is finite and can be placed."""
        return math.isfinite(value) and (value > 0 or not self.log)


def linear(low: float, high: float, label: str = "", signed: bool = False, most: int = MOST_TICKS) -> Axis:
    """A linear scale with at most so many ticks at round values; `signed` values are written with their sign."""
    low, high = _apart(max(low, -MOST), min(high, MOST))
    step = _round_step((high - low) / most)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    values = [number * step for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    return _axis(low, high, label, False, {value: _written(value, digits, signed) for value in values})


def logarithmic(low: float, high: float, label: str = "", most: int = MOST_TICKS, base: int = 10) -> Axis:
    """A logarithmic scale above zero: ticks at 1, 2 and 5 of each decade, or at powers of the base, as many as fit."""
    low = min(max(low, LEAST), MOST)
    low, high = (low, min(high, MOST)) if high > low * (1 + 1e-9) else (low / 2, low * 2)
    powers = range(math.floor(math.log(low, base) - 1e-9), math.ceil(math.log(high, base)) + 1)
    fine = [[10.0**power * digit for power in powers for digit in way] for way in DIGITS] if base == 10 else []
    coarse = [[float(base) ** power for power in powers if power % every == 0] for every in range(1, len(powers) + 1)]
    inside = ([value for value in some if low * 0.999 <= value <= high * 1.001] for some in (*fine, *coarse))
    chosen = next((some for some in inside if 2 <= len(some) <= most), [low, high])
    return _axis(low, high, label, True, {value: _plain(value) for value in chosen})


def _apart(low: float, high: float) -> tuple[float, float]:
    """The ends of a scale, moved apart where they are too close to place anything between them."""
    near = max(abs(low), abs(high))
    return (low, high) if high - low > max(LEAST, 1e-9 * near) else (low - 0.1 * near - 0.5, high + 0.1 * near + 0.5)


def _axis(low: float, high: float, label: str, log: bool, texts: dict[float, str]) -> Axis:
    ticks = (Tick(round(100 * _share(value, low, high, log), 2), text) for value, text in texts.items())
    return Axis(low, high, label, log, tuple(ticks))


def _share(value: float, low: float, high: float, log: bool) -> float:
    if log:
        value, low, high = (math.log(max(one, 1e-300)) for one in (value, low, high))
    return (value - low) / (high - low)


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5, 10, 20 .. that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least * (1 - 1e-9))


def _written(value: float, digits: int, signed: bool) -> str:
    if round(value, digits) == 0:
        return "0"
    return f"{value:{'+' if signed else ''}.{digits}f}".replace("-", "\N{MINUS SIGN}")


def _plain(value: float) -> str:
    """A number above zero in plain digits, a very small or large one as a power of ten: "0.05", "1e-6"."""
    return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e") if not 1e3 <= value < 1e6 else f"{value:,.0f}"


def path(points: list[tuple[int, int]], closed: bool = False) -> str:
    """Points in a frame, y upwards, as the data of an SVG path."""
    flat = " ".join(f"{x},{SIDE - y}" for x, y in points)
    return f"M{flat}{'z' if closed else ''}" if points else ""
