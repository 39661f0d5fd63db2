"""Does training move activations as much at every width? What a coordinate check measured, and its verdict.

At each width a model takes a few steps of Adam at one base learning rate. With x_0 the coordinates of an activation at
the start and x_t after t steps, on the same inputs, the check is the slope of ln rms(x_t - x_0) against ln width: 0
where a parametrisation transfers learning rates from width to width, near 1 where wider models move too far. It is the
change that counts: x_0 itself may shrink with width, as logits do under muP. Source: Tensor Programs V (arXiv
2203.03466), appendix D.1 and figure 5, where the standard deviation of the coordinates is taken.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from plkernel.analysis.exponentials import Floats

FLAT = 0.1
"""Slopes of at most this size count as flat."""
Verdict = Literal["flat", "grows", "shrinks", "does not move", "diverges"]


@dataclass(frozen=True)
class Slope:
    """d ln rms / d ln width of one activation, the mean of the seeds, and their standard error (nan for one seed)."""

    value: float
    error: float
    verdict: Verdict


@dataclass(frozen=True)
class Coordinates:
    """Root mean squares of the coordinates, by activation; each holds widths x seeds x steps numbers.

    starts: of x_0, widths x seeds x 1. changes: of x_t - x_0 for t = 1, 2, ...
    """

    widths: tuple[int, ...]
    learning_rate: float
    starts: Mapping[str, Any]
    changes: Mapping[str, Any]

    @property
    def names(self) -> list[str]:
        """The activations, from the input to the logits."""
        return list(self.changes)

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return int(np.shape(self.changes[self.names[0]])[2])

    def change(self, name: str, step: int | None = None) -> Floats:
        """rms(x_t - x_0) by width, the geometric mean of the seeds; t is the last step unless given."""
        return geometric(self._change(name, step))

    def start(self, name: str) -> Floats:
        """rms(x_0) by width, the geometric mean of the seeds."""
        return geometric(np.asarray(self.starts[name], dtype=float)[:, :, 0])

    def slope(self, name: str, step: int | None = None, tolerance: float = FLAT) -> Slope:
        """Least squares on (ln width, ln rms(x_t - x_0)), seed by seed."""
        values = self._change(name, step)
        if not np.isfinite(values).all():
            return Slope(math.nan, math.nan, "diverges")
        if not (values > 0).all():
            return Slope(math.nan, math.nan, "does not move")
        slopes = np.polyfit(np.log(self.widths), np.log(values), 1)[0]
        mean = float(slopes.mean())
        error = float(slopes.std(ddof=1) / math.sqrt(slopes.size)) if slopes.size > 1 else math.nan
        return Slope(mean, error, "flat" if abs(mean) <= tolerance else "grows" if mean > 0 else "shrinks")

    def _change(self, name: str, step: int | None) -> Floats:
        """Widths x seeds."""
        values: Floats = np.asarray(self.changes[name], dtype=float)[:, :, self.steps - 1 if step is None else step - 1]
        return values

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that JSON keeps."""
        return asdict(self)


def geometric(values: Floats) -> Floats:
    """The geometric mean over the seeds of widths x seeds; 0 where one of them is 0, nan where one is not finite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = np.exp(np.log(values).mean(axis=1))
    return np.where(np.isfinite(found), found, math.nan)


@dataclass(frozen=True)
class Propagation:
    """The residual stream of a model at initialisation, before the first block and after each: depth + 1 numbers.

    forward: rms of its coordinates. backward: rms of the gradient there, for independent N(0, 1) gradients after the
    last block, so that the head has no part in it. Both geometric means of the seeds.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]

    @property
    def depth(self) -> int:
        """How many blocks."""
        return len(self.forward) - 1

    @property
    def growth(self) -> tuple[float, float]:
        """Per block, forward and backward, as the geometric mean; nan where either end is zero."""
        return (
            per_block(self.forward[0], self.forward[-1], self.depth),
            per_block(self.backward[-1], self.backward[0], self.depth),
        )


def per_block(first: float, last: float, depth: int) -> float:
    """(last / first)**(1 / depth)."""
    ratio = last / first if first > 0 else math.nan
    return ratio ** (1 / depth) if math.isfinite(ratio) and ratio > 0 else math.nan


def together(runs: Sequence[Propagation]) -> Propagation:
    """The geometric mean of the same model at several seeds."""
    forward, backward = (
        geometric(np.array([getattr(r, n) for r in runs], dtype=float).T) for n in ("forward", "backward")
    )
    return Propagation(tuple(forward.tolist()), tuple(backward.tolist()))
