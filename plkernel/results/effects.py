"""Effects of the factors of a study, from the largest part of its design that is complete."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from plkernel.analysis.statistics.differences import holm
from plkernel.analysis.statistics.factorial import Cell, Contrast, Factorial, factorial_effects
from plkernel.results.comparison import CONFIDENCE, Comparison, short_factor
from plkernel.results.evidence import ALPHA

FEWEST_SEEDS = 2
FEWEST_FACTORS = 2
"""With one factor left its effect is the difference of two arms, which the report has already."""
HIGHEST_ORDER = 2

Levels = dict[str, tuple[str, ...]]
"""The levels of every factor, by name."""
Values = dict[Cell, dict[int, float]]
"""The finished values of every cell of the design, by seed."""


@dataclass(frozen=True)
class Effects:
    """Main effects and two-way interactions in a complete part of a design.

    levels     of the factors that vary in this part: the first is what the others are compared with
    fixed      the factors of which one level is left
    left_out   the levels that are not in this part
    causal     whether every cell gives a likelihood
    whole      whether cells that leak were let in
    factorial  the contrasts, in bits per byte
    corrected  p of every contrast, adjusted for their number (Holm)
    """

    levels: Mapping[str, tuple[str, ...]]
    fixed: Mapping[str, str]
    left_out: Mapping[str, tuple[str, ...]]
    causal: bool
    whole: bool
    factorial: Factorial
    corrected: Mapping[str, float]

    @property
    def surviving(self) -> list[Contrast]:
        """The contrasts that can be told from none after the correction, the largest first."""
        found = [one for one in self.factorial.contrasts if self.corrected[one.name] < ALPHA]
        return sorted(found, key=lambda one: -abs(one.difference.mean))

    def short(self, factor: str) -> str:
        """A factor called by the last part of its name."""
        return short_factor(factor, [*self.levels, *self.fixed])

    def title(self, contrast: Contrast) -> str:
        """What a contrast subtracts: "projection: published - uniform", joined by x for an interaction."""
        named = zip(contrast.factors, contrast.levels, strict=True)
        return " x ".join(f"{self.short(factor)}: {level} - {self.levels[factor][0]}" for factor, level in named)


def effects(comparison: Comparison) -> list[Effects]:
    """The effects in the complete part of the design; where cells leak first those of the cells that do not.

    Empty where the study has no factors, or too little of them is finished for the same seeds.
    """
    levels = _levels(comparison)
    if len(levels) < FEWEST_FACTORS:
        return []
    cells = {
        tuple(own[name] for name in levels): arm
        for arm in comparison.arms
        if levels.keys() <= (own := comparison.study.levels(arm.name)).keys()
    }
    every = {cell: _finite(arm.values[comparison.primary.key]) for cell, arm in cells.items()}
    likelihoods = {cell: values for cell, values in every.items() if cells[cell].causal}
    parts = [likelihoods, every] if len(likelihoods) < len(every) else [every]
    leaking = {cell for cell, arm in cells.items() if not arm.causal}
    return [_effects(levels, found, leaking, part is every) for part in parts if (found := _largest(levels, part))]


def complete_part(levels: Mapping[str, tuple[str, ...]], present: set[Cell]) -> Levels | None:
    """Levels such that every combination of them is `present`; None where nothing is.

    The level with the largest share of missing combinations goes first, of equals the later one, until none misses.
    """
    left = {name: list(of) for name, of in levels.items()}
    while True:
        cells = list(itertools.product(*left.values()))
        missing = [cell for cell in cells if cell not in present]
        if not missing:
            return {name: tuple(of) for name, of in left.items()}
        shares = {
            (sum(cell[place] == level for cell in missing) * len(of) / len(cells), index, name)
            for place, (name, of) in enumerate(left.items())
            for index, level in enumerate(of)
            if len(of) > 1
        }
        if not shares:
            return None
        _, index, name = max(shares)
        del left[name][index]


def _levels(comparison: Comparison) -> Levels:
    """The levels of every factor in the order of the spec, those of the study's baseline first."""
    study = comparison.study
    first = study.levels(study.baseline)
    found: dict[str, dict[str, None]] = {name: {level: None} for name, level in first.items()}
    for arm in study.arms:
        for name, level in study.levels(arm).items():
            found.setdefault(name, {})[level] = None
    return {name: tuple(of) for name, of in found.items()}


def _finite(values: Mapping[int, float]) -> dict[int, float]:
    return {seed: value for seed, value in values.items() if math.isfinite(value)}


class _Part(NamedTuple):
    """A complete part of a design: its levels, the values of its cells, and the seeds that all of these share."""

    chosen: Levels
    values: Values
    seeds: set[int]

    @property
    def runs(self) -> int:
        return len(self.values) * len(self.seeds)


def _largest(levels: Levels, values: Values) -> _Part | None:
    """The complete part that holds the most runs; None where none is large enough."""
    found = (_part(levels, values, least) for least in sorted({len(one) for one in values.values()}))
    return max(filter(None, found), key=lambda part: part.runs, default=None)


def _part(levels: Levels, values: Values, least: int) -> _Part | None:
    """The complete part of the cells that have at least `least` seeds; None unless they share enough of them."""
    chosen = complete_part(levels, {cell for cell, of in values.items() if len(of) >= max(least, FEWEST_SEEDS)})
    if chosen is None or sum(len(of) > 1 for of in chosen.values()) < FEWEST_FACTORS:
        return None
    cells = list(itertools.product(*chosen.values()))
    common = set.intersection(*(set(values[cell]) for cell in cells))
    return _Part(chosen, {cell: values[cell] for cell in cells}, common) if len(common) >= FEWEST_SEEDS else None


def _effects(levels: Levels, part: _Part, leaking: set[Cell], whole: bool) -> Effects:
    varying = {name: of for name, of in part.chosen.items() if len(of) > 1}
    kept = [place for place, name in enumerate(part.chosen) if name in varying]
    cells = {tuple(cell[place] for place in kept): of for cell, of in part.values.items()}
    factorial = factorial_effects(cells, varying, min(HIGHEST_ORDER, len(varying)), CONFIDENCE)
    left_out = {name: tuple(level for level in of if level not in part.chosen[name]) for name, of in levels.items()}
    return Effects(
        levels=varying,
        fixed={name: of[0] for name, of in part.chosen.items() if len(of) == 1},
        left_out={name: of for name, of in left_out.items() if of},
        causal=not leaking & part.values.keys(),
        whole=whole,
        factorial=factorial,
        corrected=holm({one.name: one.difference.p_value for one in factorial.contrasts}),
    )
