"""One pass over windows: the same bits per byte, saturation by definition, residual stream, both
starts as known.
"""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from plkernel.config.schema import TrainSpec
from plkernel.models.init import initialise_
from plkernel.models.layers import Structure
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.ssm import SSM, SSMConfig
from plkernel.training import evaluate
from plkernel.training.evaluate import (
    Diagnosis,
    Hits,
    _root_mean,
    as_logits,
    as_windows,
    beyond,
    bits_per_byte,
    check_repeats,
    diagnose,
    divergence,
    influence,
    kept_logits,
    lags_within,
    largest_logit,
    logits_of,
    memory,
    merged,
    moved_by,
    next_byte_loss,
    patch_of,
    predictor,
    reach,
    rounding_of,
    saturation,
    token_losses,
    truncation,
    worth_of_context,
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


class Copies(TorchDispatchMode):
    """Counts the copies of tensors of one shape."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.shape = shape
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_copy = func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.clone)
        self.count += is_copy and args[0].shape == self.shape
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_that_are_kept_are_copied_once(
    dtype: torch.dtype,
) -> None:
    """The model writes all its logits to one buffer; of half types a float32 is a copy already."""
    buffer = torch.zeros(1, 2, 3, dtype=dtype)

    def predict(tokens: Tensor) -> Tensor:
        return buffer.fill_(float(tokens[0, 0]))

    first = torch.tensor([[1, 1]])
    second = torch.tensor([[2, 2]])
    kept = kept_logits(predict, first)
    kept_logits(predict, second)
    assert kept.dtype == torch.float32
    assert kept.unique().tolist() == [1.0]
    with Copies(buffer.shape) as copies:
        kept_logits(predict, first)
    assert copies.count == 1


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


def uniform(tokens: Tensor) -> Tensor:
    return torch.zeros(*tokens.shape, 4)


@pytest.mark.parametrize(
    ("lags", "known"),
    [
        (None, [1, 2, 4, 5]),
        ([], [1, 2, 4, 5]),
        ([1, 5], [1, 5]),
        ((2,), [2]),
        (np.array([1, 3]), [1, 3]),
        (range(1, 6), [1, 2, 3, 4, 5]),
        (torch.tensor([1, 2]), [1, 2]),
    ],
)
def test_lags_reach_from_one_to_the_context(lags: Any, known: list[int]) -> None:
    assert lags_within(lags, 5) == known


@pytest.mark.parametrize(
    "lags", [[0, 1], [6], [2, 1], [1, 1], [1.0], [True], "12", 3, torch.tensor(3)]
)
def test_lags_beyond_the_context_or_not_ascending_are_refused(lags: Any) -> None:
    with pytest.raises(ValueError, match="lags must"):
        lags_within(lags, 5)


WINDOWS = torch.randint(0, 4, (3, 6), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("windows", "got"),
    [
        (np.zeros((2, 3), int), "got ndarray"),
        (WINDOWS.to("meta"), "got a tensor on the meta device"),
        (WINDOWS[0], r"got torch.int64 of shape \(6,\)"),
        (WINDOWS.float(), r"got torch.float32 of shape \(3, 6\)"),
        (WINDOWS.bool(), r"got torch.bool of shape \(3, 6\)"),
        (WINDOWS.to(torch.complex64), r"got torch.complex64 of shape \(3, 6\)"),
        (WINDOWS[:0], r"got torch.int64 of shape \(0, 6\)"),
        (WINDOWS[:, :1], "got windows of 1, in which nothing can be predicted"),
    ],
)
def test_what_is_no_window_is_refused(windows: Any, got: str) -> None:
    with pytest.raises(ValueError, match=f"windows must be a tensor .* {got}"):
        as_windows(windows)


@pytest.mark.parametrize("token", [-1, -100])
def test_tokens_below_zero_are_refused(token: int) -> None:
    """Of which torch leaves -100 out of a loss without a word."""
    windows = WINDOWS.clone()
    windows[1, 2] = token
    with pytest.raises(ValueError, match=f"windows must hold tokens from 0 on, got {token}"):
        token_losses(uniform, windows, 1)


def test_the_smallest_windows_are_one_prediction() -> None:
    assert as_windows(WINDOWS[:1, :2]).tolist() == WINDOWS[:1, :2].tolist()
    assert token_losses(uniform, WINDOWS[:1, :2], 1).tolist() == [[pytest.approx(2.0)]]
    check_repeats(uniform, WINDOWS, 1)
    with pytest.raises(ValueError, match="batch must be at least 1, got 0"):
        check_repeats(uniform, WINDOWS, 0)


@pytest.mark.parametrize(("noise", "passes"), [(0.99e-4, True), (1.01e-4, False)])
def test_logits_may_move_by_a_ten_thousandth_of_the_largest(noise: float, passes: bool) -> None:
    """Which is 2 here, as infinite ones do not count; the second call differs at one place."""
    calls = []

    def predict(tokens: Tensor) -> Tensor:
        logits = torch.zeros(*tokens.shape, 4, dtype=torch.float64)
        logits[..., 0] = 2.0
        logits[..., 1] = -math.inf
        if calls:
            logits[1, 3, 2] = 2.0 * noise
        calls.append(tokens)
        return logits

    if passes:
        check_repeats(predict, WINDOWS)
        assert len(calls) == 2
        return
    with pytest.raises(ValueError, match=r"the model is random: .* at position 3 of window 1;"):
        check_repeats(predict, WINDOWS)


def test_distances_of_logits_and_the_largest_that_is_finite() -> None:
    before = torch.tensor([1.0, math.inf, -math.inf, 3.0])
    after = torch.tensor([0.5, math.inf, -math.inf, 3.0])
    assert moved_by(before, after).tolist() == [0.5, 0.0, 0.0, 0.0]
    assert moved_by(before, -before).tolist() == [2.0, math.inf, math.inf, 6.0]
    assert largest_logit(torch.tensor([1.0, -3.0, -math.inf])) == 3.0
    assert rounding_of(torch.tensor([-2.0, 1.0])) == pytest.approx(2e-4, rel=1e-12)


def test_logits_on_a_gpu_may_move_by_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any device but a CPU counts as one."""
    monkeypatch.setattr(evaluate, "largest_logit", lambda logits: 2.0)
    assert rounding_of(torch.empty(1)) == 2 * evaluate.ROUNDING
    assert rounding_of(torch.empty(1, device="meta")) == 2 * evaluate.GPU_ROUNDING


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([math.nan, 0.0], "NaN at position 2 of window 7: has its training diverged"),
        ([math.inf, 0.0], "\\+inf at position 2 of window 7; in float16 numbers above"),
        ([-math.inf, -math.inf], "all -inf at position 2 of window 7: has its training"),
    ],
)
def test_logits_that_give_no_probabilities_are_told_with_their_place(
    values: list[float], kind: str
) -> None:
    def predict(tokens: Tensor) -> Tensor:
        logits = torch.zeros(*tokens.shape, 2)
        logits[1, 2] = torch.tensor(values)
        return logits

    tokens = torch.zeros(3, 4, dtype=torch.long)
    with pytest.raises(ValueError, match=f"the logits of the model are not numbers: {kind}"):
        logits_of(predict, tokens, window=6)
    one = torch.tensor([-math.inf, 0.0])
    assert logits_of(lambda tokens: one.expand(3, 4, 2), tokens).shape == (3, 4, 2)


