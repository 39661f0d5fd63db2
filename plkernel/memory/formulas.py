"""Table of families of layers: names of the tensors that hold their decays, and formulas for the rates of decay.

To add a family, append a Family: the first whose patterns fit a layer reads it. Names are those of transformers,
flash-linear-attention and the authors' own code, with any prefix before the module's own part of a name.

Rates are -ln a per token, in float64. A decay that depends on the input is taken at its bias. Products in the exponent
are formed there, never as a decay, so that half-lives of any length keep their digits. Shapes are made equal by
`reshape`, never by broadcasting: small tensors of a hostile file must not make large ones.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from plkernel.common.files import shown

Floats = NDArray[np.float64]
Start = Callable[[tuple[int, ...], int, int], Floats]
"""Initial values from the shape, the layer's number and the number of layers."""

BY_INPUT = "the decay depends on the input"
INPUT = f"{BY_INPUT}: shown is its static part, the bias"
DELTA = "a delta rule also forgets by erasing what it overwrites: half-lives are upper bounds"
FIXED = "decays are fixed, not learned"
MAGNITUDE = "of complex decays the magnitude is shown"


@dataclass(frozen=True)
class Given:
    """Arguments of a formula: the tensors of a layer by role, config.json, and the layer's number, 0 if unknown."""

    tensors: Mapping[str, Floats]
    config: Mapping[str, Any]
    layer: int

    def __getitem__(self, role: str) -> Floats:
        return self.tensors[role]

    def setting(self, name: str) -> Any:
        """Value of config.json, or of the language model in it; None if absent."""
        text = self.config.get("text_config")
        return self.config.get(name, text.get(name) if isinstance(text, dict) else None)

    def number(self, name: str, default: float | None = None) -> float | None:
        """Number of config.json; ValueError for any other value."""
        value = self.setting(name)
        try:
            return default if value is None else float(value)
        except (TypeError, ValueError):
            raise ValueError(f"config.json: {name} must be a number, got {shown(value)}") from None

    def count(self, name: str) -> int:
        """Number of config.json from 1 to 4096; ValueError if absent or outside."""
        value = self.number(name)
        if value is None:
            raise ValueError(f"config.json: {name} is missing, which the decays of these layers follow from")
        if not 1 <= value <= 4096:
            raise ValueError(f"config.json: {name} must lie between 1 and 4096, got {value:g}")
        return int(value)


@dataclass(frozen=True)
class Argument:
    """First argument of a torch function, which replaces a static tensor at every token of a running model.

    role       of the static tensor
    functions  names of the functions that modules of this family call with it
    time       dimension of the tokens; calls with another length there are ignored
    call       index of the call among the remaining ones; None for all of them, each with some of the channels
    """

    role: str
    functions: tuple[str, ...]
    time: int = 1
    call: int | None = 0


@dataclass(frozen=True)
class Family:
    """Layers of one kind.

    name     of the family
    tensors  names of the tensors to read, by role in the formula; {at} stands for the module
    rate     rates -ln a from these tensors
    formula  the same in words
    source   paper and code
    notes    cautions about the half-lives
    beside   names of which one must be in the checkpoint, if any are given
    without  name that must be absent, if not empty
    models   model types of config.json, if restricted
    starts   exact initialisation of the tensor of a role, in words and as a function
    anchor   pattern that the name of one tensor of every such layer matches; that of the first of `tensors` if empty
    fixed    rates that config.json defines, for decays that are not learned
    taken    place where a running module of transformers or plkernel computes decays that depend on the input
    """

    name: str
    tensors: Mapping[str, str]
    rate: Callable[[Given], Floats]
    formula: str
    source: str
    notes: tuple[str, ...] = (INPUT,)
    beside: tuple[str, ...] = ()
    without: str = ""
    models: tuple[str, ...] = ()
    starts: Mapping[str, tuple[str, Start]] = field(default_factory=dict)
    fixed: Callable[[Given], Floats] | None = None
    anchor: str = ""
    taken: Argument | None = None

    @property
    def pattern(self) -> str:
        """Pattern of one tensor's name in every layer of the family; its groups fill the templates of names."""
        return self.anchor or AT + re.escape(next(iter(self.tensors.values())).removeprefix("{at}."))


def softplus(x: Floats) -> Floats:
    """ln(1 + exp(x)), accurate for any x."""
    return np.logaddexp(0.0, x)


