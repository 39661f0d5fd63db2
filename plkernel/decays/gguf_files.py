"""Files of llama.cpp (.gguf) through the package gguf: names, numbers of decays, metadata.

Nothing in such a file is executed. Lengths that a header claims are held against the file before
anything is made of them, and the arrays of its metadata, such as vocabularies, are passed over.
llama.cpp stores -exp(A_log) as `ssm_a`; it is read back as A_log.
"""

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from plkernel.common.files import check_regular, shown
from plkernel.decays.checkpoints import MOST_DIMENSIONS, TYPES, Checkpoint, Stored, widened
from plkernel.decays.families import Floats

GGUF = ".gguf"
MAGIC = b"GGUF"
HEADER = struct.Struct("<4sIQQ")
"""Magic, version, how many tensors there are, and how many entries of metadata."""
MOST_TENSORS = 2**17
"""Tensors of one file; published ones have some thousand."""
MOST_ENTRIES = 2**14
"""Entries of the metadata of one file; published ones have some fifty."""
MOST_STRINGS = 2**23
"""Strings in the arrays of one file; published vocabularies have up to a million."""
LENGTH = struct.Struct("<Q")
"""Before a string: how many bytes it has."""
ARRAY = struct.Struct("<IQ")
"""Before the values of an array: their type, and how many there are."""
TILED = ("qwen35", "qwen35moe")
"""Architectures whose heads stand in the order of ggml's broadcast, key heads innermost."""
BROKEN = (
    ValueError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    OSError,
    RuntimeError,
    struct.error,
)
"""Errors that the package raises for files that are cut off or lie about lengths."""


def open_gguf(path: Path) -> Checkpoint:
    """The checkpoint in one .gguf file; `Stored.raw` has the numbers of `ssm_a` as they are there.

    Raises ValueError that names the file.
    """
    check_regular(path)
    _check_header(path)
    reader_class = _reader()
    try:
        reader = reader_class(path)
        fields = {name: _plain(field) for name, field in reader.fields.items()}
    except BROKEN as error:
        raise ValueError(f"{path}: must be a whole {GGUF} file, got {shown(str(error))}") from error
    tensors = {one.name: one for one in reader.tensors}
    architecture = fields.get("general.architecture")
    config = {"model_type": architecture} if isinstance(architecture, str) else {}
    order = _order(fields, architecture)

    def size(name: str) -> int:
        return int(_checked(name, tensors[name]).n_elements)

    def read(name: str) -> Stored:
        return _stored(name, _checked(name, tensors[name]), order)

    def numbers() -> int:
        return sum(int(one.n_elements) for one in tensors.values())

    return Checkpoint(tuple(tensors), config, size, read, numbers)


def _check_header(path: Path) -> None:
    """ValueError unless the file is of a version that the package reads, and of a sane length."""
    with path.open("rb") as handle:
        head = handle.read(HEADER.size)
    if not head.startswith(MAGIC):
        raise ValueError(f"{path}: a {GGUF} file must begin with GGUF, got {shown(head)}")
    if len(head) < HEADER.size:
        raise ValueError(f"{path}: must be a whole {GGUF} file, got {len(head)} bytes")
    _, version, tensors, entries = HEADER.unpack(head)
    if version not in (2, 3):
        hint = "; files of big-endian machines are not read" if version % 2**16 == 0 else ""
        raise ValueError(f"{path}: version must be 2 or 3, got {version}{hint}")
    if tensors > MOST_TENSORS:
        raise ValueError(f"{path}: must have at most {MOST_TENSORS:,} tensors, got {tensors:,}")
    if entries > MOST_ENTRIES:
        raise ValueError(f"{path}: must have at most {MOST_ENTRIES:,} entries, got {entries:,}")


