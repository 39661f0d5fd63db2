"""Checkpoint files as names and arrays: only what is asked for is read, and nothing is executed.

Read are a folder in the layout of the Hugging Face hub, one .safetensors file, one .pth, .pt, .bin
or .ckpt file that holds a dictionary of tensors, alone or among other values, one .gguf file of
llama.cpp, and hf:OWNER/NAME. No file outside the folder is read, wherever an index or a link may
point; in the cache of huggingface_hub, whose snapshots are links, the blobs of the same repository
belong to the folder. A .safetensors file needs neither torch nor transformers.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from plkernel.common import cli
from plkernel.common.files import check_readable, check_regular, is_utf8, load_object, shown
from plkernel.decays.checkpoints import EPS, MOST_DIMENSIONS, TYPES, Checkpoint, Stored, widened
from plkernel.decays.config_sizes import check_sizes
from plkernel.decays.families import Floats
from plkernel.decays.folders import (
    conversion,
    held_files,
    lacking,
    other_format,
    part_of,
    parts_in,
    several_models,
)
from plkernel.decays.gguf_files import GGUF, open_gguf
from plkernel.decays.pickles import ARRAY, read_parts, read_pickle

HUB = "hf:"
"""Before the name of a repository on the Hugging Face hub."""
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(@[\w./-]+)?", re.ASCII)
"""OWNER/NAME, with @REVISION where one is asked for."""
CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLE = "pytorch_model.bin"
PICKLE_INDEX = "pytorch_model.bin.index.json"
PICKLED = (".pth", ".pt", ".bin", ".ckpt", ".pkl", ".tar")
"""Suffixes of files that torch.save writes."""
OPEN_FILES = Path("/proc/self/fd")
"""Where Linux gives the open files of a process a second name, their number."""
SAFE = (".safetensors", ".st")
"""Suffixes of files of safetensors."""
MOST_TEXT = 2**26
"""Bytes of config.json or of an index."""
EMPTY = (
    "; it is empty: stage 3 of ZeRO keeps its numbers in other files, which zero_to_fp32.py of"
    " DeepSpeed joins"
)
"""The hint of errors about a tensor without numbers."""
COMPLEX = "; store the size of a complex decay, or its logarithm, in a real tensor"
"""The hint of errors about a tensor of complex numbers."""
OF_AN_ARRAY = "; torch.from_numpy makes a tensor of it"
"""The hint of errors about a numpy array beside tensors."""
NO_MODEL = ("corpus", "train", "arm_options")
"""Tables of the config.json of a run that say nothing of the size of its model."""
PREPARED = ("_strategy", "_version")
"""Names beside the tensors of a file that ChatRWKV has prepared for a strategy."""


def open_checkpoint(target: str) -> Checkpoint:
    """Open the checkpoint in a folder, in a file or, as hf:OWNER/NAME, on the hub.

    Raises ValueError that names the file.
    """
    path = _found(target)
    folder = path if path.is_dir() else path.parent
    config: dict[str, Any] = {}
    if (folder / CONFIG).exists():
        config = _settings(_inside(folder, CONFIG, folder))
        check_sizes({name: one for name, one in config.items() if name not in NO_MODEL})
    for index in (INDEX, PICKLE_INDEX):
        if (path / index).exists():
            return _indexed(path, index, config)
    if not path.is_dir():
        return _whole(path, config)
    parts = parts_in(path)
    if parts and not any((path / name).exists() for name in (SINGLE, PICKLE)):
        return _of_parts(path, parts, config)
    return _whole(_file_in(path), config)


def _found(target: str) -> Path:
    """The folder or file of a target, downloaded if it is on the hub."""
    if target.startswith(HUB):
        return _downloaded(target.removeprefix(HUB))
    return cli.existing(Path(target), "model")


def _indexed(folder: Path, name: str, config: Mapping[str, Any]) -> Checkpoint:
    """A checkpoint in several files, which an index names."""
    index = _inside(folder, name, folder)
    stated = _settings(index).get("weight_map")
    places = stated if isinstance(stated, dict) else {}
    if not places or not all(isinstance(file, str) for file in places.values()):
        raise ValueError(
            f"{index}: weight_map must say which tensor is in which file, got {shown(stated)}"
        )
    files = {file: _inside(folder, file, index) for file in dict.fromkeys(places.values())}
    for file in files.values():
        check_regular(file, f"{index}: shard ")
        _check_content(file)
    placed = {tensor: files[file] for tensor, file in places.items()}
    if name == PICKLE_INDEX:
        return of_tensors(_of_pickles(placed), config)
    return _of_shards(placed, config)


def _of_parts(folder: Path, parts: Sequence[str], config: Mapping[str, Any]) -> Checkpoint:
    """A checkpoint in several files without an index, all of one format."""
    files = [_inside(folder, part, folder) for part in parts]
    for file in files:
        check_regular(file)
        _check_content(file)
    if files[0].suffix in SAFE:
        placed: dict[str, Path] = {}
        for file in files:
            placed |= dict.fromkeys(_names_in(file), file)
        return _of_shards(placed, config)
    tensors: dict[str, Any] = {}
    for file in files:
        tensors |= read_pickle(file)
    return of_tensors(tensors, config)


def _file_in(folder: Path) -> Path:
    """The one file of a folder that holds all tensors."""
    for name in (SINGLE, PICKLE):
        if (folder / name).exists() or (folder / name).is_symlink():
            return _inside(folder, name, folder)
    words = conversion(folder) or several_models(folder) or lacking(folder) or _nothing_in(folder)
    raise ValueError(f"{folder}: {words}")


def _whole(path: Path, config: Mapping[str, Any]) -> Checkpoint:
    """A checkpoint in one file."""
    check_regular(path)
    _check_content(path)
    part = part_of(path)
    if part:
        raise ValueError(f"{path}: {part}")
    if path.suffix == GGUF:
        return open_gguf(path)
    if path.suffix in SAFE:
        return _of_shards(dict.fromkeys(_names_in(path), path), config)
    if path.name in (INDEX, PICKLE_INDEX):
        raise ValueError(
            f"{path}: must be the folder, or a file with tensors, got an index of other files; name"
            f" {path.parent}"
        )
    if path.suffix not in PICKLED:
        raise ValueError(
            f"{path}: suffix must be one of {', '.join((*SAFE, *PICKLED, GGUF))}, got"
            f" {shown(path.suffix)}; nothing else is read{other_format(path)}"
        )
    content, part, copies = read_parts(path)
    checkpoint = replace(of_tensors(content, config), part=part, copies=copies)
    return _as_named(checkpoint) if any(one in content for one in PREPARED) else checkpoint


def _check_content(path: Path) -> None:
    """ValueError for what stands in the place of weights that were not fetched."""
    with path.open("rb") as file:
        start = file.read(64).lstrip()
    if start.startswith(b"version https://git-lfs"):
        raise ValueError(
            f"{path}: must hold weights, got a pointer of Git LFS; git lfs pull fetches them"
        )
    if start.lower().startswith((b"<!doctype", b"<html")):
        raise ValueError(f"{path}: must hold weights, got a web page; download the file itself")


def of_tensors(tensors: Mapping[str, Any], config: Mapping[str, Any]) -> Checkpoint:
    """The checkpoint of torch tensors by name, as a live model's state_dict."""

    def checked(name: str) -> Any:
        tensor = tensors[name]
        is_strided = str(getattr(tensor, "layout", "")) == "torch.strided"
        is_plain = is_strided and not (tensor.is_meta or tensor.is_nested)
        is_empty = is_plain and not tensor.numel()
        if not is_plain or is_empty or type_of(tensor) not in EPS:
            held = _kind_of(tensor)
            hint = _hint_for(is_empty, held)
            raise ValueError(
                f"{name} must be a tensor of floating-point numbers ({', '.join(EPS)}), got {held}"
                f"{hint}"
            )
        _check_dimensions(name, tensor.ndim)
        return tensor

    def read(name: str) -> Stored:
        tensor = checked(name)
        return Stored(tensor.detach().cpu().double().numpy(), type_of(tensor))

    def numbers() -> int:
        return sum(_numbers_of(tensor) for tensor in tensors.values())

    def size(name: str) -> int:
        return int(checked(name).numel())

    return Checkpoint(tuple(tensors), config, size, read, numbers)


