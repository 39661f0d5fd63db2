from itertools import pairwise

import numpy as np
import pytest

from plkernel.analysis.mutual_information import pair_counts
from plkernel.analysis.mutual_information.pair_counts import (
    block_edges,
    count_pairs,
    count_with_numpy,
    counter,
    histogram,
)

LAGS = [1, 2, 7, 300]


def text(size, seed=0, symbols=37):
    """Bytes with uneven shares and memory, so that rows and columns of a table cannot be confused."""
    rng = np.random.default_rng(seed)
    data = rng.choice(symbols, size, p=np.arange(1, symbols + 1) / (symbols * (symbols + 1) / 2))
    return np.maximum(data, np.roll(data, 1) - 3).astype(np.uint8) + np.uint8(200)


def by_bincount(data, lag, start=0, stop=None):
    stop = data.size - lag if stop is None else min(stop, data.size - lag)
    first, second = data[start:stop].astype(np.int64), data[start + lag : stop + lag]
    return np.bincount(first * 256 + second, minlength=65536).reshape(256, 256)


def spread(counts):
    """The tables of `counts` over all 256 byte values."""
    full = np.zeros((*counts.tables.shape[:2], 256, 256), np.int64)
    full[..., counts.symbols[:, None], counts.symbols] = counts.tables
    return full


@pytest.fixture(params=["numba", "numpy"])
def how(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(pair_counts, "counter", lambda: count_with_numpy)
    else:
        pytest.importorskip("numba")
        assert counter() is not count_with_numpy
    monkeypatch.setattr(pair_counts, "PIECE", 1000)


@pytest.mark.usefixtures("how")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("stretch", [1 << 24, 4096, 777, 19_900])  # the last leaves a stretch without a pair at 300
def test_counts_are_those_of_bincount_in_every_block(monkeypatch, threads, stretch):
    monkeypatch.setattr(pair_counts, "STRETCH", stretch)
    data = text(20_000)
    edges = block_edges(data.size, LAGS[-1], 7)
    counts = count_pairs(data, LAGS, edges=edges, threads=threads)
    full = spread(counts)
    for table, lag in zip(full, LAGS, strict=True):
        for block, (start, stop) in enumerate(pairwise(edges)):
            np.testing.assert_array_equal(table[block], by_bincount(data, lag, start, stop))
        np.testing.assert_array_equal(table.sum(axis=0), by_bincount(data, lag))


def test_a_mapped_read_only_file_counts_like_an_array(tmp_path):
    data = text(30_000)
    (tmp_path / "x.bin").write_bytes(data.tobytes())
    mapped = np.memmap(tmp_path / "x.bin", np.uint8, mode="r")
    np.testing.assert_array_equal(count_pairs(mapped, LAGS).tables, count_pairs(data, LAGS).tables)


def test_a_run_of_one_symbol_and_all_256_are_counted():
    data = np.concatenate([np.zeros(5000, np.uint8), np.arange(256, dtype=np.uint8), np.full(9, 255, np.uint8)])
    counts = count_pairs(data, [1, 5000])
    assert counts.symbols.size == 256
    for index, lag in enumerate((1, 5000)):
        np.testing.assert_array_equal(counts.tables[index, 0], by_bincount(data, lag))


def test_shards_of_a_corpus_add_up_to_the_whole():
    data, lags = text(20_000), np.array(LAGS)
    edges = block_edges(data.size, 300, 5)
    symbols = np.unique(data)
    whole = count_pairs(data, lags, symbols=symbols, edges=edges)
    first = count_pairs(data[: edges[2] + 300], lags, symbols=symbols, edges=edges[:3])
    rest = count_pairs(data[edges[2] :], lags, symbols=symbols, edges=edges[2:] - edges[2])
    np.testing.assert_array_equal(np.concatenate([first.tables, rest.tables], axis=1), whole.tables)


def test_progress_adds_up_to_all_pairs():
    data, told = text(20_000), []
    count_pairs(data, LAGS, edges=block_edges(data.size, 300, 4), progress=told.append)
    assert sum(told) == sum(data.size - lag for lag in LAGS)


def test_the_histogram_is_that_of_the_bytes():
    data = text(10_000)
    np.testing.assert_array_equal(histogram(data), np.bincount(data, minlength=256))


@pytest.mark.parametrize(
    ("lags", "message"),
    [
        ([0, 1], "lags must be 1 or more, got 0"),
        ([-3], "got -3"),
        ([1, 5, 3], "got 5 before 3: sort them"),
        ([1, 1], "got 1 before 1"),
        ([], "list of integers"),
        ([1.5], "float64"),
        ([[1, 2]], "shape"),
    ],
)
def test_lags_that_are_not_ascending_positive_integers_are_refused(lags, message):
    with pytest.raises(ValueError, match=message):
        count_pairs(text(100), lags)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (text(300), "too short for lag 300"),
        (text(1000).astype(np.int64), "vector of uint8, got int64"),
        (text(1000).reshape(10, 100), "shape"),
        (b"bytes", "got bytes; np.frombuffer"),
    ],
)
def test_data_that_cannot_be_paired_are_refused(data, message):
    with pytest.raises(ValueError, match=message):
        count_pairs(data, LAGS)


def test_symbols_must_cover_the_data():
    with pytest.raises(ValueError, match="leave out"):
        count_pairs(text(1000), [1], symbols=np.array([200, 201], np.uint8))
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        count_pairs(text(1000), [1], threads=0)
