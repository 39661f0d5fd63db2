"""Families of layers: from families.toml the names of their tensors, and their rates of decay.

To add a family, append its table to families.toml, and to RATES how its tensors enter a form of
`plkernel.analysis.parametrisations`, unless one there is the same.

Rates are -ln a per token, in float64. A decay that depends on the input is taken at its bias.
Shapes are made equal by `reshape`, never by broadcasting: small tensors of a hostile file must not
make large ones.
"""

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plkernel.analysis import parametrisations
from plkernel.analysis.parametrisations import (
    FORMS,
    RWKV7_LARGEST_RATE,
    half_open_rate,
    lightning_rates,
    ordered_levels,
    position_exponents,
    retnet_rates,
    sigmoid,
    softplus,
    stepped_rate,
)
from plkernel.common.files import shown

Floats = NDArray[np.float64]
Start = Callable[[tuple[int, ...], int, int], Floats]
"""Initial values from the shape, the layer's number and the number of layers."""

BY_INPUT = "the decay depends on the input"
NOTES = {
    "input": f"{BY_INPUT}: shown is its static part, the bias",
    "delta": "a delta rule also forgets by erasing what it overwrites: half-lives are upper bounds",
    "fixed": "decays are fixed, not learned",
    "position": "decays slow down with the position: shown are those at the length of training",
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
    "ssm_a",
)
"""Last parts of names that only decays have: a tensor so named that no family takes is wrong."""
LIKE_DECAYS = re.compile(
    r"(?:.+\.)?(?:"
    r"(?:\w+_)?A[A-Z]?(?:_[a-zA-Z0-9]+)?_log(?:s|_(?!scale)\w+)?"
    r"|log_A(?!_?imag)(?:_\w+)?"
    r"|(?:\w+_)?dt_(?:\w+_)?bias(?:_\w+)?"
    r"|dt_\w*proj\w*\.bias"
    r"|(?:\w+_)?time_decay(?!_?w\d)(?:_\w+)?"
    r"|nu_log(?:_\w+)?|recurrent_param(?:_\w+)?|slope_rate(?:_\w+)?|Lambda_re(?:_\w+)?"
    r"|ssm_dt\.bias|time_mix_(?:decay|w0)\.weight"
    r"|log_(?:decays?|lambda|gamma|a)(?:_\w+)?|(?:lambda|alpha|a|retention)_log|lambda_(?:raw|log)"
    r"|(?!weight_|ema_|lr_)(?:[a-zA-Z]+_)*decays?\d?(?:_(?:log|logits?|bias|rates?|base|factor))?"
    r"|\w*decay\w*(?:\.\d+)?\.bias|A_logs?_\w+|(?:dt_bias|time_decay|A_log)\d+"
    r"|(?:\w+\.)?(?:forget_?gate|f_?gate|forget)(?:_proj)?(?:_bias|\.bias)"
    r")",
    re.ASCII,
)
"""Names that look like those of decays, with an affix for a second set of them in a module."""
WRAPPED = re.compile(
    r"(.+)\.(?:base_layer|original_module|modules_to_save\.[^.]+|_orig_mod)\.(weight|bias)"
)
"""Names of the tensors of a linear map that peft or torch.compile has wrapped."""
PARAMETRISED = re.compile(
    r"(?P<at>(?:.+\.)?)parametrizations\.(?P<name>[^.]+)\.original\d*", re.ASCII
)
"""Names of what torch.nn.utils.parametrize stores in place of a parameter: original, or several,
original0, original1 .., as for weight_norm.
"""
COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks")
"""Names of config.json for the number of layers."""
LANGUAGE_MODELS = ("text_config", "llm_config")
"""Names of config.json for the table of the language model in a model of several inputs."""
LEAST_STEPS = ("zamba2", "nemotron_h", "nemotron_h_omni", "nemo_speechlm")
"""Values of model_type with which time_step_min is a limit; the last two have a nemotron_h."""
LEAST_STEP = 0.001
"""time_step_min of these models where config.json has none."""
GATE_CAP = 15.0
"""gate_soft_cap of an xLSTM of transformers where config.json has none."""
GATE_BOUND = -5.0
"""Lower bound of log decays in models that have one where config.json has none."""
MOST_IN_FORMULA = 4096
"""Heads or layers by which a formula makes an array; published models have some hundred."""
DIGITS = re.compile(r"(\d{1,18})", re.ASCII)
"""The numbers in a name, by which names are put in order."""
DEEPEST = 4
"""Parts of a name that may stand below a linear map: q.base_layer.weight.quant_state.nf4."""


