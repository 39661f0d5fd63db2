"""The figure of all differences."""

import math

import pytest

from plkernel.analysis.figures.forest import ForestRow, forest, forest_limits
from plkernel.analysis.statistics.differences import paired_difference


def row(label, *values, holds=False):
    zero = dict.fromkeys(range(len(values)), 0.0)
    return ForestRow(label, paired_difference(dict(enumerate(values)), zero) if values else None, holds)


GROUPS = {
    "first block": [row("a", -0.1, -0.12, -0.11, holds=True), row("b", 0.02, -0.02, 0.01)],
    "second block": [row("c", math.nan, 0.1), row("d")],
}


def test_every_arm_has_a_row_under_its_heading():
    axes = forest(GROUPS).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["", "a", "b", "", "c", "d"]
    texts = [text.get_text().strip() for text in axes.texts]
    assert texts == ["first block", "second block", "not finite", "no common seed"]
    assert axes.yaxis_inverted()


def test_only_what_holds_is_filled_and_marks_stand_at_the_numbers():
    axes = forest(GROUPS).axes[0]
    circles = [line for line in axes.lines if line.get_marker() == "o"]
    assert [float(line.get_xdata()[0]) for line in circles] == pytest.approx([-0.11, 0.01 / 3])
    assert [line.get_markerfacecolor() == "none" for line in circles] == [False, True]
    strokes = [line for line in axes.lines if line.get_marker() == "|"]
    assert list(strokes[0].get_xdata()) == pytest.approx([-0.1, -0.12, -0.11])
    interval = next(
        line
        for line in axes.lines
        if line.get_marker() == "None" and len(line.get_xdata()) == 2 and line.get_xdata()[0]
    )
    difference = GROUPS["first block"][0].difference
    assert list(interval.get_xdata()) == pytest.approx([difference.low, difference.high])


def test_the_frame_shows_all_seeds_and_cuts_wide_intervals():
    assert forest_limits({"": [row("a", 0.1, -0.1)]}) == pytest.approx((-0.318, 0.318))
    assert forest_limits({"": [row("a", 0.1, 0.1001, 0.0999, 0.1)]})[1] == pytest.approx(0.1001 * 1.06, rel=0.01)
    assert forest_limits({"": [row("a")]}) == (-1e-3, 1e-3)


def test_a_row_far_from_the_others_is_an_arrow_at_the_edge():
    near = [row(name, value, 1.1 * value) for name, value in (("a", 0.01), ("b", -0.02), ("c", 0.02))]
    far = [row("behind", 0.6, 0.7), row("ahead", -0.6, -0.7)]
    limits = forest_limits({"": near})
    assert forest_limits({"": [*near, *far]}) == limits
    axes = forest({"": [*near, *far]}).axes[0]
    assert [line.get_marker() for line in axes.lines if line.get_marker() in "o<>"] == ["o", "o", "o", ">", "<"]
    edges = [float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() in "<>"]
    assert edges == [limits[1], limits[0]]
