"""Rates of decay -ln a per token, in float64, and the exact initialisations of decays, family by family.

A decay that depends on the input is taken at its bias. Products in the exponent are formed there, never as a decay, so
that half-lives of any length keep their digits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from plkernel.common.files import shown

Floats = NDArray[np.float64]


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


def softplus(x: Floats) -> Floats:
    """ln(1 + exp(x)), accurate for any x."""
    return np.logaddexp(0.0, x)


# Shapes below are made equal by `reshape`, never by broadcasting: small tensors of a hostile file must not make large
# ones.


def mamba(given: Given) -> Floats:
    """exp(A_log) softplus(dt_bias): A_log (C, N) or (H, P, N), dt_bias without the last dimension."""
    a_log = given["A_log"]
    return np.exp(a_log) * softplus(given["dt_bias"]).reshape(a_log.shape[:-1])[..., None]


def mamba2(given: Given) -> Floats:
    """exp(A_log) clip(softplus(dt_bias)), both (H,), within the time-step limits of config.json."""
    if given.setting("model_type") in ("zamba2", "nemotron_h"):
        low, high = given.number("time_step_min", 0.0), np.inf
    else:
        low, high = _limits(given)
    return np.exp(given["A_log"]) * np.clip(softplus(given["dt_bias"]).reshape(given["A_log"].shape), low, high)


def _limits(given: Given) -> tuple[float, float]:
    """Two limits under any of their names, each a number or an object with one, as transformers writes infinity."""
    inner = given.setting("ssm_cfg")  # of mamba_ssm
    settings = {name: given.setting(name) for name in ("time_step_limit", "dt_limit", "mamba_dt_limit")}
    settings["ssm_cfg.dt_limit"] = inner.get("dt_limit") if isinstance(inner, dict) else None
    name, value = next(((name, value) for name, value in settings.items() if value is not None), ("", (0.0, np.inf)))
    try:
        low, high = (float(next(iter(one.values()), "") if isinstance(one, dict) else one) for one in value)
    except (TypeError, ValueError):
        raise ValueError(f"config.json: {name} must be two numbers, got {shown(value)}") from None
    return low, high


def gated_delta(given: Given) -> Floats:
    """exp(A_log) softplus(dt_bias), both (H,)."""
    return np.exp(given["A_log"]) * softplus(given["dt_bias"]).reshape(given["A_log"].shape)


def gated_channels(given: Given) -> Floats:
    """exp(A_log) softplus(dt_bias): A_log (H,), dt_bias (H K); with a lower bound b, -b sigmoid(exp(A_log) dt_bias)."""
    speed = np.exp(given["A_log"]).reshape(-1, 1)
    bias = given["dt_bias"].reshape(len(speed), -1)
    bounds = [given.number(name) for name in ("lower_bound", "linear_lower_bound")]
    if given.setting("kda_safe_gate"):
        bounds.append(given.number("kda_lower_bound", -5.0))
    bound = next((one for one in bounds if one is not None), None)
    return speed * softplus(bias) if bound is None else -bound * expit(speed * bias)


def rg_lru(given: Given) -> Floats:
    """8 sigmoid(gate bias) softplus(Lambda): Lambda (H W,), gate bias (H, W)."""
    gate = given["gate_bias"]
    return 8.0 * expit(gate) * softplus(given["Lambda"].reshape(gate.shape))


def double_exponential(given: Given) -> Floats:
    """exp(w), for a = exp(-exp(w))."""
    return np.exp(given["w"])


def rwkv7(given: Given) -> Floats:
    """exp(-1/2) sigmoid(w)."""
    return np.exp(-0.5) * expit(given["w"])


def slopes(given: Given) -> Floats:
    """The slopes themselves, of a = exp(-slope)."""
    return given["slopes"].reshape(-1)


def lightning(given: Given) -> Floats:
    """2**(-8 h / H) (1 - layer / (layers - 1 + 1e-5) + 1e-5) for head h = 1..H; shape (H,)."""
    heads, layers = given.count("num_attention_heads"), given.count("num_hidden_layers")
    return np.exp2(-8.0 * np.arange(1, heads + 1) / heads) * (1.0 - given.layer / (layers - 1 + 1e-5) + 1e-5)


def retnet(given: Given) -> Floats:
    """-ln(1 - 2**(-5 - h)) for head h = 0..H-1; shape (H,)."""
    return -np.log1p(-np.exp2(-5.0 - np.arange(given.count("num_heads"))))


def forget_gate(given: Given) -> Floats:
    """softplus(-c tanh(b / c)) for a = sigmoid of the bias b (H,), soft-capped at c if config.json has a cap."""
    bias, cap = given["bias"], given.number("gate_soft_cap")
    return softplus(-(bias if not cap else cap * np.tanh(bias / cap)))


def fused_forget_gate(given: Given) -> Floats:
    """`forget_gate` of the second half of the biases (2 H,); the first half are those of the input gates."""
    return forget_gate(Given({"bias": np.split(given["bias"], 2)[1]}, given.config, given.layer))


def plain_gate(given: Given) -> Floats:
    """softplus(-b) for a = sigmoid(b), b (H,)."""
    return softplus(-given["bias"])


def mamba3(given: Given) -> Floats:
    """softplus(dt_bias) max(ln 2, A_floor): the input-dependent A without an input is -softplus(0); dt_bias (H,)."""
    return softplus(given["dt_bias"]) * max(np.log(2.0), given.number("A_floor", 0.0) or 0.0)


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
    low = np.cumsum(shares / shares.sum(axis=0), axis=0)[given.layer] - (shares / shares.sum(axis=0))[0]
    return -np.log((1.0 + low) / 2.0)


def s4d(given: Given) -> Floats:
    """exp(log_dt) exp(log_A_real): log_dt (H,), log_A_real (H, N)."""
    real = np.exp(given["log_A_real"])
    return np.exp(given["log_dt"]).reshape(real.shape[:-1])[..., None] * real


def s5(given: Given) -> Floats:
    """-Lambda_re exp(log_step), both (P,); or one step for all."""
    real, steps = given["Lambda_re"].reshape(-1), np.exp(given["log_step"])
    return -real * steps.reshape(() if steps.size == 1 else real.shape)


Start = Callable[[tuple[int, ...], int, int], Floats]
"""Initial values from the shape, the layer's number and the number of layers."""


