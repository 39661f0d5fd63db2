"""Decays and projections written into models: what the model itself then does, ours and other
people's.
"""

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from plkernel.analysis.nodes import Nodes, output_std, place
from plkernel.analysis.parametrisations import FORMS
from plkernel.models.init import decays_, initialise_, projection_
from plkernel.models.spectrum import Ordered
from plkernel.models.ssm import SSM, DiagonalSSM, SSMConfig

GAINS = ("none", "ema", "lru", "clamp")
SOME_GAINS = (
    "none",
    "clamp",
    *(pytest.param(gain, marks=pytest.mark.slow) for gain in ("ema", "lru")),
)
RMS = {"placement": "quantile", "kernel": "rms", "tempering": 0.25}


def branch_with(nodes: Nodes, seed: int) -> DiagonalSSM:
    """The SSM branch of a block filled with N(0.02), then with these nodes."""
    [branch] = initialise_(
        SSM(SSMConfig(len(nodes.rates), 1, nodes.gain)), "transformers_default", seed
    ).recurrences()
    branch.place_(nodes)
    return branch


def impulse_power(nodes: Nodes, distances: int, seeds: int = 2, inputs: int = 32) -> np.ndarray:
    """Mean square response of the SSM branch at prediction distances 1..`distances`, over seeds,
    inputs and outputs.

    One impulse goes through the branch's own B, scan and C_proj; the skip D, which is no memory, is
    set to zero.
    """
    power = torch.zeros(distances, dtype=torch.float64)
    for seed in range(seeds):
        branch = branch_with(nodes, seed)
        u = torch.zeros(inputs, distances, len(nodes.rates))
        u[torch.arange(inputs), 0, torch.arange(inputs)] = 1
        with torch.no_grad():
            branch.D.zero_()
            power += branch(u).double().square().mean((0, 2))
    return np.asarray(power / seeds)


def slope(power: np.ndarray, first: int = 4) -> float:
    """The exponent of the root of `power` (at distances 1, 2, ...) from `first` to the end."""
    distances = np.arange(1, power.size + 1)
    points = np.log(np.geomspace(first, power.size, 200))
    return -float(np.polyfit(points, np.interp(points, np.log(distances), np.log(power) / 2), 1)[0])


@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize(
    ("target", "promised"),
    [("correlation", 0.575), pytest.param("information", 1.15, marks=pytest.mark.slow)],
)
def test_impulse_response_of_the_model_has_the_promised_exponent(
    gain: str, target: str, promised: float
) -> None:
    """Measured over distances 4..512: within 0.007 of both, for two seeds, with nodes for 2,048
    steps.
    """
    nodes = place(256, gain=gain, target=target, lag="distance", **RMS)
    assert slope(impulse_power(nodes, 512)) == pytest.approx(promised, abs=0.03)


def test_sizes_say_how_nodes_are_laid_out_and_step_sizes_differ_by_channel() -> None:
    """A_log (d_inner, N) under a dt of its own for each channel: every channel has the same decays
    per step.
    """
    rows = decays_(torch.empty(3, 4), place(4))
    assert torch.equal(rows, rows[:1].expand(3, 4))
    assert torch.equal(decays_(torch.empty(1, 2, 2), place(4)).flatten(), rows[0])
    nodes = place(4)
    dt_bias = torch.tensor([-6.0, -3.0, 0.5])
    a_log = decays_(torch.empty(3, 4), nodes, "a_log", dt_bias=dt_bias[:, None])
    rates = torch.nn.functional.softplus(dt_bias)[:, None] * a_log.exp()
    assert torch.allclose(rates, torch.tensor(nodes.rates).expand(3, 4), rtol=2e-6)
    with pytest.raises(ValueError, match=r"dt_bias must broadcast .*, got \(3,\)"):
        decays_(torch.empty(3, 4), nodes, "a_log", dt_bias=dt_bias)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_projection_scales_the_slices_of_one_dimension(dim: int) -> None:
    nodes = place(6, projection="published")
    weight = torch.randn(6, 6, generator=torch.Generator().manual_seed(0), requires_grad=True)
    before = weight.detach().clone()
    projection_(weight, nodes, dim=dim)
    multipliers = torch.tensor(nodes.projection, dtype=torch.float32)
    assert torch.allclose(
        weight.detach(), before * (multipliers[:, None] if dim == 0 else multipliers)
    )
    for bad in (torch.empty(6, 5), torch.empty(5)):
        with pytest.raises(
            ValueError, match=r"nodes must be as many as dimension -1 of weight .*, got 6"
        ):
            projection_(bad, nodes)
    with pytest.raises(ValueError, match="as dimension 2 of"):
        projection_(weight, nodes, dim=2)


