"""A checkpoint names its run and notices damage; one of another run, or damaged, fills nothing."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from plkernel.decays.tensors import open_checkpoint
from plkernel.models.rwkv7 import RWKV7, RWKV7Config
from plkernel.models.state import State
from plkernel.training.checkpoint import (
    _sized,
    apart,
    check_free,
    check_own,
    digest_of,
    first_nan,
    foreign_code,
    load_checkpoint,
    load_state,
    open_model,
    save_checkpoint,
    save_model,
)
from plkernel.training.folder import RunProgress

CONFIG = {"arm": "a", "seed": 0, "train": {"steps": 12, "learning_rate": 0.01}}
PROGRESS = RunProgress(6, 3.5, 2, 0.25, 100, 7)


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


def rewrite(
    path: Path, change: Callable[[dict[str, Tensor], dict[str, str]], Any], sealed: bool = True
) -> None:
    """Write the same file with other tensors or metadata; sealed: with their digest."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in list(file.keys())}
        metadata = file.metadata()
    change(tensors, metadata)
    save_file(
        tensors, path, metadata | ({"digest": digest_of(tensors, metadata)} if sealed else {})
    )


def test_all_comes_back(path: Path) -> None:
    expected, moments = trained()
    model = Parts(1)
    optimizer = torch.optim.AdamW(model.parameters())
    assert load_checkpoint(path, model, optimizer, CONFIG) == PROGRESS
    assert all(
        torch.equal(value, expected.state_dict()[name])
        for name, value in model.state_dict().items()
    )
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        state = optimizer.state[one]
        assert state["step"] == PROGRESS.step
        assert all(
            torch.equal(state[name], moments.state[other][name])
            for name in ("exp_avg", "exp_avg_sq")
        )


