"""Statistics of arms that share their seeds: paired differences, exact tests, claims, curves and effects."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, product
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, nctdtr, stdtr

from plkernel.analysis.information.estimate import critical_value, student_interval

Floats = NDArray[np.float64]
Curve = Mapping[int, float]
"""Values of one seed by position: a step, or bytes read."""
Test = Literal["sign flips", "t"]
Verdict = Literal["confirmed", "refuted", "undecided"]
MOST_FLIPPED = 20
"""All 2**n sign patterns are counted up to this n, a second's work."""
TIE = 1e-9
"""Sums that differ by less, relative to the sum of all magnitudes, count as equal: differences carry rounding."""


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
    per_seed = {seed: float(arm[seed]) - float(baseline[seed]) for seed in sorted(arm.keys() & baseline.keys())}
    if not per_seed:
        raise ValueError(f"seeds: {sorted(arm)} and {sorted(baseline)} have none in common, nothing to pair")
    one = mean_interval(per_seed.values(), confidence)
    with np.errstate(divide="ignore", invalid="ignore"):  # no spread: t is infinite, or NaN where the mean is 0 too
        t = np.float64(abs(one.mean)) * math.sqrt(one.n) / one.standard_deviation
    return PairedDifference(**vars(one), p_value=float(2.0 * stdtr(one.n - 1, -t)), per_seed=per_seed)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """p adjusted for being one of m tests (Holm 1979): the i-th smallest times m - i + 1, never below a smaller one's.

    Comparing adjusted p with alpha keeps the chance of any false rejection at or below alpha, whatever the dependence
    between the tests. At most 1. NaN stays NaN and does not count in m.
    """
    tested = sorted((p, name) for name, p in p_values.items() if not math.isnan(p))
    factors = np.arange(len(tested), 0, -1) * [p for p, _ in tested]
    adjusted = np.minimum(np.maximum.accumulate(factors), 1.0).tolist()
    return dict.fromkeys(p_values, math.nan) | {name: p for (_, name), p in zip(tested, adjusted, strict=True)}


# Tests by sign flips


class SignFlip(NamedTuple):
    """Two-sided p, and the smallest p that a test of so many differences can give."""

    p_value: float
    smallest_p: float
    exact: bool = True


def sign_flip_test(differences: Sequence[float]) -> SignFlip | None:
    """p = share of sign patterns whose |sum of +-d| is at least the observed one: the test of Fisher (1935).

    Exact when the differences are symmetric about zero without an effect. All 2**n patterns count, so p is at least
    2 / 2**n: 0.0625 at n = 5. NaN when a difference is not finite; None for more than MOST_FLIPPED differences.
    """
    if (n := len(differences)) > MOST_FLIPPED:
        return None
    p = 2.0 * min(sign_flip_below(differences), sign_flip_below(np.negative(differences)))
    return SignFlip(min(1.0, p) if np.isfinite(differences).all() else math.nan, 2.0 ** (1 - n))


def sign_flip_below(differences: ArrayLike, bound: float = 0.0) -> float:
    """p against mean >= bound: the share of sign patterns of the differences minus bound with a sum at most theirs.

    That is the share of subsets whose sum is not negative, the empty one among them: at least 2**-n. Exact for
    differences symmetric about their mean. Ties count against the effect.
    """
    data = np.asarray(differences, dtype=np.float64) - bound
    return float(np.mean(_subset_sums(data) >= -TIE * np.abs(data).sum()))


def _subset_sums(data: Floats) -> Floats:
    """(2**n,): the sums of all subsets, the empty one first."""
    return reduce(lambda sums, value: np.concatenate([sums, sums + value]), data, np.zeros(1))


# Declared claims


class Claimed(NamedTuple):
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
    alone = {name: claim_p(one, test) if name in tested else (1.0, 1.0) for name, one in family.items()}
    confirming, refuting = (holm({name: pair[side] for name, pair in alone.items()}) for side in (0, 1))
    judged = {}
    for name, (_, _, differences) in family.items():
        n = len(differences)
        bounds, p = (math.nan,) * 2, (math.nan,) * 4
        verdict: Verdict = "undecided"
        if name in tested:
            (one, opposite), family_p, family_opposite = alone[name], confirming[name], refuting[name]
            bounds, p = interval(differences, alpha, test), (one, family_p, opposite, family_opposite)
            verdict = "confirmed" if family_p <= alpha else "refuted" if family_opposite <= alpha else verdict
        judged[name] = Judgement(n, float(np.mean(differences)) if n else math.nan, *bounds, test, *p, verdict)
    return judged


