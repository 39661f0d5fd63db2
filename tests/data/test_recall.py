"""Sequences of recall: what stands where, how far queries lie, and that they are drawn as said."""

import tracemalloc
import zlib
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

from plkernel.data import recall
from plkernel.data.corpora import load
from plkernel.data.names import known_sequence, predictor_of, recall_of, synthetic_corpus
from plkernel.data.recall import ANSWERS, KEYS, PLACINGS, RecallCorpus, most_pairs, queries

LAWS = [
    RecallCorpus(placing=placing, answers=answers, pairs=pairs, length=length)
    for placing in PLACINGS
    for answers in ANSWERS
    for pairs, length in ((32, 128), (8, 128), (1, 4), (128, 1024))
]
SAFE = 1e-4
"""Chance that a test of one law of chance fails by itself."""


def drawn(law: RecallCorpus, count: int = 200, seed: int = 0) -> np.ndarray:
    return law.sequences(count, np.random.default_rng(seed))


def by_hand(sequence: np.ndarray) -> list[tuple[int, int]]:
    """Places of the first and of the second occurrence of each key, by the order of pairs."""
    seen: dict[int, list[int]] = {}
    for place, byte in enumerate(sequence.tolist()):
        if byte < KEYS:
            seen.setdefault(byte, []).append(place)
    assert all(len(places) == 2 for places in seen.values())
    return sorted((first, second) for first, second in seen.values())


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_every_key_stands_twice_and_all_else_is_values(law: RecallCorpus) -> None:
    windows = drawn(law, 20)
    assert windows.shape == (20, law.length)
    found = queries(windows)
    for row, sequence in enumerate(windows):
        places = by_hand(sequence)
        assert len(places) == law.pairs
        assert list(zip(found.pair[row].tolist(), found.query[row].tolist(), strict=True)) == places
        assert found.answer[row].tolist() == [sequence[first + 1] for first, _ in places]
        for first, second in places:
            assert first % 2 == second % 2 == 0
            assert sequence[first + 1] >= KEYS
            assert law.answers == "hidden" or sequence[second + 1] == sequence[first + 1]
        assert np.sum(sequence < KEYS) == 2 * law.pairs
    assert np.all(found.distance > 0)
    if law.placing == "first":
        assert np.array_equal(found.pair[0], 2 * np.arange(law.pairs))


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_no_sequences_can_be_drawn(law: RecallCorpus) -> None:
    rng = np.random.default_rng(0)
    assert law.sequences(0, rng).shape == (0, law.length)
    assert law.windows(0, rng).shape == (0, law.length + 1)
    assert law.distances(0, rng).shape == (0, law.pairs)