def test_a_tensor_of_inference_mode_is_written_in_that_mode() -> None:
    nodes = place(4)
    with torch.inference_mode():
        written = decays_(torch.empty(4), nodes)
        assert torch.allclose(written.exp(), torch.tensor(nodes.rates))
        projection_(torch.ones(2, 4), nodes)
    with pytest.raises(ValueError, match=r"tensor must be .* got one of inference mode; clone it"):
        decays_(written, nodes)


@pytest.mark.parametrize("gain", SOME_GAINS)
def test_matched_projections_keep_the_output_of_the_baseline(gain: str) -> None:
    """White noise through the model: the baseline's standard deviation within 3 %; unmatched it is
    off by 45 to 150 %.

    Under the LRU gain the two happen to agree within 7 %.
    """
    baseline = place(256, gain=gain)
    shaped = place(256, placement="concentrated", projection="published", gain=gain)
    noise = torch.randn(2, 8192, 256, generator=torch.Generator().manual_seed(1))

    def std(nodes: Nodes, match: Nodes | None = None) -> float:
        branch = branch_with(baseline, 3)
        with torch.no_grad():
            branch.D.zero_()
            decays_(branch.log_rate, nodes)
            projection_(branch.C_proj.weight, nodes, match=match)
            return float(branch(noise)[:, 6144:].std())

    assert std(shaped, match=baseline) == pytest.approx(std(baseline), rel=0.03)
    ratio = output_std(shaped) / output_std(baseline)
    assert std(shaped) / std(baseline) == pytest.approx(ratio, rel=0.03)


def mamba_response(mixer: torch.nn.Module, gaps: int) -> torch.Tensor:
    """How a Mamba block's outputs (gaps, width) at token t = 1..gaps depend on token 0, by its own
    forward pass.
    """
    width = mixer.in_proj.in_features
    first, last = torch.randn(2, width, generator=torch.Generator().manual_seed(5))
    tokens = torch.zeros(2, gaps, gaps + 1, width)
    tokens[:, torch.arange(gaps), torch.arange(1, gaps + 1)] = last
    tokens[1, :, 0] = first
    with torch.no_grad():
        outputs = mixer(tokens.flatten(0, 1)).view(tokens.shape)
    seen = outputs[:, torch.arange(gaps), torch.arange(1, gaps + 1)]
    return seen[1] - seen[0]


