"""The structure that initialisation schemes need of a model beyond its weights; by default there is none.

With f a branch, x the residual stream, t the multiplier and g the gate of the branch, a block computes
    pre          x + g t f(norm(x))
    post         norm(a x + g t f(x))                        DeepNorm (arXiv 2203.00555); no norm before the head
    sandwich     x + g t post_norm(f(norm(x)))
    unit_scaled  (x + t f(norm(x))) / sqrt(1 + t**2)         u-muP (arXiv 2407.17465)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

NormName = Literal["layer", "rms", "scale", "none"]
Placement = Literal["pre", "post", "sandwich"]
MULTIPLIERS = ("embedding", "logits", "residual")
BRANCHES = ("mixer", "ffn")


@dataclass(frozen=True, repr=False)
class Structure:
    """Options of a model that initialisation schemes ask for; every one is off by default.

    norm: LayerNorm, RMSNorm, ScaleNorm (g x / |x|, one learned g, sqrt(D) at first), or none at all. norm_offset: gains
    are 1 + w. placement and `residual`, the a of post-norm: see above. embedding_norm: a norm after the embedding
    (an RWKV always has it, as ln0). gate: one learned number per branch. fixnorm: rows of the embedding have length g,
    one learned number, and rows of the head length 1. scalar_bias: x + b instead of x before every linear layer of a
    branch, b one learned number (Fixup has one before every activation, too). tied: head and embedding are one matrix,
    which `state_dict()` holds under both names.

    unit_scaled: weights of unit variance give activations of unit variance. Linear layers are multiplied by
    fan_in**-0.5, the head by 1 / fan_in, nonlinear factors divided by their root mean square under N(0, 1), the states
    of an SSM by their standard deviation under white input; norms have no parameters and linear layers no bias. Not
    done: separate scales of the gradients, which Adam divides out, and the loss of variance in RWKV's token shift.

    multipliers: numbers by name, 1 elsewhere: `embedding` and `logits` multiply what comes out of embedding and head,
    `residual` every branch, `mixer.3` and `ffn.3` that of block 3.
    """

    norm: NormName = "layer"
    norm_offset: bool = False
    placement: Placement = "pre"
    residual: float = 1.0
    embedding_norm: bool = False
    gate: bool = False
    fixnorm: bool = False
    scalar_bias: bool = False
    tied: bool = False
    unit_scaled: bool = False
    multipliers: Mapping[str, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        norm, placement = self.norm, self.placement
        for name, valid in (("norm", get_args(NormName)), ("placement", get_args(Placement))):
            if getattr(self, name) not in valid:
                raise ValueError(f"{name} must be one of {', '.join(valid)}, got {getattr(self, name)!r}")
        for name, value in [("residual", self.residual), *self.multipliers.items()]:
            if not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, got {value}")
        usual = norm in ("layer", "rms")
        either = "goes with norm 'layer' or 'rms'"
        contradictions = {
            f"norm_offset {either}, got {norm!r}": self.norm_offset and not usual,
            "embedding_norm needs a norm, got norm 'none'": self.embedding_norm and norm == "none",
            f"placement {placement!r} needs a norm, got norm 'none'": placement != "pre" and norm == "none",
            f"residual {self.residual} goes with placement 'post', got {placement!r}": (
                self.residual != 1 and placement != "post"
            ),
            f"unit_scaled {either} and placement 'pre', got {norm!r} and {placement!r}": (
                self.unit_scaled and not (usual and placement == "pre")
            ),
        }
        for name in ("norm_offset", "gate", "fixnorm", "scalar_bias"):
            contradictions[f"unit_scaled does not go with {name}"] = self.unit_scaled and getattr(self, name)
        for message, wrong in contradictions.items():
            if wrong:
                raise ValueError(message)

    def __repr__(self) -> str:
        """The options that are not off."""
        told = [f"{f.name}={value!r}" for f in fields(self)[:-1] if (value := getattr(self, f.name)) != f.default]
        told += [f"multipliers={dict(self.multipliers)!r}"] if self.multipliers else []
        return f"Structure({', '.join(told)})"

    def check(self, layers: int) -> None:
        """ValueError for a multiplier of something that a model of so many blocks does not have."""
        known = {*MULTIPLIERS, *(f"{branch}.{layer}" for branch in BRANCHES for layer in range(layers))}
        for name in self.multipliers:
            if name not in known:
                raise ValueError(
                    f"multiplier {name!r} does not exist; valid: {', '.join(MULTIPLIERS)}, "
                    f"and mixer.i and ffn.i with i below {layers}"
                )

    def multiplier(self, name: str) -> float:
        """The multiplier of this name; of a branch with that of all branches."""
        every = self.multipliers.get("residual", 1.0) if name.partition(".")[0] in BRANCHES else 1.0
        return every * self.multipliers.get(name, 1.0)

    def options(self) -> dict[str, Any]:
        """Everything but the multipliers, by name: what a scheme's needs are compared with."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "multipliers"}


def structure_for(needs: Mapping[str, Any], forward: Mapping[str, float]) -> Structure:
    """The structure that a scheme asks for by its `Rules.needs` and `Rules.forward`; ValueError for an unknown need."""
    known = Structure().options()
    for name in needs:
        if name not in known:
            raise ValueError(f"need {name!r} is no option of our models; valid: {', '.join(known)}")
    return Structure(**needs, multipliers=dict(forward))
