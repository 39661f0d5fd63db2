"""Mixtures of lags against the Markov chain of all words of K bytes, enumerated."""

import hashlib
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.linalg import solve_toeplitz

from plkernel.analysis.sequences.lags import (
    LagCorpus,
    LagMixture,
    decaying_copies,
    linear_weights,
    power_law_copies,
)

TINY = [
    LagMixture(decaying_copies(alpha, longest, redrawn), symbols, 10)
    for symbols, longest in ((2, 3), (3, 4), (2, 6))
    for alpha in (0.0, 1.0, 2.0)
    for redrawn in (0.01, 0.2, 0.5)
]


def words(symbols: int, count: int) -> np.ndarray:
    return np.array(list(product(range(symbols), repeat=count)), np.uint8)


def chances_of_words(mixture: LagMixture) -> tuple[np.ndarray, np.ndarray]:
    """P of the next byte after each word of K, (S^K, S), and of each word of K + 1, (S,) * (K + 1), long after the
    first byte."""
    symbols, longest, redrawn = mixture.symbols, len(mixture.copies), 1 - sum(mixture.copies)
    step = np.full((symbols**longest, symbols), redrawn / symbols)
    for number, word in enumerate(words(symbols, longest)):
        for lag, copied in enumerate(mixture.copies, start=1):
            step[number, word[-lag]] += copied
    move = np.zeros((symbols**longest, symbols**longest))
    for number in range(len(move)):
        for symbol in range(symbols):
            move[number, (number * symbols + symbol) % len(move)] = step[number, symbol]
    stationary = np.linalg.lstsq(
        np.vstack([move.T - np.eye(len(move)), np.ones(len(move))]), np.eye(len(move) + 1)[-1], rcond=None
    )[0]
    return step, (stationary[:, None] * step).reshape((symbols,) * (longest + 1))


def bayes(joint: np.ndarray, given: int) -> np.ndarray:
    """-log2 P(last byte | the `given` before it) for each word, from the law of all words."""
    known = joint.sum(axis=tuple(range(joint.ndim - 1 - given)), keepdims=True)
    bits = -np.log2(known / known.sum(axis=-1, keepdims=True))
    return np.broadcast_to(bits, joint.shape).ravel()


@pytest.mark.parametrize("mixture", TINY)
def test_the_predictor_is_that_of_bayes(mixture):
    """Exactly with no byte given, one, or all that are copied from; on average nearly, and never better, between."""
    longest = len(mixture.copies)
    step, joint = chances_of_words(mixture)
    windows = words(mixture.symbols, longest + 1)
    np.testing.assert_allclose(mixture.losses(windows)[:, -1], -np.log2(step.ravel()), rtol=1e-7)
    for given in range(longest + 1):
        losses, best = mixture.losses(windows, given)[:, -1], bayes(joint, given)
        if given in (0, 1, longest):
            np.testing.assert_allclose(losses, best, rtol=1e-7)
        assert -1e-9 < joint.ravel() @ (losses - best) < 2e-5


def test_copies_from_further_back_spread_evenly_would_be_no_floor():
    """The simpler formula, which the comparison above would tell apart."""
    mixture = LagMixture(decaying_copies(1.0, 3, 0.2), 2, 10)
    _, joint = chances_of_words(mixture)
    windows = words(2, 4)
    even = 0.5 + mixture.copies[0] * ((windows[:, -2] == windows[:, -1]) - 0.5)
    assert joint.ravel() @ (-np.log2(even) - bayes(joint, 1)) == pytest.approx(0.0548, abs=1e-4)


@pytest.mark.parametrize("mixture", TINY[:9:4])
def test_the_entropy_in_the_long_run_is_that_of_the_chain_of_words(mixture):
    _, joint = chances_of_words(mixture)
    entropy = joint.ravel() @ bayes(joint, len(mixture.copies))
    assert mixture.bits_per_byte() == pytest.approx(entropy, abs=0.01)


