"""Slopes of kernels against exact power laws, and means over runs that keep them."""

import numpy as np
import pytest
from node_kernels import kernel_exponent, rms_kernel

from plkernel.analysis.nodes import falling_exponent, place
from plkernel.analysis.trained.memory import QUANTILES, Memory, kernel_exponents, slope_range

LAGS = 2.0 ** np.arange(10)
CONDITIONS = (("log-spaced", "uniform"), ("log-spaced", "published"), ("concentrated", "published"))


def memory(kernels=None, half_lives=None) -> Memory:
    empty = np.empty((0, 0, len(QUANTILES)))
    return Memory(
        empty if half_lives is None else half_lives, LAGS, np.empty((0, 0, 10)) if kernels is None else kernels
    )


@pytest.mark.parametrize("exponent", [0.0, 0.575, 1.15, 3.0])
def test_slope_of_a_power_law_is_its_exponent(exponent: float) -> None:
    """Whatever the scale: measured within 1.2e-13 of it."""
    scales = np.array([[1.0, 1e-200], [1e200, 3.0]])
    found = kernel_exponents(LAGS, scales[..., None] * LAGS**-exponent)
    assert found.shape == (2, 2)
    assert found == pytest.approx(np.full((2, 2), exponent), abs=3e-13)


def test_slope_is_that_of_polyfit() -> None:
    y = np.random.default_rng(0).normal(size=(3, LAGS.size))
    expected = [-np.polyfit(np.log(LAGS), row, 1)[0] for row in y]
    assert falling_exponent(LAGS, y) == pytest.approx(expected, rel=1e-13)


def test_lags_outside_the_range_do_not_count() -> None:
    """Lags 1 and 2 and those beyond 128 may be anything."""
    kernel = LAGS**-1.15
    kernel[[0, 1, 8, 9]] = 7.0
    assert kernel_exponents(LAGS, kernel) == pytest.approx(1.15, rel=1e-14)


@pytest.mark.parametrize(("lags", "expected"), [(LAGS, (4, 128)), (LAGS[:5], (4, 16)), (LAGS[:3], None), ([], None)])
def test_range_ends_at_128_or_the_longest_lag(lags: np.ndarray, expected: tuple[float, float] | None) -> None:
    assert slope_range(lags) == expected


def test_a_kernel_that_vanishes_falls_faster_than_any_power() -> None:
    kernel = np.where(LAGS > 30, 0.0, LAGS**-1.0)
    assert kernel_exponents(LAGS, kernel) == np.inf
    assert kernel_exponents(LAGS, 0 * LAGS) == np.inf


def test_a_slope_needs_two_lags() -> None:
    with pytest.raises(ValueError, match=r"lags must hold two of 4 to 128 for a slope, got \[1.0, 2.0, 4.0\]"):
        kernel_exponents(LAGS[:3], LAGS[:3])
    with pytest.raises(ValueError, match="lags must be two or more for a slope, got 1"):
        falling_exponent([4.0], [1.0])


def test_the_slope_of_the_mean_kernel_is_the_mean_slope() -> None:
    """Means are geometric, so constants of a scheme drop out and slopes average."""
    exponents, scales = np.array([[0.5, 1.0], [0.7, 2.0]]), np.array([[1.0, 1e3], [1e-3, 7.0]])
    found = memory(kernels=scales[..., None] * LAGS ** -exponents[..., None])
    mean = found.log_kernels()
    assert mean[:, 0] == pytest.approx([0.0, 0.0], abs=1e-15)
    assert kernel_exponents(LAGS, np.exp(mean)) == pytest.approx(exponents.mean(axis=0), rel=1e-13)
    assert found.exponents() == pytest.approx(exponents, rel=1e-13)
    assert found.block(1).exponents() == pytest.approx(exponents[:, 1:], rel=1e-13)
    assert (found.blocks, found.has_kernels, found.has_half_lives) == (2, True, False)


def test_powers_of_two_give_the_slope_of_a_fine_grid() -> None:
    """A run keeps kernels at powers of two: their slope is within 0.004 of that over 200 lags (measured)."""
    for placement, projection in (
        ("log-spaced", "uniform"),
        ("log-spaced", "published"),
        ("concentrated", "published"),
    ):
        nodes = place(256, placement=placement, projection=projection, gain="ema")
        fine = kernel_exponent(nodes, "rms", 4, 128)
        assert float(kernel_exponents(LAGS, rms_kernel(nodes, LAGS))) == pytest.approx(fine, abs=0.012)


def test_half_lives_are_geometric_means_with_the_outermost_ends() -> None:
    first = np.array([1.0, 2, 3, 4, 5, 6, 7])
    found = memory(half_lives=np.stack([first, 4 * first])[:, None]).half_life_quantiles()
    assert found == pytest.approx(np.array([[1.0, 4, 6, 8, 10, 12, 28]]))
