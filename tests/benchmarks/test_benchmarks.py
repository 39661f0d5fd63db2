"""Nothing wrong is timed, contenders take turns, and every peer is right."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from plkernel.benchmarks import host, operators, profile, step, training
from plkernel.benchmarks.operators import OURS, Contender, Problem, makers, problem, truth
from plkernel.commands import bench
from plkernel.common.files import load_json
from plkernel.config.condition import resolve
from plkernel.config.reading import parse_spec
from plkernel.config.schema import ModelSpec, TrainSpec
from plkernel.models import rwkv
from plkernel.study.dry_run import operations
from plkernel.study.together import Timing
from plkernel.training.build import Prepared

pytestmark = pytest.mark.usefixtures("one_thread")  # benchmarks set the threads of torch
SHAPES = {"scan": (2, 50, 8), "wkv": (1, 64, 1, 8), "wkv7": (1, 64, 1, 8)}
CPU = torch.device("cpu")
NO_END = 1e6
"""Seconds in which everything is timed, however slow the machine."""


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
    monkeypatch.setattr("plkernel.common.environment.installed", {"transformers": "1.2"}.get)
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
        (bench.scan, {"shapes": ((0, 64, 4),)}, "must be of sizes 1 or more"),
        (bench.scan, {"rounds": 0}, "rounds must be 1 or more, got 0"),
        (bench.train, {"threads": 0}, "threads must be 1 or more, got 0"),
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
    assert training.gradient_error(loaded, CPU) < training.LARGEST_ERROR
    module, name = training.OPERATORS[kind]
    exact = getattr(module, name)

    def wrong(first: torch.Tensor, *inputs: torch.Tensor, backend: str | None) -> Any:
        return exact(first * (0.99 if backend is None else 1), *inputs, backend=backend)

    monkeypatch.setattr(module, name, wrong)
    with pytest.raises(ValueError, match="nothing is timed"):
        training.gradient_error(loaded, CPU)


@pytest.mark.slow
def test_a_short_benchmark_of_training(tiny_spec: Callable[..., Path], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    bench.train(tiny_spec(), rounds=1, device="cpu", out=tmp_path)
    record = load_json(tmp_path / "train.json")
    assert len(record["rows"]) == 2
    assert all(row["seconds"] for row in record["rows"])
    assert (record["context"], record["batch"]) == (32, 4)
    assert record["error"] < training.LARGEST_ERROR


def test_the_path_around_the_kernels_is_timed_beside_linear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "CALLS", 20)
    bench.host(rounds=3, device="cpu", out=tmp_path)
    rows = {row["contender"]: row for row in load_json(tmp_path / "host.json")["rows"]}
    assert {host.BASELINE, "scan", "wkv7", "wkv, torch.library"} < rows.keys()
    assert rows[host.BASELINE]["both"]["ratio"]["median"] == 1.0
    assert all(
        row[part]["seconds"]["median"] > 0
        for row in rows.values()
        for part in row
        if part != "contender"
    )


def test_an_operator_that_is_wrong_is_not_timed_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact = host.operator

    def wrong(name: str) -> Callable[..., Any]:
        return lambda first, *others: exact(name)(first * 0.99, *others)

    monkeypatch.setattr(host, "operator", wrong)
    with pytest.raises(ValueError, match=r"scan must differ from float64 by .*; nothing is timed"):
        bench.host(rounds=1, device="cpu")


CASES = [
    profile.Case("scan", (2, 37, 5), torch.float32, True),
    profile.Case("scan", (2, 64, 5), torch.float32, False),
    profile.Case("wkv", (2, 20, 2, 8), torch.float32, False),
    profile.Case("wkv7", (2, 20, 2, 8), torch.bfloat16, False),
]


@pytest.mark.parametrize("name", ["wkv", "wkv7"])
def test_a_state_of_eight_heads_is_not_taken_for_eight_steps(name: str) -> None:
    given = profile.inputs(profile.Case(name, (2, 20, 8, 4), torch.float32, False), 0, "cpu")
    assert given.inputs[-1].shape == (2, 8, 4, 4)
    assert given.inputs[0].shape == (2, 20, 8, 4)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_truth_of_the_profile_is_the_loop_in_float64(case: profile.Case) -> None:
    given = profile.inputs(case, 3, "cpu")
    reference = partial(operators.operator(case.operator), backend="reference")
    exact = profile.by_autograd(reference, given.to(torch.float64))[1]()
    found = profile.truth(case, given)
    assert len(found) == len(exact)
    for x, y in zip(found, exact, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)
    other = profile.inputs(case, 4, "cpu")
    assert not torch.equal(given.inputs[2 if len(given.inputs) > 2 else 1], other.inputs[1])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_calls_by_hand_give_what_autograd_gives(case: profile.Case) -> None:
    """Result and gradients of all inputs but the state, within the limits of a contender."""
    given = profile.inputs(case, 0, "cpu")
    module = f"plkernel.kernels.{case.operator}.cpu"
    forward, both = profile.by_hand(module, {}, case.operator, given)
    exact = profile.truth(case, given)
    assert both is not None
    found = both()
    assert len(found) == len(exact)
    assert profile.norm_error(found, exact) < profile.LIMITS[case.dtype]
    (out,) = forward()
    assert torch.equal(out, found[0])


@pytest.mark.parametrize("kind", ["chunk", "fused_recurrent"])
def test_hgrn_is_given_logarithms_of_decays(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def peer(x: torch.Tensor, log_decay: torch.Tensor) -> tuple[torch.Tensor, None]:
        return operators.operator("scan")(log_decay.exp(), x, backend="reference"), None

    def imported(name: str) -> Any:
        assert name == f"fla.ops.hgrn.{kind}"
        return SimpleNamespace(**{f"{kind}_hgrn": peer})

    a, b = (x.double() for x in problem("scan", SHAPES["scan"]).inputs)
    monkeypatch.setattr(profile, "import_module", imported)
    exact = operators.operator("scan")(a, b, backend="reference")
    # a = exp(ln a (1 + u)), and a state sums at most all steps
    torch.testing.assert_close(profile.hgrn(kind, a, b), exact, rtol=1e-12, atol=1e-12)


def test_the_floor_of_the_profile_is_the_larger_of_memory_and_arithmetic() -> None:
    """Bytes and operations counted by hand."""
    scan = profile.Case("scan", (2, 3, 5), torch.float32, True)
    given = profile.inputs(scan, 0, "cpu")
    a, b = 4 * 5, 4 * 30  # bytes of decays, and of inputs, states and gradients
    by_memory = profile.least_seconds(scan, given, profile.Chip(1.0, math.inf))
    assert by_memory == (a + 2 * b, (a + 2 * b) + (2 * (a + b) + b))
    assert profile.least_seconds(scan, given, profile.Chip(math.inf, 1.0)) == (60, 60 + 120)
    wkv = profile.Case("wkv", (1, 2, 3, 4), torch.float32, False)
    given = profile.inputs(wkv, 0, "cpu")
    by_arithmetic = profile.least_seconds(wkv, given, profile.Chip(math.inf, 1.0))
    assert by_arithmetic == (5 * 24 * 4, (5 + 11) * 24 * 4)


def test_a_bonus_of_one_head_is_not_taken_for_steps() -> None:
    given = profile.inputs(profile.Case("wkv", (2, 20, 1, 8), torch.float32, False), 0, "cpu")
    assert given.inputs[operators.INPUTS["wkv"].index("u")].shape == (1, 8)


def test_slow_calls_are_timed_twice() -> None:
    rest = [profile.SLOW * profile.REPEATS / 10, 0.0]
    assert profile._wants_more([], 1)
    assert profile._wants_more(rest, 9)
    assert not profile._wants_more(rest, 10)
    assert not profile._wants_more([0.0] * profile.REPEATS, 1)


def test_a_contender_of_the_profile_that_is_wrong_or_fails_is_a_row_without_times() -> None:
    case = CASES[0]
    given = profile.inputs(case, 0, "cpu")
    check = given, profile.truth(case, given)

    def off(given: Problem) -> Any:
        forward, both = profile.by_autograd(operators.operator("scan"), given)
        return forward, lambda: (*both()[:-1], both()[-1] * 1.05)

    def broken(given: Problem) -> Any:
        raise RuntimeError("no kernel\nmore")

    def absent(given: Problem) -> Any:
        raise ImportError("no such package")

    rows = [
        profile.timed_case(case, profile.Candidate(make, on_cpu=True), [given], check, "cpu")
        for make in (off, broken, absent)
    ]
    assert rows[0]["error"] == pytest.approx(0.05, rel=1e-3)
    assert [row["reason"] for row in rows] == [
        "wrong: the error is 5.0e-02",
        "failed: RuntimeError: no kernel",
        "not installed (no such package)",
    ]
    assert not any("forward" in row for row in rows)


def test_the_table_of_the_profile_keeps_ours_and_the_fastest_within_its_limits() -> None:
    times = {"call": 1.0, "device": 0.9, "host": 1e-4, "graph": False}
    rows: list[dict[str, Any]] = [
        {"case": f"case {number}", "contender": name, "error": 1e-3, "forward": times}
        | {"both": times | {"device": seconds}, "floor": {"forward": 0.1, "both": 0.2}}
        for number in range(20)
        for name, seconds in [(OURS, 9.0), *((f"peer {place}", place + 1.0) for place in range(9))]
    ]
    rows.append({"case": "case 20", "reason": "no time left"})
    text = profile.table(rows)
    lines = text.splitlines()
    assert len(text) <= profile.MOST_TEXT
    assert max(map(len, lines)) <= profile.WIDTH
    place = lines.index("case 0  floor 100.000 and 200.000")
    assert lines[place + 1].split()[0] == OURS
    assert lines[place + 2].split()[:2] == ["peer", "0"]
    assert "e " in lines[place + 1], "no graph: by events"
    assert lines[-1] == "  all: no time left"
    assert any("that are slower" in line for line in lines)


def test_steps_of_whole_models_are_timed_beside_peers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a CPU those that run there, called from Python; the others have a reason."""
    bench.step(device="cpu", seconds=NO_END, out=tmp_path)
    record = load_json(tmp_path / "step-cpu.json")
    rows = {(row["model"], row["mode"]): row for row in record["rows"]}
    assert len(rows) == 2 * len(step.timed_models()) + 4
    for kind in step.OURS:
        row = rows[kind, "eager"]
        assert row["seconds"] > 0
        assert row["share"] == row["operations"] / row["seconds"] / record["matrix"]
        assert 0.6 < row["parameters"] / step.SIZES["cpu"][0].parameters < 1.6
        assert row["loss"] == pytest.approx(math.log(256), abs=1.0)
        assert rows[kind, "graph"]["reason"] == "needs a GPU"
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:3] == ["tiny", "ssm", "eager"] for line in lines)
    assert "needs a GPU" in lines[-1]


