"""A checkpoint names its run and notices damage; one of another run, or damaged, fills nothing."""

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


def rewrite(path: Path, change: Callable[[dict[str, torch.Tensor], dict[str, str]], Any]) -> None:
    """Write the same file with other tensors or metadata."""
    with safe_open(path, framework="pt") as file:
        tensors, metadata = {name: file.get_tensor(name).clone() for name in file.keys()}, file.metadata()  # noqa: SIM118
    change(tensors, metadata)
    save_file(tensors, path, metadata)


def earlier(metadata: dict[str, str], **changes: Any) -> None:
    """Make metadata those of a version that wrote neither digest nor configuration."""
    metadata.pop("config")
    metadata.pop("digest")
    progress = {k: v for k, v in json.loads(metadata["progress"]).items() if not k.endswith("_crc")}
    metadata["progress"] = json.dumps(progress | changes)


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


def test_types_and_shapes_are_those_of_the_model(path: Path) -> None:
    whole = path.read_bytes()
    for name in ("model.matrix", "exp_avg.matrix", "model.scale"):
        for convert in (lambda x: x.to(torch.bfloat16), lambda x: x.flatten()[:1], lambda x: x.unsqueeze(0)):
            for version in (lambda _: None, earlier):
                path.write_bytes(whole)
                rewrite(path, lambda t, m, n=name, c=convert, v=version: (t.update({n: c(t[n]).contiguous()}), v(m)))
                shape = rf"{name} is .* of shape .*, the model's float32 of shape"
                refused(path, shape if version is earlier else "digest")


def test_a_checkpoint_of_an_earlier_version_is_read(path: Path) -> None:
    rewrite(path, lambda tensors, metadata: earlier(metadata))
    model, expected = Parts(1), trained()[0]
    progress = load_checkpoint(path, model, torch.optim.AdamW(model.parameters()), {"arm": "whatever"})
    assert (progress.step, progress.metrics_bytes, progress.metrics_crc) == (6, 100, None)
    assert torch.equal(model.matrix, expected.matrix)


def test_a_checkpoint_belongs_to_one_run(path: Path) -> None:
    """An option that came later, at its default, changes no identity."""
    later = {**CONFIG, "train": {**CONFIG["train"], "dropout": 0.0}}
    assert load_checkpoint(path, Parts(), config=later) == PROGRESS
    other = r"belongs to another run \({}\)"
    refused(path, other.format("arm was 'a', is now 'b'"), config={**CONFIG, "arm": "b"})
    for name, old, new in (("learning_rate", 0.01, 0.02), ("dropout", 0.0, 0.1)):
        train = {**later["train"], name: new}
        refused(path, other.format(f"train.{name} was {old}, is now {new}"), config={**CONFIG, "train": train})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors, metadata: tensors.pop("exp_avg.vector"), "digest"),
        (lambda tensors, metadata: (tensors.pop("exp_avg.vector"), earlier(metadata)), "no tensor exp_avg.vector"),
        (lambda tensors, metadata: (tensors.update(x=torch.ones(1)), earlier(metadata)), "unknown tensor x"),
        (lambda tensors, metadata: metadata.pop("digest"), "its metadata are config, progress"),
        (lambda tensors, metadata: metadata.clear(), "its metadata are missing: not written by plkernel"),
        (lambda tensors, metadata: metadata.update(progress="{}"), "digest"),
        (lambda tensors, metadata: (earlier(metadata), metadata.update(progress="null")), "damaged or of another"),
        (lambda tensors, metadata: (earlier(metadata), metadata.update(progress="[" * 10_000)), "recursion limit"),
        *(
            (lambda tensors, metadata, n=name, v=value: earlier(metadata, **{n: v}), f"progress.{name} is ")
            for name, value in [
                ("step", -1),
                ("step", 2**63),
                ("step", "6"),
                ("step", True),
                ("step", None),
                ("loss_sum", float("nan")),
                ("loss_count", 7),
                ("metrics_bytes", 1.5),
            ]
        ),
    ],
)
def test_other_damage_is_named(path: Path, change: Callable, message: str) -> None:
    rewrite(path, change)
    refused(path, f"checkpoint .*checkpoint.safetensors .*{message}")
