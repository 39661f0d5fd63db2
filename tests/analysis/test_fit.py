"""Every method of fitting: known errors, certificates of the best K terms, weights from errors, and
what is refused.
"""

import re
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from plkernel.analysis import fit as fits
from plkernel.analysis.exponentials import (
    ExponentialSum,
    Target,
    array_target,
    integer_lags,
    lag_target,
    power_law_target,
)
from plkernel.analysis.fit import certificate, fit, least_squares_terms, minimax, nnls
from plkernel.analysis.nodes import place

LAW = power_law_target(1.15, 512)
T = np.arange(1.0, 201)
# beta, last lag, terms, least largest relative error to the digits it is known to.
LEAST_ERROR = [
    (1.15, 512, 4, "5.1e-2"),
    (1.15, 512, 16, "2.1e-8"),
    (1.15, 2048, 6, "1.5e-2"),
    (1.15, 65536, 10, "4.8e-3"),
    (1.15, 1e6, 4, "5.1e-1"),
    (1.15, 1e6, 12, "5.5e-3"),
    (2.7, 1e7, 5, "8.682e-1"),
    (2.7, 1e7, 8, "3.798e-1"),
    (5.0, 65536, 2, "9.99998e-1"),
    (8.0, 1e12, 20, "5.5210e-1"),  # Newton's method arrives from parts of the way only
    (0.05, 16, 5, "7.843e-7"),  # least squares end early, in a valley
    (5.0, 3, 6, "5.68e-8"),
]


def largest(kernel: ExponentialSum, target: Target) -> float:
    """The largest relative error."""
    return float(np.abs(kernel.errors(target)).max())


@pytest.mark.parametrize(("beta", "max_lag", "terms", "error"), LEAST_ERROR)
def test_least_error_is_reached_and_certified(
    beta: float, max_lag: float, terms: int, error: str
) -> None:
    target = power_law_target(beta, max_lag)
    kernel = minimax(target, terms)
    proof = certificate(kernel, target)
    digits = len(error.split("e")[0]) - 2
    assert float(f"{proof.largest:.{digits}e}") == pytest.approx(float(error))
    assert proof.alternations == proof.needed == 2 * terms + 1
    assert proof.level
    if max_lag < 1e7 and 1 < beta < 2:
        assert (
            1.01 * proof.largest
            < largest(least_squares_terms(target, terms), target)
            < 1.5 * proof.largest
        )


def test_certificates_of_other_sums() -> None:
    """De la Vallee Poussin: smallest alternating extremum <= least error <= largest error, for any
    sum of K terms.
    """
    best = minimax(LAW, 6)
    least = certificate(best, LAW).largest
    proof = certificate(least_squares_terms(LAW, 6), LAW)
    assert 0 < proof.smallest < least < proof.largest
    assert not proof.level
    scaled, doubled = (
        ExponentialSum(best.rates, tuple(f * w for w in best.weights)) for f in (1.001, 2)
    )
    assert certificate(scaled, LAW).ratio < 0.7
    assert (certificate(doubled, LAW).alternations, certificate(doubled, LAW).smallest) == (1, 0)


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
def test_certificate_keeps_the_large_extrema(
    errors: list[float], alternations: int, smallest: float
) -> None:
    """One term against a target made so that kernel / target - 1 takes the given values: three
    extrema are needed.
    """
    kernel = ExponentialSum((0.1,), (1.0,))
    lags = np.arange(1, len(errors) + 1)
    proof = certificate(kernel, array_target(kernel.kernel(lags) / (1 + np.array(errors))))
    assert (proof.alternations, proof.needed) == (alternations, 3)
    assert proof.smallest == pytest.approx(smallest, abs=1e-12)
    assert proof.largest == pytest.approx(np.abs(errors).max())


@pytest.mark.parametrize(("beta", "max_lag", "most"), [(1.15, 512, 18), (0.5, 16384, 24)])
def test_terms_are_refused_where_float64_tells_no_difference(
    beta: float, max_lag: int, most: int
) -> None:
    target = power_law_target(beta, max_lag)
    assert certificate(minimax(target, most), target).ratio > 0.99
    with pytest.raises(
        ValueError, match=f"at most {most + 1} for .*; more terms do not reduce the error"
    ):
        minimax(target, most + 2)


