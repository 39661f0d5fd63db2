"""The official checkpoint format of RWKV-5, RWKV-6 and RWKV-7: a flat dictionary of tensors in a .pth file.

Names and shapes are those of `RWKV.state_dict()` (x052 for Eagle, x060 for Finch, x070 for Goose, weights of linear
maps as (out, in)). The official training code writes v0, v1 and v2 for the first block of a Goose too, which nothing
reads and which are dropped here.
What the official inference package finds out from the dictionary depends on its order, too: it takes an Eagle for
version 5.1 unless some `time_decay` comes after an `ln_x`, and reads the heads of a Finch off the first dimension of
a `time_faaaa` that comes after a `time_maa`. Order and dimensions written here are the ones it needs.
"""

import math
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from torch import Tensor

from plkernel.common.files import atomic_file, check_regular
from plkernel.models.layers import BYTES
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.rwkv7 import RWKV7, RWKV7Config
from plkernel.models.structure import Structure

State = dict[str, Tensor]

BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")
FIRST_IN_BLOCK = ("att.ln_x", "att.time_maa")
VECTOR = re.compile(r".+\.(time_.+|x_.|[wav]0|k_[ka])")
"""Which may leave out dimensions of 1."""
UNUSED = ("blocks.0.att.v0", "blocks.0.att.v1", "blocks.0.att.v2")
MOST_NAMES = 3  # in one error message


def to_official(model: RWKV) -> State:
    """The tensors of `model` under their official names, in the order that the official package needs, on the CPU.

    The format has no tied head: the embedding of a tied model is written twice. Raises ValueError naming what the
    format cannot say: K-clamp and most options of a `Structure` are another function than the official code computes.
    """
    check_exportable(model.config)
    state = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
    state.setdefault("head.weight", state["emb.weight"].clone())
    return {name: state[name] for name in sorted(state, key=_place)}


def check_exportable(config: RWKVConfig | RWKV7Config) -> None:
    """ValueError unless the official inference code computes the same function as a model of this configuration."""
    if config.k_clamp:
        raise ValueError(
            "k_clamp: a checkpoint cannot say that keys are scaled by min(1, lambda), and inference code without it "
            "computes another function; only models with k_clamp = false can be exported"
        )
    structure, plain = config.structure, Structure()
    if structure.norm != plain.norm:
        raise ValueError(
            f"norm {structure.norm!r}: the format has LayerNorm only; only models with 'layer' can be exported"
        )
    for name in ("norm_offset", "placement", "residual", "gate", "fixnorm", "scalar_bias", "unit_scaled"):
        if getattr(structure, name) != getattr(plain, name):
            raise ValueError(f"{name} = {getattr(structure, name)!r}: the format has no such option")
    for name, value in structure.multipliers.items():
        if value != 1:
            raise ValueError(f"multiplier {name} = {value}: the format has no multipliers")
    if config.head_size == 1:
        raise ValueError("head_size 1: the official code needs more than one channel per head")


def from_official(state: Mapping[str, Tensor]) -> RWKV:
    """The model that a dictionary of official tensors describes, in float32; its configuration follows from shapes.

    Keys may come in any order and token-shift vectors in any shape that holds one number per channel, as in the
    official package; an Eagle may hold exp(time_first) as `time_first`. Raises ValueError, naming the key, when it is
    no version 5.2, 6 or 7 model over bytes.
    """
    given = {name: _tensor(name, value) for name, value in state.items()}
    given = dict(_without_time_first(name, value) for name, value in given.items())
    goose = _version(given) == 7
    if goose:
        given = {name: value for name, value in given.items() if name not in UNUSED}
    with torch.device("meta"):
        model = RWKV7(infer_goose(given)) if goose else RWKV(infer_config(given))
    expected = model.state_dict()
    _check_names(given, expected)
    fitted = {name: _fitted(name, given[name], tuple(like.shape)) for name, like in expected.items()}
    model.load_state_dict(fitted, assign=True)
    return model.requires_grad_(True)


