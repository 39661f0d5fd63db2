"""One style for every figure, and every figure as PDF, PNG and SVG from the same drawing.

matplotlib is imported inside the functions that draw, never with this module.
"""

import gc
import io
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.ticker import Formatter

INK = "#1a1a1b"
"""Of text, axes and the baseline."""
GREY = "#8e9299"
"""Of what is shown for comparison."""

# Okabe & Ito (2008), told apart under the common colour deficiencies, without their black, their
# yellow, which is too pale for a line, and their light blue, which is taken for the blue: the wine
# is Tol's.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#882255")
DASHES = (
    (0, (5, 1.6)),
    (0, (1.2, 1.2)),
    (0, (7, 1.5, 1.2, 1.5)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (9, 3)),
    (0, (2, 4)),
)
COLUMN_WIDTH = 3.35
"""Inches of one column of a two-column paper."""
PAGE_WIDTH = 6.9
"""Inches of its full width."""

STYLE: dict[str, Any] = {
    **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize"), 8.0),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 7.0),
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.6),
    **dict.fromkeys(("xtick.minor.width", "ytick.minor.width"), 0.4),
    **dict.fromkeys(("axes.spines.right", "axes.spines.top", "legend.frameon"), False),
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK
    ),
    "axes.titlelocation": "left",
    "legend.fontsize": 7.5,
    "legend.handlelength": 3.4,
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,  # TrueType, which journals ask for
    "svg.fonttype": "none",  # text stays text: it can be searched and read aloud
    "svg.hashsalt": "plkernel",  # the same drawing gives the same file
    "text.parse_math": False,  # a name with dollar signs is a name
}
UNDATED: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None},
    "png": {},
    "svg": {"Date": None},
}
"""Metadata without the time, by kind of file."""

ABOVE: dict[str, Any] = {"y": 1.0}
"""Place of a title with nothing between it and the axes; to look for one is a tenth of a layout."""
FAINTEST = 1e-6
"""Share of its largest value below which a curve is cut off."""
LAW: dict[str, Any] = {"color": INK, "lw": 4, "alpha": 0.18, "solid_capstyle": "butt", "zorder": 1}
"""A broad pale line: a law, or the best that can be done."""


@contextmanager
def style() -> Iterator[None]:
    """Draw and render in the style of the house, leaving matplotlib's own settings as they were."""
    import matplotlib

    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        yield


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Collect garbage less often: figures are made of many objects, which stay for a while.

    An eighth of the time of a report of many figures went to collections.
    """
    young, *older = gc.get_threshold()
    gc.set_threshold(50 * young, *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)


def line_style(index: int) -> dict[str, Any]:
    """Colour and dashes of arm `index`: 0, the baseline, is solid ink; 36 others differ."""
    if index == 0:
        return {"color": INK, "linestyle": "-"}
    turn, colour = divmod(index - 1, len(COLOURS))
    return {"color": COLOURS[colour], "linestyle": DASHES[(colour + turn) % len(DASHES)]}


def rendered(figure: "Figure", kinds: Sequence[str] = ("pdf", "png", "svg")) -> dict[str, bytes]:
    """The figure as {"pdf": ..., "png": ..., "svg": ...}; the same figure gives the same bytes.

    Control characters, which an SVG may not hold, are drawn as escapes. No warning is given of a
    glyph that the font lacks, which is drawn as a box, nor of names so long that no room is left
    for the axes.
    """
    files = {}
    _escape_control_characters(figure)
    with style(), warnings.catch_warnings():
        for message in ("Glyph .* missing from", "constrained_layout not applied"):
            warnings.filterwarnings("ignore", message, UserWarning)
        _fix_layout(figure)
        for kind in kinds:
            buffer = io.BytesIO()
            figure.savefig(
                buffer, format=kind, dpi=200, metadata=UNDATED[kind], transparent=kind == "svg"
            )
            files[kind] = buffer.getvalue()
    return files


def _escape_control_characters(figure: "Figure") -> None:
    """Put escapes in place of characters in the figure's texts that have no shape."""
    from matplotlib.axis import Axis
    from matplotlib.text import Text

    waiting: list[Any] = [figure]
    while waiting:
        artist = waiting.pop()
        if isinstance(artist, Text):
            artist.set_text(_escaped(artist.get_text()))
        if isinstance(artist, Axis):
            # Its ticks are made anew for every layout, at much cost, and take their labels from it.
            waiting += [artist.label, artist.offsetText]
            _escape_tick_labels(artist.get_major_formatter())
            _escape_tick_labels(artist.get_minor_formatter())
        else:
            waiting += artist.get_children()


