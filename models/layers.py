"""The layers that all models share, and the structure that initialisation schemes ask for.

By default the layers are PyTorch's own, to the bit, under PyTorch's names of parameters, so that a
`state_dict()` does not change where an option is off. Shapes: (...,D) are any leading dimensions
and D channels. With f a branch, x the residual stream, t the multiplier and g the gate of the
branch, a block computes

    pre          x + g t f(norm(x))
    post         norm(a x + g t f(x))                     DeepNorm (arXiv 2203.00555)
    sandwich     x + g t post_norm(f(norm(x)))
    unit_scaled  (x + t f(norm(x))) / sqrt(1 + t**2)      u-muP (arXiv 2407.17465)

After post-norm blocks there is no norm before the head.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import is_parametrized

BYTES = 256
"""Values of a byte: the vocabulary of every model here."""
NORM_EPS = 1e-5
"""eps of every norm of the residual stream, that of torch.nn.LayerNorm."""
NormName = Literal["layer", "rms", "scale", "none"]
NormPlacement = Literal["pre", "post", "sandwich"]
BRANCHES = ("mixer", "ffn")
"""First parts of the names of branches, as in mixer.3."""


@dataclass(frozen=True)
class Structure:
    """Options of a model that initialisation schemes ask for; every one is off by default.

    norm            LayerNorm, RMSNorm, ScaleNorm, or none at all
    norm_offset     gains are 1 + w
    placement       of the norms, see above
    residual        the a of post-norm, see above
    embedding_norm  a norm after the embedding; an RWKV always has it, as ln0
    gate            one learned number for every branch
    scalar_bias     one learned number b for every linear layer of a branch, which reads x + b
                    (Fixup adds one before every activation, too)
    fixnorm         rows of the embedding have length g, one learned number, and rows of the head
                    length 1
    tied            head and embedding are one matrix, which `state_dict()` holds under both names
    unit_scaled     weights of unit variance give activations of unit variance
    multipliers     numbers by name, 1 elsewhere: `embedding` and `logits` multiply what comes out
                    of embedding and head, `residual` every branch, `mixer.3` and `ffn.3` that of
                    block 3

    When unit_scaled, linear layers are multiplied by fan_in**-0.5, the head by 1 / fan_in,
    nonlinear factors divided by their root mean square under N(0, 1), the states of an SSM by their
    standard deviation under white input; norms have no parameters and linear layers no bias. Not
    done: separate scales of the gradients, which Adam divides out, and the loss of variance in
    RWKV's token shift.
    """

    norm: NormName = "layer"
    norm_offset: bool = False
    placement: NormPlacement = "pre"
    residual: float = 1.0
    embedding_norm: bool = False
    gate: bool = False
    scalar_bias: bool = False
    fixnorm: bool = False
    tied: bool = False
    unit_scaled: bool = False
    multipliers: Mapping[str, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        choices = {"norm": get_args(NormName), "placement": get_args(NormPlacement)}
        for name, valid in choices.items():
            given = getattr(self, name)
            if given not in valid:
                raise ValueError(f"{name} must be one of {', '.join(valid)}, got {given!r}")
        for contradiction, message in self._contradictions():
            if contradiction:
                raise ValueError(message)

    def _contradictions(self) -> Iterator[tuple[bool, str]]:
        """Pairs of options that no model can have, and what to say of them."""
        per_channel = self.norm in ("layer", "rms")
        yield (
            self.norm_offset and not per_channel,
            f"norm_offset must be false with norm {self.norm!r}, got true; use 'layer' or 'rms'",
        )
        yield (
            self.embedding_norm and self.norm == "none",
            "embedding_norm must be false with norm 'none', got true",
        )
        yield (
            self.placement != "pre" and self.norm == "none",
            f"placement must be 'pre' with norm 'none', got {self.placement!r}",
        )
        yield (
            self.unit_scaled and self.placement != "pre",
            f"placement must be 'pre' with unit_scaled, got {self.placement!r}",
        )
        yield (
            self.unit_scaled and not per_channel,
            f"norm must be 'layer' or 'rms' with unit_scaled, got {self.norm!r}",
        )
        for name in ("gate", "scalar_bias", "fixnorm"):
            yield (
                self.unit_scaled and getattr(self, name),
                f"{name} must be false with unit_scaled, got true",
            )

    def multiplier(self, name: str) -> float:
        """The multiplier of this name; of a branch with that of all branches."""
        own = self.multipliers.get(name, 1.0)
        if name.partition(".")[0] in BRANCHES:
            return self.multipliers.get("residual", 1.0) * own
        return own

    def options(self) -> dict[str, Any]:
        """Everything but the multipliers, by name: what a scheme's needs are compared with."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "multipliers"}


def unset(*shape: int) -> nn.Parameter:
    """A parameter that nothing has initialised yet: NaN, so that it is seen when forgotten."""
    return nn.Parameter(torch.full(shape, math.nan))


class Refilled(nn.Module):
    """A layer that `to_empty`, from the meta device, leaves with the numbers that it is built with.

    Only of what no initialisation scheme sets: decays that nodes are placed into afterwards, and
    buffers that follow from the configuration. They would be whatever the memory held.
    """

    def refill_(self) -> None:
        """Fill these tensors in place."""
        raise NotImplementedError

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        was_meta = self._is_meta()
        super()._apply(fn, recurse)
        if was_meta and not self._is_meta():
            with torch.no_grad():
                self.refill_()
        return self

    def _is_meta(self) -> bool:
        """True if a tensor of the layer itself is on the meta device."""
        own = (*self.parameters(recurse=False), *self.buffers(recurse=False))
        return any(one.is_meta for one in own)


