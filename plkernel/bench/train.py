"""python -m plkernel.bench train: a training step against its matrix-product floor and a transformer of equal size."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from plkernel.bench import contest
from plkernel.bench import threads as two_threads
from plkernel.bench.contest import OURS, Spread, interleave, progress
from plkernel.bench.threads import Threads
from plkernel.kernels.scan import scan as scan_operator
from plkernel.models import ssm
from plkernel.models.words import Device
from plkernel.run.build import build, initialise_
from plkernel.run.objective import autocast, build_optimizer, next_byte_loss
from plkernel.run.task import choose_device
from plkernel.spec.condition import resolve
from plkernel.spec.model import ModelSpec
from plkernel.spec.reading import load_spec
from plkernel.spec.study import Spec
from plkernel.tools.cli import text_table
from plkernel.tools.environment import environment, installed
from plkernel.tools.files import check_folder

FLOOR = "scan replaced by the identity"
GPT2, GPT2_PLAIN = "gpt2 (its default dropout 0.1)", "gpt2 (dropout 0, as ours)"
TARGETS = {FLOOR: "at least 0.75", GPT2: "at least 4"}
LARGEST_ERROR = 1e-5
HEADS = 4
RECURRENT = Path("finch")


@dataclass(frozen=True)
class TrainTiming:
    """One contender: parameters, bytes per second, and its seconds over ours, round by round."""

    contender: str
    parameters: int
    seconds: Spread
    bytes_per_second: float
    ratio: Spread


def run(spec: Path, threads: int, rounds: int, device: Device, out: Path | None) -> None:
    """Time forward, backward and optimiser step of a spec's model, taken in turns with its floor and a transformer."""
    contest.check(rounds, threads=threads)
    check_folder(out, "out")
    torch.set_num_threads(threads)
    loaded, place = load_spec(spec), choose_device(device)
    if loaded.model.kind != "ssm":
        raise ValueError(f"spec {spec}: model kind {loaded.model.kind!r} is not timed here, only 'ssm'")
    error = check(loaded, place)
    rows = measure(loaded, rounds, place)
    pairs = measure_threads(spec, rounds) if place.type == "cpu" else []
    text = render(rows, error, loaded)
    if pairs:
        text += f"\n\n{text_table(two_threads.HEADER, two_threads.render(pairs))}"
    settings = {"model": loaded.model.model_dump(), "context": loaded.train.context, "batch": loaded.train.batch}
    found = {**environment(threads), "device": place.type, "transformers": installed("transformers")}
    results = {"environment": found, **settings, "error": error, "rows": [asdict(row) for row in rows]}
    contest.show(text, results | {"threads": [asdict(row) for row in pairs]}, out, "train")


def check(spec: Spec, device: torch.device) -> float:
    """Largest relative difference of loss and gradients from the reference scan in float64; ValueError if too large."""
    progress("checking loss and gradients against the float64 reference")
    windows = _windows(256, 2, device)
    model = _model(spec.model, device)
    fast = _loss_and_gradients(model, windows)
    with _scan(lambda a, b, state, backend: scan_operator(a, b, state, backend="reference")):
        exact = _loss_and_gradients(model.cpu().double(), windows.cpu())
    error = max(float((f.double().cpu() - e).norm() / e.norm()) for f, e in zip(fast, exact, strict=True))
    if not error <= LARGEST_ERROR:
        raise ValueError(f"the model differs from its float64 reference by {error:.1e}: nothing is timed")
    return error


def measure(spec: Spec, rounds: int, device: torch.device) -> list[TrainTiming]:
    """Every contender on the same windows, taken in turns."""
    shape = (spec.train.context, spec.train.batch)
    contenders: dict[str, nn.Module] = {name: _model(spec.model, device) for name in (OURS, FLOOR)}
    contenders |= _transformers(spec.model, spec.train.context, device)
    steps = {name: _step(model, spec, device) for name, model in contenders.items()}
    floor = steps[FLOOR]

    def identity() -> None:
        with _scan(lambda a, b, state, backend: (b, b[:, -1])):
            floor()

    steps[FLOOR] = identity
    progress(f"timing {', '.join(steps)}")
    times = interleave(steps, rounds, budget=60.0, device=device.type, repeat=5 if device.type == "cuda" else 1)
    return [
        TrainTiming(name, _size(model), s := times.spread(name), math.prod(shape) / s.median, times.ratio(name, OURS))
        for name, model in contenders.items()
    ]


def measure_threads(spec: Path, rounds: int) -> list[Threads]:
    """Two threads against one: a step of this spec, and of the RWKV spec."""
    specs = [spec, RECURRENT]
    return [row for path in specs for row in two_threads.measure("train", rounds, path)]


def render(rows: list[TrainTiming], error: float, spec: Spec) -> str:
    """The table for the terminal."""
    header = ["training step", "parameters", "kB/s", "times ours", "quartiles", "wanted"]
    cells = []
    for row in rows:
        speed = f"{row.bytes_per_second / 1e3:.1f}"
        cells.append([row.contender, f"{row.parameters:,}", speed, *row.ratio.cells(), TARGETS.get(row.contender, "")])
    title = f"context {spec.train.context}, batch {spec.train.batch}; difference from float64: {error:.1e}"
    return f"{title}\n{text_table(header, cells)}"


@contextmanager
def _scan(replacement: Callable[..., Any]) -> Iterator[None]:
    with patch.object(ssm, "scan", replacement):
        yield


def _model(spec: ModelSpec, device: torch.device) -> nn.Module:
    condition = resolve(spec)
    return initialise_(build(condition), condition, seed=0).to(device)


def _windows(context: int, batch: int, device: torch.device) -> Tensor:
    return torch.randint(0, 256, (batch, context + 1), generator=torch.Generator().manual_seed(0)).to(device)


def _loss_and_gradients(model: nn.Module, windows: Tensor) -> list[Tensor]:
    loss = next_byte_loss(model, windows)
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


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


def _transformers(spec: ModelSpec, context: int, device: torch.device) -> dict[str, nn.Module]:
    """GPT-2 with and without dropout, of about as many parameters; nothing where the package is missing."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError:
        progress("gpt2: transformers is not installed")
        return {}

    class Logits(nn.Module):
        def __init__(self, layers: int, dropout: float) -> None:
            super().__init__()
            rates: dict[str, Any] = {name: dropout for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop")}
            sizes: dict[str, Any] = {
                "n_positions": context,
                "n_embd": spec.dim,
                "n_layer": layers,
                "n_head": math.gcd(HEADS, spec.dim),
            }
            ids: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0}
            self.model = GPT2LMHeadModel(GPT2Config(vocab_size=256, use_cache=False, **sizes, **rates, **ids))

        def forward(self, inputs: Tensor) -> Tensor:
            return self.model(inputs).logits

    wanted = _size(_model(spec, torch.device("cpu")))
    sizes = {layers: abs(_size(Logits(layers, 0.0)) - wanted) for layers in range(1, 2 * spec.layers + 1)}
    layers = min(sizes, key=sizes.__getitem__)
    return {name: Logits(layers, p).to(device).train() for name, p in ((GPT2, 0.1), (GPT2_PLAIN, 0.0))}


def _size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
