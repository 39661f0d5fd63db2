"""Curves of sequences of known information: right, with honest intervals, and independent of how
they are made.
"""

import numpy as np
import pytest

from plkernel.analysis.information import estimate as module
from plkernel.analysis.information.counts import block_edges, count_pairs
from plkernel.analysis.information.estimate import (
    decay_curves,
    expected_information,
    log_lags,
    mutual_information,
)
from plkernel.analysis.sequences import LagCorpus, PottsCorpus

LAGS = log_lags(500, 24)


def sequence(corpus):
    return np.concatenate(list(corpus.blocks()))


@pytest.fixture(scope="module")
def known():
    data = sequence(PottsCorpus(beta=1.0, size=300_000))
    return data, decay_curves(data, LAGS)


@pytest.mark.slow
def test_intervals_cover_the_exact_curve_as_often_as_they_say():
    """Sixteen seeds of 1 MB at 24 lags each: their mean coverage, and the mean error against its
    own spread.
    """
    covered, errors = [], []
    for seed in range(16):
        corpus = PottsCorpus(beta=1.0, size=1_000_000, seed=seed)
        curve, _ = decay_curves(sequence(corpus), LAGS)
        exact = corpus.mutual_information(LAGS)
        low, high = curve.interval()
        covered.append((low <= exact) & (exact <= high))
        errors.append((np.array(curve.values) - exact) / curve.standard_errors())
    assert 0.90 <= np.mean(covered) <= 0.99
    assert 0.8 < np.std(errors) < 1.2
    assert (
        np.mean(np.abs(errors) < 1.0) < 0.8
    )  # were the intervals half as wide, the test would see it


def test_the_shuffle_correction_takes_away_the_information_of_a_shuffled_corpus(known):
    data = np.random.default_rng(0).permutation(known[0])
    information, correlation = decay_curves(data, LAGS, estimator="shuffle")
    plugin, _ = decay_curves(data, LAGS, estimator="plugin")
    np.testing.assert_allclose(
        np.subtract(plugin.values, information.values), plugin.floor, rtol=1e-9
    )
    assert abs(np.mean(information.values)) < 3 * np.std(information.values) / np.sqrt(LAGS.size)
    assert np.mean(plugin.values) > 5 * np.std(plugin.values)
    assert abs(np.mean(correlation.values)) < 0.25 * correlation.floor[0]
    assert information.floor[0] == pytest.approx(expected_information(np.bincount(data)), rel=1e-4)


def test_correlation_is_q_of_the_potts_corpus():
    """2 MB: within 10 % at each lag above the floor; the largest singular value itself is up to a
    third too large.
    """
    corpus = PottsCorpus(beta=1.0, size=2_000_000)
    _, correlation = decay_curves(sequence(corpus), LAGS)
    clear = np.array(correlation.values) > np.array(correlation.floor)
    assert clear.sum() >= 12
    np.testing.assert_allclose(
        np.array(correlation.values)[clear], corpus.correlation(LAGS)[clear], rtol=0.1
    )


def test_far_lags_of_dependent_symbols_are_right_and_without_the_jackknife_too_high():
    """Mixtures of lags, 200 kB each: the mean of 8 seeds at lags 200..400, against its own standard
    error.
    """
    lags = np.array([200, 280, 400])
    means = {"jackknife": [], "shuffle": []}
    for seed in range(8):
        mixture = LagCorpus(1.3, 400, 0.1, 32, 200_000, seed)
        for estimator, values in means.items():
            values.append(
                np.mean(decay_curves(mixture.sequence(), lags, estimator=estimator)[0].values)
            )
    exact = np.mean(mixture.mutual_information(lags))
    z = {
        name: (np.mean(v) - exact) / (np.std(v, ddof=1) / np.sqrt(len(v)))
        for name, v in means.items()
    }
    assert abs(z["jackknife"]) < 4, z
    assert z["shuffle"] > 8, z


def test_independent_symbols_many_of_them_rare_have_no_information():
    """64 symbols of shares ~ 1/i^1.3, 50 kB; a jackknife of the plug-in alone leaves 0.1 floors."""
    shares = np.arange(1, 65) ** -1.3
    lags = np.array([50, 100, 150, 200])
    values = []
    for seed in range(4):
        data = (
            np.random.default_rng(seed).choice(64, 50_000, p=shares / shares.sum()).astype(np.uint8)
        )
        curve, _ = decay_curves(data, lags, blocks=10)
        values.append(np.mean(curve.values) / curve.floor[0])
    error = np.std(values, ddof=1) / np.sqrt(4)
    assert abs(np.mean(values)) < 4 * error < 0.1


def test_replicates_are_the_estimates_without_a_block(known):
    data = known[0][:50_000]
    lags = LAGS[::4]
    information, _ = decay_curves(data, lags, estimator="shuffle")
    cut = block_edges(data.size, int(lags[-1]), 40)
    for block in (0, 17):
        left = np.delete(count_pairs(data, lags, edges=cut), block, axis=1).sum(
            axis=1, dtype=np.int64
        )
        remaining = np.bincount(data) - np.bincount(data[cut[block] : cut[block + 1]], minlength=16)
        floor = expected_information(remaining) * remaining.sum() / left.sum(axis=(-2, -1))
        expected = mutual_information(left) - floor
        np.testing.assert_allclose(
            np.array(information.replicates)[:, block], expected, rtol=1e-9, atol=1e-15
        )


def test_the_curve_depends_neither_on_threads_nor_on_passes(known, monkeypatch):
    data = known[0]
    told = []
    once = known[1]
    monkeypatch.setattr(module, "TABLE_BYTES", 5 * 40 * 16**2 * 4)  # five lags at a time
    assert decay_curves(data, LAGS, threads=2, progress=told.append) == once
    assert sum(told) == pytest.approx(1)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (np.zeros(5000, np.uint8), {}, "two different symbols or more, got one symbol only"),
        (np.arange(200, dtype=np.uint8), {"lags": [1, 180]}, "at least 220 symbols"),
        (np.arange(200, dtype=np.uint8), {"lags": [3, 2]}, r"got \[3, 2\]"),
        (
            np.arange(200, dtype=np.uint8),
            {"lags": [0, 1]},
            r"lags must be 1 or more and ascend without repeats, got",
        ),
        (np.arange(200, dtype=np.uint8), {"lags": []}, "list of integers"),
        (np.arange(200), {}, "vector of uint8, got int64"),
        (np.arange(200, dtype=np.uint16), {}, "vector of uint8, got uint16"),
        (b"bytes", {}, "got bytes; np.frombuffer"),
        (
            np.arange(200, dtype=np.uint8),
            {"estimator": "best"},
            "must be one of jackknife, shuffle, plugin",
        ),
        (
            np.arange(200, dtype=np.uint8),
            {"blocks": 3},
            "blocks must be at least 4 for a jackknife, got 3",
        ),
    ],
)
def test_bad_input_is_refused(data, options, message):
    with pytest.raises(ValueError, match=message):
        decay_curves(data, **{"lags": [1, 2], **options})
