"""Checkpoints whose names promise one thing and whose numbers, neighbours or sizes say another."""

import json
import math
import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils import parametrize

import plkernel
from plkernel.decays.findings import Finding
from plkernel.decays.inspection import Shown, inspected, render
from plkernel.decays.plausible import POSITIVE, _counted
from plkernel.decays.redrawn import redrawn
from plkernel.decays.structure import row_labels

State = dict[str, Tensor]
CHANNELS = 16


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def steps(count: int, draw: torch.Generator) -> Tensor:
    """dt_bias of steps of 0.001 to 0.1."""
    dt = torch.exp(torch.rand(count, generator=draw) * math.log(100) + math.log(0.001))
    return torch.log(torch.expm1(dt))


def mamba1(layers: int = 2, channels: int = 8, states: int = 4, seed: int = 0) -> State:
    draw, state = drawn(seed), {}
    for layer in range(layers):
        at = f"backbone.layers.{layer}.mixer"
        counted = torch.log(torch.arange(1.0, states + 1)).repeat(channels, 1)
        state[f"{at}.A_log"] = counted + 0.1 * torch.randn(channels, states, generator=draw)
        state[f"{at}.dt_proj.bias"] = steps(channels, draw)
    return state


def mamba2(layers: int = 3, heads: int = 16, seed: int = 0) -> State:
    draw, state = drawn(seed), {}
    for layer in range(layers):
        at = f"backbone.layers.{layer}.mixer"
        state[f"{at}.A_log"] = torch.log(1 + 15 * torch.rand(heads, generator=draw))
        state[f"{at}.dt_bias"] = steps(heads, draw)
    return state


def rwkv(kind: int, seed: int = 0) -> State:
    """Three layers of RWKV of a version, as started and moved a little."""
    draw, state = drawn(seed), {}
    for layer in range(3):
        levels = torch.arange(CHANNELS) / (CHANNELS - 1)
        w = -6 + (8 if kind == 4 else 5) * levels + 0.2 * torch.randn(CHANNELS, generator=draw)
        at = f"blocks.{layer}.att"
        state[f"{at}.time_decay"] = w
        if kind == 5:
            state[f"{at}.ln_x.weight"] = torch.ones(CHANNELS)
        if kind == 6:
            state[f"{at}.time_decay_w1"] = torch.ones(CHANNELS, 2)
    return state


def changed(state: State, part: str, change: Any) -> State:
    return {name: change(x) if name.endswith(part) else x for name, x in state.items()}


def saved(folder: Path, state: State, **config: Any) -> Shown:
    save_file(
        {name: x.clone().contiguous() for name, x in state.items()}, folder / "model.safetensors"
    )
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return inspected(str(folder))


def wrong(found: Shown) -> list[Finding]:
    return [one for one in found.findings if one.severity == "wrong"]


def decay(w: Tensor) -> Tensor:
    return torch.exp(-torch.exp(w.double())).float()


def rwkv7(x: Tensor) -> State:
    return {f"blocks.{i}.att.{n}": x for i in range(2) for n in ("w0", "r_k")}


