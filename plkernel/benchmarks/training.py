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
from plkernel.models.layers import BYTES
from plkernel.training.build import build_optimizer, started
from plkernel.training.evaluate import autocast, next_byte_loss

OPERATORS = {
    "ssm": (ssm, "scan"),
    "rwkv5": (rwkv, "wkv"),
    "rwkv6": (rwkv, "wkv"),
    "rwkv7": (rwkv7, "wkv7"),
}
"""Of each kind of model the module that calls its operator, and the name of it there."""
LARGEST_ERROR = 1e-5
"""Of loss and gradients, relative to float64."""
OFF = 0.02
"""Standard deviation by which weights are moved before they are checked."""


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
    size = parameters_of(model)
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

    def reference(*inputs: Tensor, backend: str | None) -> Any:
        return operator(*inputs, backend="reference")

    with patch.object(module, name, reference):
        exact = loss_and_gradients(model.cpu().double(), windows.cpu())
    errors = []
    for found, expected in zip(fast, exact, strict=True):
        difference = (found.double().cpu() - expected).norm()
        errors.append(float(difference / expected.norm()))
    error = max(errors)
    if not error <= LARGEST_ERROR:
        raise ValueError(
            f"model must differ from its float64 reference by at most {LARGEST_ERROR:.1e}, got"
            f" {error:.1e}; nothing is timed"
        )
    return error


def _model(spec: Spec, device: torch.device) -> nn.Module:
    """The model of a spec at initialisation."""
    return started(resolve(spec.model), 0).to(device)


def _windows(context: int, batch: int, device: torch.device) -> Tensor:
    """Random bytes (batch, context + 1), the same at every call."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, BYTES, (batch, context + 1), generator=generator).to(device)


def _step(model: nn.Module, spec: Spec, device: torch.device) -> Callable[[], None]:
    """A training step of a model on the same windows, as a function."""
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
    """Return a step of a GPT-2 of the same width and context, with about `size` parameters."""
    width = spec.model.dim
    heads = math.gcd(4, width)

    def made(layers: int) -> nn.Module:
        return gpt2(width, layers, heads, spec.train.context)

    depths = range(1, 2 * spec.model.layers + 1)
    nearest = min(map(made, depths), key=lambda model: abs(parameters_of(model) - size))
    return _step(nearest.to(device).train(), spec, device)


def gpt2(width: int, layers: int, heads: int, context: int) -> nn.Module:
    """transformers' GPT-2 on bytes, without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_positions=context,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        vocab_size=BYTES,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return returning_logits(GPT2LMHeadModel(config))


def returning_logits(model: nn.Module) -> nn.Module:
    """The model of transformers, which returns its logits alone from now on."""
    model.register_forward_hook(lambda *given: given[-1].logits)
    return model


def parameters_of(model: nn.Module) -> int:
    """Number of parameters of a model."""
    return sum(parameter.numel() for parameter in model.parameters())
