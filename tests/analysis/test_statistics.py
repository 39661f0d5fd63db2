"""Intervals against scipy.stats and against simulated repetitions; sentences against the intervals they speak of."""

import math

import numpy as np
import pytest
from scipy import stats

from plkernel.analysis.statistics import (
    critical_value,
    difference_curves,
    mean_interval,
    paired_difference,
    pointwise_band,
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


def test_intervals_of_five_paired_runs_cover_the_true_difference():
    rng = np.random.default_rng(0)
    repetitions, n, truth = 4000, 5, -0.02
    shared = rng.normal(2.3, 0.3, (repetitions, n))  # what a seed does to both arms must cancel
    arm, baseline = (shared + rng.normal(shift, 0.02, shared.shape) for shift in (truth, 0.0))
    found = [paired_difference(dict(enumerate(a)), dict(enumerate(b))) for a, b in zip(arm, baseline, strict=True)]
    coverage = np.mean([difference.low <= truth <= difference.high for difference in found])
    assert 0.93 <= coverage <= 0.97


def test_p_holds_its_level_when_arms_do_not_differ():
    rng = np.random.default_rng(1)
    pairs = rng.normal(2.3, 0.1, (4000, 2, 5))
    found = [paired_difference(dict(enumerate(a)), dict(enumerate(b))).p_value for a, b in pairs]
    assert 0.03 <= np.mean(np.array(found) < 0.05) <= 0.07


def test_a_band_covers_at_each_position_but_a_whole_curve_less_often():
    rng = np.random.default_rng(2)
    at_position, whole = [], []
    for _ in range(400):
        curves = [dict(enumerate(values)) for values in rng.normal(0.0, 1.0, (5, 20))]
        band = pointwise_band(curves)
        inside = (band.low <= 0.0) & (band.high >= 0.0)
        at_position.append(inside.mean())
        whole.append(inside.all())
    assert 0.93 <= np.mean(at_position) <= 0.97
    assert np.mean(whole) < 0.6


def test_a_band_is_the_interval_at_each_position_that_all_curves_have():
    curves = [{0: 1.0, 10: 2.0, 20: 3.0}, {10: 2.5, 20: 2.0, 30: 9.0}, {0: 1.0, 10: 4.0, 20: 2.2}]
    band = pointwise_band(curves)
    assert band.at.tolist() == [10, 20]
    for position, mean, low, high in zip(band.at, band.mean, band.low, band.high, strict=True):
        expected = mean_interval(curve[position] for curve in curves)
        assert (mean, low, high) == pytest.approx((expected.mean, expected.low, expected.high), rel=1e-14)


def test_differences_pair_seeds_and_positions():
    arm = {0: {0: 8.0, 5: 3.0}, 1: {0: 8.0, 5: 2.0, 9: 1.0}, 7: {0: 8.0}}
    baseline = {1: {0: 8.0, 5: 2.5}, 0: {5: 2.0}}
    assert difference_curves(arm, baseline) == {0: {5: 1.0}, 1: {0: 0.0, 5: -0.5}}
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


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="values: got none"):
        mean_interval([])
    with pytest.raises(ValueError, match="curves: got none"):
        pointwise_band([])
    with pytest.raises(ValueError, match=r"0, 1 and 2 have none in common"):
        paired_difference({0: 1.0, 1: 1.0}, {2: 1.0})
    with pytest.raises(ValueError, match=r"confidence: got 95"):
        mean_interval([1.0, 2.0], 95)
