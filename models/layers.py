"""The layers that both models share, each as a `Structure` wants it; by default they are PyTorch's own, to the bit.

Shapes: (...,D) are any leading dimensions and D channels. Names of parameters are PyTorch's, so that a `state_dict()`
does not change where an option is off.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plkernel.models.structure import Structure

BYTES = 256
NORM_EPS = 1e-5


class ScaleNorm(nn.Module):
    """g x / |x| with one learned g, sqrt(D) at first (arXiv 1910.05895, equation 5)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.weight = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """g = sqrt(D)."""
        nn.init.constant_(self.weight, math.sqrt(self.dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * F.normalize(x, dim=-1, eps=NORM_EPS)


class _Offset(nn.Module):
    """Gain 1 + w, w = 0 at first."""

    weight: nn.Parameter

    def reset_parameters(self) -> None:
        """Everything is zero."""
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


class OffsetLayerNorm(_Offset, nn.LayerNorm):
    """LayerNorm with gain 1 + w."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, 1 + self.weight, self.bias, self.eps)


class OffsetRMSNorm(_Offset, nn.RMSNorm):
    """RMSNorm with gain 1 + w."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, tuple(self.normalized_shape), 1 + self.weight, self.eps)


def norm_of(structure: Structure, dim: int) -> nn.Module:
    """A norm of the residual stream, (...,D) to (...,D)."""
    if structure.norm == "none":
        return nn.Identity()
    if structure.norm == "scale":
        return ScaleNorm(dim)
    if structure.norm_offset:
        return (OffsetLayerNorm if structure.norm == "layer" else OffsetRMSNorm)(dim, eps=NORM_EPS)
    kind = nn.LayerNorm if structure.norm == "layer" else nn.RMSNorm
    return kind(dim, eps=NORM_EPS, elementwise_affine=not structure.unit_scaled)


def last_norm(structure: Structure, dim: int) -> nn.Module:
    """The norm before the head; none after post-norm blocks, which end in one."""
    return nn.Identity() if structure.placement == "post" else norm_of(structure, dim)


class Join(nn.Module):
    """How a branch reads from the residual stream and is added to it; its norm is the block's, and passed in.

    branch: its name among the multipliers, as "mixer.3". Gate and gains after the branch are 1 at first.
    """

    def __init__(self, structure: Structure, dim: int, branch: str) -> None:
        super().__init__()
        self.post, self.residual = structure.placement == "post", structure.residual
        self.unit_scaled = structure.unit_scaled
        self.multiplier = structure.multiplier(branch)
        self.post_norm = norm_of(structure, dim) if structure.placement == "sandwich" else None
        self.gate = nn.Parameter(torch.ones(1)) if structure.gate else None

    def read(self, x: Tensor, norm: nn.Module) -> Tensor:
        """The input of the branch."""
        return x if self.post else norm(x)

    def add(self, x: Tensor, branch: Tensor, norm: nn.Module) -> Tensor:
        """The stream after the branch."""
        if self.post_norm is not None:
            branch = self.post_norm(branch)
        if self.gate is not None:
            branch = self.gate * branch
        if self.multiplier != 1:
            branch = self.multiplier * branch
        if self.unit_scaled:
            return (x + branch) / math.sqrt(1 + self.multiplier**2)
        return norm(self.residual * x + branch) if self.post else x + branch


class Linear(nn.Linear):
    """A linear layer of a branch: W (x + b) with scalar_bias, fan_in**-0.5 W x when unit_scaled."""

    def __init__(self, structure: Structure, fan_in: int, fan_out: int, bias: bool = False) -> None:
        super().__init__(fan_in, fan_out, bias and not structure.unit_scaled)
        self.shift = nn.Parameter(torch.zeros(1)) if structure.scalar_bias else None
        self.multiplier = fan_in**-0.5 if structure.unit_scaled else 1.0

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x if self.shift is None else x + self.shift)
        return out if self.multiplier == 1 else out * self.multiplier


class Embedding(nn.Embedding):
    """Rows (...) to (...,D): of length g with fixnorm, times the multiplier, and a norm where `norm` is true."""

    def __init__(self, structure: Structure, rows: int, dim: int, norm: bool = False) -> None:
        super().__init__(rows, dim)
        self.multiplier = structure.multiplier("embedding")
        self.fixnorm = ScaleNorm(dim) if structure.fixnorm else None
        self.norm = norm_of(structure, dim) if norm else None

    def forward(self, rows: Tensor) -> Tensor:
        x = super().forward(rows)
        if self.fixnorm is not None:
            x = self.fixnorm(x)
        if self.multiplier != 1:
            x = x * self.multiplier
        return x if self.norm is None else self.norm(x)


class Head(nn.Linear):
    """Logits (...,V) from (...,D): rows of length 1 with fixnorm; over D when unit_scaled, times the multiplier."""

    def __init__(self, structure: Structure, embedding: Embedding) -> None:
        rows, dim = embedding.weight.shape
        super().__init__(dim, rows, bias=False)
        self.fixnorm = structure.fixnorm
        self.multiplier = structure.multiplier("logits") / (dim if structure.unit_scaled else 1)
        if structure.tied:
            self.weight = embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        weight = F.normalize(self.weight, dim=-1, eps=NORM_EPS) if self.fixnorm else self.weight
        out = F.linear(x, weight)
        return out if self.multiplier == 1 else out * self.multiplier


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0)**2."""
    return F.relu(x).square()


# Root mean squares under N(0, 1): after a matrix of mean 0 it is these that count, not the deviations.
ROOT_MEAN_SQUARE: dict[Callable[[Tensor], Tensor], float] = {
    F.silu: 0.59647,
    torch.sigmoid: 0.54164,
    squared_relu: math.sqrt(1.5),
}


class Activation(nn.Module):
    """A function per channel; when unit_scaled, over its root mean square under N(0, 1)."""

    def __init__(self, structure: Structure, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.scale = 1 / ROOT_MEAN_SQUARE[function] if structure.unit_scaled else 1.0

    def forward(self, x: Tensor) -> Tensor:
        out = self.function(x)
        return out if self.scale == 1 else out * self.scale
