"""Random numbers that depend on the seed and the parameter's name alone."""

import hashlib

import torch


def generator_for(seed: int, name: str) -> torch.Generator:
    """A CPU generator for one parameter: the same (seed, name) gives the same draws whatever else a model has."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
