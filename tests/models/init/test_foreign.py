"""Schemes on models of `transformers`, configured tiny, never downloaded; roles from the TOML files in runs/roles."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from plkernel.models.init import RoleTable, plan
from plkernel.models.init.plan import Plan
from plkernel.models.structure import Structure

transformers = pytest.importorskip("transformers", reason="transformers holds the foreign models")

ROLES = Path(__file__).parents[3] / "runs" / "roles"
D, L = 96, 2


def gpt2(**options: Any) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=300, n_positions=64, n_embd=D, n_layer=L, n_head=4, bos_token_id=0, eos_token_id=0, **options
    )
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


def mamba(**options: Any) -> nn.Module:
    config = transformers.MambaConfig(vocab_size=300, hidden_size=D, state_size=8, num_hidden_layers=L, **options)
    model: nn.Module = transformers.MambaForCausalLM(config)
    return model


MODELS = {"gpt2": gpt2, "mamba": mamba}


def filled(kind: str, scheme: str, options: dict[str, Any] | None = None, **model: Any) -> tuple[nn.Module, Plan]:
    built = MODELS[kind](**model)
    planned = plan(built, scheme, RoleTable.from_toml(ROLES / f"{kind}.toml"), **(options or {}))
    planned.apply_(built, seed=0)
    return built, planned


def has_std(values: Tensor, expected: float) -> bool:
    """Within four standard errors of a normal's deviation."""
    return abs(float(values.detach().double().std()) / expected - 1) < 4 / math.sqrt(2 * values.numel())


def test_gpt2_is_drawn_as_promised() -> None:
    """N(0.02) with outputs over sqrt(2 L); norms 1, biases 0; the tied head is the embedding."""
    model, planned = filled("gpt2", "transformers_gpt2")
    named = dict(model.named_parameters())
    deep = 0.02 / math.sqrt(2 * L)
    for name, values in named.items():
        if values.ndim == 2:
            assert has_std(values, deep if "c_proj" in name else 0.02), name
        else:
            assert torch.equal(values, torch.full_like(values, 1.0 if name.endswith("weight") else 0.0)), name
    assert model.lm_head.weight is model.transformer.wte.weight
    assert {e.parameter.role for e in planned.entries} >= {"embedding", "position", "query", "key", "value"}


def test_the_fused_matrix_is_drawn_by_its_parts() -> None:
    """Queries of their own in T5; Xavier by the fans of (d, d) each, not of (d, 3 d)."""
    model, _ = filled("gpt2", "transformers_t5", {"tied": False, "heads": (1, D)})
    query, key, value = model.transformer.h[1].attn.c_attn.weight.split(D, dim=1)
    assert has_std(query, 1 / D)
    assert has_std(key, D**-0.5)
    assert has_std(value, D**-0.5)
    model, _ = filled("gpt2", "llm_foundry_xavier_normal")
    assert has_std(model.transformer.h[0].attn.c_attn.weight, math.sqrt(2 / (D + D)))
    assert has_std(model.transformer.h[0].mlp.c_fc.weight, math.sqrt(2 / (D + 4 * D)))


