"""Decays that a text makes are those of a formula of the test's own, from what the modules'
projections are given.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import CASES, built
from torch import Tensor, nn
from torch.nn import functional as F

from plkernel.analysis.nodes import place
from plkernel.commands.inspect import command as inspect
from plkernel.common.files import load_json
from plkernel.config.reading import parse_spec
from plkernel.data.windows import fixed_windows
from plkernel.decays.families import BY_INPUT
from plkernel.decays.rates import Layer, half_lives, quantiles
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.rwkv7 import RWKV7, RWKV7Config
from plkernel.models.ssm import SSM, SSMConfig
from plkernel.probing.observation import (
    LEVELS,
    _entry,
    _rows,
    _spread,
    _unmoved,
    observe,
    observe_text,
)
from plkernel.probing.text_models import TextModel
from plkernel.training.checkpoint import open_model
from plkernel.training.foreign import NEED_A_GPU
from plkernel.training.loop import prepare, run_training

pytestmark = pytest.mark.filterwarnings("ignore")  # of other people's code
SILENT = ("Rwkv", "MiniMax", "xLSTM", "BailingHybrid")  # the first two are fixed
WINDOWS = torch.randint(0, 32, (2, 24), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of transformers run in torch alone, whatever was imported before."""
    hub_kernels = pytest.importorskip(
        "transformers.integrations.hub_kernels", reason="transformers is not installed"
    )
    monkeypatch.setattr(hub_kernels, "is_torchdynamo_exporting", lambda: True)
    for name in NEED_A_GPU:
        monkeypatch.setitem(sys.modules, name, None)


def ours(version: int) -> nn.Module:
    """A Finch (6) or a Goose (7) of two layers with drawn weights."""
    model = (
        RWKV(RWKVConfig(6, 16, 2, 8, k_clamp=True))
        if version == 6
        else RWKV7(RWKV7Config(16, 2, 8))
    )
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=random))
    return model.double()


def made(name: str) -> nn.Module:
    if name.startswith("rwkv"):
        return ours(int(name[-1]))
    model: Any = built(name).eval()
    model.set_experts_implementation("eager")  # the other one has no float64
    return model  # type: ignore[no-any-return]


