"""Repeats: right where agreement is all that memory changes, a lower bound elsewhere, and silent
where there is no memory, over alphabets of up to 65,536 symbols.
"""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from plkernel.analysis.information.counts import numbered
from plkernel.analysis.information.estimate import BLOCKS, jackknife_error, log_lags
from plkernel.analysis.information.laws import (
    Named,
    clear_from,
    clear_until,
    judge,
    log_log_slope,
    measure_corpus,
)
from plkernel.analysis.information.repeats import (
    agreement_information,
    block_counts,
    left_out_chance,
    repeat_curves,
    with_error,
)
from plkernel.analysis.prediction import repeat_correlations
from plkernel.analysis.sequences import LagCorpus, MarkovChain, PottsCorpus, potts_information

Symbols = NDArray[np.integer]


def lag_mixture(corpus: LagCorpus, symbols: int, size: int, seed: int) -> Symbols:
    """The mixture of lags of `corpus` over an alphabet of any size: each symbol copies the one d
    before it, or is drawn anew.
    """
    rng = np.random.default_rng(seed)
    chances = np.append(1 - corpus.chances.sum(), corpus.chances)
    back = rng.choice(chances.size, size, p=chances)
    source = np.maximum(np.arange(size) - back, 0)
    while True:  # to the draw that a copy of copies stems from
        further = source[source]
        if np.array_equal(further, source):
            return rng.integers(0, symbols, size)[source]
        source = further


@pytest.mark.parametrize("symbols", [1_000, 65_536])
def test_a_power_law_over_many_symbols_is_found(symbols: int) -> None:
    """Of a mixture of lags I(d) is known: half a million symbols, at every lag within four of its
    own errors, and its exponent within three.
    """
    law = LagCorpus(alpha=1.0, longest=200, redrawn=0.2)
    data = lag_mixture(law, symbols, 500_000, seed=3)
    lags = log_lags(100, 24)
    information, correlation = repeat_curves(numbered(data), lags)
    exact = potts_information(law.correlation(lags), symbols)
    errors = information.standard_errors()
    assert np.all(np.abs(np.array(information.values) - exact) < 4 * errors)
    away = np.array(correlation.values) - law.correlation(lags)
    assert np.all(np.abs(away) < 4 * correlation.standard_errors())
    assert np.all(errors < 0.1 * exact)
    assert np.shape(information.replicates) == np.shape(correlation.replicates) == (20, BLOCKS)
    assert "information in bits of repeats at 20 lags, of 500,000 bytes" in repr(information)
    options: Any = {"unit": "symbol", "max_lag": 100, "stated": (1, 100)}
    found = measure_corpus(Named("made", "made"), numbered(data), **options)
    assert found.estimator == "repeats"
    assert found.law is not None
    at = found.information.lags
    slope = log_log_slope(at, potts_information(law.correlation(at), symbols))
    assert abs(found.law.beta - slope) < 3 * found.law.standard_error < 0.05


@pytest.mark.parametrize(("symbols", "size"), [(1_000, 100_000), (65_536, 400_000)])
def test_independent_symbols_show_nothing(symbols: int, size: int) -> None:
    """Twenty seeds: the verdict is 'none', r is above its floor as rarely as it says, and 0 on
    average; I_r is chi squared with one degree over 2n, less its mean.
    """
    above = []
    values = []
    agreements = []
    for seed in range(20):
        data = np.random.default_rng(seed).integers(0, symbols, size)
        information, correlation = repeat_curves(numbered(data), log_lags(500, 32))
        assert judge(information).kind == "none"
        above += np.greater(np.abs(correlation.values), correlation.floor).tolist()
        values += list(information.values)
        agreements += list(correlation.values)
    assert np.mean(above) < 0.005, "0.001 but for discreteness, of some 560"
    deviation = np.sqrt(1 / symbols / size)
    assert np.std(agreements) == pytest.approx(deviation, rel=0.15)
    assert abs(np.mean(agreements)) < 5 * deviation / np.sqrt(len(agreements))
    assert abs(np.mean(values)) * 2 * size < 5 * np.sqrt(2 / len(values))


def test_rare_symbols_of_a_skewed_alphabet_show_nothing_when_shuffled() -> None:
    """As tokens are: shares ~ 1 / rank."""
    shares = 1 / np.arange(1.0, 20_001)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        data = rng.choice(shares.size, 300_000, p=shares / shares.sum())
        information, _ = repeat_curves(numbered(data), log_lags(500, 32))
        assert judge(information).kind == "none"


