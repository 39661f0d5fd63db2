"""Initialisations of gated delta nets against the layers of the software that they are of."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp, kstest
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import register_parametrization

from plkernel.models.gated_delta import GatedDelta, GatedDeltaConfig
from plkernel.models.init.gated_delta import (
    flash_linear_attention_,
    flash_linear_attention_bounded_,
    log_spaced_,
    qwen3_next_,
)
from plkernel.training.foreign import Foreign

pytestmark = pytest.mark.filterwarnings("ignore")  # of other people's code
HEADS = 2000
BOUND = -5.0
NO_FLA = "flash-linear-attention is not installed"
LEAST_P = 1e-3
"""Of a test of Kolmogorov and Smirnov: seeds are fixed, and another law has p below 1e-10 here."""


def net(lower_bound: float | None = None, heads: int = HEADS) -> GatedDelta:
    config = GatedDeltaConfig(dim=4, layers=1, heads=heads, head_size=1, lower_bound=lower_bound)
    return GatedDelta(config)


def initialised(start: Callable[..., None], lower_bound: float | None = None) -> Any:
    """The layer of a net of HEADS heads."""
    model = net(lower_bound)
    start(model, torch.Generator().manual_seed(3))
    return model.blocks[0].mixer


def sample(values: Tensor) -> np.ndarray:
    return values.detach().double().numpy()


@pytest.fixture
def qwen3_next() -> Any:
    """A layer as the model of transformers initialises it."""
    from transformers import Qwen3NextConfig, Qwen3NextModel

    torch.manual_seed(0)
    config = Qwen3NextConfig(
        vocab_size=8,
        hidden_size=4,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=4,
        layer_types=["linear_attention"],
        mlp_only_layers=[0],
        linear_num_value_heads=HEADS,
        linear_num_key_heads=1,
        linear_key_head_dim=1,
        linear_value_head_dim=1,
    )
    return Qwen3NextModel(config).layers[0].linear_attn


def test_that_of_qwen3_next(qwen3_next: Any) -> None:
    layer = initialised(qwen3_next_)
    assert torch.equal(layer.dt_bias, qwen3_next.dt_bias)
    assert ks_2samp(sample(layer.A_log), sample(qwen3_next.A_log)).pvalue > LEAST_P
    speeds = sample(layer.A_log.exp())
    assert kstest(speeds, "uniform", (0.01, 15.99)).pvalue > LEAST_P
    rates = math.log(2) / Foreign("kind", as_model(layer)).half_lives()[0].numpy()
    np.testing.assert_allclose(rates, 1.3132616875 * speeds, rtol=1e-6)  # ln(1 + e) A


def test_that_of_flash_linear_attention() -> None:
    layers = pytest.importorskip("fla.layers", reason=NO_FLA)
    torch.manual_seed(0)
    theirs = layers.GatedDeltaNet(hidden_size=4, head_dim=1, num_heads=HEADS, expand_v=1)
    layer = initialised(flash_linear_attention_)
    for name in ("A_log", "dt_bias"):
        own = sample(getattr(layer, name))
        assert np.isfinite(own).all()
        assert ks_2samp(own, sample(getattr(theirs, name))).pvalue > LEAST_P
    steps = sample(F.softplus(layer.dt_bias).log())
    assert kstest(steps, "uniform", (math.log(1e-3), math.log(1e2))).pvalue > LEAST_P
    assert kstest(sample(layer.A_log.exp()), "uniform", (0, 16)).pvalue > LEAST_P
    apart = np.corrcoef(steps, sample(layer.A_log.exp()))[0, 1]
    assert abs(apart) < 4 / math.sqrt(HEADS), "A and the time step are drawn apart"


def test_that_of_flash_linear_attention_with_a_lower_bound() -> None:
    layers = pytest.importorskip("fla.layers", reason=NO_FLA)
    torch.manual_seed(0)
    theirs = layers.KimiDeltaAttention(
        hidden_size=4, head_dim=1, num_heads=HEADS, safe_gate=True, lower_bound=BOUND
    )
    layer = initialised(flash_linear_attention_bounded_, BOUND)
    assert torch.equal(layer.A_log, theirs.A_log)
    assert ks_2samp(sample(layer.dt_bias), sample(theirs.dt_bias)).pvalue > LEAST_P
    rates = math.log(2) / Foreign("kind", as_model(layer)).half_lives()[0].numpy()
    steps = sample(F.softplus(layer.dt_bias.double()))
    np.testing.assert_allclose(rates, -BOUND * -np.expm1(-steps), rtol=1e-6)


def as_model(layer: nn.Module) -> nn.Module:
    """A module that holds one layer, as checkpoints do."""
    holder = nn.Module()
    holder.mixer = layer
    return holder


@pytest.mark.parametrize("bound", [None, BOUND], ids=["free", "bounded"])
def test_log_spaced_half_lives_are_read_back(bound: float | None) -> None:
    model = net(bound, heads=9)
    log_spaced_(model, shortest=1.2, longest=16384.0)
    [found] = Foreign("kind", model).half_lives()
    np.testing.assert_allclose(found.numpy(), np.geomspace(1.2, 16384.0, 9), rtol=1e-5)


@pytest.mark.parametrize("bound", [None, BOUND], ids=["free", "bounded"])
def test_a_single_head_has_no_two_half_lives(bound: float | None) -> None:
    model = net(bound, heads=1)
    before = {name: values.clone() for name, values in model.state_dict().items()}
    with pytest.raises(ValueError, match="heads must be at least 2, got 1, for log-spaced"):
        log_spaced_(model)
    for name, values in model.state_dict().items():
        torch.testing.assert_close(values, before[name], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("start", [flash_linear_attention_, qwen3_next_])
def test_draws_are_those_of_the_generator(start: Callable[..., None]) -> None:
    drawn = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        drawn.append(initialised(start))
    assert torch.equal(drawn[0].A_log, drawn[1].A_log)
    assert torch.equal(drawn[0].dt_bias, drawn[1].dt_bias)
    again = net()
    start(again, torch.Generator().manual_seed(4))
    assert not torch.equal(again.blocks[0].mixer.A_log, drawn[0].A_log)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("start", "bound", "message"),
    [
        (qwen3_next_, BOUND, "lower_bound must be None for this initialisation, got -5"),
        (flash_linear_attention_, BOUND, "lower_bound must be None"),
        (flash_linear_attention_bounded_, None, "lower_bound must be a number below 0 .*got None"),
    ],
)
def test_an_initialisation_of_the_other_gate_is_refused(
    start: Callable[..., None], bound: float | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        start(net(bound, heads=2))


def test_other_models_are_refused() -> None:
    with pytest.raises(ValueError, match=r"model must have layers of .*gated_delta, got Linear"):
        log_spaced_(nn.Linear(2, 2))


@pytest.mark.parametrize("start", [qwen3_next_, flash_linear_attention_, log_spaced_])
def test_no_default_of_the_caller_changes_a_start(start: Callable[..., None]) -> None:
    expected = initialised(start)
    model = net()
    generator = torch.Generator().manual_seed(3)
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("meta")
    try:
        start(model, generator)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    found: Any = model.blocks[0].mixer
    for name in ("A_log", "dt_bias"):
        assert torch.equal(getattr(found, name), getattr(expected, name))


def test_a_parametrized_layer_is_refused() -> None:
    """What is written into the value of a parametrization is lost."""
    model = net(heads=4)
    layer: Any = model.blocks[0].mixer
    register_parametrization(layer, "dt_bias", nn.Identity())
    with pytest.raises(ValueError, match="got dt_bias under a parametrization, which computes it"):
        log_spaced_(model)


def test_the_bound_is_that_of_the_configuration_after_reset_parameters() -> None:
    with torch.device("meta"):
        model = net(BOUND, heads=4)
    model.to_empty(device="cpu")
    layer: Any = model.blocks[0].mixer
    layer.lower_bound.fill_(7.0)  # memory may hold anything
    layer.reset_parameters()
    assert layer.lower_bound.tolist() == [BOUND]