def _kind_of(value: Any) -> str:
    """Type, shape and layout of a tensor in words, and where it holds no numbers; else its type."""
    if not hasattr(value, "layout"):
        return type(value).__name__
    if value.is_nested:  # without one shape
        return f"{value.dtype}, nested"
    held = f"{value.dtype} {tuple(value.shape)}"
    if value.is_meta:
        return f"{held} on the meta device, which holds no numbers"
    layout = str(value.layout).removeprefix("torch.")
    return held if layout == "strided" else f"{held} of layout {layout}; save it with .to_dense()"


def _hint_for(is_empty: bool, held: str) -> str:
    """Advice on a tensor whose numbers are not read, or ""; held: its type first."""
    if is_empty:
        return EMPTY
    if held == ARRAY:
        return OF_AN_ARRAY
    is_complex = held.startswith(("torch.complex", "C64 "))
    return COMPLEX if is_complex else ""


def type_of(tensor: Any) -> str:
    """The name of a tensor's type, such as float32."""
    return str(tensor.dtype).removeprefix("torch.")


def _numbers_of(tensor: Any) -> int:
    """Numbers that a tensor may hold; 0 for what is no tensor."""
    if not hasattr(tensor, "numel"):
        return 0
    # Integers may be quantised weights, two in a byte.
    each = 1 if tensor.is_floating_point() or tensor.is_complex() else 2 * tensor.element_size()
    return int(tensor.numel()) * each


