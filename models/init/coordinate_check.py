"""Coordinate checks: activations over widths in training, and the residual stream over depth at the start.

At each width a model takes a few steps of Adam at one base learning rate. With x_0 the coordinates of an activation at
the start and x_t after t steps, on the same inputs, the check is the slope of ln rms(x_t - x_0) against ln width: 0
where a parametrisation transfers learning rates from width to width, near 1 where wider models move too far. It is the
change that counts: x_0 itself may shrink with width, as logits do under muP. Source: Tensor Programs V (arXiv
2203.03466), appendix D.1 and figure 5, where the standard deviation of the coordinates is taken.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plkernel.models.init.plan import Plan

Floats = npt.NDArray[np.float64]
FLAT = 0.1
"""Slopes of at most this size count as flat."""
EPS = 1e-16  # small beside every gradient: an Adam that its eps slows down at large widths would look flat
PLACES = (
    (r"emb(edding)?", "embedding"),
    (r"blocks\.(\d+)\.(?:ssm|att)", "mixer {}"),
    (r"blocks\.(\d+)\.(?:mlp|ffn)", "ffn {}"),
    (r"blocks\.(\d+)", "block {}"),
    (r"head", "logits"),
)


class Slope(NamedTuple):
    """d ln rms / d ln width of one activation, the mean of the seeds, and their standard error (nan for one seed).

    verdict: flat, grows, shrinks, does not move or diverges.
    """

    value: float
    error: float
    verdict: str


def slope_of(widths: Sequence[int], rms: Floats) -> Slope:
    """Least squares on (ln width, ln rms(x_t - x_0)) after the last step, seed by seed; see `coordinate_check`."""
    values = rms[:, :, -1]
    if not np.isfinite(values).all():
        return Slope(math.nan, math.nan, "diverges")
    if not (values > 0).all():
        return Slope(math.nan, math.nan, "does not move")
    slopes = np.polyfit(np.log(widths), np.log(values), 1)[0]
    mean = float(slopes.mean())
    error = float(slopes.std(ddof=1) / math.sqrt(slopes.size)) if slopes.size > 1 else math.nan
    return Slope(mean, error, "flat" if abs(mean) <= FLAT else "grows" if mean > 0 else "shrinks")


class Propagation(NamedTuple):
    """The residual stream of a model at initialisation, before the first block and after each: depth + 1 numbers.

    forward: rms of its coordinates. backward: rms of the gradient there, for independent N(0, 1) gradients after the
    last block, so that the head has no part in it. Both geometric means of the seeds.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]

    @property
    def growth(self) -> tuple[float, float]:
        """Per block, forward and backward, as the geometric mean; nan where either end is zero."""
        depth = len(self.forward) - 1
        ends = ((self.forward[0], self.forward[-1]), (self.backward[-1], self.backward[0]))
        forward, backward = ((b / a) ** (1 / depth) if a > 0 < b else math.nan for a, b in ends)
        return forward, backward


def geometric(values: Floats) -> Floats:
    """The geometric mean over the last axis, the seeds; 0 where one of them is 0, nan where one is not finite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        means: Floats = np.exp(np.log(values).mean(axis=-1))
    return np.where(np.isfinite(means), means, math.nan)


def coordinate_check(
    make: Callable[[int, int], tuple[nn.Module, Plan]],
    windows: Tensor,
    widths: Sequence[int],
    *,
    steps: int = 4,
    seeds: int = 3,
    learning_rate: float = 2**-10,
    progress: Callable[[float], Any] = lambda share: None,
) -> dict[str, Floats]:
    """Changes of activations in `steps` of Adam on one batch, at every width and seed.

    Returns root mean squares by activation, widths x seeds x (1 + steps): first that of x_0, then of x_t - x_0.

    make: from width and seed to a filled model and its plan, whose groups the optimiser has; betas are 0.9 and 0.999,
    and there is no weight decay. windows: bytes (B,T+1), the same at every step. Activations: embedding, the branches
    mixer i and ffn i before they join the residual stream, the stream after block i, and the logits.
    Raises ValueError for fewer than two widths, and for steps, seeds or a learning rate that are not positive.
    """
    if len(set(widths)) < 2:
        raise ValueError(f"widths must be at least two, got {', '.join(map(str, widths)) or 'none'}")
    for name, value in (("steps", steps), ("seeds", seeds), ("learning_rate", learning_rate)):
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")
    rows: dict[str, list[list[float]]] = {}
    work = sum(width**2 for width in widths) * seeds
    for width in widths:
        for seed in range(seeds):
            model, plan = make(width, seed)
            optimizer = torch.optim.Adam(plan.param_groups(model, learning_rate, 0.0, EPS))
            for name, values in changes(model, optimizer, windows, steps).items():
                rows.setdefault(name, []).append(values)
            progress(width**2 / work)
    shape = (len(widths), seeds, 1 + steps)
    return {name: np.array(values).reshape(shape) for name, values in rows.items()}


def changes(model: nn.Module, optimizer: torch.optim.Optimizer, windows: Tensor, steps: int) -> dict[str, list[float]]:
    """By activation: rms(x_0), then rms(x_t - x_0) for t = 1..steps; the model is trained in place."""
    inputs, targets = windows[:, :-1], windows[:, 1:]
    seen: dict[str, Tensor] = {}
    starts: dict[str, Tensor] = {}
    sizes: dict[str, list[float]] = {}

    def keep(place: str) -> Callable[..., None]:
        return lambda _, args, out: seen.update({place: out[0] if isinstance(out, tuple) else out})

    hooks = [
        module.register_forward_hook(keep(place.format(*match.groups()[-1:])))
        for name, module in model.named_modules()
        for pattern, place in PLACES
        if (match := re.fullmatch(pattern, name))
    ]
    for step in range(steps + 1):
        optimizer.zero_grad()
        logits = model(inputs)
        for name, value in seen.items():
            start = starts.setdefault(name, value.detach())
            sizes.setdefault(name, []).append(rms(value - start if step else value))
        if step < steps:
            F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
            optimizer.step()
    for hook in hooks:
        hook.remove()
    return sizes


def rms(x: Tensor) -> float:
    """Root of the mean square."""
    return float(x.detach().double().square().mean().sqrt())


def propagation(make: Callable[[int], nn.Module], windows: Tensor, seeds: int = 3) -> Propagation:
    """The residual stream at initialisation, forward and backward; `make` gives the filled model of a seed."""
    runs = np.array([stream(make(seed), windows[:, :-1], seed) for seed in range(seeds)])
    return Propagation(*(tuple(values) for values in geometric(np.moveaxis(runs, 0, -1)).tolist()))


def stream(model: nn.Module, inputs: Tensor, seed: int) -> Propagation:
    """Forward and backward root mean squares before the first block (in an RWKV after its ln0) and after each."""
    places: list[Tensor] = []
    blocks = list(model.get_submodule("blocks").children())
    norm = getattr(blocks[0], "ln0", None)
    if norm is None:
        hooks = [blocks[0].register_forward_pre_hook(lambda _, args: places.append(args[0]))]
    else:
        hooks = [norm.register_forward_hook(lambda _, args, out: places.append(out))]
    hooks += [block.register_forward_hook(lambda _, args, out: places.append(out[0])) for block in blocks]
    model(inputs)
    for hook in hooks:
        hook.remove()
    noise = torch.randn(places[-1].shape, generator=torch.Generator().manual_seed(seed))
    gradients = torch.autograd.grad(places[-1], places, noise)
    return Propagation(tuple(map(rms, places)), tuple(map(rms, gradients)))
