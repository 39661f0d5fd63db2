"""Bootstrap intervals and sign-flip tests against scipy, enumeration by hand, and simulated repetitions."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from plkernel.analysis.statistics.resampling import bootstrap_interval, sign_flip_test


@pytest.mark.parametrize("n", [4, 12])
def test_bootstrap_intervals_are_those_of_scipy(n):
    data = np.random.default_rng(n).exponential(1.0, n)
    found = bootstrap_interval(data, 0.9, resamples=2000, seed=7)
    assert (found.n, found.mean) == (n, data.mean())
    for method, interval in (("percentile", found.percentile), ("BCa", found.bca)):
        rng = np.random.default_rng(7)
        scipy = stats.bootstrap(
            (data,), np.mean, n_resamples=2000, confidence_level=0.9, method=method, random_state=rng
        )
        assert interval == pytest.approx(scipy.confidence_interval, rel=1e-12)


def test_the_same_seed_gives_the_same_interval():
    data = np.random.default_rng(0).normal(size=9)
    assert bootstrap_interval(data, seed=3) == bootstrap_interval(data, seed=3) != bootstrap_interval(data, seed=4)


@pytest.mark.parametrize(("n", "measured"), [(5, 0.84), (10, 0.90)])
@pytest.mark.parametrize("method", ["percentile", "BCa"])
def test_bootstrap_intervals_of_few_differences_cover_too_little(n, measured, method):
    """Why it is not the default: the t interval covers 0.95. Rows through scipy, whose intervals these are."""
    data = np.random.default_rng(n).normal(size=(2000, n))
    hits = []
    for rows in np.split(data, 10):
        rng = np.random.default_rng(0)
        found = stats.bootstrap((rows,), np.mean, axis=1, n_resamples=500, method=method, random_state=rng)
        hits.append((found.confidence_interval.low <= 0.0) & (found.confidence_interval.high >= 0.0))
    assert np.mean(hits) == pytest.approx(measured, abs=0.025)


def test_no_spread_and_one_difference():
    same = bootstrap_interval([0.25, 0.25, 0.25])
    assert same.percentile == same.bca == (0.25, 0.25)
    assert all(math.isnan(bound) for bound in (*bootstrap_interval([0.25]).percentile, *bootstrap_interval([0.25]).bca))


def every_sign(data):
    """p by the definition, over all 2**n patterns."""
    sums = [abs(sum(s * d for s, d in zip(signs, data, strict=True))) for signs in product((1, -1), repeat=len(data))]
    return np.mean([total >= abs(sum(data)) - 1e-12 for total in sums])


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_sign_flip_p_is_the_share_of_all_patterns_and_that_of_scipy(n):
    data = np.random.default_rng(n).normal(0.7, 1.0, n)
    found = sign_flip_test(data)
    assert found.exact
    assert found.p_value == every_sign(data)
    if n > 1:
        scipy = stats.permutation_test((data, np.zeros(n)), lambda x, y: np.mean(x - y), permutation_type="samples")
        assert found.p_value == pytest.approx(scipy.pvalue, abs=1e-12)


def test_the_smallest_p_is_reached_by_differences_of_one_sign_and_not_undercut():
    assert sign_flip_test([1.0, 2.0, 3.0, 4.0, 5.0]) == (0.0625, 0.0625, True)
    assert sign_flip_test([-1.0] * 8) == (2 / 2**8, 2 / 2**8, True)
    many = sign_flip_test(np.full(40, 0.3), resamples=999)
    assert many == (0.001, 0.001, False)


def test_equal_sums_count_whatever_their_rounding():
    assert 0.1 + 0.2 - 0.3 != 0.0
    assert sign_flip_test([0.1, 0.2, -0.3]).p_value == 1.0
    rounded = [2.3001 - 2.3, 2.3002 - 2.3, 2.3003 - 2.3, 2.2994 - 2.3]  # 1, 2, 3 and -6 in units of 0.0001
    assert sign_flip_test(rounded).p_value == every_sign([1, 2, 3, -6]) == 1.0
    assert sign_flip_test([0.7, 0.1, -0.2]).p_value == every_sign([7, 1, -2])
    assert sign_flip_test([0.0, 0.0, 0.0]).p_value == 1.0


def test_sampled_patterns_agree_with_all_of_them():
    data = np.random.default_rng(0).normal(0.3, 1.0, 17)
    sampled = sign_flip_test(data)
    sums = np.zeros(1)
    for value in data:
        sums = np.concatenate([sums + value, sums - value])
    exact = np.mean(np.abs(sums) >= abs(data.sum()) - 1e-12)
    assert not sampled.exact
    assert sampled.p_value == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 99_999))


@pytest.mark.parametrize("n", [6, pytest.param(8, marks=pytest.mark.slow), pytest.param(10, marks=pytest.mark.slow)])
def test_the_sign_flip_test_holds_its_level_and_uses_what_n_allows(n):
    """Rejections at 0.05 are as frequent as the largest p below it allows: 2 / 64 at n = 6, 12 / 256 at n = 8."""
    repetitions = 4000
    rng = np.random.default_rng(n)
    for data in (rng.normal(size=(repetitions, n)), rng.standard_t(2, size=(repetitions, n))):
        rejected = np.mean([sign_flip_test(row).p_value <= 0.05 for row in data])
        attainable = 2 * math.floor(0.05 * 2**n / 2) / 2**n
        assert rejected == pytest.approx(attainable, abs=4 * math.sqrt(0.05 * 0.95 / repetitions))
        assert rejected <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / repetitions)


def test_five_seeds_never_reject_at_five_percent():
    data = np.random.default_rng(5).normal(3.0, 1.0, (200, 5))
    assert min(sign_flip_test(row).p_value for row in data) == 0.0625


def test_a_run_that_diverged_gives_no_p():
    found = sign_flip_test([1.0, math.nan, 2.0])
    assert math.isnan(found.p_value)
    assert found.smallest_p == 0.25


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="differences: got none"):
        sign_flip_test([])
    with pytest.raises(ValueError, match="resamples: got 0"):
        sign_flip_test([1.0], resamples=0)
    with pytest.raises(ValueError, match="differences: one is not finite"):
        bootstrap_interval([1.0, math.inf])
    with pytest.raises(ValueError, match="confidence: got 95"):
        bootstrap_interval([1.0, 2.0], 95)
    with pytest.raises(ValueError, match="resamples: got 0"):
        bootstrap_interval([1.0, 2.0], resamples=0)
