"""Plans: what a scheme does to every parameter of a model, as data, before any tensor is touched.

from plkernel.models.init import plan

chosen = plan(model, "megatron_default")    # works on the meta device
print(*chosen.entries, sep="\n")
chosen.apply_(model, seed=0)
optimizer = torch.optim.AdamW(chosen.param_groups(model, learning_rate=3e-4, weight_decay=0.1))

A role table gives every parameter one role (`plkernel.models.init.roles`), its shape gives the
sizes, and a scheme gives rules by role.
"""

import hashlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import groupby
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from plkernel.models.init.distributions import KEEP, ONE, ZERO, Distribution
from plkernel.models.init.roles import (
    DECAYED,
    Parameter,
    Role,
    RoleTable,
    Sizes,
    group,
    kind_of,
    laid_out,
)
from plkernel.models.init.rwkv_vectors import OFFICIAL, VERSIONS, initial_vector, of_rwkv
from plkernel.models.layers import Structure

M = TypeVar("M", bound=nn.Module)


def structure_of(model: Any) -> Structure:
    """The structure a model was built with; an RWKV always norms its embedding (ln0)."""
    kind = kind_of(model)
    if not kind:
        return Structure()
    structure: Structure = model.config.structure
    if kind == "SSM":
        return structure
    return replace(structure, embedding_norm=structure.norm != "none")


DistributionOf = Distribution | Callable[[Parameter], Distribution]
"""The distribution of all parameters of a role, or one for each."""
NumberOf = float | Callable[[Parameter], float]
"""A multiplier of all parameters of a role, or one for each."""


@dataclass(frozen=True)
class Rules:
    """The rules of a scheme, by group of roles.

    A rule is a distribution, or a function from `Parameter` to one.

    embedding            also of what no other rule speaks of, and of positions
    input, output, head  as `embedding` unless given
    roles                exceptions by role, which come first
    norm, norm_bias, bias, gate
                         of roles that are no matrices
    learning_rate, eps, weight_decay
                         multipliers for Adam by role or by group (`input`, `output`), 1 elsewhere;
                         weight decay is 0 on all but matrices unless said
    forward              numbers that multiply activations (embedding, logits, ...)
    needs                options of `Structure` that the model must have
    vectors              the version of an RWKV's vectors and low-rank maps
                         (`plkernel.models.init.rwkv_vectors`); today's official code where it is
                         empty
    longest              the longest time constant in bytes of the ramp of RWKV-7's decays; 0 for
                         the official ramp
    """

    embedding: DistributionOf
    input: DistributionOf | None = None
    output: DistributionOf | None = None
    head: DistributionOf | None = None
    roles: Mapping[Role, DistributionOf] = field(default_factory=dict)
    norm: DistributionOf = ONE
    norm_bias: DistributionOf = ZERO
    bias: DistributionOf = ZERO
    gate: DistributionOf = ONE
    learning_rate: Mapping[str, NumberOf] = field(default_factory=dict)
    eps: Mapping[str, NumberOf] = field(default_factory=dict)
    weight_decay: Mapping[str, NumberOf] = field(default_factory=dict)
    forward: Mapping[str, float] = field(default_factory=dict)
    needs: Mapping[str, Any] = field(default_factory=dict)
    vectors: str = ""
    longest: float = 0.0

    def fill(self, parameter: Parameter) -> Distribution:
        """The distribution of one parameter that is not the model's own."""
        fill: DistributionOf | None = self.roles.get(parameter.role)
        if fill is None and parameter.role != "position":
            fill = getattr(self, group(parameter.role))
        if fill is None:
            fill = self.embedding
        return fill if isinstance(fill, Distribution) else fill(parameter)

    def multiplier(self, kind: str, parameter: Parameter) -> float:
        """Multiplier of the learning rate, eps or weight_decay."""
        values = cast(Mapping[str, NumberOf], getattr(self, kind))
        role = parameter.role
        if role in values:
            number = values[role]
        elif group(role) in values:
            number = values[group(role)]
        elif kind == "weight_decay" and role not in DECAYED:
            number = 0.0
        else:
            number = 1.0
        return float(number(parameter) if callable(number) else number)


