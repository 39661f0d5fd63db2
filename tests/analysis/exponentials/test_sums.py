"""The published fit, digit for digit, and the scores by their definitions."""

import numpy as np
import pytest

from plkernel.analysis.exponentials.fits import nnls
from plkernel.analysis.exponentials.sums import (
    ExponentialSum,
    closed_form_error,
    integer_lags,
    nonnegative,
    power_law,
    score,
    terms_for,
)
from plkernel.analysis.exponentials.targets import array_target, power_law_target
from plkernel.analysis.nodes.placement import log_spaced, rates_from_half_lives

BETA, MAX_LAG = 1.15, 512
LAGS = integer_lags(MAX_LAG)
TARGET = power_law(LAGS, BETA)


@pytest.fixture(scope="module")
def published() -> ExponentialSum:
    return nnls(power_law_target(BETA, MAX_LAG), log_spaced(256, 1, 2048))


def test_published_fit_keeps_six_nodes(published: ExponentialSum) -> None:
    half_lives = published.active().half_lives()
    assert half_lives.round(1).tolist() == [1.0, 10.0, 10.3, 81.1, 83.5, 2048.0]


def test_published_fit_puts_its_weight_on_the_first_node(published: ExponentialSum) -> None:
    assert published.weights[0] / sum(published.weights) == pytest.approx(0.9364, abs=5e-5)


def test_published_scores(published: ExponentialSum) -> None:
    scores = score(published.log_kernel(LAGS), TARGET, LAGS)
    assert scores.r0 == pytest.approx(0.9975, abs=5e-5)
    assert scores.r_linear == pytest.approx(0.9928, abs=5e-5)
    assert scores.max_relative_error == pytest.approx(0.170, abs=5e-4)
    assert scores.worst_lag == 7


def test_uniform_weights_score_as_published() -> None:
    rates = rates_from_half_lives(log_spaced(256, 1, 2048))
    uniform = ExponentialSum(tuple(rates), (1.0,) * 256)
    scores = score(uniform.log_kernel(LAGS), TARGET, LAGS)
    assert scores.r1 == pytest.approx(-18.04, abs=5e-3)
    assert scores.r_star == pytest.approx(0.51, abs=5e-3)
    first, last = uniform.kernel([1, MAX_LAG])
    assert last / first * MAX_LAG**BETA == pytest.approx(250.4, abs=0.05)


def test_nnls_satisfies_its_optimality_conditions(published: ExponentialSum) -> None:
    """Karush-Kuhn-Tucker: the gradient is zero where a weight is positive and nowhere negative."""
    design = np.exp(-np.outer(LAGS, published.rates))
    gradient = design.T @ (design @ np.array(published.weights) - TARGET)
    positive = np.array(published.weights) > 0
    assert np.abs(gradient[positive]).max() < 1e-12
    assert gradient[~positive].min() > -1e-12


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_scale_changes_r0_but_not_the_scale_free_scores(published: ExponentialSum, scale: float) -> None:
    plain = score(published.log_kernel(LAGS), TARGET, LAGS)
    scaled = score(published.log_kernel(LAGS) + np.log(scale), TARGET, LAGS)
    for name in ("r1", "r_star", "e_log"):
        assert getattr(scaled, name) == pytest.approx(getattr(plain, name), rel=1e-10)
    assert (scaled.r0 == pytest.approx(plain.r0)) == (scale == 1.0)


def test_scores_of_a_kernel_that_is_off_by_a_known_factor() -> None:
    """A kernel twice too large on the second half: Elog is half of ln 2."""
    log_kernel = np.log(TARGET) + np.where(LAGS > MAX_LAG / 2, np.log(2), 0)
    scores = score(log_kernel, TARGET, LAGS)
    assert scores.e_log == pytest.approx(np.log(2) / 2)
    assert scores.max_relative_error == pytest.approx(1.0)
    assert scores.r1 < scores.r_star < 1


def test_log_kernel_does_not_underflow() -> None:
    """exp(-2e6) is zero in float64; its logarithm is not lost."""
    fast = ExponentialSum((2.0,), (1.0,))
    assert fast.kernel([1e6])[0] == 0.0
    assert fast.log_kernel([1e6])[0] == pytest.approx(-2e6)


def test_no_weight_at_all() -> None:
    assert ExponentialSum((1.0,), (0.0,)).log_kernel([1.0]).tolist() == [-np.inf]


def test_json_round_trip(published: ExponentialSum) -> None:
    import json

    assert ExponentialSum.from_dict(json.loads(json.dumps(published.to_dict()))) == published


def test_a_problem_too_large_for_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="max_lag 1000000 times 256 nodes"):
        nnls(power_law_target(BETA, 1_000_000), log_spaced(256, 1, 2048))


@pytest.mark.parametrize(
    ("max_lag", "terms", "least"),
    [(512, 6, 4.861e-3), (2048, 10, 2.595e-4), (65536, 8, 2.014e-2), (1e6, 16, 4.885e-4)],
)
def test_closed_form_is_a_safe_estimate_of_the_least_error(max_lag: float, terms: int, least: float) -> None:
    assert 0.74 < least / closed_form_error(BETA, max_lag, terms) < 0.92


@pytest.mark.parametrize("tolerance", [0.5, 1e-2, 1e-3, 1e-6])
def test_terms_for_a_tolerance_are_the_fewest(tolerance: float) -> None:
    terms = terms_for(BETA, 2048, tolerance)
    assert closed_form_error(BETA, 2048, terms) <= tolerance
    assert terms == 1 or closed_form_error(BETA, 2048, terms - 1) > tolerance


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.15, 512, 1e-12), "tolerance must be from 1e-09, what float64 can tell, to below 1, got 1e-12"),
        ((1.15, 512, 1.0), "tolerance must be from 1e-09"),
        ((1.15, 512, float("nan")), "tolerance must be from 1e-09"),
        ((-1.0, 512, 1e-3), "beta must be positive and finite, got -1"),
        ((1.15, 1.0, 1e-3), "max_lag must be finite and above 1, got 1"),
    ],
)
def test_terms_for_refuses_what_it_cannot_answer(arguments: tuple[float, float, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        terms_for(*arguments)


def test_largest_relative_error_is_that_of_the_scores_on_the_targets_lags(published: ExponentialSum) -> None:
    scores = score(published.log_kernel(LAGS), TARGET, LAGS)
    assert published.largest_relative_error(array_target(TARGET)) == pytest.approx(scores.max_relative_error, rel=1e-9)
    between = published.largest_relative_error(power_law_target(BETA, MAX_LAG))
    assert scores.max_relative_error < between < 1.02 * scores.max_relative_error


def test_rows_of_a_linear_fit_count_by_their_scale() -> None:
    """Two rows that no single term can meet: the fit meets the one that counts."""
    values = np.array([1.0, 1.0])
    first = nonnegative([1.0], [1.0, 2.0], values, [1e3, 1.0])
    assert first.kernel([1.0])[0] == pytest.approx(1.0, abs=1e-5)
    assert nonnegative([1.0], [1.0, 2.0], values, [1.0, 1e3]).kernel([2.0])[0] == pytest.approx(1.0, abs=1e-5)