def refused(path: Path, message: str, **options: Any) -> None:
    model = Parts(1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        load_checkpoint(path, model, torch.optim.AdamW(model.parameters()), **options)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_checkpoint_that_cannot_be_written_is_named_and_the_old_one_stays(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk, for which the library has an error of its own kind."""
    before = path.read_bytes()

    def fail(tensors: Any, place: Path, metadata: Any) -> None:
        Path(place).write_bytes(b"half")
        raise SafetensorError("Error while serializing: No space left on device")

    monkeypatch.setattr("plkernel.training.checkpoint.save_file", fail)
    with pytest.raises(OSError, match=rf"^checkpoint {path} cannot be written: .*No space left"):
        save_checkpoint(path, *trained(), PROGRESS, CONFIG)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_every_flipped_bit_of_the_tensors_is_noticed(path: Path) -> None:
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    assert len(whole) - start == 4 * (3 * (20 + 4) + 3), (
        "weights and two moments of 24 parameters, and a buffer"
    )
    for bit in range(8 * start, 8 * len(whole), 41):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        refused(path, "the digest is not that of the content")


def test_a_frozen_parameter_has_no_moments_and_a_mean_of_weights_comes_back(tmp_path: Path) -> None:
    """What a run goes on from, where it trains a part of a model and takes a mean."""

    def part(seed: int) -> tuple[Parts, torch.optim.AdamW]:
        model = Parts(seed)
        model.vector.requires_grad_(False)
        return model, torch.optim.AdamW([model.matrix])

    model, optimizer = part(0)
    (model.matrix @ model.vector).square().sum().backward()
    optimizer.step()
    optimizer.state[model.matrix]["average"] = 2 * model.matrix.detach()
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, model, optimizer, PROGRESS, CONFIG)
    other, other_optimizer = part(1)
    assert load_checkpoint(path, other, other_optimizer, CONFIG) == PROGRESS
    assert torch.equal(other.vector, model.vector)
    found = other_optimizer.state[other.matrix]
    for name in ("exp_avg", "exp_avg_sq", "average"):
        assert torch.equal(found[name], optimizer.state[model.matrix][name])


def test_a_file_that_is_cut_off_anywhere_is_noticed(path: Path) -> None:
    whole = path.read_bytes()
    for size in (*range(0, len(whole), 37), len(whole) - 1):
        path.write_bytes(whole[:size])
        refused(path, r"checkpoint .* must be whole and of this model, got another \(")


def test_types_and_shapes_are_those_of_the_model(path: Path) -> None:
    whole = path.read_bytes()
    for name in ("model.matrix", "exp_avg.matrix", "model.scale"):
        for convert in (
            lambda x: x.to(torch.bfloat16),
            lambda x: x.flatten()[:1],
            lambda x: x.unsqueeze(0),
        ):
            path.write_bytes(whole)
            rewrite(path, lambda t, _, n=name, c=convert: t.update({n: c(t[n]).contiguous()}))
            refused(path, rf"{name} is .* of shape .*, not float32 of shape")


def test_a_checkpoint_belongs_to_one_run(path: Path) -> None:
    """An option that came later, at its default, changes no identity."""
    later = {**CONFIG, "train": {**CONFIG["train"], "dropout": 0.0}}
    assert load_checkpoint(path, Parts(), config=later) == PROGRESS
    other = r"must be of this run, got another: {}"
    refused(path, other.format("arm was 'a', is now 'b'"), config={**CONFIG, "arm": "b"})
    for name, old, new in (("learning_rate", 0.01, 0.02), ("dropout", 0.0, 0.1)):
        train = {**later["train"], name: new}
        refused(
            path,
            other.format(f"train.{name} was {old}, is now {new}"),
            config={**CONFIG, "train": train},
        )


@pytest.mark.parametrize(
    ("change", "sealed", "message"),
    [
        (lambda tensors, _: tensors.pop("exp_avg.vector"), False, "digest"),
        (
            lambda tensors, _: tensors.pop("exp_avg.vector"),
            True,
            "tensor exp_avg.vector is missing",
        ),
        (lambda tensors, _: tensors.update(x=torch.ones(1)), True, "tensor x is unknown"),
        (lambda _, metadata: metadata.pop("digest"), False, "there is no digest"),
        (lambda _, metadata: metadata.clear(), False, "there is no digest, as other software"),
        (lambda _, metadata: metadata.update(progress="{}"), False, "digest"),
        (
            lambda _, metadata: metadata.update(progress="null"),
            True,
            "whole and of this model",
        ),
        (
            lambda _, metadata: metadata.update(progress='{"steps": 6}'),
            True,
            "whole and of this model",
        ),
        (
            lambda _, metadata: metadata.update(progress='{"step": "abc"}'),
            True,
            "whole and of this model, got another .step must be a whole number",
        ),
        (
            lambda _, metadata: metadata.update(progress='{"step": -1}'),
            True,
            "step must be a finite number from 0, got -1",
        ),
        (
            lambda _, metadata: metadata.update(progress='{"step": 6, "seconds": NaN}'),
            True,
            "seconds must be a finite number from 0, got nan",
        ),
        (
            lambda _, metadata: metadata.update(progress='{"step": 6, "loss_count": 7}'),
            True,
            "loss_count must be at most the step, 6, got 7",
        ),
        (
            lambda _, metadata: metadata.update(config='{"seed": NaN}'),
            True,
            "numbers of its config must not be NaN",
        ),
        (lambda _, metadata: metadata.update(config="{"), True, "whole and of this model"),
    ],
)
def test_other_damage_is_named(path: Path, change: Callable, sealed: bool, message: str) -> None:
    rewrite(path, change, sealed)
    refused(path, f"checkpoint .*checkpoint.safetensors .*{message}")


def test_another_file_may_be_meant_only_where_a_checkpoint_is_looked_at(path: Path) -> None:
    """A run that goes on has a checkpoint of its own, and no other to name."""
    rewrite(path, lambda _, metadata: metadata.pop("digest"), sealed=False)
    with pytest.raises(ValueError, match=r"; name the folder of a run, or a checkpoint in one$"):
        load_checkpoint(path, Parts())
    refused(path, r"got another \(there is no digest, as other software .*\)$")


@pytest.mark.parametrize("position", [torch.tensor(-1), torch.tensor(1.5), torch.ones(2)])
def test_a_state_comes_with_a_position_that_a_run_reaches(position: Tensor, path: Path) -> None:
    state = State("x", {"s": torch.zeros(2)}, 5)
    save_checkpoint(path, *trained(), PROGRESS, CONFIG, state)
    assert load_state(path, state).position == 5
    rewrite(path, lambda tensors, _: tensors.update({"state.position": position}))
    with pytest.raises(ValueError, match="the position of its state, a whole number from 0, got"):
        load_state(path, state)


@pytest.mark.parametrize("in_use", [False, True])
def test_a_model_is_built_without_a_random_number_of_a_gpu(
    in_use: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA has generators once it is in use, and is not put to use for them."""
    of_gpu = {0: 3, 1: 4}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: in_use)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(of_gpu))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: of_gpu[device])
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, device: of_gpu.update({device: state})
    )
    with apart():
        of_gpu.update({0: 7, 1: 8})
    assert of_gpu == ({0: 3, 1: 4} if in_use else {0: 7, 1: 8})


