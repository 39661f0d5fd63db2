"""Statistics against scipy, statsmodels, enumeration, by hand, and by simulation."""

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from plkernel.results import statistics as ours

nan = math.nan


def sample(n, shift=0.0, seed=0):
    return np.random.default_rng([n, seed]).normal(shift, 0.01, n)


@pytest.mark.parametrize("n", [2, 5, 30])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_means_and_differences_are_those_of_scipy(n, confidence):
    arm, base = sample(n, 0.004, 1), sample(n, 0.0, 2)
    test = stats.ttest_rel(arm, base)
    difference = ours.paired_difference(dict(enumerate(arm)), dict(enumerate(base)), confidence)
    bounds = test.confidence_interval(confidence)
    assert (difference.p_value, difference.low, difference.high) == pytest.approx(
        (test.pvalue, *bounds), rel=1e-9
    )


def test_seeds_are_paired_and_degenerate_samples_have_no_interval():
    assert ours.paired_difference({3: 2.0, 1: 1.5, 9: 7.0}, {1: 1.0, 3: 1.0, 4: 5.0}).per_seed == {
        1: 0.5,
        3: 1.0,
    }
    for values, p in (
        ([0.1], nan),
        ([0.0, 0.0], nan),
        ([0.25, 0.25], 0.5),
        ([0.25] * 6, 1 / 32),
        ([0.1, nan], nan),
        ([], nan),
    ):
        one = ours.paired_difference(
            dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0)
        )
        assert one.p_value == pytest.approx(p, nan_ok=True)
        assert math.isnan(ours.detectable_difference(one.standard_deviation, len(values)))
        assert math.isnan(one.low) == (math.isnan(sum(values)) or len(values) < 2)


def test_losses_rounded_to_two_places_have_no_spread_that_a_test_could_use():
    """Both differences are 0.10, and apart by rounding alone: two seeds tell nothing of it."""
    one = ours.paired_difference({0: 1.23, 1: 2.34}, {0: 1.13, 1: 2.24})
    assert one.standard_deviation > 0
    assert one.p_value == 0.5


def test_holm_is_that_of_statsmodels_and_keeps_nan_out_of_the_count():
    p = dict(zip("abcdef", np.random.default_rng(0).uniform(0, 0.2, 6).tolist(), strict=True))
    wanted = multipletests([*p.values()], method="holm")[1]
    assert [*ours.holm(p).values()] == pytest.approx(wanted.tolist(), rel=1e-12)
    assert ours.holm({**p, "z": nan}) == {**ours.holm(p), "z": pytest.approx(nan, nan_ok=True)}


@pytest.mark.parametrize("n", [2, 5, 20])
def test_the_detectable_difference_is_that_of_statsmodels(n):
    """The noncentral t of older scipy is right to 7e-6."""
    wanted = TTestPower().solve_power(effect_size=None, nobs=n, alpha=0.05, power=0.8)
    assert ours.detectable_difference(0.004, n) == pytest.approx(0.004 * wanted, rel=2e-5)


# Curves


def test_bands_pair_seeds_and_positions():
    arm = {0: {0: 8.0, 5: 3.0}, 1: {0: 8.0, 5: 2.0, 9: 1.0}, 7: {0: 8.0}}
    assert ours.difference_curves(arm, {1: {0: 8.0, 5: 2.5}, 0: {5: 2.0}}) == {
        0: {5: 1.0},
        1: {0: 0.0, 5: -0.5},
    }
    band = ours.pointwise_band(
        [{0: 1.0, 10: 2.0, 20: 3.0}, {10: 2.5, 20: 2.0, 30: 9.0}, {0: 1.0, 10: 4.0, 20: 2.2}]
    )
    wanted = ours.mean_interval([2.0, 2.5, 4.0])
    assert band.at.tolist() == [10, 20]
    assert (band.mean[0], band.low[0], band.high[0]) == pytest.approx(
        (wanted.mean, wanted.low, wanted.high)
    )
    assert np.isnan(ours.pointwise_band([{0: 1.0, 5: 2.0}]).low).all()


