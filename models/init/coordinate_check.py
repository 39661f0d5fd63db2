"""Coordinate checks: activations over widths in training, and the residual stream over depth at the start.

At each width a model takes a few steps of Adam at one base learning rate. With x_0 the coordinates of an activation at
the start and x_t after t steps, on the same inputs, the check is the slope of ln rms(x_t - x_0) against ln width: 0
where a parametrisation transfers learning rates from width to width, near 1 where wider models move too far. It is the
change that counts: x_0 itself may shrink with width, as logits do under muP. Source: Tensor Programs V (arXiv
2203.03466), appendix D.1 and figure 5, where the standard deviation of the coordinates is taken.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plkernel.analysis.figures.style import COLOURS, INK, PAGE_WIDTH, line_style, plain_ticks, style
from plkernel.models.init.plan import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
Verdict = Literal["flat", "grows", "shrinks", "does not move", "diverges"]
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


@dataclass(frozen=True)
class Slope:
    """d ln rms / d ln width of one activation, the mean of the seeds, and their standard error (nan for one seed)."""

    value: float
    error: float
    verdict: Verdict


@dataclass(frozen=True)
class Coordinates:
    """Root mean squares of the coordinates, by activation; each holds widths x seeds x steps numbers.

    starts: of x_0, widths x seeds x 1. changes: of x_t - x_0 for t = 1, 2, ...
    """

    widths: tuple[int, ...]
    learning_rate: float
    starts: Mapping[str, Any]
    changes: Mapping[str, Any]

    @property
    def names(self) -> list[str]:
        """The activations, from the input to the logits."""
        return list(self.changes)

    @property
    def steps(self) -> int:
        """Number of steps taken."""
        return int(np.shape(self.changes[self.names[0]])[2])

    def change(self, name: str) -> Floats:
        """rms(x_t - x_0) by width after the last step, the geometric mean of the seeds."""
        return geometric(np.asarray(self.changes[name], dtype=float)[:, :, -1])

    def slope(self, name: str) -> Slope:
        """Least squares on (ln width, ln rms(x_t - x_0)) after the last step, seed by seed."""
        values = np.asarray(self.changes[name], dtype=float)[:, :, -1]
        if not np.isfinite(values).all():
            return Slope(math.nan, math.nan, "diverges")
        if not (values > 0).all():
            return Slope(math.nan, math.nan, "does not move")
        slopes = np.polyfit(np.log(self.widths), np.log(values), 1)[0]
        mean = float(slopes.mean())
        error = float(slopes.std(ddof=1) / math.sqrt(slopes.size)) if slopes.size > 1 else math.nan
        return Slope(mean, error, "flat" if abs(mean) <= FLAT else "grows" if mean > 0 else "shrinks")

    def verdict(self) -> str:
        """One sentence on all activations."""
        slopes = {name: self.slope(name) for name in self.names}
        parts = []
        for kind in dict.fromkeys(slope.verdict for slope in slopes.values() if slope.verdict != "flat"):
            names = [f"{name} ({s.value:+.2f})" for name, s in slopes.items() if s.verdict == kind]
            parts.append(f"{kind}: {', '.join(names)}".replace(" (+nan)", ""))
        return (
            f"not flat in width; {'; '.join(parts)}" if parts else f"flat in width within {FLAT:g}, all {len(slopes)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that JSON keeps."""
        return asdict(self)