def test_mamba_of_transformers_remembers_as_the_power_law() -> None:
    """After three calls a token of Mamba is felt t tokens later as t**-1.15 in every output, by its
    own forward.

    Mamba's B, C and dt depend on the input. Here dt is fixed at its bias, as `decays_` assumes, all
    B are equal and all C are equal before the call, and the convolution passes tokens through, so
    that the states alone are seen.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    states, gaps = 16, 64
    config = transformers.MambaConfig(
        vocab_size=8, hidden_size=8, state_size=states, num_hidden_layers=1
    )
    mixer = transformers.MambaModel(config).eval().layers[0].mixer
    with torch.no_grad():
        mixer.dt_proj.weight.zero_()
        mixer.conv1d.weight.zero_()[..., -1] = 1.0
        mixer.conv1d.bias.zero_()
        mixer.D.zero_()
        for rows in (mixer.x_proj.weight[-2 * states : -states], mixer.x_proj.weight[-states:]):
            rows.copy_(torch.randn(1, rows.shape[1]).expand_as(rows))
    lags = np.arange(1, gaps + 1)
    untreated = mamba_response(mixer, gaps)

    nodes = place(states, placement="quantile", tempering=0.0, max_lag=gaps, loss=0.01)
    decays_(mixer.A_log, nodes, "a_log", dt_bias=mixer.dt_proj.bias[:, None])
    projection_(mixer.x_proj.weight[-states:], nodes, dim=0)
    response = mamba_response(mixer, gaps)
    promised = torch.tensor(nodes.kernel().kernel(lags), dtype=torch.float32)
    found = response / response[:1]
    assert torch.allclose(found, (promised / promised[0])[:, None].expand_as(found), rtol=1.5e-3)
    for column in found.T:
        assert -np.polyfit(np.log(lags[3:]), np.log(column.numpy()[3:]), 1)[0] == pytest.approx(
            1.15, abs=0.02
        )
    assert not torch.allclose(untreated / untreated[:1], found, rtol=0.5), (
        "its own initialisation does otherwise"
    )


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
    "sigmoid_root": {},
    "real_part": {"log_step": BESIDE - 4},
    "log_real_part": {"log_step": BESIDE - 4},
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
    "sigmoid_root": lambda x: math.log1p(math.exp(-x)) / 16,
    "real_part": lambda x, log_step: -x * math.exp(log_step),
    "log_real_part": lambda x, log_step: math.exp(x) * math.exp(log_step),
}


def nodes_of(half_lives: Any) -> Nodes:
    return Nodes(
        tuple((math.log(2) / np.asarray(half_lives)).tolist()), (1.0,) * len(half_lives), "none"
    )


@pytest.mark.parametrize("case", GIVEN)
def test_rates_come_back(case: str) -> None:
    """By the formula written out in scalars, but for the rounding of x and a few more: a rate
    changes by no more than a share of |dx| that is 1, or the given speed of a bounded one."""
    name = case.split()[0]
    given = GIVEN[case]
    tensor = decays_(torch.empty(24, dtype=torch.float64), nodes_of(HALF_LIVES), name, **given)
    one = {key: np.broadcast_to(np.asarray(value), 24) for key, value in given.items()}
    found = [
        BY_HAND[case](float(x), **{key: float(one[key][i]) for key in one})
        for i, x in enumerate(tensor)
    ]
    speed = np.exp(one["a_log"]) if case == "bounded by head" else 1.0
    errors = np.abs(np.log(found) - np.log(np.log(2) / HALF_LIVES))
    assert (errors <= EPS * (8 + 2 * speed * np.abs(tensor.numpy()))).all()


def test_every_form_is_tried() -> None:
    assert {case.split()[0] for case in GIVEN} == set(FORMS)


@pytest.mark.parametrize(
    ("half_lives", "name", "given", "message"),
    [
        ([9, 1.14], "exp_sigmoid", {}, "must be above 1.143 steps for exp_sigmoid, got 1.14"),
        (
            [9, 0.13],
            "bounded",
            {"bound": 5.0},
            "must be above 0.1386 steps .*, got 0.13",
        ),
        (
            [9, 3e6],
            "sigmoid",
            {"cap": 15.0},
            r"above 0.04621 steps and below 2.266e\+06 for sigmoid, got 3e\+06",
        ),
        ([9, 9], "bounded", {"bound": -5.0}, "bound must be above 0, got -5"),
        ([9, 9], "sigmoid", {"cap": torch.tensor([15.0, 0.0])}, "cap must be above 0, got 0"),
        ([9, 9], "sigmoid", {"cap": nn.Parameter(torch.tensor(-1.0))}, "cap must be .* 0, got -1"),
        ([9, 9], "dt_bias", {}, "a_log must be given with parametrisation 'dt_bias', got None"),
        (
            [9, 9],
            "rg_lru",
            {"cap": 15.0, "gate_bias": 0.0},
            "cap must be left out with parametrisation 'rg_lru', got 15",
        ),
        ([9, 9], "log_decay", {}, "parametrisation must be one of log_rate, exp_exp"),
        (
            [9, 9],
            "dt_bias",
            {"a_log": torch.tensor([0.0, -math.inf])},
            "a_log must be of an ordinary size, so that decays are not nan in float32, got -inf for"
            " a half-life of 9 steps",
        ),
        (
            [9, 9],
            "a_log",
            {"dt_bias": -200.0},
            "dt_bias must be of an ordinary size, .*, got -200 for a half-life of 9 steps",
        ),
        (
            [9, 9],
            "sigmoid",
            {"dt_bias": np.zeros(2)},
            r"dt_bias must be left out with parametrisation 'sigmoid', got numbers of shape \(2,\)",
        ),
        ([9, 9], "dt_bias", {"a_log": torch.zeros(3)}, r"a_log must broadcast .*, got \(3,\)"),
        ([9, 6.93e8], "log_rate", {}, "not 1 in float32, got 6.93e.08"),
        ([9, 0.003], "sigmoid", {}, "not 0 in float32, got 0.003"),
        ([9, math.inf], "log_rate", {}, "positive finite rates"),
        (
            [9, 9, 9],
            "log_rate",
            {},
            r"as the last dimension of the tensor \(2,\), or as its elements, got 3",
        ),
    ],
)
def test_what_no_parameter_gives_is_refused_and_nothing_is_written(
    half_lives: list[float], name: Any, given: Any, message: str
) -> None:
    tensor = torch.full((2,), 7.0)
    with pytest.raises(ValueError, match=message) as error:
        decays_(tensor, nodes_of(half_lives), name, **given)
    assert len(str(error.value).splitlines()) == 1
    assert torch.equal(tensor, torch.full((2,), 7.0))


# Functions of somebody's own, inverted numerically

MONOTONIC: dict[str, Callable[[Tensor], Tensor]] = {
    "falls": lambda x: 1 / (1 + nn.functional.softplus(x)),
    "rises": lambda x: torch.exp(-nn.functional.softplus(-x) / 16),
    "the decay itself": lambda x: x,
    "decays end between the numbers that are tried": lambda x: torch.exp(-(x - 0.3)),
    "a pole outside": lambda x: 1 / (1 + x),
    "not a number for large ones": lambda x: x.exp() / (1 + x.exp()),
    "by channel": lambda x: torch.exp(-torch.tensor([0.5, 1.0, 2.0]) * x.exp()),
    "some rise and some fall": lambda x: torch.sigmoid(torch.tensor([1.0, -1.0, 1.0]) * x),
    "very flat": lambda x: torch.sigmoid(x / 500),
}


@pytest.mark.parametrize("name", MONOTONIC)
@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_a_function_is_inverted(name: str, shape: tuple[int, ...]) -> None:
    """To the rounding of the parameter: float64 holds a half-life to 1e-16 times itself."""
    half_lives = torch.tensor([500.0, 1.0, 20.0], dtype=torch.float64)
    tensor = torch.empty(shape, dtype=torch.float64)
    assert decays_(tensor, nodes_of(half_lives), MONOTONIC[name]) is tensor
    found = math.log(0.5) / MONOTONIC[name](tensor).log()
    assert torch.allclose(found, half_lives.expand(shape), rtol=1e-9, atol=0)


def test_a_function_fills_a_narrower_type_and_a_form_that_has_a_name_alike() -> None:
    nodes = nodes_of([500, 1, 20])
    by_name = decays_(torch.empty(3), nodes, "sigmoid")
    assert isinstance(by_name, Tensor)
    by_function = decays_(torch.empty(3), nodes, torch.sigmoid)
    assert isinstance(by_function, Tensor)
    assert torch.allclose(by_function, by_name, rtol=1e-6, atol=1e-7)
    computed_in_float32 = decays_(torch.empty(3), nodes, lambda x: torch.sigmoid(x.float()))
    assert isinstance(computed_in_float32, Tensor)
    assert torch.allclose(computed_in_float32, by_name, rtol=1e-4, atol=1e-6)


def test_ordered_decays_take_a_function_that_falls_with_the_level() -> None:
    ordered = Ordered(3)
    decays_(ordered, ordered.arranged(nodes_of([500, 1, 20])), lambda x: torch.exp(-x.exp()))
    half_lives = math.log(2) / ordered().exp()
    assert half_lives.tolist() == pytest.approx([500, 20, 1], rel=1e-5)


BOTH = "must rise or fall wherever its decays are between 0 and 1, got one that does both"
ALONE = "every decay of the function must follow from its own number alone, without jumps"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (torch.square, BOTH),
        (lambda x: torch.exp(-x.square()), BOTH),
        (lambda x: (1 + x.sin()) / 2, BOTH),
        (lambda x: torch.sigmoid(x) + 5 * ((x > 1) & (x < 2)), BOTH),
        (
            lambda x: 0.9 * torch.sigmoid(x),
            r"of decays from 0 to 0.9, which the function reaches, got 9 steps \(decay 0.925875\)",
        ),
        (lambda x: 0.5 + 0 * x, "of decays from 0.5 to 0.5"),
        (lambda x: 0 * x - 3, "must give decays from 0 to 1, got none for a number from -16384"),
        (lambda x: torch.sigmoid(x.cumsum(0)), ALONE),
        (lambda x: (x > 0).double(), ALONE),
        (
            lambda x: torch.sigmoid(x).mean(),
            r"a decay for every number, of shape \(2,\), got .*\(\)",
        ),
        (lambda x: x > 0, r"of shape \(2,\), got torch.bool"),
        (lambda x: None, "must give a tensor of decays, got NoneType"),
        (lambda x: x.missing, "the function raised AttributeError: 'Tensor' object"),
        (3.0, "parametrisation must be one of log_rate, .*, or a function .*, got float"),
    ],
)
def test_a_function_that_cannot_be_inverted_is_refused_and_nothing_is_written(
    function: Any, message: str
) -> None:
    tensor = torch.full((2,), 7.0)
    with pytest.raises(ValueError, match=message) as error:
        decays_(tensor, nodes_of([9, 3]), function)
    assert len(str(error.value).splitlines()) == 1
    assert torch.equal(tensor, torch.full((2,), 7.0))


def test_a_function_takes_nothing_beside_it() -> None:
    message = "dt_bias must be left out with a function, which takes x alone"
    with pytest.raises(ValueError, match=message):
        decays_(torch.zeros(2), nodes_of([9, 3]), torch.sigmoid, dt_bias=1.0)


# What is left of the first token in the states of a layer, by the forward of the library that the
# layer is from.

GAPS = (4, 5, 7, 12, 30)
"""Tokens after the first; its short convolution has passed it on before the first of them."""
WIDTH = 16
SIZES = {
    "vocab_size": 32,
    "pad_token_id": 0,
    "hidden_size": WIDTH,
    "num_hidden_layers": 1,
    "intermediate_size": 16,
}
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
    return getattr(transformers, f"{name}Model")(
        getattr(transformers, f"{name}Config")(**options)
    ).eval()


def module_with(model: nn.Module, name: str) -> Any:
    return next(module for module in model.modules() if hasattr(module, name))


def left(state_after: Callable[[Tensor], Tensor]) -> np.ndarray:
    """The part of the state after GAPS empty tokens that one token before them gave, (G, ...).

    It is the difference of two forward passes.
    """
    first = torch.randn(WIDTH, generator=torch.Generator().manual_seed(3))
    rows = []
    for gap in GAPS:
        tokens = torch.zeros(1, gap + 1, WIDTH)
        without = state_after(tokens).double()
        tokens[0, 0] = first
        rows.append((state_after(tokens).double() - without)[0].detach().numpy())
    return np.stack(rows)


def check_decays(found: np.ndarray, half_lives: np.ndarray) -> None:
    """Every entry of a state falls as 2**(-gap / half-life); half-lives broadcast to an entry of
    the state.
    """
    gaps = np.subtract(GAPS, GAPS[0]).reshape(-1, *[1] * (found.ndim - 1))
    promised = 2.0 ** (-gaps / half_lives)
    start = np.abs(found[:1])
    assert (start > 0).any()
    assert (np.abs(found - found[:1] * promised) <= 2e-5 * start + 1e-6 * start.max()).all()
    assert (
        np.abs(found - found[:1] * 2.0 ** (-gaps / (half_lives * 1.02))) > 1e-3 * start.max()
    ).any(), "2 % show"


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
        (
            "Mamba2",
            {**SIZES, "num_heads": 4, "head_dim": 8, "state_size": 8, "n_groups": 1},
            "dt_bias",
        ),
        ("Qwen3Next", QWEN, "a_log"),
        ("Qwen3Next", QWEN, "dt_bias"),
    ],
)
def test_mamba2_and_gated_delta_nets(name: str, options: dict[str, Any], by: Any) -> None:
    """dt scales the input too, which a ratio of states does not see; keys of tokens of nothing are
    zero.
    """
    model = transformers_model(name, **options)
    module = module_with(model, "dt_bias")
    pair = {"a_log": module.A_log, "dt_bias": module.dt_bias}
    decays_(pair.pop(by), nodes_of(HEADS), by, **pair)
    check_decays(left(cached(model)), HEADS[:, None, None])


def test_kimi_delta_attention_by_channel() -> None:
    """Every head holds all eight half-lives, one for each channel of its keys."""
    half_lives = np.geomspace(1.3, 200, 8)
    model = transformers_model(
        "KimiLinear",
        **PAIR,
        **{**LINEAR, "num_key_value_heads": 2},
        linear_head_dim=8,
        linear_num_heads=2,
    )
    gate = module_with(model, "dt_bias")
    nn.init.zeros_(gate.A_log).data[..., 1, 0] = math.log(
        2
    )  # its ln(1 + exp(x)) in float32 rounds smaller steps off
    decays_(gate.dt_bias.view(2, 8), nodes_of(half_lives), "dt_bias", a_log=gate.A_log.view(2, 1))
    check_decays(left(cached(model)), half_lives[:, None])


def test_recurrent_gemma() -> None:
    half_lives = np.geomspace(2, 500, 16)
    model = transformers_model(
        "RecurrentGemma",
        **PAIR,
        num_attention_heads=2,
        lru_width=16,
        block_types=["recurrent", "attention"],
    )
    unit = module_with(model, "recurrent_param")
    nn.init.uniform_(unit.recurrent_gate_bias, -1, 1)
    decays_(
        unit.recurrent_param,
        nodes_of(half_lives),
        "rg_lru",
        gate_bias=unit.recurrent_gate_bias.flatten(),
    )

    def state_after(tokens: Tensor) -> Tensor:
        unit.recurrent_states = None
        with torch.no_grad():
            model(inputs_embeds=tokens, use_cache=True)
        return unit.recurrent_states

    check_decays(left(state_after), half_lives)


def test_xlstm() -> None:
    """The matrix memory, freed of the factor exp(-m) that it is stored with."""
    model = transformers_model(
        "xLSTM", vocab_size=32, hidden_size=WIDTH, num_hidden_layers=1, num_heads=4
    )
    cell = module_with(model, "fgate_preact")
    decays_(cell.fgate_preact.bias, nodes_of(HEADS), "sigmoid", cap=model.config.gate_soft_cap)

    def state_after(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            memory, _, largest = cell(tokens)[1]
        return memory.double() * largest.double().exp().reshape(1, 4, 1, 1)

    check_decays(left(state_after), HEADS[:, None, None])
