"""The page's section on differences: every arm minus the one it is compared with, and all that speaks for it."""

import math
from collections.abc import Sequence
from typing import Any

from plkernel.analysis.statistics.differences import critical_value
from plkernel.common.cli import written
from plkernel.results.comparison import ArmResult, Block, Comparison, compared_with
from plkernel.results.evidence import BOOTSTRAP_FROM, Evidence
from plkernel.results.page.document import Cell, PageSection, Part, Prose, Table, folded, number, prose, section
from plkernel.results.page.first import contrasts
from plkernel.results.page.parts import (
    aside,
    contrast,
    finite,
    grouped,
    header_mark,
    mark,
    marked,
    stacked,
    titles,
    zero,
)
from plkernel.results.sentences import is_large, p_text

ENOUGH_SEEDS = 5
FEW_COLUMNS = 3
"""So many seeds have a column each among the differences; more have a table of their own."""
NO_SEED = "no common seed"


def differences(comparison: Comparison) -> list[PageSection]:
    """Every arm minus the one it is compared with, with all that speaks for it."""
    if not any(arm.differences for arm in comparison.others):
        return []
    found, label = comparison.evidence, mark(comparison)
    seeds = sorted({seed for evidence in found.values() for seed in evidence.difference.per_seed})
    elsewhere = not comparison.declared and not is_large(comparison)
    return section(
        f"Difference to {compared_with(comparison)}{label}",
        None if elsewhere else contrasts(comparison, compact=True),
        *_table(comparison, seeds if len(seeds) <= FEW_COLUMNS else []),
        _few_seeds(min((evidence.difference.n for evidence in found.values()), default=0)),
        *_every_seed(comparison, seeds if len(seeds) > FEW_COLUMNS else []),
        *_others(comparison),
    )


def _table(comparison: Comparison, seeds: Sequence[int]) -> list[Part | None]:
    found, label = comparison.evidence, mark(comparison)
    long = any(evidence.bootstrap for evidence in found.values())
    header = ["arm", *(f"seed {seed}" for seed in seeds), "mean", "p", "corrected p", "sign-flip p", "d_z"]
    header += ["baseline's end reached", *(["bootstrap"] if long else []), "zero lies"]

    def row(part: Block, arm: ArmResult) -> list[Any]:
        evidence, name = found.get(arm.name), contrast(comparison, part, arm)
        if evidence is None:
            return [name, *[number()] * (len(header) - 2), NO_SEED]
        both, each = (arm, comparison[str(arm.against)]), evidence.difference.per_seed
        return [
            name,
            *(marked(finite(each[seed], "+.4f"), *both) if seed in each else number() for seed in seeds),
            stacked(evidence.difference, "+.4f", *both),
            *(marked(text, *both) for text in _tests(evidence)),
            _standardised(evidence, *both),
            marked(reached(evidence), *both),
            *([_bootstrap(evidence, *both)] if long else []),
            zero(evidence.difference),
        ]

    groups = grouped(comparison, row, lambda part: part.others)
    return [Table.of(header, groups, _caption(comparison, label)), prose("notes", _notes(comparison, long))]


def _caption(comparison: Comparison, label: str) -> str:
    text = (
        f"Arm minus {compared_with(comparison)}{label}, {comparison.primary.title}, in bits per byte: below zero is "
        "better. Under the mean its 95 % t interval. Interval and p (paired t test, two-sided) hold for one "
        f"comparison; corrected p for all {len(comparison.corrected)} of this table (Holm)."
    )
    return f"{text} {flips_note(comparison)}" if comparison.evidence else text


def flips_note(comparison: Comparison) -> str:
    """What the sign-flip p is, and the smallest it could have been; empty where no arm has two seeds."""
    found = {one.difference.n: one.flips for one in comparison.evidence.values() if one.flips}
    if not found:
        return ""
    least = "; ".join(f"{p_text(flips.smallest_p)} with {n} seeds" for n, flips in sorted(found.items()))
    kind = "exact" if all(flips.exact for flips in found.values()) else "sampled where there are more than 16 seeds"
    return (
        f"Sign-flip p needs no normal distribution ({kind}, not corrected); the smallest it could have reached is "
        f"{least}."
    )


