"""Checkpoints: one safetensors file per run, replaced atomically, that holds weights, optimiser and progress.

The metadata of the file are three texts: `progress`, `config` (the configuration of the run, which says whose it is)
and `digest`, a CRC-32 over both and over the names, types, shapes and bytes of all tensors. It guards against damage
and mix-ups, not against forgery, and it is quick: 0.07 s for 10 million parameters with their moments, where SHA-256
takes 0.10 s. Checkpoints of earlier versions have `progress` alone.
"""

import json
import math
import zlib
from collections.abc import Callable, Mapping
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
from plkernel.common.layout import CHECKPOINT, CONFIG
from plkernel.config.condition import from_config
from plkernel.models.init import SCHEMES
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.rwkv7 import RWKV7, RWKV7Config
from plkernel.models.structure import Structure
from plkernel.training.build import AnyModel, Model, build, started
from plkernel.training.folder import Progress, other_run

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
    seen: set[int] = set()
    for name, tensor in tensors.items():  # a file of safetensors has each tensor on its own
        tensor = tensor.cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    metadata = {PROGRESS: json.dumps(asdict(progress)), CONFIGURATION: json.dumps(config)}
    metadata[DIGEST] = digest_of(tensors, metadata)
    try:
        atomic_save(path, lambda temporary: save_file(tensors, temporary, metadata=metadata))
    except SafetensorError as error:
        raise OSError(f"checkpoint {path} cannot be written: {error}") from error


def load_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None, config: Any = None
) -> Progress:
    """Fill `model` (and the AdamW moments of `optimizer`) from `path`.

    Raises ValueError, and fills nothing, when the file is damaged, does not fit the model, or is that of a run with
    another `config`.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if set(metadata) not in ({PROGRESS}, {PROGRESS, CONFIGURATION, DIGEST}):
                raise ValueError(
                    f"its metadata are {', '.join(sorted(metadata)) or 'missing'}: not written by plkernel"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        progress = _progress(metadata[PROGRESS])
        if DIGEST in metadata and metadata[DIGEST] != digest_of(tensors, metadata):
            raise ValueError("its digest is not that of its content")
        _check_tensors(tensors, model, optimizer is not None and progress.step > 0)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        hint = "" if optimizer else ": name the folder of a run, or a checkpoint in one"
        raise ValueError(f"checkpoint {path} is damaged or of another model ({error}){hint}") from error
    its_own = metadata.get(CONFIGURATION)  # not in those of earlier versions
    if config is not None and its_own is not None and (different := other_run(json.loads(its_own), config)):
        raise ValueError(f"checkpoint {path} belongs to another run ({different})")
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            tensor.copy_(tensors[f"model.{name}"])
    if optimizer is not None and progress.step > 0:
        fused = optimizer.defaults.get("fused")  # which counts its steps on the parameter's device, others on the CPU
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:  # a frozen one has no moments
                moments = {moment: tensors[f"{moment}.{name}"].to(parameter, copy=True) for moment in MOMENTS}
                count = torch.tensor(float(progress.step), device=parameter.device if fused else "cpu")
                optimizer.state[parameter] = {"step": count, **moments}
    return progress


def digest_of(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """CRC-32, in eight hexadecimal digits, of progress and config and of every tensor on the CPU, in order of names."""
    crc = zlib.crc32(f"{metadata[PROGRESS]}\n{metadata[CONFIGURATION]}\n".encode())
    for name, tensor in sorted(tensors.items()):
        crc = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode(), crc)
        crc = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"


def _progress(text: str) -> Progress:
    """The progress in the metadata; ValueError for one that no run has written."""
    try:
        progress = Progress(**{"metrics_crc": None, "timing_crc": None, **json.loads(text)})
    except RecursionError:
        raise ValueError("progress is nested too deeply") from None
    for field in fields(progress):
        value = getattr(progress, field.name)
        whole = type(value) is int and 0 <= value < LARGEST
        number = field.type is float and type(value) is float and math.isfinite(value)
        if not (whole or number or (value is None and field.name.endswith("_crc"))):
            raise ValueError(f"progress.{field.name} is {value!r}")
    if progress.evaluated < 0:
        raise ValueError(f"progress.loss_count is {progress.loss_count} after {progress.step} steps")
    return progress


def _check_tensors(tensors: Mapping[str, Tensor], model: nn.Module, moments: bool) -> None:
    """ValueError unless names, types and shapes are those of the model and, where `moments`, of its optimiser."""

    def kind(tensor: Tensor) -> str:
        return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"

    parameters = dict(model.named_parameters())
    wanted = {f"model.{name}": tensor for name, tensor in (*parameters.items(), *model.named_buffers())}
    optional = {f"{moment}.{name}": tensor for moment in MOMENTS for name, tensor in parameters.items()}
    needed = {name for name, tensor in optional.items() if moments and tensor.requires_grad}
    missing = sorted((wanted.keys() | needed) - tensors.keys())
    unknown = sorted(tensors.keys() - (wanted | optional).keys())
    if missing or unknown:
        raise ValueError(f"{'no' if missing else 'unknown'} tensor {(missing or unknown)[0]}")
    for name, tensor in tensors.items():
        if kind(tensor) != kind(expected := (wanted | optional)[name]):
            raise ValueError(f"{name} is {kind(tensor)}, the model's {kind(expected)}")


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
    """`open_model`, of other people's models too where the user has said that their code may run (`trusted`)."""
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
    """The checkpoint file that `path` means, the config.json beside it and its content."""
    cli.existing(path, "model")
    folder = path if path.is_dir() else path.parent
    checkpoint, config = folder / CHECKPOINT if path.is_dir() else path, folder / CONFIG
    if not checkpoint.is_file():
        raise ValueError(f"{checkpoint}: no such file; give the folder of a run that has saved a checkpoint")
    if not config.is_file():
        raise ValueError(f"{config} is missing: a checkpoint needs the configuration of its run beside it")
    return checkpoint, config, load_json(config)


def missing_code(config: Any) -> str | None:
    """The code of other people that the content of a config.json names, without which its model is not built."""
    model, arm = ((config.get(key) if isinstance(config, dict) else None) for key in ("model", "arm_options"))
    kind = model.get("kind") if isinstance(model, dict) else None
    scheme = arm.get("scheme") if isinstance(arm, dict) else None
    if isinstance(kind, str) and is_code(kind):
        return f"kind {kind!r}"
    return f"scheme {scheme!r}" if isinstance(scheme, str) and scheme not in SCHEMES else None


def describe(path: Path, config: Any) -> Model:
    """The model that `config`, the content of `path`, describes, its parameters not yet set; ValueError for none."""

    def made() -> Model:
        for name, kind, sizes in (("rwkv", RWKV, RWKVConfig), ("rwkv7", RWKV7, RWKV7Config)):
            if name in config:  # as `save_model` has written it
                values = config[name]
                return kind(sizes(**{**values, "structure": Structure(**values.get("structure", {}))}))  # type: ignore[arg-type]
        return build(from_config({**config, "train": None}))

    return described(path, made)


def described(path: Path, read: Callable[[], T]) -> T:
    """The value of `read`, which reads the content of `path`; ValueError naming it where that describes no model."""
    try:
        return read()
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} does not describe a model ({error})") from error


def check_free(folder: Path) -> None:
    """Raise ValueError when the folder holds a model already."""
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
