"""A run that was stopped or killed goes on to the rows of one left alone, or is refused where files
have changed.
"""

import math
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tensorboard.summary.writer import event_file_writer

from plkernel.common.files import load_json, read_lines
from plkernel.config.reading import load_spec
from plkernel.config.spec import Spec
from plkernel.training.checkpoint import digest_of
from plkernel.training.folder import RunFolder
from plkernel.training.loop import Training, prepare, run_training

SpecWriter = Callable[..., Path]
Stopped = Callable[[Spec, str, Path, int], Path]
CHECKPOINT, METRICS = "checkpoint.safetensors", "metrics.jsonl"
ARM, OTHER = "uniform", "power-law"
RUN = f"{ARM}/seed-0"
MODELS = {
    "ssm": "",
    "finch": 'kind = "rwkv6"\nhead_size = 8\n',
    "goose": 'kind = "rwkv7"\nhead_size = 8\n',
    "carried": "patching = { size = 4 }\n",  # which windows of 30 bytes cut
}
OPERATIONS = {"open", "os.rename", "os.remove", "os.truncate", "os.chmod", "os.mkdir"}
CURVES = ("loss/train", "loss/validation", "prediction/entropy")
kills = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills copies of this process")


@pytest.fixture
def spec(tiny_spec: SpecWriter, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Spec]:
    monkeypatch.setattr("plkernel.training.loop.CURVE_EVERY", 1)

    def write(kind: str = "ssm", **train: Any) -> Spec:
        backend = None if kind == "ssm" else "reference"  # nothing to compile
        recipe = {"recipe": "blinkdl", "warmup": 2, "dropout": 0.2} if kind == "finch" else {}
        contexts = {"ssm": 32, "carried": 30}
        shape: dict[str, Any] = {"context": contexts.get(kind, 12)}
        if kind == "carried":
            shape["carry"] = True
        path = tiny_spec(
            **{"steps": 8, "eval_every": 2, "backend": backend} | shape | recipe | train
        )
        text = path.read_text().replace("[model]\n", f"[model]\n{MODELS[kind]}")
        text = text.replace("= True", "= true")
        path.write_text(text if kind == "ssm" else text.replace('projection = "published"', ""))
        return load_spec(path)

    return write


def train(spec: Spec, out: Path, arm: str = ARM) -> dict[str, Any]:
    return run_training(prepare(spec, arm, 0, out), progress_bar=False)


