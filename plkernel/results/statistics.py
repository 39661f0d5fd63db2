"""Statistics of arms that share their seeds: intervals, tests, corrections, bands, power, effects, and optima."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, product
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtri, gammaln, nctdtr, stdtr

from plkernel.analysis.intervals import critical_value, student_interval

Floats = NDArray[np.float64]
Curve = Mapping[int, float]
"""Values of one seed by position: a step, or bytes read."""
Test = Literal["sign flips", "t"]
Verdict = Literal["confirmed", "refuted", "undecided"]
MOST_FLIPPED = 20
"""All 2**n sign patterns are counted up to this n, a second's work."""
TIE = 1e-9
"""Sums that differ by less, relative to the sum of all magnitudes, count as equal: differences carry rounding."""


# Means and paired differences


@dataclass(frozen=True)
class Estimate:
    """The mean of n values with its t interval; bounds and standard deviation are NaN where n = 1."""

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

    @property
    def contains_zero(self) -> bool:
        """True if the interval exists and contains zero."""
        return bool(self.low <= 0.0 <= self.high)


def mean_interval(values: Iterable[float], confidence: float = 0.95) -> Estimate:
    """mean +- t_{n-1} * sd / sqrt(n), the interval of Student (1908), sd with n - 1 in the denominator.

    With n = 1 the bounds and the standard deviation are NaN. Raises ValueError for no values.
    """
    data = np.asarray(list(values), dtype=np.float64)
    if data.size == 0:
        raise ValueError("values: got none, give at least one")
    mean, spread, half = (float(column[0]) for column in student_interval(data[:, None], confidence))
    return Estimate(data.size, mean, mean - half, mean + half, spread)


def paired_difference(
    arm: Mapping[int, float], baseline: Mapping[int, float], confidence: float = 0.95
) -> PairedDifference:
    """Mean of arm[s] - baseline[s] over the seeds s that both have, its t interval, p of the paired t test.

    Runs of one seed share data order and base weights, so their contribution cancels in the difference. p is NaN for
    n = 1 and where every difference is zero. Raises ValueError when no seed is shared.
    """
    per_seed = {seed: float(arm[seed]) - float(baseline[seed]) for seed in sorted(set(arm) & set(baseline))}
    if not per_seed:
        raise ValueError(f"seeds: {sorted(arm)} and {sorted(baseline)} have none in common, nothing to pair")
    one = mean_interval(per_seed.values(), confidence)
    if one.n < 2 or not math.isfinite(one.mean):
        p = math.nan
    elif one.standard_deviation == 0.0:
        p = 0.0 if one.mean else math.nan
    else:
        p = float(2.0 * stdtr(one.n - 1, -abs(one.mean) * math.sqrt(one.n) / one.standard_deviation))
    return PairedDifference(**vars(one), p_value=p, per_seed=per_seed)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """p adjusted for being one of m tests (Holm 1979): the i-th smallest times m - i + 1, never below a smaller one's.

    Comparing adjusted p with alpha keeps the chance of any false rejection at or below alpha, whatever the dependence
    between the tests. At most 1. NaN stays NaN and does not count in m. Raises ValueError naming a p outside [0, 1].
    """
    if wrong := {name: p for name, p in p_values.items() if p < 0.0 or p > 1.0}:
        raise ValueError(f"p_values: got {wrong}, give numbers from 0 to 1, or NaN for a test not made")
    tested = sorted((p, name) for name, p in p_values.items() if not math.isnan(p))
    adjusted, largest = dict.fromkeys(p_values, math.nan), 0.0
    for rank, (p, name) in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - rank) * p))
        adjusted[name] = largest
    return adjusted


# Tests by sign flips


class SignFlip(NamedTuple):
    """Two-sided p, the smallest p that a test of so many differences can give, and whether p is exact."""

    p_value: float
    smallest_p: float
    exact: bool


