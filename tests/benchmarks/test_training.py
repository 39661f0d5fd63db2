"""A model that differs from float64 is not timed, the floor leaves out the scan, pair counts equal np.bincount."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plkernel.analysis.information.estimate import mutual_information
from plkernel.benchmarks import training
from plkernel.benchmarks.contest import OURS
from plkernel.commands import bench
from plkernel.common.files import load_json
from plkernel.config.reading import load_spec, parse_spec

LAGS = [1, 3, 20]
SPEC = {
    "name": "s",
    "baseline": "a",
    "seeds": [0],
    "corpus": {"name": "stdlib"},
    "arms": {"a": {}},
    "train": {"steps": 1},
}


@pytest.fixture
def data() -> np.ndarray:
    """Bytes 40 to 49, each two times in three the one before it."""
    generator = np.random.default_rng(0)
    fresh = np.flatnonzero(np.append(True, generator.random(19_999) < 1 / 3))
    chosen = generator.integers(40, 50, 20_000)
    return chosen[fresh[np.searchsorted(fresh, np.arange(20_000), side="right") - 1]].astype(np.uint8)


@pytest.mark.parametrize("kind", ["ssm", "rwkv6", pytest.param("rwkv7", marks=pytest.mark.slow)])
def test_a_model_that_differs_from_its_reference_is_not_timed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = parse_spec({**SPEC, "model": {"kind": kind, "dim": 32, "layers": 2}}, "here")
    device = torch.device("cpu")
    assert training.check(spec, device) < training.LARGEST_ERROR
    module, name = training.OPERATORS[kind]
    exact = getattr(module, name)

    def wrong(first: torch.Tensor, *inputs: torch.Tensor, backend: str | None) -> Any:
        return exact(first * (0.99 if backend is None else 1), *inputs, backend=backend)

    monkeypatch.setattr(module, name, wrong)
    with pytest.raises(ValueError, match="nothing is timed"):
        training.check(spec, device)


def test_the_floor_leaves_the_scan_out(tiny_spec: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    found = training.contenders(load_spec(tiny_spec()), torch.device("cpu"))
    module, name = training.OPERATORS["ssm"]
    calls: list[int] = []
    exact = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *given, **options: calls.append(1) or exact(*given, **options))
    found["scan replaced by the identity"].make()()
    assert not calls
    found[OURS].make()()
    assert calls


@pytest.mark.slow
def test_a_short_benchmark_of_training(tiny_spec: Callable[..., Path], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    bench.train(tiny_spec(), rounds=1, device="cpu", out=tmp_path)
    record = load_json(tmp_path / "train.json")
    rows = {row["contender"]: row for row in record["rows"]}
    assert len(rows) == 4
    assert all(row["seconds"] for row in rows.values())
    assert (record["context"], record["batch"]) == (32, 4)
    assert record["error"] < training.LARGEST_ERROR


def test_a_short_benchmark_of_counts(data: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "text.bin").write_bytes(data.tobytes())
    bench.mi(str(tmp_path / "text.bin"), tuple(LAGS), rounds=1, out=tmp_path)
    record = load_json(tmp_path / "mi.json")
    rows = {(row["problem"], row["contender"]): row for row in record["rows"]}
    assert rows["pair tables", OURS]["error"] == 0.0
    assert rows["mutual information", OURS]["error"] < 1e-12
    assert rows["pair tables", OURS]["rate"] == pytest.approx(60_000 / rows["pair tables", OURS]["seconds"]["median"])
    assert record["corpus"]["size"] == 20_000
    assert "path" not in record["corpus"]


@pytest.mark.parametrize("name", training.WORKS["mutual information"][0])
def test_peers_agree_and_a_pair_too_few_is_noticed(name: str, data: np.ndarray) -> None:
    function = training.WORKS["mutual information"][0][name]
    pytest.importorskip({"scikit-learn": "sklearn"}.get(name, name))
    error = partial(training.information_error, truth=training.bincount(data, LAGS))
    assert error(function(data, LAGS)) < 1e-11
    assert error(function(data[:-1], LAGS)) > 1e-9
    assert error(np.full(3, np.nan)) == np.inf


def test_tables_put_every_symbol_in_its_place(data: np.ndarray) -> None:
    tables, truth = training.tables(data, LAGS), training.bincount(data, LAGS)
    assert training.count_error(tables, truth) == 0.0
    assert training.count_error(training.tables(data[:-1], LAGS), truth) == 1.0
    assert tables.reshape(3, 256, 256)[1, data[7], data[10]] > 0
    assert mutual_information(tables[0].reshape(256, 256)) > 0.5
