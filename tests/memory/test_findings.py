"""Every finding, by breaking one tensor of a checkpoint that has none."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from plkernel.memory.findings import Finding
from plkernel.memory.formulas import Given, lightning
from plkernel.memory.inspection import render, shown

HEADS = 8
A_LOG, BIAS = "model.layers.1.mixer.A_log", "model.layers.1.mixer.dt_bias"


def healthy() -> dict[str, Tensor]:
    """Two layers of Mamba-2, half-lives of 14 to 700 tokens."""
    values = {"A_log": torch.linspace(-0.5, 0.5, HEADS), "dt_bias": torch.linspace(-3.3, -6.5, HEADS)}
    return {f"model.layers.{layer}.mixer.{name}": values[name] + 0.1 * layer for layer in range(2) for name in values}


def found(folder: Path, tensors: dict[str, Tensor], **config: object) -> tuple[Finding, ...]:
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "mamba2", **config}))
    return shown(str(folder)).findings


def test_a_healthy_checkpoint_has_none(tmp_path: Path) -> None:
    assert found(tmp_path, healthy(), dtype="bfloat16") == ()
    assert render(shown(str(tmp_path))).endswith("findings: none")


@pytest.mark.parametrize(
    ("name", "tensor", "change", "seen"),
    [
        ("zeros", BIAS, lambda x: x.zero_(), f"all {HEADS} numbers are zero"),
        ("-inf", A_LOG, lambda x: x[:2].fill_(-torch.inf), f"2 of {HEADS}"),
        ("+inf", BIAS, lambda x: x[:3].fill_(torch.inf), f"3 of {HEADS}"),
        ("NaN", A_LOG, lambda x: x[0].fill_(torch.nan), f"1 of {HEADS}"),
        ("all equal", BIAS, lambda x: x.fill_(-4.0), f"all {HEADS} numbers are -4"),
        ("initialisation", BIAS, lambda x: x.fill_(1.0), "still is ones"),
        ("initialisation", A_LOG, lambda x: x.copy_(torch.arange(1, HEADS + 1).log()), "still is ln(1), ln(2)"),
        ("unread", "model.layers.1.other.A_log", None, "no formula is known"),
    ],
)
def test_a_broken_tensor(name: str, tensor: str, change: object, seen: str, tmp_path: Path) -> None:
    tensors = healthy()
    if callable(change):
        change(tensors[tensor])
    else:
        tensors[tensor] = torch.ones(3)
    (finding,) = [one for one in found(tmp_path, tensors) if one.name == name]
    assert finding.tensor == tensor
    assert seen in finding.seen
    assert f"{name}: {tensor}: " in render(shown(str(tmp_path)))


@pytest.mark.parametrize(
    ("name", "value", "seen"),
    [("below one token", 3.0, "1 of 8, the shortest 0."), ("above a million tokens", -20.0, "1 of 8, up to 1.85e+08")],
)
def test_half_lives_beyond_any_use(name: str, value: float, seen: str, tmp_path: Path) -> None:
    tensors = healthy()
    tensors[BIAS][-1] = value
    (finding,) = found(tmp_path, tensors)
    assert (finding.name, finding.tensor) == (name, f"{A_LOG} with {BIAS}")
    assert seen in finding.seen


def test_the_start_of_bamba_forgets_within_a_token(tmp_path: Path) -> None:
    """A_log = ln(1), ln(2) .. and a bias of ones: half-lives are ln 2 / (n softplus(1)), 0.53 / n tokens."""
    tensors = {A_LOG: torch.arange(1, HEADS + 1).log(), BIAS: torch.ones(HEADS)}
    assert [one.name for one in found(tmp_path, tensors)] == ["initialisation", "initialisation", "below one token"]
    (layer,) = shown(str(tmp_path)).layers
    expected = np.log(2) / (np.arange(1, HEADS + 1) * np.log1p(np.e))
    assert np.log(2) / layer.rates == pytest.approx(expected, rel=1e-6)
    assert expected[0] == pytest.approx(0.53, abs=0.005)


def test_slopes_from_the_configuration_alone(tmp_path: Path) -> None:
    """Lightning attention without its buffers; layer 1 is of another kind, and 2 is the last."""
    tensors = {f"model.layers.{layer}.self_attn.output_gate.weight": torch.ones(2) for layer in (0, 2)}
    found(tmp_path, tensors, model_type="minimax", num_attention_heads=4, num_hidden_layers=3)
    first, last = shown(str(tmp_path)).layers
    assert first.rates == pytest.approx([1 / 4, 1 / 16, 1 / 64, 1 / 256], rel=2e-5)
    assert last.rates == pytest.approx([(1.5e-5) * slope for slope in (1 / 4, 1 / 16, 1 / 64, 1 / 256)], rel=1e-3)


def test_decays_above_one_grow(tmp_path: Path) -> None:
    tensors = {"s.Lambda_re": torch.tensor([-0.5, 0.5]), "s.log_step": torch.tensor([-3.0, -3.5])}
    (finding,) = found(tmp_path, tensors)
    assert (finding.name, finding.seen) == ("grows", "1 of 2 grow with time: their decay is above 1")


def test_what_loading_in_bfloat16_would_change(tmp_path: Path) -> None:
    """Half a unit in the last place of 9 is 2**-5 in bfloat16: half-lives shift by up to 3 %, and many become one."""
    bias = torch.linspace(-9.1, -8.9, 64)
    tensors = {A_LOG: torch.linspace(-0.01, 0.01, 64), BIAS: bias}
    assert found(tmp_path, tensors) == ()
    (finding,) = found(tmp_path, tensors, dtype="bfloat16")
    shift = (bias - bias.bfloat16().float()).double().abs().max()
    assert (finding.name, finding.tensor) == ("dtype", BIAS)
    assert f"shifts half-lives by up to {np.expm1(float(shift)):.1%}" in finding.seen
    assert "of 64 distinct ones" in finding.seen
    assert found(tmp_path, tensors, dtype="float16") == ()  # has eight times the digits


def test_what_was_stored_in_bfloat16_is_uncertain(tmp_path: Path) -> None:
    tensors = healthy()
    tensors[BIAS][0] = -9.0
    (finding,) = found(tmp_path, {name: values.bfloat16() for name, values in tensors.items()})
    assert finding == Finding("dtype", BIAS, "bfloat16 leaves half-lives uncertain by up to 3.2%")


def test_slopes_other_than_defined(tmp_path: Path) -> None:
    """Lightning attention: what config.json defines is no finding, what was overwritten is one."""
    config = {"num_attention_heads": HEADS, "num_hidden_layers": 3}
    slopes = {f"model.layers.{layer}.self_attn.slope_rate": lightning(Given({}, config, layer)) for layer in range(2)}
    tensors = {name: torch.from_numpy(values)[:, None, None].float() for name, values in slopes.items()}
    assert found(tmp_path, tensors, **config) == ()
    name = "model.layers.1.self_attn.slope_rate"
    tensors[name] = tensors[name] * 0.9
    (finding,) = found(tmp_path, tensors, **config)
    assert (finding.name, finding.tensor) == ("not as defined", name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_initialisations_that_are_known_exactly(dtype: torch.dtype, tmp_path: Path) -> None:
    """RWKV: the official formula of the last of three layers, written out here."""
    x = torch.arange(64, dtype=torch.float64) / 63
    tensors = {f"blocks.{layer}.att.time_decay": -5 + 8 * x ** (0.7 + 1.3 * layer / 2) for layer in range(3)}
    assert untrained(tmp_path, tensors, dtype) == list(tensors)
    tensors["blocks.2.att.time_decay"][5] += 0.5
    assert untrained(tmp_path, tensors, dtype) == list(tensors)[:2]


def untrained(folder: Path, tensors: dict[str, Tensor], dtype: torch.dtype) -> list[str]:
    all_found = found(folder, {name: values.to(dtype) for name, values in tensors.items()})
    return [one.tensor for one in all_found if one.name == "initialisation"]
