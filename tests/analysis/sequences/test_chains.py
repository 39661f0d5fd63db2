"""The controls against their own transition tables."""

import hashlib

import numpy as np
import pytest

from plkernel.analysis.sequences.chains import CHANCES, Independent, MarkovChain


def pairs(data: np.ndarray, lag: int) -> np.ndarray:
    return np.bincount(4 * data[:-lag].astype(int) + data[lag:], minlength=16).reshape(4, 4)


def test_a_markov_chain_has_the_information_of_its_transitions():
    chain = MarkovChain(4, 0.5, 200_000)
    law = chain.stationary[:, None] * np.linalg.matrix_power(chain.transitions / CHANCES, 2)
    np.testing.assert_allclose(pairs(chain.sequence(), 2) / (chain.size - 2), law, atol=0.01)
    expected = np.sum(law * np.log(law / np.outer(law.sum(axis=1), law.sum(axis=0))))
    assert chain.mutual_information([2])[0] == pytest.approx(expected, rel=1e-9)
    assert chain.mutual_information([500])[0] == 0


def test_transitions_come_as_often_as_they_should():
    """Given how often each state is left, the counts are multinomial: every z below 5, the most in two to the 20th."""
    chain = MarkovChain(4, 0.5, 1_000_000)
    found, chances = pairs(chain.sequence(), 1), chain.transitions / CHANCES
    left = found.sum(axis=1, keepdims=True)
    z = (found - left * chances) / np.sqrt(left * chances * (1 - chances))
    assert np.abs(z).max() < 5


def test_the_predictor_of_a_chain_is_its_table():
    chain = MarkovChain(4, 0.5)
    windows = np.array([[a, b, c] for a in (0, 1, 2, 3, 10) for b in range(4) for c in range(4)], np.uint8)
    step = chain.transitions / CHANCES
    losses = chain.losses(windows)
    np.testing.assert_allclose(losses[:, 1], -np.log2(step[windows[:, 1], windows[:, 2]]))
    known = windows[:, 0] < 4
    np.testing.assert_allclose(losses[known, 0], -np.log2(step[windows[known, 0], windows[known, 1]]))
    np.testing.assert_allclose(losses[~known, 0], -np.log2(chain.stationary[windows[~known, 1]]))
    np.testing.assert_array_equal(chain.losses(windows, 1), losses)
    np.testing.assert_allclose(chain.losses(windows, 0), -np.log2(chain.stationary[windows[:, 1:]]))


def test_the_entropy_rate_is_that_of_all_words():
    """H(x_1, x_2, x_3) - H(x_1, x_2)."""
    chain = MarkovChain(3, 0.5)
    step = chain.transitions / CHANCES
    two = chain.stationary[:, None] * step
    three = two[:, :, None] * step
    expected = np.sum(two * np.log2(two)) - np.sum(three * np.log2(three))
    assert chain.bits_per_byte() == pytest.approx(expected, rel=1e-12)


def test_another_chain_predicts_worse():
    chain = MarkovChain(4, 0.5, 100_000)
    data = next(chain.blocks())[None]
    assert MarkovChain(4, 1.0).losses(data).mean() > chain.losses(data).mean() + 0.1
    assert chain.losses(data, 0).mean() > chain.losses(data).mean() + 0.1


def test_there_is_nothing_to_predict_in_independent_bytes():
    data = np.concatenate(list(Independent(6, 600_000).blocks()))
    z = (np.bincount(data) - 100_000) / np.sqrt(100_000 * 5 / 6)
    assert np.abs(z).max() < 5
    assert Independent(6).bits_per_byte() == np.log2(6)
    np.testing.assert_array_equal(Independent(6).losses(data[None]), np.log2(6))
    assert Independent(6).mutual_information([1, 2]).tolist() == [0, 0]


def test_recorded_studies_can_be_made_again():
    data = MarkovChain(8, 0.3, 500_000, 3).sequence()
    assert hashlib.sha256(data.tobytes()).hexdigest()[:16] == "dd140f2cbd1252da"