@dataclass(frozen=True)
class Propagation:
    """The residual stream of a model at initialisation, before the first block and after each: depth + 1 numbers.

    forward: rms of its coordinates. backward: rms of the gradient there, for independent N(0, 1) gradients after the
    last block, so that the head has no part in it. Both geometric means of the seeds.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]

    @property
    def depth(self) -> int:
        """Number of blocks."""
        return len(self.forward) - 1

    @property
    def growth(self) -> tuple[float, float]:
        """Per block, forward and backward, as the geometric mean; nan where either end is zero."""
        ends = ((self.forward[0], self.forward[-1]), (self.backward[-1], self.backward[0]))
        ratios = [last / first if first > 0 else math.nan for first, last in ends]
        forward, backward = (
            ratio ** (1 / self.depth) if math.isfinite(ratio) and ratio > 0 else math.nan for ratio in ratios
        )
        return forward, backward


def geometric(values: Floats) -> Floats:
    """The geometric mean over the seeds of widths x seeds; 0 where one of them is 0, nan where one is not finite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        means: Floats = np.exp(np.log(values).mean(axis=1))
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
) -> Coordinates:
    """Changes of activations in `steps` of the plan's optimiser, mostly Adam, on one batch, at every width and seed.

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
    starts: dict[str, list[list[list[float]]]] = {}
    moved: dict[str, list[list[list[float]]]] = {}
    work = sum(width**2 for width in widths) * seeds
    for at, width in enumerate(widths):
        for seed in range(seeds):
            model, plan = make(width, seed)
            groups = plan.param_groups(model, learning_rate, 0.0, EPS)
            optimizer = torch.optim.SGD(groups) if plan.optimizer == "sgd" else torch.optim.Adam(groups)
            for name, values in changes(model, optimizer, windows, steps).items():
                starts.setdefault(name, [[] for _ in widths])[at].append(values[:1])
                moved.setdefault(name, [[] for _ in widths])[at].append(values[1:])
            progress(width**2 / work)
    return Coordinates(tuple(widths), learning_rate, starts, moved)


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
    try:
        for step in range(steps + 1):
            optimizer.zero_grad()
            logits = model(inputs)
            for name, value in seen.items():
                start = starts.setdefault(name, value.detach())
                sizes.setdefault(name, []).append(rms(value - start if step else value))
            if step < steps:
                F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
                optimizer.step()
    finally:
        for hook in hooks:
            hook.remove()
    return sizes


def rms(x: Tensor) -> float:
    """Root of the mean square."""
    return float(x.detach().double().square().mean().sqrt())


def propagation(make: Callable[[int], nn.Module], windows: Tensor, seeds: int = 3) -> Propagation:
    """The residual stream at initialisation, forward and backward; `make` gives the filled model of a seed."""
    runs = [stream(make(seed), windows[:, :-1], seed) for seed in range(seeds)]
    means = [geometric(np.array(values).T) for values in ([r.forward for r in runs], [r.backward for r in runs])]
    return Propagation(*(tuple(values.tolist()) for values in means))


def stream(model: nn.Module, inputs: Tensor, seed: int) -> Propagation:
    """Forward and backward root mean squares before the first block (in an RWKV after its ln0) and after each."""
    places: list[Tensor] = []
    first: Any = model.get_submodule("blocks.0")
    if (norm := getattr(first, "ln0", None)) is not None:
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


def coordinates_figure(checked: Coordinates, depths: Sequence[Propagation], title: str) -> "Figure":
    """Left, rms(x_t - x_0) over width, with the slope beside each name; right, the stream and its gradient by block."""
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 3.1))
        figure.suptitle(title, x=0.01, ha="left", fontsize=8)
        width, *streams = figure.subplots(1, 3)
        for index, name in enumerate(checked.names):
            label = f"{name}  " + f"{checked.slope(name).value:+.2f}".replace("-", "\N{MINUS SIGN}")
            width.plot(checked.widths, _positive(checked.change(name)), lw=1.2, label=label, **line_style(index))
        width.set(xscale="log", yscale="log", xlabel="width")
        width.set_xticks(checked.widths, [str(width) for width in checked.widths])
        width.set_xticks([], minor=True)
        _decades(width)
        width.set_title(f"change in {checked.steps} steps, rms")
        titles = ("residual stream at the start, rms", "its gradient, rms")
        for axes, name, number in zip(streams, ("forward", "backward"), (0, 1), strict=True):
            for colour, item in zip((INK, *COLOURS), depths, strict=False):
                label = f"{item.depth} blocks, {item.growth[number]:.4g} per block"
                axes.plot(range(item.depth + 1), _positive(getattr(item, name)), color=colour, lw=1.2, label=label)
            axes.set(yscale="log", xlabel="block", title=titles[number])
            low, high = axes.get_ylim()
            axes.set_ylim(low / 1.5, high * 1.5)
            _decades(axes)
            axes.legend(loc="best", fontsize=6, handlelength=1.2)
        figure.legend(*width.get_legend_handles_labels(), loc="outside lower left", ncols=4, fontsize=6.5)
    return figure


def _positive(values: Sequence[float] | Floats) -> Floats:
    """The values that a logarithmic axis can show; nan for the others."""
    return np.where(np.asarray(values) > 0, values, np.nan)


def _decades(axes: "Axes") -> None:
    """Plain numbers on the vertical scale: 1, 2 and 5 of each decade, of many decades 1 alone."""
    from matplotlib.ticker import LogLocator

    low, high = axes.get_ylim()
    plain_ticks(axes.yaxis)
    if high > 300 * low:
        axes.yaxis.set_major_locator(LogLocator(numticks=8))
