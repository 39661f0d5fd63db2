"""Folders that training leaves and that are not read: what they are, and what converts them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

MOST_FILES = 10_000
"""Entries of a folder that are looked at."""
OF_SEVERAL = re.compile(
    r"(?P<head>.*-)(?P<number>\d{1,6})-of-(?P<count>\d{1,6})(?P<suffix>\.\w+)", re.ASCII
)
"""Names of files that an index lists, as model-00001-of-00003.safetensors."""
READ_IN_PARTS = (".safetensors", ".bin")
"""Suffixes of such files that are read together, the preferred one first."""
MOST_NAMED = 3
"""Missing parts that an error names."""
RANKED = re.compile(
    r"(?:rank[_-]?|consolidated\.|layer_\d+-model_|tp[_-]?|shard[_-]?|part[_-]?)(?P<rank>\d{1,6})",
    re.ASCII | re.IGNORECASE,
)
"""Names of files that one process wrote, as mp_rank_00_model_states.pt."""
WEIGHTS = (".safetensors", ".st", ".pth", ".pt", ".bin", ".ckpt", ".pkl", ".tar", ".gguf")
SAVED = (b"PK", b"\x80", b"version https://git-lfs")
"""First bytes of a zip and of a pickle, one of which torch.save writes, and of a pointer to one."""
OTHERS = {
    ".npz": "MLX keeps arrays so: its load and save_safetensors convert them",
    ".msgpack": "Flax keeps weights so: from_pretrained(.., from_flax=True) reads them and"
    " save_pretrained writes them",
    ".h5": "TensorFlow keeps weights so: from_pretrained(.., from_tf=True) reads them and"
    " save_pretrained writes them",
    ".nemo": "it is an archive: unpack it with tar, and name model_weights.ckpt",
    ".onnx": "it holds a graph: name the checkpoint that it was exported from",
}
"""Formats of other software by suffix, and how to come to one that is read."""


def entries(folder: Path) -> list[str]:
    """Names in a folder, the first MOST_FILES."""
    return sorted(one.name for one in islice(folder.iterdir(), MOST_FILES))


def conversion(folder: Path) -> str:
    """Name a folder that other software writes in parts, and how to convert it; "" if none."""
    names = entries(folder)
    if _is_of_torch(names):
        return (
            "is a distributed checkpoint of torch (DCP), whose index is a pickle and is not read:"
            f" python -m torch.distributed.checkpoint.format_utils dcp_to_torch {folder} model.pt"
            " converts it, if you trust it; then name model.pt"
        )
    if _is_of_deepspeed(names):
        place = folder.parent if _has_states(names) else folder
        return (
            "is a checkpoint of DeepSpeed, in parts:"
            f" python {place / 'zero_to_fp32.py'} {place} out joins them; then name out. Without"
            " ZeRO, mp_rank_00_model_states.pt in it can be named"
        )
    if "manifest.ocdbt" in names or "_CHECKPOINT_METADATA" in names:
        return (
            "is a checkpoint of Orbax (JAX): restore it there, and write its arrays with"
            " safetensors.numpy.save_file; then name that file"
        )
    if _is_of_megatron(names):
        return (
            "is a checkpoint of Megatron, in parts: tools/checkpoint/convert.py of Megatron-LM"
            " (--loader mcore --saver mcore --target-tensor-parallel-size 1"
            " --target-pipeline-parallel-size 1) joins them; then name its model_optim_rng.pt"
        )
    return ""


def _is_of_torch(names: Sequence[str]) -> bool:
    return any(name.endswith(".distcp") or name == ".metadata" for name in names)


def _is_of_deepspeed(names: Sequence[str]) -> bool:
    has_steps = any(name.startswith("global_step") for name in names)
    return "zero_to_fp32.py" in names or has_steps or _has_states(names)


def _has_states(names: Sequence[str]) -> bool:
    """True for a folder of one step of DeepSpeed, which lies beside its script."""
    return any(name.endswith(("_model_states.pt", "_optim_states.pt")) for name in names)


def _is_of_megatron(names: Sequence[str]) -> bool:
    marks = ("latest_checkpointed_iteration.txt", "model_optim_rng.pt")
    has_parts = any(name.startswith(("mp_rank_", "iter_")) for name in names)
    return has_parts or any(mark in names for mark in marks)


@dataclass(frozen=True)
class Parts:
    """The parts of one model in a folder, by the names that save_pretrained gives them.

    head    begins all names
    total   how many there are in all, as names have it
    suffix  of all of them
    width   digits of a number in a name
    names   of those that are there, by number
    """

    head: str
    total: str
    suffix: str
    width: int
    names: dict[int, str] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many parts there are in all."""
        return int(self.total)

    @property
    def are_all(self) -> bool:
        """True if no part is missing."""
        return len(self.names) == self.count

    @property
    def missing(self) -> str:
        """Names of the parts that are not there, as far as an error lists them."""
        first = 0 if 0 in self.names else 1
        numbers = range(first, first + self.count)
        absent = [number for number in numbers if number not in self.names]
        listed = []
        for number in absent[:MOST_NAMED]:
            padded = str(number).zfill(self.width)
            listed.append(f"{self.head}{padded}-of-{self.total}{self.suffix}")
        more = len(absent) - len(listed)
        return ", ".join(listed) + (f" and {more:,} more" if more else "")


