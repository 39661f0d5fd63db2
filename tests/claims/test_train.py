"""One run: a complete folder, resumable to the byte, refused where it would mix two experiments."""

import json
import math
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from plkernel.commands.train import command
from plkernel.common.files import load_json, read_lines
from plkernel.config.reading import load_spec
from plkernel.data.windows import check_length, fixed_windows, training_windows
from plkernel.training.checkpoint import load_checkpoint
from plkernel.training.loop import Training, prepare, run_training
from plkernel.training.objective import bits_per_byte

SpecWriter = Callable[..., Path]
RUN = "uniform/seed-0"


def train(path: Path, out: Path, arm: str = "uniform", seed: int = 0) -> dict[str, Any]:
    return run_training(prepare(load_spec(path), arm, seed, out), progress_bar=False)


def scalars(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder)).Reload()


def test_a_run_leaves_a_complete_folder(tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, result, identity, curves and the optimiser; a finished run is not trained again."""
    result, folder = train(tiny_spec(), tmp_path), tmp_path / RUN
    text = (folder / "metrics.jsonl").read_text()
    rows = [
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON")) for line in text.splitlines()
    ]
    assert [row["step"] for row in rows] == [0, 4, 8, 12]
    assert rows[-1]["bytes"] == 12 * 4 * 32
    assert result["final_val_bpb"] == rows[-1]["val_bpb"] < rows[0]["val_bpb"]
    assert result["best_val_bpb"] == min(row["val_bpb"] for row in rows)
    assert rows[0]["val_bpb"] == pytest.approx(8.0, abs=0.2), "256 equally likely bytes are 8 bits"
    assert "seconds" not in text
    assert load_json(folder / "environment.json")["versions"]["torch"] == version("torch")
    assert load_json(folder / "config.json")["corpus"]["sha256"]
    events = scalars(folder)
    curve = [(event.step, event.value) for event in events.Scalars("val/bpb")]
    assert curve == [(row["step"], pytest.approx(row["val_bpb"])) for row in rows[1:]]
    assert [event.step for event in events.Scalars("versus_bytes/val_bpb")] == [row["bytes"] for row in rows[1:]]
    assert {"train/bpb", "versus_seconds/val_bpb"} <= set(events.Tags()["scalars"])
    assert "weights/log2_half_life_block_1" in events.Tags()["histograms"]
    training = Training(prepare(load_spec(tiny_spec()), "uniform", 0, tmp_path))
    assert load_checkpoint(folder / "checkpoint.safetensors", training.model, training.optimizer).step == 12
    assert all(training.optimizer.state[p]["exp_avg_sq"].abs().sum() > 0 for p in training.model.parameters())
    monkeypatch.setattr(Training, "step", None)
    assert train(tiny_spec(), tmp_path) == result


def test_an_interrupted_run_goes_on_to_the_same_bytes(
    tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process killed after the row of step 8 and before its checkpoint, at any point, leaves nothing behind."""
    path = tiny_spec()
    whole = train(path, tmp_path / "whole")

    def killed(self: Training, step: int, original: Callable[[Training], None]) -> None:
        if self.progress.step == step:
            raise SystemExit
        original(self)

    for name, step in (("step", 6), ("save", 8)):
        original = getattr(Training, name)
        with monkeypatch.context() as patch:
            patch.setattr(Training, name, lambda self, s=step, o=original: killed(self, s, o))
            with pytest.raises(SystemExit):
                train(path, tmp_path / "parts")
    files = [tmp_path / part / RUN / "metrics.jsonl" for part in ("whole", "parts")]
    assert files[1].read_bytes().count(b"\n") == 3, "the row of step 8 was written without its checkpoint"
    assert {**train(path, tmp_path / "parts"), "seconds": 0} == {**whole, "seconds": 0}
    assert files[0].read_bytes() == files[1].read_bytes()


def test_windows_of_training_depend_on_seed_and_step_and_reach_both_ends() -> None:
    data = np.arange(10_000, dtype=np.uint32).astype(np.uint8)
    first = training_windows(data, 16, 4, seed=3, step=7)
    assert torch.equal(first, training_windows(data, 16, 4, seed=3, step=7))
    assert not torch.equal(first, training_windows(data, 16, 4, seed=4, step=7))
    assert not torch.equal(first, training_windows(data, 16, 4, seed=3, step=8))
    starts = {int(w[0]) for step in range(200) for w in training_windows(data[:20], 16, 4, 0, step)}
    assert starts == {0, 1, 2, 3}


def test_fixed_windows_are_disjoint_and_one_is_enough() -> None:
    data = np.arange(200, dtype=np.uint8)
    windows = fixed_windows(data, 9, 100)
    assert windows.shape == (20, 10)
    assert len(set(windows.flatten().tolist())) == 200
    one = data[:17]
    check_length(one, 16, "text")
    for windows in (training_windows(one, 16, 1, 0, 0), fixed_windows(one, 16, 1)):
        assert windows.tolist() == [one.tolist()]
    with pytest.raises(ValueError, match=r"text has 16 bytes, fewer than one window of context \+ 1 = 17"):
        check_length(data[:16], 16, "text")


def test_bits_per_byte_of_a_known_distribution() -> None:
    """A model that gives every byte probability 1/2 for 'a' scores one bit on a text of 'a'."""

    class Half(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            logits = torch.full((*inputs.shape, 256), -math.inf)
            logits[..., 97] = logits[..., 98] = 0.0
            return logits

    assert bits_per_byte(Half(), torch.full((5, 8), 97), 2, torch.device("cpu")) == pytest.approx(1.0)


def test_another_spec_in_the_same_folder_is_refused(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    train(tiny_spec(), tmp_path)
    before = (tmp_path / RUN / "config.json").read_bytes()
    with pytest.raises(ValueError, match=r"made by another spec \(train.steps was 12, is now 16\)"):
        train(tiny_spec(steps=16), tmp_path)
    assert (tmp_path / RUN / "config.json").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "run", "message"),
    [
        ({"context": 100_000}, {}, "fewer than one window"),
        ({"device": "cuda"}, {}, "device 'cuda' is not available here"),
        ({"backend": "gpus"}, {}, "backend 'gpus' does not work on cpu; here: reference, cpu"),
        ({"corpus": "missing.txt"}, {}, "missing.txt"),
        ({"together": 2}, {}, "together"),
        ({}, {"arm": "powerlaw"}, "did you mean 'power-law'"),
        ({}, {"seed": -1}, "seed must lie between 0 and .*, got -1"),
        ({}, {"seed": 2**63}, "seed must lie between 0 and .*, got"),
    ],
)
def test_bad_input_writes_nothing(
    tiny_spec: SpecWriter, tmp_path: Path, options: dict[str, Any], run: dict[str, Any], message: str
) -> None:
    if "device" in options and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises((ValueError, OSError), match=message):
        train(tiny_spec(**options), tmp_path / "out", **run)
    assert not (tmp_path / "out").exists()


def test_a_seed_that_the_spec_does_not_list_is_refused(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="seed 99 is not one of the spec's seeds, 0, 1: choose one of these"):
        command(load_spec(tiny_spec()), seed=99, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_that_diverges_is_recorded_as_diverged(
    tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Training.step

    def poisoned(self: Training) -> None:
        if self.progress.step == 5:
            self.model.head.weight.data.fill_(math.nan)
        step(self)

    monkeypatch.setattr(Training, "step", poisoned)
    with pytest.raises(FloatingPointError, match=r"diverged: nan at step 6; lower train\.learning_rate"):
        train(tiny_spec(), tmp_path)
    result = load_json(tmp_path / RUN / "result.json")
    assert result["status"] == "diverged"
    assert "FloatingPointError" in result["error"]


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
    label = "bpb_not_causal_not_a_likelihood"
    tags = scalars(tmp_path / RUN).Tags()["scalars"]
    assert {tag for tag in tags if "bpb" in tag and not tag.startswith("when_ended/")} == {
        f"when_started/val_{label}",
        *(f"{split}/{label}" for split in ("train", "val")),
        *(f"versus_{axis}/{split}_{label}" for split in ("train", "val") for axis in ("bytes", "seconds")),
    }


def test_a_folder_in_use_is_refused(tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plkernel.training.folder.LOCK_PATIENCE", 0.1)
    task = prepare(load_spec(tiny_spec()), "uniform", 0, tmp_path)
    with task.folder.lock(), pytest.raises(ValueError, match="is in use by another process"):
        run_training(task, progress_bar=False)
    assert run_training(task, progress_bar=False)["status"] == "finished"


def test_a_full_disk_is_an_oserror(tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors import SafetensorError

    def full(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr("plkernel.training.checkpoint.save_file", full)
    with pytest.raises(OSError, match=r"checkpoint .* cannot be written: .*No space left"):
        train(tiny_spec(), tmp_path)


def test_minute_budgets_end(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    result = train(tiny_spec(steps=None, minutes=0.01), tmp_path)
    assert result["steps"] == read_lines(tmp_path / RUN / "metrics.jsonl")[-1]["step"] > 0
    assert result["seconds"] == pytest.approx(0.6, abs=0.5)
