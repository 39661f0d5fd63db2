"""A model that benchmarks time in their tests."""

import torch
from torch import nn

from plkernel.models.layers import BYTES


class Bigram(nn.Module):
    """`scale` times the logits of the next byte by the last one; `seen` are the tokens it got."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.table = nn.Embedding(BYTES, BYTES)
        self.scale = scale
        self.seen: list[torch.Tensor] = []

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.seen.append(tokens.clone())
        logits: torch.Tensor = self.scale * self.table(tokens)
        return logits
