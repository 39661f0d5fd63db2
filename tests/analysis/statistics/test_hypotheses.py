"""Declared claims: against statsmodels and enumeration, error rates over families and coverage by simulation."""

import math
from itertools import product

import numpy as np
import pytest
from statsmodels.stats.weightstats import DescrStatsW, ttost_paired

from plkernel.analysis.statistics.hypotheses import (
    Claimed,
    claim_p,
    deciding_test,
    interval,
    judge,
    seeds_for,
    t_below,
)
from plkernel.analysis.statistics.resampling import sign_flip_below, sign_flip_bounds, sign_flip_test


def sample(n: int, shift: float = 0.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([n, seed]).normal(shift, 0.01, n)


@pytest.mark.parametrize(
    ("n", "shift", "margin"), [(3, -0.02, 0.005), (8, -0.004, 0.002), (8, 0.01, 0.0), (40, 0.001, 0.1)]
)
def test_one_sided_t_tests_against_a_margin_are_those_of_statsmodels(n, shift, margin):
    data = sample(n, shift)
    for claim, bound, way in (("lower", -margin, "smaller"), ("higher", margin, "larger")):
        other = "larger" if way == "smaller" else "smaller"
        wanted = [DescrStatsW(data).ttest_mean(bound, alternative=one)[1] for one in (way, other)]
        assert claim_p(Claimed(claim, margin, data), t_below) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize(
    ("n", "shift", "margin"), [(3, 0.0, 0.02), (8, 0.004, 0.01), (30, -0.001, 0.005), (6, 0.05, 0.01)]
)
def test_equivalence_is_the_tost_of_statsmodels(n, shift, margin):
    arm, base = sample(n, shift, 1), sample(n, 0.0, 2)
    wanted, lower, upper = ttost_paired(arm, base, -margin, margin)
    found = claim_p(Claimed("equal", margin, arm - base), t_below)
    assert found[0] == pytest.approx(wanted, rel=1e-9)
    beyond = min(1 - lower[1], 1 - upper[1])
    assert found[1] == pytest.approx(min(1.0, 2 * beyond), rel=1e-6)


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_sign_flips_below_are_the_share_of_all_patterns(n):
    data = sample(n, -0.005)
    for bound in (0.0, -0.006, 0.004):
        shifted = data - bound
        sums = np.array([signs @ shifted for signs in product((-1.0, 1.0), repeat=n)])
        assert sign_flip_below(data, bound) == np.mean(sums <= shifted.sum() + 1e-12)
    sides = sign_flip_below(data), sign_flip_below(-data)
    assert sign_flip_test(data).p_value == pytest.approx(min(1.0, 2 * min(sides)))


def test_ties_count_against_the_effect():
    assert sign_flip_below([-0.1, -0.2, -0.3 + 1e-17, 0.0]) == 2 / 16
    assert sign_flip_below([0.0, 0.0, 0.0]) == 1.0
    assert math.isnan(sign_flip_below([0.1, math.nan]))


@pytest.mark.parametrize("alpha", [0.05, 0.2, 1 / 64])
def test_sign_flip_bounds_are_where_the_tests_begin_to_reject(alpha):
    data = sample(7, 0.01)
    low, high = sign_flip_bounds(data, alpha)
    step = 1e-9
    assert sign_flip_below(data, high + step) <= alpha < sign_flip_below(data, high - step)
    assert sign_flip_below(-data, -low + step) <= alpha < sign_flip_below(-data, -low - step)
    assert sign_flip_bounds(sample(4), 0.05) == (-math.inf, math.inf)
    assert sign_flip_bounds(sample(5), 0.05) == (min(sample(5)), max(sample(5)))


@pytest.mark.parametrize("test", ["sign flips", "t"])
def test_intervals_cover_the_mean_as_often_as_they_say(test):
    rng, alpha, repetitions = np.random.default_rng(5), 0.05, 3000
    inside = 0
    for _ in range(repetitions):
        low, high = interval(rng.normal(0.3, 1.0, 8), alpha, test)
        inside += low <= 0.3 <= high
    exact = 1 - 2 * (int(alpha * 2**8) / 2**8 if test == "sign flips" else alpha)
    assert inside / repetitions == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / repetitions))