def counted(shape: tuple[int, ...], layer: int, layers: int) -> Floats:
    """ln(1), ln(2) .. over the last dimension: S4D-Real (arXiv 2206.11893), as in Mamba."""
    return np.broadcast_to(np.log(np.arange(1, shape[-1] + 1)), shape)


def ones(shape: tuple[int, ...], layer: int, layers: int) -> Floats:
    """1, the dt_bias of several families in transformers."""
    return np.ones(shape)


def xlstm(shape: tuple[int, ...], layer: int, layers: int) -> Floats:
    """3 .. 6 over heads: xLSTM (arXiv 2405.04517)."""
    return np.broadcast_to(np.linspace(3.0, 6.0, shape[-1]), shape)


def _ramp(shape: tuple[int, ...], exponent: float) -> Floats:
    """x**exponent for x = 0 .. 1 over the channels (n,)."""
    count = int(np.prod(shape))
    return (np.arange(count) / max(1, count - 1)) ** exponent


def rwkv4(shape: tuple[int, ...], layer: int, layers: int) -> Floats:
    """-5 + 8 x**(0.7 + 1.3 depth) over channels, depth 0 .. 1: BlinkDL/RWKV-LM, RWKV-v4."""
    return (-5.0 + 8.0 * _ramp(shape, 0.7 + 1.3 * (layer / max(1, layers - 1)))).reshape(shape)


def rwkv5(shape: tuple[int, ...], layer: int, layers: int) -> Floats:
    """-6 + 5 x**(0.7 + 1.3 depth) over channels, depth 0 .. 1: BlinkDL/RWKV-LM, RWKV-v5."""
    return (-6.0 + 5.0 * _ramp(shape, 0.7 + 1.3 * (layer / max(1, layers - 1)))).reshape(shape)


def rwkv7_start(shape: tuple[int, ...], layer: int, layers: int) -> Floats:
    """-5.5 + 6 x**(1 + depth**0.3) + 2.5 z |z| over channels, z in -1..1 along each head of 64: RWKV-LM, RWKV-v7."""
    ramp = _ramp(shape, 1.0 + (layer / max(1, layers - 1)) ** 0.3)
    zigzag = (np.arange(len(ramp)) % 64 - 31.5) / 31.5
    return (-5.5 + 6.0 * ramp + 2.5 * zigzag * np.abs(zigzag)).reshape(shape)


START_NAMES: dict[Start, str] = {
    counted: "ln(1), ln(2), ln(3) .. (S4D-Real, Mamba)",
    ones: "ones",
    xlstm: "3 .. 6 over heads (xLSTM)",
    rwkv4: "the official start of RWKV-4",
    rwkv5: "the official start of RWKV-5 and RWKV-6",
    rwkv7_start: "the official start of RWKV-7",
}