LEVELS = torch.linspace(-6.0, -1.0, CHANNELS)
SPEEDS = torch.linspace(1.0, 15.0, 16)
SQUASHED = torch.exp(-0.606 * torch.sigmoid(LEVELS))
TRANSFORMED: dict[str, tuple[State, str]] = {
    "RWKV-4, -exp(w)": (changed(rwkv(4), "decay", lambda w: -torch.exp(w)), "-exp(time_decay)"),
    "RWKV-5, -exp(w)": (changed(rwkv(5), "decay", lambda w: -torch.exp(w)), "-exp(time_decay)"),
    "RWKV-4, decays": (
        changed(rwkv(4), "decay", lambda w: decay(w - 2)),
        "exp(-exp(time_decay))",
    ),
    "RWKV-5, decays": (changed(rwkv(5), "decay", decay), "exp(-exp(time_decay))"),
    "RWKV-6, decays": (changed(rwkv(6), "decay", decay), "exp(-exp(time_decay))"),
    "RWKV-6, rates": (changed(rwkv(6), "decay", torch.exp), "exp(time_decay)"),
    "RWKV-7, decays": (rwkv7(SQUASHED), "exp(-exp(-1/2) sigmoid(w0))"),
    "RWKV-7, rates": (rwkv7(-torch.log(SQUASHED)), "exp(-1/2) sigmoid(w0)"),
    "RWKV-7, logs of decays": (rwkv7(torch.log(SQUASHED)), "-exp(-1/2) sigmoid(w0)"),
    "lightning attention, decays": (
        {
            f"model.layers.{i}.self_attn.slope_rate": torch.exp(
                -(2.0 ** -torch.linspace(0.5, 8.0, 16)) * (1 - i / 4)
            )[:, None, None]
            for i in range(3)
        },
        "exp(-slope_rate)",
    ),
    "xLSTM, gates": (
        {"blocks.0.mlstm_cell.fgate.bias": torch.sigmoid(torch.linspace(3.0, 6.0, 8))},
        "sigmoid(fgate)",
    ),
    "LRU, decays": ({"s.nu_log": decay(LEVELS)}, "exp(-exp(nu_log))"),
    "LRU, rates": ({"s.nu_log": torch.exp(LEVELS)}, "exp(nu_log)"),
    "RG-LRU, decays": (
        {
            "l.recurrent_param": torch.linspace(0.9, 0.999, 16),
            "l.recurrent_gate_bias": torch.linspace(-0.1, 0.1, 16).reshape(2, 8),
        },
        "exp(-8 softplus(recurrent_param))",
    ),
    "Mamba, A": (changed(mamba1(), "A_log", lambda x: -torch.exp(x)), "-exp(A_log)"),
    "Mamba, -A": (changed(mamba1(), "A_log", torch.exp), "exp(A_log)"),
    "Mamba, 16 states, A": (
        changed(mamba1(states=16), "A_log", lambda x: -torch.exp(x)),
        "-exp(A_log)",
    ),
    "Mamba, steps": (
        changed(mamba1(), "dt_proj.bias", nn.functional.softplus),
        "softplus(dt_bias)",
    ),
    "Mamba-2, A": (changed(mamba2(), "A_log", lambda x: -torch.exp(x)), "-exp(A_log)"),
    "Mamba-2, -A": (changed(mamba2(), "A_log", torch.exp), "exp(A_log)"),
    "Mamba-2, steps": (
        changed(mamba2(), "dt_bias", nn.functional.softplus),
        "softplus(dt_bias)",
    ),
    "S4D, steps": (
        {
            "s.log_dt": torch.linspace(0.001, 0.1, 8),
            "s.log_A_real": torch.linspace(-0.8, -0.6, 16).reshape(8, 2),
        },
        "exp(log_dt)",
    ),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_numbers_in_another_form_are_wrong_and_the_form_is_named(name: str, tmp_path: Path) -> None:
    state, form = TRANSFORMED[name]
    [one] = [one for one in wrong(saved(tmp_path, state)) if one.name == "transformed"]
    assert one.seen.endswith(f"look like {form}")


HEALTHY: dict[str, State] = {
    "RWKV-4": rwkv(4),
    "RWKV-5": rwkv(5),
    "RWKV-6": rwkv(6),
    "RWKV-7": rwkv7(LEVELS),
    "long RWKV-5": changed(rwkv(5), "decay", lambda w: w - 4),
    "very long RWKV-5": changed(rwkv(5), "decay", lambda w: w - 9),
    "short RWKV-5": changed(rwkv(5), "decay", lambda w: w + 2),
    "Mamba": mamba1(),
    "Mamba-2": mamba2(),
    "Mamba-2 that is slow": changed(mamba2(), "A_log", lambda x: x - 4),
    "a power law in A_log": {
        "m.A_log": torch.log(math.log(2) / torch.logspace(0.2, 4.5, 24) / 1.3133),
        "m.dt_bias": torch.ones(24),
    },
    "steps that moved from 0": {
        **changed(mamba1(), "bias", lambda x: 0.05 + 0.01 * torch.randn(8, generator=drawn()))
    },
    "LRU": {"s.nu_log": LEVELS},
    "RWKV-7 that is short": rwkv7(torch.linspace(-1.0, 1.0, CHANNELS)),
    "lightning attention": {
        f"l.{i}.self_attn.slope_rate": 2.0 ** -torch.linspace(0.5, 8.0, 16) * (1 - i / 4)
        for i in range(3)
    },
    "xLSTM": {"l.fgate.bias": torch.linspace(3.0, 6.0, 8)},
    "xLSTM that is short": {"l.fgate.bias": torch.linspace(0.5, 0.8, 8)},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_numbers_are_not_transformed(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    state = {key: x.to(dtype) for key, x in HEALTHY[name].items()}
    found = saved(tmp_path, state)
    assert found.layers
    assert "transformed" not in {one.name for one in found.findings}


def test_rwkv7_under_its_first_names(tmp_path: Path) -> None:
    state = {
        f"blocks.{i}.att.{name}": LEVELS
        for i in range(2)
        for name in ("time_decay", "time_aaaaa", "time_decay_w1")
    }
    found = saved(tmp_path, state)
    assert {layer.family.name for layer in found.layers} == {"RWKV-7"}
    rates = math.exp(-0.5) * torch.sigmoid(LEVELS.double())
    np.testing.assert_allclose(found.layers[0].rates, rates.numpy(), rtol=1e-12)


@pytest.mark.parametrize("kind", ["by channel and state", "by head"])
def test_speeds_in_place_of_their_logs_are_read(kind: str, tmp_path: Path) -> None:
    """As vLLM keeps them: A = -exp(A_log), under a name of its own."""
    logs = mamba1() if kind == "by channel and state" else mamba2()
    speeds = {
        name.replace("A_log", "A"): -torch.exp(x.double()) if name.endswith("A_log") else x
        for name, x in logs.items()
    }
    expected = saved(tmp_path, logs).layers
    found = saved(tmp_path, speeds)
    assert not wrong(found)
    for layer, other in zip(found.layers, expected, strict=True):
        assert layer.family.name == other.family.name
        np.testing.assert_allclose(layer.rates, other.rates, rtol=1e-7)
    positive = changed(speeds, ".A", torch.abs)
    assert "grows" in {one.name for one in wrong(saved(tmp_path, positive))}


@pytest.mark.parametrize(("states", "counted"), [(1, False), (2, False), (3, True), (16, True)])
def test_fewer_than_three_speeds_are_no_evidence_that_they_count(
    states: int, counted: bool
) -> None:
    speeds = np.tile(np.arange(1.0, states + 1), (4, 1))
    layer: Any = SimpleNamespace(tensors={"A_log": SimpleNamespace(values=speeds)})
    assert _counted(POSITIVE, "A_log", [layer]) == counted
    of_heads: Any = SimpleNamespace(tensors={"A_log": SimpleNamespace(values=speeds[0])})
    assert not _counted(POSITIVE, "A_log", [of_heads])


def further(a_log: str, dt_bias: str) -> State:
    return {
        f"layers.{i}.mixer.{name}": mamba1(1)[f"backbone.layers.0.mixer.{one}"]
        for i in range(2)
        for name, one in [
            ("A_log", "A_log"),
            ("dt_proj.bias", "dt_proj.bias"),
            (a_log, "A_log"),
            (dt_bias, "dt_proj.bias"),
        ]
    }


FURTHER = {
    "Vim": ("A_b_log", "dt_proj_b.bias"),
    "the same, with one step": ("A_b_log", "dt_proj.bias"),
    "an affix at the end": ("A_log_back", "dt_proj_back.bias"),
    "an affix at the head": ("rev_A_log", "rev_dt_proj.bias"),
    "Mamba2D": ("AT_log", "dtT_proj.bias"),
}


@pytest.mark.parametrize("name", FURTHER)
def test_further_decays_of_a_module_are_read(name: str, tmp_path: Path) -> None:
    state = further(*FURTHER[name])
    found = saved(tmp_path, state)
    assert len(found.layers) == 4
    first, second = sorted(found.layers[:2], key=lambda layer: layer.family.is_further)
    assert second.module.startswith(f"{first.module}:")
    np.testing.assert_array_equal(first.rates, second.rates)
    at = f"layers.1.mixer.{FURTHER[name][0]}"
    state[at] = torch.full_like(state[at], torch.nan)
    assert ("NaN", at) in {one[:2] for one in wrong(saved(tmp_path, state))}


ORDERED = ("ordered.theta", "ordered.delta")
PAIRS = {
    "SSM in order": ORDERED,
    "SSM by position": ("log_rate", "log_length"),
    "RWKV-7 in order": (*ORDERED, "w0"),
    "Mamba-2 in order": (*ORDERED, "dt_bias"),
    "RG-LRU": ("a_param", "a_gate.b"),
    "S4D": ("log_dt", "log_A_real"),
    "S5": ("Lambda_re", "log_step"),
    "further": ("rev_A_log", "rev_dt_proj.bias"),
}
SHAPES = {
    "ordered.theta": (1,),
    "ordered.delta": (7,),
    "log_A_real": (8, 2),
    "rev_A_log": (8, 2),
    "log_length": (1,),
}
"""Of tensors of these names; others have 8 numbers."""


@pytest.mark.parametrize(
    ("names", "lost"),
    [
        (PAIRS["SSM in order"], "ordered.theta"),
        (PAIRS["SSM in order"], "ordered.delta"),
        (PAIRS["SSM by position"], "log_rate"),
        (PAIRS["RWKV-7 in order"], "ordered.theta"),
        (PAIRS["RWKV-7 in order"], "ordered.delta"),
        (PAIRS["Mamba-2 in order"], "ordered.delta"),
        (PAIRS["RG-LRU"], "a_param"),
        (PAIRS["RG-LRU"], "a_gate.b"),
        (PAIRS["S4D"], "log_A_real"),
        (PAIRS["S5"], "Lambda_re"),
        (PAIRS["further"], "rev_A_log"),
        (PAIRS["further"], "rev_dt_proj.bias"),
    ],
)
@pytest.mark.parametrize("layer", [1, 2])
def test_half_of_what_a_layer_is_read_from_is_told(
    names: tuple[str, ...], lost: str, layer: int, tmp_path: Path
) -> None:
    """The layer has no half-lives in the table, and nothing else says that it should."""
    draw = drawn()
    state = {}
    for number in range(3):
        if names == PAIRS["further"]:
            state[f"layers.{number}.A_log"] = torch.randn(8, 2, generator=draw)
            state[f"layers.{number}.dt_proj.bias"] = steps(8, draw)
        for name in names:
            numbers = torch.randn(SHAPES.get(name, (8,)), generator=draw)
            if name == "log_length":
                numbers += 6
            if name == "Lambda_re":
                numbers = -numbers.abs()
            state[f"layers.{number}.{name}"] = numbers
    assert "unread" not in {one.name for one in saved(tmp_path, state).findings}
    del state[f"layers.{layer}.{lost}"]
    [one] = [one for one in saved(tmp_path, state).findings if one.name == "unread"]
    assert one.severity == "wrong"
    assert one.tensor in state
    assert one.tensor.startswith(f"layers.{layer}.")
    assert one.seen.startswith(f"{lost} is missing beside it")


def test_a_part_of_a_layout_that_no_layer_has_is_left_alone(tmp_path: Path) -> None:
    """Such a name alone, as of a rotary embedding, says nothing of decays."""
    draw = drawn()
    state = {
        "layers.0.A_log": torch.randn(8, 2, generator=draw),
        "layers.0.dt_proj.bias": steps(8, draw),
        "rotary.ordered.theta": torch.randn(1, generator=draw),
    }
    assert "unread" not in {one.name for one in saved(tmp_path, state).findings}


def test_a_layer_that_another_formula_reads_without_a_tensor_is_told(tmp_path: Path) -> None:
    """w0 alone is that of a plain RWKV-7, which this model is not."""
    state = {}
    for number in range(3):
        at = f"layers.{number}.att"
        sizes = {"ordered.theta": 1, "ordered.delta": 7, "w0": 8, "r_k": 8}
        for name, size in sizes.items():
            state[f"{at}.{name}"] = torch.randn(size, generator=drawn(number))
    del state["layers.1.att.ordered.theta"]
    found = saved(tmp_path, state)
    assert [layer.family.name for layer in found.layers][1] == "RWKV-7"
    words = "ordered.theta is missing beside it, so that its half-lives are of another formula"
    assert ("unread", "layers.1.att.ordered.delta", words, "wrong") in found.findings


def test_four_directions_in_one_tensor(tmp_path: Path) -> None:
    """VMamba: A_logs (K D, N) with dt_projs_bias (K, D)."""
    draw = drawn()
    bias = steps(12, draw).reshape(4, 3)
    a_logs = torch.randn(12, 2, generator=draw)
    state = {"layers.0.op.A_logs": a_logs, "layers.0.op.dt_projs_bias": bias}
    [layer] = saved(tmp_path, state).layers
    rates = torch.exp(a_logs.double()) * nn.functional.softplus(bias.double()).reshape(12, 1)
    np.testing.assert_allclose(layer.rates, rates.numpy(), rtol=1e-12)


@pytest.mark.parametrize(
    "name",
    [
        *("A_log_atk", "A_x_log", "A_logs_b", "dt_bias_b", "dt_bias2", "log_decay"),
        *("time_decay_rev", "time_decay2", "w_decay", "decay", "decay_base"),
        *("to_decay_factor.0.bias", "forget_gate.bias", "fgate_bias"),
        *("log_lambda", "lambda_raw", "alpha_log", "log_gamma", "retention_log"),
    ],
)
def test_names_like_those_of_decays_are_said(name: str, tmp_path: Path) -> None:
    at = f"backbone.layers.0.mixer.{name}"
    state = mamba2() | {at: torch.linspace(-1, 1, 5)}
    found = saved(tmp_path, state)
    assert ("unread", at, "notable") in {(*one[:2], one.severity) for one in found.findings}
    assert not wrong(found)
    state[at][1] = torch.nan
    assert ("NaN", at) in {one[:2] for one in wrong(saved(tmp_path, state))}


@pytest.mark.parametrize(
    "name",
    [
        *("weight_decay", "ema_decay", "lr_decay", "gamma_log", "theta_log", "log_alpha"),
        *("time_decay_w1", "decay_proj.weight", "gate.bias", "conv1d.bias", "norm.weight"),
    ],
)
def test_other_names_are_not_called_decays(name: str, tmp_path: Path) -> None:
    """The gamma of an LRU normalises, its theta turns; a decay of weights is a setting."""
    state = mamba2() | {f"backbone.layers.0.mixer.{name}": torch.linspace(-1, 1, 5)}
    assert "unread" not in {one.name for one in saved(tmp_path, state).findings}


class Mixer(nn.Module):
    """A mixer of Mamba-2 with other parameters beside its decays."""

    def __init__(self, **others: Tensor) -> None:
        super().__init__()
        self.A_log = nn.Parameter(torch.linspace(0.2, 2.0, 4))
        self.dt_bias = nn.Parameter(torch.linspace(-6.0, -3.0, 4))
        self.in_proj = nn.Linear(4, 4)
        for name, tensor in others.items():
            self.register_parameter(name, nn.Parameter(tensor))


def model_of(*mixers: nn.Module) -> nn.Module:
    model = nn.Module()
    model.layers = nn.ModuleList([nn.ModuleDict({"mixer": one}) for one in mixers])
    return model


def names_of_groups(model: nn.Module) -> dict[float, set[str]]:
    names = {id(one): name for name, one in model.named_parameters()}
    return {
        group["weight_decay"]: {names[id(one)] for one in group["params"]}
        for group in plkernel.decay_param_groups(model, weight_decay=0.1)
    }


def test_further_decays_get_no_weight_decay_and_labels_of_their_own() -> None:
    model = model_of(
        *(
            Mixer(A_log_atk=torch.linspace(0.3, 1, 4), dt_bias_atk=torch.linspace(-6.0, -3.0, 4))
            for _ in range(2)
        )
    )
    groups = names_of_groups(model)
    assert {"layers.1.mixer.A_log_atk", "layers.1.mixer.dt_bias_atk"} <= groups[0.0]
    assert "layers.0.mixer.in_proj.weight" in groups[0.1]
    optimizer = torch.optim.AdamW(plkernel.decay_param_groups(model, weight_decay=0.1))
    scalars = plkernel.watch(model, optimizer).read()
    assert {"decay/layer0/half_life_p50", "decay/layer0:atk/half_life_p50"} <= scalars.keys()
    assert {"decay/A_log/lr", "decay/A_log_atk/lr"} <= scalars.keys()


@pytest.mark.parametrize("name", ["A_log_atk", "time_decay_back", "dt_bias_slow"])
def test_names_like_those_of_decays_get_no_weight_decay_and_it_is_said(name: str) -> None:
    model = model_of(Mixer(**{name: torch.linspace(0, 1, 5)}))
    with pytest.warns(UserWarning, match=rf"layers\.0\.mixer\.{name}: named like decays"):
        groups = names_of_groups(model)
    assert f"layers.0.mixer.{name}" in groups[0.0]


@pytest.mark.parametrize("which", [[1], [0, 1]])
def test_parameter_groups_spare_what_a_parametrised_a_log_is_made_of(
    which: list[int], recwarn: pytest.WarningsRecorder
) -> None:
    """In one layer, which was under weight decay, or in all, which were unknown."""
    model = model_of(Mixer(), Mixer())
    for index in which:
        layer = model.get_submodule(f"layers.{index}.mixer")
        parametrize.register_parametrization(layer, "A_log", nn.Identity())
    groups = names_of_groups(model)
    decays = [name for name, _ in model.named_parameters() if "in_proj" not in name]
    assert groups[0.0] == set(decays)
    assert not recwarn.list
    scalars = plkernel.watch(model).read()
    assert scalars["decay/layer1/half_life_max"] == scalars["decay/layer0/half_life_max"]


@pytest.mark.parametrize("which", ["layers.1.", "layers."])
def test_a_parametrised_decay_in_a_file_is_told_by_name(which: str, tmp_path: Path) -> None:
    state = {
        name.replace("A_log", "parametrizations.A_log.original") if which in name else name: one
        for name, one in mamba2(2).items()
    }
    words = r"parametrizations.A_log.original.* is what a parametrization makes A_log of"
    if which == "layers.":
        with pytest.raises(ValueError, match=words):
            saved(tmp_path, state)
        return
    [one] = [one for one in saved(tmp_path, state).findings if one.tensor.endswith("original")]
    assert one.severity == "wrong"
    assert re.search(words, f"{one.tensor} {one.seen}")


TAILS = {
    "plain": (".weight",),
    "GPTQ": (".qweight", ".scales", ".qzeros"),
    "compressed-tensors": (".weight_packed", ".weight_scale"),
    "peft": (".base_layer.weight", ".lora_A.default.weight"),
    "quantised under peft": (".base_layer.qweight", ".lora_B.default.weight"),
    "bitsandbytes": (".weight.quant_state.bitsandbytes__nf4",),
    "weight norm": (".parametrizations.weight.original0",),
}
NEIGHBOURS = {
    "gated delta net": ("linear_attn", "in_proj_ba", (4,), (4,)),
    "gated delta net, fused": ("linear_attn", "in_proj_qkvzba", (4,), (4,)),
    "Kimi Delta Attention": ("self_attn", "f_a_proj", (1, 1, 2, 1), (8,)),
}


@pytest.mark.parametrize("family", NEIGHBOURS)
@pytest.mark.parametrize("tail", TAILS)
def test_the_family_does_not_depend_on_how_a_neighbour_stores_its_weight(
    family: str, tail: str, tmp_path: Path
) -> None:
    part, neighbour, heads, channels = NEIGHBOURS[family]
    state = {}
    for layer in range(2):
        at = f"model.layers.{layer}.{part}"
        state[f"{at}.A_log"] = 2 * torch.rand(heads, generator=drawn(layer))
        state[f"{at}.dt_bias"] = torch.randn(channels, generator=drawn(layer)) - 3
        for one in TAILS[tail]:
            state[f"{at}.{neighbour}{one}"] = torch.zeros(2, 8)
    found = saved(tmp_path, state)
    assert [layer.family.name for layer in found.layers] == [family.partition(",")[0]] * 2
    assert "delta rule" in render(found)


@pytest.mark.parametrize(
    ("config", "family"),
    [
        ({"model_type": "qwen3_next"}, "gated delta net"),
        ({"model_type": "gated_deltanet"}, "gated delta net"),
        ({"model_type": "qwen3_5", "text_config": {"model_type": "x"}}, "gated delta net"),
        ({"model_type": "x", "text_config": {"model_type": "qwen3_5_text"}}, "gated delta net"),
        ({"model_type": "kimi_linear"}, "Kimi Delta Attention"),
        ({"model_type": "kda"}, "Kimi Delta Attention"),
        ({"model_type": "mamba2"}, "Mamba-2"),
    ],
)
def test_config_json_decides_the_family_where_no_neighbour_does(
    config: dict[str, Any], family: str, tmp_path: Path
) -> None:
    found = saved(tmp_path, mamba2(), **config)
    assert {layer.family.name for layer in found.layers} == {family}


@pytest.mark.parametrize("wrapper", ["base_layer", "original_module", "modules_to_save.default"])
def test_the_bias_of_a_wrapped_map_is_its_bias(wrapper: str, tmp_path: Path) -> None:
    plain = saved(tmp_path, mamba1())
    wrapped = {name.replace("proj.", f"proj.{wrapper}."): x for name, x in mamba1().items()}
    found = saved(tmp_path, wrapped)
    assert [one.module for one in found.layers] == [one.module for one in plain.layers]
    for one, other in zip(found.layers, plain.layers, strict=True):
        np.testing.assert_array_equal(one.rates, other.rates)


class Gate(nn.Module):
    """A map under peft, as far as its names go."""

    def __init__(self) -> None:
        super().__init__()
        self.base_layer = nn.Linear(2, 2)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(2, 2)})


def test_a_wrapped_neighbour_is_seen_in_a_live_model() -> None:
    mixer = nn.Module()
    mixer.A_log = nn.Parameter(torch.zeros(1, 1, 2, 1))
    mixer.dt_bias = nn.Parameter(torch.linspace(-4, -2, 8))
    mixer.f_proj = nn.ModuleList([Gate()])
    watch = plkernel.watch(model_of(mixer))
    assert watch.unseen == {}
    assert "decay/layer0/half_life_p50" in watch.read()


def test_a_watch_that_sees_nothing_warns_once() -> None:
    mixer = Mixer()
    mixer.dt_bias = nn.Parameter(torch.zeros(7))
    with pytest.warns(
        UserWarning, match="no layer can be read: layers.0.mixer: tensors must have the shapes of"
    ):
        watch = plkernel.watch(model_of(mixer))
    with warnings.catch_warnings(action="error"):
        assert watch.read() == {}


LABELS = {
    "directions": (
        ["m.layers.0.fwd.ssm", "m.layers.0.rev.ssm", "m.layers.1.fwd.ssm", "m.layers.1.rev.ssm"],
        ["0 fwd", "0 rev", "1 fwd", "1 rev"],
    ),
    "an average beside online weights": (
        ["ema.layers.0.mixer", "ema.layers.1.mixer", "online.layers.0.mixer"],
        ["0 ema", "1", "0 online"],
    ),
    "an average of all names": (
        ["layers.0.mixer", "ema.layers.0.mixer"],
        ["0 layers.0.mixer", "0 ema"],
    ),
    "chunks of a pipeline": (
        ["model0.decoder.layers.0.mixer", "model1.decoder.layers.0.mixer"],
        ["0 model0", "0 model1"],
    ),
    "plain": (["layers.0.mixer", "layers.3.mixer"], ["0", "3"]),
    "experts": (
        ["layers.0.experts.0.mixer", "layers.0.experts.1.mixer"],
        ["0 experts.0", "0 experts.1"],
    ),
    "stages": (
        ["stages.0.blocks.0.ssm", "stages.0.blocks.1.ssm", "stages.1.blocks.0.ssm"],
        ["0 stages.0", "1", "0 stages.1"],
    ),
    "two in a mixer": (["layers.0.mixer.ssm1", "layers.0.mixer.ssm2"], ["0 ssm1", "0 ssm2"]),
    "a student": (["student.layers.0.m", "teacher.layers.0.m"], ["0 student", "0 teacher"]),
    "an encoder": (["encoder.layers.1.m", "decoder.layers.1.m"], ["1 encoder", "1 decoder"]),
    "without numbers": (["a.ssm", "b.ssm"], ["0", "1"]),
    "with an affix": (["s4_layers.2.kernel", "s4_layers.10.kernel"], ["2", "10"]),
    "two with an affix": (
        ["m.self_layers.3.attn", "m.cross_layers.3.attn"],
        ["3 self_layers", "3 cross_layers"],
    ),
    "numbers alone": (["stack.3.ssm", "stack.5.ssm"], ["3", "5"]),
    "modules that are numbers": (["3", "5"], ["3", "5"]),
    "one without a number": (["a.ssm", "layers.0.ssm"], ["0 a", "0 layers.0"]),
}


@pytest.mark.parametrize("name", LABELS)
def test_rows_of_one_layer_say_which_module_they_are(name: str) -> None:
    modules, labels = LABELS[name]
    assert row_labels(modules) == labels


@pytest.mark.parametrize(
    "name", ["s4_layers.{}.kernel", "stack.{}", "layers.0.blocks.{}.op", "{}", "net.ssm{}"]
)
@pytest.mark.parametrize("decays", [None, {"*.mine": "exp_exp"}])
def test_layers_are_in_the_order_of_their_numbers(
    name: str, decays: dict[str, str] | None, tmp_path: Path
) -> None:
    """Also those that are stated, and beside the same ones under names that are recognised."""
    tensor = "mine" if decays else "nu_log"
    draw = drawn()
    tensors = {f"{name.format(i)}.{tensor}": torch.randn(8, generator=draw) - i for i in range(12)}
    save_file(tensors, tmp_path / "now.safetensors")
    plain = {f"layers.{i}.{tensor}": one for i, one in enumerate(tensors.values())}
    save_file(plain, tmp_path / "before.safetensors")
    now = inspected(str(tmp_path / "now.safetensors"), decays)
    before = inspected(str(tmp_path / "before.safetensors"), decays)
    assert [layer.module for layer in now.layers] == [name.format(i) for i in range(12)]
    assert list(redrawn(before.layers, now.layers)) == []
    if "ssm" not in name and "blocks" not in name:
        assert [layer.number for layer in now.layers] == list(range(12))


def test_layers_with_an_affix_are_no_count_of_all_layers(tmp_path: Path) -> None:
    """Of a model with layers of two kinds, or with an empty place in a list of some."""
    draw = drawn()
    names = ("mamba_layers.0.nu_log", "mamba_layers.2.nu_log")
    tensors = {name: torch.randn(8, generator=draw) - 4.0 for name in names}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 6}))
    assert inspected(str(tmp_path)).findings == ()


