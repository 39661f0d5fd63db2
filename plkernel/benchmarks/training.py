"""A training step beside its matrix products and a transformer of equal size, and pair counts beside other software."""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from plkernel.analysis.information.counts import Bytes, count_pairs
from plkernel.analysis.information.estimate import mutual_information
from plkernel.benchmarks import contest
from plkernel.benchmarks.contest import OURS, Contender
from plkernel.common.environment import installed, keep_memory
from plkernel.config.condition import resolve
from plkernel.config.reading import load_spec
from plkernel.config.schema import ModelSpec
from plkernel.config.study import Spec
from plkernel.data import corpora
from plkernel.models import Device, rwkv, rwkv7, ssm
from plkernel.training.build import build, choose_device, initialise_
from plkernel.training.objective import autocast, build_optimizer, next_byte_loss

OPERATORS = {"ssm": (ssm, "scan"), "rwkv5": (rwkv, "wkv"), "rwkv6": (rwkv, "wkv"), "rwkv7": (rwkv7, "wkv7")}
LARGEST_ERROR = 1e-5  # of loss and gradients, relative
OFF = 0.02
MEGABYTES = {"scikit-learn": 1, "infomeasure": 1}  # a slow contender gets the start of the corpus, others 32 MiB
COUNT_PACKAGES = ("pyinform", "scikit-learn", "infomeasure")


def train(spec: Path, threads: int, rounds: int, device: Device, out: Path | None) -> None:
    """Check the model of a spec against float64, then time forward, backward and optimiser step beside its peers."""
    contest.prepare(rounds, threads, None, out)
    loaded, place = load_spec(spec), choose_device(device)
    kind, context, batch = loaded.model.kind, loaded.train.context, loaded.train.batch
    if kind not in OPERATORS:
        raise ValueError(f"spec {spec}: model kind {kind!r} is not timed here, only {', '.join(OPERATORS)}")
    keep_memory()
    error = check(loaded, place)
    rows = contest.compare(contenders(loaded, place), rounds, "", place.type, budget=60.0)
    more = {"model": loaded.model.model_dump(), "context": context, "batch": batch, "device": place.type}
    more |= {"error": error, "transformers": installed("transformers")}
    contest.show("train" if kind == "ssm" else f"train-{kind}", "bytes/s", rows, out, (), **more)
    print(f"context {context}, batch {batch}; difference from float64: {error:.1e}")


def check(spec: Spec, device: torch.device) -> float:
    """Return the largest relative difference of loss and gradients from float64; ValueError where it is too large.

    Weights are a little off their initial ones, some of which are zero and gradients with them.
    """
    contest.progress("checking loss and gradients against the float64 reference")
    windows = _windows(256, 2, device)
    model = _model(spec.model, device)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape).to(device), alpha=OFF)

    def loss_and_gradients(model: nn.Module, windows: Tensor) -> list[Tensor]:
        loss = next_byte_loss(model, windows)
        return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]

    fast = loss_and_gradients(model, windows)
    with _replaced(spec.model.kind, lambda exact, *inputs, backend: exact(*inputs, backend="reference")):
        exact = loss_and_gradients(model.cpu().double(), windows.cpu())
    error = max(float((f.double().cpu() - e).norm() / e.norm()) for f, e in zip(fast, exact, strict=True))
    if not error <= LARGEST_ERROR:
        raise ValueError(f"the model differs from its float64 reference by {error:.1e}: nothing is timed")
    return error


def contenders(spec: Spec, device: torch.device) -> dict[str, Contender]:
    """Return the step of the model and of GPT-2 on the same windows; an SSM also without its scan."""
    amount = spec.train.context * spec.train.batch
    model = _model(spec.model, device)
    step, size = _step(model, spec, device), sum(parameter.numel() for parameter in model.parameters())
    with FlopCounterMode(display=False) as counter:
        step()
    note = f"{size:,} parameters, {counter.get_total_flops() / 1e9:.2f} GFLOP in matrix products"
    found = {OURS: Contender(lambda: step, amount=amount, note=note)}
    if spec.model.kind == "ssm":

        def identity() -> None:
            with _replaced("ssm", lambda exact, a, b, state, backend: (b, b[:, -1])):
                step()

        found["scan replaced by the identity"] = Contender(lambda: identity, amount=amount, peer=False)
    for dropout, name in ((0.1, "gpt2 (its default dropout 0.1)"), (0.0, "gpt2 (dropout 0, as ours)")):
        found[name] = Contender(partial(_gpt2_step, spec, size, dropout, device), amount=amount)
    return found


