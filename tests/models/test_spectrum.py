"""Decays in order and decays by position (PoST, arXiv 2604.07658): the formulas as plain loops.

Goose as a whole is compared in `test_models.py`, the state of all models in `test_state.py`.
"""

import copy
import dataclasses
import io
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from loops import alphas, in_order, loops_of
from test_models import GOOSE, POST, SSMS, Config, build, some_bytes
from torch import Tensor, nn
from torch.func import functional_call

import plkernel
from plkernel.analysis.nodes import Nodes, place
from plkernel.analysis.parametrisations import (
    FORMS,
    RWKV7_LARGEST_RATE,
    inverse_softplus,
    ordered_levels,
    position_exponents,
)
from plkernel.decays.official import to_official
from plkernel.models.init import initialise_
from plkernel.models.init.mamba2 import log_spaced_, power_law_, spectrum_, unit_a_
from plkernel.models.mamba2 import log_rates, mamba2, shape_decays_
from plkernel.models.power_law import decays_
from plkernel.models.rwkv import RWKVConfig
from plkernel.models.rwkv7 import RWKV7, GooseMixing, RWKV7Config
from plkernel.models.spectrum import Ordered
from plkernel.models.ssm import SSM, DiagonalSSM, SSMConfig
from plkernel.models.state import State
from plkernel.training.foreign import Foreign

pytestmark = pytest.mark.usefixtures("one_thread")
BOTH: Any = {"parametrisation": "ordered", "scaling_length": 40}
OPTIONS: list[Any] = [{"parametrisation": "ordered"}, {"scaling_length": 40}, BOTH]
EACH = pytest.mark.parametrize("options", OPTIONS, ids=["ordered", "scaled", "both"])
MAMBA2 = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_heads": 4,
    "head_dim": 8,
    "state_size": 4,
    "n_groups": 2,
    "chunk_size": 8,
}
ONE_HEAD = {**MAMBA2, "num_heads": 1, "head_dim": 32, "n_groups": 1}
STEPS: Any = {"scaling_length": 40, "scaling_of": "time_step"}
HALVES: Any = {"scaling_length": 40, "scaling_of": "both"}
MAMBA2_OPTIONS: list[Any] = [
    *OPTIONS,
    STEPS,
    {**STEPS, "parametrisation": "ordered"},
    HALVES,
    {**HALVES, "parametrisation": "ordered"},
]
SINGLE = torch.finfo(torch.float32).eps


def drawn(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=count)


# The two formulas
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_levels_and_exponents_are_those_of_the_paper(kind: Any) -> None:
    """As loops over Python's floats; levels in any order, as training without an order has them."""
    delta = 2 * drawn(11)
    levels = ordered_levels(kind([-3.0]), kind(delta))
    assert np.asarray(levels) == pytest.approx(in_order(-3.0, delta.tolist()), rel=1e-14)
    mixed = 2 * drawn(12, seed=1)
    for length in (4.0, 512.0):
        found = np.asarray(position_exponents(kind(mixed), math.log(length)))
        assert found == pytest.approx(alphas(mixed.tolist(), length), abs=1e-14)
    assert found[mixed.argmin()] == 1.0
    assert found[mixed.argmax()] == 0.0


def test_even_levels_have_exponents_that_fall_evenly_whatever_the_length() -> None:
    """And levels far from even are cut off at 0 and 1, as the loop says too."""
    even = np.linspace(-7.0, 0.5, 9)
    assert position_exponents(even, math.log(512)) == pytest.approx(np.linspace(1, 0, 9), abs=1e-14)
    bent = np.array([-9.0, -8.9, -8.8, -1.0, 0.0])
    found = position_exponents(bent, math.log(8))
    assert found == pytest.approx(alphas(bent.tolist(), 8), abs=1e-14)
    assert found.min() == 0.0
    assert 0 in found[1:-1]


def test_order_survives_any_step_and_equal_decays_have_none() -> None:
    ordered = Ordered(33)
    with torch.no_grad():
        for parameter in ordered.parameters():
            parameter.copy_(100 * torch.randn(parameter.shape))
    assert (ordered().diff() >= 0).all()
    with pytest.raises(ValueError, match="must rise from channel to channel, got 1 that do not"):
        ordered.set_(torch.tensor([0.0, 0.0, *range(1, 32)]))
    with pytest.raises(ValueError, match="levels must be 33, one for each channel, got 4"):
        ordered.set_(torch.arange(4.0))
    with pytest.raises(ValueError, match="2 or more for ordered decays, got 1"):
        Ordered(1)


WRONG_LEVELS: list[Any] = [
    (torch.tensor([-math.inf, 1.0, 2.0]), "levels of ordered decays must be finite, got -inf"),
    (torch.tensor([0.0, 1.0, math.inf]), "levels of ordered decays must be finite, got inf"),
    (torch.tensor([0.0, math.nan, 1.0]), "levels of ordered decays must be finite, got nan"),
    (torch.tensor([0.0, 1.0, 1e300], dtype=torch.float64), "must be finite, got 1e\\+300"),
    (torch.tensor([0.0, 2.0, 1.0]), "must rise from channel to channel, got 1 that do not$"),
    (torch.ones(3), "got 2 that do not but are the same; heads"),
    ([0.0, 1.0, 2.0], "levels must be a tensor, got list"),
]


