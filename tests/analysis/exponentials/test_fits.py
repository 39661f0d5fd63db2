"""Every fit by its name: the figures that each is known for, weights from errors, and what is refused."""

import re
from typing import Any

import numpy as np
import pytest
from scipy.optimize import nnls as scipy_nnls

from plkernel.analysis.exponentials.fits import BY_HALF_LIVES, BY_TERMS, METHODS, fit_sum, nnls, nnls_relative
from plkernel.analysis.exponentials.sums import ExponentialSum, integer_lags, score
from plkernel.analysis.exponentials.targets import (
    Target,
    array_target,
    broken_power_law_target,
    curve_target,
    lag_target,
)
from plkernel.analysis.exponentials.targets import power_law_target as power_law
from plkernel.analysis.information.curve import decay_curves, log_lags
from plkernel.analysis.information.laws import log_log_slope
from plkernel.analysis.sequences import PottsCorpus

LAW = power_law(1.15, 512)


def test_nnls_is_the_published_fit() -> None:
    rates, lags = np.log(2) / np.geomspace(1, 2048, 256), integer_lags(512)
    published, _ = scipy_nnls(np.exp(-np.outer(lags, rates)), lags**-1.15, maxiter=30 * rates.size)
    found = nnls(LAW)
    np.testing.assert_allclose(found.weights, published, atol=1e-12)
    scores = score(found.log_kernel(integer_lags(512)), LAW.value(integer_lags(512)), integer_lags(512))
    assert (scores.max_relative_error, scores.worst_lag) == (pytest.approx(0.170, abs=5e-4), 7)


def test_relative_nnls_is_nearly_exact_but_keeps_many_terms() -> None:
    kernel = nnls_relative(LAW)
    assert kernel.largest_relative_error(LAW) < 1e-6
    assert 25 <= len(kernel.rates) <= 60


def test_relative_nnls_converges_on_very_unequal_columns() -> None:
    law = power_law(2.0, 1_000_000)
    assert nnls_relative(law).largest_relative_error(law) < 1e-5


def test_the_shortest_half_life_not_the_number_of_nodes_limits_the_published_fit() -> None:
    whole = array_target(LAW.value(integer_lags(512)))
    errors = [
        nnls_relative(whole, np.geomspace(shortest, 2048, 256)).largest_relative_error(whole) for shortest in (1, 0.25)
    ]
    assert errors[0] > 0.11
    assert errors[1] < 3e-5


@pytest.mark.parametrize(
    ("method", "terms", "error"),
    [("trapezoid", 6, 4.5e-2), ("trapezoid", 10, 5.3e-3), ("quadrature", 6, 1.9e-2), ("quadrature", 10, 1.1e-3)],
)
def test_quadrature_rules_reach_their_known_errors_and_minimax_beats_them(
    method: Any, terms: int, error: float
) -> None:
    found = fit_sum(LAW, method, terms=terms).largest_relative_error(LAW)
    assert 0.8 * error < found <= error
    assert fit_sum(LAW, "minimax", terms=terms).largest_relative_error(LAW) < found / 3


@pytest.mark.parametrize("beta", [0.5, 2.0])
@pytest.mark.parametrize("method", ["quadrature", "trapezoid"])
def test_quadrature_rules_converge_for_other_exponents(method: Any, beta: float) -> None:
    law = power_law(beta, 4096)
    errors = [fit_sum(law, method, terms=terms).largest_relative_error(law) for terms in (4, 8)]
    assert errors[0] > 3 * errors[1]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_a_sum_of_positive_terms_fastest_first(method: Any) -> None:
    kernel = fit_sum(LAW, method, terms=5 if method in BY_TERMS else None)
    assert isinstance(kernel, ExponentialSum)
    assert min(kernel.weights) >= 0
    assert list(kernel.rates) == sorted(kernel.rates, reverse=True)
    assert min(kernel.rates) > 0


def test_the_registry_holds_every_method() -> None:
    assert set(METHODS) == set(BY_TERMS) | set(BY_HALF_LIVES)


@pytest.mark.parametrize(("method", "options"), [("least-squares", {"terms": 2}), ("nnls-relative", {})])
def test_errors_of_the_target_are_weights(method: Any, options: dict[str, int]) -> None:
    """Three wrong values with errors of 100 % hardly move a fit that they ruin when all lags count alike."""
    lags = np.arange(1.0, 61)
    truth = 0.8 * np.exp(-lags / 2) + 0.2 * np.exp(-lags / 40)
    wrong = truth * np.where(np.isin(lags, [10, 20, 30]), 2.0, 1.0)
    errors = np.where(wrong == truth, 1e-3, 1.0)
    weighted = fit_sum(lag_target(lags, wrong, errors), method, **options)
    alike = fit_sum(lag_target(lags, wrong), method, **options)
    clean = array_target(truth)
    assert weighted.largest_relative_error(clean) < 1e-4
    assert alike.largest_relative_error(clean) > 0.03


@pytest.mark.parametrize("method", ["nnls", "nnls-relative"])
def test_a_measured_curve_is_followed_within_its_errors(method: Any) -> None:
    data = np.concatenate(list(PottsCorpus(beta=1.0, size=500_000).blocks()))
    target = curve_target(decay_curves(data, log_lags(100))[0])
    for kernel in (fit_sum(target, method), fit_sum(target, "least-squares", terms=3)):
        deviation = (kernel.kernel(target.lags) / np.array(target.values) - 1) / np.array(target.errors)
        assert np.sqrt(np.mean(deviation**2)) < 1.5


def test_noise_supports_few_terms_and_more_are_refused() -> None:
    lags = np.arange(1, 201)
    noisy = array_target(np.exp(0.05 * np.random.default_rng(0).normal(size=200)) / lags)
    with pytest.raises(ValueError, match=r"terms 20: array supports at most [4-9], more do not come nearer"):
        fit_sum(noisy, "least-squares", terms=20)
    slope = log_log_slope(lags, fit_sum(noisy, "least-squares", terms=4).kernel(lags))
    assert slope == pytest.approx(1.0, abs=0.05)


BROKEN = broken_power_law_target(0.5, 1.5, 50, 512)


@pytest.mark.parametrize(
    ("target", "method", "options", "message"),
    [
        (LAW, "prony", {}, "method 'prony': must be one of minimax, least-squares, quadrature"),
        (LAW, "minimax", {}, "method 'minimax' takes the number of terms, and no half-lives: pass terms"),
        (LAW, "minimax", {"terms": 3, "half_lives": [1, 2]}, "method 'minimax' takes the number of terms"),
        (LAW, "nnls", {"terms": 3}, "method 'nnls' chooses the number of terms itself, got terms 3"),
        (LAW, "nnls", {"half_lives": [1, -2]}, "half_lives must be positive and finite"),
        (LAW, "nnls-relative", {"half_lives": []}, "half_lives must be positive and finite, one or more"),
        (LAW, "nnls-relative", {"half_lives": [1e-6]}, "no node helps"),
        (LAW, "quadrature", {"terms": 1}, "terms must be at least 2 for a rule with equal steps, got 1"),
        (LAW, "least-squares", {"terms": -1}, "terms must be at least 1, got -1"),
        (BROKEN, "trapezoid", {"terms": 4}, "quadrature knows power laws only, not t**-0.5 to 50, then t**-1.5"),
        (power_law(1.15, 1_000_000), "nnls", {}, "max_lag 1000000 times 256 nodes"),
    ],
)
def test_bad_input_is_refused_in_one_line(target: Target, method: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        fit_sum(target, method, **options)
    assert "\n" not in str(caught.value)
