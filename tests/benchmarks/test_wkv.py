"""The benchmark of WKV: nothing wrong is timed, strong decays tell the peers apart, and memory is that of a process."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from plkernel.benchmarks import wkv as bench
from plkernel.benchmarks import wkv_peers
from plkernel.benchmarks.contest import relative_error
from plkernel.benchmarks.wkv_peers import (
    CHUNKED,
    CONTENDERS,
    LEAN_LOOP,
    LOOP,
    OURS,
    SAFE,
    SIZES,
    Contender,
    Problem,
    problem,
    strong_problem,
)
from plkernel.commands.bench import wkv
from plkernel.common.environment import anonymous_bytes

SHAPE = (2, 64, 2, 8)
TOLERANCE = 3e-6
Factory = Callable[[Problem], Callable[[], tuple[Tensor, ...]]]


def errors(make: Factory, given: Problem) -> list[float]:
    truth = wkv_peers.reference(given)()
    return [relative_error(*pair) for pair in zip(make(given)(), truth, strict=True)]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours, the loop and one size of chunks; short lengths."""
    names = (OURS, LOOP, f"{CHUNKED} 32", f"{SAFE} 32")
    monkeypatch.setattr(wkv_peers, "CONTENDERS", {name: CONTENDERS[name] for name in names})
    monkeypatch.setattr(bench, "MEMORY_CONTENDERS", ())
    monkeypatch.setattr(bench, "LENGTHS", (64, 128))
    monkeypatch.setattr(bench.threads, "measure", lambda *arguments: [])


@pytest.mark.parametrize("name", CONTENDERS)
def test_results_and_every_gradient_of_a_contender_equal_float64(name: str) -> None:
    assert max(errors(CONTENDERS[name], problem(SHAPE))) < TOLERANCE


@pytest.mark.parametrize("size", SIZES)
def test_only_chunks_without_a_positive_exponent_stand_strong_decays(size: int) -> None:
    given = strong_problem()
    assert given.log_decay.min() == -50
    assert max(errors(CONTENDERS[f"{SAFE} {size}"], given)) < 6e-5
    assert max(errors(CONTENDERS[f"{CHUNKED} {size}"], given)) == torch.inf
    assert max(errors(CONTENDERS[OURS], given)) < 6e-6


@pytest.mark.usefixtures("few")
def test_bfloat16_is_right_to_its_rounding_and_has_a_record_of_its_own(tmp_path: Path) -> None:
    wkv((SHAPE,), dtype="bfloat16", rounds=2, device="cpu", out=tmp_path)
    results = json.loads((tmp_path / "wkv-bfloat16.json").read_text())
    row = results["rows"][0]
    assert (row["contender"], row["note"]) == (OURS, "")
    assert bench.LARGEST_ERROR["cpu"] < row["error"] < bench.ROUNDED, "it is in bfloat16, and rounds at the end only"
    assert results["lengths"] == {}


def test_what_must_be_moved_counts_every_tensor_over_time_once_a_pass() -> None:
    given = problem(SHAPE)
    assert bench.moved_bytes(given) == 14 * given.r.nbytes
    half = problem(SHAPE, dtype=torch.bfloat16)
    assert bench.moved_bytes(half) == (11 + 2 * 3) * half.r.nbytes, "ln w and its gradient stay float32"


@pytest.mark.usefixtures("few")
def test_rows_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    wkv((SHAPE,), rounds=2, device="cpu", out=tmp_path)
    assert torch.get_num_threads() == threads
    results = json.loads((tmp_path / "wkv.json").read_text())
    rows = {row["contender"]: row for row in results["rows"]}
    assert list(rows) == list(wkv_peers.CONTENDERS)
    assert rows[OURS]["ratio"]["median"] == 1.0
    assert rows[OURS]["strong_error"] < bench.LARGEST_ERROR["cpu"]
    assert all(row["seconds"]["runs"] == 2 and row["note"] == "" for row in rows.values())
    assert results["threads"] == []
    assert results["lengths"].keys() == {"64", "128"}
    assert results["environment"]["threads"] == 1
    table = capsys.readouterr().out
    assert "at least 20" in table
    assert "at least 1.5" in table


def test_wrong_missing_and_failing_contenders_are_not_timed() -> None:
    def without_u(given: Problem) -> Callable[[], tuple[Tensor, ...]]:
        return wkv_peers.ours(given._replace(u=torch.zeros_like(given.u)))

    def one_gradient_wrong(given: Problem) -> Callable[[], tuple[Tensor, ...]]:
        step = wkv_peers.ours(given)
        return lambda: (*step()[:5], step()[5] * 1.01, *step()[6:])

    def missing(given: Problem) -> Callable[[], tuple[Tensor, ...]]:
        raise ImportError("no such package")

    def failing(given: Problem) -> Callable[[], tuple[Tensor, ...]]:
        raise RuntimeError("no such device")

    others: dict[str, Contender] = {"u": without_u, "w": one_gradient_wrong, "missing": missing, "failing": failing}
    rows = bench.compare(SHAPE, {OURS: wkv_peers.ours, **others}, {}, rounds=2, device="cpu")
    found = {row.contender: row for row in rows}
    assert found[OURS].seconds is not None
    assert all(found[name].seconds is None and found[name].ratio is None for name in others)
    assert found["u"].note == "wrong: the error is above 0.001"
    assert found["w"].error == pytest.approx(0.01, rel=0.01)
    assert found["missing"].note == "not installed (no such package)"
    assert found["failing"].note == "failed: RuntimeError: no such device"


def test_nothing_is_compared_with_ours_when_ours_is_wrong() -> None:
    def wrong(given: Problem) -> Callable[[], tuple[Tensor, ...]]:
        return wkv_peers.ours(given._replace(log_decay=given.log_decay * 1.001))

    contenders: dict[str, Contender] = {OURS: wrong, LOOP: wkv_peers.loop}
    rows = bench.compare(SHAPE, contenders, {}, rounds=2, device="cpu")
    assert [row.contender for row in rows if row.seconds] == [LOOP]
    assert rows[1].ratio is None


@pytest.mark.skipif(anonymous_bytes("self") is None, reason="needs RssAnon in /proc/self/status")
@pytest.mark.slow
def test_the_loop_keeps_a_state_for_every_step_and_ours_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "MEMORY_CONTENDERS", (OURS, LOOP))
    shape = (2, 512, 4, 32)
    memory = bench.measure_memory(shape, CONTENDERS, "cpu")
    states = 2 * 512 * 4 * 32 * 32 * 4
    assert memory[LOOP] > 2 * states
    assert memory[OURS] < bench.MEMORY_TARGET * memory[LOOP]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shapes": ((2, 100, 4, 64),)}, r"shapes has \(2, 100, 4, 64\); all four .* time a multiple of 64"),
        ({"shapes": ((0, 64, 4, 64),)}, "all four must be 1 or more"),
        ({"rounds": 1}, "rounds is 1; it must be 2 or more"),
        ({"device": "tpu"}, "device is 'tpu'; here it must be cpu"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wkv(**arguments)  # type: ignore[arg-type]


def test_loops_agree_with_each_other() -> None:
    given = problem(SHAPE).mapped(Tensor.double)
    for one, other in zip(CONTENDERS[LOOP](given)(), CONTENDERS[LEAN_LOOP](given)(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
