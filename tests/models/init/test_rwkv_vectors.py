"""The initialisations of Eagle and Finch by name: exact vectors, gains, bounds, and what tells them apart."""

import math

import pytest
import torch
from torch import Tensor

from plkernel.models.init import initialise_, plan
from plkernel.models.init.rwkv_vectors import VERSIONS, check_version
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.structure import Structure

DIM, LAYERS, HEAD_SIZE = 64, 3, 16
FIRST = {5: "mix", 6: "maa"}
NAIVE = Structure(norm="rms", tied=True)
CASES = [(scheme, model) for scheme, version in VERSIONS.items() for model in version.models if model < 7]
PAPER = ("rwkv_eagle_paper", "rwkv_finch_paper")


def build(scheme: str, version: int | None = None, *, layers: int = LAYERS, dim: int = DIM, seed: int = 0) -> RWKV:
    structure = NAIVE if scheme == "rwkv_naive" else Structure()
    config = RWKVConfig(version or VERSIONS[scheme].models[0], dim, layers, HEAD_SIZE, structure=structure)
    return initialise_(RWKV(config), scheme, seed)


def weights(scheme: str, version: int | None = None, **options: int) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in build(scheme, version, **options).named_parameters()}


def close(found: Tensor, expected: list[float]) -> bool:
    """Equal to the float32 rounding of numbers of order one."""
    return torch.allclose(found.ravel().double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-7, atol=6e-8)


def gains(matrix: Tensor) -> tuple[float, float]:
    """Smallest and largest singular value."""
    values = torch.linalg.svdvals(matrix.double())
    return values.min().item(), values.max().item()


def expected_mu(stream: str, block: int, layers: int, power: float = 1.0) -> list[float]:
    """mu of the token shift, channel by channel, from the formulas of the official code."""
    r0 = block / (layers - 1) if layers > 1 else 0.0
    exponent = (1 - block / layers) ** power * (0.5 if stream in "rg" and power == 1.0 else 1.0)
    extra = 0.3 * r0 if stream == "v" else 0.0
    return [1 - (math.pow(i / DIM, exponent) + extra) for i in range(DIM)]


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize(("scheme", "version"), CASES)
def test_token_shift_of_every_scheme(scheme: str, version: int, layers: int) -> None:
    """Finch stores mu, Eagle 1 - mu."""
    found = weights(scheme, version, layers=layers)
    for block in range(layers):
        for stream in "xwkvrg" if version == 6 else "kvrg":
            mu = expected_mu(stream, block, layers)
            values = mu if version == 6 else [1 - value for value in mu]
            assert close(found[f"blocks.{block}.att.time_{FIRST[version]}_{stream}"], values), stream


def test_token_shift_by_hand() -> None:
    """Block 1 of 3, channel 8 of 64: r0 = 1/2, r1 = 2/3, i / D = 1/8, whose powers 2/3 and 1/3 are 1/4 and 1/2."""
    finch = weights("rwkv_finch_code_2024_02")
    eagle = weights("rwkv_eagle_code_2023")
    for stream, mu in {"x": 0.75, "w": 0.75, "k": 0.75, "v": 0.6, "r": 0.5, "g": 0.5}.items():
        assert finch[f"blocks.1.att.time_maa_{stream}"][0, 0, 8].item() == pytest.approx(mu, rel=1e-7)
        if stream not in "xw":
            assert eagle[f"blocks.1.att.time_mix_{stream}"][0, 0, 8].item() == pytest.approx(1 - mu, rel=1e-7)
    assert finch["blocks.1.ffn.time_maa_k"][0, 0, 8].item() == pytest.approx(0.75, rel=1e-7)
    assert eagle["blocks.1.ffn.time_mix_r"][0, 0, 8].item() == pytest.approx(0.25, rel=1e-7)


@pytest.mark.parametrize(("scheme", "version"), CASES)
def test_token_shift_of_the_channel_mixing(scheme: str, version: int) -> None:
    """The exponent is r1; in today's Finch it is its cube."""
    power = 3.0 if (scheme, version) == ("rwkv_blinkdl", 6) else 1.0
    found = weights(scheme, version)
    for block in range(LAYERS):
        mu = expected_mu("k", block, LAYERS, power)
        for stream in "kr":
            values = mu if version == 6 else [1 - value for value in mu]
            assert close(found[f"blocks.{block}.ffn.time_{FIRST[version]}_{stream}"], values)


