"""Half-lives against log-spaced ones, each at its best learning rate, in every study of curves.

render.py writes the table into docs/evidence/rates.md, and the figure to rates/ends.png and .svg.
"""

from collections.abc import Iterator
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from sentences import number, studies

from plkernel.analysis.figures.style import COLOURS, GREY, INK, PAGE_WIDTH, style
from plkernel.results.rate_curves import curve_results
from plkernel.results.statistics import PairedDifference

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVES = (
    "rates",
    "rates-longer",
    "rates-parts",
    "rates-lengths",
    "rates-wide",
    "rates-lru",
    "rates-lru-longer",
    "rates-warmup",
    "rates-warmup-ema",
    "rates-warmup-wide",
    "rates-wide-longer",
    "rates-bare",
    "rates-warmup-bare",
    "rates-bare-longer",
)
"""Studies of curves over learning rates with SSMs."""
OTHER_MODELS = (
    "rates-finch",
    "rates-goose",
    "rates-goose-longer",
    "rates-finch-longer",
    "rates-mamba2",
)
"""Those with other models, which have no gain and are not in the table."""
STARTS = {"short-matched": "short", "8": "short", "concentrated": "concentrated"}
"""Arms that most of them have: half-lives of 1 to 8 bytes at the output scale of log-spaced ones,
in `rates-lengths` called 8, and those of the published study with its weights. A longer warm-up is
named by an ending.
"""
GAINS = {"ema": "EMA", "lru": "LRU", "none": "none"}


class AtBest(NamedTuple):
    """A start against log-spaced half-lives, in bits per byte at the best learning rate of each.

    megabytes  read in training; warmup  steps of `steps`
    baseline   the minimum of log-spaced half-lives, the mean over seeds
    at_edge    the best rate of the start or of log-spaced ones is the first or last tried
    """

    study: str
    start: str
    gain: str
    channels: int
    megabytes: float
    warmup: int
    steps: int
    baseline: float
    val: PairedDifference
    test: PairedDifference
    at_edge: bool


@cache
def comparisons() -> tuple[AtBest, ...]:
    """Return every comparison: by gain, channels, what is read, warm-up, study and start."""
    starts = list(STARTS.values())
    found = [one for study in CURVES for one in _of_study(study)]
    return tuple(sorted(found, key=lambda one: (*_setting(one), starts.index(one.start))))


def _of_study(study: str) -> Iterator[AtBest]:
    """Yield the comparisons of one study."""
    results = curve_results(studies()[study])
    curves = {one.curve.name: one.curve for one in results}
    for one in results:
        start = STARTS.get(one.curve.name.removesuffix("-200"))
        if start is None or one.difference is None or one.test is None:
            continue
        against = curves[str(one.against)]
        run, *_ = studies()[study].finished(f"{one.curve.name}_{one.curve.rates[0]:g}")
        train, model = run.config["train"], run.config["model"]
        yield AtBest(
            study=study,
            start=start,
            gain=GAINS[model["gain"]],
            channels=model["dim"],
            megabytes=run.result.bytes / 1e6,
            warmup=train["warmup"],
            steps=train["steps"],
            baseline=against.estimate.mean,
            val=one.difference,
            test=one.test,
            at_edge=one.curve.at_edge or against.at_edge,
        )


def _setting(one: AtBest) -> tuple[float, ...]:
    """Return the rank of the place of the figure at which a comparison stands."""
    gain = list(GAINS.values()).index(one.gain)
    return gain, one.channels, one.megabytes, one.warmup, CURVES.index(one.study)


def _ends_at_best(start: str) -> list[float]:
    """Return where a start ends in every setting of 64 channels and 1.2 MB: short or log-spaced."""
    narrow = [
        one
        for one in comparisons()
        if one.start == "short" and one.channels == 64 and one.megabytes < 2
    ]
    return [one.baseline + one.val.mean * (start == "short") for one in narrow]


@number
def least_end_at_best(start: str) -> float:
    """Return the lowest of these ends."""
    return min(_ends_at_best(start))


@number
def largest_end_at_best(start: str) -> float:
    """Return the highest of these ends."""
    return max(_ends_at_best(start))


@number
def leads_at_best(which: str) -> int:
    """Return how many leads of the table there are: all, or those that are larger on test text."""
    leads = [one for one in comparisons() if one.val.mean < 0]
    if which == "all":
        return len(leads)
    return sum(one.test.mean < one.val.mean for one in leads)


