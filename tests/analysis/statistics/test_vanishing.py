"""The exponent of a vanishing difference against exact power laws, and its interval against repetition."""

import math

import numpy as np
import pytest

from plkernel.analysis.statistics.vanishing import decay_exponent

READ = (0, 400_000, 2_000_000, 8_000_000, 16_000_000)


def curves(exponent: float, effect: float, noise: float, seeds: int, rng: np.random.Generator) -> list:
    """Differences effect * (b / first)**-exponent, with noise that lasts along a curve and is larger early."""
    at = np.array(READ[1:])
    law = effect * (at / at[0]) ** -exponent
    errors = noise * np.cumsum(rng.standard_normal((seeds, at.size)), axis=1) * (at / at[0]) ** -0.5
    return [{0: 0.0, **dict(zip(at.tolist(), law + error, strict=True))} for error in errors]


@pytest.mark.parametrize("exponent", [-0.5, 0.3, 1.0, 2.5])
def test_exact_laws_give_their_own_exponent(exponent: float) -> None:
    found = decay_exponent(curves(exponent, -0.03, 0.0, 5, np.random.default_rng(0)))
    assert found.at == pytest.approx(
        exponent, abs=1e-4
    )  # between points of the grid, 0.005 apart, it is nearly straight
    assert found.low <= found.at + 0.005
    assert found.high >= found.at - 0.005


@pytest.mark.parametrize("seeds", [5, pytest.param(7, marks=pytest.mark.slow)])
def test_the_interval_covers_the_exponent(seeds: int) -> None:
    """In 93 to 97 % of 2000 repetitions, whether or not it is bounded."""
    rng = np.random.default_rng(seeds)
    found = [decay_exponent(curves(0.8, 0.03, 0.003, seeds, rng)) for _ in range(2000)]
    assert 0.93 < np.mean([one.low <= 0.8 <= one.high for one in found]) < 0.97
    assert np.mean([math.isfinite(one.high - one.low) for one in found]) > 0.5


def test_noise_alone_has_no_exponent() -> None:
    rng = np.random.default_rng(1)
    found = [decay_exponent(curves(0.0, 0.0, 0.01, 7, rng)) for _ in range(300)]
    assert np.mean([math.isinf(one.low) or math.isinf(one.high) for one in found]) > 0.9


def test_a_difference_that_changes_its_sign_follows_no_law() -> None:
    assert math.isnan(decay_exponent([{1: 0.1, 10: -0.05}, {1: 0.2, 10: -0.05}]).at)


def test_one_seed_has_no_interval_and_one_position_no_exponent() -> None:
    assert math.isnan(decay_exponent([{1: 0.1, 10: 0.05}]).low)
    with pytest.raises(ValueError, match="two positions"):
        decay_exponent([{0: 0.0, 10: 0.05}])
    with pytest.raises(ValueError, match="needs a curve"):
        decay_exponent([])
