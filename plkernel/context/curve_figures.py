"""Figures of memory: kernels and half-lives before and after training, the worth of context, the
probe of a model.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from plkernel.analysis.exponentials import power_law
from plkernel.analysis.figures.style import (
    COLOURS,
    COLUMN_WIDTH,
    INK,
    PAGE_WIDTH,
    decades,
    headline,
    legend_below,
    line_style,
    rendered,
    style,
)
from plkernel.analysis.figures.style import GREY as START
from plkernel.analysis.information.estimate import critical_value, student_interval
from plkernel.common.files import atomic_write, check_file, save_json
from plkernel.context.measures import (
    INFORMED,
    Floats,
    Influence,
    Means,
    Memory,
    Probe,
    Truncation,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = (".pdf", ".png", ".svg")
DRAWN = (1e-3, 1e9)
"""Half-lives in tokens that are drawn; those beyond are drawn at the edge."""
FAINTEST = 1e-6
"""Share of its largest value below which a curve is cut off."""
COLUMNS = 4
START_DASHES = (0, (3, 1.2))
BOX_WIDTH, BOX_GAP = 0.32, 0.2
LAW: dict[str, Any] = {"color": INK, "lw": 4, "alpha": 0.18, "solid_capstyle": "butt", "zorder": 1}
"""A broad pale line: a law, or the best that can be done."""


def deliver(
    text: str,
    values: dict[str, Any],
    draw: "Callable[[], Figure]",
    json: Path | None,
    to: Path | None,
) -> None:
    """Print the result of a command, and write its values and the figure that `draw` gives to
    files.
    """
    print(text)
    if json is not None:
        save_json(json, values)
    if to is not None:
        atomic_write(to, *rendered(draw(), [to.suffix[1:]]).values())
    for file in filter(None, (json, to)):
        print(f"\nwritten: {file}")


def check_options(json: Path | None, figure: Path | None, **least: tuple[int | None, int]) -> None:
    """Raise ValueError for files that cannot be written, and for an option (value, least) below its
    least value.
    """
    if figure is not None and figure.suffix not in KINDS:
        raise ValueError(f"figure must end in {', '.join(KINDS)}, got {str(figure)!r}")
    for option, (value, lowest) in least.items():
        if value is not None and value < lowest:
            raise ValueError(f"{option} must be at least {lowest}, got {value}")
    check_file(json, "json")
    check_file(figure, "figure")


class Panel(NamedTuple):
    """Memory of an arm before training and after, and the exponent of its power law
    t**-exponent.
    """

    title: str
    before: Memory
    after: Memory
    exponent: float


class Curves(NamedTuple):
    """Bits (S,L) of the seeds of an arm at lags, or with so many bytes given, (L,).

    best: (L,), the least bits per byte of any predictor, or the I(d) of the text; None if the law
    is unknown.
    """

    at: Sequence[int]
    bits: Floats
    best: Sequence[float] | None = None


@style()
def kernel_figure(panels: Sequence[Panel], heading: str = "") -> "Figure":
    """Kernels over lag, 1 at the first lag, a panel for each arm: grey before training, coloured
    after.

    Thin lines are blocks, each the geometric mean over runs; thick lines are the geometric mean
    over blocks. Behind them stands t**-exponent. The first panel is the baseline's.
    """
    same = len({panel.exponent for panel in panels}) == 1
    law = f"t**-{panels[0].exponent:g}" if same else "t**-x, x the exponent of the arm"
    labels = ("lag t (bytes)", "k(t) / k(1)")
    figure, grid = _panels(panels, 1.6, heading, labels, START_DASHES, [{**LAW, "label": law}])
    lowest = 1.0
    for index, (axes, panel) in enumerate(zip(grid, panels, strict=True)):
        lags, after = panel.before.lags, {"color": line_style(index)["color"]}
        expected = power_law(lags / lags[0], panel.exponent)
        axes.plot(lags, expected, **LAW)
        for memory, look in (
            (panel.before, {"color": START, "ls": START_DASHES}),
            (panel.after, after),
        ):
            blocks = memory.log_kernels()
            if len(blocks) > 1:
                axes.plot(memory.lags, np.exp(blocks.T), lw=0.5, alpha=0.55, **look)
            axes.plot(memory.lags, np.exp(blocks.mean(axis=0)), lw=1.5, **look)
        axes.set(xscale="log", yscale="log")
        lowest = min(lowest, float(expected[-1]) / 100)  # what has all but vanished takes no room
    grid[0].set_ylim(max(grid[0].get_ylim()[0], lowest), 1.6)
    decades(*(axis for axes in grid for axis in (axes.xaxis, axes.yaxis)))
    return figure


@style()
def half_life_figure(panels: Sequence[Panel], heading: str = "") -> "Figure":
    """Half-lives of every block in bytes, a panel for each arm: grey before training, coloured
    after.

    A box holds the middle half of a block's channels with the median in it, a line reaches from the
    shortest to the longest. Quartiles and median are geometric means over runs, the ends the
    outermost of all runs.
    """
    figure, grid = _panels(panels, 1.45, heading, ("block", "half-life (bytes)"), "-", [])
    for index, (axes, panel) in enumerate(zip(grid, panels, strict=True)):
        _half_lives(axes, panel.before, panel.after, line_style(index)["color"])
    return figure


@style()
def model_figure(
    before: Memory | None, after: Memory, title: str = "", unit: str = "bytes"
) -> "Figure":
    """One model: the kernel of every block (left) and its half-lives (right), now and, if it is
    known, before.

    Blocks are shaded from the first, dark, to the last; the state before is dashed, on the right
    grey.
    """
    from matplotlib import colormaps

    figure, (kernels, half_lives) = _row(
        2, PAGE_WIDTH, 2.9 + 0.15 * -(-after.blocks // 6), 1, title, width_ratios=(1.2, 1)
    )
    states: list[tuple[Memory, dict[str, Any]]] = [(after, {"lw": 1.2})]
    for memory, look in (
        states if before is None else [(before, {"ls": START_DASHES, "lw": 0.9}), *states]
    ):
        shades = colormaps["viridis"](np.linspace(0, 0.85, memory.blocks))
        for block, (log_kernel, shade) in enumerate(
            zip(memory.log_kernels(), shades, strict=False)
        ):
            label = f"block {block}" if memory is after else None
            kernels.plot(memory.lags, np.exp(log_kernel), color=shade, label=label, **look)
    kernels.set(xscale="log", yscale="log")
    kernels.set_ylim(bottom=max(kernels.get_ylim()[0], FAINTEST))
    decades(kernels.xaxis, kernels.yaxis)
    dashed, grey = (
        f" ({look}: before)" if before is not None else "" for look in ("dashed", "grey")
    )
    kernels.set(xlabel=f"lag t ({unit})", ylabel="k(t) / k(1)", title=f"kernels{dashed}")
    _half_lives(half_lives, before, after, line_style(1)["color"])
    half_lives.set(xlabel="block", ylabel=f"half-life ({unit})", title=f"half-lives{grey}")
    figure.legend(loc="outside lower center", ncols=6)
    return figure


def truncation_figure(arms: Mapping[str, Curves], heading: str = "") -> "Figure":
    """Left bits per byte against the bytes given, right the loss against the whole context; means
    over seeds.

    The first of `arms` is the baseline. Bands are t intervals of the mean over seeds. The broad
    grey line is the best possible with so many bytes, if the source of the text is known.
    """
    lost = {
        name: Curves(
            at[:-1],
            (bits - bits[:, -1:])[:, :-1],
            best and np.subtract(best, best[-1])[:-1].tolist(),
        )
        for name, (at, bits, best) in arms.items()
    }
    panels = [
        (arms, "bytes given", "bits per byte"),
        (lost, "bytes given", "bits per byte lost by the rest"),
    ]
    return _over_seeds(panels, heading)


def influence_figure(arms: Mapping[str, Curves], heading: str = "") -> "Figure":
    """Change of the prediction in bits when the byte at a lag is another, and I(d) of the text if
    its law is known.
    """
    return _over_seeds([(arms, "lag d (bytes)", "change of the prediction, bits")], heading)


def curve_figure(curve: Influence | Truncation | Means) -> "Figure":
    """Draw the influence, the worth of context, or the loss by position, of one model."""
    if isinstance(curve, Means):
        arms = {"model": Curves(curve.given, np.array([curve.bpb]))}
        return _over_seeds([(arms, "bytes before, in the window", "bits per byte")], "")
    if isinstance(curve, Influence):
        return influence_figure({"model": Curves(curve.lags, np.array([curve.bits]))})
    return truncation_figure({"model": Curves(curve.given, np.array([curve.bpb]), curve.floor)})


@style()
def probe_figure(probe: Probe, heading: str = "") -> "Figure":
    """Influence against lag, bits by position, the loss when only the last tokens are given, and
    what reading on costs.

    Bands are 95 % t intervals over windows. Beside influence and loss, in the same bits, stands the
    text's own I(d) if it is known.
    """
    unit, text, t = probe.unit, probe.information, critical_value(probe.windows)
    near, along, cut = probe.influence, probe.positions, probe.truncation
    lost = (cut.given[:-1], cut.cost[:-1], cut.standard_error[:-1])
    panels = [
        (
            near.lags,
            near.bits,
            near.standard_error,
            f"one {unit} replaced",
            f"lag d ({unit}s)",
            "change, bits",
        ),
        (
            along.given,
            along.bpb,
            along.standard_error,
            "by position",
            f"{unit}s before",
            f"bits per {unit}",
        ),
        (*lost, "the rest taken away", f"d: {unit}s given", f"lost, bits per {unit}"),
    ]
    if (far := probe.cost) is not None:
        words = "reading on", f"{unit}s before", f"lost since {probe.trained:,}, bits per {unit}"
        panels.append((far.given, far.bpb, far.standard_error, *words))
    figure, row = _row(len(panels), PAGE_WIDTH * len(panels) / 3, 2.7, 1, heading)
    ticks = [(4 if probe.context <= 1024 else 16) ** power for power in range(16)]
    for axes, (at, values, errors, title, below, left) in zip(row, panels, strict=True):
        _curve(axes, at, values, t * np.asarray(errors), lw=1.3, color=INK, label="model")
        if axes in row[:3:2]:
            if text is not None:
                half = critical_value(INFORMED) * np.asarray(text.standard_error)
                _curve(
                    axes,
                    text.lags,
                    text.bits,
                    half,
                    lw=1.3,
                    color=COLOURS[0],
                    label="I(d) of the text",
                )
            _positive(axes)
        axes.set(xlabel=below, ylabel=left, title=title, xlim=(1 / 1.3, 1.3 * probe.context))
        axes.set_xticks([tick for tick in ticks if tick <= probe.context], minor=False)
    if text is not None:
        row[0].legend()
    return figure


def _half_lives(axes: "Axes", before: Memory | None, after: Memory, colour: str) -> None:
    """Draw boxes of every block's half-lives at its number, before training (left, grey) and
    after.
    """
    for memory, side, shade in ((before, -BOX_GAP, START), (after, BOX_GAP, colour)):
        if memory is not None:
            at = np.arange(memory.blocks, dtype=float) + side
            shortest, _, low, median, high, _, longest = memory.half_life_quantiles().T
            axes.vlines(at, shortest, longest, color=shade, lw=0.8)
            axes.bar(at, high - low, BOX_WIDTH, bottom=low, facecolor=shade, alpha=0.35)
            axes.hlines(median, at - BOX_WIDTH / 2, at + BOX_WIDTH / 2, color=shade, lw=1.6)
    ticks = range(0, after.blocks, 1 + (after.blocks - 1) // 8)
    axes.set(yscale="log", xticks=ticks, xlim=(-0.6, after.blocks - 0.4))
    decades(axes.yaxis)


def _panels(
    panels: Sequence[Panel],
    height: float,
    heading: str,
    labels: tuple[str, str],
    start: Any,
    first: list[Any],
) -> tuple["Figure", list["Axes"]]:
    """Axes for the panels, all on the same scale, with titles, outer labels and a legend."""
    from matplotlib.lines import Line2D

    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    width = PAGE_WIDTH if columns > 1 else 1.3 * COLUMN_WIDTH
    figure, grid = _row(columns, width, height * rows + 0.75, rows, heading, sharey=True)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    for index, (axes, panel) in enumerate(zip(grid, panels, strict=False)):
        axes.set_title(panel.title, fontsize=7)
        axes.set_xlabel(labels[0] if index + columns >= len(panels) else "")
        axes.set_ylabel(labels[1] if index % columns == 0 else "")
    before = {"color": START, "lw": 1.5, "ls": start, "label": "at initialisation"}
    after = {"color": INK, "lw": 1.5, "label": "after training (each arm in its colour)"}
    handles = [Line2D([], [], **look) for look in (*first, before, after)]
    figure.legend(handles=handles, loc="outside lower center", ncols=3 if columns > 1 else 1)
    return figure, grid[: len(panels)]


def _row(
    count: int, width: float, height: float, rows: int, heading: str, **options: Any
) -> tuple["Figure", list["Axes"]]:
    """`count` axes side by side, in `rows`; width and height in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    headline(figure, heading)
    return figure, list(figure.subplots(rows, count, squeeze=False, **options).flat)