def _models_in(folder: Path) -> list[Parts]:
    """The models in a folder that are kept in parts, the preferred format first."""
    models: dict[tuple[str, str, str], Parts] = {}
    for name in entries(folder):
        match = OF_SEVERAL.fullmatch(name)
        if match and match["suffix"] in READ_IN_PARTS and _may_hold_weights(folder / name):
            kind = (match["head"], match["count"], match["suffix"])
            parts = models.setdefault(kind, Parts(*kind, len(match["number"])))
            parts.names[int(match["number"])] = name
    return sorted(models.values(), key=lambda one: READ_IN_PARTS.index(one.suffix))


def part_of(path: Path) -> str:
    """Name what a file is one part of, and what to give in its place; "" if it is whole."""
    numbered = OF_SEVERAL.fullmatch(path.name)
    if numbered and int(numbered["count"]) > 1:
        count = int(numbered["count"])
        if path.suffix == ".gguf":
            return (
                f"is one part of {count:,}, which name different tensors: llama-gguf-split --merge"
                f" {path} whole.gguf joins them; then name whole.gguf"
            )
        return f"is one part of {count:,}, which name different tensors; {_way_to_all(path)}"
    ranked = RANKED.search(path.name)
    if not ranked:
        return ""
    head = path.name[: ranked.start("rank")]
    tail = path.name[ranked.end("rank") :]
    alike = re.compile(rf"{re.escape(head)}\d+{re.escape(tail)}")
    count = sum(bool(alike.fullmatch(name)) for name in entries(path.parent))
    if count < 2:
        return ""
    joined = conversion(path.parent)
    hint = f"; {path.parent} {joined}" if joined else "; join them, and name the whole"
    return f"is one part of {count:,}, each with some of the numbers{hint}"


def other_format(path: Path) -> str:
    """The way to a format that is read, by the suffix of a file; "" where it is not known."""
    how = OTHERS.get(path.suffix.lower())
    return f"; {how}" if how else ""


def _way_to_all(path: Path) -> str:
    """The way to all parts of which `path` is one."""
    for parts in _models_in(path.parent):
        if path.name in parts.names.values():
            are_fewer = len(parts.names) < parts.count
            fetched = f"download {parts.missing} too, and " if are_fewer else ""
            return f"{fetched}name {path.parent}"
    return "join them, and name the whole"


def parts_in(folder: Path) -> list[str]:
    """The parts of the one model of which all are there, in order; none otherwise.

    Parts are known by the names that save_pretrained gives them: an upload may lack the index.
    """
    whole = _whole_models(folder)
    if len(whole) != 1:
        return []
    (parts,) = whole
    return [parts.names[number] for number in sorted(parts.names)]


def _whole_models(folder: Path) -> list[Parts]:
    """The models of which all parts are there, in the preferred format that any has."""
    whole = [parts for parts in _models_in(folder) if parts.are_all]
    return [parts for parts in whole if parts.suffix == whole[0].suffix]


def several_models(folder: Path) -> str:
    """Words for a folder with more than one whole model in parts; "" for any other."""
    whole = _whole_models(folder)
    if len(whole) < 2:
        return ""
    names = ", ".join(f"{parts.head}*" for parts in whole[:MOST_NAMED])
    return f"must hold the parts of one model, got {len(whole)} ({names}); move one elsewhere"


def lacking(folder: Path) -> str:
    """Words for a folder that holds some of the parts of a model, and no other weights; or ""."""
    held = {name for name in entries(folder) if _may_hold_weights(folder / name)}
    models = _models_in(folder)
    if held.difference(*(parts.names.values() for parts in models)):
        return ""
    for parts in models:
        if len(parts.names) < parts.count:
            return (
                f"must hold all {parts.count:,} parts of a model, got {len(parts.names):,};"
                f" download {parts.missing} too"
            )
    return ""


def held_files(folder: Path) -> list[str]:
    """Files with weights in a folder or one below it, which can be named."""
    names = entries(folder)
    here = [name for name in names if _may_hold_weights(folder / name)]
    if here:
        return here
    below = []
    for name in names:
        inner = folder / name
        if inner.is_dir() and not inner.is_symlink():
            below += [f"{name}/{one}" for one in entries(inner) if _may_hold_weights(inner / one)]
    return below


def _may_hold_weights(path: Path) -> bool:
    """True by the suffix; a file .bin, as texts are kept too, begins as torch.save has it."""
    if not path.name.endswith(WEIGHTS):
        return False
    if path.suffix != ".bin" or not path.is_file():
        return True
    with path.open("rb") as file:
        start = file.read(64)
    return not start or start.startswith(SAVED)
