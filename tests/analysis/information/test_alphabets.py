"""When pairs of a large alphabet may be counted, and what their count gives."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.special import xlogy
from scipy.stats import hypergeom, poisson

from plkernel.analysis.information import alphabets, counts
from plkernel.analysis.information.alphabets import (
    PAIRS,
    effective_size,
    estimator_for,
    fewest_pairs,
    left_out_information,
    symbol_curves,
)
from plkernel.analysis.information.counts import block_edges, numbered
from plkernel.analysis.information.estimate import (
    decay_curves,
    expected_information,
    log_lags,
    mutual_information,
)
from plkernel.analysis.information.laws import judge
from plkernel.analysis.sequences import PottsCorpus, potts_information


def chain(symbols: int, size: int, q: float, seed: int = 0) -> np.ndarray:
    """A Markov chain that stays where it is with probability q, and is drawn anew otherwise.

    Its symbols d apart correlate by q^d.
    """
    rng = np.random.default_rng(seed)
    fresh = rng.random(size) >= q
    fresh[0] = True
    source = np.maximum.accumulate(np.where(fresh, np.arange(size), 0))
    return numbered(rng.integers(0, symbols, size)[source])


def test_information_without_each_block_is_that_of_the_remaining_pairs() -> None:
    """To rounding: sums of 4,000 terms of size 10 or less."""
    data = np.random.default_rng(0).integers(0, 30, 4_000)
    data[1::2] = data[::2]
    edges = block_edges(data.size, 7, 8)
    found = left_out_information(data, 7, edges)
    blocks = list(pairwise(np.minimum(edges, data.size - 7)))
    tables = np.zeros((9, 30, 30), np.int64)
    for left_out, (start, stop) in enumerate([(0, 0), *blocks]):
        at = np.r_[0:start, stop : data.size - 7]
        np.add.at(tables[left_out], (data[at], data[at + 7]), 1)
    np.testing.assert_allclose(found, mutual_information(tables), atol=4_000 * 10 * 2**-52)


@pytest.mark.parametrize("estimator", ["jackknife", "shuffle", "plugin"])
def test_wide_curves_are_those_of_bytes(estimator) -> None:
    """The same sequence as uint16 goes the other way and has the same information."""
    data = PottsCorpus(beta=1.0, size=40_000).sequence()
    expected, _ = decay_curves(data, [1, 3, 50], estimator=estimator)
    found, _ = symbol_curves(data.astype(np.uint16), [1, 3, 50], estimator=estimator)
    np.testing.assert_allclose(found.values, expected.values, atol=1e-11)
    np.testing.assert_allclose(found.replicates, expected.replicates, atol=1e-11)
    np.testing.assert_allclose(found.floor, expected.floor, rtol=1e-9)
    assert found.drift == pytest.approx(expected.drift, rel=1e-6)
    assert found.estimator == estimator


def test_the_floor_of_many_symbols_is_the_sum_over_all_their_pairs() -> None:
    """Symbols that occur equally often are taken together; here each pair is summed on its own."""
    counts = np.random.default_rng(0).integers(1, 5, 300)
    n = counts.sum()
    total = 0.0
    for row in counts:
        for column, times in zip(*np.unique(counts, return_counts=True), strict=True):
            k = np.arange(0, 5)
            total += times * hypergeom.pmf(k, n, row, column) @ xlogy(k, k)
    exact = np.log(n) + (total - 2 * xlogy(counts, counts).sum()) / n
    assert expected_information(counts) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("pairs", [1, 4, 10, 40])
def test_the_bias_has_its_closed_form(pairs: int) -> None:
    """(K - 1)^2 / 2n, too small by 1 / 6m of itself at m pairs a cell; from m = 10 on that is 2 %
    or less. It is E[N ln N] / m - ln m, N ~ Poisson(m), with (K - 1)^2 / K^2 for K^2.
    """
    symbols = 300
    counts = np.full(symbols, pairs * symbols)
    floor = expected_information(counts)
    k = np.arange(0, 400)
    poissonian = poisson.pmf(k, pairs) @ xlogy(k, k) / pairs - np.log(pairs)
    assert floor == pytest.approx(poissonian, rel=3 / symbols)
    closed = (symbols - 1) ** 2 / (2 * counts.sum())
    assert floor == pytest.approx(closed * (1 + 1 / (6 * pairs)), rel=0.5 / pairs**2 + 3 / symbols)


def test_the_rule_allows_a_twentieth_of_a_nat() -> None:
    assert fewest_pairs(1_000) == PAIRS * 1_000_000
    assert (1_000 - 1) ** 2 / (2 * fewest_pairs(1_000)) < 1 / 20
    assert estimator_for(fewest_pairs(1_000), 1_000) == "jackknife"
    assert estimator_for(fewest_pairs(1_000) - 1, 1_000) == "repeats"


def test_where_the_rule_allows_pairs_memory_ends_where_it_does() -> None:
    """A chain of 300 symbols, thirty pairs a cell, n / v independent ones, more than ten: what the
    jackknife leaves is v^2 / 6m of the floor at most, beside four errors. With one pair a cell it
    would be as much as the floor, at every lag.
    """
    q = 0.6
    lags = np.array([1, 2, 4, 8, 16, 32, 64])
    exact = potts_information(q**lags, 300)
    information, correlation = symbol_curves(chain(300, 3 * fewest_pairs(300), q), lags, blocks=8)
    assert information.estimator == "jackknife"
    assert correlation.estimator == "repeats"
    variance = 1 + 2 * q**2 / (1 - q**2)
    rest = variance**2 / (6 * 3 * PAIRS) * np.array(information.floor)
    away = np.abs(np.array(information.values) - exact)
    assert np.all(away < rest + 4 * information.standard_errors())
    clear = [lag for lag, value in zip(lags, exact, strict=True) if value > information.floor[0]]
    assert judge(information).last_lag == clear[-1]
    np.testing.assert_allclose(
        correlation.values, q**lags, atol=4 * correlation.standard_errors().max()
    )


def test_below_the_rule_memory_would_seem_to_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why there is a rule: the information of a strong chain, with one pair a cell, stays at its
    floor at lags where there is none.
    """
    data = chain(300, 300**2, 0.8)
    with pytest.raises(ValueError, match="to count pairs of 300 different ones"):
        symbol_curves(data, [64], estimator="jackknife")
    monkeypatch.setattr(alphabets, "PAIRS", 1)
    information, _ = symbol_curves(data, [64], estimator="jackknife", blocks=8)
    assert information.values[0] > 0.5 * information.floor[0]
    assert potts_information(np.array([0.8**64]), 300)[0] < 1e-9
    repeats, _ = symbol_curves(data, [64], estimator="repeats")
    assert repeats.values[0] < repeats.floor[0]