def test_a_sum_of_exponentials_is_found_again_and_supports_no_more_terms() -> None:
    target = array_target(0.7 * np.exp(-T / 3) + 0.3 * np.exp(-T / 70))
    for method in (minimax, least_squares_terms):
        kernel = method(target, 2)
        np.testing.assert_allclose(1 / np.array(kernel.rates), [3, 70], rtol=1e-9)
        np.testing.assert_allclose(kernel.weights, [0.7, 0.3], rtol=1e-9)
        with pytest.raises(ValueError, match="terms must be at most 2 for array, got 3"):
            method(target, 3)


def test_scale_and_unit_of_time_do_not_matter() -> None:
    lags = np.geomspace(1, 300, 60)
    values = 1 / (1 + lags) ** 1.3
    plain = minimax(lag_target(lags, values), 5)
    scaled = minimax(lag_target(1000 * lags, 1e-6 * values), 5)
    np.testing.assert_allclose(1000 * np.array(scaled.rates), plain.rates, rtol=1e-8)
    np.testing.assert_allclose(1e6 * np.array(scaled.weights), plain.weights, rtol=1e-8)


@pytest.mark.parametrize(("terms", "gain"), [(4, 1.02), (6, 1.276), (10, 3.36)])
def test_on_integer_lags_alone_the_least_error_is_smaller(terms: int, gain: float) -> None:
    """Levelled on 1..512, so that no other sum is better there; the error over real lags is
    certified for those.
    """
    lags = integer_lags(512)
    real = fit(1.15, terms=terms)
    whole = fit(values=lags**-1.15, terms=terms)
    assert whole.certificate is not None
    assert whole.certificate.level
    errors = [np.abs(found.optimal.kernel(lags) * lags**1.15 - 1).max() for found in (real, whole)]
    assert errors[1] == pytest.approx(whole.certificate.largest, rel=1e-6)
    assert errors[0] / errors[1] == pytest.approx(gain, rel=0.005)


def test_nnls_is_optimal() -> None:
    """Karush, Kuhn and Tucker: the gradient is zero on positive weights, and nowhere a weight would
    lower the sum.
    """
    lags = integer_lags(512)
    kernel = nnls(LAW)
    weights = np.array(kernel.weights)
    design = np.exp(-np.outer(lags, kernel.rates))
    gradient = design.T @ (design @ weights - LAW.value(lags))
    assert np.abs(gradient[weights > 0]).max() < 1e-10
    assert gradient.min() > -1e-10
    assert gradient.max() > 1e-4


@pytest.mark.parametrize("terms", [2, None])
def test_errors_of_the_target_are_weights(terms: int | None) -> None:
    """Three wrong values with errors of 100 % hardly move a fit that they ruin when all lags count
    alike.
    """
    truth = (0.8 * np.exp(-T / 2) + 0.2 * np.exp(-T / 40))[:60]
    wrong = truth * np.where(np.isin(T[:60], [10, 20, 30]), 2.0, 1.0)
    errors = np.where(wrong == truth, 1e-3, 1.0)
    weighted, alike = (
        fit(values=lag_target(T[:60], wrong, e), terms=terms).optimal for e in (errors, None)
    )
    assert largest(weighted, array_target(truth)) < (1e-4 if terms else 0.01)
    assert largest(alike, array_target(truth)) > 0.03