@dataclass(frozen=True)
class Given:
    """Input of a formula: tensors by role, config.json, and the number of the layer.

    The number is 0 if unknown. position: token, from 1, of decays that depend on it; None for the
    length of training.
    """

    tensors: Mapping[str, Floats]
    config: Mapping[str, Any]
    layer: int
    position: float | None = None

    def __getitem__(self, role: str) -> Floats:
        return self.tensors[role]

    def setting(self, name: str) -> Any:
        """Value of config.json, or of the language model in it; None if absent or null in all.

        The name of a value in an object has a dot, as in linear_attn_config.num_heads.
        """
        stated = [value for value in self._stated(name) if value is not None]
        return stated[0] if stated else None

    def is_stated(self, name: str) -> bool:
        """True if config.json, or the language model in it, has a value of that name, or null."""
        return bool(self._stated(name))

    def _stated(self, name: str) -> list[Any]:
        """Values of that name in config.json, then in the tables of the language model in it."""
        outer, _, inner = name.partition(".")
        values = []
        for table in self._tables:
            holder = table.get(outer) if inner else table
            key = inner or outer
            if isinstance(holder, Mapping) and key in holder:
                values.append(holder[key])
        return values

    @property
    def _tables(self) -> list[Mapping[str, Any]]:
        """config.json, and the tables of the language model in it."""
        tables = [self.config]
        for name in LANGUAGE_MODELS:
            inner = self.config.get(name)
            if isinstance(inner, Mapping):
                tables.append(inner)
        return tables

    @property
    def model_types(self) -> set[str]:
        """The values of model_type in config.json, of the whole and of the language model in it."""
        return {one for one in self._stated("model_type") if isinstance(one, str)}

    def number(self, name: str, default: float | None = None) -> float | None:
        """Number of config.json; ValueError for any other value."""
        value = self.setting(name)
        try:
            return default if value is None else float(value)
        except (TypeError, ValueError):
            raise ValueError(f"config.json: {name} must be a number, got {shown(value)}") from None

    def count(self, name: str) -> int:
        """Number of config.json from 1 to MOST_IN_FORMULA; ValueError if absent or outside."""
        value = self.number(name)
        if value is None or not 1 <= value <= MOST_IN_FORMULA:
            raise ValueError(
                f"config.json: {name} must be from 1 to {MOST_IN_FORMULA}, got"
                f" {shown(self.setting(name))}"
            )
        return int(value)


@dataclass(frozen=True)
class Argument:
    """First argument of torch `functions` in a running model.

    role   of the static tensor that it replaces at every token
    time   dimension of the tokens
    call   index among the calls with all tokens
    every  each call has some of the channels
    """

    role: str
    functions: list[str]
    time: int = 1
    call: int = 0
    every: bool = False


