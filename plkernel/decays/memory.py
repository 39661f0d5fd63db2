"""The memory of a model's blocks at one time: quantiles of half-lives, kernels and their slopes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Levels of the half-lives of a block's channels that a run records."""
OUTLASTING = 10
"""Contexts: a channel with a half-life longer than this many hardly decays while a window is read.
"""
SLOPE_LAGS = (4.0, 128.0)
"""Lags in bytes over which slopes of kernels are taken, or up to the longest known lag."""


@dataclass(frozen=True)
class Memory:
    """Blocks at one time of their training, S runs of L blocks each.

    half_lives  (S, L, 7) QUANTILES of every block's half-lives, in bytes; (0, 0, 7) if unknown
    lags        (T,) bytes; empty if kernels are unknown
    kernels     (S, L, T) weight of an input that many bytes later, in units of its own for every
                block
    """

    half_lives: Floats
    lags: Floats
    kernels: Floats

    @property
    def blocks(self) -> int:
        """L."""
        return max(self.half_lives.shape[1], self.kernels.shape[1])

    def log_kernels(self) -> Floats:
        """ln k(t) / k(first lag) of every block, mean over runs, (L, T); -inf of a vanished kernel.

        The mean of logarithms is a geometric mean: its slope is the mean of the slopes.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(self.kernels)
            return np.asarray((logs - logs[..., :1]).mean(axis=0))

    def half_life_quantiles(self) -> Floats:
        """Geometric mean over runs of every block's quantiles, (L, 7).

        The two ends are the outermost of all runs.
        """
        quantiles = np.exp(np.log(self.half_lives).mean(axis=0))
        quantiles[:, 0] = self.half_lives[..., 0].min(axis=0)
        quantiles[:, -1] = self.half_lives[..., -1].max(axis=0)
        return quantiles

    def exponents(self) -> Floats:
        """x of the law t**-x that every run's kernels follow on `slope_range`, (S, L)."""
        return kernel_exponents(self.lags, self.kernels)


def slope_range(lags: ArrayLike) -> tuple[float, float] | None:
    """First and last of the known lags over which slopes are taken; None of fewer than two."""
    known = np.asarray(lags, dtype=float)
    inside = known[(known >= SLOPE_LAGS[0]) & (known <= SLOPE_LAGS[1])]
    return (float(inside.min()), float(inside.max())) if inside.size > 1 else None


def kernel_exponents(lags: ArrayLike, kernels: ArrayLike) -> Floats:
    """x of the law t**-x that kernels (..., T) follow on `slope_range` of `lags` (T,).

    Raises ValueError for too few lags.
    """
    from plkernel.analysis.nodes import falling_exponent  # loads scipy

    known = np.asarray(lags, dtype=float)
    span = slope_range(lags)
    if span is None:
        first, last = SLOPE_LAGS
        raise ValueError(
            f"lags must hold two of {first:g} to {last:g} for a slope, got {known.tolist()}"
        )
    inside = (known >= span[0]) & (known <= span[1])
    weights = np.asarray(kernels, dtype=float)[..., inside]
    with np.errstate(divide="ignore"):
        return falling_exponent(known[inside], np.log(weights))


def memory_of(states: Sequence[Mapping[str, Any]]) -> Memory:
    """Memory of several runs of one arm at one time.

    A quantity that some run lacks is unknown for all.
    """
    kernels = [state.get("kernel") or {} for state in states]
    lags = [kernel.get("lags") for kernel in kernels]
    same = bool(lags) and lags[0] and all(one == lags[0] for one in lags)
    known = np.asarray(lags[0] if same else [], dtype=float)
    half_lives = [state.get("half_life_quantiles") for state in states]
    blocks = [kernel.get("blocks") for kernel in kernels] if same else []
    return Memory(_stacked(half_lives, len(QUANTILES)), known, _stacked(blocks, len(known)))


def _stacked(rows: Sequence[Any], length: int) -> Floats:
    """The rows of every run as (S, L, length); empty unless all have such rows, equally many."""
    shapes: set[tuple[int, ...]] = {np.shape(one) if one else () for one in rows}
    if len(shapes) != 1 or shapes.pop()[1:] != (length,):
        return np.empty((0, 0, length))
    return np.asarray(rows, dtype=float)


def outlasting(half_lives: ArrayLike, context: int) -> str | None:
    """Caution for an initialisation with half or more of its half-lives above OUTLASTING windows.

    half_lives  those of its channels, or QUANTILES of them, in bytes
    context     bytes of a window of training

    None for any other initialisation, and where some half-life is not known.

    >>> print(outlasting([200, 40_000, 1_000_000], 512))
    half or more of its half-lives, 200 to 1,000,000 bytes, are longer than 10 windows of 512 bytes
    >>> outlasting([1, 40, 1_000_000], 512)
    """
    shortest, median, longest = np.quantile(np.asarray(half_lives, dtype=float), (0.0, 0.5, 1.0))
    if not median > OUTLASTING * context:  # NaN too
        return None
    span = f"{shortest:,.0f} to {longest:,.0f} bytes"
    return (
        f"half or more of its half-lives, {span}, are longer than {OUTLASTING} windows of"
        f" {context:,} bytes"
    )
