"""Byte patching: the recurrence runs over patches of P bytes, its states are repeated over their bytes.

Bytes are embedded, every P embeddings are averaged into one patch, the blocks run over patches, and each patch state
goes back to bytes, where the byte's own embedding is added. The two modes differ in which patch a byte receives.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from plkernel.models.words import PatchingMode


@dataclass(frozen=True)
class Patches:
    """Memory of `causal` patching between two windows of one text: constant in the number of bytes seen.

    total: (B,D) sum of the embeddings of the unfinished patch; last: (B,D) state of the last completed patch, zero
    before there is one; position: bytes in the unfinished patch, 0..P-1.
    """

    total: Tensor
    last: Tensor
    position: int


def pool(x: Tensor, size: int) -> Tensor:
    """Mean of every `size` consecutive embeddings: (B,T,D) -> (B,ceil(T/size),D); a last short patch is zero-padded.

    The padded patch is never complete, so in `causal` mode no byte reads it.
    """
    batch, time, dim = x.shape
    x = torch.nn.functional.pad(x, (0, 0, 0, -time % size))
    return x.view(batch, x.shape[1] // size, size, dim).mean(dim=2)


def unpool(patches: Tensor, size: int, time: int, mode: PatchingMode) -> Tensor:
    """Patch states back on bytes: (B,ceil(T/size),D) -> (B,T,D).

    causal: byte t receives the last COMPLETED patch, number (t+1)//size - 1, and zeros before the first is complete.
    published: byte t receives its own patch t//size, which averages bytes up to size - 1 ahead of it: for size 2,
    position 2p predicts byte 2p+1 from the mean of bytes 2p and 2p+1. Not causal, not a likelihood.
    """
    repeated = patches.repeat_interleave(size, dim=1)
    if mode == "causal":
        repeated = torch.nn.functional.pad(repeated, (0, 0, size - 1, 0))
    return repeated[:, :time]


def pool_on(x: Tensor, size: int, before: Patches) -> Tensor:
    """Means of the patches that bytes x (B,T,D) complete after `before`: (B,(position + T) // size,D)."""
    batch, time, dim = x.shape
    count = (before.position + time) // size
    if count == 0:
        return x[:, :0]
    whole = torch.nn.functional.pad(x, (0, 0, before.position, 0))[:, : count * size]
    sums = whole.view(batch, count, size, dim).sum(dim=2)
    return torch.cat((sums[:, :1] + before.total[:, None], sums[:, 1:]), dim=1) / size


def unpool_on(patches: Tensor, x: Tensor, size: int, before: Patches) -> tuple[Tensor, Patches]:
    """The state of the last completed patch on each of the bytes x (B,T,D), and the memory after them.

    patches: (B,N,D), what the blocks made of the patches that `pool_on` gave. Window by window this is `unpool` in
    mode `causal`; in `published` there is no such thing, because a byte waits for the rest of its patch.
    """
    time, count = x.shape[1], patches.shape[1]
    known = torch.cat((before.last[:, None], patches), dim=1)
    end = before.position + time
    number = torch.arange(before.position + 1, end + 1, device=x.device) // size
    rest = x[:, count * size - before.position :].sum(dim=1) if count else before.total + x.sum(dim=1)
    return known[:, number], Patches(rest, known[:, -1], end % size)
