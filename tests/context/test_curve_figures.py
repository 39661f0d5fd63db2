"""Figures of memory and of context, read back: their lines and boxes carry the numbers of the
rows.
"""

import xml.dom.minidom

import numpy as np
import pytest
from matplotlib.colors import to_hex
from scipy.stats import t as student

from plkernel.analysis.figures.style import COLOURS, FAINTEST, INK, rendered
from plkernel.context.curve_figures import (
    Curves,
    beyond_figure,
    curve_figure,
    influence_figure,
    probe_figure,
    recall_figure,
    truncation_figure,
)
from plkernel.context.measures import INFORMED, Influence, Means, Probe, Truncation
from plkernel.decays.memory import QUANTILES, Memory
from plkernel.decays.memory_figures import BEFORE_COLOUR, Panel, kernel_figure

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
        for drawn, shade in ((panel.before, BEFORE_COLOUR), (panel.after, colour)):
            expected = np.log(drawn.kernels / drawn.kernels[..., :1]).mean(axis=0)
            blocks, [(lags, mean)] = lines(axes, shade, 0.5), lines(axes, shade, 1.5)
            assert [np.log(values) for _, values in blocks] == pytest.approx(expected)
            assert lags.tolist() == LAGS.tolist()
            assert np.log(mean) == pytest.approx(expected.mean(axis=0))
        assert (axes.get_xscale(), axes.get_yscale(), axes.get_title("left")) == (
            "log",
            "log",
            panel.title,
        )
    [(lags, law)] = lines(figure.axes[1], INK)
    assert law == pytest.approx(lags**-1.15)
    assert "t**-1.15" in [text.get_text() for text in figure.legends[0].get_texts()]
    gone = Memory(np.empty((0, 0, 7)), LAGS, np.where(LAGS > 8, 0.0, 1 / LAGS)[None, None])
    rendered(kernel_figure([Panel("vanished", gone, gone, 1.0)]))


def test_truncation_shows_means_over_seeds_and_the_loss() -> None:
    arms = {
        "base": Curves(GIVEN, BASE),
        "other": Curves(GIVEN, BASE + np.array([0.4, 0.3, 0.1, 0.0])),
    }
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
    assert (
        truncation_figure({"nothing lost": Curves(GIVEN, BASE[:, ::-1])}).axes[1].get_yscale()
        == "linear"
    )


def test_axes_of_truncation_say_what_is_given_and_what_is_lost() -> None:
    whole, lost = truncation_figure({"base": Curves(GIVEN, BASE)}).axes
    assert [axes.get_xlabel() for axes in (whole, lost)] == ["bytes given"] * 2
    assert whole.get_ylabel() == "bits per byte"
    assert lost.get_ylabel() == "bits per byte lost by the rest"


def test_bands_of_a_probe_are_95_per_cent_intervals_over_windows_and_over_blocks_of_the_text():
    windows = 5
    errors = (0.01, 0.01, 0.02, 0.03)
    bits = (0.8, 0.4, 0.2, 0.1)
    probe = Probe(
        "byte",
        windows,
        context=8,
        bytes_per_token=1.0,
        bits_per_token=3.0,
        influence=Influence(GIVEN, bits, errors),
        positions=Means(GIVEN, tuple(BASE[0]), errors),
        truncation=Truncation(windows, GIVEN, tuple(BASE[0]), (1.0, 0.5, 0.2, 0.0), errors),
        information=Influence(GIVEN, bits[::-1], errors),
    )
    near, along, lost = probe_figure(probe).axes
    over_windows = student.ppf(0.975, windows - 1)
    over_blocks = student.ppf(0.975, INFORMED - 1)
    expected = [
        (near.collections[0], bits, over_windows),
        (near.collections[1], bits[::-1], over_blocks),
        (along.collections[0], BASE[0], over_windows),
        (lost.collections[0], (1.0, 0.5, 0.2), over_windows),
    ]
    for band, middle, factor in expected:
        edges = band.get_paths()[0].vertices
        for place, (lag, value) in enumerate(zip(GIVEN, middle, strict=False)):
            heights = edges[edges[:, 0] == lag, 1]
            half = factor * errors[place]
            assert (heights.min(), heights.max()) == pytest.approx((value - half, value + half))


