"""Tiny causal models of transformers, one of each family whose decays are read, by the name of
their class.
"""

from typing import Any

import pytest
import torch
from torch import nn

SIZES = {
    "vocab_size": 32,
    "pad_token_id": 0,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "intermediate_size": 16,
}
HEADS = {**SIZES, "num_attention_heads": 2, "num_key_value_heads": 2}
ATTENTION = {**SIZES, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
MAMBA2 = {
    "mamba_n_heads": 4,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_expand": 2,
}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1}
LINEAR = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
DELTA = {
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    **LINEAR,
}
BLOCKS = ["mamba", "attention", "mamba"]
SHARED = {
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8,
    "linear_num_key_heads": 2,
}
KIMI = {"linear_head_dim": 8, "linear_num_heads": 2, "num_key_value_heads": 2}

FAST: dict[str, dict[str, Any]] = {
    "Mamba": {**SIZES, "state_size": 4},
    "Mamba2": {
        **SIZES,
        "num_heads": 4,
        "head_dim": 8,
        "state_size": 8,
        "n_groups": 1,
        "time_step_limit": (0.05, 0.2),
    },
    "Rwkv": {**SIZES, "attention_hidden_size": 16},
}
JAMBA = {
    "mamba_d_state": 4,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "use_mamba_kernels": False,
}
ZAMBA = {"n_mamba_heads": 2, "num_hidden_layers": 6, "attn_layer_period": 3, "attn_layer_offset": 2}
ZAMBA2 = {
    "n_mamba_heads": 4,
    "mamba_ngroups": 1,
    "hybrid_layer_ids": [1],
    "num_mem_blocks": 1,
    "time_step_min": 0.1,
}
NEMOTRON = {
    "mamba_num_heads": 4,
    "mamba_head_dim": 8,
    "ssm_state_size": 8,
    "n_groups": 1,
    "time_step_min": 0.1,
}
SLOW: dict[str, dict[str, Any]] = {
    "FalconMamba": {**SIZES, "state_size": 4},
    "Jamba": {**ATTENTION, **EXPERTS, **JAMBA},
    "Zamba": {**HEADS, **JAMBA, **ZAMBA},
    "Bamba": {**ATTENTION, **MAMBA2, "attn_layer_indices": [1]},
    "FalconH1": {**ATTENTION, **MAMBA2, "mamba_d_ssm": 32},
    "GraniteMoeHybrid": {
        **{**HEADS, "num_key_value_heads": 1, **MAMBA2},
        **{"shared_intermediate_size": 16, "num_local_experts": 0, "layer_types": BLOCKS},
    },
    "NemotronH": {**ATTENTION, **NEMOTRON, "layers_block_type": BLOCKS},
    "Zamba2": {
        **{**SIZES, "num_attention_heads": 2, "mamba_d_state": 8, **ZAMBA2},
        "layers_block_type": ["mamba", "hybrid", "mamba"],
    },
    "Qwen3Next": {**ATTENTION, **EXPERTS, **DELTA, **SHARED},
    "Qwen3_5": {**ATTENTION, **DELTA, "linear_num_key_heads": 2, "config": "Qwen3_5Text"},
    "Qwen3_5Moe": {**ATTENTION, **EXPERTS, **DELTA, **SHARED, "config": "Qwen3_5MoeText"},
    "OlmoHybrid": {**HEADS, **DELTA, "linear_num_key_heads": 4},
    "BailingHybrid": {**ATTENTION, **EXPERTS, **KIMI, **LINEAR, "n_group": 1, "topk_group": 1},
    "KimiLinear": {**ATTENTION, **KIMI, **LINEAR},
    "RecurrentGemma": {
        **{**SIZES, "num_attention_heads": 2, "lru_width": 16},
        "block_types": ["recurrent", "recurrent", "attention"],
    },
    "MiniMax": {
        **ATTENTION,
        **LINEAR,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "block_size": 4,
    },
    "xLSTM": {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_heads": 4},
}
CASES = [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
DECAYS = ("A_log", "dt_bias", "dt_proj.bias", "dt_proj_bias", "recurrent", "fgate", "time_decay")
FLA_DECAYS = ("bounds", "gk_proj.1", "w_lora", "w_proj", "a_proj.bias", "f_proj.bias")


def built(name: str) -> nn.Module:
    """One of FAST or SLOW, with drawn decays."""
    import transformers

    options = dict({**FAST, **SLOW}[name])
    torch.manual_seed(0)
    config = getattr(transformers, f"{options.pop('config', name)}Config")(**options)
    return drawn(getattr(transformers, f"{name}ForCausalLM")(config), DECAYS)


def drawn(model: nn.Module, marks: tuple[str, ...]) -> nn.Module:
    """`model` in float64, parameters whose names have one of `marks` drawn, so that no two decays
    are alike.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(mark in name for mark in marks):
                parameter.copy_(torch.randn(parameter.shape) - 2.0)
    return model.double()