@pytest.mark.parametrize("corpus", [LagCorpus(), LagCorpus(0.5, 40, 0.05, 4)])
def test_another_predictor_loses_more(corpus):
    """Each by more than three standard errors of the difference, over 20 pieces of 5 kB."""
    data = next(replace(corpus, size=100_001).blocks())[None]
    true = corpus.losses(data)
    others = [
        replace(corpus, alpha=corpus.alpha + 0.3),
        replace(corpus, alpha=corpus.alpha - 0.3),
        replace(corpus, redrawn=corpus.redrawn * 1.4),
        replace(corpus, redrawn=corpus.redrawn * 0.7),
        replace(corpus, longest=corpus.longest // 2),
        replace(corpus, longest=corpus.longest * 2),
    ]
    for other in others:
        more = (other.losses(data) - true).reshape(20, -1).mean(axis=1)
        assert more.mean() > 3 * more.std(ddof=1) / np.sqrt(20) > 0, other


def test_the_more_is_given_the_smaller_the_loss_up_to_the_longest_lag():
    corpus = LagCorpus(longest=64, size=120 * 1025)
    windows = next(corpus.blocks())[: 120 * 1025].reshape(120, 1025)
    mean = [corpus.losses(windows, given)[:, 64:].mean() for given in (0, 1, 2, 4, 8, 16, 32, 63)]
    whole = corpus.losses(windows, 64)
    assert mean[0] == 4
    assert np.all(np.diff([*mean, whole[:, 64:].mean()]) < 0)
    for given in (65, 500, None):
        np.testing.assert_array_equal(corpus.losses(windows, given), whole)


def test_a_byte_that_is_no_symbol_counts_as_not_known():
    corpus = LagCorpus(longest=3, symbols=4)
    window = np.array([[200, 1, 2, 1, 3]], np.uint8)
    np.testing.assert_allclose(corpus.losses(window)[:, 3:], corpus.losses(window[:, 1:])[:, 2:], rtol=1e-12)
    assert corpus.losses(window)[0, 0] == pytest.approx(2)


@pytest.mark.parametrize("redrawn", [0.01, 0.5])
def test_weights_are_the_solutions_of_the_toeplitz_systems(redrawn):
    q = LagCorpus(longest=40, redrawn=redrawn).correlation(np.arange(61))
    for count, weights in enumerate(linear_weights(q), start=1):
        np.testing.assert_allclose(weights, solve_toeplitz(q[:count], q[1 : count + 1]), atol=1e-10)
    np.testing.assert_allclose(weights, [*decaying_copies(1.0, 40, redrawn), *[0] * 20], atol=1e-10)


def test_a_mixture_of_one_lag_is_geometric_at_its_multiples():
    mixture = LagMixture((0.0, 0.0, 0.6), 4, 1000)
    np.testing.assert_allclose(mixture.correlation([1, 3, 4, 6, 9]), [0, 0.6, 0, 0.36, 0.216], atol=1e-15)


@pytest.mark.parametrize("beta", [0.8, 1.3])
def test_copies_can_be_chosen_so_that_the_information_is_a_power_law(beta):
    mixture = LagMixture(power_law_copies(beta, 0.05, 300, 16), 16, 1000)
    lags = np.arange(1, 301)
    np.testing.assert_allclose(mixture.mutual_information(lags), 0.05 * lags**-beta, rtol=1e-9)


def test_impossible_power_laws_are_refused():
    with pytest.raises(ValueError, match="no mixture of lags"):
        power_law_copies(5.0, 2.0, 10, 16)


def test_recorded_studies_can_be_made_again():
    data = LagMixture(decaying_copies(1.3, 2000, 0.1), 32, 200_000, 3).sequence()
    assert hashlib.sha256(data.tobytes()).hexdigest()[:16] == "fd73ae1b3cbf3b39"


def test_lags_longer_than_a_block_are_carried_on():
    """Copies of one byte from 20 before: each draw returns until another takes its place."""
    mixture = LagMixture((*[0.0] * 199_999, 0.5), 256, 1_000_000)
    data = np.concatenate(list(mixture.blocks()))
    assert np.mean(data[200_000:] == data[:-200_000]) == pytest.approx(0.5 + 0.5 / 256, abs=0.005)
    assert np.mean(data[199_999:] == data[:-199_999]) == pytest.approx(1 / 256, abs=0.001)
