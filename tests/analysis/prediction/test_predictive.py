"""Yule-Walker weights: exact where the answer is known, and measured within their intervals."""

import numpy as np
import pytest
from scipy.linalg import toeplitz

from plkernel.analysis.mutual_information.jackknife import jackknife_error
from plkernel.analysis.mutual_information.power_law_fit import log_log_slope
from plkernel.analysis.prediction.predictive import (
    REACH,
    PredictiveWeights,
    noise_ridge,
    predictive_weights,
    yule_walker,
)
from plkernel.analysis.sequences.lags import LagMixture, decaying_copies
from plkernel.analysis.sequences.potts import PottsCorpus

LAGS = np.arange(1, 257)


def exact(corpus: PottsCorpus | LagMixture, lags: int = 256) -> PredictiveWeights:
    """The weights of the exact correlations, without error."""
    weights = yule_walker(corpus.correlation(np.arange(1, REACH * lags + 1)))[:lags]
    return PredictiveWeights(weights, np.stack([weights, weights], axis=1), 0.0)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.7])
def test_of_a_mixture_of_lags_they_are_its_own_weights(alpha: float) -> None:
    copies = decaying_copies(alpha, 200, 0.3)
    weights = yule_walker(LagMixture(copies, 16, 1).correlation(np.arange(1, 501)))
    np.testing.assert_allclose(weights[:200], copies, atol=1e-10, rtol=0)
    np.testing.assert_allclose(weights[200:], 0, atol=1e-10)


@pytest.mark.parametrize(("beta", "slope"), [(0.6, 0.91), (1.0, 0.97), (1.4, 1.05), (1.8, 1.15)])
def test_of_exact_potts_correlations_they_fall_nearly_as_1_over_d(beta: float, slope: float) -> None:
    corpus = PottsCorpus(beta=beta)
    weights = yule_walker(corpus.correlation(np.arange(1, 4097)))[:256]
    assert log_log_slope(LAGS[1:], weights[1:]) == pytest.approx(slope, abs=0.01)
    assert exact(corpus).slope(2, 256).beta == pytest.approx(slope, abs=0.02), "bands and a shorter reach change little"


@pytest.mark.parametrize(
    "corpus",
    [
        PottsCorpus(beta=0.6, size=500_000, seed=3),
        PottsCorpus(beta=1.4, size=500_000, seed=3),
        LagMixture(decaying_copies(0.8, 256, 0.3), 16, 500_000, seed=5),
        LagMixture(decaying_copies(1.2, 256, 0.3), 16, 500_000, seed=6),
    ],
    ids=["potts-0.6", "potts-1.4", "lags-0.8", "lags-1.2"],
)
def test_measured_weights_agree_with_exact_ones(corpus: PottsCorpus | LagMixture) -> None:
    data = np.concatenate(list(corpus.blocks())) if isinstance(corpus, PottsCorpus) else corpus.sequence()
    found, true = predictive_weights(data, 256), exact(corpus)
    assert found.ridge == 0
    away = (found.values - true.values) / jackknife_error(found.replicates)
    assert np.abs(away).max() < 5.5
    assert away.std() == pytest.approx(1, abs=0.25)
    for limits in ((1, 100), (2, 256)):
        slope = found.slope(*limits)
        assert slope.low < true.slope(*limits).beta < slope.high
        assert slope.high - slope.low < 0.1


def test_bands_are_where_1_over_d_has_their_mean() -> None:
    weights = 0.2 / LAGS
    bands = PredictiveWeights(weights, np.stack([weights] * 4, axis=1), 0.0).bands(3, 200)
    np.testing.assert_allclose(bands.values, 0.2 / bands.lags, rtol=1e-12)
    assert (bands.edges[0], bands.edges[-1]) == (3, 201)
    assert bands.values[0] == weights[2]
    np.testing.assert_array_equal(bands.standard_errors(), 0)


def test_clear_bands_are_above_their_noise() -> None:
    rng = np.random.default_rng(0)
    values = np.array([0.2, 0.1, -0.05, 0.04, 0.00005, 0.003] + [0.0] * 58)
    noise = rng.standard_normal((64, 40))
    noise -= noise.mean(axis=1, keepdims=True)
    bands = PredictiveWeights(values, values[:, None] + 1e-3 * noise / 40, 0.0).bands(1, 6)
    assert bands.clear().tolist() == [0, 1, 3, 5]


def test_a_ridge_only_where_the_spectrum_is_below_its_noise() -> None:
    lags = np.arange(1, 65)
    assert noise_ridge(0.5**lags, np.full(64, 1e-3)) == 0
    periodic = 0.999 * np.cos(0.3 * lags)
    ridge = noise_ridge(periodic, np.full(64, 1e-2))
    noise = np.sqrt(2 * 64) * 1e-2
    measured = periodic + 1e-2 * np.random.default_rng(0).standard_normal(64)
    assert np.linalg.eigvalsh(toeplitz(np.append(1 + ridge, measured[:-1])))[0] > noise / 2
    shrunk = yule_walker(0.5**lags, ridge=0.1)
    np.testing.assert_allclose(toeplitz(np.append(1.1, 0.5 ** lags[:-1])) @ shrunk, 0.5**lags, atol=1e-12)


def test_the_ridge_keeps_measured_weights_finite_where_the_future_is_certain() -> None:
    """A sequence that repeats: its equations are singular, and more so than noise can tell."""
    data = np.tile(np.random.default_rng(0).integers(0, 8, 50, np.uint8), 400)
    found = predictive_weights(data, 64)
    assert found.ridge > 0
    assert np.abs(found.values).max() < 2


def test_what_has_no_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="no Yule-Walker solution"):
        yule_walker([1.0, 1.0, 1.0])
    data = np.random.default_rng(0).integers(0, 8, 20_000, np.uint8)
    weights = PredictiveWeights(np.full(64, -1.0), np.full((64, 4), -1.0), 0.0)
    with pytest.raises(ValueError, match="0 positive bands, a slope needs 3"):
        weights.slope(1, 64)
    assert predictive_weights(data, 32).bands(1, 32).clear().size <= 8, "noise shows next to nothing"
