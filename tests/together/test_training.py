"""Runs trained as one model have the rows, the ends and the folders that they have alone, up to float32 rounding."""

import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from plkernel.common.files import load_json, read_lines
from plkernel.config.reading import load_spec
from plkernel.config.study import Spec
from plkernel.together.training import Batch, train_together
from plkernel.training.checkpoint import load_checkpoint
from plkernel.training.loop import Task, prepare
from plkernel.training.loop import Training, run_training

SpecWriter = Callable[..., Path]
ROUNDING = 1e-5
"""Bits per byte: some steps of float32, 1e-6 at 8 bits each. An eps of 1e-3 keeps Adam from enlarging gradients that
are rounding alone to whole steps."""
ARMS = (
    "[arms.fast]\nlearning_rate = 3e-2\n"
    "[arms.clipped]\ntrain = { clip = 1e-2, weight_decay = 0.1, schedule = 'linear' }\n"
    "[arms.frozen]\ntrain = { decay_multiplier = 0 }\n"
)
KINDS = {
    "ssm": "[model]\ngain = 'ema'\n",
    "patches": "[model]\npatching = { size = 2, mode = 'causal' }\n",
    "finch": "[model]\nkind = 'rwkv6'\nhead_size = 8\n",
}


@pytest.fixture
def spec_of(tiny_spec: SpecWriter) -> Callable[..., Spec]:
    def write(kind: str = "ssm", **train: object) -> Spec:
        path = tiny_spec(**{"context": 16, "batch": 2, "steps": 8, "eval_every": 4, "eps": 1e-3} | train)
        text = path.read_text().replace("[model]\n", KINDS[kind])
        if kind == "finch":
            text = text.replace('projection = "published"\n', "")
        path.write_text(text + ARMS)
        return load_spec(path)

    return write


def tasks_of(spec: Spec, out: Path) -> list[Task]:
    return [prepare(spec, arm, 0, out) for arm in ("uniform", "fast", "clipped", "frozen")]


def same(task: Task, alone: Path) -> None:
    """The folder of a run is that of the run alone."""
    together, other = task.folder.path, alone / task.folder.path.relative_to(task.folder.path.parents[1])
    assert (together / "config.json").read_bytes() == (other / "config.json").read_bytes()
    names = [
        sorted(path.name for path in folder.iterdir() if "tfevents" not in path.name) for folder in (together, other)
    ]
    assert names[0] == names[1]
    for name in ("metrics.jsonl", "result.json"):
        agree(*(read_lines(f / name) if name == "metrics.jsonl" else load_json(f / name) for f in (together, other)))


def agree(one: Any, other: Any) -> None:
    """Numbers within rounding, everything else equal; not how long it took."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one.keys() - {"seconds"}:
            agree(one[name], other[name])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            agree(*pair)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=20 * ROUNDING, abs=ROUNDING)
    else:
        assert one == other


@pytest.mark.parametrize(
    "kind", ["ssm", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != "ssm")]
)
def test_every_run_has_the_rows_it_has_alone(spec_of: Callable[..., Spec], tmp_path: Path, kind: str) -> None:
    """Other rates, schedules, clips, seeds and frozen decays beside one another."""
    spec = spec_of(kind)
    tasks = [*tasks_of(spec, tmp_path / "together"), prepare(spec, "fast", 1, tmp_path / "together")]
    results = train_together(tasks)
    for task, result in zip(tasks, results, strict=True):
        assert not isinstance(result, Exception)
        run_training(prepare(spec, task.condition.name, task.seed, tmp_path / "alone"), False)
        same(task, tmp_path / "alone")
    assert train_together(tasks) == results, "what has finished is not trained again"
    rows = {task.name: read_lines(task.folder.path / "metrics.jsonl") for task in tasks}
    moved = {name: found[0]["half_life_quantiles"] != found[-1]["half_life_quantiles"] for name, found in rows.items()}
    assert (moved["uniform seed 0"], moved["frozen seed 0"]) == (True, False)
    assert len({found[-1]["val_bpb"] for name, found in rows.items() if name != "frozen seed 0"}) == len(tasks) - 1


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run of arm clipped at seed 0 has a weight that is no number from step 6 on."""
    ready = Training.next_windows

    def poison(self: Training) -> torch.Tensor:
        if (self.task.name, self.progress.step) == ("clipped seed 0", 5):
            self.model.head.weight.data[0, 0] = math.nan
        return ready(self)

    monkeypatch.setattr(Training, "next_windows", poison)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("kind", ["ssm", pytest.param("finch", marks=pytest.mark.slow)])
