"""make gpu on a CPU: what it finds, what it skips where packages lack, and that an end in the
middle loses nothing.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def gpu(script_of: Callable[[str], ModuleType]) -> ModuleType:
    return script_of("gpu")


def call(out: Path, *parts: str) -> "subprocess.Popen[str]":
    command = [
        sys.executable,
        str(ROOT / "runs" / "gpu.py"),
        *parts,
        "--device",
        "cpu",
        "--out",
        str(out / "out"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([*command, "--record", str(out / "record")], env=environment, **options)


def test_a_part_that_fails_is_named_and_the_others_go_on(
    gpu: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(command: list[str], **_: Any) -> None:
        raise subprocess.CalledProcessError(1, command[2:4])

    monkeypatch.setattr(subprocess, "run", broken)
    assert gpu.check("bench", "cpu", tmp_path, lambda: 1.0) == [
        f"bench {one}" for one in ("scan", "wkv", "wkv7", "train")
    ]
    assert gpu.check("tests", "cuda", tmp_path, lambda: 1.0) == ["tests"]
    assert "bench wkv: Command '['plkernel.bench', 'wkv']' returned" in capsys.readouterr().out


def test_the_profile_runs_on_a_cpu_and_its_table_comes_last(
    gpu: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """With a reason in place of what needs a GPU; the hour that is given ends nothing early."""
    monkeypatch.setattr(gpu, "SHORT", 3600.0)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert gpu.check("profile", "cpu", tmp_path / "gpu", lambda: 7200.0) == []
    printed = capfd.readouterr().out
    found = json.loads((tmp_path / "bench" / "profile-cpu.json").read_text())
    ours = [row for row in found["rows"] if row.get("contender") == "plkernel"]
    assert {row["case"].split()[0] for row in ours} == {"scan", "wkv", "wkv7"}, printed
    for row in ours:
        limit = 1e-2 if row["case"].endswith("bfloat16") else 1e-5
        assert row["error"] < limit, row
        assert row["both"]["call"] > 0, row
        assert row["both"]["ratio"] == 1.0
    reasons = {row["contender"]: row.get("reason") for row in found["rows"] if "contender" in row}
    assert reasons["gpu"] == reasons["fla chunk_rwkv7"] == "needs a GPU"
    assert found["chip"]["copy"] > 0
    assert found["environment"]["card"] == "cpu"
    assert printed.rstrip().endswith("needs a GPU")
    lines = [line for line in printed.splitlines() if not line.startswith("written: ")]
    assert max(map(len, lines)) <= 110


@pytest.mark.slow
def test_a_sitting_ends_in_the_tables_of_all_its_benchmarks(tmp_path: Path) -> None:
    printed, _ = call(tmp_path, "sitting").communicate()
    bench = tmp_path / "record" / "bench"
    names = sorted(path.name for path in bench.iterdir())
    assert names == ["growth-cpu.json", "profile-cpu.json", "step-cpu.json"]
    lines = printed.splitlines()
    places = [lines.index(f"{part}, 30 s") for part in ("profile", "step", "growth")]
    assert places == sorted(places)
    tables = ("copy 0.", "context and batch as in the JSON", "ms of a step (eager)")
    found = [next(n for n, line in enumerate(lines) if text in line) for text in tables]
    assert found == sorted(found)
    assert found[0] > places[-1], "the tables come last"


def test_variants_that_fail_or_hang_are_left_out_of_what_is_timed(
    gpu: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Hanging tests are ended; the others are not waited for longer."""
    programs = {"right": "print('1 passed')", "wrong": "raise SystemExit(1)"}
    programs["hanging"] = "import time; time.sleep(100)"
    started = subprocess.Popen

    def begin(command: list[str], **options: Any) -> Any:
        return started(
            [sys.executable, "-c", programs[command[command.index("-k") + 1]]], **options
        )

    monkeypatch.setattr(subprocess, "Popen", begin)
    monkeypatch.setattr(
        gpu, "variants", lambda: {f"scan {name}": ("file.py", name) for name in programs}
    )
    begun = time.monotonic()
    assert gpu.equal(tmp_path, 2.0) == ["scan wrong", "scan hanging"]
    assert time.monotonic() - begun < 20
    told = capsys.readouterr().out
    assert "scan right: 1 passed" in told
    assert "scan hanging: not ended after 2 s" in told

    commands = []
    monkeypatch.setattr(gpu, "equal", lambda *_: ["scan wrong", "scan hanging"])
    monkeypatch.setattr(subprocess, "run", lambda command, **_: commands.append(command))
    assert gpu.sitting("cuda", tmp_path, lambda: 500.0) == ["scan wrong", "scan hanging"]
    assert [command[3] for command in commands] == ["profile", "step", "growth"]
    assert commands[0][-3:] == ["--skip", "scan wrong", "scan hanging"]


def test_every_variant_of_a_kernel_is_held_against_float64(gpu: ModuleType) -> None:
    pytest.importorskip("triton")
    from plkernel.kernels.scan.gpu import DEFAULT, VARIANTS

    found = gpu.variants()
    assert {f"scan {name}" for name in VARIANTS if name != DEFAULT} < found.keys()
    assert {"wkv tensor*", "wkv7 tensor*"} < found.keys()
    assert all((ROOT / "tests/kernels" / file).exists() for file, _ in found.values())


def test_it_does_nothing_without_a_gpu_or_packages(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    gpu.main()
    assert capsys.readouterr().out.startswith("nothing to do: no GPU found")
    monkeypatch.setattr(gpu, "NEEDED", ("json", "no_such_package"))
    with pytest.raises(
        SystemExit, match="nothing to do: no_such_package not installed; give them in"
    ):
        gpu.main()


def rows(out: Path) -> dict[tuple[str, int], Any]:
    """The curves of the record by arm and seed."""
    lines = [
        json.loads(line)
        for line in (out / "record" / "tiny" / "rows.jsonl").read_text().splitlines()
    ]
    return {(row["arm"], row["seed"]): row["curve"] for row in lines if row["status"] == "finished"}


@pytest.mark.slow
def test_a_study_that_is_ended_in_the_middle_goes_on_to_the_same_rows(
    tiny_spec: Callable[..., Path], tmp_path: Path
) -> None:
    spec = str(tiny_spec(steps=60, eval_every=20))
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    printed, _ = call(whole, spec).communicate()
    assert len(rows(whole)) == 4, printed

    process = call(broken, spec)
    while len(list(broken.glob("out/tiny/*/seed-*/result.json"))) < 1:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate()
    assert "stopped: every run is saved" in printed
    assert 1 <= len(rows(broken)) < 4, "what had ended is recorded"

    printed, _ = call(broken, spec).communicate()
    assert rows(broken) == rows(whole), printed

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (broken / "record").rename(elsewhere / "record")
    printed, _ = call(elsewhere, spec).communicate()
    assert "4 runs taken from" in printed
    assert rows(elsewhere) == rows(whole)
