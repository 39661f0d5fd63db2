"""The exact curve against sums over the pair table, and the sequence against the exact curve."""

from dataclasses import replace

import numpy as np
import pytest

from plkernel.analysis.sequences import potts
from plkernel.analysis.sequences.potts import PottsCorpus, potts_information

UNEQUAL = (0.4, 0.25, 0.2, 0.1, 0.05)
CORPORA = [
    PottsCorpus(beta=0.5),
    PottsCorpus(beta=1.5, symbols=2, channels=6, base=3.0),
    PottsCorpus(beta=1.0, symbols=5, probabilities=UNEQUAL),
    PottsCorpus(beta=1.0, symbols=256, channels=1, base=50.0),
]
# The longest lifetime, 128 steps, is short against the sequences made of these.
MIXING = [PottsCorpus(0.5, channels=8), PottsCorpus(1.0, symbols=5, channels=8, probabilities=UNEQUAL)]
LAGS = np.array([1, 2, 5, 20, 100, 500])


def pair_law(q, shares):
    """P(i, j) of the definition."""
    return (1 - q) * np.outer(shares, shares) + q * np.diag(shares)


def sequence(corpus):
    return np.concatenate(list(corpus.blocks()))


def pair_shares(data, lag, symbols):
    codes = data[:-lag].astype(np.int64) * symbols + data[lag:]
    return np.bincount(codes, minlength=symbols**2).reshape(symbols, symbols) / codes.size


@pytest.mark.parametrize("corpus", CORPORA)
def test_information_is_the_sum_over_the_pair_table(corpus):
    lags = LAGS[:4]
    for q, information in zip(corpus.correlation(lags), corpus.mutual_information(lags), strict=True):
        law = pair_law(q, corpus.shares).astype(np.longdouble)
        direct = np.sum(law * np.log(law / np.outer(law.sum(1), law.sum(0))))
        assert information == pytest.approx(float(direct), rel=3e-11)


@pytest.mark.parametrize("corpus", CORPORA)
def test_information_is_the_formula_as_it_is_usually_written(corpus):
    p, q = corpus.shares, np.linspace(0.05, 0.95, 10)[:, None]
    own = q + (1 - q) * p
    usual = (p * own * np.log(own / p)).sum(1) + (1 - p @ p) * ((1 - q) * np.log1p(-q))[:, 0]
    np.testing.assert_allclose(potts_information(q[:, 0], p), usual, rtol=1e-12)


def test_a_tiny_information_keeps_its_digits_where_the_usual_formula_loses_them():
    shares = np.array(UNEQUAL)
    q = np.array([1e-6, 1e-9, 1e-12])
    # To second order I = q**2 (symbols - 1) / 2, half the sum of the squared singular values.
    np.testing.assert_allclose(potts_information(q, shares), q**2 * 4 / 2, rtol=1e-5)
    own = q[2] + (1 - q[2]) * shares
    usual = shares @ (own * np.log1p(q[2] * (1 - shares) / shares)) + (1 - shares @ shares) * np.log1p(-q[2])
    assert abs(usual / (2 * q[2] ** 2) - 1) > 0.1


def test_information_is_smooth_where_its_two_evaluations_meet():
    q = 2 * potts.SMALL * np.array([0.5 - 1e-12, 0.5 + 1e-12])
    below, above = potts_information(q, np.array([0.5, 0.5]))
    assert above / below - 1 == pytest.approx(8e-12, abs=6e-13)


@pytest.mark.parametrize("corpus", CORPORA)
def test_every_singular_value_but_the_first_is_the_correlation(corpus):
    for lag, q in zip(LAGS[:3], corpus.correlation(LAGS[:3]), strict=True):
        values = np.linalg.svd(pair_law(q, corpus.shares) / np.sqrt(np.outer(corpus.shares, corpus.shares)))[1]
        assert values[0] == pytest.approx(1, abs=1e-12), lag
        np.testing.assert_allclose(values[1:], q, atol=3e-15)


def test_the_slope_is_steeper_than_the_nominal_one_over_a_finite_range():
    lags = np.geomspace(1, 500, 200)
    slopes = [
        -np.polyfit(np.log(lags), np.log(PottsCorpus(beta).mutual_information(lags)), 1)[0]
        for beta in (0.5, 1.0, 1.5, 2.0)
    ]
    assert slopes == pytest.approx([0.635, 1.021, 1.465, 1.933], abs=0.001)


def test_far_from_both_ends_the_slope_is_the_nominal_one():
    corpus = PottsCorpus(beta=1.2, base=1.5, channels=80)
    lags = np.geomspace(1e5, 1e7, 50)
    assert -np.polyfit(np.log(lags), np.log(corpus.correlation(lags)), 1)[0] == pytest.approx(0.6, abs=0.003)
    assert -np.polyfit(np.log(lags), np.log(corpus.mutual_information(lags)), 1)[0] == pytest.approx(1.2, abs=0.01)


def covariances(table):
    """P(i, j) - P(i) P(j): the fluctuations of the shares, large when channels are slow, drop out."""
    return table - np.multiply.outer(table.sum(1), table.sum(0))