@pytest.mark.parametrize("name", ["model.matrix", "exp_avg.vector", "exp_avg_sq.matrix"])
def test_nothing_goes_on_from_nan(name: str, path: Path) -> None:
    """Of a right digest too; without an optimizer it is read, to be looked at."""

    def spoil(tensors: dict[str, Tensor], _: dict[str, str]) -> None:
        tensors[name].view(-1)[1] = torch.nan

    rewrite(path, spoil)
    count = 4 if name.endswith("vector") else 20
    refused(path, rf"got NaN in {name} \(1 of {count}\)")
    assert load_checkpoint(path, Parts()) == PROGRESS


class Buffers(Parts):
    """Buffers that hold NaN, share memory, and grow with the windows that were read."""

    def __init__(self, read: int = 0) -> None:
        super().__init__(read)
        self.register_buffer("mask", torch.tensor([torch.nan, float(read)]))
        self.register_buffer("ones", torch.full((1,), float(read)).expand(4))
        self.register_buffer("cache", torch.ones(read), persistent=False)


def test_buffers_come_back_as_those_of_a_state_dict_do(tmp_path: Path) -> None:
    expected = Buffers(3)
    path = tmp_path / "checkpoint.safetensors"
    optimizer = torch.optim.AdamW(expected.parameters())
    save_checkpoint(path, expected, optimizer, RunProgress(), CONFIG)
    model = Buffers()
    load_checkpoint(path, model, torch.optim.AdamW(model.parameters()), CONFIG)
    for name, values in expected.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], values, equal_nan=True)
    assert model.cache.shape == (0,)


class Shared(Parts):
    """A buffer of two names, of which the first is made anew and the second is kept."""

    def __init__(self, first: float) -> None:
        super().__init__(1)
        values = torch.full((2,), first)
        self.register_buffer("anew", values, persistent=False)
        self.register_buffer("kept", values)


def test_a_buffer_comes_back_if_one_of_its_names_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, Shared(3.0), None, PROGRESS, CONFIG)
    model = Shared(0.0)
    load_checkpoint(path, model, config=CONFIG)
    assert model.kept.tolist() == [3.0, 3.0]
    assert model.anew is model.kept


@pytest.mark.parametrize("size", [0, 3])
def test_buffers_that_are_made_anew_may_be_in_an_earlier_checkpoint(
    size: int, tmp_path: Path
) -> None:
    expected = Buffers(3)
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, expected, None, PROGRESS, CONFIG)
    rewrite(path, lambda tensors, _: tensors.update({"model.cache": torch.full((3,), 7.0)}))
    model = Buffers(size)
    assert load_checkpoint(path, model, config=CONFIG) == PROGRESS
    assert model.cache.tolist() == [7.0] * size


def test_a_checkpoint_that_may_not_be_read_is_not_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, Parts(), None, PROGRESS, CONFIG)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PermissionError):
        load_checkpoint(path, Parts(), config=CONFIG)
    with pytest.raises(PermissionError):
        load_state(path, State("x", {}, 0))
    with pytest.raises(PermissionError):
        open_checkpoint(str(path))


def test_the_first_tensor_with_nan_is_named_with_their_number() -> None:
    fine = torch.ones(2)
    broken = torch.tensor([torch.nan, 0.0, torch.nan, torch.inf])
    assert first_nan({"a": fine}) == ""
    assert first_nan({"a": fine, "w": broken, "x": broken}) == "w (2 of 4)"


def test_a_model_larger_than_its_file_is_refused_before_it_takes_memory() -> None:
    """Of 40 parameters where the file holds 19 numbers, a byte of which may hold two."""
    devices = []

    def built() -> nn.Linear:
        model = nn.Linear(7, 5)
        devices.append(str(model.weight.device))
        return model

    held: Any = SimpleNamespace(names=[], numbers=lambda: 19)
    with pytest.raises(
        ValueError, match=r"must describe a model of the 19 numbers .* got one of 40"
    ):
        _sized(built, {}, held)
    assert devices == ["meta"]
    held.numbers = lambda: 20
    assert _sized(built, {}, held).weight.device.type == "cpu"


