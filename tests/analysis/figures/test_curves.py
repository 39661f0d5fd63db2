"""The figures of curves: bands, what is subtracted, and labels that stay inside."""

import numpy as np
import pytest

from plkernel.analysis.figures.curves import convergence, difference_limits, differences
from plkernel.analysis.statistics.bands import pointwise_band, simultaneous_band


def curves(seeds, positions=5):
    values = np.random.default_rng(0).normal(0.0, 0.01, (seeds, positions)).cumsum(axis=1)
    return [{(at + 1) * 1000: float(value) for at, value in enumerate(row)} for row in values]


def panels(seeds, arms=2, **options):
    names = [f"arm-{index}" for index in range(arms)]
    figure = differences({name: curves(seeds) for name in names}, dict.fromkeys(names, "base"), **options)
    return figure, [axes for axes in figure.axes if axes.get_visible()]


@pytest.mark.parametrize(("seeds", "bands"), [(1, 1), (4, 1), (5, 2), (8, 2)])
def test_a_band_for_the_whole_curve_is_drawn_from_five_seeds_on(seeds, bands):
    _, shown = panels(seeds)
    assert all(len(axes.collections) == bands for axes in shown)


def test_the_bands_are_those_of_the_analysis_and_the_wider_one_is_paler():
    _, (axes, _) = panels(8)
    for drawn, band in zip(axes.collections, (pointwise_band(curves(8)), simultaneous_band(curves(8))), strict=True):
        points = drawn.get_paths()[0].vertices
        assert points[:, 1].min() == pytest.approx(band.low.min())
        assert points[:, 1].max() == pytest.approx(band.high.max())
    narrow, wide = axes.collections
    assert wide.get_alpha() < narrow.get_alpha()


def test_every_panel_says_what_is_subtracted_and_nothing_is_cut_off():
    """Rows of labels too tall for their panel used to leave the figure."""
    figure, shown = panels(3, bytes_per_step=100.0)
    assert [axes.get_title(loc="left") for axes in shown] == ["arm-0\nminus base", "arm-1\nminus base"]
    figure.draw_without_rendering()
    frame = figure.bbox
    texts = [figure._supylabel, figure._supxlabel, *(axes.title for axes in shown)]
    for text in texts:
        box = text.get_window_extent()
        assert frame.x0 <= box.x0 <= box.x1 <= frame.x1
        assert frame.y0 <= box.y0 <= box.y1 <= frame.y1


def test_twelve_panels_share_their_axes_of_steps():
    _, shown = panels(2, arms=12, bytes_per_step=100.0)
    assert len(shown) == 12
    assert sum(len(axes.child_axes) for axes in shown) == 3


def test_the_frame_of_a_difference_keeps_seeds_visible_beside_wide_bands():
    one = [{100: 0.01, 50: 0.01, 1: 5.0}, {100: 0.03, 50: 0.011, 1: -5.0}]
    low, high = difference_limits({"arm": one}, {"arm": [pointwise_band(one)]})
    assert high == -low == pytest.approx(3 * 0.03 * 1.08)
    assert difference_limits({"arm": []}, {}) == (-1e-3, 1e-3)


def test_lines_across_are_all_on_the_left_and_on_the_right_those_between_the_curves():
    references = {"one": 1.0, "two": 0.99, "three": 0.0, "four": float(np.mean(list(curves(1)[0].values())[2:]))}
    figure = convergence({"base": curves(1)}, 100.0, "", references)
    whole, late = figure.axes[:2]
    assert len(whole.lines) == 2 + 4
    assert [line.get_ydata()[0] for line in late.lines[2:]] == [references["four"]]
    assert {text.get_text() for text in late.texts} == {"four"}
    assert "two; one" in {text.get_text() for text in whole.texts}, "names of close lines share a place"
    assert not convergence({"base": curves(1)}).axes[0].texts


def test_convergence_has_a_line_per_seed_and_arm_and_their_mean():
    figure = convergence({"base": curves(3), "arm": curves(2)}, 100.0, "heading")
    assert [len(axes.lines) for axes in figure.axes[:2]] == [3 + 1 + 2 + 1] * 2
