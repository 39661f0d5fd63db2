"""The forest: what initialisations are worth, on validation and on test text, in one figure.

render.py writes it to forest/forest.png and .svg, and its numbers to forest/table.json.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from comparisons import COMPARISONS, POOLED
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from sentences import compared, pooled_effect

from plkernel.analysis.figures.style import COLOURS, GREY, INK, PAGE_WIDTH, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TEXTS = {"validation": "final_val_bpb", "test": "test_bpb"}
BAND = 0.01
"""Bits per byte either way that the grey band marks."""
LOOKS: dict[str, dict[str, Any]] = {
    "validation": {"marker": "o", "color": COLOURS[0], "mfc": COLOURS[0]},
    "test": {"marker": "s", "color": COLOURS[1], "mfc": "white"},
}
APART = {"validation": -0.16, "test": 0.16}
"""Rows between the two texts of a comparison."""
ROW_HEIGHT = 0.158
ABOVE_HEADING = 0.35


def table() -> dict[str, Any]:
    """Return the numbers of the forest: every comparison and every pooled effect, by text."""
    rows = []
    for one in COMPARISONS:
        row: dict[str, Any] = {
            "group": one.group,
            "label": one.label,
            "study": one.study,
            "arm": one.arm,
        }
        for text, loss in TEXTS.items():
            found = compared(one, loss)
            row["seeds"] = found.n
            row[text] = {"mean": found.mean, "low": found.low, "high": found.high}
        rows.append(row)
    pooled = {
        name: {text: pooled_effect(name, loss)._asdict() for text, loss in TEXTS.items()}
        for name in POOLED
    }
    return {"rows": rows, "pooled": pooled}


INTERVAL = "{mean:+.3f} ({low:+.3f} to {high:+.3f})"


def markdown_rows(found: Mapping[str, Any]) -> list[list[str]]:
    """Return the lines of the table behind the figure."""
    lines = []
    for row in found["rows"]:
        texts = [INTERVAL.format(**row[text]) for text in TEXTS]
        lines.append([row["group"], row["label"], *texts, str(row["seeds"]), f"`{row['study']}`"])
    for name, texts_of in found["pooled"].items():
        texts = [INTERVAL.format(**texts_of[text]) for text in TEXTS]
        number = texts_of["validation"]["studies"]
        lines.append([f"Pooled over {number}", f"{name}, source code", *texts, "", ""])
    return lines


def figure() -> Figure:
    """Draw every comparison with a dot for validation and one for test text, under its group."""
    found = table()
    groups: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for row in found["rows"]:
        groups.setdefault(row["group"], []).append((row["label"], row))
    groups["Pooled over studies, source code"] = [
        (f"{name}, {texts['validation']['studies']} comparisons", texts)
        for name, texts in found["pooled"].items()
    ]
    lines = sum(1 + ABOVE_HEADING + len(rows) for rows in groups.values())
    with style():
        drawing = Figure(figsize=(PAGE_WIDTH, ROW_HEIGHT * lines + 0.8))
        axes = drawing.subplots()
        axes.axvspan(-BAND, BAND, color=GREY, alpha=0.25, lw=0, zorder=0)
        axes.axvline(0.0, color=INK, lw=0.6)
        place = -ABOVE_HEADING
        ticks: dict[float, str] = {}
        for title, rows in groups.items():
            place += ABOVE_HEADING
            _heading(axes, place, title)
            for label, texts in rows:
                place += 1
                ticks[place] = label
                _row(axes, place, texts, is_pooled=title.startswith("Pooled"))
            place += 1
        axes.set_yticks(list(ticks), list(ticks.values()))
        axes.set(xlim=(-0.105, 0.105), ylim=(place - 0.4, -0.7))
        axes.set_xlabel("difference to the baseline in bits per byte: left of 0 is better")
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x", lw=0.3, alpha=0.5)
        drawing.legend(handles=_legend(), loc="outside lower center", ncols=4, handlelength=2)
    return drawing


def _heading(axes: "Axes", place: float, title: str) -> None:
    at_the_left = axes.get_yaxis_transform()
    axes.text(-0.005, place, title, transform=at_the_left, va="center", ha="right", weight="bold")


def _row(axes: "Axes", place: float, texts: Mapping[str, Any], is_pooled: bool) -> None:
    for text, look in LOOKS.items():
        one = texts[text]
        height = place + APART[text]
        width = 2.0 if is_pooled else 1.1
        axes.plot([one["low"], one["high"]], [height, height], color=look["color"], lw=width)
        marker = "D" if is_pooled else look["marker"]
        axes.plot(one["mean"], height, **{**look, "marker": marker}, ls="", ms=3.4, mew=1.0)


def _legend() -> list[Any]:
    dots = [Line2D([], [], lw=1.1, ms=3.4, label=text, **look) for text, look in LOOKS.items()]
    interval = Line2D([], [], color=GREY, lw=1.1, label="95 % interval over seeds")
    return [*dots, interval, Patch(color=GREY, alpha=0.25, label=f"within {BAND:g}")]
