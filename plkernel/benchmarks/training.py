"""A training step beside a transformer of equal size."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from plkernel.benchmarks.operators import OURS, Contender, compare, progress, set_up, show
from plkernel.common.environment import keep_memory
from plkernel.config.condition import resolve
from plkernel.config.reading import load_spec
from plkernel.config.spec import Spec
from plkernel.models import Device, rwkv, rwkv7, ssm
from plkernel.training.build import build_optimizer, started
from plkernel.training.evaluate import autocast, next_byte_loss

OPERATORS = {
    "ssm": (ssm, "scan"),
    "rwkv5": (rwkv, "wkv"),
    "rwkv6": (rwkv, "wkv"),
    "rwkv7": (rwkv7, "wkv7"),
}
LARGEST_ERROR = 1e-5  # of loss and gradients, relative
OFF = 0.02


def train(spec: Path, threads: int, rounds: int, device: Device, out: Path | None) -> None:
    """Time forward, backward and optimiser step of the model of a spec beside its peers.

    The model is first checked against float64.
    """
    loaded = load_spec(spec)
    place = set_up(rounds, threads, device, out)
    kind = loaded.model.kind
    context = loaded.train.context
    batch = loaded.train.batch
    if kind not in OPERATORS:
        raise ValueError(
            f"spec {spec}: model.kind must be one of {', '.join(OPERATORS)} to be timed, got"
            f" {kind!r}"
        )
    keep_memory()
    error = gradient_error(loaded, place)
    model = _model(loaded, place)
    size = sum(parameter.numel() for parameter in model.parameters())
    entries = {
        OURS: Contender(lambda: _step(model, loaded, place)),
        "gpt2 (dropout 0, as ours)": Contender(lambda: _gpt2_step(loaded, size, place)),
    }
    rows = compare(entries, rounds, context * batch, device=place.type, budget=60.0)
    more = {
        "model": loaded.model.model_dump(),
        "context": context,
        "batch": batch,
        "device": place.type,
    }
    more |= {"error": error, "parameters": size}
    show("train" if kind == "ssm" else f"train-{kind}", "bytes/s", rows, out, **more)
    print(
        f"{size:,} parameters, context {context}, batch {batch}; difference from float64:"
        f" {error:.1e}"
    )


def gradient_error(spec: Spec, device: torch.device) -> float:
    """Return the largest relative difference of loss and gradients from float64.

    Raises ValueError where it is too large. Weights are a little off their initial ones, some of
    which are zero and gradients with them.
    """
    progress("checking loss and gradients against the float64 reference")
    windows = _windows(256, 2, device)
    model = _model(spec, device)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape).to(device), alpha=OFF)

    def loss_and_gradients(model: nn.Module, windows: Tensor) -> list[Tensor]:
        loss = next_byte_loss(model, windows)
        return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]

    fast = loss_and_gradients(model, windows)
    module, name = OPERATORS[spec.model.kind]
    operator = getattr(module, name)
    with patch.object(
        module, name, lambda *inputs, backend: operator(*inputs, backend="reference")
    ):
        exact = loss_and_gradients(model.cpu().double(), windows.cpu())
    error = max(
        float((f.double().cpu() - e).norm() / e.norm()) for f, e in zip(fast, exact, strict=True)
    )
    if not error <= LARGEST_ERROR:
        raise ValueError(
            f"model must differ from its float64 reference by at most {LARGEST_ERROR:.1e}, got"
            f" {error:.1e}; nothing is timed"
        )
    return error


def _model(spec: Spec, device: torch.device) -> nn.Module:
    return started(resolve(spec.model), 0).to(device)


def _windows(context: int, batch: int, device: torch.device) -> Tensor:
    return torch.randint(
        0, 256, (batch, context + 1), generator=torch.Generator().manual_seed(0)
    ).to(device)


def _step(model: nn.Module, spec: Spec, device: torch.device) -> Callable[[], None]:
    optimizer = build_optimizer(model, spec.train)
    windows = _windows(spec.train.context, spec.train.batch, device)

    def step() -> None:
        with autocast(device):
            loss = next_byte_loss(model, windows)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), spec.train.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _gpt2_step(spec: Spec, size: int, device: torch.device) -> Callable[[], None]:
    """Return a step of transformers' GPT-2 of the same width and context.

    It has nearly `size` parameters.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    width, context = spec.model.dim, spec.train.context
    options: dict[str, Any] = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    options |= {
        "n_positions": context,
        "n_embd": width,
        "n_head": math.gcd(4, width),
        "use_cache": False,
    }
    options |= {"vocab_size": 256, "bos_token_id": 0, "eos_token_id": 0}

    models = (
        GPT2LMHeadModel(GPT2Config(n_layer=layers, **options))
        for layers in range(1, 2 * spec.model.layers + 1)
    )
    nearest: Any = min(models, key=lambda model: abs(model.num_parameters() - size))
    nearest.register_forward_hook(lambda *given: given[-1].logits)
    return _step(nearest.to(device).train(), spec, device)