def left(out: Path) -> dict[str, Any]:
    """All of a run that must not depend on what happened on the way."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = out / RUN
    events = EventAccumulator(str(folder), {"histograms": 0}).Reload()
    return {
        "rows": (folder / METRICS).read_bytes(),
        "result": {**load_json(folder / "result.json"), "seconds": None},
        "curves": {tag: [event.step for event in events.Scalars(tag)] for tag in CURVES},
        "histograms": [event.step for event in events.Histograms("half-life/layer 0, log2")],
        "files": sorted(
            path.name
            for path in folder.iterdir()
            if "tfevents" not in path.name and path.name[0] != "."
        ),
    }


def test_the_bar_of_a_run_begins_where_the_run_goes_on(
    spec: Callable[..., Spec],
    stopped: Stopped,
    tmp_path: Path,
    bars: Callable[[str], list[Any]],
) -> None:
    """It counts the steps of the run, not of the sitting."""
    made = bars("plkernel.training.loop")
    asked = spec()
    stopped(asked, ARM, tmp_path, 5)
    run_training(prepare(asked, ARM, 0, tmp_path))
    assert [(bar.initial, bar.n, bar.total) for bar in made] == [(0, 5, 8), (5, 8, 8)]
    assert [bar.hidden for bar in made] == [True, None], (
        "on a terminal, unless the caller wants none"
    )


def in_a_copy(action: Callable[[], Any], patience: float | None = None) -> int:
    """How a copy of this process ends that does `action`; it is killed after `patience` seconds."""
    child = os.fork()
    if not child:
        code = 1
        try:
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
            action()
            code = 0
        finally:
            os._exit(code)
    if patience is not None:
        time.sleep(patience)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def train_until(spec: Spec, out: Path, number: int) -> None:
    """Train; die in the `number`-th operation on a file in `out`, before it is done."""
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in OPERATIONS and arguments and str(out) in str(arguments[0]):
            step()

    sync = os.fsync

    def synced(descriptor: int) -> None:
        step()
        sync(descriptor)
        step()

    sys.addaudithook(watch)
    os.fsync = synced
    train(spec, out)


def after(spec: Spec, out: Path, expected: dict[str, Any]) -> str:
    """The end of a run that was killed and is begun again at once."""
    if in_a_copy(lambda: train(spec, out)):
        return "does not go on"
    known = left(out)
    return ", ".join(name for name in expected if known[name] != expected[name]) or "the same"


@kills
@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_kills_at_random_times_change_nothing(
    spec: Callable[..., Spec], tmp_path: Path, kind: str
) -> None:
    """Each run is killed up to three times, in its second sitting as well."""
    run = spec(kind, steps=56, average=0.6, final_windows=10**6)
    out = tmp_path / "out"
    counts = Counter[str]()
    draw = random.Random(7)
    train(run, tmp_path / "whole")  # in this process, so that its copies have loaded what they need
    expected = left(tmp_path / "whole")
    start = time.monotonic()
    assert in_a_copy(lambda: train(run, out)) == 0
    whole = time.monotonic() - start
    for _ in range(7):
        shutil.rmtree(out, ignore_errors=True)
        for _ in range(draw.randint(1, 3)):
            in_a_copy(lambda: train(run, out), draw.uniform(0, whole))
        counts[after(run, out, expected)] += 1
    assert set(counts) == {"the same"}


@kills
@pytest.mark.slow
def test_a_kill_at_any_operation_on_a_file_changes_nothing(
    spec: Callable[..., Spec], tmp_path: Path
) -> None:
    run = spec(eval_every=4)
    out = tmp_path / "out"
    counts = Counter[str]()
    number = 0
    status = -signal.SIGKILL
    train(run, tmp_path / "whole")
    expected = left(tmp_path / "whole")
    while status == -signal.SIGKILL:
        number += 1
        shutil.rmtree(out, ignore_errors=True)
        status = in_a_copy(lambda number=number: train_until(run, out, number))  # type: ignore[misc]
        counts[after(run, out, expected)] += status == -signal.SIGKILL
    assert status == 0
    assert number > 50
    assert set(counts) == {"the same"}


@pytest.mark.parametrize(
    ("kind", "place", "step"),
    [
        ("ssm", "append", 0),
        ("ssm", "append", 4),
        ("finch", "step", 5),
        ("goose", "save", 2),
        ("carried", "step", 5),
    ],
)
def test_a_run_that_ends_anywhere_goes_on_to_the_same(
    spec: Callable[..., Spec],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    place: str,
    step: int,
) -> None:
    """Once the curves have an evaluation that no row has, a row that no checkpoint has, or between
    two evaluations.
    """
    # Files of curves are read in the order of their names, which end in a count: of one second, 10
    # would precede 9.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(1000))
    whole = train(run := spec(kind, average=0.8, final_windows=16), tmp_path / "whole")
    owner: Any = RunFolder if place == "append" else Training
    original = getattr(owner, place)

    def killed(self: Any, *arguments: Any) -> Any:
        if step == (arguments[0]["step"] if arguments else self.progress.step):
            raise SystemExit
        return original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(owner, place, killed)
        with pytest.raises(SystemExit):
            train(run, tmp_path / "parts")
    assert {**train(run, tmp_path / "parts"), "seconds": 0} == {**whole, "seconds": 0}
    assert left(tmp_path / "parts") == left(tmp_path / "whole")


def test_frozen_decays_stay_and_their_run_goes_on(
    tiny_spec: SpecWriter, stopped: Stopped, tmp_path: Path
) -> None:
    """Stopped, resumed and trained to the end, they have not moved; those that are trained have."""
    path = tiny_spec(steps=8, eval_every=2, truncation_windows=6, average=0.5)
    path.write_text(path.read_text() + "[arms.frozen]\ntrain = { decay_multiplier = 0 }\n")
    spec = load_spec(path)
    out = tmp_path / "out"
    rows = stopped(spec, "frozen", out, 5) / METRICS
    result = train(spec, out, "frozen")
    whole = train(spec, tmp_path / "whole", "frozen")
    assert {**result, "seconds": 0} == {**whole, "seconds": 0}
    frozen = read_lines(rows)
    assert {str(row["half_life_quantiles"]) for row in frozen} == {
        str(frozen[0]["half_life_quantiles"])
    }
    assert frozen[-1]["val_bpb"] < frozen[0]["val_bpb"]
    train(spec, out)
    moved = read_lines(out / RUN / METRICS)
    assert moved[0] == frozen[0]
    assert moved[-1]["half_life_quantiles"] != moved[0]["half_life_quantiles"]


def refused(spec: Spec, out: Path, message: str) -> None:
    """The run is, and its row files stay as they are."""
    rows = (out / RUN / METRICS).read_bytes()
    with pytest.raises(ValueError, match=message):
        train(spec, out)
    assert (out / RUN / METRICS).read_bytes() == rows


def test_the_checkpoint_of_another_arm_is_refused(
    spec: Callable[..., Spec], stopped: Stopped, tmp_path: Path
) -> None:
    run = spec()
    out = tmp_path / "out"
    one, other = (stopped(run, arm, out, 5) for arm in (ARM, OTHER))
    shutil.copy(other / CHECKPOINT, one / CHECKPOINT)
    refused(
        run,
        out,
        r"must be of this run, got another: arm was 'power-law', is now 'uniform'.*bring the run's",
    )
    (one / CHECKPOINT).write_bytes((one / CHECKPOINT).read_bytes()[:100])
    refused(run, out, r"checkpoint .*checkpoint.safetensors must be whole")


def test_weights_that_are_nan_are_refused(
    spec: Callable[..., Spec], stopped: Stopped, tmp_path: Path
) -> None:
    """After the last step too, where nothing is left to train, and with a right checksum."""
    run = spec()
    for step in (5, 8):
        out = tmp_path / f"{step}"
        path = stopped(run, ARM, out, step) / CHECKPOINT
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
        tensors["model.head.weight"][0, 0] = math.nan
        metadata["digest"] = digest_of(tensors, metadata)
        save_file(tensors, path, metadata)
        refused(run, out, r"got NaN in model\.head\.weight \(1 of .*bring the run's own back")


def test_a_step_beyond_the_last_of_the_run_is_refused(
    spec: Callable[..., Spec], stopped: Stopped, tmp_path: Path
) -> None:
    """The run would count as ended, with the weights of the step at which it was stopped."""
    run = spec()
    path = stopped(run, ARM, tmp_path, 5) / CHECKPOINT
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in list(file.keys())}
    metadata["progress"] = metadata["progress"].replace('"step": 5', '"step": 99')
    metadata["digest"] = digest_of(tensors, metadata)
    save_file(tensors, path, metadata)
    refused(run, tmp_path, "must be of a step of the run, at most 8, got 99: bring the run's own")


def test_a_run_that_is_stopped_with_nan_keeps_its_earlier_checkpoint(
    spec: Callable[..., Spec], stopped: Stopped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss is finite at the step whose gradient is not; the weights are NaN after it."""
    run = spec()
    checkpoint = stopped(run, ARM, tmp_path, 6) / CHECKPOINT
    before = checkpoint.read_bytes()
    original = Training.step

    def step(training: Training) -> None:
        original(training)
        with torch.no_grad():
            next(training.model.parameters()).fill_(math.nan)

    monkeypatch.setattr(Training, "step", step)
    training = Training(prepare(run, ARM, 0, tmp_path))
    with pytest.raises(FloatingPointError, match=r"diverged: NaN in .* at step 7; lower"):
        training.run(lambda: True, progress_bar=False)
    assert checkpoint.read_bytes() == before


