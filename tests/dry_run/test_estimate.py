"""The dry run against what it foretells: processes that really train, watched from outside."""

import inspect
import json
import math
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plkernel.common.environment import anonymous_bytes
from plkernel.config.condition import Condition, resolve
from plkernel.config.reading import load_spec, parse_spec
from plkernel.config.study import Spec
from plkernel.dry_run import estimate as dry
from plkernel.dry_run import timing as calibration
from plkernel.dry_run.cost import cost
from plkernel.dry_run.estimate import estimate
from plkernel.dry_run.probe import Timing
from plkernel.dry_run.table import Gpu, text
from plkernel.together.training import Batch

RUNS = Path(__file__).parents[2] / "runs"
TIME, MEMORY = 2.0, 1.3  # what is promised
PATCHED = {"kind": "ssm", "dim": 256, "layers": 6, "patching": {"size": 2}}


def shaped(corpus: Path, name: str) -> Spec:
    """Four shapes, cut to some steps each."""
    cut = {"steps": 24, "eval_every": 12, "eval_windows": 8, "test_windows": 8}
    if name in ("quick", "finch"):
        values = load_spec(RUNS / f"{name}.toml").model_dump()
    else:
        model = PATCHED if name == "patched" else {"dim": 96, "layers": 4}
        train = {"context": 1024, "batch": 8} if name == "patched" else {"context": 512, "batch": 4}
        values = {"name": name, "baseline": "a", "model": model, "train": train, "arms": {"a": {}}}
    values |= {"corpus": {"name": str(corpus)}, "train": values["train"] | cut}
    return parse_spec(values, name)


def watched(spec: Spec, out: Path) -> tuple[float, float]:
    """Seconds and the most anonymous memory of a process that trains the baseline of `spec`."""
    path = out / "spec.json"
    path.parent.mkdir(parents=True)
    path.write_text(spec.model_dump_json())
    command = [sys.executable, "-m", "plkernel.train", str(path), "--out", str(out), "--no-progress"]
    begin, peak = time.perf_counter(), 0
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with (out / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process:
        while process.poll() is None:
            peak = max(peak, anonymous_bytes(process.pid) or 0)
            time.sleep(0.005)
    assert process.returncode == 0, (out / "log").read_text()
    return time.perf_counter() - begin, peak


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(inspect.getsource(textwrap) * 20)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["quick", "small", "patched", "finch"])
def test_time_is_right_within_two_and_memory_within_a_third(corpus: Path, tmp_path: Path, name: str) -> None:
    """Estimated before and after, since whatever else this machine does slows one and not the other."""
    spec = shaped(corpus, name)
    before = estimate(spec, workers=1).rows[0]
    seconds, memory = watched(spec, tmp_path / "out")
    after = estimate(spec, workers=1).rows[0]
    assert before.seconds is not None
    assert after.seconds is not None
    ratios = math.sqrt(before.seconds * after.seconds) / seconds, before.memory / memory
    print(f"{name}: time {ratios[0]:.2f}, memory {ratios[1]:.2f}, of {seconds:.0f} s and {memory / 1e6:.0f} MB")
    assert 1 / TIME < ratios[0] < TIME
    assert 1 / MEMORY < ratios[1] < MEMORY


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Condition, int]]:
    """Nothing is run: every step takes a second per 1e8 operations; gives what would have been."""
    asked: list[tuple[Condition, int]] = []

    def measure(condition: Condition, processes: int) -> Timing:
        asked.append((condition, processes))
        operations = calibration.operations(condition)
        step = condition.protocol.batch * operations.training / 1e8
        return Timing(2.0, 0.5 + step, 0.5, operations.forward / 1e8, 0.25, 3e8, 0.0, 0.0)

    monkeypatch.setattr(calibration, "measure", measure)
    return asked


def study(**changes: Any) -> Spec:
    train = {"context": 32, "batch": 4, "steps": 10, "eval_every": 4, "eval_windows": 3, "test_windows": 5}
    model = {"dim": 16, "layers": 2} | changes.pop("model", {})
    arms = changes.pop("arms", {"a": {}, "b": {"projection": "published"}})
    values = {"name": "s", "baseline": "a", "seeds": [0, 1, 2], "model": model, "arms": arms}
    return parse_spec({**values, "train": train | changes}, "s")


def test_a_run_is_its_steps_its_evaluations_and_its_test(timed: list[tuple[Condition, int]]) -> None:
    spec = study()
    found = estimate(spec, workers=2)
    (row,), counted = found.rows, cost(resolve(spec.model, spec.arms["a"], spec.train))
    windows = 4 * 3 + 5  # evaluations at steps 0, 4, 8 and 10, and the test
    assert (row.arms, row.runs, row.steps, row.bytes) == (("a", "b"), 6, 10, 10 * 4 * 32)
    assert row.flops == 40 * counted.flops.training + windows * counted.flops.forward
    assert row.seconds == pytest.approx(2 + row.flops / 1e8 + 10 * 0.5 + 4 * 0.25)
    assert found.hours == pytest.approx(3 * row.seconds / 3600)  # six runs, two at a time
    assert found.flops == 6 * row.flops
    assert f" {row.flops:.2e} " in text(found)
    assert "?" not in text(found)
    assert [processes for _, processes in timed] == [2]