def test_any_name_is_drawn() -> None:
    """Without a warning, which is an error here; control characters as escapes, which XML may
    hold.
    """
    names = ["\x1b[31m\x07\x9b\udc9b", "\u65e5\u672c\u8a9e", "x" * 90, "$\\frac{$", "two\nlines"]
    figure = truncation_figure({name: Curves(GIVEN, BASE) for name in names}, " ".join(names))
    drawn = xml.dom.minidom.parseString(rendered(figure, ["png", "svg"])["svg"])
    texts = "".join(
        node.data for tag in drawn.getElementsByTagName("text") for node in tag.childNodes
    )
    for name in names:
        assert (
            name.split("\n")[0].translate({ord(x): ascii(x)[1:-1] for x in "\x1b\x07\x9b\udc9b"})
            in texts
        )


def test_every_kernel_is_seen_and_what_has_all_but_vanished_takes_no_room() -> None:
    """The axis ends below the lowest point, but at most a hundredth below the end of the law."""
    axes = kernel_figure(PANELS).axes[0]
    bottom, top = axes.get_ylim()
    drawn = np.concatenate([line.get_ydata() for line in axes.lines])
    assert bottom < drawn.min()
    assert drawn.max() < top
    falling = Memory(np.empty((0, 0, 7)), LAGS, np.exp(1 - LAGS)[None, None])
    bottom, top = kernel_figure([Panel("falling", falling, falling, 1.0)]).axes[0].get_ylim()
    assert bottom == pytest.approx(1 / LAGS[-1] / 100)
    assert top > 1


def a_probe(context: int = 8, **options) -> Probe:
    errors = (0.01, 0.01, 0.02, 0.03)
    bits = (0.8, 0.4, 0.2, 0.1)
    return Probe(
        "byte",
        5,
        context=context,
        bytes_per_token=1.0,
        bits_per_token=3.0,
        influence=Influence(GIVEN, bits, errors),
        positions=Means(GIVEN, tuple(BASE[0]), errors),
        truncation=Truncation(5, GIVEN, tuple(BASE[0]), (1.0, 0.5, 0.2, 0.0), errors),
        **options,
    )


def test_panels_of_a_probe_are_named_and_reach_over_the_context() -> None:
    axes = probe_figure(a_probe()).axes
    assert [(one.get_title("left"), one.get_xlabel(), one.get_ylabel()) for one in axes] == [
        ("one byte replaced", "lag d (bytes)", "change, bits"),
        ("by position", "bytes before", "bits per byte"),
        ("the rest taken away", "d: bytes given", "lost, bits per byte"),
    ]
    for one in axes:
        assert one.get_xlim() == pytest.approx((1 / 1.3, 1.3 * 8))
        assert one.get_xscale() == "log"
        assert len(one.lines) == 1
    assert [one.get_yscale() for one in axes] == ["log", "linear", "log"]
    drawn = [one.lines[0].get_xydata().T.tolist() for one in axes]
    assert drawn == [
        [list(GIVEN), [0.8, 0.4, 0.2, 0.1]],
        [list(GIVEN), BASE[0].tolist()],
        [list(GIVEN[:-1]), [1.0, 0.5, 0.2]],
    ]
    assert axes[0].get_legend() is None


@pytest.mark.parametrize(
    ("context", "ticks"),
    [(8, [1, 4]), (16, [1, 4, 16]), (1024, [4**n for n in range(6)]), (1025, [1, 16, 256])],
)
def test_ticks_of_a_probe_are_powers_of_4_and_of_16_beyond_1024(
    context: int, ticks: list[int]
) -> None:
    for one in probe_figure(a_probe(context)).axes:
        assert one.get_xticks().tolist() == ticks


def test_information_of_the_text_stands_beside_influence_and_loss() -> None:
    text = Influence(GIVEN, (0.5, 0.3, 0.2, 0.1), (0.01,) * 4)
    near, along, lost = probe_figure(a_probe(information=text)).axes
    assert [len(one.lines) for one in (near, along, lost)] == [2, 1, 2]
    for one in (near, lost):
        assert lines(one, COLOURS[0])[0].tolist() == [list(GIVEN), list(text.bits)]
        assert lines(one, INK)
    legend = [entry.get_text() for entry in near.get_legend().get_texts()]
    assert legend == ["model", "I(d) of the text"]
    assert lost.get_legend() is None


