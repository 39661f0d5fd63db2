"""The best K exponentials: as good as stated, certified to be the best, the same every time, and refused beyond."""

import re
import subprocess
import sys

import numpy as np
import pytest
from scipy.optimize import linprog

from plkernel.analysis.exponentials.fits import quadrature
from plkernel.analysis.exponentials.free_terms import judged, least_squares_terms
from plkernel.analysis.exponentials.minimax import LEVEL_RATIO, certificate, minimax
from plkernel.analysis.exponentials.sums import ExponentialSum, closed_form_error, most_terms
from plkernel.analysis.exponentials.targets import (
    Target,
    array_target,
    broken_power_law_target,
    lag_target,
    power_law_target,
)

# The least largest relative error for t**-1.15 on [1, T], to two or three digits.
LEAST_ERROR = {
    512: {4: 5.1e-2, 6: 4.9e-3, 8: 4.4e-4, 10: 3.8e-5, 12: 3.2e-6, 16: 2.1e-8},
    2048: {4: 1.07e-1, 6: 1.5e-2, 8: 2.0e-3, 10: 2.6e-4, 12: 3.3e-5, 16: 4.9e-7},
    65536: {4: 3.2e-1, 6: 8.2e-2, 8: 2.0e-2, 10: 4.8e-3, 12: 1.1e-3, 16: 5.5e-5},
    1_000_000: {4: 5.1e-1, 6: 1.8e-1, 8: 5.7e-2, 10: 1.8e-2, 12: 5.5e-3, 16: 4.9e-4},
}
FAST = {(512, 4), (512, 16), (2048, 6), (65536, 10), (1_000_000, 4), (1_000_000, 12)}
ENTRIES = [
    pytest.param(max_lag, terms, error, marks=() if (max_lag, terms) in FAST else pytest.mark.slow)
    for max_lag, row in LEAST_ERROR.items()
    for terms, error in row.items()
]
# Ratio of the least error to the closed form, by exponent, from two terms on.
RATIOS = {0.5: (0.85, 1.05), 0.87: (0.6, 1.1), 1.0: (0.6, 1.1), 1.24: (0.6, 1.1), 1.5: (0.55, 1.15), 2.0: (0.3, 1.15)}


def least_of_any_number(target: Target, rates: np.ndarray, points: int = 400) -> float:
    """The largest relative error of the best positive weights on `rates`, by linear programming."""
    lags = np.union1d(target.spread_lags(points)[0], target.lags)
    terms = np.exp(-np.outer(lags, rates)) / target.value(lags)[:, None]
    terms /= terms.max(axis=0)
    level = -np.ones((lags.size, 1))
    found = linprog(
        np.append(np.zeros(rates.size), 1.0),
        A_ub=np.block([[terms, level], [-terms, level]]),
        b_ub=np.concatenate([np.ones(lags.size), -np.ones(lags.size)]),
    )
    return float(found.fun)


@pytest.mark.parametrize(("max_lag", "terms", "error"), ENTRIES)
def test_least_error_is_reached_and_certified(max_lag: int, terms: int, error: float) -> None:
    target = power_law_target(1.15, max_lag)
    kernel = minimax(target, terms)
    assert kernel.largest_relative_error(target) <= 1.02 * error
    found = certificate(kernel, target)
    assert found.alternations == found.needed == 2 * terms + 1
    assert found.ratio > 0.999


@pytest.mark.parametrize(
    ("beta", "max_lag", "terms", "error"),
    [
        (2.7, 1e7, 5, 0.8682),
        (2.7, 1e7, 8, 0.3798),
        (5.0, 65536, 2, 0.999998),
        (8.0, 1e12, 20, 0.55210),  # Newton's method arrives from parts of the way only
        pytest.param(2.7, 1e12, 20, 0.08792, marks=pytest.mark.slow),
        (0.05, 16, 5, 7.847e-7),  # least squares end early, in a valley
        (5.0, 3, 6, 5.68e-8),
    ],
)
def test_steep_and_long_laws_and_short_ones_of_many_terms_are_level(
    beta: float, max_lag: float, terms: int, error: float
) -> None:
    target = power_law_target(beta, max_lag)
    found = certificate(minimax(target, terms), target)
    assert found.level
    assert found.largest == pytest.approx(error, rel=1e-3)


def test_a_sum_that_is_not_level_says_so() -> None:
    """One that float64 cannot tell from its least squares, and a kink, where the best errors need not alternate."""
    cases = [(power_law_target(8.0, 3), 8), (broken_power_law_target(1.5, 0.5, 50, 2048), 6)]
    for target, terms in cases:
        found = certificate(minimax(target, terms), target)
        assert not found.level
        assert found.to_dict()["level"] is False
        assert found.ratio < LEVEL_RATIO


