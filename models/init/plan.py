"""A plan: what a scheme does to every parameter of a model, as data, before any tensor is touched.

from plkernel.models.init import plan

chosen = plan(model, "megatron_default")    # works on the meta device
print(*chosen.rows(), sep="\n")
chosen.apply_(model, seed=0)
optimizer = torch.optim.AdamW(chosen.param_groups(model, learning_rate=3e-4, weight_decay=0.1))
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from plkernel.models.init.base import generator_for
from plkernel.models.init.distributions import Distribution
from plkernel.models.init.ours import owner_of
from plkernel.models.init.rules import Calibrate, Optimizer, Parameter, Sizes


@dataclass(frozen=True)
class Entry:
    """What happens to one parameter (or slice): its distribution, and multipliers for the optimiser."""

    parameter: Parameter
    distribution: Distribution
    learning_rate: float = 1.0
    eps: float = 1.0
    weight_decay: float = 1.0

    def __str__(self) -> str:
        numbers = (("learning rate", self.learning_rate), ("eps", self.eps), ("weight decay", self.weight_decay))
        return ", ".join([str(self.distribution), *(f"{name} x{value:g}" for name, value in numbers if value != 1)])


@dataclass(frozen=True)
class Plan:
    """The entries of a scheme on a model, in the order of its parameters, and what it asks of the forward pass.

    optimizer: what the multipliers of learning rates are for. calibration: what `calibrate_` has to do after `apply_`.
    """

    scheme: str
    options: Mapping[str, float]
    sizes: Sizes
    entries: tuple[Entry, ...]
    forward: Mapping[str, float]
    needs: Mapping[str, Any]
    optimizer: Optimizer = "adam"
    calibration: Calibrate | None = None

    def names(self) -> Iterator[tuple[str, list[Entry]]]:
        """The parameters, each with its slices."""
        for name, entries in groupby(self.entries, key=lambda entry: entry.parameter.name):
            yield name, list(entries)

    @torch.no_grad()
    def apply_(self, model: nn.Module, seed: int) -> nn.Module:
        """Fill the parameters of `model` in place, and return it.

        One generator per (seed, parameter name), so a parameter gets the same values whatever else the model has and
        in whatever order. ValueError where the model has other parameters than the plan.
        """
        parameters = dict(model.named_parameters())
        check_same(self, parameters)
        for name, entries in self.names():
            parameter, generator = parameters[name], generator_for(seed, name)
            for entry in entries:
                if entry.distribution.kind == "keep":
                    continue
                target = slice_of(parameter, entry.parameter)
                target.copy_(values_of(entry, model, generator).to(target))
        return model

    def multipliers(self) -> dict[str, tuple[float, float, float]]:
        """Of learning rate, weight decay and eps, by parameter; ValueError where slices of a fused one differ."""
        found = {}
        for name, entries in self.names():
            kinds = {(entry.learning_rate, entry.weight_decay, entry.eps) for entry in entries}
            if len(kinds) > 1:
                raise ValueError(f"{name} is fused from parts that scheme {self.scheme!r} trains at different rates")
            found[name] = kinds.pop()
        return found

    def param_groups(self, model: nn.Module, learning_rate: float, weight_decay: float, eps: float = 1e-8) -> list[Any]:
        """Groups for an Adam: parameters with equal multipliers together.

        Each holds lr, weight_decay and eps, and lr_multiplier for schedules that write lr anew. Where `optimizer` is
        sgd they are for torch.optim.SGD, which does not look at eps.
        """
        parameters = dict(model.named_parameters())
        check_same(self, parameters)
        return grouped(parameters, self.multipliers(), learning_rate, weight_decay, eps)

    def rows(self) -> list[list[str]]:
        """The table's cells: equal entries of several layers as one row."""
        rows: dict[tuple[str, ...], list[int]] = {}
        for entry in self.entries:
            p = entry.parameter
            name = p.name if p.layer is None else p.name.replace(f".{p.layer}.", ".*.", 1)
            part = f"[{p.part[0] + 1}/{p.part[1]}]" if p.part[1] > 1 else ""
            shape = "x".join(map(str, p.shape))
            numbers = (f"{entry.learning_rate:g}", f"{entry.weight_decay:g}")
            key = (name + part, p.role, shape, str(entry.distribution), *numbers)
            rows.setdefault(key, []).append(-1 if p.layer is None else p.layer)
        return [[key[0], spans(layers), *key[1:]] for key, layers in rows.items()]

    def diff(self, other: "Plan") -> list[str]:
        """What differs between two plans, one line each."""
        mine, theirs = ({key(entry): entry for entry in p.entries} for p in (self, other))
        lines = [
            f"{name}: {mine.get(name, 'absent')} -> {theirs.get(name, 'absent')}"
            for name in [*mine, *(name for name in theirs if name not in mine)]
            if mine.get(name) != theirs.get(name)
        ]
        for what in ("forward", "needs"):
            a, b = getattr(self, what), getattr(other, what)
            lines += [f"{what} {k}: {a.get(k)} -> {b.get(k)}" for k in sorted({*a, *b}) if a.get(k) != b.get(k)]
        for what in ("optimizer", "calibration"):
            a, b = getattr(self, what), getattr(other, what)
            lines += [f"{what}: {a} -> {b}"] if a != b else []
        return lines

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that JSON keeps exactly; `from_dict` gives back an equal object."""
        return {**asdict(self), "options": dict(self.options), "forward": dict(self.forward), "needs": dict(self.needs)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Plan":
        """The inverse of `to_dict`."""
        entries = tuple(
            Entry(
                Parameter(**{**e["parameter"], **{k: tuple(e["parameter"][k]) for k in ("shape", "part")}}),
                Distribution(**e["distribution"]),
                **{name: e[name] for name in ("learning_rate", "eps", "weight_decay")},
            )
            for e in values["entries"]
        )
        rest = {name: values[name] for name in ("scheme", "options", "forward", "needs", "optimizer")}
        heads, calibration = values["sizes"]["heads"], values["calibration"]
        sizes = Sizes(**{**values["sizes"], "heads": tuple(heads) if heads else None})
        return cls(sizes=sizes, entries=entries, calibration=Calibrate(**calibration) if calibration else None, **rest)


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Whether weight decay acts on it where no plan says so: `.weight`, two or more dimensions above 1."""
    return name.endswith(".weight") and parameter.squeeze().ndim >= 2


