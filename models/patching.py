"""Byte patching: the recurrence runs over patches of P bytes, its states are repeated over their bytes.

Bytes are embedded, every P embeddings are averaged into one patch, the blocks run over patches, and each patch state
goes back to bytes, where the byte's own embedding is added. The two modes differ in which patch a byte receives.
"""

from typing import Literal

import torch
from torch import Tensor

PatchingMode = Literal["causal", "published"]


def pool(x: Tensor, size: int) -> Tensor:
    """Mean of every `size` consecutive embeddings: (B,T,D) -> (B,ceil(T/size),D); a last short patch is zero-padded.

    The padded patch is never complete, so in `causal` mode no byte reads it.
    """
    batch, time, dim = x.shape
    x = torch.nn.functional.pad(x, (0, 0, 0, -time % size))
    return x.view(batch, -1, size, dim).mean(dim=2)


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