def outer(rate: Floats, states: Floats) -> Floats:
    """Products of `states` (..., N) with one `rate` for each of its rows."""
    return rate.reshape(states.shape[:-1])[..., None] * states


def stepped(given: Given, low: float | None = 0.0, high: float = np.inf) -> Floats:
    """exp(A_log) softplus(dt_bias), both (H,), with the time step within limits."""
    step = softplus(given["dt_bias"]).reshape(given["A_log"].shape)
    return np.exp(given["A_log"]) * np.clip(step, low, high)


def mamba2(given: Given) -> Floats:
    """`stepped` within the limits of config.json: two numbers, or objects with one, as transformers writes infinity."""
    if given.setting("model_type") in ("zamba2", "nemotron_h"):
        return stepped(given, given.number("time_step_min", 0.0))
    inner = given.setting("ssm_cfg")  # of mamba_ssm
    settings = {name: given.setting(name) for name in ("time_step_limit", "dt_limit", "mamba_dt_limit")}
    settings["ssm_cfg.dt_limit"] = inner.get("dt_limit") if isinstance(inner, dict) else None
    name, limits = next(((name, value) for name, value in settings.items() if value is not None), ("", (0.0, np.inf)))
    try:
        low, high = (float(next(iter(one.values()), "") if isinstance(one, dict) else one) for one in limits)
    except (TypeError, ValueError):
        raise ValueError(f"config.json: {name} must be two numbers, got {shown(limits)}") from None
    return stepped(given, low, high)


def kimi(given: Given) -> Floats:
    """exp(A_log) softplus(dt_bias): A_log (H,), dt_bias (H K); with a lower bound b, -b sigmoid(exp(A_log) dt_bias)."""
    speed = np.exp(given["A_log"]).reshape(-1, 1)
    bias = given["dt_bias"].reshape(len(speed), -1)
    bounds = [given.number(name) for name in ("lower_bound", "linear_lower_bound")]
    if given.setting("kda_safe_gate"):
        bounds.append(given.number("kda_lower_bound", -5.0))
    bound = next((one for one in bounds if one is not None), None)
    return speed * softplus(bias) if bound is None else -bound * expit(speed * bias)


def lightning(given: Given) -> Floats:
    """2**(-8 h / H) (1 - layer / (layers - 1 + 1e-5) + 1e-5) for head h = 1..H; shape (H,)."""
    heads, layers = given.count("num_attention_heads"), given.count("num_hidden_layers")
    return np.exp2(-8.0 * np.arange(1, heads + 1) / heads) * (1.0 - given.layer / (layers - 1 + 1e-5) + 1e-5)


def rg_lru(given: Given) -> Floats:
    """8 sigmoid(gate bias) softplus(Lambda): Lambda (H W,), gate bias (H, W)."""
    gate = given["gate_bias"]
    return 8.0 * expit(gate) * softplus(given["Lambda"].reshape(gate.shape))


def forget_gate(given: Given, half: bool = False) -> Floats:
    """softplus(-c tanh(b / c)) for a = sigmoid of the bias b (H,), soft-capped at c if config.json has a cap.

    half: take the second half of the biases; the first half are those of the input gates.
    """
    bias, cap = given["bias"], given.number("gate_soft_cap")
    if half:
        bias = np.split(bias, 2)[1]
    return softplus(-(bias if not cap else cap * np.tanh(bias / cap)))


def gla(given: Given) -> Floats:
    """softplus(-b) / 16, for a = sigmoid(b)**(1/16); at most -clamp_min."""
    most = given.number("clamp_min")
    return np.minimum(softplus(-given["bias"]) / 16.0, np.inf if most is None else -most)


def hgrn(given: Given) -> Floats:
    """-ln(l + (1 - l) / 2): the gate at 1/2 above the lower bound l, 0 in the first layer; bounds (L, D).

    l is the sum over layers 1..layer of the softmax of the bounds over layers.
    """
    bounds = given["lower_bounds"]
    if not 0 <= given.layer < len(bounds):
        raise ValueError(f"lower_bounds has {len(bounds)} rows, and there is a layer {given.layer}")
    shares = np.exp(bounds - bounds.max(axis=0))
    shares = shares / shares.sum(axis=0)
    return -np.log((1.0 + (np.cumsum(shares, axis=0)[given.layer] - shares[0])) / 2.0)


