"""Families of layers: the formulas of their rates of decay, and from families.toml the names of
their tensors.

To add a family, append its table to families.toml, and its formula to RATES unless one there is the
same.

Rates are -ln a per token, in float64. A decay that depends on the input is taken at its bias.
Products in the exponent are formed there, never as a decay, so that half-lives of any length keep
their digits. Shapes are made equal by `reshape`, never by broadcasting: small tensors of a hostile
file must not make large ones.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plkernel.common.files import shown

Floats = NDArray[np.float64]
Start = Callable[[tuple[int, ...], int, int], Floats]
"""Initial values from the shape, the layer's number and the number of layers."""

BY_INPUT = "the decay depends on the input"
NOTES = {
    "input": f"{BY_INPUT}: shown is its static part, the bias",
    "delta": "a delta rule also forgets by erasing what it overwrites: half-lives are upper bounds",
    "fixed": "decays are fixed, not learned",
    "magnitude": "of complex decays the magnitude is shown",
}
DECAYS = (
    "A_log",
    "time_decay",
    "recurrent_param",
    "slope_rate",
    "nu_log",
    "log_A_real",
    "Lambda_re",
    "dt_bias",
)
"""Last parts of names that only decays have: a tensor so named that no family takes is reported as
unread.
"""


@dataclass(frozen=True)
class Given:
    """Arguments of a formula: the tensors of a layer by role, config.json, and the layer's number,
    0 if unknown.
    """

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
        if value is None or not 1 <= value <= 4096:
            raise ValueError(
                f"config.json: {name} must lie between 1 and 4096, got {shown(self.setting(name))}"
            )
        return int(value)


@dataclass(frozen=True)
class Argument:
    """First argument of torch `functions` in a running model: it replaces the static tensor of
    `role` at every token.

    time: dimension of the tokens; call: index among the calls with all tokens; every: each call has
    some channels.
    """

    role: str
    functions: list[str]
    time: int = 1
    call: int = 0
    every: bool = False


@dataclass(frozen=True)
class Family:
    """Layers of one kind: their rates -ln a from the tensors, and where they stand.

    tensors  names to read, by role in the formula; {at} stands for the module
    beside   names of which one must be in the checkpoint, if any are given; without: names that
    must be absent
    starts   exact initialisations of the tensor of a role in official code, in words and as
    functions
    anchor   pattern that the name of one tensor of every such layer matches; its groups fill the
    templates of names
    fixed    rates that config.json defines, for decays that are not learned
    taken    place where a running module of transformers or plkernel computes decays that depend on
    the input
    heads    names of config.json for the number of heads: the first that is there is the size of
    A_log
    whole    the formula needs all of a tensor; any other is of each channel alone
    """

    name: str
    rate: Callable[[Given], Floats]
    formula: str
    source: str
    tensors: Mapping[str, str]
    anchor: str
    notes: list[str]
    beside: list[str]
    without: list[str]
    models: list[str] = field(default_factory=list)
    starts: Mapping[str, list[tuple[str, Start]]] = field(default_factory=dict)
    fixed: Callable[[Given], Floats] | None = None
    taken: Argument | None = None
    heads: list[str] = field(default_factory=list)
    whole: bool = False


def softplus(x: Floats) -> Floats:
    """ln(1 + exp(x)), accurate for any x."""
    return np.logaddexp(0.0, x)


def expit(x: Floats) -> Floats:
    """1 / (1 + exp(-x)), accurate for any x."""
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(-x))  # type: ignore[no-any-return]


def outer(rate: Floats, states: Floats) -> Floats:
    """Products of `states` (..., N) with one `rate` for each of its rows."""
    return rate.reshape(states.shape[:-1])[..., None] * states


def stepped(given: Given, low: float | None = 0.0, high: float = np.inf) -> Floats:
    """exp(A_log) softplus(dt_bias), both (H,), with the time step within limits."""
    step = softplus(given["dt_bias"]).reshape(given["A_log"].shape)
    return np.exp(given["A_log"]) * np.clip(step, low, high)


def mamba2(given: Given) -> Floats:
    """`stepped` within the limits of config.json: two numbers, or objects with one, as transformers
    writes infinity.
    """
    if given.setting("model_type") in ("zamba2", "nemotron_h"):
        return stepped(given, given.number("time_step_min", 0.0))
    inner = given.setting("ssm_cfg")  # of mamba_ssm
    settings = {
        name: given.setting(name) for name in ("time_step_limit", "dt_limit", "mamba_dt_limit")
    }
    settings["ssm_cfg.dt_limit"] = inner.get("dt_limit") if isinstance(inner, dict) else None
    name, limits = next(
        ((name, value) for name, value in settings.items() if value is not None),
        ("", (0.0, np.inf)),
    )
    try:
        low, high = (
            float(next(iter(one.values()), "") if isinstance(one, dict) else one) for one in limits
        )
    except (TypeError, ValueError):
        raise ValueError(f"config.json: {name} must be two numbers, got {shown(limits)}") from None
    return stepped(given, low, high)


def kimi(given: Given) -> Floats:
    """exp(A_log) softplus(dt_bias): A_log (H,), dt_bias (H K); with a lower bound b, -b
    sigmoid(exp(A_log) dt_bias).

    Without A_log, which takes a lower bound, -b sigmoid(dt_bias).
    """
    speed = np.exp(given.tensors.get("A_log", np.zeros(1))).reshape(-1, 1)
    bias = given["dt_bias"].reshape(len(speed), -1)
    bounds = [given.number(name) for name in ("lower_bound", "linear_lower_bound")]
    if given.setting("kda_safe_gate"):
        bounds.append(given.number("kda_lower_bound", -5.0))
    bound = next((one for one in bounds if one is not None), None)
    if bound is None and "A_log" not in given.tensors:
        raise ValueError("config.json: lower_bound is missing, which a gate without A_log needs")
    return speed * softplus(bias) if bound is None else -bound * expit(speed * bias)