def test_it_is_a_lower_bound_and_may_see_nothing() -> None:
    """Each symbol follows from the one before by a permutation, or is drawn anew: all information
    is in pairs of different symbols. In a chain it is less than the information, by its law.
    """
    symbols = 1_000
    rng = np.random.default_rng(0)
    follows = rng.permutation(symbols)
    while np.any(follows == np.arange(symbols)):
        follows = rng.permutation(symbols)
    draws = rng.integers(0, symbols, 200_000)
    fresh = rng.random(draws.size) < 0.3
    data = draws.copy()
    for at in range(1, data.size):
        data[at] = draws[at] if fresh[at] else follows[data[at - 1]]
    information, correlation = repeat_curves(numbered(data), [1, 2])
    assert correlation.values[0] == pytest.approx(
        (0.3 / symbols - 1 / symbols) / (1 - 1 / symbols), abs=4 * correlation.standard_errors()[0]
    )
    assert information.values[0] < 1e-3 < 1 < potts_information(np.array([0.7]), symbols)[0]
    chain = MarkovChain(symbols=16, size=200_000)
    found, _ = repeat_curves(chain.sequence(), [1, 2, 3])
    exact = chain.mutual_information([1, 2, 3])
    assert np.all(np.array(found.values) < exact + 4 * found.standard_errors())


def test_r_is_the_correlation_of_the_predictor() -> None:
    """The chance of agreement is counted in another way, which moves r by less than a tenth of its
    error.
    """
    data = PottsCorpus(beta=1.0, size=100_000).sequence()
    _, correlation = repeat_curves(data, np.arange(1, 21))
    expected = repeat_correlations(data, 20)[:, 0]
    away = np.abs(np.array(correlation.values) - expected)
    assert np.all(away < 0.1 * correlation.standard_errors())


def test_chance_is_that_of_pairs_in_blocks_apart() -> None:
    """By hand, and without each block."""
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 3, (5, 7))
    parts = np.stack([np.bincount(block, minlength=3) for block in blocks])
    found = left_out_chance(parts)
    for left_out in (None, *range(5)):
        kept = [index for index in range(5) if index != left_out]
        equal = [
            np.mean(blocks[one][:, None] == blocks[other])
            for one in kept
            for other in kept
            if abs(one - other) >= 2
        ]
        expected = found[0 if left_out is None else 1 + left_out]
        assert expected == pytest.approx(np.mean(equal), rel=1e-12)


@pytest.mark.parametrize("symbols", [4, 1_000])
def test_blocks_of_different_composition_are_drift(symbols: int) -> None:
    """Independent symbols, of other ones in every other stretch: all agreement is drift, and by the
    number of symbols it is known.
    """
    rng = np.random.default_rng(0)
    starts = (0, symbols, 0, symbols)
    stretches = [rng.integers(low, low + symbols, 100_000) for low in starts]
    information, correlation = repeat_curves(numbered(np.concatenate(stretches)), [1, 10, 100])
    place = np.arange(BLOCKS)
    is_other = place // 10 % 2
    apart = np.abs(place[:, None] - place) >= 2
    chance = np.mean((is_other[:, None] == is_other)[apart]) / symbols
    agreement = (1 / symbols - chance) / (1 - chance)
    assert correlation.drift == pytest.approx(agreement, rel=0.05)
    assert correlation.values[0] == pytest.approx(agreement, rel=0.1)
    known = agreement_information(1 / symbols, chance)
    assert information.drift == pytest.approx(float(known), rel=0.1)
    assert judge(information).kind == "none"


def test_agreement_tells_the_information_of_a_potts_law() -> None:
    """Agreement is a sufficient statistic there: I_r is I to rounding."""
    q = np.array([1e-4, 0.01, 0.3, 0.9])
    for symbols in (2, 1_000, 65_536):
        share = q + (1 - q) / symbols
        found = agreement_information(share, 1 / symbols)
        np.testing.assert_allclose(found, potts_information(q, symbols), rtol=1e-6)


def test_chance_of_a_layout_has_an_error_of_its_own() -> None:
    """It is counted as the data are: noise must exceed sqrt 2 as much once in a thousand lags."""
    rng = np.random.default_rng(0)
    data, layout = (numbered(rng.integers(0, 500, 50_000)) for _ in range(2))
    lags = np.arange(1, 21)
    _, correlation = repeat_curves(data, lags, beside=layout)
    expected = len(data) / 500  # equal pairs by chance: their number is Poissonian
    once_in_a_thousand = 3.29 * np.sqrt(2 * expected) / len(data)
    assert min(correlation.floor) > 0.85 * once_in_a_thousand