def scores(corpus, truth, lags, seeds=24):
    """Student's t (seeds - 1 degrees) of each covariance at `lags` against the exact one of `truth`, (L, S, S).

    Pairs within one sequence depend on each other: only independent sequences tell the error.
    """
    measured = [
        [covariances(pair_shares(data, lag, corpus.symbols)) for lag in lags]
        for data in (sequence(replace(corpus, size=170_000, seed=seed)) for seed in range(seeds))
    ]
    exact = [covariances(pair_law(q, truth.shares)) for q in truth.correlation(lags)]
    error = np.std(measured, axis=0, ddof=1) / np.sqrt(seeds)
    return (np.mean(measured, axis=0) - exact) / error


@pytest.mark.parametrize("corpus", MIXING)
def test_four_megabytes_have_the_exact_pair_table(corpus):
    t = scores(corpus, corpus, [1, 3, 20, 150])
    # With 23 degrees of freedom the variance of t is 23/21, and 5.5 is passed by one value of 75 000.
    assert np.abs(t).max() < 5.5
    assert np.mean(t**2) == pytest.approx(23 / 21, abs=0.3)


def test_the_comparison_tells_another_beta_and_other_probabilities_apart():
    corpus = MIXING[1]
    for other in (replace(corpus, beta=1.5), replace(corpus, probabilities=None)):
        assert np.abs(scores(corpus, other, [1, 20])).max() > 7


def test_the_mean_shares_are_the_probabilities():
    counts = np.bincount(sequence(replace(MIXING[1], size=4_000_000)), minlength=5)
    np.testing.assert_allclose(counts / 4_000_000, UNEQUAL, atol=0.003)


def test_state_is_carried_across_blocks(monkeypatch):
    """With blocks of two bytes no pair at lag 2 lies within one, and nearly every gap of a channel spans several."""
    monkeypatch.setattr(potts, "BLOCK", 2)
    corpus = PottsCorpus(0.5, symbols=2, size=2_000, base=4.0, channels=2)
    tables = [pair_shares(sequence(replace(corpus, seed=seed)), 2, 2) for seed in range(8)]
    correlations = [4 * covariances(table)[0, 0] for table in tables]
    error = np.std(correlations, ddof=1) / np.sqrt(len(correlations))
    exact = corpus.correlation([2])[0]
    assert abs(np.mean(correlations) - exact) < 4 * error < exact / 4


def test_rare_symbols_are_drawn_as_by_a_search_for_each():
    shares = np.random.default_rng(0).pareto(0.3, 256)
    shares /= shares.sum()
    drawn = potts._draw(np.random.default_rng(1), shares, 100_000)
    searched = np.searchsorted(np.cumsum(shares)[:-1], np.random.default_rng(1).random(100_000), side="right")
    np.testing.assert_array_equal(drawn, searched)
    assert np.sum(shares < 1 / potts.CELLS) > 100


def test_bytes_are_determined_by_the_seed():
    corpus = PottsCorpus(beta=0.5, size=300_001)
    first = sequence(corpus)
    assert first.dtype == np.uint8
    assert first.size == corpus.size
    assert set(first) == set(range(16))
    np.testing.assert_array_equal(sequence(corpus), first)
    other = sequence(PottsCorpus(beta=0.5, size=300_001, seed=1))
    assert np.mean(other == first) == pytest.approx(1 / 16, abs=0.01)


@pytest.mark.parametrize("size", [1, 1000, potts.BLOCK, potts.BLOCK + 1])
def test_a_shorter_sequence_is_the_beginning_of_a_longer_one(size):
    longer = sequence(PottsCorpus(beta=1.0, size=2 * potts.BLOCK + 5))
    np.testing.assert_array_equal(sequence(PottsCorpus(beta=1.0, size=size)), longer[:size])


def test_memory_does_not_grow_with_the_size():
    assert max(block.size for block in PottsCorpus(beta=1.0, size=1_000_000).blocks()) == potts.BLOCK


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"beta": 0.0}, "beta = 0.0: must be a positive number"),
        ({"beta": float("nan")}, "beta = nan"),
        ({"beta": float("inf")}, "beta = inf"),
        ({"symbols": 1}, "symbols = 1: must be a whole number from 2 to 256"),
        ({"symbols": 257}, "symbols = 257"),
        ({"symbols": 4.0}, "symbols = 4.0"),
        ({"size": 0}, "size = 0: must be a whole number of at least 1"),
        ({"seed": -1}, "seed = -1: must be a whole number of at least 0"),
        ({"base": 1.0}, "base = 1.0: must be above 1"),
        ({"channels": 0}, "channels = 0: must be a whole number from 1 to 50"),
        ({"channels": 51}, "channels = 51"),
        ({"base": 1.001, "channels": 257}, "channels = 257: must be a whole number from 1 to 256"),
        ({"probabilities": (0.5, 0.5)}, "number of probabilities = 2: must be symbols, 16"),
        ({"symbols": 2, "probabilities": (0.0, 1.0)}, "smallest probability = 0.0"),
        ({"symbols": 2, "probabilities": (0.5, 0.4)}, "sum of probabilities = 0.9"),
    ],
)
def test_bad_parameters_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        PottsCorpus(**{"beta": 1.0, **values})


@pytest.mark.parametrize("lags", [[0], [[1]], [float("nan")], 3])
def test_bad_lags_are_refused(lags):
    with pytest.raises(ValueError, match="lags must be a vector of numbers from 1 on"):
        PottsCorpus(beta=1.0).mutual_information(lags)
