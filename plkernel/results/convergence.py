"""How far several initialisations end alike: half-lives, and the kernels that they make."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from plkernel.analysis.figures.style import PAGE_WIDTH, legend_below, line_style, style
from plkernel.context.measures import Floats
from plkernel.decays.memory import Memory, memory_of
from plkernel.results.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Starts = Mapping[str, tuple[Memory, Memory]]
"""The memory of arms, which differ in their initialisation alone, before training and after."""
WHEN = ("before", "after")
"""The two times of `Starts`, as titles name them."""
LONGEST_LAG = 256
"""Lags in bytes up to which kernels are compared."""


class Spread(NamedTuple):
    """Spread over initialisations in octaves, before training and after.

    seeds: the spread after training that seeds alone would make.
    """

    before: float
    after: float
    seeds: float


def groups(study: Study) -> dict[str, Starts]:
    """Arms of a block of a study that differ in their initialisation alone, two or more.

    An arm counts if its finished runs hold half-lives and kernels of both times. Arms whose
    half-lives are not learnt, for they end where they began, are a group apart. A block is named by
    its levels of `within`, and by the gain where SSMs of several are compared.
    """
    several_gains = len(_gains(study)) > 1
    found: dict[str, dict[str, tuple[Memory, Memory]]] = {}
    for arm in study.arms:
        runs = study.finished(arm)
        before = memory_of([run.first for run in runs])
        after = memory_of([run.last for run in runs])
        if not runs or not (_is_known(before) and _is_known(after)):
            continue
        names = _block_names(study, arm, runs[0].config["model"], several_gains)
        if np.array_equal(before.half_lives, after.half_lives):
            names.append("not learnt")
        found.setdefault(", ".join(names), {})[arm] = (before, after)
    return {name: starts for name, starts in found.items() if len(starts) > 1}


def _block_names(
    study: Study, arm: str, model: Mapping[str, Any], several_gains: bool
) -> list[str]:
    """The levels of an arm's block, and the kind of its model or its gain."""
    levels = study.levels(arm)
    names = [levels[factor] for factor in study.within if factor in levels]
    kind = model.get("kind", "ssm")
    if kind != "ssm":
        names.append(kind)
    elif several_gains and model.get("gain") not in names:
        names.append(model["gain"])
    return names


def _gains(study: Study) -> set[str | None]:
    """The gains of the SSMs of a study."""
    models = [run.config["model"] for run in study.finished()]
    return {model.get("gain") for model in models if model.get("kind", "ssm") == "ssm"}


def _is_known(memory: Memory) -> bool:
    """True if half-lives and kernels were recorded."""
    return bool(memory.half_lives.size and memory.kernels.size)


def shapes(memory: Memory) -> Floats:
    """log2 K(t)/K(1) of every run and block at the known lags 1 < t <= LONGEST_LAG, (S, L, T)."""
    with np.errstate(divide="ignore"):
        logs = np.log2(memory.kernels)
    relative = logs - logs[..., :1]
    compared = (memory.lags > 1) & (memory.lags <= LONGEST_LAG)
    return np.asarray(relative[..., compared])


def spread(values: Sequence[tuple[Floats, Floats]]) -> Spread:
    """mean_lt sd_a(mean_s x), the standard deviation over A initialisations with divisor A.

    values: of each initialisation x (S, L, T) before training and after: S seeds, L blocks, T lags
    or quantiles. The spread has the unit of x. Initialisations that end alike but for seeds of
    variance v_a would have mean_lt sqrt((A - 1)/A mean_a(v_a / S)); NaN for one seed.
    """
    before, after = (
        float(np.stack([x.mean(axis=0) for x in column]).std(axis=0).mean())
        for column in zip(*values, strict=True)
    )
    errors = [_squared_error(x) for _, x in values]
    by_seeds = np.sqrt((1 - 1 / len(values)) * np.mean(errors, axis=0)).mean()
    return Spread(before, after, float(by_seeds))


def _squared_error(x: Floats) -> Floats:
    """The variance of the mean of x (S, L, T) over seeds, (L, T); NaN for one seed."""
    if len(x) < 2:
        return np.full_like(x[0], np.nan)
    return np.asarray(x.var(axis=0, ddof=1) / len(x))


def convergence(starts: Starts) -> tuple[Spread, Spread]:
    """Spread over initialisations of log2 of the quantiles of half-lives, and of kernel shapes."""
    half_lives = []
    kernels = []
    for before, after in starts.values():
        half_lives.append((np.log2(before.half_lives), np.log2(after.half_lives)))
        kernels.append((shapes(before), shapes(after)))
    return spread(half_lives), spread(kernels)


def learnt_kernels_figure(panels: Mapping[str, Starts]) -> "Figure":
    """Draw kernels before training (above) and after, a column for each group.

    Lines are geometric means over runs and blocks.
    """
    from matplotlib.figure import Figure

    placements: list[str] = []
    for starts in panels.values():
        placements += [_placement(arm) for arm in starts]
    placements = list(dict.fromkeys(placements))
    looks = {name: line_style(index) for index, name in enumerate(placements)}
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 4.3))
        grid = figure.subplots(2, len(panels), sharex=True, sharey=True, squeeze=False)
        for column, (title, starts) in zip(grid.T, panels.items(), strict=True):
            half_lives, kernels = convergence(starts)
            for time, axes in enumerate(column):
                memories = {arm: pair[time] for arm, pair in starts.items()}
                _draw_kernels(axes, memories, looks)
                axes.set_title(
                    f"{title}, {WHEN[time]}\nkernel {kernels[time]:.2f}, half-lives"
                    f" {half_lives[time]:.2f}",
                    fontsize=7,
                )
            column[1].set_xlabel("bytes back")
        for axes in grid[:, 0]:
            axes.set_ylabel("weight, 1 at one byte back")
        legend_below(figure, placements)
    return figure


def _placement(arm: str) -> str:
    """The placement of half-lives that an arm is named after: log-spaced of log-spaced_ema."""
    return arm.partition("_")[0]


def _draw_kernels(
    axes: "Axes", memories: Mapping[str, Memory], looks: Mapping[str, dict[str, Any]]
) -> None:
    """Draw the mean kernel of every arm on the scales that all panels share."""
    for arm, memory in memories.items():
        mean_kernel = np.exp(memory.log_kernels().mean(axis=0))
        axes.plot(memory.lags, mean_kernel, lw=1.3, **looks[_placement(arm)])
    axes.set(xscale="log", yscale="log", xlim=(1, LONGEST_LAG), ylim=(1e-4, 1.3))
    axes.set(xticks=(1, 4, 16, 64, 256))
    axes.minorticks_off()
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
