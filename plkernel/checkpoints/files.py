"""Checkpoints of any framework as names and tensors: only what is asked for is read, and nothing is executed.

Taken are a folder in the layout of the Hugging Face hub, one .safetensors file, and one .pth, .pt or .bin file that
holds a flat dictionary of tensors. No file outside of the folder is read, wherever an index or a link may point; in the
cache of huggingface_hub, whose snapshots are links, the blobs of the same repository belong to the folder.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from plkernel.common import cli
from plkernel.common.files import check_regular, kind, load_object, shown

CONFIG = "config.json"
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
PICKLED = (".pth", ".pt", ".bin")
MOST_NUMBERS = 2**26
"""In one tensor of decays; the largest that is published has under a million."""


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a checkpoint by name, none of them read yet, and its config.json: empty where there is none."""

    names: tuple[str, ...]
    config: Mapping[str, Any]
    fetch: Callable[[str], Tensor]

    def read(self, name: str) -> Tensor:
        """The tensor `name`, in the type that it is stored in; ValueError unless it holds floating-point numbers."""
        found = self.fetch(name)
        plain = isinstance(found, Tensor) and found.layout is torch.strided and not found.is_meta
        if not plain or not found.is_floating_point():
            what = found.dtype if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(f"{name}: is {what}, expected a tensor of floating-point numbers")
        _check_size(name, tuple(found.shape))
        return found.detach()


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a folder or a file; ValueError, naming the file, for anything that cannot be one."""
    cli.existing(path, "model")
    if not path.is_dir():
        return _single(path, _config(path.parent, path.parent / CONFIG))
    config = _config(path, _inside(path, CONFIG, path))
    if (path / INDEX).exists():
        return _sharded(path, config)
    for name in (SINGLE, "pytorch_model.bin"):
        if (path / name).exists() or (path / name).is_symlink():
            return _single(_inside(path, name, path), config)
    raise ValueError(f"{path}: holds neither {INDEX} nor {SINGLE}; name a file of weights in it")


def _single(path: Path, config: Mapping[str, Any]) -> Checkpoint:
    check_regular(path)
    if path.suffix in PICKLED:
        from plkernel.interop.official import read_official  # brings models and kernels along

        state = read_official(path, mmap=True)
        return Checkpoint(tuple(state), config, state.__getitem__)
    shard = _Shard(path)
    return Checkpoint(shard.names, config, shard.fetch)


def _sharded(folder: Path, config: Mapping[str, Any]) -> Checkpoint:
    """A checkpoint of several files; of these only the ones that hold what is asked for are opened."""
    index = _inside(folder, INDEX, folder)
    places = load_object(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ValueError(f"{index}: weight_map must say which tensor is in which file, got {shown(places)}")
    files: dict[str, Path] = {}
    for name, file in places.items():
        if not isinstance(file, str):
            raise ValueError(f"{index}: the file of {name} must be a name, got {kind(file)}")
        if file not in files:
            files[file] = _inside(folder, file, index)
            check_regular(files[file], f"{index}: shard ")
    opened: dict[str, _Shard] = {}

    def fetch(name: str) -> Tensor:
        file = places[name]
        if file not in opened:
            opened[file] = _Shard(files[file])
        return opened[file].fetch(name)

    return Checkpoint(tuple(places), config, fetch)


class _Shard:
    """A .safetensors file, mapped into memory: its header is checked when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.file = safe_open(path, "pt")
            self.names = tuple(self.file.keys())
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path}: not a whole .safetensors file ({error})") from error

    def fetch(self, name: str) -> Tensor:
        if name not in self.names:
            raise ValueError(f"{self.path}: has no tensor {name}, which the index says is there")
        try:
            _check_size(name, tuple(self.file.get_slice(name).get_shape()))
            return self.file.get_tensor(name)  # type: ignore[no-any-return]
        except (SafetensorError, TypeError, RuntimeError) as error:  # of a type that torch does not know
            raise ValueError(f"{self.path}: {name} cannot be read ({error})") from error


def _check_size(name: str, shape: tuple[int, ...]) -> None:
    if not 0 < math.prod(shape) <= MOST_NUMBERS:
        raise ValueError(f"{name}: shape {shape}, expected decays: at least one number and at most {MOST_NUMBERS:,}")


def _config(folder: Path, path: Path) -> dict[str, Any]:
    return load_object(_inside(folder, path.name, folder)) if path.exists() else {}


def _inside(folder: Path, name: str, origin: Path) -> Path:
    """The file `name` of a folder; ValueError, headed by `origin`, where it is outside of it."""
    place, root = Path(name), folder.resolve()
    roots = [root]
    if root.parent.name == "snapshots":  # of the hub's cache: REPOSITORY/snapshots/COMMIT beside REPOSITORY/blobs
        roots.append(root.parent.parent / "blobs")
    try:
        real = (folder / place).resolve()
    except (ValueError, RuntimeError) as error:  # a zero byte, or links in a circle
        raise ValueError(f"{origin}: {shown(name)} names no file ({error})") from error
    if place.is_absolute() or ".." in place.parts or not any(real.is_relative_to(one) for one in roots):
        raise ValueError(f"{origin}: {shown(name)} is outside of the folder, and nothing there is read")
    return folder / place