@pytest.mark.parametrize(
    ("logits", "fits"),
    [
        (torch.zeros(1, 2, 4), True),
        (torch.zeros(1, 2, 5), True),
        (torch.zeros(1, 2, 3), False),
        (torch.zeros(1, 3, 4), False),
        (torch.zeros(2, 4), False),
        (torch.zeros(1, 2, 4, dtype=torch.long), False),
        (torch.zeros(1, 2, 4, device="meta"), False),
    ],
)
def test_logits_have_an_entry_for_every_token(logits: Tensor, fits: bool) -> None:
    tokens = torch.tensor([[0, 3]])
    if fits:
        assert as_logits(logits, tokens, "it") is logits
        return
    with pytest.raises(ValueError, match=r"it must return floating logits \(B,T,V\), V above 3,"):
        as_logits(logits, tokens, "it")


def test_figures_of_two_sets_of_positions_are_joined_by_their_numbers() -> None:
    one = {
        "positions": 1,
        "loss": 1.0,
        "logit_min": -2.0,
        "logit_max": 3.0,
        "peak_probability": 0.5,
    }
    two = {
        "positions": 3,
        "loss": 5.0,
        "logit_min": -1.0,
        "logit_max": 4.0,
        "peak_probability": 0.4,
    }
    expected = {
        "positions": 4,
        "loss": 4.0,
        "logit_min": -2.0,
        "logit_max": 4.0,
        "peak_probability": 0.5,
    }
    assert merged([one, two]) == merged([two, one]) == expected
    assert merged([one]) == one
    for broken in ({**one, "logit_max": math.nan}, {**one, "logit_min": math.nan}):
        for pair in ([broken, two], [two, broken]):
            found = merged(pair)
            assert math.isnan(found["logit_max"]) == math.isnan(broken["logit_max"])
            assert math.isnan(found["logit_min"]) == math.isnan(broken["logit_min"])


