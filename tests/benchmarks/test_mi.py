"""The benchmark of pair counting: nothing wrong is timed, and a mapped file is not taken for the program's memory."""

import json
import mmap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plkernel.analysis.information import counts
from plkernel.analysis.information.counts import PairCounts, count_pairs
from plkernel.analysis.information.estimate import mutual_information
from plkernel.benchmarks import mi as bench
from plkernel.benchmarks import mi_memory, mi_peers
from plkernel.benchmarks.contest import Times
from plkernel.benchmarks.mi_peers import BINCOUNT, PEERS, Contender, dense
from plkernel.commands.bench import mi

LAGS = [1, 3, 20]
needs_proc = pytest.mark.skipif(mi_memory.anonymous_bytes("self") is None, reason="needs RssAnon in /proc/self/status")


@pytest.fixture
def data() -> np.ndarray:
    """Bytes 40 to 49, each two times in three the one before it."""
    generator = np.random.default_rng(0)
    fresh = np.flatnonzero(generator.random(20_000) < 1 / 3)
    chosen = generator.integers(40, 50, 20_000)
    return chosen[fresh[np.maximum(np.searchsorted(fresh, np.arange(20_000), side="right") - 1, 0)]].astype(np.uint8)


@pytest.fixture
def no_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mi_peers, "PEERS", {BINCOUNT: PEERS[BINCOUNT]})


