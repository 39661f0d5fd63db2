"""Figures of memory: kernels and half-lives before and after training, the worth of context, the probe of a model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from plkernel.analysis.exponentials import power_law
from plkernel.analysis.figures.decay import power_ticks
from plkernel.analysis.figures.style import (
    COLOURS,
    COLUMN_WIDTH,
    GREY,
    INK,
    PAGE_WIDTH,
    headline,
    legend_below,
    line_style,
    rendered,
    style,
)
from plkernel.analysis.intervals import critical_value, student_interval
from plkernel.common.files import atomic_write, check_file, save_json
from plkernel.memory.diagnostics import Floats, Memory, Probe

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

KINDS = ("pdf", "png", "svg")
DRAWN = (1e-3, 1e9)
"""Half-lives in tokens that are drawn; those beyond are drawn at the edge."""
START = GREY
"""Colour of the state before training."""
COLUMNS = 4
LONG_NAME = 24
START_DASHES = (0, (3, 1.2))
BOX_WIDTH, BOX_GAP = 0.32, 0.2
LAW: dict[str, Any] = {"color": INK, "lw": 4, "alpha": 0.18, "solid_capstyle": "butt", "zorder": 1}
"""A broad pale line: a law, or the best that can be done."""


@dataclass(frozen=True)
class Report:
    """Result of a command: the text to print, the values for JSON, its figure, and whether anything is wrong."""

    text: str
    values: dict[str, Any]
    draw: "Callable[[], Figure]"
    wrong: bool = False

    def deliver(self, json: Path | None, figure: Path | None) -> None:
        """Print the text, and write the values and the figure to files."""
        print(self.text)
        if json is not None:
            save_json(json, self.values)
            print(f"\nwritten: {json}")
        if figure is not None:
            atomic_write(figure, rendered(self.draw(), [figure.suffix[1:]])[figure.suffix[1:]])
            print(f"\nwritten: {figure}")


def check_options(json: Path | None, figure: Path | None, **least: tuple[int | None, int]) -> None:
    """Raise ValueError for files that cannot be written, and for an option (value, least) below its least value."""
    if figure is not None and figure.suffix[1:] not in KINDS:
        raise ValueError(f"figure must end in {', '.join(f'.{kind}' for kind in KINDS)}, got {str(figure)!r}")
    for option, (value, lowest) in least.items():
        if value is not None and value < lowest:
            raise ValueError(f"{option} must be at least {lowest}, got {value}")
    check_file(json, "json")
    check_file(figure, "figure")


@dataclass(frozen=True)
class Panel:
    """Memory of an arm before training and after; `exponent` is that of its power law, t**-exponent."""

    title: str
    before: Memory
    after: Memory
    exponent: float


@dataclass(frozen=True)
class Truncated:
    """Truncation curves of an arm: `given` (L,) bytes, bits per byte (S,L) of its seeds.

    floor: (L,) of the best possible predictor, if the source of the text is known.
    """

    given: tuple[int, ...]
    bpb: Floats
    floor: tuple[float, ...] | None = None

    @property
    def cost(self) -> Floats:
        """(S,L): loss against the whole context."""
        return np.asarray(self.bpb - self.bpb[:, -1:])


@dataclass(frozen=True)
class Influenced:
    """Influence of a byte on the predictions of an arm: `lags` (L,), bits (S,L) of its seeds.

    information: (L,) in bits, the I(d) of the text, if its law is known.
    """

    lags: tuple[int, ...]
    bits: Floats
    information: tuple[float, ...] | None = None


def kernel_figure(panels: Sequence[Panel], heading: str = "") -> "Figure":
    """Kernels over lag, 1 at the first lag, a panel for each arm: grey before training, coloured after.

    Thin lines are blocks, each the geometric mean over runs; thick lines are the geometric mean over blocks. Behind
    them stands t**-exponent. The first panel is the baseline's.
    """

    def draw(axes: "Axes", panel: Panel, colour: str) -> None:
        draw_law(axes, panel.before.lags, panel.exponent)
        before, after = {"color": START, "ls": START_DASHES}, {"color": colour}
        for memory, look in ((panel.before, before), (panel.after, after)):
            blocks = memory.log_kernels()
            for block in blocks if len(blocks) > 1 else ():
                _kernel(axes, memory.lags, block, lw=0.5, alpha=0.55, **look)
            _kernel(axes, memory.lags, blocks.mean(axis=0), lw=1.5, **look)

    exponents = {panel.exponent for panel in panels}
    law = f"t**-{exponents.pop():g}" if len(exponents) == 1 else "t**-x, x the exponent of the arm"
    labels = ("lag t (bytes)", "k(t) / k(1)")
    figure, grid = _panels(panels, 1.6, heading, labels, draw, START_DASHES, [{**LAW, "label": law}])
    with style():
        # alike in all panels, for kernels and laws but not for what has all but vanished
        lowest = min(float((panel.before.lags[-1] / panel.before.lags[0]) ** -panel.exponent) for panel in panels)
        lines = [np.asarray(line.get_ydata()) for axes in grid for line in axes.lines]
        grid[0].set_ylim(max(min(float(y.min()) for y in lines if y.size) / 1.5, lowest / 100), 1.6)
        for axes in grid:
            _log_log(axes)
    return figure


def half_life_figure(panels: Sequence[Panel], heading: str = "") -> "Figure":
    """Half-lives of every block in bytes, a panel for each arm: grey before training, coloured after.

    A box holds the middle half of a block's channels with the median in it, a line reaches from the shortest to the
    longest. Quartiles and median are geometric means over runs, the ends the outermost of all runs.
    """

    def draw(axes: "Axes", panel: Panel, colour: str) -> None:
        draw_half_lives(axes, panel.before, panel.after, colour)

    return _panels(panels, 1.45, heading, ("block", "half-life (bytes)"), draw, "-", [])[0]


def _panels(
    panels: Sequence[Panel],
    height: float,
    heading: str,
    labels: tuple[str, str],
    draw: "Callable[[Axes, Panel, str], None]",
    start: Any,
    first: Sequence[dict[str, Any]],
) -> tuple["Figure", list["Axes"]]:
    """Axes for the panels, all on the same scale, with titles, outer labels and a legend; `draw` fills each."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    with style():
        figure = Figure(figsize=(PAGE_WIDTH if columns > 1 else 1.3 * COLUMN_WIDTH, height * rows + 0.75))
        grid: Any = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for index, axes in enumerate(grid.flat):
            if index >= len(panels):
                axes.set_axis_off()
                continue
            panel = panels[index]
            axes.set_title(panel.title, fontsize=8 if len(panel.title) < LONG_NAME else 6.5)
            if index + columns >= len(panels):
                axes.set_xlabel(labels[0])
            if index % columns == 0:
                axes.set_ylabel(labels[1])
            draw(axes, panel, line_style(index)["color"])
        headline(figure, heading)
        looks = [
            *first,
            {"color": START, "lw": 1.5, "ls": start, "label": "at initialisation"},
            {"color": INK, "lw": 1.5, "label": "after training (each arm in its colour)"},
        ]
        handles = [Line2D([], [], **look) for look in looks]
        figure.legend(handles=handles, loc="outside lower center", ncols=3 if figure.get_figwidth() > 6 else 1)
    return figure, list(grid.flat[: len(panels)])


