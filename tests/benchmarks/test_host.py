"""CPU time of a call before anything is computed: what is timed, and what the table says."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plkernel.benchmarks import host, operators
from plkernel.benchmarks.operators import LIMITS
from plkernel.common.files import load_json

pytestmark = pytest.mark.usefixtures("one_thread")


class Clock:
    """CPU time in nanoseconds, in place of the module `time`."""

    now = 1_000

    def process_time_ns(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(host, "time", made)
    return made


def test_a_time_is_the_mean_over_calls_in_seconds(clock: Clock) -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        clock.now += 500

    assert host.host_seconds(call, 8, "cpu") == pytest.approx(500e-9)
    assert len(calls) == 8


def test_a_function_of_python_copies_its_first_input() -> None:
    made = host.works("cpu")
    copy = made["autograd.Function"]
    x, weight = copy.leaves
    assert torch.equal(copy.forward(), x)
    of_x, of_weight = copy.both()
    assert torch.equal(of_x, copy.gradient)
    assert torch.equal(of_weight, weight)
    linear = made[host.BASELINE]
    torch.testing.assert_close(linear.forward(), x @ weight.mT)
    assert linear.both()[0].shape == x.shape


def test_every_operator_is_timed_as_it_is_called_and_through_torch() -> None:
    made = host.works("cpu")
    assert [*made] == [
        *("linear", "autograd.Function"),
        *("scan", "scan, torch.library", "wkv", "wkv, torch.library"),
        *("wkv7", "wkv7, torch.library"),
    ]
    for name, shape in host.SHAPES.items():
        plain, registered = made[name], made[f"{name}, torch.library"]
        assert torch.equal(plain.forward(), registered.forward())
        assert plain.forward().shape == shape
        if name == "scan":
            assert registered.leaves[-1].shape == (shape[0], shape[2])
        # the operator of torch.library takes a state of the scan too
        assert len(registered.leaves) == len(plain.leaves) + (name == "scan")
        found = zip(plain.both(), registered.both(), strict=name != "scan")
        assert all(torch.equal(x, y) for x, y in found)


@pytest.mark.parametrize("is_off", [False, True])
def test_an_operator_may_differ_from_float64_by_its_limit(
    is_off: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = LIMITS["scan"]["cpu"]
    monkeypatch.setattr(host, "relative_error", lambda *_: limit * (1 + is_off))
    if is_off:
        with pytest.raises(ValueError, match=r"scan must differ from float64 by at most 1\.0e-05"):
            host._check_operators("cpu")
    else:
        host._check_operators("cpu")


def test_contenders_take_turns_after_three_calls_that_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, int]] = []

    class Done:
        def __init__(self, name: str) -> None:
            self.name = name

        def forward(self) -> str:
            return f"{self.name} forward"

        def both(self) -> str:
            return f"{self.name} both"

    def seconds(call: Any, calls: int, device: str) -> float:
        asked.append((call(), calls))
        return float(len(asked))

    monkeypatch.setattr(host, "host_seconds", seconds)
    made: Any = {name: Done(name) for name in "ab"}
    times = host._in_turns(made, 2, "cpu")
    turn = [f"{name} {part}" for name in "ab" for part in host.PARTS]
    assert [name for name, _ in asked] == ["a both", "b both", *turn, *turn]
    assert {calls for _, calls in asked[2:]} == {host.CALLS}
    assert times["a"].tolist() == [[3.0, 7.0], [4.0, 8.0]]
    assert times["b"].tolist() == [[5.0, 9.0], [6.0, 10.0]]


def test_ratios_are_those_of_the_same_turn() -> None:
    times = {"linear": np.array([[1e-6, 2e-6, 4e-6]] * 2)}
    times["scan"] = times["linear"] * np.array([[2.0, 3.0, 10.0], [5.0, 5.0, 5.0]])
    rows = host._rows(times)
    scan = rows[1]
    assert (scan["contender"], scan["forward"]["ratio"]["median"]) == ("scan", 3.0)
    assert scan["both"]["ratio"]["low"] == scan["both"]["ratio"]["high"] == 5.0
    assert scan["both"]["seconds"]["median"] == pytest.approx(1e-5)
    assert host._table(rows).splitlines() == [
        "contender  forward, us  times linear  and backward, us  times linear",
        "-" * 68,
        "linear             2.0           1.0               2.0           1.0",
        "scan               6.0           3.0              10.0           5.0",
    ]


def test_the_table_is_printed_and_a_file_is_written_where_a_folder_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(host, "CALLS", 20)
    host.run(2, "cpu", tmp_path)
    told = capsys.readouterr().out
    record = load_json(tmp_path / "host.json")
    assert told == f"{host._table(record['rows'])}\nwritten: {tmp_path / 'host.json'}\n"
    assert (record["device"], record["environment"]["threads"]) == ("cpu", 1)
    assert record["rows"][0]["forward"]["seconds"]["runs"] == 2
    host.run(1, "cpu", None)
    assert "written" not in capsys.readouterr().out
    assert torch.get_num_threads() == 1
    assert operators.LIMITS is LIMITS
