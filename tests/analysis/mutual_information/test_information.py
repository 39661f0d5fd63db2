from itertools import permutations

import numpy as np
import pytest
from scipy.special import psi

from plkernel.analysis.mutual_information import information
from plkernel.analysis.mutual_information.information import (
    ESTIMATORS,
    correlation,
    correlation_floor,
    expected_information,
    mutual_information,
    pools,
)


def table_of(first, second, symbols):
    return np.bincount(np.asarray(first) * symbols + second, minlength=symbols**2).reshape(symbols, symbols)


def direct(table):
    p = table / table.sum()
    outer = p.sum(axis=1, keepdims=True) * p.sum(axis=0)
    return np.sum(p[p > 0] * np.log(p[p > 0] / outer[p > 0]))


def random_table(seed, symbols=9, pairs=400):
    rng = np.random.default_rng(seed)
    return rng.multinomial(pairs, rng.dirichlet(np.ones(symbols**2))).reshape(symbols, symbols)


def test_plugin_is_the_information_of_the_observed_shares():
    tables = np.stack([random_table(seed) for seed in range(5)])
    np.testing.assert_allclose(mutual_information(tables), [direct(table) for table in tables], rtol=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_permutation_of_symbols_and_transposition_change_nothing(estimator):
    table = random_table(3)
    shuffled = table[np.random.default_rng(0).permutation(9)].T
    assert mutual_information(shuffled, estimator) == pytest.approx(mutual_information(table, estimator), rel=1e-12)


def test_miller_madow_adds_half_the_cells_that_occur_to_each_entropy():
    table = random_table(1)
    cells, rows, columns = (table > 0).sum(), (table.sum(1) > 0).sum(), (table.sum(0) > 0).sum()
    expected = direct(table) + (rows + columns - cells - 1) / (2 * table.sum())
    assert mutual_information(table, "miller-madow") == pytest.approx(expected, rel=1e-12)


def test_grassbergers_terms_obey_his_recurrence():
    """G_1 = -gamma - ln 2, G_2 = 2 - gamma - ln 2, G_{2n+1} = G_{2n}, G_{2n+2} = G_{2n} + 2/(2n+1)."""
    g = {1: psi(1) - np.log(2), 2: 2 + psi(1) - np.log(2)}
    for n in range(1, 20):
        g[2 * n + 1], g[2 * n + 2] = g[2 * n], g[2 * n] + 2 / (2 * n + 1)
    for counts in ([1, 2, 3], [7, 7, 40], [5, 12, 31, 2]):
        n = sum(counts)
        expected = np.log(n) - sum(c * g[c] for c in counts) / n
        found = information.ENTROPIES["grassberger"](np.array(counts), np.array(n))
        assert float(found) == pytest.approx(expected, rel=1e-12)


def test_corrections_lower_the_bias_of_independent_symbols():
    """Twenty samples of 500 independent pairs of 12 symbols: the truth is zero, the plug-in is about 0.135."""
    rng = np.random.default_rng(0)
    tables = np.stack([table_of(*rng.integers(0, 12, (2, 500)), 12) for _ in range(20)])
    means = {name: mutual_information(tables, name).mean() for name in ESTIMATORS[1:]}
    assert means["plugin"] == pytest.approx(expected_information(np.full(12, 500 / 12)), rel=0.05)
    assert abs(means["miller-madow"]) < 0.3 * means["plugin"]
    assert abs(means["grassberger"]) < 0.3 * means["plugin"]


def test_the_floor_is_the_mean_over_all_orders_of_a_short_text():
    first = np.array([0, 0, 0, 1, 1, 2, 2])
    orders = [table_of(first, np.array(order), 3) for order in permutations(first.tolist())]
    mean = mutual_information(np.stack(orders)).mean()
    assert expected_information(np.array([3, 2, 2])) == pytest.approx(mean, rel=1e-12)


def test_the_floor_is_the_mean_over_shuffled_copies():
    """At lag 1 of a shuffled sequence of 20,000 symbols with shares from 0.4 to 1e-4, fifty copies."""
    rng = np.random.default_rng(0)
    shares = 0.5 ** np.arange(1, 14)
    data = rng.choice(13, 20_000, p=shares / shares.sum())
    found = []
    for _ in range(50):
        copy = rng.permutation(data)
        found.append(mutual_information(table_of(copy[:-1], copy[1:], 13)))
    error = np.std(found, ddof=1) / np.sqrt(50)
    floor = expected_information(np.bincount(data))
    assert abs(floor - np.mean(found)) < 3 * error
    assert error < 0.02 * floor  # the test could tell a floor 6 % off


def test_the_expansion_for_large_means_agrees_with_the_sum(monkeypatch):
    counts = np.full(40, 11_000)  # a mean of 275 in every cell
    quick = expected_information(counts)
    monkeypatch.setattr(information, "EXPANDED_ABOVE", 300.0)
    assert quick == pytest.approx(expected_information(counts), rel=2e-5)
    assert quick != expected_information(counts)  # two ways, not one


def test_the_floor_of_much_data_is_that_of_wilks():
    """2 n I of independent symbols is chi squared with (S-1)^2 degrees of freedom."""
    counts = np.full(20, 1_000_000)
    assert expected_information(counts) == pytest.approx(19**2 / (2 * counts.sum()), rel=1e-3)


def test_one_symbol_has_no_information_and_no_floor():
    assert mutual_information(np.array([[50]])) == 0
    assert expected_information(np.array([50, 0])) == 0
    with pytest.raises(ValueError, match="at least one symbol"):
        expected_information(np.zeros(3))


def blocks_of(first, second, symbols, blocks=10):
    parts = zip(np.array_split(first, blocks), np.array_split(second, blocks), strict=True)
    return np.stack([table_of(a, b, symbols) for a, b in parts])


def test_the_correlation_of_a_binary_channel_is_one_minus_twice_its_errors():
    rng = np.random.default_rng(0)
    first = rng.integers(0, 2, 200_000)
    second = first ^ (rng.random(first.size) < 0.3)
    found = correlation(blocks_of(first, second, 2), np.arange(2))
    assert found[0] == pytest.approx(0.4, abs=0.007)  # three standard errors, sqrt((1 - 0.4^2) / n)
    error = np.sqrt(0.9 * np.sum((found[1:] - found[1:].mean()) ** 2))
    assert error == pytest.approx(np.sqrt((1 - 0.4**2) / first.size), rel=0.6)


def test_correlation_has_no_floor_where_the_largest_singular_value_has_one():
    rng = np.random.default_rng(1)
    found, largest = [], []
    for _ in range(20):
        first, second = rng.integers(0, 30, (2, 20_000))
        tables = blocks_of(first, second, 30)
        found.append(correlation(tables, np.arange(30))[0])
        p = tables.sum(axis=0) / first.size
        outer = np.outer(p.sum(axis=1), p.sum(axis=0))
        largest.append(np.linalg.norm(p / np.sqrt(outer) - np.sqrt(outer), ord=2))
    assert abs(np.mean(found)) < 3 * np.std(found) / np.sqrt(20)
    assert np.mean(largest) == pytest.approx(correlation_floor(np.arange(30), 2 * 20_000), rel=0.1)
    assert np.mean(largest) > 10 * np.abs(np.mean(found))


def test_rare_symbols_are_pooled():
    counts = np.array([500_000, 3, 499_000, 4])
    assert pools(counts).tolist() == [0, 2, 1, 2]
    rng = np.random.default_rng(0)
    first, second = rng.choice(2, (2, 10_000))
    rare = [10, 3000, 6000, 9000]
    first[rare] = second[rare] = 2  # always with itself: a correlation of 1 unless pooled
    tables = blocks_of(first, second, 3, blocks=4)
    assert correlation(tables, np.arange(3))[0] > 0.9
    assert abs(correlation(tables, np.array([0, 1, 1]))[0]) < 0.05