def test_rows_of_steps_are_chosen_by_patterns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "timed_model", lambda *_: {"reason": "not now"})
    bench.step(device="cpu", out=tmp_path, only=("* fla*", "tiny ssm compiled"))
    rows = load_json(tmp_path / "step-only-cpu.json")["rows"]
    found = [(row["model"], row["mode"]) for row in rows]
    assert found == [
        ("ssm", "compiled"),
        *[(f"fla {one}", mode) for one in ("rwkv6", "rwkv7") for mode in ("eager", "graph")],
    ]


def test_growth_is_timed_along_every_axis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(step, "timing", lambda _, runs, **__: Timing(runs, 5.0 * runs, 1e9))
    bench.growth(device="cpu", seconds=NO_END, out=tmp_path)
    rows = load_json(tmp_path / "growth-cpu.json")["rows"]
    assert [row for row in rows if "reason" in row] == []
    for axis, values in step.GROWTH["cpu"].items():
        found = [row["value"] for row in rows if row["axis"] == axis and row["model"] == "ssm"]
        assert found == [*values]
    sizes = {(axis, value): size for axis, _, value, size in step.cells("cpu")}
    read = {sizes["context", value].context * sizes["context", value].batch for value in (16, 32)}
    assert read == {step.CONSTANT["cpu"]}
    assert "runs  1   2" in capsys.readouterr().out


