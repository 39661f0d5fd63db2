"""Spread over starts, before training and after, of half-lives and of the kernels that they
make.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from plkernel.analysis.figures.style import PAGE_WIDTH, legend_below, line_style, style
from plkernel.context.measures import Floats
from plkernel.decays.memory import Memory, memory_of
from plkernel.results.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Starts = Mapping[str, tuple[Memory, Memory]]
"""The memory of several starts before training and after."""


class Spread(NamedTuple):
    """Spread over starts in octaves before training and after, and after training that of seeds
    alone.
    """

    before: float
    after: float
    seeds: float


def groups(study: Study) -> dict[str, Starts]:
    """Arms of a block of a study that differ in their start alone, two or more; those not learnt
    are a group apart.

    An arm counts if its finished runs hold half-lives and kernels of both times; half-lives are not
    learnt if they end where they began. A block is named by its levels of `within`, and by the gain
    where SSMs of several are compared.
    """
    found: dict[str, dict[str, tuple[Memory, Memory]]] = {}
    models = [run.config["model"] for run in study.finished()]
    gains = {model.get("gain") for model in models if model.get("kind", "ssm") == "ssm"}
    for arm in study.arms:
        runs = study.finished(arm)
        before, after = (
            memory_of([run.first for run in runs]),
            memory_of([run.last for run in runs]),
        )
        if runs and all(one.half_lives.size and one.kernels.size for one in (before, after)):
            levels, kind = study.levels(arm), runs[0].config["model"].get("kind", "ssm")
            name = [levels[factor] for factor in study.spec.get("within") or ()] + [kind] * (
                kind != "ssm"
            )
            gain = runs[0].config["model"].get("gain")
            name += [gain] * (kind == "ssm" and len(gains) > 1 and gain not in name)
            name += ["not learnt"] * np.array_equal(before.half_lives, after.half_lives)
            found.setdefault(", ".join(name), {})[arm] = before, after
    return {name: starts for name, starts in found.items() if len(starts) > 1}


def shapes(memory: Memory) -> Floats:
    """log2 K(t)/K(1) of every run and block at the known lags 1 < t <= 256, (S, L, T)."""
    with np.errstate(divide="ignore"):
        logs = np.log2(memory.kernels)
    return np.asarray((logs - logs[..., :1])[..., (memory.lags > 1) & (memory.lags <= 256)])


def spread(values: Sequence[tuple[Floats, Floats]]) -> Spread:
    """Spread over A starts of values x (S, L, T) in octaves: S seeds, L blocks, T lags or
    quantiles, before and after.

    It is mean_lt sd_a(mean_s x), the standard deviation over starts with divisor A, and has the
    unit of x. Starts that end alike but for seeds of variance v_a would have mean_lt sqrt((A - 1)/A
    mean_a(v_a / S)); NaN for one seed.
    """
    before, after = (
        float(np.stack([pair[at].mean(axis=0) for pair in values]).std(axis=0).mean())
        for at in (0, 1)
    )
    one = np.full_like(values[0][1][0], np.nan)
    errors = [
        pair[1].var(axis=0, ddof=1) / len(pair[1]) if len(pair[1]) > 1 else one for pair in values
    ]
    return Spread(
        before, after, float(np.sqrt((1 - 1 / len(values)) * np.mean(errors, axis=0)).mean())
    )


def convergence(starts: Starts) -> tuple[Spread, Spread]:
    """Spread over starts of log2 of the seven quantiles of their half-lives, and of the shape of
    their kernels.
    """
    pairs = starts.values()
    half_lives = [
        (np.log2(before.half_lives), np.log2(after.half_lives)) for before, after in pairs
    ]
    return spread(half_lives), spread([(shapes(before), shapes(after)) for before, after in pairs])


def kernels_figure(panels: Mapping[str, Starts]) -> "Figure":
    """Draw kernels before training (above) and after, a column a group, geometric means over runs
    and blocks.
    """
    from matplotlib.figure import Figure

    names = list(
        dict.fromkeys(arm.partition("_")[0] for starts in panels.values() for arm in starts)
    )
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 4.3))
        axes = figure.subplots(2, len(panels), sharex=True, sharey=True, squeeze=False)
        for column, (title, starts) in zip(axes.T, panels.items(), strict=True):
            half, shape = convergence(starts)
            for time, (when, one) in enumerate(zip(("before", "after"), column, strict=True)):
                for arm, memories in starts.items():
                    values = np.exp(memories[time].log_kernels().mean(axis=0))
                    one.plot(
                        memories[time].lags,
                        values,
                        lw=1.3,
                        **line_style(names.index(arm.partition("_")[0])),
                    )
                one.set(
                    xscale="log",
                    yscale="log",
                    xlim=(1, 256),
                    ylim=(1e-4, 1.3),
                    xticks=(1, 4, 16, 64, 256),
                )
                one.minorticks_off()
                one.xaxis.set_major_formatter("{x:g}")
                one.yaxis.set_major_formatter("{x:g}")
                one.set_title(
                    f"{title}, {when}\nkernel {shape[time]:.2f}, half-lives {half[time]:.2f}",
                    fontsize=7,
                )
            column[1].set_xlabel("bytes back")
        for one in axes[:, 0]:
            one.set_ylabel("weight, 1 at one byte back")
        legend_below(figure, names)
    return figure
