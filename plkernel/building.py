"""The model of a run: built from its spec, filled by its arm."""

import torch

from plkernel.arm import Arm, ModelSpec
from plkernel.kernels import scan, wkv
from plkernel.models.init.rwkv import DEFAULT_SCHEME
from plkernel.models.init.rwkv import initialise_ as initialise_rwkv_
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.ssm import SSM, SSMConfig

Model = SSM | RWKV


def build(model: ModelSpec, backend: str | None = None) -> Model:
    """The model of a spec, its parameters not yet set; `backend` forces an implementation of its kernel."""
    if model.kind == "ssm":
        patching = model.patching
        return SSM(SSMConfig(model.dim, model.layers, model.gain, patching.size, patching.mode, backend))
    version = 5 if model.kind == "rwkv5" else 6
    return RWKV(RWKVConfig(version, model.dim, model.layers, model.head_size, k_clamp=model.k_clamp, backend=backend))


def initialise_(built: Model, model: ModelSpec, arm: Arm, seed: int, learning_rate: float) -> Model:
    """Fill the parameters as `arm` says, in place; `learning_rate` bounds the embedding in some RWKV schemes."""
    if isinstance(built, SSM):
        return built.initialise_(seed, arm.nodes(model))
    return initialise_rwkv_(built, seed, arm.scheme or DEFAULT_SCHEME, learning_rate=learning_rate)


def parameter_count(model: ModelSpec) -> int:
    """How many numbers the model learns, counted without allocating them."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(model).parameters())


def check_backend(model: ModelSpec, backend: str | None, device: torch.device) -> None:
    """ValueError when the forced implementation of the model's kernel does not exist on `device`."""
    kernel = scan if model.kind == "ssm" else wkv
    kernel.choose_backend(backend, device)