def test_noise_supports_few_terms_and_more_are_refused() -> None:
    noisy = array_target(np.exp(0.05 * np.random.default_rng(0).normal(size=200)) / T)
    with pytest.raises(
        ValueError, match=r"terms must be at most [4-9] for array, got 20; more terms do not reduce"
    ):
        least_squares_terms(noisy, 20)
    slope = np.polyfit(np.log(T), least_squares_terms(noisy, 4).log_kernel(T), 1)[0]
    assert slope == pytest.approx(-1.0, abs=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"beta": 1.0, "values": [3, 2, 1]},
            "beta and max_lag must be left out beside values",
        ),
        (
            {"values": [3, 2, 1], "max_lag": 3},
            "beta and max_lag must be left out beside values",
        ),
        (
            {"values": lag_target([1e8, 2e8, 3e8], [3, 2, 1])},
            "values: first lag must be one that a half-life of 2048 reaches",
        ),
        ({"max_lag": 1_000_000}, "max_lag must be at most 195,312 with 256 nodes, got 1,000,000"),
        ({"max_lag": 1e9}, "max_lag must be at most 195,312 with 256 nodes, got 1,000,000,000"),
        (
            {"max_lag": 1e9, "terms": 5},
            "max_lag must be at most 10,000,000 with 5 nodes, got 1,000,000,000",
        ),
        ({"terms": 100_000}, "terms must be at most 12,207 on 4,096 lags, got 100,000"),
        ({"terms": 0}, "terms must be at least 1, got 0"),
        (
            {"terms": 40},
            "terms must be at most 19 for t**-1.15, got 40; more terms do not reduce the error",
        ),
        (
            {"values": 1 / T[:20], "terms": 10},
            "terms must be at most 9, half the 20 lags of array up to lag 20",
        ),
    ],
    ids=str,
)
def test_bad_input_is_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        fit(**options)
    assert "\n" not in str(caught.value)


def least_of_any_weights(target: Target, rates: Any, points: int = 200) -> float:
    """The largest relative error of the best positive weights on `rates`, by linear programming."""
    lags = np.union1d(target.spread_lags(points)[0], target.lags)
    shares = np.exp(-np.outer(lags, rates)) / target.value(lags)[:, None]
    shares /= shares.max(axis=0)
    level = -np.ones((lags.size, 1))
    ones = np.ones(lags.size)
    above, below = np.hstack([shares, level]), np.hstack([-shares, level])
    wanted = np.append(np.zeros(len(rates)), 1.0)
    return float(linprog(wanted, np.vstack([above, below]), np.concatenate([ones, -ones])).fun)


@pytest.mark.parametrize(("betas", "terms"), [((0.5, 1.5), 4), ((1.5, 0.5), 5)])
def test_a_kink_is_approached_as_nearly_as_any_number_of_terms_can(
    betas: tuple[float, float], terms: int
) -> None:
    target = power_law_target(betas[0], 2048, betas[1], 50)
    bound = least_of_any_weights(target, np.geomspace(10, 1e-2 / 2048, 200))
    assert largest(minimax(target, terms), target) < 1.01 * bound
    assert largest(minimax(target, terms - 2), target) > 2 * bound


def sum_of(log_rates: list[float], log_weights: list[float]) -> np.ndarray:
    return np.array([*log_rates, *log_weights])


def some_lags() -> fits.Lags:
    t = np.array([1.0, 2.0, 5.0, 20.0, 90.0])
    return fits.Lags(t, -1.3 * np.log(t), np.array([1.0, 2.0, 0.5, 1.0, 3.0]))


def test_errors_are_weighted_logarithms_of_the_kernel_over_the_target() -> None:
    lags = some_lags()
    parameters = sum_of([-1.0, -4.0], [0.3, -2.0])
    kernel = np.exp(0.3 - lags.lags * np.exp(-1.0)) + np.exp(-2.0 - lags.lags * np.exp(-4.0))
    expected = (np.log(kernel) + 1.3 * np.log(lags.lags)) * lags.scale
    np.testing.assert_allclose(lags.errors(parameters), expected, rtol=1e-13)
    assert lags.squares(parameters) == pytest.approx(np.sum(expected**2))
    _, shares = lags.logs_and_shares(parameters)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    np.testing.assert_allclose(shares[:, 0] * kernel, np.exp(0.3 - lags.lags * np.exp(-1.0)))
    some = lags.at(np.array([1, 3]))
    np.testing.assert_allclose(some.errors(parameters), expected[[1, 3]])


def test_the_jacobian_is_that_of_central_differences() -> None:
    """To h**2 of their error and eps / h of rounding, with h = eps**(1/3)."""
    lags = some_lags()
    parameters = sum_of([-1.0, -4.0], [0.3, -2.0])
    found = lags.jacobian(parameters)
    h = np.finfo(float).eps ** (1 / 3)
    for column, step in enumerate(h * np.eye(4)):
        slope = (lags.errors(parameters + step) - lags.errors(parameters - step)) / (2 * h)
        np.testing.assert_allclose(found[:, column], slope, atol=1e4 * h**2, rtol=1e-7)


