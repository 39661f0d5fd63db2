"""Power, effects and their bounds against scipy, statsmodels and simulated studies."""

import math

import numpy as np
import pytest
from scipy import stats

from plkernel.analysis.statistics.differences import paired_difference
from plkernel.analysis.statistics.power import (
    detectable_difference,
    hedges_correction,
    power_of,
    sd_upper,
    sensitivity,
    standardised_effect,
)

TOLERANCE = 2e-5
"""The noncentral t of scipy 1.13 is right to 7e-6, that of scipy 1.17 to 7e-14."""


def paired(values):
    return paired_difference(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0))


def integrated_power(shift, n, alpha):
    """P(|Z + shift| > c W), Z normal and W**2 chi-square over its n - 1 degrees of freedom, integrated over W."""
    beyond, w = stats.t.ppf(1 - alpha / 2, n - 1), stats.chi(n - 1, scale=1 / math.sqrt(n - 1))
    turn = (shift + np.linspace(-10.0, 10.0, 11)) / beyond  # where the second factor falls from 1 to 0
    spread = [w.ppf(np.geomspace(1e-9, 0.9, 30)), w.isf(np.geomspace(0.09, 1e-18, 30))]
    edges = np.unique(np.concatenate([[0.0], *spread, turn[turn > 0]]))
    nodes, weights = np.polynomial.legendre.leggauss(30)
    middle, half = (edges[1:, None] + edges[:-1, None]) / 2, np.diff(edges)[:, None] / 2
    x = middle + half * nodes
    reject = stats.norm.sf(beyond * x - shift) + stats.norm.cdf(-beyond * x - shift)
    return float((half * weights * w.pdf(x) * reject).sum())


@pytest.mark.parametrize("n", [2, 3, 5, 8, 12, 50])
@pytest.mark.parametrize("alpha", [0.05, 0.001])
def test_power_is_that_of_the_noncentral_t(n, alpha):
    for shift in (0.0, 1.0, 2.5, 3.7, 8.0, 8.4, 10.6, 44.0666743, 62.29973732, 300.0):
        found = power_of(-shift / math.sqrt(n) * 0.003, 0.003, n, alpha)
        assert found == pytest.approx(integrated_power(shift, n, alpha), rel=TOLERANCE)


# statsmodels 0.15.0: TTestPower().solve_power(effect_size=None, nobs=n, alpha=0.05, power=0.8)
DETECTABLE = {2: 11.54989, 3: 3.2640436, 5: 1.6819971, 8: 1.1560353, 20: 0.66044165}


@pytest.mark.parametrize("n", DETECTABLE)
def test_the_detectable_difference_is_that_of_statsmodels(n):
    assert detectable_difference(1.0, n) == pytest.approx(DETECTABLE[n], rel=TOLERANCE)
    assert detectable_difference(0.004, n) == pytest.approx(0.004 * DETECTABLE[n], rel=TOLERANCE)


@pytest.mark.parametrize("n", [2, 5, 12])
@pytest.mark.parametrize(("power", "alpha"), [(0.8, 0.05), (0.95, 0.01), (0.06, 0.05), (0.3, 0.2)])
def test_power_and_detectable_difference_are_inverses(n, power, alpha):
    difference = detectable_difference(0.01, n, power, alpha)
    assert power_of(difference, 0.01, n, alpha) == pytest.approx(power, abs=1e-9)


def test_an_independent_package_agrees():
    power = pytest.importorskip("statsmodels.stats.power").TTestPower()
    for n, difference in DETECTABLE.items():
        assert power.solve_power(effect_size=None, nobs=n, alpha=0.05, power=0.8) == pytest.approx(
            difference, rel=TOLERANCE
        )
    for size in (0.3, 0.8, 2.0):
        assert power_of(size, 1.0, 5) == pytest.approx(power.power(size, nobs=5, alpha=0.05), rel=TOLERANCE)


@pytest.mark.parametrize("n", [2, 5, 8])
def test_simulated_studies_find_a_difference_as_often_as_predicted(n):
    repetitions, sd = 20_000, 0.004
    difference = detectable_difference(sd, n)
    runs = np.random.default_rng(n).normal(difference, sd, (repetitions, n))
    found = np.mean(stats.ttest_1samp(runs, 0.0, axis=1).pvalue < 0.05)
    assert found == pytest.approx(0.8, abs=3 * math.sqrt(0.8 * 0.2 / repetitions))


