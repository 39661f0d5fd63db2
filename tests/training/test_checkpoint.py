"""A checkpoint says whose it is and that it is whole; one of another run, or damaged, fills nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from plkernel.training.checkpoint import load_checkpoint, save_checkpoint
from plkernel.training.folder import Progress

CONFIG = {"arm": "a", "seed": 0, "train": {"steps": 12, "learning_rate": 0.01}}
PROGRESS = Progress(6, 3.5, 2, 0.25, 100, 50, 7, 8)
Metadata = dict[str, str]
Tensors = dict[str, torch.Tensor]


class Parts(nn.Module):
    """A matrix, a vector and a buffer."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.matrix = nn.Parameter(torch.randn(5, 4))
        self.vector = nn.Parameter(torch.randn(4))
        self.register_buffer("scale", torch.rand(3))


def trained() -> tuple[Parts, torch.optim.AdamW]:
    model = Parts()
    optimizer = torch.optim.AdamW(model.parameters())
    (model.matrix @ model.vector).square().sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path / "checkpoint.safetensors", *trained(), PROGRESS, CONFIG)
    return tmp_path / "checkpoint.safetensors"


def rewrite(path: Path, change: Callable[[Tensors, Metadata], Any]) -> None:
    """The same file with other tensors or metadata."""
    with safe_open(path, framework="pt") as file:
        tensors, metadata = {name: file.get_tensor(name).clone() for name in file.keys()}, file.metadata()  # noqa: SIM118
    change(tensors, metadata)
    save_file(tensors, path, metadata)


def test_all_comes_back(path: Path) -> None:
    (expected, moments), model = trained(), Parts(1)
    optimizer = torch.optim.AdamW(model.parameters())
    assert load_checkpoint(path, model, optimizer, CONFIG) == PROGRESS
    assert all(torch.equal(value, expected.state_dict()[name]) for name, value in model.state_dict().items())
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        state = optimizer.state[one]
        assert state["step"] == PROGRESS.step
        assert all(torch.equal(state[name], moments.state[other][name]) for name in ("exp_avg", "exp_avg_sq"))


def refused(path: Path, message: str, **options: Any) -> None:
    model = Parts(1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        load_checkpoint(path, model, torch.optim.AdamW(model.parameters()), **options)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_every_flipped_bit_of_the_tensors_is_noticed(path: Path) -> None:
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    assert len(whole) - start == 4 * (3 * (20 + 4) + 3), "weights and two moments of 24 parameters, and a buffer"
    for bit in range(8 * start, 8 * len(whole), 7):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        refused(path, "its digest is not that of its content")


@pytest.mark.parametrize("name", ["model.matrix", "exp_avg.matrix", "model.scale"])
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.to(torch.bfloat16),
        lambda x: x.to(torch.int32),
        lambda x: x.flatten()[:1],
        lambda x: x.unsqueeze(0),
    ],
)
@pytest.mark.parametrize("earlier", [False, True])
def test_types_and_shapes_are_those_of_the_model(path: Path, name: str, change: Callable, earlier: bool) -> None:
    def other(tensors: Tensors, metadata: Metadata) -> None:
        tensors[name] = change(tensors[name]).contiguous()
        if earlier:
            as_of_an_earlier_version(tensors, metadata)

    rewrite(path, other)
    refused(path, rf"{name} is .* of shape .*, the model's float32 of shape" if earlier else "digest")


def as_of_an_earlier_version(_: Tensors, metadata: Metadata) -> None:
    del metadata["config"], metadata["digest"]
    progress = {k: v for k, v in json.loads(metadata["progress"]).items() if not k.endswith("_crc")}
    metadata["progress"] = json.dumps(progress)


def test_a_checkpoint_of_an_earlier_version_is_read(path: Path) -> None:
    rewrite(path, as_of_an_earlier_version)
    model, expected = Parts(1), trained()[0]
    progress = load_checkpoint(path, model, torch.optim.AdamW(model.parameters()), {"arm": "whatever"})
    assert (progress.step, progress.metrics_bytes, progress.metrics_crc) == (6, 100, None)
    assert torch.equal(model.matrix, expected.matrix)


def test_a_checkpoint_of_another_run_is_refused(path: Path) -> None:
    refused(path, r"belongs to another run \(arm was 'a', is now 'b'\)", config={**CONFIG, "arm": "b"})
    slower = {**CONFIG, "train": {"steps": 12, "learning_rate": 0.02}}
    refused(path, r"belongs to another run \(train.learning_rate was 0.01, is now 0.02\)", config=slower)


def test_an_option_that_came_later_changes_no_identity(path: Path) -> None:
    """Written before train.dropout existed, opened by a version that writes it down."""
    later = {**CONFIG, "train": {**CONFIG["train"], "dropout": 0.0}}
    assert load_checkpoint(path, Parts(), config=later) == PROGRESS
    refused(path, r"train.dropout was 0.0, is now 0.1", config={**CONFIG, "train": {**later["train"], "dropout": 0.1}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors, metadata: tensors.pop("exp_avg.vector"), "digest"),
        (lambda tensors, metadata: metadata.pop("digest"), "its metadata are config, progress"),
        (lambda tensors, metadata: metadata.clear(), "its metadata are missing: not written by plkernel"),
        (lambda tensors, metadata: metadata.update(progress="{}"), "digest"),
        (lambda tensors, metadata: metadata.update(progress="null"), "damaged or of another model"),
        (lambda tensors, metadata: metadata.update(progress="[" * 10_000), "progress is nested too deeply"),
    ],
)
def test_other_damage_is_named(path: Path, change: Callable, message: str) -> None:
    rewrite(path, change)
    refused(path, f"checkpoint .*checkpoint.safetensors .*{message}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", -1),
        ("step", 2**70),
        ("step", "6"),
        ("step", True),
        ("step", None),
        ("loss_sum", float("nan")),
        ("loss_count", 7),
        ("metrics_bytes", 1.5),
    ],
)
def test_progress_that_no_run_has_written_is_refused(path: Path, name: str, value: Any) -> None:
    def change(tensors: Tensors, metadata: Metadata) -> None:
        as_of_an_earlier_version(tensors, metadata)
        metadata["progress"] = json.dumps({**json.loads(metadata["progress"]), name: value})

    rewrite(path, change)
    refused(path, f"progress.{name} is ")
