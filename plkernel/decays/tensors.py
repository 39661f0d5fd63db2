"""Checkpoint files as names and arrays: only what is asked for is read, and nothing is executed.

Read are a folder in the layout of the Hugging Face hub, one .safetensors file, one .pth, .pt or
.bin file that holds a flat dictionary of tensors, and hf:OWNER/NAME. No file outside the folder is
read, wherever an index or a link may point; in the cache of huggingface_hub, whose snapshots are
links, the blobs of the same repository belong to the folder. A .safetensors file needs neither
torch nor transformers.
"""

import json
import math
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np

from plkernel.common import cli
from plkernel.common.files import check_regular, load_object, shown
from plkernel.decays.families import Floats

HUB = "hf:"
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(@[\w./-]+)?", re.ASCII)
CONFIG, INDEX, SINGLE, PICKLE = (
    "config.json",
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin",
)
PICKLED = (".pth", ".pt", ".bin")
TYPES: dict[str, tuple[str, str, float]] = {
    "F64": ("float64", "<f8", 2.0**-52),
    "F32": ("float32", "<f4", 2.0**-23),
    "F16": ("float16", "<f2", 2.0**-10),
    "BF16": ("bfloat16", "<u2", 2.0**-7),
    "F8_E5M2": ("float8_e5m2", "u1", 2.0**-2),
    "F8_E4M3": ("float8_e4m3fn", "u1", 2.0**-3),
}
"""Types of .safetensors files: torch's name, how numpy reads the bytes, and the distance from 1 to
the next number.
"""
EPS = {name: eps for name, _, eps in TYPES.values()}
"""Distances from 1 to the next number, by torch's name of the type."""


@dataclass(frozen=True)
class Stored:
    """A tensor of decays, widened to float64, and the name in torch of the type it is stored in."""

    values: Floats
    dtype: str

    @property
    def eps(self) -> float:
        """Distance from 1 to the next number of the stored type."""
        return EPS[self.dtype]


@dataclass(frozen=True)
class Checkpoint:
    """Names of the tensors of a checkpoint, its config.json, and how to read a tensor.

    config.json is empty if there is none.

    size  how many numbers a tensor holds, by its name, known before they are read
    read  a tensor, by its name; ValueError unless it holds floating-point numbers
    """

    names: tuple[str, ...]
    config: Mapping[str, Any]
    size: Callable[[str], int]
    read: Callable[[str], Stored]


def open_checkpoint(target: str) -> Checkpoint:
    """Open the checkpoint in a folder, in a file or, as hf:OWNER/NAME, on the hub.

    Raises ValueError that names the file.
    """
    path = (
        _downloaded(target.removeprefix(HUB))
        if target.startswith(HUB)
        else cli.existing(Path(target), "model")
    )
    folder = path if path.is_dir() else path.parent
    config = load_object(_inside(folder, CONFIG, folder)) if (folder / CONFIG).exists() else {}
    if (path / INDEX).exists():
        index = _inside(path, INDEX, path)
        places = load_object(index).get("weight_map")
        if (
            not isinstance(places, dict)
            or not places
            or not all(isinstance(file, str) for file in places.values())
        ):
            raise ValueError(
                f"{index}: weight_map must say which tensor is in which file, got {shown(places)}"
            )
        files = {file: _inside(path, file, index) for file in dict.fromkeys(places.values())}
        for file in files.values():
            check_regular(file, f"{index}: shard ")
        return _of_shards({name: files[file] for name, file in places.items()}, config)
    if path.is_dir():
        held = [
            name
            for name in (SINGLE, PICKLE)
            if (path / name).exists() or (path / name).is_symlink()
        ]
        if not held:
            raise ValueError(
                f"{path}: holds none of {INDEX}, {SINGLE}, {PICKLE}: save the model so, or name a"
                " file"
            )
        path = _inside(path, held[0], path)
    check_regular(path)
    if path.suffix not in (".safetensors", *PICKLED):
        raise ValueError(
            f"{path}: is no .safetensors, {', '.join(PICKLED)} file, and nothing else is read"
        )
    if path.suffix in PICKLED:
        return of_tensors(read_pickle(path), config)
    return _of_shards(dict.fromkeys(_header(path)[0], path), config)


def of_tensors(tensors: Mapping[str, Any], config: Mapping[str, Any]) -> Checkpoint:
    """The checkpoint of torch tensors by name, as a live model's state_dict."""

    def checked(name: str) -> Any:
        tensor = tensors[name]
        plain = str(getattr(tensor, "layout", "")) == "torch.strided" and not (
            tensor.is_meta or tensor.is_nested
        )
        if not plain or str(tensor.dtype).removeprefix("torch.") not in EPS or not tensor.numel():
            held = (
                f"{getattr(tensor, 'dtype', type(tensor).__name__)}"
                f" {tuple(tensor.shape) if plain else ''}".rstrip()
            )
            raise ValueError(
                f"{name}: is {held}, expected a tensor of floating-point numbers ({', '.join(EPS)})"
            )
        return tensor

    def read(name: str) -> Stored:
        tensor = checked(name)
        return Stored(
            tensor.detach().cpu().double().numpy(), str(tensor.dtype).removeprefix("torch.")
        )

    return Checkpoint(tuple(tensors), config, lambda name: int(checked(name).numel()), read)


