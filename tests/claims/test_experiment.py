"""A study: resumable after kill -9, polite on Ctrl-C, closed to another spec, open to more seeds."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plkernel.commands.experiment import command, forecast
from plkernel.common.files import load_json, save_json
from plkernel.config.reading import load_spec
from plkernel.study import dry_run
from plkernel.study.schedule import run_experiment
from plkernel.training.loop import prepare, run_training

SpecWriter = Callable[..., Path]


def start(spec: Path, out: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "plkernel.experiment", str(spec), "--out", str(out), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ,
    )


def wait_for_rows(out: Path, rows: int, patience: float = 60.0) -> None:
    """Until some run of the study has written that many evaluations."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if any(path.read_bytes().count(b"\n") >= rows for path in out.glob("*/seed-*/metrics.jsonl")):
            return
        time.sleep(0.02)
    pytest.fail(f"no run reached {rows} evaluations in {patience} s")


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for a command that must succeed; what it printed."""
    output, error = process.communicate(timeout=180)
    assert process.returncode == 0, error
    return output


def metrics(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.glob("*/seed-*/metrics.jsonl"))}


@pytest.mark.slow
def test_kill_and_restart_gives_the_same_bytes(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    spec = tiny_spec(steps=400, eval_every=50)
    finish(start(spec, tmp_path / "whole"))
    killed = start(spec, tmp_path / "parts")
    wait_for_rows(tmp_path / "parts", 3)
    killed.send_signal(signal.SIGKILL)  # the parent only: its workers notice and end
    killed.communicate()
    assert not list((tmp_path / "parts").glob("*/seed-*/result.json")), "killed before any run finished"
    finish(start(spec, tmp_path / "parts"))
    assert len(metrics(tmp_path / "whole")) == 4
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")


@pytest.mark.slow
def test_ctrl_c_ends_cleanly_and_says_how_to_go_on(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    process = start(tiny_spec(steps=100_000, eval_every=20), tmp_path / "out")
    wait_for_rows(tmp_path / "out", 3)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "run the same command again to go on" in error
    assert "Traceback" not in error
    log = next((tmp_path / "out").glob("*/seed-*/log.txt")).read_text()
    assert "Traceback" not in log
    assert "is saved" in log


@pytest.mark.slow
def test_a_study_reports_and_is_skipped_when_run_again(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    spec, out = tiny_spec(), tmp_path / "out"
    assert "power-law" in finish(start(spec, out))
    assert (out / "report" / "report.html").exists()
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("*/seed-*/result.json")}
    assert "4 runs, 4 finished before" in finish(start(spec, out))
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/seed-*/result.json")} == stamps


@pytest.mark.slow
def test_a_failed_run_is_recorded_and_the_rest_goes_on(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    out = tmp_path / "out"
    blocked = out / "uniform" / "seed-0" / "checkpoint.safetensors"
    blocked.parent.mkdir(parents=True)
    blocked.write_bytes(b"not a checkpoint")
    failed = run_experiment(load_spec(tiny_spec()), out)
    assert failed == ["uniform seed 0"]
    assert load_json(blocked.with_name("result.json"))["status"] == "failed"
    statuses = [load_json(path)["status"] for path in out.glob("*/seed-*/result.json")]
    assert sorted(statuses) == ["failed", "finished", "finished", "finished"]


def test_a_study_of_another_spec_is_refused(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    """Found in the first run, before any worker starts and before spec.json changes."""
    out = tmp_path / "out"
    run_training(prepare(load_spec(tiny_spec()), "power-law", 1, out), progress_bar=False)
    with pytest.raises(ValueError, match=r"made by another spec .*train.learning_rate was 0.01, is now 0.02"):
        run_experiment(load_spec(tiny_spec(learning_rate=2e-2)), out)
    assert not (out / "spec.json").exists()


def test_a_corpus_that_changed_is_refused(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    out, text = tmp_path / "out", tmp_path / "text.txt"
    run_training(prepare(load_spec(tiny_spec()), "uniform", 0, out), progress_bar=False)
    text.write_text(text.read_text() + "one line more\n")
    with pytest.raises(ValueError, match=r"made by another spec .*corpus.sha256 was"):
        run_experiment(load_spec(tiny_spec()), out)


def test_a_damaged_result_is_named(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    path = tmp_path / "out" / "uniform" / "seed-0" / "result.json"
    save_json(path, {})
    with pytest.raises(ValueError, match=r"result.json does not say how the run ended"):
        run_experiment(load_spec(tiny_spec()), tmp_path / "out")


def test_bad_input_writes_nothing(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    for options in ({"corpus": "missing.txt"}, {"context": 100_000}):
        with pytest.raises((ValueError, OSError)):
            run_experiment(load_spec(tiny_spec(**options)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"corpus": "missing.txt"}, "missing.txt"),
        ({"context": 100_000}, "the validation split of corpus .* bytes, fewer than one window"),
    ],
)
def test_a_dry_run_refuses_what_a_run_refuses(tiny_spec: SpecWriter, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        forecast(load_spec(tiny_spec(**options)), (), 1)


@pytest.fixture
def nothing_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "text", lambda found: "the table")
    monkeypatch.setattr(dry_run, "estimate", lambda *_, **options: None)


@pytest.mark.usefixtures("nothing_timed")
def test_a_dry_run_says_what_a_study_cannot_know_or_decide(tiny_spec: SpecWriter) -> None:
    """A corpus that is not here, seeds that are too few, and quantiles of a flat law beyond what is read."""
    spec = load_spec(tiny_spec(corpus="hf:some/text"))
    assert forecast(spec, (), 1) == "the table\ncorpus 'hf:some/text' is not read yet: nothing is known of its size"
    head = "[[hypotheses]]\nname = 'a'\narm = 'power-law'\nclaim = 'lower'"
    assert forecast(load_spec(tiny_spec(head=head)), (), 1) == (
        "the table\nfamily main: 1 hypothesis, 2 seeds: cannot decide by exact sign flips (smallest p 0.25, alpha "
        "0.05), 5 seeds could; the t test decides, which needs normal differences"
    )
    path = tiny_spec()
    slow = "[arms.slow]\nplacement = 'quantile'\nbeta = 0.456\nlag = 'distance'\n"
    path.write_text(path.read_text().replace("[model]\n", "[model]\ngain = 'ema'\n") + slow)
    words = r"half or more of its half-lives, [\d,]+ to [\d,]+ bytes, are longer than 10 windows of 32 bytes"
    assert re.fullmatch(f"the table\nslow: {words}", forecast(load_spec(path), (), 1))


def test_an_address_without_ray_is_refused(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ray_address 'auto' belongs to engine 'ray', got engine 'local'"):
        command(load_spec(tiny_spec()), out=tmp_path / "out", ray_address="auto")


@pytest.mark.slow
def test_a_dry_run_writes_nothing_and_counts_the_search(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    spec = tiny_spec(head="[tuning]\nrates = [1e-3, 1e-2]\nseeds = [7]")
    printed = finish(start(spec, tmp_path / "out", "--dry-run", "--workers", "1", "--engine", "ray"))
    assert not (tmp_path / "out").exists()
    assert "tiny: 8 runs, 1 at a time" in printed
    assert "tuning: uniform_rate-0.001 and 3 more" in printed
    assert "those of this machine, not of the cluster" in printed
