"""One pass over windows: the same bits per byte, saturation by definition, residual stream, both
starts as known.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax

from plkernel.models.init import initialise_
from plkernel.models.layers import Structure
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.ssm import SSM, SSMConfig
from plkernel.training.evaluate import (
    _root_mean,
    as_logits,
    bits_per_byte,
    diagnose,
    influence,
    patch_of,
    predictor,
    saturation,
    token_losses,
    truncation,
)

CPU = torch.device("cpu")
NAIVE = Structure(norm="rms", tied=True)


def test_one_pass_gives_the_same_bits_per_byte_and_leaves_no_hook() -> None:
    model = initialise_(
        RWKV(RWKVConfig(6, 16, 2, 8, dropout=0.5, structure=NAIVE, backend="reference")),
        "rwkv_naive",
        0,
    )
    windows = torch.randint(0, 256, (5, 20), generator=torch.Generator().manual_seed(0))
    found = diagnose(model.train(), windows, 2, CPU)
    assert found.bits_per_byte == bits_per_byte(model, windows, 2, CPU)
    assert found.saturation["loss"] == pytest.approx(found.bits_per_byte * math.log(2), rel=1e-6)
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("scale", [0.01, 12.0, 3000.0])
def test_saturation_is_its_definition(scale: float) -> None:
    """As scipy has softmax."""
    rng = np.random.default_rng(0)
    logits, targets = (
        (scale * rng.standard_normal((600, 256))).astype(np.float32),
        rng.integers(0, 256, 600),
    )
    z = logits.astype(np.float64)
    p, logs = softmax(z, axis=1), z - logsumexp(z, axis=1, keepdims=True)
    expected = {
        "positions": 600,
        "loss": -logs[np.arange(600), targets].mean(),
        "logit_min": logits.min(),
        "logit_max": logits.max(),
        "largest_probability": p.max(axis=1).mean(),
        "peak_probability": p.max(),
        "entropy": -(p * logs).sum(axis=1).mean(),
        "saturated_share": (p.max(axis=1) > 0.99).mean(),
    }
    assert saturation(torch.from_numpy(logits), torch.from_numpy(targets)) == pytest.approx(
        expected, rel=2e-14, abs=1e-14
    )


def test_impossible_symbols_and_diverged_models() -> None:
    logits = torch.full((3, 256), -math.inf)
    logits[:, :2] = 0
    half = saturation(logits, torch.tensor([0, 1, 1]))
    assert (half["entropy"], half["loss"]) == pytest.approx((math.log(2), math.log(2)), rel=1e-15)
    assert saturation(logits, torch.tensor([0, 1, 9]))["loss"] == math.inf
    for bad in (math.nan, math.inf):
        logits = torch.zeros(3, 256)
        logits[1, 4] = bad
        diverged = saturation(logits, torch.tensor([0, 1, 4]))
        assert math.isnan(diverged["loss"])
        assert math.isnan(diverged["entropy"])


def test_amplification_is_measured_where_it_says() -> None:
    """From the norm of the embedding to the output of every block, over all windows, whatever the
    batch.
    """
    model = initialise_(
        RWKV(RWKVConfig(5, 16, 3, 8, structure=NAIVE, backend="reference")), "rwkv_naive", 0
    )
    windows = torch.randint(0, 256, (5, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        x = model.emb(windows[:, :-1])
        streams = [model.blocks[0].ln0(x)]
        for block in model.blocks:
            (x,) = block(x)
            streams.append(x)
    expected = [stream.double().square().mean().sqrt().item() for stream in streams]
    for batch in (2, 5):
        growth = diagnose(model, windows, batch, CPU).amplification
        assert growth is not None
        assert growth == pytest.approx(np.divide(expected[1:], expected[:-1]), rel=1e-6)


def test_the_official_start_predicts_openly_and_the_naive_one_copies_the_last_byte() -> None:
    """Zero output matrices: amplification 1, entropy near ln 256. A tied head: a logit of about 144
    for that byte.
    """
    windows = torch.randint(0, 256, (4, 65), generator=torch.Generator().manual_seed(0))
    official = initialise_(RWKV(RWKVConfig(6, 144, 8, 48, backend="reference")), "rwkv_blinkdl", 0)
    naive = initialise_(
        RWKV(RWKVConfig(6, 144, 8, 48, structure=NAIVE, backend="reference")), "rwkv_naive", 0
    )
    open_, closed = (diagnose(model, windows, 4, CPU) for model in (official, naive))
    assert open_.amplification == (1.0,) * 8
    assert math.log(256) - 0.13 < open_.saturation["entropy"] < math.log(256)
    with torch.no_grad():
        assert torch.equal(naive(windows).argmax(-1), windows)
    assert (open_.saturation["saturated_share"], closed.saturation["saturated_share"]) == (0, 1)
    assert closed.saturation["loss"] > 15 * math.log(256)
    assert closed.amplification is not None
    assert 1.005 < math.prod(closed.amplification) ** (1 / len(closed.amplification)) < 1.015


def test_losses_by_window_and_position_are_those_of_the_mean() -> None:
    model = initialise_(RWKV(RWKVConfig(6, 16, 2, 8, backend="reference")), "rwkv_blinkdl", 0)
    windows = torch.randint(0, 256, (5, 21), generator=torch.Generator().manual_seed(0))
    found = diagnose(model, windows, 2, CPU)
    assert found.losses.shape == (5, 20)
    row = found.to_row()
    assert np.mean(row["window_bpb"]) == pytest.approx(found.bits_per_byte, rel=1e-6)
    counts = np.diff([0, *row["positions"]["given"]])
    assert row["positions"]["bpb"] @ counts / 20 == pytest.approx(found.bits_per_byte, rel=1e-6)


@pytest.mark.parametrize("patch", [1, 2])
def test_truncation_shows_the_last_bytes_alone(patch: int) -> None:
    """Every length against one window at a time, and the whole context against the last loss of a
    whole pass.
    """
    model = SSM(SSMConfig(dim=16, layers=2, patch=patch, mode="causal"))
    initialise_(model, "transformers_default", 0)
    windows = torch.randint(0, 256, (6, 13), generator=torch.Generator().manual_seed(0))
    predict = predictor(model, CPU)
    found = truncation(predict, windows, 4, step=patch_of(model))
    assert found.given == ((1, 2, 4, 8, 12) if patch == 1 else (2, 4, 8, 12))
    for length, bpb in zip(found.given, found.bpb, strict=True):
        alone = []
        for window in windows:
            with torch.no_grad():
                logits = model(window[None, 12 - length : 12])[0, -1]
            alone.append(-torch.log_softmax(logits, 0)[window[12]].item() / math.log(2))
        assert bpb == pytest.approx(np.mean(alone), rel=1e-5)
    whole = diagnose(model, windows, 4, CPU).losses
    assert found.bpb[-1] == pytest.approx(whole[:, -1].mean(), rel=1e-5)
    np.testing.assert_array_equal(token_losses(predict, windows, 4), whole)
    assert found.cost[-1] == 0


def test_influence_spreads_over_draws_as_its_error_says() -> None:
    """Where it depends on the position in the window, as it would not if all windows had the same
    places.
    """
    length, lags, seeds, count, symbols = 64, [1, 2, 4, 8, 16, 32, 48, 64], 80, 16, 4
    time = torch.arange(length)
    kernel = torch.tril(((time[:, None] - time).clamp(min=0) + 1.0) ** -0.7)
    values = torch.randn(symbols, symbols, generator=torch.Generator().manual_seed(0))

    def predict(tokens: torch.Tensor) -> torch.Tensor:
        return (0.2 + torch.sin(1.3 * time)[:, None] ** 2) * torch.tanh(kernel @ values[tokens])

    text = torch.randint(
        symbols, (seeds, count, length + 1), generator=torch.Generator().manual_seed(1)
    )
    found = [
        influence(predict, windows, lags, batch=count, seed=seed)
        for seed, windows in enumerate(text)
    ]
    ratio = np.std([one.bits for one in found], axis=0, ddof=1) / np.mean(
        [one.standard_error for one in found], axis=0
    )
    assert (ratio > 0.8).all(), ratio
    assert (ratio < 1.2).all(), ratio


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("row", [0, 300, 599])
def test_saturation_of_what_is_not_a_number_is_none(number: float, row: int) -> None:
    """Wherever it is in the batches, whose figures are merged."""
    logits = torch.randn(600, 16, generator=torch.Generator().manual_seed(0))
    logits[row, 3] = number
    found = saturation(logits, torch.zeros(600, dtype=torch.long))
    for name in ("loss", "largest_probability", "peak_probability", "entropy", "saturated_share"):
        assert math.isnan(found[name]), name
    if math.isnan(number):
        assert math.isnan(found["logit_min"])
        assert math.isnan(found["logit_max"])


def test_a_model_of_ours_with_a_parameter_that_is_not_a_number_is_refused() -> None:
    model = initialise_(SSM(SSMConfig(dim=16, layers=1)), "transformers_default", 0)
    windows = torch.randint(0, 256, (3, 17), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        next(model.parameters())[int(windows[2, 4])] = math.nan  # the embedding of a byte
    with pytest.raises(ValueError, match="not numbers: NaN at position"):
        influence(predictor(model, CPU), windows)


def test_what_sees_ahead_has_no_truncation_curve() -> None:
    model = initialise_(
        SSM(SSMConfig(dim=16, layers=1, patch=2, mode="published")), "transformers_default", 0
    )
    with pytest.raises(ValueError, match="model must be causal"):
        predictor(model, CPU)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_of_half_types_are_taken_as_float32(dtype: torch.dtype) -> None:
    table = torch.randn(256, 256, generator=torch.Generator().manual_seed(0)).to(dtype)
    windows = torch.randint(0, 256, (3, 17), generator=torch.Generator().manual_seed(1))
    halves, whole = (
        token_losses(lambda tokens, x=x: x[tokens], windows, 2) for x in (table, table.float())
    )
    np.testing.assert_array_equal(halves, whole)


def test_logits_are_taken_in_every_form_that_models_return() -> None:
    """A tensor or an array, as it is, as .logits, under "logits", or the first of several."""
    tokens = torch.zeros(2, 3, dtype=torch.long)
    logits = torch.randn(2, 3, 256)
    forms = [
        logits,
        logits.numpy(),
        {"loss": 1.0, "logits": logits},
        SimpleNamespace(logits=logits),
        (logits, None),
        [logits],
        {"logits": (logits,)},
    ]
    for form in forms:
        assert torch.equal(as_logits(form, tokens, "the model"), logits)
    for wrong in ({"loss": 1.0}, None, (), "logits"):
        with pytest.raises(ValueError, match=r"^the model must return logits, .* got "):
            as_logits(wrong, tokens, "the model")


def test_a_root_mean_over_batches_is_that_over_all_numbers() -> None:
    values = torch.arange(1.0, 8.0)
    batches = [(part.square().mean(), part.numel()) for part in values.split([1, 4, 2])]
    assert _root_mean(batches) == pytest.approx(math.sqrt(20.0), rel=1e-6)  # 140 / 7
