"""Nothing wrong is timed, contenders take turns, equal work is compared, and every peer is right."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plkernel.benchmarks import contest, operators, training
from plkernel.benchmarks.contest import OURS, Contender
from plkernel.benchmarks.operators import STRONG, Problem, makers, problem, truth
from plkernel.commands import bench
from plkernel.common.files import load_json
from plkernel.config.reading import load_spec, parse_spec

SHAPES = {"scan": (2, 50, 8), "wkv": (2, 64, 2, 8), "wkv7": (2, 64, 2, 8)}
LAGS = [1, 3, 20]
CPU = torch.device("cpu")


def gives(value: Any, **options: Any) -> Contender:
    return Contender(lambda: lambda: value, lambda result: abs(result - 1.0), 0.1, **options)


def raising(error: Exception) -> Contender:
    def make() -> Callable[[], Any]:
        raise error

    return Contender(make, lambda result: 0.0)


def test_wrong_missing_and_failing_contenders_are_reported_and_not_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {
        "wrong": (gives(2.0), 1.0, "wrong: the error is above 0.1"),
        "nan": (gives(math.nan), math.nan, "wrong: the error is above 0.1"),
        "missing": (raising(ImportError("no such package")), None, "not installed (no such package)"),
        "failing": (raising(RuntimeError("no device\nmore")), None, "failed: RuntimeError: no device"),
    }
    entries = {OURS: gives(1.0), "peer": gives(1.0), "floor": Contender(lambda: lambda: None, peer=False)}
    ours, peer, floor, *others = contest.compare({**entries, **{name: one[0] for name, one in wrong.items()}}, 3, "4x4")
    assert (ours["ratio"]["median"], ours["seconds"]["runs"], floor["peer"]) == (1.0, 3, False)
    for row, (_, error, note) in zip(others, wrong.values(), strict=True):
        assert (row["seconds"], row["ratio"], row["note"]) == (None, None, note)
        assert row["error"] == pytest.approx(error, nan_ok=True)
    contest.show("one", "steps/s", [ours, peer, floor, *others], tmp_path, ("numpy", "no-such-package"), device="cpu")
    printed = capsys.readouterr().out
    assert "4x4: the fastest peer, peer, takes" in printed
    assert "strong decays" not in printed, "a column that nothing fills"
    record = load_json(tmp_path / "one.json")
    assert record["environment"]["peers"] == {"numpy": np.__version__}
    assert [row["contender"] for row in record["rows"]] == [*entries, *wrong]
    rows = contest.compare({OURS: gives(2.0), "peer": gives(1.0)}, 3)
    assert [row["contender"] for row in rows if row["seconds"]] == ["peer"]
    assert rows[1]["ratio"] is None, "ours is wrong"


def test_every_round_times_every_contender_and_a_slow_one_sits_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ratios are taken within rounds, for equal work."""
    taken: list[str] = []

    class Clock:
        def __init__(self, stmt: str, globals: dict[str, Any], num_threads: int) -> None:
            self.call = globals["call"]

        def timeit(self, number: int) -> Any:
            name = self.call()
            slower = 10.0 if taken.count(name) == 1 else 1.0  # the machine in the second round
            taken.append(name)
            return type("Measurement", (), {"median": slower * {OURS: 1.0, "slow": 4.0}[name]})

    monkeypatch.setattr(contest, "Timer", Clock)
    turns = {
        OURS: Contender(lambda: lambda: OURS, amount=100.0),
        "slow": Contender(lambda: lambda: "slow", amount=50.0),
    }
    ours, slow = contest.compare(turns, rounds=5, budget=15.0)
    assert taken == [OURS, "slow", "slow", OURS, OURS, "slow", OURS, OURS]
    assert (ours["seconds"]["runs"], slow["seconds"]["runs"]) == (5, 3)
    assert (slow["ratio"]["low"], slow["ratio"]["high"], slow["ratio"]["runs"]) == (8.0, 8.0, 3)
    assert (ours["rate"], slow["rate"]) == (100.0, 50.0 / 4)


def test_the_error_is_that_of_the_worst_channel() -> None:
    exact = torch.tensor([[1.0, 100.0], [2.0, 200.0]])
    off = exact + torch.tensor([[0.0, 1.0], [0.1, 0.0]])
    assert contest.relative_error([off.view(-1)], [exact]) == pytest.approx(0.05)
    assert contest.relative_error([off * math.nan], [exact]) == math.inf


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [("scan", (2, 50, 8), "float32"), ("scan", (2, 50, 8), "bfloat16"), ("wkv", (1, 64, 1, 8), "float32"),
     ("wkv", (1, 64, 1, 8), "bfloat16"), ("wkv7", (1, 64, 1, 8), "float32")],
)  # fmt: skip
def test_every_peer_is_right_and_a_short_benchmark_runs(
    name: str, shape: tuple[int, ...], dtype: Any, tmp_path: Path
) -> None:
    getattr(bench, name)(shapes=(shape,), dtype=dtype, rounds=1, device="cpu", out=tmp_path)
    half = dtype == "bfloat16"
    record = load_json(tmp_path / (f"{name}-bfloat16.json" if half else f"{name}.json"))
    assert (record["device"], record["environment"]["threads"]) == ("cpu", 1)
    rows = {row["contender"]: row for row in record["rows"]}
    assert rows.keys() == {*makers(name, "cpu"), "copy"}
    assert (rows[OURS]["ratio"]["median"], rows["copy"]["peer"]) == (1.0, False)
    if half:
        assert operators.LIMITS[name]["cpu"] < rows[OURS]["error"] < operators.ROUNDED[0], "it is in bfloat16"
        return
    for one, row in rows.items():
        if one != "copy" and "not installed" not in row["note"]:
            assert row["error"] < 1e-5
            assert name == "scan" or row["strong_error"] < 1e-4
    assert name == "scan" or problem(name, STRONG, strong=True).inputs[1 if name == "wkv7" else 3].min() == -50