@pytest.mark.parametrize(("levels", "message"), WRONG_LEVELS)
def test_levels_that_are_none_leave_the_others_as_they_are(levels: Any, message: str) -> None:
    ordered = Ordered(3).set_(torch.tensor([-1.0, 0.5, 2.0]))
    before = ordered()
    with pytest.raises(ValueError, match=message):
        ordered.set_(levels)
    assert torch.equal(ordered(), before)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((2.5,), "channels must be a whole number such as 64, got 2.5"),
        (("8",), "channels must be a whole number such as 64, got '8'"),
        ((4, "no"), "descending must be True or False, got 'no'"),
    ],
)
def test_forms_that_are_none(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Ordered(*given)


@pytest.mark.parametrize("descending", [False, True])
def test_levels_that_are_set_come_back_to_rounding(descending: bool) -> None:
    """theta and delta are float32: every gap is off by the rounding of its delta; they add up."""
    levels = torch.logspace(0, 1, 40, dtype=torch.float64) - 9
    if descending:
        levels = levels.flip(0)
    ordered = Ordered(40, descending).set_(levels)
    gaps = levels.diff().abs()
    moved = inverse_softplus(gaps).abs() * (1 - torch.exp(-gaps))  # delta times its derivative
    bound = SINGLE * float(moved.sum() + levels.abs().max())
    assert float((ordered().detach().double() - levels).abs().max()) < bound


# The SSM
# ------------------------------------------------------------------------------------------


def level_list(branch: DiagonalSSM) -> list[float]:
    """p of the channels of a branch, by the loop."""
    p = {name: value.detach().double() for name, value in branch.named_parameters()}
    if branch.ordered is None:
        return p["log_rate"].tolist()  # type: ignore[no-any-return]
    levels = in_order(float(p["ordered.theta"][0]), p["ordered.delta"].tolist())
    return levels[::-1]  # the fastest is channel 0


def ssm_loop(branch: DiagonalSSM, u: Tensor, length: float | None) -> np.ndarray:
    """Outputs (T,D) of one sequence u (T,D), a channel and a step at a time."""
    p = {name: value.detach().numpy() for name, value in branch.named_parameters()}
    levels = level_list(branch)
    alpha = alphas(levels, length) if length else [0.0] * len(levels)
    gains = {"none": lambda rate: 1.0, "lru": lambda rate: math.sqrt(1 - math.exp(-2 * rate))}
    gains["ema"] = lambda rate: 1 - math.exp(-rate)
    state = [0.0] * len(levels)
    outputs = []
    for t, x in enumerate(u.numpy(), start=1):
        driven = p["B.weight"] @ x
        for i, level in enumerate(levels):
            rate = math.exp(level)
            decay = math.exp(-rate * t ** -alpha[i])
            state[i] = decay * state[i] + gains[branch.gain](rate) * driven[i]
        outputs.append(p["C_proj.weight"] @ state + p["C_proj.bias"] + p["D"] * x)
    return np.array(outputs)


@EACH
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("gain", ["none", "ema", "lru"])
def test_an_ssm_branch_is_the_loop(options: Any, backend: str, gain: Any) -> None:
    """The rate at step t is exp(p) t**-alpha; the gain is that of exp(p), as Mamba-2 keeps dt."""
    model = build(SSMConfig(12, 1, gain, backend=backend, **options))
    branch = model.recurrences()[0]  # type: ignore[union-attr]
    u = torch.from_numpy(np.random.default_rng(0).normal(size=(30, 12)))
    with torch.no_grad():
        found = branch(u[None])[0].numpy()
    expected = ssm_loop(branch, u, options.get("scaling_length"))
    assert np.abs(found - expected).max() < 1e-13 * np.abs(expected).max()


def test_patches_are_the_steps_that_count() -> None:
    """T = 40 bytes are 10 steps of 4."""
    branch = SSM(SSMConfig(8, 1, patch=4, scaling_length=40)).recurrences()[0]
    assert branch.log_length is not None
    assert float(branch.log_length) == math.log(10)


# Half-lives, and what reads and writes them
# ------------------------------------------------------------------------------------------


@EACH
@pytest.mark.parametrize("position", [None, 1, 7])
def test_half_lives_are_stated_at_a_position(options: Any, position: int | None) -> None:
    """By default at the length of training; without scaling they are the same everywhere."""
    length = options.get("scaling_length")
    at = (position or length) if length else 1
    ssm = build(SSMConfig(12, 1, **options))
    levels = level_list(ssm.recurrences()[0])  # type: ignore[union-attr]
    alpha = alphas(levels, length) if length else [0.0] * 12
    expected = [math.log(2) / (math.exp(p) * at**-a) for p, a in zip(levels, alpha, strict=True)]
    assert ssm.half_lives(position)[0].tolist() == pytest.approx(expected, rel=1e-13)

    goose = build(dataclasses.replace(GOOSE, layers=1, **options))
    mixing = goose.mixings()[0]  # type: ignore[union-attr]
    assert isinstance(mixing, GooseMixing)
    loop: Any = loops_of(goose)
    logit = loop.level("blocks.0.att.", at - 1)
    lives = math.log(2) * (1 + np.exp(-logit)) / math.exp(-0.5)
    assert goose.half_lives(position)[0].numpy() == pytest.approx(lives, rel=1e-12)


def test_half_lives_of_patches_are_stated_at_a_byte() -> None:
    """Byte 12 is in the third step of 4; before the first whole patch it is the first step."""
    model = build(SSMConfig(8, 1, patch=4, scaling_length=40))
    levels = level_list(model.recurrences()[0])  # type: ignore[union-attr]
    alpha = alphas(levels, 10)
    for byte, step in ((1, 1), (12, 3), (None, 10)):
        rates = [math.exp(p) * step**-a for p, a in zip(levels, alpha, strict=True)]
        expected = [4 * math.log(2) / rate for rate in rates]
        assert model.half_lives(byte)[0].tolist() == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("position", [0, -1, 0.5, math.nan, math.inf, "1", True])
@pytest.mark.parametrize("config", [SSMConfig(8, 1), GOOSE, RWKVConfig(5, 16, 1, 8)])
@pytest.mark.parametrize("options", [{}, {"scaling_length": 40}], ids=["plain", "scaled"])
def test_positions_that_no_byte_has(config: Config, options: Any, position: Any) -> None:
    """Of decays that do not depend on the position too, which are the same at any other."""
    if isinstance(config, RWKVConfig):
        options = {}
    model = build(dataclasses.replace(config, **options))
    with pytest.raises(ValueError, match="position must be 1 or more, got"):
        model.half_lives(position)
    if not options:
        assert torch.equal(model.half_lives(7)[0], model.half_lives()[0])


def of_kind(kind: str, **options: Any) -> nn.Module:
    """A model at its initialisation, in float32."""
    if kind == "ssm":
        return placed_ssm(SSMConfig(16, 2, "ema", **options))
    if kind == "rwkv7":
        return initialise_(RWKV7(RWKV7Config(32, 2, 16, **options)), "rwkv7_official", 0)
    torch.manual_seed(0)
    model = mamba2({**MAMBA2, **options})
    spectrum_(model, longest=64)
    return model


def placed_ssm(config: SSMConfig, nodes: Nodes | None = None) -> SSM:
    model = initialise_(SSM(config), "transformers_default", 0)
    model.place_(nodes or place(config.dim, gain=config.gain))
    return model


SHARES = {"decay": (1.0, 0.0), "both": (0.5, 0.5), "time_step": (0.0, 1.0)}
"""The shares of alpha ln t that A_log and dt_bias lose, by `scaling_of`."""


def shares_of(options: Any) -> tuple[float, float]:
    if "scaling_length" not in options:
        return (0.0, 0.0)
    return SHARES[options.get("scaling_of", "decay")]


def true_lives(model: nn.Module, options: Any, position: float = 40.0) -> list[np.ndarray]:
    """Half-lives of every block at a position, sorted."""
    if isinstance(model, SSM | RWKV7):
        return [np.sort(lives.numpy()) for lives in model.half_lives(position)]
    found = []
    of_decay, of_step = shares_of(options)
    for layer in model.backbone.layers:  # type: ignore[union-attr]
        mixer: Any = layer.mixer
        levels = mixer.A_log.detach().double().numpy()
        bias = mixer.dt_bias.detach().double().numpy()
        log_rates = levels
        if of_step:
            log_rates = levels + np.log(np.log1p(np.exp(bias)))
        slowed = np.array(alphas(log_rates.tolist(), 40)) * math.log(position)
        steps = np.log1p(np.exp(bias - of_step * slowed))
        found.append(np.sort(math.log(2) / (np.exp(levels - of_decay * slowed) * steps)))
    return found


@torch.no_grad()
def with_unequal_steps(model: nn.Module) -> nn.Module:
    """A Mamba-2 whose time steps differ, so that rates have another order than A_log."""
    for layer in model.backbone.layers:  # type: ignore[union-attr]
        mixer: Any = layer.mixer
        mixer.dt_bias.add_(torch.tensor([2.0, -1.0, 0.5, -3.0]))
    return model


@pytest.mark.parametrize("options", MAMBA2_OPTIONS)
@pytest.mark.parametrize("position", [None, 1, 40, 1000])
def test_half_lives_of_a_mamba2_with_unequal_steps(
    options: Any, position: int | None, tmp_path: Any
) -> None:
    from safetensors.torch import save_file

    model = with_unequal_steps(of_kind("mamba2", **options))
    expected = true_lives(model, options, 40.0 if position is None else position)
    if position is None:
        save_file(model.state_dict(), tmp_path / "model.safetensors")
        shown: Any = plkernel.inspect(tmp_path)
        found = [math.log(2) / layer.rates.ravel() for layer in shown.layers]
    else:
        found = [lives.numpy().ravel() for lives in Foreign("mamba2", model).half_lives(position)]
    for one, lives in zip(found, expected, strict=True):
        assert np.sort(one) == pytest.approx(lives, rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *[("ssm", one) for one in OPTIONS],
        *[("rwkv7", one) for one in OPTIONS],
        *[("mamba2", one) for one in MAMBA2_OPTIONS],
    ],
)
def test_watch_and_inspect_read_them(
    kind: str, options: Any, tmp_path: Any, recwarn: pytest.WarningsRecorder
) -> None:
    """Every half-life, from a file and from the live model, with nothing wrong in a fresh model."""
    from safetensors.torch import save_file

    model = of_kind(kind, **options)
    watch = plkernel.watch(model, torch.optim.AdamW(model.parameters(), weight_decay=0.0), every=1)
    scalars = watch()
    assert not [one for one in watch.findings if one.severity == "wrong"]
    expected = true_lives(model, options)
    for layer, lives in enumerate(expected):
        for name, value in (("min", lives[0]), ("max", lives[-1]), ("p50", np.median(lives))):
            read = scalars[f"decay/layer{layer}/half_life_{name}"]
            assert read == pytest.approx(value, rel=1e-5)
        assert scalars[f"decay/layer{layer}/distinct"] == 1.0
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    shown: Any = plkernel.inspect(tmp_path)
    for layer, lives in zip(shown.layers, expected, strict=True):
        assert np.sort(math.log(2) / layer.rates.ravel()) == pytest.approx(lives, rel=1e-5)
        notes = " ".join(layer.family.notes)
        assert ("at the length of training" in notes) == ("scaling_length" in options)