def test_a_layout_without_equal_pairs_gives_finite_numbers() -> None:
    data = numbered(np.random.default_rng(0).integers(0, 500, 50_000))
    layout = np.arange(len(data), dtype=data.dtype)
    for curve in repeat_curves(data, np.array([1, 3]), beside=layout):
        assert np.isfinite([curve.values, curve.floor]).all()


def test_a_curve_of_repeats_is_judged_from_its_peak() -> None:
    """Two equal symbols never stand side by side here, and those two apart are by chance: memory
    that begins at lag 3 is found with its end.
    """
    law = LagCorpus(alpha=0.5, shortest=3, longest=60, redrawn=0.3)
    data = lag_mixture(law, 2_000, 400_000, seed=1)
    kept = np.append(True, data[1:] != data[:-1])
    information, _ = repeat_curves(numbered(data[kept]), log_lags(1_000, 48))
    assert clear_from(information) == 3
    assert clear_until(information) > 30
    assert judge(information).first_lag == 3


def test_a_period_of_one_block_does_not_hide_the_memory_of_all() -> None:
    """Memory from lag 3 on, and at the end symbols that return every 32: values at multiples
    of it are the largest, and below their own floors.
    """
    law = LagCorpus(alpha=0.5, shortest=3, longest=60, redrawn=0.3)
    data = lag_mixture(law, 2_000, 100_000, seed=1)
    data = data[np.append(True, data[1:] != data[:-1])]
    data[-2_500:] = np.resize(np.arange(32), 2_500)
    information, _ = repeat_curves(numbered(data), np.arange(1, 65))
    most = int(np.argmax(information.values))
    assert information.lags[most] in (32, 64)
    assert information.values[most] < information.floor[most]
    assert clear_from(information) == 3
    assert judge(information).last_lag == 31


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.arange(2_000), "must hold symbols that occur twice"),
        (np.zeros(2_000, np.int64), "two different symbols or more, got one symbol only"),
        (np.append(np.zeros(1_999, np.int64), 1), "in all but one"),
    ],
)
def test_what_cannot_be_counted_is_refused(data: Symbols, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        repeat_curves(numbered(data), [1, 2, 3])


@pytest.mark.parametrize("mean", [0.7, 2.0, 6.0, 30.0])
def test_intervals_of_few_equal_pairs_cover(mean: float) -> None:
    """Independent symbols with `mean` equal pairs a lag: r is 0, and in 95 % of the intervals.

    Those of a jackknife alone hold it in half of them where the mean is 0.7.
    """
    size = 20_000
    symbols = round(size / mean)
    covered = []
    for seed in range(12):
        data = np.random.default_rng(seed).integers(0, symbols, size).astype(np.uint32)
        _, correlation = repeat_curves(data, np.arange(1, 41))
        low, high = correlation.interval()
        covered += ((low <= 0) & (high >= 0)).tolist()
    assert np.mean(covered) > 0.95 - 3 * np.sqrt(0.05 * 0.95 / len(covered))


def test_counts_by_block_are_kept_where_they_are_not_zero() -> None:
    data = np.arange(100_000, dtype=np.uint32) // 2
    found = block_counts(data, np.linspace(0, data.size, 41).astype(np.int64))
    assert found.nnz < 1.01 * data.size / 2, "not 40 for each symbol"
    assert found.sum() == data.size


def test_errors_are_widened_to_what_noise_must_leave_and_never_narrowed() -> None:
    """Rows with a small error, a large one and none; estimates and means of replicates stay."""
    left = np.array([[1.0, 1.02, 0.98, 1.0], [3.0, 9.0, 1.0, 5.0], [2.0, 2.0, 2.0, 2.0]])
    estimates = np.column_stack([[1.5, 4.0, 2.5], left])
    least = np.array([0.3, 0.3, 0.3])
    found = with_error(estimates, least)
    np.testing.assert_array_equal(found[:, 0], estimates[:, 0])
    np.testing.assert_allclose(found[:, 1:].mean(axis=1), left.mean(axis=1))
    large = float(jackknife_error(left)[1])
    np.testing.assert_allclose(jackknife_error(found[:, 1:]), [0.3, large, 0.3])


def test_the_curves_say_how_many_symbols_are_different() -> None:
    data = np.random.default_rng(0).integers(0, 9, 20_000).astype(np.uint8)
    assert [curve.symbols for curve in repeat_curves(data, [1, 2])] == [9, 9]
