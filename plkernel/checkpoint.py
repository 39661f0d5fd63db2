"""Checkpoints: one safetensors file per run, replaced atomically, that holds weights, optimiser and progress."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from plkernel.storage import atomic_save

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Progress:
    """Where a run stands after `step` steps.

    loss_sum and loss_count: nats and steps since the last evaluation; seconds: training time so far; metrics_bytes
    and timing_bytes: lengths of the two row files, which a resumed run cuts back to.
    """

    step: int = 0
    loss_sum: float = 0.0
    loss_count: int = 0
    seconds: float = 0.0
    metrics_bytes: int = 0
    timing_bytes: int = 0


def save_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None, progress: Progress) -> None:
    """Write weights, AdamW moments and progress to `path`; the old file stays until the new one is whole."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        tensors[f"model.{name}"] = parameter.detach().contiguous()
        state = optimizer.state.get(parameter, {}) if optimizer is not None else {}
        tensors.update({f"{moment}.{name}": state[moment].contiguous() for moment in MOMENTS if moment in state})
    tensors.update({f"model.{name}": buffer.contiguous() for name, buffer in model.named_buffers()})
    metadata = {"progress": json.dumps(asdict(progress))}
    try:
        atomic_save(path, lambda temporary: save_file(tensors, temporary, metadata=metadata))
    except SafetensorError as error:
        raise OSError(f"checkpoint {path} cannot be written: {error}") from error


def load_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Progress:
    """Fill `model` (and the AdamW moments of `optimizer`) from `path`; ValueError when it is damaged or another's."""
    try:
        with safe_open(path, framework="pt") as file:
            progress = Progress(**json.loads(file.metadata()["progress"]))
            for name, buffer in model.named_buffers():
                buffer.copy_(file.get_tensor(f"model.{name}"))
            for name, parameter in model.named_parameters():
                with torch.no_grad():
                    parameter.copy_(file.get_tensor(f"model.{name}"))
                if optimizer is not None and progress.step > 0:
                    moments = {moment: file.get_tensor(f"{moment}.{name}").to(parameter) for moment in MOMENTS}
                    optimizer.state[parameter] = {
                        "step": torch.tensor(float(progress.step), device=_step_device(optimizer, parameter)),
                        **moments,
                    }
    except (SafetensorError, KeyError, TypeError, RuntimeError) as error:
        raise ValueError(
            f"checkpoint {path} is damaged or of another model ({error}): remove it to start over"
        ) from error
    return progress


def _step_device(optimizer: torch.optim.Optimizer, parameter: Tensor) -> torch.device:
    """The fused AdamW counts its steps on the parameter's device, the others on the CPU."""
    return parameter.device if optimizer.defaults.get("fused") else torch.device("cpu")