def infer_goose(state: Mapping[str, Tensor]) -> RWKV7Config:
    """Width, depth, heads, ranks and feed-forward width of a Goose; None where they are the official ones."""
    dim, layers = _width(state), _layers(state)
    official = RWKV7Config(dim, head_size=_head_size(state, "blocks.0.att.r_k", dim))
    hidden = _matrix(state, "blocks.0.ffn.key.weight")[0]
    maps = {
        "decay": "blocks.0.att.w1",
        "rate": "blocks.0.att.a1",
        "value": "blocks.1.att.v1",
        "gate": "blocks.0.att.g1",
    }
    usual = dict(zip(maps, official.ranks, strict=True))
    found = {kind: _matrix(state, name)[1] for kind, name in maps.items() if kind != "value" or layers > 1}
    ranks: dict[str, Any] = {f"{kind}_rank": rank for kind, rank in found.items() if rank != usual[kind]}
    feed_forward = None if hidden == official.hidden else hidden
    return RWKV7Config(dim, layers, official.head_size, feed_forward=feed_forward, **ranks)


def infer_config(state: Mapping[str, Tensor]) -> RWKVConfig:
    """Version, width, depth, heads, ranks and feed-forward width from the shapes of official tensors; ValueError."""
    version, dim = _version(state), _width(state)
    head_size = _head_size(state, "blocks.0.att.time_faaaa", dim)
    hidden, finch = _matrix(state, "blocks.0.ffn.key.weight")[0], version == 6
    return RWKVConfig(
        version,
        dim,
        _layers(state),
        head_size,
        mix_rank=_matrix(state, "blocks.0.att.time_maa_w1")[1] // 5 if finch else RWKVConfig.mix_rank,
        decay_rank=_matrix(state, "blocks.0.att.time_decay_w1")[1] if finch else RWKVConfig.decay_rank,
        feed_forward=None if hidden == int(3.5 * dim // 32 * 32) else hidden,
    )


def write_official(path: Path, state: State) -> None:
    """Write `state` as the package reads it, atomically."""
    try:
        with atomic_file(path) as handle:
            torch.save(state, handle)
    except RuntimeError as error:  # of torch's own writer, on a full disk
        raise OSError(f"{path} cannot be written: {str(error).partition(chr(10))[0]}") from error


def read_official(path: Path, mmap: bool = False) -> State:
    """The dictionary of tensors in a .pth file; ValueError when it is anything else. Nothing in it is executed.

    mmap: read a tensor's numbers when they are used; files of before PyTorch 1.6 are read as a whole all the same.
    """
    check_regular(path)
    try:
        with warnings.catch_warnings(action="ignore"):  # of another pickle protocol: what follows says it better
            content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap and is_zipfile(path))
    except Exception as error:  # a damaged or hostile pickle fails in whatever way it likes
        reason = type(error).__name__  # torch's own text would advise to switch the safety off
        raise ValueError(
            f"{path}: not a .pth file that holds tensors only, and nothing else is read ({reason})"
        ) from error
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ValueError(f"{path}: holds {type(content).__name__}, expected a flat dictionary of named tensors")
    return content


def _place(name: str) -> tuple[float, int]:
    """Where a tensor stands in the file: by block, and first in it what the package must have seen."""
    found = BLOCK.fullmatch(name)
    if not found:
        return (-1.0 if name.startswith("emb.") else math.inf), 0
    ranks = [rank for rank, start in enumerate(FIRST_IN_BLOCK) if found[2].startswith(start)]
    return float(found[1]), min(ranks, default=len(FIRST_IN_BLOCK))


def _tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor) and value.is_meta:
        raise ValueError(f"{name}: is a tensor on the device 'meta', without numbers: save the model after loading it")
    if not isinstance(value, Tensor) or value.layout is not torch.strided or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(
            f"{name}: is {kind}, expected a tensor of floating-point numbers (converted files are not read)"
        )
    return value.detach().float()


