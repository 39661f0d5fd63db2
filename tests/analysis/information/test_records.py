"""Lines of nearly the same length: their layout is found and taken out, and memory stays."""

import numpy as np
import pytest

from plkernel.analysis.information.laws import Named, measure_corpus
from plkernel.analysis.information.records import (
    common_symbols,
    line_starts,
    shuffled_phases,
    shuffled_records,
)

RNG = np.random.default_rng(11)
LETTERS = np.frombuffer(b"abcdefghijklmnop", np.uint8)


def log(count, spread, text=None):
    """Lines of a fixed head, a number and up to `spread` letters more, without any memory.

    text: bytes that take the place of the letters, in their order.
    """
    lines = []
    at = 0
    for number, more in zip(
        RNG.integers(1000, 9999, count), RNG.integers(0, spread + 1, count), strict=True
    ):
        size = 40 + int(more)
        tail = RNG.choice(LETTERS, size).tobytes() if text is None else text[at : at + size]
        at += size
        lines.append(b"INFO worker id=%d said " % number + tail + b"\n")
    return np.frombuffer(b"".join(lines), np.uint8)


def remembering(size):
    """Letters each of which is the one before with probability 0.8."""
    kept = RNG.random(size) < 0.8
    fresh = RNG.choice(LETTERS, size)
    return fresh[np.maximum.accumulate(np.where(kept, 0, np.arange(size)))].tobytes()


@pytest.mark.parametrize("spread", [1, 3, 12])
def test_lines_without_memory_show_none(spread):
    """Whole lines are alike at a lag of many of them; what is left is noise at all lags."""
    data = log(4_000, spread)
    found = measure_corpus(Named("log", "made"), data)
    assert found.verdict.kind == "none"
    assert found.records is not None
    assert found.records.length == pytest.approx(data.size / 4_000, rel=1e-3)
    assert found.records.strength > 0.05
    assert found.period is None
    assert np.all(np.abs(found.information.values) < 2 * np.array(found.information.floor))
    assert np.all(np.abs(found.correlation.values) < 0.1)


def test_memory_within_such_lines_stays():
    """I at lags within the letters is that of these letters, times their share of the text."""
    text = remembering(400_000)
    alone = measure_corpus(Named("letters", "made"), np.frombuffer(text, np.uint8))
    found = measure_corpus(Named("log", "made"), log(6_000, 6, text))
    assert found.records is not None
    for place in range(3):
        within = (43 - found.information.lags[place]) / found.records.length
        expected = alone.information.values[place] * within
        assert found.information.values[place] == pytest.approx(expected, rel=0.3)
    assert found.verdict.last_lag < 40


def test_a_shuffled_layout_has_the_same_lines_and_columns():
    data = log(3_000, 5)
    starts = line_starts(data)
    found = shuffled_records(data, starts)
    assert found.size == data.size
    lines, others = (bytes(x).split(b"\n")[:-1] for x in (data, found))
    assert sorted(map(len, lines)) == sorted(map(len, others))
    for length in set(map(len, lines)):
        for place in (0, 9, length - 1):
            columns = [
                sorted(line[place] for line in of if len(line) == length) for of in (lines, others)
            ]
            assert columns[0] == columns[1]
    assert set(lines) != set(others)


def test_lines_of_one_length_of_any_length_and_few_are_no_such_records():
    fixed = np.frombuffer(b"abcdefghi\n" * 500, np.uint8)
    free = b"".join(b"x" * int(n) + b"\n" for n in RNG.integers(1, 99, 500))
    assert line_starts(fixed) is None
    assert line_starts(np.frombuffer(free, np.uint8)) is None
    assert line_starts(log(100, 3)) is None
    assert line_starts(np.zeros(0, np.uint8)) is None


def test_a_period_of_many_symbols_is_found_and_taken_out():
    """Every seventh of 5,000 symbols is the same: repeats at multiples of 7 are no memory."""
    data = RNG.integers(0, 5_000, 200_000).astype(np.uint16)
    data[::7] = 9
    found = measure_corpus(Named("ids", "made"), data, unit="symbol")
    assert found.estimator == "repeats"
    assert found.period is not None
    assert found.period.length == 7
    assert found.verdict.kind == "none"
    assert np.all(np.abs(found.correlation.values) < 0.02)


def test_the_correlation_is_freed_of_a_period():
    bases = RNG.choice(np.frombuffer(b"ACGT", np.uint8), 300_000).tobytes()
    lines = b"".join(bases[at : at + 60] + b"\n" for at in range(0, len(bases), 60))
    found = measure_corpus(Named("bases", "made"), np.frombuffer(lines, np.uint8))
    assert found.period.length == 61
    assert np.all(np.abs(found.correlation.values) < 0.01), "a line break stands at each 61st"


def test_symbols_of_a_phase_stay_in_it():
    data = RNG.integers(0, 900, 100_003).astype(np.uint16)
    found = shuffled_phases(data, 10)
    assert not np.array_equal(found, data)
    for phase in range(10):
        np.testing.assert_array_equal(np.sort(found[phase::10]), np.sort(data[phase::10]))
    assert common_symbols(data).dtype == np.uint8
    assert np.unique(common_symbols(data)).size == 256


def test_symbols_of_lines_with_a_rare_length_keep_their_place_and_their_ends() -> None:
    """Three lines of different lengths: those of a place are exchanged, and each end stays one."""
    data = np.frombuffer(b"ab\ncde\nfghi\n", np.uint8)
    found = shuffled_records(data, np.array([0, 3, 7])).tobytes()
    lines = found.split(b"\n")[:-1]
    assert sorted(map(len, lines)) == [2, 3, 4]
    of_place = [{line[place] for line in lines if place < len(line)} for place in range(4)]
    assert of_place == [set(b"acf"), set(b"bdg"), set(b"eh"), set(b"i")]