def _reader() -> Callable[[Path], Any]:
    """A reader of the package, which passes over arrays of metadata.

    Raises ValueError if the package is missing.
    """
    try:
        from gguf import GGUFReader, GGUFValueType
    except ImportError as error:
        raise ValueError(
            f"package gguf must be installed to read {GGUF} files, got none; pip install"
            ' "plkernel[gguf]"'
        ) from error
    base: Any = GGUFReader

    class Reader(base):  # type: ignore[misc]
        strings_left = MOST_STRINGS

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, Any, Any, Any]:
            kind = GGUFValueType(raw_type)
            if kind is not GGUFValueType.ARRAY:
                found: tuple[int, Any, Any, Any] = super()._get_field_parts(orig_offs, raw_type)
                return found
            start = int(orig_offs)
            inner, count = ARRAY.unpack_from(self.data, start)
            values = self._array_length(start + ARRAY.size, GGUFValueType(inner), count)
            length = ARRAY.size + values
            if start + length > len(self.data):
                raise ValueError(f"an array of {count:,} at byte {start:,}, beyond its end")
            return length, [], [], [kind]

        def _array_length(self, start: int, inner: Any, count: int) -> int:
            """Bytes of `count` values at `start`."""
            if inner is GGUFValueType.ARRAY:
                raise ValueError("arrays of arrays, which are not read")
            if inner is not GGUFValueType.STRING:
                return count * np.dtype(self.gguf_scalar_to_np[inner]).itemsize
            self.strings_left -= count
            if self.strings_left < 0:
                raise ValueError(f"{count:,} strings in one array, of at most {MOST_STRINGS:,}")
            place = start
            for _ in range(count):
                (length,) = LENGTH.unpack_from(self.data, place)
                place += LENGTH.size + length
            return place - start

        def _get_tensor_info_field(self, orig_offs: int) -> Any:
            field = super()._get_tensor_info_field(orig_offs)
            # Its parts: length of the name, name, number of dimensions, dimensions, ..
            (count,) = field.parts[2]
            dims = field.parts[3]
            if count > MOST_DIMENSIONS or len(dims) != count:
                raise ValueError(
                    f"{field.name} with {count} dimensions, of at most {MOST_DIMENSIONS}"
                )
            return field

    return Reader


def _plain(field: Any) -> Any:
    """A text or number of the metadata; None for an array."""
    return field.contents() if field.parts else None


def _checked(name: str, tensor: Any) -> Any:
    """The tensor; ValueError unless it holds floating-point numbers of a type that is read."""
    kind = tensor.tensor_type.name
    if kind not in TYPES or not tensor.n_elements:
        held = f"{kind} {tuple(tensor.shape.tolist()[::-1])}"
        raise ValueError(
            f"{name} must be a tensor of floating-point numbers ({', '.join(TYPES)}), got {held}"
        )
    return tensor


def _stored(name: str, tensor: Any, order: Callable[[Floats], Floats]) -> Stored:
    """Numbers of a tensor in the order of the original, `ssm_a` as A_log.

    A dimension of 1, which llama.cpp adds for its broadcast, is left out.
    """
    dtype, stored, _ = TYPES[tensor.tensor_type.name]
    shape = tuple(tensor.shape.tolist()[::-1])
    raw = np.ascontiguousarray(tensor.data).reshape(-1).view(stored)
    values = widened(raw, dtype).reshape(shape)
    last = ".".join(name.split(".")[2:])  # of blk.0.ssm_dt.bias what follows the layer
    is_a = last == "ssm_a"
    if is_a or last.startswith("time_mix_"):
        values = values.reshape([size for size in shape if size > 1] or [1])
    if is_a or last == "ssm_dt.bias":
        values = order(values)
    if not is_a:
        return Stored(values, dtype)
    with np.errstate(divide="ignore", invalid="ignore"):
        return Stored(np.log(-values), dtype, values)


def _order(fields: Mapping[str, Any], architecture: Any) -> Callable[[Floats], Floats]:
    """The permutation that brings heads (H,) back into the order of the original checkpoint.

    Of TILED ones (values per key, keys) become (keys, values per key).
    """
    keys = _count(fields, f"{architecture}.ssm.group_count")
    heads = _count(fields, f"{architecture}.ssm.time_step_rank")
    is_tiled = architecture in TILED and keys > 0 and heads % keys == 0

    def ordered(values: Floats) -> Floats:
        if not is_tiled or values.shape != (heads,):
            return values
        return values.reshape(heads // keys, keys).T.reshape(-1)

    return ordered


def _count(fields: Mapping[str, Any], name: str) -> int:
    """A whole number of the metadata; 0 if there is none of this name."""
    value = fields.get(name)
    return value if isinstance(value, int) else 0