@pytest.mark.slow
def test_pairs_of_a_thousand_symbols_are_counted_right() -> None:
    """Ten million symbols of a Markov chain whose information is in pairs of different symbols, so
    that repeats see none of it: each follows from the one before by a permutation, or is drawn.
    """
    symbols, q = 1_000, 0.5
    rng = np.random.default_rng(0)
    size = fewest_pairs(symbols)
    order = rng.permutation(symbols)  # a cycle through all symbols
    runs = rng.geometric(1 - q, size)
    starts = np.concatenate([[0], np.cumsum(runs)])
    starts = starts[starts < size]
    since = np.arange(size) - np.repeat(starts, np.diff(np.append(starts, size)))
    begun = np.repeat(rng.integers(0, symbols, starts.size), np.diff(np.append(starts, size)))
    data = order[(begun + since) % symbols].astype(np.uint16)
    lags = np.array([1, 2, 4, 8, 100])
    information, correlation = symbol_curves(data, lags, threads=2)
    assert information.estimator == "jackknife"
    exact = potts_information(q**lags, symbols)
    variance = 1 + 2 * q**2 / (1 - q**2)
    rest = variance**2 / (6 * PAIRS) * np.array(information.floor)
    away = np.abs(np.array(information.values) - exact)
    assert np.all(away < rest + 4 * information.standard_errors())
    assert np.all(np.array(correlation.values) < 4 * correlation.standard_errors())


