"""What other people's models remember: as they say it, or as the names of their tensors tell it."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from plkernel.checkpoints.files import Checkpoint
from plkernel.checkpoints.layers import half_lives, kernel, read_layers


def half_lives_of(module: Any) -> list[Tensor]:
    """Half-lives of every block in bytes, (N,) float64 on the CPU each; none where nobody says them."""
    if hasattr(module, "half_lives"):
        return [_plain(values).reshape(-1) for values in module.half_lives()]
    return [torch.from_numpy(half_lives(rates).reshape(-1)) for rates in _named_rates(module)]


def kernels_of(module: Any, lags: Tensor) -> list[Tensor]:
    """What an input still weighs `lags` (T,) bytes later in every block, (T,) float64 each; none where unknown."""
    if hasattr(module, "kernels"):
        return [_plain(values) for values in module.kernels(lags)]
    if hasattr(module, "half_lives"):
        return []
    return [torch.from_numpy(kernel(rates, lags.double().numpy())) for rates in _named_rates(module)]


def _plain(values: Any) -> Tensor:
    return torch.as_tensor(values).detach().double().cpu()


def _named_rates(module: Any) -> list[np.ndarray]:
    """Rates per byte of the layers that are known by the names of their tensors; none unless all are positive."""
    state = module.state_dict()
    settings: Any = getattr(module, "config", None)
    config = settings.to_dict() if hasattr(settings, "to_dict") else {}
    checkpoint = Checkpoint(tuple(state), config, lambda name: state[name].detach().cpu())
    try:
        found = [layer.rates for layer in read_layers(checkpoint)]
    except ValueError:  # nothing that a reader knows
        return []
    return found if all(((rates > 0) & np.isfinite(rates)).all() for rates in found) else []
