"""Plans: what a scheme does to every parameter of a model, as data, before any tensor is touched.

from plkernel.models.init import plan

chosen = plan(model, "megatron_default")    # works on the meta device
print(*chosen.entries, sep="\n")
chosen.apply_(model, seed=0)
optimizer = torch.optim.AdamW(chosen.param_groups(model, learning_rate=3e-4, weight_decay=0.1))

A role table gives every parameter one role, its shape gives the sizes, and a scheme gives rules by
role:

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
own         what a scheme leaves as the model has it: decays, time steps, token shifts, low-rank
maps, convolutions
"""

import hashlib
import inspect
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import torch
from pydantic import BaseModel, StrictBool, ValidationError
from torch import Tensor, nn

from plkernel.models.init.distributions import KEEP, ONE, ZERO, Distribution, of_rwkv, vector
from plkernel.models.layers import Structure

M = TypeVar("M", bound=nn.Module)
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
COME_WITH = Path(__file__).parents[2] / "runs" / "roles"


class Rule(BaseModel, frozen=True, extra="forbid"):
    """The rule of one pattern: the role; `parts`, the roles of equal slices along the output where
    several matrices are fused into one; `transposed` where the weight is stored (in, out)."""

    role: Role | None = None
    parts: tuple[Role, ...] = ()
    transposed: StrictBool = False


