"""Ticks of logarithmic axes, which all figures share."""

from unittest.mock import Mock, patch
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from plkernel.analysis.figures.style import decades, rendered, style


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0.62, 1.05, [0.7, 0.8, 0.9, 1.0]),
        (0.91, 1.02, [0.95, 1.0]),
        (0.3, 1.6, [0.5, 1.0]),
        (0.11, 6.0, [0.2, 0.5, 1.0, 2.0, 5.0]),
        (0.02, 1.5, [0.1, 1.0]),
        (1.0, 2048.0, [1.0, 10.0, 100.0, 1000.0]),
    ],
)
def test_a_log_axis_has_two_ticks_or_more_in_view(
    low: float, high: float, wanted: list[float]
) -> None:
    """Powers of ten where two of them fit, then 1, 2 and 5 of each, then even steps."""
    axes = Figure().subplots()
    axes.set(yscale="log", ylim=(low, high))
    decades(axes.yaxis)
    ticks = [float(at) for at in axes.get_yticks() if low <= at <= high]
    assert ticks == pytest.approx(wanted)
    assert axes.yaxis.get_major_formatter()(wanted[0], 0) == f"{wanted[0]:g}"


def test_characters_without_a_shape_are_escaped_wherever_they_stand() -> None:
    """An SVG may not hold them. Labels of ticks are made anew at every layout."""
    with style():
        figure = Figure()
        axes, other = figure.subplots(1, 2)
        axes.plot([0, 1], [0, 1], label="key\x07")
        axes.legend()
        axes.set_title("title\x07\nof two lines")
        axes.set_xlabel("axis\x07")
        axes.set_yticks([0, 1], ["tick\x07", "caf\xe9"])
        axes.annotate("note\x07", (0, 0))
        other.set_xticks([0, 1])
        figure.suptitle("heading\x07")
    (svg,) = rendered(figure, ["svg"]).values()
    texts = ElementTree.fromstring(svg).itertext()
    words = {text.strip() for text in texts}
    escaped = ("key", "title", "axis", "tick", "note", "heading")
    assert words >= {f"{word}\\x07" for word in escaped}
    assert words >= {"of two lines", "caf\xe9", "0", "1"}


def test_labels_of_categories_and_of_minor_ticks_are_escaped_once() -> None:
    """However often a figure is drawn, and of axes that share their labels."""
    with style():
        figure = Figure()
        axes, other = figure.subplots(1, 2, sharex=True, sharey=True)
        axes.plot(["category\x07", "caf\xe9"], [0.0, 1.0])
        axes.set_yticks([0.5], ["minor\x07"], minor=True)
        other.plot(["category\x07", "caf\xe9"], [1.0, 0.0])
    for _ in range(3):
        (svg,) = rendered(figure, ["svg"]).values()
        words = {text.strip() for text in ElementTree.fromstring(svg).itertext()}
        assert words >= {"category\\x07", "caf\xe9", "minor\\x07", "0.0", "1.0"}
    escape = Mock(side_effect=str.upper)
    with patch("plkernel.analysis.figures.style._escaped", escape):
        assert axes.xaxis.get_major_formatter().format_ticks([0.0, 1.0]) == [
            "CATEGORY\x07",
            "CAF\xc9",
        ]
    assert escape.call_count == 2
