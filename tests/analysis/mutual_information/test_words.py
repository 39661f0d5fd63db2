"""Codes of words against a definition in one regular expression, whatever the text and wherever it is cut."""

import re
from collections import Counter

import numpy as np
import pytest

from plkernel.analysis.mutual_information import words
from plkernel.analysis.mutual_information.words import word_symbols

TEXT = """Don't stop: the É in 'CAFÉ' isn't é, the café's well-known; l\u2019été, max_lag 10 and 10.5
日本語、the end of THE\0End"""


def as_bytes(text):
    return np.frombuffer(text.encode() if isinstance(text, str) else text, np.uint8)


def expected(data, vocabulary):
    """Codes and words by the definition, one word at a time."""
    found = re.findall(rb"[0-9a-z\x80-\xff]+", data.tobytes().lower())
    ranked = sorted(Counter(found).items(), key=lambda item: (-item[1], item[0]))[: vocabulary - 1]
    rank = {word: place for place, (word, _) in enumerate(ranked)}
    return [rank.get(word, len(ranked)) for word in found], tuple(rank)


def random_text(size):
    """Bytes of every kind, with short words that come back and long ones that do not."""
    rng = np.random.default_rng(0)
    common = rng.choice(np.frombuffer(b"aAbB9 .'\xc3\xa9", np.uint8), size)
    return np.where(rng.random(size) < 0.1, rng.integers(0, 256, size, np.uint8), common)


@pytest.mark.parametrize("data", [as_bytes(TEXT), random_text(20_000)], ids=["prose", "random"])
@pytest.mark.parametrize("vocabulary", [2, 5, 256])
def test_codes_follow_the_definition_wherever_a_chunk_ends(monkeypatch, data, vocabulary):
    codes, ranked = expected(data, vocabulary)
    for chunk in (1, 2, 3, 7, 64, 1 << 20):
        monkeypatch.setattr(words, "CHUNK", chunk)
        symbols = word_symbols(data, vocabulary)
        assert symbols.words == ranked, chunk
        assert symbols.codes.tolist() == codes, chunk
        assert symbols.codes.dtype == np.uint8


def test_counts_of_codes_are_counts_of_words():
    data = random_text(50_000)
    symbols = word_symbols(data, vocabulary=40)
    counts = Counter(re.findall(rb"[0-9a-z\x80-\xff]+", data.tobytes().lower()))
    counted = np.bincount(symbols.codes, minlength=40).tolist()
    assert counted == [*(counts.pop(word) for word in symbols.words), counts.total()]
    assert max(counts.values()) <= min(counted[:-1])


def test_words_beyond_ascii_stay_whole():
    found = {word.decode() for word in word_symbols(as_bytes(TEXT)).words}
    assert {"é", "É", "cafÉ", "café", "l\u2019été", "日本語、the"} <= found
    assert {"don", "t", "well", "known", "max", "lag", "10", "5", "end"} <= found


def test_words_of_equal_frequency_rank_in_byte_order():
    symbols = word_symbols(as_bytes("pear fig apple Fig 7 pear é"), vocabulary=5)
    assert symbols.words == (b"fig", b"pear", b"7", b"apple")
    assert symbols.codes.tolist() == [1, 0, 3, 0, 2, 1, 4]


def test_where_every_word_is_rare_the_first_in_byte_order_are_kept():
    symbols = word_symbols(as_bytes(" ".join(f"w{i:03}" for i in reversed(range(300)))))
    assert symbols.words == tuple(b"w%03d" % i for i in range(255))
    assert symbols.codes.tolist() == [255] * 45 + list(reversed(range(255)))


def test_fewer_words_than_symbols_need_no_code_for_others():
    assert set(word_symbols(as_bytes("a b a"), 256).codes.tolist()) == {0, 1}


def test_a_word_longer_than_many_chunks_is_one_word(monkeypatch):
    monkeypatch.setattr(words, "CHUNK", 10)
    assert word_symbols(as_bytes(b"x" * 1005)).words == (b"x" * 1005,)


def test_a_mapped_file_is_read_as_it_is(tmp_path):
    path = tmp_path / "text"
    path.write_text(TEXT)
    mapped = word_symbols(np.memmap(path, np.uint8, mode="r"))
    np.testing.assert_array_equal(mapped.codes, word_symbols(as_bytes(TEXT)).codes)


@pytest.mark.parametrize("text", ["", " \n.,;'-_"])
def test_no_word_is_an_error(text):
    with pytest.raises(ValueError, match=f"data holds no word in {len(text)} bytes"):
        word_symbols(as_bytes(text))


@pytest.mark.parametrize("vocabulary", [1, 0, -1, 257])
def test_a_vocabulary_that_is_no_byte_is_an_error(vocabulary):
    with pytest.raises(ValueError, match=f"vocabulary = {vocabulary}: must be from 2 to 256"):
        word_symbols(as_bytes("a b"), vocabulary)


@pytest.mark.parametrize("data", [b"a b", np.zeros((2, 2), np.uint8), np.zeros(2, np.int64)])
def test_anything_but_a_vector_of_bytes_is_an_error(data):
    with pytest.raises(ValueError, match="data must be a vector of uint8"):
        word_symbols(data)
