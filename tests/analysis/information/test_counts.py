"""Counts of pairs against np.bincount, and codes of words against a definition in one regular expression."""

import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from plkernel.analysis.information import counts
from plkernel.analysis.information.counts import block_edges, count_pairs, histogram, word_symbols

LAGS = [1, 2, 7, 300]
TEXT = """Don't stop: the É in 'CAFÉ' isn't é, the café's well-known; l\u2019été, max_lag 10 and 10.5
日本語、the end of THE\0End"""


def text(size, seed=0, symbols=37):
    """Bytes with uneven shares and memory, so that rows and columns of a table cannot be confused."""
    rng = np.random.default_rng(seed)
    data = rng.choice(symbols, size, p=np.arange(1, symbols + 1) / (symbols * (symbols + 1) / 2))
    return np.maximum(data, np.roll(data, 1) - 3).astype(np.uint8) + np.uint8(200)


def by_bincount(data, lag, start=0, stop=None):
    stop = min(data.size if stop is None else stop, data.size - lag)
    first, second = data[start:stop].astype(np.int64), data[start + lag : stop + lag]
    return np.bincount(first * 256 + second, minlength=65536).reshape(256, 256)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("stretch", [1 << 24, 777, 19_900])  # the last leaves a stretch without a pair at 300
@pytest.mark.parametrize("subset", [False, True])
def test_counts_are_those_of_bincount_in_every_block(monkeypatch, threads, stretch, subset):
    monkeypatch.setattr(counts, "STRETCH", stretch)
    data, told = text(20_000), []
    edges = block_edges(data.size, LAGS[-1], 7)
    symbols = np.unique(data) if subset else np.arange(256, dtype=np.uint8)
    tables = count_pairs(data, LAGS, symbols=symbols, edges=edges, threads=threads, progress=told.append)
    for table, lag in zip(tables, LAGS, strict=True):
        for block, (start, stop) in enumerate(pairwise(edges)):
            expected = by_bincount(data, lag, start, stop)[symbols[:, None], symbols]
            np.testing.assert_array_equal(table[block], expected)
    assert sum(told) == tables.sum() == sum(data.size - lag for lag in LAGS)


def test_a_mapped_file_and_all_256_symbols_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(counts, "PIECE", 1000)
    data = np.concatenate([np.zeros(5000, np.uint8), np.arange(256, dtype=np.uint8), np.full(9, 255, np.uint8)])
    (tmp_path / "x.bin").write_bytes(data.tobytes())
    mapped = np.memmap(tmp_path / "x.bin", np.uint8, mode="r")
    for lag, table in zip((1, 5000), count_pairs(mapped, [1, 5000])[:, 0], strict=True):
        np.testing.assert_array_equal(table, by_bincount(data, lag))
    np.testing.assert_array_equal(histogram(mapped), np.bincount(data))
    with pytest.raises(ValueError, match="leave out"):
        count_pairs(text(1000), [1], symbols=np.array([200, 201], np.uint8))


def as_bytes(words):
    return np.frombuffer(words.encode() if isinstance(words, str) else words, np.uint8)


def random_text(size):
    """Bytes of every kind, with short words that come back and long ones that do not."""
    rng = np.random.default_rng(0)
    common = rng.choice(np.frombuffer(b"aAbB9 .'\xc3\xa9", np.uint8), size)
    return np.where(rng.random(size) < 0.1, rng.integers(0, 256, size, np.uint8), common)


@pytest.mark.parametrize(
    "data", [as_bytes(TEXT), random_text(5_000), as_bytes(b"x" * 205)], ids=["prose", "random", "x"]
)
@pytest.mark.parametrize("vocabulary", [2, 5, 256])
def test_codes_follow_the_definition_wherever_a_chunk_ends(monkeypatch, data, vocabulary):
    words = re.findall(rb"[0-9a-z\x80-\xff]+", data.tobytes().lower())
    ranked = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))[: vocabulary - 1]
    rank = {word: place for place, (word, _) in enumerate(ranked)}
    for chunk in (1, 2, 7, 64, 1 << 20):
        monkeypatch.setattr(counts, "CHUNK", chunk)
        codes, named = word_symbols(data, vocabulary)
        assert named == list(rank), chunk
        assert codes.tolist() == [rank.get(word, len(ranked)) for word in words], chunk


def test_words_beyond_ascii_stay_whole_and_equal_frequencies_rank_in_byte_order():
    words = {word.decode() for word in word_symbols(as_bytes(TEXT))[1]}
    assert {"é", "É", "cafÉ", "café", "l\u2019été", "日本語、the", "don", "t", "max", "lag", "10"} <= words
    codes, named = word_symbols(as_bytes("pear fig apple Fig 7 pear é"), vocabulary=5)
    assert named == [b"fig", b"pear", b"7", b"apple"]
    assert codes.tolist() == [1, 0, 3, 0, 2, 1, 4]


@pytest.mark.parametrize(
    ("function", "data", "argument", "message"),
    [
        (count_pairs, text(100), [0, 1], r"lags must be 1 or more and ascend without repeats, got \[0, 1\]"),
        (count_pairs, text(100), [1, 5, 3], r"got \[1, 5, 3\]"),
        (count_pairs, text(100), [], "list of integers"),
        (count_pairs, text(300), LAGS, "too short for lag 300"),
        (count_pairs, text(1000).astype(np.int64), LAGS, "vector of uint8, got int64"),
        (count_pairs, b"bytes", LAGS, "got bytes; np.frombuffer"),
        (word_symbols, as_bytes(" \n.,;'-_"), 9, "data holds no word in 8 bytes"),
        (word_symbols, as_bytes("a b"), 257, "got 257"),
    ],
)
def test_bad_input_is_refused(function, data, argument, message):
    with pytest.raises(ValueError, match=message):
        function(data, argument)
