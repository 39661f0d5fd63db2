"""Mamba-2 of transformers (Mamba2ForCausalLM), started with the decays of a node set: functions for `init`.

A head decays by a = exp(-dt exp(A_log)) per byte and takes its input times dt, where dt = softplus(dt_bias) without an
input (arXiv 2405.21060). With A_log = 0 a head of rate lambda has dt = lambda, so that its kernel is
lambda exp(-lambda t), the gain `clamp` for lambda up to 1: the law goes into the density of the heads, and log-spaced
heads carry 1/t. All layers have the same nodes; the rest stays as the model has it.
"""

from typing import Any

import torch
from torch import nn

from plkernel.analysis.nodes import place
from plkernel.models.init.power_law import decays_


def power_law_(
    model: nn.Module, generator: torch.Generator | None = None, beta: float = 1.15, max_lag: float = 2048.0
) -> None:
    """Put heads at the quantiles of t**-beta up to `max_lag` bytes, in place."""
    _start_(model, placement="quantile", beta=beta, max_lag=max_lag)


def log_spaced_(
    model: nn.Module, generator: torch.Generator | None = None, shortest: float = 1.0, longest: float = 2000.0
) -> None:
    """Space the half-lives of heads evenly in their logarithm, `shortest` to `longest` bytes, in place."""
    _start_(model, shortest=shortest, longest=longest)


def _start_(model: nn.Module, **options: Any) -> None:
    """Set A_log = 0 and dt = lambda in every layer; ValueError for a model without A_log and dt_bias."""
    layers: list[Any] = [one for one in model.modules() if hasattr(one, "A_log") and hasattr(one, "dt_bias")]
    if not layers:
        raise ValueError(f"a {type(model).__name__} has no layer with A_log and dt_bias: Mamba2ForCausalLM has")
    for layer in layers:
        nodes = place(len(layer.dt_bias), gain="clamp", **options)
        with torch.no_grad():
            layer.A_log.zero_()
            decays_(layer.dt_bias, nodes, "dt_bias", a_log=layer.A_log)
