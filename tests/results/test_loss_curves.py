"""Curves of the loss over training: every seed, and the means and bands of them."""

from typing import Any

import numpy as np
import pytest

from plkernel.results.loss_curves import difference_figure, loss_figure
from plkernel.results.statistics import pointwise_band

AT = (0, 1000, 2000, 3000, 4000)


def seeds(level: float) -> list[dict[int, float]]:
    return [{at: level + 0.1 * seed + 100 / (at + 100) for at in AT} for seed in range(3)]


ARMS = {"a": seeds(2.0), "b": seeds(2.5)}


def drawn(axes: Any, width: float) -> list[np.ndarray]:
    return [line.get_ydata() for line in axes.lines if line.get_linewidth() == width]


def test_seeds_are_thin_and_their_mean_is_thick_over_the_whole_and_the_second_half() -> None:
    """On the left from the first byte on, for the logarithmic scale has no zero."""
    whole, late = loss_figure(ARMS).axes
    assert whole.get_xscale() == "log"
    for axes, first in ((whole, 1), (late, 2)):
        at = AT[first:]
        thin = [[curve[place] for place in at] for of_arm in ARMS.values() for curve in of_arm]
        thick = [
            [np.mean([curve[place] for curve in of_arm]) for place in at]
            for of_arm in ARMS.values()
        ]
        assert np.array(drawn(axes, 0.5)) == pytest.approx(np.array(thin))
        assert np.array(drawn(axes, 1.5)) == pytest.approx(np.array(thick))
        places = axes.lines[0].get_xdata()
        assert places / places[-1] == pytest.approx(np.array(at) / AT[-1])


def test_differences_are_drawn_over_their_band_and_zero() -> None:
    for axes, curves in zip(difference_figure(ARMS).axes, ARMS.values(), strict=True):
        thin = [[curve[place] for place in AT] for curve in curves]
        band = pointwise_band(curves)
        assert np.array(drawn(axes, 0.5)) == pytest.approx(np.array(thin))
        assert np.array(drawn(axes, 1.5)) == pytest.approx(np.array([band.mean]))
        edge = axes.collections[0].get_paths()[0].vertices[:, 1]
        assert [edge.min(), edge.max()] == pytest.approx([band.low.min(), band.high.max()])
        assert [list(line.get_ydata()) for line in axes.lines].count([0.0, 0.0]) == 1


def test_figures_say_under_a_heading_what_they_show() -> None:
    losses = loss_figure(ARMS, "a is ahead", "bits per answer")
    whole, late = losses.axes
    assert losses.get_suptitle() == "a is ahead"
    assert [axes.get_title("left") for axes in losses.axes] == ["whole run", "second half"]
    assert whole.get_ylabel() == "validation bits per answer"
    assert {axes.get_xlabel() for axes in losses.axes} == {"training bytes read (kB)"}
    assert late.get_xlim() == (2.0, 4.0)
    assert [text.get_text() for text in losses.legends[0].get_texts()] == ["a", "b"]
    differences = difference_figure(ARMS, "b is behind", unit="bits per answer")
    assert differences.get_suptitle() == "b is behind"
    assert differences.get_supxlabel() == "training bytes read (kB)"
    assert differences.get_supylabel() == "difference in bits per answer, below 0 is better"
    assert [axes.get_title("left") for axes in differences.axes] == ["a", "b"]


@pytest.mark.parametrize(
    ("count", "lowest"), [(1, [0]), (3, [0, 1, 2]), (4, [2, 3]), (5, [2, 3, 4])]
)
def test_panels_with_none_below_them_have_numbers_of_bytes_and_all_one_scale(
    count: int, lowest: list[int]
) -> None:
    arms = {f"arm-{index}": seeds(2.0) for index in range(count)}
    panels = [
        axes for axes in difference_figure(arms, limits=(-1.0, 2.0)).axes if axes.get_visible()
    ]
    numbered = [axes.xaxis.get_tick_params()["labelbottom"] for axes in panels]
    assert [index for index, is_numbered in enumerate(numbered) if is_numbered] == lowest
    assert [axes.get_ylim() for axes in panels] == count * [(-1.0, 2.0)]