def test_models_are_counted_each_and_timed_where_costs_differ(timed: list[tuple[Condition, int]]) -> None:
    arms = {"a": {}, "ema": {"model": {"gain": "ema"}}, "deep": {"model": {"layers": 4}}}
    found = estimate(study(arms=arms), workers=1)
    assert [row.arms for row in found.rows] == [("a",), ("ema",), ("deep",)]
    assert found.rows[0].memory < found.rows[1].memory
    assert [spec.model.layers for spec, _ in timed] == [2, 4]


def test_minutes_hold_the_evaluations_too(timed: list[tuple[Condition, int]]) -> None:
    row = estimate(study(steps=None, minutes=2.0), workers=1).rows[0]
    assert row.steps is not None
    assert row.seconds == pytest.approx(120, abs=5)
    assert row.steps < 120 / 0.5


def test_the_search_comes_first_and_is_not_timed_again(timed: list[tuple[Condition, int]]) -> None:
    spec = study()
    found = estimate(spec, workers=2, search=study(steps=4))
    assert [row.phase for row in found.rows] == ["tuning", "study"]
    assert len(timed) == 1
    assert found.hours == pytest.approx(3 * sum(row.seconds or 0.0 for row in found.rows) / 3600)
    assert "tuning: a and 1 more" in text(found)


def test_a_large_run_is_timed_in_part_and_scaled_by_operations(timed: list[tuple[Condition, int]]) -> None:
    spec = study(model={"dim": 256, "layers": 3}, batch=64, context=2048)
    found = estimate(spec, workers=1)
    (part, _), row = timed[0], found.rows[0]
    assert part.train.batch < 64
    assert row.steps is not None
    assert row.flops is not None
    assert row.seconds == pytest.approx(2 + row.flops / 1e8 + 10 * 0.5 + 4 * 0.25)
    assert "a part of it (batch" in text(found)


def test_what_does_not_fit_is_said_in_words(
    timed: list[tuple[Condition, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry, "available_memory", lambda device: 8e9)
    spec = study(model={"dim": 1024, "layers": 4}, batch=64, context=2048)
    found = estimate(spec, workers=2)
    assert found.fitting == 0
    assert "does not fit in the 8.0 GB of this machine" in text(found)
    part = cost(timed[0][0])
    assert 2 * part.resident(1.5) < 4e9
    monkeypatch.setattr(dry, "available_memory", lambda device: 8e8)
    assert "use --workers 1" in text(estimate(study(), workers=2))


def test_where_not_even_a_layer_fits_there_are_no_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry, "available_memory", lambda device: 5e8)
    found = estimate(study(model={"dim": 2048}), workers=1)
    assert found.hours is None
    assert "not known" in text(found)
    json.dumps(found.to_row(), allow_nan=False)


def test_a_gpu_that_is_not_here_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    spec = study(device="cuda", backend="gpu")
    found = estimate(spec, workers=3, gpu=Gpu(1e12, 0.5))
    row = found.rows[0]
    assert row.flops is not None
    assert row.seconds == pytest.approx(row.flops / 5e11)
    assert "assumed, not measured" in text(found)
    assert found.available is None
    half = estimate(spec, workers=3, gpu=Gpu(1e12, 0.25))
    assert half.hours == pytest.approx(2 * found.hours)
    with pytest.raises(ValueError, match="utilisation"):
        Gpu(1e12, 1.5)


def test_a_share_of_many_is_that_of_their_step_and_of_one_start_unless_alone_is_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Runs are really trained together; a clock says that each step of all takes 0.8 seconds."""
    together: list[int] = []

    class Counted(Batch):
        def step(self) -> None:
            super().step()
            together.append(len(self.runs))

    def wall_seconds(step: Callable[[], None]) -> float:
        step()
        return 0.8

    monkeypatch.setattr(calibration, "Batch", Counted)
    monkeypatch.setattr(calibration, "wall_seconds", wall_seconds)
    condition = study().condition("a")
    alone = Timing(6.0, 0.5, 0.1, 0.2, 0.3, 1.0, 2.0, 0.0)
    assert calibration.share_of_many(condition, alone, 4) == replace(alone, start=1.5, step=0.2)
    faster = replace(alone, step=0.2)
    assert calibration.share_of_many(condition, faster, 4) == faster
    assert together == [4] * 8, "a step that does not count and three that do, twice"
    assert calibration.share_of_many(condition, alone, 1) == alone
    assert len(together) == 8, "one run is trained to find out what it costs alone"


def test_a_process_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    condition = study().condition("a")
    broken = replace(condition, arm=condition.arm.model_copy(update={"scheme": "nobody"}))
    with pytest.raises(OSError, match="nobody"):
        calibration.measure(broken, 1)
