"""Seven distributions that parameters are filled from, as values that print, compare and save."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

Kind = Literal["normal", "truncated", "rescaled", "uniform", "orthogonal", "constant", "keep", "vector"]
SYMBOLS: dict[Kind, str] = {
    "normal": "N",
    "truncated": "T",
    "rescaled": "J",
    "uniform": "U",
    "orthogonal": "O",
    "constant": "C",
}


@dataclass(frozen=True)
class Distribution:
    """One of these, with `scale` s and, where it says so, `cutoff` c or `name`.

    normal N(s): standard deviation s. truncated T(s, c): normal of standard deviation s cut at +-c s and NOT rescaled,
    so that what is drawn has less (0.8796 s at c = 2). rescaled J(s): normal cut at 2 deviations and rescaled so that
    what is drawn has s, as jax does it. uniform U(s): within +-s. orthogonal O(s): rows or columns, whichever are
    fewer, orthogonal and of length s. constant C(s). keep: left as the model has it. vector: a known function of the
    channel, called `name`.
    """

    kind: Kind
    scale: float = 0.0
    cutoff: float | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        if not math.isfinite(self.scale) or (self.scale < 0 and self.kind != "constant"):
            raise ValueError(f"scale of {self.kind} must be a finite number of at least 0, got {self.scale}")
        if (self.cutoff is not None) != (self.kind == "truncated") or (self.cutoff is not None and not self.cutoff > 0):
            raise ValueError(
                f"cutoff goes with kind 'truncated' and must be positive, got {self.cutoff} for {self.kind}"
            )

    def __str__(self) -> str:
        if self.kind in ("keep", "vector"):
            return self.name or "as the model has it"
        cut = f", {self.cutoff:g}" if self.cutoff is not None else ""
        return f"{SYMBOLS[self.kind]}({self.scale:.4g}{cut})"

    @property
    def is_zero(self) -> bool:
        """Whether every entry is zero."""
        return self.kind not in ("keep", "vector") and self.scale == 0

    def std(self, shape: tuple[int, ...] = (1, 1)) -> float:
        """The standard deviation of an entry as drawn, for a parameter of this shape; nan where it is not random."""
        if self.kind in ("normal", "rescaled"):
            return self.scale
        if self.kind == "truncated":
            return self.scale * truncated_std(self.cutoff or math.inf)
        if self.kind == "uniform":
            return self.scale / math.sqrt(3)
        if self.kind == "orthogonal":
            return self.scale / math.sqrt(max(shape))
        return 0.0 if self.kind == "constant" else math.nan

    def times(self, factor: float) -> "Distribution":
        """The same with `factor` times the scale."""
        return Distribution(self.kind, self.scale * factor, self.cutoff, self.name)

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """A tensor of this shape, on the CPU in float32, so that every device gets the same values."""
        out = torch.empty(shape)
        if self.kind == "normal":
            return torch.randn(shape, generator=generator) * self.scale
        if self.kind == "truncated":
            return truncated(out, self.cutoff or math.inf, generator).mul_(self.scale)
        if self.kind == "rescaled":
            return truncated(out, 2.0, generator).mul_(self.scale / truncated_std(2.0))
        if self.kind == "uniform":
            return out.uniform_(-self.scale, self.scale, generator=generator)
        if self.kind == "orthogonal":
            return nn.init.orthogonal_(out, self.scale, generator=generator)
        if self.kind == "constant":
            return out.fill_(self.scale)
        raise ValueError(f"a distribution of kind {self.kind!r} cannot be drawn")


def truncated(out: Tensor, cutoff: float, generator: torch.Generator) -> Tensor:
    """Fill `out` in place from N(0, 1) cut at +-cutoff: through the inverse error function of a uniform draw."""
    edge = math.erf(cutoff / math.sqrt(2))
    return out.uniform_(-edge, edge, generator=generator).erfinv_().mul_(math.sqrt(2)).clamp_(-cutoff, cutoff)


def truncated_std(cutoff: float) -> float:
    """The standard deviation of N(0, 1) cut at +-cutoff: sqrt(1 - 2 c phi(c) / erf(c / sqrt(2))); 0.8796 at 2."""
    density = math.exp(-(cutoff**2) / 2) / math.sqrt(2 * math.pi)
    return math.sqrt(1 - 2 * cutoff * density / math.erf(cutoff / math.sqrt(2)))


def normal(std: float) -> Distribution:
    """N(std)."""
    return Distribution("normal", std)


def cut(std: float, cutoff: float) -> Distribution:
    """T(std, cutoff): not rescaled."""
    return Distribution("truncated", std, cutoff)


def rescaled(std: float) -> Distribution:
    """J(std): cut at two deviations and rescaled."""
    return Distribution("rescaled", std)


def uniform(bound: float) -> Distribution:
    """U(bound)."""
    return Distribution("uniform", bound)


def orthogonal(gain: float) -> Distribution:
    """O(gain)."""
    return Distribution("orthogonal", gain)


def constant(value: float) -> Distribution:
    """C(value)."""
    return Distribution("constant", value)


KEEP = Distribution("keep")
ONE = constant(1)
ZERO = constant(0)