@pytest.mark.parametrize(("max_lag", "terms", "error"), ENTRIES)
def test_least_squares_alone_are_near(max_lag: int, terms: int, error: float) -> None:
    target = power_law_target(1.15, max_lag)
    assert error * 1.02 < minimax(target, terms, exchanges=0).largest_relative_error(target) <= 1.25 * error


def test_the_bound_of_an_unlevel_sum_lies_below_the_least_error() -> None:
    """De la Vallee Poussin: smallest alternating extremum <= least error <= largest error, for any sum of K terms."""
    target = power_law_target(1.15, 2048)
    least = certificate(minimax(target, 6), target).largest
    for other in (minimax(target, 6, exchanges=0), minimax(target, 6, exchanges=1), least_squares_terms(target, 6)):
        found = certificate(other, target)
        assert 0 < found.smallest < least < found.largest


def test_certificate_tells_a_sum_that_is_not_the_best() -> None:
    target = power_law_target(1.15, 512)
    best = minimax(target, 6)
    scaled = ExponentialSum(best.rates, tuple(1.001 * w for w in best.weights))
    assert certificate(scaled, target).ratio < 0.7
    assert certificate(quadrature(target, 6), target).ratio < 0.7
    shifted = ExponentialSum(best.rates, tuple(2 * w for w in best.weights))
    assert certificate(shifted, target).alternations == 1
    assert certificate(shifted, target).smallest == 0


def test_no_other_weights_do_better_on_the_same_rates() -> None:
    target = power_law_target(0.87, 2048)
    kernel = minimax(target, 5)
    rates = np.array(kernel.rates)
    assert least_of_any_number(target, rates) == pytest.approx(kernel.largest_relative_error(target), rel=2e-3)


def test_derivatives_are_those_of_the_errors() -> None:
    lags = judged(power_law_target(1.15, 100)).at(np.arange(0, 4096, 100))
    parameters = np.array([0.3, -1.0, -4.0, 0.1, -1.0, -4.5])
    for index, column in enumerate(lags.jacobian(parameters).T):
        step = np.eye(6)[index] * 1e-5
        difference = (lags.errors(parameters + step) - lags.errors(parameters - step)) / 2e-5
        np.testing.assert_allclose(column, difference, rtol=1e-7, atol=1e-10)


CODE = """
from plkernel.analysis.exponentials.minimax import minimax
from plkernel.analysis.exponentials.targets import broken_power_law_target, power_law_target
for target, terms in ((power_law_target(1.15, 2048), 10), (broken_power_law_target(0.5, 1.5, 50, 2048), 4)):
    kernel = minimax(target, terms)
    print(*(x.hex() for x in kernel.rates + kernel.weights))
"""


def test_same_bits_in_a_fresh_process(capsys: pytest.CaptureFixture[str]) -> None:
    exec(CODE, {})
    printed = capsys.readouterr().out.splitlines()
    fresh = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout.splitlines()
    assert printed == fresh


@pytest.mark.parametrize(("beta", "max_lag"), [(1.15, 512), (0.5, 16384), (1.15, 2048), (0.87, 2048)])
def test_the_largest_number_of_terms_works_and_one_more_is_refused(beta: float, max_lag: int) -> None:
    target, most = power_law_target(beta, max_lag), most_terms(beta, max_lag)
    assert certificate(minimax(target, most), target).ratio > 0.99
    with pytest.raises(ValueError, match=f"up to lag {max_lag} supports at most {most}, where its error reaches 1e-09"):
        minimax(target, most + 1)


def test_a_sum_of_exponentials_is_found_again_and_supports_no_more_terms() -> None:
    lags = np.arange(1, 201)
    target = array_target(0.7 * np.exp(-lags / 3) + 0.3 * np.exp(-lags / 70))
    kernel = minimax(target, 2)
    np.testing.assert_allclose(kernel.rates, [1 / 3, 1 / 70], rtol=1e-9)
    np.testing.assert_allclose(kernel.weights, [0.7, 0.3], rtol=1e-9)
    with pytest.raises(ValueError, match="terms 3: array supports at most 2"):
        minimax(target, 3)


@pytest.mark.parametrize("terms", [1, 2, 4, 6, 8, 10])
def test_whole_lags_alone_are_approached_more_closely_than_all_real_ones(terms: int) -> None:
    target, law = array_target(np.arange(1, 513) ** -1.15), power_law_target(1.15, 512)
    found = certificate(minimax(target, terms), target)
    assert found.ratio > 0.999
    assert found.largest <= minimax(law, terms).largest_relative_error(law)


