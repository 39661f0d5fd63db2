"""Half-lives of every family: against closed forms written here, and against the live modules of
other software.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_models import CASES, FLA_DECAYS, built, drawn
from torch import Tensor, nn
from torch.nn import functional as F

from plkernel.decays.families import STARTS, Given, gate_bound, in_order, names_of
from plkernel.decays.inspection import inspected

NOTHING = torch.zeros(1, 1, 16, dtype=torch.float64)
Arrays = dict[str, np.ndarray]
X = np.linspace(-5.0, -0.5, 8)
MAMBA = {"layers.0.A_log": np.linspace(-1, 1, 12).reshape(4, 3), "layers.0.dt_proj.bias": X[:4]}
HEADS = {"layers.0.A_log": np.linspace(-1, 1, 8), "layers.0.dt_bias": X}
GATED = {**HEADS, "layers.0.b_proj.weight": np.ones(1)}
GATE = {"l.b_proj.weight": np.ones(1)}
KDA = {"layers.0.A_log": X[:2], "layers.0.dt_bias": X, "layers.0.f_proj.weight": np.ones(1)}
DECAY = {"blocks.0.att.time_decay": X.reshape(2, 4)}
BOUNDS = {
    "m.lower_bounds": X.reshape(2, 4),
    **{f"m.layers.{i}.attn.f_proj.weight": np.ones(1) for i in range(2)},
}


def softplus(x: Any) -> Any:
    return np.log1p(np.exp(x))


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


STEPPED = np.exp(np.linspace(-1, 1, 8)) * softplus(X)
CLIPPED = np.exp(np.linspace(-1, 1, 8)) * np.clip(softplus(X), 0.01, 0.1)
FLOORED = np.exp(np.linspace(-1, 1, 8)) * np.maximum(softplus(X), 0.1)
SPEED = np.exp(X[:2])[:, None]
LOW = np.exp(X[4:]) / (np.exp(X[:4]) + np.exp(X[4:]))
CLOSED: dict[str, tuple[str, Arrays, dict[str, Any], Any]] = {
    "mamba": ("Mamba", MAMBA, {}, np.exp(MAMBA["layers.0.A_log"]) * softplus(X[:4])[:, None]),
    "mamba-2": ("Mamba-2", HEADS, {}, STEPPED),
    "mamba-2 limited": ("Mamba-2", HEADS, {"time_step_limit": [0.01, 0.1]}, CLIPPED),
    "mamba-2 limited in fla": ("Mamba-2", HEADS, {"dt_limit": [0.01, 0.1]}, CLIPPED),
    "mamba-2 limited in mamba_ssm": (
        "Mamba-2",
        HEADS,
        {"ssm_cfg": {"dt_limit": [0.01, 0.1]}},
        CLIPPED,
    ),
    "mamba-2 limited in text_config": (
        "Mamba-2",
        HEADS,
        {"text_config": {"time_step_limit": [0.01, 0.1]}},
        CLIPPED,
    ),
    "nemotron": ("Mamba-2", HEADS, {"model_type": "nemotron_h", "time_step_min": 0.1}, FLOORED),
    "mamba-2 limited under a null": (
        "Mamba-2",
        HEADS,
        {"time_step_limit": None, "text_config": {"time_step_limit": [0.01, 0.1]}},
        CLIPPED,
    ),
    "nemotron by its older name": (
        "Mamba-2",
        HEADS,
        {"model_type": "nemotron_h", "mamba_dt_min": 0.1, "time_step_min": 0.2},
        FLOORED,
    ),
    **{
        f"nemotron in {name} of {outer}": (
            "Mamba-2",
            HEADS,
            {"model_type": outer, name: {"model_type": "nemotron_h", "time_step_min": 0.1}},
            FLOORED,
        )
        for outer in ("nemotron_h_omni", "nemo_speechlm", None)
        for name in ("text_config", "llm_config")
    },
    **{
        f"least step of {name} by default": (
            "Mamba-2",
            {"l.A_log": X, "l.dt_bias": X - 4.0},
            {"model_type": name},
            np.exp(X) * np.maximum(softplus(X - 4.0), 0.001),
        )
        for name in ("nemotron_h", "zamba2")
    },
    "gated delta": ("gated delta net", GATED, {}, STEPPED),
    "momentum delta": (
        "momentum delta net",
        {"l.A_log": X[:2], "l.dt_bias": X[:4], "l.log_factor": -X[:2] / 5, **GATE},
        {"num_heads": 2, "num_v_heads": 4},
        np.exp(X[[0, 0, 1, 1]]) * softplus(X[:4]) + softplus(-2 / 5 * X[[0, 0, 1, 1]]),
    ),
    "raven": ("Raven", {**HEADS, "layers.0.r_proj.weight": np.ones(1)}, {}, STEPPED),
    "raven with a deep router": (
        "Raven",
        {**HEADS, "layers.0.r_proj.2.weight": np.ones(1)},
        {"model_type": "raven"},
        STEPPED,
    ),
    "kimi": ("Kimi Delta Attention", KDA, {}, SPEED * softplus(X.reshape(2, 4))),
    "kimi bounded": (
        "Kimi Delta Attention",
        KDA,
        {"lower_bound": -5},
        5 * sigmoid(SPEED * X.reshape(2, 4)),
    ),
    "kimi safe": (
        "Kimi Delta Attention",
        KDA,
        {"kda_safe_gate": True},
        5 * sigmoid(SPEED * X.reshape(2, 4)),
    ),
    "kimi safe by default": (
        "Kimi Delta Attention",
        KDA,
        {"model_type": "bailing_hybrid"},
        5 * sigmoid(SPEED * X.reshape(2, 4)),
    ),
    "kimi bounded in an object": (
        "Kimi Delta Attention",
        KDA,
        {"linear_attn_config": {"gate_lower_bound": -4.0}},
        4 * sigmoid(SPEED * X.reshape(2, 4)),
    ),
    "kimi without A_log": (
        "Kimi Delta Attention",
        {"l.dt_bias": X, "l.f_proj.weight": np.ones(1)},
        {"lower_bound": -5},
        5 * sigmoid(X).reshape(1, 8),
    ),
    "rg-lru": (
        "RG-LRU",
        {"l.recurrent_param": X, "l.recurrent_gate_bias": X.reshape(2, 4)},
        {},
        (8 * sigmoid(X) * softplus(X)).reshape(2, 4),
    ),
    "rwkv-4": ("RWKV-4", DECAY, {}, np.exp(X).reshape(2, 4)),
    "rwkv-5": (
        "RWKV-5",
        {**DECAY, "blocks.0.att.ln_x.weight": np.ones(1)},
        {},
        np.exp(X).reshape(2, 4),
    ),
    "rwkv-6": (
        "RWKV-6",
        {**DECAY, "blocks.0.att.time_decay_w1": np.ones(1)},
        {},
        np.exp(X).reshape(2, 4),
    ),
    "rwkv-6 fla": ("RWKV-6", {"l.w_proj.linear.lora.2.bias": X}, {}, np.exp(X)),
    "rwkv-7": ("RWKV-7", {"l.w0": X, "l.r_k": np.ones(1)}, {}, math.exp(-0.5) * sigmoid(X)),
    "rwkv-7 fla": (
        "RWKV-7",
        {"l.w_lora.lora.2.bias": X, "l.r_k": np.ones(1)},
        {},
        math.exp(-0.5) * sigmoid(X),
    ),
    "lightning": ("lightning attention", {"l.slope_rate": -X.reshape(-1, 1, 1)}, {}, -X),
    "lightning from config": (
        "lightning attention",
        {"layers.2.a.output_gate.weight": np.ones(1)},
        {"model_type": "minimax", "num_attention_heads": 4, "num_hidden_layers": 5},
        np.array([1 / 4, 1 / 16, 1 / 64, 1 / 256]) * (1 - 2 / (4 + 1e-5) + 1e-5),
    ),
    "retnet": (
        "RetNet",
        {"l.g_proj.weight": np.ones(1)},
        {"model_type": "retnet", "num_heads": 3},
        -np.log([31 / 32, 63 / 64, 127 / 128]),
    ),
    "xlstm": ("xLSTM", {"l.fgate_preact.bias": X}, {}, softplus(-X)),
    "xlstm capped": (
        "xLSTM",
        {"l.fgate.bias": X},
        {"gate_soft_cap": 3.0},
        softplus(-3 * np.tanh(X / 3)),
    ),
    "xlstm capped by default": (
        "xLSTM",
        {"l.fgate.bias": X},
        {"model_type": "xlstm"},
        softplus(-15 * np.tanh(X / 15)),
    ),
    "xlstm fused": ("xLSTM", {"l.ifgate_preact.bias": X}, {}, softplus(-X[4:])),
    "gla": ("GLA", {"l.gk_proj.1.bias": X}, {}, softplus(-X) / 16),
    "gla clamped": (
        "GLA",
        {"l.gk_proj.1.bias": X},
        {"clamp_min": -0.2},
        np.minimum(softplus(-X) / 16, 0.2),
    ),
    "hgrn": ("HGRN", BOUNDS, {}, np.stack([np.full(4, math.log(2)), -np.log((1 + LOW) / 2)])),
    "mesa net": ("Mesa net", {"l.a_proj.bias": X, "l.lambda_params": X}, {}, softplus(-X)),
    "fox": (
        "forgetting transformer",
        {"l.f_proj.bias": X},
        {"model_type": "forgetting_transformer"},
        softplus(-X),
    ),
    "mamba-3": ("Mamba-3", {"l.dt_bias": X}, {"model_type": "mamba3"}, softplus(X) * math.log(2)),
    "mom shared": (
        "gated delta net",
        {**HEADS, "layers.0.shared_b.weight": np.ones(1)},
        {},
        STEPPED,
    ),
    "mom": ("gated delta net", {**HEADS, "layers.0.b_proj.0.weight": np.ones(1)}, {}, STEPPED),
    "s4d": (
        "S4D",
        {"l.log_dt": X[:2], "l.log_A_real": X.reshape(2, 4)},
        {},
        np.exp(X[:2, None] + X.reshape(2, 4)),
    ),
    "s5": ("S5", {"l.Lambda_re": X, "l.log_step": X[:, None]}, {}, -X * np.exp(X)),
    "s5 one step": ("S5", {"l.Lambda_re": X, "l.log_step": X[:1]}, {}, -X * math.exp(X[0])),
    "lru": ("LRU", {"l.nu_log": X}, {}, np.exp(X)),
}


def saved(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> Any:
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return inspected(str(folder))


@pytest.mark.parametrize("name", CLOSED)
def test_closed_forms(name: str, tmp_path: Path) -> None:
    """To 1e-14 relative in float64."""
    family, arrays, config, expected = CLOSED[name]
    result = saved(
        tmp_path, {key: torch.from_numpy(value.copy()) for key, value in arrays.items()}, config
    )
    assert {layer.family.name for layer in result.layers} == {family}
    rates = np.stack([layer.rates for layer in result.layers]).reshape(expected.shape)
    np.testing.assert_allclose(rates, expected, rtol=1e-14)


@pytest.mark.filterwarnings("ignore")  # of other people's code
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"linear_lower_bound": None},
        {"linear_lower_bound": -3.0},
        {"linear_attn_config": {}},
        {"linear_attn_config": {"gate_lower_bound": -4.0}, "linear_lower_bound": -3.0},
        {"linear_attn_config": {"safe_gate": True}, "linear_lower_bound": None},
        {"linear_attn_config": {"gate_lower_bound": None}},
        {"linear_attn_config": {"gate_lower_bound": None, "safe_gate": False}},
        {"linear_attn_config": {"safe_gate": False}, "linear_lower_bound": None},
    ],
)
def test_the_bound_of_a_gate_is_that_of_transformers(settings: dict[str, Any]) -> None:
    from transformers.models.glm5_next.configuration_glm5_next import Glm5NextTextConfig

    expected = Glm5NextTextConfig(**settings).linear_lower_bound
    text = {"model_type": "glm5_next_text", **settings}
    for config in (text, {"model_type": "glm5_next", "text_config": text}):
        assert gate_bound(Given({}, config, 0)) == expected


def with_own(model: nn.Module, attribute: str) -> Iterator[Any]:
    """Modules with a parameter of that name."""
    return (
        module
        for module in model.modules()
        if attribute in dict(module.named_parameters(recurse=False))
    )


def states_of_mamba(model: nn.Module) -> Iterator[Tensor]:
    """discrete_A = exp(A dt) of every channel and state."""
    for at in with_own(model, "A_log"):
        bias = at.dt_proj_bias if hasattr(at, "dt_proj_bias") else at.dt_proj.bias
        yield torch.exp(at.A_log) * F.softplus(bias)[..., None]


def heads_of_mamba2(model: nn.Module) -> Iterator[Tensor]:
    """A dt of every head, dt within the module's own limits."""
    for at in with_own(model, "A_log"):
        limits = getattr(at, "time_step_limit", (0.0, math.inf))
        yield torch.exp(at.A_log) * F.softplus(at.dt_bias).clamp(*limits)