def test_the_table_has_these_labels(tmp_path: Path) -> None:
    state = {
        name.replace("mixer", f"mixer.{side}"): x
        for side in ("mamba_fwd", "mamba_rev")
        for name, x in mamba1(3).items()
    }
    rows = [line.split()[:2] for line in render(saved(tmp_path, state)).splitlines()]
    expected = [[str(i), side] for i in range(3) for side in ("mamba_fwd", "mamba_rev")]
    assert [row for row in rows if row in expected] == expected


def lacking(state: State, part: str) -> State:
    return {name: x for name, x in state.items() if not name.endswith(part)}


MAMBA_1 = {"model_type": "mamba", "num_hidden_layers": 2}
KIMI = {"l.A_log": LEVELS[:4], "l.dt_bias": LEVELS, "l.f_a_proj.weight": torch.ones(2, 2)}
BOUNDS = {
    "m.lower_bounds": LEVELS.reshape(2, 8),
    **{f"m.layers.{i}.attn.f_proj.weight": torch.ones(1) for i in range(2)},
}
RG_LRU = {"l.recurrent_param": LEVELS, "l.recurrent_gate_bias": LEVELS.reshape(2, 8)}
S4D = {"l.log_dt": LEVELS[:4], "l.log_A_real": LEVELS.reshape(4, 4)}
RETNET = {"l.g_proj.weight": torch.ones(32, 16), "l.g_norm_swish_gate.weight": torch.ones(16)}
RETNET_SAYS = {"model_type": "retnet", "hidden_size": 16, "expand_v": 2.0, "num_heads": 2}
MINIMAX = {"l.output_gate.weight": torch.ones(16, 16)}
MINIMAX_SAYS = {
    "model_type": "minimax",
    "hidden_size": 16,
    "num_attention_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 2,
}
SIZES: dict[str, tuple[State, dict[str, Any]]] = {
    "channels": (mamba1(), MAMBA_1 | {"intermediate_size": 24, "state_size": 4}),
    "states": (mamba1(), MAMBA_1 | {"intermediate_size": 8, "state_size": 16}),
    "hidden size": (mamba1(), MAMBA_1 | {"hidden_size": 12, "expand": 2, "state_size": 4}),
    "Jamba": (mamba1(), {"hidden_size": 8, "mamba_expand": 2, "mamba_d_state": 4}),
    "mamba_ssm": (mamba1(), {"d_model": 8, "n_layer": 2, "ssm_cfg": {"d_state": 4}}),
    "RWKV": (rwkv(5), {"model_type": "rwkv5", "hidden_size": 32}),
    "RG-LRU": (
        {
            "l.recurrent_param": torch.linspace(-5, -4, 16),
            "l.recurrent_gate_bias": torch.linspace(-1, 1, 16).reshape(2, 8),
        },
        {"lru_width": 32},
    ),
    "heads": (mamba2(), {"model_type": "mamba2", "num_heads": 8}),
    "RWKV-7": (rwkv7(LEVELS), {"model_type": "rwkv7", "hidden_size": 64}),
    "heads of an xLSTM": ({"l.fgate.bias": LEVELS}, {"model_type": "xlstm", "num_heads": 4}),
    "heads in an object": (
        {"l.A_log": LEVELS[:4], "l.dt_bias": LEVELS, "l.f_a_proj.weight": torch.ones(2, 2)},
        {"model_type": "kimi_linear", "linear_attn_config": {"num_heads": 8}},
    ),
    "heads of a Falcon-H1": (mamba2(), {"model_type": "falcon_h1", "mamba_n_heads": 8}),
    "heads of a Bamba": (mamba2(), {"model_type": "bamba", "mamba_n_heads": 8}),
    "heads of a Zamba2": (mamba2(), {"model_type": "zamba2", "n_mamba_heads": 8}),
    "heads of a Nemotron-H": (mamba2(), {"model_type": "nemotron_h", "mamba_num_heads": 8}),
    "heads of a Mamba-2 of mamba_ssm": (mamba2(), {"d_model": 32, "ssm_cfg": {"headdim": 8}}),
    "heads of 64 in a Mamba-2 of mamba_ssm": (
        mamba2(),
        {"d_model": 256, "ssm_cfg": {"layer": "Mamba2"}},
    ),
    "states of a Jamba": (mamba1(), {"hidden_size": 4, "mamba_expand": 2, "mamba_d_state": 16}),
    "value heads of a Qwen3-Next": (
        {"l.A_log": LEVELS, "l.dt_bias": LEVELS, "l.in_proj_ba.weight": torch.ones(2, 2)},
        {"model_type": "qwen3_next", "linear_num_value_heads": 8},
    ),
    "heads of a gated delta net": (
        {"l.A_log": LEVELS, "l.dt_bias": LEVELS, "l.b_proj.weight": torch.ones(2, 2)},
        {"model_type": "gated_deltanet", "num_heads": 8},
    ),
    "width of a head in an object": (KIMI, {"linear_attn_config": {"num_heads": 4, "head_dim": 8}}),
    "width of a head": (KIMI, {"num_heads": 4, "head_dim": 8}),
    "width of a head of a Kimi": (KIMI, {"linear_num_heads": 4, "linear_head_dim": 8}),
    "a gate without A_log": (
        lacking(KIMI, "A_log"),
        {"lower_bound": -5.0, "num_heads": 4, "head_dim": 8},
    ),
    "GLA": ({"l.gk_proj.1.bias": LEVELS}, {"hidden_size": 16, "expand_k": 0.5}),
    "GLA in groups": (
        {"l.gk_proj.1.bias": LEVELS},
        {"hidden_size": 64, "expand_k": 0.5, "num_heads": 4, "num_kv_heads": 1},
    ),
    "RWKV-4": (rwkv(4), {"model_type": "rwkv", "hidden_size": 16, "attention_hidden_size": 32}),
    "RWKV-7 of its authors": (rwkv7(LEVELS), {"model_type": "rwkv7", "n_embd": 16, "dim_att": 32}),
    "Griffin": (RG_LRU, {"hidden_size": 16, "lru_width": 32}),
    "RWKV-6": (rwkv(6), {"model_type": "rwkv6", "hidden_size": 32}),
    "RWKV-6 of fla": (
        {"l.w_proj.linear.lora.2.bias": LEVELS},
        {"model_type": "rwkv6", "hidden_size": 16, "expand_k": 0.5},
    ),
    "RWKV-7 of fla": (
        {"l.w_lora.lora.2.bias": LEVELS, "l.r_k": LEVELS},
        {"model_type": "rwkv7", "num_heads": 4, "head_dim": 8},
    ),
    "HGRN": (BOUNDS, {"num_hidden_layers": 2, "hidden_size": 16}),
    "layers of an HGRN": (BOUNDS, {"num_hidden_layers": 3, "hidden_size": 8}),
    "heads of a Mesa net": (
        {"l.a_proj.bias": LEVELS, "l.lambda_params": LEVELS},
        {"model_type": "mesa_net", "num_heads": 8},
    ),
    "heads of a forgetting transformer": (
        {"l.f_proj.bias": LEVELS},
        {"model_type": "forgetting_transformer", "num_heads": 8},
    ),
    "heads of a Mamba-3": ({"l.dt_bias": LEVELS}, {"model_type": "mamba3", "num_heads": 8}),
    "heads of a fused xLSTM": (
        {"l.ifgate_preact.bias": LEVELS},
        {"model_type": "xlstm", "num_heads": 16},
    ),
    "channels of an S4D": (S4D, {"d_model": 8, "d_state": 8}),
    "states of an S4D": (S4D, {"d_model": 4, "d_state": 16}),
    "heads of a RetNet": (RETNET, {**RETNET_SAYS, "num_heads": 4}),
    "heads of a RetNet without a gate": (
        {"l.g_proj.weight": torch.ones(32, 16), "l.g_norm.weight": torch.ones(16)},
        {**RETNET_SAYS, "num_heads": 4},
    ),
    "width of a RetNet": (RETNET, {**RETNET_SAYS, "hidden_size": 32, "num_heads": 4}),
    "heads of a MiniMax": (MINIMAX, {**MINIMAX_SAYS, "num_attention_heads": 4}),
    "width of a MiniMax": (MINIMAX, {**MINIMAX_SAYS, "hidden_size": 32}),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_config_json_does_not_have_are_wrong(name: str, tmp_path: Path) -> None:
    state, config = SIZES[name]
    assert "shape" in {one.name for one in wrong(saved(tmp_path, state, **config))}


@pytest.mark.parametrize(
    "config",
    [
        MAMBA_1 | {"intermediate_size": 8, "state_size": 4},
        MAMBA_1 | {"hidden_size": 4, "expand": 2, "state_size": 4},
        {"hidden_size": 4, "mamba_expand": 2, "mamba_d_state": 4, "intermediate_size": 99},
        {"d_model": 4, "n_layer": 2, "ssm_cfg": {"d_state": 4}},
        {"num_hidden_layers": 1, "num_nextn_predict_layers": 1},
        {},
    ],
)
def test_sizes_of_config_json_are_not_wrong(config: dict[str, Any], tmp_path: Path) -> None:
    assert not wrong(saved(tmp_path, mamba1(), **config))


HELD: dict[str, tuple[State, dict[str, Any]]] = {
    "Mamba-2 of mamba_ssm": (mamba2(), {"d_model": 64, "ssm_cfg": {"headdim": 8}}),
    "Mamba-2 of mamba_ssm beside an MLP": (
        mamba2(),
        {"d_model": 256, "ssm_cfg": {"d_ssm": 64, "headdim": 4}},
    ),
    "width of a head": (KIMI, {"linear_attn_config": {"num_heads": 4, "head_dim": 4}}),
    "GLA": ({"l.gk_proj.1.bias": LEVELS}, {"hidden_size": 32, "expand_k": 0.5}),
    "GLA, rounded down": ({"l.gk_proj.1.bias": LEVELS}, {"hidden_size": 33, "expand_k": 0.5}),
    "GLA in groups": (
        {"l.gk_proj.1.bias": LEVELS},
        {"hidden_size": 128, "expand_k": 0.5, "num_heads": 4, "num_kv_heads": 1},
    ),
    "HGRN": (BOUNDS, {"num_hidden_layers": 2, "hidden_size": 4, "expand_ratio": 2}),
    "HGRN-2": (BOUNDS, {"num_hidden_layers": 2, "hidden_size": 8, "expand_ratio": 128}),
    "S4D": (S4D, {"d_model": 4, "d_state": 8}),
    "S4D without conjugates": (S4D, {"d_model": 4, "d_state": 4}),
    "RetNet": (RETNET, RETNET_SAYS),
    "RetNet in four bits": (
        {**RETNET, "l.g_proj.weight": torch.zeros(256, 1, dtype=torch.uint8)},
        RETNET_SAYS,
    ),
    "MiniMax": (MINIMAX, MINIMAX_SAYS),
    "without sizes": (RETNET, {"model_type": "retnet", "num_heads": 2}),
}


@pytest.mark.parametrize("name", HELD)
def test_sizes_that_are_those_of_config_json_are_not_wrong(name: str, tmp_path: Path) -> None:
    state, config = HELD[name]
    assert "shape" not in {one.name for one in saved(tmp_path, state, **config).findings}


def test_all_sizes_that_config_json_may_mean_are_told(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 2, "hidden_size": 16, "expand_ratio": 2}
    [one] = [one for one in wrong(saved(tmp_path, BOUNDS, **config)) if one.name == "shape"]
    assert one.seen == "has shape (2, 8), and config.json says 32 or 64 channels"


@pytest.mark.parametrize(
    "config", [{"num_hidden_layers": 2}, {"n_layer": 1}, {"text_config": {"num_layers": 3}}]
)
def test_more_layers_than_config_json_says_are_wrong(
    config: dict[str, Any], tmp_path: Path
) -> None:
    found = wrong(saved(tmp_path, mamba2(4), **config))
    assert [(one.name, one.tensor) for one in found] == [("more layers", "config.json")]


@pytest.mark.parametrize("kinds", ["M*M", ["mamba", "attention", "mamba"]])
def test_layers_are_counted_by_their_kinds(kinds: Any, tmp_path: Path) -> None:
    [one] = wrong(saved(tmp_path, mamba2(2), hybrid_override_pattern=kinds))
    assert one.seen == "3 layers, and there are tensors of 2"


def test_a_layer_without_decays_counts_too(tmp_path: Path) -> None:
    state = mamba2(2) | {"backbone.layers.2.mlp.weight": torch.ones(2, 2)}
    [one] = wrong(saved(tmp_path, state, num_hidden_layers=2))
    assert (one.name, one.seen) == ("more layers", "2 layers, and there are tensors of 3")


@pytest.mark.parametrize("name", ["n_layers", "n_layer", "num_layers", "num_blocks"])
def test_the_number_of_layers_goes_by_many_names(name: str, tmp_path: Path) -> None:
    [one] = wrong(saved(tmp_path, mamba2(2), **{name: 4}))
    assert one.seen == "4 layers, and there are tensors of 2"


S5 = {"l.Lambda_re": LEVELS, "l.log_step": LEVELS}


@pytest.mark.parametrize(
    ("state", "missing", "beside"),
    [
        (mamba2(), "dt_bias", "backbone.layers.0.mixer.A_log"),
        (mamba2(), "A_log", "backbone.layers.0.mixer.dt_bias"),
        (mamba1(), "dt_proj.bias", "backbone.layers.0.mixer.A_log"),
        (mamba1(), "A_log", "backbone.layers.0.mixer.dt_proj.bias"),
        (RG_LRU, "recurrent_gate_bias", "l.recurrent_param"),
        (S5, "log_step", "l.Lambda_re"),
        (rwkv7(LEVELS), "r_k", "blocks.0.att.w0"),
    ],
)
def test_the_tensor_that_is_missing_is_named(
    state: State, missing: str, beside: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"{missing}.* is missing beside {beside}"):
        saved(tmp_path, lacking(state, missing))


@pytest.mark.parametrize("state", [mamba1(3), mamba2(3)])
@pytest.mark.parametrize("index", [0, 1])
def test_a_tensor_that_one_layer_lacks_is_named(state: State, index: int, tmp_path: Path) -> None:
    gone = [name for name in state if ".1." in name][index]
    [one] = wrong(saved(tmp_path, lacking(state, gone)))
    missing = gone.partition("mixer.")[2]
    assert one.seen.startswith(f"{missing} is missing beside it")


def test_names_that_no_formula_takes_are_in_the_refusal(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no formula is known for l\.time_decay_rev"):
        saved(tmp_path, {"l.time_decay_rev": LEVELS, "a.weight": LEVELS})


def test_what_only_our_models_have_is_not_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is missing beside") as told:
        saved(tmp_path, lacking(mamba2(), "A_log"))
    assert "ordered.theta" not in str(told.value).partition("is missing")[0]
