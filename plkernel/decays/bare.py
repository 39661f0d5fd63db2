"""Layers without a parent: tensors named A_log rather than layers.0.mixer.A_log."""

from collections.abc import Sequence
from dataclasses import replace

from plkernel.decays.own import Statement
from plkernel.decays.rates import Located, located_layers
from plkernel.decays.tensors import Checkpoint

PARENT = "layer"
"""The name of the module that a bare layer is taken to be."""


def with_parent(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint of a bare layer, its tensors under PARENT; any other as it is."""
    if located_layers(checkpoint):
        return checkpoint
    head = f"{PARENT}."
    moved = replace(
        checkpoint,
        names=tuple(f"{head}{name}" for name in checkpoint.names),
        size=lambda name: checkpoint.size(name.removeprefix(head)),
        read=lambda name: checkpoint.read(name.removeprefix(head)),
    )
    return moved if located_layers(moved) else checkpoint


def head_of(checkpoint: Checkpoint, moved: Checkpoint) -> str:
    """The beginnings of the names of a checkpoint that `with_parent` may have moved."""
    return "" if moved is checkpoint else f"{PARENT}."


def located(checkpoint: Checkpoint, stated: Sequence[Statement] = ()) -> list[Located]:
    """`located_layers`, or the bare layer, whose module is "", by its own names."""
    moved = with_parent(checkpoint)
    layers = located_layers(moved, stated, head_of(checkpoint, moved))
    if moved is checkpoint:
        return layers
    bare = []
    for module, family, names in layers:
        own_names = {role: _without(name) for role, name in names.items()}
        bare.append((_without(module), family, own_names))
    return bare


def _without(name: str) -> str:
    """A name without PARENT at its head."""
    return name.removeprefix(PARENT).removeprefix(".")
