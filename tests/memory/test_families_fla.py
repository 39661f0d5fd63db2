"""Tiny models of flash-linear-attention, saved by it: half-lives read back are those of its layers without an input."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plkernel.memory.inspection import shown

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
SIZES = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 3, "num_heads": 2}
NOTHING = torch.zeros(1, 1, 16, dtype=torch.float64)


def kda(layer: Any, model: nn.Module) -> Tensor:
    from fla.ops.kda.gate import naive_kda_gate, naive_kda_lowerbound_gate

    gate = layer.f_proj(NOTHING).unflatten(-1, (-1, layer.head_k_dim))
    if layer.lower_bound is not None:
        return -naive_kda_lowerbound_gate(gate, layer.A_log, layer.dt_bias, layer.lower_bound, torch.float64)
    return -naive_kda_gate(gate, layer.A_log, layer.dt_bias, torch.float64)


def stepped(layer: Any, model: nn.Module) -> Tensor:
    return layer.A_log.exp() * F.softplus(layer.dt_bias)


def hgrn(layer: Any, model: Any) -> Tensor:
    bounds = model.model.lower_bounds.softmax(0)
    low = (bounds.cumsum(0) - bounds[0])[layer.layer_idx]
    return -(low + (1 - low) * layer.f_proj(NOTHING).flatten().sigmoid()).log()


def retnet(layer: Any, model: nn.Module) -> Tensor:
    return -(1 - 2.0 ** (-5.0 - torch.arange(layer.num_heads, dtype=torch.float64))).log()  # fla/ops/retention


CASES: dict[str, tuple[str, dict[str, Any], Callable[[Any, nn.Module], Tensor]]] = {
    "gated-delta": ("GatedDeltaNet", {"head_dim": 8}, stepped),
    "mamba2": ("Mamba2", {"head_dim": 8, "num_heads": 4, "state_size": 8}, stepped),
    "kda": ("KDA", {"head_dim": 8}, kda),
    "kda-bound": ("KDA", {"head_dim": 8, "safe_gate": True, "lower_bound": -5.0}, kda),
    "rwkv6": ("RWKV6", {}, lambda layer, model: layer.w_proj.linear(NOTHING).exp()),
    "rwkv7": ("RWKV7", {"head_dim": 8}, lambda layer, model: np.exp(-0.5) * layer.w_lora(NOTHING).sigmoid()),
    "gla": ("GLA", {}, lambda layer, model: -F.logsigmoid(layer.gk_proj(NOTHING)) / layer.gate_logit_normalizer),
    "hgrn": ("HGRN", {}, hgrn),
    "hgrn2": ("HGRN2", {"expand_ratio": 8}, hgrn),
    "retnet": ("RetNet", {}, retnet),
}


@pytest.mark.parametrize("case", CASES)
def test_half_lives_are_those_of_the_live_module(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = pytest.importorskip("fla.models", reason="flash-linear-attention is not installed")
    name, options, rates_of = CASES[case]
    torch.manual_seed(0)
    model = getattr(models, f"{name}ForCausalLM")(getattr(models, f"{name}Config")(**{**SIZES, **options}))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if any(mark in key for mark in ("A_log", "dt_bias", "bounds", "gk_proj.1", "w_lora", "w_proj")):
                parameter.copy_(torch.randn(parameter.shape) - 2.0)
    model.double()
    with torch.no_grad(), monkeypatch.context() as patched:
        patched.setattr(Tensor, "float", Tensor.double)  # the layer's own formula, without its own rounding
        layers = [getattr(block, "attn", None) or block.mixer for block in model.base_model.layers]
        expected = [np.log(2) / rates_of(layer, model).numpy().ravel() for layer in layers]
    model.save_pretrained(tmp_path)
    found = [np.log(2) / layer.rates.ravel() for layer in shown(str(tmp_path)).layers]
    assert len(found) == 3
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
