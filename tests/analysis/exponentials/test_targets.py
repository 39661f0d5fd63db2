"""Targets are what they say at every lag, and refuse what no fit could use."""

import json
import re
from typing import Any

import numpy as np
import pytest

from plkernel.analysis.exponentials.targets import (
    Target,
    array_target,
    broken_power_law_target,
    curve_target,
    lag_target,
    power_law_target,
    verdict_target,
)
from plkernel.analysis.information.curve import DecayCurve
from plkernel.analysis.information.laws import ModelFit, Verdict, fit_power_law

LAGS = (1, 2, 4, 8, 16, 32)


def curve(quantity: str = "information", noise: float = 0.02) -> DecayCurve:
    """t**-1 with a floor that hides the last lag, and replicates of a known jackknife error."""
    values = 0.5 / np.array(LAGS)
    replicates = values[:, None] * (1 + noise * np.array([-1.0, 1.0, -1.0, 1.0]))
    return DecayCurve(
        quantity=quantity,  # type: ignore[arg-type]
        estimator="shuffle",
        unit="byte",
        size=1000,
        symbols=4,
        lags=LAGS,
        values=tuple(values.tolist()),
        floor=(0.02,) * len(LAGS),
        drift=0.0,
        replicates=tuple(map(tuple, replicates.tolist())),
    )


def test_a_power_law_is_known_at_every_real_lag() -> None:
    lags = np.array([1, 1.7, 33.3, 512.0])
    np.testing.assert_allclose(power_law_target(1.15, 512).value(lags), lags**-1.15, rtol=1e-14)
    assert power_law_target(1.15, 512).beta == 1.15


def test_a_broken_power_law_is_continuous_and_has_its_two_slopes() -> None:
    target = broken_power_law_target(0.5, 1.5, 100, 10_000)
    lags = np.array([1, 50, 100 - 1e-9, 100, 200, 10_000])
    logs = target.log_value(lags)
    assert logs[0] == 0
    assert logs[2] == pytest.approx(logs[3], abs=1e-10)
    slopes = np.diff(logs) / np.diff(np.log(lags))
    np.testing.assert_allclose(slopes[[0, 1, 3, 4]], [-0.5, -0.5, -1.5, -1.5], rtol=1e-10)
    assert target.beta is None


def test_an_array_is_known_at_its_own_lags_only() -> None:
    target = array_target([0.5, 0.25, 0.125])
    assert target.value([3, 1]).tolist() == [0.125, 0.5]
    assert target.integer_lags().tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="known at its own 3 lags only"):
        target.value([1.5])
    with pytest.raises(ValueError, match="known at its own 3 lags only"):
        target.value([4])


def test_a_curve_ends_where_it_meets_its_floor_and_brings_its_relative_errors() -> None:
    target = curve_target(curve())
    assert target.lags == (1, 2, 4, 8, 16)
    np.testing.assert_allclose(target.values, 0.5 / np.array(target.lags), rtol=1e-12)
    np.testing.assert_allclose(target.errors, 0.02 * np.sqrt(3), rtol=1e-12)
    assert curve_target(curve(), (2, 32)).lags == (2, 4, 8, 16, 32)


def test_the_correlation_exponent_is_half_that_of_information_and_so_are_its_errors() -> None:
    whole, root = curve_target(curve()), curve_target(curve(), correlation_exponent=True)
    np.testing.assert_allclose(root.values, np.sqrt(whole.values), rtol=1e-12)
    np.testing.assert_allclose(root.errors, np.array(whole.errors) / 2, rtol=1e-12)
    with pytest.raises(ValueError, match="needs a curve of information, got one of correlation"):
        curve_target(curve("correlation"), correlation_exponent=True)


def test_a_curve_without_errors_weighs_all_lags_alike_only_when_asked() -> None:
    assert curve_target(curve(noise=0.0), weighted=False).errors is None
    with pytest.raises(ValueError, match="pass weighted=False"):
        curve_target(curve(noise=0.0))


