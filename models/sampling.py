"""Choosing the next byte from its logits: temperature, nucleus, and one uniform number per byte, all in float64."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Probabilities = NDArray[np.float64]


@dataclass(frozen=True)
class Sampling:
    """p = softmax(logits / temperature), restricted to the nucleus `top_p`; temperature 0 takes the likeliest byte.

    Raises ValueError for a temperature below 0 or without bound and for a top_p outside (0, 1].
    """

    temperature: float = 1.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise ValueError(
                f"temperature must be at least 0 and finite (0: always the likeliest byte), got {self.temperature}"
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1 (1: every byte), got {self.top_p}")

    def probabilities(self, logits: ArrayLike) -> Probabilities:
        """Probabilities (V,) of the next byte from logits (V,). FloatingPointError when one is not finite."""
        z = np.asarray(logits, np.float64)
        if not np.isfinite(z).all():
            raise FloatingPointError("the model's logits are not finite: it has diverged, take an earlier checkpoint")
        z = z - z.max()
        if self.temperature == 0:
            return np.eye(1, z.size, int(z.argmax()))[0]
        with np.errstate(over="ignore", under="ignore"):  # a tiny temperature sends all but the likeliest to 0
            p = np.exp(z / self.temperature)
        return nucleus(p / p.sum(), self.top_p)

    def choose(self, logits: ArrayLike, uniform: float) -> int:
        """The byte at `uniform`, in [0, 1), of the cumulative probabilities in the order of the bytes."""
        p = self.probabilities(logits)
        possible = np.flatnonzero(p)
        cumulative = np.cumsum(p[possible])
        place = np.searchsorted(cumulative, uniform * cumulative[-1], side="right")
        return int(possible[min(place, possible.size - 1)])


def nucleus(p: Probabilities, top_p: float) -> Probabilities:
    """`p` (V,) on the fewest bytes that together reach `top_p`, the one that crosses it included, with sum 1 again.

    Of equally likely bytes the smaller goes first (Holtzman et al., arXiv 1904.09751, section 3.1).
    """
    if top_p == 1:
        return p
    order = np.argsort(-p, kind="stable")
    kept = order[: np.searchsorted(np.cumsum(p[order]), top_p, side="left") + 1]
    inside = np.zeros_like(p)
    inside[kept] = p[kept]
    return inside / inside.sum()
