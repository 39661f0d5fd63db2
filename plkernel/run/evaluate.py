"""Evaluation: bits per byte, by position and with context taken away; saturation, growth of the residual stream."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from plkernel.analysis.trained.context import Truncation, by_position, lengths, truncation_of
from plkernel.analysis.trained.saturation import Amplification, Saturation, saturation
from plkernel.models.rwkv import RWKV
from plkernel.models.ssm import SSM
from plkernel.run.build import Model
from plkernel.run.objective import autocast, bits_per_byte, losses_per_byte

Losses = Callable[[np.ndarray, int | None], np.ndarray]
"""Bits (n,T) of the best predictor there is at the bytes of windows (n,T+1), given so many bytes before them."""


@dataclass(frozen=True)
class Diagnosis:
    """What one pass over windows says; `amplification` is None for an SSM.

    losses: (n,T) bits at every predicted byte.
    """

    bits_per_byte: float
    losses: np.ndarray
    saturation: Saturation
    amplification: Amplification | None

    @property
    def finite(self) -> bool:
        """Whether every figure is a number, as it is not once a run has diverged."""
        growth = self.amplification.per_block if self.amplification else ()
        return all(map(math.isfinite, (self.bits_per_byte, *self.saturation.to_dict().values(), *growth)))

    def to_row(self) -> dict[str, Any]:
        """What goes into a row of metrics.jsonl beside the bits per byte."""
        growth = {"amplification": list(self.amplification.per_block)} if self.amplification else {}
        return {
            "saturation": self.saturation.to_dict(),
            **growth,
            "window_bpb": self.losses.mean(axis=1, dtype=np.float64).tolist(),
            "positions": by_position(self.losses).to_dict(),
        }


def diagnose(model: nn.Module, windows: Tensor, batch: int, device: torch.device) -> Diagnosis:
    """Everything that one pass over `windows` (n, context + 1) says; leaves the model in eval mode, without hooks."""
    found: list[Saturation] = []
    losses: list[np.ndarray] = []

    def watch(logits: Tensor, targets: Tensor) -> None:
        found.append(saturation(logits.cpu().numpy(), targets.cpu().numpy()))
        losses.append(losses_per_byte(logits, targets).cpu().numpy())

    with residual_stream(model) as growth:
        bpb = bits_per_byte(model, windows, batch, device, watch)
    amplification = growth.amplification() if growth.squares else None
    return Diagnosis(bpb, np.concatenate(losses), reduce(Saturation.merged, found), amplification)


def truncation(
    model: Model, windows: Tensor, batch: int, device: torch.device, floor: Losses | None = None
) -> Truncation:
    """Bits at the last byte of every window (n, context + 1) when only the last 1, 2, 4 .. `context` bytes are given.

    The same bytes are predicted each time, so that differences are paired. What comes before is not there: the model
    starts anew, at a border of its patches. Raises ValueError for a model that is not causal.
    """
    if not model.config.causal:
        raise ValueError("a truncation curve needs a causal model, got patching mode 'published', which sees ahead")
    context = windows.shape[1] - 1
    given = lengths(context, model.config.patch if isinstance(model, SSM) else 1)
    model.eval()
    found = [_last_losses(model, windows[:, context - length :], batch * context // length, device) for length in given]
    least = [floor(windows[:, context - length :].numpy(), length)[:, -1] for length in given] if floor else None
    return truncation_of(given, np.stack(found), None if least is None else np.stack(least))


def _last_losses(model: Model, windows: Tensor, batch: int, device: torch.device) -> np.ndarray:
    """Bits (n,) at the last byte of every window."""
    losses = []
    with torch.no_grad():
        for chunk in windows.split(batch):
            with autocast(device):
                logits = model(chunk[:, :-1].to(device)).float()
            losses.append(losses_per_byte(logits[:, -1:], chunk[:, -1:].to(device))[:, 0].cpu().numpy())
    return np.concatenate(losses)


def kernels(model: Model, context: int) -> dict[str, list[Any]]:
    """What an input still weighs in every block after 1, 2, 4 .. `context` bytes: {"lags": (T), "blocks": (L, T)}."""
    lags = [2**power for power in range(context.bit_length()) if 2**power <= context]
    return {"lags": lags, "blocks": [block.tolist() for block in model.kernels(torch.tensor(lags))]}


class ResidualStream:
    """Mean squares of the residual stream: before the first block, which norms it first, and after each block."""

    def __init__(self, places: int) -> None:
        self.squares = [0.0] * places
        self.counts = [0] * places

    def add(self, place: int, stream: Tensor) -> None:
        """Count one batch of the stream at `place`."""
        self.squares[place] += float(stream.float().square().mean()) * stream.numel()
        self.counts[place] += stream.numel()

    def amplification(self) -> Amplification:
        """Of all batches so far, at least one."""
        pairs = zip(self.squares, self.counts, strict=True)
        return Amplification(tuple(math.sqrt(square / count) for square, count in pairs))


@contextmanager
def residual_stream(model: nn.Module) -> Iterator[ResidualStream]:
    """Watches the residual stream of an RWKV (B,T,D) as long as it is open; of other models nothing."""
    if not isinstance(model, RWKV):
        yield ResidualStream(0)
        return
    stream = ResidualStream(1 + len(model.blocks))
    first = model.get_submodule("blocks.0.ln0")
    hooks = [first.register_forward_hook(lambda _module, _inputs, x: stream.add(0, x))]
    for place, block in enumerate(model.blocks, start=1):
        hooks.append(block.register_forward_hook(lambda _module, _inputs, out, at=place: stream.add(at, out[0])))
    try:
        yield stream
    finally:
        for hook in hooks:
            hook.remove()
