"""Checkpoints: weights, optimiser and progress of a run in one safetensors file.

It is replaced atomically. The metadata of the file are three texts: `progress`, `config` (the
configuration of the run, which identifies it) and `digest`, a CRC-32 over both and over the names,
types, shapes and bytes of all tensors. It guards against damage and mix-ups, not against forgery.
"""

import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from plkernel.analysis.nodes import check_numbers
from plkernel.common import cli
from plkernel.common.cli import CONSENT, is_code
from plkernel.common.files import (
    CHECKPOINT,
    CONFIG,
    atomic,
    is_utf8,
    load_json,
    load_object,
    save_json,
    shown,
)
from plkernel.config.condition import from_config
from plkernel.decays.config_sizes import check_against, check_parameters
from plkernel.decays.gguf_files import GGUF
from plkernel.decays.tensors import PICKLED, Checkpoint, open_checkpoint, open_safetensors
from plkernel.models.layers import Structure
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.rwkv7 import RWKV7, RWKV7Config
from plkernel.models.state import State
from plkernel.training.build import AnyModel, Model, Unfilled, build, started
from plkernel.training.folder import RunProgress, other_run
from plkernel.training.foreign import is_expanded, kept_buffers

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Keys of the moments of a parameter in the state of AdamW."""
EARLIER = ("timing_bytes", "timing_crc")
"""Parts of the progress in checkpoints of earlier versions."""
AVERAGE = "average"
"""Key of the mean of a parameter's last values, beside its moments, where a run takes one."""
STATE = "state."
"""Prefix of the tensors of the state that a run carries from step to step, and of its position."""
OFFICIAL = ".pth"
"""Suffix of the official checkpoints that plkernel.load converts."""
SAVED = {"rwkv": (RWKV, RWKVConfig), "rwkv7": (RWKV7, RWKV7Config)}
"""Models that `save_model` has written, by the key of their sizes."""


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    progress: RunProgress,
    config: Mapping[str, Any] | None = None,
    state: State | None = None,
) -> None:
    """Write weights, AdamW moments, progress, the run's config and the state that it carries.

    Buffers that a model makes anew (persistent=False) are left out. The old file stays until the
    new one is whole.
    """
    named: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        named[f"model.{name}"] = parameter.detach()
        kept = optimizer.state.get(parameter, {}) if optimizer is not None else {}
        for moment in (*MOMENTS, AVERAGE):
            if moment in kept:
                named[f"{moment}.{name}"] = kept[moment]
    named |= {f"model.{name}": buffer for name, buffer in kept_buffers(model).items()}
    if state is not None:
        named |= {f"{STATE}{name}": values for name, values in state.tensors.items()}
        named[f"{STATE}position"] = torch.tensor(state.position)
    # No two of them share memory, which safetensors refuses.
    tensors = {name: tensor.cpu().clone().contiguous() for name, tensor in named.items()}
    metadata = {"progress": json.dumps(asdict(progress)), "config": json.dumps(config)}
    metadata["digest"] = digest_of(tensors, metadata)
    try:
        with atomic(path) as temporary:
            save_file(tensors, temporary, metadata=metadata)
    except SafetensorError as error:
        raise OSError(f"checkpoint {path} cannot be written: {error}") from error