def test_operations_of_a_step_are_those_that_torch_counts() -> None:
    """Of matrices three times those forward, and of the recurrence; torch leaves out the gradient
    of the embedding, which no step needs either.
    """
    size = step.Size("", 0, 64, 32, 2)
    for kind in step.OURS:
        entry = step.timed_models()[kind]
        model = entry.make(size, 3, False)
        condition = resolve(
            ModelSpec(kind=kind, dim=64, layers=3, **({} if kind == "ssm" else {"head_size": 64})),
            train=TrainSpec(context=32, batch=2, steps=1),
        )
        _, counted = operations(Prepared.of(condition))
        assert step.training_operations(model, entry, size, 3) == pytest.approx(
            size.batch * counted, rel=0.1
        )


def test_a_step_that_computes_something_else_has_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([{"seconds": 1.0, "loss": 5.5, "operations": 1.0}, {"seconds": 0.1, "loss": 6.5}])
    size = step.SIZES["cpu"][0]
    modes = [(size, "ssm", "eager"), (size, "ssm", "graph")]
    monkeypatch.setattr(step, "order", lambda _: modes)
    monkeypatch.setattr(step, "timed_model", lambda *_: next(found))
    monkeypatch.setattr(step, "table_of_steps", str)
    bench.step(device="cpu", out=tmp_path)
    rows = load_json(tmp_path / "step-cpu.json")["rows"]
    assert rows[0]["seconds"] == 1.0
    assert rows[1]["reason"] == "wrong: a loss of 6.5, not 5.5"
    assert "seconds" not in rows[1]