def s5(given: Given) -> Floats:
    """-Lambda_re exp(log_step), both (P,); or one step for all."""
    real, steps = given["Lambda_re"].reshape(-1), np.exp(given["log_step"])
    return -real * steps.reshape(() if steps.size == 1 else real.shape)


def _ramp(shape: tuple[int, ...], exponent: float) -> Floats:
    """x**exponent for x = 0 .. 1 over the channels (n,)."""
    count = int(np.prod(shape))
    return (np.arange(count) / max(1, count - 1)) ** exponent


def _rwkv(low: float, high: float) -> Start:
    """From `low` to `high` by x**(0.7 + 1.3 depth), depth 0 .. 1."""
    return lambda shape, layer, layers: (
        low + (high - low) * _ramp(shape, 0.7 + 1.3 * (layer / max(1, layers - 1)))
    ).reshape(shape)


def rwkv7_start(shape: tuple[int, ...], layer: int, layers: int) -> Floats:
    """-5.5 + 6 x**(1 + depth**0.3) + 2.5 z |z| over channels, z in -1..1 along each head of 64: RWKV-LM, RWKV-v7."""
    ramp = _ramp(shape, 1.0 + (layer / max(1, layers - 1)) ** 0.3)
    zigzag = (np.arange(len(ramp)) % 64 - 31.5) / 31.5
    return (-5.5 + 6.0 * ramp + 2.5 * zigzag * np.abs(zigzag)).reshape(shape)


COUNTED: tuple[str, Start] = (
    "ln(1), ln(2), ln(3) .. (S4D-Real, Mamba)",  # arXiv 2206.11893
    lambda shape, layer, layers: np.broadcast_to(np.log(np.arange(1, shape[-1] + 1)), shape),
)
ONES: tuple[str, Start] = "ones", lambda shape, layer, layers: np.ones(shape)
XLSTM: tuple[str, Start] = (
    "3 .. 6 over heads (xLSTM)",  # arXiv 2405.04517
    lambda shape, layer, layers: np.broadcast_to(np.linspace(3.0, 6.0, shape[-1]), shape),
)
RWKV4 = "the official start of RWKV-4", _rwkv(-5.0, 3.0)  # BlinkDL/RWKV-LM
RWKV5 = "the official start of RWKV-5 and RWKV-6", _rwkv(-6.0, -1.0)
RWKV7 = "the official start of RWKV-7", rwkv7_start

AT = r"(?P<at>.+)\."
A_LOG = {"A_log": "{at}.A_log", "dt_bias": "{at}.dt_bias"}
STEPPED = "a = exp(-exp(A_log) softplus(dt_bias))"
EXPONENTIAL: dict[str, Any] = {"rate": lambda given: np.exp(given["w"]), "formula": "a = exp(-exp(time_decay))"}
TIME_DECAY = {"w": "{at}.time_decay"}
EAGLE = "arXiv 2404.05892; BlinkDL/RWKV-LM: RWKV-v5/src/model.py"
MAMBA: dict[str, Any] = {
    "rate": lambda given: outer(softplus(given["dt_bias"]), np.exp(given["A_log"])),
    "formula": f"{STEPPED}, per channel and state",
    "source": "arXiv 2312.00752; transformers: modeling_mamba.py (Falcon-Mamba, Jamba, Zamba alike)",
    "starts": {"A_log": COUNTED},
    "taken": Argument("dt_bias", ("softplus",), time=-1, call=None),  # Zamba calls it once for each head
}
RG_LRU: dict[str, Any] = {
    "rate": rg_lru,
    "formula": "a = exp(-8 r softplus(Lambda)), r = sigmoid(gate bias)",
    "source": "arXiv 2402.19427; transformers: modeling_recurrent_gemma.py",
    "taken": Argument("gate_bias", ("sigmoid",), call=1),  # the first call is that of the input gate
}
GOOSE: dict[str, Any] = {
    "rate": lambda given: np.exp(-0.5) * expit(given["w"]),
    "formula": "a = exp(-exp(-1/2) sigmoid(w))",
    "notes": (INPUT, DELTA),
    "beside": ("{at}.r_k",),
    "starts": {"w": RWKV7},
    "taken": Argument("w", ("sigmoid",)),
}
X_LSTM: dict[str, Any] = {
    "formula": "a = sigmoid(forget-gate bias), soft-capped as gate_soft_cap says",
    "source": "arXiv 2503.13427; transformers: modeling_xlstm.py",
    "notes": (INPUT, "a rising input gate outweighs what is old beyond the decay shown"),
}
LIGHTNING: dict[str, Any] = {
    "source": "arXiv 2501.08313; transformers: modeling_minimax.py",
    "notes": (FIXED,),
}