def load_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None, config: Any = None
) -> RunProgress:
    """Fill `model` (and the AdamW moments of `optimizer`) from `path`.

    Raises ValueError, and fills nothing, when the file is damaged, does not fit the model, or
    belongs to a run with another `config`; with an optimizer, which trains on, also where weights
    or moments are NaN.
    """
    if path.is_dir():
        raise ValueError(f"checkpoint {path} must be a regular file, got a folder")
    try:
        tensors, metadata = _read(path)
        progress = _progress_of(metadata)
        held = json.loads(metadata["config"], parse_constant=_finite)
        _check_tensors(tensors, model, optimizer is not None and progress.step > 0)
    except (SafetensorError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        hint = "" if optimizer else "; name the folder of a run, or a checkpoint in one"
        raise ValueError(
            f"checkpoint {path} must be whole and of this model, got another ({error}){hint}"
        ) from error
    if config is not None:
        different = other_run(held, config)
        if different:
            raise ValueError(f"checkpoint {path} must be of this run, got another: {different}")
    if optimizer is not None:
        # Buffers may hold NaN, as a mask does.
        buffers = {f"model.{name}" for name, _ in model.named_buffers()}
        trained = {name: tensor for name, tensor in tensors.items() if name not in buffers}
        broken = first_nan(trained)
        if broken:
            raise ValueError(
                f"checkpoint {path} must hold numbers to go on from, got NaN in {broken}"
            )
    _fill_tensors(model, tensors)
    if optimizer is not None and progress.step > 0:
        _fill_moments(optimizer, model, tensors, progress.step)
    return progress


@torch.no_grad()
def _fill_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give parameters and buffers the values of a checkpoint.

    Earlier versions wrote buffers that a model makes anew too, which may have grown since.
    """
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        values = tensors.get(f"model.{name}")
        if values is None or _kind(values) != _kind(tensor):  # of a buffer that is made anew
            continue
        if is_expanded(tensor):
            tensor.data = values.to(tensor.device)
        else:
            tensor.copy_(values)


def first_nan(tensors: Mapping[str, Tensor]) -> str:
    """The first tensor that holds NaN with the number of them, as in 'w (2 of 4)'; '' if none."""
    for name, tensor in tensors.items():
        count = int(tensor.isnan().sum())
        if count:
            return f"{name} ({count:,} of {tensor.numel():,})"
    return ""


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a checkpoint but those of the carried state, and its three texts.

    Raises ValueError where the digest is missing, or is not that of the content.
    """
    with open_safetensors(path, "pt") as file:
        metadata = file.metadata() or {}
        if set(metadata) != {"progress", "config", "digest"}:
            raise ValueError("there is no digest, as other software and early versions write it")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if metadata["digest"] != digest_of(tensors, metadata):
        raise ValueError("the digest is not that of the content")
    kept = {name: x for name, x in tensors.items() if not name.startswith(STATE)}
    return kept, metadata


def _progress_of(metadata: Mapping[str, str]) -> RunProgress:
    """The point that a run had reached, without EARLIER.

    Raises TypeError for parts that are unknown, and ValueError for those that are no numbers, or
    numbers that no run reaches.
    """
    point = json.loads(metadata["progress"])
    progress = RunProgress(**{name: value for name, value in point.items() if name not in EARLIER})
    for name, value in asdict(progress).items():
        is_whole = isinstance(getattr(RunProgress, name), int)
        check_numbers(Integral if is_whole else Real, **{name: value})
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be a finite number from 0, got {shown(value)}")
    if progress.loss_count > progress.step:
        raise ValueError(
            f"loss_count must be at most the step, {progress.step:,}, got {progress.loss_count:,}"
        )
    return progress


def _finite(name: str) -> float:
    """NaN, Infinity or -Infinity of JSON as a number.

    Raises ValueError for NaN, which no option is, and which equals nothing, not even itself.
    """
    if name == "NaN":
        raise ValueError("numbers of its config must not be NaN")
    return float(name)


def _fill_moments(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor], step: int
) -> None:
    """Give `optimizer` the moments of every parameter that is trained, after `step` steps."""
    # Fused, AdamW counts its steps on the device of the parameter, otherwise on the CPU.
    fused = optimizer.defaults.get("fused")
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:  # a frozen one has no moments
            continue
        count = torch.tensor(float(step), device=parameter.device if fused else "cpu")
        state = {"step": count}
        for moment in (*MOMENTS, AVERAGE):
            key = f"{moment}.{name}"
            if key in tensors:
                state[moment] = tensors[key].to(parameter, copy=True)
        optimizer.state[parameter] = state


def load_state(path: Path, like: State) -> State:
    """The state that a run carried, from a checkpoint that `load_checkpoint` has checked.

    like: a state of the same model and batch. Raises ValueError where the checkpoint has no such
    state.
    """
    with open_safetensors(path, "pt") as file:
        names = [name for name in file.keys() if name.startswith(STATE)]  # noqa: SIM118
        found = {name.removeprefix(STATE): file.get_tensor(name) for name in names}
    position = found.pop("position", None)
    if position is None or _kinds(found) != _kinds(like.tensors):
        raise ValueError(f"checkpoint {path} must hold the state that the run carries, got another")
    is_count = position.ndim == 0 and not position.is_floating_point() and int(position) >= 0
    if not is_count:
        raise ValueError(
            f"checkpoint {path} must hold the position of its state, a whole number from 0, got"
            f" {shown(position.tolist())}"
        )
    tensors = {name: found[name].to(values.device) for name, values in like.tensors.items()}
    return State(like.model, tensors, int(position))


