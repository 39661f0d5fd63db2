"""Plans: what a scheme does, as data: equal on the meta device, independent of order, and held by
no tensor.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from plkernel.analysis.nodes import place
from plkernel.models.init import RoleTable, asked, initialise_, plan
from plkernel.models.init.distributions import (
    KEEP,
    Distribution,
    constant,
    cut,
    normal,
    orthogonal,
    rescaled,
    uniform,
)
from plkernel.models.init.plan import Plan
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.rwkv7 import RWKV7, RWKV7Config
from plkernel.models.ssm import SSM, SSMConfig

MODELS = {
    "ssm": lambda: SSM(SSMConfig(32, 2)),
    "rwkv5": lambda: RWKV(RWKVConfig(5, 32, 2, 16)),
    "rwkv6": lambda: RWKV(RWKVConfig(6, 32, 2, 16)),
}


def mup(model: nn.Module, base_width: int) -> Plan:
    """A plan with multipliers of every kind, for a model that is said to multiply its logits as
    asked.
    """
    scheme = "megatron_mup"
    return plan(
        model, scheme, structure=asked(model, scheme, base_width=base_width), base_width=base_width
    )


class Fused(nn.Module):
    """A model of someone else's, with one fused matrix stored (in, out), as GPT-2's."""

    def __init__(self, reverse: bool = False) -> None:
        super().__init__()
        self.wte = nn.Embedding(50, 12)
        block = nn.Module()
        for name in ("proj", "attn") if reverse else ("attn", "proj"):
            block.register_parameter(
                name, nn.Parameter(torch.zeros((24, 12) if name == "proj" else (12, 36)))
            )
        self.h = nn.ModuleList([block])


ROLES = RoleTable.from_dict(
    {
        "wte.weight": "embedding",
        "h.*.attn": {"parts": ["query", "key", "value"], "transposed": True},
        "h.*.proj": {"role": "mixer_out", "transposed": True},
    }
)


def same(a: nn.Module, b: nn.Module) -> bool:
    """Equal values under equal names; decays, which no scheme sets, aside."""
    theirs = dict(b.named_parameters())
    return all(
        torch.equal(x, theirs[name]) for name, x in a.named_parameters() if "log_rate" not in name
    )


def test_values_depend_on_seed_and_name_alone() -> None:
    models = [Fused(), Fused(reverse=True)]
    assert [name for name, _ in models[0].named_parameters()] != [
        name for name, _ in models[1].named_parameters()
    ]
    for model in models:
        plan(model, "megatron_default", ROLES).apply_(model, 0)
    assert same(*models)
    deep, shallow, other = SSM(SSMConfig(16, 3)), SSM(SSMConfig(16, 1)), SSM(SSMConfig(16, 1))
    for model, seed in ((deep, 5), (shallow, 5), (other, 6)):
        plan(model, "megatron_xavier_uniform").apply_(model, seed)
    assert same(shallow, deep)
    assert not torch.equal(shallow.embedding.weight, other.embedding.weight)
    assert not torch.equal(shallow.blocks[0].mlp.gate.weight, shallow.blocks[0].mlp.up.weight)


def test_param_groups_hold_every_parameter_once_with_its_multipliers() -> None:
    model = RWKV(RWKVConfig(6, 32, 2, 16))
    groups = mup(model, 16).param_groups(model, 1e-3, 0.1, eps=1e-6)
    by_id = {id(p): group for group in groups for p in group["params"]}
    assert (
        len(by_id) == sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    )
    hidden, free, head = (
        by_id[id(p)]
        for p in (model.blocks[0].att.key.weight, model.blocks[0].att.time_decay, model.head.weight)
    )
    assert (hidden["lr"], hidden["weight_decay"], hidden["eps"]) == (5e-4, 0.1, 5e-7)
    assert (free["lr"], free["weight_decay"]) == (1e-3, 0.0)
    assert (head["lr"], head["weight_decay"]) == (1e-3, 0.1)
    usual = mup(model, 16).param_groups(model, 1e-3, 0.1)
    assert (
        max(group["eps"] for group in usual)
        == torch.optim.AdamW([hidden["params"][0]]).defaults["eps"]
    )


@pytest.mark.parametrize("kind", MODELS)
def test_a_plan_of_the_meta_device_is_the_plan(kind: str) -> None:
    with torch.device("meta"):
        early = mup(MODELS[kind](), 16)
    model = MODELS[kind]()
    assert early == mup(model, 16)
    early.apply_(model, 3)
    assert all(
        parameter.isfinite().all()
        for name, parameter in model.named_parameters()
        if "log_rate" not in name
    )


def test_labels_say_which_slice_of_how_many() -> None:
    labels = [entry.parameter.label for entry in plan(Fused(), "megatron_default", ROLES).entries]
    slices = [f"h.0.attn[{number}/3]" for number in (1, 2, 3)]
    assert labels == ["wte.weight", *slices, "h.0.proj"]


@pytest.mark.parametrize(
    ("distribution", "text"),
    [
        (normal(0.02), "N(0.02)"),
        (cut(0.02, 3), "T(0.02, 3)"),
        (cut(0.02, 0.5), "T(0.02, 0.5)"),
        (rescaled(0.1), "J(0.1)"),
        (uniform(1 / 3), "U(0.3333)"),
        (orthogonal(0.5), "O(0.5)"),
        (constant(1), "C(1)"),
        (KEEP, "as the model has it"),
        (Distribution("vector", version="rwkv_blinkdl"), "as in rwkv_blinkdl"),
    ],
)
def test_distributions_print_by_their_letters(distribution: Distribution, text: str) -> None:
    assert str(distribution) == text


@pytest.mark.parametrize("distribution", [KEEP, Distribution("vector", version="rwkv_blinkdl")])
def test_what_a_model_has_is_not_drawn(distribution: Distribution) -> None:
    with pytest.raises(ValueError, match=f"one that can be drawn, got '{distribution.kind}'"):
        distribution.draw((2, 2), torch.Generator())


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("normal", {"scale": -0.1}, "scale of normal must be a finite number of at least 0"),
        ("uniform", {"scale": float("nan")}, "scale of uniform must be a finite number"),
        ("truncated", {"scale": 1.0, "cutoff": 0.0}, "cutoff must be positive, got 0.0"),
    ],
)
def test_scales_that_cannot_be_are_refused(
    kind: Any, values: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Distribution(kind, **values)
    assert constant(-1).scale == -1


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (
            {"wte.weight": "embedding"},
            r"every parameter must match one pattern, got h.0.attn \(no pattern\)",
        ),
        ({"*": "embedding", "h.*": "value"}, r"h.0.attn \('\*' and 'h.\*'\)"),
        (
            {"wte.weight": "embedding", "h.*": {"parts": ["key"] * 5, "transposed": True}},
            "must be 5 equal parts, got 36",
        ),
        ({"*": "value"}, "roles must give a parameter the role 'embedding'"),
    ],
)
def test_a_parameter_without_exactly_one_role_is_refused(
    roles: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        plan(Fused(), "megatron_default", RoleTable.from_dict(roles))


def test_a_plan_is_for_one_model() -> None:
    model = SSM(SSMConfig(8, 1))
    with pytest.raises(ValueError, match="roles must be given for a Fused"):
        plan(Fused(), "megatron_default")
    with pytest.raises(
        ValueError, match=r"must have the parameters of the plan, got blocks.1.* in the plan alone"
    ):
        plan(SSM(SSMConfig(8, 2)), "megatron_default").apply_(model, 0)


def test_multipliers_of_the_forward_pass_are_not_forgotten() -> None:
    """A model that does not multiply as the scheme asks, or multiplies unasked, is refused by
    name.
    """
    options = {"base_width": 4}
    with pytest.raises(
        ValueError, match=r"model must have multiplier logits = 0.25 for scheme 'megatron_mup'"
    ):
        plan(SSM(SSMConfig(16, 1)), "megatron_mup", **options)
    structure = asked(SSM(SSMConfig(16, 1)), "megatron_mup", **options)
    built = SSM(SSMConfig(16, 1, structure=structure))
    assert plan(built, "megatron_mup", **options).forward == {"logits": 0.25}
    with pytest.raises(ValueError, match="model must have multiplier logits = 1"):
        plan(built, "megatron_default")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = ", "Invalid value"),
        ("x = 'valu'", "roles: 'x': role: Input should be 'embedding'"),
        (
            "x = { parts = ['key'], transpose = true }",
            "roles: 'x': transpose: Extra inputs are not permitted",
        ),
        ("x = {}", "roles: 'x': a rule must have a role or parts, got neither"),
        ("x = 3", "roles: 'x': rule: Input should be a valid dictionary"),
        (
            "x = { role = 'key', transposed = 'no' }",
            "roles: 'x': transposed: Input should be a valid boolean",
        ),
        ("x = { parts = 'key' }", "roles: 'x': parts: Input should be a valid tuple"),
        (None, "no such file; by name there are gpt2, mamba"),
    ],
)
def test_bad_role_files_are_named(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "roles.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=rf"roles.toml: {message}"):
        RoleTable.from_toml(path)


KINDS: dict[str, Callable[[], Any]] = {
    "ssm": lambda: SSM(SSMConfig(32, 2, shape_multiplier=True)),
    "scaled": lambda: SSM(SSMConfig(32, 2, patch=2, scaling_length=40.0)),
    "ordered": lambda: SSM(SSMConfig(32, 2, parametrisation="ordered")),
    "rwkv5": MODELS["rwkv5"],
    "rwkv6": MODELS["rwkv6"],
    "rwkv7": lambda: RWKV7(RWKV7Config(32, 2, 16)),
    "scaled7": lambda: RWKV7(RWKV7Config(32, 2, 16, scaling_length=40.0)),
    "ordered7": lambda: RWKV7(RWKV7Config(32, 2, 16, parametrisation="ordered")),
}
DISTRIBUTIONS = (
    "megatron_default",
    "cerebras_default",
    "maxtext",
    "llm_foundry_xavier_uniform",
    "sp_torch_default",
)
"""Schemes that draw from a normal, a truncated, a rescaled and a uniform distribution."""


@contextmanager
def defaults(dtype: torch.dtype, device: str) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


@pytest.mark.parametrize("scheme", DISTRIBUTIONS)
@pytest.mark.parametrize("kind", ["ssm", "rwkv7"])
def test_a_seed_gives_the_same_model_under_other_defaults(kind: str, scheme: str) -> None:
    expected = initialise_(KINDS[kind](), scheme, 0).state_dict()
    for dtype, device in (
        (torch.bfloat16, "cpu"),
        (torch.float64, "cpu"),
        (torch.float32, "meta"),
    ):
        model = KINDS[kind]()
        with defaults(dtype, device):
            initialise_(model, scheme, 0)
        for name, values in model.state_dict().items():
            assert torch.equal(values, expected[name]), name


def test_a_model_on_the_meta_device_is_not_filled() -> None:
    with torch.device("meta"):
        model = SSM(SSMConfig(16, 1))
    message = r'embedding.weight on the meta device; call model.to_empty\(device="cpu"\) first'
    with pytest.raises(ValueError, match=message):
        initialise_(model, "megatron_default", 0)
    planned = plan(model, "megatron_default")
    model.embedding.to_empty(device="cpu")
    with pytest.raises(ValueError, match=r"got blocks.0.* on the meta device"):
        planned.apply_(model, 0)


def test_a_model_of_inference_mode_is_not_filled() -> None:
    with torch.inference_mode():
        model = SSM(SSMConfig(16, 1))
    with pytest.raises(ValueError, match=r"got embedding.weight of inference mode; build"):
        initialise_(model, "megatron_default", 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_the_meta_device_is_initialised_as_one_that_is_built(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decays, which no scheme sets, and buffers too: memory may hold anything."""
    scheme = "rwkv7_official" if kind.endswith("7") else "megatron_default"
    expected = initialise_(KINDS[kind](), scheme, 0).state_dict()
    with torch.device("meta"):
        model = KINDS[kind]()

    def garbage(one: Tensor, **options: Any) -> Tensor:
        return torch.full_like(one, 7.0, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty_like", garbage)
        model.to_empty(device="cpu")
    initialise_(model, scheme, 0)
    found = model.state_dict()
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert torch.equal(found[name], values), name


@pytest.mark.parametrize("kind", ["ssm", "scaled", "rwkv6", "scaled7"])
def test_decays_are_placed_and_measured_alike_under_other_defaults(kind: str) -> None:
    lags = torch.arange(1, 9)

    def measured(model: Any) -> list[Tensor]:
        nodes = place(16 if kind.startswith("rwkv") or kind == "scaled7" else 32, shortest=2.0)
        model.place_(nodes)
        return [*model.half_lives(), *model.kernels(lags), *model.responses(lags)]

    def initialised() -> Any:
        return initialise_(KINDS[kind](), "rwkv7_official" if kind == "scaled7" else "maxtext", 0)

    expected = measured(initialised())
    for dtype, device in ((torch.bfloat16, "cpu"), (torch.float32, "meta")):
        model = initialised()
        with defaults(dtype, device):
            found = measured(model)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)
