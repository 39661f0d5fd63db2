"""Files of torch that may come from anybody: their tensors, and nothing in them is executed.

torch reads them with `weights_only`. Objects of other classes, as arguments and random states
beside the weights, become `Inert`: their classes are neither imported nor called. What a small file
could blow up in memory is refused before it is read.
"""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile, is_zipfile

from plkernel.common.files import check_regular, shown
from plkernel.decays.own import unwrapped

MOST_INFLATED = 2**26
"""Bytes that the parts of a file may have beyond its own size: torch does not compress them."""
MOST_PICKLED = 2**26
"""Bytes of the pickle in a file, which holds names and shapes, not numbers."""
HUGE = re.compile(rb"(builtins|__builtin__)\s*bytearray|\x8c\x09bytearray")
"""A call that makes as many bytes as it likes."""
NESTED = ("state_dict", "model_state_dict", "model", "module", "model_ema", "ema", "params")
"""Names of the weights among what training code saves, in the order in which they are taken."""
CHUNK = re.compile(r"model\d+")
"""Names of the parts of a model in a pipeline of Megatron."""
NOT_WEIGHTS = re.compile(r".*(optim|rng|scheduler|scaler|loop|callback)", re.IGNORECASE)
"""Names of what training code saves beside the weights."""
DEEPEST = 4
"""Dictionaries within each other in which weights are looked for."""
BLOCK = 2**24
OVERLAP = 64
"""Bytes of a file that are searched at once, and of the block before them: a match has fewer."""
ZIPPED = b"PK\x03\x04"
PICKLED = b"\x80"
"""First bytes of what torch.save writes, now and before torch 1.6."""
SCRIPTED = "constants.pkl"
"""Name of a part that torch.jit.save writes, and torch.save does not."""
ARRAY = "numpy array"
NUMBER = "numpy number"
OF_NUMPY = {
    f"numpy.{core}.multiarray.{call}": kind
    for core in ("core", "_core")
    for call, kind in (("_reconstruct", ARRAY), ("scalar", NUMBER))
}
"""Calls in a pickle that make something of numpy, by the names that its versions have for them."""
SHARDS = re.compile(rb"torch\.distributed\._?tensor[\w.]{0,40}\s{1,8}DTensor")
"""The class of tensors in shards in a pickle, as the state_dict of a model in FSDP holds them."""
WHOLE = (
    "tensors in shards (DTensor), of which it has those of one process; call"
    " torch.distributed.checkpoint.state_dict.get_model_state_dict(model,"
    " options=StateDictOptions(full_state_dict=True)) in all processes, and save what it returns"
    " in the first"
)
"""Words for such a file, and how to save a whole one."""
NEEDED = "must be a .pth file that holds tensors only"


class Inert:
    """Stands for an object of a class that is not imported: it keeps nothing and does nothing."""

    def __new__(cls, *_: Any, **__: Any) -> "Inert":
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


def read_pickle(path: Path) -> dict[str, Any]:
    """Read the dictionary of tensors in a .pth file, also where it is one among other values.

    Raises ValueError for any other content. Nothing in it is executed.
    """
    weights, _, _ = read_parts(path)
    return weights


def read_parts(path: Path) -> tuple[dict[str, Any], str, tuple[str, ...]]:
    """`read_pickle`, the name of the dictionary if it is one among others, and of its copies.

    Copies are other dictionaries with tensors of the same names, as an average of the model.
    """
    check_regular(path)
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"{path}: torch must be installed to read this format, got none; pip install torch"
        ) from error
    _check_memory(path)
    try:
        content = _loaded(path)
    except Exception as error:  # a damaged or hostile pickle can raise anything
        raise ValueError(f"{path}: {NEEDED}, got {_got_instead(path, error)}") from error
    part, weights = _weights(content)
    strange = _no_weights(weights)
    if not strange and any(hasattr(tensor, "to_local") for tensor in weights.values()):
        raise ValueError(f"{path}: must hold whole tensors, got {WHOLE}")
    if strange:
        raise ValueError(f"{path}: must hold a flat dictionary of named tensors, got {strange}")
    _check_expanded(path, weights)
    return weights, part, _copies(content, part, weights)


