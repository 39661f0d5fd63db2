"""What training minimises and how: bits per byte, AdamW, the learning rate."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plkernel.models import NOT_CAUSAL
from plkernel.models.ssm import BYTES
from plkernel.spec import TrainSpec

NATS_PER_BIT = math.log(2)


def build_optimizer(model: nn.Module, train: TrainSpec) -> torch.optim.AdamW:
    """AdamW; weight decay on true matrices only: never on decays, gains, biases, norms, token shifts, low-rank maps."""
    named = list(model.named_parameters())
    matrices = {name for name, p in named if name.endswith(".weight") and p.squeeze().ndim >= 2}
    groups = [
        {"params": [p for name, p in named if name in matrices], "weight_decay": train.weight_decay},
        {"params": [p for name, p in named if name not in matrices], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=train.learning_rate, betas=(train.beta1, train.beta2), fused=True)


def learning_rate(train: TrainSpec, step: int, fraction: float) -> float:
    """The rate of step `step` (from 0), when `fraction` of the budget is spent.

    Linear warm-up to the peak, times 1 (constant) or a cosine from 1 to final_fraction over the whole budget.
    """
    warm = min(1.0, (step + 1) / (train.warmup + 1))
    if train.schedule == "constant":
        return train.learning_rate * warm
    floor = train.final_fraction
    return train.learning_rate * warm * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(fraction, 1.0))))


def bits_per_byte(model: nn.Module, windows: Tensor, batch: int, device: torch.device) -> float:
    """Mean -log2 p(byte) over every predicted byte of `windows` (n, context + 1)."""
    nats = 0.0
    with torch.no_grad():
        for chunk in windows.split(batch):
            with autocast(device):
                nats += float(next_byte_loss(model, chunk.to(device), "sum"))
    return nats / windows[:, 1:].numel() / NATS_PER_BIT


def next_byte_loss(model: nn.Module, windows: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy in nats of bytes 1..T of each window (B,T+1) given the bytes before them."""
    logits = model(windows[:, :-1])
    return F.cross_entropy(logits.float().reshape(-1, BYTES), windows[:, 1:].reshape(-1), reduction=reduction)


def autocast(device: torch.device) -> AbstractContextManager[Any]:
    """bfloat16 autocast on a GPU, nothing on a CPU."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()


def label(causal: bool) -> str:
    """What follows the bits per byte of a model: nothing, or that they are no likelihood."""
    return "" if causal else f" [{NOT_CAUSAL}]"
