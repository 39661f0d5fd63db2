"""Tiny models built by other people's code and saved by it: half-lives read back are those of the live modules."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import CASES, built
from torch import Tensor, nn
from torch.nn import functional as F

from plkernel.memory.inspection import shown

pytestmark = pytest.mark.filterwarnings("ignore")  # of other people's code


def modules(model: nn.Module, attribute: str) -> Iterator[Any]:
    return (module for module in model.modules() if attribute in dict(module.named_parameters(recurse=False)))


def of_states(model: nn.Module) -> list[Tensor]:
    """discrete_A = exp(A dt) of every channel and state."""
    found = []
    for module in modules(model, "A_log"):
        bias = module.dt_proj_bias if hasattr(module, "dt_proj_bias") else module.dt_proj.bias
        found.append(-(-torch.exp(module.A_log) * F.softplus(bias)[..., None]))
    return found


def of_heads(model: nn.Module) -> list[Tensor]:
    """A dt of every head, dt within the module's own limits."""
    found = []
    for module in modules(model, "A_log"):
        step = F.softplus(module.dt_bias).clamp(*getattr(module, "time_step_limit", (0.0, math.inf)))
        found.append(torch.exp(module.A_log) * step)
    return found


def of_gates(model: nn.Module) -> list[Tensor]:
    """What the forget gates themselves answer to no input."""
    width = 16
    return [-module(torch.zeros(1, 1, width, dtype=torch.float64)) for module in modules(model, "A_log")]


def of_rg_lru(model: nn.Module) -> list[Tensor]:
    """What the module hands to its own scan when there is no input."""
    found = []
    for module in modules(model, "recurrent_param"):

        def scan(hidden_states: Tensor, recurrent_gate: Tensor, **_: Any) -> tuple[Tensor, None]:
            found.append(-recurrent_gate[0, 1].log())
            return hidden_states, None

        module._rnn_scan = scan
        width = len(module.recurrent_param)
        module(torch.zeros(1, 2, width, dtype=torch.float64), torch.arange(2)[None])
    return found


def of_forget_gates(model: nn.Module) -> list[Tensor]:
    cap = model.config.gate_soft_cap
    biases = [module.fgate_preact.bias for module in model.modules() if hasattr(module, "fgate_preact")]
    return [-F.logsigmoid(cap * torch.tanh(bias / cap)) for bias in biases]


def of_slopes(model: nn.Module) -> list[Tensor]:
    return [-torch.exp(-module.slope_rate).log() for module in model.modules() if hasattr(module, "slope_rate")]


def of_rwkv4(model: nn.Module) -> list[Tensor]:
    return [torch.exp(module.time_decay) for module in modules(model, "time_decay")]


RATES: dict[str, Callable[[nn.Module], list[Tensor]]] = {
    "Mamba": of_states,
    "Mamba2": of_heads,
    "Rwkv": of_rwkv4,
    "FalconMamba": of_states,
    "Jamba": of_states,
    "Zamba": of_states,
    "Bamba": of_heads,
    "FalconH1": of_heads,
    "GraniteMoeHybrid": of_heads,
    "NemotronH": of_heads,
    "Zamba2": of_heads,
    "Qwen3Next": of_heads,
    "Qwen3_5": of_heads,
    "OlmoHybrid": of_heads,
    "BailingHybrid": of_gates,
    "KimiLinear": of_gates,
    "RecurrentGemma": of_rg_lru,
    "MiniMax": of_slopes,
    "xLSTM": of_forget_gates,
}


@pytest.mark.parametrize("name", CASES)
def test_half_lives_are_those_of_the_live_module(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rates_of = built(name), RATES[name]
    with torch.no_grad(), monkeypatch.context() as patched:
        patched.setattr(Tensor, "float", Tensor.double)  # the module's own formula, without its own rounding
        expected = [np.log(2) / rates.double().numpy().ravel() for rates in rates_of(model)]
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    found = [np.log(2) / layer.rates.ravel() for layer in shown(str(tmp_path)).layers]
    assert len(found) == len(expected) > 0
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        assert np.unique(theirs).size > 1