def _got_instead(path: Path, error: Exception) -> str:
    """Words for a file that torch does not read, and what would help."""
    with path.open("rb") as file:
        start = file.read(len(ZIPPED))
    if start == ZIPPED and not is_zipfile(path):
        return "one that is cut off; copy or download it again"
    if start != ZIPPED and not start.startswith(PICKLED):
        return "one that torch.save has not written; nothing else is read"
    if start == ZIPPED and _is_scripted(path):
        return (
            "a TorchScript archive, which holds code and is not run;"
            f" torch.save(torch.jit.load({str(path)!r}).state_dict(), 'model.pt') keeps its"
            " tensors, if you trust it; then name model.pt"
        )
    if start == ZIPPED and _holds_shards(path):
        return WHOLE
    # torch's own text advises to switch the safety off.
    return f"{type(error).__name__}; nothing else is read"


def _is_scripted(path: Path) -> bool:
    """True for a zip file with the parts of a TorchScript archive."""
    with ZipFile(path) as file:
        return any(name.rpartition("/")[2] == SCRIPTED for name in file.namelist())


def _holds_shards(path: Path) -> bool:
    """True for a zip file whose pickle names the class of tensors in shards."""
    with ZipFile(path) as file:
        pickles = [name for name in file.namelist() if name.endswith(".pkl")]
        return any(SHARDS.search(file.read(name)) for name in pickles)


def _no_weights(content: Any) -> str:
    """Words for what is no dictionary with names as keys, and what to save in its place; or ""."""
    kind = type(content).__name__
    if isinstance(content, Inert) and kind in OF_NUMPY.values():
        return f"a {kind}; save a dictionary of tensors"
    if isinstance(content, Inert):
        return f"an object of class {kind}, which is not loaded; save its state_dict()"
    if not isinstance(content, dict):
        return f"a {kind}; save a state_dict()"
    for key in content:
        if not isinstance(key, str):
            return f"one with the key {shown(key)}; names must be texts"
    array = _first_array(content)
    if array and not any(_is_tensor(value) for value in content.values()):
        return (
            f"one with numpy arrays, as {shown(array)}, and no named tensor; torch.from_numpy makes"
            " tensors of arrays"
        )
    return ""


def _first_array(content: Mapping[Any, Any], depth: int = 0) -> str:
    """Name of a numpy array among the weights of a dictionary, or of one within it; "" if none."""
    for name, value in content.items():
        if isinstance(name, str) and NOT_WEIGHTS.match(name):
            continue
        if type(value).__name__ == ARRAY:
            return str(name)
        if isinstance(value, Mapping) and depth < DEEPEST:
            found = _first_array(value, depth + 1)
            if found:
                return found
    return ""


def _check_expanded(path: Path, weights: Mapping[str, Any]) -> None:
    """Raise ValueError for tensors of much more numbers than the file holds, as expand makes."""
    more = 0
    for tensor in weights.values():
        if _is_tensor(tensor) and str(tensor.layout) == "torch.strided":
            held = tensor.untyped_storage().nbytes()
            more += max(0, tensor.numel() * tensor.element_size() - held)
    if more > MOST_INFLATED:
        raise ValueError(
            f"{path}: its tensors must take at most {MOST_INFLATED:,} bytes more than it holds, got"
            f" {more:,}; save them with .contiguous()"
        )


def _loaded(path: Path) -> Any:
    """Load what torch reads with weights only; other objects of a zip file as `Inert`."""
    import torch
    from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

    zipped = is_zipfile(path)
    stubs: list[Any] = []
    if zipped:
        names = get_unsafe_globals_in_checkpoint(path)
        stubs = [(type(_kind_of(name), (Inert,), {}), name) for name in names]
    with (
        warnings.catch_warnings(action="ignore"),  # of another protocol, which the error names
        safe_globals(stubs),
    ):
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)