@pytest.mark.parametrize("name", ["config.json", "checkpoint.safetensors"])
def test_a_folder_with_a_part_of_a_model_is_not_free(name: str, tmp_path: Path) -> None:
    check_free(tmp_path)
    (tmp_path / name).write_text("")
    message = f"out must hold no model, got {tmp_path} with a {name}; choose another folder"
    with pytest.raises(ValueError, match=message):
        check_free(tmp_path, "out")


def test_a_folder_whose_name_is_not_utf8_is_not_free(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"out must be a path in UTF-8, got '.*x.udcff'"):
        check_free(tmp_path / "x\udcff", "out")


@pytest.mark.parametrize("name", ["a.gguf", "a.pth", "a.pt", "a.bin", "a.ckpt"])
def test_files_of_other_software_are_no_models(name: str, tmp_path: Path) -> None:
    """An official checkpoint alone can be converted."""
    path = tmp_path / name
    check_own(path)  # there is no such file, which is said elsewhere
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"must be one of plkernel's own, got .*inspect") as caught:
        check_own(path)
    assert ("plkernel.load converts" in str(caught.value)) == (name == "a.pth")


def test_models_of_transformers_are_told_by_the_file_beside_them(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"")
    for path in (tmp_path, weights):
        check_own(path)
    (tmp_path / "config.json").write_text('{"model_type": "mamba2"}')
    for path in (tmp_path, weights):
        with pytest.raises(ValueError, match=r", whose config\.json names a model_type; plkernel"):
            check_own(path)


def test_the_code_of_a_model_is_named_by_its_folder_and_by_its_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.safetensors"
    checkpoint.write_bytes(b"")
    found = []
    for content in (None, {"model": {"kind": "ssm"}}, {"model": {"kind": "own:Model"}}, {}):
        if content is not None:
            (tmp_path / "config.json").write_text(json.dumps(content))
        found.append((foreign_code(tmp_path), foreign_code(checkpoint)))
    assert found == [(None, None), (None, None), ("own:Model", "own:Model"), (None, None)]


def test_the_checkpoint_that_is_named_is_opened_and_not_the_one_of_its_folder(
    tmp_path: Path,
) -> None:
    """And a structure's option of an earlier version, which is off, is passed over."""
    model = RWKV7(RWKV7Config(dim=16, layers=1, head_size=16, backend="reference"))
    save_model(tmp_path, model, "test")
    config = json.loads((tmp_path / "config.json").read_text())
    config["rwkv7"]["structure"]["no_longer_there"] = False
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name, progress in (("checkpoint", RunProgress()), ("earlier", RunProgress(5))):
        save_checkpoint(tmp_path / f"{name}.safetensors", model, None, progress, config)
    found = [open_model(tmp_path / name)[2] for name in ("", "earlier.safetensors")]
    assert found == [0, 5]


@pytest.mark.parametrize(
    ("trusted", "advice"), [(False, "pass --trust-code"), (None, "give a model of plkernel's own")]
)
def test_other_people_s_code_builds_no_model_without_consent(
    trusted: bool | None, advice: str, path: Path
) -> None:
    (path.parent / "config.json").write_text('{"model": {"kind": "own:Model"}}')
    with pytest.raises(ValueError, match=f"got 'own:Model', which is other.*{advice}"):
        open_model(path, trusted)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": True}, "seed must be a whole number from 0, got True"),
        ({"train": {"context": 0}}, "train.context must be a whole number from 1, got 0"),
        ({"train": {"context": True}}, "train.context must be a whole number from 1, got True"),
    ],
)
def test_numbers_that_no_run_has_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """A model that is saved alone has neither a seed nor a context."""
    model = RWKV7(RWKV7Config(dim=16, layers=1, head_size=16, backend="reference"))
    save_model(tmp_path / "alone", model, "test")
    opened, config, step = open_model(tmp_path / "alone")
    assert step == 0
    assert not opened.training
    tampered = tmp_path / "tampered"
    save_checkpoint(
        tampered / "checkpoint.safetensors", model, None, RunProgress(), config | changes
    )
    (tampered / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ValueError, match=message):
        open_model(tampered)
