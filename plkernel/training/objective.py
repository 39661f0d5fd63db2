"""The objective of training and how it is minimised: bits per byte, AdamW, the learning rate."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plkernel.config.schema import TrainSpec
from plkernel.memory.foreign import Foreign
from plkernel.models import NOT_CAUSAL
from plkernel.models.init.plan import Plan, grouped, is_matrix
from plkernel.models.layers import BYTES

NATS_PER_BIT = math.log(2)
DECAYS = (".time_decay", ".att.w0", ".log_rate")  # of RWKV-5 and 6, of RWKV-7, and of the SSM


def build_optimizer(model: nn.Module, train: TrainSpec, plan: Plan | Foreign | None = None) -> torch.optim.AdamW:
    """AdamW with the multipliers of the plan for learning rate, weight decay and eps of every parameter.

    Without a plan all are 1, and weight decay acts on true matrices only (`is_matrix`): never on decays, gains, biases,
    norms, token shifts, low-rank maps. `train.decay_multiplier`, where given, is the rate of the decays themselves
    (DECAYS); 0 takes them out of training, and so out of the norm of the gradient. An eps of 1e-18 is safe in float32:
    a gradient of zero moves nothing, and below 1e-18, where second moments underflow, the step is at most about the
    rate.
    """
    parameters = dict(model.named_parameters())
    multipliers = {name: (1.0, float(is_matrix(name, values)), 1.0) for name, values in parameters.items()}
    multipliers |= plan.multipliers() if plan else {}
    for name in parameters:
        if train.decay_multiplier is not None and name.endswith(DECAYS):
            multipliers[name] = (train.decay_multiplier, *multipliers[name][1:])
            parameters[name].requires_grad_(train.decay_multiplier > 0)
    groups = grouped(parameters, multipliers, train.learning_rate, train.weight_decay, train.eps)
    return torch.optim.AdamW(groups, lr=train.learning_rate, betas=(train.beta1, train.beta2), fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group of `build_optimizer` this rate times its multiplier."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_multiplier"]


def learning_rate(train: TrainSpec, step: int, fraction: float) -> float:
    """The rate of step `step` (from 0), when `fraction` of the budget is spent: peak * warm-up * schedule(p).

    Warm-up over W steps: (step + 1) / (W + 1), or with `warmup_from` w: w + (1 - w) step / W, both up to 1.
    Schedule from 1 to the final fraction f: cosine f + (1 - f) (1 + cos(pi p)) / 2, exponential f**p, linear
    1 - (1 - f) p, constant 1. p is the spent share of the budget, with `warmup_from` of its steps after the warm-up
    (a budget in minutes cannot tell where that ends: there p is the share of all of it).
    """
    steps, warmup, first = train.total_steps, train.warmup, train.warmup_from
    if first is None:
        warm_up = min(1.0, (step + 1) / (warmup + 1))
    else:
        warm_up = first + (1 - first) * step / warmup if step < warmup else 1.0
        if steps is not None:
            fraction = (fraction * steps - warmup) / (steps - warmup) if steps > warmup else 0.0
    floor, p = train.final_fraction, min(1.0, max(0.0, fraction))
    shape = {
        "cosine": floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * p)),
        "exponential": floor**p,
        "linear": 1 - (1 - floor) * p,
        "constant": 1.0,
    }[train.schedule]
    return train.learning_rate * warm_up * shape


def next_byte_loss(model: Callable[[Tensor], Tensor], windows: Tensor, l2wrap: float = 0.0) -> Tensor:
    """Cross-entropy in nats of bytes 1..T of each window (B,T+1) given the bytes before them.

    `l2wrap` acts on the gradient alone: at each position it adds l2wrap * z / (B T) to that of the largest logit z,
    which keeps the logits from drifting (the L2Wrap of the official RWKV code).
    """
    logits = model(windows[:, :-1]).float()
    loss = F.cross_entropy(logits.reshape(-1, BYTES), windows[:, 1:].reshape(-1))
    if l2wrap:
        pull = 0.5 * l2wrap * logits.max(dim=-1).values.square().mean()
        loss = loss + (pull - pull.detach())
    return loss


def bits_per_byte(
    model: nn.Module,
    windows: Tensor,
    batch: int,
    device: torch.device,
    watch: Callable[[Tensor, Tensor], object] | None = None,
) -> float:
    """Mean -log2 p(byte) over every predicted byte of `windows` (n, context + 1); leaves the model in eval mode.

    `watch` is called with the logits (B,T,256) and the target bytes (B,T) of every batch.
    """
    model.eval()
    nats = torch.zeros((), dtype=torch.float64, device=device)
    with torch.no_grad():
        for chunk in windows.split(batch):
            inputs, targets = chunk[:, :-1].to(device), chunk[:, 1:].to(device)
            with autocast(device):
                logits = model(inputs).float()
                nats += F.cross_entropy(logits.reshape(-1, BYTES), targets.reshape(-1), reduction="sum")
            if watch is not None:
                watch(logits, targets)
    return nats.item() / windows[:, 1:].numel() / NATS_PER_BIT


def losses_per_byte(logits: Tensor, targets: Tensor) -> Tensor:
    """-log2 p(target) of logits (B,T,V) and bytes, or tokens of any alphabet, (B,T), in bits; shape (B,T)."""
    return F.cross_entropy(logits.transpose(1, 2), targets, reduction="none") / NATS_PER_BIT


def seed_dropout(seed: int, step: int) -> None:
    """Seed the dropout masks of a step by (seed, step) alone, for resumed runs."""
    torch.manual_seed(int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0]))


def autocast(device: torch.device) -> AbstractContextManager[Any]:
    """bfloat16 autocast on a GPU, nothing on a CPU."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()


def label(causal: bool) -> str:
    """The words after the bits per byte of a model that is not causal; nothing for one that is."""
    return "" if causal else f" [{NOT_CAUSAL}]"


def summary(name: str, result: Mapping[str, Any]) -> str:
    """The result of the run of that name in one line."""
    return (
        f"{name}: {result['steps']} steps, validation {result['final_val_bpb']:.4f} "
        f"(best {result['best_val_bpb']:.4f} at step {result['best_step']}), test {result['test_bpb']:.4f} "
        f"bits per byte, {result['seconds']:.0f} s{label(result['causal'])}"
    )
