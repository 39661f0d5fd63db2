"""Figures of decay curves, read back: the lines hold the curve's values in bits."""

import math
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex

from plkernel.analysis.figures.decay import (
    EXACT,
    FIT,
    WIDEST_SLOPE,
    decay_figure,
    kernels_figure,
    known_slopes,
)
from plkernel.analysis.figures.style import INK, rendered
from plkernel.analysis.information.estimate import DecayCurve, log_lags
from plkernel.analysis.information.laws import compare_models, fit_power_law, judge, local_slopes

LAGS = log_lags(1000, 40)
BITS = 1 / math.log(2)


def curve_of(values, error=0.02, noise=0.0, **changes) -> DecayCurve:
    """`values` at LAGS in nats, with jackknife errors `error` times the value plus `noise`."""
    values = np.asarray(values, dtype=float)
    spread = (error * np.abs(values) + noise)[:, None] / np.sqrt(19)
    replicates = values[:, None] + spread * np.random.default_rng(5).normal(size=(values.size, 20))
    columns = (
        tuple(LAGS.tolist()),
        tuple(values),
        (1e-3,) * values.size,
        0.0,
        tuple(map(tuple, replicates)),
    )
    return replace(DecayCurve("information", "shuffle", 10**6, 64, *columns), **changes)


@pytest.fixture
def steep() -> DecayCurve:
    """A power law that sinks into noise: every fourth value past lag 100 is negative."""
    values = 0.5 * LAGS**-1.3
    values[np.flatnonzero(LAGS > 100)[::4]] = -1e-4
    return curve_of(values, noise=6e-5)


@pytest.fixture
def noise() -> DecayCurve:
    """The curve of an i.i.d. corpus: a little at the first two lags, nothing positive behind."""
    values = -1e-5 * (1 + LAGS % 3)
    values[:2] = 2e-5
    return curve_of(values, noise=3e-5)


def drawn(axes, colour, marker):
    """x and y of the lines of a colour and marker that are not empty."""
    lines = [
        line
        for line in axes.lines
        if to_hex(line.get_color()) == colour.lower() and line.get_marker() == marker
    ]
    return [line.get_xydata().T for line in lines if len(line.get_xdata())]


def legend_texts(figure):
    return [
        text.get_text().replace("\n", " ")
        for legend in figure.legends
        for text in legend.get_texts()
    ]


def test_values_band_and_floor_are_those_of_the_curve_in_bits(steep):
    above = decay_figure(steep, None, title="steep").axes[0]
    [(lags, values)], [(_, floor)] = drawn(above, INK, "o"), drawn(above, INK, "None")
    expected = np.where(np.array(steep.values) > 0, np.array(steep.values) * BITS, np.nan)
    assert lags == pytest.approx(LAGS)
    assert values == pytest.approx(expected, rel=1e-14, nan_ok=True)
    assert floor == pytest.approx(np.array(steep.floor) * BITS, rel=1e-14)
    vertices = above.collections[0].get_paths()[0].vertices
    low, high = (edge * BITS for edge in steep.interval())
    bottom = above.get_ylim()[0]
    for lag, least, most in zip(LAGS, low.clip(bottom), high.clip(bottom), strict=True):
        at = vertices[vertices[:, 0] == lag, 1]
        assert (at.min(), at.max()) == pytest.approx((least, most), rel=1e-12)
    assert (low < bottom).any(), "nothing was cut"


def test_noise_is_left_out_and_stretches_no_axis(noise):
    assert all(rendered(decay_figure(noise, title="a $ in its name"), ("png",)).values()), (
        "without a warning"
    )
    nothing = curve_of(np.array(noise.values) - 1e-3, noise=3e-5)
    found = replace(judge(nothing), first_lag=0, last_lag=0)
    assert found.models == (), "a verdict without a shape, on no lags"
    assert decay_figure(nothing, None, title="", verdict=found).axes[0].get_ylim()[0] > 0
    assert np.isnan(known_slopes(nothing)[0]).all()
    values = 0.5 * LAGS**-1.0
    values[-3] = 1e-12
    above = decay_figure(curve_of(values, noise=1e-5), None, title="").axes[0]
    assert above.get_ylim()[0] > 1e-7
    assert np.isnan(drawn(above, INK, "o")[0][1][-3])


