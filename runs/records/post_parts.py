"""PoST, part by part: tables and a figure of its page, over the studies of RWKV-7 and of Mamba-2.

A start is compared with the model's own initialisation in the same study, seed by seed.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import long_windows
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from sentences import Estimate, recalled_lead, shown

from plkernel.analysis.figures.style import COLOURS, INK, PAGE_WIDTH, style
from plkernel.results.statistics import mean_interval

TIMES_OF_RECALL = 8
TIMES_OF_TEXT = 16
"""The longest tests, in lengths of training."""
OWN = "own"
SPECTRUM = "spectrum to T"
LONGER = "to the square of T"
SCALING = "scaling"
POST = "PoST"
INPUTS = "PoST, inputs scaled"
MISSING = "-"


class Tested(NamedTuple):
    """A model at a learning rate: its study, and the arm of every start that was tried."""

    model: str
    study: str
    own: str
    arms: Mapping[str, str]


RECALL = (
    Tested(
        "RWKV-7, 3.5e-3",
        "recall-far",
        "official",
        {SPECTRUM: "spectrum", LONGER: "official-t2", SCALING: "scaling", POST: "post"},
    ),
    Tested(
        "RWKV-7, 7e-3",
        "recall-far-fast",
        "official_fast",
        {LONGER: "official-t2_fast", SCALING: "scaling_fast", POST: "post_fast"},
    ),
    Tested(
        "Mamba-2, 8e-3",
        "recall-mamba2",
        "own_fast",
        {
            SPECTRUM: "spectrum_fast",
            LONGER: "spectrum-t2_fast",
            SCALING: "own-scaling_fast",
            POST: "post_fast",
        },
    ),
    Tested("Mamba-2, 1.6e-2", "recall-mamba2", "own_faster", {POST: "post_faster"}),
    Tested(
        "Mamba-2, 8e-3, other seeds",
        "recall-mamba2-held",
        "own",
        {LONGER: "t2", POST: "post"},
    ),
    Tested(
        "Mamba-2, 8e-3, six more",
        "recall-mamba2-weighted",
        "own",
        {POST: "post", INPUTS: "post-steps"},
    ),
)
TEXT = (
    Tested(
        "RWKV-7, 3e-3",
        "post-text",
        "official_slow",
        {LONGER: "official-t2_slow", SCALING: "scaling_slow", POST: "post_slow"},
    ),
    Tested(
        "RWKV-7, 6e-3",
        "post-text",
        "official_fast",
        {LONGER: "official-t2_fast", SCALING: "scaling_fast", POST: "post_fast"},
    ),
    Tested(
        "Mamba-2, 4e-3",
        "post-text-mamba2",
        "own_slow",
        {
            SPECTRUM: "spectrum_slow",
            LONGER: "t2_slow",
            SCALING: "scaling_slow",
            POST: "post_slow",
        },
    ),
    Tested(
        "Mamba-2, 8e-3",
        "post-text-mamba2",
        "own_fast",
        {
            SPECTRUM: "spectrum_fast",
            LONGER: "t2_fast",
            SCALING: "scaling_fast",
            POST: "post_fast",
        },
    ),
    Tested(
        "Mamba-2, 8e-3, other seeds",
        "post-text-weighted",
        "own",
        {INPUTS: "post-steps"},
    ),
)
STARTS = (SPECTRUM, LONGER, SCALING, POST, INPUTS)


def far_leads() -> tuple[list[str], list[list[str]]]:
    """Return header and lines of the leads at far pairs, in points with 95 % intervals.

    Far pairs are more than half of the length back, at 8 times the length of training.
    """
    lines = []
    for tested in RECALL:
        cells = [_far_lead(tested, start) for start in STARTS]
        lines.append([tested.model, *cells])
    return ["points over its own initialisation", *STARTS], lines


def _far_lead(tested: Tested, start: str) -> str:
    """Return the lead of a start at far pairs, or a dash where it was not tried."""
    if start not in tested.arms:
        return MISSING
    return shown(_lead(tested, start), "+.1f")


def _lead(tested: Tested, start: str) -> Estimate:
    """Return the lead of a start at far pairs, in points."""
    run = long_windows.study_of(tested.study).finished(tested.own)[0]
    farthest = TIMES_OF_RECALL * run.config["train"]["context"]
    return recalled_lead(
        tested.study,
        tested.arms[start],
        tested.own,
        str(TIMES_OF_RECALL),
        distance=str(farthest),
    )


MARKERS = ("s", "D", "^", "o", "v")
BETWEEN_STARTS = 0.16
"""Rows between two starts of a model."""


def far_figure() -> Figure:
    """Draw the leads at far pairs of every start in every model, with their intervals."""
    looks: dict[str, dict[str, Any]] = {
        start: {"marker": marker, "color": colour}
        for start, marker, colour in zip(STARTS, MARKERS, COLOURS, strict=False)
    }
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 3.9))
        axes = figure.subplots()
        axes.axvline(0.0, color=INK, lw=0.6)
        for row, tested in enumerate(RECALL):
            tried = [start for start in STARTS if start in tested.arms]
            for place, start in enumerate(tried):
                height = row + BETWEEN_STARTS * (place - (len(tried) - 1) / 2)
                found = _lead(tested, start)
                colour = looks[start]["color"]
                axes.plot([found.low, found.high], [height, height], color=colour, lw=1.4)
                axes.plot(found.value, height, ms=4, ls="", **looks[start])
        axes.set_yticks(range(len(RECALL)), [tested.model for tested in RECALL])
        axes.set(ylim=(len(RECALL) - 0.5, -0.5))
        axes.set_xlabel("lead over the model's own initialisation at far pairs, points")
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x", lw=0.3, alpha=0.5)
        lines = [Line2D([], [], lw=1.4, ms=4, label=start, **looks[start]) for start in STARTS]
        figure.legend(handles=lines, loc="outside lower center", ncols=3)
    return figure


def reading_on() -> tuple[list[str], list[list[str]]]:
    """Return header and lines of losses by reading on, in bits per byte with 95 % intervals."""
    lines = []
    for tested in TEXT:
        cells = [_lost(tested, start) for start in (OWN, *STARTS)]
        lines.append([tested.model, *cells])
    return ["bits per byte lost by reading on", OWN, *STARTS], lines


def _lost(tested: Tested, start: str) -> str:
    """Return what a start loses by reading on, or a dash where it was not tried."""
    arm = {OWN: tested.own, **tested.arms}.get(start)
    if arm is None:
        return MISSING
    by_seed = long_windows.losses(tested.study, "reading_on")[arm][TIMES_OF_TEXT]
    found = mean_interval(by_seed.values())
    return shown(Estimate(found.mean, found.low, found.high), ".2f")