@pytest.mark.usefixtures("no_peers")
def test_rows_and_json_without_peers(data: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.bin").write_bytes(data.tobytes())
    mi(str(tmp_path / "text.bin"), tuple(LAGS), rounds=2, sizes=(), out=tmp_path)
    results = json.loads((tmp_path / "mi.json").read_text())
    rows = {row["contender"]: row for row in results["rows"]}
    assert list(rows) == [*map(bench.counting, (1, 2)), bench.NUMPY, bench.OURS["information"], BINCOUNT]
    assert all(row["error"] == 0.0 for row in rows.values() if row["work"] == "tables")
    assert rows[bench.OURS["information"]]["error"] < bench.LARGEST_ERROR
    assert rows[bench.counting(1)]["ratio"]["median"] == 1.0
    assert rows[BINCOUNT]["rate"] == pytest.approx(20_000 * 3 / rows[BINCOUNT]["seconds"]["median"] / 1e6)
    assert results["speedup"].keys() == {"1", "2"}
    assert results["corpus"]["size"] == 20_000
    assert "path" not in results["corpus"]
    assert "at least 1.3" in capsys.readouterr().out


def test_wrong_missing_and_failing_contenders_are_not_timed(data: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_pair_short(data: np.ndarray, lags: list[int]) -> PairCounts:
        return count_pairs(data[:-1], lags)

    def missing(data: np.ndarray, lags: list[int]) -> np.ndarray:
        raise ImportError("no such package")

    def in_bits(data: np.ndarray, lags: list[int]) -> np.ndarray:
        return mi_peers.ours(data, lags) / np.log(2)

    def failing(data: np.ndarray, lags: list[int]) -> np.ndarray:
        return np.array([])[1]

    wrong = {
        "short": Contender("tables", one_pair_short),
        "bits": Contender("information", in_bits),
        "nan": Contender("information", lambda data, lags: np.full(len(lags), np.nan)),
        "missing": Contender("information", missing),
        "failing": Contender("information", failing),
    }
    monkeypatch.setattr(mi_peers, "PEERS", {BINCOUNT: PEERS[BINCOUNT], **wrong})
    rows, _ = bench.compare(data, LAGS, [1], rounds=2)
    found = {row.contender: row for row in rows}
    assert all(found[name].seconds is None and found[name].ratio is None for name in wrong)
    assert found[BINCOUNT].seconds is not None
    assert found["short"].note == "wrong: the error is above 0"
    assert found["short"].error == 1.0
    assert found["bits"].error == pytest.approx(1 / np.log(2) - 1)
    assert found["nan"].error == np.inf
    assert found["missing"].note == "not installed (no such package)"
    assert found["failing"].note.startswith("failed: IndexError")


def test_nothing_is_compared_with_ours_when_ours_is_wrong(data: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = mi_peers.count_pairs

    def wrong(*arguments: object, **options: object) -> PairCounts:
        counted = exact(*arguments, **options)
        return replace(counted, tables=counted.tables + 1)

    monkeypatch.setattr(mi_peers, "PEERS", {BINCOUNT: PEERS[BINCOUNT]})
    monkeypatch.setattr(mi_peers, "count_pairs", wrong)
    rows, speedup = bench.compare(data, LAGS, [1, 2], rounds=2)
    assert [row.contender for row in rows if row.seconds] == [BINCOUNT]
    assert rows[-1].ratio is None
    assert speedup == {}


def test_a_smaller_stretch_is_compared_at_the_same_work(data: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mi_peers, "PEERS", {"half": Contender("tables", PEERS[BINCOUNT].run, 10_000)})
    monkeypatch.setattr(bench, "interleave", lambda steps, rounds: Times({name: [1.0] * rounds for name in steps}))
    rows, _ = bench.compare(data, LAGS, [1], rounds=3)
    ours, half = rows[0], rows[-1]
    assert (ours.bytes, half.bytes) == (20_000, 10_000)
    assert ours.rate == pytest.approx(0.06)
    assert half.rate == pytest.approx(0.03)
    assert half.ratio.median == pytest.approx(2.0)


def test_nothing_compiled_counts_with_numpy(data: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, exact = [], counts.count_with_numpy

    def recorded(*arguments: Any) -> int:
        calls.append(arguments[1])
        return exact(*arguments)

    monkeypatch.setattr(counts, "count_with_numpy", recorded)
    mi_peers.with_numpy(data, LAGS)
    assert calls == LAGS


@pytest.mark.parametrize("name", [name for name in PEERS if name != BINCOUNT])
def test_peers_agree(name: str, data: np.ndarray) -> None:
    package = {"scikit-learn": "sklearn"}.get(name, name)
    pytest.importorskip(package, reason=f"{name} is a peer of the benchmark")
    values, truth = PEERS[name].run(data, LAGS), mutual_information(mi_peers.bincount(data, LAGS))
    assert bench.relative_error(values, truth) < 1e-12


def test_dense_puts_every_symbol_in_its_place(data: np.ndarray) -> None:
    tables = dense(count_pairs(data, LAGS))
    assert tables.shape == (3, 256, 256)
    assert tables[1, data[7], data[10]] > 0
    assert np.array_equal(tables, mi_peers.bincount(data, LAGS))


@needs_proc
def test_anonymous_memory_leaves_out_mapped_files(tmp_path: Path) -> None:
    size = 64_000_000
    np.zeros(size, np.uint8).tofile(tmp_path / "large.bin")
    before = mi_memory.anonymous_bytes("self")
    mapped = np.memmap(tmp_path / "large.bin", np.uint8, mode="r")
    assert int(mapped[::4096].sum()) == 0
    assert mi_memory.anonymous_bytes("self") - before < size / 10
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as own:  # not memory that numpy kept
        own.write(b"x" * size)
        assert mi_memory.anonymous_bytes("self") - before > 0.9 * size


@needs_proc
@pytest.mark.slow
def test_memory_of_a_process_of_its_own(data: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "text.bin").write_bytes(data.tobytes())
    usages = mi_memory.measure_memory(tmp_path / "text.bin", [1])
    assert [usage.work for usage in usages] == list(mi_memory.WORKS)
    for usage in usages:
        assert usage.bytes == 1_000_000
        assert 0 < usage.peak_bytes < bench.MEMORY * 1e6
        assert usage.seconds > 0


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="threads is 0; it must be 1 or more"):
        mi(threads=(0,))
    with pytest.raises(ValueError, match="sizes must be 1 MB or more"):
        mi(sizes=(0,))
    with pytest.raises(ValueError, match="lags must ascend"):
        mi(lags=(3, 2))
