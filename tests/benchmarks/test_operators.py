"""Every contender of an operator is right, decays of any strength tell some apart, and a short benchmark runs."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from plkernel.benchmarks import contest, operators
from plkernel.benchmarks.contest import OURS, Contender
from plkernel.benchmarks.operators import STRONG, Problem, makers, problem, truth
from plkernel.commands import bench
from plkernel.common.files import load_json

SHAPES = {"scan": (2, 50, 8), "wkv": (2, 64, 2, 8), "wkv7": (2, 64, 2, 8)}
CASES = [(name, one) for name in SHAPES for one in makers(name, "cpu")]


@pytest.mark.parametrize(("name", "one"), CASES)
def test_results_and_every_gradient_equal_float64(name: str, one: str) -> None:
    if one == "mambapy":
        pytest.importorskip("mambapy")
    given = problem(name, SHAPES[name])
    assert contest.relative_error(makers(name, "cpu")[one](given)(), truth(name, given)) < 1e-5


@pytest.mark.parametrize(("name", "one"), [case for case in CASES if case[0] != "scan"])
def test_no_contender_is_wrong_under_strong_decays(name: str, one: str) -> None:
    given = problem(name, STRONG, strong=True)
    assert given.inputs[1 if name == "wkv7" else 3].min() == -50
    assert contest.relative_error(makers(name, "cpu")[one](given)(), truth(name, given)) < 1e-4


@pytest.mark.parametrize("name", SHAPES)
def test_a_wrong_gradient_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
    ("command", "shape", "options"),
    [
        (bench.scan, (2, 50, 8), {}),
        (bench.wkv, (1, 64, 1, 8), {}),
        (bench.wkv, (1, 64, 1, 8), {"dtype": "bfloat16"}),
        (bench.wkv7, (1, 64, 1, 8), {}),
    ],
)
def test_a_short_benchmark_runs(command: Any, shape: tuple[int, ...], options: dict[str, str], tmp_path: Path) -> None:
    command(shapes=(shape,), rounds=1, device="cpu", out=tmp_path, **options)
    (path,) = tmp_path.glob("*.json")
    record = load_json(path)
    assert record["device"] == "cpu"
    assert record["environment"]["threads"] == 1
    rows = {row["contender"]: row for row in record["rows"]}
    assert rows[OURS]["ratio"]["median"] == 1.0
    assert rows["copy"]["peer"] is False
    assert all(row["seconds"] for row in rows.values() if "not installed" not in row["note"])
    assert path.stem == command.__name__ + ("-bfloat16" if options else "")
    if options:
        assert operators.LIMITS["wkv"]["cpu"] < rows[OURS]["error"] < operators.ROUNDED[0], "it is in bfloat16"
    if command is not bench.scan:
        assert all(row["strong_error"] < 1e-3 for name, row in rows.items() if name != "copy")


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