@EACH
def test_training_groups_know_the_ordered_form(options: Any) -> None:
    """Weight decay acts on none of it, and theta and delta count as decays."""
    for kind in ("ssm", "rwkv7", "mamba2"):
        given = dict(options)
        if kind == "mamba2" and "scaling_length" in options:
            given["scaling_of"] = "both"
        model = of_kind(kind, **given)
        named = {id(one): name for name, one in model.named_parameters()}
        groups = plkernel.decay_param_groups(model, weight_decay=0.1)
        spared = {named[id(one)] for group in groups[1:] for one in group["params"]}
        if "parametrisation" in options:
            assert sum(name.endswith((".theta", ".delta")) for name in spared) == 4, kind
        assert not any("in_proj" in name or "key" in name for name in spared)


def test_apply_writes_the_ordered_form() -> None:
    """Channels take the nodes in their own order, and the projection goes along."""
    nodes = place(8, shortest=1.2, longest=300, projection="gain-corrected")
    shuffled = [3, 1, 7, 0, 5, 2, 6, 4]
    mixed = Nodes(
        tuple(nodes.rates[i] for i in shuffled),
        tuple(nodes.projection[i] for i in shuffled),
        nodes.gain,
    )
    projection = torch.ones(1, 8)
    ordered = Ordered(8)
    plkernel.apply(mixed, ordered, projection, parametrisation="log_rate")
    assert ordered().exp().tolist() == pytest.approx(sorted(nodes.rates), rel=1e-6)
    by_rate = dict(zip(nodes.rates, nodes.projection, strict=True))
    assert projection[0].tolist() == pytest.approx(
        [by_rate[rate] for rate in sorted(nodes.rates)], rel=1e-6
    )
    descending = Ordered(8, descending=True)
    plkernel.apply(mixed, descending, parametrisation="exp_sigmoid")
    assert (RWKV7_LARGEST_RATE * torch.sigmoid(descending())).tolist() == pytest.approx(
        sorted(nodes.rates, reverse=True), rel=1e-6
    )
    plkernel.apply(mixed, ordered, parametrisation="a_log", dt_bias=-1.0)
    step = math.log(1 + math.exp(-1.0))
    assert (ordered().exp() * step).tolist() == pytest.approx(sorted(nodes.rates), rel=1e-6)
    with pytest.raises(ValueError, match="ordered decays must rise from channel to channel"):
        decays_(ordered, Nodes((0.1,) * 8, (1.0,) * 8, "none"))


@pytest.mark.parametrize("parametrisation", list(FORMS))
def test_apply_says_in_which_forms_a_rate_falls_as_the_level_rises(parametrisation: Any) -> None:
    """Those have no ordered form: its slowest level is its lowest."""
    form = FORMS[parametrisation]
    nodes = place(8, shortest=2, longest=300)
    beside: Any = dict.fromkeys(form.needs, 1.0)
    ordered = Ordered(8)
    before = ordered()
    levels = torch.tensor([-2.0, -1.0], dtype=torch.float64)
    rates = form.rate(levels, **{name: torch.ones(2) for name in form.needs})
    assert form.falls == bool(rates[0] > rates[1])
    if not form.falls:
        plkernel.apply(nodes, ordered, parametrisation=parametrisation, **beside)
        assert (ordered().diff() > 0).all()
        return
    with pytest.raises(
        ValueError, match=f"rate rises with the level .*, got '{parametrisation}', in which it fal"
    ):
        plkernel.apply(nodes, ordered, parametrisation=parametrisation, **beside)
    assert torch.equal(ordered(), before)


# Initialisation
# ------------------------------------------------------------------------------------------