@pytest.mark.parametrize(
    ("claim", "p", "p_opposite"), [("lower", -0.012, 0.0), ("higher", 0.012, 0.0), ("equal", 0.0, 0.03)]
)
@pytest.mark.parametrize("n", [3, 8])
def test_alone_a_verdict_is_where_the_interval_lies(claim, p, p_opposite, n):
    """Confirmed where the 1 - 2 alpha interval lies inside the claim, refuted where outside (equal: 1 - alpha)."""
    verdicts = set()
    for shift in (p, p_opposite):
        for seed in range(40):
            data, margin = sample(n, shift, seed), 0.006
            found = judge({"one": Claimed(claim, margin, data)}, 0.05)["one"]
            low, high = interval(data, 0.05, found.test)
            wide = interval(data, 0.025, found.test)
            inside = {"lower": high < -margin, "higher": low > margin, "equal": -margin < low and high < margin}[claim]
            outside = {"lower": low > -margin, "higher": high < margin, "equal": wide[0] > margin or wide[1] < -margin}
            wanted = "confirmed" if inside else "refuted" if outside[claim] else "undecided"
            assert (found.verdict, found.test) == (wanted, "sign flips" if n == 8 else "t")
            assert (found.low, found.high) == (low, high)
            verdicts.add(wanted)
    assert verdicts == {"confirmed", "refuted", "undecided"}


@pytest.mark.parametrize(("n", "heavy"), [(3, False), (8, False), (8, True)])
def test_false_confirmations_and_refutations_of_a_family_stay_below_alpha(n, heavy):
    """Four claims on the border between true and false, over differences that share a baseline."""
    rng, alpha, repetitions, margin = np.random.default_rng([n, heavy]), 0.1, 1500, 0.5
    edges = {"lower": -margin, "higher": margin, "equal": margin, "lower by none": 0.0}
    false = {"confirmed": 0, "refuted": 0}
    for _ in range(repetitions):
        noise = rng.standard_t(2, (5, n)) if heavy else rng.normal(size=(5, n))
        family = {
            name: Claimed(name.split()[0], 0.0 if "none" in name else margin, edge + noise[at] - noise[4])
            for at, (name, edge) in enumerate(edges.items())
        }
        verdicts = {one.verdict for one in judge(family, alpha).values()}
        for kind in false:
            false[kind] += kind in verdicts
    for kind, times in false.items():
        assert times / repetitions <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / repetitions), kind
        assert times > 0.01 * repetitions, "a test that never rejects shows nothing"


def test_the_correction_counts_every_member_of_the_family():
    data = np.array([-0.02, -0.021, -0.019, -0.022, -0.02, -0.018])
    alone = judge({"a": Claimed("lower", 0.0, data)}, 0.05)["a"]
    assert (alone.p, alone.p_family, alone.verdict) == (1 / 64, 1 / 64, "confirmed")
    missing = {name: Claimed("lower", 0.0, ()) for name in "bc"}
    found = judge({"a": Claimed("lower", 0.0, data), **missing}, 0.05)
    assert (found["a"].p_family, found["a"].verdict) == (3 / 64, "confirmed")
    assert (found["b"].verdict, found["b"].n) == ("undecided", 0)
    assert math.isnan(found["b"].p_family)
    assert math.isnan(found["b"].mean)
    more = judge({"a": Claimed("lower", 0.0, data), **missing, "d": Claimed("lower", 0.0, (0.1,))}, 0.05)["a"]
    assert more.test == "t", "4 / 64 > 0.05: the sign flips could not reject"
    assert more.verdict == "confirmed"


def test_what_is_too_many_to_enumerate_goes_to_the_t_test():
    assert judge({"a": Claimed("lower", 0.0, sample(21, -0.01))})["a"].test == "t"
    assert judge({"a": Claimed("lower", 0.0, sample(20, -0.01))})["a"].test == "sign flips"


def test_one_seed_and_no_finite_value_leave_a_claim_undecided():
    for data in ((0.1,), (0.1, math.nan), ()):
        found = judge({"a": Claimed("lower", 0.0, data)})["a"]
        assert (found.verdict, math.isnan(found.p), math.isnan(found.low)) == ("undecided", True, True)
    same = judge({"a": Claimed("equal", 0.01, (0.0, 0.0, 0.0)), "b": Claimed("lower", 0.0, (0.0, 0.0, 0.0))})
    assert (same["a"].verdict, same["b"].verdict) == ("confirmed", "undecided")


@pytest.mark.parametrize(("m", "sides", "seeds"), [(28, 2, 11), (1, 2, 6), (1, 1, 5), (3, 1, 6), (28, 1, 10)])
def test_seeds_for_is_where_holm_first_rejects_the_smallest_p(m, sides, seeds):
    assert seeds_for(m, 0.05, sides) == seeds
    for n in (seeds - 1, seeds):
        data = -1.0 - np.arange(n)
        smallest = sign_flip_below(data) if sides == 1 else sign_flip_test(data).p_value
        assert (m * smallest <= 0.05) == (n == seeds)
        assert sides == 2 or deciding_test([n, n + 3], m) == ("sign flips" if n == seeds else "t")


def test_bad_values_are_named():
    with pytest.raises(ValueError, match="m: got 0, give the number of tests"):
        seeds_for(0)
    with pytest.raises(ValueError, match=r"alpha: got 1.5, give a number between 0 and 1"):
        seeds_for(1, 1.5)
    with pytest.raises(ValueError, match=r"alpha: got 0.5, give a number between 0 and 0.5"):
        judge({}, 0.5)
