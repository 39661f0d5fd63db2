"""Far recall against losses by reading on: starts of one Mamba-2, each in two studies.

A lead is over the model's own initialisation in the same study, by seed. Recall is told at 8 times
the length of training, reading on at 16 times it.
"""

from typing import NamedTuple

import long_windows
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sentences import Estimate, recalled_lead

from plkernel.analysis.figures.style import INK, PAGE_WIDTH, line_style, style
from plkernel.results.statistics import PairedDifference

TIMES_OF_RECALL = "8"
FAR = "1024"
"""The most bytes from pair to query of the far pairs."""
TIMES_OF_TEXT = 16
BEFORE = ("recall-mamba2", "post-text-mamba2")
AFTER = ("recall-mamba2-weighted", "post-text-weighted")
MARKERS = "oxs^Dv*"
"""Of the starts, in turn."""


class Start(NamedTuple):
    """A start: its name in the figure, and its study and arm on recall and on text."""

    name: str
    recall: str
    arm_of_recall: str
    text: str
    arm_of_text: str

    def far(self) -> Estimate:
        """Return the lead in points at pairs more than half of the length back."""
        return self._points("persistence", distance=FAR)

    def where_pairs_grow(self) -> Estimate:
        """Return the lead in points where pairs grow with the length, queries mostly near."""
        return self._points("capacity")

    def lost(self) -> PairedDifference:
        """Return the bits per byte lost more by reading on."""
        return long_windows.lead(self.text, self.arm_of_text, TIMES_OF_TEXT, "reading_on")

    def _points(self, test: str, distance: str = "") -> Estimate:
        """Return the lead of a test in points; at a distance, or over all queries."""
        baseline = long_windows.study_of(self.recall).against(self.arm_of_recall)
        assert baseline is not None, f"{self.arm_of_recall} is a baseline of {self.recall}"
        return recalled_lead(
            self.recall, self.arm_of_recall, baseline, TIMES_OF_RECALL, test, distance
        )


STARTS = (
    Start("spectrum to T", BEFORE[0], "spectrum_fast", BEFORE[1], "spectrum_fast"),
    Start("spectrum to T squared", BEFORE[0], "spectrum-t2_fast", BEFORE[1], "t2_fast"),
    Start("scaling alone", BEFORE[0], "own-scaling_fast", BEFORE[1], "scaling_fast"),
    Start("PoST", BEFORE[0], "post_fast", BEFORE[1], "post_fast"),
    Start("PoST, inputs scaled by the root", AFTER[0], "post-root", AFTER[1], "post-root"),
    Start("PoST, inputs scaled", AFTER[0], "post-steps", AFTER[1], "post-steps"),
    Start("to T squared, inputs weighted", AFTER[0], "t2-weighted", BEFORE[1], "t2-weighted_fast"),
)


def figure() -> Figure:
    """Draw leads on recall, at far pairs and where pairs grow, over losses by reading on.

    Means and 95 % t intervals over seeds; the origin is the model's own initialisation.
    """
    with style():
        drawing = Figure(figsize=(PAGE_WIDTH, 3.1))
        far, grow = drawing.subplots(1, 2, sharex=True)
        for look, start in enumerate(STARTS, start=1):
            lost = start.lost()
            _draw(far, look, start.name, lost, start.far())
            _draw(grow, look, start.name, lost, start.where_pairs_grow())
        far.set(title="pairs 513 to 1,024 bytes back", ylabel="points, lead on recall")
        grow.set(title="where pairs grow with the length")
        for axes in (far, grow):
            axes.axhline(0.0, color=INK, lw=0.6)
            axes.axvline(0.0, color=INK, lw=0.6)
            axes.set_xlabel("bits per byte lost more by reading on")
        handles, names = grow.get_legend_handles_labels()
        drawing.legend(handles, names, loc="outside lower center", ncols=3)
    return drawing


def _draw(axes: Axes, look: int, name: str, lost: PairedDifference, lead: Estimate) -> None:
    """Draw one start, with its intervals."""
    axes.errorbar(
        lost.mean,
        lead.value,
        xerr=lost.mean - lost.low,
        yerr=lead.value - lead.low,
        marker=MARKERS[look - 1],
        ms=5,
        lw=1.0,
        capsize=2,
        linestyle="",
        color=line_style(look % len(MARKERS))["color"],
        label=name,
    )