def test_the_upper_bound_of_the_spread_lies_above_it_as_often_as_it_says():
    repetitions, n = 20_000, 5
    spreads = np.random.default_rng(0).normal(size=(repetitions, n)).std(axis=1, ddof=1)
    above = np.mean(spreads * sd_upper(1.0, n, 0.9) >= 1.0)
    assert above == pytest.approx(0.9, abs=3 * math.sqrt(0.9 * 0.1 / repetitions))
    assert sd_upper(0.3, 8) == pytest.approx(0.3 * math.sqrt(7 / stats.chi2.ppf(0.05, 7)), rel=1e-12)
    assert [round(sd_upper(1.0, n), 1) for n in (2, 5, 8)] == [15.9, 2.4, 1.8]


def test_an_effect_and_its_interval_are_those_of_the_noncentral_t():
    values = [0.3, 0.5, 0.1, 0.4, -0.1]
    effect = standardised_effect(paired(values))
    t = stats.ttest_1samp(values, 0.0).statistic
    assert effect.d_z == pytest.approx(np.mean(values) / np.std(values, ddof=1), rel=1e-14)
    assert stats.nct.sf(t, 4, effect.low * math.sqrt(5)) == pytest.approx(0.025, rel=TOLERANCE)
    assert stats.nct.cdf(t, 4, effect.high * math.sqrt(5)) == pytest.approx(0.025, rel=TOLERANCE)
    mirrored = standardised_effect(paired([-value for value in values]))
    assert (mirrored.d_z, mirrored.low, mirrored.high) == pytest.approx((-effect.d_z, -effect.high, -effect.low))


@pytest.mark.parametrize("n", [2, 5])
def test_the_interval_of_an_effect_covers_it_and_excludes_zero_with_the_t_interval(n):
    repetitions, true = 1500, 0.8
    found = [paired(values) for values in np.random.default_rng(n).normal(true, 1.0, (repetitions, n))]
    effects = [standardised_effect(difference) for difference in found]
    coverage = np.mean([effect.low <= true <= effect.high for effect in effects])
    assert coverage == pytest.approx(0.95, abs=3 * math.sqrt(0.05 * 0.95 / repetitions))
    for difference, effect in zip(found, effects, strict=True):
        assert difference.contains_zero == (effect.low <= 0.0 <= effect.high)


def test_hedges_correction_removes_the_bias_of_small_samples():
    n, true = 5, 1.2
    values = np.random.default_rng(0).normal(true, 1.0, (200_000, n))
    d_z = values.mean(axis=1) / values.std(axis=1, ddof=1)
    error = 3 * d_z.std() / math.sqrt(len(d_z))
    assert abs(hedges_correction(n) * d_z.mean() - true) < error < abs(d_z.mean() - true)
    assert [round(hedges_correction(n), 4) for n in (3, 5, 8)] == [0.5642, 0.7979, 0.8882]
    assert hedges_correction(5) == pytest.approx(math.sqrt(2 / math.pi), rel=1e-12)  # v = 4: 1 / (sqrt(2) Gamma(3/2))


def test_no_spread_gives_no_effect():
    for values in ([0.1], [0.0, 0.0], [0.25, 0.25], [0.1, math.nan]):
        effect = standardised_effect(paired(values))
        assert all(math.isnan(value) for value in (effect.d_z, effect.low, effect.high, effect.hedges_g))
    two = standardised_effect(paired([0.1, 0.2]))
    assert math.isnan(two.hedges_g)
    assert two.low < two.d_z < two.high


def test_the_sentence_says_how_small_a_difference_could_have_been_seen():
    difference = paired([0.005 * value for value in (-1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0)])
    sd = difference.standard_deviation
    assert detectable_difference(sd, 8) == pytest.approx(0.0062, abs=0.00005)
    assert sensitivity(difference) == (
        "with 8 seeds and this spread a difference of 0.0062 or more is found 8 times in 10 "
        "(of 0.011 or more if the true spread is at its 95 % upper bound)"
    )
    assert "9.5 times in 10" in sensitivity(difference, power=0.95)
    assert sensitivity(paired([0.1])).startswith("no spread to judge by")
    assert sensitivity(paired([0.1, math.nan])).startswith("no spread to judge by")
    assert sensitivity(paired([0.0, 0.0])).startswith("no spread in 2 seeds")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: power_of(0.1, 1.0, 1), "n: got 1"),
        (lambda: power_of(0.1, 0.0, 5), "sd: got 0.0"),
        (lambda: power_of(math.nan, 1.0, 5), "difference: got nan"),
        (lambda: power_of(0.1, 1.0, 5, alpha=5), "alpha: got 5"),
        (lambda: detectable_difference(math.nan, 5), "sd: got nan"),
        (lambda: detectable_difference(1.0, 5, power=0.05), "power: got 0.05"),
        (lambda: sd_upper(1.0, 5, confidence=95), "confidence: got 95"),
        (lambda: sd_upper(1.0, 1), "n: got 1"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
