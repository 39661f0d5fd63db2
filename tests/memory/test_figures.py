"""Figures of memory, read back: their lines and boxes carry the numbers of the rows."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from plkernel.analysis.figures.style import COLOURS, INK, rendered
from plkernel.memory.diagnostics import QUANTILES, Memory
from plkernel.memory.figures import START, Panel, half_life_figure, kernel_figure, model_figure

LAGS = 2.0 ** np.arange(7)
SEEDS, BLOCKS = 2, 3


def memory(scale: float, exponent: float) -> Memory:
    random = np.random.default_rng(int(10 * exponent))
    half_lives = np.sort(random.uniform(1, 900, (SEEDS, BLOCKS, len(QUANTILES))), axis=-1)
    exponents = exponent + random.uniform(0, 0.2, (SEEDS, BLOCKS, 1))
    return Memory(half_lives, LAGS, scale * LAGS**-exponents)


@pytest.fixture
def panels() -> list[Panel]:
    return [Panel(f"arm {i}", memory(3.0, 0.5 + i), memory(7.0, 1 + i), 1.15) for i in range(2)]


def drawn(axes, colour, width=None):
    """x and y of the lines of a colour, and of a width where it is given."""
    lines = [line for line in axes.lines if to_hex(line.get_color()) == colour.lower()]
    return [line.get_xydata().T for line in lines if width in (None, line.get_linewidth())]


def test_kernels_are_drawn_block_by_block_and_as_their_mean(panels: list[Panel]) -> None:
    figure = kernel_figure(panels, "gain none")
    for axes, panel, colour in zip(figure.axes, panels, (INK, COLOURS[0]), strict=True):
        for memory_, shade in ((panel.before, START), (panel.after, colour)):
            expected = np.log(memory_.kernels / memory_.kernels[..., :1]).mean(axis=0)
            blocks, [(lags, mean)] = drawn(axes, shade, 0.5), drawn(axes, shade, 1.5)
            assert [np.log(values) for _, values in blocks] == pytest.approx(expected)
            assert lags.tolist() == LAGS.tolist()
            assert np.log(mean) == pytest.approx(expected.mean(axis=0))
        assert (axes.get_xscale(), axes.get_yscale(), axes.get_title("left")) == ("log", "log", panel.title)


def test_the_law_stands_behind_the_kernels(panels: list[Panel]) -> None:
    figure = kernel_figure(panels)
    [(lags, law)] = drawn(figure.axes[1], INK)
    assert law == pytest.approx(lags**-1.15)
    assert "t**-1.15" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert drawn(kernel_figure([Panel("a", panels[0].before, panels[0].after, 0.575)]).axes[0], INK, 4)[0][1][
        -1
    ] == pytest.approx(64**-0.575)


def test_a_vanished_kernel_ends_where_it_vanishes() -> None:
    kernels = np.where(LAGS > 8, 0.0, 1 / LAGS)[None, None]
    gone = Memory(np.empty((0, 0, 7)), LAGS, kernels)
    figure = kernel_figure([Panel("a", gone, gone, 1.0)])
    [(lags, _)] = drawn(figure.axes[0], START)
    assert lags.tolist() == [1, 2, 4, 8]
    rendered(figure)


def test_boxes_hold_the_quartiles_of_every_block(panels: list[Panel]) -> None:
    figure = half_life_figure(panels)
    for axes, panel in zip(figure.axes, panels, strict=True):
        bars = axes.patches
        assert len(bars) == 2 * BLOCKS
        for found, bar_set in ((panel.before, bars[:BLOCKS]), (panel.after, bars[BLOCKS:])):
            quartiles = np.exp(np.log(found.half_lives).mean(axis=0))[:, [2, 4]]
            drawn_boxes = [(bar.get_y(), bar.get_y() + bar.get_height()) for bar in bar_set]
            assert np.array(drawn_boxes) == pytest.approx(quartiles)
        spans, medians = axes.collections[2].get_segments(), axes.collections[3].get_segments()
        assert [span[0][1] for span in spans] == pytest.approx(panel.after.half_lives[..., 0].min(axis=0))
        assert [span[1][1] for span in spans] == pytest.approx(panel.after.half_lives[..., -1].max(axis=0))
        assert [line[0][1] for line in medians] == pytest.approx(np.sqrt(panel.after.half_lives[..., 3].prod(axis=0)))


@pytest.mark.parametrize("trained_here", [True, False])
def test_a_model_shows_every_block(trained_here: bool) -> None:
    before, after = memory(1.0, 0.5).block(0), memory(2.0, 1.5)
    figure = model_figure(memory(1.0, 0.5) if trained_here else None, after, "model")
    kernels, half_lives = figure.axes
    assert len(kernels.lines) == BLOCKS * (1 + trained_here)
    assert np.log(kernels.lines[-1].get_ydata()) == pytest.approx(after.log_kernels()[-1])
    assert ("at initialisation" in kernels.get_title("left")) == trained_here
    assert len(half_lives.patches) == BLOCKS * (1 + trained_here)
    assert before.blocks == 1


@pytest.mark.slow
def test_the_same_rows_give_the_same_files(panels: list[Panel]) -> None:
    assert rendered(kernel_figure(panels))["svg"] == rendered(kernel_figure(panels))["svg"]
