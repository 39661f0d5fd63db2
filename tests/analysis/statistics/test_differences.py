"""Intervals against scipy.stats and against simulated repetitions; sentences against the intervals they speak of."""

import math

import numpy as np
import pytest
from scipy import stats

from plkernel.analysis.statistics.differences import (
    critical_value,
    holm,
    mean_interval,
    paired_difference,
    student_interval,
    verdict,
)


@pytest.mark.parametrize("n", [2, 3, 5, 30])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_mean_interval_is_that_of_scipy(n, confidence):
    values = np.random.default_rng(n).normal(2.3, 0.1, n)
    found = mean_interval(values, confidence)
    low, high = stats.t.interval(confidence, n - 1, loc=values.mean(), scale=stats.sem(values))
    assert found.n == n
    assert (found.mean, found.standard_deviation) == pytest.approx((values.mean(), values.std(ddof=1)), rel=1e-14)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-11)


@pytest.mark.parametrize("n", [2, 5, 12])
def test_paired_difference_is_the_paired_t_test_of_scipy(n):
    rng = np.random.default_rng(n)
    baseline = rng.normal(2.3, 0.1, n)
    arm = baseline + rng.normal(-0.01, 0.01, n)
    found = paired_difference(dict(enumerate(arm)), dict(enumerate(baseline)))
    reference = stats.ttest_rel(arm, baseline)
    bounds = reference.confidence_interval(0.95)
    assert found.p_value == pytest.approx(reference.pvalue, rel=1e-11)
    assert (found.low, found.high) == pytest.approx((bounds.low, bounds.high), rel=1e-10)
    assert list(found.per_seed.values()) == pytest.approx(list(arm - baseline), abs=1e-15)


@pytest.mark.parametrize("n", [2, 5, 8])
def test_intervals_of_paired_runs_cover_the_true_difference(n):
    rng = np.random.default_rng(n)
    repetitions, truth = 20_000, -0.02
    shared = rng.normal(2.3, 0.3, (n, repetitions))  # what a seed does to both arms must cancel
    arm, baseline = (shared + rng.normal(shift, 0.02, shared.shape) for shift in (truth, 0.0))
    mean, _, half = student_interval(arm - baseline, 0.95)
    assert np.mean(np.abs(mean - truth) <= half) == pytest.approx(0.95, abs=3 * math.sqrt(0.05 * 0.95 / repetitions))
    one = paired_difference(dict(enumerate(arm[:, 0])), dict(enumerate(baseline[:, 0])))
    assert (one.mean - one.low, one.mean) == pytest.approx((half[0], mean[0]), rel=1e-12)


def test_p_holds_its_level_when_arms_do_not_differ():
    rng = np.random.default_rng(1)
    pairs = rng.normal(2.3, 0.1, (4000, 2, 5))
    found = [paired_difference(dict(enumerate(a)), dict(enumerate(b))).p_value for a, b in pairs]
    assert 0.03 <= np.mean(np.array(found) < 0.05) <= 0.07


def test_only_shared_seeds_are_paired():
    shared = paired_difference({0: 1.0, 1: 2.0, 9: 5.0}, {1: 1.0, 0: 1.0, 8: 0.0})
    assert shared.per_seed == {0: 0.0, 1: 1.0}


def test_one_seed_has_no_interval_and_no_p():
    estimate = mean_interval([2.5])
    assert (estimate.n, estimate.mean) == (1, 2.5)
    difference = paired_difference({3: 2.0}, {3: 2.5})
    unknown = [estimate.low, estimate.high, estimate.standard_deviation, difference.low, difference.p_value]
    assert all(math.isnan(value) for value in unknown)
    assert not difference.contains_zero
    assert verdict(difference) == "one seed: no interval, no claim"


def test_two_seeds_reach_twelve_standard_errors():
    assert critical_value(2) == pytest.approx(stats.t.ppf(0.975, 1), rel=1e-12)
    assert round(critical_value(2), 1) == 12.7


@pytest.mark.parametrize(
    ("differences", "sentence"),
    [
        ([-0.02, -0.01], "the interval contains zero: with 2 seeds these runs cannot tell the difference from none"),
        ([-0.02, -0.021, -0.019], "the interval excludes zero: lower than the baseline over 3 seeds"),
        ([0.02, 0.021, 0.019], "the interval excludes zero: higher than the baseline over 3 seeds"),
        ([0.0, 0.0], "no difference at all in any of 2 seeds: the runs are identical"),
        ([-0.02, math.nan], "a run has no finite value: no interval, no claim"),
    ],
)
def test_the_verdict_says_what_the_interval_says(differences, sentence):
    difference = paired_difference(dict(enumerate(differences)), dict.fromkeys(range(len(differences)), 0.0))
    assert verdict(difference) == sentence
    if "contains" in sentence or "excludes" in sentence:
        assert difference.contains_zero == ("contains" in sentence) == (difference.p_value > 0.05)


P_VALUES = {"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005, "e": 0.5}


def test_holm_multiplies_the_smallest_by_the_most_and_never_falls():
    assert holm(P_VALUES) == pytest.approx({"a": 0.04, "b": 0.09, "c": 0.09, "d": 0.025, "e": 0.5}, rel=1e-14)
    assert list(holm(P_VALUES)) == list(P_VALUES)
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}
    assert holm({"only": 0.04}) == {"only": 0.04}
    assert holm({}) == {}


def test_a_test_that_was_not_made_does_not_count():
    found = holm({"diverged": math.nan, **P_VALUES})
    assert math.isnan(found.pop("diverged"))
    assert found == holm(P_VALUES)


def test_holm_is_that_of_statsmodels_and_stricter_than_the_false_discovery_rate():
    p = np.random.default_rng(0).beta(0.3, 2.0, 12)
    found = np.array(list(holm({str(i): value for i, value in enumerate(p)}).values()))
    assert (stats.false_discovery_control(p) <= found + 1e-15).all()
    assert (found <= np.minimum(1.0, len(p) * p)).all()
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    assert found == pytest.approx(multitest.multipletests(p, method="holm")[1], rel=1e-13)


def test_holm_keeps_the_chance_of_any_false_claim_where_single_tests_do_not():
    """Seven arms that equal the baseline they share, five seeds: some p is below 0.05 in a fifth of the studies."""
    rng = np.random.default_rng(0)
    studies, arms, n = 2000, 7, 5
    runs = rng.normal(size=(studies, arms + 1, n))
    p = stats.ttest_rel(runs[:, 1:], runs[:, :1], axis=2).pvalue
    corrected = [min(holm({str(arm): value for arm, value in enumerate(each)}).values()) for each in p]
    assert np.mean(p.min(axis=1) < 0.05) > 0.18
    assert np.mean(np.array(corrected) < 0.05) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / studies)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="values: got none"):
        mean_interval([])
    with pytest.raises(ValueError, match=r"p_values: b has p = 1\.5"):
        holm({"a": 0.1, "b": 1.5})
    with pytest.raises(ValueError, match=r"0, 1 and 2 have none in common"):
        paired_difference({0: 1.0, 1: 1.0}, {2: 1.0})
    with pytest.raises(ValueError, match=r"confidence: got 95"):
        mean_interval([1.0, 2.0], 95)
