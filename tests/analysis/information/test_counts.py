"""Counts of pairs against np.bincount."""

from itertools import pairwise

import numpy as np
import pytest

from plkernel.analysis.information import counts
from plkernel.analysis.information.counts import block_edges, count_pairs, histogram

LAGS = [1, 2, 7, 300]


def text(size, seed=0, symbols=37):
    """Bytes with uneven shares and memory, so that rows and columns of a table cannot be
    confused.
    """
    rng = np.random.default_rng(seed)
    data = rng.choice(symbols, size, p=np.arange(1, symbols + 1) / (symbols * (symbols + 1) / 2))
    return np.maximum(data, np.roll(data, 1) - 3).astype(np.uint8) + np.uint8(200)


def by_bincount(data, lag, start=0, stop=None):
    stop = min(data.size if stop is None else stop, data.size - lag)
    first = data[start:stop].astype(np.int64)
    second = data[start + lag : stop + lag]
    return np.bincount(first * 256 + second, minlength=65536).reshape(256, 256)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "stretch", [1 << 24, 777, 19_900]
)  # the last leaves a stretch without a pair at 300
@pytest.mark.parametrize("subset", [False, True])
@pytest.mark.parametrize("small", [0, 1 << 16], ids=["compiled", "numpy"])
def test_counts_are_those_of_bincount_in_every_block(monkeypatch, threads, stretch, subset, small):
    monkeypatch.setattr(counts, "STRETCH", stretch)
    monkeypatch.setattr(counts, "SMALL", small)
    data = text(20_000)
    told = []
    edges = block_edges(data.size, LAGS[-1], 7)
    symbols = np.unique(data) if subset else np.arange(256, dtype=np.uint8)
    tables = count_pairs(
        data, LAGS, symbols=symbols, edges=edges, threads=threads, progress=told.append
    )
    for table, lag in zip(tables, LAGS, strict=True):
        for block, (start, stop) in enumerate(pairwise(edges)):
            expected = by_bincount(data, lag, start, stop)[symbols[:, None], symbols]
            np.testing.assert_array_equal(table[block], expected)
    assert sum(told) == tables.sum() == sum(data.size - lag for lag in LAGS)


def test_small_data_are_counted_as_the_compiled_counter_does():
    """Pairs of other symbols than those asked for, empty blocks and bytes beyond the edges."""
    data = text(3000)
    edges = np.array([11, 400, 400, 2950])
    symbols = np.unique(data)[::2]
    found, expected = (np.zeros((3, symbols.size, symbols.size), np.uint32) for _ in range(2))
    arguments = (data, 5, 11, 2950, edges, symbols)
    counted = counts.interpreted(*arguments, found)
    assert counted == counts.compiled()(*arguments, expected) == expected.sum() > 0
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("small", [0, 1 << 16], ids=["compiled", "numpy"])
def test_a_mapped_file_and_all_256_symbols_are_counted(tmp_path, monkeypatch, small):
    monkeypatch.setattr(counts, "SMALL", small)
    monkeypatch.setattr(counts, "PIECE", 1000)
    data = np.concatenate(
        [np.zeros(5000, np.uint8), np.arange(256, dtype=np.uint8), np.full(9, 255, np.uint8)]
    )
    (tmp_path / "x.bin").write_bytes(data.tobytes())
    mapped = np.memmap(tmp_path / "x.bin", np.uint8, mode="r")
    for lag, table in zip((1, 5000), count_pairs(mapped, [1, 5000])[:, 0], strict=True):
        np.testing.assert_array_equal(table, by_bincount(data, lag))
    np.testing.assert_array_equal(histogram(mapped), np.bincount(data))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint32, np.int64, np.uint64])
def test_integers_are_numbered_as_sorting_does(dtype, monkeypatch):
    """By a table where their range is small, in little memory; by sorting where it is not."""
    monkeypatch.setattr(counts, "PIECE", 700)
    limits = np.iinfo(dtype)
    for low in (limits.min, limits.max - 90):
        data = np.random.default_rng(0).integers(low, int(low) + 91, 5_000, dtype=dtype)[::3]
        expected = np.unique(data, return_inverse=True)[1]
        np.testing.assert_array_equal(counts.numbered(data), expected)
    ends = np.array([limits.min, limits.max, limits.min], dtype)
    assert counts.numbered(ends).tolist() == [0, 1, 0]
    assert counts.numbered(ends[:0]).dtype == np.uint8
