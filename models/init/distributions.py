"""Fillings of parameters: distributions as values that print, compare and save, and the vectors of
an RWKV.

With l the block of L, i the channel of D, r0 = l / (L - 1) (0 where L = 1) and r1 = 1 - l / L,
    Eagle and Finch take mu = 1 - (i / D)**r1 for x, w, k and the channel mixing, less 0.3 r0 for v;
    1 - (i / D)**(r1 / 2) for r and g time_decay = -6 + 5 (i / (D - 1))**(0.7 + 1.3 r0) u = r0 (1 -
    i / (D - 1)) + 0.1 ((i + 1) mod 3 - 1) ln_x.weight = ((1 + l) / L)**0.7
Eagle stores 1 - mu. Finch has 1 - (i / D)**(r1**3) in the channel mixing, and low-rank maps of 0
and U(0.01). Goose, with y = i / (D - 1) and z = x |x|, x from -1 to 1 along every head:
    mu = 1 - (i / D)**(p r1), p = 0.2 for r and g, 0.7 for k and v, 0.9 for w and a; 1 - (i /
    D)**(r1**4) in the channel mixing w0 = -5.5 + 6 y**(1 + r0**0.3) + 2.5 z,  a0 = -0.19 + 0.3 z +
    0.4 (y - 1/2),  v0 = 0.73 - 0.4 (y - 1/2) k_k = 0.71 - 0.1 (y - 1/2),  k_a = 1.02,  r_k = -0.04
and low-rank maps of 0 and of orthogonal rows of length 0.1 (columns 0.1 sqrt(rank / D) long where
the rank is larger).
Source: the official code of v6 since 2024-04-24 and of v7 at 118e451.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from plkernel.models.rwkv import RWKVConfig
from plkernel.models.rwkv7 import RWKV7Config

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


@dataclass(frozen=True)
class Distribution:
    """A kind with its `scale` s and, if it is truncated, `cutoff` c.

    normal N(s): standard deviation s. truncated T(s, c): normal of standard deviation s cut at +-c
    s and NOT rescaled, so that the draws have less (0.8796 s at c = 2). rescaled J(s): normal cut
    at 2 deviations and rescaled so that the draws have s, as in jax. uniform U(s): within +-s.
    orthogonal O(s): rows or columns, whichever are fewer, orthogonal and of length s. constant
    C(s). keep: left as the model has it. vector: a known function of the channel of an RWKV.
    Raises ValueError for a scale or cutoff that does not fit.
    """

    kind: Kind
    scale: float = 0.0
    cutoff: float | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.scale) or (self.scale < 0 and self.kind != "constant"):
            raise ValueError(
                f"scale of {self.kind} must be a finite number of at least 0, got {self.scale}"
            )
        if self.cutoff is not None and not self.cutoff > 0:
            raise ValueError(f"cutoff must be positive, got {self.cutoff}")

    def __str__(self) -> str:
        if self.kind in ("keep", "vector"):
            return "as the model has it" if self.kind == "keep" else "as in the official code"
        cut = f", {self.cutoff:g}" if self.cutoff is not None else ""
        return f"{SYMBOLS[self.kind]}({self.scale:.4g}{cut})"

    def times(self, factor: float) -> "Distribution":
        """The same distribution with `factor` times the scale."""
        return replace(self, scale=self.scale * factor)

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """A tensor of this shape, on the CPU in float32, so that every device gets the same
        values.
        """
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
    """Fill `out` in place from N(0, 1) cut at +-cutoff: through the inverse error function of a
    uniform draw.
    """
    edge = math.erf(cutoff / math.sqrt(2))
    return (
        out.uniform_(-edge, edge, generator=generator)
        .erfinv_()
        .mul_(math.sqrt(2))
        .clamp_(-cutoff, cutoff)
    )


def truncated_std(cutoff: float) -> float:
    """Standard deviation of N(0, 1) cut at +-c: sqrt(1 - 2 c phi(c) / erf(c / sqrt(2))); 0.8796 at
    2.
    """
    density = math.exp(-(cutoff**2) / 2) / math.sqrt(2 * math.pi)
    return math.sqrt(1 - 2 * cutoff * density / math.erf(cutoff / math.sqrt(2)))


normal = partial(Distribution, "normal")
cut = partial(Distribution, "truncated")
rescaled = partial(Distribution, "rescaled")
uniform = partial(Distribution, "uniform")
orthogonal = partial(Distribution, "orthogonal")
constant = partial(Distribution, "constant")
KEEP, VECTOR = Distribution("keep"), Distribution("vector")
ONE = constant(1)
ZERO = constant(0)


POWERS = {"r": 0.2, "g": 0.2, "k": 0.7, "v": 0.7, "w": 0.9, "a": 0.9}
"""Of Goose's token shift, by stream."""


def of_rwkv(name: str, config: RWKVConfig | RWKV7Config) -> Distribution:
    """The distribution of a parameter of an RWKV that is the model's own; `name` as in the state
    dict.
    """
    if ".ln_x." in name:
        return constant(
            0.0 if name.endswith("bias") else ((1 + int(name.split(".")[1])) / config.layers) ** 0.7
        )
    if not name.endswith(("1", "2")):
        return VECTOR
    if not isinstance(config, RWKV7Config):
        return uniform(0.0 if name.endswith("1") else 0.01)
    rank = config.ranks["wavg".index(name[-2])]
    return ZERO if name.endswith("1") else orthogonal(0.1 * max(1.0, rank / config.dim) ** 0.5)


def vector(name: str, config: RWKVConfig | RWKV7Config) -> Tensor:
    """The values (D,) in float64 of a token-shift vector, decays, u or another vector; `name` as in
    the state dict.
    """
    _, block, branch, kind = name.split(".")
    r0 = int(block) / (config.layers - 1) if config.layers > 1 else 0.0
    r1 = 1 - int(block) / config.layers
    i = torch.arange(config.dim, dtype=torch.float64)
    stream = kind[-1]
    if isinstance(config, RWKV7Config):
        if kind.startswith("x_"):
            return 1 - (i / config.dim) ** (r1**4 if branch == "ffn" else POWERS[stream] * r1)
        y, middle = i / (config.dim - 1), (config.head_size - 1) / 2
        x = (i % config.head_size - middle) / middle if middle else torch.zeros_like(i)
        z = x * x.abs()
        return {
            "w0": -5.5 + 6 * y ** (1 + r0**0.3) + 2.5 * z,
            "a0": -0.19 + 0.3 * z + 0.4 * (y - 0.5),
            "v0": 0.73 - 0.4 * (y - 0.5),
            "k_k": 0.71 - 0.1 * (y - 0.5),
            "k_a": torch.full_like(i, 1.02),
            "r_k": torch.full_like(i, -0.04),
        }[kind]
    if kind == "time_decay":
        return -6 + 5 * (i / (config.dim - 1)) ** (0.7 + 1.3 * r0)
    if kind == "time_faaaa":
        return r0 * (1 - i / (config.dim - 1)) + 0.1 * ((i + 1) % 3 - 1)
    power = r1 / 2 if stream in "rg" else r1
    if branch == "ffn":
        power = r1**3 if config.version == 6 else r1
    share = (i / config.dim) ** power + (0.3 * r0 if stream == "v" else 0.0)
    return share if config.version == 5 else 1 - share
