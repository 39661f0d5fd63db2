"""Nothing wrong is timed, contenders take turns, and every peer is right."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from plkernel.benchmarks import operators, training
from plkernel.benchmarks.operators import OURS, Contender, Problem, makers, problem, truth
from plkernel.commands import bench
from plkernel.common.files import load_json
from plkernel.config.reading import parse_spec

pytestmark = pytest.mark.usefixtures("one_thread")  # benchmarks set the threads of torch
SHAPES = {"scan": (2, 50, 8), "wkv": (1, 64, 1, 8), "wkv7": (1, 64, 1, 8)}
CPU = torch.device("cpu")


def gives(value: Any) -> Contender:
    return Contender(lambda: lambda: value, lambda result: abs(result - 1.0), 0.1)


def raising(error: Exception) -> Contender:
    def make() -> Callable[[], Any]:
        raise error

    return Contender(make, lambda result: 0.0)


def test_wrong_missing_and_failing_contenders_are_reported_and_not_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {
        "wrong": (gives(2.0), 1.0, "wrong: the error is above 0.1"),
        "nan": (gives(math.nan), math.nan, "wrong: the error is above 0.1"),
        "missing": (
            raising(ImportError("no such package")),
            None,
            "not installed (no such package)",
        ),
        "failing": (
            raising(RuntimeError("no device\nmore")),
            None,
            "failed: RuntimeError: no device",
        ),
    }
    entries = {
        OURS: gives(1.0),
        "peer": gives(1.0),
        **{name: one[0] for name, one in wrong.items()},
    }
    ours, peer, *others = operators.compare(entries, 3, 1.0, "4x4")
    assert (ours["ratio"]["median"], ours["seconds"]["runs"]) == (1.0, 3)
    for row, (_, error, note) in zip(others, wrong.values(), strict=True):
        assert (row["seconds"], row["ratio"], row["note"]) == (None, None, note)
        assert row["error"] == pytest.approx(error, nan_ok=True)
    monkeypatch.setattr(operators, "installed", {"transformers": "1.2"}.get)
    operators.show("one", "steps/s", [ours, peer, *others], tmp_path, device="cpu")
    assert "4x4: the fastest peer, peer, takes" in capsys.readouterr().out
    record = load_json(tmp_path / "one.json")
    assert record["environment"]["peers"] == {"transformers": "1.2"}
    assert [row["contender"] for row in record["rows"]] == [*entries]
    rows = operators.compare({OURS: gives(2.0), "peer": gives(1.0)}, 3, 1.0)
    assert [row["contender"] for row in rows if row["seconds"]] == ["peer"]
    assert rows[1]["ratio"] is None, "ours is wrong"


def test_the_error_is_that_of_the_worst_channel() -> None:
    exact = torch.tensor([[1.0, 100.0], [2.0, 200.0]])
    off = exact + torch.tensor([[0.0, 1.0], [0.1, 0.0]])
    assert operators.relative_error([off.view(-1)], [exact]) == pytest.approx(0.05)
    assert operators.relative_error([off * math.nan], [exact]) == math.inf


@pytest.mark.parametrize("name", SHAPES)
def test_every_peer_is_right_and_a_short_benchmark_runs(name: str, tmp_path: Path) -> None:
    getattr(bench, name)(shapes=(SHAPES[name],), rounds=1, device="cpu", out=tmp_path)
    record = load_json(tmp_path / f"{name}.json")
    assert (record["device"], record["environment"]["threads"]) == ("cpu", 1)
    rows = {row["contender"]: row for row in record["rows"]}
    assert rows.keys() == {*makers(name, "cpu")}
    assert rows[OURS]["ratio"]["median"] == 1.0
    for row in rows.values():
        if "not installed" not in row["note"]:
            assert row["error"] < 1e-5


@pytest.mark.parametrize("name", SHAPES)
def test_a_wrong_gradient_is_noticed(name: str) -> None:
    def off(given: Problem) -> Callable[[], tuple[torch.Tensor, ...]]:
        call = makers(name, "cpu")[OURS](given)
        return lambda: (*call()[:-1], call()[-1] * 1.05)

    given = problem(name, SHAPES[name])
    error = partial(operators.relative_error, truths=truth(name, given))
    found, note, call = operators.checked(
        Contender(partial(off, given), error, operators.PEER_LIMITS[name])
    )
    assert found == pytest.approx(0.05, rel=0.02)
    assert note.startswith("wrong")
    assert call is None


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (bench.scan, {"shapes": ((0, 64, 4),)}, "all must be 1 or more"),
        (bench.scan, {"rounds": 0}, "rounds is 0; it must be 1 or more"),
        (bench.train, {"threads": 0}, "threads is 0; it must be 1 or more"),
    ],
)
def test_bad_arguments(command: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        command(**arguments)


@pytest.mark.parametrize("kind", ["ssm", "rwkv6", pytest.param("rwkv7", marks=pytest.mark.slow)])
def test_a_model_that_differs_from_its_reference_is_not_timed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {
        "name": "s",
        "baseline": "a",
        "seeds": [0],
        "corpus": {"name": "stdlib"},
        "arms": {"a": {}},
    }
    loaded = parse_spec(
        {**spec, "train": {"steps": 1}, "model": {"kind": kind, "dim": 32, "layers": 2}}, "here"
    )
    assert training.check(loaded, CPU) < training.LARGEST_ERROR
    module, name = training.OPERATORS[kind]
    exact = getattr(module, name)

    def wrong(first: torch.Tensor, *inputs: torch.Tensor, backend: str | None) -> Any:
        return exact(first * (0.99 if backend is None else 1), *inputs, backend=backend)

    monkeypatch.setattr(module, name, wrong)
    with pytest.raises(ValueError, match="nothing is timed"):
        training.check(loaded, CPU)


@pytest.mark.slow
def test_a_short_benchmark_of_training(tiny_spec: Callable[..., Path], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    bench.train(tiny_spec(), rounds=1, device="cpu", out=tmp_path)
    record = load_json(tmp_path / "train.json")
    assert len(record["rows"]) == 2
    assert all(row["seconds"] for row in record["rows"])
    assert (record["context"], record["batch"]) == (32, 4)
    assert record["error"] < training.LARGEST_ERROR