def sign_flip_test(differences: Iterable[float], resamples: int = 99_999, seed: int = 0) -> SignFlip:
    """p = share of sign patterns whose |sum of +-d| is at least the observed one: the test of Fisher (1935).

    Exact when the differences are symmetric about zero without an effect, which pairing gives by exchanging arm and
    baseline. Up to MOST_FLIPPED all patterns count, so p is at least 2 / 2**n: 0.0625 at n = 5. Beyond, `resamples`
    random patterns give (1 + b) / (1 + resamples), b of them as extreme (Phipson and Smyth 2010). Ties count against
    the effect. p is NaN when a difference is not finite.
    """
    data = np.asarray(list(differences), dtype=np.float64)
    exact = data.size <= MOST_FLIPPED
    smallest = 2.0 ** (1 - data.size) if exact else 1.0 / (1 + resamples)
    if not np.isfinite(data).all():
        return SignFlip(math.nan, smallest, exact)
    enough = abs(data.sum()) - TIE * np.abs(data).sum()
    if exact:
        return SignFlip(float(np.mean(np.abs(2.0 * _subset_sums(data) - data.sum()) >= enough)), smallest, exact)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], (resamples, data.size))
    return SignFlip(float((1 + (np.abs(signs @ data) >= enough).sum()) / (1 + resamples)), smallest, exact)


def sign_flip_below(differences: ArrayLike, bound: float = 0.0) -> float:
    """p against the null hypothesis mean >= bound, from all 2**n sign patterns of the n differences minus bound.

    The share of patterns whose sum is at most the observed one, i.e. of subsets whose sum is not negative, the empty
    one among them: at least 2**-n. Exact for differences symmetric about their mean. Ties count against the effect.
    """
    data = np.asarray(differences, dtype=np.float64) - bound
    return float(np.mean(_subset_sums(data) >= -TIE * np.abs(data).sum()))


def sign_flip_bounds(differences: ArrayLike, alpha: float) -> tuple[float, float]:
    """The bounds that neither one-sided sign-flip test at level alpha excludes: an exact 1 - 2 alpha interval.

    The k-th smallest and k-th largest of the 2**n - 1 subset means, k = floor(alpha 2**n) (Hartigan 1969); infinite
    where k = 0, the differences being too few for that level.
    """
    data = np.asarray(differences, dtype=np.float64)
    k = int(alpha * 2.0**data.size * (1.0 + TIE))
    if k == 0:
        return -math.inf, math.inf
    means = np.sort((_subset_sums(data) / np.maximum(_subset_sums(np.ones_like(data)), 1.0))[1:])
    return float(means[k - 1]), float(means[-k])


def _subset_sums(data: Floats) -> Floats:
    """(2**n,): the sums of all subsets, the empty one first."""
    sums = np.zeros(1)
    for value in data:
        sums = np.concatenate([sums, sums + value])
    return sums


# Declared claims


@dataclass(frozen=True)
class Claimed:
    """A claim on a mean difference d, and the differences it is judged by, one per seed.

    claim: lower, d < -margin; higher, d > margin; equal, -margin < d < margin. Its opposite is the rest of the line.
    """

    claim: str
    margin: float
    differences: Sequence[float]


