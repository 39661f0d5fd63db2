"""Roles: what every parameter of a model is, whatever its name, and the sizes that schemes use.

A table of patterns gives every parameter one role:

embedding   one row per byte or token
position    one row per position
head        to logits; absent where it is the embedding
query       what reads the memory: attention queries, RWKV's receptance
key         attention or RWKV keys
value       what is remembered: attention or RWKV values, the input map of an SSM
mixer_gate  multiplies what the mixer gives
mixer_out   from the mixer to the residual stream: attention output, an SSM's C, RWKV's output
ffn_gate    the activated branch of a feed-forward layer (w1), RWKV's ffn.key
ffn_up      its linear branch (w3)
ffn_router  decides how much comes out: a router, RWKV's ffn.receptance
ffn_out     back to the residual stream (w2)
norm        gain of a norm
norm_bias   bias of a norm
bias        bias of a matrix
gate        one number that multiplies a residual branch
own         what a scheme leaves as the model has it: decays, time steps, token shifts, low-rank
            maps, convolutions
"""

import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, StrictBool, ValidationError
from torch import Tensor, nn

Role = Literal[
    "embedding",
    "position",
    "head",
    "query",
    "key",
    "value",
    "mixer_gate",
    "mixer_out",
    "ffn_gate",
    "ffn_up",
    "ffn_router",
    "ffn_out",
    "norm",
    "norm_bias",
    "bias",
    "gate",
    "own",
]
INPUT: tuple[Role, ...] = (
    "query",
    "key",
    "value",
    "mixer_gate",
    "ffn_gate",
    "ffn_up",
    "ffn_router",
)
OUTPUT: tuple[Role, ...] = ("mixer_out", "ffn_out")
DECAYED: tuple[Role, ...] = ("embedding", "position", "head", *INPUT, *OUTPUT)
"""Roles of matrices, on which weight decay acts."""
COME_WITH = Path(__file__).parents[2] / "runs" / "roles"
"""Folder of the tables that come with plkernel."""
NAMED = 4
"""Most parameters without exactly one role that an error names."""


def group(role: Role) -> str:
    """`input`, `output`, or the role itself."""
    if role in INPUT:
        return "input"
    if role in OUTPUT:
        return "output"
    return role


class Rule(BaseModel, frozen=True, extra="forbid"):
    """The rule of one pattern.

    role        the role, where nothing is fused
    parts       the roles of equal slices along the output, where matrices are fused into one
    transposed  the weight is stored (in, out)
    """

    role: Role | None = None
    parts: tuple[Role, ...] = ()
    transposed: StrictBool = False

    @property
    def roles(self) -> tuple[Role, ...]:
        """The role of every slice; one where nothing is fused."""
        return self.parts if self.role is None else (self.role,)