def predicted(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Its answer is not read, so any will do."""
    return lambda tokens: (
        model(tokens)
        if isinstance(model, RWKV)
        else model(input_ids=tokens, use_cache=False).logits
    )


def seen(model: nn.Module) -> list[tuple[Layer, np.ndarray]]:
    return observe(model, predicted(model), WINDOWS)


def inputs(model: nn.Module, ending: str) -> list[tuple[Any, list[Tensor]]]:
    """The parent of every module so named, and what the module is given of each window, (T, width)
    each.
    """
    found = []
    for name, module in model.named_modules():
        if name.endswith(ending):
            given: list[Tensor] = []
            module.register_forward_pre_hook(lambda _, args, given=given: given.append(args[0][0]))
            found.append((model.get_submodule(name.rpartition(".")[0]), given))
    with torch.no_grad():
        for window in WINDOWS:
            predicted(model)(window[None])
    return found


def mamba(at: Any, x: Tensor) -> Tensor:
    low = x @ at.x_proj.weight.T[:, : at.dt_proj.in_features]
    return F.softplus(low @ at.dt_proj.weight.T + at.dt_proj.bias)[..., None] * at.A_log.exp()


def mamba2(at: Any, x: Tensor) -> Tensor:
    step = F.softplus(x @ at.in_proj.weight[-len(at.dt_bias) :].T + at.dt_bias)
    return step.clamp(*at.time_step_limit) * at.A_log.exp()


def gated_delta(at: Any, x: Tensor) -> Tensor:
    """Two heads of values to each head of keys: rows b b a a, b b a a of the weight."""
    rows = at.in_proj_ba.weight.unflatten(0, (at.num_k_heads, 2, -1))[:, 1].flatten(0, 1)
    return F.softplus(x @ rows.T + at.dt_bias) * at.A_log.exp()


def rg_lru(at: Any, x: Tensor) -> Tensor:
    gate, heads = at.rg_lru, x.unflatten(-1, (at.rg_lru.num_attention_heads, -1))
    opened = (
        torch.einsum("thi,hij->thj", heads, gate.recurrent_gate_weight) + gate.recurrent_gate_bias
    )
    return 8.0 * opened.sigmoid().flatten(1) * F.softplus(gate.recurrent_param)


def before(x: Tensor) -> Tensor:
    return F.pad(x, (0, 0, 1, 0))[:-1]


def finch(block: Any, x: Tensor) -> Tensor:
    at, change = block.att, before(x) - x
    low = torch.tanh((x + change * at.time_maa_x[0]) @ at.time_maa_w1)[:, : at.time_maa_w2.shape[1]]
    mixed = x + change * (at.time_maa_w[0] + low @ at.time_maa_w2[0])
    return (at.time_decay[0] + torch.tanh(mixed @ at.time_decay_w1) @ at.time_decay_w2).exp()


def goose(block: Any, x: Tensor) -> Tensor:
    at = block.att
    mixed = x + (before(x) - x) * at.x_w[0]
    return np.exp(-0.5) * (at.w0[0] + torch.tanh(mixed @ at.w1) @ at.w2).sigmoid()


FORMULAS: dict[str, tuple[str, Callable[[Any, Tensor], Tensor]]] = {
    "Mamba": ("x_proj", mamba),
    "Mamba2": ("in_proj", mamba2),
    "Qwen3Next": ("in_proj_ba", gated_delta),
    "RecurrentGemma": ("rg_lru", rg_lru),
    "rwkv6": ("att", finch),
    "rwkv7": ("att", goose),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_decays_are_those_of_an_own_formula(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "float", Tensor.double)  # their formulas, without their rounding
    model, (ending, formula) = made(name), FORMULAS[name]
    layers = seen(model)
    expected = [
        torch.cat([formula(at, x) for x in given]).detach() for at, given in inputs(model, ending)
    ]
    assert len(layers) == len(expected) > 1
    for (layer, seen_), rates in zip(layers, expected, strict=True):
        assert seen_.shape == (WINDOWS.numel(), *layer.rates.shape)
        np.testing.assert_allclose(seen_.reshape(rates.shape), rates.numpy(), rtol=1e-6)
        assert np.ptp(seen_, axis=0).max() > 1e-3 * layer.rates.max(), "the text moves nothing"


@pytest.mark.parametrize("name", [*CASES, "rwkv6", "rwkv7"])
def test_without_an_input_they_are_the_static_ones(name: str) -> None:
    """Every weight of a layer but its static decays is zero; what has none that a text moves says
    so.
    """
    model = made(name).float()
    layers = seen(model)
    moved = [one for one in layers if len(one[1])]
    assert layers
    assert moved == ([] if name in SILENT else layers)
    with torch.no_grad():
        for layer, _ in moved:
            kept = set(layer.names.values())
            for parameter, values in model.get_submodule(layer.module).named_parameters(
                layer.module
            ):
                values.mul_(parameter in kept)
    for (_, moving), (layer, still) in zip(layers, seen(model), strict=True):
        if len(moving):
            static, observed_ = (
                quantiles(rates, LEVELS, "inverted_cdf") for rates in (layer.rates, still)
            )
            np.testing.assert_array_equal(observed_, static)
            assert np.ptp(moving, axis=0).max() > 0, "the text moves nothing"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny model of a type that fla does not take over, and a tokenizer of 31 bytes and one for
    all others.
    """
    transformers, tokenizers = (
        pytest.importorskip("transformers"),
        pytest.importorskip("tokenizers"),
    )
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())[:31]
    known = {letter: at for at, letter in enumerate([*letters, "other"])}
    words = tokenizers.Tokenizer(tokenizers.models.BPE(known, [], unk_token="other"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path / "model")
    built("FalconMamba").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_two_tokens_are_enough_and_one_is_not(folder: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_bytes(bytes(2))
    _, values = observe_text(folder, str(short), 48)
    assert (values["windows"], values["context"]) == (1, 2)
    assert {layer["tokens"] for layer in values["layers"]} == {2}
    short.write_bytes(bytes(1))
    with pytest.raises(ValueError, match=r"text must have 2 tokens or more, got 1 in "):
        observe_text(folder, str(short), 48)


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect(folder, text=__file__, tokens=48, json=tmp_path / "found.json")
    found = load_json(tmp_path / "found.json")["observed"]
    assert (found["text"], found["unit"], found["windows"], found["context"]) == (
        __file__,
        "token",
        1,
        48,
    )
    layer = found["layers"][1]
    assert layer["tokens"] == 48
    assert (
        list(layer["static"]) == list(layer["observed"]) == ["0.05", "0.25", "0.5", "0.75", "0.95"]
    )
    said = capsys.readouterr().out
    row = " / ".join(f"{value:.3g}" for value in layer["observed"].values())
    assert any(line.startswith("1 ") and line.endswith(f" {row}") for line in said.splitlines())


@pytest.mark.parametrize(("most", "kept"), [(10**9, 24), (2 * 24, 24), (2 * 8, 8), (3, 1), (0, 1)])
def test_of_a_wide_layer_fewer_tokens_are_sampled_evenly(
    most: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 24 tokens in each of two windows, so that all keep within the most; at least one."""
    model = made("rwkv6")
    [*_, (layer, every)] = seen(model)
    monkeypatch.setattr("plkernel.probing.observation.MOST_RATES", most * layer.rates.size)
    [*_, (_, some)] = seen(model)
    assert len(some) == 2 * kept
    chosen = np.linspace(0, 23, kept).astype(int)
    both = every.reshape(2, 24, *layer.rates.shape)[:, chosen]
    np.testing.assert_array_equal(some, both.reshape(some.shape))


def test_levels_are_those_that_occur() -> None:
    rates = np.log(2) / np.arange(1.0, 21.0)  # half-lives 1 to 20
    assert _spread(rates) == pytest.approx(
        {"0.05": 1.0, "0.25": 5.0, "0.5": 10.0, "0.75": 15.0, "0.95": 19.0}
    )


def a_layer(module: str, number: int, name: str, *notes: str) -> Layer:
    family = SimpleNamespace(name=name, notes=notes)
    return SimpleNamespace(module=module, number=number, rates=np.ones(2), family=family)  # type: ignore[return-value]


def test_layers_without_observed_decays_say_why_once_for_each_family() -> None:
    none = np.empty((0, 2))
    layers = [
        (a_layer("a.0", 0, "fixed"), none),
        (a_layer("a.1", 1, "fixed"), none),
        (a_layer("a.2", 2, "moved", f"{BY_INPUT} somehow"), none),
        (a_layer("a.3", 3, "seen", f"{BY_INPUT} somehow"), np.ones((3, 2))),
    ]
    assert _unmoved("text", layers) == [
        "observed on text: fixed: its decays do not depend on the input",
        "observed on text: moved: how a text moves its decays is not known here",
    ]
    entries = [_entry(layer, rates) for layer, rates in layers]
    assert [entry["tokens"] for entry in entries] == [0, 0, 0, 3]
    assert [entry["observed"] is None for entry in entries] == [True, True, True, False]
    [row] = _rows(entries)
    half_life = " / ".join([f"{np.log(2):.3g}"] * len(LEVELS))
    assert row == ["3", "3", half_life, half_life]


@pytest.mark.parametrize("name", ["hf:owner/name", "model.safetensors"])
def test_what_cannot_run_is_not_run(name: str, tmp_path: Path) -> None:
    path = Path(name) if name.startswith("hf:") else tmp_path / name
    if not name.startswith("hf:"):
        path.write_bytes(b"")
    with pytest.raises(ValueError, match="model must be one that can run on a text, a folder with"):
        observe_text(path, "stdlib", 8)


@pytest.fixture
def run_of_mamba2(tmp_path: Path) -> Path:
    """The folder of a run of one step whose model other people's code builds."""
    text = tmp_path / "text.txt"
    text.write_bytes(bytes(range(256)) * 20)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 8}
    values = {
        "name": "tiny",
        "baseline": "a",
        "seeds": [0],
        "corpus": {"name": str(text)},
        "model": {
            "kind": "plkernel.models.mamba2:mamba2",
            "config": {**sizes, "state_size": 8, "n_groups": 1, "chunk_size": 16},
        },
        "train": {"context": 24, "batch": 2, "steps": 1, "eval_windows": 2, "test_windows": 2},
        "arms": {"a": {}},
    }
    spec = parse_spec(values, "here", trusted=True)
    run_training(prepare(spec, "a", 0, tmp_path / "out"), progress_bar=False)
    return tmp_path / "out" / "a" / "seed-0"


def test_a_run_of_other_peoples_code_reads_a_text_after_consent(
    run_of_mamba2: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    text = str(tmp_path / "text.txt")
    error = refused(inspect, run_of_mamba2, "--text", text)
    assert error.endswith("then pass --trust-code (trust_code=True in Python)")
    error = refused(inspect, run_of_mamba2, "--trust-code")
    assert "text must be given with trust_code" in error
    inspect(run_of_mamba2, text=text, tokens=48, trust_code=True, json=tmp_path / "found.json")
    found = load_json(tmp_path / "found.json")["observed"]
    assert (found["unit"], found["windows"], found["context"]) == ("byte", 2, 24)
    model = open_model(run_of_mamba2, trusted=True)[0].module
    windows = fixed_windows(np.fromfile(text, np.uint8), 23, 2)
    expected = observe(model, lambda tokens: model(tokens), windows)
    assert len(found["layers"]) == len(expected) == 2
    for layer, (_, rates) in zip(found["layers"], expected, strict=True):
        assert layer["observed"] == pytest.approx(_spread(rates))
        assert layer["observed"] != layer["static"]


class Named(nn.Module):
    """A layer of Mamba-2 that gives softplus its argument by name."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 4)
        self.A_log = nn.Parameter(torch.zeros(4))
        self.dt_bias = nn.Parameter(torch.linspace(-4.0, -1.0, 4))
        self.D = nn.Parameter(torch.ones(4))

    def forward(self, tokens: Tensor) -> Tensor:
        return F.softplus(input=self.embedding(tokens) + self.dt_bias)


def test_an_argument_by_name_is_heard() -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList([Named()])})
    layer: Any = model["layers"][0]  # type: ignore[index]
    ((_, rates),) = observe(model, layer, WINDOWS)
    with torch.no_grad():
        expected = torch.cat([layer(window[None])[0] for window in WINDOWS]).numpy()
    np.testing.assert_allclose(rates, expected, rtol=1e-6)


@pytest.mark.parametrize("parametrisation", ["free", "ordered"])
@pytest.mark.parametrize("length", [None, 64])
def test_half_lives_of_a_model_with_patches_are_in_bytes(
    parametrisation: Any, length: float | None
) -> None:
    sizes = {"dim": 16, "layers": 2, "patch": 4}
    model = SSM(SSMConfig(**sizes, parametrisation=parametrisation, scaling_length=length))
    model.place_(place(16, longest=500.0))
    found = observe(model, model, WINDOWS)
    # Ordered levels are sums, which a model in float32 rounds.
    rtol = 1e-12 if parametrisation == "free" else 1e-6
    for (layer, _), expected in zip(found, model.half_lives(), strict=True):
        lives = np.sort(half_lives(layer.rates))
        np.testing.assert_allclose(lives, np.sort(expected.numpy()), rtol=rtol)
        at_byte_9 = np.sort(half_lives(replace(layer, position=9.0).rates_of()))
        there = np.sort(model.half_lives(9.0)[0].numpy())
        np.testing.assert_allclose(at_byte_9, there, rtol=rtol)


def test_windows_of_a_model_with_patches_hold_whole_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    text = tmp_path / "text.txt"
    text.write_bytes(bytes(40))
    model = ours(6).float()

    def predict(tokens: Tensor) -> Tensor:
        read.append(tokens.shape[1])
        return model(tokens)  # type: ignore[no-any-return]

    patched = TextModel(model, predict, lambda data: (data, None), "byte", context=18, step=4)
    monkeypatch.setattr("plkernel.probing.observation.open_text_model", lambda *_: patched)
    _, values = observe_text(tmp_path, str(text), 40)
    assert (values["context"], read) == (16, [16, 16])
    _, values = observe_text(tmp_path, str(text), 3)
    assert values["context"] == 3, "shorter than a patch"
