"""Nothing wrong is timed, contenders take turns, and equal work is compared."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plkernel.benchmarks import contest
from plkernel.benchmarks.contest import OURS, Contender, Times
from plkernel.common.files import load_json


def gives(value: Any) -> Contender:
    return Contender(lambda: lambda: value, lambda result: abs(result - 1.0), 0.1)


def raising(error: Exception) -> Contender:
    def make() -> Callable[[], Any]:
        raise error

    return Contender(make, lambda result: 0.0)


def test_wrong_missing_and_failing_contenders_are_reported_and_not_timed() -> None:
    wrong = {
        "wrong": (gives(2.0), 1.0, "wrong: the error is above 0.1"),
        "nan": (gives(math.nan), math.nan, "wrong: the error is above 0.1"),
        "missing": (raising(ImportError("no such package")), None, "not installed (no such package)"),
        "failing": (raising(RuntimeError("no device\nmore")), None, "failed: RuntimeError: no device"),
    }
    rows = {
        row.contender: row
        for row in contest.compare({OURS: gives(1.0), **{name: one for name, (one, _, _) in wrong.items()}}, 3)
    }
    assert rows[OURS].seconds is not None
    assert rows[OURS].ratio is not None
    assert rows[OURS].ratio.median == 1.0
    for name, (_, error, note) in wrong.items():
        assert rows[name].seconds is None
        assert rows[name].ratio is None
        assert rows[name].note == note
        assert rows[name].error == pytest.approx(error, nan_ok=True)


def test_nothing_is_compared_with_ours_when_ours_is_wrong() -> None:
    rows = contest.compare({OURS: gives(2.0), "peer": gives(1.0)}, 3)
    assert [row.contender for row in rows if row.seconds] == ["peer"]
    assert rows[1].ratio is None


def test_every_round_times_every_contender_and_a_slow_one_sits_out(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []

    class Clock:
        def __init__(self, stmt: str, globals: dict[str, Any], num_threads: int) -> None:
            self.call = globals["call"]

        def timeit(self, number: int) -> Any:
            taken.append(self.call())
            return type("Measurement", (), {"median": {"fast": 1.0, "slow": 4.0}[taken[-1]]})

    monkeypatch.setattr(contest, "Timer", Clock)
    times = contest.interleave({"fast": lambda: "fast", "slow": lambda: "slow"}, rounds=5, budget=7.0)
    assert taken == ["fast", "slow", "slow", "fast", "fast", "slow", "fast", "fast"]
    assert (times.spread("fast").runs, times.spread("slow").runs) == (5, 3)
    assert times.ratio("slow", "fast").median == 4.0
    assert times.ratio("slow", "fast", factor=0.5).runs == 3


def test_a_ratio_is_taken_within_rounds() -> None:
    """A machine that is slow in the second round changes no ratio."""
    times = Times({"a": np.array([2.0, 20.0, 2.0]), "b": np.array([1.0, 10.0, 1.0])})
    ratio = times.ratio("a", "b")
    assert (ratio.low, ratio.median, ratio.high) == (2.0, 2.0, 2.0)


def test_equal_work_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest, "interleave", lambda calls, *_, **__: Times({name: np.ones(3) for name in calls}))
    half = Contender(lambda: lambda: 1.0, amount=50.0)
    ours, peer = contest.compare({OURS: Contender(lambda: lambda: 1.0, amount=100.0), "half": half}, 3)
    assert (ours.rate, peer.rate) == (100.0, 50.0)
    assert peer.ratio is not None
    assert peer.ratio.median == 2.0


def test_the_error_is_that_of_the_worst_channel() -> None:
    truth = torch.tensor([[1.0, 100.0], [2.0, 200.0]])
    off = truth + torch.tensor([[0.0, 1.0], [0.1, 0.0]])
    assert contest.relative_error([off.view(-1)], [truth]) == pytest.approx(0.05)
    assert contest.relative_error([off * math.nan], [truth]) == math.inf


def test_the_table_names_the_fastest_peer_and_the_record_has_versions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    floor = Contender(lambda: lambda: None, peer=False)
    rows = contest.compare({OURS: gives(1.0), "peer": gives(1.0), "floor": floor, "bad": gives(2.0)}, 3, "4x4")
    contest.show("one", "steps/s", rows, tmp_path, ("numpy", "no-such-package"), device="cpu")
    printed = capsys.readouterr().out
    assert "4x4: the fastest peer, peer, takes" in printed
    assert "strong decays" not in printed, "a column that nothing fills"
    record = load_json(tmp_path / "one.json")
    assert record["environment"]["peers"] == {"numpy": np.__version__}
    assert {"cpu", "gpu"} <= record["environment"]["hardware"].keys()
    assert [row["contender"] for row in record["rows"]] == [OURS, "peer", "floor", "bad"]
    assert record["rows"][3]["seconds"] is None