class RoleTable(dict[str, Rule]):
    """Patterns (as `fnmatch`; `*` also matches dots) and their rules."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RoleTable":
        """From plain values, as in a TOML file.

        pattern = "role" or {parts = ["query", ...], transposed = true}. Raises ValueError that
        names the pattern.
        """
        table = cls()
        for pattern, value in values.items():
            given = {"role": value} if isinstance(value, str) else value
            try:
                rule = Rule.model_validate(given)
            except ValidationError as error:
                first = error.errors()[0]
                place = ".".join(map(str, first["loc"])) or "rule"
                raise ValueError(
                    f"roles: {pattern!r}: {place}: {first['msg']}, got {value!r}"
                ) from error
            if (rule.role is None) == (not rule.parts):
                raise ValueError(
                    f"roles: {pattern!r}: a rule must have a role or parts, got"
                    f" {'both' if rule.parts else 'neither'}"
                )
            table[pattern] = rule
        return table

    @classmethod
    def from_toml(cls, path: Path | str) -> "RoleTable":
        """From a TOML file whose lines are as in `from_dict`.

        path: the file, or the name of one that comes with plkernel: gpt2, mamba. Raises ValueError,
        naming the file, where it is not there or holds no table of roles.
        """
        named = COME_WITH / f"{path}.toml"
        path = Path(path)
        if not path.is_file() and named.is_file():
            path = named
        if not path.is_file():  # a pipe may never answer
            known = sorted(one.stem for one in COME_WITH.glob("*.toml"))
            raise ValueError(f"{path}: no such file; by name there are {', '.join(known)}")
        try:
            return cls.from_dict(tomllib.loads(path.read_text(encoding="utf-8-sig")))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def assign(self, names: Mapping[str, Any]) -> dict[str, Rule]:
        """The rule of every parameter name; ValueError for names that match no pattern, or two."""
        assigned = {}
        wrong = []
        for name in names:
            matching = [pattern for pattern in self if fnmatchcase(name, pattern)]
            if len(matching) == 1:
                assigned[name] = self[matching[0]]
            else:
                wrong.append(f"{name} ({' and '.join(map(repr, matching)) or 'no pattern'})")
        if wrong:
            more = f" and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
            raise ValueError(
                f"every parameter must match one pattern, got {', '.join(wrong[:NAMED])}{more};"
                " mend the table of roles"
            )
        return assigned


def by_role(**patterns: str) -> RoleTable:
    """A table from the patterns of each role, separated by spaces."""
    table = RoleTable()
    for role, text in patterns.items():
        for pattern in text.split():
            table[pattern] = Rule(role=cast(Role, role))
    return table


SSM_ROLES = by_role(
    embedding="embedding.weight",
    head="head.weight",
    own="blocks.*.ssm.log_rate blocks.*.ssm.ordered.* blocks.*.ssm.D",
    value="blocks.*.ssm.B.weight",
    mixer_out="blocks.*.ssm.C_proj.weight",
    bias="blocks.*.ssm.C_proj.bias blocks.*.shift",
    ffn_gate="blocks.*.mlp.gate.weight",
    ffn_up="blocks.*.mlp.up.weight",
    ffn_out="blocks.*.mlp.down.weight",
    norm=(
        "*norm?.weight norm.weight embedding.norm.weight embedding.fixnorm.weight"
        " blocks.*.join?.post_norm.weight"
    ),
    norm_bias="*norm?.bias norm.bias embedding.norm.bias blocks.*.join?.post_norm.bias",
    gate="blocks.*.join?.gate",
)
RWKV_ROLES = by_role(
    embedding="emb.weight",
    head="head.weight",
    own=(
        "blocks.*.time_* blocks.*.x_? blocks.*.att.[wavg][012] blocks.*.att.[kr]_[ka]"
        " blocks.*.att.ordered.* blocks.*.att.ln_x.*"
    ),
    query="blocks.*.att.receptance.weight",
    key="blocks.*.att.key.weight",
    value="blocks.*.att.value.weight",
    mixer_gate="blocks.*.att.gate.weight",
    mixer_out="blocks.*.att.output.weight",
    bias="blocks.*.shift",
    ffn_gate="blocks.*.ffn.key.weight",
    ffn_router="blocks.*.ffn.receptance.weight",
    ffn_out="blocks.*.ffn.value.weight",
    norm=("blocks.*.ln?.weight ln_out.weight emb.fixnorm.weight blocks.*.join?.post_norm.weight"),
    norm_bias="blocks.*.ln?.bias ln_out.bias blocks.*.join?.post_norm.bias",
    gate="blocks.*.join?.gate",
)
OURS = {"SSM": SSM_ROLES, "RWKV": RWKV_ROLES, "RWKV7": RWKV_ROLES}
"""The tables of plkernel's own models, by the name of their class."""


def kind_of(model: nn.Module) -> str:
    """SSM, RWKV or RWKV7; nothing for a model of another library."""
    name = type(model).__name__
    ours = type(model).__module__.startswith("plkernel.")
    return name if ours and name in OURS else ""


@dataclass(frozen=True)
class Sizes:
    """The sizes that schemes use.

    width       d
    layers      L, the number of blocks
    vocabulary  V
    heads       (number, size); None where nobody has said them, of a model of another library
    branches    residual branches of a block
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
                f"heads must be given for this scheme, got None: heads=(8, {self.width // 8}) for 8"
                f" heads of {self.width // 8}, heads=(1, {self.width}) for none"
            )
        return self.heads[1]

    @property
    def deep(self) -> float:
        """sqrt(2 L), which many schemes divide output projections by."""
        return math.sqrt(2 * self.layers)

    def ratio(self, base_width: float) -> float:
        """m = d / base width, of the muP schemes; ValueError unless that is positive."""
        if not base_width > 0:
            raise ValueError(f"base_width must be positive, got {base_width}")
        return self.width / base_width


@dataclass(frozen=True)
class Parameter:
    """One parameter, or one slice of a fused one.

    layer            l, from 0; None outside the blocks
    shape            of the slice, as stored
    fan_in, fan_out  of the slice alone; of a bias those of its matrix
    part             number of the slice, from 0, and how many there are
    transposed       stored (in, out)
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
            raise ValueError(
                f"{self.name} must have the number of its layer in its name, as blocks.0.weight"
                " has, for a scheme that scales by depth"
            )
        return self.layer + 1

    @property
    def label(self) -> str:
        """The name, with [2/3] for the second of three slices."""
        number, parts = self.part
        return f"{self.name}[{number + 1}/{parts}]" if parts > 1 else self.name

    def slice_of(self, tensor: Tensor) -> Tensor:
        """The part of a fused tensor that this stands for, along the output dimension."""
        number, parts = self.part
        dim = output_dim(tensor.ndim, self.transposed)
        size = tensor.shape[dim] // parts
        return tensor.narrow(dim, number * size, size)