@contextmanager
def _replaced(kind: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """Replace the operator of a model; `replacement` is given the operator first."""
    module, name = OPERATORS[kind]
    with patch.object(module, name, partial(replacement, getattr(module, name))):
        yield


def _model(spec: ModelSpec, device: torch.device) -> nn.Module:
    condition = resolve(spec)
    return initialise_(build(condition), condition, seed=0).to(device)


def _windows(context: int, batch: int, device: torch.device) -> Tensor:
    return torch.randint(0, 256, (batch, context + 1), generator=torch.Generator().manual_seed(0)).to(device)


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


def _gpt2_step(spec: Spec, size: int, dropout: float, device: torch.device) -> Callable[[], None]:
    """Return a step of transformers' GPT-2 of the same width and context with nearly `size` parameters."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import GPT2Config, GPT2LMHeadModel

    width, context = spec.model.dim, spec.train.context
    options: dict[str, Any] = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    options |= {"n_positions": context, "n_embd": width, "n_head": math.gcd(4, width), "use_cache": False}
    options |= {"vocab_size": 256, "bos_token_id": 0, "eos_token_id": 0}

    class Logits(nn.Module):
        def __init__(self, layers: int) -> None:
            super().__init__()
            self.model = GPT2LMHeadModel(GPT2Config(n_layer=layers, **options))

        def forward(self, inputs: Tensor) -> Tensor:
            return self.model(inputs).logits

    models = map(Logits, range(1, 2 * spec.model.layers + 1))
    nearest = min(models, key=lambda model: abs(sum(parameter.numel() for parameter in model.parameters()) - size))
    return _step(nearest.to(device).train(), spec, device)


def bincount(data: Bytes, lags: Sequence[int]) -> NDArray[np.int64]:
    """Count pairs by np.bincount of the code of every pair, (L,256,256): the line that one would write."""
    return np.stack([np.bincount(data[:-lag].astype(np.int64) * 256 + data[lag:], minlength=65536) for lag in lags])


def tables(data: Bytes, lags: Sequence[int]) -> NDArray[np.int64]:
    """Count pairs with this package; tables of the symbols that occur, as those of all bytes, (L,65536)."""
    counted = count_pairs(data, lags)
    found = np.zeros((len(lags), 256, 256), np.int64)
    found[:, counted.symbols[:, None].astype(np.intp), counted.symbols] = counted.tables[:, 0]
    return found.reshape(len(lags), -1)


def information(data: Bytes, lags: Sequence[int]) -> NDArray[np.float64]:
    """Return the plug-in mutual information in nats of this package's tables."""
    return np.array([mutual_information(table) for table in count_pairs(data, lags).tables[:, 0]])


def peer_information(
    module: str, function: str, data: Bytes, lags: Sequence[int], unit: float = 1.0, **options: Any
) -> NDArray[np.float64]:
    """Return the mutual information in nats by a function of another package, which gives it in a `unit` of nats."""
    found = getattr(import_module(module), function)
    return unit * np.array([found(data[:-lag], data[lag:], **options) for lag in lags])


def mi(corpus: str, lags: tuple[int, ...], rounds: int, out: Path | None) -> None:
    """Check pair tables and mutual information against np.bincount, then time those that are right."""
    contest.prepare(rounds, 1, "cpu", out)
    found = corpora.load(corpus)
    data = np.asarray(found.bytes[: 1 << 25])
    count_pairs(data, lags)  # refuses lags that do not fit, and compiles
    rows: list[dict[str, Any]] = []
    for work, (functions, compared, limit) in WORKS.items():
        entries = {}
        for name, function in functions.items():
            part = data[: max(MEGABYTES.get(name, 32) << 20, lags[-1] + 1)]
            error = partial(compared, truth=bincount(part, lags))
            entries[name] = Contender(partial(partial, function, part, lags), error, limit, part.size * len(lags))
        rows += contest.compare(entries, rounds, work)
    described = {"name": found.name, "source": found.source, "size": found.size, "sha256": found.sha256}
    contest.show("mi", "pairs/s", rows, out, COUNT_PACKAGES, corpus=described, lags=list(lags))


def information_error(result: NDArray[np.float64], truth: NDArray[np.int64]) -> float:
    """Return the largest relative difference from the information of the true tables; inf for NaN."""
    exact = np.array([mutual_information(table.reshape(256, 256)) for table in truth])
    return float(np.nan_to_num(np.abs(result - exact) / exact, nan=np.inf).max())


WORKS: dict[str, tuple[dict[str, Callable[..., Any]], Callable[..., float], float]] = {
    "pair tables": (
        {OURS: tables, "np.bincount": bincount},
        lambda result, truth: float(np.abs(result - truth).max()),
        0.0,
    ),
    "mutual information": (
        {
            OURS: information,
            "pyinform": partial(peer_information, "pyinform", "mutual_info", unit=math.log(2)),
            "scikit-learn": partial(peer_information, "sklearn.metrics", "mutual_info_score"),
            "infomeasure": partial(
                peer_information, "infomeasure", "mutual_information", approach="discrete", base="e"
            ),
        },
        information_error,
        1e-9,
    ),
}
