"""Effects and interactions of the factors of a full factorial design whose cells share their seeds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from plkernel.analysis.statistics.differences import PairedDifference, paired_difference

Cell = tuple[str, ...]
"""One level of each factor, in the order of the factors."""


@dataclass(frozen=True)
class Contrast:
    """A main effect (one factor) or an interaction (several): `levels` against the first level of each factor.

    name        "projection: gain-corrected - uniform", joined by " x " for an interaction
    difference  per seed the contrast of that seed's cells; over seeds its mean, t interval and p
    """

    name: str
    factors: tuple[str, ...]
    levels: tuple[str, ...]
    difference: PairedDifference

    @property
    def order(self) -> int:
        """1 for a main effect, 2 for a two-way interaction."""
        return len(self.factors)


@dataclass(frozen=True)
class Factorial:
    """The contrasts of a design, main effects first; the seeds that all cells have, and those left out of it."""

    factors: tuple[str, ...]
    cells: int
    seeds: tuple[int, ...]
    dropped_seeds: tuple[int, ...]
    contrasts: tuple[Contrast, ...]

    def __getitem__(self, name: str) -> PairedDifference:
        """The difference of the contrast called `name`; KeyError listing the names there are."""
        found = {contrast.name: contrast.difference for contrast in self.contrasts}
        if name not in found:
            raise KeyError(f"no contrast {name!r}, there are: {'; '.join(found)}")
        return found[name]


def factorial_effects(
    values: Mapping[Cell, Mapping[int, float]],
    factors: Mapping[str, Sequence[str]],
    order: int = 2,
    confidence: float = 0.95,
) -> Factorial:
    """Main effects and interactions up to `order`, each a contrast within seeds, then a t interval over seeds.

    With y[cell, seed] and k factors, the effect of level b of factor A against its first level a is, per seed,

        mean over the cells of the other factors of  y[b, ...] - y[a, ...]

    and the interaction of A and B is the mean over the rest of (y[b, d] - y[a, d]) - (y[b, c] - y[a, c]), the
    difference of differences against both first levels. What a seed does to all its cells cancels, and the spread
    of the contrast over seeds is its error term: each contrast brings its own, so no sphericity is assumed
    (Maxwell and Delaney 2004, chapter 11). Where factors interact, a main effect is an average over unlike effects.

    Args:
        values: One number per cell and seed; a cell names one level per factor, in the order of `factors`.
        factors: Levels by factor; the first level is what the others are compared with.
        order: Largest number of factors in an interaction: 1 gives main effects only, len(factors) all of them.
        confidence: Of every interval. The p values are not corrected for their number, see `holm`.

    Seeds that a cell lacks are left out of all cells and listed. Raises ValueError for a cell that is missing, that
    the factors do not name, a factor of fewer than two levels or with one twice, an order that does not exist, or
    when no seed is in all cells.
    """
    _check(values, factors, order)
    cells = list(product(*factors.values()))
    seeds, dropped = _common_seeds(values, cells)
    table = np.array([[values[cell][seed] for seed in seeds] for cell in cells], dtype=np.float64)
    contrasts = []
    for size in range(1, order + 1):
        for chosen in combinations(factors, size):
            for levels in product(*(factors[name][1:] for name in chosen)):
                per_seed = _weights(factors, dict(zip(chosen, levels, strict=True))) @ table
                contrasts.append(_contrast(factors, chosen, levels, per_seed, seeds, confidence))
    return Factorial(tuple(factors), len(cells), seeds, dropped, tuple(contrasts))


def _weights(factors: Mapping[str, Sequence[str]], chosen: Mapping[str, str]) -> NDArray[np.float64]:
    """(cells,): the outer product of +1 at the level and -1 at the first for a chosen factor, else of equal shares."""
    vectors = []
    for name, levels in factors.items():
        if name in chosen:
            vectors.append(np.array([float(level == chosen[name]) - float(level == levels[0]) for level in levels]))
        else:
            vectors.append(np.full(len(levels), 1.0 / len(levels)))
    return reduce(np.multiply.outer, vectors).ravel()


def _contrast(
    factors: Mapping[str, Sequence[str]],
    chosen: tuple[str, ...],
    levels: tuple[str, ...],
    per_seed: NDArray[np.float64],
    seeds: tuple[int, ...],
    confidence: float,
) -> Contrast:
    name = " x ".join(f"{factor}: {level} - {factors[factor][0]}" for factor, level in zip(chosen, levels, strict=True))
    measured = dict(zip(seeds, per_seed.tolist(), strict=True))
    return Contrast(name, chosen, levels, paired_difference(measured, dict.fromkeys(seeds, 0.0), confidence))


def _common_seeds(
    values: Mapping[Cell, Mapping[int, float]], cells: Iterable[Cell]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The seeds that every cell has, and those that some cell lacks."""
    seeds = [set(values[cell]) for cell in cells]
    common, seen = set.intersection(*seeds), set.union(*seeds)
    if not common:
        raise ValueError("values: no seed is in every cell, nothing to pair")
    return tuple(sorted(common)), tuple(sorted(seen - common))


def _check(values: Mapping[Cell, Mapping[int, float]], factors: Mapping[str, Sequence[str]], order: int) -> None:
    for name, levels in factors.items():
        if len(levels) < 2 or len(set(levels)) < len(levels):
            raise ValueError(f"factors: {name} has levels {list(levels)}, give at least two, each once")
    if not 1 <= order <= len(factors):
        raise ValueError(f"order: got {order}, give 1 to {len(factors)}, the number of factors")
    cells = list(product(*factors.values()))
    missing = [cell for cell in cells if not values.get(cell)]
    if missing:
        raise ValueError(f"values: {len(missing)} of {len(cells)} cells are missing: {_names(missing)}")
    unknown = [cell for cell in values if cell not in cells]
    if unknown:
        raise ValueError(f"values: {_names(unknown)} not in the design, its levels are {dict(factors)}")


def _names(cells: Sequence[Cell]) -> str:
    shown = ", ".join("/".join(cell) for cell in cells[:3])
    return f"{shown} and {len(cells) - 3} more" if len(cells) > 3 else shown
