"""The official checkpoint format of RWKV-5, RWKV-6 and RWKV-7, a dictionary in a .pth file.

Names and shapes are those of `RWKV.state_dict()` (x052 for Eagle, x060 for Finch, x070 for Goose,
weights of linear maps as (out, in)). The official training code also writes v0, v1 and v2 for the
first block of a Goose, which nothing reads and which are dropped here. The official inference
package infers sizes from the order of the dictionary: it takes an Eagle for version 5.1 unless some
`time_decay` comes after an `ln_x`, and reads the heads of a Finch off the first dimension of a
`time_faaaa` that comes after a `time_maa`. Order and dimensions written here are the ones it needs.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plkernel.common.files import atomic
from plkernel.decays.pickles import read_pickle
from plkernel.models.layers import BYTES, Structure
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.rwkv7 import RWKV7, RWKV7Config

StateDict = dict[str, Tensor]

BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")
"""The number of a block in a name, and the name in it."""
FIRST_IN_BLOCK = ("att.ln_x", "att.time_maa")
"""Beginnings of names in a block that must stand before others."""
UNUSED = {"blocks.0.att.v0", "blocks.0.att.v1", "blocks.0.att.v2"}
"""Tensors of a Goose that its code writes, and that nothing reads."""


def to_official(model: RWKV) -> StateDict:
    """The tensors of `model` under their official names, in the official order, on the CPU.

    The format has no tied head: the embedding of a tied model is written twice. Raises ValueError
    naming what the format cannot express: with K-clamp or most options of a `Structure`, the
    official code computes another function.
    """
    _check_expressible(model.config)
    state = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
    state.setdefault("head.weight", state["emb.weight"].clone())
    return {name: state[name] for name in sorted(state, key=_place)}


def _check_expressible(config: RWKVConfig | RWKV7Config) -> None:
    """Raise ValueError that names an option which the official format cannot express."""
    if config.k_clamp:
        raise ValueError(
            "k_clamp must be false, got true; a checkpoint cannot say that keys are scaled by"
            " min(1, lambda)"
        )
    if isinstance(config, RWKV7Config):
        if config.parametrisation != "free":
            raise ValueError(
                f"parametrisation must be 'free', got {config.parametrisation!r}; the format has no"
                " order"
            )
        if config.scaling_length is not None:
            raise ValueError(
                f"scaling_length must be left out, got {config.scaling_length:g}; the official code"
                " knows no positions"
            )
    plain = Structure()
    # Every RWKV norms its embedding, and a tied head is written twice.
    free = ("tied", "embedding_norm")
    for name, value in config.structure.options().items():
        usual = getattr(plain, name)
        if name not in free and value != usual:
            raise ValueError(
                f"{name} must be {usual!r}, got {value!r}; the format has no such option"
            )
    for name, value in config.structure.multipliers.items():
        if value != 1:
            raise ValueError(
                f"multiplier {name} must be 1, got {value}; the format has no multipliers"
            )
    if config.head_size == 1:
        raise ValueError(
            "head_size must be 2 or more, got 1; the official code needs more than one channel per"
            " head"
        )


def _place(name: str) -> tuple[float, int]:
    """Sort key of a tensor: by block, and first in it what the package must have seen."""
    match = BLOCK.fullmatch(name)
    if not match:
        before_or_after = -1.0 if name.startswith("emb.") else math.inf
        return before_or_after, 0
    ranks = [rank for rank, start in enumerate(FIRST_IN_BLOCK) if match[2].startswith(start)]
    return float(match[1]), min(ranks, default=len(FIRST_IN_BLOCK))


def write_official(path: Path, state: StateDict, dtype: str = "float32") -> None:
    """Write `state` in numbers of type `dtype`, atomically.

    Raises ValueError naming one that is too large for it.
    """
    cast = {name: tensor.to(getattr(torch, dtype)) for name, tensor in state.items()}
    for name, tensor in cast.items():
        if not tensor.isfinite().all() and state[name].isfinite().all():
            raise ValueError(
                f"dtype must hold every number of {name}, got {dtype}, for which one is too large;"
                " use bfloat16 or float32"
            )
    with atomic(path) as temporary, temporary.open("wb") as handle:
        torch.save(cast, handle)


def described(model: RWKV, dtype: str) -> str:
    """Version, sizes and number of parameters of a model, in one line."""
    config = model.config
    count = sum(parameter.numel() for parameter in model.parameters())
    return (
        f"rwkv{config.version}: {config.layers} layers of width {config.dim}, {config.heads} heads"
        f" of {config.head_size}, feed-forward {config.hidden}, {count:,} parameters in {dtype}"
    )


def read(source: Path) -> RWKV:
    """Read the model in an official .pth file.

    Raises ValueError naming `source`. Nothing in it is executed.
    """
    state = read_pickle(source)
    try:
        return from_official(state)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def from_official(state: Mapping[str, Any]) -> RWKV:
    """Build the model that a dictionary of official tensors describes, in float32.

    Sizes follow from shapes. Keys may come in any order, and vectors with or without dimensions of
    1, as in the official package. Raises ValueError, naming the key, unless it is a version 5.2, 6
    or 7 model over bytes.
    """
    given = {name: _plain(name, value) for name, value in state.items()}
    try:
        config = _config(given)
    except KeyError as error:
        raise ValueError(f"state must have a tensor {error.args[0]}, got none") from error
    with torch.device("meta"):
        model = RWKV7(config) if isinstance(config, RWKV7Config) else RWKV(config)
    expected = model.state_dict()
    missing = expected.keys() - given.keys()
    if missing:
        raise ValueError(f"state must have tensors {', '.join(sorted(missing)[:3])}, got none")
    unused = UNUSED if isinstance(config, RWKV7Config) else set()
    unknown = given.keys() - expected.keys() - unused
    if unknown:
        raise ValueError(
            f"state must have tensors of such a model alone, got {', '.join(sorted(unknown)[:3])}"
        )
    fitted = {}
    for name, like in expected.items():
        if given[name].squeeze().shape != like.squeeze().shape:
            raise ValueError(
                f"{name} must have shape {tuple(like.shape)}, got {tuple(given[name].shape)}"
            )
        fitted[name] = given[name].reshape(like.shape).clone()
    model.load_state_dict(fitted, assign=True)
    return model.requires_grad_(True)


def _plain(name: str, value: Any) -> Tensor:
    """A value of a checkpoint in float32; ValueError unless it is a tensor that holds numbers."""
    is_tensor = isinstance(value, Tensor)
    if not is_tensor or value.is_meta or value.is_sparse or not value.is_floating_point():
        kind = value.dtype if is_tensor else type(value).__name__
        raise ValueError(
            f"{name} must be a tensor of floating-point numbers that holds its values, got {kind}"
        )
    return value.detach().float()


def _config(state: Mapping[str, Tensor]) -> RWKVConfig | RWKV7Config:
    """Version, width, depth, heads, ranks and feed-forward width, from names and shapes.

    Raises KeyError for a tensor that is missing, and ValueError naming what the keys look like
    instead.
    """
    version = _version(state)
    dim = _width(state)
    head_size = dim // _heads(state, version, dim)
    layers = _depth(state)
    hidden, _ = _matrix(state, "blocks.0.ffn.key.weight")
    if version == 7:
        return _config_of_7(state, dim, layers, head_size, hidden)
    ranks: dict[str, Any] = {}
    if version == 6:
        _, five_ranks = _matrix(state, "blocks.0.att.time_maa_w1")  # one for each stream
        _, decay_rank = _matrix(state, "blocks.0.att.time_decay_w1")
        ranks["mix_rank"] = five_ranks // 5
        ranks["decay_rank"] = decay_rank
    usual = int(3.5 * dim // 32 * 32)
    feed_forward = None if hidden == usual else hidden
    return RWKVConfig(version, dim, layers, head_size, feed_forward=feed_forward, **ranks)


def _version(state: Mapping[str, Tensor]) -> int:
    """5, 6 or 7, by the names in the blocks; ValueError for others."""
    matches = [BLOCK.fullmatch(name) for name in state]
    names = {match[2] for match in matches if match}
    if "att.r_k" in names:
        return 7
    if any(name.startswith("att.time_maa") for name in names):
        return 6
    if "att.gate.weight" in names and state["blocks.0.att.time_decay"].squeeze(-1).ndim > 1:
        return 5
    some = ", ".join(sorted(state)[:3])
    raise ValueError(
        f"state must be a model of RWKV-5.2, RWKV-6 or RWKV-7, got one with keys such as {some}"
    )


def _matrix(state: Mapping[str, Tensor], name: str) -> tuple[int, int]:
    """Rows and columns of a tensor; ValueError unless it has two dimensions."""
    tensor = state[name]
    if tensor.ndim != 2:
        raise ValueError(f"{name} must be a matrix, got shape {tuple(tensor.shape)}")
    return tensor.shape[0], tensor.shape[1]


def _width(state: Mapping[str, Tensor]) -> int:
    """Columns of the embedding; ValueError unless its rows are those of bytes."""
    rows, dim = _matrix(state, "emb.weight")
    if rows != BYTES:
        raise ValueError(
            f"emb.weight must have {BYTES} rows, one for each byte, got {rows}; plkernel's models"
            " read bytes alone"
        )
    return dim


def _heads(state: Mapping[str, Tensor], version: int, dim: int) -> int:
    """Heads of a block; ValueError unless they divide the width."""
    name = "blocks.0.att.r_k" if version == 7 else "blocks.0.att.time_faaaa"
    heads, _ = _matrix(state, name)
    if not heads or dim % heads:
        raise ValueError(f"{name} must have heads that divide the width {dim}, got {heads}")
    return heads


def _depth(state: Mapping[str, Tensor]) -> int:
    """Number of blocks; ValueError unless they are numbered from 0 without a gap."""
    matches = [BLOCK.fullmatch(name) for name in state]
    numbers = sorted({int(match[1]) for match in matches if match})
    if numbers != list(range(len(numbers))):
        raise ValueError(f"blocks must be numbered 0, 1, 2, .. without a gap, got {numbers[:8]}")
    return len(numbers)


def _config_of_7(
    state: Mapping[str, Tensor], dim: int, layers: int, head_size: int, hidden: int
) -> RWKV7Config:
    """Sizes of a Goose; ranks and feed-forward width are None where they are the official ones."""
    official = RWKV7Config(dim, head_size=head_size)
    ranks: dict[str, Any] = {}
    maps = {"decay": "0.att.w1", "rate": "0.att.a1", "value": "1.att.v1", "gate": "0.att.g1"}
    for (kind, place), usual in zip(maps.items(), official.ranks, strict=True):
        if kind == "value" and layers < 2:
            continue
        _, rank = _matrix(state, f"blocks.{place}")
        if rank != usual:
            ranks[f"{kind}_rank"] = rank
    feed_forward = None if hidden == official.hidden else hidden
    return RWKV7Config(dim, layers, head_size, feed_forward=feed_forward, **ranks)
