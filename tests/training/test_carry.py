"""train.carry: the state goes from window to window, no gradient does, and a killed run goes on to
the same.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import plkernel
from plkernel.common.files import read_lines
from plkernel.config.reading import load_spec
from plkernel.config.spec import Spec
from plkernel.training.checkpoint import digest_of, open_model
from plkernel.training.evaluate import next_byte_loss
from plkernel.training.loop import Training, prepare, run_training

SpecWriter = Callable[..., Path]
Stopped = Callable[[Spec, str, Path, int], Path]
BY_POSITION = 'parametrisation = "ordered"\nposition_scaling = true\n'
KINDS = {
    "ssm": "",
    "patches": "patching = { size = 4 }\n",  # which windows of 30 bytes cut
    "eagle": 'kind = "rwkv5"\nhead_size = 8\n',
    "finch": 'kind = "rwkv6"\nhead_size = 8\n',
    "goose": 'kind = "rwkv7"\nhead_size = 8\n',
    "patches by position": f"patching = {{ size = 4 }}\n{BY_POSITION}",
    "goose by position": f'kind = "rwkv7"\nhead_size = 8\n{BY_POSITION}',
}
CONTEXT = 30
RUN = "uniform/seed-0"


@pytest.fixture
def spec(tiny_spec: SpecWriter) -> Callable[..., Spec]:
    def write(kind: str = "ssm", carry: bool = True, model: str = "", **options: Any) -> Spec:
        settings = {"context": CONTEXT, "steps": 8, "eval_every": 2, "carry": carry} | options
        path = tiny_spec(**settings)
        text = path.read_text().replace("= True", "= true").replace("= False", "= false")
        text = text.replace("[model]\n", f"[model]\n{KINDS[kind] + model}")
        path.write_text(text.split("[arms.power-law]")[0])
        return load_spec(path)

    return write


def train(spec: Spec, out: Path) -> dict[str, Any]:
    return run_training(prepare(spec, "uniform", 0, out), progress_bar=False)


def opened(spec: Spec, out: Path) -> Training:
    return Training(prepare(spec, "uniform", 0, out))


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_those_of_one_long_window(
    spec: Callable[..., Spec], tmp_path: Path, kind: str
) -> None:
    """Of weights that hardly move; without the state they are others."""
    steps = 5
    run = opened(spec(kind, learning_rate=1e-30, weight_decay=0.0), tmp_path)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # at the start of an RWKV no output of a mixing counts
        for parameter in run.model.parameters():
            if parameter.ndim == 2:
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    windows = [run.drawn(step) for step in range(steps)]
    stretch = torch.cat([windows[0], *(window[:, 1:] for window in windows[1:])], dim=1)
    run.model.eval()
    with torch.no_grad():
        logits = run.model(stretch[:, :-1])
        losses = torch.nn.functional.cross_entropy(
            logits.transpose(1, 2), stretch[:, 1:], reduction="none"
        )
        apart = [float(next_byte_loss(run.model, window)) for window in windows]
    for _ in range(steps):
        run.step()
        assert run.state is not None
        assert not any(values.requires_grad for values in run.state.tensors.values())
    found = torch.cat(run.unread)
    expected = losses.unflatten(1, (steps, CONTEXT)).mean(dim=(0, 2))
    # some ten products of 56 terms after one another, over 150 steps: 10 * sqrt(56 * 150) units
    bound = 1000 * 2.0**-23 * float(logits.abs().max())
    assert float((found - expected).abs().max()) < bound
    assert found[0].item() == pytest.approx(apart[0], abs=bound)
    assert float((found - torch.tensor(apart))[1:].abs().max()) > 10 * bound


def test_evaluations_are_those_of_other_runs(spec: Callable[..., Spec], tmp_path: Path) -> None:
    """The same windows, each without a state, so that figures with and without carry compare."""
    rows = []
    for carry in (False, True):
        out = tmp_path / str(carry)
        train(spec("finch", carry), out)
        rows.append(read_lines(out / RUN / "metrics.jsonl"))
    assert rows[0][0] == rows[1][0]
    assert rows[0][-1]["train_bpb"] != rows[1][-1]["train_bpb"]
    model, config, _ = open_model(tmp_path / "True" / RUN)
    assert config["train"]["carry"] is True
    run = plkernel.load_run(tmp_path / "True" / RUN)
    assert len(run.generate("def ", count=5)) == 5
    assert run.evaluate(windows=4).bits_per_byte == pytest.approx(rows[1][-1]["val_bpb"], abs=1e-6)
    assert not model.training


@pytest.mark.parametrize(
    ("kind", "place", "step"),
    [
        ("ssm", "step", 3),
        ("patches", "step", 5),
        ("goose", "save", 2),
        ("finch", "step", 7),
        ("patches by position", "step", 5),
        ("goose by position", "save", 2),
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
    run = spec(kind)
    whole = train(run, tmp_path / "whole")
    original = getattr(Training, place)

    def killed(self: Any) -> Any:
        if self.progress.step == step:
            raise SystemExit
        return original(self)

    with monkeypatch.context() as patch:
        patch.setattr(Training, place, killed)
        with pytest.raises(SystemExit):
            train(run, tmp_path / "parts")
    assert {**train(run, tmp_path / "parts"), "seconds": 0} == {**whole, "seconds": 0}
    rows = [(tmp_path / one / RUN / "metrics.jsonl").read_bytes() for one in ("whole", "parts")]
    assert rows[0] == rows[1]


def test_a_stopped_run_goes_on_with_its_state(
    spec: Callable[..., Spec], stopped: Stopped, tmp_path: Path
) -> None:
    """As saved between two evaluations; a run that forgot its state would have other rows."""
    run = spec("patches")
    train(run, tmp_path / "whole")
    folder = stopped(run, "uniform", tmp_path / "parts", 3)
    forgetful = tmp_path / "forgetful"
    shutil.copytree(tmp_path / "parts", forgetful)

    def forget(tensors: dict[str, Any]) -> None:
        for name in tensors:
            if name.startswith("state.") and name != "state.position":
                tensors[name].zero_()

    rewrite(forgetful / RUN / "checkpoint.safetensors", forget)
    for out in (tmp_path / "parts", forgetful):
        train(run, out)
    whole, same, other = (
        (tmp_path / name / RUN / "metrics.jsonl").read_bytes()
        for name in ("whole", "parts", "forgetful")
    )
    assert folder == tmp_path / "parts" / RUN
    assert same == whole != other


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Write a checkpoint with other tensors, and their digest."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in list(file.keys())}
        metadata = file.metadata()
    change(tensors)
    save_file(tensors, path, metadata | {"digest": digest_of(tensors, metadata)})


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("state.position"),
        lambda tensors: tensors.pop("state.blocks.1.ssm"),
        lambda tensors: tensors.update({"state.blocks.1.ssm": torch.zeros(3, 16)}),
        lambda tensors: tensors.update({"state.more": torch.zeros(4, 16)}),
    ],
)
def test_a_checkpoint_without_the_state_is_refused(
    spec: Callable[..., Spec], stopped: Stopped, tmp_path: Path, change: Any
) -> None:
    run = spec()
    folder = stopped(run, "uniform", tmp_path, 3)
    rows = (folder / "metrics.jsonl").read_bytes()
    rewrite(folder / "checkpoint.safetensors", change)
    with pytest.raises(ValueError, match=r"must hold the state that the run carries.*start over"):
        train(run, tmp_path)
    assert (folder / "metrics.jsonl").read_bytes() == rows


def test_models_without_a_state_cannot_carry_one(spec: Callable[..., Spec], tmp_path: Path) -> None:
    ahead = 'patching = { size = 2, mode = "published" }\n'
    with pytest.raises(ValueError, match=r"train\.carry True needs a state, which .*'published'"):
        prepare(spec(model=ahead), "uniform", 0, tmp_path)
    alone = 'patching = { size = 1, mode = "published" }\n'
    prepare(spec(model=alone), "uniform", 0, tmp_path)
    path = tmp_path / "tiny.toml"
    text = path.read_text().replace("dim = 16\nlayers = 2\n", "").replace(alone, "")
    kind = 'kind = "transformers:MambaForCausalLM"'
    path.write_text(text.replace("[model]\n", f"[model]\n{kind}\n"))
    with pytest.raises(ValueError, match=r"train\.carry True belongs to models of plkernel"):
        load_spec(path)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", ["patches", "finch"])
def test_a_compiled_run_carries_the_same_state(
    spec: Callable[..., Spec], tmp_path: Path, kind: str
) -> None:
    """Up to rounding in float32; an eps of 1e-3 keeps Adam from making whole steps of rounding."""
    torch._dynamo.reset()
    plain, fused = (
        opened(spec(kind, eps=1e-3, compile=on), tmp_path / str(on)) for on in (False, True)
    )
    for _ in range(4):
        plain.step()
        fused.step()
    assert torch.cat(fused.unread).tolist() == pytest.approx(
        torch.cat(plain.unread).tolist(), abs=1e-5
    )


def test_carry_may_be_an_option_of_an_arm(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    """Two arms from the same weights, one of which carries."""
    path = tiny_spec(steps=4, eval_every=4)
    text = path.read_text().split("[arms.power-law]")[0]
    path.write_text(f"{text}[arms.carried]\ntrain = {{ carry = true }}\n")
    run = load_spec(path)
    first = [
        run_training(prepare(run, arm, 0, tmp_path / "out"), progress_bar=False)
        for arm in ("uniform", "carried")
    ]
    rows = [
        read_lines(tmp_path / "out" / arm / "seed-0" / "metrics.jsonl")
        for arm in ("uniform", "carried")
    ]
    assert rows[0][0] == rows[1][0]
    assert first[0]["test_bpb"] != first[1]["test_bpb"]
