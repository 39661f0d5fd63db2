"""The model of a run: built as its arm's scheme needs it, filled by the scheme's plan and the arm's nodes."""

import functools
import json
from typing import Any

import torch
from torch import Tensor

from plkernel.common.imports import check_consent
from plkernel.config.arm import IN_THE_STUDY, Arm
from plkernel.config.condition import Condition
from plkernel.config.model import ModelSpec
from plkernel.kernels import backends
from plkernel.memory import foreign
from plkernel.memory.foreign import LONGEST, Foreign, check_model
from plkernel.models.init.block_gains import Calibration, calibrate_
from plkernel.models.init.plan import Plan
from plkernel.models.init.planning import find, plan, rules_at
from plkernel.models.init.rules import Rules, Sizes
from plkernel.models.init.rwkv_power_law import power_law_
from plkernel.models.layers import BYTES
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.rwkv7 import RWKV7, RWKV7Config
from plkernel.models.ssm import SSM, SSMConfig
from plkernel.models.structure import structure_for

Model = SSM | RWKV
AnyModel = Model | Foreign


def options_of(condition: Condition) -> dict[str, Any]:
    """The free constants of the scheme; some bound the embedding by the run's learning rate."""
    known, train = find(condition.scheme).options, condition.train
    run = {"learning_rate": train.learning_rate} if train and "learning_rate" in known else {}
    return {**run, **(condition.arm.scheme_options or {})}


