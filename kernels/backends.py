"""Which implementation of an operator runs: its reference, the one for CPUs, or the one for GPUs."""

import importlib
import importlib.util
import os
from typing import Any

import torch

BACKENDS = ("reference", "cpu", "gpu")
# Triton may be missing; looking for it does not import it.
_HAS_TRITON = importlib.util.find_spec("triton") is not None


def choose(operator: str, backend: str | None, device: torch.device) -> str:
    """The backend of `operator` to run on `device`; one that was not asked for by name is never the slow reference.

    On `meta`, where nothing is computed, it is that of a CPU. Raises ValueError for a backend that does not exist or
    does not work there.
    """
    usable = [name for name in BACKENDS if _works(name, device)]
    chosen = backend or {"cuda": "gpu", "meta": "cpu"}.get(device.type, device.type)
    if chosen not in usable:
        raise ValueError(f"{operator}: backend {chosen!r} does not work on {device.type}; here: {', '.join(usable)}")
    return chosen


def module(operator: str, backend: str) -> Any:
    """The module that implements it, imported on first use."""
    return importlib.import_module(f"plkernel.kernels.{operator}.{backend}")


def _works(backend: str, device: torch.device) -> bool:
    if backend == "gpu":
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        return _HAS_TRITON and (device.type == "cuda" or (interpreted and device.type == "cpu"))
    return backend == "reference" or device.type in ("cpu", "meta")
