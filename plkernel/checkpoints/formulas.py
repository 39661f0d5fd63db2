"""Rates of decay -ln a per token, in float64, from the tensors and the configuration of a layer.

What depends on the input stands where it is without one: at its bias. Products in the exponent are formed there, never
as a decay, so that half-lives of any length keep their digits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from plkernel.common.files import shown

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Given:
    """What a formula is given: the tensors of a layer by role, config.json, and the layer's number, 0 if unknown."""

    tensors: Mapping[str, Floats]
    config: Mapping[str, Any]
    layer: int

    def __getitem__(self, role: str) -> Floats:
        return self.tensors[role]

    def setting(self, name: str) -> Any:
        """A value of config.json, or of the language model in it; None where it is not said."""
        text = self.config.get("text_config")
        inner = text if isinstance(text, dict) else {}
        return self.config.get(name, inner.get(name))

    def number(self, name: str, default: float | None = None) -> float | None:
        """A number of config.json; ValueError where it is something else."""
        value = self.setting(name)
        if value is None:
            return default
        try:
            return float(value)
        except (TypeError, ValueError):
            raise ValueError(f"config.json: {name} must be a number, got {shown(value)}") from None

    def needed(self, name: str) -> float:
        """A number that config.json must say."""
        value = self.number(name)
        if value is None:
            raise ValueError(f"config.json: {name} is missing, which the decays of these layers follow from")
        return value


def softplus(x: Floats) -> Floats:
    """ln(1 + exp(x)), to the last digit for any x."""
    return np.logaddexp(0.0, x)


def mamba(given: Given) -> Floats:
    """exp(A_log) softplus(dt_bias): A_log (C, N) or (H, P, N), dt_bias without the last dimension."""
    return np.exp(given["A_log"]) * _one_each(softplus(given["dt_bias"]), given["A_log"].shape[:-1])[..., None]


def _one_each(values: Floats, shape: tuple[int, ...]) -> Floats:
    """`values` in another shape; nothing is ever repeated to fit, or small tensors would make huge ones."""
    return values.reshape(shape)


def mamba2(given: Given) -> Floats:
    """exp(A_log) clip(softplus(dt_bias)), both (H,); the clip where config.json has one."""
    if given.setting("model_type") in ("zamba2", "nemotron_h"):
        low, high = given.number("time_step_min", 0.0), np.inf
    else:
        low, high = _limits(given.setting("time_step_limit"))
    return np.exp(given["A_log"]) * np.clip(_one_each(softplus(given["dt_bias"]), given["A_log"].shape), low, high)


def _limits(value: Any) -> tuple[float, float]:
    if value is None:
        return 0.0, np.inf
    try:
        low, high = (float(next(iter(one.values())) if isinstance(one, dict) else one) for one in value)
    except (TypeError, ValueError, StopIteration):
        raise ValueError(f"config.json: time_step_limit must be two numbers, got {shown(value)}") from None
    return low, high


def gated_delta(given: Given) -> Floats:
    """exp(A_log) softplus(dt_bias), both (H,)."""
    return np.exp(given["A_log"]) * _one_each(softplus(given["dt_bias"]), given["A_log"].shape)


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
    heads, layers = _whole(given, "num_attention_heads"), _whole(given, "num_hidden_layers")
    return np.exp2(-8.0 * np.arange(1, heads + 1) / heads) * (1.0 - given.layer / (layers - 1 + 1e-5) + 1e-5)


def retnet(given: Given) -> Floats:
    """-ln(1 - 2**(-5 - h)) for head h = 0..H-1; shape (H,)."""
    return -np.log1p(-np.exp2(-5.0 - np.arange(_whole(given, "num_heads"))))


def _whole(given: Given, name: str) -> int:
    value = given.needed(name)
    if not 1 <= value <= 4096:
        raise ValueError(f"config.json: {name} must lie between 1 and 4096, got {value:g}")
    return int(value)


def forget_gate(given: Given) -> Floats:
    """softplus(-c tanh(b / c)) for a = sigmoid of the capped bias b (H,); c where config.json has a cap."""
    bias, cap = given["bias"], given.number("gate_soft_cap")
    return softplus(-(bias if not cap else cap * np.tanh(bias / cap)))


def fused_forget_gate(given: Given) -> Floats:
    """As `forget_gate`; the biases (2 H,) are those of the input gates and then those of the forget gates."""
    return forget_gate(Given({"bias": np.split(given["bias"], 2)[1]}, given.config, given.layer))


def gla(given: Given) -> Floats:
    """softplus(-b) / 16, for a = sigmoid(b)**(1/16); no more than -clamp_min."""
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
    return _one_each(np.exp(given["log_dt"]), real.shape[:-1])[..., None] * real


def s5(given: Given) -> Floats:
    """-Lambda_re exp(log_step), both (P,); or one step for all."""
    real, steps = given["Lambda_re"].reshape(-1), np.exp(given["log_step"])
    return -real * (steps.reshape(()) if steps.size == 1 else _one_each(steps, real.shape))