def test_rows_that_have_changed_are_refused(
    spec: Callable[..., Spec], stopped: Stopped, tmp_path: Path
) -> None:
    run = spec()
    out = tmp_path / "out"
    path = stopped(run, ARM, out, 5) / METRICS
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"0.", b"1.", 1))
    left = r"seed-0/metrics.jsonl is not as the run left it at the step 4 of its last evaluation"
    refused(run, out, rf"{left} \(its content has been changed\): bring it back, or remove")
    path.write_bytes(whole + b'{"step": 6, "unfin')
    assert train(run, out)["steps"] == 8
    assert [row["step"] for row in read_lines(path)] == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("name", [METRICS, ".checkpoint.partial.safetensors", "", ".."])
def test_nothing_is_written_through_a_link(
    spec: Callable[..., Spec], stopped: Stopped, tmp_path: Path, name: str
) -> None:
    """Of a file in the folder, the folder itself or that of its arm."""
    run = spec()
    precious = tmp_path / "precious"
    path = stopped(run, ARM, tmp_path / "out", 5) / name
    if path.is_dir():
        path = path.resolve()
        shutil.move(path, precious)
        content = sorted(precious.rglob("*"))
    else:
        path.unlink(missing_ok=True)
        precious.write_text("precious\n")
    path.symlink_to(precious)
    with pytest.raises(
        ValueError,
        match=r"got a symbolic link to .*precious; remove it, nothing is written through",
    ):
        train(run, tmp_path / "out")
    assert (
        sorted(precious.rglob("*")) == content
        if precious.is_dir()
        else precious.read_text() == "precious\n"
    )
