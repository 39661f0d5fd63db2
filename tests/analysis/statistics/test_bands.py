"""Difference curves and their bands against the interval at each position and against simulated curves."""

import math

import numpy as np
import pytest
from scipy import stats

from plkernel.analysis.statistics.bands import difference_curves, pointwise_band, simultaneous_band
from plkernel.analysis.statistics.differences import critical_value, mean_interval

POSITIONS = 20


def as_curves(values):
    return [dict(enumerate(row)) for row in values]


def random_walks(rng, shape):
    return rng.normal(size=shape).cumsum(axis=-1)


def autoregressive(rng, shape, correlation=0.9):
    values = rng.normal(size=shape)
    for s in range(1, shape[-1]):
        values[..., s] = correlation * values[..., s - 1] + math.sqrt(1 - correlation**2) * values[..., s]
    return values


def smooth(rng, shape):
    distance = np.subtract.outer(np.arange(shape[-1]), np.arange(shape[-1]))
    root = np.linalg.cholesky(np.exp(-0.5 * (distance / 5.0) ** 2) + 1e-8 * np.eye(shape[-1]))
    return rng.normal(size=shape) @ root.T


def test_a_band_covers_at_each_position_but_a_whole_curve_less_often():
    rng = np.random.default_rng(2)
    at_position, whole = [], []
    for _ in range(400):
        curves = [dict(enumerate(values)) for values in rng.normal(0.0, 1.0, (5, 20))]
        band = pointwise_band(curves)
        inside = (band.low <= 0.0) & (band.high >= 0.0)
        at_position.append(inside.mean())
        whole.append(inside.all())
    assert 0.93 <= np.mean(at_position) <= 0.97
    assert np.mean(whole) < 0.6


def test_a_band_is_the_interval_at_each_position_that_all_curves_have():
    curves = [{0: 1.0, 10: 2.0, 20: 3.0}, {10: 2.5, 20: 2.0, 30: 9.0}, {0: 1.0, 10: 4.0, 20: 2.2}]
    band = pointwise_band(curves)
    assert band.at.tolist() == [10, 20]
    for position, mean, low, high in zip(band.at, band.mean, band.low, band.high, strict=True):
        expected = mean_interval(curve[position] for curve in curves)
        assert (mean, low, high) == pytest.approx((expected.mean, expected.low, expected.high), rel=1e-14)


def test_differences_pair_seeds_and_positions():
    arm = {0: {0: 8.0, 5: 3.0}, 1: {0: 8.0, 5: 2.0, 9: 1.0}, 7: {0: 8.0}}
    baseline = {1: {0: 8.0, 5: 2.5}, 0: {5: 2.0}}
    assert difference_curves(arm, baseline) == {0: {5: 1.0}, 1: {0: 0.0, 5: -0.5}}


@pytest.mark.parametrize("n", [5, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("noise", [random_walks, autoregressive, pytest.param(smooth, marks=pytest.mark.slow)])
def test_a_simultaneous_band_covers_whole_curves(noise, n):
    """Where the pointwise band, on the same curves, holds 0.35 to 0.81 of them."""
    rng = np.random.default_rng(n)
    truth = np.linspace(0.0, -3.0, POSITIONS)
    inside, pointwise = [], []
    for values in truth + noise(rng, (200, n, POSITIONS)):
        curves = as_curves(values)
        for band, hits in ((simultaneous_band(curves, draws=300), inside), (pointwise_band(curves), pointwise)):
            hits.append(((band.low <= truth) & (truth <= band.high)).all())
    assert np.mean(inside) >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / 200)
    assert np.mean(pointwise) < 0.87


@pytest.mark.parametrize("n", [2, 3])
def test_below_four_curves_the_band_is_that_of_bonferroni(n):
    values = np.random.default_rng(n).normal(size=(n, POSITIONS))
    band = simultaneous_band(as_curves(values))
    half = stats.t.ppf(1 - 0.025 / POSITIONS, n - 1) * stats.sem(values, axis=0)
    assert band.high - band.mean == pytest.approx(half, rel=1e-9)


def test_a_simultaneous_band_lies_between_the_pointwise_one_and_bonferroni():
    values = random_walks(np.random.default_rng(0), (6, POSITIONS))
    band, narrow = simultaneous_band(as_curves(values)), pointwise_band(as_curves(values))
    assert band.at.tolist() == narrow.at.tolist()
    assert band.mean.tolist() == narrow.mean.tolist()
    ratio = (band.high - band.low) / (narrow.high - narrow.low)
    assert ratio == pytest.approx(ratio[0], rel=1e-9)
    assert 1.1 < ratio[0] < critical_value(6, 1 - 0.05 / POSITIONS) / critical_value(6)


def test_parallel_curves_need_no_more_than_the_pointwise_band():
    shifts = np.random.default_rng(1).normal(size=(8, 1)) * np.linspace(1.0, 2.0, POSITIONS)
    band, narrow = simultaneous_band(as_curves(shifts)), pointwise_band(as_curves(shifts))
    assert (band.high - band.low) == pytest.approx(narrow.high - narrow.low, rel=0.06)


def test_positions_without_spread_or_without_value_do_not_count():
    values = random_walks(np.random.default_rng(2), (5, POSITIONS))
    plain = simultaneous_band(as_curves(values))
    padded = np.column_stack([np.zeros(5), values, [1.0, 2.0, math.nan, 3.0, 4.0]])
    band = simultaneous_band(as_curves(padded))
    assert (band.low[0], band.high[0]) == (0.0, 0.0)
    assert math.isnan(band.low[-1])
    assert band.low[1:-1] == pytest.approx(plain.low, rel=1e-12)


def test_one_curve_has_no_band():
    band = simultaneous_band([{0: 1.0, 5: 2.0}])
    assert band.mean.tolist() == [1.0, 2.0]
    assert np.isnan([band.low, band.high]).all()


def test_no_curves_are_refused():
    for band in (pointwise_band, simultaneous_band):
        with pytest.raises(ValueError, match="curves: got none"):
            band([])