def test_what_reading_on_costs_is_a_fourth_panel() -> None:
    cost = Means((1024, 2048), (0.0, -0.5), (0.01, 0.02))
    *_, far = probe_figure(a_probe(trained=1024, cost=cost)).axes
    assert (far.get_title("left"), far.get_xlabel()) == ("reading on", "bytes before")
    assert far.get_ylabel() == "lost since 1,024, bits per byte"
    assert far.lines[0].get_xydata().T.tolist() == [[1024, 2048], [0.0, -0.5]]
    assert far.get_yscale() == "linear"


def test_accuracies_of_recall_are_two_panels_a_row_on_one_scale() -> None:
    arms = {"base": Curves(GIVEN, BASE / 5), "other": Curves(GIVEN, BASE / 6)}
    panels = [(arms, f"below {i}", f"left {i}") for i in range(4)]
    figure = recall_figure(panels)
    axes = figure.axes
    assert [(one.get_xlabel(), one.get_ylabel()) for one in axes] == [
        (f"below {i}", f"left {i}") for i in range(4)
    ]
    for one in axes:
        assert one.get_ylim() == pytest.approx((-0.04, 1.04))
        assert one.get_yscale() == "linear"
        assert len(one.lines) == 2
    places = [one.get_subplotspec() for one in axes]
    at = [(one.rowspan.start, one.colspan.start) for one in places]
    assert at == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["base", "other"]


def test_reading_on_is_drawn_from_a_thin_line_at_zero() -> None:
    arms = {"base": Curves(GIVEN, BASE)}
    whole, cost = beyond_figure(
        [(arms, "bytes before", "bits"), (arms, "bytes before", "cost")]
    ).axes
    [zero] = lines(cost, INK, 0.6)
    assert zero[1].tolist() == [0.0, 0.0]
    assert not lines(whole, INK, 0.6)
    assert (whole.get_yscale(), cost.get_yscale()) == ("linear", "linear")


def test_bands_over_seeds_are_95_per_cent_intervals_of_the_mean() -> None:
    [axes] = influence_figure({"base": Curves(GIVEN, BASE)}).axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == (
        "lag d (bytes)",
        "change of the prediction, bits",
    )
    edges = axes.collections[0].get_paths()[0].vertices
    half = student.ppf(0.975, SEEDS - 1) * 0.1  # two seeds 0.2 apart have this standard error
    for lag, value in zip(GIVEN, BASE.mean(axis=0), strict=True):
        heights = edges[edges[:, 0] == lag, 1]
        assert (heights.min(), heights.max()) == pytest.approx((value - half, value + half))
    [alone] = influence_figure({"base": Curves(GIVEN, BASE[:1])}).axes
    assert not alone.collections, "one seed has no interval"


@pytest.mark.parametrize(
    ("curve", "labels", "scale"),
    [
        (
            Means(GIVEN, tuple(BASE[0]), (0.1,) * 4),
            [("bytes before, in the window", "bits per byte")],
            "log",
        ),
        (
            Influence(GIVEN, (0.8, 0.4, 0.2, 0.1), (0.1,) * 4),
            [("lag d (bytes)", "change of the prediction, bits")],
            "log",
        ),
        (
            Truncation(5, GIVEN, tuple(BASE[0]), (1.0, 0.5, 0.2, 0.0), (0.1,) * 4),
            [
                ("bytes given", "bits per byte"),
                ("bytes given", "bits per byte lost by the rest"),
            ],
            "log",
        ),
    ],
    ids=["by position", "influence", "truncation"],
)
def test_a_curve_of_one_model_is_drawn_with_its_axes(curve, labels, scale) -> None:
    axes = curve_figure(curve).axes
    assert [(one.get_xlabel(), one.get_ylabel()) for one in axes] == labels
    assert axes[-1].get_yscale() == scale
    values = curve.bits if isinstance(curve, Influence) else curve.bpb
    assert axes[0].lines[0].get_ydata().tolist() == list(values)


def test_a_logarithmic_axis_shows_what_is_above_zero_down_to_a_millionth() -> None:
    def limits(*bits: float) -> tuple[float, float]:
        [axes] = influence_figure({"base": Curves(GIVEN, np.array([bits]))}).axes
        assert axes.get_yscale() == "log"
        return axes.get_ylim()

    assert limits(8.0, 4.0, 0.0, -1.0) == pytest.approx((2.0, 16.0))
    assert limits(1.0, 1e-9, 0.5, 0.5) == pytest.approx((FAINTEST, 2.0))
    [axes] = influence_figure({"base": Curves(GIVEN, np.zeros((1, 4)))}).axes
    assert axes.get_yscale() == "linear"