def test_compiling_is_repaid_by_what_each_step_saves() -> None:
    row = {"size": "10 M", "model": "ssm"}
    eager = row | {"mode": "eager", "seconds": 0.02, "first": 2.0}
    compiled = row | {"mode": "compiled", "seconds": 0.005, "first": 62.0}
    assert [*step.repaid_after([eager, compiled])] == [("10 M", "ssm", pytest.approx(4000))]
    slower = compiled | {"seconds": 0.03}
    assert [*step.repaid_after([eager, slower])] == [("10 M", "ssm", math.inf)]


def test_models_on_tensor_cores_hand_the_precision_to_their_operator() -> None:
    before = rwkv.wkv
    with step.on_tensor_cores("rwkv6", "bf16"):
        model = step.ours("rwkv6", step.Size("", 0, 16, 16, 2), 1, False)
        with pytest.raises(ValueError, match="got 'bf16'; it works with backend 'gpu'"):
            model(torch.zeros((1, 4), dtype=torch.int64))
    assert rwkv.wkv is before


def test_ratios_of_the_profile_are_times_over_ours_of_the_same_case() -> None:
    def row(case: str, contender: str, **seconds: float) -> dict[str, Any]:
        parts = {part: {"call": value} for part, value in seconds.items()}
        return {"case": case, "contender": contender, **parts}

    first, second = profile.PARTS
    rows = [
        row("short", profile.OURS, **{first: 2.0, second: 4.0}),
        row("short", "another", **{first: 1.0, second: 12.0}),
        row("long", profile.OURS, **{first: 5.0}),
        row("long", "another", **{first: 10.0, second: 1.0}),
        row("alone", "another", **{first: 3.0}),
    ]
    profile._add_ratios(rows)
    ratios = [[one[part].get("ratio") for part in profile.PARTS if part in one] for one in rows]
    assert ratios == [[1.0, 1.0], [0.5, 3.0], [1.0], [2.0, None], [None]]
