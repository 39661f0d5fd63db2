import json

import numpy as np
import pytest

from plkernel.analysis import mutual_information
from plkernel.analysis.information import ESTIMATORS, expected_information
from plkernel.analysis.mutual_information import DecayCurve, decay_curves, log_lags
from plkernel.analysis.pair_counts import count_pairs
from plkernel.analysis.potts import PottsCorpus

LAGS = log_lags(500, 24)


def sequence(corpus):
    return np.concatenate(list(corpus.blocks()))


@pytest.fixture(scope="module")
def known():
    corpus = PottsCorpus(beta=1.0, size=300_000)
    return corpus, sequence(corpus), decay_curves(sequence(corpus), LAGS)


def test_intervals_cover_the_exact_curve_as_often_as_they_say():
    """Sixteen seeds of 1 MB at 24 lags each: their mean coverage, and the mean error against its own spread."""
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
    narrow = np.mean(np.abs(errors) < 1.0)  # were the intervals half as wide, the test would see it
    assert narrow < 0.8


def test_the_shuffle_correction_takes_away_what_a_shuffled_corpus_shows(known):
    data = np.random.default_rng(0).permutation(known[1])
    information, correlation = decay_curves(data, LAGS)
    plugin, _ = decay_curves(data, LAGS, estimator="plugin")
    np.testing.assert_allclose(np.subtract(plugin.values, information.values), plugin.floor, rtol=1e-9)
    assert abs(np.mean(information.values)) < 3 * np.std(information.values) / np.sqrt(LAGS.size)
    assert np.mean(plugin.values) > 5 * np.std(plugin.values)
    assert abs(np.mean(correlation.values)) < 0.25 * correlation.floor[0]
    assert information.floor[0] == pytest.approx(expected_information(np.bincount(data)), rel=1e-4)


def test_correlation_is_q_of_the_potts_corpus():
    """2 MB: within 10 % at each lag above the floor; the largest singular value itself is up to a third too large."""
    corpus = PottsCorpus(beta=1.0, size=2_000_000)
    _, correlation = decay_curves(sequence(corpus), LAGS)
    clear = np.array(correlation.values) > np.array(correlation.floor)
    assert clear.sum() >= 12
    np.testing.assert_allclose(np.array(correlation.values)[clear], corpus.correlation(LAGS)[clear], rtol=0.1)


def test_replicates_are_the_estimates_without_a_block(known):
    _, data, (information, _) = known
    cut = mutual_information.block_edges(data.size, int(LAGS[-1]), 40)
    for block in (0, 17):
        counts = count_pairs(data, LAGS, edges=cut)
        left = np.delete(counts.tables, block, axis=1).sum(axis=1, dtype=np.int64)
        plugin = mutual_information.mutual_information(left)
        remaining = np.bincount(data) - np.bincount(data[cut[block] : cut[block + 1]], minlength=16)
        floor = expected_information(remaining) * data.size / (data.size - LAGS)
        np.testing.assert_allclose(np.array(information.replicates)[:, block], plugin - floor, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_curve_depends_neither_on_threads_nor_on_passes(known, monkeypatch, estimator):
    _, data, _ = known
    once = decay_curves(data, LAGS, estimator=estimator)
    monkeypatch.setattr(mutual_information, "TABLE_BYTES", 5 * 40 * 16**2 * 4)  # five lags at a time
    assert decay_curves(data, LAGS, estimator=estimator, threads=2) == once


def test_a_curve_reads_back_equal_from_json(known):
    for curve in known[2]:
        assert DecayCurve.from_dict(json.loads(json.dumps(curve.to_dict()))) == curve
    with pytest.raises(ValueError, match="not a decay curve"):
        DecayCurve.from_dict({"lags": [1]})


def test_progress_adds_up_to_one(known):
    told = []
    decay_curves(known[1], LAGS, progress=told.append)
    assert sum(told) == pytest.approx(1)


def test_a_part_of_the_lags_is_the_curve_there(known):
    curve = known[2][0]
    part = curve.at([1, 3, 4])
    assert part.lags == (1, 3, 4)
    assert part.values == tuple(curve.values[curve.lags.index(lag)] for lag in (1, 3, 4))
    assert len(part.replicates) == len(part.floor) == 3


def test_log_lags_are_different_integers_up_to_the_longest():
    lags = log_lags(1000, 64)
    assert (lags[0], lags[-1]) == (1, 1000)
    assert np.all(np.diff(lags) >= 1)
    with pytest.raises(ValueError, match="got 1 and 64"):
        log_lags(1)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (np.zeros(5000, np.uint8), {}, "one symbol only, 0"),
        (np.arange(200, dtype=np.uint8), {"lags": [1, 300]}, "200 symbols, which is too short for lag 300"),
        (np.arange(200, dtype=np.uint8), {"lags": [1, 180]}, "give at least 220"),
        (np.arange(200, dtype=np.uint8), {"lags": [3, 2]}, "got 3 before 2"),
        (np.arange(200, dtype=np.uint8), {"estimator": "best"}, "must be one of shuffle, plugin"),
        (np.arange(200, dtype=np.uint8), {"blocks": 3}, "at least 4 for a jackknife of either half, got 3"),
        (np.zeros(0, np.uint8), {"lags": [1]}, "too short"),
    ],
)
def test_bad_input_is_refused(data, options, message):
    with pytest.raises(ValueError, match=message):
        decay_curves(data, **{"lags": [1, 2], **options})
