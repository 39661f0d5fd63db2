"""The optimum of a factor against parabolas that are known, and its interval against repetition."""

import math

import numpy as np
import pytest

from plkernel.analysis.statistics.optimum import quadratic_optimum

LEVELS = (0.6, 0.8, 1.0, 1.2, 1.4, 1.6)


def losses(optimum: float, curvature: float, noise: float, seeds: int, rng: np.random.Generator) -> dict:
    """Losses by level and seed; a seed shifts all of its losses alike, as paired runs do."""
    shift = rng.normal(0, 0.1, seeds)
    return {
        level: {
            seed: curvature * (level - optimum) ** 2 + shift[seed] + noise * rng.standard_normal()
            for seed in range(seeds)
        }
        for level in LEVELS
    }


def test_exact_parabolas_give_their_own_optimum() -> None:
    found = quadratic_optimum(losses(1.15, 0.3, 0.0, 4, np.random.default_rng(0)))
    assert (found.at, found.low, found.high) == pytest.approx((1.15,) * 3, abs=1e-6)
    assert found.inside


@pytest.mark.parametrize("seeds", [pytest.param(3, marks=pytest.mark.slow), 5, pytest.param(8, marks=pytest.mark.slow)])
def test_interval_covers_the_optimum(seeds: int) -> None:
    """In 93 to 97 % of 2000 repetitions, whether or not the interval is bounded."""
    rng = np.random.default_rng(seeds)
    found = [quadratic_optimum(losses(1.3, 0.05, 0.004, seeds, rng)) for _ in range(2000)]
    assert 0.93 < np.mean([one.low <= 1.3 <= one.high for one in found]) < 0.97


def test_flat_losses_bound_no_optimum() -> None:
    """Nor may noise without a parabola be taken for one: bounded intervals are as rare as the level says."""
    rng = np.random.default_rng(1)
    found = [quadratic_optimum(losses(1.0, 0.0, 0.01, 5, rng)) for _ in range(1000)]
    assert np.mean([math.isinf(one.high) for one in found]) > 0.95


def test_a_maximum_is_no_optimum() -> None:
    found = quadratic_optimum(losses(1.0, -0.3, 1e-4, 5, np.random.default_rng(2)))
    assert math.isnan(found.at)
    assert (found.low, found.high) == (-math.inf, math.inf)


def test_an_optimum_beyond_the_levels_is_not_inside() -> None:
    assert not quadratic_optimum(losses(2.0, 0.3, 1e-4, 5, np.random.default_rng(3))).inside


def test_one_seed_has_no_interval() -> None:
    found = quadratic_optimum(losses(1.0, 0.3, 0.0, 1, np.random.default_rng(4)))
    assert found.at == pytest.approx(1.0)
    assert math.isnan(found.low)


def test_errors_name_what_is_missing() -> None:
    with pytest.raises(ValueError, match="3 or more"):
        quadratic_optimum({1.0: {0: 1.0}, 2.0: {0: 1.0}})
    with pytest.raises(ValueError, match=r"level 2 has \[1\], level 1 has \[0\]"):
        quadratic_optimum({1.0: {0: 1.0}, 2.0: {1: 1.0}, 3.0: {0: 1.0}})