class RoleTable(dict[str, Rule]):
    """Patterns (as `fnmatch`; `*` also matches dots) and their rules."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RoleTable":
        """From plain values, as in a TOML file: pattern = "role" or {parts = ["query", ...],
        transposed = true}.

        Raises ValueError that names the pattern.
        """
        table = cls()
        for pattern, value in values.items():
            try:
                table[pattern] = rule = Rule.model_validate(
                    {"role": value} if isinstance(value, str) else value
                )
            except ValidationError as error:
                first = error.errors()[0]
                place = ".".join(map(str, first["loc"])) or "rule"
                raise ValueError(
                    f"roles: {pattern!r}: {place}: {first['msg']}, got {value!r}"
                ) from error
            if (rule.role is None) == (not rule.parts):
                raise ValueError(f"roles: {pattern!r}: a rule needs a role or parts, and not both")
        return table

    @classmethod
    def from_toml(cls, path: Path | str) -> "RoleTable":
        """From a TOML file whose lines are as in `from_dict`, or by the name of one that comes with
        plkernel: gpt2.

        Raises ValueError, naming the file, where it is not.
        """
        named = COME_WITH / f"{path}.toml"
        path = Path(path) if Path(path).is_file() or not named.is_file() else named
        if not path.is_file():  # a pipe may never answer
            raise ValueError(
                f"{path}: no such file; by name there are"
                f" {', '.join(sorted(p.stem for p in COME_WITH.glob('*.toml')))}"
            )
        try:
            return cls.from_dict(tomllib.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def by_role(**patterns: str) -> RoleTable:
    """A table from the patterns of each role, separated by spaces."""
    return RoleTable(
        {
            one: Rule(role=cast(Role, role))
            for role, text in patterns.items()
            for one in text.split()
        }
    )


SSM_ROLES = by_role(
    embedding="embedding.weight",
    head="head.weight",
    own="blocks.*.ssm.log_rate blocks.*.ssm.D",
    value="blocks.*.ssm.B.weight",
    mixer_out="blocks.*.ssm.C_proj.weight",
    bias="blocks.*.ssm.C_proj.bias",
    ffn_gate="blocks.*.mlp.gate.weight",
    ffn_up="blocks.*.mlp.up.weight",
    ffn_out="blocks.*.mlp.down.weight",
    norm="*norm?.weight norm.weight embedding.norm.weight blocks.*.join?.post_norm.weight",
    norm_bias="*norm?.bias norm.bias embedding.norm.bias blocks.*.join?.post_norm.bias",
)
RWKV_ROLES = by_role(
    embedding="emb.weight",
    head="head.weight",
    own=(
        "blocks.*.time_* blocks.*.x_? blocks.*.att.[wavg][012] blocks.*.att.[kr]_[ka]"
        " blocks.*.att.ln_x.*"
    ),
    query="blocks.*.att.receptance.weight",
    key="blocks.*.att.key.weight",
    value="blocks.*.att.value.weight",
    mixer_gate="blocks.*.att.gate.weight",
    mixer_out="blocks.*.att.output.weight",
    ffn_gate="blocks.*.ffn.key.weight",
    ffn_router="blocks.*.ffn.receptance.weight",
    ffn_out="blocks.*.ffn.value.weight",
    norm="blocks.*.ln?.weight ln_out.weight blocks.*.join?.post_norm.weight",
    norm_bias="blocks.*.ln?.bias ln_out.bias blocks.*.join?.post_norm.bias",
)
OFFICIAL = {"RWKV": "rwkv_blinkdl", "RWKV7": "rwkv7_official"}
"""Schemes whose vectors belong to one kind of RWKV."""


def kind_of(model: nn.Module) -> str:
    """SSM, RWKV or RWKV7; nothing for a model of another library."""
    name = type(model).__name__
    return (
        name
        if name in ("SSM", "RWKV", "RWKV7") and type(model).__module__.startswith("plkernel.")
        else ""
    )


def structure_of(model: Any) -> Structure:
    """The structure a model was built with; an RWKV always norms its embedding (ln0)."""
    if not kind_of(model):
        return Structure()
    structure: Structure = model.config.structure
    return structure if kind_of(model) == "SSM" else replace(structure, embedding_norm=True)


@dataclass(frozen=True)
class Sizes:
    """width d, layers L (blocks), vocabulary V, heads (number, size) and branches, residual
    branches per block.

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
    """One parameter, or one slice of a fused one: `shape` as stored, `fan_in` and `fan_out` of the
    slice alone.

    part: number of the slice and how many there are; a bias has the fans of its matrix. `layer`
    counts from 0.
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
                f"{self.name} needs the number of its layer in its name: this scheme scales by"
                " depth"
            )
        return self.layer + 1

    @property
    def label(self) -> str:
        """The name, with [2/3] for the second of three slices."""
        return self.name + (f"[{self.part[0] + 1}/{self.part[1]}]" if self.part[1] > 1 else "")

    def slice_of(self, tensor: Tensor) -> Tensor:
        """The part of a fused tensor that this stands for, along the output dimension."""
        number, parts = self.part
        dim = tensor.ndim - 1 if self.transposed else 0
        size = tensor.shape[dim] // parts
        return tensor.narrow(dim, number * size, size)


Fill = Distribution | Callable[[Parameter], Distribution]
Number = float | Callable[[Parameter], float]


@dataclass(frozen=True)
class Rules:
    """The rules of a scheme: a distribution, or a function from `Parameter` to one, by group of
    roles.

    `input`, `output` and `head` are as `embedding` unless given. `roles` holds exceptions by role,
    which come first; position follows embedding. learning_rate, eps and weight_decay hold
    multipliers for Adam by role or by group (`input`, `output`), 1 elsewhere; weight decay is 0 on
    all but matrices unless said. `forward`: numbers that multiply activations (embedding, logits,
    ...). `needs`: options that the model must have.
    """

    embedding: Fill
    input: Fill | None = None
    output: Fill | None = None
    head: Fill | None = None
    roles: Mapping[Role, Fill] = field(default_factory=dict)
    norm: Fill = ONE
    norm_bias: Fill = ZERO
    bias: Fill = ZERO
    learning_rate: Mapping[str, Number] = field(default_factory=dict)
    eps: Mapping[str, Number] = field(default_factory=dict)
    weight_decay: Mapping[str, Number] = field(default_factory=dict)
    forward: Mapping[str, float] = field(default_factory=dict)
    needs: Mapping[str, Any] = field(default_factory=dict)

    def fill(self, parameter: Parameter) -> Distribution:
        """The distribution of one parameter that is not the model's own."""
        role = parameter.role
        fill = self.roles.get(role) or getattr(
            self, "embedding" if role == "position" else group(role)
        )
        fill = cast(Fill, fill or self.embedding)
        return fill if isinstance(fill, Distribution) else fill(parameter)

    def multiplier(self, kind: str, parameter: Parameter) -> float:
        """Multiplier of the learning rate, eps or weight_decay."""
        role, values = parameter.role, cast(Mapping[str, Number], getattr(self, kind))
        otherwise = 1.0 if kind != "weight_decay" or role in DECAYED else 0.0
        number = values.get(role, values.get(group(role), otherwise))
        return float(number(parameter) if callable(number) else number)


