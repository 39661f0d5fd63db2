"""Tiny models built by other people's code and saved by it: half-lives read back are those of the live modules."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plkernel.checkpoints.show import shown

pytestmark = pytest.mark.filterwarnings("ignore")  # of other people's code
ATTENTION = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
SIZES = {"vocab_size": 32, "pad_token_id": 0, "hidden_size": 16, "num_hidden_layers": 3, "intermediate_size": 16}
MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_expand": 2}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1}
DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}


def built(name: str, **options: Any) -> nn.Module:
    """A causal model of transformers; its decays are drawn, so that no two are alike."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{options.pop('config', name)}Config")(**options)
    return drawn(getattr(transformers, f"{name}ForCausalLM")(config))


def drawn(model: nn.Module) -> nn.Module:
    marks = (
        "A_log",
        "dt_bias",
        "dt_proj.bias",
        "dt_proj_bias",
        "recurrent",
        "fgate",
        "time_decay",
        "bounds",
        "gk_proj",
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(mark in name for mark in marks):
                parameter.copy_(torch.randn(parameter.shape) - 2.0)
    return model.double()


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


FAST: dict[str, tuple[dict[str, Any], Callable[[nn.Module], list[Tensor]]]] = {
    "Mamba": ({**SIZES, "state_size": 4}, of_states),
    "Mamba2": (
        {**SIZES, "num_heads": 4, "head_dim": 8, "state_size": 8, "n_groups": 1, "time_step_limit": (0.05, 0.2)},
        of_heads,
    ),
    "Rwkv": ({**SIZES, "attention_hidden_size": 16}, of_rwkv4),
}
SLOW: dict[str, tuple[dict[str, Any], Callable[[nn.Module], list[Tensor]]]] = {
    "FalconMamba": ({**SIZES, "state_size": 4}, of_states),
    "Jamba": (
        {
            **SIZES,
            **ATTENTION,
            **EXPERTS,
            "mamba_d_state": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "use_mamba_kernels": False,
        },
        of_states,
    ),
    "Zamba": (
        {
            **SIZES,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "mamba_d_state": 4,
            "n_mamba_heads": 2,
            "use_mamba_kernels": False,
            "num_hidden_layers": 6,
            "attn_layer_period": 3,
            "attn_layer_offset": 2,
        },
        of_states,
    ),
    "Bamba": ({**SIZES, **ATTENTION, **MAMBA2, "attn_layer_indices": [1]}, of_heads),
    "FalconH1": ({**SIZES, **ATTENTION, **MAMBA2, "mamba_d_ssm": 32}, of_heads),
    "GraniteMoeHybrid": (
        {
            **SIZES,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            **MAMBA2,
            "shared_intermediate_size": 16,
            "num_local_experts": 0,
            "layer_types": ["mamba", "attention", "mamba"],
        },
        of_heads,
    ),
    "NemotronH": (
        {
            **SIZES,
            **ATTENTION,
            "mamba_num_heads": 4,
            "mamba_head_dim": 8,
            "ssm_state_size": 8,
            "n_groups": 1,
            "layers_block_type": ["mamba", "attention", "mamba"],
            "time_step_min": 0.1,
        },
        of_heads,
    ),
    "Zamba2": (
        {
            **SIZES,
            "num_attention_heads": 2,
            "mamba_d_state": 8,
            "n_mamba_heads": 4,
            "mamba_ngroups": 1,
            "hybrid_layer_ids": [1],
            "num_mem_blocks": 1,
            "time_step_min": 0.1,
            "layers_block_type": ["mamba", "hybrid", "mamba"],
        },
        of_heads,
    ),
    "Qwen3Next": (
        {
            **SIZES,
            **ATTENTION,
            **DELTA,
            **EXPERTS,
            "moe_intermediate_size": 8,
            "shared_expert_intermediate_size": 8,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        },
        of_heads,
    ),
    "Qwen3_5": (
        {
            **SIZES,
            **ATTENTION,
            **DELTA,
            "config": "Qwen3_5Text",
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        },
        of_heads,
    ),
    "OlmoHybrid": (
        {
            **SIZES,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            **DELTA,
            "linear_num_key_heads": 4,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        },
        of_heads,
    ),
    "BailingHybrid": (
        {
            **SIZES,
            **ATTENTION,
            **EXPERTS,
            "linear_head_dim": 8,
            "linear_num_heads": 2,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        },
        of_gates,
    ),
    "KimiLinear": (
        {
            **SIZES,
            **ATTENTION,
            "linear_head_dim": 8,
            "linear_num_heads": 2,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        },
        of_gates,
    ),
    "RecurrentGemma": (
        {**SIZES, "num_attention_heads": 2, "lru_width": 16, "block_types": ["recurrent", "recurrent", "attention"]},
        of_rg_lru,
    ),
    "MiniMax": (
        {
            **SIZES,
            **ATTENTION,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "block_size": 4,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        },
        of_slopes,
    ),
    "xLSTM": ({"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_heads": 4}, of_forget_gates),
}
CASES = [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


@pytest.mark.parametrize("name", CASES)
def test_half_lives_are_those_of_the_live_module(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, rates_of = {**FAST, **SLOW}[name]
    model = built(name, **options)
    with torch.no_grad(), monkeypatch.context() as patched:
        patched.setattr(Tensor, "float", Tensor.double)  # the module's own formula, without its own rounding
        expected = [np.log(2) / rates.double().numpy().ravel() for rates in rates_of(model)]
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    found = [np.log(2) / layer.rates.ravel() for layer in shown(str(tmp_path)).layers]
    assert len(found) == len(expected) > 0
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        assert np.unique(theirs).size > 1
