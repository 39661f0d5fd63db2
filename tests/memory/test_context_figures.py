"""The figures of truncation curves and of a probe, read back."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex

from plkernel.analysis.figures.style import COLOURS, INK, rendered
from plkernel.analysis.information.curve import decay_curves
from plkernel.memory.diagnostics import Influence, Probe, by_position, truncation_of
from plkernel.memory.figures import Truncated, probe_figure, truncation_figure

GIVEN = (1, 2, 4, 8)
BASE = np.array([[4.0, 3.5, 3.2, 3.0], [4.2, 3.7, 3.4, 3.2]])


def lines(axes, colour):
    return [line.get_xydata().T for line in axes.lines if to_hex(line.get_color()) == colour.lower()]


def test_means_over_seeds_and_what_is_lost() -> None:
    arms = {"base": Truncated(GIVEN, BASE), "other": Truncated(GIVEN, BASE + np.array([0.4, 0.3, 0.1, 0.0]))}
    whole, lost = truncation_figure(arms).axes
    for colour, arm in zip((INK, COLOURS[0]), arms.values(), strict=True):
        [(given, bpb)], [(shorter, cost)] = lines(whole, colour), lines(lost, colour)
        assert given.tolist() == list(GIVEN)
        assert shorter.tolist() == list(GIVEN[:-1])
        assert bpb == pytest.approx(arm.bpb.mean(axis=0))
        assert cost == pytest.approx((bpb - bpb[-1])[:-1])
    assert (lost.get_xscale(), lost.get_yscale()) == ("log", "log")


def test_the_floor_stands_behind() -> None:
    arm = Truncated(GIVEN, BASE, floor=(3.9, 3.3, 3.0, 3.0))
    whole, lost = truncation_figure({"base": arm}).axes
    assert lines(whole, INK)[1][1].tolist() == [3.9, 3.3, 3.0, 3.0]
    assert lines(lost, INK)[1][1] == pytest.approx([0.9, 0.3, np.nan], nan_ok=True)


def test_a_model_that_loses_nothing_has_a_plain_axis() -> None:
    _, lost = truncation_figure({"base": Truncated(GIVEN, BASE[:, ::-1])}).axes
    assert lost.get_yscale() == "linear"


@pytest.fixture
def found() -> Probe:
    """Of a model that reads one token: beyond lag 1 there is nothing."""
    losses = np.random.default_rng(0).normal(3, 1, (4, 20))
    influence = Influence((1, 2, 4, 8), (0.5, 0.0, 0.0, 0.0), (0.1, 0.0, 0.0, 0.0))
    cut = truncation_of(list(GIVEN), losses + np.array([0.5, 0.2, 0.1, 0])[:, None])
    return Probe("token", 20, 8, 4.0, influence, by_position(np.ones((20, 8))), cut, 1.0)


def test_what_is_zero_is_marked_on_the_lower_edge(found: Probe) -> None:
    near, along, _ = probe_figure(found, "a model").axes
    line, triangles = near.get_lines()
    np.testing.assert_array_equal(line.get_ydata(), [0.5, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(triangles.get_xdata(), [2, 4, 8])
    assert triangles.get_marker() == "v"
    assert near.get_ylim() == pytest.approx((0.25, 1.0)), "what is zero takes no room"
    assert along.get_ylabel() == "bits per token"
    assert near.get_legend() is None


def test_the_information_of_the_text_is_in_bits(found: Probe) -> None:
    data = np.random.default_rng(1).integers(0, 2, 5000, dtype=np.uint8)
    data[1::2] = data[::2]  # I(1): half of all pairs are copies
    curve, _ = decay_curves(data, list(GIVEN))
    figure = probe_figure(replace(found, unit="byte", information=curve))
    line = figure.axes[0].get_lines()[1]
    expected = 1 - (0.25 * np.log2(4) + 0.75 * np.log2(4 / 3))  # 1 - h(1/4)
    assert line.get_ydata()[0] == pytest.approx(expected, abs=0.03)
    assert set(rendered(figure)) == {"pdf", "png", "svg"}


def test_one_window_and_nothing_above_zero_can_be_drawn(found: Probe) -> None:
    none = Influence((1,), (0.0,), (float("nan"),))
    cut = truncation_of([1], np.ones((1, 1)))
    rendered(probe_figure(replace(found, windows=1, context=1, influence=none, truncation=cut)))


def test_a_long_heading_stays_inside_the_figure(found: Probe) -> None:
    heading = "runs/out/quick/power-law/seed-0 on validation text of " + "synthetic:lags,alpha=0.7,longest=64," * 3
    figure = probe_figure(found, heading)
    rendered(figure)
    (text,) = figure.texts
    box = text.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert "".join(text.get_text().split()) == "".join(heading.split())
