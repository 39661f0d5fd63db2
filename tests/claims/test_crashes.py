"""A run whose process ends at any operation on a file goes on to the rows and the curves of one left alone."""

import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from plkernel.common.files import load_json, read_lines
from plkernel.config.reading import load_spec
from plkernel.config.study import Spec
from plkernel.training.loop import prepare, run_training

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="kills copies of this process")]

SpecWriter = Callable[..., Path]
ARM = "uniform"
AT_TIMES = 20
"""Kills at random times of a run."""
OPERATIONS = {"open", "os.rename", "os.remove", "os.truncate", "os.chmod", "os.mkdir"}
ENDED = 0
KILLED = -signal.SIGKILL


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

    def step(name: str) -> None:
        nonlocal count
        count += 1
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in OPERATIONS and arguments and str(out) in str(arguments[0]):
            step(event)

    sync = os.fsync

    def synced(descriptor: int) -> None:
        step("before")
        sync(descriptor)
        step("after")

    sys.addaudithook(watch)
    os.fsync = synced
    train(spec, out)


def curves(folder: Path) -> dict[str, list[int]]:
    """The steps of TensorBoard's curves of losses."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    tags = ("when_started/val_bpb", "train/bpb", "val/bpb", "versus_bytes/train_bpb", "versus_bytes/val_bpb")
    return {tag: [event.step for event in events.Scalars(tag)] for tag in tags}


def found(out: Path) -> tuple[Any, ...]:
    """All of a run that must not depend on what happened on the way."""
    folder = out / ARM / "seed-0"
    result = {**load_json(folder / "result.json"), "seconds": None}
    left = sorted(path.name for path in folder.iterdir() if "tfevents" not in path.name and path.name[0] != ".")
    times = [row["step"] for row in read_lines(folder / "timing.jsonl")]
    return (folder / "metrics.jsonl").read_bytes(), result, times, curves(folder), left


def after(spec: Spec, out: Path, expected: tuple[Any, ...]) -> str:
    """What a run that was killed comes to when it is begun again, at once."""
    if in_a_copy(lambda: train(spec, out)) != ENDED:
        return "does not go on"
    differing = [
        name
        for name, one, other in zip(("rows", "result", "times", "curves", "files"), found(out), expected, strict=True)
        if one != other
    ]
    return ", ".join(differing) + " differ" if differing else "the same"


def test_a_kill_at_any_operation_changes_nothing(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    spec, out, counts, number, status = load_spec(tiny_spec(steps=8)), tmp_path / "out", Counter[str](), 0, KILLED
    train(spec, tmp_path / "whole")
    expected = found(tmp_path / "whole")
    while status == KILLED:
        number += 1
        shutil.rmtree(out, ignore_errors=True)
        status = in_a_copy(partial(train_until, spec, out, number))
        counts[after(spec, out, expected)] += status == KILLED
    print(f"{number - 1} operations:", dict(counts))
    assert status == ENDED
    assert number > 50
    assert set(counts) == {"the same"}


def test_kills_at_random_times_change_nothing(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    """Each run is killed up to three times, in its second sitting as well."""
    spec, out, counts, draw = load_spec(tiny_spec(steps=60)), tmp_path / "out", Counter[str](), random.Random(1)
    train(spec, tmp_path / "whole")  # in this process, so that its copies have loaded what they need
    expected, start = found(tmp_path / "whole"), time.monotonic()
    assert in_a_copy(lambda: train(spec, out)) == ENDED
    whole = time.monotonic() - start
    for _ in range(AT_TIMES):
        shutil.rmtree(out, ignore_errors=True)
        for _ in range(draw.randint(1, 3)):
            in_a_copy(lambda: train(spec, out), draw.uniform(0, whole))
        counts[after(spec, out, expected)] += 1
    print(f"{AT_TIMES} times:", dict(counts))
    assert set(counts) == {"the same"}