@dataclass(frozen=True)
class Family:
    """Layers of one kind: their rates -ln a from the tensors, and where they stand.

    rate      rates -ln a per token from the tensors
    formula   the same in words
    source    of the formula: a paper or official code
    tensors   names to read, by role in the formula; {at} stands for the module
    anchor    pattern that the name of one tensor of every such layer matches; its groups fill the
              templates of names; a group `x` is the affix of a further set of decays in a module
    notes     what a report says beside the half-lives
    beside    names of which one must be in the checkpoint, if any are given
    without   names that must be absent
    models    values of model_type in config.json without which no layer is of this family, if any
              are given
    starts    exact initialisations of the tensor of a role in official code, in words and as
              functions
    fixed     rates that config.json defines, for decays that are not learned
    taken     place where a running module of transformers or plkernel computes decays that depend
              on the input
    heads     names of config.json for the number of heads: the first that is there is the size of
              A_log
    whole     the formula needs all of a tensor; any other is of each channel alone
    decides   values of model_type in config.json with which nothing needs to stand beside
    channels  by role: products or quotients of settings of config.json, one of which is the number
              of channels of its tensor. In families.toml a list is of the first tensor. What stands
              after `else` holds where the settings before are absent
    states    of which one is the last dimension of the tensor, in the same way
    widths    of the tensors beside by template: how many numbers they hold, in the same way
    equal     roles of tensors whose numbers may well be equal, or zero
    own       stated for a layer of somebody's own, whose initialisation is not known
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
    decides: list[str] = field(default_factory=list)
    channels: Mapping[str, list[str]] = field(default_factory=dict)
    states: Mapping[str, list[str]] = field(default_factory=dict)
    widths: Mapping[str, list[str]] = field(default_factory=dict)
    equal: list[str] = field(default_factory=list)
    own: bool = False

    @property
    def is_further(self) -> bool:
        """True for a further set of decays in a module, whose formula is taken by analogy."""
        return "(?P<x>" in self.anchor


def exponential(given: Given) -> Floats:
    """exp(w)."""
    return rate_of("exp_exp", given["w"])


def mamba(given: Given) -> Floats:
    """exp(A_log) softplus(dt_bias): A_log (..., N), one dt_bias for each of its rows."""
    a_log = given["A_log"]
    return rate_of("a_log", a_log, dt_bias=_of_rows(given["dt_bias"], a_log))


def by_row_or_head(given: Given) -> Floats:
    """`mamba`, or `stepped` where there is one dt_bias for each number of A_log."""
    is_by_head = given["A_log"].size == given["dt_bias"].size
    return stepped(given) if is_by_head else mamba(given)


def stepped(given: Given, shortest: float = 0.0, longest: float = math.inf) -> Floats:
    """exp(A_log) softplus(dt_bias), both (H,), with the time step within limits."""
    dt_bias = given["dt_bias"].reshape(given["A_log"].shape)
    rates: Floats = stepped_rate(given["A_log"], dt_bias, shortest, longest)
    return rates


def mamba2(given: Given) -> Floats:
    """`stepped` within the limits of config.json.

    Those are two numbers, or objects with one, as transformers writes infinity.
    """
    if given.model_types.intersection(LEAST_STEPS):
        return stepped(given, _least_step(given))
    name, limits = _step_limits(given)
    try:
        low, high = limits
        shortest = _limit(low)
        longest = _limit(high)
    except (TypeError, ValueError):
        raise ValueError(f"config.json: {name} must be two numbers, got {shown(limits)}") from None
    if not shortest <= longest:
        raise ValueError(f"config.json: {name} must ascend, got {shown(limits)}")
    return stepped(given, shortest, longest)


def _least_step(given: Given) -> float:
    """time_step_min of config.json, by its older name first, as transformers has it."""
    for name in ("mamba_dt_min", "time_step_min"):
        least = given.number(name)
        if least is not None:
            return least
    return LEAST_STEP


def _limit(stated: Any) -> float:
    """A number, or that in an object with one; TypeError or ValueError for anything else."""
    return float(next(iter(stated.values()), "") if isinstance(stated, dict) else stated)


def _step_limits(given: Given) -> tuple[str, Any]:
    """The limits of the time step by the name that config.json has for them; 0 and infinity."""
    for name in ("time_step_limit", "dt_limit", "mamba_dt_limit"):
        limits = given.setting(name)
        if limits is not None:
            return name, limits
    inner = given.setting("ssm_cfg")  # of mamba_ssm
    if isinstance(inner, dict) and inner.get("dt_limit") is not None:
        return "ssm_cfg.dt_limit", inner["dt_limit"]
    return "", (0.0, math.inf)


def mamba3(given: Given) -> Floats:
    """softplus(dt_bias) max(ln 2, A_floor): A is softplus of what the input gives, here 0."""
    speed = max(math.log(2.0), given.number("A_floor", 0.0) or 0.0)
    return rate_of("dt_bias", given["dt_bias"], a_log=np.log(speed))


def momentum(given: Given) -> Floats:
    """ln(1 + exp(2 log_factor)) + exp(A_log) softplus(dt_bias), where the input moves nothing.

    dt_bias (H,); A_log and log_factor have one number for each group of its heads.
    """
    dt_bias = given["dt_bias"].reshape(-1)
    a_log = _of_groups(given["A_log"], dt_bias)
    log_factor = _of_groups(given["log_factor"], dt_bias)
    rates: Floats = softplus(2.0 * log_factor) + stepped_rate(a_log, dt_bias)
    return rates


def by_speed(given: Given) -> Floats:
    """-A softplus(dt_bias): A is -exp(A_log), (H,) or (D, N) with one dt_bias for each row."""
    speeds = given["A"]
    dt_bias = given["dt_bias"]
    is_by_head = speeds.size == dt_bias.size
    fitted = dt_bias.reshape(speeds.shape) if is_by_head else _of_rows(dt_bias, speeds)
    rates: Floats = -speeds * softplus(fitted)
    return rates


def kimi(given: Given) -> Floats:
    """exp(A_log) softplus(dt_bias): A_log (H,), dt_bias (H K).

    With a lower bound b, -b sigmoid(exp(A_log) dt_bias). Without A_log, which takes a lower bound,
    -b sigmoid(dt_bias).
    """
    a_log = given.tensors.get("A_log", np.zeros(1)).reshape(-1, 1)
    dt_bias = given["dt_bias"].reshape(len(a_log), -1)
    bound = gate_bound(given)
    if bound is not None:
        return rate_of("bounded", dt_bias, bound=-bound, a_log=a_log)
    if "A_log" not in given.tensors:
        raise ValueError(
            "config.json: lower_bound must be given for a gate without A_log, got none"
        )
    return rate_of("dt_bias", dt_bias, a_log=a_log)


def bounded(given: Given) -> Floats:
    """-b sigmoid(exp(A_log) dt_bias): A_log and dt_bias (H,), a tensor beside them holds b < 0."""
    bound = -given["lower_bound"].reshape(())
    return rate_of("bounded", given["dt_bias"], bound=bound, a_log=given["A_log"])


def gate_bound(given: Given) -> float | None:
    """The lower bound of log decays in config.json; None if there is none."""
    if any(one.startswith("glm5_next") for one in given.model_types):
        return _bound_of_glm(given)
    for name in ("lower_bound", "linear_lower_bound", "linear_attn_config.gate_lower_bound"):
        bound = given.number(name)
        if bound is not None:
            return bound
    is_safe = given.setting("kda_safe_gate")
    if is_safe is None:
        is_safe = "bailing_hybrid" in given.model_types
    return given.number("kda_lower_bound", GATE_BOUND) if is_safe else None


def _bound_of_glm(given: Given) -> float | None:
    """`gate_bound` as transformers has it for GLM-5-Next.

    linear_lower_bound is GATE_BOUND if absent, and null for none. gate_lower_bound in
    linear_attn_config goes before it. With that table a gate is safe unless it says otherwise, and
    a safe one has a bound.
    """
    bound: float | None = GATE_BOUND
    for name in ("linear_lower_bound", "linear_attn_config.gate_lower_bound"):
        if given.is_stated(name):
            bound = given.number(name)
    if bound is None and given.setting("linear_attn_config") is not None:
        is_safe = given.setting("linear_attn_config.safe_gate")
        bound = GATE_BOUND if is_safe is None or is_safe else None
    return bound


def lightning(given: Given) -> Floats:
    """`lightning_rates` of the heads that config.json counts; shape (H,)."""
    heads = given.count("num_attention_heads")
    layers = given.count("num_hidden_layers")
    return lightning_rates(heads, layers, given.layer)


def retnet(given: Given) -> Floats:
    """`retnet_rates` of the heads that config.json counts; shape (H,)."""
    return retnet_rates(given.count("num_heads"))


def slopes(given: Given) -> Floats:
    """The rates themselves, (H,)."""
    return given["slopes"].reshape(-1)


def rg_lru(given: Given) -> Floats:
    """8 sigmoid(gate bias) softplus(Lambda): Lambda (H W,), gate bias (H, W)."""
    gate_bias = given["gate_bias"]
    return rate_of("rg_lru", given["Lambda"].reshape(gate_bias.shape), gate_bias=gate_bias)


def rwkv7(given: Given) -> Floats:
    """exp(-1/2) sigmoid(w)."""
    return rate_of("exp_sigmoid", given["w"])


def by_level(given: Given) -> Floats:
    """exp(p - alpha ln T), p `_levels` and alpha 0 where decays do not depend on the position."""
    levels = _levels(given, "w")
    rates: Floats = np.exp(levels - _slowed(given, levels))
    return rates


def mamba2_by_level(given: Given) -> Floats:
    """`mamba2` of A_log = p - alpha ln T."""
    levels = _levels(given, "A_log")
    a_log = levels - _slowed(given, levels)
    return mamba2(replace(given, tensors={**given.tensors, "A_log": a_log}))


def mamba2_by_step(given: Given) -> Floats:
    """`mamba2` of dt_bias - alpha ln T, alpha that of A_log + ln softplus(dt_bias)."""
    return _mamba2_slowed(given, of_a_log=0.0, of_dt_bias=1.0)


def mamba2_by_both(given: Given) -> Floats:
    """`mamba2` of A_log - alpha/2 ln T and dt_bias - alpha/2 ln T, alpha as in `mamba2_by_step`."""
    return _mamba2_slowed(given, of_a_log=0.5, of_dt_bias=0.5)


def _mamba2_slowed(given: Given, of_a_log: float, of_dt_bias: float) -> Floats:
    """`mamba2` after shares of alpha ln T are taken from A_log and from dt_bias."""
    a_log = _levels(given, "A_log")
    dt_bias = given["dt_bias"].reshape(a_log.shape)
    slowed = _slowed(given, np.log(stepped_rate(a_log, dt_bias)))
    a_log = a_log - of_a_log * slowed
    dt_bias = dt_bias - of_dt_bias * slowed
    return mamba2(replace(given, tensors={**given.tensors, "A_log": a_log, "dt_bias": dt_bias}))


def rwkv7_by_level(given: Given) -> Floats:
    """exp(-1/2) sigmoid(l - alpha ln T), where l is w0 with the levels, if those are apart.

    alpha is that of ln sigmoid of the levels: of w0 without its zigzag where they are not.
    """
    logit = given["w0"].reshape(-1)
    if "delta" in given.tensors:
        rising = _levels(given, "").reshape(logit.shape)
        logit = logit + rising
    else:
        rising = logit - given["zigzag"].reshape(logit.shape)
    slowed = _slowed(given, -softplus(-rising))
    rates: Floats = RWKV7_LARGEST_RATE * sigmoid(logit - slowed)
    return rates


def _levels(given: Given, role: str) -> Floats:
    """The levels of the channels (N,): ordered ones from the slowest on, or those of `role`."""
    if "delta" not in given.tensors:
        return given[role].reshape(-1)
    levels: Floats = ordered_levels(_one_number(given, "theta"), given["delta"].reshape(-1))
    return levels


def _slowed(given: Given, levels: Floats) -> Floats:
    """alpha ln t of the levels p (N,), t the position; zeros where decays do not depend on it."""
    if "log_length" not in given.tensors:
        return np.zeros_like(levels)
    length = _one_number(given, "log_length")
    log_t = length if given.position is None else math.log(given.position)
    slowed: Floats = position_exponents(levels, length) * log_t
    return slowed


def _one_number(given: Given, role: str) -> Floats:
    """The tensor of a role that holds one number, (1,); ValueError for any other."""
    values = given[role]
    if values.size != 1:
        raise ValueError(f"{role} must hold one number, got {values.size:,}")
    return values.reshape(1)


def forget_gate(given: Given) -> Floats:
    """-ln sigmoid(b) of biases b (H,), soft-capped if config.json has a cap."""
    return _capped(given, given["bias"])


def second_half(given: Given) -> Floats:
    """`forget_gate` of the second half of the biases; the first half are those of input gates."""
    return _capped(given, np.split(given["bias"], 2)[1])


def _capped(given: Given, bias: Floats) -> Floats:
    """-ln sigmoid(b), or -ln sigmoid(cap tanh(b / cap)) with the cap of config.json."""
    absent = GATE_CAP if "xlstm" in given.model_types else None
    cap = given.number("gate_soft_cap", absent)
    return rate_of("sigmoid", bias, cap=cap) if cap else rate_of("sigmoid", bias)


def gla(given: Given) -> Floats:
    """-ln sigmoid(b) / 16; at most -clamp_min."""
    lowest = given.number("clamp_min")
    largest = math.inf if lowest is None else -lowest
    return np.minimum(rate_of("sigmoid_root", given["bias"]), largest)


def hgrn(given: Given) -> Floats:
    """-ln(l + (1 - l) / 2): the gate at 1/2 above the lower bound l, 0 in the first layer.

    l is the sum over layers 1..layer of the softmax over layers of the bounds (L, D).
    """
    bounds = given["lower_bounds"]
    if not 0 <= given.layer < len(bounds):
        raise ValueError(
            f"lower_bounds must have a row for layer {given.layer}, got {len(bounds)} rows"
        )
    shares = np.exp(bounds - bounds.max(axis=0))
    shares = shares / shares.sum(axis=0)
    return half_open_rate(np.cumsum(shares, axis=0)[given.layer] - shares[0])


def s4d(given: Given) -> Floats:
    """exp(log_dt) exp(log_A_real): log_A_real (..., N), one log_dt for each of its rows."""
    real = given["log_A_real"]
    return rate_of("log_real_part", real, log_step=_of_rows(given["log_dt"], real))


def s5(given: Given) -> Floats:
    """-Lambda_re exp(log_step), both (P,); or one step for all."""
    real = given["Lambda_re"].reshape(-1)
    steps = given["log_step"]
    shape = () if steps.size == 1 else real.shape
    return rate_of("real_part", real, log_step=steps.reshape(shape))


def rate_of(form: str, x: Floats, **given: Any) -> Floats:
    """The rate of a form of the table."""
    rates: Floats = FORMS[form].rate(x, **given)
    return rates


def _of_rows(rows: Floats, states: Floats) -> Floats:
    """One number for each row of `states` (..., N), as (..., 1)."""
    return rows.reshape(states.shape[:-1])[..., None]


def _of_groups(groups: Floats, heads: Floats) -> Floats:
    """One number for each of `heads` (H,) from one for each group of neighbours among them."""
    size = heads.size // max(1, groups.size)
    return np.repeat(groups.reshape(-1), size).reshape(heads.shape)


RATES: dict[str, Callable[[Given], Floats]] = {
    one.__name__: one
    for one in (
        bounded,
        by_level,
        by_row_or_head,
        by_speed,
        exponential,
        forget_gate,
        gla,
        hgrn,
        kimi,
        lightning,
        mamba,
        mamba2,
        mamba2_by_both,
        mamba2_by_level,
        mamba2_by_step,
        mamba3,
        momentum,
        retnet,
        rg_lru,
        rwkv7,
        rwkv7_by_level,
        s4d,
        s5,
        second_half,
        slopes,
        stepped,
    )
}
"""Rates by the name that families.toml has for them."""


def full_of(number: float) -> Start:
    """Initial values that are all one number."""
    return lambda shape, layer, layers: np.full(shape, number)


def log_indices(shape: tuple[int, ...], layer: int, layers: int) -> Floats:
    """ln(1), ln(2), ln(3) .. along the last dimension: S4D-Real, arXiv 2206.11893."""
    return np.broadcast_to(np.log(np.arange(1, shape[-1] + 1)), shape)


def xlstm(shape: tuple[int, ...], layer: int, layers: int) -> Floats:
    """3 .. 6 along the last dimension: arXiv 2405.04517."""
    return np.broadcast_to(np.linspace(3.0, 6.0, shape[-1]), shape)


def rwkv_from(low: float, high: float) -> Start:
    """`rwkv_levels` from `low` to `high`."""

    def start(shape: tuple[int, ...], layer: int, layers: int) -> Floats:
        levels = parametrisations.rwkv_levels(math.prod(shape), _depth(layer, layers), low, high)
        return levels.reshape(shape)

    return start


def rwkv7_from(head_size: int) -> Start:
    """`rwkv7_levels` of the layer, with heads of one size."""

    def start(shape: tuple[int, ...], layer: int, layers: int) -> Floats:
        levels = parametrisations.rwkv7_levels(math.prod(shape), _depth(layer, layers), head_size)
        return levels.reshape(shape)

    return start


def _depth(layer: int, layers: int) -> float:
    """0 in the first layer, 1 in the last."""
    return layer / max(1, layers - 1)


STARTS: dict[str, tuple[str, Start]] = {
    "counted": ("ln(1), ln(2), ln(3) .. (S4D-Real, Mamba)", log_indices),
    "zeros": ("zeros", full_of(0.0)),
    "ones": ("ones", full_of(1.0)),
    "-1/2": ("-1/2", full_of(-0.5)),
    "ln(1/2)": ("ln(1/2)", full_of(math.log(0.5))),
    "xlstm": ("3 .. 6 over heads (xLSTM)", xlstm),
    "rwkv4": ("the official initialisation of RWKV-4", rwkv_from(-5.0, 3.0)),  # BlinkDL/RWKV-LM
    "rwkv5": ("the official initialisation of RWKV-5 and RWKV-6", rwkv_from(-6.0, -1.0)),
    "rwkv7": ("the official initialisation of RWKV-7", rwkv7_from(64)),
    "rwkv7, heads of 8": ("the official initialisation of RWKV-7 with heads of 8", rwkv7_from(8)),
    "rwkv7, heads of 16": (
        "the official initialisation of RWKV-7 with heads of 16",
        rwkv7_from(16),
    ),
    "rwkv7, heads of 32": (
        "the official initialisation of RWKV-7 with heads of 32",
        rwkv7_from(32),
    ),
    "rwkv7, heads of 128": (
        "the official initialisation of RWKV-7 with heads of 128",
        rwkv7_from(128),
    ),
}
"""Exact initialisations of official code, in words and as functions, by the names of them that
families.toml has.
"""


def _families() -> tuple[Family, ...]:
    """The families of families.toml, one for each layout of their tensors."""
    text = Path(__file__).with_name("families.toml").read_text(encoding="utf-8")
    families = []
    for row in tomllib.loads(text)["family"]:
        layouts = row.pop("tensors", {})
        fields = _fields(row)
        for layout in layouts if isinstance(layouts, list) else [layouts]:
            first = re.escape(next(iter(layout.values()), ""))
            anchor = rf"(?P<at>.+)\.{first}".replace(r"\{x\}", "(?P<x>[a-zA-Z0-9]+)", 1)
            tensors = {role: _whole_name(name) for role, name in layout.items()}
            sizes = {key: _by_role(row.get(key, {}), layout) for key in ("channels", "states")}
            families.append(Family(**{"anchor": anchor, **fields, **sizes}, tensors=tensors))
    return tuple(families)


def _fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `Family` from a table of families.toml, without its layouts of tensors."""
    fields = dict(row)
    for key in ("beside", "without"):
        fields[key] = [_whole_name(name) for name in row.get(key, [])]
    fields["notes"] = [NOTES.get(note, note) for note in row.get("notes", ["input"])]
    fields["starts"] = {
        role: [STARTS[one] for one in names] for role, names in row.get("starts", {}).items()
    }
    for key in ("rate", "fixed"):
        if key in row:
            fields[key] = RATES[row[key]]
    if "taken" in row:
        fields["taken"] = Argument(**row["taken"])
    widths = row.get("widths", {})
    fields["widths"] = {_whole_name(name): sizes for name, sizes in widths.items()}
    return fields