def _notes(comparison: Comparison, long: bool) -> list[str]:
    notes = [
        "Runs are paired by seed: both start from the same base weights and read the same data in the same order.",
        "d_z is the mean in standard deviations of the differences, with its 95 % interval.",
        "Baseline's end reached: how much earlier in training the arm is at the baseline's final value for good, or "
        "where not every seed gets there how many do. It describes, it tests nothing: among runs of equal length "
        "nobody can be later, so it cannot be negative.",
    ]
    if long:
        notes.append(
            f"Bootstrap: BCa interval, from {BOOTSTRAP_FROM} seeds on. It is short: of normal differences it covers "
            "90 % at 10 seeds and 93 % at 20, where the t interval covers 95 %."
        )
    return notes


def _tests(evidence: Evidence) -> list[str]:
    """The three p as text."""
    flips = evidence.flips.p_value if evidence.flips else math.nan
    return [p_text(p) for p in (evidence.difference.p_value, evidence.corrected, flips)]


def _standardised(evidence: Evidence, *arms: ArmResult) -> Cell:
    effect = evidence.effect
    if math.isnan(effect.d_z):
        return number("-")
    bounds = f"{written(effect.low, '+.1f')} to {written(effect.high, '+.1f')}"
    return marked(written(effect.d_z, "+.2f"), *arms, below=[bounds])


def _bootstrap(evidence: Evidence, *arms: ArmResult) -> Cell:
    if evidence.bootstrap is None:
        return number("-")
    low, high = evidence.bootstrap.bca
    return marked(f"{written(low, '+.4f')} to {written(high, '+.4f')}", *arms)


def reached(evidence: Evidence) -> str:
    """How much earlier the arm is at the baseline's final value, or how many seeds ever are.

    "12 % earlier" where every seed is; "3 of 8 seeds" else; "-" where there is no curve to look at.
    """
    earlier = evidence.earlier
    if earlier is None:
        return "-"
    if earlier.mean is None:
        return f"{earlier.reached} of {len(earlier.per_seed)} seeds"
    share = 100 * earlier.mean.mean
    return f"{abs(share):.0f} % {'earlier' if share >= 0 else 'later'}"


def _every_seed(comparison: Comparison, seeds: Sequence[int]) -> list[Part]:
    """The difference of every seed, where there are too many for the main table."""
    if not seeds:
        return []

    def row(part: Block, arm: ArmResult) -> list[Any]:
        evidence = comparison.evidence.get(arm.name)
        each, both = evidence.difference.per_seed if evidence else {}, (arm, comparison[str(arm.against)])
        cells = [marked(finite(each[seed], "+.4f"), *both) if seed in each else number("-") for seed in seeds]
        return [contrast(comparison, part, arm), *cells]

    groups = grouped(comparison, row, lambda part: part.others)
    caption = f"The differences behind the means{mark(comparison)}, {comparison.primary.title}."
    shown = Table.of(["arm", *(f"seed {seed}" for seed in seeds)], groups, caption)
    return [folded("Every seed's difference", shown)]


def _others(comparison: Comparison) -> list[Part]:
    label = mark(comparison)
    others = [measure for measure in comparison.measures if measure.key != comparison.primary.key]

    def row(part: Block, arm: ArmResult) -> list[Any]:
        both = (arm, comparison[str(arm.against)])
        cells = (stacked(arm.differences.get(measure.key), "+.4f", *both) for measure in others)
        return [contrast(comparison, part, arm), *cells]

    groups = grouped(comparison, row, lambda part: part.others)
    shown = Table.of(
        ["arm", *titles(others, header_mark(comparison))], groups, f"The same difference in other measures{label}."
    )
    return [aside(comparison, "The same difference in other measures", shown)]


def _few_seeds(n: int) -> Prose | None:
    """What so few seeds can show at all; nothing where there are enough, or only one."""
    if not 2 <= n < ENOUGH_SEEDS:
        return None
    reach, enough = critical_value(n), critical_value(ENOUGH_SEEDS)
    text = f"With {n} seeds a 95 % interval reaches {reach:.1f} standard errors to either side of the mean"
    return prose("soft", [f"{text}, with {ENOUGH_SEEDS} seeds {enough:.1f}: only large effects can show here."])
