"""Statistics of arms that share their seeds: paired differences, exact tests, claims and curves."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import product
from typing import Literal, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtri, nctdtr, ndtr, stdtr

from plkernel.analysis.intervals import critical_value, student_interval

Floats = NDArray[np.float64]
Curve = Mapping[int, float]
"""Values of one seed by position: a step, or bytes read."""
Test = Literal["sign flips", "t"]
Verdict = Literal["confirmed", "refuted", "undecided"]
Key = TypeVar("Key")
MOST_FLIPPED = 20
"""All 2**n sign patterns are counted up to this n, a second's work."""
DRAWS = 10_000
"""Studies that are drawn, or quantiles of their spread that are averaged, for a power."""
TIE = 1e-9
"""Sums that differ by less, relative to the sum of all magnitudes, count as equal: differences
carry rounding.
"""


@dataclass(frozen=True)
class Estimate:
    """The mean of n values with its t interval: bounds and standard deviation are NaN where n = 1,
    all where n = 0.
    """

    n: int
    mean: float
    low: float
    high: float
    standard_deviation: float


@dataclass(frozen=True)
class PairedDifference(Estimate):
    """Arm minus baseline, seed by seed: mean, t interval, and p of the two-sided paired t test."""

    p_value: float
    per_seed: Mapping[int, float]


def mean_interval(values: Iterable[float], confidence: float = 0.95) -> Estimate:
    """mean +- t_{n-1} * sd / sqrt(n), the interval of Student (1908), sd with n - 1 in the
    denominator.
    """
    data = np.asarray(list(values), dtype=np.float64)
    if data.size == 0:
        return Estimate(0, *[math.nan] * 4)
    mean, spread, half = (
        float(column[0]) for column in student_interval(data[:, None], confidence)
    )
    return Estimate(data.size, mean, mean - half, mean + half, spread)


def paired_difference(
    arm: Mapping[int, float], baseline: Mapping[int, float], confidence: float = 0.95
) -> PairedDifference:
    """Mean of arm[s] - baseline[s] over the seeds s that both have, its t interval, p of the paired
    t test.

    Runs of one seed share data order and base weights, so their contribution cancels in the
    difference. p is NaN for n = 1 and where every difference is zero.
    """
    per_seed = {
        seed: float(arm[seed]) - float(baseline[seed])
        for seed in sorted(arm.keys() & baseline.keys())
    }
    one = mean_interval(per_seed.values(), confidence)
    return PairedDifference(
        **vars(one), p_value=2.0 * float(stdtr(one.n - 1, -abs(_t(one)))), per_seed=per_seed
    )


def _t(one: Estimate) -> np.float64:
    """mean * sqrt(n) / sd: infinite where there is no spread, NaN where the mean is zero too."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.float64(one.mean) * math.sqrt(one.n) / one.standard_deviation


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """p adjusted for being one of m tests (Holm 1979): the i-th smallest times m - i + 1, never
    below a smaller one's.

    Comparing adjusted p with alpha keeps the chance of any false rejection at or below alpha,
    whatever the dependence between the tests. At most 1. NaN stays NaN and does not count in m.
    """
    tested = sorted(
        (name for name, p in p_values.items() if not math.isnan(p)), key=p_values.__getitem__
    )
    factors = np.arange(len(tested), 0, -1) * [p_values[name] for name in tested]
    adjusted = np.minimum(np.maximum.accumulate(factors), 1.0).tolist()
    return dict.fromkeys(p_values, math.nan) | dict(zip(tested, adjusted, strict=True))


def detectable_difference(sd: float, n: int, power: float = 0.8, alpha: float = 0.05) -> float:
    """The smallest true difference that a two-sided paired t test of n seeds finds with this power,
    in units of sd.

    The power is P(|T| > t_{n-1, 1-alpha/2}), T noncentral t with n - 1 degrees. The difference is
    proportional to `sd`: from a few seeds that is itself uncertain, by a factor of 2.4 at n = 5.
    NaN for n < 2 and unless sd is positive and finite.
    """
    from scipy.optimize import brentq

    if n < 2 or not 0.0 < sd < math.inf:
        return math.nan
    t = critical_value(n, 1.0 - alpha)

    def missed(shift: float) -> float:
        below, far_below = np.nan_to_num(
            nctdtr(n - 1, shift, [t, -t])
        )  # NaN in tails that have vanished
        return float(below - far_below) - (1.0 - power)

    return sd / math.sqrt(n) * float(brentq(missed, 0.0, 20.0 * (t + 1.0), xtol=1e-12, rtol=1e-12))


# Tests by sign flips


def sign_flip_below(differences: ArrayLike, bound: float = 0.0) -> float:
    """p against mean >= bound: the share of sign patterns of the differences minus bound with a sum
    at most theirs.

    The test of Fisher (1935), exact for differences symmetric about their mean. The share is that
    of subsets whose sum is not negative, the empty one among them: at least 2**-n. Ties count
    against the effect.
    """
    data = np.asarray(differences, dtype=np.float64) - bound
    return float(np.mean(_subset_sums(data) >= -TIE * np.abs(data).sum()))


def _subset_sums(data: Floats) -> Floats:
    """(2**n,): the sums of all subsets, the empty one first."""
    return reduce(lambda sums, value: np.concatenate([sums, sums + value]), data, np.zeros(1))


# Declared claims


class Claimed(NamedTuple):
    """A claim on a mean difference d, and the differences it is judged by, one per seed.

    claim: lower, d < -margin; higher, d > margin; equal, -margin < d < margin. Its opposite is the
    rest of the line.
    """

    claim: str
    margin: float
    differences: Sequence[float]


@dataclass(frozen=True)
class Judgement:
    """The result of testing one claim of a family against n differences.

    low, high        the 1 - 2 alpha interval by `test`, of this claim alone
    test             the test that decides
    p, p_family      against the opposite of the claim, alone and after Holm; `p_family` <= alpha
    confirms
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


