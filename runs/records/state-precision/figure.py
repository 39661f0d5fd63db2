"""The figures of study.py, by position: what a stored state costs against float32, and what an
initialisation of a gated delta net costs against another.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from plkernel.analysis.figures.style import INK, PAGE_WIDTH, legend_below, line_style, style

SHOWN = {
    "ssm, 16384": "SSM",
    "ssm, 16384, carried": "SSM, state carried",
    "rwkv7, 16384": "RWKV-7",
    "mamba2, 16384": "Mamba-2",
    "gdn, 16384": "gated delta net",
}
"""Conditions of the figure, where they have rows, and the titles of their columns."""
INITIALISATIONS = {
    "gdn, qwen3-next": "Qwen3-Next",
    "gdn, fla": "flash-linear-attention",
    "gdn-bounded, fla": "flash-linear-attention, bounded gate",
    "gdn-bounded, 16384": "log-spaced, bounded gate",
}
"""Conditions of the figure of initialisations, and their names."""
LABELS = ["to 1", "1-2", "2-4", "4-8", "8-16"]
"""Ranges of positions in contexts."""
EXACT = "float32"
LINEAR = {"dense": 0.003, "sparse": 0.03}
"""Bits up to which an axis is linear; it is logarithmic beyond."""
TICKS = {"dense": [-0.01, -0.003, 0, 0.003, 0.01, 0.03], "sparse": [-1, -0.1, 0, 0.1]}


def costs(rows: Sequence[Mapping[str, Any]], condition: str, kind: str, storage: str) -> np.ndarray:
    """Bits per byte minus those in float32, (seeds, ranges of positions)."""
    own = [row["losses"][kind] for row in rows if row["condition"] == condition]
    return np.array([np.subtract(of[storage], of[EXACT]) for of in own])


def figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A row for each kind of text, a column for each condition; thin lines are single seeds."""
    present = {row["condition"] for row in rows}
    shown = {name: title for name, title in SHOWN.items() if name in present}
    kinds = list(rows[0]["losses"])
    storages = list(rows[0]["losses"][kinds[0]])
    with style():
        drawn = Figure(figsize=(PAGE_WIDTH, 3.6))
        grid = drawn.subplots(len(kinds), len(shown), squeeze=False, sharex=True, sharey="row")
        for line, kind in zip(grid, kinds, strict=True):
            for axes, (condition, title) in zip(line, shown.items(), strict=True):
                axes.axhline(0.0, color=INK, lw=0.8)
                for look, storage in enumerate(storages):
                    if storage != EXACT:
                        _draw(axes, costs(rows, condition, kind, storage), look)
                if kind == kinds[0]:
                    axes.set_title(title)
                if kind == kinds[-1]:
                    axes.set_xlabel("position in contexts")
            line[0].set_yscale("symlog", linthresh=LINEAR[kind], linscale=0.7)
            line[0].set_yticks(TICKS[kind], [f"{tick:g}" for tick in TICKS[kind]])
            line[0].yaxis.set_minor_locator(NullLocator())
            line[0].set_ylabel(f"{kind} text (bits)")
        drawn.align_ylabels(grid[:, 0])
        legend_below(drawn, storages)
    return drawn


def losses(rows: Sequence[Mapping[str, Any]], condition: str, kind: str) -> dict[int, np.ndarray]:
    """Bits per byte in float32 by seed, (ranges of positions,)."""
    own = [row for row in rows if row["condition"] == condition]
    return {row["seed"]: np.array(row["losses"][kind][EXACT]) for row in own}


def initialisations(rows: Sequence[Mapping[str, Any]], baseline: str) -> Figure:
    """A panel for each kind of text; thin lines are single seeds."""
    kinds = list(rows[0]["losses"])
    with style():
        drawn = Figure(figsize=(PAGE_WIDTH, 2.6))
        for axes, kind in zip(drawn.subplots(1, len(kinds)), kinds, strict=True):
            base = losses(rows, baseline, kind)
            axes.axhline(0.0, color=INK, lw=0.8)
            for look, condition in enumerate(INITIALISATIONS):
                own = losses(rows, condition, kind)
                apart = np.array([own[seed] - base[seed] for seed in own])
                _draw(axes, apart, look)
            axes.set_title(f"{kind} text")
            axes.set_xlabel("position in contexts")
            axes.set_ylabel("bits minus log-spaced")
        legend_below(drawn, list(INITIALISATIONS.values()))
    return drawn


def _draw(axes: Axes, values: np.ndarray, look: int) -> None:
    """The mean over seeds, and every seed as a thin line."""
    places = np.arange(len(LABELS))
    kind = line_style(look)
    axes.plot(places, values.mean(axis=0), lw=1.4, zorder=3, **kind)
    for seed in values:
        axes.plot(places, seed, lw=0.5, alpha=0.5, color=kind["color"])
    axes.set_xticks(places, LABELS)