def lightning(given: Given) -> Floats:
    """2**(-8 h / H) (1 - layer / (layers - 1 + 1e-5) + 1e-5) for head h = 1..H; shape (H,)."""
    heads, layers = given.count("num_attention_heads"), given.count("num_hidden_layers")
    return np.exp2(-8.0 * np.arange(1, heads + 1) / heads) * (
        1.0 - given.layer / (layers - 1 + 1e-5) + 1e-5
    )


def rg_lru(given: Given) -> Floats:
    """8 sigmoid(gate bias) softplus(Lambda): Lambda (H W,), gate bias (H, W)."""
    gate = given["gate_bias"]
    return 8.0 * expit(gate) * softplus(given["Lambda"].reshape(gate.shape))


def forget_gate(given: Given, half: bool = False) -> Floats:
    """softplus(-c tanh(b / c)) for a = sigmoid of the bias b (H,), soft-capped at c if config.json
    has a cap.

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
    """-ln(l + (1 - l) / 2): the gate at 1/2 above the lower bound l, 0 in the first layer; bounds
    (L, D).

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
    """-5.5 + 6 x**(1 + depth**0.3) + 2.5 z |z| over channels, z in -1..1 along each head of 64:
    RWKV-LM, RWKV-v7.
    """
    ramp = _ramp(shape, 1.0 + (layer / max(1, layers - 1)) ** 0.3)
    zigzag = (np.arange(len(ramp)) % 64 - 31.5) / 31.5
    return (-5.5 + 6.0 * ramp + 2.5 * zigzag * np.abs(zigzag)).reshape(shape)


RATES: dict[str, Callable[[Given], Floats]] = {
    "exponential": lambda given: np.exp(given["w"]),
    "forget_gate": forget_gate,
    "gla": gla,
    "hgrn": hgrn,
    "kimi": kimi,
    "lightning": lightning,
    "mamba": lambda given: outer(softplus(given["dt_bias"]), np.exp(given["A_log"])),
    "mamba2": mamba2,
    "mamba3": lambda given: (
        softplus(given["dt_bias"]) * max(np.log(2.0), given.number("A_floor", 0.0) or 0.0)
    ),
    "retnet": lambda given: -np.log1p(-np.exp2(-5.0 - np.arange(given.count("num_heads")))),
    "rg_lru": rg_lru,
    "rwkv7": lambda given: np.exp(-0.5) * expit(given["w"]),
    "s4d": lambda given: outer(np.exp(given["log_dt"]), np.exp(given["log_A_real"])),
    "s5": s5,
    "second_half": lambda given: forget_gate(given, half=True),
    "slopes": lambda given: given["slopes"].reshape(-1),
    "stepped": stepped,
}
STARTS: dict[str, tuple[str, Start]] = {
    "counted": (
        "ln(1), ln(2), ln(3) .. (S4D-Real, Mamba)",  # arXiv 2206.11893
        lambda shape, layer, layers: np.broadcast_to(np.log(np.arange(1, shape[-1] + 1)), shape),
    ),
    **{
        words: (words, lambda shape, layer, layers, number=number: np.full(shape, number))  # type: ignore[misc]
        for words, number in (
            ("zeros", 0.0),
            ("ones", 1.0),
            ("-1/2", -0.5),
            ("ln(1/2)", np.log(0.5)),
        )
    },
    "xlstm": (
        "3 .. 6 over heads (xLSTM)",  # arXiv 2405.04517
        lambda shape, layer, layers: np.broadcast_to(np.linspace(3.0, 6.0, shape[-1]), shape),
    ),
    "rwkv4": ("the official start of RWKV-4", _rwkv(-5.0, 3.0)),  # BlinkDL/RWKV-LM
    "rwkv5": ("the official start of RWKV-5 and RWKV-6", _rwkv(-6.0, -1.0)),
    "rwkv7": ("the official start of RWKV-7", rwkv7_start),
}


def _families() -> tuple[Family, ...]:
    """The families of families.toml, one for each layout of their tensors."""

    def full(name: str) -> str:
        return name if "{" in name else f"{{at}}.{name}"

    families = []
    for row in tomllib.loads(Path(__file__).with_name("families.toml").read_text(encoding="utf-8"))[
        "family"
    ]:
        layouts = row.pop("tensors", {})
        row |= {key: list(map(full, row.get(key, []))) for key in ("beside", "without")}
        row["notes"] = [NOTES.get(note, note) for note in row.get("notes", ["input"])]
        row["starts"] = {
            role: [STARTS[one] for one in names] for role, names in row.get("starts", {}).items()
        }
        row |= {key: RATES[row[key]] for key in ("rate", "fixed") if key in row}
        row |= {"taken": Argument(**row["taken"])} if "taken" in row else {}
        for layout in layouts if isinstance(layouts, list) else [layouts]:
            anchor = rf"(?P<at>.+)\.{re.escape(next(iter(layout.values()), ''))}"
            tensors = {role: full(name) for role, name in layout.items()}
            families.append(Family(**{"anchor": anchor, **row}, tensors=tensors))
    return tuple(families)


FAMILIES = _families()