@pytest.mark.parametrize(("scheme", "version"), CASES)
def test_decays_and_u(scheme: str, version: int) -> None:
    found, offset = weights(scheme, version), 0 if scheme in PAPER else 1
    for block, r0 in enumerate((0.0, 0.5, 1.0)):
        decay = [-6 + 5 * math.pow(n / (DIM - 1), 0.7 + 1.3 * r0) for n in range(DIM)]
        u = [r0 * (1 - n / (DIM - 1)) + 0.1 * ((n + 1) % 3 - offset) for n in range(DIM)]
        assert torch.allclose(
            found[f"blocks.{block}.att.time_decay"].ravel(), torch.tensor(decay, dtype=torch.float64).float(), rtol=2e-7
        )
        assert close(found[f"blocks.{block}.att.time_faaaa"], u)


def test_default_half_lives_span_two_to_280_bytes() -> None:
    rates = weights("rwkv_blinkdl")["blocks.0.att.time_decay"].double().exp()
    assert (math.log(2) / rates.max()).item() == pytest.approx(1.884, rel=1e-3)
    assert (math.log(2) / rates.min()).item() == pytest.approx(279.6, rel=1e-3)


@pytest.mark.parametrize("scheme", PAPER)
def test_u_as_printed_has_another_mean(scheme: str) -> None:
    """Without the -1 of the code, u is larger by 0.1 in every channel."""
    code = weights("rwkv_eagle_code_2023" if "eagle" in scheme else "rwkv_finch_code_2024_02")
    printed = weights(scheme)
    for block in range(LAYERS):
        name = f"blocks.{block}.att.time_faaaa"
        assert (printed[name] - code[name]).mean().item() == pytest.approx(0.1, abs=1e-6)


@pytest.mark.parametrize(("scheme", "version"), CASES)
def test_outputs_start_at_zero_and_norms_at_the_identity(scheme: str, version: int) -> None:
    for name, value in weights(scheme, version).items():
        if name.endswith(("att.output.weight", "ffn.value.weight", "ffn.receptance.weight", "bias")):
            assert value.abs().max() == 0, name
        elif "ln_x" in name:
            expected = ((1 + int(name.split(".")[1])) / LAYERS) ** 0.7
            assert torch.equal(value, torch.full_like(value, expected))
        elif ".ln" in name or name.startswith("ln_out"):
            assert torch.equal(value, torch.ones_like(value))


@pytest.mark.parametrize(("scheme", "version"), CASES)
def test_gains_of_the_matrices(scheme: str, version: int) -> None:
    """Orthogonal with one gain, or for the paper's square matrices U(+-D**-0.5), whose spectrum is broad."""
    found, today = weights(scheme, version), scheme == "rwkv_blinkdl"
    widening = 3.5 if scheme in PAPER else 1.0 if today else math.sqrt(3.5)
    assert gains(found["blocks.1.ffn.key.weight"]) == pytest.approx((widening, widening), rel=1e-5)
    for matrix in ("receptance", "key", "value", "gate"):
        weight = found[f"blocks.1.att.{matrix}.weight"]
        if scheme in PAPER:
            check_uniform(weight, DIM**-0.5)
            assert gains(weight)[0] < 0.5 * gains(weight)[1]
        else:
            gain = 0.1 if today and matrix in ("key", "gate") else 1.0
            assert gains(weight) == pytest.approx((gain, gain), rel=1e-5)


@pytest.mark.parametrize(("dim", "code"), [(64, 1.0), (256, 0.5), (512, 0.5)])
@pytest.mark.parametrize("scheme", dict(CASES))
def test_gain_of_the_head(scheme: str, dim: int, code: float) -> None:
    """0.5 sqrt(256 / D) in the code while D < 256; 0.5 in the paper."""
    head = build(scheme, layers=1, dim=dim).head.weight
    gain = 0.5 if scheme in PAPER else code
    assert gains(head.detach()) == pytest.approx((gain, gain), rel=1e-5)


def check_uniform(values: Tensor, bound: float) -> None:
    assert values.abs().max() <= bound * (1 + 1e-6)
    assert values.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert abs(values.mean().item()) < 0.1 * bound


@pytest.mark.parametrize("scheme", [name for name, version in CASES if version == 6])
def test_low_rank_maps(scheme: str) -> None:
    found = weights(scheme, 6)
    for vector in ("time_maa", "time_decay"):
        down, up = (found[f"blocks.2.att.{vector}_{part}"] for part in ("w1", "w2"))
        if scheme == "rwkv_blinkdl":
            assert down.abs().max() == 0
            check_uniform(up, 0.01)
        else:
            check_uniform(down, 1e-4)
            check_uniform(up, 1e-4)


