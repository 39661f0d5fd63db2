"""The rwkv_* schemes: gains and bounds by hand, and what acts on an SSM."""

import math

import pytest
import torch
from torch import Tensor, nn

from plkernel.models.init.planning import plan
from plkernel.models.init.rwkv_vectors import VERSIONS
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.ssm import SSM, SSMConfig
from plkernel.models.structure import Structure

D, L, HEAD = 128, 3, 32
CASES = [(scheme, model) for scheme, version in VERSIONS.items() for model in version.models if model < 7]
OFFICIAL = list(dict(CASES))
CASES += [("rwkv_naive", model) for model in (5, 6)]
PAPER = ("rwkv_eagle_paper", "rwkv_finch_paper")


def build(scheme: str, version: int, dim: int = D, layers: int = L) -> RWKV:
    structure = Structure(norm="rms", tied=True) if scheme == "rwkv_naive" else Structure()
    return RWKV(RWKVConfig(version, dim, layers, HEAD, structure=structure))


def drawn(scheme: str, version: int, **options: float) -> dict[str, Tensor]:
    model = build(scheme, version)
    plan(model, scheme, **options).apply_(model, seed=3)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def gains(matrix: Tensor) -> tuple[float, float]:
    """Smallest and largest singular value."""
    values = torch.linalg.svdvals(matrix.double())
    return values.min().item(), values.max().item()


def bounded(values: Tensor, bound: float) -> None:
    """U(bound): never beyond it, nearly up to it, and of its standard deviation."""
    assert 0.999 * bound < values.abs().max().item() <= bound * (1 + 1e-6)
    assert values.square().mean().sqrt().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)


@pytest.mark.parametrize("scheme", [name for name in OFFICIAL if name != "rwkv_blinkdl"])
def test_the_learning_rate_bounds_the_embedding(scheme: str) -> None:
    version = VERSIONS[scheme].models[0]
    bounded(drawn(scheme, version)["emb.weight"], 6e-4)
    bounded(drawn(scheme, version, learning_rate=1e-5)["emb.weight"], 1e-5)


def test_today_by_hand() -> None:
    """Width 128: head 0.5 sqrt(256 / 128), low-rank 0 and U(0.01), channel 8 of block 1 in each exact vector."""
    found = drawn("rwkv_blinkdl", 6)
    bounded(found["emb.weight"], 1e-4)
    assert gains(found["head.weight"]) == pytest.approx((0.5 * math.sqrt(2),) * 2, rel=1e-5)
    for block in range(L):
        for matrix, gain in (("receptance", 1), ("value", 1), ("key", 0.1), ("gate", 0.1)):
            assert gains(found[f"blocks.{block}.att.{matrix}.weight"]) == pytest.approx((gain, gain), rel=1e-5)
        assert gains(found[f"blocks.{block}.ffn.key.weight"]) == pytest.approx((1, 1), rel=1e-5)
        for matrix in ("att.output", "ffn.value", "ffn.receptance"):
            assert found[f"blocks.{block}.{matrix}.weight"].abs().max() == 0
        assert found[f"blocks.{block}.att.time_maa_w1"].abs().max() == 0
        bounded(found[f"blocks.{block}.att.time_maa_w2"], 0.01)
    share = 8 / D
    vectors = {
        "att.time_maa_x": 1 - share ** (2 / 3),
        "att.time_maa_v": 1 - (share ** (2 / 3) + 0.15),
        "att.time_maa_g": 1 - share ** (1 / 3),
        "ffn.time_maa_k": 1 - share ** ((2 / 3) ** 3),
        "att.time_decay": -6 + 5 * (8 / 127) ** 1.35,
        "att.time_faaaa": 0.5 * (1 - 8 / 127) + 0.1 * (9 % 3 - 1),
        "att.ln_x.weight": (2 / 3) ** 0.7,
    }
    for name, expected in vectors.items():
        assert found[f"blocks.1.{name}"].flatten()[8].item() == pytest.approx(expected, abs=1e-6), name