def claim_p(claimed: Claimed, test: Test) -> tuple[float, float]:
    """p against the opposite of the claim, and p against the claim, by one-sided tests.

    lower and higher: the test of superiority by a margin, and that of the other side. equal: two one-sided tests
    (Schuirmann 1987), the larger p; its opposite, a difference beyond either margin, is the smaller of two p, doubled.
    """
    below = sign_flip_below if test == "sign flips" else t_below
    data, margin = np.asarray(claimed.differences, dtype=np.float64), claimed.margin
    if claimed.claim == "equal":
        inside, beyond = ([below(data, edge), below(-data, edge)] for edge in (margin, -margin))
        return max(inside), min(1.0, 2.0 * min(beyond))
    data = data if claimed.claim == "lower" else -data
    return below(data, -margin), below(-data, margin)


def t_below(differences: ArrayLike, bound: float = 0.0) -> float:
    """P(T_{n-1} <= t), t = (mean - bound) sqrt(n) / sd: p of the one-sided t test against mean >= bound.

    Without any spread p is 0 below the bound, and 1 elsewhere.
    """
    data = np.asarray(differences, dtype=np.float64) - bound
    mean, sd = float(data.mean()), float(data.std(ddof=1))
    if sd == 0.0:
        return 0.0 if mean < 0.0 else 1.0
    return float(stdtr(data.size - 1, mean * math.sqrt(data.size) / sd))


