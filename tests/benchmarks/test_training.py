"""A training step beside a transformer: what is compared, and what of it is kept."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bigram import Bigram
from torch import nn

from plkernel.benchmarks import training
from plkernel.benchmarks.operators import OURS
from plkernel.common.files import load_json
from plkernel.config.reading import load_spec, parse_spec
from plkernel.config.spec import Spec
from plkernel.models.layers import BYTES

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")


def spec_of(**model: Any) -> Spec:
    values = {"name": "s", "baseline": "a", "seeds": [0], "corpus": {"name": "stdlib"}}
    train = {"steps": 1, "context": 8, "batch": 3, "clip": 0.5, "learning_rate": 1e-2}
    sizes = {"dim": 32, "layers": 2} | model
    return parse_spec({**values, "arms": {"a": {}}, "train": train, "model": sizes}, "here")


def test_a_step_reads_the_same_windows_clips_and_changes_the_weights(
    norms_at_updates: list[float],
) -> None:
    model = Bigram(100)
    before = model.table.weight.detach().clone()
    step = training._step(model, spec_of(), CPU)
    step()
    assert model.table.weight.grad is None
    step()
    assert norms_at_updates == pytest.approx([0.5, 0.5], rel=1e-5)
    assert model.seen[0].shape == (3, 8)
    assert torch.equal(*model.seen)
    assert (model.table.weight != before)[model.seen[0].unique()].any(1).all()


def test_windows_are_bytes_and_one_longer_than_the_context() -> None:
    windows = training._windows(256, 8, CPU)
    assert windows.shape == (8, 257)
    assert int(windows.min()) == 0
    assert int(windows.max()) == BYTES - 1
    assert torch.equal(windows, training._windows(256, 8, CPU))


@pytest.mark.parametrize(("dim", "heads"), [(32, 4), (6, 2)])
def test_gpt2_has_the_layers_that_come_nearest_to_the_parameters(
    dim: int, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From one to twice those of the model."""
    transformers = pytest.importorskip("transformers")
    made: list[Any] = []
    monkeypatch.setattr(training, "_step", lambda model, *_: made.append(model))
    spec = spec_of(dim=dim, layers=2)
    options = {"n_embd": dim, "n_head": heads, "n_positions": 8, "vocab_size": BYTES}
    sizes = [
        transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_layer=layers, **options)
        ).num_parameters()
        for layers in range(1, 5)
    ]
    for layers, size in enumerate(sizes, 1):
        training._gpt2_step(spec, size, CPU)
        training._gpt2_step(spec, size + (sizes[1] - sizes[0]) // 2 - 1, CPU)
        assert [one.config.n_layer for one in made[-2:]] == [layers, layers]
    training._gpt2_step(spec, 10**9, CPU)
    model = made[-1]
    assert model.config.n_layer == 4
    assert model.config.n_head == heads
    tokens = torch.arange(8)[None]
    assert model.training
    assert torch.equal(model(tokens), model(tokens)), "no dropout"
    assert model(tokens).shape == (1, 8, BYTES)


@pytest.mark.parametrize(("kind", "name"), [("ssm", "train"), ("rwkv6", "train-rwkv6")])
def test_a_model_is_timed_beside_gpt2(
    kind: str,
    name: str,
    tiny_spec: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tiny_spec()
    sizes = "dim = 16" if kind == "ssm" else f'kind = "{kind}"\ndim = 16\nhead_size = 8'
    text = path.read_text().replace("dim = 16", sizes)
    path.write_text(text.replace('projection = "published"', ""))
    asked: dict[str, Any] = {}

    def compared(entries: Any, rounds: int, amount: float, **more: Any) -> list[dict[str, Any]]:
        asked.update(names=[*entries], rounds=rounds, amount=amount, **more)
        entries[OURS].make()()
        return [
            {"contender": one, "problem": "", "error": None, "note": ""}
            | {"seconds": {"median": 1.0}, "ratio": {"median": 1.0}, "rate": amount}
            for one in entries
        ]

    monkeypatch.setattr(training, "compare", compared)
    monkeypatch.setattr(training, "gradient_error", lambda *_: 1.3e-6)
    training.train(path, 1, 2, "cpu", tmp_path)
    assert asked["names"] == [OURS, "gpt2 (dropout 0, as ours)"]
    assert (asked["rounds"], asked["amount"], asked["device"]) == (2, 32 * 4, "cpu")
    record = load_json(tmp_path / f"{name}.json")
    parameters = record["parameters"]
    model = training._model(load_spec(path), CPU)
    assert parameters == sum(x.numel() for x in model.parameters())
    assert (record["context"], record["batch"], record["error"]) == (32, 4, 1.3e-6)
    assert record["model"]["kind"] == kind
    out = capsys.readouterr().out
    assert "bytes/s" in out.splitlines()[0]
    assert out.splitlines()[-1] == (
        f"{parameters:,} parameters, context 32, batch 4; difference from float64: 1.3e-06"
    )


def test_loss_and_gradients_count_in_the_difference_from_float64(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Relative, by norms, the largest: of the loss if that alone is off."""
    exact = training.next_byte_loss

    def off(model: nn.Module, windows: torch.Tensor) -> torch.Tensor:
        assert windows.shape == (2, 257)
        loss = exact(model, windows)
        is_reference = next(model.parameters()).dtype == torch.float64
        return loss if is_reference else loss + 8e-6 * loss.detach()

    monkeypatch.setattr(training, "next_byte_loss", off)
    assert training.gradient_error(spec_of(), CPU) == pytest.approx(8e-6, rel=0.1)
    assert "checking loss and gradients against the float64" in capsys.readouterr().err
    monkeypatch.setattr(training, "LARGEST_ERROR", 6e-6)
    with pytest.raises(ValueError, match=r"by at most 6\.0e-06, got [78]"):
        training.gradient_error(spec_of(), CPU)