def test_heads_are_said_where_a_scheme_asks() -> None:
    model = gpt2()
    planned = plan(model, "transformers_t5", RoleTable.from_toml(ROLES / "gpt2.toml"), heads=(4, D // 4), tied=False)
    planned.apply_(model, 0)
    assert has_std(model.transformer.h[0].attn.c_attn.weight[:, :D], (D * D / 4) ** -0.5)
    assert Plan.from_dict(json.loads(json.dumps(planned.to_dict()))) == planned


@pytest.mark.parametrize("scheme", ["transformers_t5", "maxtext"])
def test_heads_that_nobody_said_are_asked_for(scheme: str) -> None:
    """No scheme takes one head of full width unasked; those that do not scale by heads need none."""
    model, roles = gpt2(), RoleTable.from_toml(ROLES / "gpt2.toml")
    with pytest.raises(ValueError, match=r"heads must be given .* got None: heads=\(8, 12\) .* heads=\(1, 96\)"):
        plan(model, scheme, roles)
    for wrong in ((4,), (0, 24)):
        with pytest.raises(ValueError, match=r"heads must be \(number, size\), both at least 1, got"):
            plan(model, scheme, roles, heads=wrong)
    assert plan(model, "megatron_default", roles).sizes.heads is None


def test_what_a_foreign_model_does_not_compute_is_refused_until_the_caller_says_it_does() -> None:
    """A norm after the embedding, a multiplier of the logits: no plan can see them in another's model."""
    model, roles = gpt2(), RoleTable.from_toml(ROLES / "gpt2.toml")
    with pytest.raises(ValueError, match="'rwkv_blinkdl' needs a model with embedding_norm = True"):
        plan(model, "rwkv_blinkdl", roles)
    with pytest.raises(ValueError, match="'mup_table8' needs a model with multiplier logits = 2"):
        plan(model, "mup_table8", roles, base_width=2 * D)
    said = Structure(multipliers={"logits": 2.0})
    assert plan(model, "mup_table8", roles, structure=said, base_width=2 * D).forward == {"logits": 2.0}


@pytest.mark.parametrize("use_bias", [False, True])
def test_mamba_keeps_what_is_its_own(use_bias: bool) -> None:
    """Time steps, decays, convolution and skip stay to the bit; the rest is N(0.1), outputs U(fan_in**-0.5)."""
    torch.manual_seed(0)
    before = {name: values.detach().clone() for name, values in mamba(use_bias=use_bias).named_parameters()}
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
            assert torch.equal(values, torch.full_like(values, 0.0 if end.endswith("bias") else 1.0)), name


def test_mup_groups_of_a_foreign_model() -> None:
    """m = 2: matrices at half the rate, vectors, embedding and what is Mamba's own at the whole."""
    model, roles = mamba(), RoleTable.from_toml(ROLES / "mamba.toml")
    said = Structure(multipliers={"logits": 0.5})
    planned = plan(model, "mup_table8", roles, structure=said, base_width=D / 2)
    rates = {id(p): g["lr"] for g in planned.param_groups(model, 1e-3, 0.1) for p in g["params"]}
    assert len(rates) == len(list(model.parameters()))
    for name, values in model.named_parameters():
        halved = name.endswith(("in_proj.weight", "out_proj.weight"))
        assert rates[id(values)] == pytest.approx(5e-4 if halved else 1e-3), name


@pytest.mark.parametrize("kind", MODELS)
def test_foreign_models_still_run_and_train(kind: str) -> None:
    model, planned = filled(kind, "megatron_default")
    tokens = torch.randint(0, 300, (2, 16), generator=torch.Generator().manual_seed(0))
    loss = model(input_ids=tokens, labels=tokens).loss
    assert float(loss.detach()) == pytest.approx(math.log(300), rel=0.05)
    loss.backward()
    torch.optim.AdamW(planned.param_groups(model, 1e-3, 0.1)).step()


@pytest.mark.parametrize("kind", MODELS)
def test_a_head_of_its_own_and_the_bare_model_have_roles_too(kind: str) -> None:
    model, planned = filled(kind, "lm_engine_fan_in", tie_word_embeddings=False)
    assert [e.parameter.name for e in planned.entries if e.parameter.role == "head"] == ["lm_head.weight"]
    body = model.transformer if kind == "gpt2" else model.backbone
    plan(body, "megatron_default", RoleTable.from_toml(ROLES / f"{kind}.toml"))


UNREAD = [
    ("a = { role = 'key', transposed = 'no' }", "roles: 'a': transposed must be true or false, got 'no'"),
    ("a = " + "[" * 5000 + "]" * 5000, "nested too deep for a table of roles"),
]


def test_bad_role_files_are_named(tmp_path: Path) -> None:
    for text, message in (("a = ", "Invalid value"), ("a = 'valu'", "roles: 'a': role must be one of"), *UNREAD):
        path = tmp_path / "roles.toml"
        path.write_text(text)
        with pytest.raises(ValueError, match=rf"roles.toml: {message}"):
            RoleTable.from_toml(path)
    with pytest.raises(ValueError, match=r"none.toml: no such file"):
        RoleTable.from_toml(tmp_path / "none.toml")