HEADER = (
    "half-lives",
    "gain",
    "channels",
    "MB read",
    "warm-up, steps",
    "log-spaced ones end at",
    "minus log-spaced",
    "on test text",
    "seeds",
    "study",
)
INTERVAL = "{:+.3f} ({:+.3f} to {:+.3f})"
EDGE = " *"


def table_rows() -> list[list[str]]:
    """Return the rows of the table under HEADER; a star where a best rate is at an edge."""
    return [
        [
            one.start,
            one.gain,
            str(one.channels),
            f"{one.megabytes:.1f}",
            f"{one.warmup} of {one.steps:,}",
            f"{one.baseline:.3f}",
            INTERVAL.format(one.val.mean, one.val.low, one.val.high) + EDGE * one.at_edge,
            INTERVAL.format(one.test.mean, one.test.low, one.test.high),
            str(one.val.n),
            f"`{one.study}`",
        ]
        for one in comparisons()
    ]


ROW_HEIGHT = 0.32
APART = 0.15
"""Rows between two starts of one setting, halved."""
DIFFERENCES = (-0.12, 0.02)
"""Bits per byte that are drawn; a difference beyond has an arrow and its number."""
LOOKS: dict[str, dict[str, Any]] = {
    "short": {"marker": "o", "color": COLOURS[0]},
    "concentrated": {"marker": "D", "color": COLOURS[1]},
}
BASELINE: dict[str, Any] = {"marker": "|", "color": INK, "ls": "", "ms": 9, "mew": 1.6}


def figure() -> Figure:
    """Draw where log-spaced half-lives end and where another start does, beside the differences."""
    settings = [list(rows) for _, rows in groupby(comparisons(), _setting)]
    with style():
        drawing = Figure(figsize=(PAGE_WIDTH, ROW_HEIGHT * len(settings) + 1.2))
        ends, differences = drawing.subplots(1, 2, sharey=True, width_ratios=[1.3, 1.0])
        differences.axvline(0.0, color=INK, lw=0.6)
        for place, of_setting in enumerate(settings):
            ends.plot(of_setting[0].baseline, place, **BASELINE)
            for index, one in enumerate(of_setting):
                height = place + APART * (2 * index - len(of_setting) + 1)
                _draw_end(ends, height, one)
                _draw_difference(differences, height, one)
        ends.set_yticks(range(len(settings)), [_label(rows[0]) for rows in settings])
        ends.set(ylim=(len(settings) - 0.5, -0.5), xlabel="bits per byte at the best rate")
        differences.set(
            xlim=DIFFERENCES,
            xticks=(-0.12, -0.08, -0.04, 0.0),
            xlabel="minus log-spaced, bits per byte",
        )
        for axes in (ends, differences):
            axes.tick_params(axis="y", length=0)
            axes.spines["left"].set_visible(False)
            axes.grid(axis="x", lw=0.3, alpha=0.5)
        drawing.legend(handles=_legend(), loc="outside lower center", ncols=3)
    return drawing


def _draw_end(axes: "Axes", height: float, one: AtBest) -> None:
    """The end of a start, and a line from that of log-spaced half-lives."""
    end = one.baseline + one.val.mean
    axes.plot([one.baseline, end], [height, height], color=GREY, lw=0.6)
    axes.plot(end, height, ms=3.6, ls="", **LOOKS[one.start])


def _draw_difference(axes: "Axes", height: float, one: AtBest) -> None:
    """The difference of a start with its interval; an arrow where it lies beyond the axis."""
    look = LOOKS[one.start]
    least = DIFFERENCES[0]
    if one.val.mean < least:
        axes.plot(least, height, marker="<", ms=4, color=look["color"], clip_on=False)
        axes.text(
            least + 0.004, height, f"{one.val.mean:.3f}", va="center", color=look["color"], size=7
        )
        return
    axes.plot([one.val.low, one.val.high], [height, height], color=look["color"], lw=1.4)
    axes.plot(one.val.mean, height, ms=3.6, ls="", **look)


def _legend() -> list[Line2D]:
    starts = [Line2D([], [], lw=1.4, ms=3.6, label=name, **look) for name, look in LOOKS.items()]
    return [Line2D([], [], label="log-spaced", **BASELINE), *starts]


def _label(one: AtBest) -> str:
    gain = "no gain" if one.gain == "none" else one.gain
    return (
        f"{one.study}: {gain}, {one.channels} ch.,\n{one.megabytes:.1f} MB,"
        f" warm-up {one.warmup} of {one.steps:,}"
    )
