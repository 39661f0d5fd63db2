"""A study in one picture: the text's memory, kernels at initialisation, losses, differences.

matplotlib is imported where it draws.
"""

import textwrap
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from plkernel.analysis.figures.decay import scale
from plkernel.analysis.figures.style import (
    GREY,
    INK,
    LAW,
    PAGE_WIDTH,
    byte_unit,
    decades,
    line_style,
    style,
)
from plkernel.analysis.information.laws import CONFIDENCE
from plkernel.decays.memory import Memory
from plkernel.results.answer import control_note
from plkernel.results.comparison import ArmResult, Comparison
from plkernel.results.measured import Measured
from plkernel.results.statistics import Estimate, pointwise_band

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ARMS = 7
"""More cannot be distinguished in panels of this size."""
HEIGHT = 2.45
"""Inches of the panels."""
LEGEND_ROW = 0.16
"""Inches of a row of the legend."""
WIDEST_ROW = 95
"""Characters of all names in a row of the legend."""
SMALL = 7.0
"""Points of the smallest text."""
MARKERS = "osD^v<>"
"""One for each arm, so that they differ without colours too; all can be drawn open."""
LATE = 0.25
"""The loss is shown from this share of the bytes on: before, all arms fall alike and far."""
ROOM = 8.0
"""The axis of the information ends so many times above it, so that the law can be named there."""
BROAD = {**LAW, "alpha": 0.35}
"""Of the text's law, which stands out from its interval."""
STEEP_CORNER: dict[str, Any] = {"x": 0.98, "y": 0.98, "ha": "right", "va": "top"}
"""Where kernels that fall fast leave room for a word: above them."""
FLAT_CORNER: dict[str, Any] = {"x": 0.03, "y": 0.02, "ha": "left", "va": "bottom"}
"""Where others do: below them."""
BETWEEN_MEASURES = 0.34
"""Rows between the intervals of one arm, of which there is one for each of ENDS."""
LOWEST = 1e-3
"""Kernels, 1 at lag 1, are shown down to here."""
ENDS = {"final_val_bpb": ("validation", True), "test_bpb": ("test", False)}
"""Measures at the end, by key: name, and if its marker is filled."""


def overview_figure(
    comparison: Comparison, kernels: Mapping[str, Memory], words: Mapping[str, str]
) -> "Figure | None":
    """Draw the panels that the study has data for; None for a study that one picture cannot show.

    kernels  memory of the arms before training, by name
    words    what the arms are called, by name

    Shown are studies of one block, two to MOST_ARMS arms and two seeds or more.
    """
    from matplotlib.figure import Figure

    arms = _arms(comparison)
    if not arms:
        return None
    measured = comparison.measured
    shown = {arm.name: kernels[arm.name] for arm in arms if _is_known(kernels.get(arm.name))}
    names = [words.get(arm.name) or comparison.label(arm) for arm in arms]
    names[0] += " (baseline)"
    note = textwrap.fill(control_note(comparison), WIDEST_ROW, break_on_hyphens=False)
    panels = [measured is not None, bool(shown), True, True]
    rows = -(-len(arms) // _columns(names)) + len(note.splitlines())
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, HEIGHT + LEGEND_ROW * rows))
        grid = iter(figure.subplots(1, sum(panels), squeeze=False)[0])
        letters = iter("abcd")
        if measured:
            _information(_titled(next(grid), next(letters), "information\nin the text"), measured)
        if shown:
            axes = _titled(next(grid), next(letters), "kernels at\ninitialisation")
            _kernels(axes, [shown.get(arm.name) for arm in arms], measured)
        axes = _titled(next(grid), next(letters), "loss against\nbytes read")
        _losses(axes, comparison, arms)
        axes = _titled(next(grid), next(letters), "difference\nat the end")
        _differences(axes, comparison, arms)
        _legend(figure, names, note)
    return figure


def _arms(comparison: Comparison) -> tuple[ArmResult, ...]:
    """The arms that are drawn, the baseline first; none where one picture cannot show the study."""
    blocks = comparison.text_blocks
    if len(blocks) != 1 or not comparison.differences:
        return ()
    arms = blocks[0].arms
    if not 2 <= len(arms) <= MOST_ARMS:
        return ()
    found = comparison.differences
    tested = [found[arm.name].n for arm in arms if arm.name in found]
    return arms if max(tested, default=0) > 1 else ()


