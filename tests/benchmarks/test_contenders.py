"""Contenders of the operators: how they are timed in turns, and what is said of their times."""

import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from plkernel.benchmarks import operators
from plkernel.benchmarks.operators import OURS, Contender, Problem
from plkernel.common.files import load_json

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The timings, in order: a call gives its name and seconds, which its timer takes."""
    log: list[tuple[str, int]] = []

    class Timer:
        def __init__(self, statement: str, globals: dict[str, Any], num_threads: int) -> None:
            assert statement == "call()"
            assert num_threads == torch.get_num_threads()
            self.call = globals["call"]

        def timeit(self, number: int) -> Any:
            name, seconds = self.call()
            log.append((name, number))
            return SimpleNamespace(median=seconds)

    monkeypatch.setattr("torch.utils.benchmark.Timer", Timer)
    return log


def taking(**seconds: float) -> dict[str, Any]:
    return {name: partial(tuple, [name, value]) for name, value in seconds.items()}


def test_the_order_turns_by_one_in_every_round(timers: list[tuple[str, int]]) -> None:
    times = operators._in_turns(taking(a=1.0, b=2.0, c=3.0), 4, "cpu", 1e9)
    assert "".join(name for name, _ in timers) == "abcbcacababc"
    assert {number for _, number in timers} == {1}
    assert times["b"].tolist() == [2.0] * 4


def test_who_has_used_the_budget_sits_out_after_three_rounds(
    timers: list[tuple[str, int]],
) -> None:
    times = operators._in_turns(taking(a=2.5, b=4.0, c=0.1), 8, "cpu", 10.0)
    runs = {name: int(np.isfinite(found).sum()) for name, found in times.items()}
    # a has used 10 s, which are not more than 10, after four rounds
    assert runs == {"a": 5, "b": 3, "c": 8}
    assert operators.quartiles(times["b"]) == {"median": 4, "low": 4, "high": 4, "runs": 3}


def test_short_calls_are_timed_up_to_ten_together_on_a_gpu(
    timers: list[tuple[str, int]],
) -> None:
    """And ten count ten times against the budget."""
    times = operators._in_turns(taking(a=0.03, b=1e-4, c=9.0), 40, "cuda", 4.0)
    together = {name: [number for one, number in timers if one == name] for name in "abc"}
    assert together["a"][:3] == [1, 3, 3]
    assert together["b"][:3] == [1, 10, 10]
    assert set(together["c"]) == {1}
    # 0.03 * 3 * n > 4 from n = 45
    assert np.isfinite(times["a"]).all()
    times = operators._in_turns(taking(a=0.03), 60, "cuda", 4.0)
    assert int(np.isfinite(times["a"]).sum()) == 45


def test_quartiles_leave_out_what_did_not_run() -> None:
    found = operators.quartiles(np.array([1.0, math.nan, 3.0, 2.0, 5.0, 4.0]))
    assert found == {"median": 3.0, "low": 2.0, "high": 4.0, "runs": 5}


def test_a_rate_is_the_work_over_the_median_and_a_ratio_that_of_each_round(
    timers: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    calls = taking(ours=2.0, peer=5.0)
    entries = {
        OURS: Contender(lambda: calls["ours"]),
        "peer": Contender(lambda: calls["peer"], lambda _: 0.25, 0.25),
    }
    ours, peer = operators.compare(entries, 3, 10.0, "4x4")
    assert capsys.readouterr().err == f"4x4 timing {OURS}, peer\n"
    assert (ours["rate"], ours["error"], ours["ratio"]["median"]) == (5.0, None, 1.0)
    assert (peer["rate"], peer["error"], peer["ratio"]["median"]) == (2.0, 0.25, 2.5)
    assert (peer["contender"], peer["problem"], peer["note"]) == ("peer", "4x4", "")


def test_half_lives_of_a_problem_go_from_1_to_2048_steps() -> None:
    """In wkv and wkv7 each rate is off by exp(normal / 2), here within five standard errors."""
    a, b = operators.problem("scan", (2, 3, 12)).inputs
    half_lives = math.log(0.5) / a.double().log()
    expected = 2.0 ** torch.arange(12, dtype=torch.float64)
    # ln a of a float32 has an error of up to 2**-24
    torch.testing.assert_close(half_lives, expected, rtol=2**-24 * 2048 / math.log(2) * 2, atol=0)
    assert b.shape == (2, 3, 12)
    for name in ("wkv", "wkv7"):
        given = operators.problem(name, (2, 50, 3, 12))
        inputs = dict(zip(operators.INPUTS[name], given.inputs, strict=True))
        off = (-inputs["log_decay"].double() * expected / math.log(2)).log()
        error = 0.5 / math.sqrt(off.numel())
        assert float(off.mean()) == pytest.approx(0.0, abs=5 * error)
        assert float(off.std()) == pytest.approx(0.5, abs=5 * error / math.sqrt(2))
        assert inputs["state"].shape == given.gradients[1].shape == (2, 3, 12, 12)
        assert given.gradients[0].shape == (2, 50, 3, 12)
    assert operators.problem("wkv", (2, 5, 3, 12)).inputs[4].shape == (3, 12)


def test_what_a_delta_rule_erases_has_norm_one_and_is_written_in_part() -> None:
    given = operators.problem("wkv7", (2, 50, 3, 12)).inputs
    a, b = given[operators.INPUTS["wkv7"].index("a")], given[operators.INPUTS["wkv7"].index("b")]
    norms = a.norm(dim=-1)
    torch.testing.assert_close(norms, torch.ones_like(norms), rtol=1e-6, atol=0.0)
    rates = -b / a
    assert float(rates.min()) >= 0.0
    assert float(rates.max()) <= 1.0 + 1e-6
    assert float(rates.mean()) == pytest.approx(0.5, abs=5 / math.sqrt(12 * rates.numel()))
    again = operators.problem("wkv7", (2, 50, 3, 12)).inputs
    assert all(map(torch.equal, given, again))


def test_a_layout_with_time_last_is_made_before_the_call() -> None:
    given = operators.problem("scan", (2, 7, 3)).to(torch.float64)
    shapes: list[torch.Size] = []

    def scanned(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        shapes.append(b.shape)
        assert b.is_contiguous()
        out: torch.Tensor = operators.operator("scan")(a, b.mT, backend="reference").mT
        return out

    found = operators.step(scanned, given, time_last=True)()
    for x, y in zip(found, operators.truth("scan", given), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)
    assert shapes == [(2, 3, 7)]
    wide = Problem((torch.zeros(2, 3, 4, 5),), (torch.zeros(2, 3, 4, 5),))
    assert operators.step(torch.clone, wide, time_last=True)()[0].shape == (2, 3, 4, 5)


def test_peers_on_a_gpu_are_called_in_their_own_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """accelerated_scan takes the decay of each step, without gaps; the state of RWKV-7 of
    flash-linear-attention is transposed.
    """
    given = operators.problem("scan", (2, 7, 3))

    def scan(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        assert a.is_contiguous()
        assert a.shape == b.shape == (2, 3, 7)
        out: torch.Tensor = operators.operator("scan")(a.mT, b.mT, backend="reference").mT
        return out

    def peer(*inputs: Any, scale: float, initial_state: Any, output_final_state: bool) -> Any:
        assert scale == 1.0
        assert output_final_state
        return inputs, initial_state

    modules = {
        "accelerated_scan.scalar": SimpleNamespace(scan=scan),
        "fla.ops.rwkv6": SimpleNamespace(chunk_rwkv6=peer),
        "fla.ops.rwkv7": SimpleNamespace(
            chunk_rwkv7=lambda *x, **given: (x, given["initial_state"] * 2)
        ),
    }
    find = operators.import_module
    monkeypatch.setattr(operators, "import_module", lambda name: modules.get(name) or find(name))
    call = operators.makers("scan", "cuda")["accelerated_scan"](given)
    error = operators.relative_error(call(), operators.truth("scan", given))
    assert error < operators.PEER_LIMITS["scan"]
    x, state = torch.ones(1), torch.arange(4.0).view(2, 2)
    out, last = operators.fla("wkv", x, state)
    assert (out, last) == ((x,), state)
    out, last = operators.fla("wkv7", x, state)
    assert torch.equal(last, 2 * state)
    modules["fla.ops.rwkv7"] = SimpleNamespace(
        chunk_rwkv7=lambda *x, **given: (given["initial_state"], state)
    )
    assert torch.equal(operators.fla("wkv7", x, state)[0], state.mT)


def test_peers_that_need_a_gpu_are_met_there_alone() -> None:
    both = [OURS, "loop"]
    assert [*operators.makers("scan", "cpu")] == [*both, "mambapy"]
    assert [*operators.makers("scan", "cuda")] == [*both, "mambapy", "accelerated_scan"]
    for name in ("wkv", "wkv7"):
        assert [*operators.makers(name, "cpu")] == both
        assert [*operators.makers(name, "cuda")] == [*both, "fla"]


def row(contender: str, seconds: float | None, ratio: float | None, **more: Any) -> dict[str, Any]:
    def only(value: float | None) -> dict[str, float] | None:
        return None if value is None else {"median": value}

    values = {"contender": contender, "seconds": only(seconds), "ratio": only(ratio)}
    rate = None if seconds is None else 1000 / seconds
    return {**values, "problem": "4x4", "rate": rate, "error": None, "note": "", **more}


def test_the_table_of_contenders_in_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fastest peer of each problem is named; the loop is none, nor is one without a time."""
    rows = [
        row(OURS, 0.00123, 1.0, error=1.23e-7),
        row("loop", 0.000123, 0.1),
        row("slow", 0.00492, 4.0),
        row("quick", 0.00246, 2.0),
        row("absent", None, None, note="not installed"),
        row(OURS, 1.0, 1.0, problem="8x8"),
        row("loop", 1.0, 1.0, problem="8x8"),
    ]
    operators.show("scan", "steps/s", rows, tmp_path, device="cpu", more=5)
    lines = capsys.readouterr().out.splitlines()
    columns = "contender problem error ms times ours steps/s note"
    assert lines[0].split() == columns.split()
    assert lines[2].split() == [OURS, "4x4", "1.2e-07", "1.23", "1.00", "8.13e+05"]
    assert lines[5].split() == ["quick", "4x4", "2.46", "2.00", "4.07e+05"]
    assert lines[6].split() == ["absent", "4x4", "not", "installed"]
    assert lines[9:] == [
        "4x4: the fastest peer, quick, takes 2.00 times as long",
        f"written: {tmp_path / 'scan.json'}",
    ]
    record = load_json(tmp_path / "scan.json")
    assert record["rows"] == rows
    assert (record["device"], record["more"]) == ("cpu", 5)
    operators.show("scan", "steps/s", [one | {"problem": ""} for one in rows[:3]], None)
    assert capsys.readouterr().out.splitlines()[-1].startswith("the fastest peer, slow, takes 4.00")