@pytest.mark.parametrize(("betas", "terms"), [((0.5, 1.5), 4), ((1.5, 0.5), 5)])
def test_a_broken_power_law_is_approached_as_nearly_as_any_number_of_terms_can(
    betas: tuple[float, float], terms: int
) -> None:
    target = broken_power_law_target(*betas, 50, 2048)
    bound = least_of_any_number(target, np.geomspace(10, 1e-2 / 2048, 200), points=200)
    assert minimax(target, terms).largest_relative_error(target) < 1.01 * bound
    assert minimax(target, terms - 2).largest_relative_error(target) > 2 * bound


def test_scale_and_unit_of_time_do_not_matter() -> None:
    lags = np.geomspace(1, 300, 60)
    values = 1 / (1 + lags) ** 1.3
    plain = minimax(lag_target(lags, values), 5)
    scaled = minimax(lag_target(1000 * lags, 1e-6 * values), 5)
    np.testing.assert_allclose(1000 * np.array(scaled.rates), plain.rates, rtol=1e-8)
    np.testing.assert_allclose(1e6 * np.array(scaled.weights), plain.weights, rtol=1e-8)


@pytest.mark.parametrize(
    ("target", "terms", "message"),
    [
        (power_law_target(1.15, 512), 0, "terms must be at least 1, got 0"),
        (power_law_target(1.15, 512), 40, "terms 40: t**-1.15 up to lag 512 supports at most 18"),
        (array_target(1 / np.arange(1, 21)), 10, "terms 10: array up to lag 20 supports at most 9, half its 20 lags"),
        (lag_target([1, 2, 3], [3, 2, 1], [0.1, 0.1, 0.1]), 1, "values has errors, and its noise would be followed"),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_one_line(target: Target, terms: int, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        minimax(target, terms)
    assert "\n" not in str(caught.value)


def ratios(beta: float, max_lag: int, terms: range) -> list[float]:
    target = power_law_target(beta, max_lag)
    errors = [minimax(target, k).largest_relative_error(target) for k in terms]
    return [error / closed_form_error(beta, max_lag, k) for k, error in zip(terms, errors, strict=True)]


@pytest.mark.parametrize(
    "beta", [beta if beta in (0.5, 2.0) else pytest.param(beta, marks=pytest.mark.slow) for beta in RATIOS]
)
def test_the_closed_form_predicts_the_least_error(beta: float) -> None:
    low, high = RATIOS[beta]
    for max_lag in (64, 65536):
        found = ratios(beta, max_lag, range(2, 13, 5))
        assert low < min(found) <= max(found) < min(1, high), (max_lag, found)


@pytest.mark.slow
@pytest.mark.parametrize("beta", RATIOS)
def test_the_closed_form_is_never_exceeded(beta: float) -> None:
    low, high = RATIOS[beta]
    for max_lag in (64, 128, 512, 2048, 16384, 65536, 1_000_000):
        first, *others = ratios(beta, max_lag, range(1, min(24, most_terms(beta, max_lag)) + 1))
        assert first < 1
        assert low < min(others) <= max(others) < min(1, high), (max_lag, others)


@pytest.mark.parametrize(
    ("errors", "alternations", "smallest"),
    [
        ([0.3, -0.2, 0.1], 3, 0.1),
        ([0.1, -0.5, 0.4, -0.6], 4, 0.4),
        ([0.6, -0.4, 0.5, -0.1], 4, 0.4),
        ([0.5, -0.01, 0.02, -0.6, 0.7], 5, 0.5),
        ([0.2, 0.3, -0.4, -0.1, 0.5], 3, 0.3),
        ([0.2, 0.3, -0.4], 2, 0.0),
    ],
)
def test_certificate_keeps_the_large_extrema(errors: list[float], alternations: int, smallest: float) -> None:
    """One term against a target made so that kernel / target - 1 takes the given values: three extrema are needed."""
    kernel = ExponentialSum((0.1,), (1.0,))
    lags = np.arange(1, len(errors) + 1)
    found = certificate(kernel, array_target(kernel.kernel(lags) / (1 + np.array(errors))))
    assert (found.alternations, found.needed) == (alternations, 3)
    assert found.smallest == pytest.approx(smallest, abs=1e-12)
    assert found.largest == pytest.approx(np.abs(errors).max())


def test_least_squares_on_whole_lags_do_not_neglect_the_first() -> None:
    """Few whole lags lie where Chebyshev points crowd: they count for all of these."""
    target = array_target(np.arange(1, 513) ** -1.15)
    least = minimax(target, 6).largest_relative_error(target)
    assert least < minimax(target, 6, exchanges=0).largest_relative_error(target) < 1.25 * least
