"""The evidence for one difference: tests, its size beside its spread, and the smallest that could have been seen."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from plkernel.analysis.statistics.bands import Curve
from plkernel.analysis.statistics.differences import PairedDifference
from plkernel.analysis.statistics.power import StandardisedEffect, detectable_difference, standardised_effect
from plkernel.analysis.statistics.reaching import Speedup, speedup
from plkernel.analysis.statistics.resampling import BootstrapInterval, SignFlip, bootstrap_interval, sign_flip_test

ALPHA = 0.05
BOOTSTRAP_FROM = 10
"""With fewer seeds a bootstrap interval is too short to be shown (analysis/statistics/resampling.py)."""


@dataclass(frozen=True)
class Evidence:
    """One arm's difference in the primary measure, and what it is worth.

    corrected   p of the paired t test, adjusted for the number of arms (Holm)
    flips       the exact sign-flip test; None for one seed
    effect      d_z, its interval, and Hedges' g
    bootstrap   a second interval, None below ten seeds
    detectable  the smallest difference found 8 times in 10 at this spread, by this comparison on its own; NaN where
                there is no spread
    earlier     how much earlier the arm reaches the baseline's final value: a description, no test
    """

    difference: PairedDifference
    corrected: float
    flips: SignFlip | None
    effect: StandardisedEffect
    bootstrap: BootstrapInterval | None
    detectable: float
    earlier: Speedup | None

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval, which holds for one comparison, exists and excludes zero."""
        return math.isfinite(self.difference.low) and not self.difference.contains_zero

    @property
    def survives(self) -> bool:
        """Whether the difference can be told from none after the correction for the number of arms."""
        return self.corrected < ALPHA


def weigh(
    difference: PairedDifference,
    corrected: float,
    arm: Mapping[int, Curve],
    baseline: Mapping[int, Curve],
) -> Evidence:
    """The evidence for one difference; `arm` and `baseline` are validation curves by seed, over bytes read."""
    values, finite = list(difference.per_seed.values()), math.isfinite(difference.mean)
    several = difference.n > 1
    return Evidence(
        difference=difference,
        corrected=corrected,
        flips=sign_flip_test(values) if several else None,
        effect=standardised_effect(difference),
        bootstrap=bootstrap_interval(values) if difference.n >= BOOTSTRAP_FROM and finite else None,
        detectable=detectable(difference),
        earlier=_earlier(arm, baseline),
    )


def detectable(difference: PairedDifference, comparisons: int = 1) -> float:
    """The smallest difference that these seeds find 8 times in 10 at the spread they showed, NaN without a spread.

    For one of several `comparisons` at ALPHA / comparisons, the level at which the correction begins.
    """
    n, sd = difference.n, difference.standard_deviation
    if n < 2 or not (math.isfinite(sd) and sd > 0.0):
        return math.nan
    return detectable_difference(sd, n, alpha=ALPHA / comparisons)


def _earlier(arm: Mapping[int, Curve], baseline: Mapping[int, Curve]) -> Speedup | None:
    """None where no baseline run of a shared seed gets beyond its start."""
    shared = {seed: curve for seed, curve in baseline.items() if seed in arm and max(curve, default=0) > 0}
    return speedup(arm, shared) if shared else None