def judge(family: Mapping[str, Claimed], alpha: float = 0.05) -> dict[str, Judgement]:
    """The verdict on every claim of a family, by name.

    p of the claims go through Holm as one family, p of their opposites as another, so that the
    chance of any false confirmation is at most alpha, and that of any false refutation is too. All
    m members count, also those without differences, which stay undecided. Raises ValueError unless
    0 < alpha < 1/2.
    """
    if not 0.0 < alpha < 0.5:
        raise ValueError(f"alpha: got {alpha}, give a number between 0 and 0.5, such as 0.05")
    tested = {
        name
        for name, one in family.items()
        if len(one.differences) > 1 and np.isfinite(one.differences).all()
    }
    test = deciding_test([len(family[name].differences) for name in tested], len(family), alpha)
    alone = {
        name: claim_p(one, test) if name in tested else (1.0, 1.0) for name, one in family.items()
    }
    confirming, refuting = (
        holm({name: pair[side] for name, pair in alone.items()}) for side in (0, 1)
    )
    judged = {}
    for name, (_, _, differences) in family.items():
        bounds, p, verdict = (math.nan,) * 2, (math.nan,) * 4, cast(Verdict, "undecided")
        if name in tested:
            p = alone[name][0], confirming[name], alone[name][1], refuting[name]
            bounds = interval(differences, alpha, test)
            verdict = "confirmed" if p[1] <= alpha else "refuted" if p[3] <= alpha else verdict
        mean = float(np.mean(differences)) if len(differences) else math.nan
        judged[name] = Judgement(len(differences), mean, *bounds, test, *p, verdict)
    return judged


def claim_p(claimed: Claimed, test: Test) -> tuple[float, float]:
    """p against the opposite of the claim, and p against the claim, by one-sided tests.

    lower and higher: the test of superiority by a margin, and that of the other side. equal: two
    one-sided tests (Schuirmann 1987), the larger p; its opposite, a difference beyond either
    margin, is the smaller of two p, doubled.
    """
    below = sign_flip_below if test == "sign flips" else t_below
    data, margin = np.asarray(claimed.differences, dtype=np.float64), claimed.margin
    if claimed.claim == "equal":
        inside, beyond = ([below(data, edge), below(-data, edge)] for edge in (margin, -margin))
        return max(inside), min(1.0, 2.0 * min(beyond))
    data = data if claimed.claim == "lower" else -data
    return below(data, -margin), below(-data, margin)


def t_below(differences: ArrayLike, bound: float = 0.0) -> float:
    """p of the one-sided t test against mean >= bound; without any spread 0 below the bound, and 1
    elsewhere.
    """
    data = np.asarray(differences, dtype=np.float64) - bound
    p = float(stdtr(data.size - 1, _t(mean_interval(data))))
    return 1.0 if math.isnan(p) else p


def interval(differences: Sequence[float], alpha: float, test: Test) -> tuple[float, float]:
    """The 1 - 2 alpha interval of the mean: every bound that neither one-sided test at level alpha
    excludes.

    By sign flips the k-th smallest and k-th largest of the 2**n - 1 subset means, k = floor(alpha
    2**n) (Hartigan 1969); infinite where k = 0, the differences being too few for that level.
    """
    if test == "t":
        one = mean_interval(differences, 1.0 - 2.0 * alpha)
        return one.low, one.high
    data = np.asarray(differences, dtype=np.float64)
    if (k := int(alpha * 2.0**data.size * (1.0 + TIE))) == 0:
        return -math.inf, math.inf
    means = np.sort(_subset_sums(data)[1:] / _subset_sums(np.ones_like(data))[1:])
    return float(means[k - 1]), float(means[-k])