def _escape_tick_labels(formatter: "Formatter") -> None:
    """Let a formatter escape the labels that it gives, once: axes may share it."""
    given = formatter.format_ticks
    if getattr(given, "is_escaping", False):
        return

    def escaping(values: list[float]) -> list[str]:
        return [_escaped(label) for label in given(values)]

    setattr(escaping, "is_escaping", True)  # noqa: B010, functions have no such attribute
    setattr(formatter, "format_ticks", escaping)  # noqa: B010, of this one alone


def _escaped(words: str) -> str:
    """Words with escapes of the characters that have no shape."""
    if words.replace("\n", "").isprintable():
        return words
    return "".join(
        character if character.isprintable() or character == "\n" else ascii(character)[1:-1]
        for character in words
    )


def _fix_layout(figure: "Figure") -> None:
    """Find the layout once for all kinds: with an engine every kind would be drawn twice."""
    import matplotlib

    engine = figure.get_layout_engine()
    if engine is None:
        return
    engine.execute(figure)
    with matplotlib.rc_context(
        {"figure.constrained_layout.use": False, "figure.autolayout": False}
    ):
        figure.set_layout_engine(None)


def plain_ticks(axis: "Axis") -> None:
    """Ticks of a log axis at 1, 2 and 5 of each decade, written out in plain digits."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:g}")


def decades(*log_axes: "Axis") -> None:
    """Set ticks in plain digits: at powers of ten, or at 1, 2 and 5 of each over a small range.

    Where these show fewer than two, ticks are evenly spaced.
    """
    from matplotlib.ticker import LogLocator, MaxNLocator

    for axis in log_axes:
        plain_ticks(axis)
        low, high = sorted(axis.get_view_interval())
        if high > 50 * low:
            axis.set_major_locator(LogLocator(numticks=7))
        if _shown(axis) < 2:
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        if _shown(axis) < 2:
            axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axis.set_major_formatter(lambda value, _: f"{value:g}".replace("e-0", "e-"))


def _shown(axis: "Axis") -> int:
    """The number of ticks that lie in view."""
    low, high = sorted(axis.get_view_interval())
    return sum(low <= at <= high for at in axis.get_major_locator().tick_values(low, high))


def headline(figure: "Figure", heading: str) -> None:
    """A bold heading over the figure, broken into lines of 12 characters to an inch of width."""
    lines = textwrap.fill(heading, int(12 * figure.get_figwidth()))
    figure.suptitle(lines, fontsize=9, fontweight="bold")


def legend_below(figure: "Figure", names: Sequence[str]) -> None:
    """A legend under the figure with the line styles 0, 1, ... in the order of `names`."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], linewidth=1.5, **line_style(index)) for index in range(len(names))]
    figure.legend(handles, list(names), loc="outside lower center", ncols=min(len(names), 3))


def byte_unit(size: float) -> tuple[float, str]:
    """The unit of bytes that suits numbers up to `size`: its size and its name."""
    units = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    return next(((unit, name) for unit, name in units if size >= unit), (1.0, "bytes"))


def row_of_axes(
    count: int, width: float, height: float, rows: int, heading: str, **options: Any
) -> tuple["Figure", list["Axes"]]:
    """`count` axes side by side, in `rows`; width and height in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    headline(figure, heading)
    return figure, list(figure.subplots(rows, count, squeeze=False, **options).flat)
