"""Declared claims about paired differences: one-sided tests against a margin, equivalence, and verdicts over a family.

A claim says of the mean difference d, arm minus what it is compared with: lower, d < -margin; higher, d > margin;
equal, -margin < d < margin. Its opposite is the rest of the line. Either is tested with the other as null hypothesis.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

from plkernel.analysis.statistics.differences import holm
from plkernel.analysis.statistics.resampling import sign_flip_below, sign_flip_bounds

Claim = Literal["lower", "higher", "equal"]
Verdict = Literal["confirmed", "refuted", "undecided"]
Test = Literal["sign flips", "t"]

Floats = NDArray[np.float64]
MOST_FLIPPED = 20
"""So many differences have all their 2**n sign patterns counted, a second's work; of more the t test decides."""

Below = Callable[[Floats, float], float]
"""p against the null hypothesis that the mean of the differences is at least the bound."""


@dataclass(frozen=True)
class Claimed:
    """A claim and the differences it is judged by, one per seed; `margin` is in their unit."""

    claim: Claim
    margin: float
    differences: Sequence[float]


@dataclass(frozen=True)
class Judgement:
    """What n differences say of one claim among its family.

    low, high        the 1 - 2 alpha interval by `test`, of this claim alone
    test             what decides: sign flips or t
    p, p_family      against the opposite of the claim, alone and after Holm; `p_family` <= alpha confirms
    p_opposite, ...  against the claim, likewise; these refute
    NaN throughout for a claim with fewer than two differences, or one that is not finite.
    """

    n: int
    mean: float
    low: float
    high: float
    test: Test
    p: float
    p_family: float
    p_opposite: float
    p_opposite_family: float
    verdict: Verdict


def t_below(differences: ArrayLike, bound: float = 0.0) -> float:
    """P(T_{n-1} <= t), t = (mean - bound) sqrt(n) / sd: p of the one-sided t test against mean >= bound.

    Without any spread p is 0 below the bound, and 1 elsewhere. NaN for n = 1.
    """
    data = np.asarray(differences, dtype=np.float64) - bound
    if data.size < 2:
        return math.nan
    mean, sd = float(data.mean()), float(data.std(ddof=1))
    if sd == 0.0:
        return 0.0 if mean < 0.0 else 1.0
    return float(stdtr(data.size - 1, mean * math.sqrt(data.size) / sd))


def claim_p(claimed: Claimed, below: Below) -> tuple[float, float]:
    """p against the opposite of the claim, and p against the claim, by one-sided tests `below`.

    lower and higher: the test of superiority by a margin, and that of the other side. equal: two one-sided tests
    (Schuirmann 1987), the larger p; its opposite, a difference beyond either margin, is the smaller of two p, doubled.
    """
    data, margin = np.asarray(claimed.differences, dtype=np.float64), claimed.margin
    if claimed.claim == "lower":
        return below(data, -margin), below(-data, margin)
    if claimed.claim == "higher":
        return below(-data, -margin), below(data, margin)
    inside, beyond = ([below(data, edge), below(-data, edge)] for edge in (margin, -margin))
    return max(inside), min(1.0, 2.0 * min(beyond))


def judge(family: Mapping[str, Claimed], alpha: float = 0.05) -> dict[str, Judgement]:
    """The verdict on every claim of a family, by name.

    p of the claims go through Holm as one family, p of their opposites as another, so that the chance of any false
    confirmation is at most alpha, and that of any false refutation is too. All m members count, also those without
    differences, which stay undecided; `deciding_test` says by what. Raises ValueError unless 0 < alpha < 1/2.
    """
    if not 0.0 < alpha < 0.5:
        raise ValueError(f"alpha: got {alpha}, give a number between 0 and 0.5, such as 0.05")
    tested = {name: one for name, one in family.items() if _testable(one.differences)}
    test = deciding_test([len(one.differences) for one in tested.values()], len(family), alpha)
    below = sign_flip_below if test == "sign flips" else t_below
    alone = {name: claim_p(one, below) if name in tested else (math.nan, math.nan) for name, one in family.items()}
    confirming, refuting = (_holm({name: pair[side] for name, pair in alone.items()}) for side in (0, 1))
    found = {}
    for name, one in family.items():
        low, high = interval(one.differences, alpha, test) if name in tested else (math.nan, math.nan)
        mean = float(np.mean(one.differences)) if len(one.differences) else math.nan
        decided = _verdict(confirming[name], refuting[name], alpha)
        found[name] = Judgement(
            *(len(one.differences), mean, low, high, test),
            *(alone[name][0], confirming[name], alone[name][1], refuting[name], decided),
        )
    return found


def interval(differences: Sequence[float], alpha: float, test: Test) -> tuple[float, float]:
    """The 1 - 2 alpha interval of the mean: every bound that neither one-sided test at level alpha excludes."""
    if test == "sign flips":
        return sign_flip_bounds(differences, alpha)
    data = np.asarray(differences, dtype=np.float64)
    mean = float(data.mean())
    half = float(stdtrit(data.size - 1, 1.0 - alpha) * data.std(ddof=1) / math.sqrt(data.size))
    return mean - half, mean + half


def deciding_test(seeds: Sequence[int], m: int, alpha: float = 0.05) -> Test:
    """The test of a family of m claims whose members have so many seeds: by these numbers, never by values.

    The exact sign flips where they allow the member with the fewest to be rejected at all, 2**-n <= alpha / m, and can
    be counted for the one with the most; else t.
    """
    enough = bool(seeds) and min(seeds) >= seeds_for(m, alpha, sides=1)
    return "sign flips" if enough and max(seeds) <= MOST_FLIPPED else "t"


def seeds_for(m: int, alpha: float = 0.05, sides: int = 2) -> int:
    """The fewest seeds n for any of m exact sign-flip tests to reject at all after Holm: sides * 2**-n <= alpha / m.

    The smallest p that n seeds can give must pass Holm's first step. Two-sided tests at 0.05: 6 seeds for one, 11 for
    28; one-sided ones, such as claims are tested by, one fewer. Raises ValueError unless m >= 1 and 0 < alpha < 1.
    """
    if m < 1:
        raise ValueError(f"m: got {m}, give the number of tests in the family, at least 1")
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha: got {alpha}, give a number between 0 and 1, such as 0.05")
    n = 1
    while sides * 2.0**-n > alpha / m:
        n += 1
    return n


def _testable(differences: Sequence[float]) -> bool:
    return len(differences) > 1 and bool(np.isfinite(differences).all())


def _holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm over all members: one that could not be tested counts as never rejected, and has no p."""
    adjusted = holm({name: 1.0 if math.isnan(p) else p for name, p in p_values.items()})
    return {name: math.nan if math.isnan(p_values[name]) else p for name, p in adjusted.items()}


def _verdict(p_family: float, p_opposite_family: float, alpha: float) -> Verdict:
    if p_family <= alpha:
        return "confirmed"
    return "refuted" if p_opposite_family <= alpha else "undecided"
