"""Our models, described to a plan: roles, sizes, and the parameters that schemes leave alone."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor, nn

from plkernel.models.init.distributions import KEEP, Distribution, constant, uniform
from plkernel.models.init.roles import RoleTable
from plkernel.models.init.rwkv_vectors import (
    VERSIONS,
    channel_vector,
    check_version,
    goose_low_rank,
    goose_vector,
    head_norm,
)
from plkernel.models.structure import Structure

STRUCTURE_ROLES = {
    "blocks.*.join?.post_norm.weight": "norm",
    "blocks.*.join?.post_norm.bias": "norm_bias",
    "blocks.*.join?.gate": "gate",
    "blocks.*.shift": "bias",
}
SSM_ROLES = RoleTable.from_dict(
    {
        "embedding.weight": "embedding",
        "blocks.*.ssm.log_rate": "own",
        "blocks.*.ssm.D": "own",
        "blocks.*.ssm.B.weight": "value",
        "blocks.*.ssm.C_proj.weight": "mixer_out",
        "blocks.*.ssm.C_proj.bias": "bias",
        "blocks.*.mlp.gate.weight": "ffn_gate",
        "blocks.*.mlp.up.weight": "ffn_up",
        "blocks.*.mlp.down.weight": "ffn_out",
        "*norm?.weight": "norm",
        "*norm?.bias": "norm_bias",
        "norm.weight": "norm",
        "norm.bias": "norm_bias",
        "head.weight": "head",
        "embedding.norm.weight": "norm",
        "embedding.norm.bias": "norm_bias",
        "embedding.fixnorm.weight": "norm",
        **STRUCTURE_ROLES,
    }
)
RWKV_ROLES = RoleTable.from_dict(
    {
        "emb.weight": "embedding",
        "blocks.*.time_*": "own",
        "blocks.*.x_?": "own",
        "blocks.*.att.[wavg][012]": "own",
        "blocks.*.att.[kr]_[ka]": "own",
        "blocks.*.att.ln_x.*": "own",
        "blocks.*.att.receptance.weight": "query",
        "blocks.*.att.key.weight": "key",
        "blocks.*.att.value.weight": "value",
        "blocks.*.att.gate.weight": "mixer_gate",
        "blocks.*.att.output.weight": "mixer_out",
        "blocks.*.ffn.key.weight": "ffn_gate",
        "blocks.*.ffn.receptance.weight": "ffn_router",
        "blocks.*.ffn.value.weight": "ffn_out",
        "blocks.*.ln?.weight": "norm",
        "blocks.*.ln?.bias": "norm_bias",
        "ln_out.weight": "norm",
        "ln_out.bias": "norm_bias",
        "head.weight": "head",
        "emb.fixnorm.weight": "norm",
        **STRUCTURE_ROLES,
    }
)


@dataclass(frozen=True)
class Owner:
    """What a model class says: its role table; heads and head size; the distribution of a parameter of role `own`, by
    name and version of the vectors; the values of a vector; the structure it was built with; the version of its vectors
    where a scheme says none."""

    roles: RoleTable | None
    heads: Callable[[Any], tuple[int, int] | None]
    own: Callable[[Any, str, str], Distribution]
    vector: Callable[[Any, str, str], Tensor]
    structure: Callable[[Any], Structure]
    version: str = ""


def ssm_own(model: Any, name: str, version: str) -> Distribution:
    """D = 1; the decays are placed afterwards, by a node set."""
    return constant(1) if name.endswith(".D") else KEEP


def no_vector(model: Any, name: str, version: str) -> Tensor:
    """For models without such vectors."""
    raise ValueError(f"{name} of a {type(model).__name__} is no vector that {version!r} knows")


def rwkv_own(model: Any, name: str, version: str) -> Distribution:
    """Low-rank maps U(b), in Goose 0 and O(0.1); ln_x ((1 + l) / L)**0.7 and 0; the rest exact vectors of that version.

    Raises ValueError for a version of another model: one of Eagle for Finch.
    """
    check_version(version, model.config.version)
    if ".ln_x." in name:
        return constant(head_norm(name, model.config.layers))
    if name.endswith(("1", "2")):
        goose = model.config.version == 7
        return goose_low_rank(name, model.config) if goose else uniform(VERSIONS[version].low_rank[int(name[-1]) - 1])
    return Distribution("vector", name=version)


def rwkv_vector(model: Any, name: str, version: str) -> Tensor:
    """The values of one vector, (D,)."""
    config = model.config
    return goose_vector(name, config) if config.version == 7 else channel_vector(name, config, VERSIONS[version])


def ssm_structure(model: Any) -> Structure:
    """What a scheme may ask of an SSM."""
    return cast(Structure, model.config.structure)


def rwkv_structure(model: Any) -> Structure:
    """What a scheme may ask of an RWKV, whose embedding is always normed (ln0)."""
    structure = cast(Structure, model.config.structure)
    return replace(structure, embedding_norm=structure.norm != "none")


def rwkv_heads(model: Any) -> tuple[int, int]:
    """How many, and their size."""
    return model.config.heads, model.config.head_size


RWKV_OWNER = Owner(RWKV_ROLES, rwkv_heads, rwkv_own, rwkv_vector, rwkv_structure, "rwkv_blinkdl")
OWNERS = {
    "SSM": Owner(SSM_ROLES, lambda model: (1, model.config.dim), ssm_own, no_vector, ssm_structure),
    "RWKV": RWKV_OWNER,
    "RWKV7": replace(RWKV_OWNER, version="rwkv7_official"),
}
FOREIGN = Owner(None, lambda model: None, lambda *_: KEEP, no_vector, lambda model: Structure())


def owner_of(model: nn.Module) -> Owner:
    """What is known of the class of `model`; nothing of a foreign one."""
    kind = type(model)
    return OWNERS.get(kind.__name__, FOREIGN) if kind.__module__.startswith("plkernel.") else FOREIGN