def _by_role(stated: Any, layout: Mapping[str, str]) -> dict[str, list[str]]:
    """Sizes by the role of a tensor; a list is of the first one."""
    if isinstance(stated, list):
        return {next(iter(layout)): stated}
    return dict(stated)


def _whole_name(name: str) -> str:
    """The template of a tensor's name, in the module unless it says otherwise."""
    return name if "{model}" in name else f"{{at}}.{name}"


def names_of(names: Iterable[str]) -> dict[str, str]:
    """Names that templates may ask for, and the tensors that stand for them.

    A linear map has a `.weight` whatever its tensors are called (qweight, weight_packed,
    base_layer.weight, lora_A.default.weight ..), and the bias of a wrapped one is its bias.
    """
    known: dict[str, str] = {}
    for name in sorted(names):
        module = name
        for _ in range(DEEPEST):
            module = module.rpartition(".")[0]
            if module:
                known.setdefault(f"{module}.weight", name)
        wrapped = WRAPPED.fullmatch(name)
        if wrapped and (f"{wrapped[1]}.{wrapped[2]}" not in known or "modules_to_save" in name):
            known[f"{wrapped[1]}.{wrapped[2]}"] = name
    return known | {name: name for name in names}


def plain_name(name: str) -> str:
    """The name of the parameter that a parametrization makes of a tensor; any other as it is.

    >>> plain_name("layers.0.parametrizations.A_log.original")
    'layers.0.A_log'
    """
    match = PARAMETRISED.fullmatch(name)
    return f"{match['at']}{match['name']}" if match else name


def of_parametrised(plain: str) -> str:
    """Words for a tensor of which a parametrization makes the parameter `plain`, and a remedy."""
    last = plain.rpartition(".")[2]
    return (
        f"is what a parametrization makes {last} of, and says no half-life alone;"
        " torch.nn.utils.parametrize.remove_parametrizations before saving stores"
        f" {last} itself"
    )


def in_order(name: str) -> list[tuple[int, str]]:
    """A key that sorts names as texts, and numbers in them as numbers.

    >>> sorted(["m.10.a", "m.2.a", "m.a"], key=in_order)
    ['m.2.a', 'm.10.a', 'm.a']
    """
    key = []
    for piece in DIGITS.split(name):
        is_number = piece.isascii() and piece.isdecimal()
        key.append((int(piece), "") if is_number else (-1, piece))
    return key


FAMILIES = _families()


def families_in_words() -> str:
    """The names of all families, each once."""
    return ", ".join(dict.fromkeys(family.name for family in FAMILIES))