@dataclass(frozen=True)
class Judgement:
    """The result of testing one claim of a family against n differences.

    low, high        the 1 - 2 alpha interval by `test`, of this claim alone
    test             the test that decides
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


def judge(family: Mapping[str, Claimed], alpha: float = 0.05) -> dict[str, Judgement]:
    """The verdict on every claim of a family, by name.

    p of the claims go through Holm as one family, p of their opposites as another, so that the chance of any false
    confirmation is at most alpha, and that of any false refutation is too. All m members count, also those without
    differences, which stay undecided. Raises ValueError unless 0 < alpha < 1/2.
    """
    if not 0.0 < alpha < 0.5:
        raise ValueError(f"alpha: got {alpha}, give a number between 0 and 0.5, such as 0.05")
    tested = {name for name, one in family.items() if len(one.differences) > 1 and np.isfinite(one.differences).all()}
    test = deciding_test([len(family[name].differences) for name in tested], len(family), alpha)
    below = sign_flip_below if test == "sign flips" else t_below
    alone = {name: claim_p(one, below) if name in tested else (1.0, 1.0) for name, one in family.items()}
    confirming, refuting = (holm({name: pair[side] for name, pair in alone.items()}) for side in (0, 1))
    judged = {}
    for name, one in family.items():
        mean = float(np.mean(one.differences)) if len(one.differences) else math.nan
        decided: Verdict = (
            "confirmed" if confirming[name] <= alpha else "refuted" if refuting[name] <= alpha else "undecided"
        )
        low, high = interval(one.differences, alpha, test) if name in tested else (math.nan, math.nan)
        p = [alone[name][0], confirming[name], alone[name][1], refuting[name]] if name in tested else [math.nan] * 4
        judged[name] = Judgement(len(one.differences), mean, low, high, test, p[0], p[1], p[2], p[3], decided)
    return judged


def claim_p(claimed: Claimed, below: Callable[[Floats, float], float]) -> tuple[float, float]:
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


def t_below(differences: ArrayLike, bound: float = 0.0) -> float:
    """P(T_{n-1} <= t), t = (mean - bound) sqrt(n) / sd: p of the one-sided t test against mean >= bound.

    Without any spread p is 0 below the bound, and 1 elsewhere.
    """
    data = np.asarray(differences, dtype=np.float64) - bound
    mean, sd = float(data.mean()), float(data.std(ddof=1))
    if sd == 0.0:
        return 0.0 if mean < 0.0 else 1.0
    return float(stdtr(data.size - 1, mean * math.sqrt(data.size) / sd))


def interval(differences: ArrayLike, alpha: float, test: Test) -> tuple[float, float]:
    """The 1 - 2 alpha interval of the mean: every bound that neither one-sided test at level alpha excludes."""
    if test == "sign flips":
        return sign_flip_bounds(differences, alpha)
    one = mean_interval(np.asarray(differences, dtype=np.float64), 1.0 - 2.0 * alpha)
    return one.low, one.high


def deciding_test(seeds: Sequence[int], m: int, alpha: float = 0.05) -> Test:
    """The test of a family of m claims whose members have so many seeds: by these numbers, never by values.

    The exact sign flips where they allow the member with the fewest to be rejected at all, 2**-n <= alpha / m, and can
    be counted for the one with the most; else t.
    """
    enough = bool(seeds) and min(seeds) >= seeds_for(m, alpha)
    return "sign flips" if enough and max(seeds) <= MOST_FLIPPED else "t"


def seeds_for(m: int, alpha: float = 0.05) -> int:
    """The fewest seeds n for any of m one-sided exact sign-flip tests to reject at all after Holm: 2**-n <= alpha / m.

    The smallest p of n seeds must pass Holm's first step: 5 seeds for one claim at 0.05, 10 for 28.
    """
    n = 1
    while 2.0**-n > alpha / m:
        n += 1
    return n


# Curves and their bands


@dataclass(frozen=True)
class Band:
    """Mean and interval of n curves at the positions all of them have: arrays of shape (S,)."""

    n: int
    at: NDArray[np.int64]
    mean: Floats
    low: Floats
    high: Floats


def difference_curves(arm: Mapping[int, Curve], baseline: Mapping[int, Curve]) -> dict[int, dict[int, float]]:
    """Arm minus baseline by seed, at the positions both have; seeds that only one has are left out."""
    return {
        seed: {at: arm[seed][at] - baseline[seed][at] for at in sorted(set(arm[seed]) & set(baseline[seed]))}
        for seed in sorted(set(arm) & set(baseline))
    }


def pointwise_band(curves: Sequence[Curve], confidence: float = 0.95) -> Band:
    """Mean and t interval of the curves at each position on its own; bounds are NaN for one curve.

    A whole curve leaves such a band more often than 1 - confidence. Raises ValueError for no curves.
    """
    at, values = _aligned(curves)
    mean, _, half = student_interval(values, confidence)
    return Band(len(curves), at, mean, mean - half, mean + half)


def simultaneous_band(curves: Sequence[Curve], confidence: float = 0.95, draws: int = 4000, seed: int = 0) -> Band:
    """mean +- c * sd / sqrt(n) with one c for all positions: the whole true curve lies inside with `confidence`.

    c is the `confidence` quantile of max over s of |t_s|, from n Gaussian curves drawn again and again and studentised
    as the band is, so that the heavy tails of few curves are in it. The curves drawn have the correlation of the given
    ones in the wider of two ways, since n curves say little about it: the estimated matrix itself (right for smooth
    curves), and a Markov chain through the correlations of neighbours (right for rough ones). c is never larger than
    Bonferroni's, t at (1 - confidence) / S, which is used as it stands below four curves.

    Measured over 60 positions, 1000 repetitions each (standard error 0.007): of autoregressive curves (0.9), random
    walks with and without noise, smooth curves, white noise and heavy tails the band holds 0.935 to 0.98 at n = 5 and
    at n = 8, the pointwise band 0.05 to 0.80. c is 6 to 9 at n = 5 and 4 to 5.6 at n = 8.

    Bounds are NaN for one curve and where a value is not finite. Raises ValueError for no curves.
    """
    at, values = _aligned(curves)
    n = len(curves)
    mean, spread, half = student_interval(values, confidence)
    varies = np.isfinite(spread) & (spread > 0.0)
    if n > 1 and varies.any():
        c = critical_value(n, 1.0 - (1.0 - confidence) / varies.sum())
        if n >= 4:
            residuals = values[:, varies] - mean[varies]
            residuals /= np.linalg.norm(residuals, axis=0)
            rng = np.random.default_rng(seed)
            drawn = [_estimated(residuals, draws, rng), _markov(residuals, draws, rng)]
            c = min(c, max(float(np.quantile(_largest_t(columns), confidence)) for columns in drawn))
        half = spread / math.sqrt(n) * c
    return Band(n, at, mean, mean - half, mean + half)


def _estimated(residuals: Floats, draws: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Position by position (n, draws) Gaussian values with the correlation matrix of the residuals (n, S)."""
    n = len(residuals)
    mixed = rng.normal(size=(n, n * draws))
    for column in residuals.T:
        yield (column @ mixed).reshape(n, draws)


