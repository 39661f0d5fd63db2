"""Estimators against direct sums, enumeration and closed forms; the jackknife against brute
force.
"""

from itertools import permutations

import numpy as np
import pytest

from plkernel.analysis.information import estimate
from plkernel.analysis.information.estimate import (
    correlation,
    expected_information,
    half_width,
    jackknife_error,
    mutual_information,
    pools,
    without_bias,
)


def table_of(first, second, symbols):
    return np.bincount(np.asarray(first) * symbols + second, minlength=symbols**2).reshape(
        symbols, symbols
    )


def direct(table):
    p = table / table.sum()
    outer = p.sum(axis=1, keepdims=True) * p.sum(axis=0)
    return np.sum(p[p > 0] * np.log(p[p > 0] / outer[p > 0]))


def test_plugin_is_its_formula():
    rng = np.random.default_rng(0)
    tables = rng.multinomial(400, rng.dirichlet(np.ones(81), 5)).reshape(5, 9, 9)
    np.testing.assert_allclose(
        mutual_information(tables), [direct(table) for table in tables], rtol=1e-12
    )


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf")])
def test_what_is_no_count_is_refused(wrong):
    """A negative one was taken for another count, counted from the largest down."""
    table = np.full((3, 3), 5) if wrong == -1 else np.full((3, 3), 5.0)
    table[1, 1] = wrong
    for refused in (lambda: mutual_information(table), lambda: expected_information(table[1])):
        with pytest.raises(ValueError, match=f"counts must be 0 or more and finite, got {wrong}"):
            refused()


def test_the_floor_is_the_mean_over_all_orders_of_a_short_text():
    first = np.array([0, 0, 0, 1, 1, 2, 2])
    orders = [table_of(first, np.array(order), 3) for order in permutations(first.tolist())]
    mean = mutual_information(np.stack(orders)).mean()
    assert expected_information(np.array([3, 2, 2])) == pytest.approx(mean, rel=1e-12)


def test_the_floor_of_much_data_is_that_of_wilks_by_sum_and_by_expansion(monkeypatch):
    """2 n I of independent symbols is chi squared with (S-1)^2 degrees of freedom."""
    counts = np.full(20, 1_000_000)
    assert expected_information(counts) == pytest.approx(19**2 / (2 * counts.sum()), rel=1e-3)
    counts = np.full(40, 11_000)  # a mean of 275 in every cell
    expanded = expected_information(counts)
    monkeypatch.setattr(estimate, "EXPANDED_ABOVE", 300.0)
    assert expanded == pytest.approx(expected_information(counts), rel=2e-5)
    assert expanded != expected_information(counts)  # two ways, not one


def test_floors_of_several_corpora_are_those_of_each(monkeypatch):
    """Whether their cells are summed together or apart."""
    rng = np.random.default_rng(5)
    counts = rng.integers(0, 400, (7, 30))  # cells are expanded about the mean, and summed
    counts[3, 4:] = 0
    alone = [expected_information(one) for one in counts]
    assert estimate.expected_informations(counts).tolist() == alone
    monkeypatch.setattr(estimate, "CELLS_AT_ONCE", 1000)  # two at a time
    assert estimate.expected_informations(counts).tolist() == alone


def test_a_projected_table_is_the_normalised_one_between_its_vectors():
    rng = np.random.default_rng(6)
    tables = rng.integers(0, 9, (4, 6, 6)).astype(float)
    tables[1, 2] = tables[1, :, 3] = 0  # symbols that do not occur
    left, right = rng.standard_normal((2, 6))
    direct = np.einsum("i,gij,j->g", left, estimate._normalised(tables), right)
    np.testing.assert_allclose(estimate._projected(tables, left, right), direct, atol=1e-12)


def test_rows_of_a_pool_are_summed():
    tables = np.random.default_rng(7).integers(0, 9, (3, 5, 5))
    pool = np.array([2, 0, 2, 1, 2])
    one_of = (pool[:, None] == np.arange(3)).astype(float)
    np.testing.assert_array_equal(estimate._pooled(tables, pool), one_of.T @ tables @ one_of)


def blocks_of(first, second, symbols, blocks=10):
    parts = zip(np.array_split(first, blocks), np.array_split(second, blocks), strict=True)
    return np.stack([table_of(a, b, symbols) for a, b in parts])


def test_the_correlation_of_a_binary_channel_is_one_minus_twice_its_errors():
    rng = np.random.default_rng(0)
    first = rng.integers(0, 2, 200_000)
    second = first ^ (rng.random(first.size) < 0.3)
    value, *replicates = correlation(blocks_of(first, second, 2), np.arange(2))
    assert value == pytest.approx(0.4, abs=0.007)  # three standard errors, sqrt((1 - 0.4^2) / n)
    error = jackknife_error(np.array(replicates))
    assert error == pytest.approx(np.sqrt((1 - 0.4**2) / first.size), rel=0.6)