def _without_time_first(name: str, value: Tensor) -> tuple[str, Tensor]:
    """Early models hold the logarithm of u, under another name."""
    if name.endswith(".att.time_first"):
        return name.replace("time_first", "time_faaaa"), value.exp()
    return name, value


def _version(state: Mapping[str, Tensor]) -> int:
    """5, 6 or 7; ValueError naming what the keys look like instead."""
    names = {found[2] for found in map(BLOCK.fullmatch, state) if found}
    if "att.r_k" in names:
        return 7
    if any(name.startswith("att.time_maa") for name in names):
        return 6
    if "att.gate.weight" in names and _get(state, "blocks.0.att.time_decay").squeeze(-1).ndim > 1:
        return 5
    if "att.time_decay" in names:
        raise ValueError(
            "these are the tensors of RWKV-4, 5.0 or 5.1 (one decay per head or no gate): "
            "RWKV-5.2, RWKV-6 and RWKV-7 can be read"
        )
    raise ValueError(f"no RWKV model: among the keys {_some(state)} is none like blocks.0.att.time_decay")


def _width(state: Mapping[str, Tensor]) -> int:
    """D; ValueError for another vocabulary than ours."""
    rows, dim = _matrix(state, "emb.weight")
    if rows != BYTES:
        raise ValueError(f"vocabulary: emb.weight has {rows} rows, but plkernel's models read bytes and need {BYTES}")
    return dim


def _head_size(state: Mapping[str, Tensor], name: str, dim: int) -> int:
    """Channels of a head, from a tensor that has one number for each of them."""
    found = tuple(_get(state, name).shape)
    if len(found) < 2 or math.prod(found[2:]) != 1 or found[0] < 1 or dim % found[0]:
        raise ValueError(
            f"{name}: shape {found}, expected (heads, head size) for a width of {dim}: its first dimension is what "
            "gives the number of heads"
        )
    return dim // found[0]


def _layers(state: Mapping[str, Tensor]) -> int:
    """Number of blocks; ValueError when their numbers have gaps."""
    numbers = sorted({int(found[1]) for found in map(BLOCK.fullmatch, state) if found})
    if numbers != list(range(len(numbers))):
        raise ValueError(f"blocks are numbered {numbers[:8]}, expected 0, 1, 2, ... without a gap")
    return len(numbers)


def _check_names(given: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    missing, foreign = expected.keys() - given.keys(), given.keys() - expected.keys()
    if missing:
        raise ValueError(f"tensors are missing: {_some(missing)}")
    if foreign:
        raise ValueError(f"tensors that these models do not have: {_some(foreign)}")


def _fitted(name: str, value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """`value` in the shape that our model has for it; only a VECTOR may leave out dimensions of 1."""
    found = tuple(value.shape)
    same = found == shape or (VECTOR.fullmatch(name) and _essential(found) == _essential(shape))
    if not same:
        raise ValueError(f"{name}: shape {found}, expected {shape}")
    return value.reshape(shape).clone()


def _essential(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _matrix(state: Mapping[str, Tensor], name: str) -> tuple[int, int]:
    """Rows and columns of a matrix that the configuration is read off."""
    found = tuple(_get(state, name).shape)
    shape = found if len(found) == 2 else _essential(found)
    if len(shape) != 2:
        raise ValueError(f"{name}: shape {found}, expected a matrix")
    return shape[0], shape[1]


def _get(state: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in state:
        raise ValueError(f"tensors are missing: {name}")
    return state[name]


def _some(names: Iterable[str]) -> str:
    """The first few of `names`, for a message of one line."""
    ordered = sorted(names)
    more = f" and {len(ordered) - MOST_NAMES} more" if len(ordered) > MOST_NAMES else ""
    return ", ".join(ordered[:MOST_NAMES]) + more
