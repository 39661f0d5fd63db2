"""The figure of truncation curves, read back."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from plkernel.analysis.figures.context import Truncated, truncation_figure
from plkernel.analysis.figures.style import COLOURS, INK

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
