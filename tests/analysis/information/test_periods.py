"""Periods of known sequences are found and taken out; prose, code and noise have none."""

import numpy as np
import pytest

from plkernel.analysis.information import periods
from plkernel.analysis.information.counts import count_pairs
from plkernel.analysis.information.estimate import mutual_information
from plkernel.analysis.information.laws import Named, measure_corpus
from plkernel.analysis.information.periods import find_period

RNG = np.random.default_rng(5)
WORDS = [bytes(RNG.integers(97, 123, RNG.integers(2, 9)).astype(np.uint8)) for _ in range(200)]


def words(count):
    """Words that follow one another in a chain, so that they remember."""
    state = 0
    found = []
    for redrawn, step in zip(RNG.random(count) < 0.3, RNG.integers(0, 6, count), strict=True):
        state = int(RNG.integers(200)) if redrawn else (7 * state + int(step)) % 200
        found.append(WORDS[state])
    return b" ".join(found)


TEXT = words(30_000)
BASES = RNG.choice(np.frombuffer(b"ACGT", np.uint8), 300_000).tobytes()


def lines(text, width):
    return b"".join(text[at : at + width] + b"\n" for at in range(0, len(text), width))


def records(count):
    """FASTA of many sequences: every header shifts the phase of the lines."""
    parts = []
    for number in range(count):
        start = int(RNG.integers(0, 290_000))
        length = int(RNG.integers(2_000, 6_000))
        parts.append(b">sequence %d\n" % number + lines(BASES[start : start + length], 60))
    return b"".join(parts)


def table(count):
    return b"".join(b"%06d,%.4f,%d\n" % (n, RNG.random(), RNG.integers(9)) for n in range(count))


def free_table(count):
    return b"".join(b"%d,%.3g\n" % (n, RNG.random()) for n in range(count))


def events(count):
    """A constant, a pitch that walks, a strength and a duration, as in a file of notes."""
    pitch = np.cumsum(RNG.integers(-3, 4, count)) % 24 + 48
    rest = RNG.choice([24, 48, 96], count)
    rows = [np.full(count, 0x90), pitch, RNG.integers(64, 84, count), rest]
    return np.stack(rows, axis=1).astype(np.uint8).tobytes()


PERIODIC = {
    "lines of 60": (lines(BASES, 60), 61),
    "lines of 80": (lines(TEXT, 80), 81),
    "short sequences": (records(100), 61),
    "fields of fixed width": (table(20_000), 16),
    "UTF-16": (TEXT.decode().encode("utf-16-le"), 2),
    "UTF-32": (TEXT.decode().encode("utf-32-be"), 4),
    "events of 4 bytes": (events(20_000), 4),
    "a cycle": (bytes(range(7)) * 3_000, 7),
}
FREE = {
    "words": TEXT,
    "words in lines": TEXT.replace(WORDS[3], WORDS[3] + b"\n"),
    "a table": free_table(20_000),
    "noise": RNG.integers(0, 256, 100_000, dtype=np.uint8).tobytes(),
    "two symbols": RNG.integers(0, 2, 100_000, dtype=np.uint8).tobytes(),
    "one symbol": bytes(50_000),
    "five bytes": b"abcab",
    "no bytes": b"",
}


@pytest.mark.parametrize("name", PERIODIC)
def test_a_period_is_found(name):
    text, length = PERIODIC[name]
    found = find_period(np.frombuffer(text, np.uint8), [1])
    assert found is not None
    assert found.length == length


@pytest.mark.parametrize("name", FREE)
def test_what_has_no_period_has_none(name):
    assert find_period(np.frombuffer(FREE[name], np.uint8), [1]) is None


def test_zeros_in_a_part_of_a_file_are_no_byte_of_every_symbol():
    """One stretch in eight is all zeros, and every phase of it; elsewhere there is none."""
    data = (1 + np.arange(600_000) % 8).astype(np.uint8)
    data[:70_000] = 0
    found = find_period(data, [1])
    assert found.length == 8
    assert found.blank == 0.0


def test_lines_of_a_period_are_a_share_of_the_text():
    for name, share in {"lines of 60": 1.0, "a cycle": 0.0, "UTF-16": 0.0}.items():
        found = find_period(np.frombuffer(PERIODIC[name][0], np.uint8), [1])
        assert found.lines == pytest.approx(share, abs=1e-3)