def group(role: Role) -> str:
    """`input`, `output`, or the role itself."""
    return "input" if role in INPUT else "output" if role in OUTPUT else role


@dataclass(frozen=True)
class Scheme:
    """A named initialisation: its source and description, and the function from sizes and options
    to rules.
    """

    name: str
    source: str
    about: str
    rules: Callable[..., Rules]

    @property
    def options(self) -> dict[str, float]:
        """Its free constants and their defaults."""
        parameters = list(inspect.signature(self.rules).parameters.values())[1:]
        return {parameter.name: parameter.default for parameter in parameters}


SCHEMES: dict[str, Scheme] = {}


def add(source: str, name: str, about: str, rules: Callable[..., Rules]) -> None:
    """Register a function `(sizes, option=default, ...) -> Rules` as a scheme."""
    SCHEMES[name] = Scheme(name, source, about, rules)


def scheme(source: str) -> Callable[[Callable[..., Rules]], None]:
    """Register a function as the scheme of its name, described by its docstring."""
    return lambda rules: add(source, rules.__name__, inspect.getdoc(rules) or "", rules)


def rules_at(name: str, sizes: Sizes, options: Mapping[str, float]) -> Rules:
    """The rules of a scheme at these sizes; ValueError for an unknown name or option, or a value
    that no option has.
    """
    if name not in SCHEMES:
        near = get_close_matches(name, SCHEMES, n=3, cutoff=0.5)
        remedy = (
            f"nearest: {', '.join(near)}" if near else "plkernel.init list names all, such as mup"
        )
        raise ValueError(f"scheme {name!r} does not exist; {remedy}")
    known = SCHEMES[name].options
    for option, value in options.items():
        if option not in known:
            raise ValueError(
                f"scheme {name!r} has no option {option!r}; valid:"
                f" {', '.join(known) or 'it has none'}"
            )
        if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
            raise ValueError(
                f"{option} of scheme {name!r} must be a finite number of at least 0, got {value!r}"
            )
    return SCHEMES[name].rules(sizes, **options)


@dataclass(frozen=True)
class Entry:
    """One parameter (or slice) of a plan: its distribution, and multipliers for the optimiser."""

    parameter: Parameter
    distribution: Distribution
    learning_rate: float = 1.0
    eps: float = 1.0
    weight_decay: float = 1.0


@dataclass(frozen=True)
class Plan:
    """The entries of a scheme on a model, in the order of its parameters, and what it asks of the
    forward pass.
    """

    scheme: str
    options: Mapping[str, float]
    sizes: Sizes
    entries: tuple[Entry, ...]
    forward: Mapping[str, float]
    needs: Mapping[str, Any]

    def names(self) -> Iterator[tuple[str, list[Entry]]]:
        """The parameters, each with its slices."""
        for name, entries in groupby(self.entries, key=lambda entry: entry.parameter.name):
            yield name, list(entries)

    def parameters_of(self, model: nn.Module) -> dict[str, Tensor]:
        """The parameters of `model` by name; ValueError unless they are those that the plan was
        made for.
        """
        parameters, planned = dict(model.named_parameters()), {name for name, _ in self.names()}
        if planned != parameters.keys():
            name = sorted(planned ^ parameters.keys())[0]
            where = (
                "the plan, but not in the model"
                if name in planned
                else "the model, but not in the plan"
            )
            raise ValueError(f"{name} is in {where}: make the plan for this model")
        return cast(dict[str, Tensor], parameters)

    @torch.no_grad()
    def apply_(self, model: nn.Module, seed: int) -> nn.Module:
        """Fill the parameters of `model` in place, and return it.

        One generator per (seed, parameter name), so a parameter gets the same values whatever else
        the model has and in whatever order. ValueError where the model has other parameters than
        the plan.
        """
        parameters = self.parameters_of(model)
        for name, entries in self.names():
            generator = generator_for(seed, name)
            for entry in entries:
                parameter, drawn = entry.parameter, entry.distribution
                if drawn.kind == "keep":
                    continue
                if drawn.kind == "vector":
                    config: Any = model.config
                    values = vector(name, config).view(parameter.shape)
                elif parameter.transposed:
                    values = drawn.draw(parameter.shape[::-1], generator).mT
                else:
                    values = drawn.draw(parameter.shape, generator)
                target = parameter.slice_of(parameters[name])
                target.copy_(values.to(target))
        return model

    def multipliers(self) -> dict[str, tuple[float, float, float]]:
        """Multipliers of learning rate, weight decay and eps by parameter; ValueError where slices
        of one differ.
        """
        by_name = {}
        for name, entries in self.names():
            kinds = {(entry.learning_rate, entry.weight_decay, entry.eps) for entry in entries}
            if len(kinds) > 1:
                raise ValueError(
                    f"{name} is fused from parts that scheme {self.scheme!r} trains at different"
                    " rates"
                )
            by_name[name] = kinds.pop()
        return by_name

    def param_groups(
        self, model: nn.Module, learning_rate: float, weight_decay: float, eps: float = 1e-8
    ) -> list[Any]:
        """Groups for an Adam: parameters with equal multipliers together.

        Each holds lr, weight_decay and eps, and lr_multiplier for schedules that write lr anew.
        """
        return grouped(
            self.parameters_of(model), self.multipliers(), learning_rate, weight_decay, eps
        )