def rg_lru(model: nn.Module) -> Iterator[Tensor]:
    """The gate that the module hands to its own scan when there is no input."""
    for at in with_own(model, "recurrent_param"):
        gates: list[Tensor] = []

        def scan(
            hidden_states: Tensor, recurrent_gate: Tensor, gates: Any = gates, **_: Any
        ) -> tuple[Tensor, None]:
            gates.append(-recurrent_gate[0, 1].log())
            return hidden_states, None

        at._rnn_scan = scan
        at(torch.zeros(1, 2, len(at.recurrent_param), dtype=torch.float64), torch.arange(2)[None])
        yield gates[0]


def xlstm(model: Any) -> Iterator[Tensor]:
    cap = model.config.gate_soft_cap
    for at in model.modules():
        if hasattr(at, "fgate_preact"):
            yield -F.logsigmoid(cap * torch.tanh(at.fgate_preact.bias / cap))


OTHERS: dict[str, Callable[[Any], Iterable[Tensor]]] = {
    **dict.fromkeys(("Mamba", "FalconMamba", "Jamba", "Zamba"), states_of_mamba),
    **dict.fromkeys(
        ("BailingHybrid", "KimiLinear"),
        lambda model: (-at(NOTHING) for at in with_own(model, "A_log")),
    ),
    "RecurrentGemma": rg_lru,
    "MiniMax": lambda model: [at.slope_rate for at in model.modules() if hasattr(at, "slope_rate")],
    "Rwkv": lambda model: [torch.exp(at.time_decay) for at in with_own(model, "time_decay")],
    "xLSTM": xlstm,
}


