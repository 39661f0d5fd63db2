"""Slopes and verdicts of a coordinate check, and growth per block, on made-up numbers; the figure."""

import json
import math

import numpy as np
import pytest

from plkernel.analysis.figures.coordinates import coordinates_figure
from plkernel.analysis.figures.style import rendered
from plkernel.analysis.trained.coordinates import Coordinates, Propagation, together

WIDTHS = (64, 128, 256, 512)


def made(**exponents: float) -> Coordinates:
    """Two seeds and two steps of activations that change exactly as width**exponent, the second step twice as far."""
    changes = {
        name: [[[size * width**exponent, 2 * size * width**exponent] for size in (0.5, 2.0)] for width in WIDTHS]
        for name, exponent in exponents.items()
    }
    starts = {name: [[[1.0], [4.0]] for _ in WIDTHS] for name in exponents}
    return Coordinates(WIDTHS, 1e-3, starts, changes)


def test_slopes_of_power_laws_are_their_exponents() -> None:
    found = made(flat=0.09, grows=0.11, shrinks=-0.5)
    for name, exponent in (("flat", 0.09), ("grows", 0.11), ("shrinks", -0.5)):
        slope = found.slope(name)
        assert slope.value == pytest.approx(exponent, abs=1e-12)
        assert slope.error == pytest.approx(0, abs=1e-12)
        assert slope.verdict == name
    assert found.slope("grows", tolerance=0.2).verdict == "flat"
    assert found.change("flat", step=1) == pytest.approx(np.array(WIDTHS) ** 0.09)  # the geometric mean of 0.5 and 2
    assert found.change("flat") == pytest.approx(2 * np.array(WIDTHS) ** 0.09)
    assert found.start("flat") == pytest.approx(2.0)


def test_the_error_is_that_of_the_seeds() -> None:
    changes = {"x": [[[width**0.1], [width**0.3]] for width in WIDTHS]}
    slope = Coordinates(WIDTHS, 1e-3, {}, changes).slope("x")
    assert (slope.value, slope.error) == (pytest.approx(0.2), pytest.approx(0.1))
    assert math.isnan(Coordinates(WIDTHS, 1e-3, {}, {"x": [[[1.0]] for _ in WIDTHS]}).slope("x").error)


@pytest.mark.parametrize(("value", "verdict"), [(0.0, "does not move"), (math.nan, "diverges"), (math.inf, "diverges")])
def test_what_has_no_slope_says_so(value: float, verdict: str) -> None:
    changes = {"x": [[[value]], [[1.0]]]}
    assert Coordinates((1, 2), 1e-3, {}, changes).slope("x").verdict == verdict


def test_json_reads_back_equal() -> None:
    found = made(x=0.3)
    values = json.loads(json.dumps(found.to_dict()))
    assert Coordinates(**{**values, "widths": tuple(values["widths"])}) == found


def test_growth_per_block_is_a_geometric_mean() -> None:
    found = Propagation((1.0, 5.0, 4.0), (9.0, 7.0, 1.0))
    assert found.depth == 2
    assert found.growth == (pytest.approx(2.0), pytest.approx(3.0))
    assert together([found, Propagation((4.0, 5.0, 1.0), (1.0, 7.0, 9.0))]) == Propagation(
        (2.0, pytest.approx(5.0), 2.0), (pytest.approx(3.0), pytest.approx(7.0), pytest.approx(3.0))
    )
    assert all(math.isnan(value) for value in Propagation((0.0, 1.0), (1.0, 0.0)).growth)


@pytest.mark.parametrize("deep", [1e9, pytest.param(1.01, marks=pytest.mark.slow)])
def test_figure_is_laid_out_without_a_warning(deep: float) -> None:
    """Warnings are errors here: a layout that does not fit would raise."""
    depths = [Propagation((1.0, deep), (deep, 1.0)), Propagation((0.0, 0.0, 1.0), (0.0, 1.0, 1.0))]
    assert all(rendered(coordinates_figure(made(a=0, b=1, logits=-0.5), depths, "title")).values())


@pytest.mark.slow
def test_the_same_numbers_give_the_same_bytes() -> None:
    draw = lambda: rendered(coordinates_figure(made(a=0, b=1), [Propagation((1.0, 1.01), (1.01, 1.0))], "title"))  # noqa: E731
    assert draw() == draw()
