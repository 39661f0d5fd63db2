"""A compiled step has the losses of a plain one, its model captured whole, and fewer operators to launch."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from plkernel.config.reading import load_spec
from plkernel.training.loop import Training, prepare
from plkernel.training.objective import compiled

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
    given: list[nn.Module] = []

    def compile_(model: nn.Module, mode: str | None) -> Callable[..., object]:
        given.append(model)
        return lambda inputs: model(inputs)

    monkeypatch.setattr(torch, "compile", compile_)
    plain = opened("ssm")
    assert (given, plain.config["train"]["compile"]) == ([], False)
    training = opened("ssm", compile=True)
    assert training.config["train"]["compile"] is True
    training.step()
    assert given == [training.model]


def test_only_a_gpu_replays_graphs(opened: Callable[..., Training], monkeypatch: pytest.MonkeyPatch) -> None:
    train = opened("ssm").train.model_copy(update={"compile": True})
    monkeypatch.setattr(torch, "compile", lambda model, mode: mode)
    assert [compiled(nn.Identity(), train, torch.device(kind)) for kind in ("cpu", "cuda")] == [None, "reduce-overhead"]


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
    torch._dynamo.reset()
    plain, fused = opened(kind), opened(kind, compile=True)
    for _ in range(4):
        plain.step()
        fused.step()
    assert torch.cat(fused.unread).tolist() == pytest.approx(torch.cat(plain.unread).tolist(), abs=ROUNDING)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", MODELS)
def test_a_compiled_step_launches_half(
    opened: Callable[..., Training], kind: str, launches: Callable[[Callable[[], object]], int]
) -> None:
    """Counted in the code that torch writes for a pass forward and one back, beside the operators of both as they are.

    Of whole steps, losses, clipping and AdamW included: 286 and 142 in runs/quick.toml, 708 and 242 in runs/finch.toml.
    """
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    plain, fused = opened(kind), opened(kind, compile=True)
    inputs = plain.next_windows()[:, :-1]
    alone = launches(lambda: plain.model(inputs).sum().backward())
    _, code = run_and_get_code(lambda: fused.parallel(inputs).sum().backward())
    calls = re.findall(r"^ +(?:buf\d+ = )?(?:cpp_fused|extern_kernels\.|torch\.ops\.plkernel)", "\n".join(code), re.M)
    assert 0 < 2 * len(calls) < alone
