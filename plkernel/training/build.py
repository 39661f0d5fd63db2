"""The model of a run: its condition checked once, its parameters filled.

Parameters are filled by the scheme, then by the nodes of the arm, then by its function.
"""

import functools
import inspect
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from plkernel.common.cli import check_consent
from plkernel.config.condition import Condition
from plkernel.config.schema import IN_THE_STUDY, Arm, ModelSpec, TrainSpec
from plkernel.decays.watch import decay_names
from plkernel.kernels.operators import choose
from plkernel.models import Device
from plkernel.models.init.plan import Plan, Sizes, is_matrix, optimizer_groups, plan, rules_at
from plkernel.models.layers import BYTES, Structure
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.rwkv7 import RWKV7, RWKV7Config
from plkernel.models.ssm import SSM, SSMConfig
from plkernel.training import foreign
from plkernel.training.foreign import LONGEST, Foreign
from plkernel.training.recall_task import RecallTask, times_of

Model = SSM | RWKV
"""A model of plkernel; RWKV-7 is an RWKV."""
AnyModel = Model | Foreign
Config = SSMConfig | RWKVConfig | RWKV7Config
DECAYS = (".time_decay", ".att.w0", ".log_rate", ".ordered.theta", ".ordered.delta")
"""Ends of the names of decays: of RWKV-5 and 6, of RWKV-7, of the SSM, and of the last two where
decays are ordered.
"""
COMPILED_FROM = 3e12
"""Bytes of all steps, times layers and width, from which `train.compile = "auto"` compiles.

On an H200 compiling an SSM of 100 million parameters saved 3.1e-11 seconds for each, beside
replaying its steps; smaller models and RWKVs save more (docs/evidence/speed.md). It took less than
77 seconds, in which six models were compiled at a time: alone it is not measured.
"""


@dataclass(frozen=True)
class Prepared:
    """A checked condition with the facts of its model, which is built once on the meta device.

    parameters  how many numbers the model learns
    plan        of the scheme, for each of them; None for a model of other people's code
    config      of the model, without backend and dropout; None for a model of other people's code
    """

    condition: Condition
    parameters: int
    plan: Plan | None = None
    config: Config | None = None

    @classmethod
    def of(cls, condition: Condition, checked: bool = False) -> "Prepared":
        """Check a condition; arms that share a model and a scheme share its facts.

        Other people's code in it is imported and, unless `checked`, tried: it must build a model
        that trains and is causal. Raises ValueError where the scheme does not fit the model, the
        arm or AdamW, where training does not fit the corpus, and where code has no consent.
        """
        check_consent(condition.code, condition.trusted)
        task = RecallTask.of(condition)
        tried = _try_code(condition, checked, task) if condition.code else 0
        if condition.model.is_foreign:
            return cls(condition, tried)
        options = tuple((condition.arm.scheme_options or {}).items())
        multiplier = condition.arm.shape_on == "multiplier"
        parameters, planned, config = _facts(condition.model, condition.scheme, options, multiplier)
        _check_shape(condition, planned)
        return cls(condition, parameters, planned, config)


def _try_code(condition: Condition, checked: bool, task: RecallTask | None) -> int:
    """Try the code of other people in a condition; return the number of parameters.

    It must run on the longest windows that a run evaluates, too. checked: it was tried before, so
    that the model is built on the meta device and does not run.
    """
    train = condition.train
    wanted = train.device if train else "cpu"
    device = "cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu"
    elsewhere = wanted == "cuda" and device == "cpu"  # it is trained, and tried, there
    if checked or elsewhere:
        device = "meta"
    arm = condition.arm.model_dump(exclude={*IN_THE_STUDY, "learning_rate", "corpus", "model"})
    context = LONGEST
    farthest = None
    named = False
    if train:
        context = min(train.context, LONGEST)
        times = times_of(train, task.law if task else None)
        farthest = train.context * times if times > 1 else None
        named = condition.model.is_foreign and train.changes_decays
    model = json.dumps(condition.model.model_dump())
    return _tried(model, json.dumps(arm), context, device, named, farthest)