def test_ordered_models_start_as_free_ones() -> None:
    """Half-lives channel by channel, and logits, to the rounding of float32 levels."""
    inputs = some_bytes(2, 40)
    nodes = place(16, gain="ema", projection="gain-corrected")
    pairs: list[tuple[Any, Any]] = [
        (
            placed_ssm(SSMConfig(16, 2, "ema"), nodes),
            placed_ssm(SSMConfig(16, 2, "ema", parametrisation="ordered"), nodes),
        )
    ]
    for scheme in ("rwkv7_official", "rwkv7_post", "transformers_default"):
        free, ordered = (
            initialise_(RWKV7(RWKV7Config(64, 2, 16, parametrisation=one)), scheme, 0)
            for one in ("free", "ordered")
        )
        pairs.append((free, ordered))
    for free, ordered in pairs:
        for one, other in zip(free.half_lives(), ordered.half_lives(), strict=True):
            # levels below 16 in size, of 64 gaps at most
            assert other.tolist() == pytest.approx(one.tolist(), rel=16 * 64 * SINGLE)
        for name, values in ordered.named_parameters():
            others = dict(free.named_parameters())
            if "ordered" not in name and not name.endswith("att.w0"):
                assert torch.equal(values, others[name]), name
        with torch.no_grad():
            torch.testing.assert_close(ordered(inputs), free(inputs), rtol=1e-4, atol=1e-5)


def test_a_mamba2_keeps_its_decays_when_they_are_ordered() -> None:
    models = [of_kind("mamba2", **options) for options in ({}, {"parametrisation": "ordered"})]
    logits = [model(some_bytes(2, 20)).logits for model in models]
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("longest", [64.0, 64.0**2])
def test_the_spectrum_of_goose_is_that_of_the_paper(longest: float) -> None:
    """w0 from logit(1 / (0.6065 T)) to 0.5, evenly over the layer, and 2.5 z |z| in every head."""
    low = math.log(1 / (0.6065306597126334 * longest - 1))
    for even in (True, False):
        model = initialise_(
            RWKV7(RWKV7Config(32, 2, 16)), "rwkv7_post", 0, longest=longest, even=even
        )
        for block, mixing in enumerate(model.mixings()):
            for i, w0 in enumerate(mixing.w0.flatten().tolist()):
                y = (i / 31) ** (1.0 if even else 1 + float(block) ** 0.3)
                z = (i % 16 - 7.5) / 7.5
                assert w0 == pytest.approx(low + (0.5 - low) * y + 2.5 * z * abs(z), abs=2e-6)
    ordered = initialise_(
        RWKV7(RWKV7Config(32, 2, 16, parametrisation="ordered")), "rwkv7_post", 0, longest=longest
    )
    rising = ordered.mixings()[0].ordered().detach()
    slowest = 1 / (RWKV7_LARGEST_RATE * torch.sigmoid(rising[0].double()))
    assert float(slowest) == pytest.approx(longest, rel=1e-5)
    assert float(rising[-1]) == pytest.approx(0.5, abs=1e-5)
    assert float(ordered.mixings()[0].w0.detach()[0, 0, 0]) == -2.5


@pytest.mark.parametrize("even", [True, False])
def test_the_longest_spectrum_of_goose_is_one_that_float32_holds(even: bool) -> None:
    """No decay is 1, with the zigzag."""
    model = initialise_(RWKV7(RWKV7Config(32, 2, 16)), "rwkv7_post", 0, longest=1377159, even=even)
    for mixing in model.mixings():
        decays = torch.exp(-mixing.rates().float())
        assert float(decays.max()) == 1 - 2**-24
    longest = float(model.half_lives()[0].max())
    assert longest == pytest.approx(2**24 * math.log(2), rel=1e-6)


@pytest.mark.parametrize("longest", [2, 1377160])
def test_a_spectrum_of_goose_outside_its_range_is_refused(longest: float) -> None:
    model = RWKV7(RWKV7Config(32, 2, 16))
    with pytest.raises(
        ValueError, match=r"longest must be above 2.65 bytes and at most 1377159, as the zigzag"
    ):
        initialise_(model, "rwkv7_post", 0, longest=longest)


@pytest.mark.parametrize("longest", [64.0, 64.0**2])
@pytest.mark.parametrize("parametrisation", ["free", "ordered"])
def test_the_spectrum_of_mamba2_is_that_of_the_paper(longest: float, parametrisation: str) -> None:
    """Time constants from 1 byte to T, A_log evenly from -ln(0.05 T) to -ln(0.05)."""
    model: Any = mamba2({**MAMBA2, "parametrisation": parametrisation})
    spectrum_(model, longest=longest)
    for layer in model.backbone.layers:
        mixer = layer.mixer
        expected = np.linspace(-math.log(0.05 * longest), -math.log(0.05), 4)
        assert mixer.A_log.tolist() == pytest.approx(expected, abs=1e-5)
        step = torch.nn.functional.softplus(mixer.dt_bias.double())
        assert step.tolist() == pytest.approx([0.05] * 4, rel=1e-6)
        assert not mixer.dt_bias.requires_grad
        constants = 1 / (step * mixer.A_log.double().exp())
        assert constants.tolist() == pytest.approx(np.geomspace(longest, 1, 4), rel=1e-5)
    spectrum_(model, longest=longest, freeze=False)
    assert model.backbone.layers[0].mixer.dt_bias.requires_grad


def test_nodes_in_any_order_are_placed_in_that_of_the_channels() -> None:
    """As a node file may have them, each with its multiplier."""
    nodes = place(8, projection="gain-corrected")
    mixed = Nodes(nodes.rates[::2] + nodes.rates[1::2], nodes.projection[::2] * 2, "none")
    model = placed_ssm(SSMConfig(8, 1, parametrisation="ordered", shape_multiplier=True), mixed)
    assert model.half_lives()[0].tolist() == pytest.approx(sorted(mixed.half_lives()), rel=1e-5)
    by_rate = dict(zip(mixed.rates, mixed.projection, strict=True))
    expected = [by_rate[rate] for rate in sorted(mixed.rates, reverse=True)]
    shape = model.recurrences()[0].shape
    assert shape is not None
    assert shape.tolist() == pytest.approx(expected, rel=1e-6)


def test_the_official_format_has_neither_order_nor_positions() -> None:
    for options, name in (
        (OPTIONS[0], "parametrisation must be 'free', got 'ordered'"),
        (OPTIONS[1], "scaling_len"),
    ):
        model = initialise_(RWKV7(RWKV7Config(16, 1, 8, **options)), "rwkv7_official", 0)
        with pytest.raises(ValueError, match=name):
            to_official(model)


def test_nodes_of_one_head_are_placed_in_order_and_those_of_several_have_none() -> None:
    nodes = place(16, shortest=1.2, longest=500)
    single = initialise_(RWKV7(RWKV7Config(16, 1, 16, **BOTH)), "rwkv7_official", 0)
    single.place_(nodes)
    assert single.half_lives(1)[0].tolist() == pytest.approx(nodes.half_lives()[::-1], rel=1e-4)
    several = initialise_(RWKV7(RWKV7Config(32, 1, 16, **BOTH)), "rwkv7_official", 0)
    with pytest.raises(ValueError, match="heads that all hold the same decays need"):
        several.place_(nodes)
    scaled = initialise_(RWKV7(RWKV7Config(32, 1, 16, scaling_length=40)), "rwkv7_official", 0)
    scaled.place_(nodes)  # no zigzag is left that alpha would leave out
    assert float(scaled.mixings()[0].zigzag.abs().max()) == 0