def test_a_position_is_saturated_above_99_in_100() -> None:
    """Of two symbols, with a difference of logits of ln 99 and a little to either side."""
    for difference, share in ((math.log(99.0) - 1e-9, 0.0), (math.log(99.0) + 1e-9, 1.0)):
        logits = torch.tensor([[difference, 0.0]], dtype=torch.float64)
        assert saturation(logits, torch.zeros(1, dtype=torch.long))["saturated_share"] == share


def test_the_pull_on_the_largest_logits_is_in_the_gradient_alone() -> None:
    """It is l2wrap * z / (B T) at the largest logit z of each position."""
    logits = torch.randn(2, 3, 256, dtype=torch.float32, generator=torch.Generator().manual_seed(0))
    windows = torch.randint(0, 256, (2, 4), generator=torch.Generator().manual_seed(1))
    gradients = []
    losses = []
    for l2wrap in (0.0, 0.5):
        own = logits.clone().requires_grad_()
        loss = next_byte_loss(lambda _, own=own: own, windows, l2wrap)
        loss.backward()
        gradients.append(own.grad)
        losses.append(loss.item())
    assert losses[0] == losses[1]
    peak = logits.max(-1, keepdim=True)
    expected = torch.zeros_like(logits).scatter(2, peak.indices, 0.5 * peak.values / 6)
    assert torch.allclose(gradients[1] - gradients[0], expected, atol=1e-7)


def test_hits_are_counted_over_batches() -> None:
    hits = Hits()
    hits(torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]), torch.tensor([[1, 1]]))
    hits(torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]), torch.tensor([[1, 0]]))
    assert (hits.right, hits.count, hits.accuracy) == (3, 4, 0.75)


@pytest.mark.parametrize(
    ("bits", "entropy", "growth", "finite"),
    [
        (1.0, 1.0, None, True),
        (1.0, 1.0, (1.0, 2.0), True),
        (math.nan, 1.0, None, False),
        (1.0, math.inf, None, False),
        (1.0, 1.0, (1.0, math.nan), False),
    ],
)
def test_a_diagnosis_is_finite_if_all_of_its_figures_are(
    bits: float, entropy: float, growth: Any, finite: bool
) -> None:
    found = Diagnosis(bits, np.ones((1, 2)), {"entropy": entropy}, growth)
    assert found.finite is finite
    row = found.to_row()
    assert ("amplification" in row) is (growth is not None)
    assert ("positions" in row, "val_accuracy" in row) == (True, False)
    answers = Diagnosis(bits, np.ones((1, 2)), {"entropy": entropy}, growth, 0.0).to_row()
    assert ("positions" in answers, answers["val_accuracy"]) == (False, 0.0)


def test_divergence_is_that_of_the_first_from_the_second() -> None:
    p, q = torch.tensor([0.5, 0.5]), torch.tensor([0.25, 0.75])
    expected = 0.5 * math.log2(0.5 / 0.25) + 0.5 * math.log2(0.5 / 0.75)
    assert divergence(p.log(), q.log()).item() == pytest.approx(expected, rel=1e-6)
    never = torch.tensor([1.0, 0.0])
    assert divergence(never.log(), q.log()).item() == pytest.approx(2.0, rel=1e-6)
    assert divergence(q.log(), never.log()).item() == math.inf


