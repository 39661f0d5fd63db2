"""How often symbols return: against a plain count, the jackknife spelled out, and sequences of known correlation."""

from itertools import pairwise

import numpy as np
import pytest

from plkernel.analysis.mutual_information.pair_counts import block_edges
from plkernel.analysis.prediction.repeats import repeat_correlations
from plkernel.analysis.sequences.lags import LagMixture, decaying_copies


def test_it_is_the_autocorrelation_of_indicator_vectors() -> None:
    """Without its correction of bias, which shrinks as 1/n: against the vectors themselves, in 5 blocks."""
    data = np.random.default_rng(1).choice(5, 3000, p=(0.4, 0.3, 0.15, 0.1, 0.05)).astype(np.uint8)
    data[1000:] = np.where(data[1000:] > 2, data[997:-3], data[1000:])
    edges = block_edges(data.size, 7, 5)
    vectors = np.eye(5)[data]

    def plain(kept: np.ndarray, lag: int) -> float:
        at = np.flatnonzero(kept[: data.size - lag])
        pairs, chance = np.sum(vectors[at] * vectors[at + lag], axis=1).mean(), np.sum(vectors[kept].mean(axis=0) ** 2)
        return float((pairs - chance) / (1 - chance))

    positions = np.arange(data.size)
    masks = [np.ones(data.size, bool), *(~((a <= positions) & (positions < b)) for a, b in pairwise(edges))]
    for lag, row in zip(range(1, 8), repeat_correlations(data, 7, blocks=5), strict=True):
        value, *left = (plain(mask, lag) for mask in masks)
        sizes = np.diff(np.minimum(edges, data.size - lag))
        unbiased = 5 * value - np.sum((1 - sizes / sizes.sum()) * left)
        assert row[0] == pytest.approx(unbiased, abs=1e-12)


def test_threads_change_nothing() -> None:
    data = LagMixture(decaying_copies(1.0, 16, 0.4), 4, 40_000).sequence()
    shares: list[float] = []
    alone = repeat_correlations(data, 20, progress=shares.append)
    assert sum(shares) == pytest.approx(1)
    np.testing.assert_array_equal(alone, repeat_correlations(data, 20, threads=3))


@pytest.mark.parametrize("symbols", [2, 16])
def test_a_mixture_of_lags_has_its_exact_correlations(symbols: int) -> None:
    corpus = LagMixture(decaying_copies(1.0, 64, 0.4), symbols, 400_000, seed=2)
    found = repeat_correlations(corpus.sequence(), 128)
    blocks = found.shape[1] - 1
    errors = np.sqrt((blocks - 1) * found[:, 1:].var(axis=1))
    away = (found[:, 0] - corpus.correlation(np.arange(1, 129))) / errors
    assert np.abs(away).max() < 5
    assert 0.5 < away.std() < 1.5


def test_no_memory_has_no_floor() -> None:
    data = np.random.default_rng(0).integers(0, 200, 200_000, np.uint8)
    found = repeat_correlations(data, 100)[:, 0]
    assert abs(found.mean()) < 4 * found.std() / 10
    assert found.min() < 0 < found.max()


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(ValueError, match="too short for lag 100 in 40 blocks"):
        repeat_correlations(np.arange(120, dtype=np.uint8), 100)
    with pytest.raises(ValueError, match="one symbol only, 7"):
        repeat_correlations(np.full(1000, 7, np.uint8), 10)
    with pytest.raises(ValueError, match="blocks must be at least 4"):
        repeat_correlations(np.arange(120, dtype=np.uint8), 10, blocks=2)
