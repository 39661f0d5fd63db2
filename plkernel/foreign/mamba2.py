"""Mamba-2 as transformers has it (Mamba2ForCausalLM), started with the decays of a node set: functions for `init`.

A head decays by a = exp(-dt exp(A_log)) per byte and takes its input times dt, where dt = softplus(dt_bias) as long as
it does not depend on the input (arXiv 2405.21060). With A_log = 0 a head of rate lambda has dt = lambda, so that its
kernel is lambda exp(-lambda t), the gain `clamp` for lambda up to 1: the law goes into the density of the heads, and
log-spaced heads carry 1/t. All layers have the same nodes; all else stays as the model has it.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from plkernel.analysis.nodes import Nodes, place
from plkernel.models.init.power_law import decays_


def power_law_(
    model: nn.Module, generator: torch.Generator | None = None, beta: float = 1.15, max_lag: float = 2048.0
) -> None:
    """Heads at the quantiles of t**-beta up to `max_lag` bytes, in place."""
    for a_log, dt_bias in _heads(model):
        nodes = place(len(dt_bias), placement="quantile", gain="clamp", beta=beta, max_lag=max_lag)
        time_steps_(a_log, dt_bias, nodes)


def log_spaced_(
    model: nn.Module, generator: torch.Generator | None = None, shortest: float = 1.0, longest: float = 2000.0
) -> None:
    """Heads with half-lives spaced evenly in their logarithm, `shortest` to `longest` bytes, in place."""
    for a_log, dt_bias in _heads(model):
        time_steps_(a_log, dt_bias, place(len(dt_bias), gain="clamp", shortest=shortest, longest=longest))


@torch.no_grad()
def time_steps_(a_log: Tensor, dt_bias: Tensor, nodes: Nodes) -> None:
    """A_log = 0 and dt = lambda for the rates of `nodes`, one of each head, in place."""
    a_log.zero_()
    decays_(dt_bias, nodes, "dt_bias", a_log=a_log)


def _heads(model: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """A_log and dt_bias (H,) of every layer; ValueError for a model that has none."""
    found = [module for module in model.modules() if hasattr(module, "A_log") and hasattr(module, "dt_bias")]
    if not found:
        raise ValueError(f"a {type(model).__name__} has no layer with A_log and dt_bias: Mamba2ForCausalLM has")
    for module in found:
        yield module.A_log, module.dt_bias  # type: ignore[misc]
