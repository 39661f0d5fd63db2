"""The parts of a scheme: the sizes it sees, one parameter, and the rules it gives back."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from plkernel.models.init.distributions import ONE, ZERO, Distribution
from plkernel.models.init.roles import INPUT, MATRICES, OUTPUT, Role
from plkernel.models.structure import Structure

Optimizer = Literal["adam", "sgd"]
DECAYED: tuple[Role, ...] = ("embedding", "position", "head", *MATRICES)


@dataclass(frozen=True)
class Sizes:
    """width d, layers L (blocks), vocabulary V, heads (number, size) and branches, residual branches per block.

    heads is None where nobody has said them, of a model of another library.
    """

    width: int
    layers: int
    vocabulary: int
    heads: tuple[int, int] | None = None
    branches: int = 2

    @property
    def head_size(self) -> int:
        """Channels of a head; ValueError where nobody has said."""
        if self.heads is None:
            raise ValueError(
                "heads must be given for a scheme that scales by the size of a head, got None: "
                f"heads=(8, {self.width // 8}) for 8 heads of {self.width // 8}, heads=(1, {self.width}) for none"
            )
        return self.heads[1]

    def ratio(self, base_width: float) -> float:
        """m = d / base width, of the muP schemes; ValueError unless that is positive."""
        if not base_width > 0:
            raise ValueError(f"base_width must be positive, got {base_width}")
        return self.width / base_width


@dataclass(frozen=True)
class Parameter:
    """One parameter, or one slice of a fused one: `shape` as stored, `fan_in` and `fan_out` of the slice alone.

    part: number of the slice and how many there are; a bias has the fans of its matrix. `layer` counts from 0.
    """

    name: str
    role: Role
    layer: int | None
    shape: tuple[int, ...]
    fan_in: int
    fan_out: int
    part: tuple[int, int] = (0, 1)
    transposed: bool = False

    @property
    def depth(self) -> int:
        """l + 1; ValueError outside the blocks."""
        if self.layer is None:
            raise ValueError(f"{self.name} needs the number of its layer in its name: this scheme scales by depth")
        return self.layer + 1


@dataclass(frozen=True)
class Calibrate:
    """After the draws one gain per block is tuned on a batch until the partial Jacobian norm of its branch is `target`.

    `calibrate_` of plkernel.models.init.block_gains does it; a run does it by itself.
    """

    target: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.target) and self.target > 0):
            raise ValueError(f"target must be positive, got {self.target}")

    @staticmethod
    def check(structure: Structure) -> None:
        """ValueError unless blocks are x + f(x), with an f that its output projections scale."""
        if structure.placement != "pre" or structure.unit_scaled:
            form = "unit_scaled" if structure.unit_scaled else f"placement {structure.placement!r}"
            raise ValueError(f"calibration needs blocks x + f(x), got {form}, which norms or scales more: use 'pre'")


Fill = Distribution | Callable[[Parameter], Distribution]
Number = float | Callable[[Parameter], float]


@dataclass(frozen=True)
class Rules:
    """What a scheme says: a distribution, or a function from `Parameter` to one, by group of roles.

    `roles` holds exceptions by role, which come first; position follows embedding. learning_rate, eps and weight_decay
    hold multipliers by role or by group (`input`, `output`), 1 elsewhere; weight decay is 0 on all but matrices
    unless said. `forward`: numbers that multiply activations (embedding, logits, ...). `needs`: options that the
    model must have. `own`: the version of the deterministic vectors of an RWKV, that of today's official code
    where it is empty. `optimizer`: what the multipliers are
    for. `calibration`: what is left to tune on data once the parameters are drawn.
    """

    embedding: Fill
    input: Fill
    output: Fill
    head: Fill
    roles: Mapping[Role, Fill] = field(default_factory=dict)
    norm: Fill = ONE
    norm_bias: Fill = ZERO
    bias: Fill = ZERO
    gate: Fill = ONE
    learning_rate: Mapping[str, Number] = field(default_factory=dict)
    eps: Mapping[str, Number] = field(default_factory=dict)
    weight_decay: Mapping[str, Number] = field(default_factory=dict)
    forward: Mapping[str, float] = field(default_factory=dict)
    needs: Mapping[str, Any] = field(default_factory=dict)
    own: str = ""
    optimizer: Optimizer = "adam"
    calibration: Calibrate | None = None

    def fill(self, parameter: Parameter) -> Distribution:
        """The distribution of one parameter that is not the model's own."""
        role = parameter.role
        found = self.roles.get(role) or cast(Fill, getattr(self, "embedding" if role == "position" else group(role)))
        return found if isinstance(found, Distribution) else found(parameter)

    def multiplier(self, kind: str, parameter: Parameter) -> float:
        """Of the learning rate, eps or weight_decay."""
        role, values = parameter.role, cast(Mapping[str, Number], getattr(self, kind))
        otherwise = 1.0 if kind != "weight_decay" or role in DECAYED else 0.0
        found = values.get(role, values.get(group(role), otherwise))
        return float(found(parameter) if callable(found) else found)


def group(role: Role) -> str:
    """`input`, `output`, or the role itself."""
    return "input" if role in INPUT else "output" if role in OUTPUT else role