def deciding_test(seeds: Sequence[int], m: int, alpha: float = 0.05) -> Test:
    """The test of a family of m claims whose members have so many seeds: by these numbers, never by
    values.

    Exact sign flips where the member with the fewest can pass Holm's first step, 2**-n <= alpha / m
    (5 seeds for one claim at 0.05, 10 for 28), and the one with the most be counted.
    """
    enough = bool(seeds) and 2.0 ** -min(seeds) <= alpha / m and max(seeds) <= MOST_FLIPPED
    return "sign flips" if enough else "t"


def power(
    claim: str, margin: float, true: float, sd: float, n: int, m: int = 1, alpha: float = 0.05
) -> float:
    """The chance that n differences, normal about `true` with this sd, confirm a claim that is one
    of m.

    As the least p of its family it must pass alpha / m, so that with Holm's other steps the chance
    is this or larger. By the test that `deciding_test` names. With half = t_{n-1} s / sqrt(n), that
    of t is the mean over s of P(mean + half < -margin) for lower, and of P(half - margin < mean <
    margin - half) for equal (Schuirmann 1987): s has n - 1 degrees, and the mean over it is taken
    at DRAWS quantiles. Sign flips of at most 10 differences are drawn as often, with a standard
    error of 0.005 or less; from 11 on their power is that of t within 0.01. NaN for n < 2.
    """
    if n < 2:
        return math.nan
    alpha, true = alpha / m, -true if claim == "higher" else true
    if deciding_test([n], 1, alpha) == "sign flips" and n <= 10:
        drawn = np.random.default_rng(0).normal(true, sd, (DRAWS, n))
        subsets = np.array([*product((0.0, 1.0), repeat=n)]).T
        edges = [drawn - margin, -drawn - margin] if claim == "equal" else [drawn + margin]
        p = [
            [np.mean(part @ subsets >= 0.0, axis=1) for part in edge.reshape(-1, 500, n)]
            for edge in edges
        ]
        return float(np.mean(np.max(p, axis=0) <= alpha))
    unit, spread = (
        math.sqrt(n) / sd,
        np.sqrt(chdtri(n - 1, (np.arange(DRAWS) + 0.5) / DRAWS) / (n - 1)),
    )
    half = critical_value(n, 1.0 - 2.0 * alpha) * spread
    if claim != "equal":
        return float(np.mean(ndtr((-margin - true) * unit - half)))
    inside = ndtr((margin - true) * unit - half) - ndtr((-margin - true) * unit + half)
    return float(np.mean(np.maximum(inside, 0.0)))


@cache
def effect_needed(n: int, m: int = 1, alpha: float = 0.05) -> float:
    """The true difference beyond the margin, in units of sd, that confirms lower or higher with
    power 0.8.
    """
    low, high = 0.0, 1.0
    while power("higher", 0.0, high, 1.0, n, m, alpha) < 0.8:
        low, high = high, 2.0 * high
    for _ in range(10):
        middle = (low + high) / 2
        low, high = (
            (low, middle)
            if power("higher", 0.0, middle, 1.0, n, m, alpha) >= 0.8
            else (middle, high)
        )
    return high


# Curves and their bands


class Band(NamedTuple):
    """Mean and interval of curves at the positions all of them have: arrays of shape (S,)."""

    at: NDArray[np.int64]
    mean: Floats
    low: Floats
    high: Floats


def difference_curves(
    arm: Mapping[int, Curve], baseline: Mapping[int, Curve]
) -> dict[int, dict[int, float]]:
    """Arm minus baseline by seed, at the positions both have; seeds that only one has are left
    out.
    """
    return {
        seed: {
            at: arm[seed][at] - baseline[seed][at]
            for at in sorted(arm[seed].keys() & baseline[seed].keys())
        }
        for seed in sorted(arm.keys() & baseline.keys())
    }


def reached(curve: Curve, loss: float) -> float:
    """The position where a curve is first at or below `loss`, linear in the logarithm of it;
    infinite if nowhere.
    """
    at = sorted(position for position in curve if position > 0)
    first = next((k for k, position in enumerate(at) if curve[position] <= loss), None)
    if first is None:
        return math.inf
    ends = at[max(first - 1, 0)], at[first]
    return math.exp(np.interp(-loss, [-curve[end] for end in ends], np.log(ends)))


def pointwise_band(curves: Sequence[Curve]) -> Band:
    """Mean and t interval of the curves at each position on its own; bounds are NaN for one curve.

    A whole curve leaves such a band more often than in 5 of 100 cases.
    """
    at = sorted(set.intersection(*map(set, curves)))
    values = np.array([[curve[x] for x in at] for curve in curves], dtype=np.float64).reshape(
        len(curves), len(at)
    )
    mean, _, half = student_interval(values, 0.95)
    return Band(np.array(at, dtype=np.int64), mean, mean - half, mean + half)