def test_a_law_is_drawn_where_it_was_fitted_and_slopes_where_they_are_known(steep):
    law = fit_power_law(steep, (2, 60))
    figure = decay_figure(steep, law, title="")
    above, below = figure.axes
    ends = [2, LAGS[LAGS <= 60][-1]]
    [(lags, line)], [(same, betas)] = drawn(above, FIT, "None"), drawn(below, FIT, "None")
    assert lags.tolist() == same.tolist() == ends
    assert line == pytest.approx(BITS * law.values(ends), rel=1e-12)
    assert betas.tolist() == [law.beta] * 2
    band = below.collections[-1].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((law.low, law.high))
    [(lags, slopes)] = drawn(below, INK, "o")
    at, expected, errors = local_slopes(steep)
    known = errors * 2.0930240544 <= WIDEST_SLOPE  # t of 19 degrees of freedom
    assert 0 < known.sum() < known.size
    assert lags[np.isfinite(slopes)].tolist() == at[known].tolist()
    assert slopes[np.isfinite(slopes)] == pytest.approx(expected[known], rel=1e-12)
    text = (
        f"power law: beta = {law.beta:.2f} ({law.low:.2f} to {law.high:.2f}), lags 2 to"
        f" {law.last_lag}"
    )
    assert text in legend_texts(figure)


def test_an_exact_curve_lies_on_a_curve_without_error():
    values = 0.1 * LAGS**-0.8 * np.exp(-LAGS / 700)
    above = decay_figure(curve_of(values), None, title="", exact=(LAGS, values)).axes[0]
    [(_, measured)], [(_, exact)] = drawn(above, INK, "o"), drawn(above, EXACT, "None")
    assert exact == pytest.approx(measured, rel=1e-14)
    above, below = decay_figure(curve_of(LAGS**-0.5, quantity="correlation"), None, title="").axes
    assert drawn(above, INK, "o")[0][1] == pytest.approx(LAGS**-0.5, rel=1e-14), (
        "a correlation as it is"
    )
    assert (above.get_ylabel(), below.get_xlabel()) == ("correlation q(d)", "lag d (bytes)")


def test_the_shape_of_the_verdict_is_drawn_and_not_the_law_that_it_rejects():
    curve = curve_of(0.5 * np.minimum(LAGS, 30.0) ** -0.3 * np.maximum(LAGS / 30.0, 1.0) ** -2.0)
    verdict, law = judge(curve), fit_power_law(curve)
    figure = decay_figure(curve, law, title="broken", verdict=verdict)
    [(at, values)] = drawn(figure.axes[0], FIT, "None")
    assert verdict.kind == "broken power law"
    assert values == pytest.approx(
        BITS * 0.5 * np.minimum(at, 30) ** -0.3 * np.maximum(at / 30, 1) ** -2, rel=0.1
    )
    assert sum("broken power law" in text for text in legend_texts(figure)) == 1
    assert not any(text.startswith("power law") for text in legend_texts(figure))


def test_each_fitted_shape_gives_the_values_that_were_fitted():
    for fit in compare_models(curve_of(0.4 * np.exp(-((LAGS / 60.0) ** 0.5)))):
        if fit.name == "stretched exponential":
            assert fit.values(LAGS) == pytest.approx(0.4 * np.exp(-((LAGS / 60.0) ** 0.5)), rel=0.2)
        assert np.all(np.diff(fit.values(LAGS)) <= 0), fit.name


def test_kernels_are_drawn_relative_to_their_first_lag():
    lags = np.array([1.0, 2.0, 8.0])
    half_lives = np.array([1.0, 10.0])
    heights = [0.5, 2.0]
    kernels = [
        (lambda t: 5.0 * t**-2.0, {"label": "law", "color": INK}),
        (lambda t: 3.0 * 0.5**t, {"label": "exponential", "color": FIT}),
    ]
    left, right = kernels_figure(kernels, lags, half_lives, heights, "multiplier").axes
    shown = [line.get_xydata().T for line in left.lines]
    assert [line.get_label() for line in left.lines] == ["law", "exponential"]
    for at, _ in shown:
        assert at.tolist() == lags.tolist()
    assert shown[0][1] == pytest.approx([1.0, 1 / 4, 1 / 64], rel=1e-14)
    assert shown[1][1] == pytest.approx([1.0, 1 / 2, 1 / 128], rel=1e-14)
    [(at, values)] = [line.get_xydata().T for line in right.lines]
    assert (at.tolist(), values.tolist()) == (half_lives.tolist(), heights)
    assert (right.get_xlabel(), right.get_ylabel()) == ("half-life (steps)", "multiplier")