@pytest.mark.parametrize("config", [SSMConfig(8, 1), RWKV7Config(8, 1, 4)])
def test_nodes_that_are_all_the_same_cannot_be_scaled_by_their_order(config: Config) -> None:
    count = config.head_size if isinstance(config, RWKV7Config) else config.dim
    alike = Nodes((0.1,) * count, (1.0,) * count, "none")
    build(config).place_(alike)
    model = build(dataclasses.replace(config, scaling_length=40))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="rates of nodes must differ from channel to channel"):
        model.place_(alike)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


# Types
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options"),
    [("ssm", OPTIONS[1]), ("rwkv7", OPTIONS[1])]
    + [("mamba2", options) for options in (OPTIONS[1], STEPS, HALVES)],
)
@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
def test_a_narrow_type_leaves_the_length_of_training_as_it_is(
    kind: str, options: Any, narrow: torch.dtype
) -> None:
    """ln 40 = 3.6889 would be 3.6875 in bfloat16; read from a file where it is so, it stays."""
    model = of_kind(kind, **options)
    exact = {
        name: one.clone()
        for name, one in model.named_buffers()
        if name.endswith(("log_length", "zigzag"))
    }
    names = set(model.state_dict())
    model.to(narrow)
    assert {one.dtype for one in model.parameters()} == {narrow}
    assert set(model.state_dict()) == names
    for name, one in exact.items():
        found = model.get_buffer(name)
        assert found.dtype == torch.float32
        assert torch.equal(found, one.float())
    rounded = {
        name: one.to(narrow) if one.is_floating_point() else one
        for name, one in model.state_dict().items()
    }
    again = of_kind(kind, **options)
    again.load_state_dict(rounded)
    model.load_state_dict(rounded)
    for name, before in exact.items():
        for one in (model, again):
            assert torch.equal(one.get_buffer(name).float(), before.float())
    longer = {name: one + 1 if name in exact else one for name, one in rounded.items()}
    again.load_state_dict(longer)
    for name in exact:  # another length is that of the file
        assert torch.equal(again.get_buffer(name).to(narrow), longer[name])


def test_a_model_on_no_device_keeps_its_length() -> None:
    """`to_empty` and the device `meta`, from which no number can be taken."""
    with torch.device("meta"):
        model = SSM(SSMConfig(8, 1, scaling_length=40)).bfloat16()
    model.to_empty(device="cpu")
    length = model.recurrences()[0].log_length
    assert length is not None
    assert length.dtype == torch.float32


# Gradients
# ------------------------------------------------------------------------------------------


def decay_parameters(model: nn.Module) -> dict[str, Tensor]:
    ends = ("log_rate", "ordered.theta", "ordered.delta", "att.w0", "A_log")
    return {name: one.detach() for name, one in model.named_parameters() if name.endswith(ends)}


@EACH
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("config", [SSMConfig(6, 1, "ema"), RWKV7Config(8, 1, 4, 2, 2, 2, 2)])
def test_gradients_are_those_of_finite_differences(
    config: Config, options: Any, backend: str
) -> None:
    """Of all that decays follow from, through alpha too."""
    model = build(dataclasses.replace(config, backend=backend, **options))
    names, values = zip(*decay_parameters(model).items(), strict=True)
    inputs = some_bytes(1, 9)

    def outputs(*given: Tensor) -> Tensor:
        return functional_call(model, dict(zip(names, given, strict=True)), (inputs,))[..., :3]

    given = [one.clone().requires_grad_() for one in values]
    assert torch.autograd.gradcheck(outputs, given, atol=1e-6, rtol=1e-4)


@EACH
@pytest.mark.parametrize("config", [SSMS[1], GOOSE])
def test_backends_agree_on_logits_and_gradients(config: Config, options: Any) -> None:
    """In float64, to the rounding of sums in another order."""
    found = []
    for backend in ("cpu", "reference"):
        model = build(dataclasses.replace(config, backend=backend, **options))
        logits: Any = model(some_bytes(2, 37))
        logits.square().mean().backward()
        gradients = {name: one.grad for name, one in model.named_parameters()}
        found.append((logits.detach(), gradients))
    (logits, gradients), (expected, others) = found
    torch.testing.assert_close(logits, expected, rtol=1e-11, atol=1e-12)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, others[name], rtol=1e-9, atol=1e-12)


# State
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [dataclasses.replace(SSMS[1], scaling_length=40), POST])
def test_a_state_without_its_position_is_refused(config: Config) -> None:
    model = build(config)
    inputs = some_bytes(2, 5)
    _, state = model(inputs, model.initial_state(2))
    counts = [one for name, one in state.tensors.items() if name.endswith(".steps")]
    assert len(counts) == config.layers
    assert all(one.tolist() == [5, 5] for one in counts)
    unscaled = build(dataclasses.replace(config, scaling_length=None))
    with pytest.raises(ValueError, match="by position, got one of"):
        model(inputs, unscaled.initial_state(2))
    with pytest.raises(ValueError, match="by position; begin with model"):
        unscaled(inputs, state)
    without = {name: one for name, one in state.tensors.items() if not name.endswith(".steps")}
    with pytest.raises(ValueError, match=r"state must come with its position, blocks\.0\.steps"):
        model(inputs, State(state.model, without))
    branch = model.recurrences()[0] if isinstance(model, SSM) else model.mixings()[0]
    u = torch.randn(2, 5, config.dim, dtype=torch.float64)
    memory = {"ssm": u[:, 0], "att_shift": u[:, 0], "wkv": state.tensors.get("blocks.0.wkv", u)}
    with pytest.raises(ValueError, match="a state must come with its position"):
        branch(u, memory=memory)


def test_a_mamba2_by_position_takes_no_cache() -> None:
    """Nor kernels that know one decay for each head; ordered heads take both."""
    inputs = some_bytes(1, 6)
    for options in (OPTIONS[1], STEPS, HALVES):
        model: Any = mamba2({**MAMBA2, **options}).eval()
        with pytest.raises(ValueError, match="cache must be None where decays depend on the posit"):
            model(inputs, use_cache=True)
    ordered: Any = mamba2({**MAMBA2, "parametrisation": "ordered"}).eval()
    first = ordered(inputs[:, :4], use_cache=True)
    second = ordered(inputs[:, 4:5], cache=first.cache, use_cache=True)
    with torch.no_grad():
        whole = ordered(inputs[:, :5]).logits
    torch.testing.assert_close(second.logits[:, 0], whole[:, 4], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", [{}, *MAMBA2_OPTIONS])
def test_padding_before_a_text_has_no_position(options: Any, training: bool) -> None:
    """As without it, to the rounding of other chunks; each text of a batch by its own mask."""
    model: Any = of_kind("mamba2", **options).train(training)
    texts = [some_bytes(1, 19), some_bytes(1, 12)]
    batch = torch.zeros((2, 19), dtype=torch.int64)
    mask = torch.zeros((2, 19), dtype=torch.int64)
    for row, text in enumerate(texts):
        batch[row, 19 - text.shape[1] :] = text[0]
        mask[row, 19 - text.shape[1] :] = 1
    with torch.no_grad():
        together = model(batch, attention_mask=mask).logits
        for row, text in enumerate(texts):
            alone = model(text).logits[0]
            found = together[row, 19 - text.shape[1] :]
            torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-6)


