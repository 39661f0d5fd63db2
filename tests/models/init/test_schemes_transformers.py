"""The schemes called transformers_* against `transformers` itself: what its own code draws is what they say."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from plkernel.models.init import RoleTable, asked, plan
from plkernel.models.init.distributions import Distribution
from plkernel.models.init.plan import slice_of

TOLERANCE = 0.025  # of a standard deviation; 16384 normal numbers, the fewest here, give it to 0.0055


def theirs(family: str) -> nn.Module:
    """A small model of `transformers`, filled by its own code: 3 layers of 128, 300 words."""
    hub = pytest.importorskip("transformers", minversion="5", reason="transformers 5 is not installed")
    sizes = {"vocab_size": 300, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    wide = {**sizes, "hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 3, "num_attention_heads": 4}
    if family == "gpt2":
        return hub.GPT2LMHeadModel(hub.GPT2Config(n_embd=128, n_layer=3, n_head=4, **sizes))
    if family == "t5":
        shape = {"d_model": 128, "d_kv": 32, "num_heads": 6, "d_ff": 320, "num_layers": 3}
        return hub.T5EncoderModel(hub.T5Config(feed_forward_proj="gated-gelu", **shape, **sizes))
    if family == "clip":
        return hub.CLIPTextModelWithProjection(hub.CLIPTextConfig(projection_dim=128, **wide))
    if family == "modernbert":
        return hub.ModernBertForMaskedLM(hub.ModernBertConfig(cls_token_id=1, sep_token_id=2, **wide))
    if family == "mamba":
        return hub.MambaForCausalLM(hub.MambaConfig(hidden_size=128, num_hidden_layers=3, **sizes))
    name = {"gemma": "Gemma", "default": "Llama"}[family]
    return getattr(hub, f"{name}ForCausalLM")(getattr(hub, f"{name}Config")(num_key_value_heads=4, head_dim=32, **wide))


LLAMA = {
    "*embed_tokens.weight": "embedding",
    "lm_head.weight": "head",
    "*norm.weight": "norm",
    "*q_proj.weight": "query",
    "*k_proj.weight": "key",
    "*v_proj.weight": "value",
    "*o_proj.weight": "mixer_out",
    "*gate_proj.weight": "ffn_gate",
    "*up_proj.weight": "ffn_up",
    "*down_proj.weight": "ffn_out",
}
ROLES: dict[str, dict[str, Any]] = {
    "default": LLAMA,
    "gemma": LLAMA,
    "gpt2": {
        "*wte.weight": "embedding",
        "*wpe.weight": "position",
        "*ln_?.weight": "norm",
        "*ln_?.bias": "norm_bias",
        "*c_attn.weight": {"parts": ["query", "key", "value"], "transposed": True},
        "*.attn.c_proj.weight": {"role": "mixer_out", "transposed": True},
        "*c_fc.weight": {"role": "ffn_gate", "transposed": True},
        "*.mlp.c_proj.weight": {"role": "ffn_out", "transposed": True},
        "*c_*.bias": "bias",
    },
    "t5": {
        "shared.weight": "embedding",
        "*norm.weight": "norm",
        "*relative_attention_bias.weight": "own",
        "*.q.weight": "query",
        "*.k.weight": "key",
        "*.v.weight": "value",
        "*.o.weight": "mixer_out",
        "*.wi_0.weight": "ffn_gate",
        "*.wi_1.weight": "ffn_up",
        "*.wo.weight": "ffn_out",
    },
    "clip": {
        "*token_embedding.weight": "embedding",
        "*position_embedding.weight": "position",
        "*norm*.weight": "norm",
        "*norm*.bias": "norm_bias",
        "*.q_proj.weight": "query",
        "*.k_proj.weight": "key",
        "*.v_proj.weight": "value",
        "*.out_proj.weight": "mixer_out",
        "*.fc1.weight": "ffn_gate",
        "*.fc2.weight": "ffn_out",
        "*_proj.bias": "bias",
        "*.fc?.bias": "bias",
        "text_projection.weight": "head",
    },
    "modernbert": {
        "*tok_embeddings.weight": "embedding",
        "*norm.weight": "norm",
        "*Wqkv.weight": {"parts": ["query", "key", "value"]},
        "*attn.Wo.weight": "mixer_out",
        "*Wi.weight": {"parts": ["ffn_gate", "ffn_up"]},
        "*mlp.Wo.weight": "ffn_out",
        "head.dense.weight": "head",
        "decoder.bias": "bias",
    },
    "mamba": {
        "*embeddings.weight": "embedding",
        "*norm*.weight": "norm",
        "*in_proj.weight": {"parts": ["value", "mixer_gate"]},
        "*out_proj.weight": "mixer_out",
        "*.mixer.[ADcdx]*": "own",
    },
}


def agrees(drawn: Tensor, said: Distribution) -> bool:
    """Whether these values can have come from there: standard deviation, and bounds that are neared, not passed."""
    if said.kind == "constant":
        return bool((drawn == said.scale).all())
    top, bound = float(drawn.abs().max()), {"uniform": said.scale, "truncated": said.scale * (said.cutoff or 0)}
    edge = bound.get(said.kind)
    inside = top > 3.1 * said.std() if edge is None else 0.95 * edge < top < edge * (1 + 1e-6)
    return inside and math.isclose(float(drawn.std()), said.std(), rel_tol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("family", ROLES)
def test_transformers_draws_what_its_schemes_say(family: str) -> None:
    torch.manual_seed(0)
    model = theirs(family)
    heads = (6, 32) if family == "t5" else (4, 32)
    scheme, roles = f"transformers_{family}", RoleTable.from_dict(ROLES[family])
    structure = asked(model, scheme, roles, heads=heads)  # the library computes what its own schemes ask for
    chosen = plan(model, scheme, roles, heads=heads, structure=structure)
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    ours = [entry for entry in chosen.entries if entry.parameter.role != "own"]
    drawn = [slice_of(parameters[entry.parameter.name], entry.parameter) for entry in ours]
    wrong = [
        f"{entry.parameter.name}: {float(values.std()):.5f} for {entry.distribution}"
        for entry, values in zip(ours, drawn, strict=True)
        if not agrees(values, entry.distribution)
    ]
    assert wrong == []
    assert len(ours) > 10
    assert not any(agrees(v, e.distribution.times(1.05)) for e, v in zip(ours, drawn, strict=True) if v.ndim > 1)
