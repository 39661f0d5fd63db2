import numpy as np
import pytest

from plkernel.analysis.mutual_information.known_sequences import (
    LagMixture,
    MarkovChain,
    TreeLeaves,
    decaying_copies,
    power_law_copies,
)
from plkernel.analysis.mutual_information.potts import potts_information

LAGS = np.array([1, 2, 3, 7, 20, 64, 65])
SEEDS = 24


def same_draw(data: np.ndarray, lags: np.ndarray, symbols: int) -> np.ndarray:
    """q(d) from how often two symbols are equal: q + (1 - q) / S."""
    equal = np.array([np.mean(data[:-lag] == data[lag:]) for lag in lags])
    return (equal - 1 / symbols) / (1 - 1 / symbols)


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: LagMixture((0.3, 0.0, 0.2), 4, 20_000, seed),
        lambda seed: LagMixture(decaying_copies(1.3, 100, 0.2), 8, 20_000, seed),
        lambda seed: TreeLeaves(2, 0.8, 4, 16_384, seed),
        lambda seed: TreeLeaves(3, 0.7, 8, 20_000, seed),  # cut short of 3^10 leaves
    ],
)
def test_the_sequences_have_the_correlation_that_is_stated(make):
    """The mean over seeds within four of its own standard errors at every lag."""
    found = np.array([same_draw(make(seed).sequence(), LAGS, make(0).symbols) for seed in range(SEEDS)])
    error = found.std(axis=0, ddof=1) / np.sqrt(SEEDS)
    assert np.all(np.abs(found.mean(axis=0) - make(0).correlation(LAGS)) < 4 * error)
    assert np.all(error < 0.01)


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


def test_a_markov_chain_has_the_information_of_its_transitions():
    chain = MarkovChain(4, 0.5, 200_000)
    data, step = chain.sequence(), chain.transitions / 4096
    pairs = np.bincount(4 * data[:-2].astype(int) + data[2:], minlength=16).reshape(4, 4) / (data.size - 2)
    np.testing.assert_allclose(pairs, chain.stationary[:, None] * (step @ step), atol=0.01)
    expected = sum(p * np.log(p / (r * c)) for p, r, c in _cells(chain.stationary[:, None] * (step @ step)))
    assert chain.mutual_information([2])[0] == pytest.approx(expected, rel=1e-9)


def _cells(table: np.ndarray):
    rows, columns = table.sum(axis=1), table.sum(axis=0)
    return [(table[i, j], rows[i], columns[j]) for i in range(4) for j in range(4) if table[i, j]]


def test_trees_and_mixtures_have_the_potts_information():
    tree = TreeLeaves(2, 0.8, 4, 1024)
    np.testing.assert_allclose(
        tree.mutual_information(LAGS), potts_information(tree.correlation(LAGS), np.full(4, 0.25))
    )
