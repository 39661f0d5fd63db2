"""Schemes on models of `transformers`, configured tiny, never downloaded, against what the library
itself draws.
"""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from plkernel.models.init import RoleTable, asked, plan, tune_jacobians_
from plkernel.models.init.distributions import Distribution, truncated_std
from plkernel.models.init.plan import Plan
from plkernel.models.layers import Structure

hub = partial(pytest.importorskip, "transformers", reason="transformers holds the models")
D, L = 96, 2
SIZES = {"vocab_size": 300, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def gpt2(**options: Any) -> nn.Module:
    config = hub().GPT2Config(
        **{**SIZES, "n_positions": 64, "n_embd": D, "n_layer": L, "n_head": 4, **options}
    )
    return hub().GPT2LMHeadModel(config)


def mamba(**options: Any) -> nn.Module:
    config = hub().MambaConfig(
        **{**SIZES, "hidden_size": D, "state_size": 8, "num_hidden_layers": L, **options}
    )
    return hub().MambaForCausalLM(config)


MODELS = {"gpt2": gpt2, "mamba": mamba}
GPT2 = RoleTable.from_toml("gpt2")


def filled(
    kind: str, scheme: str, options: dict[str, Any] | None = None, **model: Any
) -> tuple[nn.Module, Plan]:
    built = MODELS[kind](**model)
    chosen = plan(built, scheme, RoleTable.from_toml(kind), **(options or {}))
    chosen.apply_(built, seed=0)
    return built, chosen


def has_std(values: Tensor, expected: float) -> bool:
    """Within four standard errors of a normal's deviation."""
    return abs(float(values.detach().double().std()) / expected - 1) < 4 / math.sqrt(
        2 * values.numel()
    )


def test_the_fused_matrix_is_drawn_by_its_parts() -> None:
    """Queries apart in T5, by the heads that are said; Xavier by the fans of (d, d) each, not of
    (d, 3 d).
    """
    model, _ = filled("gpt2", "transformers_t5", {"tied": False, "heads": (4, D // 4)})
    query, key, value = model.transformer.h[1].attn.c_attn.weight.split(D, dim=1)
    assert has_std(query, (D * D / 4) ** -0.5)
    assert has_std(key, D**-0.5)
    assert has_std(value, D**-0.5)
    model, _ = filled("gpt2", "llm_foundry_xavier_normal")
    assert has_std(model.transformer.h[0].attn.c_attn.weight, math.sqrt(2 / (D + D)))
    assert has_std(model.transformer.h[0].mlp.c_fc.weight, math.sqrt(2 / (D + 4 * D)))


def test_what_another_model_does_not_say_is_asked_for() -> None:
    """Heads, and that it computes what the scheme needs."""
    scheme = "transformers_t5"
    with pytest.raises(
        ValueError, match=r"heads must be given .* got None: heads=\(8, 12\) .* heads=\(1, 96\)"
    ):
        plan(gpt2(), scheme, GPT2)
    for wrong in ((4,), (0, 24)):
        with pytest.raises(
            ValueError, match=r"heads must be \(number, size\), both at least 1, got"
        ):
            plan(gpt2(), scheme, GPT2, heads=wrong)  # type: ignore[arg-type]
    assert plan(gpt2(), "megatron_default", GPT2).sizes.heads is None
    with pytest.raises(
        ValueError, match="must have embedding_norm = True for scheme 'rwkv_blinkdl'"
    ):
        plan(gpt2(), "rwkv_blinkdl", GPT2)
    with pytest.raises(ValueError, match="must have multiplier logits = 2 for scheme 'mup_table8'"):
        plan(gpt2(), "mup_table8", GPT2, base_width=2 * D)
    said = Structure(multipliers={"logits": 2.0})
    assert plan(gpt2(), "mup_table8", GPT2, structure=said, base_width=2 * D).forward == {
        "logits": 2.0
    }


@pytest.mark.parametrize("use_bias", [False, True])
def test_mamba_keeps_what_is_its_own(use_bias: bool) -> None:
    """Time steps, decays, convolution and skip stay to the bit; the rest is N(0.1), outputs
    U(fan_in**-0.5).
    """
    torch.manual_seed(0)
    before = {
        name: values.detach().clone()
        for name, values in mamba(use_bias=use_bias).named_parameters()
    }
    torch.manual_seed(0)
    model, _ = filled("mamba", "transformers_mamba", use_bias=use_bias)
    inner = model.config.intermediate_size
    for name, values in model.named_parameters():
        end = name.split("mixer.")[-1]
        if end.startswith(("A_log", "D", "dt_proj", "conv1d", "x_proj")):
            assert torch.equal(values, before[name]), name
        elif end == "out_proj.weight":
            assert has_std(values, inner**-0.5 / math.sqrt(3))
            assert float(values.detach().abs().max()) <= inner**-0.5
        elif values.ndim == 2:
            assert has_std(values, 0.1), name
        else:
            assert (values == float(not end.endswith("bias"))).all(), name


@pytest.mark.parametrize("kind", MODELS)
def test_they_still_run_and_train_and_an_untied_head_has_a_role(kind: str) -> None:
    model, chosen = filled(kind, "megatron_default")
    tokens = torch.randint(0, 300, (2, 16), generator=torch.Generator().manual_seed(0))
    loss = model(input_ids=tokens, labels=tokens).loss
    assert float(loss.detach()) == pytest.approx(math.log(300), rel=0.05)
    loss.backward()
    torch.optim.AdamW(chosen.param_groups(model, 1e-3, 0.1)).step()
    model, chosen = filled(kind, "lm_engine_fan_in", tie_word_embeddings=False)
    assert [e.parameter.name for e in chosen.entries if e.parameter.role == "head"] == [
        "lm_head.weight"
    ]
    plan(
        model.transformer if kind == "gpt2" else model.backbone,
        "megatron_default",
        RoleTable.from_toml(kind),
    )


@pytest.mark.parametrize("kind", MODELS)
def test_jacobians_of_their_blocks_are_tuned(kind: str) -> None:
    """Only output projections change, each block's by one gain, until J of every branch is 1."""
    model, _ = filled(kind, "sp_torch_default", {"normal_draws": True})
    before = {name: values.detach().clone() for name, values in model.named_parameters()}
    tokens = torch.randint(0, 300, (2, 12), generator=torch.Generator().manual_seed(0))
    tuned = tune_jacobians_(model, tokens, RoleTable.from_toml(kind))
    assert tuned.branches == pytest.approx([1] * L, rel=0.005)
    for name, values in model.named_parameters():
        gain = 1.0
        if name.endswith(("c_proj.weight", "out_proj.weight")):
            gain = tuned.gains[int(name.split(".")[2])]
            assert gain != 1
        assert torch.allclose(values, before[name] * gain, rtol=1e-5), name


def theirs(family: str) -> nn.Module:
    """A small model of `transformers`, filled by its own code: 3 layers of 128, 300 words."""
    wide = {
        **SIZES,
        "hidden_size": 128,
        "intermediate_size": 320,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
    }
    if family == "gpt2":
        return gpt2(n_embd=128, n_layer=3)
    if family == "mamba":
        return mamba(hidden_size=128, num_hidden_layers=3)
    if family == "t5":
        shape = {"d_model": 128, "d_kv": 32, "num_heads": 6, "d_ff": 320, "num_layers": 3}
        return hub().T5EncoderModel(
            hub().T5Config(feed_forward_proj="gated-gelu", **shape, **SIZES)
        )
    name, options = {
        "clip": ("CLIPTextModelWithProjection", {"projection_dim": 128}),
        "modernbert": ("ModernBertForMaskedLM", {"cls_token_id": 1, "sep_token_id": 2}),
        "gemma": ("GemmaForCausalLM", {"num_key_value_heads": 4, "head_dim": 32}),
        "default": ("LlamaForCausalLM", {"num_key_value_heads": 4, "head_dim": 32}),
    }[family]
    model = getattr(hub(), name)
    config = hub().CLIPTextConfig if family == "clip" else model.config_class
    return model(config(**options, **wide))


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
ROLES: dict[str, RoleTable] = {
    "default": RoleTable.from_dict(LLAMA),
    "gemma": RoleTable.from_dict(LLAMA),
    "gpt2": GPT2,
    "mamba": RoleTable.from_toml("mamba"),
    "t5": RoleTable.from_dict(
        {
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
        }
    ),
    "clip": RoleTable.from_dict(
        {
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
        }
    ),
    "modernbert": RoleTable.from_dict(
        {
            "*tok_embeddings.weight": "embedding",
            "*norm.weight": "norm",
            "decoder.bias": "bias",
            "*Wqkv.weight": {"parts": ["query", "key", "value"]},
            "*attn.Wo.weight": "mixer_out",
            "*Wi.weight": {"parts": ["ffn_gate", "ffn_up"]},
            "*mlp.Wo.weight": "ffn_out",
            "head.dense.weight": "head",
        }
    ),
}


def agrees(drawn: Tensor, said: Distribution) -> bool:
    """True if these values can come from there: standard deviation, and bounds that are neared, not
    passed.
    """
    if said.kind == "constant":
        return bool((drawn == said.scale).all())
    std = said.scale * {"uniform": 3**-0.5, "truncated": truncated_std(said.cutoff or 1)}.get(
        said.kind, 1.0
    )
    top = float(drawn.abs().max())
    bound = {"uniform": said.scale, "truncated": said.scale * (said.cutoff or 0)}
    edge = bound.get(said.kind)
    inside = top > 3.1 * std if edge is None else 0.95 * edge < top < edge * (1 + 1e-6)
    return inside and math.isclose(float(drawn.std()), std, rel_tol=0.025)


@pytest.mark.slow
@pytest.mark.parametrize("family", ROLES)
def test_transformers_draws_what_its_schemes_say(family: str) -> None:
    pytest.importorskip("transformers", minversion="5", reason="transformers 5 is not installed")
    torch.manual_seed(0)
    model = theirs(family)
    heads = (6, 32) if family == "t5" else (4, 32)
    scheme = f"transformers_{family}"
    roles = ROLES[family]
    structure = asked(
        model, scheme, roles, heads=heads
    )  # the library computes what its own schemes ask for
    chosen = plan(model, scheme, roles, heads=heads, structure=structure)
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    ours = [entry for entry in chosen.entries if entry.parameter.role != "own"]
    drawn = [entry.parameter.slice_of(parameters[entry.parameter.name]) for entry in ours]
    pairs = list(zip(drawn, [entry.distribution for entry in ours], strict=True))
    assert [
        e.parameter.label
        for e, (values, said) in zip(ours, pairs, strict=True)
        if not agrees(values, said)
    ] == []
    assert len(ours) > 10
    assert not any(agrees(values, said.times(1.05)) for values, said in pairs if values.ndim > 1)