def _check_shape(condition: Condition, plan: Plan) -> None:
    """Raise ValueError where a shape would act on projections that the scheme sets to zero."""
    is_on_columns = "columns" in condition.model.of_kind.shape_on
    if not is_on_columns or condition.arm.shape_on == "multiplier":
        return
    zeros = []
    for entry in plan.entries:
        if entry.parameter.role == "mixer_out" and entry.distribution.scale == 0:
            zeros.append(entry.parameter.name)
    if zeros and any(value != 1 for value in condition.nodes.projection):
        raise ValueError(
            "shape_on must be 'multiplier', a fixed number per state, or the projection uniform,"
            f" with scheme {condition.scheme!r}, which sets {zeros[0]} to zero, where a shape has"
            " nothing to act on"
        )


class Unfilled(TorchFunctionMode):
    """Leaves random initial values out, which parameters on the meta device cannot hold.

    torch would load its compiler to do nothing there, which takes a second.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        if getattr(function, "__module__", "") == "torch.nn.init":
            return options["tensor"]
        return function(*args, **options)


@functools.cache
def _facts(
    model: ModelSpec, scheme: str, options: tuple[tuple[str, float], ...], multiplier: bool
) -> tuple[int, Plan, Config]:
    """Number of parameters, plan and configuration of a model built on the meta device."""
    arm = Arm(
        scheme=scheme, scheme_options=dict(options), shape_on="multiplier" if multiplier else None
    )
    condition = Condition(model, arm)
    with torch.device("meta"), Unfilled():
        built = build(condition)
    planned = plan_of(built, condition)
    return sum(parameter.numel() for parameter in built.parameters()), planned, built.config


@functools.cache
def _tried(
    model: str, arm: str, context: int, device: str, named: bool, farthest: int | None
) -> int:
    """Number of parameters of other people's model, built and checked once in a process.

    named: its decays must be known by name. farthest: bytes of a longer window that it must take.
    """
    condition = Condition(
        ModelSpec.model_validate_json(model), Arm.model_validate_json(arm), trusted=True
    )
    built = started(condition, 0)
    if named and isinstance(built, Foreign):
        decay_names(built.module)
    parameters = sum(parameter.numel() for parameter in built.parameters())
    if built.config.causal and device != "meta":
        name = ", ".join(f"{option} {name!r}" for option, name in condition.code.items())
        foreign.check_model(built, name, context, torch.device(device))
        if farthest is not None:
            foreign.check_takes_length(built, name, farthest, torch.device(device))
    return parameters


def build(condition: Condition) -> Model:
    """The model of plkernel that scheme and protocol need, its parameters not yet set.

    Raises ValueError for an unknown name or option of the scheme.
    """
    model = condition.model
    train = condition.train
    sizes = Sizes(model.dim, model.layers, BYTES, model.heads)
    rules = rules_at(condition.scheme, sizes, condition.arm.scheme_options or {})
    needs = dict(rules.needs)
    if model.of_kind.norms_embedding:
        needs.pop("embedding_norm", None)
    shared: dict[str, Any] = {
        "dim": model.dim,
        "layers": model.layers,
        "backend": train.backend if train else None,
        "structure": Structure(**needs, multipliers=dict(rules.forward)),
    }
    if "parametrisation" in model.of_kind.options:
        shared["parametrisation"] = model.parametrisation
        shared["scaling_length"] = model.scaled_over
    if model.kind == "ssm":
        patching = model.patching
        multiplier = condition.arm.shape_on == "multiplier"
        shared |= {"gain": model.gain, "patch": patching.size, "mode": patching.mode}
        return SSM(SSMConfig(shape_multiplier=multiplier, **shared))
    shared |= {"head_size": model.head_size, "dropout": train.dropout if train else 0.0}
    if model.kind == "rwkv7":
        ranks = {f"{name}_rank": rank for name, rank in model.ranks}
        return RWKV7(RWKV7Config(**ranks, **shared))
    version = 5 if model.kind == "rwkv5" else 6
    return RWKV(RWKVConfig(version=version, k_clamp=model.k_clamp, **shared))


def plan_of(built: Model, condition: Condition) -> Plan:
    """The plan of the scheme for every parameter."""
    options: dict[str, Any] = condition.arm.scheme_options or {}
    return plan(built, condition.scheme, **options)


def started(condition: Condition, seed: int, plan: Plan | None = None) -> AnyModel:
    """A model of any kind before its first step.

    The scheme fills it, then the arm's decays and their shape, then the arm's function. plan: of
    its parameters, where it is known. Raises ValueError where the model needs code without consent.
    """
    check_consent(condition.code, condition.trusted)
    model = condition.model
    arm = condition.arm
    built: Any
    if model.is_foreign:
        built = foreign.build(model.kind, model.config, seed)
    else:
        built = build(condition)
        plan = plan or plan_of(built, condition)
        plan.apply_(built, seed)
        if condition.places_nodes:
            bonus = arm.law.exponent if arm.law and arm.bonus == "law" else None
            built.place_(condition.nodes, bonus)
    if arm.init is not None:
        foreign.start_(built, arm.init, arm.init_options, seed)
    return built  # type: ignore[no-any-return]


class AdamW(torch.optim.AdamW):
    """torch's AdamW, by the same operations, without the compiler of torch.

    torch wraps these methods for code that is compiled with an optimizer in it. The wrappers import
    torch._dynamo, sympy and more at the first step, which takes longer than to import torch: every
    run would begin seconds later.
    """

    add_param_group = inspect.unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.AdamW.zero_grad)
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))  # type: ignore[assignment]


def build_optimizer(model: nn.Module, train: TrainSpec, plan: Plan | None = None) -> AdamW:
    """AdamW with the multipliers of the plan for every parameter.

    They multiply learning rate, weight decay and eps. Without a plan all are 1, and weight decay
    acts on true matrices only (`is_matrix`): never on decays, gains, biases, norms, token shifts,
    low-rank maps. `train.decay_multiplier`, where given, is the multiplier of the learning rate of
    the decays themselves, and `train.decay_weight_decay` that of their weight decay,
    `train.decay_dtype` the type to which they are rounded now and after every step; a multiplier of
    0 takes them out of training, and so out of the norm of the gradient. The decays are DECAYS, in
    other people's models `decay_names`: ValueError if there are none. An eps of 1e-18 is safe in
    float32: a gradient of zero moves nothing, and below 1e-18, where second moments underflow, the
    step is at most about the learning rate.
    """
    parameters = dict(model.named_parameters())
    multipliers = {
        name: (1.0, float(is_matrix(name, values)), 1.0) for name, values in parameters.items()
    }
    if plan is not None:
        multipliers |= plan.multipliers()
    decays = _decays_of(model) if train.changes_decays else []
    for name in decays:
        rate, shrink, eps = multipliers[name]
        if train.decay_multiplier is not None:
            rate = train.decay_multiplier
        multipliers[name] = (rate, train.decay_weight_decay or shrink, eps)
        if train.decay_multiplier == 0:
            parameters[name].requires_grad_(False)
    groups = optimizer_groups(
        parameters, multipliers, train.learning_rate, train.weight_decay, train.eps
    )
    optimizer = AdamW(groups, lr=train.learning_rate, betas=(train.beta1, train.beta2), fused=True)
    if train.decay_dtype != "float32":
        rounded = [parameters[name] for name in decays]
        _keep_rounded(optimizer, rounded, getattr(torch, train.decay_dtype))
    return optimizer


def _decays_of(model: nn.Module) -> list[str]:
    """The names of the decays of a model, in the order of its parameters."""
    named = set[str]()
    if isinstance(model, Foreign):
        try:
            found = decay_names(model.module)
        except ValueError as error:
            raise ValueError(
                "train.decay_multiplier, train.decay_weight_decay and train.decay_dtype must have"
                f" decays to act on: {error}; a study finds them by name: give your parameter a"
                " known one, such as log_rate where a = exp(-exp(log_rate))"
            ) from None
        named = {f"module.{name}" for name in found}
    return [name for name, _ in model.named_parameters() if name.endswith(DECAYS) or name in named]


def _keep_rounded(
    optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], dtype: torch.dtype
) -> None:
    """Round `parameters` to `dtype` now and after every step."""

    @torch.no_grad()
    def rounded(*_: object) -> None:
        for values in parameters:
            values.copy_(values.to(dtype))

    rounded()
    optimizer.register_step_post_hook(rounded)


def learning_rate(train: TrainSpec, step: int) -> float:
    """The learning rate of step `step` (from 0): peak * warm-up * schedule(p).

    Warm-up over W steps: (step + 1) / (W + 1), or with `warmup_from` w: w + (1 - w) step / W, both
    up to 1. Schedule from 1 to the final fraction f: cosine f + (1 - f) (1 + cos(pi p)) / 2,
    exponential f**p, linear 1 - (1 - f) p, constant 1. p is the spent share of the steps, with
    `warmup_from` of those after the warm-up.
    """
    steps = train.total_steps
    warmup = train.warmup
    first = train.warmup_from
    fraction = step / steps
    if first is None:
        warm_up = min(1.0, (step + 1) / (warmup + 1))
    else:
        warm_up = first + (1 - first) * step / warmup if step < warmup else 1.0
        fraction = (fraction * steps - warmup) / (steps - warmup) if steps > warmup else 0.0
    floor = train.final_fraction
    p = min(1.0, max(0.0, fraction))
    shape = {
        "cosine": floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * p)),
        "exponential": floor**p,
        "linear": 1 - (1 - floor) * p,
        "constant": 1.0,
    }[train.schedule]
    return train.learning_rate * warm_up * shape


def choose_device(name: Device) -> torch.device:
    """The device called `name`, where 'auto' is a GPU if there is one.

    Raises ValueError where it does not exist.
    """
    present = torch.cuda.is_available()
    if name == "cuda" and not present:
        raise ValueError("device must be 'cpu' or 'auto' where no GPU is, got 'cuda'")
    return torch.device("cuda" if name != "cpu" and present else "cpu")


def compiles(condition: Condition, device: torch.device) -> bool:
    """True if the steps of a run are compiled: as `train.compile` says.

    `auto` compiles on a GPU alone, from COMPILED_FROM, and not other people's models.
    """
    train = condition.protocol
    model = condition.model
    if train.compile != "auto":
        return train.compile
    if device.type != "cuda" or model.is_foreign:
        return False
    read = train.total_steps * train.batch * train.context
    return read * model.layers * model.dim >= COMPILED_FROM


def replays(condition: Condition, device: torch.device) -> bool:
    """True if steps are replayed as CUDA graphs: on a GPU, of a model of plkernel.

    Not where a step carries the state of the one before or draws random numbers. Other people's
    code may wait for the GPU, which a graph cannot.
    """
    train = condition.protocol
    is_fixed = not (train.carry or train.dropout or condition.model.is_foreign)
    return device.type == "cuda" and is_fixed


def keep_rates_on(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Keep the learning rates in float32 on the device, where a CUDA graph reads their values."""
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(group["lr"], dtype=torch.float32, device=device)


def check_machine(condition: Condition) -> str:
    """The type of device of a condition's runs.

    Raises ValueError when it or the forced backend does not exist here.
    """
    device = choose_device(condition.protocol.device)
    operator = condition.model.of_kind.operator
    if operator is not None:
        choose(operator, condition.protocol.backend, device)
    return device.type
