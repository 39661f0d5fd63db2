"""Inputs of WKV-7 for its tests: as the model makes them, with decays of every strength side by side."""

import math

import rounding
import torch
from torch import Tensor
from torch.nn.functional import normalize

from plkernel.kernels.wkv7 import wkv7

LOG_DECAYS = (0.0, -1e-7, -math.exp(-8), -0.05, -math.exp(-0.5), -3.0, -20.0, -50.0, -1e4, -math.inf)
INPUTS = ("r", "log_decay", "k", "v", "a", "b", "state")
RESULTS = ("out", "last", *(f"grad_{name}" for name in INPUTS))
Shape = tuple[int, int, int, int, int]  # batch, time, heads, key size, value size


def problem(shape: Shape, dtype: torch.dtype = torch.float32, log_decay: float | None = None) -> dict[str, Tensor]:
    """Normalised kappa and rates from 0 to 1, else normal; one `log_decay`, or all in turn; incoming gradients."""
    random = torch.Generator().manual_seed(1)
    batch, time, heads, size, values = shape
    keys = (batch, time, heads, size)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    given = {name: torch.randn(keys, generator=random).to(dtype) for name in ("r", "k")}
    given |= {name: torch.randn(*keys[:3], values, generator=random).to(dtype) for name in ("v", "grad_out")}
    given |= {
        name: torch.randn(batch, heads, values, size, generator=random).to(wide) for name in ("state", "grad_last")
    }
    kappa, rate = normalize(torch.randn(keys, generator=random), dim=-1), torch.rand(keys, generator=random)
    decays = torch.tensor(LOG_DECAYS if log_decay is None else [log_decay], dtype=wide)
    drawn = decays[torch.randint(len(decays), keys, generator=random)]
    return given | {"a": (-kappa).to(dtype), "b": (kappa * rate).to(dtype), "log_decay": drawn}


def run(backend: str, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Results and gradients through the public function."""
    leaves = [given[name].detach().clone().requires_grad_() for name in INPUTS]
    results = wkv7(*leaves, backend=backend)
    incoming = (given["grad_out"], given["grad_last"])
    grads = torch.autograd.grad(results, leaves, incoming, allow_unused=True, materialize_grads=True)
    return dict(zip(RESULTS, (x.detach() for x in (*results, *grads)), strict=True))


def excesses(found: dict[str, Tensor], given: dict[str, Tensor], chunk: int) -> dict[str, float]:
    """The largest error of every result as a part of what rounding allows a kernel with chunks of so many steps."""
    exact = run("reference", {name: x.double() for name, x in given.items()})
    sizes = rounding.wkv7_sizes(given, chunk)
    n = rounding.wkv7_roundings(chunk, given["k"].shape[-1], given["v"].shape[-1])
    arithmetic = torch.float64 if given["r"].dtype == torch.float64 else torch.float32
    return {name: rounding.excess(x, exact[name], sizes[name], n, arithmetic) for name, x in found.items()}
