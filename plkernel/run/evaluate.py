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
Predict = Callable[[Tensor], Tensor]
"""Tokens (B,T), int64 on the CPU, to logits (B,T,V), float32: those at t predict the token after t from all up to t."""


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
    losses: list[Tensor] = []

    def watch(logits: Tensor, targets: Tensor) -> None:
        found.append(saturation(logits.cpu().numpy(), targets.cpu().numpy()))
        losses.append(losses_per_byte(logits, targets))

    with residual_stream(model) as growth:
        bpb = bits_per_byte(model, windows, batch, device, watch)
    amplification = growth.amplification() if growth.means else None
    return Diagnosis(bpb, torch.cat(losses).cpu().numpy(), reduce(Saturation.merged, found), amplification)


def predictor(model: Model, device: torch.device) -> Predict:
    """`model` in evaluation mode as a callable; ValueError for one that is not causal."""
    if not model.config.causal:
        raise ValueError("a causal model is needed, got one with patching mode 'published', which sees ahead")
    model.eval()

    def predict(tokens: Tensor) -> Tensor:
        with autocast(device):
            return model(tokens.to(device)).float()

    return predict


def patch_of(model: Model) -> int:
    """Bytes in a patch of `model`, 1 where it has none: it starts anew at a border of patches only."""
    return model.config.patch if isinstance(model, SSM) else 1


def token_losses(predict: Predict, windows: Tensor, batch: int) -> np.ndarray:
    """Bits (n,T) at the last T tokens of `windows` (n,T+1), given those before."""
    return np.concatenate([_losses(predict, chunk, 0) for chunk in windows.split(batch)])


def truncation(predict: Predict, windows: Tensor, batch: int, floor: Losses | None = None, step: int = 1) -> Truncation:
    """Bits at the last token of every window (n, context + 1) when only the last 1, 2, 4 .. `context` are given.

    The same tokens are predicted each time, so that differences are paired. What comes before is not there: the model
    starts anew, with a multiple of `step` fewer tokens than `context` (`patch_of`). A call of `predict` gets at most
    `batch` x `context` tokens.
    """
    context = windows.shape[1] - 1
    given = lengths(context, step)
    found = []
    for length in given:
        chunks = windows[:, context - length :].split(batch * context // length)
        found.append(np.concatenate([_losses(predict, chunk, length - 1) for chunk in chunks])[:, 0])
    least = [floor(windows[:, context - length :].numpy(), length)[:, -1] for length in given] if floor else None
    return truncation_of(given, np.stack(found), None if least is None else np.stack(least))


def _losses(predict: Predict, windows: Tensor, first: int) -> np.ndarray:
    """Bits (n,T-first) at tokens `first` + 1 .. T of `windows` (n,T+1)."""
    with torch.no_grad():
        logits = predict(windows[:, :-1])[:, first:]
        return losses_per_byte(logits, windows[:, 1 + first :].to(logits.device)).cpu().numpy()


def kernels(model: Model, context: int) -> dict[str, list[Any]]:
    """What an input still weighs in every block after 1, 2, 4 .. `context` bytes: {"lags": (T), "blocks": (L, T)}."""
    lags = [2**power for power in range(context.bit_length()) if 2**power <= context]
    return {"lags": lags, "blocks": [block.tolist() for block in model.kernels(torch.tensor(lags))]}


class ResidualStream:
    """Mean squares of the residual stream: before the first block, which norms it first, and after each block."""

    def __init__(self, places: int) -> None:
        self.means: list[list[Tensor]] = [[] for _ in range(places)]
        self.counts: list[list[int]] = [[] for _ in range(places)]

    def add(self, place: int, stream: Tensor) -> None:
        """Count one batch of the stream at `place`; nothing is read from its device before the end."""
        self.means[place].append(stream.float().square().mean())
        self.counts[place].append(stream.numel())

    def amplification(self) -> Amplification:
        """Of all batches so far, at least one."""
        rms = []
        for means, counts in zip(self.means, self.counts, strict=True):
            squares = sum(mean * count for mean, count in zip(torch.stack(means).tolist(), counts, strict=True))
            rms.append(math.sqrt(squares / sum(counts)))
        return Amplification(tuple(rms))


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
