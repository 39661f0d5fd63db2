"""Inverses to float64, and what other people's modules then remember, by their own forward."""

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from plkernel.analysis.nodes import Nodes
from plkernel.models.init import decays_
from plkernel.models.parametrisations import FORMS, inverse_softplus, softplus

EPS = torch.finfo(torch.float64).eps
HALF_LIVES = np.geomspace(1.5, 3e4, 24)
BESIDE = torch.linspace(-2.0, 2.0, 24, dtype=torch.float64)
GIVEN: dict[str, dict[str, Any]] = {
    "log_rate": {},
    "exp_exp": {},
    "sigmoid": {},
    "sigmoid capped": {"cap": 15.0},
    "a_log": {"dt_bias": BESIDE - 4},
    "dt_bias": {"a_log": BESIDE},
    "exp_sigmoid": {},
    "bounded": {"bound": 5.0},
    "bounded by head": {"bound": 5.0, "a_log": BESIDE},
    "rg_lru": {"gate_bias": BESIDE},
    "stable": {},
}
BY_HAND: dict[str, Callable[..., float]] = {
    "log_rate": lambda x: math.exp(x),
    "exp_exp": lambda x: math.exp(x),
    "sigmoid": lambda x: math.log1p(math.exp(-x)),
    "sigmoid capped": lambda x, cap: math.log1p(math.exp(-cap * math.tanh(x / cap))),
    "a_log": lambda x, dt_bias: math.exp(x) * math.log1p(math.exp(dt_bias)),
    "dt_bias": lambda x, a_log: math.exp(a_log) * math.log1p(math.exp(x)),
    "exp_sigmoid": lambda x: 0.6065306597126334 / (1 + math.exp(-x)),
    "bounded": lambda x, bound: bound / (1 + math.exp(-x)),
    "bounded by head": lambda x, bound, a_log: bound / (1 + math.exp(-math.exp(a_log) * x)),
    "rg_lru": lambda x, gate_bias: 8 / (1 + math.exp(-gate_bias)) * math.log1p(math.exp(x)),
    "stable": lambda x: -math.log1p(-1 / (x * x + 0.5)),
}


def nodes_of(half_lives: Any) -> Nodes:
    return Nodes(tuple((math.log(2) / np.asarray(half_lives)).tolist()), (1.0,) * len(half_lives), "none")


@pytest.mark.parametrize("case", GIVEN)
def test_rates_come_back(case: str) -> None:
    """By the formula written out in scalars, but for the rounding of x and a few more: a rate changes by no more than
    a share of |dx| that is 1, or the given speed of a bounded one."""
    name, given = case.split()[0], GIVEN[case]
    tensor = decays_(torch.empty(24, dtype=torch.float64), nodes_of(HALF_LIVES), name, **given)
    one = {key: np.broadcast_to(np.asarray(value), 24) for key, value in given.items()}
    found = [BY_HAND[case](float(x), **{key: float(one[key][i]) for key in one}) for i, x in enumerate(tensor)]
    speed = np.exp(one["a_log"]) if case == "bounded by head" else 1.0
    errors = np.abs(np.log(found) - np.log(np.log(2) / HALF_LIVES))
    assert (errors <= EPS * (8 + 2 * speed * np.abs(tensor.numpy()))).all()


def test_every_form_is_tried() -> None:
    assert {case.split()[0] for case in GIVEN} == set(FORMS)


def test_softplus_keeps_its_digits() -> None:
    """exp(-25) beside 25, where torch's own stops, and down to the smallest; the inverse gives the number back."""
    x = torch.tensor([25.0, -40.0, -700.0], dtype=torch.float64)
    assert float(softplus(x)[0]) - 25.0 == pytest.approx(math.exp(-25), rel=1e-3)
    assert softplus(x)[1:].tolist() == pytest.approx([math.exp(-40), math.exp(-700)], rel=2 * EPS)
    assert inverse_softplus(softplus(x)).tolist() == pytest.approx(x.tolist(), rel=2 * EPS)


@pytest.mark.parametrize(
    ("half_lives", "name", "given", "message"),
    [
        ([9, 1.14], "exp_sigmoid", {}, "half-life of 1.14 bytes, but .* no half-life is 1.143 bytes or less"),
        ([9, 0.13], "bounded", {"bound": 5.0}, "half-life of 0.13 steps, .* only those above 0.1386 steps"),
        ([9, 3e6], "sigmoid", {"cap": 15.0}, r"half-life of 3e\+06 steps, .* above 0.04621 and below 2.266e\+06 steps"),
        ([9, 9], "dt_bias", {}, "a_log goes with parametrisation 'dt_bias' or 'bounded' and must be given there"),
        ([9, 9], "rg_lru", {"cap": 15.0, "gate_bias": 0.0}, "cap goes with parametrisation 'sigmoid', got 'rg_lru'"),
        ([9, 9], "rg_lru", {}, "gate_bias goes with parametrisation 'rg_lru' and must be given there"),
        ([9, 9], "dt_bias", {"a_log": torch.tensor([0.0, -math.inf])}, "half-life 9 steps.*whose decay is nan"),
        ([9, 9], "dt_bias", {"a_log": torch.zeros(3)}, r"a_log of shape \(3,\) does not broadcast"),
    ],
)
def test_what_no_parameter_gives_is_refused(half_lives: list[float], name: Any, given: Any, message: str) -> None:
    tensor = torch.full((2,), 7.0)
    with pytest.raises(ValueError, match=message) as error:
        decays_(tensor, nodes_of(half_lives), name, **given)
    assert len(str(error.value).splitlines()) == 1
    assert torch.equal(tensor, torch.full((2,), 7.0))


