"""The published fit digit for digit, scores by their definitions, targets at every lag, and what no fit could use."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from plkernel.analysis.exponentials import (
    ExponentialSum,
    Target,
    array_target,
    broken_power_law_target,
    closed_form_error,
    curve_target,
    integer_lags,
    lag_target,
    power_law,
    power_law_target,
    score,
    terms_for,
    verdict_target,
)
from plkernel.analysis.fit import fit
from plkernel.analysis.information.curve import DecayCurve
from plkernel.analysis.information.laws import ModelFit, Verdict, fit_power_law

LAGS = integer_lags(512)
LAW = power_law(LAGS, 1.15)
CURVE_LAGS = (1, 2, 4, 8, 16, 32)


def test_the_published_fit() -> None:
    """The figures of EXP-013."""
    published = fit(1.15)
    assert published.active.half_lives().round(1).tolist() == [1.0, 10.0, 10.3, 81.1, 83.5, 2048.0]
    assert published.fastest_share == pytest.approx(0.9364, abs=5e-5)
    best, even = published.optimal_scores, published.uniform_scores
    figures = (best.r0, best.r1, best.r_star, best.r_linear)
    assert figures == pytest.approx((0.9975, 0.9965, 0.9976, 0.9928), abs=5e-5)
    assert (best.max_relative_error, best.worst_lag) == (pytest.approx(0.170, abs=5e-4), 7)
    assert (even.r1, even.r_star) == (pytest.approx(-18.04, abs=5e-3), pytest.approx(0.51, abs=5e-3))
    assert published.uniform_excess == pytest.approx(250.4, abs=0.05)
    whole, real = array_target(LAW), power_law_target(1.15, 512)
    largest = published.optimal.largest_relative_error(whole)
    assert largest == pytest.approx(best.max_relative_error, rel=1e-9)
    assert largest < published.optimal.largest_relative_error(real) < 1.02 * largest


def test_scores_by_their_definitions() -> None:
    """Scale changes r0 alone; of a kernel twice too large on the second half Elog is half of ln 2."""
    log_kernel = np.log(LAW) + np.where(LAGS > 256, np.log(2), 0)
    plain = score(log_kernel, LAW, LAGS)
    assert plain.e_log == pytest.approx(np.log(2) / 2)
    assert plain.max_relative_error == pytest.approx(1.0)
    assert plain.r1 < plain.r_star < 1
    for scale in (1e-3, 1e3):
        scaled = score(log_kernel + np.log(scale), LAW, LAGS)
        for name in ("r1", "r_star", "e_log"):
            assert getattr(scaled, name) == pytest.approx(getattr(plain, name), rel=1e-10)
        assert scaled.r0 < plain.r0


def test_log_kernel_does_not_underflow() -> None:
    """exp(-2e6) is zero in float64; its logarithm is not lost."""
    fast = ExponentialSum((2.0,), (1.0,))
    assert fast.kernel([1e6])[0] == 0.0
    assert fast.log_kernel([1e6])[0] == pytest.approx(-2e6)
    assert ExponentialSum((1.0,), (0.0,)).log_kernel([1.0]).tolist() == [-np.inf]


@pytest.mark.parametrize("tolerance", [0.5, 1e-2, 1e-3, 1e-6])
def test_terms_for_a_tolerance_are_the_fewest(tolerance: float) -> None:
    terms = terms_for(1.15, 2048, tolerance)
    assert closed_form_error(1.15, 2048, terms) <= tolerance
    assert terms == 1 or closed_form_error(1.15, 2048, terms - 1) > tolerance


def curve(noise: float = 0.02) -> DecayCurve:
    """t**-1 with a floor that hides the last lag, and replicates of a known jackknife error."""
    values = 0.5 / np.array(CURVE_LAGS)
    replicates = values[:, None] * (1 + noise * np.array([-1.0, 1.0, -1.0, 1.0]))
    return DecayCurve(
        quantity="information",
        estimator="shuffle",
        unit="byte",
        size=1000,
        symbols=4,
        lags=CURVE_LAGS,
        values=tuple(values.tolist()),
        floor=(0.02,) * len(CURVE_LAGS),
        drift=0.0,
        replicates=tuple(map(tuple, replicates.tolist())),
    )


def test_power_laws_are_known_at_every_real_lag_and_arrays_at_their_own() -> None:
    lags = np.array([1, 1.7, 33.3, 512.0])
    np.testing.assert_allclose(power_law_target(1.15, 512).value(lags), lags**-1.15, rtol=1e-14)
    broken = broken_power_law_target(0.5, 1.5, 100, 10_000)
    lags = np.array([1, 50, 100 - 1e-9, 100, 200, 10_000])
    logs = broken.log_value(lags)
    assert (logs[0], logs[2]) == (0, pytest.approx(logs[3], abs=1e-10))
    slopes = np.diff(logs) / np.diff(np.log(lags))
    np.testing.assert_allclose(slopes[[0, 1, 3, 4]], [-0.5, -0.5, -1.5, -1.5], rtol=1e-10)
    assert (power_law_target(1.15, 512).beta, broken.beta) == (1.15, None)
    assert set(broken.judged_lags()) >= {1.0, 100.0, 10_000.0}
    target = array_target([0.5, 0.25, 0.125])
    assert target.value([3, 1]).tolist() == [0.125, 0.5]
    assert target.integer_lags().tolist() == [1, 2, 3]
    for lag in (1.5, 4):
        with pytest.raises(ValueError, match="known at its own 3 lags only"):
            target.value([lag])


def test_a_curve_ends_where_it_meets_its_floor_and_brings_its_relative_errors() -> None:
    target = curve_target(curve())
    assert target.lags == (1, 2, 4, 8, 16)
    np.testing.assert_allclose(target.values, 0.5 / np.array(target.lags), rtol=1e-12)
    np.testing.assert_allclose(target.errors, 0.02 * np.sqrt(3), rtol=1e-12)
    assert curve_target(curve(), (2, 32)).lags == (2, 4, 8, 16, 32)


def test_spread_lags_are_chebyshev_points_in_the_logarithm() -> None:
    law = power_law_target(1.0, 100)
    lags, counts = law.spread_lags(9)
    np.testing.assert_allclose(np.log(lags) / np.log(100), (1 - np.cos(np.pi * np.arange(9) / 8)) / 2, atol=1e-14)
    assert (lags[0], lags[-1], counts.sum()) == (1, 100, 9)
    np.testing.assert_allclose(np.diff(np.log(law.spread_lags(9, evenly=1.0)[0])), np.log(100) / 8, rtol=1e-12)
    lags, counts = array_target(1 / np.arange(1, 201.0)).spread_lags(50)
    assert set(lags) <= set(range(1, 201))
    assert (lags[0], lags[-1], counts.sum()) == (1, 200, 50)
    assert counts[0] > 1, "several Chebyshev points lie next to lag 1"


@pytest.mark.parametrize("power", [0.5, 2])
def test_a_target_is_raised_to_a_power(power: float) -> None:
    lags = np.arange(1.0, 201)
    targets = [
        power_law_target(1.2, 200),
        broken_power_law_target(0.5, 1.5, 30, 200),
        array_target(np.exp(-lags / 40)),
        lag_target(lags, 1 / lags, np.full(200, 0.1)),
    ]
    for target in targets:
        np.testing.assert_allclose(target.raised(power).value(lags), target.value(lags) ** power, rtol=1e-12)
        assert target.raised(1) is target
    assert targets[0].raised(power).beta == pytest.approx(1.2 * power)
    np.testing.assert_allclose(targets[3].raised(power).errors, 0.1 * power)


def test_a_verdict_becomes_the_shape_it_names() -> None:
    lags = np.arange(1.0, 301)

    def shaped(kind: Any, **parameters: float) -> Target:
        model = ModelFit(kind, {"amplitude": 0.3, **parameters}, 1.0, 5, 5.0, 0.0, 0.5, 0.5)
        return verdict_target(Verdict(kind, "as it is", 1, 100, (model,)), curve(), 300)

    broken = shaped("broken power law", beta_1=0.5, beta_2=1.5, **{"break": 30.0})
    assert broken == broken_power_law_target(0.5, 1.5, 30, 300)
    assert shaped("broken power law", beta_1=0.5, beta_2=1.5, **{"break": 300.0}).beta == 0.5
    np.testing.assert_allclose(shaped("exponential", tau=20.0).value(lags), np.exp(-(lags - 1) / 20))
    stretched = shaped("stretched exponential", tau=20.0, gamma=0.5).value(lags)
    np.testing.assert_allclose(stretched, np.exp(-np.sqrt(lags / 20)) / np.exp(-np.sqrt(1 / 20)))
    assert shaped("exponential", tau=0.2).max_lag == 139, "where it vanishes in float64"
    law = fit_power_law(curve(), (1, 100)).beta
    assert shaped("power law", beta=9.0).beta == law, "the exponent that the sentence states"
    assert shaped("too short") == curve_target(curve())
    with pytest.raises(ValueError, match="as it is, so it has no shape"):
        shaped("none")
    with pytest.raises(ValueError, match="its exponential does not fall"):
        shaped("exponential", tau=-3.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: power_law_target(0, 512), "beta must be a positive number, got 0"),
        (lambda: power_law_target(float("nan"), 512), "beta must be a positive number, got nan"),
        (lambda: power_law_target(1.15, 2), "max_lag must be finite and at least 3, got 2"),
        (lambda: power_law_target(1.15, float("inf")), "max_lag must be finite and at least 3, got inf"),
        (lambda: power_law_target(1e-9, 512), "is flat up to max_lag 512"),
        (lambda: power_law_target(200, 512), "falls below 1e-300 before max_lag 512"),
        (lambda: broken_power_law_target(1, -1, 10, 100), "beta_2 must be a positive number"),
        (lambda: broken_power_law_target(1, 2, 100, 100), "break_lag must lie between 1 and max_lag 100, got 100"),
        (lambda: array_target([1, 0.5]), "'array': 2 lags, at least 3 are needed"),
        (lambda: array_target([1, 0.5, 0]), "values must be positive and finite, got 0 among them"),
        (lambda: array_target([1, float("inf"), 1]), "values must be positive and finite, got inf"),
        (lambda: array_target([1, 1, 1e-305]), "values must be at least 1e-300"),
        (lambda: array_target([[1, 2, 3]]), "one-dimensional, the value at lag 1 first, got shape (1, 3)"),
        (lambda: lag_target([1, 3, 2], [1, 1, 1]), "lags must ascend, got 3 out of order"),
        (lambda: lag_target([0, 1, 2], [1, 1, 1]), "lags must be positive and finite, got 0"),
        (lambda: lag_target([1, 2, 3], [1, 1]), "must be of one length, got shapes (3,), (2,)"),
        (lambda: lag_target([1, 2, 3], [1, 1, 1], [1, -1, 1]), "errors must be positive and finite, got -1"),
        (lambda: curve_target(curve(noise=0.0)), "errors must be positive and finite, got 0"),
        (lambda: terms_for(1.15, 512, 1e-12), "tolerance must be from 1e-09, what float64 can tell, to below 1"),
        (lambda: terms_for(1.15, 512, 1.0), "tolerance must be from 1e-09"),
        (lambda: terms_for(-1.0, 512, 1e-3), "beta must be positive and finite, got -1"),
        (lambda: terms_for(1.15, 1.0, 1e-3), "max_lag must be finite and above 1, got 1"),
    ],
)
def test_bad_input_is_refused_in_one_line(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        make()
    assert "\n" not in str(caught.value)