def test_four_tokens_of_a_window_are_replaced_at_least() -> None:
    assert influence(uniform, WINDOWS, [1], count=4).bits == (0.0,)
    with pytest.raises(ValueError, match="count must be at least 4 replaced tokens"):
        influence(uniform, WINDOWS, [1], count=3)


def test_memory_of_blocks_has_lags_up_to_the_context() -> None:
    model = initialise_(SSM(SSMConfig(dim=16, layers=2)), "transformers_default", 0)
    half_lives = [values.numpy() for values in model.half_lives()]
    for context, lags in ((31, [1, 2, 4, 8, 16]), (32, [1, 2, 4, 8, 16, 32])):
        found = memory(model, half_lives, context)
        assert found["kernel"]["lags"] == lags
        assert np.shape(found["kernel"]["blocks"]) == (2, len(lags))
        assert np.shape(found["half_life_quantiles"]) == (2, 7)
    assert "half_life_quantiles" not in memory(model, [], 8)


@pytest.mark.parametrize(
    ("asked", "keys"),
    [
        ({}, set()),
        ({"truncation_windows": 3}, {"truncation"}),
        ({"probe_windows": 2}, {"influence"}),
        ({"truncation_windows": 3, "probe_windows": 2}, {"truncation", "influence"}),
    ],
)
def test_the_worth_of_context_is_taken_as_far_as_it_is_asked_for(
    asked: dict[str, int], keys: set[str]
) -> None:
    text = np.random.default_rng(0).integers(0, 4, 200, np.uint8)
    train = TrainSpec(steps=1, context=8, **asked)
    for corpus in ("stdlib", "synthetic:beta=1,symbols=4"):
        found = worth_of_context(uniform, text, train, 2, corpus)
        assert set(found) == keys
        if "truncation" in keys:
            assert found["truncation"]["windows"] == 3
        if "influence" in keys:
            assert found["influence"]["windows"] == 2
            assert ("information" in found["influence"]) == (corpus != "stdlib")


def test_beyond_the_context_are_as_many_bytes_as_in_the_windows_of_the_test() -> None:
    text = np.random.default_rng(0).integers(0, 4, 400, np.uint8)
    calls = []

    def predict(tokens: Tensor) -> Tensor:
        calls.append(tuple(tokens.shape))
        return uniform(tokens)

    train = TrainSpec(steps=1, context=8, beyond=4, test_windows=9)
    found = reach(predict, text, train, 8)
    assert (found["windows"], found["context"]) == (3, 8)
    assert found["positions"]["given"] == [1, 2, 4, 8, 16, 32]
    assert found["reading_on"]["given"] == [16, 32]
    assert max(rows for rows, length in calls if length == 32) == 2


def bigram(tokens: Tensor) -> Tensor:
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(0))[tokens]


def into_one_buffer(predict: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """`predict`, which writes the logits of all calls of one shape to the same memory."""
    buffers: dict[Any, Tensor] = {}

    def written(tokens: Tensor) -> Tensor:
        logits = predict(tokens)
        return buffers.setdefault(logits.shape, torch.empty_like(logits)).copy_(logits)

    return written


def test_a_model_that_returns_one_buffer_at_every_call_is_measured_as_others_are() -> None:
    """A context of 3 in windows of 5 has parts of 5 and of 3 tokens; one of 4, of 4 and of 5."""
    buffered = into_one_buffer(bigram)
    found = influence(buffered, WINDOWS)
    assert found.bits[0] > 0
    assert found == influence(bigram, WINDOWS)
    for context in (3, 4):
        assert beyond(buffered, WINDOWS, context) == beyond(bigram, WINDOWS, context)
    noise = into_one_buffer(lambda tokens: torch.randn(*tokens.shape, 4))
    with pytest.raises(ValueError, match="the model is random"):
        check_repeats(noise, WINDOWS)


def test_a_model_may_write_into_its_tokens() -> None:
    def erasing(tokens: Tensor) -> Tensor:
        logits = bigram(tokens)
        tokens.zero_()
        return logits

    windows = WINDOWS.clone()
    found = token_losses(erasing, windows, 2)
    assert torch.equal(windows, WINDOWS)
    assert found.tolist() == token_losses(bigram, WINDOWS, 2).tolist()
