"""The memory of the blocks of trained models, over runs: quantiles of their half-lives, and their kernels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from plkernel.analysis.exponentials import Floats
from plkernel.analysis.nodes import falling_exponent

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Of the half-lives of a block's channels, as a run records them."""
OUTLASTING = 10
"""Contexts: half-lives longer than so many hold still while a window is read."""
SLOPE_LAGS = (4.0, 128.0)
"""Slopes of kernels are taken over these lags in bytes, or to the longest that is known."""


@dataclass(frozen=True)
class Memory:
    """Blocks at one time of their training, S runs of L blocks each.

    half_lives  (S, L, 7) QUANTILES of every block's half-lives, in bytes; (0, 0, 7) where they are not known
    lags        (T,) bytes; none where kernels are not known
    kernels     (S, L, T) what an input still weighs that many bytes later, in units of its own for every block
    """

    half_lives: Floats
    lags: Floats
    kernels: Floats

    @property
    def blocks(self) -> int:
        """L."""
        return max(self.half_lives.shape[1], self.kernels.shape[1])

    @property
    def has_kernels(self) -> bool:
        return self.kernels.size > 0

    @property
    def has_half_lives(self) -> bool:
        return self.half_lives.size > 0

    def block(self, index: int) -> "Memory":
        """One of the blocks alone."""
        kept = slice(index, index + 1)
        return Memory(self.half_lives[:, kept], self.lags, self.kernels[:, kept])

    def log_kernels(self) -> Floats:
        """ln k(t) / k(t of the first lag) of every block, mean over runs, (L, T); -inf where a kernel has vanished.

        The mean of logarithms is a geometric mean: its slope is the mean of the slopes.
        """
        return np.asarray(_log_normed(self.kernels).mean(axis=0))

    def half_life_quantiles(self) -> Floats:
        """Geometric mean over runs of every block's quantiles, (L, 7); of the two ends the outermost of all runs."""
        quantiles = np.exp(np.log(self.half_lives).mean(axis=0))
        quantiles[:, 0], quantiles[:, -1] = self.half_lives[..., 0].min(axis=0), self.half_lives[..., -1].max(axis=0)
        return quantiles

    def exponents(self) -> Floats:
        """x of the law t**-x that every run's kernels follow on `slope_range`, (S, L)."""
        return kernel_exponents(self.lags, self.kernels)


def slope_range(lags: ArrayLike) -> tuple[float, float] | None:
    """First and last of the known lags over which slopes are taken; None where there are not two."""
    known = np.asarray(lags, dtype=float)
    inside = known[(known >= SLOPE_LAGS[0]) & (known <= SLOPE_LAGS[1])]
    return (float(inside.min()), float(inside.max())) if inside.size > 1 else None


def kernel_exponents(lags: ArrayLike, kernels: ArrayLike) -> Floats:
    """x of the law t**-x that kernels (..., T) follow on `slope_range` of `lags` (T,); ValueError where it is None."""
    known, found = np.asarray(lags, dtype=float), slope_range(lags)
    if found is None:
        first, last = SLOPE_LAGS
        raise ValueError(f"lags must hold two of {first:g} to {last:g} for a slope, got {known.tolist()}")
    inside = (known >= found[0]) & (known <= found[1])
    return falling_exponent(known[inside], _log(np.asarray(kernels, dtype=float)[..., inside]))


def _log_normed(kernels: Floats) -> Floats:
    logs = _log(kernels)
    with np.errstate(invalid="ignore"):
        return np.asarray(logs - logs[..., :1])


def _log(values: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(values))


def memory_of(states: Sequence[Mapping[str, Any]]) -> Memory:
    """One time of several runs of one arm; what some run does not say is taken as unknown of all."""
    half_lives = _stacked(states, "half_life_quantiles", len(QUANTILES))
    kernels = [state.get("kernel") or {} for state in states]
    lags = [kernel.get("lags") for kernel in kernels]
    same = bool(lags) and lags[0] and all(found == lags[0] for found in lags)
    known = np.asarray(lags[0] if same else [], dtype=float)
    return Memory(half_lives, known, _stacked(kernels if same else [], "blocks", len(known)))


def _stacked(states: Sequence[Mapping[str, Any]], key: str, length: int) -> np.ndarray:
    """The rows of every state as (S, L, length); empty unless all of them have such rows, and as many."""
    found = [state.get(key) for state in states]
    shapes = {np.shape(rows) if rows else None for rows in found}  # type: ignore[arg-type]
    if len(shapes) != 1 or None in shapes or (shape := next(iter(shapes))) is None or shape[1:] != (length,):
        return np.empty((0, 0, length))
    return np.asarray(found, dtype=float)


def outlasting(half_lives: ArrayLike, context: int) -> str | None:
    """What to say of a start of which half or more outlasts OUTLASTING windows; None of any other.

    half_lives: those of its channels, or QUANTILES of them, in bytes; context: the bytes of a window of training.

    >>> outlasting([200, 40_000, 1_000_000], 512)
    'half or more of its half-lives, 200 to 1,000,000 bytes, are longer than 10 windows of 512 bytes'
    >>> outlasting([1, 40, 1_000_000], 512)
    """
    shortest, median, longest = np.quantile(np.asarray(half_lives, dtype=float), (0.0, 0.5, 1.0))
    if median <= OUTLASTING * context:
        return None
    span = f"{shortest:,.0f} to {longest:,.0f} bytes"
    return f"half or more of its half-lives, {span}, are longer than {OUTLASTING} windows of {context:,} bytes"
