"""Learning curves: those of a run are its rows, also in other libraries; those of an arm are the
mean of its runs.
"""

import errno
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from plkernel.commands.train import command
from plkernel.common.files import read_lines
from plkernel.config.reading import load_spec
from plkernel.study.schedule import run_experiment
from plkernel.training import curves, loop
from plkernel.training.curves import save_mean
from plkernel.training.loop import prepare, run_training

SpecWriter = Callable[..., Path]
RUN = "uniform/seed-0"


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), {"scalars": 0}).Reload()
    return {
        tag: [(one.step, one.value) for one in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


class Library:
    """As much of wandb and trackio as a run uses."""

    def __init__(self) -> None:
        self.began: list[dict[str, Any]] = []
        self.points = dict[str, list[tuple[int, float]]]()
        self.finished = 0

    def init(self, **options: Any) -> Any:
        self.began.append(options)
        return SimpleNamespace(log=self.log, finish=self.finish)

    def log(self, values: dict[str, float], step: int) -> None:
        for tag, value in values.items():
            self.points.setdefault(tag, []).append((step, value))

    def finish(self) -> None:
        self.finished += 1


@pytest.mark.parametrize("logger", ["wandb", "trackio"])
def test_the_curves_are_the_rows(
    tiny_spec: SpecWriter,
    stopped: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    logger: str,
) -> None:
    """Losses from the first evaluation after the start; the logger has what TensorBoard has, over
    two sittings.
    """
    monkeypatch.setitem(sys.modules, logger, library := Library())
    monkeypatch.setattr(loop, "CURVE_EVERY", 5)
    spec = load_spec(tiny_spec())
    whole = prepare(spec, "uniform", 0, tmp_path / "whole")
    run_training(whole, progress_bar=False, logger=logger)
    rows = read_lines(whole.folder.path / "metrics.jsonl")
    known = scalars(whole.folder.path)
    for tag, key in (("loss/validation", "val_bpb"), ("learning rate", "learning_rate")):
        wanted = [(row["step"], row[key]) for row in rows if row["step"] or tag == "learning rate"]
        np.testing.assert_allclose(known[tag], wanted, rtol=1e-6)
    assert [step for step, _ in known["loss/train"]] == [5, 10]
    medians = [(row["step"], row["half_life_quantiles"][1][3]) for row in rows]
    np.testing.assert_allclose(known["half-life/layer 1 median"], medians, rtol=1e-6)
    assert len(known["prediction/entropy"]) == len(known["bytes per second"]) == len(rows)
    assert len(list(whole.folder.path.glob("events.out.tfevents.*"))) == 1
    assert known.keys() == library.points.keys()
    for tag, points in library.points.items():
        np.testing.assert_allclose(points, known[tag], rtol=1e-6)
    own = {
        "group": "uniform",
        "name": "uniform seed 0",
        "project": "tiny",
        "resume": "allow",
        "config": whole.config,
    }
    assert own.items() <= library.began[0].items()
    assert ("id" in library.began[0]) == (logger == "wandb")
    folder = stopped(spec, "uniform", tmp_path / "parts", 10)
    run_training(prepare(spec, "uniform", 0, tmp_path / "parts"), progress_bar=False, logger=logger)
    assert {tag: len(points) for tag, points in scalars(folder).items()} == {
        tag: len(known[tag]) for tag in known
    }
    assert library.began[1] == library.began[0]
    assert library.finished == 2


def test_a_logger_that_is_not_installed_is_named(
    tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    spec = load_spec(tiny_spec())
    out = tmp_path / "out"
    for run in (command, run_experiment):
        with pytest.raises(
            ValueError,
            match=r"logger 'wandb': it is not installed; pip install \"plkernel\[wandb\]\"",
        ):
            run(spec, out=out, logger="wandb")
    assert not out.exists()


def test_every_output_of_published_patching_is_labelled(
    tiny_spec: SpecWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny_spec()
    path.write_text(path.read_text() + '[model.patching]\nsize = 2\nmode = "published"\n')
    command(load_spec(path), out=tmp_path)
    output = capsys.readouterr()
    bpb_lines = [line for line in (output.out + output.err).splitlines() if "bits per byte" in line]
    assert len(bpb_lines) == 4
    rows = (tmp_path / RUN / "metrics.jsonl").read_text().splitlines()
    assert all("not causal, not a likelihood" in line for line in bpb_lines + rows)
    losses = {tag for tag in scalars(tmp_path / RUN) if "loss" in tag}
    assert losses == {
        f"loss/{name} [not causal, not a likelihood]" for name in ("train", "validation")
    }


def test_an_arm_has_the_mean_of_its_seeds_once_all_have_finished(
    tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn by the study, also one that begins with runs that have finished; drawn again when seeds
    are added.
    """
    monkeypatch.setattr(loop, "CURVE_EVERY", 5)
    spec = load_spec(tiny_spec())
    arm = tmp_path / "uniform"
    mean = tmp_path / "uniform/mean"
    for seed in (0, 1):
        assert not mean.exists()
        run_training(prepare(spec, "uniform", seed, tmp_path), progress_bar=False)
        save_mean(arm, [0, 1])
    runs = [scalars(arm / f"seed-{seed}") for seed in (0, 1)]
    drawn = scalars(mean)
    assert (
        drawn.keys()
        == runs[0].keys()
        >= {"loss/train", "loss/validation", "half-life/layer 0 median"}
    )
    for tag, points in drawn.items():
        np.testing.assert_allclose(points, np.mean([run[tag] for run in runs], axis=0), rtol=1e-6)
    [before] = mean.iterdir()
    before.unlink()
    alone = spec.model_copy(update={"arms": {"uniform": spec.arms["uniform"]}})
    assert run_experiment(alone, tmp_path) == []
    again = scalars(mean)
    assert again == drawn
    monkeypatch.setattr(curves, "tempfile", None)  # drawn before, nothing is made
    save_mean(arm, [1, 0])
    monkeypatch.undo()
    (arm / "seed-2").symlink_to(arm / "seed-1")
    save_mean(arm, [0, 1, 2])
    [after] = mean.iterdir()
    assert after != before
    assert scalars(mean)["loss/validation"][-1][1] == pytest.approx(
        np.mean([runs[number]["loss/validation"][-1][1] for number in (0, 1, 1)]), rel=1e-6
    )


def test_a_mean_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "arm").mkdir()
    (tmp_path / "arm" / "mean").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="got a symbolic link to"):
        save_mean(tmp_path / "arm", [0])


def test_a_full_disk_is_told_with_the_folder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer of TensorBoard raises it later, and without a name."""
    writer = curves.CurveWriter(tmp_path, 0, {})

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writer.writer, "add_scalar", full)
    with pytest.raises(OSError, match="No space left") as told:
        writer.add(1, {"loss/train": 1.0})
    assert told.value.filename == str(tmp_path)
    writer.close()


def test_a_thread_that_cannot_write_is_told_by_the_next_call_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its traceback would come between the lines of the run; those of other threads are printed."""
    told: list[BaseException | None] = []

    def hook(failed: threading.ExceptHookArgs) -> None:
        told.append(failed.exc_value)

    def fail() -> None:
        raise OSError("of another thread")

    monkeypatch.setattr("threading.excepthook", hook)
    curves._silence_writers.cache_clear()  # of the tests before
    folder = tmp_path / "run"
    writer = curves.CurveWriter(folder, 0, {})
    shutil.rmtree(folder)
    scalars = dict.fromkeys(map(str, range(100_000)), 1.0)
    with pytest.raises(OSError, match="No such file"):
        writer.add(1, scalars)
    writer.close()
    other = threading.Thread(target=fail)
    other.start()
    other.join()
    curves._silence_writers.cache_clear()
    assert [str(error) for error in told] == ["of another thread"]
