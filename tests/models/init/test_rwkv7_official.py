"""The official start of Goose by hand: exact vectors, gains, rates, and what it is not for."""

import math

import pytest
import torch
from torch import Tensor

from plkernel.memory.formulas import rwkv7_start
from plkernel.models.init import initialise_, plan
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.rwkv7 import RWKV7, RWKV7Config
from plkernel.models.ssm import SSM, SSMConfig
from plkernel.models.structure import Structure

D, L, N = 128, 3, 64
CONFIG = RWKV7Config(D, L, N)


def drawn(config: RWKV7Config = CONFIG, scheme: str = "rwkv7_official", seed: int = 0) -> dict[str, Tensor]:
    model = RWKV7(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    initialise_(model, scheme, seed)
    found = {name: parameter.detach() for name, parameter in model.named_parameters()}
    assert all(value.isfinite().all() for value in found.values()), "every parameter is set"
    return found


def gains(matrix: Tensor) -> tuple[float, float]:
    """Smallest and largest singular value."""
    values = torch.linalg.svdvals(matrix.double())
    return values.min().item(), values.max().item()


def test_vectors_by_hand() -> None:
    """Block 1 of 3: r0 = 1/2, r1 = 2/3. Channel 72 is the ninth of the second head: x = (8 - 31.5) / 31.5."""
    found, y, x = drawn(), 72 / 127, (8 - 31.5) / 31.5
    zigzag, share = -(x**2), 72 / 128
    expected = {
        "att.x_r": 1 - share ** (0.2 * 2 / 3),
        "att.x_w": 1 - share ** (0.9 * 2 / 3),
        "att.x_k": 1 - share ** (0.7 * 2 / 3),
        "att.x_v": 1 - share ** (0.7 * 2 / 3),
        "att.x_a": 1 - share ** (0.9 * 2 / 3),
        "att.x_g": 1 - share ** (0.2 * 2 / 3),
        "ffn.x_k": 1 - share ** ((2 / 3) ** 4),
        "att.w0": -6 + 6 * y ** (1 + 0.5**0.3) + 0.5 + 2.5 * zigzag,
        "att.a0": -0.19 + 0.3 * zigzag + 0.4 * (y - 0.5),
        "att.v0": 0.73 - 0.4 * (y - 0.5),
        "att.k_k": 0.71 - 0.1 * (y - 0.5),
        "att.k_a": 1.02,
        "att.r_k": -0.04,
        "att.ln_x.weight": (2 / 3) ** 0.7,
        "att.ln_x.bias": 0.0,
    }
    for name, value in expected.items():
        assert found[f"blocks.1.{name}"].flatten()[72].item() == pytest.approx(value, abs=1e-6), name
    assert {name.removeprefix("blocks.1.") for name in found if ".1.att." in name or ".1.ffn." in name} == {
        *expected,
        *(f"att.{one}{half}" for one in "wavg" for half in "12"),
        *(f"att.{matrix}.weight" for matrix in ("receptance", "key", "value", "output")),
        "ffn.key.weight",
        "ffn.value.weight",
    }


def test_decays_are_those_that_inspect_takes_for_untrained() -> None:
    """In heads of 64, as published; half-lives from 1.149 bytes."""
    found = drawn()
    for block in range(L):
        w0 = found[f"blocks.{block}.att.w0"].flatten().double().numpy()
        assert w0 == pytest.approx(rwkv7_start((D,), block, L), abs=1e-6)
    lives = RWKV7(CONFIG)
    initialise_(lives, "rwkv7_official", 0)
    shortest, longest = (getattr(lives.half_lives()[0], end)().item() for end in ("min", "max"))
    assert shortest == pytest.approx(math.log(2) / (math.exp(-0.5) / (1 + math.exp(-3.0))), rel=1e-6)
    assert longest > 1000


def test_matrices_and_low_rank_maps() -> None:
    """Width 128: head 0.5 sqrt(256 / 128); a rank above the width widens the second map."""
    found = drawn()
    assert found["emb.weight"].abs().max() <= 1e-4
    assert gains(found["head.weight"]) == pytest.approx((0.5 * math.sqrt(2),) * 2, rel=1e-5)
    for block in range(L):
        for matrix, gain in (("att.receptance", 1), ("att.value", 1), ("att.key", 0.1), ("ffn.key", 1)):
            assert gains(found[f"blocks.{block}.{matrix}.weight"]) == pytest.approx((gain, gain), rel=1e-5)
        for matrix in ("att.output", "ffn.value"):
            assert found[f"blocks.{block}.{matrix}.weight"].abs().max() == 0
        for one in "wavg" if block else "wag":
            assert found[f"blocks.{block}.att.{one}1"].abs().max() == 0
            assert gains(found[f"blocks.{block}.att.{one}2"]) == pytest.approx((0.1, 0.1), rel=1e-5)
    wide = drawn(RWKV7Config(16, 1, 8, decay_rank=64))
    assert gains(wide["blocks.0.att.w2"]) == pytest.approx((0.2, 0.2), rel=1e-5)


def test_rates_and_weight_decay() -> None:
    """w0 at twice the rate; decay on matrices, embedding and head alone, not on low-rank maps."""
    chosen = plan(RWKV7(CONFIG), "rwkv7_official")
    assert {entry.parameter.name for entry in chosen.entries if entry.learning_rate != 1} == {
        f"blocks.{block}.att.w0" for block in range(L)
    }
    for entry in chosen.entries:
        name = entry.parameter.name
        assert entry.learning_rate == (2 if name.endswith("w0") else 1)
        assert entry.weight_decay == (1 if name.endswith(".weight") and "ln" not in name else 0), name


def test_other_schemes_keep_the_official_vectors() -> None:
    official, other = drawn(), drawn(scheme="megatron_default")
    for name, value in official.items():
        own = name.rpartition(".")[2] in ("k_k", "k_a", "r_k") or ".x_" in name or name[-1] in "012" or "ln_x" in name
        assert not own or torch.equal(other[name], value), name
    assert not torch.equal(official["blocks.0.att.key.weight"], other["blocks.0.att.key.weight"])


def test_schemes_and_models_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="scheme 'rwkv_blinkdl' is not for RWKV-7: use one of rwkv7_official"):
        plan(RWKV7(CONFIG), "rwkv_blinkdl")
    with pytest.raises(ValueError, match="scheme 'rwkv7_official' is not for RWKV-6: use one of rwkv_blinkdl"):
        plan(RWKV(RWKVConfig(6, 32, 1, 16)), "rwkv7_official")
    with pytest.raises(ValueError, match="needs a model with norm = 'layer'"):
        plan(RWKV7(RWKV7Config(32, 1, 16, structure=Structure(norm="rms"))), "rwkv7_official")
    ssm = SSM(SSMConfig(16, 1, structure=Structure(embedding_norm=True)))
    assert plan(ssm, "rwkv7_official").entries, "the matrices alone act on an SSM"