# What is left of the first token in the states of a layer, by the forward of the library that the layer is from.

GAPS = (4, 5, 7, 12, 30)
"""Tokens after the first; its short convolution has passed it on before the first of them."""
WIDTH = 16
SIZES = {"vocab_size": 32, "pad_token_id": 0, "hidden_size": WIDTH, "num_hidden_layers": 1, "intermediate_size": 16}
PAIR = {**SIZES, "num_hidden_layers": 2}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}


def transformers_model(name: str, **options: Any) -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    return getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**options)).eval()


def module_with(model: nn.Module, name: str) -> Any:
    return next(module for module in model.modules() if hasattr(module, name))


def left(state_after: Callable[[Tensor], Tensor]) -> np.ndarray:
    """What the state after GAPS tokens of nothing owes to one token before them, (G, ...), by two forward passes."""
    first = torch.randn(WIDTH, generator=torch.Generator().manual_seed(3))
    rows = []
    for gap in GAPS:
        tokens = torch.zeros(1, gap + 1, WIDTH)
        without = state_after(tokens).double()
        tokens[0, 0] = first
        rows.append((state_after(tokens).double() - without)[0].detach().numpy())
    return np.stack(rows)


def check_decays(found: np.ndarray, half_lives: np.ndarray) -> None:
    """Every entry of a state falls as 2**(-gap / half-life); half-lives broadcast to an entry of the state."""
    gaps = np.subtract(GAPS, GAPS[0]).reshape(-1, *[1] * (found.ndim - 1))
    promised = 2.0 ** (-gaps / half_lives)
    start = np.abs(found[:1])
    assert (start > 0).any()
    assert (np.abs(found - found[:1] * promised) <= 2e-5 * start + 1e-6 * start.max()).all()
    assert (np.abs(found - found[:1] * 2.0 ** (-gaps / (half_lives * 1.02))) > 1e-3 * start.max()).any(), "2 % show"


HEADS = np.array([1.3, 4.0, 11.0, 90.0])


def cached(model: Any, entry: str = "recurrent_states") -> Callable[[Tensor], Tensor]:
    def state_after(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            answer = model(inputs_embeds=tokens, use_cache=True)
        cache = answer.get("past_key_values", answer.get("cache_params"))
        found = getattr(cache.layers[0], entry)
        return found[0] if isinstance(found, dict | list) else found

    return state_after


GATED = {f"linear_num_{one}_heads": heads for one, heads in (("value", 4), ("key", 2))}
GATED |= {f"linear_{one}_head_dim": 8 for one in ("value", "key")}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1}
EXPERTS |= dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 8)
QWEN = {**PAIR, **LINEAR, **GATED, **EXPERTS}


@pytest.mark.parametrize(
    ("name", "options", "by"),
    [
        ("Mamba2", {**SIZES, "num_heads": 4, "head_dim": 8, "state_size": 8, "n_groups": 1}, "dt_bias"),
        ("Qwen3Next", QWEN, "a_log"),
        ("Qwen3Next", QWEN, "dt_bias"),
    ],
)
def test_mamba2_and_gated_delta_nets(name: str, options: dict[str, Any], by: Any) -> None:
    """dt scales the input too, which a ratio of states does not see; keys of tokens of nothing are zero."""
    model = transformers_model(name, **options)
    module = module_with(model, "dt_bias")
    pair = {"a_log": module.A_log, "dt_bias": module.dt_bias}
    decays_(pair.pop(by), nodes_of(HEADS), by, **pair)
    check_decays(left(cached(model)), HEADS[:, None, None])


def test_kimi_delta_attention_by_channel() -> None:
    """Every head holds all eight half-lives, one for each channel of its keys."""
    half_lives = np.geomspace(1.3, 200, 8)
    model = transformers_model(
        "KimiLinear", **PAIR, **{**LINEAR, "num_key_value_heads": 2}, linear_head_dim=8, linear_num_heads=2
    )
    gate = module_with(model, "dt_bias")
    nn.init.zeros_(gate.A_log).data[..., 1, 0] = math.log(2)  # its ln(1 + exp(x)) in float32 rounds smaller steps off
    decays_(gate.dt_bias.view(2, 8), nodes_of(half_lives), "dt_bias", a_log=gate.A_log.view(2, 1))
    check_decays(left(cached(model)), half_lives[:, None])


def test_recurrent_gemma() -> None:
    half_lives = np.geomspace(2, 500, 16)
    model = transformers_model(
        "RecurrentGemma", **PAIR, num_attention_heads=2, lru_width=16, block_types=["recurrent", "attention"]
    )
    unit = module_with(model, "recurrent_param")
    nn.init.uniform_(unit.recurrent_gate_bias, -1, 1)
    decays_(unit.recurrent_param, nodes_of(half_lives), "rg_lru", gate_bias=unit.recurrent_gate_bias.flatten())

    def state_after(tokens: Tensor) -> Tensor:
        unit.recurrent_states = None
        with torch.no_grad():
            model(inputs_embeds=tokens, use_cache=True)
        return unit.recurrent_states

    check_decays(left(state_after), half_lives)


def test_xlstm() -> None:
    """The matrix memory, freed of the factor exp(-m) that it is stored with."""
    model = transformers_model("xLSTM", vocab_size=32, hidden_size=WIDTH, num_hidden_layers=1, num_heads=4)
    cell = module_with(model, "fgate_preact")
    decays_(cell.fgate_preact.bias, nodes_of(HEADS), "sigmoid", cap=model.config.gate_soft_cap)

    def state_after(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            memory, _, largest = cell(tokens)[1]
        return memory.double() * largest.double().exp().reshape(1, 4, 1, 1)

    check_decays(left(state_after), HEADS[:, None, None])