def read_pickle(path: Path) -> dict[str, Any]:
    """Read the dictionary of tensors in a .pth file.

    Raises ValueError for any other content. Nothing in it is executed.
    """
    check_regular(path)
    try:
        import torch
    except ImportError as error:
        raise ValueError(
            f"{path}: reading this format needs torch, which is missing: pip install torch"
        ) from error
    try:
        with warnings.catch_warnings(
            action="ignore"
        ):  # of another pickle protocol, which the error names
            content: Any = torch.load(
                path, map_location="cpu", weights_only=True, mmap=is_zipfile(path)
            )
    except Exception as error:  # a damaged or hostile pickle can raise anything
        reason = type(error).__name__  # torch's own text advises to switch the safety off
        raise ValueError(
            f"{path}: not a .pth file that holds tensors only, and nothing else is read ({reason})"
        ) from error
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ValueError(
            f"{path}: holds {type(content).__name__}, expected a flat dictionary of named tensors"
        )
    return content


def spacing(values: Floats, dtype: str) -> Floats:
    """Distance from each of `values` to the next number of a type."""
    return EPS[dtype] * np.exp2(np.floor(np.log2(np.maximum(np.abs(values), 1e-30))))


def rounded(values: Floats, dtype: str) -> Floats:
    """`values` after conversion to float16 or bfloat16, by way of float32 as in torch."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
        if dtype == "float16":
            return single.astype(np.float16).astype(np.float64)
    bits = single.view(np.uint32).astype(np.uint64)
    nearest = (bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return np.where(np.isnan(single), np.nan, nearest.astype(np.uint32).view(np.float32)).astype(
        np.float64
    )


def _of_shards(files: Mapping[str, Path], config: Mapping[str, Any]) -> Checkpoint:
    """A checkpoint of .safetensors files by tensor, opened when a tensor in them is asked for."""
    header = cache(_header)

    def entry(name: str) -> tuple[dict[str, Any], int]:
        entries, start = header(files[name])
        if name not in entries:
            raise ValueError(f"{files[name]}: has no tensor {name}, which the index says is there")
        one = entries[name]
        if one["dtype"] not in TYPES or not math.prod(one["shape"]):
            held = f"{one['dtype']} {tuple(one['shape'])}"
            raise ValueError(
                f"{name}: is {held}, expected a tensor of floating-point numbers"
                f" ({', '.join(TYPES)})"
            )
        return one, start

    def read(name: str) -> Stored:
        one, start = entry(name)
        dtype, stored, _ = TYPES[one["dtype"]]
        first, end = one["data_offsets"]
        with files[name].open("rb") as handle:
            handle.seek(start + first)
            raw = np.frombuffer(handle.read(end - first), stored)
        values: Any = raw
        if dtype == "bfloat16":  # numpy has none of these
            values = (raw.astype(np.uint32) << 16).view(np.float32)
        elif dtype == "float8_e5m2":
            values = (raw.astype(np.uint16) << 8).view(np.float16)
        elif (
            dtype == "float8_e4m3fn"
        ):  # 1 sign, 4 exponent (bias 7) and 3 mantissa bits; NaN where all are set
            exponent, mantissa = (raw >> 3 & 15).astype(int), (raw & 7) / 8
            size = np.where(
                exponent > 0, np.ldexp(1 + mantissa, exponent - 7), np.ldexp(mantissa, -6)
            )
            values = np.where(raw & 127 == 127, np.nan, np.where(raw & 128, -size, size))
        with np.errstate(invalid="ignore"):  # of NaN
            return Stored(values.astype(np.float64).reshape(one["shape"]), dtype)

    return Checkpoint(tuple(files), config, lambda name: math.prod(entry(name)[0]["shape"]), read)


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """Entries of a .safetensors file by name, and the place of its numbers.

    The library has checked the header.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            names = tuple(file.keys())
        with path.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            header = json.loads(handle.read(length))
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"{path}: not a whole .safetensors file ({error})") from error
    return {name: header[name] for name in names}, 8 + length


def _inside(folder: Path, name: str, origin: Path) -> Path:
    """The file `name` of a folder; ValueError, headed by `origin`, if it is outside of it."""
    place, roots = Path(name), [folder.resolve()]
    if (
        roots[0].parent.name == "snapshots"
    ):  # of the hub's cache: REPOSITORY/snapshots/COMMIT beside REPOSITORY/blobs
        roots.append(roots[0].parent.parent / "blobs")
    try:
        real = (folder / place).resolve()
    except (ValueError, RuntimeError) as error:  # a zero byte, or links in a circle
        raise ValueError(f"{origin}: {shown(name)} names no file ({error})") from error
    if (
        place.is_absolute()
        or ".." in place.parts
        or not any(real.is_relative_to(one) for one in roots)
    ):
        raise ValueError(
            f"{origin}: {shown(name)} is outside of the folder, and nothing there is read"
        )
    return folder / place


def _downloaded(name: str) -> Path:
    """Folder of OWNER/NAME[@REVISION] in the hub's cache.

    config.json and .safetensors are downloaded if necessary.
    """
    if not HUB_NAME.fullmatch(name):
        raise ValueError(
            f"model hf:{name}: expected hf:OWNER/NAME or hf:OWNER/NAME@REVISION, got {shown(name)}"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    from plkernel.data.files import endpoint, reachable

    repository, _, revision = name.partition("@")
    wanted = [CONFIG, "*.safetensors", "*.safetensors.index.json"]
    options: dict[str, Any] = {"local_files_only": not reachable(), "allow_patterns": wanted}
    try:
        return Path(snapshot_download(repository, revision=revision or None, **options))
    except LocalEntryNotFoundError as error:
        raise OSError(
            f"model hf:{name}: not in the cache, and {endpoint()} cannot be reached: connect to a"
            " network, or name a folder or file that holds the checkpoint"
        ) from error
    except (HFValidationError, HfHubHTTPError) as error:
        raise OSError(f"model hf:{name}: {error}") from error
