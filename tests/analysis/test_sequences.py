"""Sequences of a known law: the bytes are of the law that is stated, and predictors know what they
are given alone.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from mixtures import Mixture

from plkernel.analysis import sequences
from plkernel.analysis.sequences import BLOCK, CHANCES, LagCorpus, MarkovChain, PottsCorpus

POTTS = [
    PottsCorpus(beta=0.5),
    PottsCorpus(beta=1.5, symbols=2, channels=6, base=3.0),
    PottsCorpus(beta=1.0, symbols=256, channels=1, base=50.0),
]
# The longest lifetime, 128 steps, is short against the sequences made of these.
MIXING = PottsCorpus(1.0, symbols=5, channels=8, size=170_000)
PREDICTED = [LagCorpus(longest=20), LagCorpus(alpha=0.5, longest=3, symbols=256), MarkovChain()]
CORPORA = [PottsCorpus(beta=0.5), *PREDICTED]
LAGS = np.array([1, 2, 3, 7, 20, 64, 65])
SEEDS = 12


def pair_law(q, symbols):
    """P(i, j) of a Potts model."""
    return (1 - q) / symbols**2 + q * np.eye(symbols) / symbols


def pair_counts(data, lag, symbols):
    return np.bincount(
        data[:-lag].astype(np.int64) * symbols + data[lag:], minlength=symbols**2
    ).reshape(symbols, -1)


@pytest.mark.parametrize("corpus", POTTS)
def test_information_and_correlation_are_those_of_the_pair_table(corpus):
    lags, symbols = [1, 2, 5, 20], corpus.symbols
    for q, information in zip(
        corpus.correlation(lags), corpus.mutual_information(lags), strict=True
    ):
        law = pair_law(q, symbols).astype(np.longdouble)
        direct = np.sum(law * np.log(law / np.outer(law.sum(1), law.sum(0))))
        assert information == pytest.approx(float(direct), rel=3e-11)
        values = np.linalg.svd(pair_law(q, symbols) * symbols)[1]
        assert values[0] == pytest.approx(1, abs=1e-12)
        np.testing.assert_allclose(values[1:], q, atol=3e-15)


def same_draw(data: np.ndarray, symbols: int) -> np.ndarray:
    """q(d) from how often two symbols are equal: q + (1 - q) / S."""
    equal = np.array([np.mean(data[:-lag] == data[lag:]) for lag in LAGS])
    return (equal - 1 / symbols) / (1 - 1 / symbols)


@pytest.mark.parametrize(
    "corpus",
    [
        Mixture(copies=(0.3, 0.0, 0.2), symbols=4, size=20_000),
        LagCorpus(1.3, 100, 0.2, 8, 200_000),
        LagCorpus(0.0, 40, 0.05, 4, 200_000),
        MIXING,
    ],
)
def test_the_sequences_have_the_correlation_that_is_stated(corpus):
    """The mean over seeds within four of its own standard errors at every lag."""
    found = np.array(
        [same_draw(replace(corpus, seed=seed).sequence(), corpus.symbols) for seed in range(SEEDS)]
    )
    error = found.std(axis=0, ddof=1) / np.sqrt(SEEDS)
    assert np.all(np.abs(found.mean(axis=0) - corpus.correlation(LAGS)) < 4 * error)
    assert np.all(error < 0.01)
    if isinstance(corpus, PottsCorpus):
        wrong = replace(corpus, beta=1.5).correlation(LAGS)
        assert np.any(np.abs(found.mean(axis=0) - wrong) > 7 * error), "another law is noticed"


@pytest.mark.parametrize("corpus", CORPORA)
def test_bytes_are_determined_by_the_seed_in_blocks_and_shorter_ones_are_beginnings(corpus):
    longer = replace(corpus, size=2 * BLOCK + 5)
    data = longer.sequence()
    assert [block.size for block in longer.blocks()] == [BLOCK, BLOCK, 5], (
        "memory does not grow with the size"
    )
    assert data.dtype == np.uint8
    assert set(data) == set(range(corpus.symbols))
    np.testing.assert_array_equal(longer.sequence(), data)
    assert np.mean(replace(longer, seed=1).sequence() == data) < 0.5
    for size in (1, 1000, BLOCK, BLOCK + 1):
        np.testing.assert_array_equal(replace(corpus, size=size).sequence(), data[:size])


@pytest.mark.parametrize(
    "corpus",
    [
        LagCorpus(1.0, 7, 0.3, 3, 2000),
        MarkovChain(3, 0.5, 2000),
        PottsCorpus(0.5, 2, 1500, 0, 4.0, 2),
    ],
)
def test_state_is_carried_across_blocks(corpus, monkeypatch):
    """In blocks of two bytes no pair at lag 2 lies within one."""
    monkeypatch.setattr(sequences, "BLOCK", 2)
    both = [
        same_draw(replace(corpus, seed=seed).sequence(), corpus.symbols)[:2] for seed in range(8)
    ]
    monkeypatch.undo()
    whole = same_draw(replace(corpus, size=400_000).sequence(), corpus.symbols)[:2]
    error = np.std(both, axis=0, ddof=1) / np.sqrt(8)
    assert np.all(np.abs(np.mean(both, axis=0) - whole) < 5 * error)
    assert np.any(np.abs(whole) > 8 * error)


@pytest.mark.parametrize("corpus", [PREDICTED[0], replace(PREDICTED[1], symbols=4), *PREDICTED[2:]])
def test_the_loss_in_the_long_run_is_that_of_the_predictor(corpus):
    """Within four standard errors over pieces of 20 kB, which are long beside the memory."""
    data = replace(corpus, size=400_020, seed=1).sequence()
    pieces = corpus.losses(data[None])[0, 19:].reshape(20, -1).mean(axis=1)
    assert (
        abs(pieces.mean() - corpus.bits_per_byte()) <= 4 * pieces.std(ddof=1) / np.sqrt(20) + 1e-12
    )


@pytest.mark.parametrize("corpus", PREDICTED)
def test_a_prediction_rests_on_what_is_given_alone_and_its_chances_add_up_to_one(corpus):
    windows = replace(corpus, size=40 * 26).sequence().reshape(40, 26)
    whole, part = corpus.losses(windows), corpus.losses(windows, 4)
    assert whole.shape == part.shape == (40, 25)
    np.testing.assert_array_equal(corpus.losses(windows, 1000), whole)
    for first in (3, 24):
        np.testing.assert_array_equal(corpus.losses(windows, 4, first), part[:, first:])
    np.testing.assert_allclose(part[:, :4], whole[:, :4], rtol=1e-12)
    np.testing.assert_allclose(corpus.losses(windows[:, 6:11])[:, 3], part[:, 9], rtol=1e-12)
    other = ((windows.astype(int) + 1) % corpus.symbols).astype(np.uint8)
    other[:, 6:11] = windows[:, 6:11]
    np.testing.assert_allclose(corpus.losses(other, 4)[:, 9], part[:, 9], rtol=1e-12)
    window = np.repeat(windows[:1], corpus.symbols, axis=0)
    window[:, -1] = np.arange(corpus.symbols)
    for given in (0, 1, 2, 10, None):
        assert np.sum(2.0 ** -corpus.losses(window, given)[:, -1]) == pytest.approx(1, abs=1e-9)
    assert corpus.losses(windows[:0]).shape == (0, 25)


TINY = [
    LagCorpus(alpha, longest, (0.01, 0.2, 0.5)[(row + column) % 3], symbols, 10)
    for row, (symbols, longest) in enumerate(((2, 3), (3, 4), (2, 6)))
    for column, alpha in enumerate((0.0, 1.0, 2.0))
]


def words(symbols: int, count: int) -> np.ndarray:
    return np.array(list(product(range(symbols), repeat=count)), np.uint8)


def chances_of_words(mixture: LagCorpus) -> tuple[np.ndarray, np.ndarray]:
    """P of the next byte after each word of K, (S^K, S), and of each word of K + 1, (S,) * (K + 1),
    long after the first byte."""
    symbols, longest, redrawn = mixture.symbols, mixture.longest, mixture.redrawn
    step = np.full((symbols**longest, symbols), redrawn / symbols)
    for number, word in enumerate(words(symbols, longest)):
        for lag, copied in enumerate(mixture.chances, start=1):
            step[number, word[-lag]] += copied
    move = np.zeros((symbols**longest, symbols**longest))
    for number, symbol in product(range(len(move)), range(symbols)):
        move[number, (number * symbols + symbol) % len(move)] = step[number, symbol]
    equations = np.vstack([move.T - np.eye(len(move)), np.ones(len(move))])
    stationary = np.linalg.lstsq(equations, np.eye(len(move) + 1)[-1], rcond=None)[0]
    return step, (stationary[:, None] * step).reshape((symbols,) * (longest + 1))


def bayes(joint: np.ndarray, given: int) -> np.ndarray:
    """-log2 P(last byte | the `given` before it) for each word, from the law of all words."""
    known = joint.sum(axis=tuple(range(joint.ndim - 1 - given)), keepdims=True)
    bits = -np.log2(known / known.sum(axis=-1, keepdims=True))
    return np.broadcast_to(bits, joint.shape).ravel()


@pytest.mark.parametrize("mixture", TINY)
def test_the_predictor_of_a_mixture_is_that_of_bayes(mixture):
    """Exactly with no byte given, one, or all that are copied from; on average nearly, and never
    better, between.
    """
    longest = mixture.longest
    step, joint = chances_of_words(mixture)
    windows = words(mixture.symbols, longest + 1)
    np.testing.assert_allclose(mixture.losses(windows)[:, -1], -np.log2(step.ravel()), rtol=1e-7)
    for given in range(longest + 1):
        losses, best = mixture.losses(windows, given)[:, -1], bayes(joint, given)
        if given in (0, 1, longest):
            np.testing.assert_allclose(losses, best, rtol=1e-7)
        assert -1e-9 < joint.ravel() @ (losses - best) < 2e-5
    if mixture == TINY[1]:
        entropy = joint.ravel() @ bayes(joint, longest)
        assert mixture.bits_per_byte() == pytest.approx(entropy, abs=0.01)


def test_a_byte_that_is_no_symbol_counts_as_not_known():
    corpus = LagCorpus(longest=3, symbols=4)
    window = np.array([[200, 1, 2, 1, 3]], np.uint8)
    np.testing.assert_allclose(
        corpus.losses(window)[:, 3:], corpus.losses(window[:, 1:])[:, 2:], rtol=1e-12
    )
    assert corpus.losses(window)[0, 0] == pytest.approx(2)


def test_a_markov_chain_has_its_transitions_their_information_and_entropy():
    """Given how often each state is left, the counts are multinomial: every z below 5, the most in
    two to the 20th.
    """
    chain = MarkovChain(4, 0.5, 1_000_000)
    step = chain.transitions / CHANCES
    counts = pair_counts(chain.sequence(), 1, 4)
    left = counts.sum(axis=1, keepdims=True)
    assert np.abs((counts - left * step) / np.sqrt(left * step * (1 - step))).max() < 5
    law = chain.stationary[:, None] * np.linalg.matrix_power(step, 2)
    np.testing.assert_allclose(
        pair_counts(chain.sequence(), 2, 4) / (chain.size - 2), law, atol=0.01
    )
    expected = np.sum(law * np.log(law / np.outer(law.sum(axis=1), law.sum(axis=0))))
    assert chain.mutual_information([2])[0] == pytest.approx(expected, rel=1e-9)
    assert chain.mutual_information([500])[0] == 0
    two = chain.stationary[:, None] * step
    three = two[:, :, None] * step
    rate = np.sum(two * np.log2(two)) - np.sum(
        three * np.log2(three)
    )  # H(x_1, x_2, x_3) - H(x_1, x_2)
    assert chain.bits_per_byte() == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize(("symbols", "spread"), [(4, 0.05), (15, 0.01), (16, 0.01), (18, 0.05)])
def test_states_that_a_chain_leaves_for_good_do_not_hide_the_information_of_the_others(
    symbols: int, spread: float
) -> None:
    """By the law of a chain that has run for long, state by state."""
    chain = MarkovChain(symbols, spread, 1000)
    assert chain.stationary.min() == 0
    step = chain.transitions / CHANCES
    shares = np.linalg.matrix_power(step, 1 << 20)[0]
    shares /= shares.sum()
    for lag, found in zip((1, 2, 5), chain.mutual_information([1, 2, 5]), strict=True):
        law = shares[:, None] * np.linalg.matrix_power(step, lag)
        seen = law > 1e-200
        nats = np.sum(law[seen] * np.log(law[seen] / np.outer(shares, shares)[seen]))
        assert found == pytest.approx(nats, rel=1e-8, abs=1e-13)
    assert chain.mutual_information([1])[0] > 1e-3


@pytest.mark.parametrize(
    ("alpha", "shortest"), [(60.0, 5), (1000.0, 5), (77.0, 16_000), (1e308, 2)], ids=str
)
def test_copies_have_their_law_where_its_powers_are_too_small(alpha: float, shortest: int) -> None:
    """The chance of a lag over that of the shortest is (lag / shortest)**-alpha; so is 0 of 1e308.

    Powers from 1e-308 down have too few digits.
    """
    corpus = LagCorpus(alpha, shortest + 40, 0.2, shortest=shortest, size=1000)
    lags = np.arange(shortest, shortest + 41)
    first = corpus.chances[shortest - 1]
    np.testing.assert_allclose(
        corpus.chances[shortest - 1 :] / first, (lags / shortest) ** -alpha, rtol=1e-12
    )
    assert corpus.chances[: shortest - 1].sum() == 0
    assert corpus.chances.sum() == pytest.approx(0.8)
    assert set(corpus.sequence()) == set(range(16))


@pytest.mark.parametrize("corpus", [LagCorpus(), MarkovChain()])
def test_what_is_predicted_is_of_the_corpus(corpus):
    with pytest.raises(
        ValueError, match=r"windows must hold bytes of this corpus, 0\.\.15, got byte 255"
    ):
        corpus.losses(np.full((1, 3), 255, np.uint8))


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (PottsCorpus, {"beta": 0.0}, "beta must be a positive number"),
        (PottsCorpus, {"beta": float("nan")}, "beta must be .*, got nan"),
        (
            PottsCorpus,
            {"beta": 1, "symbols": 1},
            "symbols must be a whole number from 2 to 256",
        ),
        (PottsCorpus, {"beta": 1, "symbols": 4.0}, "symbols must be .*, got 4.0"),
        (PottsCorpus, {"beta": 1, "size": 0}, "size must be a whole number of at least 1"),
        (PottsCorpus, {"beta": 1, "seed": -1}, "seed must be a whole number of at least 0"),
        (PottsCorpus, {"beta": 1, "base": 1.0}, "base must be above 1"),
        (
            PottsCorpus,
            {"beta": 1, "channels": 257},
            "channels must be a whole number from 1 to 256",
        ),
        (LagCorpus, {"alpha": -1.0}, "alpha must be a number of at least 0"),
        (LagCorpus, {"longest": 0}, "longest must be a whole number from 1 to 16384"),
        (LagCorpus, {"redrawn": 1.0}, "redrawn must be from 0.01 to below 1"),
        (MarkovChain, {"spread": 0.0}, "spread must be from 0.01 to 1000"),
        (
            MarkovChain,
            {"symbols": 8, "spread": 0.01},
            "spread must be larger with 8 symbols",
        ),
    ],
)
def test_bad_parameters_are_named(kind, values, message):
    with pytest.raises(ValueError, match=message):
        kind(**values)


def test_the_first_bytes_have_the_law_of_all_others(monkeypatch):
    """Copies of copies reach 10,000 bytes back here, so that a sequence which began shortly before
    its first byte would have too few pairs alike. The mean over seeds, within four of its own
    standard errors.
    """
    monkeypatch.setattr(sequences, "BLOCK", 2048)
    corpus = LagCorpus(alpha=0.0, longest=200, redrawn=0.01, symbols=256, size=2048)
    found = []
    for seed in range(100):
        data = replace(corpus, seed=seed).sequence()
        found.append(same_draw(data, corpus.symbols)[:3])
    error = np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
    expected = corpus.correlation(LAGS[:3])
    assert np.all(np.abs(np.mean(found, axis=0) - expected) < 4 * error)
    assert np.all(expected > 12 * error), "a third less would be noticed"
