"""Random numbers that depend on the seed and the parameter's name alone."""

import hashlib

import torch
from torch import Tensor


def generator_for(seed: int, name: str) -> torch.Generator:
    """A CPU generator for one parameter: the same (seed, name) gives the same draws whatever else a model has."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


@torch.no_grad()
def normal_(tensor: Tensor, std: float, *, generator: torch.Generator) -> Tensor:
    """Fill `tensor` in place from N(0, std**2); drawn on the CPU in float32, so every device gets the same values."""
    return tensor.copy_(torch.randn(tensor.shape, generator=generator) * std)
