"""Shared by export and load: a foreign checkpoint of either layout, number types, and a model in one line."""

from pathlib import Path

import torch

from plkernel.interop.fla import from_fla, model_type
from plkernel.interop.fla_goose import from_fla_goose
from plkernel.interop.official import State, from_official, read_official
from plkernel.models.rwkv import RWKV
from plkernel.models.rwkv7 import RWKV7Config

NAMES = {5: "Eagle", 6: "Finch", 7: "Goose"}


def cast(tensors: State, dtype: str) -> State:
    """`tensors` as numbers of type `dtype`; ValueError naming one that is too large for it."""
    found = {name: tensor.to(getattr(torch, dtype)) for name, tensor in tensors.items()}
    for name, tensor in found.items():
        if not tensor.isfinite().all() and tensors[name].isfinite().all():
            raise ValueError(f"dtype {dtype}: {name} has a number too large for it; use bfloat16 or float32")
    return found


def summary(model: RWKV, dtype: str) -> str:
    """One line that says what the model is."""
    config = model.config
    count = sum(parameter.numel() for parameter in model.parameters())
    ranks = f", ranks {config.mix_rank} and {config.decay_rank}" if config.version == 6 else ""
    if isinstance(config, RWKV7Config):
        ranks = ", ranks {}, {}, {} and {}".format(*config.ranks)
    return (
        f"{NAMES[config.version]} (rwkv{config.version}): {config.layers} layers of width "
        f"{config.dim}, {config.heads} heads of {config.head_size}, feed-forward {config.hidden}{ranks}, "
        f"{count:,} parameters in {dtype}"
    )


def read(source: Path) -> RWKV:
    """The model in an official .pth file or in a folder of flash-linear-attention; ValueError naming `source`."""
    if source.is_dir():
        return (from_fla_goose if model_type(source) == "rwkv7" else from_fla)(source)
    state = read_official(source)
    try:
        return from_official(state)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