def _is_known(memory: Memory | None) -> bool:
    return memory is not None and memory.kernels.size > 0


def _titled(axes: "Axes", letter: str, title: str) -> "Axes":
    indented = title.replace("\n", "\n    ")
    axes.set_title(f"{letter}  {indented}", fontsize=8, fontweight="bold")
    axes.tick_params(labelsize=SMALL)
    return axes


def look(index: int) -> dict[str, Any]:
    """Colour, dashes and marker of an arm, 0 the baseline."""
    return {**line_style(index), "marker": MARKERS[index % len(MARKERS)]}


def _legend(figure: "Figure", names: Sequence[str], note: str) -> None:
    """Arms by line and marker, below all panels, under a note."""
    from matplotlib.lines import Line2D

    keys = [Line2D([], [], lw=1.4, ms=3.5, **look(index)) for index in range(len(names))]
    figure.legend(
        keys,
        list(names),
        loc="outside lower center",
        ncols=_columns(names),
        fontsize=SMALL,
        title=note or None,
        title_fontsize=SMALL,
        handlelength=2.8,
        columnspacing=1.2,
    )


def _columns(names: Sequence[str]) -> int:
    """Columns of the legend: as many as fit with the longest names beside each other."""
    lengths = sorted(map(len, names), reverse=True)
    fitting = [count for count in (1, 2, 3) if sum(lengths[:count]) <= WIDEST_ROW]
    return min(len(names), max(fitting, default=1))


# The panels


def _information(axes: "Axes", measured: Measured) -> None:
    """I(d) with its interval, the floor, and the power law on the lags that stand out."""
    curve = measured.information
    unit = scale(curve)
    lags = np.asarray(curve.lags)
    values = unit * np.asarray(curve.values)
    low, high = (unit * np.asarray(bound) for bound in curve.interval(CONFIDENCE))
    bottom = 0.5 * unit * min(curve.floor)
    top = ROOM * max(*(unit * np.asarray(curve.floor)), *values)
    axes.fill_between(lags, low.clip(bottom), high.clip(bottom), color=INK, alpha=0.12, lw=0)
    axes.plot(lags, np.where(values > bottom, values, np.nan), "o", color=INK, ms=1.6)
    axes.plot(lags, unit * np.asarray(curve.floor), color=GREY, ls=":", lw=0.9)
    axes.set(xscale="log", yscale="log", ylim=(bottom, top))
    axes.set(xlabel="lag d (bytes)", ylabel="information I(d) (bits)")
    last = measured.verdict.last_lag
    axes.axvline(last, ymax=0.78, color=GREY, lw=0.8, ls="--")
    notes = [f"counted to lag {last}"]
    if measured.law:
        law = measured.law
        ends = np.array([law.first_lag, law.last_lag])
        axes.plot(ends, unit * law.values(ends), **BROAD)
        notes.insert(0, f"d^-{law.beta:.2f} ({law.low:.2f} to {law.high:.2f})")
    text = "\n".join(notes)
    axes.text(0.98, 0.98, text, transform=axes.transAxes, ha="right", va="top", fontsize=SMALL)
    decades(axes.xaxis, axes.yaxis)


def _kernels(axes: "Axes", memories: Sequence[Memory | None], measured: Measured | None) -> None:
    """Kernels over lag, 1 at the first, the geometric mean over blocks, beside the text's law."""
    lowest = 1.0
    for index, memory in enumerate(memories):
        if memory is None:
            continue
        kernel = np.exp(memory.log_kernels().mean(axis=0))
        lowest = float(kernel[kernel > 0].min(initial=lowest))
        axes.plot(memory.lags, kernel, lw=1.2, ms=2.8, **look(index))
    axes.set(xscale="log", yscale="log", xlabel="lag (bytes)", ylabel="kernel, 1 at lag 1")
    if measured and measured.law:
        lags = np.array([1.0, axes.get_xlim()[1]])
        axes.plot(lags, lags**-measured.law.beta, **BROAD)
        name = f"grey: t^-{measured.law.beta:.2f}"
        free = STEEP_CORNER if measured.law.beta > 1 else FLAT_CORNER
        axes.text(s=name, transform=axes.transAxes, fontsize=SMALL, **free)
    axes.set_ylim(max(LOWEST, 0.6 * lowest), 1.5)
    decades(axes.xaxis, axes.yaxis)


