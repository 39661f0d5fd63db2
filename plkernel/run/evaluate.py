"""One pass over evaluation windows: bits per byte, saturation of the logits, growth of the residual stream."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from plkernel.analysis.trained.saturation import Amplification, Saturation, saturation
from plkernel.models.rwkv import RWKV
from plkernel.run.build import Model
from plkernel.run.objective import bits_per_byte


@dataclass(frozen=True)
class Diagnosis:
    """What one pass over windows says; `amplification` is None for an SSM."""

    bits_per_byte: float
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
        return {"saturation": self.saturation.to_dict(), **growth}


def diagnose(model: nn.Module, windows: Tensor, batch: int, device: torch.device) -> Diagnosis:
    """Everything that one pass over `windows` (n, context + 1) says; leaves the model in eval mode, without hooks."""
    found: list[Saturation] = []

    def watch(logits: Tensor, targets: Tensor) -> None:
        found.append(saturation(logits.cpu().numpy(), targets.cpu().numpy()))

    with residual_stream(model) as growth:
        bpb = bits_per_byte(model, windows, batch, device, watch)
    return Diagnosis(bpb, reduce(Saturation.merged, found), growth.amplification() if growth.squares else None)


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
