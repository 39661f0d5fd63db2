"""The published fit digit for digit, scores by their definitions, targets at every lag, and what no
fit could use.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from plkernel.analysis.exponentials import (
    ExponentialSum,
    array_target,
    integer_lags,
    lag_target,
    power_law,
    power_law_target,
    score,
)

LAGS = integer_lags(512)
LAW = power_law(LAGS, 1.15)


def test_scores_by_their_definitions() -> None:
    """Scale changes r0 alone; of a kernel twice too large on the second half Elog is half of ln
    2.
    """
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
    away = np.sum((np.exp(log_kernel) - LAW) ** 2) / np.sum((LAW - LAW.mean()) ** 2)
    assert 0 < away < 1e-3
    assert plain.r_linear == pytest.approx(1 - away, rel=1e-12)


def test_log_kernel_does_not_underflow() -> None:
    """exp(-2e6) is zero in float64; its logarithm is not lost."""
    fast = ExponentialSum((2.0,), (1.0,))
    assert fast.kernel([1e6])[0] == 0.0
    assert fast.log_kernel([1e6])[0] == pytest.approx(-2e6)
    assert ExponentialSum((1.0,), (0.0,)).log_kernel([1.0]).tolist() == [-np.inf]


def test_power_laws_are_known_at_every_real_lag_and_arrays_at_their_own() -> None:
    lags = np.array([1, 1.7, 33.3, 512.0])
    np.testing.assert_allclose(power_law_target(1.15, 512).value(lags), lags**-1.15, rtol=1e-14)
    broken = power_law_target(0.5, 10_000, 1.5, 100)
    lags = np.array([1, 50, 100 - 1e-9, 100, 200, 10_000])
    logs = np.log(broken.value(lags))
    assert (logs[0], logs[2]) == (0, pytest.approx(logs[3], abs=1e-10))
    slopes = np.diff(logs) / np.diff(np.log(lags))
    np.testing.assert_allclose(slopes[[0, 1, 3, 4]], [-0.5, -0.5, -1.5, -1.5], rtol=1e-10)
    assert (power_law_target(1.15, 512).beta, broken.beta) == (1.15, None)
    assert set(broken.judged_lags()) >= {1.0, 100.0, 10_000.0}
    target = array_target([0.5, 0.25, 0.125])
    assert target.value([3, 1]).tolist() == [0.125, 0.5]
    assert target.integer_lags().tolist() == [1, 2, 3]
    for lag in (1.5, 4):
        with pytest.raises(ValueError, match="lags must be among the 3 of target"):
            target.value([lag])


@pytest.mark.parametrize("power", [0.5, 2])
def test_a_target_is_raised_to_a_power(power: float) -> None:
    lags = np.arange(1.0, 201)
    targets = [
        power_law_target(1.2, 200),
        power_law_target(0.5, 200, 1.5, 30),
        array_target(np.exp(-lags / 40)),
        lag_target(lags, 1 / lags, np.full(200, 0.1)),
    ]
    for target in targets:
        np.testing.assert_allclose(
            target.raised(power).value(lags), target.value(lags) ** power, rtol=1e-12
        )
        assert target.raised(1) is target
    assert targets[0].raised(power).beta == pytest.approx(1.2 * power)
    np.testing.assert_allclose(targets[3].raised(power).errors, 0.1 * power)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: power_law_target(0, 512), "beta must be a positive number, got 0"),
        (lambda: power_law_target(float("nan"), 512), "beta must be a positive number, got nan"),
        (lambda: power_law_target(1.15, 2), "max_lag must be finite and at least 3, got 2"),
        (
            lambda: power_law_target(1.15, float("inf")),
            "max_lag must be finite and at least 3, got inf",
        ),
        (lambda: power_law_target(1e-9, 512), "must fall before max_lag 512, got a flat curve"),
        (
            lambda: power_law_target(200, 512),
            "must stay above 1e-300 up to max_lag 512, got 0 there",
        ),
        (lambda: power_law_target(1, 100, -1, 10), "beta_2 must be a positive number, got -1"),
        (
            lambda: power_law_target(1, 100, beta_2=2),
            "beta_2 and break_lag must be given together, got 2 and None",
        ),
        (
            lambda: power_law_target(1, 100, break_lag=10),
            "beta_2 and break_lag must be given together, got None and 10",
        ),
        (
            lambda: power_law_target(1, 100, 2, 100),
            "break_lag must lie between 1 and max_lag 100, got 100",
        ),
        (
            lambda: array_target([1, 0.5]),
            "values must be a vector of three or more numbers, got shape (2,)",
        ),
        (lambda: array_target([1, 0.5, 0]), "values must be positive and finite, got 0 among them"),
        (lambda: array_target([1, 1, 1e-305]), "values must be at least 1e-300"),
        (lambda: array_target([[1, 2, 3]]), "three or more numbers, got shape (1, 3)"),
        (lambda: lag_target([1, 3, 2], [1, 1, 1]), "lags must ascend"),
        (lambda: lag_target([1, 2, 3], [1, 1]), "must be of one length, got shapes (3,), (2,)"),
        (
            lambda: lag_target([1, 2, 3], [1, 1, 1], [1, -1, 1]),
            "errors must be positive and finite, got -1",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("beta", [-1.0, 0.0, np.inf, np.nan])
def test_an_exponent_must_be_positive_and_finite(beta: float) -> None:
    with pytest.raises(ValueError, match=r"^beta must be a positive number"):
        power_law_target(beta, 100)
    with pytest.raises(ValueError, match=r"^beta_2 must be a positive number"):
        power_law_target(1.0, 100, beta, 10)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (([1, 2, 3], [3, 2, 0]), "values must be positive and finite, got 0 among them"),
        (([1, 2, 3], [3, 2, np.inf]), "values must be positive and finite, got inf among them"),
        (([0, 2, 3], [3, 2, 1]), "lags must be positive and finite, got 0 among them"),
        (([1, 2, 3], [3, 2, 1], [0.1, 0.0, 0.1]), "errors must be positive and finite, got 0"),
        (([1, 2, 3], [3, 2, 1e-301]), "values must be at least 1e-300, got 1e-301"),
        (([1, 2], [3, 2]), "lags must be at least 3, got 2"),
        (([1, 3, 3], [3, 2, 1]), "lags must ascend, got 3 before 3; sort them"),
        (([1, 3, 2], [3, 2, 1]), "lags must ascend, got 3 before 2; sort them"),
        (([1, 2, 3], [3, 2]), "must be of one length, got shapes"),
    ],
)
def test_lags_of_a_target_are_named_where_they_cannot_be(arrays: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lag_target(*arrays)


def test_lags_are_spread_in_their_logarithm_with_their_ends() -> None:
    """Chebyshev-Lobatto: (1 - cos(pi i / (n - 1))) / 2 of the way; or evenly; or between."""
    target = power_law_target(1.0, 1000)
    share = np.arange(9) / 8
    chebyshev = (1 - np.cos(np.pi * share)) / 2
    for evenly in (0.0, 0.25, 1.0):
        lags, weights = target.spread_lags(9, evenly)
        expected = np.exp(np.log(1000) * (evenly * share + (1 - evenly) * chebyshev))
        np.testing.assert_allclose(lags, expected, rtol=1e-12)
        assert (lags[0], lags[-1]) == (1.0, 1000.0)
        assert weights.tolist() == [1.0] * 9


def test_a_target_at_some_lags_takes_the_nearest_of_them() -> None:
    known = lag_target([1, 10, 100], [3, 2, 1])
    lags, weights = known.spread_lags(201, 1.0)
    # evenly in the logarithm: the ends have a quarter each
    assert lags.tolist() == [1.0, 10.0, 100.0]
    assert weights.sum() == 201
    np.testing.assert_allclose(weights / 201, [0.25, 0.5, 0.25], atol=1 / 201)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_lag": 2.9}, "max_lag must be finite and at least 3, got 2.9"),
        ({"max_lag": np.inf}, "max_lag must be finite and at least 3, got inf"),
        ({"max_lag": 9, "beta_2": 1.0, "break_lag": 1.0}, "break_lag must lie between 1 and"),
        ({"max_lag": 9, "beta_2": 1.0, "break_lag": 9.0}, "break_lag must lie between 1 and"),
        (
            {"max_lag": 9, "beta_2": 0.0, "break_lag": 3.0},
            "beta_2 must be a positive number, got 0",
        ),
        ({"max_lag": 9, "beta_2": 1.0, "break_lag": 3.0}, None),
        ({"max_lag": 3}, None),
    ],
)
def test_a_power_law_has_a_range_and_a_break_within_it(
    options: dict[str, Any], message: str | None
) -> None:
    if message is None:
        target = power_law_target(0.5, **options)
        assert target.max_lag == options["max_lag"]
        assert target.value(1.0) == 1.0
    else:
        with pytest.raises(ValueError, match=message):
            power_law_target(0.5, **options)


def test_integer_lags_and_judged_lags_lie_within_the_ends() -> None:
    target = power_law_target(0.5, 9.5, 1.0, 3.5)
    assert target.integer_lags().tolist() == list(range(1, 10))
    judged = target.judged_lags()
    assert {1.0, 3.5, 9.5} <= set(judged.tolist())
    assert judged.size == 4096 + 1
    assert (np.diff(judged) > 0).all()
    assert integer_lags(3).tolist() == [1.0, 2.0, 3.0]
    some = lag_target([2, 5, 9], [3, 2, 1])
    assert some.integer_lags().tolist() == some.judged_lags().tolist() == [2.0, 5.0, 9.0]


def test_terms_of_a_hundred_millionth_of_the_largest_are_not_active() -> None:
    found = ExponentialSum((0.1, 0.2, 0.3), (1.0, 1e-8, 1.1e-8)).active()
    assert found.rates == (0.1, 0.3)
