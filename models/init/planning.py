"""Making a plan: roles from a table, sizes from shapes, rules from a scheme; no tensor is touched."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from torch import nn

from plkernel.models.init.ours import owner_of
from plkernel.models.init.plan import Entry, Plan
from plkernel.models.init.roles import RoleTable, Rule, layer_of
from plkernel.models.init.rules import Parameter, Rules, Sizes
from plkernel.models.structure import Structure, structure_for

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Scheme:
    """A named initialisation: where it comes from, and the function from sizes and options to its rules."""

    name: str
    source: str
    rules: Callable[..., Rules]

    @property
    def summary(self) -> str:
        """The first line of its description."""
        return (inspect.getdoc(self.rules) or "").partition("\n")[0]

    @property
    def options(self) -> dict[str, float]:
        """Its free constants and their defaults."""
        parameters = list(inspect.signature(self.rules).parameters.values())[1:]
        return {parameter.name: parameter.default for parameter in parameters}

    @property
    def calibrates(self) -> bool:
        """Whether its default options leave something to tune on data."""
        return self.rules(Sizes(64, 2, 256, (4, 16))).calibration is not None


SCHEMES: dict[str, Scheme] = {}


def scheme(source: str) -> Callable[[Callable[..., Rules]], Callable[..., Rules]]:
    """Register a function `(sizes, *, option=default, ...) -> Rules` as the scheme of its name."""

    def register(rules: Callable[..., Rules]) -> Callable[..., Rules]:
        if rules.__name__ in SCHEMES:
            raise ValueError(f"scheme {rules.__name__!r} exists already")
        SCHEMES[rules.__name__] = Scheme(rules.__name__, source, rules)
        return rules

    return register


def plan(
    model: nn.Module,
    scheme: str,
    roles: RoleTable | None = None,
    *,
    heads: tuple[int, int] | None = None,
    structure: Structure | None = None,
    **options: float,
) -> Plan:
    """What `scheme` does to every parameter of `model`; no tensor is read or written, so a meta model will do.

    roles: the role table; heads: how many, and their size, (1, width) of a model without heads; structure: norms,
    residual form and multipliers of the forward pass. Our own models bring all three along; of another's it is the
    caller's word that the model computes so. options: the scheme's free constants.

    Raises ValueError for an unknown scheme or option (with the nearest valid names), for a parameter with no role or
    two, for a scheme that asks for heads where nobody said them, and for a need of the scheme, calibration among them,
    that the model does not meet.
    """
    chosen, owner = find(scheme), owner_of(model)
    parameters, sizes = laid_out(model, roles, heads)
    rules, has = rules_at(chosen, sizes, options), structure or owner.structure(model)
    check_structure(chosen, rules, has)
    if rules.calibration:
        rules.calibration.check(has)
    return Plan(
        scheme,
        {**chosen.options, **options},
        sizes,
        tuple(entry_of(parameter, rules, model, owner) for parameter in parameters),
        dict(rules.forward),
        dict(rules.needs),
        rules.optimizer,
        rules.calibration,
    )


def asked(
    model: nn.Module,
    scheme: str,
    roles: RoleTable | None = None,
    *,
    heads: tuple[int, int] | None = None,
    **options: float,
) -> Structure:
    """The structure that `scheme` asks for at the sizes of `model`: what `plan` compares with that of the model."""
    rules = rules_at(find(scheme), laid_out(model, roles, heads)[1], options)
    return structure_for(rules.needs, rules.forward)


def laid_out(model: nn.Module, roles: RoleTable | None, heads: tuple[int, int] | None) -> tuple[list[Parameter], Sizes]:
    """The parameters with their roles, and the sizes they say."""
    owner = owner_of(model)
    table = roles or owner.roles
    if table is None:
        raise ValueError(f"roles must be given for a {type(model).__name__}: a table of patterns, as in a TOML file")
    parameters = described(model, table)
    return parameters, sizes_of(parameters, heads or owner.heads(model))


def rules_at(scheme: Scheme, sizes: Sizes, options: Mapping[str, float]) -> Rules:
    """What a scheme says at these sizes; ValueError for an option that it does not have."""
    check_options(scheme, options)
    return scheme.rules(sizes, **options)


def initialise_(model: M, scheme: str, seed: int, roles: RoleTable | None = None, **options: Any) -> M:
    """Fill `model` in place by the plan of this scheme, and return it; see `plan`."""
    plan(model, scheme, roles, **options).apply_(model, seed)
    return model


def find(name: str) -> Scheme:
    """The scheme of this name; ValueError with the nearest ones."""
    if name not in SCHEMES:
        near = get_close_matches(name, SCHEMES, n=3, cutoff=0.5)
        remedy = f"nearest: {', '.join(near)}" if near else "plkernel.init list names them"
        raise ValueError(f"scheme {name!r} does not exist; {remedy}")
    return SCHEMES[name]


def check_options(scheme: Scheme, options: Mapping[str, float]) -> None:
    """ValueError for an option that the scheme does not have, and for a value that is no number of at least 0."""
    for name, value in options.items():
        if name not in scheme.options:
            valid = ", ".join(scheme.options) or "it has none"
            raise ValueError(f"scheme {scheme.name!r} has no option {name!r}; valid: {valid}")
        if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} of scheme {scheme.name!r} must be a finite number of at least 0, got {value!r}")


def check_structure(scheme: Scheme, rules: Rules, has: Structure) -> None:
    """ValueError that says what the model lacks, or multiplies by another number than the scheme says."""
    options = has.options()
    missing = [f"{name} = {value!r}" for name, value in rules.needs.items() if options.get(name) != value]
    names = sorted({*rules.forward, *has.multipliers})
    missing += [
        f"multiplier {name} = {rules.forward.get(name, 1.0):.6g}"
        for name in names
        if not math.isclose(rules.forward.get(name, 1.0), has.multipliers.get(name, 1.0), rel_tol=1e-9)
    ]
    if missing:
        raise ValueError(
            f"scheme {scheme.name!r} needs a model with {', '.join(missing)}: build it so (structure_for), "
            "or say with structure that it is so"
        )


def described(model: nn.Module, table: RoleTable) -> list[Parameter]:
    """Every parameter, or slice of a fused one, with its role, layer and fans."""
    named = dict(model.named_parameters())
    rules = table.assign(named)
    shapes = {name: tuple(parameter.shape) for name, parameter in named.items()}
    return [parameter for name, rule in rules.items() for parameter in parts_of(name, rule, shapes, rules)]


def parts_of(
    name: str, rule: Rule, shapes: Mapping[str, tuple[int, ...]], rules: Mapping[str, Rule]
) -> list[Parameter]:
    """One `Parameter` per slice; ValueError where the output dimension does not divide."""
    shape, count = shapes[name], len(rule.roles)
    dim = len(shape) - 1 if rule.transposed else 0
    if shape[dim] % count:
        raise ValueError(f"{name} has {shape[dim]} outputs, which are not {count} equal parts")
    each = tuple(size // count if i == dim else size for i, size in enumerate(shape))
    matrix = name.removesuffix("bias") + "weight"
    of = shapes.get(matrix, each) if name.endswith("bias") else each
    fans = fans_of(of, rules.get(matrix, rule).transposed if name.endswith("bias") else rule.transposed)
    return [
        Parameter(name, role, layer_of(name), each, *fans, (number, count), rule.transposed)
        for number, role in enumerate(rule.roles)
    ]


def fans_of(shape: tuple[int, ...], transposed: bool) -> tuple[int, int]:
    """(fan in, fan out) of a matrix stored (out, in); of a vector its size twice."""
    if len(shape) < 2:
        size = shape[0] if shape else 1
        return size, size
    return (shape[-2], shape[-1]) if transposed else (shape[1], shape[0])


def sizes_of(parameters: list[Parameter], heads: tuple[int, int] | None) -> Sizes:
    """From the embedding's shape and the numbers in the names; ValueError for heads that are not two whole numbers."""
    if heads is not None and (len(heads) != 2 or min(heads) < 1):
        raise ValueError(f"heads must be (number, size), both at least 1, got {heads}")
    embeddings = [p for p in parameters if p.role == "embedding"]
    if not embeddings:
        raise ValueError("no parameter has the role 'embedding', whose shape gives width and vocabulary")
    vocabulary, width = embeddings[0].shape
    layers = len({p.layer for p in parameters if p.layer is not None})
    branches = len({p.name for p in parameters if p.role in ("mixer_out", "ffn_out")}) / max(layers, 1)
    return Sizes(width, max(layers, 1), vocabulary, heads, max(1, round(branches)))


def entry_of(parameter: Parameter, rules: Rules, model: nn.Module, owner: Any) -> Entry:
    """The rules applied to one parameter."""
    own = parameter.role == "own"
    found = owner.own(model, parameter.name, rules.own or owner.version) if own else rules.fill(parameter)
    multipliers = (rules.multiplier(kind, parameter) for kind in ("learning_rate", "eps", "weight_decay"))
    return Entry(parameter, found, *multipliers)
