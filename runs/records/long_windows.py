"""Losses in windows longer than those of training: the figure and the tables of a study.

A loss is bits per byte at positions between half of and all of so many bytes from the beginning of
a window, or what of them is lost by reading on. Lengths are in multiples of the length of training.
Where a study has scaling-off.json, the same models with decays that stop slowing down behind the
length of training stand beside the arms. heads.json has the size of what heads give, by length, and
losses with heads that are levelled.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from recall_tests import block, start, study_of

from plkernel.analysis.figures.style import INK, PAGE_WIDTH, legend_below, line_style, style
from plkernel.results.statistics import PairedDifference, mean_interval, paired_difference

RECORDS = Path(__file__).resolve().parent
STOPPED = ", stopped at T"
"""Behind the name of an arm: its models with decays that do not slow down further than there."""
Lengths = dict[int, dict[int, float]]
"""Bits by length and by seed."""


@cache
def losses(study: str, key: str) -> dict[str, Lengths]:
    """Return what every finished run lost from half of the length of training on, by arm.

    key: positions, or reading_on
    """
    context = study_of(study).finished()[0].config["train"]["context"]
    found: dict[str, Lengths] = {}
    for arm, seed, beyond in _long_windows(study):
        for given, bits in zip(beyond[key]["given"], beyond[key]["bpb"], strict=True):
            if given >= context:
                found.setdefault(arm, {}).setdefault(given // context, {})[seed] = bits
    return found


def _long_windows(study: str) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    """Yield arm, seed and losses of every run, and of its models with decays that stop."""
    for run in study_of(study).finished():
        assert run.result.beyond is not None
        yield run.arm, run.seed, run.result.beyond
    stopped = RECORDS / study / "scaling-off.json"
    if stopped.exists():
        for row in json.loads(stopped.read_text())["rows"]:
            yield row["arm"] + STOPPED, row["seed"], row


def against(study: str, arm: str) -> str | None:
    """Return the arm with which an arm, or its models with decays that stop, is compared."""
    return study_of(study).against(arm.removesuffix(STOPPED))


def lead(study: str, arm: str, times: int, key: str = "positions") -> PairedDifference:
    """Return the losses of an arm minus those of the arm it is compared with, by seed.

    times: the most bytes before, in lengths of training
    key: positions, or reading_on
    """
    other = against(study, arm)
    assert other is not None, f"{arm} is a baseline of {study}"
    found = losses(study, key)
    return paired_difference(found[arm][times], found[other][times])


@cache
def growth(study: str) -> dict[str, Lengths]:
    """Return the size of what heads give by length over that within training, by arm and seed.

    The geometric mean over layers, of heads.json.
    """

    def sizes(row: Mapping[str, Any]) -> list[float]:
        by_layer = np.array(row["layers"])
        over = by_layer / by_layer[:, :1]
        means: list[float] = np.exp(np.log(over).mean(axis=0)).tolist()
        return means

    return _of_heads(study, sizes)


@cache
def levelled(study: str) -> dict[str, Lengths]:
    """Return the bits by which levelled heads change a loss by length, by arm and seed."""

    def changes(row: Mapping[str, Any]) -> list[float]:
        return np.subtract(row["levelled_bpb"], row["bpb"]).tolist()

    return _of_heads(study, changes)


def _of_heads(study: str, values: Callable[[Mapping[str, Any]], list[float]]) -> dict[str, Lengths]:
    """Return what `values` gives at every length of a row of heads.json, by arm and seed."""
    found: dict[str, Lengths] = {}
    for row in json.loads((RECORDS / study / "heads.json").read_text())["rows"]:
        context = row["lengths"][0]
        by_length = found.setdefault(row["arm"], {})
        for length, value in zip(row["lengths"], values(row), strict=True):
            by_length.setdefault(length // context, {})[row["seed"]] = value
    return found


def figure(study: str) -> Figure:
    """Draw losses by position minus the baseline, and losses by reading on, of every block.

    Means and 95 % t intervals over seeds.
    """
    found = study_of(study)
    baselines = [arm for arm in found.arms if found.against(arm) is None]
    with style():
        drawing = Figure(figsize=(PAGE_WIDTH, 4.4))
        panels = drawing.subplots(2, len(baselines), sharex=True, sharey="row", squeeze=False)
        for (above, below), baseline in zip(panels.T, baselines, strict=True):
            others = [arm for arm in losses(study, "positions") if against(study, arm) == baseline]
            _draw_leads(above, study, others)
            _draw_reading_on(below, study, [baseline, *others])
            above.set(title=", ".join(block(found, baseline)))
            below.set(xlabel="length, in lengths of training")
        names = [start(found, baseline)]
        panels[0, 0].set_ylabel(f"bits per byte\nminus {names[0]}")
        panels[1, 0].set_ylabel("bits per byte\nlost by reading on")
        for arm in others:
            own = arm.removesuffix(STOPPED)
            names.append(start(found, own) + arm.removeprefix(own))
        legend_below(drawing, names)
    return drawing


def _draw_leads(axes: Axes, study: str, arms: list[str]) -> None:
    """Draw the losses of arms by position minus those of their baseline."""
    for look, arm in enumerate(arms, start=1):
        lengths = losses(study, "positions")[arm]
        leads = [lead(study, arm, times) for times in lengths]
        half_widths = [one.mean - one.low for one in leads]
        _draw(axes, look, lengths, [one.mean for one in leads], half_widths)
    axes.set_xscale("log", base=2)
    axes.set_xticks([*lengths], [str(times) for times in lengths])
    axes.minorticks_off()


def _draw_reading_on(axes: Axes, study: str, arms: list[str]) -> None:
    """Draw what arms lose by reading on."""
    for look, arm in enumerate(arms):
        lengths = losses(study, "reading_on")[arm]
        found = [mean_interval(by_seed.values()) for by_seed in lengths.values()]
        half_widths = [one.mean - one.low for one in found]
        _draw(axes, look, lengths, [one.mean for one in found], half_widths)


def _draw(
    axes: Axes, look: int, lengths: Lengths, means: list[float], half_widths: list[float]
) -> None:
    """Draw one curve with its intervals, a little beside the others."""
    axes.axhline(0.0, color=INK, lw=0.6)
    beside = [times * 1.035 ** (look - 2) for times in lengths]
    axes.errorbar(beside, means, half_widths, lw=1.0, capsize=2, **line_style(look))
