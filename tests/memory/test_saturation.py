"""Saturation and amplification against closed forms, in one piece or in batches, at any size of the logits."""

import dataclasses
import math

import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from plkernel.memory.diagnostics import Amplification, Saturation, geometric_mean, saturation

RANDOM = np.random.default_rng(0)


def figures(logits: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """The definitions, with somebody else's softmax."""
    p = softmax(logits.astype(np.float64), axis=1)
    logs = logits - logsumexp(logits.astype(np.float64), axis=1, keepdims=True)
    return {
        "positions": len(p),
        "loss": -logs[np.arange(len(p)), targets].mean(),
        "logit_min": logits.min(),
        "logit_max": logits.max(),
        "largest_probability": p.max(axis=1).mean(),
        "peak_probability": p.max(),
        "entropy": -(p * logs).sum(axis=1).mean(),
        "saturated_share": (p.max(axis=1) > 0.99).mean(),
    }


@pytest.mark.parametrize("level", [0.0, 3.5, -1e4, 1e30])
def test_equal_logits_are_open(level: float) -> None:
    found = saturation(np.full((7, 256), level, np.float32), np.arange(7))
    assert found.entropy == pytest.approx(math.log(256), rel=1e-15)
    assert found.loss == pytest.approx(math.log(256), rel=1e-15)
    assert found.largest_probability == found.peak_probability == 1 / 256
    assert found.saturated_share == 0
    assert found.logit_min == found.logit_max == np.float32(level)


@pytest.mark.parametrize("size", [1e3, 1e4, 1e38])
def test_one_large_logit_saturates_without_overflow(size: float) -> None:
    """Every probability on one symbol: entropy 0, loss 0 where it is the target and its distance where it is not."""
    logits = np.zeros((4, 256), np.float32)
    logits[:, 65] = size
    right, wrong = saturation(logits, np.full(4, 65)), saturation(logits, np.full(4, 66))
    assert (right.loss, right.entropy, right.largest_probability, right.saturated_share) == (0, 0, 1, 1)
    assert wrong.loss == np.float32(size)


def test_two_levels_by_hand() -> None:
    """V = 4, logits (ln 97, 0, 0, 0): p = (0.97, 0.01, 0.01, 0.01); with ln 297 the largest is 0.99, not above."""
    logits = np.zeros((2, 4))
    logits[0, 0], logits[1, 0] = math.log(97), math.log(1e4)
    found = saturation(logits, np.array([0, 1]))
    last = 1 / (1e4 + 3)
    assert found.largest_probability == pytest.approx((0.97 + 1e4 * last) / 2, rel=1e-15)
    assert found.peak_probability == pytest.approx(1e4 * last, rel=1e-15)
    assert found.saturated_share == 0.5
    assert found.loss == pytest.approx((-math.log(0.97) - math.log(last)) / 2, rel=1e-15)
    entropies = [-sum(p * math.log(p) for p in row) for row in ([0.97, *[0.01] * 3], [1e4 * last, *[last] * 3])]
    assert found.entropy == pytest.approx(sum(entropies) / 2, rel=1e-14)


def test_the_threshold_is_099() -> None:
    for odds, share in ((98.9, 0.0), (99.1, 1.0)):
        assert saturation([[math.log(odds), 0.0]], [0]).saturated_share == share


@pytest.mark.parametrize("scale", [0.01, 1.0, 12.0, 3000.0])
def test_figures_are_their_definitions(scale: float) -> None:
    logits = (scale * RANDOM.standard_normal((600, 256))).astype(np.float32)
    targets = RANDOM.integers(0, 256, 600)
    found, expected = saturation(logits, targets), figures(logits, targets)
    for name, value in found.to_dict().items():
        assert value == pytest.approx(expected[name], rel=2e-14, abs=1e-14), name


def test_batches_merge_to_the_whole() -> None:
    logits, targets = 12 * RANDOM.standard_normal((700, 5, 256)), RANDOM.integers(0, 256, (700, 5))
    whole = saturation(logits, targets)
    merged = saturation(logits[:1], targets[:1])
    for start, end in ((1, 300), (300, 301), (301, 700)):
        merged = merged.merged(saturation(logits[start:end], targets[start:end]))
    assert merged.positions == whole.positions == 3500
    for name, value in whole.to_dict().items():
        assert getattr(merged, name) == pytest.approx(value, rel=1e-14), name


def test_impossible_symbols_have_probability_zero() -> None:
    logits = np.full((3, 256), -np.inf, np.float32)
    logits[:, :2] = 0
    found = saturation(logits, np.array([0, 1, 1]))
    assert found.entropy == pytest.approx(math.log(2), rel=1e-15)
    assert found.loss == pytest.approx(math.log(2), rel=1e-15)
    assert saturation(logits, np.array([0, 1, 9])).loss == math.inf


def test_a_diverged_model_gives_nan_without_a_warning() -> None:
    for bad in (np.nan, np.inf):
        logits = np.zeros((3, 256), np.float32)
        logits[1, 4] = bad
        found = saturation(logits, np.array([0, 1, 4]))
        assert math.isnan(found.loss)
        assert math.isnan(found.entropy)


def test_figures_are_saved_and_read_back() -> None:
    found = saturation(RANDOM.standard_normal((9, 256)), np.arange(9))
    assert Saturation.from_dict(found.to_dict()) == found
    assert dataclasses.asdict(found) == found.to_dict()
    with pytest.raises(ValueError, match="saturation has no entropy"):
        Saturation.from_dict({key: value for key, value in found.to_dict().items() if key != "entropy"})


@pytest.mark.parametrize(
    ("logits", "targets", "message"),
    [
        (np.zeros((3, 256)), np.zeros(2, int), r"got shapes \(2,\) and \(3, 256\)"),
        (np.zeros((0, 256)), np.zeros(0, int), "at least one"),
        (np.zeros(()), np.zeros((), int), "got shapes"),
        (np.zeros((1, 4)), np.array([4]), "targets must be integers from 0 to 3"),
        (np.zeros((1, 4)), np.array([-1]), "targets must be integers from 0 to 3"),
        (np.zeros((1, 4)), np.array([0.5]), "targets must be integers from 0 to 3"),
    ],
)
def test_bad_input_is_named(logits: np.ndarray, targets: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        saturation(logits, targets)


def test_amplification_is_the_ratio_of_successive_rms() -> None:
    growth = Amplification((0.5, 1.0, 1.0, 4.0))
    assert growth.per_block == (2.0, 1.0, 4.0)
    assert growth.mean == pytest.approx(2.0, rel=1e-15)
    assert math.isnan(Amplification((0.0, 1.0)).mean)


def test_geometric_mean_of_nothing_is_unknown() -> None:
    assert math.isnan(geometric_mean([]))
    assert math.isnan(geometric_mean([1.0, 0.0]))
    assert geometric_mean([1.28] * 8) == pytest.approx(1.28, rel=1e-15)
