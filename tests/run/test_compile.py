"""A compiled step has the losses of a plain one, its model captured whole, and fewer operators to launch."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from plkernel.run.task import prepare
from plkernel.run.training import Training
from plkernel.spec.reading import load_spec

SpecWriter = Callable[..., Path]
ROUNDING = 1e-5
"""Nats: eight bits in float32 over some steps; an eps of 1e-3 keeps Adam from making whole steps of rounding."""
MODELS = {"ssm": "gain = 'ema'\n", "finch": "kind = 'rwkv6'\nhead_size = 8\n"}


@pytest.fixture
def opened(tiny_spec: SpecWriter, tmp_path: Path) -> Callable[..., Training]:
    def open_(kind: str, **train: object) -> Training:
        path = tiny_spec(**{"context": 16, "batch": 2, "eps": 1e-3} | train)
        text = (
            path.read_text().replace("[model]\n", f"[model]\n{MODELS[kind]}").replace('projection = "published"\n', "")
        )
        path.write_text(text.replace("= True", "= true"))
        return Training(prepare(load_spec(path), "uniform", 0, tmp_path / f"{kind} {train}"))

    return open_


def test_a_run_is_compiled_where_it_is_asked_for(
    opened: Callable[..., Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changes the numbers of a run, and so its configuration; what is evaluated and saved is the model itself."""
    given: list[object] = []
    monkeypatch.setattr(torch, "compile", lambda model: given.append(model) or (lambda inputs: model(inputs)))
    plain = opened("ssm")
    assert (given, plain.config["train"]["compile"]) == ([], False)
    training = opened("ssm", compile=True)
    assert training.config["train"]["compile"] is True
    training.step()
    assert given == [training.model]


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_a_model_is_captured_whole(opened: Callable[..., Training], kind: str) -> None:
    training = opened(kind)
    torch._dynamo.reset()
    assert torch._dynamo.explain(training.model)(training.next_windows()[:, :-1]).graph_break_count == 0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", MODELS)
def test_a_compiled_run_has_the_losses_of_a_plain_one(opened: Callable[..., Training], kind: str) -> None:
    from torch._inductor import metrics

    torch._dynamo.reset()
    metrics.reset()
    plain, compiled = opened(kind), opened(kind, compile=True)
    for _ in range(4):
        plain.step()
        compiled.step()
    assert torch.cat(compiled.unread).tolist() == pytest.approx(torch.cat(plain.unread).tolist(), abs=ROUNDING)
    assert metrics.generated_kernel_count > 0, "it has been compiled"
