"""Claims on differences that were declared before the runs: tests, verdicts and their power."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtri, ndtr, stdtr

from plkernel.analysis.intervals import critical_value
from plkernel.results.statistics import (
    Floats,
    holm,
    lacks_spread,
    mean_interval,
    t_statistic,
)

Test = Literal["sign flips", "t"]
VerdictName = Literal["confirmed", "refuted", "undecided"]
MOST_FLIPPED = 20
"""All 2**n sign patterns are counted up to this n, a second's work."""
DRAWS = 10_000
"""Studies that are drawn, or quantiles of their spread that are averaged, for a power."""
SPREADS = 100
"""Standard deviations that are averaged where a pilot leaves several possible."""
MOST_DRAWN = 10
"""Differences up to which the power of sign flips is found by drawing studies."""
DRAWN_AT_ONCE = 500
"""Drawn studies whose subset sums are taken together: of all DRAWS they are 80 MB."""
USUAL_POWER = 0.8
"""The power at which a difference counts as one that a study can find."""
HALVINGS = 10
"""Of the interval in which a needed effect is sought: to a thousandth of its width."""
TIE = 1e-9
"""Sums that differ by less, relative to the sum of all magnitudes, count as equal (rounding)."""


class Claimed(NamedTuple):
    """A claim on a mean difference d, and the differences it is judged by, one per seed.

    claim: lower, d < -margin; higher, d > margin; equal, -margin < d < margin; lower_by_less,
    -margin < d < 0; higher_by_less, 0 < d < margin. Its opposite is the rest of the line.
    """

    claim: str
    margin: float
    differences: Sequence[float]

    @property
    def testable(self) -> bool:
        """True if there are two differences or more, all of them finite."""
        return len(self.differences) > 1 and bool(np.isfinite(self.differences).all())


def region(claim: str, margin: float) -> tuple[float, float]:
    """The lowest and the highest mean difference between which a claim holds."""
    return {
        "lower": (-math.inf, -margin),
        "higher": (margin, math.inf),
        "equal": (-margin, margin),
        "lower_by_less": (-margin, 0.0),
        "higher_by_less": (0.0, margin),
    }[claim]