def output_dim(dims: int, transposed: bool) -> int:
    """The dimension of a weight's outputs: the first, or the last where it is stored (in, out)."""
    return dims - 1 if transposed else 0


def block_of(name: str) -> tuple[str, int] | None:
    """Path and number of the block that a parameter belongs to; None outside the blocks.

    ("h.3", 3) of h.3.proj.2.weight: the first number in a name counts the blocks.
    """
    found = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    if found is None:
        return None
    return name[: found.end(1)], int(found[1])


def laid_out(
    model: nn.Module, roles: RoleTable | None, heads: tuple[int, int] | None
) -> tuple[list[Parameter], Sizes]:
    """Every parameter, or slice of a fused one, with its role, layer and fans; and the sizes.

    Width and vocabulary are those of the embedding, layers the numbers in the names.

    roles  the role table, None for that of our own models
    heads  their number and size
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    rules = table_of(model, roles).assign(shapes)
    parameters: list[Parameter] = []
    for name in shapes:
        parameters += slices_of(name, shapes, rules)
    return parameters, sizes_of(parameters, heads_of(model, heads))


def table_of(model: nn.Module, roles: RoleTable | None) -> RoleTable:
    """The role table given, or that of our own models; ValueError where neither is there."""
    table = roles or OURS.get(kind_of(model))
    if table is None:
        raise ValueError(
            f"roles must be given for a {type(model).__name__}: a table of patterns, as in a TOML"
            " file"
        )
    return table


def slices_of(
    name: str, shapes: Mapping[str, tuple[int, ...]], rules: Mapping[str, Rule]
) -> Iterator[Parameter]:
    """The slices of one parameter, one where nothing is fused; ValueError unless they are equal."""
    rule = rules[name]
    shape = list(shapes[name])
    count = len(rule.roles)
    if count > 1:
        dim = output_dim(len(shape), rule.transposed)
        if shape[dim] % count:
            raise ValueError(
                f"outputs of {name} must be {count} equal parts, got {shape[dim]}; mend its roles"
            )
        shape[dim] //= count
    block = block_of(name)
    layer = None if block is None else block[1]
    fan_in, fan_out = fans_of(name, tuple(shape), shapes, rules)
    for number, role in enumerate(rule.roles):
        yield Parameter(
            name,
            role,
            layer,
            tuple(shape),
            fan_in,
            fan_out,
            part=(number, count),
            transposed=rule.transposed,
        )


def fans_of(
    name: str,
    shape: tuple[int, ...],
    shapes: Mapping[str, tuple[int, ...]],
    rules: Mapping[str, Rule],
) -> tuple[int, int]:
    """fan_in and fan_out of a slice: of a bias those of its matrix, of a vector its size twice."""
    transposed = rules[name].transposed
    if name.endswith("bias"):
        matrix = name.removesuffix("bias") + "weight"
        if matrix in shapes:
            shape = shapes[matrix]
            transposed = rules[matrix].transposed
    if len(shape) < 2:
        size = math.prod(shape)
        return size, size
    if transposed:
        return shape[-2], shape[-1]
    return shape[1], shape[0]


def heads_of(model: nn.Module, heads: tuple[int, int] | None) -> tuple[int, int] | None:
    """Number and size of the heads as given, or of our own models.

    Raises ValueError unless both are at least 1.
    """
    kind = kind_of(model)
    if heads is None and kind:
        config = cast(Any, model).config
        heads = (1, config.dim) if kind == "SSM" else (config.heads, config.head_size)
    if heads is not None and (len(heads) != 2 or min(heads) < 1):
        raise ValueError(f"heads must be (number, size), both at least 1, got {heads}")
    return heads


def sizes_of(parameters: list[Parameter], heads: tuple[int, int] | None) -> Sizes:
    """Width and vocabulary of the embedding, layers and branches as the parameters have them.

    Raises ValueError without an embedding.
    """
    embedding = next((one.shape for one in parameters if one.role == "embedding"), None)
    if embedding is None:
        raise ValueError(
            "roles must give a parameter the role 'embedding', whose shape is (vocabulary, width),"
            " got none"
        )
    vocabulary = embedding[0]
    width = embedding[1]
    numbers = {one.layer for one in parameters if one.layer is not None}
    layers = max(len(numbers), 1)
    outputs = {one.name for one in parameters if one.role in OUTPUT}
    branches = max(1, round(len(outputs) / layers))
    return Sizes(width, layers, vocabulary, heads, branches)
