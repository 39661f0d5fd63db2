"""The benchmark of WKV-7: every contender is right where it is timed, and where decays are strong."""

import json
from pathlib import Path

import pytest
import torch

from plkernel.benchmarks.contest import relative_error
from plkernel.benchmarks.wkv7 import command, peers
from plkernel.benchmarks.wkv7.peers import CHUNKED, CONTENDERS, LOOP, OURS, Problem, problem, strong_problem
from plkernel.common.environment import anonymous_bytes

SHAPE = (2, 64, 2, 8)
ALONE = [name for name in CONTENDERS if not name.startswith("fla")]


def errors(name: str, given: Problem) -> list[float]:
    truth = peers.reference(given)()
    return [relative_error(*pair) for pair in zip(CONTENDERS[name](given)(), truth, strict=True)]


@pytest.mark.parametrize("name", ALONE)
def test_results_and_every_gradient_of_a_contender_equal_float64(name: str) -> None:
    assert max(errors(name, problem(SHAPE))) < 1e-5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of fla, which looks for a GPU
@pytest.mark.parametrize("name", [name for name in CONTENDERS if name.startswith("fla")])
def test_other_peoples_references_equal_float64(name: str) -> None:
    pytest.importorskip("fla", reason="flash-linear-attention is not installed", exc_type=ImportError)
    assert max(errors(name, problem(SHAPE))) < 1e-5


@pytest.mark.parametrize("name", ALONE)
def test_no_contender_is_wrong_under_strong_decays(name: str) -> None:
    given = strong_problem()
    assert given.log_decay.min() == -50
    assert max(errors(name, given)) < 1e-4


def test_rows_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "CONTENDERS", {name: CONTENDERS[name] for name in (OURS, LOOP, f"{CHUNKED} 32")})
    monkeypatch.setattr(command, "MEMORY_CONTENDERS", ())
    monkeypatch.setattr(command, "LENGTHS", (64, 128))
    threads = torch.get_num_threads()
    command.run((SHAPE,), rounds=2, device="cpu", out=tmp_path)
    assert torch.get_num_threads() == threads
    results = json.loads((tmp_path / "wkv7.json").read_text())
    rows = {row["contender"]: row for row in results["rows"]}
    assert list(rows) == [OURS, LOOP, f"{CHUNKED} 32"]
    assert rows[OURS]["ratio"]["median"] == 1.0
    assert all(row["seconds"]["runs"] == 2 and row["note"] == "" for row in rows.values())
    assert results["lengths"].keys() == {"64", "128"}
    table = capsys.readouterr().out
    assert "at least 12" in table
    assert "at least 1.5" in table


@pytest.mark.skipif(anonymous_bytes("self") is None, reason="needs RssAnon in /proc/self/status")
@pytest.mark.slow
def test_the_loop_keeps_states_for_every_step_and_ours_does_not() -> None:
    shape = (2, 512, 4, 32)
    memory = {name: command.watch("plkernel.benchmarks.wkv7.peers", name, *map(str, shape))[0] for name in (OURS, LOOP)}
    states = 2 * 512 * 4 * 32 * 32 * 4
    assert memory[LOOP] > 2 * states
    assert memory[OURS] < command.MEMORY_TARGET * memory[LOOP]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shapes": ((2, 100, 4, 64),)}, r"shapes has \(2, 100, 4, 64\); all four .* time a multiple of 64"),
        ({"rounds": 1}, "rounds is 1; it must be 2 or more"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        command.run(**{"shapes": (), "rounds": 2, "device": "cpu", "out": None} | arguments)  # type: ignore[arg-type]
