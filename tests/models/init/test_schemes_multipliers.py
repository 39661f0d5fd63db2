"""Multipliers of schemes of papers: rates, weight decay and forward multipliers, against the formulas."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
from torch import nn

from plkernel.models.init.plan import Entry, Plan
from plkernel.models.init.planning import asked, plan
from plkernel.models.init.roles import RoleTable
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.ssm import SSM, SSMConfig
from plkernel.models.structure import Structure

D, L = 128, 3  # width, layers
MUP = {"base_width": 64}  # m = 2


def fitting(model: nn.Module, scheme: str, roles: RoleTable | None = None, **options: Any) -> Plan:
    """The plan, as for a model that is built as the scheme asks: draws and multipliers are the same."""
    return plan(model, scheme, roles, structure=asked(model, scheme, roles, **options), **options)


def ours(**needs: Any) -> nn.Module:
    return SSM(SSMConfig(D, L, structure=Structure(**needs)))


def multipliers(planned: Plan, kind: str) -> dict[str, set[float]]:
    """The multipliers of every parameter, by the end of its name."""
    found: dict[str, set[float]] = {}

    def value(entry: Entry) -> float:
        return float(getattr(entry, kind))

    for entry in planned.entries:
        end = entry.parameter.name.split(".", 2)[2] if entry.parameter.layer is not None else entry.parameter.name
        found.setdefault(end, set()).add(round(value(entry), 12))
    return found


def expect(found: dict[str, set[float]], expected: Mapping[str, float], otherwise: float = 1) -> None:
    for name, values in found.items():
        assert len(values) == 1, name
        assert values.pop() == pytest.approx(expected.get(name, otherwise), rel=1e-9), name


SSM_MATRICES = ("ssm.B.weight", "ssm.C_proj.weight", "mlp.gate.weight", "mlp.up.weight", "mlp.down.weight")
LOW_RANK_IN = ("att.time_maa_w1", "att.time_decay_w1")
DECAYED = {name: 1.0 for name in (*SSM_MATRICES, "embedding.weight", "head.weight")}
HEAD_TIMES_2 = {"head.weight": 2.0}


def test_rates_and_decay_of_mup() -> None:
    model, rwkv, m = ours(), RWKV(RWKVConfig(6, D, L, 32)), 2
    eighth, third = fitting(model, "mup_table8", **MUP), fitting(model, "mup_table3", **MUP)
    hidden = {name: 1 / m for name in SSM_MATRICES}
    expect(multipliers(eighth, "learning_rate"), hidden)
    expect(multipliers(third, "learning_rate"), hidden | {"head.weight": 1 / m})
    expect(multipliers(eighth, "weight_decay"), DECAYED | {name: m for name in SSM_MATRICES}, 0)
    expect(multipliers(third, "weight_decay"), {name: m if name in hidden else 1 for name in DECAYED} | HEAD_TIMES_2, 0)
    expect(multipliers(third, "eps"), HEAD_TIMES_2)
    assert eighth.forward == {"logits": 1 / m}
    assert third.forward == {}
    assert fitting(model, "mup_table8", output_multiplier=3, **MUP).forward == {"logits": 3 / m}
    own = multipliers(fitting(rwkv, "mup_table8", **MUP), "learning_rate")
    assert all(own[name] == {1 / m} for name in LOW_RANK_IN)
    assert all(own[name] == {1.0} for name in ("att.time_decay", "att.time_maa_w2", "att.time_faaaa", "ln1.weight"))


def test_mup_at_the_base_width_is_the_standard_parametrisation() -> None:
    planned = fitting(ours(), "mup_table8", base_width=D)
    expect(multipliers(planned, "learning_rate"), {})
    assert planned.forward == {"logits": 1.0}


@pytest.mark.parametrize("scheme", ["mup_table3", "mup_table8"])
@pytest.mark.parametrize("sgd", [False, True])
def test_rates_of_mup_are_those_of_its_tables(scheme: str, sgd: bool) -> None:
    """Tables 3 and 8 of Tensor Programs V: the power of the width in the rates, by kind of weight, SGD and Adam."""
    table = {
        ("mup_table3", True): {"input": 1, "hidden": 0, "output": -1},
        ("mup_table3", False): {"input": 0, "hidden": -1, "output": -1},
        ("mup_table8", True): {"input": 1, "hidden": 0, "output": 1},
        ("mup_table8", False): {"input": 0, "hidden": -1, "output": 0},
    }[scheme, sgd]
    planned = fitting(ours(), scheme, sgd=sgd, base_width=32)
    assert planned.optimizer == ("sgd" if sgd else "adam")
    kinds = dict.fromkeys(SSM_MATRICES, "hidden") | {"head.weight": "output"}
    found = multipliers(planned, "learning_rate")
    expect(found, {name: (D / 32) ** table[kinds.get(name, "input")] for name in found})
    if (scheme, sgd) == ("mup_table8", True):  # the product of rate and decay does not depend on the width
        expect(multipliers(planned, "weight_decay"), DECAYED | {"embedding.weight": 1 / 4, "head.weight": 1 / 4}, 0)


def test_rates_of_spectral() -> None:
    """The norm of an update is sqrt(fan_out / fan_in): 1 / fan_in for Adam, fan_out / fan_in for SGD; vectors have a
    fan_in of 1. nanotron has the second for Adam, and leaves embedding and vectors out."""
    rates = {"mlp.gate.weight": 170 / D, "mlp.up.weight": 170 / D, "mlp.down.weight": D / 170, "head.weight": 2}
    expect(multipliers(fitting(ours(), "nanotron_spectral_mup"), "learning_rate"), rates)
    vectors = ("embedding.weight", "norm.weight", "norm.bias", "ssm.C_proj.bias")
    vectors += tuple(f"norm{i}.{kind}" for i in (1, 2) for kind in ("weight", "bias"))
    square = dict.fromkeys(("ssm.B.weight", "ssm.C_proj.weight", "ssm.D", "ssm.log_rate"), 1)
    sgd = fitting(ours(), "spectral", sgd=True)
    expect(multipliers(sgd, "learning_rate"), rates | square | dict.fromkeys(vectors, D))
    adam = dict.fromkeys(SSM_MATRICES, 64 / D) | {"mlp.down.weight": 64 / 170, "head.weight": 64 / D}
    planned = fitting(ours(), "spectral", base_width=64)
    expect(multipliers(planned, "learning_rate"), adam)
    expect(multipliers(planned, "weight_decay"), DECAYED, 0)


@pytest.mark.parametrize("scheme", ["mup_table8", "mup_table3", "spectral"])
def test_a_base_width_of_zero_is_refused(scheme: str) -> None:
    with pytest.raises(ValueError, match="base_width must be positive, got 0"):
        fitting(ours(), scheme, base_width=0)


def test_rates_decay_and_branches_of_u_mup() -> None:
    planned = fitting(ours(unit_scaled=True), "u_mup")
    rates = {name: (D * L) ** -0.5 for name in SSM_MATRICES} | {"mlp.down.weight": (170 * L) ** -0.5}
    rates |= {"embedding.weight": D**-0.5, "head.weight": 1}
    expect(multipliers(planned, "learning_rate"), rates, L**-0.5)
    decays = {name: 1 / rates[name] for name in DECAYED}
    expect(multipliers(planned, "weight_decay"), decays, 0)
    by_hand = {"mixer.0": 3, "ffn.0": 4, "mixer.1": 5, "ffn.1": 6, "mixer.2": 7, "ffn.2": 8}
    assert planned.forward == {name: pytest.approx(before**-0.5) for name, before in by_hand.items()}


def test_branches_of_u_mup_contribute_as_asked() -> None:
    """Composing (x + tau f) / sqrt(1 + tau**2): shares of variance in the end, against the embedding's."""
    forward = fitting(ours(unit_scaled=True), "u_mup", residual_mult=0.5, residual_attn_ratio=2).forward
    shares = {"embedding": 1.0}
    for name, tau in forward.items():
        shares = {key: value / (1 + tau**2) for key, value in shares.items()} | {name: tau**2 / (1 + tau**2)}
    mixer, ffn = ([shares[f"{kind}.{layer}"] for layer in range(L)] for kind in ("mixer", "ffn"))
    assert max(mixer) == pytest.approx(min(mixer))
    assert max(ffn) == pytest.approx(min(ffn))
    assert mixer[0] / ffn[0] == pytest.approx(2**2)
    assert (sum(mixer) + sum(ffn)) / 2 / shares["embedding"] == pytest.approx(0.5**2)