@pytest.mark.parametrize("name", SHAPES)
def test_a_wrong_gradient_is_noticed(name: str) -> None:
    def off(given: Problem) -> Callable[[], tuple[torch.Tensor, ...]]:
        call = makers(name, "cpu")[OURS](given)
        return lambda: (*call()[:-1], call()[-1] * 1.05)

    given = problem(name, SHAPES[name])
    error = partial(contest.relative_error, truths=truth(name, given))
    found, note, call = contest.checked(Contender(partial(off, given), error, operators.PEER_LIMITS[name]))
    assert found == pytest.approx(0.05, rel=0.02)
    assert note.startswith("wrong")
    assert call is None


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (bench.wkv, {"shapes": ((2, 100, 4, 64),)}, r"shapes has \(2, 100, 4, 64\); .* time a multiple of 64"),
        (bench.scan, {"shapes": ((0, 64, 4),)}, "all must be 1 or more"),
        (bench.scan, {"rounds": 0}, "rounds is 0; it must be 1 or more"),
        (bench.train, {"threads": 0}, "threads is 0; it must be 1 or more"),
        (bench.wkv7, {"device": "tpu"}, "device is 'tpu'; here it must be"),
        (bench.mi, {"lags": (3, 2)}, "lags must ascend"),
    ],
)
def test_bad_arguments(command: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        command(**arguments)


@pytest.mark.parametrize("kind", ["ssm", "rwkv6", pytest.param("rwkv7", marks=pytest.mark.slow)])
def test_a_model_that_differs_from_its_reference_is_not_timed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {"name": "s", "baseline": "a", "seeds": [0], "corpus": {"name": "stdlib"}, "arms": {"a": {}}}
    loaded = parse_spec({**spec, "train": {"steps": 1}, "model": {"kind": kind, "dim": 32, "layers": 2}}, "here")
    assert training.check(loaded, CPU) < training.LARGEST_ERROR
    module, name = training.OPERATORS[kind]
    exact = getattr(module, name)

    def wrong(first: torch.Tensor, *inputs: torch.Tensor, backend: str | None) -> Any:
        return exact(first * (0.99 if backend is None else 1), *inputs, backend=backend)

    monkeypatch.setattr(module, name, wrong)
    with pytest.raises(ValueError, match="nothing is timed"):
        training.check(loaded, CPU)


def test_the_floor_leaves_the_scan_out(tiny_spec: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    found = training.contenders(load_spec(tiny_spec()), CPU)
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
    assert len(record["rows"]) == 4
    assert all(row["seconds"] for row in record["rows"])
    assert (record["context"], record["batch"]) == (32, 4)
    assert record["error"] < training.LARGEST_ERROR


@pytest.fixture
def data() -> np.ndarray:
    """Bytes 40 to 49, each two times in three the one before it."""
    generator = np.random.default_rng(0)
    fresh = np.flatnonzero(np.append(True, generator.random(19_999) < 1 / 3))
    chosen = generator.integers(40, 50, 20_000)
    return chosen[fresh[np.searchsorted(fresh, np.arange(20_000), side="right") - 1]].astype(np.uint8)


def test_a_short_benchmark_of_counts(data: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "text.bin").write_bytes(data.tobytes())
    bench.mi(str(tmp_path / "text.bin"), tuple(LAGS), rounds=1, out=tmp_path)
    record = load_json(tmp_path / "mi.json")
    rows = {(row["problem"], row["contender"]): row for row in record["rows"]}
    assert rows["pair tables", OURS]["error"] == 0.0
    assert rows["mutual information", OURS]["error"] < 1e-12
    assert rows["pair tables", OURS]["rate"] == pytest.approx(60_000 / rows["pair tables", OURS]["seconds"]["median"])
    assert (record["corpus"]["size"], "path" in record["corpus"]) == (20_000, False)


@pytest.mark.parametrize("name", training.WORKS["mutual information"][0])
def test_peers_agree_and_a_pair_too_few_is_noticed(name: str, data: np.ndarray) -> None:
    pytest.importorskip({"scikit-learn": "sklearn"}.get(name, name))
    function = training.WORKS["mutual information"][0][name]
    error = partial(training.information_error, truth=training.bincount(data, LAGS))
    assert error(function(data, LAGS)) < 1e-11
    assert error(function(data[:-1], LAGS)) > 1e-9
    assert error(np.full(3, np.nan)) == np.inf


def test_tables_put_every_symbol_in_its_place(data: np.ndarray) -> None:
    tables, exact = training.tables(data, LAGS), training.bincount(data, LAGS)
    assert np.array_equal(tables, exact)
    assert np.abs(training.tables(data[:-1], LAGS) - exact).max() == 1
    assert tables.reshape(3, 256, 256)[1, data[7], data[10]] > 0