@pytest.mark.parametrize("symbols", [300, 1_000])
def test_independent_symbols_show_nothing(symbols: int) -> None:
    """Counted (300 symbols) and too many for it (1,000 symbols)."""
    size = fewest_pairs(300)
    for seed in range(2):
        data = numbered(np.random.default_rng(seed).integers(0, symbols, size))
        information, _ = symbol_curves(data, log_lags(200, 8), blocks=10)
        assert information.estimator == ("jackknife" if symbols == 300 else "repeats")
        assert judge(information).kind == "none"


def test_numbers_are_of_the_smallest_type() -> None:
    assert numbered(np.arange(256)).dtype == np.uint8
    assert numbered(np.arange(-1, 256)).dtype == np.uint16
    assert numbered(np.arange(65_536)).dtype == np.uint16
    assert numbered(np.arange(65_537)).dtype == np.uint32
    assert numbered(np.array([], int)).size == 0


@pytest.mark.parametrize("size", [1, 7, 8, 100, 129])
@pytest.mark.parametrize("spread", [1, 2**40])
@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_integers_are_numbered_in_pieces(
    size: int, spread: int, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a table and by a search; as np.unique of all of them, and the shares add up to one."""
    monkeypatch.setattr(counts, "PIECE", 8)
    data = spread * np.random.default_rng(size).integers(0, 40, size).astype(dtype)
    told: list[float] = []
    found = numbered(data, told.append)
    assert np.array_equal(found, np.unique(data, return_inverse=True)[1])
    assert found.dtype == np.uint8
    assert len(told) == 3 * -(-size // 8)
    assert sum(told) == pytest.approx(1)


@pytest.mark.parametrize("estimator", ["jackknife", "repeats"])
def test_shares_of_the_work_add_up_to_one_and_threads_change_nothing(estimator) -> None:
    data = chain(20, 40_000, 0.5).astype(np.uint16)
    told: list[float] = []
    once = symbol_curves(data, [1, 2, 5], estimator=estimator, progress=told.append)
    assert sum(told) == pytest.approx(1, rel=1e-9)
    assert symbol_curves(data, [1, 2, 5], estimator=estimator, threads=2) == once


@pytest.mark.parametrize("estimator", ["shuffled", "miller-madow"])
def test_an_unknown_estimator_is_refused(estimator) -> None:
    with pytest.raises(ValueError, match=f"estimator must be one of .*repeats, got '{estimator}'"):
        symbol_curves(chain(300, 5_000, 0.5), [1], estimator=estimator)


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_symbols_are_unsigned_integers(dtype: type) -> None:
    """The message names what is taken of any alphabet, and not bytes alone."""
    message = (
        f"must be a vector of unsigned integers, got {dtype.__name__} .*; counts.numbered makes"
    )
    with pytest.raises(ValueError, match=message):
        symbol_curves(chain(300, 5_000, 0.5).astype(dtype), [1])


def test_persistent_symbols_count_as_fewer_pairs_and_are_measured_by_repeats() -> None:
    """With probability r a symbol is the one before it: n counts as n (1 - r^2) / (1 + r^2).

    Counting pairs of as many symbols would find information at lags where there is none.
    """
    rng = np.random.default_rng(0)
    symbols, size = 40, 10 * 40**2
    kept = rng.random(size) < 0.9
    fresh = rng.integers(0, symbols, size)
    data = fresh[np.maximum.accumulate(np.where(kept, 0, np.arange(size)))].astype(np.uint16)
    counts = np.bincount(data)
    assert effective_size(data, counts) == pytest.approx(size * 0.19 / 1.81, rel=0.15)
    assert effective_size(fresh, np.bincount(fresh)) == pytest.approx(size, rel=0.05)
    information, _ = symbol_curves(data, [1, 200, 400])
    assert information.estimator == "repeats"
    pairs, _ = symbol_curves(data, [1, 200, 400], estimator="jackknife")
    assert pairs.values[2] > 3 * information.floor[2]
    assert abs(information.values[2]) < 3 * information.floor[2]