def same(model: Any, other: Any) -> None:
    """Two models of one class, with the same logits and numbers of their own."""
    inputs = some_bytes(1, 12)
    with torch.no_grad():
        expected = model(inputs).logits
        assert torch.equal(other(inputs).logits, expected)
        for one in other.parameters():
            one.fill_(math.nan)
        assert torch.equal(model(inputs).logits, expected)
    for one, another in zip(model.modules(), other.modules(), strict=True):
        assert type(one) is type(another)


@pytest.mark.parametrize("options", [{}, *MAMBA2_OPTIONS])
def test_a_mamba2_can_be_saved_and_copied_whole(options: Any) -> None:
    model = of_kind("mamba2", **options)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    same(model, torch.load(file, weights_only=False))
    same(model, copy.deepcopy(model))
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        same(model, pickle.loads(pickle.dumps(model, protocol)))


# Mamba-2
# ------------------------------------------------------------------------------------------


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def mamba2_loop(
    mixer: Any, inputs: np.ndarray, length: float | None, shares: tuple[float, float]
) -> np.ndarray:
    """Outputs (T,D) of a mixer for inputs (T,D), a head and a token at a time in float64.

    shares: of alpha ln t that the decay loses, and that the bias of the time step loses.
    """
    p = {name: value.detach().double().numpy() for name, value in mixer.state_dict().items()}
    heads, size, states, groups = 4, 8, 4, 2
    if "ordered.theta" in p:
        levels = in_order(float(p["ordered.theta"][0]), p["ordered.delta"].tolist())
    else:
        levels = p["A_log"].tolist()
    alpha = np.zeros(heads)
    if length is not None:
        log_rates = np.array(levels)
        if shares[1]:
            log_rates = log_rates + np.log(np.log1p(np.exp(p["dt_bias"])))
        alpha = np.array(alphas(log_rates.tolist(), length))
    inner = heads * size
    projected = inputs @ p["in_proj.weight"].T
    gate, convolved, steps = np.split(projected, [inner, projected.shape[1] - heads], axis=1)
    kernel = p["conv1d.weight"][:, 0]
    padded = np.concatenate((np.zeros((kernel.shape[1] - 1, kernel.shape[0])), convolved))
    outputs = []
    memory = np.zeros((heads, size, states))
    for t in range(len(inputs)):
        window = padded[t : t + kernel.shape[1]]
        mixed = silu((window * kernel.T).sum(0) + p["conv1d.bias"])
        x, b, c = np.split(mixed, [inner, inner + groups * states])
        of_decay, of_step = (share * alpha * math.log(t + 1) for share in shares)
        dt = np.log1p(np.exp(steps[t] + p["dt_bias"] - of_step))
        y = np.zeros((heads, size))
        for h in range(heads):
            group = slice(h * groups // heads * states, (h * groups // heads + 1) * states)
            value = x[h * size : (h + 1) * size]
            decay = math.exp(-math.exp(levels[h] - of_decay[h]) * dt[h])
            memory[h] = decay * memory[h] + dt[h] * np.outer(value, b[group])
            y[h] = memory[h] @ c[group] + p["D"][h] * value
        gated = (y.ravel() * silu(gate[t])).reshape(groups, -1)
        normed = gated / np.sqrt((gated**2).mean(1, keepdims=True) + 1e-5)
        outputs.append(p["out_proj.weight"] @ (p["norm.weight"] * normed.ravel()))
    return np.array(outputs)


@pytest.mark.parametrize("options", [{}, *MAMBA2_OPTIONS])
@pytest.mark.parametrize("training", [True, False])
def test_a_mamba2_mixer_is_the_loop(options: Any, training: bool) -> None:
    """exp(A dt t**-alpha) or dt itself by the position; in float32, over three chunks of 8.

    A product of sums over 21 tokens in float32: 2**10 units of rounding of the largest output.
    Without the scaling, or with the positions of the chunk, the outputs differ by percents.
    """
    model: Any = mamba2({**MAMBA2, **options})
    model.train(training)
    mixer = model.backbone.layers[0].mixer
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, values in mixer.named_parameters():
            noise = torch.randn(values.shape, generator=generator)
            if name in ("A_log", "ordered.theta"):
                noise = 0.5 * noise
            elif name in ("dt_bias", "ordered.delta"):
                noise = noise - 1.0
            elif values.ndim > 1:
                noise = noise / math.sqrt(values[0].numel())
            values.copy_(noise)
        inputs = torch.randn(1, 21, 16, generator=generator)
        found = mixer(inputs)[0].double().numpy()
    length = options.get("scaling_length")
    expected = mamba2_loop(mixer, inputs[0].double().numpy(), length, shares_of(options))
    size = np.abs(expected).max()
    assert np.abs(found - expected).max() < 2**10 * SINGLE * size
    if "scaling_length" in options:
        for wrong in {(0.0, 0.0), *SHARES.values()} - {shares_of(options)}:
            other = mamba2_loop(mixer, inputs[0].double().numpy(), length, wrong)
            assert np.abs(other - expected).max() > 0.01 * size


def test_what_a_mamba2_cannot_be() -> None:
    for name, meant in {"heads": "num_heads", "scaling_lenght": "scaling_length"}.items():
        message = f"options of Mamba2Config, got '{name}'; did you mean '{meant}'"
        with pytest.raises(ValueError, match=message):
            mamba2({**MAMBA2, name: 3})
    with pytest.raises(ValueError, match="parametrisation must be one of free, ordered, got 'x'"):
        mamba2({**MAMBA2, "parametrisation": "x"})
    with pytest.raises(ValueError, match="scaling_length must be more than one step of 1 bytes"):
        mamba2({**MAMBA2, "scaling_length": 1})
    for length in (math.inf, 1e30):
        with pytest.raises(ValueError, match="scaling_length must be at most 16777216 bytes, got"):
            mamba2({**MAMBA2, "scaling_length": length})
    with pytest.raises(ValueError, match="must be 'free' for heads of one A"):
        power_law_(mamba2({**MAMBA2, "parametrisation": "ordered"}))
    disordered: Any = mamba2(MAMBA2)
    with torch.no_grad():
        disordered.backbone.layers[0].mixer.A_log.zero_()
    with pytest.raises(ValueError, match="ordered decays must rise"):
        shape_decays_(disordered, "ordered")
    with pytest.raises(ValueError, match="num_heads must be 2 or more with scaling_length"):
        mamba2({**ONE_HEAD, "scaling_length": 64})
    with pytest.raises(ValueError, match="num_heads must be 2 or more for ordered decays, got 1"):
        mamba2({**ONE_HEAD, "parametrisation": "ordered"})
    with pytest.raises(ValueError, match="scaling_of must be one of decay, time_step, both"):
        mamba2({**MAMBA2, "scaling_length": 64, "scaling_of": "dt"})
    with pytest.raises(ValueError, match="scaling_of must be left out without scaling_length"):
        mamba2({**MAMBA2, "scaling_of": "time_step"})


def test_scaling_of_decays_is_what_scaling_does_unless_told() -> None:
    inputs = some_bytes(1, 12)
    outputs = []
    for options in (OPTIONS[1], {**OPTIONS[1], "scaling_of": "decay"}, STEPS, HALVES):
        with torch.no_grad():
            outputs.append(of_kind("mamba2", **options)(inputs).logits)
    left_out, told, *others = outputs
    assert torch.equal(left_out, told)
    for other in others:
        assert not torch.equal(left_out, other)


@pytest.mark.parametrize("options", [STEPS, HALVES])
@pytest.mark.parametrize("start", [power_law_, log_spaced_, unit_a_])
def test_heads_of_one_a_take_scaling_of_time_steps(start: Any, options: Any) -> None:
    model: Any = of_kind("mamba2", **options)
    start(model)
    assert model.backbone.layers[0].mixer.A_log.count_nonzero() == 0
    with torch.no_grad():
        assert model(some_bytes(1, 60)).logits.isfinite().all()


@pytest.mark.parametrize("options", [STEPS, HALVES])
def test_steps_that_a_limit_would_stop_are_not_scaled(options: Any) -> None:
    with pytest.raises(ValueError, match=r"time_step_limit must begin at 0 .* got 0\.001"):
        mamba2({**MAMBA2, **options, "time_step_limit": (0.001, 1.0)})
    mamba2({**MAMBA2, **OPTIONS[1], "time_step_limit": (0.001, 1.0)})


@pytest.mark.parametrize("options", [STEPS, HALVES, {**STEPS, "parametrisation": "ordered"}])
def test_gradients_reach_all_that_scaled_steps_follow_from(options: Any) -> None:
    """Those of A_log, theta, delta and dt_bias, as finite differences in float64 have them."""
    model: Any = with_unequal_steps(mamba2({**MAMBA2, **options})).double()
    mixer = model.backbone.layers[0].mixer
    mixer.log_t = torch.tensor([[0.0, 1.0, 4.0]], dtype=torch.float64)
    ends = ("A_log", "dt_bias", "ordered.theta", "ordered.delta")
    named = {name: one for name, one in mixer.named_parameters() if name in ends}
    values = [one.detach().clone().requires_grad_() for one in named.values()]

    class Rates(nn.Module):
        """Of a head at a token without an input."""

        def __init__(self) -> None:
            super().__init__()
            self.mixer = mixer

        def forward(self) -> Tensor:
            return mixer.A_log.exp() * nn.functional.softplus(mixer.dt_bias)

    def rates(*given: Tensor) -> Any:
        named_values = zip(named, given, strict=True)
        return functional_call(Rates(), {f"mixer.{name}": one for name, one in named_values}, ())

    assert torch.autograd.gradcheck(rates, values, atol=1e-6, rtol=1e-4)


def test_a_model_that_an_earlier_version_pickled_has_scaled_decays() -> None:
    model: Any = of_kind("mamba2", **OPTIONS[1])
    inputs = some_bytes(1, 12)
    with torch.no_grad():
        expected = model(inputs).logits
        for layer in model.backbone.layers:
            del layer.mixer._buffers["step_log_length"]
        assert torch.equal(model(inputs).logits, expected)


def test_rates_that_are_the_same_to_rounding_have_no_order() -> None:
    model: Any = mamba2(MAMBA2)
    with torch.no_grad():
        for layer in model.backbone.layers:
            steps = torch.tensor([0.01, 0.02, 0.03, 0.07])
            layer.mixer.dt_bias.copy_(steps.expm1().log())
            layer.mixer.A_log.copy_((0.05 / steps).log())
    for asked in (STEPS, HALVES):
        refused(model, asked, r"A_log \+ ln softplus\(dt_bias\) must differ")
    shape_decays_(model, **OPTIONS[1])


def test_steps_of_heads_of_one_a_are_scaled_by_their_rates() -> None:
    """log_spaced_ spaces rates evenly, so that alpha falls evenly from 1 to 0, and a slow head
    whose rate is lambda at the first byte has lambda / 40 at byte 40.
    """
    model: Any = mamba2({**MAMBA2, **STEPS})
    log_spaced_(model, shortest=1.0, longest=64.0)
    mixer = model.backbone.layers[0].mixer
    assert mixer.A_log.count_nonzero() == 0
    mixer.log_t = torch.tensor([[0.0, math.log(40.0)]])
    steps = nn.functional.softplus(mixer.dt_bias.double())[0].detach()
    mixer.log_t = None
    expected = math.log(2) / np.array([1.0, 4.0, 16.0, 64.0])
    assert np.sort(steps[0].numpy())[::-1] == pytest.approx(expected, rel=1e-5)
    # softplus(x - ln 40) is softplus(x) / 40 to first order in the step, which is 0.011 here.
    slowest = float(steps[1].min())
    assert slowest == pytest.approx(math.log(2) / 64 / 40, rel=0.02)


@pytest.mark.parametrize("bias", [-100.0, -40.0, -15.5, -14.5, -3.0, 5.0])
def test_logarithms_of_rates_are_those_of_float64(bias: float) -> None:
    """Also where the time step, softplus of the bias, has underflowed in float32."""
    a_log = torch.tensor([0.5])
    dt_bias = torch.tensor([bias], requires_grad=True)
    found = log_rates(a_log, dt_bias)
    expected = 0.5 + math.log(math.log1p(math.exp(bias)))
    assert found.item() == pytest.approx(expected, rel=4 * SINGLE)
    (slope,) = torch.autograd.grad(found.sum(), dt_bias)
    step = math.log1p(math.exp(bias))
    sigmoid = 1 / (1 + math.exp(-bias))
    assert float(slope) == pytest.approx(sigmoid / step, rel=1e-5)


def test_a_mamba2_that_cannot_be_shaped_stays_as_it_is() -> None:
    """One that is shaped already, one with a layer in another order, and what is no Mamba-2."""
    for options in MAMBA2_OPTIONS:
        for asked in MAMBA2_OPTIONS:
            shaped = of_kind("mamba2", **options)
            refused(shaped, asked, "model must have decays that are neither ordered nor scaled yet")
    last_disordered: Any = of_kind("mamba2")
    with torch.no_grad():
        last_disordered.backbone.layers[1].mixer.A_log[2] = 9.0
    refused(last_disordered, {"parametrisation": "ordered"}, "must rise from channel to channel")
    alike: Any = of_kind("mamba2")
    with torch.no_grad():
        alike.backbone.layers[1].mixer.A_log.zero_()
    for asked in OPTIONS[1:]:
        refused(alike, asked, "A_log must differ from channel to channel .*, got 0 in all")
    with torch.no_grad():
        alike.backbone.layers[1].mixer.dt_bias.zero_()
    for asked in (STEPS, HALVES):
        refused(
            alike, asked, r"A_log \+ ln softplus\(dt_bias\) must differ from channel to channel"
        )
    wide: Any = of_kind("mamba2")
    wide.backbone.layers[1].mixer.A_log = nn.Parameter(torch.zeros(4, 2))
    refused(wide, OPTIONS[0], r"A_log must be a parameter, one number for each head, got shape \(4")
    for asked in ({}, *MAMBA2_OPTIONS):
        refused(nn.Linear(2, 2), asked, "model must have layers with A_log and dt_bias, .* Linear")


def refused(model: nn.Module, options: Any, message: str) -> None:
    before = copy.deepcopy(model.state_dict())
    classes = [type(one) for one in model.modules()]
    with pytest.raises(ValueError, match=message):
        shape_decays_(model, **options)
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(one, before[name]) for name, one in after.items())
    assert [type(one) for one in model.modules()] == classes