def test_information_of_phases_is_all_that_independent_bases_in_lines_share():
    data = np.frombuffer(lines(BASES, 60), np.uint8)
    lags = np.array([1, 30, 60, 61, 122])
    found = find_period(data, lags)
    pairs = count_pairs(data, lags)[:, 0]
    # The plug-in exceeds the truth by (S - 1)^2 / 2n = 3e-5 nats, with S = 5 and n = 305,000.
    assert found.information == pytest.approx(mutual_information(pairs), abs=1e-4)
    assert found.information[3] > 100 * found.information[2]


def test_a_short_period_that_is_found_is_taken_off_and_not_refused():
    once = np.random.default_rng(1).integers(0, 4, 61).astype(np.uint8)
    found = measure_corpus(
        Named("lines", "made"), np.resize(once, 40_000), stated=(1, 50), max_lag=50
    )
    assert found.period.length == 61
    assert found.verdict.kind == "none"


def test_lines_of_independent_bases_have_no_memory():
    data = np.frombuffer(lines(BASES, 60), np.uint8)
    found = measure_corpus(Named("bases", "made"), data)
    assert found.period.length == 61
    assert found.verdict.kind == "none"
    assert found.verdict.last_lag == 0


def test_code_units_of_two_bytes_double_the_lags():
    narrow = measure_corpus(Named("narrow", "made"), np.frombuffer(TEXT, np.uint8))
    wide = PERIODIC["UTF-16"][0]
    found = measure_corpus(Named("wide", "made"), np.frombuffer(wide, np.uint8))
    assert narrow.period is None
    assert found.period.blank == 1.0
    assert all(lag % 2 == 0 for lag in found.information.lags)
    # Every second byte carries nothing: half the information at twice the lag.
    at_one = dict(zip(narrow.information.lags, narrow.information.values, strict=True))[1]
    assert found.information.values[0] == pytest.approx(at_one / 2, rel=0.02)
    assert found.verdict.last_lag == pytest.approx(2 * narrow.verdict.last_lag, rel=0.2)


def test_compositions_are_shares_of_symbols_at_each_phase():
    piece = np.array([5, 7, 5, 5, 7, 7], np.uint8)
    found = periods._compositions(piece, 2, np.array([5, 7]))
    np.testing.assert_allclose(found, [[2 / 3, 1 / 3], [1 / 3, 2 / 3]])


def test_stretches_are_of_one_length_and_reach_from_the_first_byte_to_the_last():
    data = np.arange(20_000).astype(np.uint8)
    size = 1 << 12
    for most, count in ((3, 3), (99, 20_000 // size)):
        found = periods._stretches(data, size, most)
        assert [len(piece) for piece in found] == [size] * count
        np.testing.assert_array_equal(found[0], data[:size])
        np.testing.assert_array_equal(found[-1], data[-size:])
    [alone] = periods._stretches(data[:10_000], 1 << 20, 9)
    assert alone.size == 8192, "the largest power of two that it holds"
    least = 4 * periods.BACKGROUND
    assert periods._stretches(data[: least - 1], 16, 1) == []
    assert len(periods._stretches(data[:least], 16, 1)) == 1


def test_the_background_is_the_median_of_each_run_and_the_last_is_longer():
    width = 2 * periods.BACKGROUND
    power = np.concatenate([np.full(width, 1.0), np.full(width, 2.0), np.full(5, 9.0)])
    found = periods._background(power)
    assert found.size == power.size
    np.testing.assert_array_equal(found[:width], 1.0)
    np.testing.assert_array_equal(found[width:], 2.0)
    short = np.array([1.0, 5.0, 3.0])
    np.testing.assert_array_equal(periods._background(short), [3.0] * 3)


@pytest.mark.parametrize("length", [2, 7, 61])
def test_the_fundamental_is_the_shortest_period_of_the_lines(length):
    size = 1 << 14
    lines = np.zeros(size // 2 + 1)
    at = np.round(np.arange(1, length // 2 + 1) * size / length).astype(int)
    lines[at] = 1.0
    assert periods._fundamental(lines) == length
    assert periods._fundamental(np.zeros(size // 2 + 1)) is None


def test_zeros_count_where_they_are_not_everywhere():
    wide = np.array([65, 0] * 50, np.uint8)
    zeros = np.zeros(100, np.uint8)
    assert periods._share_of_zero([wide, wide, zeros], 2) == 1.0
    assert periods._share_of_zero([zeros], 2) == 0.0
    half = np.array([65, 0, 65, 66] * 25, np.uint8)
    assert periods._share_of_zero([half], 2) == 0.5


def test_the_share_in_lines_counts_their_breaks():
    data = np.frombuffer(b"\nab\nab\nabc\nab\n" + b"x" * 4, np.uint8)
    assert periods._share_in_lines(data, 3) == 3 * 3 / data.size
    assert periods._share_in_lines(data, 4) == 4 / data.size
