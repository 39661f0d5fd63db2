"""Checkpoints: one safetensors file per run, replaced atomically, that holds weights, optimiser and progress.

The metadata of the file are three texts: `progress`, `config` (the configuration of the run, which says whose it is)
and `digest`, a CRC-32 over both and over the names, types, shapes and bytes of all tensors. It guards against damage
and mix-ups, not against forgery, and it is quick on every processor: 0.07 s for 10 million parameters with their
moments, where SHA-256 takes 0.10 s with the processor's own instructions for it, and BLAKE2b 0.24 s. Checkpoints of
earlier versions have `progress` alone.
"""

import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from plkernel.common import cli
from plkernel.common.files import atomic_save, load_json, save_json
from plkernel.common.imports import TRUST, is_code
from plkernel.config.condition import from_config
from plkernel.config.study import with_defaults
from plkernel.models.init import SCHEMES
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.rwkv7 import RWKV7, RWKV7Config
from plkernel.models.structure import Structure
from plkernel.results.layout import CHECKPOINT, CONFIG
from plkernel.training.build import AnyModel, Model, build, started
from plkernel.training.folder import Progress, differences

MOMENTS = ("exp_avg", "exp_avg_sq")
PROGRESS, CONFIGURATION, DIGEST = "progress", "config", "digest"
LARGEST = 2**63
T = TypeVar("T")


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    progress: Progress,
    config: Mapping[str, Any] | None = None,
) -> None:
    """Write weights, AdamW moments, progress and the run's config; the old file stays until the new one is whole."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        tensors[f"model.{name}"] = parameter.detach()
        state = optimizer.state.get(parameter, {}) if optimizer is not None else {}
        tensors.update({f"{moment}.{name}": state[moment] for moment in MOMENTS if moment in state})
    tensors.update({f"model.{name}": buffer for name, buffer in model.named_buffers()})
    tensors = _apart({name: tensor.cpu().contiguous() for name, tensor in tensors.items()})
    metadata = {PROGRESS: json.dumps(asdict(progress)), CONFIGURATION: json.dumps(config)}
    metadata[DIGEST] = digest_of(tensors, metadata)
    try:
        atomic_save(path, lambda temporary: save_file(tensors, temporary, metadata=metadata))
    except SafetensorError as error:
        raise OSError(f"checkpoint {path} cannot be written: {error}") from error


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, those that share memory with one before copied: a file of safetensors has each on its own."""
    seen: set[int] = set()
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return tensors


def load_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None, config: Any = None
) -> Progress:
    """Fill `model` (and the AdamW moments of `optimizer`) from `path`.

    Raises ValueError when the file is damaged, does not fit the model, or is that of a run with another `config`;
    nothing has been filled then.
    """
    try:
        tensors, metadata = _read(path)
        progress = _progress(metadata)
        if DIGEST in metadata and metadata[DIGEST] != digest_of(tensors, metadata):
            raise ValueError("its digest is not that of its content")
        _check_tensors(tensors, model, optimizer is not None and progress.step > 0)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        hint = "" if optimizer else ": name the folder of a run, or a checkpoint in one"
        raise ValueError(f"checkpoint {path} is damaged or of another model ({error}){hint}") from error
    if config is not None and CONFIGURATION in metadata:
        _check_config(path, json.loads(metadata[CONFIGURATION]), config)
    _fill(tensors, model, optimizer if progress.step > 0 else None, progress.step)
    return progress


def digest_of(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """CRC-32, in eight hexadecimal digits, of progress and config and of every tensor on the CPU, in order of names."""
    found = zlib.crc32(f"{metadata[PROGRESS]}\n{metadata[CONFIGURATION]}\n".encode())
    for name, tensor in sorted(tensors.items()):
        found = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode(), found)
        found = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, found)
    return f"{found:08x}"


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of the file, each on first use from the disk, and its metadata."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if set(metadata) not in ({PROGRESS}, {PROGRESS, CONFIGURATION, DIGEST}):
            raise ValueError(f"its metadata are {', '.join(sorted(metadata)) or 'missing'}: not written by plkernel")
        return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118


def _progress(metadata: Mapping[str, str]) -> Progress:
    """What the metadata say; ValueError for anything that no run has written."""
    try:
        values = json.loads(metadata[PROGRESS])
        progress = Progress(**{"metrics_crc": None, "timing_crc": None, **values})
    except RecursionError:
        raise ValueError("progress is nested too deeply") from None
    for field in fields(progress):
        value = getattr(progress, field.name)
        whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST
        number = field.type is float and isinstance(value, float) and math.isfinite(value)
        missing = value is None and field.name.endswith("_crc")
        if not (whole or number or missing):
            raise ValueError(f"progress.{field.name} is {value!r}")
    if progress.evaluated < 0:
        raise ValueError(f"progress.loss_count is {progress.loss_count} after {progress.step} steps")
    return progress


def _check_tensors(tensors: Mapping[str, Tensor], model: nn.Module, moments: bool) -> None:
    """ValueError unless names, types and shapes are those of the model and, where `moments`, of its optimiser."""
    parameters = dict(model.named_parameters())
    wanted = {f"model.{name}": tensor for name, tensor in (*parameters.items(), *model.named_buffers())}
    optional = {f"{moment}.{name}": tensor for moment in MOMENTS for name, tensor in parameters.items()}
    trained = [name for name, tensor in parameters.items() if moments and tensor.requires_grad]
    needed = {f"{moment}.{name}" for moment in MOMENTS for name in trained}
    missing = sorted((wanted.keys() | needed) - tensors.keys())
    unknown = sorted(tensors.keys() - (wanted | optional).keys())
    if missing or unknown:
        raise ValueError(f"{'no' if missing else 'unknown'} tensor {(missing or unknown)[0]}")
    for name, tensor in tensors.items():
        model_has = (wanted | optional)[name]
        if (tensor.dtype, tensor.shape) != (model_has.dtype, model_has.shape):
            raise ValueError(f"{name} is {_kind(tensor)}, the model's {_kind(model_has)}")