def test_the_magnitude_of_a_lead_is_the_difference_taken_the_other_way_round():
    worse = dict(enumerate(sample(5, 0.02, 1)))
    better = dict(enumerate(sample(5, 0.0, 2)))
    behind = ours.paired_difference(worse, better)
    ahead = ours.paired_difference(better, worse)
    assert ahead.mean < 0 < behind.mean
    assert ours.magnitude(ahead) == behind
    assert ours.magnitude(behind) == behind


def test_a_curve_reaches_a_loss_between_two_of_its_points_or_never():
    curve = {0: 9.0, 100: 3.0, 400: 2.0, 1600: 2.2}
    assert ours.reached(curve, 2.5) == pytest.approx(
        200.0
    )  # half of the fall, half of the way from ln 100 to ln 400
    assert [ours.reached(curve, loss) for loss in (2.0, 3.0, 4.0)] == pytest.approx(
        [400.0, 100.0, 100.0]
    )
    assert ours.reached(curve, 1.9) == math.inf


@pytest.mark.parametrize("power", [0.06, 0.2, 0.5, 0.999])
@pytest.mark.parametrize("n", [2, 5, 40])
def test_the_detectable_difference_has_the_power_that_is_asked_for(n, power):
    """Also a small one, whose difference is below the standard error."""
    sd = 0.3
    found = ours.detectable_difference(sd, n, power)
    shift = found * math.sqrt(n) / sd
    t = stats.t.ppf(0.975, n - 1)
    both = stats.nct.sf(t, n - 1, shift) + np.nan_to_num(stats.nct.cdf(-t, n - 1, shift))
    # scipy's noncentral t is good to eight digits
    assert both == pytest.approx(power, abs=1e-7)
    assert ours.detectable_difference(2 * sd, n, power) == pytest.approx(2 * found, rel=1e-9)


@pytest.mark.parametrize(("sd", "n"), [(0.1, 1), (0.0, 5), (-0.1, 5), (math.inf, 5), (nan, 5)])
def test_without_a_spread_no_difference_is_detectable(sd, n):
    assert math.isnan(ours.detectable_difference(sd, n))


def test_an_empty_sample_has_nothing():
    found = ours.mean_interval([])
    assert found.n == 0
    assert all(map(math.isnan, list(vars(found).values())[1:]))


def test_differences_are_at_the_seeds_and_positions_of_both():
    own = {1: {10: 5.0, 20: 4.0}, 2: {10: 5.0}}
    base = {1: {20: 3.5, 30: 1.0}, 3: {10: 1.0}}
    assert ours.difference_curves(own, base) == {1: {20: 0.5}}


def test_the_position_is_where_the_line_in_its_logarithm_meets_the_loss():
    curve = {0: 9.0, 100: 4.0, 400: 2.0}
    assert ours.reached(curve, 3.0) == pytest.approx(200.0)
    assert ours.reached(curve, 2.0) == pytest.approx(400.0)
    assert ours.reached(curve, 4.0) == pytest.approx(100.0)
    assert ours.reached(curve, 5.0) == pytest.approx(100.0), "the first position there is"
    assert ours.reached(curve, 1.9) == math.inf


def test_a_band_is_the_t_interval_at_each_common_position():
    curves = [{1: 1.0, 2: 5.0, 3: 9.0}, {2: 7.0, 3: 9.0}]
    band = ours.pointwise_band(curves)
    one = ours.mean_interval([5.0, 7.0])
    assert band.at.tolist() == [2, 3]
    assert (band.mean[0], band.low[0], band.high[0]) == pytest.approx((6.0, one.low, one.high))
    assert (band.low[1], band.high[1]) == (9.0, 9.0)
    alone = ours.pointwise_band(curves[1:])
    assert np.isnan([alone.low, alone.high]).all()
