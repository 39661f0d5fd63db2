"""How far predictions are from open: range of the logits, entropy, largest probability; growth of the residual stream.

A softmax with logits far apart puts all probability on one symbol, whatever the text; its gradient vanishes there, or
is large where the symbol is wrong. A good start predicts nearly uniformly: entropy ln 256 = 5.545 nats for bytes.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

SATURATED = 0.99
"""A position whose largest probability exceeds this is saturated."""
ROWS = 256  # at a time, which stay in the cache
LEAST_EXPONENT = -746.0  # exp of it is 0 in float64
MEANS = ("loss", "largest_probability", "entropy", "saturated_share")


@dataclass(frozen=True)
class Saturation:
    """What the logits of `positions` predictions say, each over V symbols; p is their softmax.

    loss                     mean of -ln p(target), nats
    logit_min, logit_max     over all positions and symbols
    largest_probability      mean over positions of max p
    peak_probability         maximum over positions of max p
    entropy                  mean of -sum p ln p, nats; ln V where logits are equal
    saturated_share          share of positions with max p > 0.99
    """

    positions: int
    loss: float
    logit_min: float
    logit_max: float
    largest_probability: float
    peak_probability: float
    entropy: float
    saturated_share: float

    def merged(self, other: "Saturation") -> "Saturation":
        """The figures of both sets of positions together."""
        total = self.positions + other.positions
        mine, theirs = self.positions / total, other.positions / total
        return Saturation(
            positions=total,
            logit_min=min(self.logit_min, other.logit_min),
            logit_max=max(self.logit_max, other.logit_max),
            peak_probability=max(self.peak_probability, other.peak_probability),
            **{name: mine * getattr(self, name) + theirs * getattr(other, name) for name in MEANS},
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers by name, in the order of the fields."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Saturation":
        """What `to_dict` gave; ValueError where a figure is missing."""
        missing = [field.name for field in fields(cls) if field.name not in values]
        if missing:
            raise ValueError(f"saturation has no {', '.join(missing)}")
        return cls(**{field.name: values[field.name] for field in fields(cls)})


def saturation(logits: ArrayLike, targets: ArrayLike) -> Saturation:
    """The figures of logits (..., V) and their targets (...), integers in 0..V-1; in float64, without overflow.

    A logit of -inf is a probability of 0 (and infinite loss where it is the target); NaN gives NaN figures. Raises
    ValueError when the shapes do not fit, there is no position, or a target is no symbol.
    """
    z, symbols = np.asarray(logits), np.asarray(targets)
    if z.ndim < 1 or symbols.shape != z.shape[:-1] or z.size == 0:
        raise ValueError(
            f"targets must have one entry per row of logits, at least one, got shapes {symbols.shape} and {z.shape}"
        )
    if symbols.dtype.kind not in "iu" or symbols.min() < 0 or symbols.max() >= z.shape[-1]:
        raise ValueError(f"targets must be integers from 0 to {z.shape[-1] - 1}, the symbols of the logits")
    z, symbols = z.reshape(-1, z.shape[-1]), symbols.reshape(-1)
    with np.errstate(invalid="ignore"):  # NaN and infinite logits, of a run that diverged
        parts = (_figures(z[i : i + ROWS], symbols[i : i + ROWS]) for i in range(0, len(z), ROWS))
        return reduce(Saturation.merged, parts)


def _figures(logits: NDArray[Any], targets: NDArray[Any]) -> Saturation:
    """`saturation` of logits (n, V) and targets (n,)."""
    peak = logits.max(axis=1)
    below = np.subtract(logits, peak[:, None], dtype=np.float64)
    of_target = below[np.arange(len(targets)), targets]
    np.maximum(below, LEAST_EXPONENT, out=below)
    weights = np.exp(below)
    total = weights.sum(axis=1)
    largest = 1.0 / total
    entropy = np.log(total) - np.einsum("nv,nv->n", weights, below) / total
    return Saturation(
        positions=len(targets),
        loss=float((np.log(total) - of_target).mean()),
        logit_min=float(logits.min()),
        logit_max=float(peak.max()),
        largest_probability=float(largest.mean()),
        peak_probability=float(largest.max()),
        entropy=float(entropy.mean()),
        saturated_share=float((largest > SATURATED).mean()),
    )


@dataclass(frozen=True)
class Amplification:
    """How the root mean square of the residual stream grows: `rms` before the first block and after each."""

    rms: tuple[float, ...]

    @property
    def per_block(self) -> tuple[float, ...]:
        """rms after each block over that before it; NaN after a stream of zeros."""
        return tuple(
            after / before if before else math.nan for before, after in zip(self.rms, self.rms[1:], strict=False)
        )

    @property
    def mean(self) -> float:
        """Geometric mean over the blocks."""
        return geometric_mean(self.per_block)


def geometric_mean(factors: Sequence[float]) -> float:
    """(product of the factors)**(1 / their number); NaN unless all are positive.

    >>> round(geometric_mean([0.5, 8.0]), 12)
    2.0
    """
    if not factors or not all(factor > 0 for factor in factors):
        return math.nan
    return math.exp(math.fsum(map(math.log, factors)) / len(factors))