def plan(
    model: nn.Module,
    scheme: str,
    roles: RoleTable | None = None,
    *,
    heads: tuple[int, int] | None = None,
    structure: Structure | None = None,
    **options: float,
) -> Plan:
    """The plan of `scheme` for `model`; no tensor is read or written, so a meta model will do.

    roles: the role table; heads: how many, and their size, (1, width) of a model without heads;
    structure: norms, residual form and multipliers of the forward pass. Our own models bring all
    three along; of another's it is the caller's word that the model computes so. options: the
    scheme's free constants.

    Raises ValueError for an unknown scheme or option (with the nearest valid names), for a
    parameter with no role or two, for a scheme that asks for heads where nobody said them, for one
    of another kind of RWKV, and for a need of the scheme that the model does not meet.
    """
    parameters, sizes = laid_out(model, roles, heads)
    rules, has = rules_at(scheme, sizes, options), structure or structure_of(model)
    built = has.options()
    missing = [
        f"{name} = {value!r}" for name, value in rules.needs.items() if built.get(name) != value
    ]
    missing += [
        f"multiplier {name} = {rules.forward.get(name, 1.0):.6g}"
        for name in sorted({*rules.forward, *has.multipliers})
        if not math.isclose(
            rules.forward.get(name, 1.0), has.multipliers.get(name, 1.0), rel_tol=1e-9
        )
    ]
    if missing:
        raise ValueError(
            f"scheme {scheme!r} needs a model with {', '.join(missing)}: build it so (`asked`), "
            "or say with structure that it is so"
        )
    kind = kind_of(model)
    if OFFICIAL.get(kind, scheme) != scheme and scheme in OFFICIAL.values():
        version = cast(Any, model).config.version
        raise ValueError(f"scheme {scheme!r} is not for RWKV-{version}: use {OFFICIAL[kind]}")

    def own(name: str) -> Distribution:
        if kind == "SSM":
            return (
                ONE if name.endswith(".D") else KEEP
            )  # decays are placed afterwards, by a node set
        return of_rwkv(name, cast(Any, model).config) if kind else KEEP

    entries = tuple(
        Entry(
            p,
            own(p.name) if p.role == "own" else rules.fill(p),
            *(
                rules.multiplier(multiplier, p)
                for multiplier in ("learning_rate", "eps", "weight_decay")
            ),
        )
        for p in parameters
    )
    return Plan(
        scheme,
        {**SCHEMES[scheme].options, **options},
        sizes,
        entries,
        dict(rules.forward),
        dict(rules.needs),
    )


def asked(
    model: nn.Module,
    scheme: str,
    roles: RoleTable | None = None,
    *,
    heads: tuple[int, int] | None = None,
    **options: float,
) -> Structure:
    """The structure that `scheme` asks for at the sizes of `model`: what `plan` compares with that
    of the model.
    """
    rules = rules_at(scheme, laid_out(model, roles, heads)[1], options)
    return Structure(**rules.needs, multipliers=dict(rules.forward))


def initialise_(
    model: M, scheme: str, seed: int, roles: RoleTable | None = None, **options: Any
) -> M:
    """Fill `model` in place by the plan of this scheme, and return it; see `plan`."""
    plan(model, scheme, roles, **options).apply_(model, seed)
    return model