def _check_config(path: Path, of_the_checkpoint: Any, config: Any) -> None:
    different = differences(with_defaults(of_the_checkpoint), with_defaults(json.loads(json.dumps(config))))
    if different:
        raise ValueError(f"checkpoint {path} belongs to another run ({'; '.join(different[:4])})")


def _fill(tensors: Mapping[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer | None, step: int) -> None:
    """Copy the tensors into the model, and into the optimiser where one is given."""
    with torch.no_grad():
        for name, tensor in _named(model):
            tensor.copy_(tensors[f"model.{name}"])
    if optimizer is None:
        return
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:  # frozen: it has no moments
            continue
        moments = {moment: tensors[f"{moment}.{name}"].to(parameter, copy=True) for moment in MOMENTS}
        count = torch.tensor(float(step), device=_step_device(optimizer, parameter))
        optimizer.state[parameter] = {"step": count, **moments}


def _named(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def _step_device(optimizer: torch.optim.Optimizer, parameter: Tensor) -> torch.device:
    """The fused AdamW counts its steps on the parameter's device, the others on the CPU."""
    return parameter.device if optimizer.defaults.get("fused") else torch.device("cpu")


def open_model(path: Path) -> Model:
    """The trained model of a folder, or of a checkpoint file in it, on the CPU and set to evaluation.

    Raises ValueError when there is no model, it is damaged, or other people's code builds it.
    """
    checkpoint, config, content = _saved(path)
    if code := missing_code(content):
        raise ValueError(f"{config}: its model needs other people's code, {code}, which is not imported here")
    model = describe(config, content)
    load_checkpoint(checkpoint, model, config=content)
    return model.eval()


def open_any_model(path: Path, trusted: bool) -> AnyModel:
    """`open_model`, of other people's models too where the person has said that their code may run (`trusted`)."""
    checkpoint, config, content = _saved(path)
    code = missing_code(content)
    if not code:
        return open_model(path)
    if not trusted:
        raise ValueError(
            f"{config}: its model needs other people's code, {code}, which is not imported here: read it, then say "
            f"{TRUST}"
        )
    condition = described(config, lambda: from_config(content, trusted))
    model = started(condition, described(config, lambda: int(content["seed"])))
    load_checkpoint(checkpoint, model, config=content)
    return model.eval()


def _saved(path: Path) -> tuple[Path, Path, Any]:
    """The checkpoint file that `path` means, the config.json beside it and its content; ValueError for what is not."""
    cli.existing(path, "model")
    folder = path if path.is_dir() else path.parent
    checkpoint, config = folder / CHECKPOINT if path.is_dir() else path, folder / CONFIG
    if not checkpoint.is_file():
        raise ValueError(f"{checkpoint}: no such file; give the folder of a run that has saved a checkpoint")
    if not config.is_file():
        raise ValueError(f"{config} is missing: a checkpoint needs the configuration of its run beside it")
    return checkpoint, config, load_json(config)


def missing_code(config: Any) -> str | None:
    """What the content of a config.json names of other people's code without which its model is not built here."""
    model, arm = ((config.get(key) if isinstance(config, dict) else None) for key in ("model", "arm_options"))
    kind = model.get("kind") if isinstance(model, dict) else None
    scheme = arm.get("scheme") if isinstance(arm, dict) else None
    if isinstance(kind, str) and is_code(kind):
        return f"kind {kind!r}"
    return f"scheme {scheme!r}" if isinstance(scheme, str) and scheme not in SCHEMES else None


def describe(path: Path, config: Any) -> Model:
    """The model that `config`, the content of a config.json, describes, its parameters not yet set.

    Raises ValueError naming `path`.
    """

    def made() -> Model:
        if "rwkv" in config:
            return RWKV(RWKVConfig(**_sizes(config["rwkv"])))
        if "rwkv7" in config:
            return RWKV7(RWKV7Config(**_sizes(config["rwkv7"])))
        return build(from_config({**config, "train": None}))

    return described(path, made)


def described(path: Path, read: Callable[[], T]) -> T:
    """What `read` makes of the content of `path`; ValueError naming it where that does not describe a model."""
    try:
        return read()
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} does not describe a model ({error})") from error


def _sizes(config: dict[str, Any]) -> dict[str, Any]:
    """The fields of a configuration that `save_model` has written."""
    return {**config, "structure": Structure(**config.get("structure", {}))}


def check_free(folder: Path) -> None:
    """ValueError when the folder holds a model already."""
    taken = [name for name in (CONFIG, CHECKPOINT) if (folder / name).exists()]
    if taken:
        raise ValueError(f"{folder} holds a {taken[0]} already: choose another folder or remove it")


def save_model(folder: Path, model: RWKV, source: str) -> None:
    """Write `model` as a folder that `open_model` reads; ValueError when the folder holds a model already."""
    check_free(folder)
    kind = "rwkv7" if isinstance(model, RWKV7) else "rwkv"
    config = {"source": source, kind: {name: v for name, v in asdict(model.config).items() if name != "backend"}}
    save_checkpoint(folder / CHECKPOINT, model, None, Progress(), config)
    save_json(folder / CONFIG, config)