def modules_with(model: nn.Module, names: Collection[str], wanted: str) -> list[Any]:
    """The modules that have all of these attributes; ValueError, asking for `wanted`, for none.

    ValueError too where one of the attributes is computed by a parametrization of torch.nn.utils,
    in which what is written would be lost.
    """
    found = [one for one in model.modules() if all(hasattr(one, name) for name in names)]
    if not found:
        raise ValueError(f"model must have {wanted}, got {type(model).__name__}")
    for module in found:
        for name in names:
            if is_parametrized(module, name):
                raise ValueError(
                    f"model must have {wanted}, got {name} under a parametrization, which computes"
                    " it anew; remove_parametrizations first"
                )
    return found


class ScaleNorm(nn.Module):
    """g x / |x| with one learned g, sqrt(D) at first (arXiv 1910.05895, equation 5)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), math.sqrt(dim)))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * F.normalize(x, dim=-1, eps=NORM_EPS)


class OffsetLayerNorm(nn.LayerNorm):
    """LayerNorm with gain 1 + w."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, 1 + self.weight, self.bias, self.eps)


class OffsetRMSNorm(nn.RMSNorm):
    """RMSNorm with gain 1 + w."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, tuple(self.normalized_shape), 1 + self.weight, self.eps)


def norm_of(structure: Structure, dim: int) -> nn.Module:
    """A norm of the residual stream, (...,D) to (...,D)."""
    if structure.norm == "none":
        return nn.Identity()
    if structure.norm == "scale":
        return ScaleNorm(dim)
    is_layer = structure.norm == "layer"
    if structure.norm_offset:
        offset = OffsetLayerNorm if is_layer else OffsetRMSNorm
        return offset(dim, eps=NORM_EPS)
    kind = nn.LayerNorm if is_layer else nn.RMSNorm
    return kind(dim, eps=NORM_EPS, elementwise_affine=not structure.unit_scaled)


def last_norm(structure: Structure, dim: int) -> nn.Module:
    """The norm before the head; none after post-norm blocks, which end in one."""
    return nn.Identity() if structure.placement == "post" else norm_of(structure, dim)


class Join(nn.Module):
    """Connection of a branch to the residual stream that it reads from and is added to.

    Its norm is the block's, and passed in. branch: its name among the multipliers, as "mixer.3".
    The gate is 1 at first.
    """

    def __init__(self, structure: Structure, dim: int, branch: str) -> None:
        super().__init__()
        self.post = structure.placement == "post"
        self.residual = structure.residual
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
    """A linear layer of a branch: W x.

    W (x + b) with scalar_bias, fan_in**-0.5 W x when unit_scaled.
    """

    def __init__(self, structure: Structure, fan_in: int, fan_out: int, bias: bool = False) -> None:
        super().__init__(fan_in, fan_out, bias and not structure.unit_scaled)
        self.shift = nn.Parameter(torch.zeros(1)) if structure.scalar_bias else None
        self.multiplier = fan_in**-0.5 if structure.unit_scaled else 1.0

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x if self.shift is None else x + self.shift)
        return out if self.multiplier == 1 else out * self.multiplier


class Embedding(nn.Embedding):
    """Rows (...) to (...,D), of length g with fixnorm.

    They are times the multiplier, and a norm follows where `norm` is true.
    """

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
    """Logits (...,V) from (...,D), by rows of length 1 with fixnorm.

    They are times the multiplier, and over D when unit_scaled.
    """

    def __init__(self, structure: Structure, embedding: Embedding) -> None:
        rows, dim = embedding.weight.shape
        super().__init__(dim, rows, bias=False)
        self.fixnorm = structure.fixnorm
        fan_in = dim if structure.unit_scaled else 1
        self.multiplier = structure.multiplier("logits") / fan_in
        if structure.tied:
            self.weight = embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        weight = F.normalize(self.weight, dim=-1, eps=NORM_EPS) if self.fixnorm else self.weight
        out = F.linear(x, weight)
        return out if self.multiplier == 1 else out * self.multiplier


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0)**2."""
    return F.relu(x).square()


ROOT_MEAN_SQUARE: dict[Callable[[Tensor], Tensor], float] = {
    F.silu: 0.59647,
    torch.sigmoid: 0.54164,
    squared_relu: math.sqrt(1.5),
}
"""sqrt(mean of f(z)**2) for z of N(0, 1), by quadrature; of squared ReLU sqrt(E z**4 / 2).

After a matrix of mean 0 it is these that count, not the standard deviations.
"""


class Activation(nn.Module):
    """A function per channel; when unit_scaled, over its root mean square under N(0, 1)."""

    def __init__(self, structure: Structure, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.scale = 1 / ROOT_MEAN_SQUARE[function] if structure.unit_scaled else 1.0

    def forward(self, x: Tensor) -> Tensor:
        out = self.function(x)
        return out if self.scale == 1 else out * self.scale


@contextmanager
def modes_kept(model: object) -> Iterator[None]:
    """Every module of a torch module is in training mode afterwards if it was before.

    `train` is called where a mode has changed, for modules that do more in it, as layers of LoRA
    that add their matrices to others for evaluation.
    """
    modules = model.modules() if isinstance(model, nn.Module) else ()
    before = {module: module.training for module in modules}
    try:
        yield
    finally:
        for module, training in before.items():  # from the whole to its parts
            if module.training != training:
                module.train(training)
        for module, training in before.items():  # those that `train` of another has kept as it is
            if module.training != training:
                module.training = training


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout; afterwards every module is in the mode that it was in."""
    with modes_kept(model):
        if any(module.training for module in model.modules()):
            model.eval()
        yield
