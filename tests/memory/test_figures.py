"""Figures of memory and of context, read back: their lines and boxes carry the numbers of the rows."""

import xml.dom.minidom
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex

from plkernel.analysis.figures.style import COLOURS, INK, rendered
from plkernel.memory.diagnostics import QUANTILES, Influence, Memory, Probe, by_position, truncation_of
from plkernel.memory.figures import (
    START,
    Curves,
    Panel,
    half_life_figure,
    kernel_figure,
    model_figure,
    probe_figure,
    truncation_figure,
)

LAGS = 2.0 ** np.arange(7)
SEEDS, BLOCKS = 2, 3
GIVEN = (1, 2, 4, 8)
BASE = np.array([[4.0, 3.5, 3.2, 3.0], [4.2, 3.7, 3.4, 3.2]])


def memory(scale: float, exponent: float) -> Memory:
    random = np.random.default_rng(int(10 * exponent))
    half_lives = np.sort(random.uniform(1, 900, (SEEDS, BLOCKS, len(QUANTILES))), axis=-1)
    exponents = exponent + random.uniform(0, 0.2, (SEEDS, BLOCKS, 1))
    return Memory(half_lives, LAGS, scale * LAGS**-exponents)


PANELS = [Panel(f"arm {i}", memory(3.0, 0.5 + i), memory(7.0, 1 + i), 1.15) for i in range(2)]


def lines(axes, colour, width=None):
    """x and y of the lines of a colour, and of a width where it is given."""
    drawn = [line for line in axes.lines if to_hex(line.get_color()) == colour.lower()]
    return [line.get_xydata().T for line in drawn if width in (None, line.get_linewidth())]


def test_kernels_are_drawn_block_by_block_as_their_mean_and_beside_the_law() -> None:
    figure = kernel_figure(PANELS, "gain none")
    for axes, panel, colour in zip(figure.axes, PANELS, (INK, COLOURS[0]), strict=True):
        for drawn, shade in ((panel.before, START), (panel.after, colour)):
            expected = np.log(drawn.kernels / drawn.kernels[..., :1]).mean(axis=0)
            blocks, [(lags, mean)] = lines(axes, shade, 0.5), lines(axes, shade, 1.5)
            assert [np.log(values) for _, values in blocks] == pytest.approx(expected)
            assert lags.tolist() == LAGS.tolist()
            assert np.log(mean) == pytest.approx(expected.mean(axis=0))
        assert (axes.get_xscale(), axes.get_yscale(), axes.get_title("left")) == ("log", "log", panel.title)
    [(lags, law)] = lines(figure.axes[1], INK)
    assert law == pytest.approx(lags**-1.15)
    assert "t**-1.15" in [text.get_text() for text in figure.legends[0].get_texts()]
    gone = Memory(np.empty((0, 0, 7)), LAGS, np.where(LAGS > 8, 0.0, 1 / LAGS)[None, None])
    rendered(kernel_figure([Panel("vanished", gone, gone, 1.0)]))


def test_boxes_hold_the_quartiles_of_every_block() -> None:
    for axes, panel in zip(half_life_figure(PANELS).axes, PANELS, strict=True):
        boxes = np.array([(bar.get_y(), bar.get_y() + bar.get_height()) for bar in axes.patches])
        for drawn, part in ((panel.before, boxes[:BLOCKS]), (panel.after, boxes[BLOCKS:])):
            assert part == pytest.approx(np.exp(np.log(drawn.half_lives).mean(axis=0))[:, [2, 4]])
        spans, medians = axes.collections[2].get_segments(), axes.collections[3].get_segments()
        assert [span[0][1] for span in spans] == pytest.approx(panel.after.half_lives[..., 0].min(axis=0))
        assert [span[1][1] for span in spans] == pytest.approx(panel.after.half_lives[..., -1].max(axis=0))
        assert [line[0][1] for line in medians] == pytest.approx(np.sqrt(panel.after.half_lives[..., 3].prod(axis=0)))


