"""plkernel.inspect on checkpoints of other software: tables, comparison, kernels and findings."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from plkernel.commands.inspect import inspect
from plkernel.common import cli
from plkernel.memory.formulas import Given, lightning
from plkernel.memory.inspection import render, shown
from plkernel.memory.layers import LAGS, Finding, half_lives, kernel, quantiles

DECAYS = "blocks.{}.att.time_decay"
MIXER = "model.layers.{}.mixer.{}"
A_LOG, BIAS = MIXER.format(1, "A_log"), MIXER.format(1, "dt_bias")
HEADS = 8
State = dict[str, Tensor]


def rwkv5() -> State:
    """Two layers whose half-lives are 2, 4 .. 32 tokens, and eight times that in the second."""
    rates = np.log(2) / (2.0 * np.arange(1, 17).reshape(2, 8))
    state = {DECAYS.format(layer): torch.from_numpy(np.log(rates / 8**layer)) for layer in range(2)}
    return state | {f"blocks.{layer}.att.ln_x.weight": torch.ones(16) for layer in range(2)}


def healthy(layers: int = 2) -> State:
    """Layers of Mamba-2, half-lives of 14 to 700 tokens."""
    values = {"A_log": torch.linspace(-0.5, 0.5, HEADS), "dt_bias": torch.linspace(-3.3, -6.5, HEADS)}
    return {MIXER.format(layer, name): values[name] + 0.1 * layer for layer in range(layers) for name in values}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_file(rwkv5(), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def found(folder: Path, tensors: State, **config: object) -> tuple[Finding, ...]:
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "mamba2", **config}))
    return shown(str(folder)).findings


def test_tables_json_and_figure(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect(file, json=tmp_path / "found.json", figure=tmp_path / "found.svg", compare=file)
    text = capsys.readouterr().out
    rows = [line.split()[:-1] for line in text.splitlines() if line]
    assert ["0", "16", "2", "5", "17", "29", "32"] in rows
    assert ["1", "16", "16", "40", "136", "232", "256"] in rows
    assert "RWKV-5, blocks.0.att .. (float64): a = exp(-exp(time_decay))" in text
    assert "findings: none\n" in text
    values = json.loads((tmp_path / "found.json").read_text())
    first, second = values["layers"]
    assert (first["module"], first["layer"], first["channels"]) == ("blocks.0.att", 0, 16)
    assert first["half_lives"] == pytest.approx({"0": 2, "0.1": 5, "0.5": 17, "0.9": 29, "1": 32})
    assert second["half_lives"] == pytest.approx({"0": 16, "0.1": 40, "0.5": 136, "0.9": 232, "1": 256})
    assert first["tensors"]["w"] == {"name": DECAYS.format(0), "shape": [2, 8], "dtype": "float64"}
    squares = [np.mean([0.5 ** (2 * t / (2 * n)) for n in range(1, 17)]) for t in first["kernel"]["lags"]]
    assert first["kernel"]["values"] == pytest.approx(np.sqrt(squares))
    assert (values["findings"], values["compare"]["layers"]) == ([], values["layers"])
    assert "half-life (tokens)" in (tmp_path / "found.svg").read_text()


def test_before_and_after(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = rwkv5()
    state[DECAYS.format(1)][0, 3] += np.log(10.0)
    save_file(state, tmp_path / "after.safetensors")
    inspect(tmp_path / "after.safetensors", compare=file)
    table = capsys.readouterr().out.partition("half-lives in tokens (shortest")[2]
    rows = [[cell.strip() for cell in line.split("  ") if cell] for line in table.splitlines()]
    assert [row[-1] for row in rows[-2:]] == ["none", "x 10"]
    assert rows[-1][1:3] == ["16 / 136 / 256", "6.4 / 136 / 256"]


def test_strict_exits_with_1_on_a_finding(file: Path, tmp_path: Path) -> None:
    inspect(file, strict=True)
    state = rwkv5()
    state[DECAYS.format(1)][0, 3] = -torch.inf
    save_file(state, tmp_path / "broken.safetensors")
    with pytest.raises(SystemExit) as stop:
        cli.main(inspect, [str(tmp_path / "broken.safetensors"), "--strict", "--figure", str(tmp_path / "broken.png")])
    assert stop.value.code == 1
    assert (tmp_path / "broken.png").exists()


def test_mistakes_are_one_line(file: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    save_file({name: x for name, x in rwkv5().items() if name.startswith("blocks.0")}, tmp_path / "short.safetensors")
    (tmp_path / "run").mkdir()
    for arguments, message in [
        ([file, "--windows", "3"], "corpus, windows and truncation are for runs of plkernel"),
        ([file, "--compare", tmp_path / "short.safetensors"], "has 1 layer with decays, but"),
        ([file, "--compare", tmp_path / "missing"], "no such file"),
        ([file, "--figure", "x.jpeg"], "figure must end in .pdf, .png, .svg, got 'x.jpeg'"),
        ([file, "--tokens", "1"], "tokens must be at least 2, got 1"),
        ([file, "--text", __file__], "text needs a model that can run"),
        ([tmp_path / "run", "--strict"], "compare and strict are for checkpoints of other software"),
    ]:
        assert message in refused(inspect, *arguments)


@pytest.mark.parametrize(
    ("rates", "shortest", "longest", "last"),
    [
        ([0.0, 0.5], np.log(2) / 0.5, np.inf, np.sqrt(0.5)),
        ([np.inf, np.inf], 0.0, 0.0, 0.0),
        ([np.nan, 0.5], np.log(2) / 0.5, np.log(2) / 0.5, 0.0),
        ([np.nan], np.nan, np.nan, np.nan),
    ],
)
def test_decays_of_zero_one_and_none(rates: list[float], shortest: float, longest: float, last: float) -> None:
    assert quantiles(np.array(rates))[[0, -1]] == pytest.approx([shortest, longest], nan_ok=True)
    assert kernel(np.array(rates), LAGS)[-1] == pytest.approx(last, nan_ok=True)
    assert np.isnan(half_lives(np.array([-1.0])))


@pytest.mark.parametrize("name", ["nu_log", "fgate.bias", "slope_rate"])
@pytest.mark.parametrize("shape", [(), (2, 3, 4)])
def test_shapes_that_nobody_has(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    save_file({f"layers.0.{name}": torch.ones(shape)}, tmp_path / "x.safetensors")
    inspect(tmp_path / "x.safetensors")


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
        ("below one token", BIAS, lambda x: x[-1].fill_(3.0), "1 of 8, the shortest 0."),
        ("above a million tokens", BIAS, lambda x: x[-1].fill_(-20.0), "1 of 8, up to 1.85e+08"),
    ],
)
def test_a_broken_tensor(name: str, tensor: str, change: Any, seen: str, tmp_path: Path) -> None:
    tensors = healthy()
    assert found(tmp_path, tensors, dtype="bfloat16") == ()
    if change is None:
        tensors[tensor] = torch.ones(3)
    else:
        change(tensors[tensor])
    (finding,) = [one for one in found(tmp_path, tensors) if one.name == name]
    assert finding.tensor == (f"{A_LOG} with {BIAS}" if "token" in name else tensor)
    assert seen in finding.seen
    assert f"{name}: {finding.tensor}: " in render(shown(str(tmp_path)))


def test_decays_above_one_grow_and_slopes_are_those_defined(tmp_path: Path) -> None:
    tensors = {"s.Lambda_re": torch.tensor([-0.5, 0.5]), "s.log_step": torch.tensor([-3.0, -3.5])}
    (finding,) = found(tmp_path, tensors)
    assert (finding.name, finding.seen) == ("grows", "1 of 2 grow with time: their decay is above 1")
    config = {"num_attention_heads": HEADS, "num_hidden_layers": 3}
    slopes = {f"model.layers.{layer}.self_attn.slope_rate": lightning(Given({}, config, layer)) for layer in range(2)}
    tensors = {name: torch.from_numpy(values)[:, None, None].float() for name, values in slopes.items()}
    assert found(tmp_path, tensors, **config) == ()
    name = "model.layers.1.self_attn.slope_rate"
    tensors[name] = tensors[name] * 0.9
    (finding,) = found(tmp_path, tensors, **config)
    assert (finding.name, finding.tensor) == ("not as defined", name)


def test_half_precision(tmp_path: Path) -> None:
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
    for kept in ("bailing_hybrid", "glm5_next", "glm5_next_text"):  # in float32 by transformers
        assert found(tmp_path, tensors, dtype="bfloat16", model_type=kept) == ()
    tensors = healthy()
    tensors[BIAS][0] = -9.0
    (finding,) = found(tmp_path, {name: values.bfloat16() for name, values in tensors.items()})
    assert finding == Finding("dtype", BIAS, "bfloat16 leaves half-lives uncertain by up to 3.2%")
    seen = found(tmp_path, {name: values.to(torch.float8_e5m2) for name, values in healthy().items()})
    assert [one.tensor for one in seen if one.name == "dtype"] == list(healthy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_initialisations_that_are_known_exactly(dtype: torch.dtype, tmp_path: Path) -> None:
    """RWKV-4: the official formula of the last of three layers, written out here."""
    x = torch.arange(64, dtype=torch.float64) / 63
    tensors = {f"blocks.{layer}.att.time_decay": -5 + 8 * x ** (0.7 + 1.3 * layer / 2) for layer in range(3)}

    def untrained() -> list[str]:
        seen = found(tmp_path, {name: values.to(dtype) for name, values in tensors.items()})
        return [one.tensor for one in seen if one.name == "initialisation"]

    assert untrained() == list(tensors)
    tensors["blocks.2.att.time_decay"][5] += 0.5
    assert untrained() == list(tensors)[:2]
