"""Copies of a text and of parts of it."""

import numpy as np
import pytest

import plkernel
from plkernel.analysis.information import copies
from plkernel.analysis.information.laws import Named, measure_corpus
from plkernel.commands.measure import render

RNG = np.random.default_rng(0)
WORDS = [bytes(RNG.integers(97, 123, RNG.integers(2, 8)).tolist()) for _ in range(2_000)]
TEXT = np.frombuffer(b" ".join(RNG.choice(np.array(WORDS, object), 30_000).tolist()), np.uint8)
"""Words at random."""


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize(
    ("length", "size"), [(2, 41), (300, 601), (5000, 10_000), (5000, 19_999), (70_000, 200_001)]
)
def test_copies_of_a_text_have_its_length(length, size, dtype):
    one = np.random.default_rng(length).integers(0, 250, length).astype(dtype)
    data = np.resize(one, size)
    assert copies.copied_length(data) == length
    data[-1] += 1
    assert copies.copied_length(data) is None


@pytest.mark.parametrize("size", [0, 1, 2, 3, 1000])
def test_what_is_no_copies_has_no_length(size):
    """Also one symbol over and over, and a text whose beginning alone stands again."""
    assert copies.copied_length(np.zeros(size, np.uint8)) is None
    assert copies.copied_length(np.arange(size).astype(np.uint16)) is None
    text = TEXT[:20_000]
    assert copies.copied_length(np.concatenate([text[:6000], text])) is None


def test_copies_of_a_text_are_not_measured_as_more_text():
    """An interval from them would be as narrow as if all were new."""
    text = TEXT[:5000]
    options = {"stated": (1, 50), "max_lag": 50}
    with pytest.raises(
        ValueError, match=r"copies of one text, got 3.2 times the same 5,000 bytes, .* first 5,000"
    ):
        measure_corpus(Named("copies", "made"), np.resize(text, 16_000), **options)
    assert measure_corpus(Named("once", "made"), text, **options).period is None


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_parts_that_stand_twice_are_found_with_their_share(dtype):
    """A quarter of the text once more: copies and originals are two fifths of the whole."""
    text = TEXT.astype(dtype)
    part = text.size // 4
    data = np.concatenate([text, text[part : 2 * part]])
    found = copies.copies_within(data)
    assert found is not None
    assert found.pieces == copies.PIECES
    assert found.share == pytest.approx(0.4, abs=2 / copies.PIECES)
    assert copies.copies_within(text) is None


def test_pieces_at_bytes_between_symbols_are_no_copies():
    """The bytes of these symbols recur one byte on, where no symbol begins."""
    text = TEXT[:40_000].astype(np.uint16)
    shifted = np.frombuffer(b"a" + text.tobytes() + b"a", np.uint16)
    assert copies.copies_within(np.concatenate([text, shifted])) is None


@pytest.mark.parametrize(("share", "is_named"), [(0.14, False), (0.26, True)])
def test_copies_are_named_from_a_fifth_of_the_text_on(share, is_named):
    """Of which one half was copied from the other."""
    part = int(TEXT.size * share / (2 - share))
    data = np.concatenate([TEXT, TEXT[40_000 : 40_000 + part]])
    assert (copies.copies_within(data) is not None) == is_named


def test_a_piece_beside_itself_is_no_copy():
    """A phrase that fills two pieces stands at every place of them, with overlap alone."""
    phrase = TEXT[: copies.LENGTH - 100]
    data = np.concatenate([TEXT[20_000:60_000], np.resize(phrase, 2 * copies.LENGTH)])
    starts = [40_000, 40_050]
    assert copies._copied(data, starts) == set()
    data = np.concatenate([data, TEXT[60_000:70_000], data[40_000 : 40_000 + copies.LENGTH]])
    assert copies._copied(data, starts) == {40_000}


def test_what_is_left_out_counts_as_no_copy():
    """Blanks between a text and its copy are part of the text whose share is told."""
    one = TEXT[:60_000]
    blank = np.full(180_000, 32, np.uint8)
    found = copies.copies_within(np.concatenate([one, blank, one]))
    assert found is not None
    assert found.pieces == copies.PIECES
    assert found.share == pytest.approx(0.4, abs=3 / copies.PIECES)


def test_templates_that_follow_at_random_are_no_copies():
    """Lines of a log are alike, but no long stretch of them."""
    rng = np.random.default_rng(1)
    templates = [rng.integers(0, 20, rng.integers(100, 250)).astype(np.uint8) for _ in range(12)]
    data = np.concatenate([templates[i] for i in rng.integers(0, 12, 3_000)])
    assert copies.copies_within(data) is None


def test_runs_and_cycles_are_no_copies():
    """Blanks stand beside blanks, and a cycle beside itself, which a period tells."""
    blank = np.full(TEXT.size, 32, np.uint8)
    cycle = np.resize(np.arange(20, dtype=np.uint8), TEXT.size)
    for data in (blank, cycle, np.concatenate([TEXT, blank]), np.concatenate([TEXT, cycle])):
        assert copies.copies_within(data) is None


def test_short_texts_have_few_pieces_or_none():
    assert copies.copies_within(TEXT[:0]) is None
    assert copies.copies_within(np.tile(TEXT[: copies.LENGTH - 1], 2)) is None
    found = copies.copies_within(np.concatenate([TEXT[:4_000], TEXT[:3_000]]))
    assert found is not None
    assert found.share == pytest.approx(6 / 7, abs=0.3)


def test_a_measurement_names_copies_of_parts():
    text = TEXT[:60_000]
    data = np.concatenate([text, text[10_000:40_000], text[5_000:20_000]])
    found = plkernel.measure(data.tobytes(), max_lag=50, lags=(1, 50))
    assert found.copies is not None
    share = f"{found.copies.share:.0%}"
    assert f"copies: {found.copies.found} of 64 pieces of 1,024 bytes" in render(found)
    assert f"about {share} of it" in render(found)
    assert found.to_dict()["copies"]["found"] == found.copies.found
    once = plkernel.measure(text.tobytes(), max_lag=50, lags=(1, 50))
    assert once.copies is None
    assert "copies" not in render(once)


def test_copies_that_a_known_law_makes_are_not_looked_for():
    """The text of a known law has its information whatever stands twice in it."""
    data = np.concatenate([TEXT, TEXT[: TEXT.size // 2]])
    exact = np.zeros_like
    options = {"stated": (1, 50), "max_lag": 50}
    assert measure_corpus(Named("known", "made"), data, exact=exact, **options).copies is None