def model_figure(
    before: Memory | None,
    after: Memory,
    title: str = "",
    unit: str = "bytes",
    earlier: str = "at initialisation",
    block_name: str = "block",
) -> "Figure":
    """One model: the kernel of every block (left) and its half-lives (right), before training and after.

    Blocks are shaded from the first, dark, to the last; the state before training is dashed, on the right grey.
    unit, earlier and block_name: names of a step, of the model before, and of a block.
    """
    from matplotlib import colormaps

    figure, (kernels, half_lives) = _row(2, PAGE_WIDTH, 2.9 + 0.15 * -(-after.blocks // 6), width_ratios=(1.2, 1))
    with style():
        earlier_kernels = np.empty(0) if before is None else before.log_kernels()
        later_kernels = after.log_kernels()
        for block, shade in enumerate(colormaps["viridis"](np.linspace(0, 0.85, after.blocks))):
            if before is not None:
                _kernel(kernels, before.lags, earlier_kernels[block], color=shade, ls=START_DASHES, lw=0.9)
            _kernel(kernels, after.lags, later_kernels[block], color=shade, lw=1.2, label=f"{block_name} {block}")
        _log_log(kernels)
        dashed, grey = (f" ({look}: {earlier})" if before is not None else "" for look in ("dashed", "grey"))
        kernels.set(xlabel=f"lag t ({unit})", ylabel="k(t) / k(1)", title=f"kernels{dashed}")
        draw_half_lives(half_lives, before, after, line_style(1)["color"])
        half_lives.set(xlabel=block_name, ylabel=f"half-life ({unit})", title=f"half-lives{grey}")
        figure.legend(loc="outside lower center", ncols=6)
        headline(figure, title)
    return figure


def mark_observed(figure: "Figure", quantiles: Floats) -> None:
    """Draw observed half-lives beside every box of a `model_figure`: 5 to 95 % as a line, the median as a dot.

    quantiles: 5, 25, 50, 75 and 95 % of each block, (L,5); NaN is not drawn.
    """
    axes, (low, _, median, _, high) = figure.axes[1], quantiles.T
    at, (bottom, top) = np.arange(len(quantiles)) + 2 * BOX_GAP, axes.get_ylim()
    with style():
        axes.vlines(at, low, high, color=INK, lw=1.0)
        axes.plot(at, median, ".", color=INK, ms=4)
        axes.set_ylim(np.nanmin([bottom, *low / 1.5]), np.nanmax([top, *high * 1.5]))
        axes.set_xlabel(f"{axes.get_xlabel()} (black: on the text)")
        decades(axes.yaxis)


def draw_half_lives(axes: "Axes", before: Memory | None, after: Memory, colour: str) -> None:
    """Draw boxes of every block's half-lives at its number, before training (left, grey) and after."""
    for memory, side, shade in ((before, -BOX_GAP, START), (after, BOX_GAP, colour)):
        if memory is not None:
            at = np.arange(memory.blocks, dtype=float) + side
            shortest, _, low, median, high, _, longest = memory.half_life_quantiles().T
            axes.vlines(at, shortest, longest, color=shade, lw=0.8)
            axes.bar(at, high - low, BOX_WIDTH, bottom=low, facecolor=shade, alpha=0.35)
            axes.hlines(median, at - BOX_WIDTH / 2, at + BOX_WIDTH / 2, color=shade, lw=1.6)
    axes.set_yscale("log")
    axes.set_xticks(range(0, after.blocks, 1 + (after.blocks - 1) // 8))
    axes.set_xlim(-0.6, after.blocks - 0.4)
    decades(axes.yaxis)


def draw_law(axes: "Axes", lags: Floats, exponent: float) -> None:
    """Draw t**-exponent as a broad pale line, 1 at the first lag."""
    axes.plot(lags, power_law(lags / lags[0], exponent), **LAW)


def decades(axis: "Axis") -> None:
    """Set ticks of a log axis in plain digits: few, at powers of ten, or at 1, 2 and 5 of each if two do not fit."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(numticks=7) if high > 50 * low else LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}".replace("e-0", "e-"))


def truncation_figure(arms: Mapping[str, Truncated], heading: str = "", confidence: float = 0.95) -> "Figure":
    """Left bits per byte against the bytes given, right the loss against the whole context; means over seeds.

    The first of `arms` is the baseline. Bands are t intervals of the mean over seeds. The broad grey line is the best
    possible with so many bytes, if the source of the text is known.
    """
    figure, (whole, lost) = _row(2, 2 * COLUMN_WIDTH, 2.6 + 0.15 * -(-len(arms) // 3))
    with style():
        for index, arm in enumerate(arms.values()):
            _arm(whole, arm.given, arm.bpb, index, confidence)
            _arm(lost, arm.given[:-1], arm.cost[:, :-1], index, confidence)
        known = next((arm for arm in arms.values() if arm.floor is not None), None)
        if known is not None:
            floor = np.asarray(known.floor)
            whole.plot(known.given, floor, **LAW)
            above = (floor - floor[-1])[:-1]
            lost.plot(known.given[:-1], np.where(above > 0, above, np.nan), **LAW)
        for axes, label in ((whole, "bits per byte"), (lost, "bits per byte lost by the rest")):
            _powers_of_two(axes)
            axes.set(xlabel="bytes given", ylabel=label)
        costs = [arm.cost[:, :-1].mean(axis=0) for arm in arms.values()]
        if all(cost.size and cost.min() > 0 for cost in costs):  # the worth of far bytes spans decades
            lost.set_yscale("log")
            lost.yaxis.set_major_formatter("{x:g}")
        else:
            lost.axhline(0, color=INK, lw=0.5)
        legend_below(figure, list(arms))
        headline(figure, heading)
    return figure


def influence_figure(arms: Mapping[str, Influenced], heading: str = "", confidence: float = 0.95) -> "Figure":
    """Change of the prediction in bits when the byte at a lag is another, means over seeds with t intervals.

    The broad grey line is I(d) of the text if its law is known, in the same bits. Triangles on the lower edge are
    values at or below zero, or far below all others.
    """
    figure, (axes,) = _row(1, COLUMN_WIDTH, 2.6 + 0.15 * -(-len(arms) // 2))
    with style():
        for index, arm in enumerate(arms.values()):
            _arm(axes, arm.lags, arm.bits, index, confidence)
        known = next((arm for arm in arms.values() if arm.information is not None), None)
        if known is not None:
            axes.plot(known.lags, known.information or (), **LAW)
        _powers_of_two(axes)
        axes.set(xlabel="lag d (bytes)", ylabel="change of the prediction, bits")
        _positive(axes)
        legend_below(figure, list(arms))
        headline(figure, heading)
    return figure


def probe_figure(probe: Probe, heading: str = "") -> "Figure":
    """Influence against lag, bits by position, and the loss when only the last tokens are given.

    Bands are 95 % t intervals over windows. Beside influence and loss, in the same bits, stands the text's own I(d) if
    it is known. Triangles on the lower edge are values at or below zero, or far below all others.
    """
    unit, text, t = probe.unit, probe.information_bits(), critical_value(probe.windows)
    influence, positions, cut = probe.influence, probe.positions, probe.truncation
    figure, row = _row(3, PAGE_WIDTH, 2.7)
    panels = (
        (influence.lags, influence.bits, influence.standard_error),
        (positions.given, positions.bpb, positions.standard_error),
        (cut.given[:-1], cut.cost[:-1], cut.standard_error[:-1]),
    )
    labels = (
        (f"one {unit} replaced", f"lag d ({unit}s)", "change, bits"),
        ("by position", f"{unit}s before", f"bits per {unit}"),
        ("the rest taken away", f"d: {unit}s given", f"lost, bits per {unit}"),
    )
    with style():
        for index, (axes, (at, values, errors), (title, below, left)) in enumerate(
            zip(row, panels, labels, strict=True)
        ):
            label = "model" if index == 0 else None
            _band(axes, at, values, t * np.asarray(errors), lw=1.3, color=INK, label=label)
            if index != 1:
                if text is not None and probe.information is not None:
                    half = critical_value(len(probe.information.replicates[0])) * text[1]
                    _band(axes, influence.lags, text[0], half, lw=1.3, color=COLOURS[0], label="I(d) of the text")
                _positive(axes)
            axes.set(xlabel=below, ylabel=left, title=title, xlim=(1 / 1.3, 1.3 * probe.context))
            _powers_of_two(axes)
            axes.set_xticks([4**power for power in range(16) if 4**power <= probe.context], minor=False)
        if text is not None:
            row[0].legend()
        headline(figure, heading)
    return figure


def _row(count: int, width: float, height: float, **options: Any) -> tuple["Figure", tuple["Axes", ...]]:
    """`count` axes side by side; width and height in inches."""
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(width, height))
        return figure, tuple(figure.subplots(1, count, squeeze=False, **options).flat)


def _band(axes: "Axes", at: Sequence[int], middle: ArrayLike, half: ArrayLike, **look: Any) -> None:
    """Points (L,) joined by a line, and a band from `half` below to `half` above; none where that is NaN."""
    values, reach = np.asarray(middle, dtype=np.float64), np.nan_to_num(np.asarray(half, dtype=np.float64))
    axes.plot(at, values, marker="o", ms=2.5, **look)
    if reach.any():
        axes.fill_between(at, values - reach, values + reach, color=look["color"], alpha=0.15, lw=0)


def _arm(axes: "Axes", at: Sequence[int], values: Floats, index: int, confidence: float) -> None:
    """Mean over seeds of values (S,L), with a band if there are two or more."""
    mean, _, half = student_interval(values, confidence)
    _band(axes, at, mean, half if len(values) > 1 else np.zeros(len(at)), lw=1.5, **line_style(index))


def _kernel(axes: "Axes", lags: Floats, log_kernel: Floats, **look: Any) -> None:
    """A kernel given by its logarithm, up to where it vanishes."""
    shown = np.isfinite(log_kernel)
    axes.plot(lags[shown], np.exp(log_kernel[shown]), **look)


def _log_log(axes: "Axes") -> None:
    axes.set(xscale="log", yscale="log")
    decades(axes.xaxis)
    decades(axes.yaxis)


def _powers_of_two(axes: "Axes") -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")


def _positive(axes: "Axes") -> None:
    """Set a log axis over six decades at most, if anything is above zero; triangles mark what is below it."""
    lines = list(axes.get_lines())
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=np.float64) for line in lines])
    if not (values > 0).any():
        return
    top = float(values.max())
    bottom = max(float(values[values > 0].min()) / 2, 1e-6 * top)
    axes.set_yscale("log", nonpositive="clip")
    axes.set_ylim(bottom, 2 * top)
    power_ticks(axes)
    for row, line in enumerate(lines):
        x, y = (np.asarray(data, dtype=np.float64) for data in line.get_data())
        hidden = y < bottom
        line.set_ydata(np.where(hidden, np.nan, y))
        look: dict[str, Any] = {"color": line.get_color(), "marker": "v", "ms": 3.5, "mfc": "none", "ls": "none"}
        edge = np.full(int(hidden.sum()), 0.025 * (1 + row))
        axes.plot(x[hidden], edge, transform=axes.get_xaxis_transform(), **look)
