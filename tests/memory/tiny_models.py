"""Tiny causal models of transformers, one of each family whose decays are read, by the name of their class."""

from typing import Any

import pytest
import torch
from torch import nn

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


FAST: dict[str, dict[str, Any]] = {
    "Mamba": {**SIZES, "state_size": 4},
    "Mamba2": {**SIZES, "num_heads": 4, "head_dim": 8, "state_size": 8, "n_groups": 1, "time_step_limit": (0.05, 0.2)},
    "Rwkv": {**SIZES, "attention_hidden_size": 16},
}

SLOW: dict[str, dict[str, Any]] = {
    "FalconMamba": {**SIZES, "state_size": 4},
    "Jamba": {
        **SIZES,
        **ATTENTION,
        **EXPERTS,
        "mamba_d_state": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "use_mamba_kernels": False,
    },
    "Zamba": {
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
    "Bamba": {**SIZES, **ATTENTION, **MAMBA2, "attn_layer_indices": [1]},
    "FalconH1": {**SIZES, **ATTENTION, **MAMBA2, "mamba_d_ssm": 32},
    "GraniteMoeHybrid": {
        **SIZES,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        **MAMBA2,
        "shared_intermediate_size": 16,
        "num_local_experts": 0,
        "layer_types": ["mamba", "attention", "mamba"],
    },
    "NemotronH": {
        **SIZES,
        **ATTENTION,
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "ssm_state_size": 8,
        "n_groups": 1,
        "layers_block_type": ["mamba", "attention", "mamba"],
        "time_step_min": 0.1,
    },
    "Zamba2": {
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
    "Qwen3Next": {
        **SIZES,
        **ATTENTION,
        **DELTA,
        **EXPERTS,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "Qwen3_5": {
        **SIZES,
        **ATTENTION,
        **DELTA,
        "config": "Qwen3_5Text",
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "OlmoHybrid": {
        **SIZES,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        **DELTA,
        "linear_num_key_heads": 4,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "BailingHybrid": {
        **SIZES,
        **ATTENTION,
        **EXPERTS,
        "num_key_value_heads": 2,
        "n_group": 1,
        "topk_group": 1,
        "linear_head_dim": 8,
        "linear_num_heads": 2,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "KimiLinear": {
        **SIZES,
        **ATTENTION,
        "num_key_value_heads": 2,
        "linear_head_dim": 8,
        "linear_num_heads": 2,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "RecurrentGemma": {
        **SIZES,
        "num_attention_heads": 2,
        "lru_width": 16,
        "block_types": ["recurrent", "recurrent", "attention"],
    },
    "MiniMax": {
        **SIZES,
        **ATTENTION,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "block_size": 4,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "xLSTM": {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_heads": 4},
}
CASES = [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


def built(name: str) -> nn.Module:
    """One of FAST or SLOW; its decays are drawn, so that no two are alike."""
    import transformers

    options = dict({**FAST, **SLOW}[name])
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