FAMILIES = (
    Family("Mamba", {"A_log": "{at}.A_log", "dt_bias": "{at}.dt_proj.bias"}, **MAMBA),
    Family("Mamba", {"A_log": "{at}.A_log", "dt_bias": "{at}.dt_proj_bias"}, **MAMBA),
    Family(
        "Kimi Delta Attention",
        A_LOG,
        kimi,
        f"{STEPPED}, per channel; exp(b sigmoid(exp(A_log) dt_bias)) with a lower bound b",
        "arXiv 2510.26692; transformers: modeling_kimi_linear.py; fla: layers/kda.py",
        (INPUT, DELTA),
        beside=("{at}.f_a_proj.weight", "{at}.f_proj.0.weight", "{at}.f_proj.weight"),
        taken=Argument("dt_bias", ("softplus", "exp")),
    ),
    Family(
        "gated delta net",
        A_LOG,
        stepped,
        f"{STEPPED}, per head",
        "arXiv 2412.06464; transformers: modeling_qwen3_next.py; fla: layers/gated_deltanet.py",
        (INPUT, DELTA),
        beside=(
            *("{at}.b_proj.weight", "{at}.in_proj_ba.weight", "{at}.in_proj_b.weight"),
            *("{at}.shared_b.weight", "{at}.b_proj.0.weight"),  # mixture of memories
        ),
        starts={"dt_bias": ONES},
        taken=Argument("dt_bias", ("softplus",)),
    ),
    Family(
        "Mamba-2",
        A_LOG,
        mamba2,
        f"{STEPPED}, per head; softplus within time_step_limit",
        "arXiv 2405.21060; transformers: modeling_mamba2.py (Bamba, Falcon-H1, Granite-4, Nemotron-H, Zamba2 alike)",
        starts={"A_log": COUNTED, "dt_bias": ONES},
        taken=Argument("dt_bias", ("softplus",)),
    ),
    Family(
        "Mamba-3",
        {"dt_bias": "{at}.dt_bias"},
        lambda given: softplus(given["dt_bias"]) * max(np.log(2.0), given.number("A_floor", 0.0) or 0.0),
        "a = exp(-softplus(dt_bias) softplus(A)), per head; shown at A = 0",
        "fla: layers/mamba3.py",
        models=("mamba3",),
    ),
    Family(
        "Mesa net",
        {"bias": "{at}.a_proj.bias"},
        lambda given: softplus(-given["bias"]),
        "a = sigmoid(bias), per head",
        "arXiv 2506.05233; fla: layers/mesa_net.py",
        (INPUT, DELTA),
        beside=("{at}.lambda_params",),
    ),
    Family(
        "forgetting transformer",
        {"bias": "{at}.f_proj.bias"},
        lambda given: softplus(-given["bias"]),
        "weights of attention are scaled by a = sigmoid(bias) per token, per head",
        "arXiv 2503.02130; fla: layers/forgetting_attn.py",
        models=("forgetting_transformer",),
    ),
    Family("RG-LRU", {"Lambda": "{at}.recurrent_param", "gate_bias": "{at}.recurrent_gate_bias"}, **RG_LRU),
    Family("RG-LRU", {"Lambda": "{at}.a_param", "gate_bias": "{at}.a_gate.b"}, **RG_LRU),
    Family(
        "RWKV-6",
        TIME_DECAY,
        **EXPONENTIAL,
        source=EAGLE,
        beside=("{at}.time_decay_w1", "{at}.time_decay_w2"),
        starts={"w": RWKV5},
        taken=Argument("w", ("exp",)),
    ),
    Family(
        "RWKV-6",
        {"w": "{at}.w_proj.linear.lora.2.bias"},
        EXPONENTIAL["rate"],
        "a = exp(-exp(w))",
        "arXiv 2404.05892; fla: layers/rwkv6.py",
        starts={"w": RWKV5},
    ),
    Family(
        "RWKV-5",
        TIME_DECAY,
        **EXPONENTIAL,
        source=EAGLE,
        notes=(),
        beside=("{at}.ln_x.weight",),
        starts={"w": RWKV5},
    ),
    Family(
        "RWKV-4",
        TIME_DECAY,
        **EXPONENTIAL,
        source="arXiv 2305.13048; transformers: modeling_rwkv.py",
        notes=(),
        starts={"w": RWKV4},
    ),
    Family("RWKV-7", {"w": "{at}.w0"}, source="arXiv 2503.14456; BlinkDL/RWKV-LM: RWKV-v7", **GOOSE),
    Family("RWKV-7", {"w": "{at}.w_lora.lora.2.bias"}, source="arXiv 2503.14456; fla: layers/rwkv7.py", **GOOSE),
    Family(
        "lightning attention",
        {"slopes": "{at}.slope_rate"},
        lambda given: given["slopes"].reshape(-1),
        "a = exp(-slope_rate), per head",
        fixed=lightning,
        **LIGHTNING,
    ),
    Family(
        "lightning attention",
        {},
        lightning,
        "a = exp(-2**(-8 h / H) (1 - layer / (layers - 1))), h = 1..H, from config.json",
        anchor=rf"{AT}output_gate\.weight",
        without="{at}.slope_rate",
        models=("minimax", "minimax_text_01", "MiniMaxText01"),
        **LIGHTNING,
    ),
    Family(
        "RetNet",
        {},
        lambda given: -np.log1p(-np.exp2(-5.0 - np.arange(given.count("num_heads")))),
        "a = 1 - 2**(-5 - h), h = 0..H-1, from config.json",
        "arXiv 2307.08621; fla: ops/retention",
        (FIXED,),
        anchor=rf"{AT}g_proj\.weight",
        models=("retnet",),
    ),
    Family("xLSTM", {"bias": "{at}.fgate_preact.bias"}, forget_gate, starts={"bias": XLSTM}, **X_LSTM),
    Family("xLSTM", {"bias": "{at}.ifgate_preact.bias"}, lambda given: forget_gate(given, half=True), **X_LSTM),
    Family("xLSTM", {"bias": "{at}.fgate.bias"}, forget_gate, starts={"bias": XLSTM}, **X_LSTM),
    Family(
        "GLA", {"bias": "{at}.gk_proj.1.bias"}, gla, "a = sigmoid(bias)**(1/16)", "arXiv 2312.06635; fla: layers/gla.py"
    ),
    Family(
        "HGRN",
        {"lower_bounds": "{model}.lower_bounds"},
        hgrn,
        "a = l + (1 - l) / 2, l the lower bound: a softmax of lower_bounds summed over layers",
        "arXiv 2311.04823 and 2404.07904; fla: models/hgrn, models/hgrn2",
        (f"{BY_INPUT}: shown is a gate half open above its lower bound",),
        anchor=r"(?P<model>.+)\.layers\.\d+\.attn\.f_proj\.weight",
    ),
    Family(
        "S4D",
        {"log_dt": "{at}.log_dt", "log_A_real": "{at}.log_A_real"},
        lambda given: outer(np.exp(given["log_dt"]), np.exp(given["log_A_real"])),
        "|a| = exp(-exp(log_dt) exp(log_A_real)), per channel and state",
        "arXiv 2206.11893; state-spaces/s4: models/s4/s4d.py",
        (MAGNITUDE,),
    ),
    Family(
        "S5",
        {"Lambda_re": "{at}.Lambda_re", "log_step": "{at}.log_step"},
        s5,
        "|a| = exp(Lambda_re exp(log_step)), per state",
        "arXiv 2208.04933; lindermanlab/S5: s5/ssm.py",
        (MAGNITUDE,),
    ),
    Family(
        "LRU",
        {"w": "{at}.nu_log"},
        EXPONENTIAL["rate"],
        "|a| = exp(-exp(nu_log))",
        "arXiv 2303.06349, appendix A",
        (MAGNITUDE,),
    ),
)

DECAYS = ("A_log", "time_decay", "recurrent_param", "slope_rate", "nu_log", "log_A_real", "Lambda_re", "dt_bias")
"""Last parts of names that only decays have: a tensor so named that no family takes is reported as unread."""