@dataclass(frozen=True)
class Judgement:
    """The result of testing one claim of a family against n differences.

    low, high          the 1 - 2 alpha interval by `test`, of this claim alone
    test               the test that decides
    p                  against the opposite of the claim, alone
    p_family           the same after Holm; at most alpha confirms
    p_opposite         against the claim, alone
    p_opposite_family  the same after Holm; at most alpha refutes

    p and bounds are NaN for a claim with fewer than two differences, or one that is not finite.
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
    verdict: VerdictName


def judge_family(family: Mapping[str, Claimed], alpha: float = 0.05) -> dict[str, Judgement]:
    """The verdict on every claim of a family, by name.

    p of the claims go through Holm as one family, p of their opposites as another, so that the
    chance of any false confirmation is at most alpha, and that of any false refutation is too. All
    m members count, also those without differences, which stay undecided. Raises ValueError unless
    0 < alpha < 1/2.
    """
    if not 0.0 < alpha < 0.5:
        raise ValueError(f"alpha must be above 0 and below 0.5, got {alpha}; 0.05 is usual")
    tested = [name for name, one in family.items() if one.testable]
    test = deciding_test([len(family[name].differences) for name in tested], len(family), alpha)
    p_claim = dict.fromkeys(family, 1.0)
    p_opposite = dict.fromkeys(family, 1.0)
    for name in tested:
        p_claim[name], p_opposite[name] = claim_p(family[name], test)
    confirming = holm(p_claim)
    refuting = holm(p_opposite)
    judged = {}
    for name, one in family.items():
        if name not in tested:
            judged[name] = _undecided(one, test)
            continue
        low, high = interval(one.differences, alpha, test)
        judged[name] = Judgement(
            n=len(one.differences),
            mean=float(np.mean(one.differences)),
            low=low,
            high=high,
            test=test,
            p=p_claim[name],
            p_family=confirming[name],
            p_opposite=p_opposite[name],
            p_opposite_family=refuting[name],
            verdict=_verdict(confirming[name], refuting[name], alpha),
        )
    return judged


def _verdict(p_confirming: float, p_refuting: float, alpha: float) -> VerdictName:
    if p_confirming <= alpha:
        return "confirmed"
    return "refuted" if p_refuting <= alpha else "undecided"


def _undecided(one: Claimed, test: Test) -> Judgement:
    """The judgement of a claim that cannot be tested."""
    n = len(one.differences)
    mean = float(np.mean(one.differences)) if n else math.nan
    return Judgement(
        n=n,
        mean=mean,
        low=math.nan,
        high=math.nan,
        test=test,
        p=math.nan,
        p_family=math.nan,
        p_opposite=math.nan,
        p_opposite_family=math.nan,
        verdict="undecided",
    )


# Tests


def deciding_test(seeds: Sequence[int], m: int, alpha: float = 0.05) -> Test:
    """The test of a family of m claims, by the seeds of its members, never by their values.

    Exact sign flips where the member with the fewest can pass Holm's first step, 2**-n <= alpha / m
    (5 seeds for one claim at 0.05, 10 for 28), and the one with the most be counted.
    """
    if not seeds:
        return "t"
    enough = 2.0 ** -min(seeds) <= alpha / m
    countable = max(seeds) <= MOST_FLIPPED
    return "sign flips" if enough and countable else "t"


def claim_p(claimed: Claimed, test: Test) -> tuple[float, float]:
    """p against the opposite of the claim, and p against the claim, by one-sided tests.

    lower and higher: the test of superiority by a margin, and that of the other side. Claims with
    two bounds: two one-sided tests (Schuirmann 1987), the larger p; the opposite, a difference
    beyond either bound, is the smaller of two p, doubled.
    """
    below = sign_flip_below if test == "sign flips" else t_below
    data = np.asarray(claimed.differences, dtype=np.float64)
    lowest, highest = region(claimed.claim, claimed.margin)
    if math.isinf(lowest):
        return below(data, highest), below(-data, -highest)
    if math.isinf(highest):
        return below(-data, -lowest), below(data, lowest)
    inside = max(below(data, highest), below(-data, -lowest))
    beyond = min(below(data, lowest), below(-data, -highest))
    return inside, min(1.0, 2.0 * beyond)


def sign_flip_below(differences: ArrayLike, bound: float = 0.0) -> float:
    """p against mean >= bound: the share of sign patterns whose sum is at most the observed one.

    The patterns are of the differences minus bound. The test of Fisher (1935), exact for
    differences symmetric about their mean. The share is that of subsets whose sum is not negative,
    the empty one among them: at least 2**-n. Ties count against the effect.
    """
    data = np.asarray(differences, dtype=np.float64) - bound
    tie = TIE * np.abs(data).sum()
    return float(np.mean(_subset_sums(data) >= -tie))


def _subset_sums(data: Floats) -> Floats:
    """(2**n,): the sums of all subsets, the empty one first."""
    sums = np.zeros(1)
    for value in data:
        sums = np.concatenate([sums, sums + value])
    return sums


def t_below(differences: ArrayLike, bound: float = 0.0) -> float:
    """p of the one-sided t test against mean >= bound.

    Without any spread the test has no scale: then p is that of sign flips, 2**-n below the bound,
    and 1 elsewhere.
    """
    given = np.asarray(differences, dtype=np.float64)
    data = given - bound
    if lacks_spread(given, [*given.tolist(), bound]):
        return float(2.0**-data.size) if data[0] < 0 else 1.0
    p = float(stdtr(data.size - 1, t_statistic(mean_interval(data))))
    return 1.0 if math.isnan(p) else p


def interval(differences: Sequence[float], alpha: float, test: Test) -> tuple[float, float]:
    """The 1 - 2 alpha interval of the mean: all that neither one-sided test at alpha excludes.

    By sign flips the k-th smallest and k-th largest of the 2**n - 1 subset means, k = floor(alpha
    2**n) (Hartigan 1969); infinite where k = 0, the differences being too few for that level.
    """
    if test == "t":
        one = mean_interval(differences, 1.0 - 2.0 * alpha)
        return one.low, one.high
    data = np.asarray(differences, dtype=np.float64)
    k = int(alpha * 2.0**data.size * (1.0 + TIE))
    if k == 0:
        return -math.inf, math.inf
    sums = _subset_sums(data)[1:]
    sizes = _subset_sums(np.ones_like(data))[1:]
    means = np.sort(sums / sizes)
    return float(means[k - 1]), float(means[-k])


# Power


MIRRORED = {"higher": "lower", "higher_by_less": "lower_by_less"}
"""Claims that become others when all differences change their signs."""


def power(
    claim: str,
    margin: float,
    true: float,
    sd: float,
    n: int,
    m: int = 1,
    alpha: float = 0.05,
    pilot: int | None = None,
) -> float:
    """The chance that n differences, normal about `true`, confirm a claim that is one of m.

    As the least p of its family it must pass alpha / m, so that with Holm's other steps the chance
    is this or larger. By the test that `deciding_test` names, for differences of standard deviation
    `sd`; from MOST_DRAWN + 1 differences on the power of sign flips is that of t within 0.01. NaN
    for n < 2.

    pilot: the number of differences that `sd` was estimated from. The power is then the mean over
    what the standard deviation may be, `possible_spreads`; without it `sd` is taken as known.
    """
    if n < 2:
        return math.nan
    level = alpha / m
    if claim in MIRRORED:
        claim = MIRRORED[claim]
        true = -true
    bounds = region(claim, margin)
    if n <= MOST_DRAWN and deciding_test([n], 1, level) == "sign flips":
        sds = possible_spreads(sd, pilot, DRAWS)
        return _power_of_sign_flips(bounds, true, sds, n, level)
    sds = possible_spreads(sd, pilot, SPREADS)
    return _power_of_t(bounds, true, sds, n, level)


def possible_spreads(sd: float, pilot: int | None, number: int) -> Floats:
    """Quantiles of sigma = sd sqrt(nu / chi2_nu), nu = pilot - 1; `sd` alone without a pilot.

    That is what `pilot` normal differences of standard deviation sd leave possible, under a prior
    ~ 1/sigma (Box and Tiao 1973, section 2.3).
    """
    if pilot is None:
        return np.array([sd])
    levels = (np.arange(number) + 0.5) / number
    spreads: Floats = sd * np.sqrt((pilot - 1) / chdtri(pilot - 1, levels))
    return spreads


def _power_of_sign_flips(
    bounds: tuple[float, float], true: float, sds: Floats, n: int, level: float
) -> float:
    """The share of DRAWS studies that confirm a claim, with a standard error of 0.005.

    bounds: where the claim holds; only the lower one may be infinite.
    """
    lowest, highest = bounds
    drawn = np.random.default_rng(0).normal(true, sds[:, None], (DRAWS, n))
    subsets = np.array([*product((0.0, 1.0), repeat=n)]).T
    edges = [drawn - highest]
    if math.isfinite(lowest):
        edges.append(lowest - drawn)
    largest_p = np.zeros(DRAWS)
    for edge in edges:
        studies = edge.reshape(-1, DRAWN_AT_ONCE, n)
        p = np.concatenate([np.mean(part @ subsets >= 0.0, axis=1) for part in studies])
        largest_p = np.maximum(largest_p, p)
    return float(np.mean(largest_p <= level))


def _power_of_t(
    bounds: tuple[float, float], true: float, sds: Floats, n: int, level: float
) -> float:
    """The mean over s of the chance to confirm, s the standard deviation that a study shows.

    With half = t_{n-1} s / sqrt(n) it is P(lowest + half < mean < highest - half) (Schuirmann
    1987): s has n - 1 degrees, and the mean over it is taken at DRAWS quantiles for all of sds
    together.
    """
    lowest, highest = bounds
    unit = math.sqrt(n) / sds[:, None]
    count = DRAWS // len(sds)
    quantiles = (np.arange(count) + 0.5) / count
    spread = np.sqrt(chdtri(n - 1, quantiles) / (n - 1))  # s / sd
    half = critical_value(n, 1.0 - 2.0 * level) * spread  # in units of sd / sqrt(n)
    inside = ndtr((highest - true) * unit - half) - ndtr((lowest - true) * unit + half)
    return float(np.mean(np.maximum(inside, 0.0)))


@cache
def effect_needed(n: int, m: int = 1, alpha: float = 0.05, pilot: int | None = None) -> float:
    """The true difference beyond the margin, in units of sd, with USUAL_POWER (lower, higher).

    n and pilot: as in `power`, each 2 or more, else ValueError.
    """
    for name, seeds in (("n", n), ("pilot", pilot)):
        if seeds is not None and seeds < 2:
            raise ValueError(f"{name} must be two seeds or more, got {seeds}")

    def enough(effect: float) -> bool:
        return power("higher", 0.0, effect, 1.0, n, m, alpha, pilot) >= USUAL_POWER

    low = 0.0
    high = 1.0
    while not enough(high):
        low = high
        high = 2.0 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high
