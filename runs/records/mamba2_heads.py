"""Size of what the heads of a Mamba-2 give, by position, and heads that are levelled."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from plkernel.models.mamba2 import mixers_of

AROUND = 64
"""Positions before and behind one that the size of a head at it is averaged over, to level it."""


@torch.no_grad()
def powers_of_heads(model: Any, mixer: Any, inputs: Tensor) -> Tensor:
    """Return mean squares (T,H) of what the heads of a layer give for `inputs` (B,T).

    They are taken where they enter the gated normalisation of the layer, the skip D x among them.
    """
    found: list[Tensor] = []

    def keep(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        values, *_gate = given
        by_head = values.unflatten(2, (mixer.num_heads, -1))
        found.append(by_head.square().mean(dim=(0, 3)))

    hook = mixer.norm.register_forward_pre_hook(keep)
    try:
        model(inputs)
    finally:
        hook.remove()
    (powers,) = found
    return powers


@contextmanager
def levelled(model: Any, inputs: Tensor, context: int) -> Iterator[None]:
    """Divide what each head gives behind `context` by its growth since, over `inputs` (B,T).

    The growth is a mean over windows. Layers are levelled from the first on: one reads what those
    below it give, which are levelled by then.
    """
    with ExitStack() as stack:
        for mixer in mixers_of(model):
            hook = _level(mixer, powers_of_heads(model, mixer, inputs), context)
            stack.callback(hook.remove)
        yield


def _level(mixer: Any, powers: Tensor, context: int) -> RemovableHandle:
    """Level the heads of one layer, whose mean squares are `powers` (T,H), until removed."""
    ends = F.pad(powers.T[None], (AROUND, AROUND), mode="replicate")
    around = F.avg_pool1d(ends, 2 * AROUND + 1, stride=1)[0].T
    within = powers[context // 2 : context].mean(dim=0)
    factors = (within / around).sqrt()
    factors[:context] = 1.0

    def divide(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        values, *gate = given
        by_head = values.unflatten(2, (mixer.num_heads, -1))
        level = by_head * factors[: values.shape[1], :, None]
        return level.flatten(2), *gate

    handle: RemovableHandle = mixer.norm.register_forward_pre_hook(divide)
    return handle