def compare(
    folder: Path, model: Any, rates: Callable[[], Iterable[Tensor]], **options: Any
) -> None:
    """Rates from the saved model against those of the module's own formula, without its own
    rounding.
    """
    with torch.no_grad(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(Tensor, "float", Tensor.double)
        expected = [one.double().numpy().ravel() for one in rates()]
    model.save_pretrained(folder, **options)
    layers = [one for one in inspected(str(folder)).layers if not one.family.is_further]
    assert len(layers) == len(expected) > 0
    for layer, one in zip(layers, expected, strict=True):
        np.testing.assert_allclose(layer.rates.ravel(), one, rtol=1e-8)
    assert any(np.unique(one).size > 1 for one in expected)


@pytest.mark.filterwarnings("ignore")  # of other people's code
@pytest.mark.parametrize("name", CASES)
def test_transformers(name: str, tmp_path: Path) -> None:
    model = built(name)
    compare(
        tmp_path, model, lambda: OTHERS.get(name, heads_of_mamba2)(model), max_shard_size="20KB"
    )


def kda(layer: Any, model: nn.Module) -> Tensor:
    from fla.ops.kda.gate import naive_kda_gate, naive_kda_lowerbound_gate

    gate = layer.f_proj(NOTHING).unflatten(-1, (-1, layer.head_k_dim))
    if layer.lower_bound is not None:
        return -naive_kda_lowerbound_gate(
            gate, layer.A_log, layer.dt_bias, layer.lower_bound, torch.float64
        )
    return -naive_kda_gate(gate, layer.A_log, layer.dt_bias, torch.float64)


def stepped(layer: Any, model: nn.Module) -> Tensor:
    return layer.A_log.exp() * F.softplus(layer.dt_bias)


def hgrn(layer: Any, model: Any) -> Tensor:
    bounds = model.model.lower_bounds.softmax(0)
    low = (bounds.cumsum(0) - bounds[0])[layer.layer_idx]
    return -(low + (1 - low) * layer.f_proj(NOTHING).flatten().sigmoid()).log()


def mamba3(layer: Any, model: nn.Module) -> Tensor:
    return -layer._compute_a(torch.zeros(layer.num_heads)).double() * F.softplus(layer.dt_bias)


def retnet(layer: Any, model: nn.Module) -> Tensor:
    return -(
        1 - 2.0 ** (-5.0 - torch.arange(layer.num_heads, dtype=torch.float64))
    ).log()  # fla/ops/retention


FLA: dict[str, tuple[str, dict[str, Any], Callable[[Any, nn.Module], Tensor]]] = {
    "gated-delta": ("GatedDeltaNet", {"head_dim": 8}, stepped),
    "mamba2": ("Mamba2", {"head_dim": 8, "num_heads": 4, "state_size": 8}, stepped),
    "kda": ("KDA", {"head_dim": 8}, kda),
    "kda-bound": ("KDA", {"head_dim": 8, "safe_gate": True, "lower_bound": -5.0}, kda),
    "rwkv6": ("RWKV6", {}, lambda layer, model: layer.w_proj.linear(NOTHING).exp()),
    "rwkv7": (
        "RWKV7",
        {"head_dim": 8},
        lambda layer, model: np.exp(-0.5) * layer.w_lora(NOTHING).sigmoid(),
    ),
    "gla": (
        "GLA",
        {},
        lambda layer, model: -F.logsigmoid(layer.gk_proj(NOTHING)) / layer.gate_logit_normalizer,
    ),
    "hgrn": ("HGRN", {}, hgrn),
    "hgrn2": ("HGRN2", {"expand_ratio": 8}, hgrn),
    "retnet": ("RetNet", {}, retnet),
    "mesa": ("MesaNet", {"head_dim": 8}, lambda layer, model: -F.logsigmoid(layer.a_proj(NOTHING))),
    "fox": ("ForgettingTransformer", {}, lambda layer, model: -F.logsigmoid(layer.f_proj(NOTHING))),
    "mamba3": (
        "Mamba3",
        {"head_dim": 8, "num_heads": 4, "state_size": 8, "is_mimo": False},
        mamba3,
    ),
    "mom": ("Mom", {"head_dim": 8, "num_memories": 2, "topk": 1}, stepped),
    "comba": ("Comba", {"head_dim": 8}, stepped),
    "gated-delta-product": ("GatedDeltaProduct", {"head_dim": 8, "use_forget_gate": True}, stepped),
    "log-linear-mamba2": (
        "LogLinearMamba2",
        {"head_dim": 8, "num_heads": 4, "state_size": 8},
        stepped,
    ),
    "preconditioned-gated-delta": ("PrecondGatedDeltaNet", {"head_dim": 8}, stepped),
    "preconditioned-kda": ("PrecondKDA", {"head_dim": 8}, kda),
    "mamba": (
        "Mamba",
        {"state_size": 4},
        lambda layer, model: layer.A_log.exp() * F.softplus(layer.dt_proj.bias)[:, None],
    ),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", FLA)
def test_flash_linear_attention(case: str, tmp_path: Path) -> None:
    models = pytest.importorskip("fla.models", reason="flash-linear-attention is not installed")
    name, options, rates_of = FLA[case]
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 3, "num_heads": 2}
    torch.manual_seed(0)
    config = getattr(models, f"{name}Config")(**{**sizes, **options})
    model: Any = drawn(
        getattr(models, f"{name}ForCausalLM")(config), ("A_log", "dt_bias", *FLA_DECAYS)
    )
    blocks = (getattr(model, "model", None) or model.backbone).layers
    compare(
        tmp_path,
        model,
        lambda: [rates_of(getattr(one, "attn", None) or one.mixer, model) for one in blocks],
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_momentum_delta_net_of_fla(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log decays that the layer hands to its operator where there is no input."""
    module = pytest.importorskip("fla.layers.momentum_deltanet", reason="fla is not installed")
    given: list[Tensor] = []

    def rule(**inputs: Tensor) -> tuple[Tensor, None]:
        given.append(inputs["log_alpha"][0, 0])
        return torch.zeros_like(inputs["v"]), None

    monkeypatch.setattr(module, "fused_recurrent_momentum_delta_rule", rule)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "head_dim": 8, "num_heads": 2, "num_v_heads": 4}
    layer = module.MomentumDeltaNet(**sizes, use_short_conv=False, use_gate=False).eval()
    layer.o_norm = nn.Identity()
    with torch.no_grad():
        layer(torch.zeros(1, 2, 16))
    tensors = {f"layers.0.{name}": one for name, one in layer.state_dict().items()}
    [read] = saved(tmp_path, tensors, {"num_heads": 2, "num_v_heads": 4}).layers
    np.testing.assert_allclose(read.rates, -given[0].numpy(), rtol=1e-5)


def levels_of_rwkv(count: int, depth: float, low: float, high: float) -> np.ndarray:
    """low + (high - low) (n / (N - 1))**(0.7 + 1.3 depth), of the official code of RWKV-4 to 6."""
    share = np.arange(count) / (count - 1)
    return low + (high - low) * share ** (0.7 + 1.3 * depth)


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("counted", lambda depth: np.log([1.0, 2.0, 3.0, 4.0])),
        ("zeros", lambda depth: np.zeros(4)),
        ("ones", lambda depth: np.ones(4)),
        ("-1/2", lambda depth: np.full(4, -0.5)),
        ("ln(1/2)", lambda depth: np.full(4, -math.log(2.0))),
        ("xlstm", lambda depth: np.array([3.0, 4.0, 5.0, 6.0])),
        ("rwkv4", lambda depth: levels_of_rwkv(4, depth, -5.0, 3.0)),
        ("rwkv5", lambda depth: levels_of_rwkv(4, depth, -6.0, -1.0)),
    ],
)
def test_official_starts_are_the_numbers_of_their_code(
    name: str, expected: Callable[[float], np.ndarray], layer: int
) -> None:
    """Of three layers the first has depth 0, the last 1; a single one has depth 0."""
    _, start = STARTS[name]
    found = start((2, 4), layer, 3) if not name.startswith("rwkv") else start((4,), layer, 3)
    np.testing.assert_allclose(found, np.broadcast_to(expected(layer / 2), found.shape), rtol=1e-12)
    if layer == 0:
        alone = start((4,), 0, 1)
        np.testing.assert_allclose(alone, expected(0.0), rtol=1e-12)


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("head_size", [8, 16, 32, 64, 128])
def test_the_official_start_of_rwkv_7_depends_on_the_size_of_a_head(
    head_size: int, layer: int
) -> None:
    """-6 + 6 (n / (N - 1))**(1 + sqrt(depth)) + 0.5 + 2.5 zigzag |zigzag| (BlinkDL/RWKV-LM)."""
    name = "rwkv7" if head_size == 64 else f"rwkv7, heads of {head_size}"
    words, start = STARTS[name]
    assert words.endswith("RWKV-7" if head_size == 64 else f"heads of {head_size}")
    channels = np.arange(2 * head_size)
    within = (channels % head_size - (head_size - 1) / 2) / ((head_size - 1) / 2)
    share = channels / (2 * head_size - 1)
    expected = -6.0 + 6.0 * share ** (1.0 + (layer / 2) ** 0.3)
    expected = expected + 0.5 + 2.5 * within * np.abs(within)
    found = start((1, 1, 2 * head_size), layer, 3)
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-12, atol=1e-12)


def test_a_tensor_of_a_wrapped_map_stands_for_its_weight() -> None:
    known = names_of(["l.q.base_layer.qweight", "l.a", "m.b.bias", "m.b.base_layer.bias"])
    assert known["l.q.weight"] == "l.q.base_layer.qweight"
    assert known["l.a"] == "l.a"
    assert known["m.b.bias"] == "m.b.bias"
    assert known["m.b.base_layer.bias"] == "m.b.base_layer.bias"
    deep = names_of(["a.b.c.d.e.f"])
    assert {name for name in deep if name.endswith(".weight")} == {
        *("a.b.c.d.e.weight", "a.b.c.d.weight", "a.b.c.weight", "a.b.weight"),
    }


def test_numbers_in_names_are_put_in_order_as_numbers() -> None:
    names = ["m.10.a", "m.2.b10", "m.2.b9", "m.2.\u0663", "m.a", f"m.{'9' * 5000}"]
    assert sorted(reversed(names), key=in_order) == [
        *("m.2.b9", "m.2.b10", "m.2.\u0663", "m.10.a", f"m.{'9' * 5000}", "m.a"),
    ]