@dataclass(frozen=True)
class Scheme:
    """A named initialisation: its source, what it is about, and its rules.

    rules: a function of `Sizes` and of options, which are keywords.
    """

    name: str
    source: str
    about: str
    rules: Callable[..., Rules]

    @property
    def options(self) -> dict[str, float]:
        """Its free constants and their defaults."""
        _sizes, *free = inspect.signature(self.rules).parameters.values()
        return {parameter.name: parameter.default for parameter in free}


SCHEMES: dict[str, Scheme] = {}


def scheme(source: str) -> Callable[[Callable[..., Rules]], Callable[..., Rules]]:
    """Register a function `(sizes, *, option=default, ...) -> Rules` as the scheme of its name.

    source: where it comes from, headed by its kind (code, paper, tech report, notes). The docstring
    of the function describes the scheme.
    """

    def register(rules: Callable[..., Rules]) -> Callable[..., Rules]:
        name = rules.__name__
        SCHEMES[name] = Scheme(name, source, inspect.getdoc(rules) or "", rules)
        return rules

    return register


def rules_at(name: str, sizes: Sizes, options: Mapping[str, float]) -> Rules:
    """The rules of a scheme at these sizes.

    Raises ValueError for an unknown name or option, or a value that no option has.
    """
    chosen = find_scheme(name)
    for option, value in options.items():
        if option not in chosen.options:
            valid = ", ".join(chosen.options) or "it has none"
            raise ValueError(f"option of scheme {name!r} must be one of {valid}, got {option!r}")
        if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
            raise ValueError(
                f"{option} of scheme {name!r} must be a finite number of at least 0, got {value!r}"
            )
        if isinstance(chosen.options[option], bool) and value not in (0, 1):
            raise ValueError(f"{option} of scheme {name!r} must be 0 or 1, got {value!r}")
    return chosen.rules(sizes, **options)