def rules_of(condition: Condition) -> Rules:
    """What the scheme says at these sizes, before there is a model. Raises ValueError for an unknown name or option."""
    model = condition.model
    heads = (1, model.dim) if model.kind == "ssm" else (model.dim // model.head_size, model.head_size)
    sizes = Sizes(model.dim, model.layers, BYTES, heads)
    return rules_at(find(condition.scheme), sizes, options_of(condition))


def build(condition: Condition) -> Model:
    """The model as the condition's scheme and protocol need it, its parameters not yet set; of our own kinds only."""
    model, train, rules = condition.model, condition.train, rules_of(condition)
    always = () if model.kind == "ssm" else ("embedding_norm",)  # an RWKV has it, as ln0
    needs = {name: value for name, value in rules.needs.items() if name not in always}
    shared: dict[str, Any] = {
        "dim": model.dim,
        "layers": model.layers,
        "backend": train.backend if train else None,
        "structure": structure_for(needs, rules.forward),
    }
    if model.kind == "ssm":
        return SSM(
            SSMConfig(
                gain=model.gain,
                patch=model.patching.size,
                mode=model.patching.mode,
                shape_multiplier=condition.arm.shape_on == "multiplier",
                **shared,
            )
        )
    shared |= {"head_size": model.head_size, "dropout": train.dropout if train else 0.0}
    if model.kind == "rwkv7":
        return RWKV7(RWKV7Config(**{f"{name}_rank": rank for name, rank in model.ranks}, **shared))
    return RWKV(RWKVConfig(version=5 if model.kind == "rwkv5" else 6, k_clamp=model.k_clamp, **shared))


def started(condition: Condition, seed: int) -> AnyModel:
    """The model as it is before its first step, of whatever kind; ValueError where it needs code without consent."""
    if not condition.model.is_foreign:
        return initialise_(build(condition), condition, seed)
    admit(condition)
    built = foreign.build(condition.model.kind, condition.model.config, seed)
    if condition.arm.init is not None:
        foreign.start_(built, condition.arm.init, condition.arm.init_options, seed)
    return built


def admit(condition: Condition) -> None:
    """Make known the schemes and corpora of other packages that the condition names, by their entry points.

    ValueError where it names any code and the person has not said that it may run; nothing is imported then.
    """
    entries = foreign.offered(condition.arm.scheme, condition.corpus.name)
    check_consent(condition.code | {option: entry.value for option, entry in entries.items()}, condition.trusted)
    foreign.register(entries)


def plan_of(built: Model, condition: Condition) -> Plan:
    """What the scheme does to every parameter."""
    return plan(built, condition.scheme, **options_of(condition))


def initialise_(built: Model, condition: Condition, seed: int) -> Model:
    """Fill the parameters in place: by the scheme first, then the arm's decays and the shape that goes with them.

    Then by the arm's own function, if there is one. What a scheme leaves to tune on data comes after that, `tune_`.
    Raises ValueError for a shape on a projection that the scheme sets to zero.
    """
    admit(condition)
    arm = condition.arm
    plan_of(built, condition).apply_(built, seed)
    if isinstance(built, SSM):
        for recurrence in built.recurrences():
            recurrence.place_(condition.nodes)
    elif arm.places_nodes:
        power_law_(built, condition.nodes, arm.law, arm.max_lag, bonus=arm.bonus or "scheme")
    if arm.init is not None:
        foreign.start_(built, arm.init, arm.init_options, seed)
    return built


def tune_(built: AnyModel, condition: Condition, inputs: Tensor) -> Calibration | None:
    """Calibrate a filled model on bytes (B,T) where its scheme asks for that; None where it does not."""
    if isinstance(built, Foreign):
        return None
    wanted = rules_of(condition).calibration
    return calibrate_(built, inputs, target=wanted.target) if wanted else None


def check(condition: Condition) -> None:
    """ValueError where the scheme does not fit the arm and the model; nothing is allocated.

    Of a condition that names code, also where the person has not consented to it, and, once it is imported and built,
    where it does not train or knows later bytes.
    """
    admit(condition)
    if condition.code:
        _checked(condition)
    if condition.model.is_foreign:
        return
    options, multiplier = options_of(condition), condition.arm.shape_on == "multiplier"
    zero = _zero_projection(condition.model, condition.scheme, tuple(options.items()), multiplier)
    acts = condition.model.kind == "ssm" and any(value != 1 for value in condition.nodes.projection)
    if zero and acts and not multiplier:
        raise ValueError(
            f"scheme {condition.scheme!r} starts {zero} at zero, where a shape has nothing to act on: set "
            "shape_on = 'multiplier', a fixed number per state, or leave the projection uniform"
        )


@functools.cache
def _zero_projection(
    model: ModelSpec, scheme: str, options: tuple[tuple[str, float], ...], multiplier: bool
) -> str | None:
    """The first projection that the scheme starts at zero; ValueError where scheme, model and AdamW do not fit.

    The arms of a large design share a few models, whose plans are made once.
    """
    arm = Arm(scheme=scheme, scheme_options=dict(options), shape_on="multiplier" if multiplier else None)
    with torch.device("meta"):
        planned = plan_of(build(Condition(model, arm)), Condition(model, arm))
    if planned.optimizer != "adam":
        raise ValueError(
            f"scheme {planned.scheme!r} has learning rates for {planned.optimizer.upper()} here, and a run has AdamW: "
            f"leave scheme option {planned.optimizer!r} out, or take Plan.param_groups for an optimiser of your own"
        )
    zero = (e.parameter.name for e in planned.entries if e.parameter.role == "mixer_out" and e.distribution.is_zero)
    return next(zero, None)


def _checked(condition: Condition) -> int:
    """Parameters of a model that other people's code makes or changes, which is tried here, once in a process."""
    admit(condition)
    arm = condition.arm.model_dump(exclude={*IN_THE_STUDY, "learning_rate", "corpus", "model"})
    device, context = "cpu", LONGEST
    if condition.train is not None:
        context = min(condition.train.context, LONGEST)
        device = "cuda" if condition.train.device != "cpu" and torch.cuda.is_available() else "cpu"
        if device == "cpu" and condition.train.device == "cuda":
            device = "meta"  # it is trained, and tried, on another machine
    return _tried(json.dumps(condition.model.model_dump()), json.dumps(arm), context, device)


@functools.cache
def _tried(model: str, arm: str, context: int, device: str) -> int:
    """`_checked` of what these texts say; the arms and seeds of a study share a few models."""
    whole = Condition(ModelSpec.model_validate_json(model), Arm.model_validate_json(arm), trusted=True)
    built = started(whole, 0)
    count = sum(parameter.numel() for parameter in built.parameters())
    if built.config.causal and device != "meta":
        name = ", ".join(f"{option} {name!r}" for option, name in whole.code.items())
        check_model(built, name, context, torch.device(device))
    return count


def parameter_count(condition: Condition) -> int:
    """How many numbers the model learns, counted without allocating them, but where other people's code makes it."""
    if condition.model.is_foreign:
        return _checked(condition)
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(condition).parameters())


def check_backend(model: ModelSpec, backend: str | None, device: torch.device) -> None:
    """ValueError when the forced implementation of the model's kernel does not exist on `device`."""
    if not model.is_foreign:
        operators = {"ssm": "scan", "rwkv7": "wkv7"}
        backends.choose(operators.get(model.kind, "wkv"), backend, device)
