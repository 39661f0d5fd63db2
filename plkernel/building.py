"""The model of a run: built from its spec, filled by its arm."""

import torch

from plkernel.arm import Arm
from plkernel.kernels import scan, wkv
from plkernel.model_spec import ModelSpec
from plkernel.models.init.rwkv import DEFAULT_SCHEME, SCHEMES, Scheme
from plkernel.models.init.rwkv import initialise_ as initialise_rwkv_
from plkernel.models.init.rwkv_power_law import power_law_
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.ssm import SSM, SSMConfig
from plkernel.protocol import TrainSpec

Model = SSM | RWKV
NO_OPTIONS = Arm()


def build(model: ModelSpec, arm: Arm = NO_OPTIONS, train: TrainSpec | None = None) -> Model:
    """The model of a spec as the arm's scheme and the protocol need it, its parameters not yet set."""
    backend = train.backend if train else None
    if model.kind == "ssm":
        patching = model.patching
        return SSM(SSMConfig(model.dim, model.layers, model.gain, patching.size, patching.mode, backend))
    scheme = scheme_of(arm)
    config = RWKVConfig(
        version=5 if model.kind == "rwkv5" else 6,
        dim=model.dim,
        layers=model.layers,
        head_size=model.head_size,
        k_clamp=model.k_clamp,
        backend=backend,
        tied=scheme.tied,
        norm=scheme.norm,
        dropout=train.dropout if train else 0.0,
    )
    return RWKV(config)


def scheme_of(arm: Arm) -> Scheme:
    """The rules of the arm's initialisation of an RWKV, also those for the model and the optimiser."""
    return SCHEMES[arm.scheme or DEFAULT_SCHEME]


def initialise_(built: Model, model: ModelSpec, arm: Arm, seed: int, learning_rate: float) -> Model:
    """Fill the parameters as `arm` says, in place; `learning_rate` bounds the embedding in some RWKV schemes."""
    if isinstance(built, SSM):
        return built.initialise_(seed, arm.nodes(model))
    initialise_rwkv_(built, seed, arm.scheme or DEFAULT_SCHEME, learning_rate=learning_rate)
    if arm.places_nodes:
        arm = arm.resolved(model)
        power_law_(built, arm.nodes(model), arm.law, arm.max_lag, bonus=arm.bonus or "scheme")
    return built


def parameter_count(model: ModelSpec, arm: Arm = NO_OPTIONS) -> int:
    """How many numbers the model learns, counted without allocating them."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(model, arm).parameters())


def check_backend(model: ModelSpec, backend: str | None, device: torch.device) -> None:
    """ValueError when the forced implementation of the model's kernel does not exist on `device`."""
    kernel = scan if model.kind == "ssm" else wkv
    kernel.choose_backend(backend, device)
