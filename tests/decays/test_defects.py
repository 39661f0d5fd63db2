"""Defects planted in a healthy checkpoint are found, and healthy ones are left alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from plkernel.commands.inspect import command as inspect
from plkernel.common import cli
from plkernel.decays.families import rwkv7_from, rwkv_from
from plkernel.decays.findings import _gap
from plkernel.decays.inspection import inspected

LAYERS, HEADS = 4, 16
Tensors = dict[str, Tensor]


def trained(seed: int = 0) -> Tensors:
    """Mamba-2 as started by its authors, and moved a little: A in 1..4, steps of 0.001 .. 0.1."""
    draw = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(LAYERS):
        step = torch.exp(torch.rand(HEADS, generator=draw) * 4.6 - 6.9)
        tensors[f"backbone.layers.{layer}.mixer.A_log"] = torch.log(
            1 + 3 * torch.rand(HEADS, generator=draw)
        )
        tensors[f"backbone.layers.{layer}.mixer.dt_bias"] = torch.log(torch.expm1(step))
        tensors[f"backbone.layers.{layer}.norm.weight"] = torch.ones(4)
    return tensors


def write(folder: Path, tensors: Tensors, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: x.clone().contiguous() for name, x in tensors.items()}, folder / "model.safetensors"
    )
    settings = {"model_type": "mamba2", "num_heads": HEADS, "num_hidden_layers": LAYERS, **config}
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def changed(
    change: Callable[[Tensor], Tensor], part: str = "A_log", layer: str = ""
) -> Callable[[Tensors], Tensors]:
    """A change of the tensors whose names end in `part`, of one layer or of all."""
    return lambda tensors: {
        name: change(x.clone()) if name.endswith(part) and layer in name else x
        for name, x in tensors.items()
    }


def without(part: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: x for name, x in tensors.items() if part not in name}


def put(value: Any, places: Any) -> Callable[[Tensor], Tensor]:
    def change(x: Tensor) -> Tensor:
        x[places] = value
        return x

    return change


COUNTED = torch.log(torch.arange(1.0, HEADS + 1))
DEFECTS: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "float8": (changed(lambda x: x.to(torch.float8_e4m3fn), "dt_bias"), "dtype"),
    "bfloat16": (changed(lambda x: (x - 2).bfloat16(), "dt_bias"), "dtype"),
    "bfloat16, then float32": (changed(lambda x: (x - 2).bfloat16().float(), "dt_bias"), "dtype"),
    "NaN": (changed(put(torch.nan, 3)), "NaN"),
    "-inf": (changed(put(-torch.inf, 3)), "-inf"),
    "zeros": (changed(torch.zeros_like), "zeros"),
    "equal": (changed(lambda x: torch.full_like(x, 0.7)), "all equal"),
    "nearly equal": (
        lambda x: changed(lambda y: 0.7 + 1e-5 * y)(changed(lambda y: -3 + 1e-5 * y, "dt_bias")(x)),
        "all equal",
    ),
    "half of the heads reset to ones": (changed(put(1.0, slice(8)), "dt_bias"), "reset"),
    "half of the heads reset to the start": (changed(put(COUNTED[:8], slice(8))), "reset"),
    "half of the heads are one number": (changed(put(0.3, slice(8))), "reset"),
    "sign of the start": (changed(lambda x: -COUNTED), "sign"),
    "the same in all layers": (
        lambda x: {name: x[name.replace(name[16], "0")] for name in x},
        "identical layers",
    ),
    "no layer 2": (without("layers.2."), "missing layers"),
    "no layer 3": (without("layers.3."), "missing layers"),
    "14 of 16 heads": (changed(lambda x: x[:14], ""), "shape"),
    "a decay of an unknown layer": (
        lambda x: {**x, "backbone.layers.1.other.A_log": torch.rand(4)},
        "unread",
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_wrong(defect: str, tmp_path: Path) -> None:
    change, name = DEFECTS[defect]
    found = inspected(str(write(tmp_path, change(trained())))).findings
    assert name in {one.name for one in found if one.severity == "wrong"}


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ({0, 1, 2}, ""),
        ({0, 2}, "no tensor of layer 1, but of 2"),
        ({5}, "no tensor of layer 0, 1, 2, 3, 4, but of 5"),
        ({6}, "no tensor of layer 0, 1, 2, 3, 4 .., but of 6"),
    ],
)
def test_five_missing_layers_are_named(held: set[int], words: str) -> None:
    assert _gap(held) == words


def test_decays_that_were_drawn_anew_are_wrong_beside_those_before(tmp_path: Path) -> None:
    before, now = write(tmp_path / "a", trained()), write(tmp_path / "b", trained(1))
    moved = {
        name: x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
        for name, x in trained().items()
    }
    write(tmp_path / "c", moved)
    code = run(now, "--compare", str(before), "--strict")
    assert code == 1
    assert run(tmp_path / "c", "--compare", str(before), "--strict") == 0


def run(folder: Path, *options: str) -> int:
    try:
        cli.main(inspect, [str(folder), *options])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


STARTS: dict[str, Tensors] = {
    "trained": {},
    "transformers": {"A_log": COUNTED, "dt_bias": torch.ones(HEADS)},
    "the authors": {"A_log": COUNTED},
    "log-spaced": {"A_log": torch.linspace(-3.0, 1.0, HEADS), "dt_bias": torch.ones(HEADS)},
}


@pytest.mark.parametrize("start", STARTS)
def test_a_healthy_checkpoint_is_not_wrong(start: str, tmp_path: Path) -> None:
    tensors = {name: STARTS[start].get(name.rpartition(".")[2], x) for name, x in trained().items()}
    folder = write(tmp_path, tensors)
    assert run(folder, "--strict") == 0
    assert run(folder, "--strict", "--notable") == (start != "trained")


SHORT = {
    "whole numbers": -torch.arange(1.0, 17.0),
    "steps of 1.5": -1.5 * torch.arange(1.0, 9.0),
    "two numbers": torch.tensor([-9.5, -10.25]),
    "powers of two": -torch.exp2(torch.arange(-3.0, 5.0)),
    "quarters": torch.linspace(-12.0, 0.0, 49),
    "eighths": torch.linspace(-16.0, -8.0, 65),
}


WRITTEN = [(start, dtype) for start in SHORT for dtype in (torch.float32, torch.float64)]
WRITTEN += [(start, torch.bfloat16) for start in SHORT if start != "two numbers"]


@pytest.mark.parametrize(("start", "dtype"), WRITTEN)
def test_short_numbers_were_not_rounded(start: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """bfloat16 holds them as they were written; of two that it stores, nobody can know."""
    rates = SHORT[start].to(dtype)
    assert torch.equal(rates.bfloat16().double(), SHORT[start].double())
    save_file({"layers.0.log_rate": rates}, tmp_path / "model.safetensors")
    found = inspected(str(tmp_path / "model.safetensors")).findings
    assert "dtype" not in {one.name for one in found}


@pytest.mark.parametrize("size", [8, 16, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounded_numbers_were_rounded(size: int, dtype: torch.dtype, tmp_path: Path) -> None:
    """In one of eight layers at least, however few channels there are."""
    draw = torch.Generator().manual_seed(size)
    factor = 1.0 if dtype == torch.bfloat16 else 8.0  # float16 has eight times the digits
    rates = -factor * (8.0 + 6.0 * torch.rand(8, size, generator=draw))
    tensors = {f"layers.{i}.log_rate": rates[i].to(dtype).float().clone() for i in range(8)}
    save_file(tensors, tmp_path / "model.safetensors")
    found = inspected(str(tmp_path / "model.safetensors")).findings
    told = [one.seen for one in found if one.name == "dtype"]
    assert len(told) >= 6
    assert all(f"rounded to {str(dtype).removeprefix('torch.')} leaves" in seen for seen in told)


def official(kind: str, layers: int = 3) -> Tensors:
    """Decays as official code starts them, with the tensors by which they are known."""
    tensors: Tensors = {}
    for layer in range(layers):
        place = f"blocks.{layer}.att"
        if kind == "RWKV-7":
            tensors[f"{place}.w0"] = torch.from_numpy(rwkv7_from(64)((1, 1, 128), layer, layers))
            tensors[f"{place}.r_k"] = torch.zeros(2, 64)
        elif kind == "RWKV-6":
            start = rwkv_from(-6.0, -1.0)((1, 1, 128), layer, layers)
            tensors[f"{place}.time_decay"] = torch.from_numpy(start)
            tensors[f"{place}.time_decay_w1"] = torch.zeros(128, 8)
            tensors[f"{place}.ln_x.weight"] = torch.ones(128)
        else:
            tensors[f"backbone.layers.{layer}.mixer.A_log"] = COUNTED.double()
            tensors[f"backbone.layers.{layer}.mixer.dt_bias"] = torch.ones(HEADS)
    return tensors


@pytest.mark.parametrize("held", ["bfloat16", "float32, for bfloat16"])
@pytest.mark.parametrize("kind", ["RWKV-7", "RWKV-6", "Mamba-2"])
def test_official_starts_in_bfloat16_are_not_wrong(kind: str, held: str, tmp_path: Path) -> None:
    """Of RWKV-7 they reach to -8, where half a unit in the last place is 1/64."""
    dtype = torch.bfloat16 if held == "bfloat16" else torch.float32
    tensors = {name: x.to(dtype) for name, x in official(kind).items()}
    config = {"model_type": kind.lower(), "num_hidden_layers": 3, "dtype": "bfloat16"}
    found = inspected(str(write(tmp_path, tensors, **config))).findings
    assert not [one for one in found if one.severity == "wrong"]
    assert "initialisation" in {one.name for one in found}


def test_decays_that_are_equal_by_construction_are_not_wrong(tmp_path: Path) -> None:
    """HGRN's first layer has no lower bounds, whatever they are."""
    bounds = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    tensors = {"model.lower_bounds": bounds, "head.layers.2.weight": bounds} | {
        f"model.layers.{i}.attn.f_proj.weight": torch.ones(1) for i in range(3)
    }
    found = inspected(str(write(tmp_path, tensors, model_type="hgrn", num_hidden_layers=3)))
    assert len(found.layers) == 3
    assert not [one for one in found.findings if one.severity == "wrong"]
