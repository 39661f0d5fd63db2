"""Losses in windows longer than those of training: the figure and the tables of a study.

A loss is bits per byte at positions between half of and all of so many bytes from the beginning of
a window, or what of them is lost by reading on. Lengths are in multiples of the length of training.
"""

from functools import cache
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from recall_tests import block, start

from plkernel.analysis.figures.style import INK, PAGE_WIDTH, legend_below, line_style, style
from plkernel.results.statistics import PairedDifference, paired_difference
from plkernel.results.study import read_study

RECORDS = Path(__file__).resolve().parent
Losses = dict[str, dict[int, dict[int, float]]]
"""Bits by arm, by length and by seed."""


@cache
def losses(study: str, key: str) -> Losses:
    """Return what every finished run lost beyond half of the length of training.

    key: positions, or reading_on
    """
    found: Losses = {}
    for run in read_study(RECORDS / study).finished():
        assert run.result is not None
        assert run.result.beyond is not None
        beyond = run.result.beyond
        context = beyond["context"]
        for given, bits in zip(beyond[key]["given"], beyond[key]["bpb"], strict=True):
            if given >= context:
                of_arm = found.setdefault(run.arm, {})
                of_arm.setdefault(given // context, {})[run.seed] = bits
    return found


def lead(study: str, key: str, arm: str, times: int) -> PairedDifference:
    """Return the losses of an arm minus those of the arm it is compared with, by seed."""
    other = read_study(RECORDS / study).against(arm)
    assert other is not None, f"{arm} is a baseline of {study}"
    found = losses(study, key)
    return paired_difference(found[arm][times], found[other][times])


def figure(study: str) -> Figure:
    """Draw what arms lose by reading on and their losses by position, for each block of the study.

    Both minus the baseline of the block, mean and 95 % t interval over seeds, but for what the
    baseline itself loses by reading on, its mean.
    """
    found = read_study(RECORDS / study)
    baselines = [arm for arm in found.arms if found.against(arm) is None]
    with style():
        drawing = Figure(figsize=(PAGE_WIDTH, 4.2))
        panels = drawing.subplots(2, len(baselines), sharex=True, sharey="row", squeeze=False)
        for column, baseline in zip(panels.T, baselines, strict=True):
            arms = [arm for arm in found.arms if found.against(arm) == baseline]
            _draw_leads(column[0], study, "positions", arms)
            _draw_leads(column[1], study, "reading_on", arms)
            _draw_baseline(column[1], study, baseline)
            column[0].set(title=", ".join(block(found, baseline)))
            column[1].set(xlabel="length, in lengths of training")
        panels[0, 0].set_ylabel("bits per byte\nminus the baseline")
        panels[1, 0].set_ylabel("lost by reading on,\nminus the baseline")
        legend_below(drawing, [start(found, arm) for arm in (baselines[0], *arms)])
    return drawing


def _draw_leads(axes: Axes, study: str, key: str, arms: list[str]) -> None:
    """Draw the differences of arms to their baseline, by length."""
    axes.axhline(0.0, color=INK, lw=0.6)
    for look, arm in enumerate(arms, start=1):
        lengths = [*losses(study, key)[arm]]
        leads = [lead(study, key, arm, times) for times in lengths]
        axes.errorbar(
            [times * 1.04 ** (look - 2) for times in lengths],
            [one.mean for one in leads],
            [one.mean - one.low for one in leads],
            lw=1.0,
            capsize=2,
            **line_style(look),
        )


def _draw_baseline(axes: Axes, study: str, baseline: str) -> None:
    """Draw what the baseline itself loses by reading on."""
    lengths = losses(study, "reading_on")[baseline]
    means = [sum(by_seed.values()) / len(by_seed) for by_seed in lengths.values()]
    axes.plot([*lengths], means, lw=1.2, **line_style(0))
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, *lengths], [str(times) for times in (1, *lengths)])
    axes.minorticks_off()