@pytest.mark.parametrize("start", [power_law_, log_spaced_, unit_a_])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (OPTIONS[0], "parametrisation must be 'free' for heads of one A, .* use init spectrum_"),
        (OPTIONS[1], "scaling_length must be left out for heads of one A, .* got 40; or use init"),
    ],
)
def test_heads_of_one_a_have_no_order(start: Any, options: Any, message: str) -> None:
    model = of_kind("mamba2", **options)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message):
        start(model)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"longest": 1e20}, r"longest must be more than 1 byte and at most 1.68e\+07, which a flo"),
        ({"longest": math.inf}, r"longest must be more than 1 byte and at most .*, got inf"),
        ({"longest": math.nan}, r"longest must be more than 1 byte and at most .*, got nan"),
        ({"longest": 1}, r"longest must be more than 1 byte and at most .*, got 1"),
        ({"longest": "64"}, "longest must be a number such as 1.15, got '64'"),
        ({"longest": [1]}, r"longest must be a number such as 1.15, got \[1\]"),
        ({"longest": None}, "longest must be a number such as .*, got None"),
        ({"step": 1e30}, r"step must be 0.0001 to 1, got 1e\+30"),
        ({"step": math.inf}, "step must be 0.0001 to 1, got inf"),
        ({"step": 0}, "step must be 0.0001 to 1, got 0"),
        ({"step": "0.1"}, "step must be a number such as 1.15, got '0.1'"),
        ({"freeze": "no"}, "freeze must be true or false, got 'no'"),
    ],
)
@pytest.mark.parametrize("order", [{}, OPTIONS[0]], ids=["free", "ordered"])
def test_spectra_that_no_mamba2_has(options: Any, message: str, order: Any) -> None:
    model = of_kind("mamba2", **order)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message):
        spectrum_(model, **options)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


