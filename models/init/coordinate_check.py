"""Activations in the first steps of training, and the residual stream at the start, of either of our models."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plkernel.analysis.trained.coordinates import Coordinates, Propagation, together
from plkernel.models.init.plan import Plan

EPS = 1e-16  # small beside every gradient: an Adam that its eps slows down at large widths would look flat
PLACES = (
    (r"emb(edding)?", "embedding"),
    (r"blocks\.(\d+)\.(?:ssm|att)", "mixer {}"),
    (r"blocks\.(\d+)\.(?:mlp|ffn)", "ffn {}"),
    (r"blocks\.(\d+)", "block {}"),
    (r"head", "logits"),
)
Progress = Callable[[float], Any]


def coordinate_check(
    make: Callable[[int, int], tuple[nn.Module, Plan]],
    windows: Tensor,
    widths: Sequence[int],
    *,
    steps: int = 4,
    seeds: int = 3,
    learning_rate: float = 2**-10,
    progress: Progress = lambda share: None,
) -> Coordinates:
    """How far activations move in `steps` of the plan's optimiser, mostly Adam, on one batch, at every width and seed.

    make: from width and seed to a filled model and its plan. windows: bytes (B,T+1), the same at every step. The
    optimiser has the plan's groups, of Adam with betas 0.9 and 0.999, and no weight decay. Activations: embedding, the
    branches mixer i and ffn i before they join the residual stream, the stream after block i, and the logits.
    Raises ValueError for fewer than two widths, and for steps, seeds or a learning rate that are not positive.
    """
    if len(set(widths)) < 2:
        raise ValueError(f"widths must be at least two, got {', '.join(map(str, widths)) or 'none'}")
    for name, value in (("steps", steps), ("seeds", seeds), ("learning_rate", learning_rate)):
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")
    widths = sorted(set(widths))
    found: dict[str, list[list[list[float]]]] = {}
    work = sum(width**2 for width in widths) * seeds
    for at, width in enumerate(widths):
        for seed in range(seeds):
            model, plan = make(width, seed)
            optimizer = (torch.optim.SGD if plan.optimizer == "sgd" else torch.optim.Adam)(
                plan.param_groups(model, learning_rate, 0.0, EPS)
            )
            for name, values in changes(model, optimizer, windows, steps).items():
                found.setdefault(name, [[] for _ in widths])[at].append(values)
            progress(width**2 / work)
    starts, moved = (
        {name: [[seed[part] for seed in width] for width in values] for name, values in found.items()}
        for part in (slice(0, 1), slice(1, None))
    )
    return Coordinates(tuple(widths), learning_rate, starts, moved)


def changes(model: nn.Module, optimizer: torch.optim.Optimizer, windows: Tensor, steps: int) -> dict[str, list[float]]:
    """By activation: rms(x_0), then rms(x_t - x_0) for t = 1..steps; the model is trained in place."""
    inputs, targets = windows[:, :-1], windows[:, 1:]
    starts: dict[str, Tensor] = {}
    found: dict[str, list[float]] = {}
    with watched(model) as seen:
        for step in range(steps + 1):
            optimizer.zero_grad()
            logits = model(inputs)
            for name, value in seen.items():
                start = starts.setdefault(name, value.detach())
                found.setdefault(name, []).append(rms(value - start if step else value))
            if step < steps:
                F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
                optimizer.step()
    return found


@contextmanager
def watched(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """What the modules of PLACES gave in the last forward pass, by place."""
    seen: dict[str, Tensor] = {}

    def keep(place: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            seen[place] = output[0] if isinstance(output, tuple) else output

        return hook

    hooks = [
        module.register_forward_hook(keep(place)) for name, module in model.named_modules() if (place := place_of(name))
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def place_of(name: str) -> str | None:
    """The place of a module by its name."""
    for pattern, place in PLACES:
        if found := re.fullmatch(pattern, name):
            return place.format(found[found.re.groups] if found.re.groups else "")
    return None


def rms(x: Tensor) -> float:
    """Root of the mean square."""
    return float(x.detach().double().square().mean().sqrt())


def propagation(make: Callable[[int], nn.Module], windows: Tensor, seeds: int = 3) -> Propagation:
    """The residual stream at initialisation, forward and backward; `make` gives the filled model of a seed."""
    return together([stream(make(seed), windows[:, :-1], seed) for seed in range(seeds)])


def stream(model: nn.Module, inputs: Tensor, seed: int) -> Propagation:
    """Forward and backward root mean squares before the first block (in an RWKV after its ln0) and after each."""
    places: list[Tensor] = []
    first: Any = model.get_submodule("blocks.0")
    norm = getattr(first, "ln0", None)
    if norm is not None:
        hooks = [norm.register_forward_hook(lambda _, args, out: places.append(out))]
    else:
        hooks = [first.register_forward_pre_hook(lambda _, args: places.append(args[0]))]
    for block in model.get_submodule("blocks").children():
        hooks.append(block.register_forward_hook(lambda _, args, out: places.append(out[0])))
    try:
        model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    noise = torch.randn(places[-1].shape, generator=torch.Generator().manual_seed(seed))
    gradients = torch.autograd.grad(places[-1], places, noise)
    return Propagation(tuple(map(rms, places)), tuple(map(rms, gradients)))