@pytest.mark.parametrize("placing", PLACINGS)
@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_the_gap_of_one_query_has_the_density_of_the_power(placing: str, power: float) -> None:
    """With one pair in sixteen slots, by a chi-square test of all gaps.

    Anywhere, the slot of the pair is even over all but the last one, and the gap has the density of
    those that remain.
    """
    law = RecallCorpus(pairs=1, length=32, power=power, placing=placing)
    count = 20_000
    found = queries(drawn(law, count))
    gaps = found.distance[:, 0] // 2
    expected = np.zeros(16)
    starts = [0] if placing == "first" else range(15)
    for start in starts:
        weights = np.arange(1.0, 16 - start) ** -power
        expected[1 : 16 - start] += weights / weights.sum() / len(starts)
    observed = np.bincount(gaps, minlength=16)
    statistic = np.sum((observed[1:] - count * expected[1:]) ** 2 / (count * expected[1:]))
    assert statistic < chi2.isf(SAFE, 14)
    if placing == "anywhere":
        pairs = np.bincount(found.pair[:, 0] // 2, minlength=16)
        assert pairs[15] == 0
        assert np.sum((pairs[:15] - count / 15) ** 2 / (count / 15)) < chi2.isf(SAFE, 14)


@pytest.mark.parametrize("placing", PLACINGS)
def test_keys_values_and_filler_are_even_and_independent_of_place(placing: str) -> None:
    windows = drawn(RecallCorpus(pairs=4, length=32, placing=placing), 8000)
    counts = np.bincount(windows.ravel(), minlength=256)
    keys = counts[:KEYS] / 2
    assert np.sum((keys - keys.mean()) ** 2) / keys.mean() < chi2.isf(SAFE, KEYS - 1)
    found = queries(windows)
    answers = np.bincount(found.answer.ravel(), minlength=256)[KEYS:]
    assert np.sum((answers - answers.mean()) ** 2) / answers.mean() < chi2.isf(SAFE, 127)
    fillers = counts[KEYS:] - answers
    assert np.sum((fillers - fillers.mean()) ** 2) / fillers.mean() < chi2.isf(SAFE, 127)


def test_what_stands_behind_a_query_says_nothing_of_a_hidden_answer() -> None:
    """The two are equal as often as any two values, once in 128."""
    windows = drawn(RecallCorpus(pairs=8, length=32), 4000)
    found = queries(windows)
    behind = np.take_along_axis(windows, found.query + 1, axis=1)
    count = found.query.size
    equal = np.sum(behind == found.answer)
    assert (equal - count / 128) ** 2 / (count / 128 * (1 - 1 / 128)) < chi2.isf(SAFE, 1)


def test_no_pair_is_likelier_to_be_asked_for_soon() -> None:
    """With pairs first: the mean place of a query is the same for all pairs."""
    count = 4000
    places = queries(drawn(RecallCorpus(pairs=8, length=128), count)).query.astype(float)
    errors = places.std(axis=0, ddof=1) / np.sqrt(count)
    mean = places.mean()
    assert np.sum(((places.mean(axis=0) - mean) / errors) ** 2) < chi2.isf(SAFE, 8)


def test_the_corpus_is_its_sequences_one_after_another_and_shorter_ones_are_beginnings(
    tmp_path,
) -> None:
    law = RecallCorpus(pairs=4, length=32, size=32 * 100 + 7, seed=3)
    data = np.concatenate(list(law.blocks()))
    assert data.size == law.size
    assert queries(data[: 32 * 100].reshape(100, 32)).pair.shape == (100, 4)
    shorter = np.concatenate(list(replace(law, size=1000).blocks()))
    np.testing.assert_array_equal(shorter, data[:1000])
    assert np.mean(np.concatenate(list(replace(law, seed=4).blocks())) == data) < 0.1
    corpus = load("synthetic:recall,pairs=4,length=32,bytes=3207,seed=3", cache=tmp_path)
    np.testing.assert_array_equal(corpus.bytes, data)


# CRC-32 of the bytes of a corpus that ends within its second block, and of windows, as they were
# drawn when all sequences were made together.
DRAWN = {
    ("first", "hidden"): (2579668396, 3948164547),
    ("anywhere", "shown"): (4254407509, 4147320844),
}


@pytest.mark.parametrize("at_once", [4, 64, 2**20])
@pytest.mark.parametrize(("placing", "answers"), DRAWN)
def test_the_same_numbers_are_drawn_whatever_is_drawn_at_once(
    placing: str, answers: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall, "AT_ONCE", at_once)
    law = RecallCorpus(
        pairs=5, length=30, placing=placing, answers=answers, size=30 * 67 + 11, seed=3
    )
    data = np.concatenate(list(law.blocks()))
    windows = law.windows(7, np.random.default_rng(4))
    sums = tuple(zlib.crc32(one.tobytes()) for one in (data, windows))
    assert sums == DRAWN[placing, answers]


@pytest.mark.parametrize("placing", PLACINGS)
def test_distances_are_those_of_the_windows(placing: str) -> None:
    law = RecallCorpus(pairs=5, length=30, placing=placing)
    windows = law.windows(9, np.random.default_rng(1))
    distances = law.distances(9, np.random.default_rng(1))
    expected = queries(windows[:, :-1]).distance
    np.testing.assert_array_equal(np.sort(distances, axis=1), np.sort(expected, axis=1))


@pytest.mark.parametrize("placing", PLACINGS)
def test_what_a_short_corpus_takes_does_not_grow_with_sequences_that_it_has_not(
    placing: str,
) -> None:
    """One sequence of 524,288 bytes, of 64 that are drawn, whose bytes alone are 32 MiB."""
    law = RecallCorpus(pairs=2, length=2**19, placing=placing, size=1000)
    tracemalloc.start()
    try:
        assert sum(block.size for block in law.blocks()) == 1000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 24 * 2**20


def test_windows_have_one_more_value_behind() -> None:
    law = RecallCorpus(pairs=32, length=128)
    windows = law.windows(50, np.random.default_rng(0))
    assert windows.shape == (50, 129)
    assert np.all(windows[:, -1] >= KEYS)
    assert queries(windows[:, :-1]).query.max() == 126, "every answer can be predicted"


@pytest.mark.parametrize(
    ("length", "expected"), [(4, 1), (6, 1), (128, 32), (512, 128), (4096, 128)]
)
def test_the_most_pairs_are_a_quarter_of_the_length_and_at_most_the_keys(
    length: int, expected: int
) -> None:
    assert most_pairs(length) == expected
    windows = drawn(RecallCorpus(pairs=expected, length=length, placing="anywhere"), 3)
    assert queries(windows).query.shape == (3, expected)


@pytest.mark.parametrize("cut", [slice(None, -2), slice(3, None)])
def test_parts_of_sequences_are_refused(cut: slice) -> None:
    windows = drawn(RecallCorpus(pairs=32, length=128), 4)
    with pytest.raises(ValueError, match="windows must be whole sequences of recall"):
        queries(windows[:, cut])


def test_a_key_four_times_is_refused() -> None:
    windows = np.array([[1, 200, 1, 200, 1, 200, 1, 200]])
    with pytest.raises(ValueError, match="every key in them twice"):
        queries(windows)


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("pairs=33", "pairs must be at most length / 4 and 128, 32 for length 128, got 33"),
        ("pairs=129,length=4096", "pairs must be from 1 to 128, got 129"),
        ("pairs=0", "pairs must be from 1 to 128, got 0"),
        ("pairs=1,length=7", "length must be even, got 7"),
        ("length=2,pairs=1", "length must be from 4 to"),
        ("power=-1", "power must be from 0 to 8, got -1"),
        ("power=nan", "power must be from 0 to 8, got nan"),
        ("placing=last", "placing must be first or anywhere, got 'last'"),
        ("answers=told", "answers must be hidden or shown, got 'told'"),
        ("seed=-1", "seed must be at least 0"),
        ("pair=3", r"parameter must be one of the law recall, got 'pair'; did you mean 'pairs'\?"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(rest: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        synthetic_corpus(f"recall,{rest}")


def test_recall_is_known_by_name_and_has_neither_information_nor_a_prediction_of_all() -> None:
    name = "synthetic:recall,pairs=4,length=32"
    assert recall_of(name) == RecallCorpus(pairs=4, length=32)
    assert known_sequence(name) is None
    assert predictor_of(name) is None
    assert recall_of("synthetic:markov") is recall_of("stdlib") is None
    with pytest.raises(ValueError, match="pairs must be"):
        recall_of("synthetic:recall,pairs=0")


@pytest.mark.parametrize(
    "windows",
    [
        np.full((2, 8), 200),
        np.zeros((0, 8), np.int64),
        np.array([[1, 200, 1, 200], [1, 200, 200, 200]]),
        np.array([[1, 200, 1, 200, 2, 200]]),
        np.array([[1, 200, 2, 200, 1, 200, 3, 200]]),
    ],
    ids=["no keys", "no windows", "unlike", "odd", "once each"],
)
def test_what_is_no_sequence_of_recall_is_refused(windows: np.ndarray) -> None:
    with pytest.raises(ValueError, match="windows must be whole sequences of recall"):
        queries(windows)


def test_a_sequence_by_hand() -> None:
    found = queries(np.array([[5, 201, 3, 202, 3, 250, 5, 251]]))
    assert found.pair.tolist() == [[0, 2]]
    assert found.query.tolist() == [[6, 4]]
    assert found.answer.tolist() == [[201, 202]]
    assert found.distance.tolist() == [[6, 2]]
    assert RecallCorpus(pairs=1, length=10).slots == 5


@pytest.mark.parametrize("placing", PLACINGS)
def test_the_shortest_sequence_is_a_pair_and_its_query(placing: str) -> None:
    law = RecallCorpus(pairs=1, length=4, placing=placing, size=10)
    assert queries(drawn(law)).distance.tolist() == [[2]] * 200
    assert sum(block.size for block in law.blocks()) == 10


def test_a_power_may_be_a_whole_number() -> None:
    whole = RecallCorpus(pairs=2, length=16, power=2, placing="anywhere")
    np.testing.assert_array_equal(drawn(whole), drawn(replace(whole, power=2.0)))
