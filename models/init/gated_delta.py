"""Initialisations of the decays of gated delta nets: those that people use, and log-spaced ones.

Each changes `A_log` and `dt_bias` of every layer of a `plkernel.models.gated_delta.GatedDelta` in
place. Specs name them as `plkernel.models.init.gated_delta:log_spaced_`.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from plkernel.analysis.nodes import LONGEST, SHORTEST, check_channels, place
from plkernel.analysis.parametrisations import inverse_softplus
from plkernel.models.gated_delta import LARGEST_A, LONGEST_STEP, SHORTEST_STEP, SMALLEST_A
from plkernel.models.layers import modules_with
from plkernel.models.power_law import decays_


@torch.no_grad()
def qwen3_next_(model: nn.Module, generator: torch.Generator | None = None) -> None:
    """A uniform in 0.01 .. 16 and dt_bias = 1, so that rates are 1.31 A per byte, in place.

    Source: transformers 5.24.0, src/transformers/models/qwen3_next/modeling_qwen3_next.py,
    `Qwen3NextPreTrainedModel._init_weights`. Raises ValueError for a gate with a lower bound.
    """
    for layer in _layers(model, bounded=False):
        layer.A_log.copy_(_uniform(layer.A_log, SMALLEST_A, LARGEST_A, generator).log())
        layer.dt_bias.fill_(1.0)


@torch.no_grad()
def flash_linear_attention_(model: nn.Module, generator: torch.Generator | None = None) -> None:
    """A uniform up to 16 and time steps uniform in their logarithm in 0.001 .. 0.1, in place.

    Source: flash-linear-attention, fla/layers/gated_deltanet.py, commit 0243cc45a8, where A may be
    0; here it is above. Raises ValueError for a gate with a lower bound.
    """
    for layer in _layers(model, bounded=False):
        below = _uniform(layer.A_log, 0.0, LARGEST_A, generator)  # 0 may be drawn, 16 may not
        layer.A_log.copy_((LARGEST_A - below).log())
        layer.dt_bias.copy_(inverse_softplus(_steps(layer.dt_bias, generator)))


@torch.no_grad()
def flash_linear_attention_bounded_(
    model: nn.Module, generator: torch.Generator | None = None
) -> None:
    """A_log = 0 and softplus(dt_bias) uniform in its logarithm in 0.001 .. 0.1, in place.

    With a lower bound g of log decays the rate of a head is -g (1 - exp(-softplus(dt_bias))).
    Source: flash-linear-attention 0.6.0, fla/layers/kda.py with `safe_gate`, whose gates are one
    for each channel. Raises ValueError for a gate without a lower bound.
    """
    for layer in _layers(model, bounded=True):
        layer.A_log.zero_()
        layer.dt_bias.copy_(inverse_softplus(_steps(layer.dt_bias, generator)))


@torch.no_grad()
def log_spaced_(
    model: nn.Module,
    generator: torch.Generator | None = None,
    shortest: float = SHORTEST,
    longest: float = LONGEST,
) -> None:
    """A_log = 0 and half-lives evenly spaced in their logarithm from `shortest` to `longest` bytes.

    In place, for gates with a lower bound and without one. Raises ValueError for a single head.
    """
    layers = _layers(model)
    for layer in layers:
        check_channels("log-spaced", len(layer.dt_bias), "heads")
    for layer in layers:
        layer.A_log.zero_()
        nodes = place(len(layer.dt_bias), gain="none", shortest=shortest, longest=longest)
        if layer.lower_bound is None:
            decays_(layer.dt_bias, nodes, "dt_bias", a_log=layer.A_log)
        else:
            bound = -float(layer.lower_bound)
            decays_(layer.dt_bias, nodes, "bounded", bound=bound, a_log=layer.A_log)


def _layers(model: nn.Module, bounded: bool | None = None) -> list[Any]:
    """The layers of a gated delta net; ValueError for other models, and for the other gate."""
    names = ("A_log", "dt_bias", "lower_bound")
    layers = modules_with(model, names, "layers of plkernel.models.gated_delta")
    given: Tensor | None = layers[0].lower_bound
    if bounded is not None and bounded != (given is not None):
        needed = "a number below 0" if bounded else "None"
        shown = None if given is None else float(given)
        raise ValueError(f"lower_bound must be {needed} for this initialisation, got {shown}")
    return layers


def _uniform(like: Tensor, low: float, high: float, generator: torch.Generator | None) -> Tensor:
    """Numbers in low <= x < high, in float64 on the CPU."""
    drawn = torch.empty(like.shape, dtype=torch.float64, device="cpu")
    return drawn.uniform_(low, high, generator=generator)


def _steps(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Time steps, uniform in their logarithm."""
    low = math.log(SHORTEST_STEP)
    high = math.log(LONGEST_STEP)
    return _uniform(like, low, high, generator).exp()
