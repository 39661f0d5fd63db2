"""Initialisations of the Mamba-2 of transformers.

With A = 1: `power_law_`, `log_spaced_`, and `unit_a_` with the decays as they are. With equal time
steps: `spectrum_`, that of PoST. Each raises ValueError, before it changes anything, for a time
step that the `time_step_limit` of the model would clip: its head would decay otherwise. All but
`unit_a_` refuse a single head too, which has no two ends of a range. Specs name them as
`plkernel.models.init.mamba2:power_law_`, or the first three by the earlier name
`plkernel.memory.foreign:power_law_`.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from plkernel.analysis.nodes import (
    BETA,
    HORIZON,
    LONGEST,
    SHORTEST,
    SLOWEST,
    Nodes,
    check_channels,
    check_numbers,
    check_switches,
    place,
)
from plkernel.analysis.parametrisations import inverse_softplus
from plkernel.models.mamba2 import mixers_of
from plkernel.models.power_law import decays_

HEADS = "num_heads"
"""The option of Mamba2Config that counts heads, each of one decay."""
STEPS = 1e-4, 1.0
"""Limits of the time step of `spectrum_`, by which every input is multiplied. Mamba-2 draws 0.001
to 0.1, and 1e-4 is the least that it takes.
"""


def power_law_(
    model: nn.Module,
    generator: torch.Generator | None = None,
    beta: float = BETA,
    max_lag: float = HORIZON,
) -> None:
    """Put the heads of a Mamba2ForCausalLM at the quantiles of t**-beta, with A = 1, in place.

    The law reaches to `max_lag` bytes.
    """
    layers = _free_layers(model)
    placed = []
    for layer in layers:
        heads = len(layer.dt_bias)
        check_channels("quantile", heads, HEADS)
        nodes = place(heads, gain="clamp", placement="quantile", beta=beta, max_lag=max_lag)
        placed.append(nodes)
    _unit_a_(layers, placed)


def log_spaced_(
    model: nn.Module,
    generator: torch.Generator | None = None,
    shortest: float = SHORTEST,
    longest: float = LONGEST,
) -> None:
    """Space half-lives of a Mamba2ForCausalLM evenly in their logarithm, with A = 1, in place."""
    layers = _free_layers(model)
    placed = []
    for layer in layers:
        heads = len(layer.dt_bias)
        check_channels("log-spaced", heads, HEADS)
        placed.append(place(heads, gain="clamp", shortest=shortest, longest=longest))
    _unit_a_(layers, placed)


def unit_a_(model: nn.Module, generator: torch.Generator | None = None) -> None:
    """Set A = 1 in a Mamba2ForCausalLM and keep its decays without an input, in place.

    dt becomes A dt. Heads then write A times what they wrote. An input moves the decays as before
    where dt is small against 1.
    """
    layers = _free_layers(model)
    kept = []
    for layer in layers:
        steps = F.softplus(layer.dt_bias.double()).clamp(*_step_limit(layer))
        rates = steps * layer.A_log.double().exp()
        kept.append(Nodes(tuple(rates.tolist()), (1.0,) * len(rates), "clamp"))
    _unit_a_(layers, kept)


@torch.no_grad()
def spectrum_(
    model: nn.Module,
    generator: torch.Generator | None = None,
    longest: float = 512.0,
    step: float = 0.05,
    freeze: bool = True,
) -> None:
    """Space time constants evenly in their logarithm, from 1 byte to `longest`, in place.

    All heads have the time step softplus(dt_bias) = `step`, and head k of N has A_log from
    -ln(step longest) to -ln(step). freeze: dt_bias is not trained. Source: arXiv 2604.07658, where
    `longest` is the training context, and its code.
    """
    _check_spectrum(longest, step, freeze)
    layers = mixers_of(model)
    for layer in layers:
        check_channels("log-spaced", len(layer.dt_bias), HEADS)
        low, high = _step_limit(layer)
        if not low <= step <= high:
            raise ValueError(
                f"step must lie within the time_step_limit of the model, {low:g} to {high:g}, which"
                f" clips others, got {step:g}"
            )
    for layer in layers:
        heads = len(layer.dt_bias)
        slowest = -math.log(step * longest)
        levels = torch.linspace(slowest, -math.log(step), heads, dtype=torch.float64, device="cpu")
        if getattr(layer, "ordered", None) is None:
            layer.A_log.copy_(levels)
        else:
            layer.ordered.set_(levels)
        of_step = torch.tensor(step, dtype=torch.float64, device="cpu")
        layer.dt_bias.fill_(float(inverse_softplus(of_step)))
        layer.dt_bias.requires_grad_(not freeze)


def _check_spectrum(longest: Any, step: Any, freeze: Any) -> None:
    """ValueError for options of `spectrum_` that no spectrum has."""
    check_numbers(longest=longest, step=step)
    if not 1 < longest <= 1 / SLOWEST:
        raise ValueError(
            f"longest must be more than 1 byte and at most {1 / SLOWEST:.3g}, which a float32 decay"
            f" holds, got {longest:g}"
        )
    low, high = STEPS
    if not low <= step <= high:
        raise ValueError(f"step must be {low:g} to {high:g}, got {step:g}")
    check_switches(freeze=freeze)


def _free_layers(model: nn.Module) -> list[Any]:
    """`mixers_of`; ValueError for those whose decays need an order of A_log."""
    layers = mixers_of(model)
    for layer in layers:
        if getattr(layer, "ordered", None) is not None:
            raise ValueError(
                "parametrisation must be 'free' for heads of one A, which have no order in it, got"
                " 'ordered'; or use init spectrum_"
            )
        log_length = getattr(layer, "log_length", None)
        if log_length is not None and getattr(layer, "step_log_length", None) is None:
            raise ValueError(
                "scaling_length must be left out for heads of one A, whose order it scales decays"
                f" by, got {float(log_length.exp()):g}; or use init spectrum_, or set scaling_of to"
                " 'time_step' or 'both'"
            )
    return layers


def _step_limit(layer: Any) -> tuple[float, float]:
    """The limits within which a layer clips its time steps; 0 and infinity if it has none."""
    low, high = getattr(layer, "time_step_limit", None) or (0.0, math.inf)
    return float(low), float(high)


@torch.no_grad()
def _unit_a_(layers: Sequence[Any], placed: Sequence[Nodes]) -> None:
    """Set A_log = 0 and dt = lambda in each layer, one node for each head.

    A head decays by a = exp(-dt exp(A_log)) per byte and takes its input times dt, dt =
    softplus(dt_bias) without an input (arXiv 2405.21060). With A_log = 0 a head of rate lambda has
    dt = lambda, and its kernel lambda exp(-lambda t) is the gain `clamp` for lambda up to 1: the
    law goes into the density of the heads.
    """
    for layer, nodes in zip(layers, placed, strict=True):
        low, high = _step_limit(layer)
        slowest = min(nodes.rates)
        fastest = max(nodes.rates)
        if not (low <= slowest and fastest <= high):
            raise ValueError(
                "time_step_limit must hold the time steps of heads of A = 1, which are their rates,"
                f" {slowest:.3g} to {fastest:.3g} here, got {low:g} to {high:g}"
            )
    for layer, nodes in zip(layers, placed, strict=True):
        decays_(layer.dt_bias, nodes, "dt_bias", a_log=0.0)
        layer.A_log.zero_()