@style()
def _over_seeds(panels: Sequence[tuple[Mapping[str, Curves], str, str]], heading: str) -> "Figure":
    """Means over seeds with bands, and the best that is known; panels: curves by arm, labels of the
    axes.
    """
    arms, width = list(panels[0][0]), len(panels)
    figure, row = _row(
        width, width * COLUMN_WIDTH, 2.6 + 0.15 * -(-len(arms) // (1 + width)), 1, heading
    )
    for axes, (curves, below, left) in zip(row, panels, strict=True):
        for index, arm in enumerate(curves.values()):
            mean, _, half = student_interval(arm.bits, 0.95)
            _curve(axes, arm.at, mean, half, lw=1.5, **line_style(index))
        if best := next(
            ((arm.at, arm.best) for arm in curves.values() if arm.best is not None), None
        ):
            axes.plot(*best, **LAW)
        axes.set(xlabel=below, ylabel=left)
    _positive(row[-1])
    legend_below(figure, arms)
    return figure


def _curve(
    axes: "Axes", at: Sequence[int], middle: ArrayLike, half: ArrayLike, **look: Any
) -> None:
    """Points (L,) at powers of two, joined, and a band from `half` below to `half` above; none
    where that is NaN.
    """
    values, reach = (
        np.asarray(middle, dtype=np.float64),
        np.nan_to_num(np.asarray(half, dtype=np.float64)),
    )
    axes.plot(at, values, marker="o", ms=2.5, **look)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    if reach.any():
        axes.fill_between(at, values - reach, values + reach, color=look["color"], alpha=0.15, lw=0)


def _positive(axes: "Axes") -> None:
    """Set a log axis over six decades at most, if anything is above zero; the rest lies below its
    edge.
    """
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=np.float64) for line in axes.lines])
    if (values > 0).any():
        top = float(np.nanmax(values))
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(max(float(values[values > 0].min()) / 2, FAINTEST * top), 2 * top)
        decades(axes.yaxis)
