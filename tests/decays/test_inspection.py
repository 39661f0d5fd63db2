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

from plkernel.commands.inspect import command as inspect
from plkernel.decays.families import Given, lightning
from plkernel.decays.findings import Finding
from plkernel.decays.inspection import inspected
from plkernel.decays.rates import LAGS, half_lives, kernel, quantiles

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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_file(rwkv5(), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def found(folder: Path, tensors: State, **config: object) -> tuple[Finding, ...]:
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "mamba2", **config}))
    return tuple(one for one in inspected(str(folder)).findings if one.name != "missing layers")


def test_tables_json_and_figure(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inspect(file, json=tmp_path / "found.json", figure=tmp_path / "found.svg", compare=file)
    text = capsys.readouterr().out
    rows = [line.split()[:-3] for line in text.splitlines() if line]
    assert ["0", "16", "2", "5", "17", "29", "32"] in rows
    assert ["1", "16", "16", "40", "136", "232", "256"] in rows
    assert "RWKV-5, blocks.0.att .. (float64): a = exp(-exp(time_decay))" in text
    assert "over channels without an input gain, falls as t**-x over 4 to 128 tokens:" in text
    assert "wrong: nothing\n\nnotable: nothing" in text
    values = json.loads((tmp_path / "found.json").read_text())
    first, second = values["layers"]
    assert (first["module"], first["layer"], first["channels"]) == ("blocks.0.att", 0, 16)
    assert first["half_lives"] == pytest.approx({"0": 2, "0.1": 5, "0.5": 17, "0.9": 29, "1": 32})
    assert second["half_lives"] == pytest.approx(
        {"0": 16, "0.1": 40, "0.5": 136, "0.9": 232, "1": 256}
    )
    assert first["tensors"]["w"] == {"name": DECAYS.format(0), "shape": [2, 8], "dtype": "float64"}
    squares = [
        np.mean([0.5 ** (2 * t / (2 * n)) for n in range(1, 17)]) for t in first["kernel"]["lags"]
    ]
    assert first["kernel"]["values"] == pytest.approx(np.sqrt(squares))
    assert (values["findings"], values["compare"]["layers"]) == ([], values["layers"])
    assert "half-life (tokens)" in (tmp_path / "found.svg").read_text()


def test_before_and_after(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = rwkv5()
    state[DECAYS.format(1)][0, 3] += np.log(10.0)
    save_file(state, tmp_path / "after.safetensors")
    inspect(tmp_path / "after.safetensors", compare=file)
    rows = [
        line.split() for line in capsys.readouterr().out.splitlines() if line[:3] in ("0  ", "1  ")
    ]
    assert [row[-2] for row in rows] == ["17", "136"]
    assert (rows[0][-3] == rows[0][-1], rows[1][-3] == rows[1][-1]) == (True, False)
    assert rows[1][2] == "6.4"


def test_mistakes_are_one_line(file: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    save_file(
        {name: x for name, x in rwkv5().items() if name.startswith("blocks.0")},
        tmp_path / "short.safetensors",
    )
    save_file(
        {name: x[:1].contiguous() for name, x in rwkv5().items()}, tmp_path / "narrow.safetensors"
    )
    (tmp_path / "run").mkdir()
    for arguments, message in [
        ([file, "--windows", "3"], "corpus and windows must be left out for"),
        ([file, "--compare", tmp_path / "short.safetensors"], "must have 2 layers with decays, as"),
        (
            [file, "--compare", tmp_path / "narrow.safetensors"],
            "blocks.0.att must have decays of shape",
        ),
        ([file, "--notable"], "strict must be given with notable"),
        ([file, "--compare", tmp_path / "missing"], "no such file"),
        ([file, "--figure", "x.jpeg"], "figure must end in .pdf, .png, .svg, got 'x.jpeg'"),
        ([file, "--tokens", "1"], "tokens must be at least 2, got 1"),
        ([file, "--text", __file__], "model must be one that can run on a text"),
        (
            [tmp_path / "run", "--strict"],
            "compare, strict, state_dtype and decays must be left out for",
        ),
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
def test_decays_of_zero_one_and_none(
    rates: list[float], shortest: float, longest: float, last: float
) -> None:
    assert quantiles(np.array(rates))[[0, -1]] == pytest.approx([shortest, longest], nan_ok=True)
    assert kernel(np.array(rates), LAGS)[-1] == pytest.approx(last, nan_ok=True)
    assert np.isnan(half_lives(np.array([-1.0])))


@pytest.mark.parametrize("name", ["nu_log", "fgate.bias", "slope_rate"])
@pytest.mark.parametrize("shape", [(), (2, 3, 4)])
def test_shapes_that_nobody_has(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    save_file({f"layers.0.{name}": torch.ones(shape)}, tmp_path / "x.safetensors")
    inspect(tmp_path / "x.safetensors")


def test_decays_above_one_grow_and_slopes_are_those_defined(tmp_path: Path) -> None:
    tensors = {"s.Lambda_re": torch.tensor([-0.5, 0.5]), "s.log_step": torch.tensor([-3.0, -3.5])}
    (finding,) = found(tmp_path, tensors)
    assert (finding.name, finding.seen) == (
        "grows",
        "1 of 2 grow with time: their decay is above 1",
    )
    config = {"num_attention_heads": HEADS, "num_hidden_layers": 3}
    slopes = {
        f"model.layers.{layer}.self_attn.slope_rate": lightning(Given({}, config, layer))
        for layer in range(2)
    }
    tensors = {
        name: torch.from_numpy(values)[:, None, None].float() for name, values in slopes.items()
    }
    assert found(tmp_path, tensors, **config) == ()
    name = "model.layers.1.self_attn.slope_rate"
    tensors[name] = tensors[name] * 0.9
    (finding,) = found(tmp_path, tensors, **config)
    assert (finding.name, finding.tensor) == ("not as defined", name)


def test_half_precision(tmp_path: Path) -> None:
    """Half a unit in the last place of 9 is 2**-5 in bfloat16: half-lives shift by up to 3 %, and
    many become one.
    """
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


def test_a_state_in_half_precision_is_counted_by_layer(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from plkernel.decays.inspection import inspected
    from plkernel.decays.rounding import stored

    report = tmp_path / "report.json"
    inspect(file, state_dtype="bf16", json=report)
    text = capsys.readouterr().out
    state = json.loads(report.read_text())["state"]
    assert state["dtype"] == "bfloat16"
    for numbers, layer in zip(state["layers"], inspected(str(file)).layers, strict=True):
        found = stored(layer.rates, "bfloat16")
        assert numbers["half_lives"] == layer.rates.size
        assert numbers["not_held"] == int((~found.held).sum())
        assert numbers["never_decay"] == int((found.half_lives >= 354.6).sum())
    assert state["not_held"] == sum(numbers["not_held"] for numbers in state["layers"])
    assert f"does not hold {state['not_held']} of {state['half_lives']} half-lives" in text


def test_no_other_type_of_state(file: Path, refused: Any) -> None:
    told = refused(inspect, file, "--state-dtype", "int8")
    assert "state_dtype must be one of float32, bfloat16" in told