@pytest.mark.parametrize(
    ("errors", "places"),
    [
        ([1.0, 3.0, -2.0, -1.0, 0.5], [1, 2, 4]),
        ([-1.0, -3.0], [1]),
        ([0.0, 1.0, -1.0, 0.0], [1, 2, 3]),
    ],
)
def test_extrema_are_the_largest_of_each_sign(errors: list[float], places: list[int]) -> None:
    assert fits._extrema(np.array(errors)).tolist() == places


@pytest.mark.parametrize(
    ("errors", "count", "places"),
    [
        ([1.0, -2.0, 3.0], 3, [0, 1, 2]),
        ([1.0, -2.0, 3.0], 4, None),
        ([1.0, -2.0, 3.0], 2, [1, 2]),
        ([3.0, -2.0, 1.0], 2, [0, 1]),
        ([5.0, -4.0, 0.1, -0.2, 6.0], 3, [0, 1, 4]),
    ],
)
def test_alternating_extrema_lose_the_smallest_pair_or_end(
    errors: list[float], count: int, places: list[int] | None
) -> None:
    found = fits._reference(np.array(errors), count)
    assert (None if found is None else found.tolist()) == places


def test_a_further_term_is_read_off_terms_that_are_evenly_numbered() -> None:
    """Of logarithms that are linear in the number, the longer range has the same slope, and the sum
    of the weights is kept where they are equal.
    """
    old = (np.arange(3) + 0.5) / 3
    new = (np.arange(4) + 0.5) / 4
    found = fits._stretched(np.concatenate([-2 - 3 * old, np.full(3, 0.7)]))
    np.testing.assert_allclose(found[:4], -2 - 3 * new)
    np.testing.assert_allclose(found[4:], 0.7 + np.log(3 / 4))


def test_shares_and_excess_are_their_definitions() -> None:
    target = power_law_target(1.0, 100)
    optimal = ExponentialSum((1.0, 0.1), (3.0, 1.0))
    uniform = ExponentialSum((1.0, 0.01), (1.0, 1.0))
    scores: Any = None
    found = fits.FitResult(target, "nnls", optimal, uniform, scores, scores)
    assert found.fastest_share == 0.75
    first, last = uniform.kernel([1, 100])
    assert found.uniform_excess == pytest.approx(100 * last / first)


def test_the_figure_of_a_fit_draws_each_lag_once_from_the_first_to_the_last() -> None:
    found = fit(1.15, terms=3, max_lag=50)
    nodes = place(4, placement="log-spaced", longest=50)
    figure = fits.fit_figure(found, nodes)
    kernels, shares = figure.axes
    for line in kernels.lines:
        lags = np.asarray(line.get_xdata())
        assert (lags[0], lags[-1]) == (1.0, 50.0)
        assert (np.diff(lags) > 0).all()
        assert line.get_ydata()[0] == pytest.approx(1.0)
    assert len(kernels.lines) == 3
    heights = np.asarray(shares.lines[0].get_ydata())
    weights = np.asarray(found.active.weights)
    np.testing.assert_allclose(heights, weights / weights.sum())
    assert len(fits.fit_figure(found).axes[0].lines) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 1e-3, "max_lag": 1e300}, "with 256 nodes, got 1.00e+300; use a smaller max_lag"),
        ({"max_lag": 10**400}, "max_lag must be less than 2**64 in size, got 1.00e+400"),
        ({"beta": -(10**400)}, "beta must be less than 2**64 in size, got -1.00e+400"),
        ({"terms": 10**5000}, "terms must be less than 2**64 in size, got 1.00e+5000"),
        ({"beta": 1e308}, "t**-1e+308 must stay above 1e-300 up to max_lag 512, got 0 there"),
    ],
)
def test_numbers_without_measure_are_refused_in_a_readable_line(
    options: dict[str, Any], message: str
) -> None:
    """Not with hundreds of digits, nor with an error of Python for what no float holds."""
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        fit(**options)
    assert len(str(caught.value)) < 120
