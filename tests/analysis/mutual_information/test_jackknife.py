import numpy as np
import pytest

from plkernel.analysis.mutual_information.jackknife import jackknife_error, without_bias


def leave_one_out(sums: np.ndarray, sizes: np.ndarray, estimate) -> np.ndarray:
    left = [estimate(sums.sum() - total, sizes.sum() - size) for total, size in zip(sums, sizes, strict=True)]
    return np.array([estimate(sums.sum(), sizes.sum()), *left])


@pytest.mark.parametrize("sizes", [np.full(10, 50), np.array([50, 50, 80, 10, 3])])
def test_a_bias_of_one_over_n_is_removed_whatever_the_sizes_of_the_blocks(sizes):
    """7 + 3/n, without noise: 7, exactly but for rounding, with every block left out too."""
    estimates = leave_one_out(sizes, sizes, lambda total, n: 7 + 3 / n)
    np.testing.assert_allclose(without_bias(estimates, sizes)[0], 7, rtol=1e-14)
    assert abs(estimates[0] - 7) > 1e-3


def test_equal_blocks_give_quenouille_and_keep_the_error():
    estimates = np.random.default_rng(0).normal(1, 0.1, (3, 9))
    corrected = without_bias(estimates, np.full((3, 8), 100))
    np.testing.assert_allclose(corrected[:, 0], 8 * estimates[:, 0] - 7 * estimates[:, 1:].mean(axis=1))
    np.testing.assert_allclose(corrected[:, 1:].mean(axis=1), corrected[:, 0])
    np.testing.assert_allclose(jackknife_error(corrected[:, 1:]), jackknife_error(estimates[:, 1:]))


def test_replicates_of_a_mean_are_the_means_without_each_block():
    """Nothing to correct in a mean, so that the replicates must be what they were."""
    rng, sizes = np.random.default_rng(1), np.array([5, 9, 30, 2])
    estimates = leave_one_out(rng.normal(size=4) * sizes, sizes, lambda total, n: total / n)
    np.testing.assert_allclose(without_bias(estimates, sizes), estimates)


def test_the_square_of_a_mean_is_estimated_without_bias():
    """mean^2 is too large by variance/n: 2000 samples of 40 values in unequal blocks, mean 0.5."""
    rng, edges = np.random.default_rng(2), np.array([0, 6, 12, 20, 26, 40])
    plain, corrected = [], []
    for _ in range(2000):
        sums = np.add.reduceat(rng.normal(0.5, 1, 40), edges[:-1])
        estimates = leave_one_out(sums, np.diff(edges), lambda total, n: (total / n) ** 2)
        plain.append(estimates[0])
        corrected.append(without_bias(estimates, np.diff(edges))[0])
    error = np.std(corrected) / np.sqrt(2000)
    assert abs(np.mean(corrected) - 0.25) < 3 * error
    assert np.mean(plain) - 0.25 > 3 * error