def _kinds(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Shape and type of every tensor."""
    return {name: (values.shape, values.dtype) for name, values in tensors.items()}


def digest_of(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """CRC-32 of progress, config and every tensor, in order of names: eight hexadecimal digits."""
    crc = zlib.crc32(f"{metadata['progress']}\n{metadata['config']}\n".encode())
    for name, tensor in sorted(tensors.items()):
        crc = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode(), crc)
        crc = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"


def _check_tensors(tensors: Mapping[str, Tensor], model: nn.Module, moments: bool) -> None:
    """Raise ValueError unless names, types and shapes of `tensors` are those of the model.

    moments: those of the optimiser must be there too.
    """
    parameters = dict(model.named_parameters())
    known: dict[str, Tensor] = {f"model.{name}": tensor for name, tensor in parameters.items()}
    known |= {f"model.{name}": tensor for name, tensor in kept_buffers(model).items()}
    needed = set(known)
    made_anew = {f"model.{name}" for name, _ in model.named_buffers()} - needed
    for name, parameter in parameters.items():
        own = {f"{moment}.{name}": parameter for moment in MOMENTS}
        known |= {**own, f"{AVERAGE}.{name}": parameter}
        if moments and parameter.requires_grad:
            needed |= own.keys()
    missing = needed - tensors.keys()
    if missing:
        raise ValueError(f"tensor {min(missing)} is missing")
    unknown = tensors.keys() - known.keys() - made_anew
    if unknown:
        raise ValueError(f"tensor {min(unknown)} is unknown")
    for name, tensor in tensors.items():
        if name in known and _kind(tensor) != _kind(known[name]):
            raise ValueError(f"{name} is {_kind(tensor)}, not {_kind(known[name])}")


def _kind(tensor: Tensor) -> str:
    """Type and shape of a tensor, in words."""
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def open_model(path: Path, trusted: bool | None = None) -> tuple[Any, dict[str, Any], int]:
    """The trained model of a folder, or of a checkpoint in it; its config and step.

    It is on the CPU and set to evaluation. trusted: the user has consented to other people's code;
    None where their models are of no use. Raises ValueError when there is no model, it is damaged,
    or code without consent builds it.
    """
    check_own(cli.existing(path, "model"))
    folder = path if path.is_dir() else path.parent
    checkpoint = folder / CHECKPOINT if path.is_dir() else path
    config = folder / CONFIG
    if not checkpoint.is_file():
        raise ValueError(
            f"checkpoint must be a file, got no {checkpoint}; give the folder of a run that has"
            " saved one"
        )
    if not config.is_file():
        raise ValueError(
            f"checkpoint {checkpoint} must have the configuration of its run beside it, got no"
            f" {config}"
        )
    content = load_object(config)
    code = _foreign_kind(content)
    if code is not None and not trusted:
        hint = CONSENT
        if trusted is None:
            hint = "give a model of plkernel's own"
        raise ValueError(
            f"{config}: model.kind must be one of plkernel's own, got {code!r}, which is other"
            f" people's code; {hint}"
        )
    try:
        held = open_checkpoint(str(checkpoint))
    except ValueError as error:
        raise ValueError(
            f"checkpoint {checkpoint} must be whole, got a damaged one ({error})"
        ) from error
    with apart():
        try:
            model = _described(content, code is not None, held)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{config} must describe a model, got none ({error})") from error
        step = load_checkpoint(checkpoint, model, config=content).step
    _check_read_numbers(content, config)
    return model.eval(), content, step


def _check_read_numbers(content: Mapping[str, Any], config: Path) -> None:
    """ValueError unless seed and context, which are read of a trained model, are numbers of a run.

    The rest of the training matters to a run that goes on alone.
    """
    read = {"seed": (content, 0), "context": (content.get("train") or {}, 1)}
    for name, (section, least) in read.items():
        value = section.get(name, least)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or value < least:
            where = name if section is content else f"train.{name}"
            raise ValueError(
                f"{config}: {where} must be a whole number from {least}, got {shown(value)}"
            )


@contextmanager
def apart() -> Iterator[None]:
    """Build a model as if nothing else ran in the process.

    It is in float32 and on the CPU whatever the defaults of torch are, and leaves these and the
    random numbers of the CPU, and of the GPUs if CUDA is in use, as they were. All of these belong
    to the process: a model that another thread builds or draws from meanwhile may get the type and
    the random numbers of this one.
    """
    dtype = torch.get_default_dtype()
    in_use = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
    torch.set_default_dtype(torch.float32)
    try:
        with torch.random.fork_rng(devices=range(in_use)), torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(dtype)


def check_own(path: Path) -> None:
    """ValueError for a model of other software, by its suffix or the config.json in its folder."""
    is_other_file = path.is_file() and path.suffix in (GGUF, *PICKLED)
    names_type = is_of_transformers(path)
    if not is_other_file and not names_type:
        return
    reason = f", whose {CONFIG} names a model_type" if names_type else ""
    hint = "plkernel.inspect reads the decays of others, which are not run here"
    if path.suffix == OFFICIAL:
        hint += "; plkernel.load converts an official checkpoint of an RWKV"
    raise ValueError(f"model must be one of plkernel's own, got {path}{reason}; {hint}")


def is_of_transformers(path: Path) -> bool:
    """True where the config.json in the folder, or beside the file, is one of transformers."""
    config = (path if path.is_dir() else path.parent) / CONFIG
    content = load_json(config) if config.is_file() else None
    return isinstance(content, dict) and "model_type" in content


def foreign_code(path: Path) -> str | None:
    """The code of other people that builds the model of a run, by the config.json in its folder.

    path: the folder, or the checkpoint in it. None where it is a model of plkernel's own, and where
    there is no such file.
    """
    config = (path if path.is_dir() else path.parent) / CONFIG
    return _foreign_kind(load_object(config)) if config.is_file() else None


def _foreign_kind(content: Mapping[str, Any]) -> str | None:
    """The kind of the model in the configuration of a run where that is other people's code."""
    section = content.get("model")
    kind = section.get("kind") if isinstance(section, dict) else None
    return kind if isinstance(kind, str) and is_code(kind) else None


def _described(content: dict[str, Any], foreign: bool, held: Checkpoint) -> AnyModel:
    """The model that a configuration describes, its parameters still to be loaded."""
    if any(name in content for name in SAVED):
        return _sized(lambda: _saved(content), content, held)
    if foreign:
        return started(from_config(content, trusted=True), int(content["seed"]))
    condition = from_config({**content, "train": None})
    return _sized(lambda: build(condition), content, held)


def _saved(content: Mapping[str, Any]) -> RWKV:
    """A model that `save_model` has written, its parameters still to be loaded."""
    name = next(one for one in SAVED if one in content)
    built, sizes = SAVED[name]
    values = content[name]
    options = values.get("structure", {})
    # Options that a structure no longer has are left out where they are off.
    kept = {one: value for one, value in options.items() if value or hasattr(Structure, one)}
    return built(sizes(**{**values, "structure": Structure(**kept)}))


def _sized(built: Callable[[], Model], content: Mapping[str, Any], held: Checkpoint) -> Model:
    """The model, once it is known to be no larger than its checkpoint."""
    for section in ("model", *SAVED):
        check_against(content.get(section) or {}, held.names, held.numbers())
    with torch.device("meta"), Unfilled():
        parameters = sum(one.numel() for one in built().parameters())
    check_parameters(parameters, held.numbers())
    return built()


def check_free(folder: Path, option: str = "folder") -> None:
    """Raise ValueError that names `option` where the folder holds a model, or can hold none."""
    if not is_utf8(str(folder)):  # safetensors writes to no other path
        raise ValueError(f"{option} must be a path in UTF-8, got {str(folder)!r}")
    for name in (CONFIG, CHECKPOINT):
        if (folder / name).exists():
            raise ValueError(
                f"{option} must hold no model, got {folder} with a {name}; choose another folder or"
                " remove it"
            )


def save_model(folder: Path, model: RWKV, source: str) -> None:
    """Write `model` as a folder that `open_model` reads.

    Raises ValueError as `check_free` does.
    """
    check_free(folder)
    kind = "rwkv7" if isinstance(model, RWKV7) else "rwkv"
    sizes = asdict(model.config)
    del sizes["backend"]
    config = {"source": source, kind: sizes}
    save_checkpoint(folder / CHECKPOINT, model, None, RunProgress(), config)
    save_json(folder / CONFIG, config)