def _markov(residuals: Floats, draws: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Likewise, with the correlation of neighbouring positions only: each value depends on the one before it."""
    values = rng.normal(size=(len(residuals), draws))
    yield values
    for correlation in np.clip((residuals[:, 1:] * residuals[:, :-1]).sum(axis=0), -1.0, 1.0):
        values = correlation * values + math.sqrt(1.0 - correlation**2) * rng.normal(size=values.shape)
        yield values


def _largest_t(columns: Iterable[Floats]) -> Floats:
    """max over positions of |t| of each draw (draws,), from n values each (n, draws)."""
    largest = np.zeros(1)
    for values in columns:
        n, mean = len(values), values.mean(axis=0)
        squares = ((values - mean) ** 2).sum(axis=0)
        largest = np.maximum(largest, n * (n - 1) * mean**2 / squares)
    return np.sqrt(largest)


def _aligned(curves: Sequence[Curve]) -> tuple[NDArray[np.int64], Floats]:
    """The positions that all curves have (S,), and the values there (n, S)."""
    if not curves:
        raise ValueError("curves: got none, give at least one")
    at = sorted(set.intersection(*map(set, curves)))
    values = np.array([[curve[x] for x in at] for curve in curves], dtype=np.float64).reshape(len(curves), len(at))
    return np.array(at, dtype=np.int64), values


@dataclass(frozen=True)
class Speedup:
    """How much earlier an arm reaches the baseline's final value, in fractions of the baseline's run.

    per_seed  0.25: after three quarters of the run; negative: later, where the arm ran longer; None: not reached
    mean      over the seeds, with its t interval; None unless every seed reached it
    """

    per_seed: Mapping[int, float | None]
    mean: Estimate | None


def speedup(arm: Mapping[int, Curve], baseline: Mapping[int, Curve]) -> Speedup | None:
    """1 - (position where the arm reaches the baseline's final value) / (the baseline's last position), by seed.

    Positions count from zero. A description, no test: when both ran equally long no seed can be slower than 0. None
    where no baseline run of a shared seed gets beyond its start.
    """
    per_seed: dict[int, float | None] = {}
    for seed in sorted(set(arm) & set(baseline)):
        last = max(baseline[seed], default=0)
        if last > 0:
            reached = steps_to_reach(arm[seed], baseline[seed][last])
            per_seed[seed] = None if reached is None else 1.0 - reached / last
    reached_by = [value for value in per_seed.values() if value is not None]
    return (
        Speedup(per_seed, mean_interval(reached_by) if len(reached_by) == len(per_seed) else None) if per_seed else None
    )


def steps_to_reach(curve: Curve, level: float) -> float | None:
    """The position from which the curve stays at or below `level`, linearly interpolated; None if it ends above.

    Noise takes a curve below a level and back: the last crossing counts, since the first would favour the noisier
    curve. A value that is not finite counts as above, and the position after it is then taken whole.
    """
    positions = sorted(curve)
    above = [index for index, at in enumerate(positions) if not curve[at] <= level]
    if not above:
        return float(positions[0])
    if above[-1] == len(positions) - 1:
        return None
    before, after = positions[above[-1]], positions[above[-1] + 1]
    share = (curve[before] - level) / (curve[before] - curve[after])
    return before + share * (after - before) if 0.0 <= share <= 1.0 else float(after)


# Power and standardised effects


@dataclass(frozen=True)
class StandardisedEffect:
    """Cohen's d_z of n paired differences with its exact interval, and Hedges' g, its unbiased version."""

    n: int
    d_z: float
    low: float
    high: float
    hedges_g: float


def power_of(noncentrality: float, n: int, alpha: float = 0.05) -> float:
    """P(|T| > t_{n-1, 1-alpha/2}) with T noncentral t, n - 1 degrees: power of the two-sided paired t test.

    noncentrality: the true mean difference times sqrt(n) over the standard deviation of paired differences.
    """
    beyond = critical_value(n, 1.0 - alpha)
    return _noncentral_t(n - 1, noncentrality, -beyond) + 1.0 - _noncentral_t(n - 1, noncentrality, beyond)


def detectable_difference(sd: float, n: int, power: float = 0.8, alpha: float = 0.05) -> float:
    """The smallest true difference that a two-sided paired t test of n seeds finds with this power, in units of sd.

    It is proportional to `sd`: from a few seeds that is itself uncertain, by a factor of 2.4 at n = 5 (`sd_upper`).
    NaN for n < 2 and unless sd is positive and finite.
    """
    if n < 2 or not (math.isfinite(sd) and sd > 0.0):
        return math.nan
    return sd * _root(lambda shift: power_of(shift, n, alpha) - power, 0.0) / math.sqrt(n)


def sd_upper(sd: float, n: int, confidence: float = 0.95) -> float:
    """sd * sqrt((n - 1) / q), q the 1 - confidence quantile of chi-square with n - 1 degrees: one-sided upper bound.

    Of normal values: 16 times the estimate at n = 2, 2.4 times at n = 5, 1.8 times at n = 8.
    """
    return sd * math.sqrt((n - 1) / float(chdtri(n - 1, confidence)))


def standardised_effect(difference: Estimate, confidence: float = 0.95) -> StandardisedEffect:
    """d_z = mean / sd of the differences, g = J d_z, J = Gamma(v/2) / (sqrt(v/2) Gamma((v-1)/2)), v = n - 1.

    J removes the bias of d_z (Hedges 1981): 0.80 at n = 5, 0.89 at n = 8; g is NaN at n = 2, where no J exists. The
    interval holds every effect whose noncentral t distribution has the observed t between its tail quantiles; it
    excludes zero exactly when the t interval does. All NaN where there is no spread: n = 1, or equal differences.
    """
    n, v, sd = difference.n, difference.n - 1, difference.standard_deviation
    if not (sd > 0.0 and math.isfinite(difference.mean)):
        return StandardisedEffect(n, *[math.nan] * 4)
    d_z, tail = difference.mean / sd, (1.0 - confidence) / 2
    size = abs(d_z) * math.sqrt(n)
    ends = sorted(
        math.copysign(1.0, d_z) * _root(lambda shift, p=p: p - _noncentral_t(v, shift, size), -1.0) / math.sqrt(n)  # type: ignore[misc]
        for p in (1.0 - tail, tail)
    )
    j = math.exp(gammaln(v / 2) - gammaln((v - 1) / 2)) / math.sqrt(v / 2) if n > 2 else math.nan
    return StandardisedEffect(n, d_z, ends[0], ends[1], j * d_z)


def _noncentral_t(degrees: int, noncentrality: float, t: float) -> float:
    """P(T <= t). The series behind `nctdtr` gives NaN in tails that have vanished (below 1e-13), here 0 or 1."""
    probability = float(nctdtr(degrees, noncentrality, t))
    return float(noncentrality < t) if math.isnan(probability) else probability


def _root(excess: Callable[[float], float], low: float) -> float:
    """The root of a function that rises with the noncentrality, sought from `low`, or below if that is negative."""
    from scipy.optimize import brentq

    high = 1.0
    while excess(low) > 0.0:
        low *= 2.0
    while excess(high) < 0.0:
        high *= 2.0
    return float(brentq(excess, low, high, xtol=1e-12, rtol=1e-12))


# Factorial designs

Cell = tuple[str, ...]
"""One level of each factor, in the order of the factors."""


@dataclass(frozen=True)
class Contrast:
    """A main effect (one factor) or an interaction (several): `levels` against the first level of each factor."""

    factors: tuple[str, ...]
    levels: tuple[str, ...]
    difference: PairedDifference

    @property
    def order(self) -> int:
        """1 for a main effect, 2 for a two-way interaction."""
        return len(self.factors)


def factorial_effects(
    values: Mapping[Cell, Mapping[int, float]], factors: Mapping[str, Sequence[str]], order: int = 2
) -> list[Contrast]:
    """Main effects, then interactions up to `order` factors, each a contrast within seeds with a t interval over seeds.

    With y[cell, seed] the effect of level b of factor A against its first level a is, per seed, the mean over the
    cells of the other factors of y[b, ...] - y[a, ...]; the interaction of A and B is the mean over the rest of the
    difference of differences (y[b, d] - y[a, d]) - (y[b, c] - y[a, c]). Each contrast brings its own error term, so no
    sphericity is assumed (Maxwell and Delaney 2004, chapter 11).

    values: a number per cell and seed, every combination of the levels in `factors`; seeds that a cell lacks are left
    out. Raises ValueError when no seed is in all cells.
    """
    cells = list(product(*factors.values()))
    seeds = sorted(set.intersection(*(set(values[cell]) for cell in cells)))
    table = np.array([[values[cell][seed] for seed in seeds] for cell in cells], dtype=np.float64)
    contrasts = []
    for chosen in (names for size in range(1, order + 1) for names in combinations(factors, size)):
        for levels in product(*(factors[name][1:] for name in chosen)):
            level_of = dict(zip(chosen, levels, strict=True))
            vectors = [
                np.array([float(level == level_of[name]) - float(level == of[0]) for level in of])
                if name in level_of
                else np.full(len(of), 1.0 / len(of))
                for name, of in factors.items()
            ]
            per_seed = reduce(np.multiply.outer, vectors).ravel() @ table
            measured = dict(zip(seeds, per_seed.tolist(), strict=True))
            contrasts.append(Contrast(chosen, levels, paired_difference(measured, dict.fromkeys(seeds, 0.0))))
    return contrasts


# Optima and decays over seeds


@dataclass(frozen=True)
class Optimum:
    """The least point `at` of the mean parabola over n seeds, and its interval (Fieller 1954).

    low and high are infinite where the seeds do not bound the optimum on that side, NaN for one seed. `at` is NaN
    where the mean parabola has no least point.
    """

    at: float
    low: float
    high: float
    n: int
    levels: tuple[float, ...]

    @property
    def inside(self) -> bool:
        """True if the whole interval lies between the smallest and the largest level that was tried."""
        return bool(min(self.levels) <= self.low and self.high <= max(self.levels))

    def bounds(self) -> str:
        """The interval in words."""
        if math.isnan(self.low):
            return "one seed has none"
        if math.isinf(self.low) or math.isinf(self.high):
            return "not bounded by these seeds"
        return f"{self.low:.2f} to {self.high:.2f}" + ("" if self.inside else ", beyond what was tried")


def quadratic_optimum(values: Mapping[float, Mapping[int, float]], confidence: float = 0.95) -> Optimum:
    """The x that minimises the loss, from `values`: loss by level x and seed, the same seeds at every level.

    Each seed's losses get a least-squares parabola a + b x + c x**2. The optimum is -mean(b) / (2 mean(c)); its
    interval holds the x at which the seeds' slopes b + 2 c x have a mean that a t test cannot tell from zero. Raises
    ValueError for fewer than three levels, or seeds that differ between levels.
    """
    levels = sorted(values)
    seeds = sorted(values[levels[0]]) if levels else []
    if len(levels) < 3 or not seeds or any(sorted(values[level]) != seeds for level in levels):
        raise ValueError(f"levels: a parabola needs 3 or more, each with the same seeds, got levels {levels}")
    losses = np.array([[values[level][seed] for seed in seeds] for level in levels])
    curvature, slope, _ = np.polyfit(levels, losses, 2)
    at = -slope.mean() / (2 * curvature.mean()) if curvature.mean() > 0 else math.nan
    low, high = _fieller(slope, 2 * curvature, confidence)
    return Optimum(float(at), low, high, len(seeds), tuple(levels))


def _fieller(slope: Floats, bend: Floats, confidence: float) -> tuple[float, float]:
    """The x with mean(slope + bend x)**2 <= t**2 var(slope + bend x) / n, as an interval.

    (B**2 - t**2 Sbb/n) x**2 + 2 (A B - t**2 Sab/n) x + (A**2 - t**2 Saa/n) <= 0 with means A, B and covariances S.
    """
    n = slope.size
    if n < 2:
        return math.nan, math.nan
    share, covariance = critical_value(n, confidence) ** 2 / n, np.cov(slope, bend)
    means = np.array([slope.mean(), bend.mean()])
    constant, cross, square = (means[i] * means[j] - share * covariance[i, j] for i, j in ((0, 0), (0, 1), (1, 1)))
    root = cross**2 - square * constant
    if square <= 0 or means[1] <= 0 or root < 0:  # the curvature itself may be zero or negative
        return -math.inf, math.inf
    low, high = sorted(((-cross - math.sqrt(root)) / square, (-cross + math.sqrt(root)) / square))
    return float(low), float(high)


@dataclass(frozen=True)
class Vanishing:
    """The exponent `at` of a mean difference over n seeds that falls as bytes**-at, and its interval.

    low and high are infinite where the seeds do not bound it between -2 and 6, NaN for one seed. `at` is NaN where the
    mean difference changes its sign, and so follows no power law; all three are where no exponent passes.
    """

    at: float
    low: float
    high: float
    n: int


def decay_exponent(differences: Sequence[Curve], confidence: float = 0.95) -> Vanishing:
    """The p for which E[d(b)] = c * b**-p, from `differences`: d by bytes read b, a curve for each seed.

    With the right p, d(b) * b**p has the same mean at every b: the slope of a line through it against ln b is zero on
    average. The interval holds the p at which the seeds' slopes have a mean that a t test cannot tell from zero (a
    test inverted, as Fieller 1954 does), whatever the correlation along a curve. Positions are those that all curves
    have, but b = 0. Raises ValueError for no curves or fewer than two positions.

    >>> law = decay_exponent([{1: 0.1, 10: 0.01, 100: 0.001}, {1: 0.3, 10: 0.03, 100: 0.003}])
    >>> round(law.at, 6)
    1.0
    """
    shared = sorted(set.intersection(*map(set, differences)) - {0}) if differences else []
    if len(shared) < 2:
        raise ValueError(f"differences: an exponent needs a curve, and two positions or more, got {shared}")
    values = np.array([[curve[at] for at in shared] for curve in differences])
    logs = np.log(np.array(shared, dtype=float))
    logs -= logs.mean()
    exponents = np.linspace(-2.0, 6.0, 1601)  # beyond these a difference grows or vanishes too fast for a power law
    slopes = (np.exp(exponents[:, None] * logs) * logs) @ values.T  # (exponents, seeds)
    means, at, n = slopes.mean(axis=1), math.nan, len(differences)
    if (values.mean(axis=0) > 0).all() or (values.mean(axis=0) < 0).all():  # then the mean slope crosses zero once
        rising = means if means[-1] >= means[0] else -means
        if rising[0] > 0 or rising[-1] < 0:
            at = -math.inf if rising[0] > 0 else math.inf
        else:
            after = max(int(np.argmax(rising >= 0)), 1)
            at = float(np.interp(0.0, rising[after - 1 : after + 1], exponents[after - 1 : after + 1]))
    if n < 2:
        return Vanishing(at, math.nan, math.nan, n)
    inside = np.flatnonzero(np.abs(means) <= critical_value(n, confidence) * slopes.std(axis=1, ddof=1) / math.sqrt(n))
    if inside.size == 0:  # between two points of the grid, or a law that no exponent follows
        return Vanishing(at, at, at, n)
    low = -math.inf if inside[0] == 0 else float(exponents[inside[0]])
    high = math.inf if inside[-1] == len(exponents) - 1 else float(exponents[inside[-1]])
    return Vanishing(at, low, high, n)
