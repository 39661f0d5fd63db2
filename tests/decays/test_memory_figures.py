"""Figures of memory, read back: which panels, lines, boxes and words there are."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from plkernel.analysis.figures.style import COLOURS, FAINTEST, INK
from plkernel.decays.memory import Memory
from plkernel.decays.memory_figures import (
    BEFORE_COLOUR,
    Panel,
    half_life_figure,
    kernel_figure,
    model_figure,
)

LAGS = 2.0 ** np.arange(7)
LIVES = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])


def memory(blocks: int = 2, factor: float = 1.0) -> Memory:
    kernels = np.stack([LAGS ** -(1.0 + block) for block in range(blocks)])[None]
    lives = np.stack([factor * LIVES * (1 + block) for block in range(blocks)])[None]
    return Memory(lives, LAGS, kernels)


def panels(count: int, *exponents: float) -> list[Panel]:
    laws = exponents or (1.0,) * count
    return [Panel(f"arm {i}", memory(), memory(factor=2.0), laws[i]) for i in range(count)]


@pytest.mark.parametrize(
    ("count", "places"),
    [(1, [(0, 0)]), (4, [(0, i) for i in range(4)]), (5, [(0, i) for i in range(4)] + [(1, 0)])],
)
def test_four_panels_stand_in_a_row_with_labels_at_the_outer_edge(
    count: int, places: list[tuple[int, int]]
) -> None:
    drawn = [one for one in kernel_figure(panels(count)).axes if one.axison]
    assert len(drawn) == count
    spots = [one.get_subplotspec() for one in drawn]
    assert [(one.rowspan.start, one.colspan.start) for one in spots] == places
    assert [one.get_title("left") for one in drawn] == [f"arm {i}" for i in range(count)]
    lowest = [i >= count - min(4, count) for i in range(count)]
    assert [one.get_xlabel() == "lag t (bytes)" for one in drawn] == lowest
    assert [one.get_ylabel() == "k(t) / k(1)" for one in drawn] == [
        i % 4 == 0 for i in range(count)
    ]
    assert len({one.get_ylim() for one in drawn}) == 1


@pytest.mark.parametrize(
    ("exponents", "law"),
    [((1.0, 1.0), "t**-1"), ((1.0, 2.0), "t**-x, x the exponent of the arm")],
)
def test_the_law_is_named_by_its_exponent_where_all_arms_have_one(
    exponents: tuple[float, ...], law: str
) -> None:
    figure = kernel_figure(panels(2, *exponents))
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        law,
        "at initialisation",
        "after training (each arm in its colour)",
    ]


def test_a_single_block_has_no_thin_lines() -> None:
    one = Panel("arm", memory(1), memory(1), 1.0)
    [axes] = kernel_figure([one]).axes
    assert len(axes.lines) == 3
    [axes] = kernel_figure(panels(1)).axes
    assert len(axes.lines) == 1 + 2 * (2 + 1)
    assert axes.get_ylim()[1] == 1.6


def test_boxes_stand_left_and_right_of_their_block() -> None:
    """A box from quartile to quartile, its median, and a line from end to end."""
    [axes] = half_life_figure(panels(1)).axes
    boxes = [(box.get_x(), box.get_width(), box.get_y(), box.get_height()) for box in axes.patches]
    expected = []
    for side, factor in ((-0.2, 1.0), (0.2, 2.0)):
        for block in range(2):
            scale = factor * (1 + block)
            expected.append((block + side - 0.16, 0.32, 4.0 * scale, 12.0 * scale))
    assert boxes == [pytest.approx(one) for one in expected]
    ends, medians, *_ = [np.array(lines.get_segments()) for lines in axes.collections]
    for block in range(2):
        scale = 1.0 + block
        end = [[block - 0.2, scale], [block - 0.2, 64.0 * scale]]
        assert ends[block] == pytest.approx(np.array(end))
        median = [[block - 0.36, 8.0 * scale], [block - 0.04, 8.0 * scale]]
        assert medians[block] == pytest.approx(np.array(median))
    colours = {to_hex(box.get_facecolor()) for box in axes.patches}
    assert colours == {BEFORE_COLOUR.lower(), INK.lower()}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("block", "half-life (bytes)")
    assert axes.get_xlim() == pytest.approx((-0.6, 1.6))


@pytest.mark.parametrize(("blocks", "ticks"), [(1, [0]), (8, range(8)), (9, range(0, 9, 2))])
def test_at_most_eight_blocks_are_numbered(blocks: int, ticks: object) -> None:
    [axes] = half_life_figure([Panel("arm", memory(blocks), memory(blocks), 1.0)]).axes
    assert axes.get_xticks().tolist() == list(ticks)  # type: ignore[call-overload]
    assert axes.get_yscale() == "log"


def test_a_model_is_drawn_now_and_before() -> None:
    kernels, lives = model_figure(memory(), memory(factor=2.0), "title", "tokens").axes
    assert kernels.get_title("left") == "kernels (dashed: before)"
    assert lives.get_title("left") == "half-lives (grey: before)"
    assert (kernels.get_xlabel(), kernels.get_ylabel()) == ("lag t (tokens)", "k(t) / k(1)")
    assert (lives.get_xlabel(), lives.get_ylabel()) == ("block", "half-life (tokens)")
    assert (kernels.get_xscale(), kernels.get_yscale()) == ("log", "log")
    assert [line.get_label() for line in kernels.lines[2:]] == ["block 0", "block 1"]
    assert [line.is_dashed() for line in kernels.lines] == [True, True, False, False]
    assert len(lives.patches) == 4
    assert to_hex(lives.patches[-1].get_facecolor()) == COLOURS[0].lower()


def test_a_model_without_what_was_before_has_no_word_of_it() -> None:
    figure = model_figure(None, memory())
    kernels, lives = figure.axes
    assert (kernels.get_title("left"), lives.get_title("left")) == ("kernels", "half-lives")
    assert len(kernels.lines) == len(lives.patches) == 2
    assert (kernels.get_xlabel(), lives.get_ylabel()) == ("lag t (bytes)", "half-life (bytes)")
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["block 0", "block 1"]


def test_kernels_of_a_model_are_drawn_down_to_the_faintest() -> None:
    gone = Memory(np.empty((0, 0, 7)), LAGS, np.exp(-LAGS)[None, None])
    assert model_figure(None, memory(1)).axes[0].get_ylim()[0] > FAINTEST
    deep = Memory(memory(1).half_lives, LAGS, np.exp(-LAGS)[None, None])
    assert gone.blocks == deep.blocks == 1
    assert model_figure(None, deep).axes[0].get_ylim()[0] == FAINTEST
