"""Distributions that parameters are drawn from, as values that print and compare."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

Kind = Literal[
    "normal", "truncated", "rescaled", "uniform", "orthogonal", "constant", "keep", "vector"
]
SYMBOLS = {
    "normal": "N",
    "truncated": "T",
    "rescaled": "J",
    "uniform": "U",
    "orthogonal": "O",
    "constant": "C",
}
"""Letters of the distributions, as `print` and the docstrings of schemes have them."""


@dataclass(frozen=True)
class Distribution:
    """A kind with its `scale` s and, if it is truncated, `cutoff` c.

    normal      N(s): standard deviation s
    truncated   T(s, c): normal of standard deviation s cut at +-c s and NOT rescaled, so that the
                draws have less (0.8796 s at c = 2)
    rescaled    J(s): normal cut at 2 deviations and rescaled so that the draws have s, as in jax
    uniform     U(s): within +-s
    orthogonal  O(s): rows or columns, whichever are fewer, orthogonal and of length s
    constant    C(s)
    keep        left as the model has it
    vector      a known function of the channel of an RWKV, of the `version` that a scheme has

    Raises ValueError for a scale or cutoff that does not fit.
    """

    kind: Kind
    scale: float = 0.0
    cutoff: float | None = None
    version: str | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.scale) or (self.scale < 0 and self.kind != "constant"):
            raise ValueError(
                f"scale of {self.kind} must be a finite number of at least 0, got {self.scale}"
            )
        if self.cutoff is not None and not self.cutoff > 0:
            raise ValueError(f"cutoff must be positive, got {self.cutoff}")

    def __str__(self) -> str:
        if self.kind == "keep":
            return "as the model has it"
        if self.kind == "vector":
            return f"as in {self.version}"
        cut = f", {self.cutoff:g}" if self.cutoff is not None else ""
        return f"{SYMBOLS[self.kind]}({self.scale:.4g}{cut})"

    def times(self, factor: float) -> "Distribution":
        """The same distribution with `factor` times the scale."""
        return replace(self, scale=self.scale * factor)

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """A tensor of this shape, on the CPU in float32: every device gets the same values."""
        blank = torch.empty(shape, dtype=torch.float32, device="cpu")  # whatever the defaults are
        return self.fill_(blank, generator)

    def fill_(self, tensor: Tensor, generator: torch.Generator) -> Tensor:
        """Fill `tensor` in place with draws, and return it; ValueError for keep and vector."""
        match self.kind:
            case "normal":
                return tensor.normal_(generator=generator).mul_(self.scale)
            case "truncated":
                cutoff = math.inf if self.cutoff is None else self.cutoff
                return truncated_normal_(tensor, cutoff, generator).mul_(self.scale)
            case "rescaled":
                std = truncated_std(2.0)
                return truncated_normal_(tensor, 2.0, generator).mul_(self.scale / std)
            case "uniform":
                return tensor.uniform_(-self.scale, self.scale, generator=generator)
            case "orthogonal":
                return nn.init.orthogonal_(tensor, self.scale, generator=generator)
            case "constant":
                return tensor.fill_(self.scale)
        raise ValueError(f"kind of a distribution must be one that can be drawn, got {self.kind!r}")


def truncated_normal_(tensor: Tensor, cutoff: float, generator: torch.Generator) -> Tensor:
    """Fill `tensor` in place from N(0, 1) cut at +-cutoff, not rescaled.

    sqrt(2) erfinv(u), u uniform within +-erf(cutoff / sqrt(2)).
    """
    edge = math.erf(cutoff / math.sqrt(2))
    tensor.uniform_(-edge, edge, generator=generator)
    tensor.erfinv_().mul_(math.sqrt(2))
    return tensor.clamp_(-cutoff, cutoff)


def truncated_std(cutoff: float) -> float:
    """Standard deviation of N(0, 1) cut at +-c: sqrt(1 - 2 c phi(c) / erf(c / sqrt(2))).

    It is 0.8796 at 2.
    """
    density = math.exp(-(cutoff**2) / 2) / math.sqrt(2 * math.pi)
    return math.sqrt(1 - 2 * cutoff * density / math.erf(cutoff / math.sqrt(2)))


normal = partial(Distribution, "normal")
cut = partial(Distribution, "truncated")
rescaled = partial(Distribution, "rescaled")
uniform = partial(Distribution, "uniform")
orthogonal = partial(Distribution, "orthogonal")
constant = partial(Distribution, "constant")
KEEP = Distribution("keep")
ONE = constant(1)
ZERO = constant(0)