def find_scheme(name: str) -> Scheme:
    """The scheme of this name; ValueError with the nearest ones."""
    if name not in SCHEMES:
        near = get_close_matches(name, SCHEMES, n=3, cutoff=0.5)
        hint = "plkernel.init list names all, such as mup"
        if near:
            hint = f"nearest: {', '.join(near)}"
        raise ValueError(f"scheme must be the name of one, got {name!r}; {hint}")
    return SCHEMES[name]


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
    """The entries of a scheme on a model, in the order of its parameters.

    forward and needs: what it asks of the forward pass, see `Rules`.
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
        """The parameters of `model` by name.

        Raises ValueError unless they are those that the plan was made for.
        """
        parameters: dict[str, Tensor] = dict(model.named_parameters())
        planned = {name for name, _ in self.names()}
        if planned != parameters.keys():
            name = min(planned ^ parameters.keys())
            where = "plan" if name in planned else "model"
            raise ValueError(
                f"model must have the parameters of the plan, got {name} in the {where} alone; make"
                " the plan for this model"
            )
        return parameters

    @torch.no_grad()
    def apply_(self, model: nn.Module, seed: int) -> nn.Module:
        """Fill the parameters of `model` in place, and return it.

        One generator per (seed, parameter name), so a parameter gets the same values whatever else
        the model has and in whatever order. What the plan keeps must hold numbers already, or get
        them afterwards: `to_empty` gives it whatever the memory held, but for the decays of our own
        models, which are then as they are built. ValueError where the model has other parameters
        than the plan, and for a model on the meta device or of inference mode.
        """
        parameters = self.parameters_of(model)
        check_holds_numbers(model)
        for name, entries in self.names():
            generator = generator_for(seed, name)
            for entry in entries:
                if entry.distribution.kind == "keep":
                    continue
                values = values_of(entry, model, generator)
                target = entry.parameter.slice_of(parameters[name])
                target.copy_(values.to(target))
        return model

    def multipliers(self) -> dict[str, tuple[float, float, float]]:
        """Multipliers of learning rate, weight decay and eps by parameter.

        Raises ValueError where slices of one differ.
        """
        by_name = {}
        for name, entries in self.names():
            kinds = {(entry.learning_rate, entry.weight_decay, entry.eps) for entry in entries}
            if len(kinds) > 1:
                rates = sorted(entry.learning_rate for entry in entries)
                raise ValueError(
                    f"multipliers of {name} must be the same for all of its parts, got learning"
                    f" rates times {', '.join(f'{rate:g}' for rate in rates)} from scheme"
                    f" {self.scheme!r}; store the parts apart"
                )
            by_name[name] = kinds.pop()
        return by_name

    def param_groups(
        self, model: nn.Module, learning_rate: float, weight_decay: float, eps: float = 1e-8
    ) -> list[Any]:
        """Groups for an Adam: parameters with equal multipliers together.

        Each holds lr, weight_decay and eps, and lr_multiplier for schedules that write lr anew.
        """
        return optimizer_groups(
            self.parameters_of(model), self.multipliers(), learning_rate, weight_decay, eps
        )


def check_holds_numbers(model: nn.Module) -> None:
    """ValueError, with the first of them, for parameters into which no numbers can be written."""
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise ValueError(
                f"model must have parameters that hold numbers, got {name} on the meta device; call"
                ' model.to_empty(device="cpu") first'
            )
        if parameter.is_inference() and not torch.is_inference_mode_enabled():
            raise ValueError(
                f"model must have parameters that can be changed, got {name} of inference mode;"
                " build the model outside of it"
            )


def values_of(entry: Entry, model: nn.Module, generator: torch.Generator) -> Tensor:
    """The values of one entry in the shape of its parameter, on the CPU.

    A transposed matrix is drawn as (out, in), like all others.
    """
    parameter = entry.parameter
    distribution = entry.distribution
    if distribution.kind == "vector":
        config = cast(Any, model).config
        version = cast(str, distribution.version)
        values = initial_vector(parameter.name, config, version, distribution.scale)
        return values.view(parameter.shape)
    if parameter.transposed:
        return distribution.draw(parameter.shape[::-1], generator).mT
    return distribution.draw(parameter.shape, generator)


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

    roles      the role table
    heads      how many, and their size, (1, width) of a model without heads
    structure  norms, residual form and multipliers of the forward pass
    options    the scheme's free constants

    Our own models bring roles, heads and structure along; of another's it is the caller's word that
    the model computes so.

    Raises ValueError for an unknown scheme or option (with the nearest valid names), for a
    parameter with no role or two, for a scheme that asks for heads where nobody said them, for one
    of another version of RWKV, and for a need of the scheme that the model does not meet.
    """
    parameters, sizes = laid_out(model, roles, heads)
    rules = rules_at(scheme, sizes, options)
    missing = unmet(rules, structure or structure_of(model))
    if missing:
        raise ValueError(
            f"model must have {', '.join(missing)} for scheme {scheme!r}, got another; build"
            " it so (`asked`), or say with structure that it is so"
        )
    check_version(model, scheme, rules)
    entries = []
    for parameter in parameters:
        if parameter.role == "own":
            distribution = own_of(model, parameter.name, rules)
        else:
            distribution = rules.fill(parameter)
        entry = Entry(
            parameter,
            distribution,
            learning_rate=rules.multiplier("learning_rate", parameter),
            eps=rules.multiplier("eps", parameter),
            weight_decay=rules.multiplier("weight_decay", parameter),
        )
        entries.append(entry)
    return Plan(
        scheme,
        {**SCHEMES[scheme].options, **options},
        sizes,
        tuple(entries),
        dict(rules.forward),
        dict(rules.needs),
    )


