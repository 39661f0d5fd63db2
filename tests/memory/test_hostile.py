"""Other people's checkpoints, damaged: their bytes, their index and their configuration."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="the fuzzers draw their cases with hypothesis")
import torch
from hypothesis import strategies as st
from safetensors.torch import save, save_file

from plkernel.memory.files import INDEX
from plkernel.memory.inspection import render, shown

pytestmark = pytest.mark.slow
TENSORS = {
    "model.layers.0.mixer.A_log": torch.linspace(-1, 1, 4),
    "model.layers.0.mixer.dt_bias": torch.linspace(-5, -3, 4),
    "model.layers.1.att.time_decay": torch.linspace(-5, -3, 4).bfloat16(),
    "model.layers.2.self_attn.slope_rate": torch.linspace(0.1, 0.3, 4),
    "model.layers.3.fgate_preact.bias": torch.linspace(0.1, 0.3, 4),
}
CONFIG: dict[str, Any] = {
    "model_type": "nemotron_h",
    "dtype": "bfloat16",
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "gate_soft_cap": 15.0,
    "time_step_min": 0.001,
    "text_config": {"time_step_limit": [0.0, 1.0]},
}


def look(path: Path) -> None:
    torch.set_num_threads(1)
    found = shown(str(path))
    assert render(found, heads=True)
    assert json.dumps(found.to_dict(heads=True))


def test_a_file(tally, damaged):
    def take(content: bytes, folder: Path) -> None:
        (folder / "x.safetensors").write_bytes(content)
        look(folder / "x.safetensors")

    tally(damaged(save(TENSORS)), take, 60)


def test_an_index_and_a_configuration(tally, mutated):
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(TENSORS, "model.safetensors")}

    def take(case: tuple[Any, Any], folder: Path) -> None:
        save_file(TENSORS, folder / "model.safetensors")
        (folder / INDEX).write_text(json.dumps(case[0]))
        (folder / "config.json").write_text(json.dumps(case[1]))
        look(folder)

    ends = tally(st.tuples(st.just(index), mutated(CONFIG)), take, 60)
    assert ends["accepted"] > 5
    tally(st.tuples(mutated(index), st.just(CONFIG)), take, 60)