def test_a_run_that_diverges_leaves_the_others_as_they_are(
    spec_of: Callable[..., Spec], tmp_path: Path, kind: str
) -> None:
    spec = spec_of(kind, steps=12)
    tasks = tasks_of(spec, tmp_path / "together")
    outcomes = train_together(tasks)
    assert [isinstance(outcome, FloatingPointError) for outcome in outcomes] == [False, False, True, False]
    for task in tasks:
        alone = prepare(spec, task.condition.name, 0, tmp_path / "alone")
        if task.condition.name == "clipped":
            with pytest.raises(FloatingPointError, match="nan at step 6"):
                run_training(alone, False)
            ends = [load_json(each.folder.path / "result.json") for each in (task, alone)]
            assert all(end["status"] == "diverged" and "nan at step 6" in end["error"] for end in ends)
            agree(*(read_lines(each.folder.path / "metrics.jsonl") for each in (task, alone)))
        else:
            run_training(alone, False)
            same(task, tmp_path / "alone")


PROGRAM = """
import os, signal, sys
from pathlib import Path
from plkernel.commands.run import run
from plkernel.training.loop import Training

save = Training.save

def killed(self):
    save(self)
    if (self.task.name, self.progress.step) == ("fast seed 0", 8):
        os.kill(os.getpid(), signal.SIGKILL)

Training.save = killed
run(tuple(map(Path, sys.argv[1:])))
"""


@pytest.mark.slow
def test_after_a_kill_every_run_goes_on_from_its_own_checkpoint(spec_of: Callable[..., Spec], tmp_path: Path) -> None:
    """Killed while they evaluate: two have saved step 8, the others step 4; then two go on together, two alone."""
    from plkernel.study.engine import Job, start_process

    spec = spec_of(steps=12)
    tasks = tasks_of(spec, tmp_path / "together")
    jobs = [Job(tmp_path / "together", task.condition.name, 0, "cpu", 1, task.config) for task in tasks]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", lambda command, **_: command)
        command: Any = start_process(jobs, {})
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command[3 : 3 + len(jobs)]], capture_output=True, check=False
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    steps = [load_checkpoint(task.folder.checkpoint, Training(task).model).step for task in tasks]
    assert steps == [8, 8, 4, 4]
    train_together([tasks[0], tasks[2]])
    for task in (tasks[1], tasks[3]):
        run_training(task, False)
    for task in tasks:
        (task.folder.path / "log.txt").unlink()
        run_training(prepare(spec, task.condition.name, 0, tmp_path / "alone"), False)
        same(task, tmp_path / "alone")


def test_an_interrupt_saves_every_run(
    spec_of: Callable[..., Spec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of()
    tasks = tasks_of(spec, tmp_path / "together")
    step = Batch.step

    def interrupted(self: Batch) -> None:
        step(self)
        if self.runs[0].progress.step == 6:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Batch, "step", interrupted)
    with pytest.raises(KeyboardInterrupt, match="step 6 is saved"):
        train_together(tasks)
    assert {load_checkpoint(task.folder.checkpoint, Training(task).model).step for task in tasks} == {6}
    train_together(tasks)
    for task in tasks:
        run_training(prepare(spec, task.condition.name, 0, tmp_path / "alone"), False)
        same(task, tmp_path / "alone")


def test_one_run_that_cannot_start_leaves_the_others(spec_of: Callable[..., Spec], tmp_path: Path) -> None:
    tasks = tasks_of(spec_of(steps=2), tmp_path / "out")
    tasks[1].folder.path.mkdir(parents=True)
    (tasks[1].folder.path / "config.json").write_text('{"arm": "another"}')
    outcomes = train_together(tasks)
    assert [type(outcome) for outcome in outcomes] == [dict, ValueError, dict, dict]
    assert "made by another spec" in str(outcomes[1])


def test_runs_of_other_shapes_are_refused(spec_of: Callable[..., Spec], tmp_path: Path) -> None:
    tasks = [prepare(spec_of(batch=batch), "uniform", 0, tmp_path / str(batch)) for batch in (2, 3)]
    with pytest.raises(
        ValueError, match="uniform seed 0, uniform seed 0: not of one shape, so they are trained one by"
    ):
        train_together(tasks)
    assert not (tmp_path / "2").exists()


def test_eight_runs_together_launch_a_quarter(
    tiny_spec: SpecWriter, tmp_path: Path, launches: Callable[[Callable[[], object]], int]
) -> None:
    """Two blocks of width 32: 1,064 operators that compute one after another, 267 together."""
    path = tiny_spec(context=16, batch=2)
    path.write_text(path.read_text().replace("dim = 16", "dim = 32"))
    runs = [Training(prepare(load_spec(path), "uniform", seed, tmp_path / "out")) for seed in range(8)]
    for run in runs:
        run.step()
    alone = launches(lambda: [run.step() for run in runs])
    batch = Batch(runs)
    assert 3.8 * launches(batch.step) < alone
