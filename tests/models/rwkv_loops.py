"""Small Eagles, Finches and Geese with parameters that matter, and what their equations written as loops share."""

import math
from abc import ABC, abstractmethod

import numpy as np
import torch

from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.rwkv7 import RWKV7, RWKV7Config
from plkernel.models.structure import Structure

EAGLE_AND_FINCH = [
    RWKVConfig(5, 32, 3, 16),
    RWKVConfig(6, 32, 3, 16, mix_rank=4, decay_rank=3),
    RWKVConfig(5, 24, 1, 8, k_clamp=True),
    RWKVConfig(6, 24, 2, 24, mix_rank=2, decay_rank=5, k_clamp=True, feed_forward=20),
]
EAGLE_AND_FINCH_VARIANTS = [  # what the official models never are
    RWKVConfig(5, 32, 3, 16, structure=Structure(norm="rms")),
    RWKVConfig(6, 24, 2, 8, mix_rank=4, decay_rank=3, structure=Structure(norm="rms", tied=True)),
]
GOOSE = [
    RWKV7Config(32, 3, 16, 4, 3, 5, 6),
    RWKV7Config(24, 1, 8),
    RWKV7Config(24, 2, 24, 2, 2, 2, 2, feed_forward=20),
]
GOOSE_VARIANTS = [
    RWKV7Config(32, 3, 16, 4, 3, 5, 6, structure=Structure(norm="rms")),
    RWKV7Config(24, 2, 8, 2, 3, 2, 3, structure=Structure(norm="rms", tied=True)),
]


def build(config: RWKVConfig | RWKV7Config, seed: int = 0) -> RWKV:
    """A float64 model with every parameter random and large enough to matter."""
    generator = torch.Generator().manual_seed(seed)
    model = (RWKV7(config) if isinstance(config, RWKV7Config) else RWKV(config)).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.ndim == 1:
                parameter.copy_(0.3 * noise + (1.0 if name.endswith("weight") else 0.0))
            elif parameter.shape[:2] == (1, 1) or name.endswith(("time_decay", "time_faaaa", "r_k")):
                parameter.copy_(noise - 1.5 if name.endswith(("time_decay", "w0")) else 0.5 + 0.5 * noise)
            else:
                large = name == "emb.weight" and not config.structure.tied
                parameter.copy_(noise if large else noise / math.sqrt(parameter.shape[-1]))
    return model


def some_bytes(batch: int, time: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 256, (batch, time), generator=torch.Generator().manual_seed(seed))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    return (x - x.mean()) / math.sqrt(x.var() + eps) * weight + bias


class Loops(ABC):
    """Published equations in numpy, one byte and one head at a time; `mistake` builds in one error by name."""

    def __init__(self, model: RWKV, mistake: str = "") -> None:
        self.model, self.config, self.mistake = model, model.config, mistake
        self.p = {name: value.detach().double().numpy() for name, value in model.state_dict().items()}

    def logits(self, text: list[int]) -> np.ndarray:
        p = self.p
        xs = [p["emb.weight"][byte] for byte in text]
        if self.mistake != "no ln0":
            xs = [self.ln(x, "blocks.0.ln0") for x in xs]
        for block in range(self.config.layers):
            name = f"blocks.{block}"
            branch = self.time_mixing([self.ln(x, f"{name}.ln1") for x in xs], f"{name}.att.")
            xs = [x + y for x, y in zip(xs, branch, strict=True)]
            branch = self.channel_mixing([self.ln(x, f"{name}.ln2") for x in xs], f"{name}.ffn.")
            xs = [x + y for x, y in zip(xs, branch, strict=True)]
        return np.array([p["head.weight"] @ self.ln(x, "ln_out") for x in xs])

    def ln(self, x: np.ndarray, name: str) -> np.ndarray:
        if self.config.structure.norm == "rms":
            return x / math.sqrt((x**2).mean() + 1e-5) * self.p[f"{name}.weight"]
        return norm(x, self.p[f"{name}.weight"], self.p[f"{name}.bias"])

    def before(self, xs: list[np.ndarray]) -> list[np.ndarray]:
        if self.mistake == "shift looks ahead":
            return [*xs[1:], 0 * xs[0]]
        return [xs[0] if self.mistake == "first byte mixed with itself" else 0 * xs[0], *xs[:-1]]

    @abstractmethod
    def time_mixing(self, xs: list[np.ndarray], name: str) -> list[np.ndarray]: ...

    @abstractmethod
    def channel_mixing(self, xs: list[np.ndarray], name: str) -> list[np.ndarray]: ...

    def difference(self, time: int = 17) -> float:
        """Largest difference to the logits of the model in float64."""
        inputs = some_bytes(1, time)
        with torch.no_grad():
            found = self.model(inputs)[0].numpy()
        return float(np.abs(found - self.logits(inputs[0].tolist())).max())