def test_steps_of_all_sequences_are_counted_and_sizes_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[Any, ...]] = []
    shown: list[tuple[Any, ...]] = []

    def compared(contenders: Any, *given: Any) -> list[dict[str, Any]]:
        limits = {name: one.limit for name, one in contenders.items()}
        assert limits.pop(OURS) == operators.LIMITS["scan"]["cpu"]
        assert set(limits.values()) == {operators.PEER_LIMITS["scan"]}
        asked.append(given)
        return [{"problem": given[2]}]

    monkeypatch.setattr(operators, "compare", compared)
    monkeypatch.setattr(operators, "show", lambda *given, **more: shown.append((*given, more)))
    operators.run("scan", 1, ((2, 5, 3), (1, 1, 1)), 4, "cpu", None)
    assert asked == [(4, 10, "2x5x3", "cpu"), (4, 1, "1x1x1", "cpu")]
    problems = [{"problem": "2x5x3"}, {"problem": "1x1x1"}]
    assert shown == [("scan", "steps/s", problems, None, {"device": "cpu"})]
    assert "checking against float64 at (2, 5, 3)\n" in capsys.readouterr().err
    monkeypatch.setitem(operators.SHAPES["scan"], "cpu", ((1, 2, 1),))
    operators.run("scan", 1, (), 4, "cpu", None)
    assert asked[-1] == (4, 2, "1x2x1", "cpu")


def test_a_channel_that_is_zero_and_right_has_no_error() -> None:
    exact = torch.tensor([[0.0, 2.0], [0.0, -4.0]])
    assert operators.relative_error([exact.clone()], [exact]) == 0.0
    off = exact + torch.tensor([[0.0, 0.0], [0.0, -1.0]])
    assert operators.relative_error([exact, off], [exact, exact]) == 0.25
    assert operators.relative_error([off, exact], [exact, exact]) == 0.25
    off = exact + torch.tensor([[1e-9, 0.0], [0.0, 0.0]])
    assert operators.relative_error([off], [exact]) == math.inf