def test_rare_symbols_are_pooled():
    assert pools(np.array([500_000, 3, 499_000, 4])).tolist() == [0, 2, 1, 2]
    first, second = np.random.default_rng(0).choice(2, (2, 10_000))
    rare = [10, 3000, 6000, 9000]
    first[rare] = second[rare] = 2  # always with itself: a correlation of 1 unless pooled
    tables = blocks_of(first, second, 3, blocks=4)
    assert correlation(tables, np.arange(3))[0] > 0.9
    assert abs(correlation(tables, np.array([0, 1, 1]))[0]) < 0.05


def leave_one_out(sums: np.ndarray, sizes: np.ndarray, function) -> np.ndarray:
    left = [
        function(sums.sum() - total, sizes.sum() - size)
        for total, size in zip(sums, sizes, strict=True)
    ]
    return np.array([function(sums.sum(), sizes.sum()), *left])


@pytest.mark.parametrize("sizes", [np.full(10, 50), np.array([50, 50, 80, 10, 3])])
def test_a_bias_of_one_over_n_is_removed_and_a_mean_stays(sizes):
    """7 + 3/n, without noise: 7, exactly but for rounding, with every block left out too."""
    estimates = leave_one_out(sizes, sizes, lambda total, n: 7 + 3 / n)
    np.testing.assert_allclose(without_bias(estimates, sizes)[0], 7, rtol=1e-14)
    assert abs(estimates[0] - 7) > 1e-3
    means = leave_one_out(
        np.random.default_rng(1).normal(size=sizes.size) * sizes, sizes, lambda total, n: total / n
    )
    np.testing.assert_allclose(without_bias(means, sizes), means)


def test_an_interval_is_that_of_student():
    replicates = np.array([1.0, 2.0, 3.0, 4.0])
    assert half_width(replicates) == pytest.approx(3.182446305 * np.sqrt(3 * 1.25))


@pytest.mark.parametrize("sizes", [np.full(6, 40), np.array([50, 30, 80, 10, 3])])
def test_replicates_are_the_mean_of_pseudo_values_without_one_of_them(sizes):
    """Of a variance, whose plug-in estimate has a bias and whose blocks differ."""
    rng = np.random.default_rng(2)
    blocks = [rng.normal(size=size) for size in sizes]
    whole = np.concatenate(blocks).var()
    left = np.array(
        [np.concatenate(blocks[:g] + blocks[g + 1 :]).var() for g in range(len(blocks))]
    )
    value, *replicates = without_bias(np.append(whole, left), sizes)
    shares = sizes / sizes.sum()
    pseudo = whole / shares - (1 / shares - 1) * left
    assert value == pytest.approx(np.average(pseudo, weights=sizes), rel=1e-12)
    for g, replicate in enumerate(replicates):
        others = np.delete(pseudo, g)
        expected = np.average(others, weights=np.delete(sizes, g))
        assert replicate == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("row", "column"), [(800, 800), (500, 1100), (1500, 300)])
def test_the_expansion_of_a_cell_is_its_sum_to_the_next_order(row, column):
    """Its terms are of order 1, 1/mean; what is left out is of order 1/mean**2."""
    cell = tuple(np.array([float(value)]) for value in (row, column, 2000))
    mean = row * column / 2000
    assert estimate._expanded(*cell)[0] == pytest.approx(
        estimate._summed(*cell)[0], rel=1e-13, abs=1 / mean**2
    )


def test_a_layout_that_explains_all_leaves_no_correlation():
    """Nor without any of the blocks."""
    rng = np.random.default_rng(3)
    tables = rng.integers(1, 50, (7, 3, 3))
    found = correlation(tables, np.arange(3), tables)
    np.testing.assert_allclose(found, np.zeros(8), atol=1e-15)
    other = rng.integers(1, 50, (7, 3, 3))
    assert np.abs(correlation(tables, np.arange(3), other)).min() > 1e-3


def test_correlation_without_a_block_keeps_the_vectors():
    """Of a table of each block alone it is linear: the mean over blocks left out of halves of three
    equal blocks is the whole.
    """
    table = np.array([[30, 10], [10, 50]])
    found = correlation(np.stack([table] * 6), np.arange(2), np.stack([np.ones((2, 2))] * 6))
    np.testing.assert_allclose(found, found[0], rtol=1e-12)
    p = table / table.sum()
    phi = np.linalg.det(p) / np.sqrt(np.prod(p.sum(0)) * np.prod(p.sum(1)))
    assert found[0] == pytest.approx(phi, rel=1e-12)


def test_blocks_that_differ_make_a_table_of_pairs_and_empty_ones_do_not_count():
    parts = np.array([[3, 1], [0, 4], [0, 0]])
    expected = np.outer([3, 1], [3, 1]) / 4 + np.outer([0, 4], [0, 4]) / 4
    np.testing.assert_allclose(estimate.drift_table(parts), expected)