def _kind_of(name: str) -> str:
    """The last part of the name of a class, or what numpy makes by a call of that name."""
    return OF_NUMPY.get(name, name.rpartition(".")[2])


def _check_memory(path: Path) -> None:
    """Raise ValueError for a file that unpacks to much more than its size."""
    if not is_zipfile(path):
        _check_calls(path, _blocks(path))
        return
    size = path.stat().st_size
    try:
        with ZipFile(path) as file:
            parts = file.infolist()
            total = sum(part.file_size for part in parts)
            if total > size + MOST_INFLATED:
                raise ValueError(
                    f"{path}: must unpack to at most {MOST_INFLATED:,} bytes more than its"
                    f" {size:,}, got {total:,}; save it with torch.save, which does not compress"
                )
            for part in parts:
                if not part.filename.endswith(".pkl"):
                    continue
                if part.file_size > MOST_PICKLED:
                    raise ValueError(
                        f"{path}: its pickle must have at most {MOST_PICKLED:,} bytes, got"
                        f" {part.file_size:,}"
                    )
                _check_calls(path, [file.read(part)])
    except (BadZipFile, OSError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{path}: {NEEDED}, got {error}; nothing else is read") from error


def _check_calls(path: Path, blocks: Iterable[bytes]) -> None:
    """ValueError for a call in a pickle that takes any amount of memory."""
    if any(HUGE.search(block) for block in blocks):
        raise ValueError(
            f"{path}: {NEEDED}, got a call of bytearray, which can take any amount of memory;"
            " nothing else is read"
        )


def _blocks(path: Path) -> Iterator[bytes]:
    """The file in blocks that overlap by more than the longest match."""
    with path.open("rb") as handle:
        tail = b""
        while block := handle.read(BLOCK):
            yield tail + block
            tail = block[-OVERLAP:]


def _weights(content: Any) -> tuple[str, Any]:
    """Name and content of the one dictionary of tensors among what training code has saved.

    Without a name, several of them together, or the content itself.
    """
    if not isinstance(content, dict):
        return "", content
    for name in NESTED:
        found = _named(content.get(name))
        if found:
            return name, found
    if any(_is_tensor(value) for value in content.values()):
        return "", content
    chunks = {name: content[name] for name in content if CHUNK.fullmatch(str(name))}
    others = {
        name: value
        for name, value in content.items()
        if isinstance(name, str) and not NOT_WEIGHTS.match(name)
    }
    return "", _named(chunks) or _named(others) or content


def _copies(content: Any, part: str, weights: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the other dictionaries of a file with tensors of the names that `part` has."""
    if not part:
        return ()
    known = {unwrapped(name) for name in weights}
    copies = []
    for name, value in content.items():
        if not isinstance(name, str) or name == part or NOT_WEIGHTS.match(name):
            continue
        if any(unwrapped(one) in known for one in _named(value)):
            copies.append(name)
    return tuple(copies)


def _named(value: Any) -> dict[str, Any]:
    """`_flat`, or nothing where there is no tensor."""
    found = _flat(value)
    return found if any(_is_tensor(one) for one in found.values()) else {}


def _flat(value: Any, depth: int = 0) -> dict[str, Any]:
    """The tensors of nested dictionaries, by names joined with dots.

    Arrays of numpy among them too, which nothing reads: who asks for one is told.
    """
    found: dict[str, Any] = {}
    if not isinstance(value, Mapping) or depth > DEEPEST:
        return found
    for name, inner in value.items():
        if not isinstance(name, str):
            continue
        if _is_tensor(inner) or type(inner).__name__ == ARRAY:
            found[name] = inner
        else:
            more = _flat(inner, depth + 1)
            found |= {f"{name}.{below}": tensor for below, tensor in more.items()}
    return found


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)