@pytest.mark.parametrize("trained_here", [True, False])
def test_a_model_shows_every_block(trained_here: bool) -> None:
    after = memory(2.0, 1.5)
    kernels, half_lives = model_figure(memory(1.0, 0.5) if trained_here else None, after, "model").axes
    assert len(kernels.lines) == len(half_lives.patches) == BLOCKS * (1 + trained_here)
    assert np.log(kernels.lines[-1].get_ydata()) == pytest.approx(after.log_kernels()[-1])
    assert ("before" in kernels.get_title("left")) == trained_here


def test_truncation_shows_means_over_seeds_and_the_loss() -> None:
    arms = {"base": Curves(GIVEN, BASE), "other": Curves(GIVEN, BASE + np.array([0.4, 0.3, 0.1, 0.0]))}
    whole, lost = truncation_figure(arms).axes
    for colour, arm in zip((INK, COLOURS[0]), arms.values(), strict=True):
        [(given, bpb)], [(shorter, cost)] = lines(whole, colour), lines(lost, colour)
        assert (tuple(given), tuple(shorter)) == (GIVEN, GIVEN[:-1])
        assert bpb == pytest.approx(arm.bits.mean(axis=0))
        assert cost == pytest.approx((bpb - bpb[-1])[:-1])
    assert (lost.get_xscale(), lost.get_yscale()) == ("log", "log")
    whole, lost = truncation_figure({"base": Curves(GIVEN, BASE, best=(3.9, 3.3, 3.0, 3.0))}).axes
    assert lines(whole, INK)[1][1].tolist() == [3.9, 3.3, 3.0, 3.0]
    assert lines(lost, INK)[1][1] == pytest.approx([0.9, 0.3, 0.0])
    assert truncation_figure({"nothing lost": Curves(GIVEN, BASE[:, ::-1])}).axes[1].get_yscale() == "linear"


@pytest.mark.parametrize("name", ["\x1b[31m\x07\x9b\udc9b", "\u65e5\u672c\u8a9e", "x" * 90, "$\\frac{$", "two\nlines"])
def test_any_name_is_drawn(name: str) -> None:
    """Without a warning, which is an error here; control characters as escapes, which XML may hold."""
    figure = truncation_figure({f"{name}{i}": Curves(GIVEN, BASE) for i in range(2)}, name)
    drawn = xml.dom.minidom.parseString(rendered(figure, ["png", "svg"])["svg"])
    texts = "".join(node.data for tag in drawn.getElementsByTagName("text") for node in tag.childNodes)
    assert name.split("\n")[0].translate({ord(x): ascii(x)[1:-1] for x in "\x1b\x07\x9b\udc9b"}) in texts


@pytest.fixture
def found() -> Probe:
    """Of a model that reads one token: beyond lag 1 there is nothing."""
    losses = np.random.default_rng(0).normal(3, 1, (4, 20))
    influence = Influence((1, 2, 4, 8), (0.5, 0.0, 0.0, 0.0), (0.1, 0.0, 0.0, 0.0))
    cut = truncation_of(list(GIVEN), losses + np.array([0.5, 0.2, 0.1, 0])[:, None])
    return Probe("token", 20, 8, 4.0, 1.0, influence, by_position(np.ones((20, 8))), cut)


def test_the_information_of_the_text_stands_beside_influence_and_loss(found: Probe) -> None:
    text = Influence(GIVEN, (0.2, 0.1, 0.05, 0.01), (0.01,) * 4)
    figure = probe_figure(replace(found, unit="byte", information=text))
    assert figure.axes[0].get_lines()[1].get_ydata().tolist() == figure.axes[2].get_lines()[1].get_ydata().tolist()
    assert figure.axes[0].get_lines()[1].get_ydata().tolist() == list(text.bits)
    assert set(rendered(figure)) == {"pdf", "png", "svg"}