@pytest.mark.parametrize("start", [spectrum_, log_spaced_, power_law_])
def test_a_single_head_has_no_range_of_decays(start: Any) -> None:
    model = mamba2(ONE_HEAD)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="num_heads must be at least 2, got 1, for"):
        start(model)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


@pytest.mark.parametrize(
    ("start", "options", "limit", "message"),
    [
        (spectrum_, {}, (0.1, math.inf), "time_step_limit of the model, 0.1 to inf, .* got 0.05$"),
        (spectrum_, {"step": 0.5}, (0.0, 0.1), "time_step_limit of .*, 0 to 0.1, .* got 0.5$"),
        (log_spaced_, {}, (0.0, 0.1), "time_step_limit must hold .* 0.000347 to 0.693 here, got 0"),
        (log_spaced_, {}, (0.01, 1.0), "time_step_limit must hold .* here, got 0.01 to 1"),
        (power_law_, {}, (0.01, 1.0), "time_step_limit must hold .* here, got 0.01 to 1"),
        (unit_a_, {}, (0.05, 0.06), "time_step_limit must hold .* here, got 0.05 to 0.06"),
    ],
)
def test_steps_that_the_model_would_clip_are_refused(
    start: Any, options: Any, limit: tuple[float, float], message: str
) -> None:
    """The heads would decay otherwise than was asked; nothing is changed."""
    model = mamba2({**MAMBA2, "time_step_limit": limit})
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message):
        start(model, **options)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


def test_heads_of_one_a_keep_decays_whose_steps_were_clipped() -> None:
    model = mamba2({**MAMBA2, "time_step_limit": (0.5, 16.0)})
    mixers = [one for one in model.modules() if hasattr(one, "dt_bias")]
    before = [one.A_log.exp() * 0.5 for one in mixers]  # every step is clipped up to 0.5
    unit_a_(model)
    for mixer, rates in zip(mixers, before, strict=True):
        steps = torch.nn.functional.softplus(mixer.dt_bias).clamp(*mixer.time_step_limit)
        torch.testing.assert_close(steps * mixer.A_log.exp(), rates, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("start", "options", "message"),
    [
        (power_law_, {"max_lag": math.inf}, "max_lag must be more than one step, got inf"),
        (power_law_, {"beta": [1]}, r"beta must be a number such as 1.15, got \[1\]"),
        (log_spaced_, {"longest": 1e20}, "half-lives of nodes must be between about 0.01 and 1e7"),
        (log_spaced_, {"shortest": "1"}, "shortest must be a number such as 1.15, got '1'"),
    ],
)
def test_nodes_that_no_mamba2_has(start: Any, options: Any, message: str) -> None:
    """Refused before anything is written."""
    model = of_kind("mamba2")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message):
        start(model, **options)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (SSMConfig, {"parametrisation": "sorted"}, "parametrisation must be one of free, ordered"),
        (RWKV7Config, {"parametrisation": "sorted"}, "parametrisation must be one of free, ord"),
        (SSMConfig, {"scaling_length": 4, "patch": 4}, "more than one step of 4 bytes, got 4"),
        (RWKV7Config, {"scaling_length": 1}, "more than one step of 1 bytes, got 1"),
        (SSMConfig, {"scaling_length": "T"}, "must be a number of bytes, such as 512, got 'T'"),
        (RWKV7Config, {"scaling_length": True}, "must be a number of bytes, such as 512, got True"),
        (SSMConfig, {"scaling_length": math.inf}, "must be at most 16777216 bytes, got inf"),
        (RWKV7Config, {"scaling_length": 1e30}, r"must be at most 16777216 bytes, got 1e\+30"),
        (SSMConfig, {"dim": 1, "scaling_length": 64}, "dim must be 2 or more with scaling_length"),
        (SSMConfig, {"dim": 1, "parametrisation": "ordered"}, "dim must be 2 or more for ordered"),
    ],
)
def test_configurations_that_are_none(config: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**options)


@pytest.mark.parametrize("start", [spectrum_, log_spaced_])
def test_a_start_of_mamba2_knows_no_default_device_or_type(start: Any) -> None:
    models = [mamba2(MAMBA2) for _ in range(2)]
    start(models[0])
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("meta")
    try:
        start(models[1])
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    decays = [decay_parameters(model) for model in models]
    assert decays[0].keys() == decays[1].keys()
    for name, values in decays[0].items():
        assert torch.equal(decays[1][name], values)
