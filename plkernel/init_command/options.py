"""Shared by the subcommands: a scheme with its free constants, on one of our models, from the command line."""

from collections.abc import Sequence

from torch import Tensor

from plkernel.config.condition import resolve
from plkernel.config.schema import Arm, ModelSpec
from plkernel.models.init.plan import Plan
from plkernel.models.init.planning import check_options, find
from plkernel.models.words import ModelKind
from plkernel.training.build import Model, build, initialise_, plan_of, tune_

HEAD_SIZE = 32
WORDS = {"true": True, "false": False}


def arm_of(scheme: str, given: Sequence[str]) -> Arm:
    """The scheme with NAME=VALUE each as an option; ValueError for one that is not, or no option of this scheme."""
    options: dict[str, float] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ValueError(f"option must be NAME=VALUE, as std=0.02, got {text!r}")
        try:
            options[name] = WORDS[value.lower()] if value.lower() in WORDS else float(value)
        except ValueError as error:
            raise ValueError(f"option {name} must be a number, true or false, got {value!r}") from error
    check_options(find(scheme), options)
    return Arm(scheme=scheme, scheme_options=options)


def spec_of(kind: ModelKind, dim: int, layers: int, head_size: int | None = None) -> ModelSpec:
    """One of our models, an RWKV of HEAD_SIZE unless given; ValueError for sizes that do not fit."""
    if kind == "ssm" and head_size is not None:
        raise ValueError(f"head_size {head_size} belongs to models rwkv5 to rwkv7, got model 'ssm': leave it out")
    head_size = HEAD_SIZE if head_size is None else head_size
    for name, value, least in (("width", dim, 2), ("number of blocks", layers, 1), ("head_size", head_size, 2)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    if kind == "ssm":
        return ModelSpec(kind=kind, dim=dim, layers=layers)
    if dim % head_size:
        raise ValueError(f"width {dim} must be a multiple of head_size {head_size} in an RWKV")
    return ModelSpec(kind=kind, dim=dim, layers=layers, head_size=head_size)


def filled(spec: ModelSpec, arm: Arm, seed: int, inputs: Tensor | None = None) -> tuple[Model, Plan]:
    """A filled model and its plan; calibrated on `inputs`, bytes (B,T), where they are given and the scheme asks."""
    condition = resolve(spec, arm)
    model = initialise_(build(condition), condition, seed)
    if inputs is not None:
        tune_(model, condition, inputs)
    return model, plan_of(model, condition)


def model_of(spec: ModelSpec, arm: Arm, seed: int, inputs: Tensor | None = None) -> Model:
    """The filled model alone."""
    return filled(spec, arm, seed, inputs)[0]