def unmet(rules: Rules, structure: Structure) -> list[str]:
    """The needs and multipliers of a scheme that a structure lacks, in words.

    A multiplier that the structure has unasked is one, too.
    """
    built = structure.options()
    missing = []
    for name, value in rules.needs.items():
        if built.get(name) != value:
            missing.append(f"{name} = {value!r}")
    for name in sorted({*rules.forward, *structure.multipliers}):
        wanted = rules.forward.get(name, 1.0)
        if not math.isclose(wanted, structure.multipliers.get(name, 1.0), rel_tol=1e-9):
            missing.append(f"multiplier {name} = {wanted:.6g}")
    return missing


def check_version(model: nn.Module, scheme: str, rules: Rules) -> None:
    """ValueError for a scheme whose vectors are those of another version of RWKV than the model."""
    if not rules.vectors or kind_of(model) not in OFFICIAL:
        return
    number = cast(Any, model).config.version
    if number not in VERSIONS[rules.vectors].models:
        fitting = [name for name, version in VERSIONS.items() if number in version.models]
        raise ValueError(f"scheme must be {' or '.join(fitting)} for RWKV-{number}, got {scheme!r}")


def own_of(model: nn.Module, name: str, rules: Rules) -> Distribution:
    """The distribution of a parameter that schemes leave as the model has it."""
    kind = kind_of(model)
    if kind == "SSM":
        # Decays are placed afterwards, by a node set.
        return ONE if name.endswith(".D") else KEEP
    if kind in OFFICIAL:
        config = cast(Any, model).config
        return of_rwkv(name, config, rules.vectors or OFFICIAL[kind], rules.longest)
    return KEEP


def asked(
    model: nn.Module,
    scheme: str,
    roles: RoleTable | None = None,
    *,
    heads: tuple[int, int] | None = None,
    **options: float,
) -> Structure:
    """The structure that `scheme` asks for at the sizes of `model`.

    It is what `plan` compares with that of the model.
    """
    _, sizes = laid_out(model, roles, heads)
    rules = rules_at(scheme, sizes, options)
    return Structure(**rules.needs, multipliers=dict(rules.forward))


def initialise_(
    model: M, scheme: str, seed: int, roles: RoleTable | None = None, **options: Any
) -> M:
    """Fill `model` in place by the plan of this scheme, and return it.

    See `plan` and `Plan.apply_`. A model on the meta device is refused: `to_empty` gives it memory.
    """
    plan(model, scheme, roles, **options).apply_(model, seed)
    return model


def generator_for(seed: int, name: str) -> torch.Generator:
    """A CPU generator for one parameter.

    The same (seed, name) gives the same draws whatever else a model has.
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def is_matrix(name: str, parameter: Tensor) -> bool:
    """True if weight decay acts on a parameter where no plan says it.

    That is a `.weight` with two or more dimensions above 1.
    """
    return name.endswith(".weight") and parameter.squeeze().ndim >= 2


def optimizer_groups(
    parameters: Mapping[str, Tensor],
    multipliers: Mapping[str, tuple[float, float, float]],
    learning_rate: float,
    weight_decay: float,
    eps: float,
) -> list[dict[str, Any]]:
    """Groups for an optimiser, see `Plan.param_groups`.

    multipliers: of learning rate, weight decay and eps, by the name of a parameter.
    """
    members: dict[tuple[float, float, float], list[Tensor]] = {}
    for name, triple in multipliers.items():
        members.setdefault(triple, []).append(parameters[name])
    groups = []
    for (by_rate, by_decay, by_eps), tensors in members.items():
        group = {
            "params": tensors,
            "lr": learning_rate * by_rate,
            "lr_multiplier": by_rate,
            "weight_decay": weight_decay * by_decay,
            "eps": eps * by_eps,
        }
        groups.append(group)
    return groups
