"""Memory of blocks: slopes of kernels, and means over runs."""

import math

import numpy as np
import pytest

from plkernel.analysis.nodes import falling_exponent
from plkernel.decays.memory import (
    Memory,
    kernel_exponents,
    memory_of,
    outlasting,
    slope_range,
)

LAGS = 2.0 ** np.arange(10)


@pytest.mark.parametrize("exponent", [0.0, 0.575, 3.0])
def test_the_slope_of_a_power_law_is_its_exponent(exponent: float) -> None:
    """At any scale, and with any kernel outside lags 4 to 128."""
    kernels = np.array([[1.0, 1e-200], [1e200, 3.0]])[..., None] * LAGS**-exponent
    kernels[..., [0, 1, 8, 9]] = 7.0
    assert kernel_exponents(LAGS, kernels) == pytest.approx(np.full((2, 2), exponent), abs=3e-13)
    y = np.random.default_rng(0).normal(size=(3, LAGS.size))
    expected = [-np.polyfit(np.log(LAGS), row, 1)[0] for row in y]
    assert falling_exponent(LAGS, y) == pytest.approx(expected, rel=1e-13)
    assert (
        kernel_exponents(LAGS, np.where(LAGS > 30, 0.0, LAGS**-1.0))
        == kernel_exponents(LAGS, 0 * LAGS)
        == np.inf
    )


@pytest.mark.parametrize(
    ("lags", "expected"), [(LAGS, (4, 128)), (LAGS[:5], (4, 16)), (LAGS[:3], None), ([], None)]
)
def test_the_range_ends_at_128_or_the_longest_lag(
    lags: np.ndarray, expected: tuple[float, float] | None
) -> None:
    assert slope_range(lags) == expected
    if expected is None:
        with pytest.raises(ValueError, match=r"lags must hold two of 4 to 128 for a slope, got \["):
            kernel_exponents(lags, lags)


def test_means_over_runs_are_geometric() -> None:
    """The slope of the mean kernel is the mean slope; of half-lives the ends are the outermost of
    all runs.
    """
    exponents, scales = np.array([[0.5, 1.0], [0.7, 2.0]]), np.array([[1.0, 1e3], [1e-3, 7.0]])
    first = np.array([1.0, 2, 3, 4, 5, 6, 7])
    both = Memory(
        np.stack([first, 4 * first])[:, None],
        LAGS,
        scales[..., None] * LAGS ** -exponents[..., None],
    )
    mean = both.log_kernels()
    assert mean[:, 0] == pytest.approx([0.0, 0.0], abs=1e-15)
    assert kernel_exponents(LAGS, np.exp(mean)) == pytest.approx(exponents.mean(axis=0), rel=1e-13)
    assert both.exponents() == pytest.approx(exponents, rel=1e-13)
    assert both.half_life_quantiles() == pytest.approx(np.array([[1.0, 4, 6, 8, 10, 12, 28]]))


def test_a_quantity_that_one_run_lacks_is_unknown_for_all() -> None:
    kernel = {"lags": [1.0, 2.0], "blocks": [[1.0, 0.5]]}
    state = {"kernel": kernel, "half_life_quantiles": [[1.0, 2, 3, 4, 5, 6, 7]]}
    both = memory_of([state, state])
    assert (both.half_lives.shape, both.kernels.shape) == ((2, 1, 7), (2, 1, 2))
    assert (both.lags.tolist(), both.blocks) == ([1.0, 2.0], 1)
    without_lives = memory_of([state, {"kernel": kernel}])
    assert (without_lives.half_lives.shape, without_lives.kernels.shape) == ((0, 0, 7), (2, 1, 2))
    for other in ({}, {"kernel": None}, {"kernel": {**kernel, "lags": [1.0, 3.0]}}):
        mixed = memory_of([state, {**state, **other}] if other else [{}, {}])
        assert mixed.lags.size == 0
        assert mixed.kernels.shape == (0, 0, 0)
    two = {"kernel": {"lags": [1.0, 2.0], "blocks": [[1.0, 0.5], [1.0, 0.25]]}}
    assert memory_of([state, two]).kernels.shape == (0, 0, 2), "other numbers of blocks"
    assert memory_of([two]).blocks == 2
    assert memory_of([]).blocks == 0


@pytest.mark.parametrize(("median", "told"), [(5120.0, False), (5121.0, True)])
def test_half_lives_of_more_than_ten_windows_are_told(median: float, told: bool) -> None:
    said = outlasting([10.0, median, 1e6], 512)
    words = (
        "half or more of its half-lives, 10 to 1,000,000 bytes, are longer than 10 windows of 512"
        " bytes"
    )
    assert said == (words if told else None)


def test_of_half_lives_that_are_not_known_nothing_is_told() -> None:
    assert outlasting([[10.0, math.nan, 1e6]], 512) is None
