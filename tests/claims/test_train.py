"""One run: resumable to the byte, reproducible, refused where it would mix two experiments."""

import json
import math
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from plkernel.commands.train import command
from plkernel.common.files import load_json, read_lines
from plkernel.config.reading import load_spec
from plkernel.config.train import TrainSpec
from plkernel.data.windows import check_length, fixed_windows, training_windows
from plkernel.training.checkpoint import load_checkpoint
from plkernel.training.loop import Training, prepare, run_training
from plkernel.training.objective import bits_per_byte, build_optimizer, learning_rate

SpecWriter = Callable[..., Path]


def train(path: Path, out: Path, arm: str = "uniform", seed: int = 0) -> dict:
    return run_training(prepare(load_spec(path), arm, seed, out), progress_bar=False)


def test_a_run_leaves_a_complete_folder(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    result = train(tiny_spec(), tmp_path / "out")
    folder = tmp_path / "out" / "uniform" / "seed-0"
    rows = read_lines(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 4, 8, 12]
    assert rows[-1]["bytes"] == 12 * 4 * 32
    assert result["final_val_bpb"] == rows[-1]["val_bpb"] < rows[0]["val_bpb"]
    assert result["best_val_bpb"] == min(row["val_bpb"] for row in rows)
    assert rows[0]["val_bpb"] == pytest.approx(8.0, abs=0.2), "256 equally likely bytes are 8 bits"
    assert load_json(folder / "environment.json")["versions"]["torch"] == version("torch")
    assert list(folder.glob("events.out.tfevents.*"))
    # The widths, the corpus and the seed are the identity of a run; seconds are not.
    assert load_json(folder / "config.json")["corpus"]["sha256"]
    assert "seconds" not in (folder / "metrics.jsonl").read_text()


def test_tensorboard_holds_the_curves(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tiny_spec(), tmp_path / "out")
    folder = tmp_path / "out" / "uniform" / "seed-0"
    events = EventAccumulator(str(folder)).Reload()
    rows = read_lines(folder / "metrics.jsonl")
    curve = events.Scalars("val/bpb")
    assert [(e.step, e.value) for e in curve] == [(r["step"], pytest.approx(r["val_bpb"])) for r in rows[1:]]
    assert [e.step for e in events.Scalars("versus_bytes/val_bpb")] == [r["bytes"] for r in rows[1:]]
    assert {"train/bpb", "versus_seconds/val_bpb"} <= set(events.Tags()["scalars"])
    assert "weights/log2_half_life_block_1" in events.Tags()["histograms"]


def test_an_interrupted_run_goes_on_to_the_same_bytes(
    tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process killed after the row of step 8 and before its checkpoint, at any point, leaves nothing behind."""
    path = tiny_spec()
    train(path, tmp_path / "whole")
    step, save = Training.step, Training.save

    def killed_at_step_six(self: Training) -> None:
        if self.progress.step == 6:
            raise SystemExit
        step(self)

    def killed_before_the_checkpoint_of_step_eight(self: Training) -> None:
        if self.progress.step == 8:
            raise SystemExit
        save(self)

    for name, replacement in (("step", killed_at_step_six), ("save", killed_before_the_checkpoint_of_step_eight)):
        monkeypatch.setattr(Training, name, replacement)
        with pytest.raises(SystemExit):
            train(path, tmp_path / "parts")
        monkeypatch.undo()
        monkeypatch.setenv("PLKERNEL_CACHE", str(tmp_path / "cache"))
    partial = (tmp_path / "parts/uniform/seed-0/metrics.jsonl").read_bytes()
    assert partial.count(b"\n") == 3, "the row of step 8 was written without its checkpoint"
    result = train(path, tmp_path / "parts")
    whole = load_json(tmp_path / "whole/uniform/seed-0/result.json")
    assert {k: v for k, v in result.items() if k != "seconds"} == {k: v for k, v in whole.items() if k != "seconds"}
    files = [tmp_path / part / "uniform/seed-0/metrics.jsonl" for part in ("whole", "parts")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_finished_run_is_not_trained_again(
    tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = train(tiny_spec(), tmp_path / "out")
    monkeypatch.setattr(Training, "step", None)
    assert train(tiny_spec(), tmp_path / "out") == first


def test_arms_of_one_seed_read_the_same_bytes(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    """At step 0 both arms have nearly the same loss, and another seed reads other windows."""
    data = np.arange(10_000, dtype=np.uint32).astype(np.uint8)
    first = training_windows(data, 16, 4, seed=3, step=7)
    assert torch.equal(first, training_windows(data, 16, 4, seed=3, step=7))
    assert not torch.equal(first, training_windows(data, 16, 4, seed=4, step=7))
    assert not torch.equal(first, training_windows(data, 16, 4, seed=3, step=8))


def test_training_windows_reach_both_ends_and_stay_inside() -> None:
    data = np.arange(20, dtype=np.uint8)
    starts = {int(w[0]) for step in range(200) for w in training_windows(data, 16, 4, 0, step)}
    assert starts == {0, 1, 2, 3}


def test_one_window_is_enough() -> None:
    data = np.arange(17, dtype=np.uint8)
    check_length(data, 16, "text")
    for windows in (training_windows(data, 16, 1, 0, 0), fixed_windows(data, 16, 1)):
        assert windows.tolist() == [data.tolist()]
    with pytest.raises(ValueError, match=r"text has 16 bytes, fewer than one window of context \+ 1 = 17"):
        check_length(data[:16], 16, "text")


def test_fixed_windows_are_disjoint() -> None:
    data = np.arange(200, dtype=np.uint8)
    windows = fixed_windows(data, 9, 100)
    assert windows.shape == (20, 10)
    assert len(set(windows.flatten().tolist())) == 200


def test_bits_per_byte_of_a_known_distribution() -> None:
    """A model that gives every byte probability 1/2 for 'a' scores one bit on a text of 'a'."""

    class Half(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            logits = torch.full((*inputs.shape, 256), -math.inf)
            logits[..., 97] = logits[..., 98] = 0.0
            return logits

    windows = torch.full((5, 8), 97)
    assert bits_per_byte(Half(), windows, 2, torch.device("cpu")) == pytest.approx(1.0)


def test_another_spec_in_the_same_folder_is_refused(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    train(tiny_spec(), tmp_path / "out")
    before = (tmp_path / "out/uniform/seed-0/config.json").read_bytes()
    with pytest.raises(ValueError, match=r"made by another spec \(train.steps was 12, is now 16\)"):
        train(tiny_spec(steps=16), tmp_path / "out")
    assert (tmp_path / "out/uniform/seed-0/config.json").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 100_000}, "fewer than one window"),
        ({"device": "cuda"}, "device 'cuda' is not available here"),
        ({"backend": "gpus"}, "backend 'gpus' does not work on cpu; here: reference, cpu"),
        ({"corpus": "missing.txt"}, "missing.txt"),
    ],
)
def test_bad_input_writes_nothing(tiny_spec: SpecWriter, tmp_path: Path, options: dict, message: str) -> None:
    if "device" in options and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises((ValueError, OSError), match=message):
        train(tiny_spec(**options), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_unknown_arm(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'power-law'"):
        train(tiny_spec(), tmp_path / "out", arm="powerlaw")


def test_a_damaged_checkpoint_is_named(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    path = tiny_spec()
    train(path, tmp_path / "out")
    folder = tmp_path / "out/uniform/seed-0"
    (folder / "result.json").unlink()
    checkpoint = folder / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"checkpoint .*checkpoint.safetensors is damaged"):
        train(path, tmp_path / "out")


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
        train(tiny_spec(), tmp_path / "out")
    result = load_json(tmp_path / "out/uniform/seed-0/result.json")
    assert result["status"] == "diverged"
    assert "FloatingPointError" in result["error"]


def test_every_output_of_published_patching_is_labelled(
    tiny_spec: SpecWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = tiny_spec()
    path.write_text(path.read_text() + '[model.patching]\nsize = 2\nmode = "published"\n')
    command(load_spec(path), out=tmp_path / "out")
    output = capsys.readouterr()
    bpb_lines = [line for line in (output.out + output.err).splitlines() if "bits per byte" in line]
    assert len(bpb_lines) == 4
    folder = tmp_path / "out" / "uniform" / "seed-0"
    rows = (folder / "metrics.jsonl").read_text().splitlines()
    assert all("not causal, not a likelihood" in line for line in bpb_lines + rows)
    tags = EventAccumulator(str(folder)).Reload().Tags()["scalars"]
    label = "bpb_not_causal_not_a_likelihood"
    assert {tag for tag in tags if "bpb" in tag and not tag.startswith("when_ended/")} == {
        f"when_started/val_{label}",
        *(f"{split}/{label}" for split in ("train", "val")),
        *(f"versus_{axis}/{split}_{label}" for split in ("train", "val") for axis in ("bytes", "seconds")),
    }


def test_a_folder_in_use_is_refused(tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plkernel.training.folder.LOCK_PATIENCE", 0.1)
    task = prepare(load_spec(tiny_spec()), "uniform", 0, tmp_path / "out")
    with task.folder.lock(), pytest.raises(ValueError, match="is in use by another process"):
        run_training(task, progress_bar=False)
    assert run_training(task, progress_bar=False)["status"] == "finished"


def test_seeds_out_of_range_are_refused(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    for seed in (-1, 2**63):
        with pytest.raises(ValueError, match=f"seed must lie between 0 and .*, got {seed}"):
            train(tiny_spec(), tmp_path / "out", seed=seed)
    assert not (tmp_path / "out").exists()


def test_a_seed_that_the_spec_does_not_list_is_refused(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="seed 99 is not one of the spec's seeds, 0, 1: choose one of these"):
        command(load_spec(tiny_spec()), seed=99, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_an_oserror(tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors import SafetensorError

    def full(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr("plkernel.training.checkpoint.save_file", full)
    with pytest.raises(OSError, match=r"checkpoint .* cannot be written: .*No space left"):
        train(tiny_spec(), tmp_path / "out")


def test_minute_budgets_end(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    result = train(tiny_spec(steps=None, minutes=0.01), tmp_path / "out")
    rows = read_lines(tmp_path / "out/uniform/seed-0/metrics.jsonl")
    assert result["steps"] == rows[-1]["step"] > 0
    assert result["seconds"] == pytest.approx(0.6, abs=0.5)


def test_weight_decay_acts_on_matrices_only(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    task = prepare(load_spec(tiny_spec(weight_decay=0.5)), "uniform", 0, tmp_path / "out")
    model = Training(task).model
    groups = build_optimizer(model, task.train).param_groups
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    for name, parameter in model.named_parameters():
        assert (id(parameter) in decayed) == (parameter.ndim == 2), name


def test_learning_rate_schedule() -> None:
    spec = TrainSpec(steps=100, learning_rate=1.0, warmup=9, final_fraction=0.1)
    assert [learning_rate(spec, step, 0.0) for step in (0, 4, 9, 50)] == pytest.approx([0.1, 0.5, 1.0, 1.0])
    assert learning_rate(spec, 50, 0.5) == pytest.approx(0.55)
    assert learning_rate(spec, 99, 1.0) == pytest.approx(0.1)
    constant = spec.model_copy(update={"schedule": "constant"})
    assert learning_rate(constant, 99, 1.0) == 1.0


def test_checkpoints_hold_the_optimiser(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    path = tiny_spec()
    train(path, tmp_path / "out")
    task = prepare(load_spec(path), "uniform", 0, tmp_path / "out")
    training = Training(task)
    progress = load_checkpoint(task.folder.checkpoint, training.model, training.optimizer)
    assert progress.step == 12
    moments = [training.optimizer.state[p]["exp_avg_sq"].abs().sum() for p in training.model.parameters()]
    assert all(moment > 0 for moment in moments)


def test_metrics_are_plain_json(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    train(tiny_spec(), tmp_path / "out")
    for line in (tmp_path / "out/uniform/seed-0/metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
