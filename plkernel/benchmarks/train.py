"""python -m plkernel.bench train: a training step against its matrix products and a transformer of equal size."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from plkernel.benchmarks import contest
from plkernel.benchmarks import threads as two_threads
from plkernel.benchmarks.contest import OURS, Spread, interleave, progress
from plkernel.benchmarks.threads import Threads
from plkernel.common.cli import text_table
from plkernel.common.environment import environment, installed
from plkernel.common.files import check_folder
from plkernel.common.process_memory import keep_memory
from plkernel.config.condition import resolve
from plkernel.config.model import ModelSpec
from plkernel.config.reading import load_spec
from plkernel.config.study import Spec
from plkernel.models import rwkv, rwkv7, ssm
from plkernel.models.words import Device
from plkernel.training.build import build, initialise_
from plkernel.training.objective import autocast, build_optimizer, next_byte_loss
from plkernel.training.build import choose_device

FLOOR = "scan replaced by the identity"
PRODUCTS = "its matrix products alone"
GPT2, GPT2_PLAIN = "gpt2 (its default dropout 0.1)", "gpt2 (dropout 0, as ours)"
TARGETS = {FLOOR: "at least 0.75", GPT2: "at least 4"}
LARGEST_ERROR = 1e-5
OFF = 0.02
HEADS = 4
RECURRENT = Path("finch")
OPERATORS = {"ssm": (ssm, "scan"), "rwkv5": (rwkv, "wkv"), "rwkv6": (rwkv, "wkv"), "rwkv7": (rwkv7, "wkv7")}
MATRIX_PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.addmm)


@dataclass(frozen=True)
class TrainTiming:
    """One contender: parameters, bytes per second, and its seconds over ours, round by round."""

    contender: str
    parameters: int
    seconds: Spread
    bytes_per_second: float
    ratio: Spread


def run(spec: Path, threads: int, rounds: int, device: Device, out: Path | None) -> None:
    """Time forward, backward and optimiser step of a spec's model, taken in turns with its floors and a transformer."""
    contest.check(rounds, threads=threads)
    check_folder(out, "out")
    torch.set_num_threads(threads)
    loaded, place = load_spec(spec), choose_device(device)
    if loaded.model.kind not in OPERATORS:
        raise ValueError(
            f"spec {spec}: model kind {loaded.model.kind!r} is not timed here, only {', '.join(OPERATORS)}"
        )
    keep_memory()
    error = check(loaded, place)
    rows = measure(loaded, rounds, place)
    pairs = measure_threads(spec, rounds) if place.type == "cpu" and loaded.model.kind == "ssm" else []
    text = render(rows, error, loaded)
    if pairs:
        text += f"\n\n{text_table(two_threads.HEADER, two_threads.render(pairs))}"
    settings = {"model": loaded.model.model_dump(), "context": loaded.train.context, "batch": loaded.train.batch}
    found = {**environment(threads), "device": place.type, "transformers": installed("transformers")}
    results = {"environment": found, **settings, "error": error, "rows": [asdict(row) for row in rows]}
    name = "train" if loaded.model.kind == "ssm" else f"train-{loaded.model.kind}"
    contest.show(text, results | {"threads": [asdict(row) for row in pairs]}, out, name)


def check(spec: Spec, device: torch.device) -> float:
    """Largest relative difference of loss and gradients from the reference kernel in float64; ValueError if too large.

    At weights a little off their initial ones, where some are zero and gradients with them.
    """
    progress("checking loss and gradients against the float64 reference")
    windows = _windows(256, 2, device)
    model = _model(spec.model, device)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape).to(device), alpha=OFF)
    fast = _loss_and_gradients(model, windows)
    with _operator(spec.model.kind, lambda exact, *inputs, backend: exact(*inputs, backend="reference")):
        exact = _loss_and_gradients(model.cpu().double(), windows.cpu())
    error = max(float((f.double().cpu() - e).norm() / e.norm()) for f, e in zip(fast, exact, strict=True))
    if not error <= LARGEST_ERROR:
        raise ValueError(f"the model differs from its float64 reference by {error:.1e}: nothing is timed")
    return error


def measure(spec: Spec, rounds: int, device: torch.device) -> list[TrainTiming]:
    """Every contender on the same windows, taken in turns."""
    shape, kind = (spec.train.context, spec.train.batch), spec.model.kind
    contenders: dict[str, nn.Module] = {name: _model(spec.model, device) for name in (OURS, PRODUCTS)}
    if kind == "ssm":
        contenders[FLOOR] = _model(spec.model, device)
    contenders |= _transformers(spec.model, spec.train.context, device)
    steps = {name: _step(model, spec, device) for name, model in contenders.items()}
    with Products() as products:
        steps[PRODUCTS]()
    steps[PRODUCTS] = products.again
    if kind == "ssm":
        floor = steps[FLOOR]

        def identity() -> None:
            with _operator(kind, lambda exact, a, b, state, backend: (b, b[:, -1])):
                floor()

        steps[FLOOR] = identity
    progress(f"timing {', '.join(steps)}")
    times = interleave(steps, rounds, budget=60.0, device=device.type, repeat=5 if device.type == "cuda" else 1)
    return [
        TrainTiming(name, _size(model), s := times.spread(name), math.prod(shape) / s.median, times.ratio(name, OURS))
        for name, model in contenders.items()
    ]


class Products(TorchDispatchMode):
    """Notes the matrix products of what runs within, forward and backward, so that they can be done again, alone."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[Callable[[], object]] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator.overloadpacket in MATRIX_PRODUCTS:
            self.noted.append(partial(operator, *(each.detach() for each in args), **(kwargs or {})))
        return operator(*args, **(kwargs or {}))

    @torch.no_grad()
    def again(self) -> None:
        """The same products of the same operands."""
        for product in self.noted:
            product()


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
        wanted = TARGETS.get(row.contender, "") if spec.model.kind == "ssm" else ""
        cells.append([row.contender, f"{row.parameters:,}", speed, *row.ratio.cells(), wanted])
    title = f"context {spec.train.context}, batch {spec.train.batch}; difference from float64: {error:.1e}"
    return f"{title}\n{text_table(header, cells)}"


@contextmanager
def _operator(kind: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """The kernel of a model's recurrence replaced, which `replacement` is given first."""
    module, name = OPERATORS[kind]
    with patch.object(module, name, partial(replacement, getattr(module, name))):
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
