"""Correlations and Yule-Walker weights: exact where the answer is known, and measured within their intervals."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.linalg import toeplitz

from plkernel.analysis.information.counts import block_edges
from plkernel.analysis.information.estimate import jackknife_error
from plkernel.analysis.information.laws import log_log_slope
from plkernel.analysis.prediction import (
    REACH,
    PredictiveWeights,
    noise_ridge,
    predictive_weights,
    repeat_correlations,
    yule_walker,
)
from plkernel.analysis.sequences import LagCorpus, PottsCorpus

LAGS = np.arange(1, 257)


def test_it_is_the_autocorrelation_of_indicator_vectors() -> None:
    """The jackknife's correction spelled out, on the vectors themselves, in 5 blocks."""
    data = np.random.default_rng(1).choice(5, 3000, p=(0.4, 0.3, 0.15, 0.1, 0.05)).astype(np.uint8)
    data[1000:] = np.where(data[1000:] > 2, data[997:-3], data[1000:])
    edges, vectors = block_edges(data.size, 7, 5), np.eye(5)[data]

    def plain(kept: np.ndarray, lag: int) -> float:
        at = np.flatnonzero(kept[: data.size - lag])
        pairs, chance = np.sum(vectors[at] * vectors[at + lag], axis=1).mean(), np.sum(vectors[kept].mean(axis=0) ** 2)
        return float((pairs - chance) / (1 - chance))

    positions = np.arange(data.size)
    masks = [np.ones(data.size, bool), *(~((a <= positions) & (positions < b)) for a, b in pairwise(edges))]
    for lag, row in zip(range(1, 8), repeat_correlations(data, 7, blocks=5), strict=True):
        value, *left = (plain(mask, lag) for mask in masks)
        sizes = np.diff(np.minimum(edges, data.size - lag))
        assert row[0] == pytest.approx(5 * value - np.sum((1 - sizes / sizes.sum()) * left), abs=1e-12)


@pytest.mark.parametrize("symbols", [2, 16])
def test_a_mixture_of_lags_has_its_exact_correlations(symbols: int) -> None:
    corpus, shares = LagCorpus(1.0, 64, 0.4, symbols, 400_000, seed=2), list[float]()
    found = repeat_correlations(corpus.sequence(), 128, progress=shares.append)
    away = (found[:, 0] - corpus.correlation(np.arange(1, 129))) / jackknife_error(found[:, 1:])
    assert np.abs(away).max() < 5
    assert 0.5 < away.std() < 1.5
    assert sum(shares) == pytest.approx(1)
    np.testing.assert_array_equal(found, repeat_correlations(corpus.sequence(), 128, threads=3))


def test_no_memory_has_no_floor() -> None:
    data = np.random.default_rng(0).integers(0, 200, 200_000, np.uint8)
    found = repeat_correlations(data, 100)[:, 0]
    assert abs(found.mean()) < 4 * found.std() / 10
    assert found.min() < 0 < found.max()


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.7])
def test_of_a_mixture_of_lags_the_weights_are_its_own(alpha: float) -> None:
    corpus = LagCorpus(alpha, 200, 0.3)
    weights = yule_walker(corpus.correlation(np.arange(1, 501)))
    np.testing.assert_allclose(weights[:200], corpus.chances, atol=1e-10, rtol=0)
    np.testing.assert_allclose(weights[200:], 0, atol=1e-10)


def exact(corpus: PottsCorpus | LagCorpus, lags: int = 256) -> PredictiveWeights:
    """The weights of the exact correlations, without error."""
    weights = yule_walker(corpus.correlation(np.arange(1, REACH * lags + 1)))[:lags]
    return PredictiveWeights(weights, np.stack([weights, weights], axis=1), 0.0)


@pytest.mark.parametrize(("beta", "slope"), [(0.6, 0.91), (1.0, 0.97), (1.4, 1.05), (1.8, 1.15)])
def test_of_exact_potts_correlations_they_fall_nearly_as_1_over_d(beta: float, slope: float) -> None:
    corpus = PottsCorpus(beta=beta)
    weights = yule_walker(corpus.correlation(np.arange(1, 4097)))[:256]
    assert log_log_slope(LAGS[1:], weights[1:]) == pytest.approx(slope, abs=0.01)
    assert exact(corpus).slope(2, 256).beta == pytest.approx(slope, abs=0.02), "bands and a shorter reach change little"


