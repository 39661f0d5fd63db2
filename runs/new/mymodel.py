"""A gated linear recurrence over bytes, h(t) = a h(t-1) + (1 - a) x(t), and a start of its
half-lives.
"""

import math

import torch
from torch import nn

import plkernel
from plkernel.kernels.scan import scan


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(dim)
        self.into = nn.Linear(dim, 2 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.log_rate = nn.Parameter(torch.empty(dim))  # a = exp(-exp(log_rate))
        plkernel.apply(plkernel.place(dim), self.log_rate, parametrisation="log_rate")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u, gate = self.into(self.norm(x)).chunk(2, dim=-1)
        a = torch.exp(-self.log_rate.exp())
        h, _ = scan(a, (1 - a) * u)
        return x + self.out(h * nn.functional.silu(gate))


class Model(nn.Module):
    def __init__(self, config: dict[str, int]) -> None:  # the table [model.config] of the spec
        super().__init__()
        self.embedding = nn.Embedding(256, config["dim"])
        self.blocks = nn.Sequential(*(Block(config["dim"]) for _ in range(config["layers"])))
        self.head = nn.Linear(config["dim"], 256, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:  # bytes (B,T) to logits (B,T,256)
        return self.head(self.blocks(self.embedding(tokens)))

    def half_lives(self) -> list[torch.Tensor]:  # for the report; a study runs without it
        return [math.log(2) / block.log_rate.exp() for block in self.blocks]


def start(model: Model, generator: torch.Generator, longest: float) -> None:
    """`init` of an arm of the spec."""
    for block in model.blocks:
        nodes = plkernel.place(block.log_rate.numel(), longest=longest, gain="ema")
        plkernel.apply(nodes, block.log_rate, parametrisation="log_rate")
