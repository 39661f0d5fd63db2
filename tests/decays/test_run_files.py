"""Runs whose model code of others builds: the decays are read off the tensors, without the code."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import plkernel
from plkernel.commands.inspect import command as inspect
from plkernel.decays.inspection import inspected

KIND = "somebodys.models:mamba2"
MIXER = "module.backbone.layers.{}.mixer.{}"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run as it lies on the disk: weights, moments and averages of them, and its config.json."""
    draw = torch.Generator().manual_seed(0)
    tensors = {}
    for layer in range(2):
        for name, shift in (("A_log", 0.0), ("dt_bias", -4.0)):
            place = MIXER.format(layer, name)
            tensors[f"model.{place}"] = torch.randn(8, generator=draw) + shift
            for beside in ("exp_avg", "exp_avg_sq", "average"):
                tensors[f"{beside}.{place}"] = torch.zeros(8)
    folder = tmp_path / "run"
    folder.mkdir()
    save_file(tensors, folder / "checkpoint.safetensors")
    settings = {"time_step_limit": [0.05, 0.1]}
    config = {"study": "s", "model": {"kind": KIND, "layers": 4, "config": settings}, "seed": 0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_command_reads_weights_alone_with_the_settings_of_the_model(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for target in (run, run / "checkpoint.safetensors"):
        inspect(target, json=tmp_path / "found.json", strict=True, compare=target)
        text = capsys.readouterr().out
        assert f"its tokens are bytes; {KIND}, which builds the model, is not imported" in text
        found = json.loads((tmp_path / "found.json").read_text())
        assert [one["module"] for one in found["layers"]] == [
            f"model.module.backbone.layers.{layer}.mixer" for layer in range(2)
        ]
        assert found["findings"] == []
    (first, _) = inspected(str(run)).layers
    steps = np.log1p(np.exp(first.tensors["dt_bias"].values)).clip(0.05, 0.1)
    assert first.rates == pytest.approx(np.exp(first.tensors["A_log"].values) * steps)


def test_a_copy_of_the_checkpoint_alone_is_a_file_of_tensors(run: Path, tmp_path: Path) -> None:
    for name in ("checkpoint.safetensors", "copied.safetensors"):
        copied = tmp_path / name
        copied.write_bytes((run / "checkpoint.safetensors").read_bytes())
        found: Any = plkernel.inspect(copied)
        assert len(found.layers) == 2
        assert not found.findings


def test_what_only_the_code_could_tell_is_refused(run: Path, refused: Callable[..., str]) -> None:
    error = refused(inspect, run, "--windows", "3")
    assert f"which has a model that {KIND} builds" in error
    assert f"got {KIND!r}, which is other people's code" in refused(
        inspect, run, "--text", "stdlib"
    )


def test_decays_of_the_code_of_others_are_stated_in_python_too(run: Path) -> None:
    """As the command does, by the names in the file; the error for unknown ones has the lines."""
    name = "model.module.layers.0.mu"
    save_file(
        {name: torch.zeros(3), "exp_avg.module.layers.0.mu": torch.zeros(3)},
        run / "checkpoint.safetensors",
    )
    found: Any = plkernel.inspect(run, decays={"*.mu": lambda x: torch.sigmoid(x)})
    [layer] = found.layers
    assert np.exp(-layer.rates).tolist() == pytest.approx([0.5, 0.5, 0.5])
    opened: Any = plkernel.inspect(run)
    with pytest.raises(ValueError, match=r"model.module.layers.\*.mu.* if a = sigmoid") as told:
        _ = opened.layers
    assert "plkernel.inspect(path, decays=decays)" in told.value.__notes__[0]


def test_without_known_decays_the_error_says_whose_code_it_is(
    run: Path, refused: Callable[..., str]
) -> None:
    save_file({"model.module.weight": torch.ones(3)}, run / "checkpoint.safetensors")
    error = refused(inspect, run)
    assert f"got {KIND!r}, which is other people's code; " in error