@pytest.mark.parametrize(
    "corpus",
    [
        pytest.param(PottsCorpus(beta=0.6, size=500_000, seed=3), marks=pytest.mark.slow),
        PottsCorpus(beta=1.4, size=500_000, seed=3),
        LagCorpus(0.8, 256, 0.3, 16, 500_000, seed=5),
        pytest.param(LagCorpus(1.2, 256, 0.3, 16, 500_000, seed=6), marks=pytest.mark.slow),
    ],
    ids=["potts-0.6", "potts-1.4", "lags-0.8", "lags-1.2"],
)
def test_measured_weights_agree_with_exact_ones(corpus: PottsCorpus | LagCorpus) -> None:
    found, true = predictive_weights(corpus.sequence(), 256), exact(corpus)
    assert found.ridge == 0
    away = (found.values - true.values) / jackknife_error(found.replicates)
    assert np.abs(away).max() < 5.5
    assert away.std() == pytest.approx(1, abs=0.25)
    for limits in ((1, 100), (2, 256)):
        slope = found.slope(*limits)
        assert slope.low < true.slope(*limits).beta < slope.high
        assert slope.high - slope.low < 0.1


def test_bands_are_where_1_over_d_has_their_mean_and_clear_above_noise() -> None:
    weights = 0.2 / LAGS
    bands = PredictiveWeights(weights, np.stack([weights] * 4, axis=1), 0.0).bands(3, 200)
    np.testing.assert_allclose(bands.values, 0.2 / bands.lags, rtol=1e-12)
    assert (bands.edges[0], bands.edges[-1], bands.values[0]) == (3, 201, weights[2])
    np.testing.assert_array_equal(bands.standard_errors(), 0)
    values = np.array([0.2, 0.1, -0.05, 0.04, 0.00005, 0.003] + [0.0] * 58)
    noise = np.random.default_rng(0).standard_normal((64, 40))
    noise -= noise.mean(axis=1, keepdims=True)
    assert PredictiveWeights(values, values[:, None] + 1e-3 * noise / 40, 0.0).bands(1, 6).clear().tolist() == [
        0,
        1,
        3,
        5,
    ]


def test_a_ridge_only_where_the_spectrum_is_below_its_noise() -> None:
    lags = np.arange(1, 65)
    assert noise_ridge(0.5**lags, np.full(64, 1e-3)) == 0
    periodic = 0.999 * np.cos(0.3 * lags)
    ridge, noise = noise_ridge(periodic, np.full(64, 1e-2)), np.sqrt(2 * 64) * 1e-2
    measured = periodic + 1e-2 * np.random.default_rng(0).standard_normal(64)
    assert np.linalg.eigvalsh(toeplitz(np.append(1 + ridge, measured[:-1])))[0] > noise / 2
    shrunk = yule_walker(0.5**lags, ridge=0.1)
    np.testing.assert_allclose(toeplitz(np.append(1.1, 0.5 ** lags[:-1])) @ shrunk, 0.5**lags, atol=1e-12)
    certain = np.tile(np.random.default_rng(0).integers(0, 8, 50, np.uint8), 400)  # singular, beyond what noise shows
    found = predictive_weights(certain, 64)
    assert found.ridge > 0
    assert np.abs(found.values).max() < 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: repeat_correlations(np.arange(120, dtype=np.uint8), 100), "too short for lag 100 in 40 blocks"),
        (lambda: repeat_correlations(np.full(1000, 7, np.uint8), 10), "one symbol only, 7"),
        (lambda: repeat_correlations(np.arange(120, dtype=np.uint8), 10, blocks=2), "blocks must be at least 4"),
        (lambda: yule_walker([1.0, 1.0, 1.0]), "no Yule-Walker solution"),
        (
            lambda: PredictiveWeights(np.full(64, -1.0), np.full((64, 4), -1.0), 0.0).slope(1, 64),
            "0 positive bands, a slope needs 3",
        ),
    ],
)
def test_bad_input_is_refused(call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call()