def laid_out(
    model: nn.Module, roles: RoleTable | None, heads: tuple[int, int] | None
) -> tuple[list[Parameter], Sizes]:
    """Every parameter, or slice of a fused one, with its role, layer and fans, and the sizes of the
    model.

    Width and vocabulary are those of the embedding, layers the numbers in the names; `roles` and
    `heads` as in `plan`.
    """
    kind, config = kind_of(model), cast(Any, getattr(model, "config", None))
    table = roles or {"SSM": SSM_ROLES, "RWKV": RWKV_ROLES, "RWKV7": RWKV_ROLES}.get(kind)
    if table is None:
        raise ValueError(
            f"roles must be given for a {type(model).__name__}: a table of patterns, as in a TOML"
            " file"
        )
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    matching = {
        name: [pattern for pattern in table if fnmatchcase(name, pattern)] for name in shapes
    }
    wrong = [
        f"{name} ({' and '.join(map(repr, m)) or 'no pattern'})"
        for name, m in matching.items()
        if len(m) != 1
    ]
    if wrong:
        more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""
        raise ValueError(f"every parameter needs exactly one role: {', '.join(wrong[:4])}{more}")
    rules = {name: table[pattern] for name, [pattern] in matching.items()}
    parameters = []
    for name, rule in rules.items():
        shape, fused = shapes[name], (rule.role,) if rule.role else rule.parts
        dim, count = len(shape) - 1 if rule.transposed else 0, len(fused)
        if count > 1 and shape[dim] % count:
            raise ValueError(f"{name} has {shape[dim]} outputs, which are not {count} equal parts")
        each = tuple(size // count if i == dim else size for i, size in enumerate(shape))
        matrix, transposed = each, rule.transposed
        if name.endswith("bias") and (of := name.removesuffix("bias") + "weight") in shapes:
            matrix, transposed = shapes[of], rules[of].transposed
        if len(matrix) < 2:
            fans = (math.prod(matrix), math.prod(matrix))  # of a vector its size twice
        else:
            fans = (matrix[-2], matrix[-1]) if transposed else (matrix[1], matrix[0])
        block = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)  # the first number counts the blocks
        layer = int(block[1]) if block else None
        for number, role in enumerate(fused):
            parameters.append(
                Parameter(name, role, layer, each, *fans, (number, count), rule.transposed)
            )
    if heads is None and kind:
        heads = (1, config.dim) if kind == "SSM" else (config.heads, config.head_size)
    if heads is not None and (len(heads) != 2 or min(heads) < 1):
        raise ValueError(f"heads must be (number, size), both at least 1, got {heads}")
    embedding = next((p.shape for p in parameters if p.role == "embedding"), None)
    if embedding is None:
        raise ValueError(
            "no parameter has the role 'embedding', whose shape gives width and vocabulary"
        )
    layers = max(len({p.layer for p in parameters if p.layer is not None}), 1)
    branches = len({p.name for p in parameters if p.role in OUTPUT}) / layers
    return parameters, Sizes(embedding[1], layers, embedding[0], heads, max(1, round(branches)))


def generator_for(seed: int, name: str) -> torch.Generator:
    """A CPU generator for one parameter: the same (seed, name) gives the same draws whatever else a
    model has.
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def is_matrix(name: str, parameter: Tensor) -> bool:
    """True if weight decay acts on it where no plan says so: `.weight`, two or more dimensions
    above 1.
    """
    return name.endswith(".weight") and parameter.squeeze().ndim >= 2


def grouped(
    parameters: Mapping[str, Tensor],
    multipliers: Mapping[str, tuple[float, float, float]],
    learning_rate: float,
    weight_decay: float,
    eps: float,
) -> list[dict[str, Any]]:
    """Groups for an optimiser, by name the multipliers of learning rate, weight decay and eps; see
    `param_groups`.
    """
    groups: dict[tuple[float, float, float], list[Tensor]] = {}
    for name, kind in multipliers.items():
        groups.setdefault(kind, []).append(parameters[name])
    return [
        {
            "params": p,
            "lr": learning_rate * lr,
            "lr_multiplier": lr,
            "weight_decay": weight_decay * wd,
            "eps": eps * e,
        }
        for (lr, wd, e), p in groups.items()
    ]