def test_spread_lags_are_chebyshev_points_in_the_logarithm() -> None:
    lags, counts = power_law_target(1.0, 100).spread_lags(9)
    expected = (1 - np.cos(np.pi * np.arange(9) / 8)) / 2
    np.testing.assert_allclose(np.log(lags) / np.log(100), expected, atol=1e-14)
    assert (lags[0], lags[-1], counts.sum()) == (1, 100, 9)
    even, _ = power_law_target(1.0, 100).spread_lags(9, evenly=1.0)
    np.testing.assert_allclose(np.diff(np.log(even)), np.log(100) / 8, rtol=1e-12)


def test_spread_lags_of_an_array_are_the_nearest_of_its_own_and_stand_for_every_point() -> None:
    lags, counts = array_target(1 / np.arange(1, 201.0)).spread_lags(50)
    assert set(lags) <= set(range(1, 201))
    assert (lags[0], lags[-1], counts.sum()) == (1, 200, 50)
    assert counts[0] > 1, "several Chebyshev points lie next to lag 1"


def test_targets_are_judged_at_their_break_and_ends() -> None:
    assert set(broken_power_law_target(0.5, 1.5, 77, 1000).judged_lags()) >= {1.0, 77.0, 1000.0}


@pytest.mark.parametrize(
    "target",
    [power_law_target(1.15, 512), broken_power_law_target(1, 2, 3, 9), array_target([3, 2, 1]), curve_target(curve())],
    ids=lambda target: target.label,
)
def test_json_round_trip(target: Target) -> None:
    assert Target.from_dict(json.loads(json.dumps(target.to_dict()))) == target


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: power_law_target(0, 512), "beta must be positive and finite, got 0"),
        (lambda: power_law_target(float("nan"), 512), "beta must be positive and finite, got nan"),
        (lambda: power_law_target(1.15, 2), "max_lag must be finite and at least 3, got 2"),
        (lambda: power_law_target(1.15, float("inf")), "max_lag must be finite and at least 3, got inf"),
        (lambda: power_law_target(1e-9, 512), "is flat up to max_lag 512"),
        (lambda: power_law_target(200, 512), "falls below 1e-300 before max_lag 512"),
        (lambda: broken_power_law_target(1, -1, 10, 100), "beta_2 must be positive"),
        (lambda: broken_power_law_target(1, 2, 100, 100), "break_lag must lie between 1 and max_lag 100, got 100"),
        (lambda: broken_power_law_target(1, 2, 1, 100), "break_lag must lie between 1 and max_lag 100, got 1"),
        (lambda: array_target([1, 0.5]), "'array': 2 lags, at least 3 are needed"),
        (lambda: array_target([1, 0.5, 0]), "values must be positive and finite, got 0 among them"),
        (lambda: array_target([1, float("inf"), 1]), "values must be positive and finite, got inf"),
        (lambda: array_target([1, 1, 1e-305]), "values must be at least 1e-300"),
        (lambda: array_target([[1, 2, 3]]), "one-dimensional, the value at lag 1 first, got shape (1, 3)"),
        (lambda: lag_target([1, 3, 2], [1, 1, 1]), "lags must ascend, got 3 out of order"),
        (lambda: lag_target([0, 1, 2], [1, 1, 1]), "lags must be positive and finite, got 0"),
        (lambda: lag_target([1, 2, 3], [1, 1]), "must be of one length, got shapes (3,), (2,)"),
        (lambda: lag_target([1, 2, 3], [1, 1, 1], [1, -1, 1]), "errors must be positive and finite, got -1"),
    ],
)
def test_bad_input_is_refused_in_one_line(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        make()
    assert "\n" not in str(caught.value)


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
    np.testing.assert_allclose(broken.value(lags), broken_power_law_target(0.5, 1.5, 30, 300).value(lags))
    assert shaped("broken power law", beta_1=0.5, beta_2=1.5, **{"break": 300.0}).beta == 0.5
    exponential = shaped("exponential", tau=20.0).value(lags)
    np.testing.assert_allclose(exponential, np.exp(-(lags - 1) / 20))
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
    with pytest.raises(ValueError, match="beta_2 must be positive"):
        shaped("broken power law", beta_1=0.5, beta_2=-0.1, **{"break": 30.0})
