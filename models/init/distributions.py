"""Distributions that parameters are drawn from, as values that print, compare and save."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

Kind = Literal["normal", "truncated", "rescaled", "uniform", "orthogonal", "constant", "keep", "vector"]
SYMBOLS = {"normal": "N", "truncated": "T", "rescaled": "J", "uniform": "U", "orthogonal": "O", "constant": "C"}


@dataclass(frozen=True)
class Distribution:
    """A kind with its `scale` s and, for some kinds, `cutoff` c or `name`.

    normal N(s): standard deviation s. truncated T(s, c): normal of standard deviation s cut at +-c s and NOT rescaled,
    so that the draws have less (0.8796 s at c = 2). rescaled J(s): normal cut at 2 deviations and rescaled so that the
    draws have s, as in jax. uniform U(s): within +-s. orthogonal O(s): rows or columns, whichever are fewer, orthogonal
    and of length s. constant C(s). keep: left as the model has it. vector: a known function of the channel, of the
    version called `name`. Raises ValueError for a scale or cutoff that does not fit.
    """

    kind: Kind
    scale: float = 0.0
    cutoff: float | None = None
    name: str | None = None

    def __post_init__(self) -> None:
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
        """True if every entry is zero."""
        return self.kind not in ("keep", "vector") and self.scale == 0

    def std(self, shape: tuple[int, ...] = (1, 1)) -> float:
        """Standard deviation of an entry of a parameter of this shape; 0 for a constant, nan if not drawn."""
        share = {
            "normal": 1.0,
            "rescaled": 1.0,
            "truncated": truncated_std(self.cutoff or math.inf),
            "uniform": 3**-0.5,
            "orthogonal": max(shape) ** -0.5,
            "constant": 0.0,
        }
        return self.scale * share.get(self.kind, math.nan)

    def times(self, factor: float) -> "Distribution":
        """The same distribution with `factor` times the scale."""
        return replace(self, scale=self.scale * factor)

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """A tensor of this shape, on the CPU in float32, so that every device gets the same values."""
        out = torch.empty(shape)
        match self.kind:
            case "normal":
                return torch.randn(shape, generator=generator) * self.scale
            case "truncated":
                return truncated(out, self.cutoff or math.inf, generator).mul_(self.scale)
            case "rescaled":
                return truncated(out, 2.0, generator).mul_(self.scale / truncated_std(2.0))
            case "uniform":
                return out.uniform_(-self.scale, self.scale, generator=generator)
            case "orthogonal":
                return nn.init.orthogonal_(out, self.scale, generator=generator)
            case "constant":
                return out.fill_(self.scale)
        raise ValueError(f"a distribution of kind {self.kind!r} cannot be drawn")


def truncated(out: Tensor, cutoff: float, generator: torch.Generator) -> Tensor:
    """Fill `out` in place from N(0, 1) cut at +-cutoff: through the inverse error function of a uniform draw."""
    edge = math.erf(cutoff / math.sqrt(2))
    return out.uniform_(-edge, edge, generator=generator).erfinv_().mul_(math.sqrt(2)).clamp_(-cutoff, cutoff)


def truncated_std(cutoff: float) -> float:
    """Standard deviation of N(0, 1) cut at +-c: sqrt(1 - 2 c phi(c) / erf(c / sqrt(2))); 0.8796 at 2."""
    if cutoff == math.inf:
        return 1.0
    density = math.exp(-(cutoff**2) / 2) / math.sqrt(2 * math.pi)
    return math.sqrt(1 - 2 * cutoff * density / math.erf(cutoff / math.sqrt(2)))


normal = partial(Distribution, "normal")
"""N(std)."""
cut = partial(Distribution, "truncated")
"""T(std, cutoff): not rescaled."""
rescaled = partial(Distribution, "rescaled")
"""J(std): cut at two deviations and rescaled."""
uniform = partial(Distribution, "uniform")
"""U(bound)."""
orthogonal = partial(Distribution, "orthogonal")
"""O(gain)."""
constant = partial(Distribution, "constant")
"""C(value)."""
KEEP = Distribution("keep")
ONE = constant(1)
ZERO = constant(0)
