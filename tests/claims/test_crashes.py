"""A run whose process is killed, at any time or at any operation on a file, goes on to the rows of one left alone."""

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

from plkernel.common.files import load_json, read_lines
from plkernel.config.reading import load_spec
from plkernel.config.study import Spec
from plkernel.training.loop import prepare, run_training

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills copies of this process")

SpecWriter = Callable[..., Path]
ARM = "uniform"
MODELS = {"ssm": "", "finch": 'kind = "rwkv6"\nhead_size = 8\n', "goose": 'kind = "rwkv7"\nhead_size = 8\n'}
OPERATIONS = {"open", "os.rename", "os.remove", "os.truncate", "os.chmod", "os.mkdir"}
CURVES = ("when_started/val_bpb", "train/bpb", "val/bpb", "versus_bytes/train_bpb", "versus_bytes/val_bpb")


@pytest.fixture
def spec(tiny_spec: SpecWriter) -> Callable[..., Spec]:
    def write(kind: str = "ssm", **train: Any) -> Spec:
        path = tiny_spec(**train)
        text = path.read_text().replace("[model]\n", f"[model]\n{MODELS[kind]}")
        path.write_text(text.replace('projection = "published"', ""))
        return load_spec(path)

    return write


def train(spec: Spec, out: Path) -> None:
    run_training(prepare(spec, ARM, 0, out), progress_bar=False)


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


def left(out: Path) -> dict[str, Any]:
    """All of a run that must not depend on what happened on the way."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = out / ARM / "seed-0"
    events = EventAccumulator(str(folder)).Reload()
    return {
        "rows": (folder / "metrics.jsonl").read_bytes(),
        "result": {**load_json(folder / "result.json"), "seconds": None},
        "times": [row["step"] for row in read_lines(folder / "timing.jsonl")],
        "curves": {tag: [event.step for event in events.Scalars(tag)] for tag in CURVES},
        "files": sorted(path.name for path in folder.iterdir() if "tfevents" not in path.name and path.name[0] != "."),
    }


def after(spec: Spec, out: Path, expected: dict[str, Any]) -> str:
    """What a run that was killed comes to when it is begun again, at once."""
    if in_a_copy(lambda: train(spec, out)):
        return "does not go on"
    found = left(out)
    return ", ".join(name for name in expected if found[name] != expected[name]) or "the same"


@pytest.mark.parametrize(
    ("kind", "times"),
    [("ssm", 2), *(pytest.param(kind, 7, marks=pytest.mark.slow) for kind in MODELS)],
)
def test_kills_at_random_times_change_nothing(spec: Callable[..., Spec], tmp_path: Path, kind: str, times: int) -> None:
    """Each run is killed up to three times, in its second sitting as well."""
    run, out, counts, draw = spec(kind, steps=8 * times), tmp_path / "out", Counter[str](), random.Random(times)
    train(run, tmp_path / "whole")  # in this process, so that its copies have loaded what they need
    expected, start = left(tmp_path / "whole"), time.monotonic()
    assert in_a_copy(lambda: train(run, out)) == 0
    whole = time.monotonic() - start
    for _ in range(times):
        shutil.rmtree(out, ignore_errors=True)
        for _ in range(draw.randint(1, 3)):
            in_a_copy(lambda: train(run, out), draw.uniform(0, whole))
        counts[after(run, out, expected)] += 1
    print(f"{kind}, {times} times:", dict(counts))
    assert set(counts) == {"the same"}


@pytest.mark.slow
def test_a_kill_at_any_operation_changes_nothing(spec: Callable[..., Spec], tmp_path: Path) -> None:
    run, out, counts, number, status = spec(steps=8), tmp_path / "out", Counter[str](), 0, -signal.SIGKILL
    train(run, tmp_path / "whole")
    expected = left(tmp_path / "whole")
    while status == -signal.SIGKILL:
        number += 1
        shutil.rmtree(out, ignore_errors=True)
        status = in_a_copy(lambda number=number: train_until(run, out, number))  # type: ignore[misc]
        counts[after(run, out, expected)] += status == -signal.SIGKILL
    print(f"{number - 1} operations:", dict(counts))
    assert status == 0
    assert number > 50
    assert set(counts) == {"the same"}
