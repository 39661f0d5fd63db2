"""Models as transformers and flash-linear-attention initialise them: nothing of them is wrong.

In float32, cast to bfloat16, and with linear maps that are quantised or wrapped. The only finding
is that of a gate which transformers starts so that it never forgets.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from test_families import FLA
from tiny_models import FAST, SLOW
from torch import Tensor, nn

from plkernel.decays.inspection import Shown, inspected

State = dict[str, Tensor]
LAYOUTS: dict[str, tuple[str, ...]] = {
    "GPTQ": (".qweight", ".scales", ".qzeros"),
    "compressed-tensors": (".weight_packed", ".weight_scale", ".weight_shape"),
    "peft": (".base_layer.weight", ".lora_A.default.weight", ".lora_B.default.weight"),
    "bitsandbytes int8": (".weight", ".SCB", ".weight_format"),
    "bitsandbytes nf4": (".weight", ".weight.absmax", ".weight.quant_state.bitsandbytes__nf4"),
    "torchao": (".weight_qdata", ".weight_scale", ".weight_zero_point"),
    "fp8": (".weight", ".weight_scale_inv", ".input_scale"),
}
"""Names of what stands in place of the weight of a linear map."""
NEVER_FORGETS = {"BailingHybrid"}
"""transformers 5.24 gives a gate b sigmoid(exp(A_log) dt_bias) the dt_bias of softplus."""


@cache
def fresh(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """A tiny model as its software initialises it, and its config.json."""
    torch.manual_seed(0)
    if name in FLA:
        models = pytest.importorskip("fla.models", reason="needs flash-linear-attention")
        kind, options, _ = FLA[name]
        sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 3, "num_heads": 2}
        config = getattr(models, f"{kind}Config")(**{**sizes, **options})
        model = getattr(models, f"{kind}ForCausalLM")(config)
    else:
        transformers = pytest.importorskip("transformers")
        options = dict({**FAST, **SLOW}[name])
        config = getattr(transformers, f"{options.pop('config', name)}Config")(**options)
        model = getattr(transformers, f"{name}ForCausalLM")(config)
    return model, json.loads(config.to_json_string())


def saved(folder: Path, state: State, config: dict[str, Any]) -> Shown:
    folder.mkdir(exist_ok=True)
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return inspected(str(folder))


def state_of(model: nn.Module, dtype: torch.dtype = torch.float32) -> State:
    return {
        name: (x.to(dtype) if x.is_floating_point() else x).detach().contiguous().clone()
        for name, x in model.state_dict().items()
    }


def with_layout(model: nn.Module, tails: tuple[str, ...]) -> State:
    """The tensors of `model`, those of linear maps under other names."""
    state = state_of(model)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and f"{name}.weight" in state:
            weight = state.pop(f"{name}.weight")
            state |= {f"{name}{tail}": torch.zeros(2, dtype=torch.uint8) for tail in tails}
            if tails[0].endswith(".weight"):
                state[f"{name}{tails[0]}"] = weight.to(torch.int8)
            if module.bias is not None and "base_layer" in tails[0]:
                state[f"{name}.base_layer.bias"] = state.pop(f"{name}.bias")
    return state


def wrong(found: Shown) -> set[str]:
    return {one.name for one in found.findings if one.severity == "wrong"}


WIDTHS = {
    "Mamba": "state_size",
    "Mamba2": "num_heads",
    "Rwkv": "attention_hidden_size",
    "FalconMamba": "intermediate_size",
    "Jamba": "mamba_d_state",
    "Zamba": "mamba_expand",
    "Bamba": "mamba_n_heads",
    "FalconH1": "mamba_n_heads",
    "GraniteMoeHybrid": "mamba_n_heads",
    "NemotronH": "mamba_num_heads",
    "Zamba2": "n_mamba_heads",
    "Qwen3Next": "linear_num_value_heads",
    "Qwen3_5": "linear_num_value_heads",
    "Qwen3_5Moe": "linear_num_value_heads",
    "OlmoHybrid": "linear_num_value_heads",
    "BailingHybrid": "linear_head_dim",
    "KimiLinear": "linear_head_dim",
    "RecurrentGemma": "lru_width",
    "MiniMax": "head_dim",
    "xLSTM": "num_heads",
    "kda": "head_dim",
    "kda-bound": "head_dim",
    "rwkv6": "expand_k",
    "rwkv7": "hidden_size",
    "gla": "expand_k",
    "hgrn": "hidden_size",
    "hgrn2": "hidden_size",
    "retnet": "num_heads",
    "mamba": "state_size",
    "preconditioned-kda": "head_dim",
}
"""A setting of config.json from which the width of the decays follows; of others num_heads."""
LISTED = {"NemotronH": "layers_block_type"}
"""Setting of config.json that has an entry for each layer, where no number does."""


NAMES = [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in (*SLOW, *FLA))]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_a_fresh_model_is_healthy(name: str, tmp_path: Path) -> None:
    model, config = fresh(name)
    expected = {"above a million tokens"} if name in NEVER_FORGETS else set()
    for dtype in (torch.float32, torch.bfloat16):
        held = {**config, "dtype": str(dtype).removeprefix("torch.")}
        assert wrong(saved(tmp_path, state_of(model, dtype), held)) == expected


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_quantised_neighbours_change_nothing(name: str, tmp_path: Path) -> None:
    """With config.json and, but for decays that it defines, without."""
    model, config = fresh(name)
    plain = saved(tmp_path, state_of(model), config)
    for tails in LAYOUTS.values():
        found = saved(tmp_path, with_layout(model, tails), config)
        assert [one.family.name for one in found.layers] == [
            one.family.name for one in plain.layers
        ]
        assert all(
            np.array_equal(one.rates, other.rates)
            for one, other in zip(found.layers, plain.layers, strict=True)
        )
        assert wrong(found) == wrong(plain)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_another_width_in_config_json_is_wrong(name: str, tmp_path: Path) -> None:
    model, config = fresh(name)
    setting = WIDTHS.get(name, "num_heads")
    other = {**config, setting: 2 * config[setting]}
    if setting == "hidden_size":
        other["num_heads"] = 2 * (config.get("num_heads") or 0)
    assert "shape" in wrong(saved(tmp_path, state_of(model), other))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_another_number_of_layers_in_config_json_is_wrong(name: str, tmp_path: Path) -> None:
    model, config = fresh(name)
    config = {**config, "num_nextn_predict_layers": 0}
    if name in LISTED:
        kinds = config[LISTED[name]]
        more, fewer = {LISTED[name]: [*kinds, kinds[0]]}, {LISTED[name]: kinds[:-1]}
    else:
        count = config["num_hidden_layers"]
        more, fewer = {"num_hidden_layers": count + 1}, {"num_hidden_layers": count - 1}
    assert "missing layers" in wrong(saved(tmp_path, state_of(model), {**config, **more}))
    assert "more layers" in wrong(saved(tmp_path, state_of(model), {**config, **fewer}))
