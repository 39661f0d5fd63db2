"""python -m plkernel.inspect on a checkpoint of other software: what it prints, writes, compares and exits with."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from plkernel.commands.inspect import inspect
from plkernel.common import cli
from plkernel.memory.findings import LAGS, half_lives, kernel, quantiles
from plkernel.memory.formulas import Floats
from plkernel.memory.inspection import drawn, shown

DECAYS = "blocks.{}.att.time_decay"


def rwkv5(tokens: float, heads: int = 2) -> dict[str, Tensor]:
    """Two layers whose half-lives are `tokens` times 1, 2 .. 16, and eight times that in the second."""
    rates = np.log(2) / (tokens * np.arange(1, 17).reshape(heads, -1))
    state = {DECAYS.format(layer): torch.from_numpy(np.log(rates / 8**layer)) for layer in range(2)}
    return state | {f"blocks.{layer}.att.ln_x.weight": torch.ones(16) for layer in range(2)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_file(rwkv5(2.0), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_tables(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect(file)
    text = capsys.readouterr().out
    rows = [line.split() for line in text.splitlines()]
    assert ["0", "16", "2", "5", "17", "29", "32"] in [row[:-1] for row in rows if row]
    assert ["1", "16", "16", "40", "136", "232", "256"] in [row[:-1] for row in rows if row]
    assert "RWKV-5, blocks.0.att .. (float64): a = exp(-exp(time_decay))" in text
    assert "falls as t**-x over 4 to 128 tokens" in text
    assert text.endswith("findings: none\n")
    inspect(file, heads=True)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["head", "1", "8", "18", "19.4", "25", "30.6", "32"] in [row[:-1] for row in rows if row]


def test_json_and_figure(file: Path, tmp_path: Path) -> None:
    inspect(file, json=tmp_path / "found.json", figure=tmp_path / "found.svg", heads=True, compare=file)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["findings"] == []
    first, second = found["layers"]
    assert (first["module"], first["layer"], first["channels"]) == ("blocks.0.att", 0, 16)
    assert first["half_lives"] == pytest.approx({"0": 2, "0.1": 5, "0.5": 17, "0.9": 29, "1": 32})
    assert second["half_lives"] == pytest.approx({"0": 16, "0.1": 40, "0.5": 136, "0.9": 232, "1": 256})
    assert first["tensors"]["w"] == {"name": DECAYS.format(0), "shape": [2, 8], "dtype": "float64"}
    assert [head["half_lives"]["1"] for head in first["heads"]] == pytest.approx([16, 32])
    squares = [np.mean([0.5 ** (2 * t / (2 * n)) for n in range(1, 17)]) for t in first["kernel"]["lags"]]
    assert first["kernel"]["values"] == pytest.approx(np.sqrt(squares))
    assert found["compare"]["layers"] == found["layers"]
    assert "half-life (tokens)" in (tmp_path / "found.svg").read_text()


def test_every_half_life_is_on_the_figure(file: Path, tmp_path: Path) -> None:
    state = rwkv5(2.0)
    state[DECAYS.format(1)].fill_(3.0)
    save_file(state, tmp_path / "short.safetensors")
    low, high = drawn(shown(str(file)), shown(str(tmp_path / "short.safetensors"))).axes[1].get_ylim()
    assert low < np.log(2) / np.exp(3.0)
    assert high > 256


def test_strict_exits_with_1_on_a_finding(file: Path, tmp_path: Path) -> None:
    inspect(file, strict=True)
    state = rwkv5(2.0)
    state[DECAYS.format(1)][0, 3] = -torch.inf
    save_file(state, tmp_path / "broken.safetensors")
    inspect(tmp_path / "broken.safetensors", figure=tmp_path / "broken.png")
    with pytest.raises(SystemExit) as stop:
        cli.main(inspect, [str(tmp_path / "broken.safetensors"), "--strict"])
    assert stop.value.code == 1


def test_before_and_after(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = rwkv5(2.0)
    state[DECAYS.format(1)][0, 3] += np.log(10.0)
    save_file(state, tmp_path / "after.safetensors")
    inspect(tmp_path / "after.safetensors", compare=file)
    table = capsys.readouterr().out.partition("half-lives in tokens (shortest")[2]
    rows = [[cell.strip() for cell in line.split("  ") if cell] for line in table.splitlines()]
    assert [row[-1] for row in rows[-2:]] == ["none", "x 10"]
    assert rows[-1][1:3] == ["16 / 136 / 256", "6.4 / 136 / 256"]


def test_mistakes_are_one_line(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shorter = {name: values for name, values in rwkv5(2.0).items() if name.startswith("blocks.0")}
    save_file(shorter, tmp_path / "shorter.safetensors")
    (tmp_path / "run").mkdir()
    for arguments, message in [
        ([str(file), "--windows", "3"], "corpus, windows and truncation are for runs of plkernel"),
        ([str(file), "--compare", str(tmp_path / "shorter.safetensors")], "has 1 layer with decays, but"),
        ([str(file), "--compare", str(tmp_path / "missing")], "no such file"),
        ([str(tmp_path / "run"), "--strict"], "heads, compare and strict are for checkpoints of other software"),
        ([str(tmp_path / "missing.pth")], "no such file"),
    ]:
        with pytest.raises(SystemExit) as stop:
            cli.main(inspect, arguments)
        error = capsys.readouterr().err
        assert stop.value.code == 2
        assert message in error
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("rates", "shortest", "longest", "last"),
    [
        (np.array([0.0, 0.5]), np.log(2) / 0.5, np.inf, np.sqrt(0.5)),
        (np.array([np.inf, np.inf]), 0.0, 0.0, 0.0),
        (np.array([np.nan, 0.5]), np.log(2) / 0.5, np.log(2) / 0.5, 0.0),
        (np.array([np.nan]), np.nan, np.nan, np.nan),
    ],
)
def test_decays_of_zero_one_and_none(rates: Floats, shortest: float, longest: float, last: float) -> None:
    assert quantiles(rates)[[0, -1]] == pytest.approx([shortest, longest], nan_ok=True)
    assert kernel(rates, LAGS)[-1] == pytest.approx(last, nan_ok=True)
    assert np.isnan(half_lives(np.array([-1.0])))
