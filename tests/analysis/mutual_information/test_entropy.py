import numpy as np
import pytest

from plkernel.analysis.mutual_information import entropy
from plkernel.analysis.mutual_information.entropy import unigram_entropy


@pytest.mark.parametrize("symbols", [1, 2, 3, 255, 256])
def test_equally_frequent_symbols_have_the_logarithm_of_their_number(symbols):
    data = np.tile(np.arange(symbols, dtype=np.uint8), 100)
    assert unigram_entropy(data) == pytest.approx(np.log2(symbols), abs=1e-12)


def test_chunks_add_up(monkeypatch):
    data = np.random.default_rng(0).integers(0, 7, 10_001).astype(np.uint8) ** 2
    counts = np.unique(data, return_counts=True)[1]
    expected = -np.sum(counts / data.size * np.log2(counts / data.size))
    monkeypatch.setattr(entropy, "CHUNK", 1000)
    assert unigram_entropy(data) == pytest.approx(expected, rel=1e-12)


def test_the_stated_bias_is_that_of_a_uniform_source():
    generator = np.random.default_rng(0)
    size = 20_000
    found = [8 - unigram_entropy(generator.integers(0, 256, size, dtype=np.uint8)) for _ in range(50)]
    # The missing bits have mean 255 / (2 n ln 2) and standard deviation sqrt(2 * 255) / (2 n ln 2) per sample.
    expected = 255 / (2 * size * np.log(2))
    assert np.mean(found) == pytest.approx(expected, rel=4 * np.sqrt(2 / 255 / 50))


@pytest.mark.parametrize("data", [np.zeros(0, np.uint8), np.zeros(3), np.zeros((2, 2), np.uint8), np.zeros(3, np.int8)])
def test_only_a_vector_of_bytes_is_accepted(data):
    with pytest.raises(ValueError, match="must be a non-empty vector of uint8"):
        unigram_entropy(data)