@pytest.mark.parametrize("scheme", [name for name in OFFICIAL if name != "rwkv_blinkdl"])
def test_older_versions_by_hand(scheme: str) -> None:
    """ffn.key, of gain sqrt(3.5) in the code and 3.5 in the paper; square matrices; head; u of block 1, channel 8."""
    version, paper = VERSIONS[scheme].models[0], scheme in PAPER
    found = drawn(scheme, version)
    assert gains(found["head.weight"]) == pytest.approx((0.5 if paper else 0.5 * math.sqrt(2),) * 2, rel=1e-5)
    assert gains(found["blocks.1.ffn.key.weight"]) == pytest.approx((3.5 if paper else math.sqrt(3.5),) * 2, rel=1e-5)
    for matrix in ("receptance", "key", "value", "gate"):
        weight = found[f"blocks.1.att.{matrix}.weight"]
        if paper:
            bounded(weight, D**-0.5)
        else:
            assert gains(weight) == pytest.approx((1, 1), rel=1e-5)
    u = 0.5 * (1 - 8 / 127) + 0.1 * (9 % 3 - (0 if paper else 1))
    assert found["blocks.1.att.time_faaaa"].flatten()[8].item() == pytest.approx(u, abs=1e-6)
    if version == 6:
        bounded(found["blocks.1.att.time_decay_w1"], 1e-4)
        bounded(found["blocks.1.att.time_maa_w2"], 1e-4)


def test_naive_by_hand() -> None:
    found = drawn("rwkv_naive", 6)
    assert "head.weight" not in found
    assert found["emb.weight"].std().item() == pytest.approx(1, rel=0.02)
    bounded(found["blocks.2.att.output.weight"], D**-0.5)
    bounded(found["blocks.2.ffn.receptance.weight"], D**-0.5)
    bounded(found["blocks.2.ffn.value.weight"], 0.5 * math.sqrt(6 / (D + 448)))


def test_rates_and_decay() -> None:
    """Today's code trains time_decay at twice the rate and decays true matrices; the naive side decays everything."""
    for scheme, version in CASES:
        for entry in plan(build(scheme, version), scheme).entries:
            name = entry.parameter.name
            twice = scheme == "rwkv_blinkdl" and name.endswith("time_decay")
            assert entry.learning_rate == (2 if twice else 1), name
            assert entry.eps == 1
            matrix = name.endswith(".weight") and "ln" not in name
            assert entry.weight_decay == (1 if matrix or scheme == "rwkv_naive" else 0), name


def test_a_version_of_the_other_model_is_refused() -> None:
    with pytest.raises(ValueError, match="scheme 'rwkv_eagle_paper' is not for RWKV-6: use one of rwkv_blinkdl"):
        plan(build("rwkv_finch_paper", 6), "rwkv_eagle_paper")


@pytest.mark.parametrize(
    ("scheme", "model", "missing"),
    [
        ("rwkv_naive", RWKV(RWKVConfig(6, 32, 1, 16, structure=Structure(norm="rms"))), "tied = True"),
        ("rwkv_naive", RWKV(RWKVConfig(6, 32, 1, 16, structure=Structure(tied=True))), "norm = 'rms'"),
        ("rwkv_blinkdl", RWKV(RWKVConfig(6, 32, 1, 16, structure=Structure(norm="rms"))), "norm = 'layer'"),
        ("rwkv_blinkdl", SSM(SSMConfig(16, 1)), "embedding_norm = True"),
    ],
)
def test_needs(scheme: str, model: nn.Module, missing: str) -> None:
    with pytest.raises(ValueError, match=f"scheme '{scheme}' needs a model with {missing}"):
        plan(model, scheme)


@pytest.mark.parametrize("scheme", OFFICIAL)
def test_on_an_ssm(scheme: str) -> None:
    """B is the value, gate and up are ffn.key, C_proj and down start at zero, and D and the decays are the model's."""
    model = SSM(SSMConfig(D, L, structure=Structure(embedding_norm=True)))
    for recurrence in model.recurrences():
        nn.init.constant_(recurrence.log_rate, -2.5)
    plan(model, scheme).apply_(model, seed=0)
    ratio = 170 / D
    wider = 1.0 if scheme == "rwkv_blinkdl" else ratio if scheme in PAPER else math.sqrt(ratio)
    for name, weight in model.named_parameters():
        if name.endswith(("gate.weight", "up.weight")):
            assert gains(weight.detach()) == pytest.approx((wider, wider), rel=1e-5)
        elif name.endswith(("C_proj.weight", "C_proj.bias", "down.weight")):
            assert weight.abs().max() == 0
        elif name.endswith("ssm.B.weight") and scheme in PAPER:
            bounded(weight.detach(), D**-0.5)
        elif name.endswith("ssm.B.weight"):
            assert gains(weight.detach()) == pytest.approx((1, 1), rel=1e-5)
        elif name.endswith("log_rate"):
            assert torch.equal(weight, torch.full((D,), -2.5))