def test_forward_multipliers_of_embeddings() -> None:
    by_width = {"embedding": pytest.approx(math.sqrt(D))}
    assert fitting(ours(placement="sandwich"), "trinity").forward == by_width
    assert fitting(ours(), "spike_scaled_embed").forward == by_width
    assert fitting(ours(), "spike_scaled_embed", fold=True).forward == {}


def test_fixup_needs_two_matrices() -> None:
    with pytest.raises(ValueError, match="matrices must be at least 2, got 1"):
        fitting(ours(), "fixup", matrices=1)


@pytest.mark.parametrize(("mult", "ratio"), [(1.0, 1.0), (0.5, 2.0)])
def test_u_mup_is_that_of_its_package(mult: float, ratio: float) -> None:
    """tau of every branch, rates and weight decay of a decoder of the same sizes, by unit_scaling."""
    peer = pytest.importorskip("unit_scaling", reason="the package of the paper, unit-scaling, is not installed")
    from unit_scaling.optim import lr_scale_func_adam, scaled_parameters

    planned = fitting(ours(unit_scaled=True), "u_mup", residual_mult=mult, residual_attn_ratio=ratio)
    rule = peer.transformer_residual_scaling_rule(residual_mult=mult, residual_attn_ratio=ratio)
    assert list(planned.forward.values()) == pytest.approx([rule(i, 2 * L) for i in range(2 * L)])
    decoder = peer.TransformerDecoder(D, 256, layers=L, heads=4)
    names = {id(parameter): name for name, parameter in decoder.named_parameters()}
    groups = scaled_parameters(decoder.parameters(), lr_scale_func_adam, lr=1.0, weight_decay=1.0)
    by_name = {
        names[id(p)]: (float(group["lr"]), float(group["weight_decay"])) for group in groups for p in group["params"]
    }
    found = {entry.parameter.name: (entry.learning_rate, entry.weight_decay) for entry in planned.entries}
    same = {
        "embedding.weight": "embedding.weight",
        "head.weight": "projection.weight",
        "blocks.1.ssm.C_proj.weight": "layers.1.mhsa.linear_o.weight",
        "blocks.1.mlp.up.weight": "layers.1.mlp.linear_1.weight",
    }
    for ours_name, theirs in same.items():
        assert found[ours_name] == pytest.approx(by_name[theirs]), ours_name