def _as_named(checkpoint: Checkpoint) -> Checkpoint:
    """A file that ChatRWKV has prepared, with the `time_decay` that its name says.

    It holds -exp(w) in version 4, exp(-exp(w)) in version 5, and w itself in version 6.
    """

    def read(name: str) -> Stored:
        stored = checkpoint.read(name)
        at, _, last = name.rpartition(".")
        is_version_6 = f"{at}.time_decay_w1" in checkpoint.names
        if last != "time_decay" or is_version_6:
            return stored
        is_version_5 = f"{at}.ln_x.weight" in checkpoint.names
        values = stored.values
        outside = (values < 0) | (values > 1) if is_version_5 else values > 0
        if outside.any():
            form = "exp(-exp(w))" if is_version_5 else "-exp(w)"
            raise ValueError(
                f"{name}: must be {form}, as {' or '.join(PREPARED)} says that the file was"
                f" prepared for a strategy, got {values.min():.3g} to {values.max():.3g}"
            )
        with np.errstate(divide="ignore"):
            rates = -np.log(values) if is_version_5 else -values
            return Stored(np.log(rates), stored.dtype)

    return replace(checkpoint, read=read)


def _of_pickles(places: Mapping[str, Path]) -> dict[str, Any]:
    """The tensors of several .bin files, by the file of each."""
    contents = {file: read_pickle(file) for file in dict.fromkeys(places.values())}
    tensors = {}
    for name, file in places.items():
        if name not in contents[file]:
            raise ValueError(f"{file}: must have tensor {name}, as the index says, got none")
        tensors[name] = contents[file][name]
    return tensors


def _nothing_in(folder: Path) -> str:
    """Words for a folder without a checkpoint, and what in it could be named."""
    files = held_files(folder)
    hint = f", as {', '.join(files[:3])}" if files else ""
    return (
        f"holds none of {INDEX}, {SINGLE}, {PICKLE}, {PICKLE_INDEX}: save the model so, or name a"
        f" file{hint}"
    )


def _settings(path: Path) -> dict[str, Any]:
    """An object of JSON; ValueError for a file of more than MOST_TEXT bytes."""
    check_regular(path)
    size = path.stat().st_size
    if size > MOST_TEXT:
        raise ValueError(f"{path}: must have at most {MOST_TEXT:,} bytes, got {size:,}")
    return load_object(path)


def _check_dimensions(name: str, count: int) -> None:
    """ValueError for a tensor of more than MOST_DIMENSIONS dimensions."""
    if count > MOST_DIMENSIONS:
        raise ValueError(
            f"{name} must be a tensor of at most {MOST_DIMENSIONS} dimensions, got {count}"
        )


def spacing(values: Floats, dtype: str) -> Floats:
    """Distance from each of `values` to the next number of a type: eps 2**floor(log2 |value|)."""
    sizes = np.maximum(np.abs(values), 1e-30)  # 0 has no logarithm
    return EPS[dtype] * np.exp2(np.floor(np.log2(sizes)))