def interval(differences: Sequence[float], alpha: float, test: Test) -> tuple[float, float]:
    """The 1 - 2 alpha interval of the mean: every bound that neither one-sided test at level alpha excludes.

    By sign flips the k-th smallest and k-th largest of the 2**n - 1 subset means, k = floor(alpha 2**n) (Hartigan
    1969); infinite where k = 0, the differences being too few for that level.
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
    """The test of a family of m claims whose members have so many seeds: by these numbers, never by values.

    Exact sign flips where the member with the fewest can be rejected at all, and the one with the most be counted.
    """
    enough = bool(seeds) and seeds_for(m, alpha) <= min(seeds) and max(seeds) <= MOST_FLIPPED
    return "sign flips" if enough else "t"


def seeds_for(m: int, alpha: float = 0.05) -> int:
    """The fewest seeds n for any of m one-sided sign-flip tests to pass Holm's first step, 2**-n <= alpha / m.

    5 seeds for one claim at 0.05, 10 for 28.
    """
    return next(n for n in range(1, 1100) if 2.0**-n <= alpha / m)


# Curves and their bands


class Band(NamedTuple):
    """Mean and interval of n curves at the positions all of them have: arrays of shape (S,)."""

    n: int
    at: NDArray[np.int64]
    mean: Floats
    low: Floats
    high: Floats


def difference_curves(arm: Mapping[int, Curve], baseline: Mapping[int, Curve]) -> dict[int, dict[int, float]]:
    """Arm minus baseline by seed, at the positions both have; seeds that only one has are left out."""
    return {
        seed: {at: arm[seed][at] - baseline[seed][at] for at in sorted(arm[seed].keys() & baseline[seed].keys())}
        for seed in sorted(arm.keys() & baseline.keys())
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
    as the band is. They have the correlation of the given ones in the wider of two ways, since n curves say little
    about it: the estimated matrix itself (right for smooth curves), and a Markov chain through the correlations of
    neighbours (right for rough ones). c is at most Bonferroni's, t at (1 - confidence) / S, which is used as it stands
    below four curves. Over 60 positions, at n = 5 and n = 8, the band holds 0.935 to 0.98 of smooth and rough curves,
    white noise and heavy tails (standard error 0.007), the pointwise band 0.05 to 0.80.

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
            c = min(c, _largest_t(residuals, confidence, draws, np.random.default_rng(seed)))
        half = spread / math.sqrt(n) * c
    return Band(n, at, mean, mean - half, mean + half)


def _aligned(curves: Sequence[Curve]) -> tuple[NDArray[np.int64], Floats]:
    """The positions that all curves have (S,), and the values there (n, S)."""
    if not curves:
        raise ValueError("curves: got none, give at least one")
    at = sorted(set.intersection(*map(set, curves)))
    values = np.array([[curve[x] for x in at] for curve in curves], dtype=np.float64).reshape(len(curves), len(at))
    return np.array(at, dtype=np.int64), values


def _largest_t(residuals: Floats, confidence: float, draws: int, rng: np.random.Generator) -> float:
    """The quantile of max |t| over the positions of n Gaussian curves, correlated as residuals (n, S) in either way."""
    n = len(residuals)

    def estimated() -> Iterator[Floats]:
        mixed = rng.normal(size=(n, n * draws))
        return ((column @ mixed).reshape(n, draws) for column in residuals.T)

    def markov() -> Iterator[Floats]:
        values = rng.normal(size=(n, draws))
        yield values
        for correlation in np.clip((residuals[:, 1:] * residuals[:, :-1]).sum(axis=0), -1.0, 1.0):
            values = correlation * values + math.sqrt(1.0 - correlation**2) * rng.normal(size=values.shape)
            yield values

    def quantile(positions: Iterator[Floats]) -> float:
        t = (math.sqrt(n) * np.abs(values.mean(axis=0)) / values.std(axis=0, ddof=1) for values in positions)
        return float(np.quantile(reduce(np.maximum, t), confidence))

    return max(quantile(estimated()), quantile(markov()))


class Speedup(NamedTuple):
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
    lasts = {seed: max(baseline[seed], default=0) for seed in sorted(arm.keys() & baseline.keys())}
    reached = {seed: steps_to_reach(arm[seed], baseline[seed][last]) for seed, last in lasts.items() if last > 0}
    per_seed = {seed: None if at is None else 1.0 - at / lasts[seed] for seed, at in reached.items()}
    known = [share for share in per_seed.values() if share is not None]
    whole = mean_interval(known) if known and len(known) == len(per_seed) else None
    return Speedup(per_seed, whole) if per_seed else None


def steps_to_reach(curve: Curve, level: float) -> float | None:
    """The position from which the curve stays at or below `level`, linearly interpolated; None if it ends above.

    Noise takes a curve below a level and back: the last crossing counts, since the first would favour the noisier
    curve. A value that is not finite counts as above, and the position after it is then taken whole.
    """
    positions = sorted(curve)
    after = max((index + 1 for index, at in enumerate(positions) if not curve[at] <= level), default=0)
    if after == len(positions):
        return None
    end, start = positions[after], positions[max(after - 1, 0)]
    share = (curve[start] - level) / (curve[start] - curve[end]) if after else 1.0
    return start + share * (end - start) if 0.0 <= share <= 1.0 else float(end)


# Power and standardised effects


@dataclass(frozen=True)
class StandardisedEffect:
    """Cohen's d_z of n paired differences with its exact interval, and Hedges' g, its unbiased version."""

    n: int
    d_z: float
    low: float
    high: float
    hedges_g: float


def detectable_difference(sd: float, n: int, power: float = 0.8, alpha: float = 0.05) -> float:
    """The smallest true difference that a two-sided paired t test of n seeds finds with this power, in units of sd.

    The power is P(|T| > t_{n-1, 1-alpha/2}), T noncentral t with n - 1 degrees. The difference is proportional to `sd`:
    from a few seeds that is itself uncertain, by a factor of 2.4 at n = 5. NaN for n < 2 and unless sd is
    positive and finite.
    """
    if n < 2 or not (math.isfinite(sd) and sd > 0.0):
        return math.nan
    t = critical_value(n, 1.0 - alpha)
    return (
        sd
        / math.sqrt(n)
        * _shift(lambda shift: _noncentral_t(n, shift, t) - _noncentral_t(n, shift, -t), 1.0 - power, 0.0, t)
    )


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
    t = abs(d_z) * math.sqrt(n)
    shifts = (_shift(lambda shift: _noncentral_t(n, shift, t), p, -math.inf, t) for p in (1.0 - tail, tail))
    low, high = sorted(math.copysign(1.0, d_z) * shift / math.sqrt(n) for shift in shifts)
    j = math.exp(gammaln(v / 2) - gammaln((v - 1) / 2)) / math.sqrt(v / 2) if n > 2 else math.nan
    return StandardisedEffect(n, d_z, low, high, j * d_z)


def _noncentral_t(n: int, shift: float, t: float) -> float:
    """P(T <= t), n - 1 degrees. `nctdtr` gives NaN in tails that have vanished (below 1e-13), here 0 or 1."""
    probability = float(nctdtr(n - 1, shift, t))
    return float(shift < t) if math.isnan(probability) else probability


def _shift(falling: Callable[[float], float], p: float, low: float, t: float) -> float:
    """The noncentrality, from `low` on, at which a falling probability of t is p; none is 20 (t + 1) away from 0."""
    from scipy.optimize import brentq

    far = 20.0 * (t + 1.0)
    return float(brentq(lambda shift: falling(shift) - p, max(low, -far), far, xtol=1e-12, rtol=1e-12))


# Factorial designs

Cell = tuple[str, ...]
"""One level of each factor, in the order of the factors."""


class Contrast(NamedTuple):
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
            weights = np.ones(1)
            for name, of in factors.items():
                own = np.full(len(of), 1.0 / len(of))
                if name in chosen:
                    own = np.equal(of, levels[chosen.index(name)]).astype(float) - np.equal(of, of[0])
                weights = np.outer(weights, own).ravel()
            per_seed = dict(zip(seeds, (weights @ table).tolist(), strict=True))
            contrasts.append(Contrast(chosen, levels, paired_difference(per_seed, dict.fromkeys(seeds, 0.0))))
    return contrasts