@pytest.mark.parametrize(("bound", "published"), [(1e-4, 0.0182), (6e-4, 0.109)])
def test_embedding_and_the_first_residual_stream(bound: float, published: float) -> None:
    """ln0 does not bring so small an embedding to unit scale, for its eps of 1e-5."""
    config = RWKVConfig(6, 256, 1)
    scheme = "rwkv_blinkdl" if bound == 1e-4 else "rwkv_finch_code_2024_02"
    model = initialise_(RWKV(config), scheme, 0)
    check_uniform(model.emb.weight, bound)
    assert model.blocks[0].ln0(model.emb.weight).std().item() == pytest.approx(published, rel=0.01)


def test_embedding_follows_the_learning_rate_but_today() -> None:
    config = RWKVConfig(5, DIM, 1, HEAD_SIZE)
    for scheme in ("rwkv_eagle_paper", "rwkv_eagle_code_2023"):
        check_uniform(initialise_(RWKV(config), scheme, 0, learning_rate=1e-5).emb.weight, 1e-5)
    check_uniform(initialise_(RWKV(config), "rwkv_blinkdl", 0).emb.weight, 1e-4)


@pytest.mark.parametrize(("scheme", "version"), [*CASES, ("rwkv_naive", 5), ("rwkv_naive", 6)])
def test_every_parameter_is_set(scheme: str, version: int) -> None:
    model = RWKV(RWKVConfig(version, DIM, 2, HEAD_SIZE, structure=NAIVE if scheme == "rwkv_naive" else Structure()))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    initialise_(model, scheme, 0)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("version", [5, 6])
def test_naive_scheme(version: int) -> None:
    """Embedding N(0, 1) and no head of its own, matrices as torch.nn.Linear makes them, ffn.value Xavier, gain 0.5."""
    found = weights("rwkv_naive", version)
    assert "head.weight" not in found
    assert found["emb.weight"].std().item() == pytest.approx(1.0, abs=0.02)
    assert found["emb.weight"].abs().max() > 3, "normal, not uniform"
    for block in range(LAYERS):
        for matrix in ("receptance", "key", "value", "gate", "output"):
            check_uniform(found[f"blocks.{block}.att.{matrix}.weight"], DIM**-0.5)
        check_uniform(found[f"blocks.{block}.ffn.key.weight"], DIM**-0.5)
        check_uniform(found[f"blocks.{block}.ffn.receptance.weight"], DIM**-0.5)
        check_uniform(found[f"blocks.{block}.ffn.value.weight"], 0.5 * math.sqrt(6 / (DIM + 3.5 * DIM)))


@pytest.mark.parametrize("version", [5, 6])
def test_naive_scheme_keeps_what_the_ablation_does_not_mention(version: int) -> None:
    """Token shift, decays, u, group norm and low-rank maps are those of today's code; of the norms only the weights."""
    naive, official = weights("rwkv_naive", version), weights("rwkv_blinkdl", version)
    kept = [name for name in official if "time_" in name or "ln" in name]
    for name in kept:
        if name.endswith("bias") and "ln_x" not in name:
            assert name not in naive
        else:
            assert torch.equal(naive[name], official[name]), name
    assert set(naive) < set(official)


def test_schemes_need_their_kind_of_model() -> None:
    with pytest.raises(ValueError, match="scheme 'rwkv_naive' needs a model with norm = 'rms', tied = True"):
        plan(RWKV(RWKVConfig(6, DIM, 1, HEAD_SIZE)), "rwkv_naive")
    with pytest.raises(ValueError, match="scheme 'rwkv_blinkdl' needs a model with norm = 'layer'"):
        plan(RWKV(RWKVConfig(6, DIM, 1, HEAD_SIZE, structure=Structure(norm="rms"))), "rwkv_blinkdl")


def test_draws_depend_on_seed_and_name_alone() -> None:
    shallow, deep, other = weights("rwkv_blinkdl", 6, layers=1), weights("rwkv_blinkdl", 6), weights("rwkv_blinkdl", 5)
    for name in ("emb.weight", "head.weight", "blocks.0.att.key.weight", "blocks.0.ffn.key.weight"):
        assert torch.equal(shallow[name], deep[name])
        assert torch.equal(shallow[name], other[name])
    assert not torch.equal(deep["blocks.0.att.key.weight"], deep["blocks.1.att.key.weight"])
    assert not torch.equal(shallow["emb.weight"], weights("rwkv_blinkdl", 6, seed=1)["emb.weight"])


def test_unknown_and_foreign_schemes_are_refused() -> None:
    model = RWKV(RWKVConfig(5, DIM, 1, HEAD_SIZE))
    with pytest.raises(ValueError, match="'rwkv_finch_paper' is not for RWKV-5: use one of rwkv_blinkdl, rwkv_eagle"):
        plan(model, "rwkv_finch_paper")
    for scheme, version in CASES:
        check_version(scheme, version)