def rounded(values: Floats, dtype: str) -> Floats:
    """`values` after conversion to float16 or bfloat16, by way of float32 as in torch."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
        if dtype == "float16":
            return single.astype(np.float16).astype(np.float64)
    # bfloat16 is the upper half of a float32. Adding just below a half of its last place, and one
    # more where that place is odd, carries into it wherever to nearest, ties to even, goes up.
    bits = single.view(np.uint32).astype(np.uint64)
    is_odd = bits >> np.uint64(16) & np.uint64(1)
    upper = (bits + 0x7FFF + is_odd) & np.uint64(0xFFFF0000)
    nearest = upper.astype(np.uint32).view(np.float32)
    return np.where(np.isnan(single), np.nan, nearest).astype(np.float64)


def _of_shards(files: Mapping[str, Path], config: Mapping[str, Any]) -> Checkpoint:
    """A checkpoint of .safetensors files by tensor, opened when a tensor in them is asked for."""
    header = cache(_header)

    def entry(name: str) -> tuple[dict[str, Any], int]:
        entries, start = header(files[name])
        if name not in entries:
            raise ValueError(f"{files[name]}: must have tensor {name}, as the index says, got none")
        one = entries[name]
        if one["dtype"] not in TYPES or not math.prod(one["shape"]):
            held = f"{one['dtype']} {tuple(one['shape'])}"
            hint = _hint_for(0 in one["shape"], held)
            raise ValueError(
                f"{name} must be a tensor of floating-point numbers ({', '.join(TYPES)}), got"
                f" {held}{hint}"
            )
        _check_dimensions(name, len(one["shape"]))
        return one, start

    def read(name: str) -> Stored:
        one, start = entry(name)
        dtype, stored, _ = TYPES[one["dtype"]]
        first, end = one["data_offsets"]
        with files[name].open("rb") as handle:
            handle.seek(start + first)
            raw = np.frombuffer(handle.read(end - first), stored)
        return Stored(widened(raw, dtype).reshape(one["shape"]), dtype)

    def numbers() -> int:
        held = 0
        for file in set(files.values()):
            entries, _ = header(file)
            for one in entries.values():
                first, end = one["data_offsets"]
                # Other types may be quantised weights, two in a byte.
                held += math.prod(one["shape"]) if one["dtype"] in TYPES else 2 * (end - first)
        return held

    def size(name: str) -> int:
        one, _ = entry(name)
        return math.prod(one["shape"])

    return Checkpoint(tuple(files), config, size, read, numbers)


def open_safetensors(path: Path, framework: str) -> Any:
    """`safetensors.safe_open`; OSError says why where the file cannot be opened."""
    from safetensors import safe_open

    check_readable(path)
    if is_utf8(str(path)) or not OPEN_FILES.is_dir():
        return safe_open(path, framework)
    # The library takes no other name for torch. What it has opened stays open.
    with path.open("rb") as file:
        return safe_open(OPEN_FILES / str(file.fileno()), framework)


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """Entries of a .safetensors file by name, and the byte at which its numbers begin.

    The file begins with the length of its header, 8 bytes, and the header as JSON. The library
    checks that header before it is read here.
    """
    from safetensors import SafetensorError

    try:
        with open_safetensors(path, "numpy") as file:
            names = tuple(file.keys())
        with path.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            header = json.loads(handle.read(length))
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"{path}: must be a whole .safetensors file, got {error}") from error
    return {name: header[name] for name in names}, 8 + length


def _names_in(path: Path) -> tuple[str, ...]:
    """Names of the tensors in a .safetensors file."""
    entries, _ = _header(path)
    return tuple(entries)


def _inside(folder: Path, name: str, origin: Path) -> Path:
    """The file `name` of a folder; ValueError, headed by `origin`, if it is outside of it."""
    place = Path(name)
    root = folder.resolve()
    roots = [root]
    # The hub's cache has REPOSITORY/snapshots/COMMIT beside REPOSITORY/blobs.
    if root.parent.name == "snapshots":
        roots.append(root.parent.parent / "blobs")
    try:
        real = (folder / place).resolve()
    except (ValueError, RuntimeError) as error:  # a zero byte, or links in a circle
        raise ValueError(f"{origin}: must name files, got {shown(name)} ({error})") from error
    leads_up = place.is_absolute() or ".." in place.parts
    if leads_up or not any(real.is_relative_to(one) for one in roots):
        raise ValueError(
            f"{origin}: must name files in the folder, got {shown(name)}; nothing outside of it is"
            " read"
        )
    return folder / place


def _downloaded(name: str) -> Path:
    """Folder of OWNER/NAME[@REVISION] in the hub's cache.

    config.json and .safetensors are downloaded if necessary.
    """
    if not HUB_NAME.fullmatch(name):
        raise ValueError(
            f"model must be hf:OWNER/NAME or hf:OWNER/NAME@REVISION, got {shown(f'hf:{name}')}"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    from plkernel.data.text_files import endpoint, reachable

    repository, _, revision = name.partition("@")
    wanted = [CONFIG, "*.safetensors", "*.safetensors.index.json"]
    options: dict[str, Any] = {"local_files_only": not reachable(), "allow_patterns": wanted}
    try:
        return Path(snapshot_download(repository, revision=revision or None, **options))
    except LocalEntryNotFoundError as error:
        raise OSError(
            f"model hf:{name} must be in the cache while {endpoint()} cannot be reached, got none;"
            " connect to a network, or name a folder or file that holds the checkpoint"
        ) from error
    except (HFValidationError, HfHubHTTPError) as error:
        raise OSError(f"model hf:{name}: {error}") from error
