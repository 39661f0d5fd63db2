"""Layers with decays of a live model, whose modules say what their tensors do not."""

from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from plkernel.decays.families import plain_name
from plkernel.decays.rates import Layer, known_layers
from plkernel.decays.tensors import of_tensors

STEP = "tokens_per_step"
"""Attribute of a module whose recurrence takes one step for so many tokens, a patch of them."""
CONTAINERS = (nn.ModuleDict, nn.ModuleList, nn.ParameterDict, nn.ParameterList)
"""Modules that hold parameters for the one around them, as those of `parametrize` do."""


def tokens_per_step(model: nn.Module, label: str) -> int:
    """Tokens of one step of the layer called `label` in `model`, 1 unless its module says others.

    An attribute of a module around it does not count: trainers keep the tokens of a batch by that
    name. Raises ValueError for what is no whole number of at least 1.
    """
    name, _, _ = label.partition(":")
    tokens = getattr(_module_of(model, name), STEP, 1)
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise ValueError(
            f"{name or 'model'}: {STEP} must be a whole number, at least 1, got {tokens!r}"
        )
    return tokens


def _module_of(model: nn.Module, name: str) -> Any:
    """The module called `name`, or the one around the containers that it is in.

    None where `model` has no module of that name.
    """
    module: Any = model
    found: Any = model
    parts = name.split(".") if name else []
    for part in parts:
        module = getattr(module, part, None)
        if not isinstance(module, CONTAINERS):
            found = module
    return found


def live_layers(model: nn.Module, config: Mapping[str, Any]) -> list[Layer]:
    """All layers of known families in `model`, in order; config: as config.json has it."""
    tensors = dict(model.state_dict())
    for name in list(tensors):
        plain = plain_name(name)
        if plain != name:
            tensors[plain] = tensor_of(model, plain)
    layers = []
    for layer in known_layers(of_tensors(tensors, config)):
        tokens = tokens_per_step(model, layer.module)
        layers.append(replace(layer, tokens_per_step=tokens))
    return layers


def tensor_of(model: nn.Module, name: str) -> Any:
    """The parameter or buffer of this name, what a parametrization makes of it where it has one.

    Raises AttributeError if the model has none.
    """
    made = _parametrisation(model, name)
    if made is None:
        return attrgetter(name)(model)
    # Neither a step of a power iteration nor dropped numbers, and no entry in a cache of torch,
    # which would be without gradients: training must not notice.
    modes = [(module, module.training) for module in made.modules()]
    try:
        made.eval()
        with torch.no_grad():
            return made()
    finally:
        for module, mode in modes:
            module.training = mode


def parameters_of(model: nn.Module, name: str) -> list[Tensor]:
    """The parameters that an optimizer has for the tensor of this name.

    Itself, or what a parametrization makes it of; none of a buffer.
    """
    made = _parametrisation(model, name)
    if made is not None:
        return list(made.parameters(recurse=False))
    found = attrgetter(name)(model)
    return [found] if isinstance(found, nn.Parameter) else []


def _parametrisation(model: nn.Module, name: str) -> Any:
    """The module that makes the parameter of this name, as `parametrize` registers it, or None."""
    module, _, last = name.rpartition(".")
    holder = attrgetter(module)(model) if module else model
    known = getattr(holder, "parametrizations", None)
    return known[last] if isinstance(known, nn.ModuleDict) and last in known else None
