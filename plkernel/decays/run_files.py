"""Checkpoints of plkernel's own runs as files of tensors, for models that code of others builds.

A run keeps its weights as `model.NAME`, and beside them the moments and averages of each; its
config.json has a table `model`, in which `config` is what the code of others was given.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from plkernel.common.files import CHECKPOINT, CONFIG
from plkernel.decays.checkpoints import Checkpoint
from plkernel.decays.config_sizes import WIDEST
from plkernel.decays.tensors import SAFE, SINGLE, open_safetensors

WEIGHTS = "model."
"""Begins the names of weights."""
BESIDE = ("exp_avg.", "exp_avg_sq.", "average.")
"""Begin the names of moments and averages, which are no decays."""


def is_of_run(file: Path) -> bool:
    """True for the checkpoint of a run with its config.json beside; a copy alone has none."""
    return file.name == CHECKPOINT and (file.parent / CONFIG).is_file()


def file_of(target: str) -> str:
    """The checkpoint in the folder of a run; any other target as it is."""
    file = Path(target) / CHECKPOINT
    return str(file) if file.is_file() and is_of_run(file) else target


def weights_of(checkpoint: Checkpoint) -> Checkpoint:
    """The weights of a run's checkpoint with the settings of its model; any other as it is."""
    known = frozenset(checkpoint.names)
    names = tuple(name for name in checkpoint.names if not _is_beside(name, known))
    section = checkpoint.config.get("model")
    if not isinstance(section, Mapping) or "kind" not in section:
        return replace(checkpoint, names=names)
    given = section.get("config")
    return replace(checkpoint, names=names, config=given if isinstance(given, Mapping) else {})


def bytes_per_step(target: str) -> int:
    """Bytes of one step of the recurrence in a checkpoint of a run that was copied alone.

    The file has the configuration of its run in its metadata too. 1 for any other target, and where
    config.json stands beside it.
    """
    path = Path(target)
    file = path / SINGLE if path.is_dir() else path
    if file.suffix not in SAFE or not file.is_file() or (file.parent / CONFIG).exists():
        return 1
    with open_safetensors(file, "numpy") as opened:
        metadata = opened.metadata() or {}
    if not {"progress", "digest"} <= metadata.keys():
        return 1
    try:
        size = json.loads(metadata["config"])["model"]["patching"]["size"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return 1
    is_whole = isinstance(size, int) and not isinstance(size, bool)
    return size if is_whole and 1 <= size <= WIDEST else 1


def _is_beside(name: str, known: frozenset[str]) -> bool:
    """True for the moment or average of a weight among the `known` names."""
    head = next((one for one in BESIDE if name.startswith(one)), "")
    return bool(head) and f"{WEIGHTS}{name.removeprefix(head)}" in known