def _losses(axes: "Axes", comparison: Comparison, arms: Sequence[ArmResult]) -> None:
    """Validation bits per byte against bytes read: seeds thin, their mean thick."""
    curves = [list(comparison.study.curves(arm.name).values()) for arm in arms]
    ends = [max(curve) for of_arm in curves for curve in of_arm if curve]
    last = max(ends, default=1)
    unit, unit_name = byte_unit(last)
    for index, of_arm in enumerate(curves):
        own = look(index)
        late = [{at: one[at] for at in sorted(one) if at >= LATE * last} for one in of_arm]
        for curve in late:
            at = [place / unit for place in curve]
            axes.plot(at, list(curve.values()), color=own["color"], lw=0.4, alpha=0.5)
        if any(late):
            mean = pointwise_band(late)
            axes.plot(mean.at / unit, mean.mean, lw=1.3, ms=2.8, **own)
    axes.set_xlabel(f"bytes read ({unit_name})")
    axes.set_ylabel(f"validation {comparison.unit}")


def _differences(axes: "Axes", comparison: Comparison, arms: Sequence[ArmResult]) -> None:
    """Differences to the baseline at the end with 95 % intervals, validation above test."""
    axes.axvline(0.0, color=INK, lw=0.7)
    rows = [(index, arm) for index, arm in enumerate(arms) if arm.differences]
    marks = _marks(rows)
    limits = _limits([mark.difference for mark in marks])
    for mark in marks:
        _draw_interval(axes, mark, limits)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    for above, _ in pairwise(range(len(rows))):
        axes.axhline(above + 0.5, color=GREY, lw=0.3)
    axes.set_xlim(*limits)
    told = ", ".join(f"{'filled' if full else 'open'} {name}" for name, full in ENDS.values())
    axes.set_xlabel(f"{comparison.unit}, left is better\n{told}", fontsize=SMALL)
    axes.locator_params(axis="x", nbins=3)
    axes.xaxis.set_major_formatter("{x:g}")  # no power of ten, which would lie on the label


class _Mark(NamedTuple):
    """An interval to be drawn.

    arm     the number of the arm, 0 the baseline
    height  in rows from above
    filled  fill the marker of the mean
    """

    arm: int
    height: float
    filled: bool
    difference: Estimate


def _marks(rows: Sequence[tuple[int, ArmResult]]) -> list[_Mark]:
    """The finite differences of arms, one row each, given with their numbers."""
    keys = [key for key in ENDS if any(key in arm.differences for _, arm in rows)]
    marks = []
    for row, (index, arm) in enumerate(rows):
        for at, key in enumerate(keys):
            one = arm.differences.get(key)
            if one is None or not np.isfinite([one.mean, one.low, one.high]).all():
                continue
            from_middle = at - (len(keys) - 1) / 2
            _, filled = ENDS[key]
            marks.append(_Mark(index, row + BETWEEN_MEASURES * from_middle, filled, one))
    return marks


def _draw_interval(axes: "Axes", mark: _Mark, limits: tuple[float, float]) -> None:
    """Draw an interval and its mean; where the interval leaves the panel, it ends in an arrow."""
    own = look(mark.arm)
    colour = own["color"]
    one = mark.difference
    height = mark.height
    left, right = limits
    axes.plot([max(one.low, left), min(one.high, right)], [height, height], color=colour, lw=1.1)
    arrows = {"<": (left, one.low < left), ">": (right, one.high > right)}
    for arrow, (end, is_cut) in arrows.items():
        if is_cut:
            axes.plot([end], [height], arrow, color=colour, ms=3.5, mew=0, clip_on=False)
    face = colour if mark.filled else "white"
    axes.plot([one.mean], [height], own["marker"], color=colour, mfc=face, ms=4, mew=0.9)


def _limits(shown: Sequence[Estimate]) -> tuple[float, float]:
    """Zero and all intervals, but no more than four times the largest mean either way."""
    if not shown:
        return -1.0, 1.0
    most = 4 * max(abs(one.mean) for one in shown) or max(one.high for one in shown)
    low = max(-most, min(0.0, *(one.low for one in shown)))
    high = min(most, max(0.0, *(one.high for one in shown)))
    room = 0.08 * (high - low) or 1e-3
    return low - room, high + room