def grouped(
    parameters: Mapping[str, Tensor],
    multipliers: Mapping[str, tuple[float, float, float]],
    learning_rate: float,
    weight_decay: float,
    eps: float,
) -> list[dict[str, Any]]:
    """Groups for an optimiser, by name the multipliers of learning rate, weight decay and eps; see `param_groups`."""
    groups: dict[tuple[float, float, float], list[Tensor]] = {}
    for name, kind in multipliers.items():
        groups.setdefault(kind, []).append(parameters[name])
    return [
        {
            "params": members,
            "lr": learning_rate * lr,
            "lr_multiplier": lr,
            "weight_decay": weight_decay * decay,
            "eps": eps * small,
        }
        for (lr, decay, small), members in groups.items()
    ]


def key(entry: Entry) -> str:
    """What tells an entry from the others of its plan."""
    number, parts = entry.parameter.part
    return entry.parameter.name if parts == 1 else f"{entry.parameter.name}[{number + 1}/{parts}]"


def check_same(plan: Plan, parameters: Mapping[str, Tensor]) -> None:
    """ValueError unless these are the parameters that the plan was made for."""
    planned = {name for name, _ in plan.names()}
    if planned != parameters.keys():
        name = sorted(planned ^ parameters.keys())[0]
        where = "the plan, but not in the model" if name in planned else "the model, but not in the plan"
        raise ValueError(f"{name} is in {where}: make the plan for this model")


def slice_of(tensor: Tensor, parameter: Parameter) -> Tensor:
    """The part of a fused tensor that the parameter stands for, along the output dimension."""
    number, parts = parameter.part
    dim = tensor.ndim - 1 if parameter.transposed else 0
    size = tensor.shape[dim] // parts
    return tensor.narrow(dim, number * size, size)


def values_of(entry: Entry, model: nn.Module, generator: torch.Generator) -> Tensor:
    """What the parameter is filled with, in its own shape, on the CPU."""
    if entry.distribution.kind == "vector":
        return (
            owner_of(model)
            .vector(model, entry.parameter.name, entry.distribution.name or "")
            .view(entry.parameter.shape)
        )
    shape = entry.parameter.shape
    if not entry.parameter.transposed:
        return entry.distribution.draw(shape, generator)
    return entry.distribution.draw(shape[::-1], generator).mT


def spans(layers: list[int]) -> str:
    """0-3 for 0, 1, 2, 3; 0, 2 for 0 and 2; nothing for parameters outside the blocks (-1)."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        elif layer >= 0 and not (runs and layer == runs[-1][-1]):
            runs.append([layer])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
