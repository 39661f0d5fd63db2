"""The kernel to fit: a power law of a given or measured exponent, a measured curve, or the weights of a predictor."""

import os
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np

from plkernel.analysis.exponentials.targets import SMALLEST_VALUE, Target, lag_target, power_law_target, verdict_target
from plkernel.analysis.nodes.node_set import Aim, Lag, Reading, Summation, check_name
from plkernel.common import cli
from plkernel.data import corpora

FitTarget = Literal["information", "correlation", "curve", "correlation-curve", "predictive"]

PUBLISHED_BETA = 1.15
FLATTEST_TARGET = 1e-6
"""The least fall of ln(target) over the lags that can be told from none."""
FEWEST_LAGS = 3
SLOPE_FROM, SLOPE_TO = 2, 256
"""The lags, as far as they are asked for, on which the slope of predictive weights is told."""


@dataclass(frozen=True)
class Wanted:
    """A kernel, how channels are to be read as it, and what of a corpus led to it: for JSON, and told in lines.

    aim  an `Aim` where the kernel is one power law, so that everything known of those applies; else a `Reading`
    """

    kernel: Target
    aim: Aim | Reading
    measured: dict[str, Any] | None = None
    told: tuple[str, ...] = ()


def wanted(
    beta: float | None, corpus: str | None, target: FitTarget, kernel: Summation, lag: Lag, max_lag: int
) -> Wanted:
    """The kernel that `target` names on t = 1..max_lag; options as in `plkernel.fit.fit`.

    Raises ValueError for options that contradict each other, and for corpora that show nothing to fit.
    """
    check_name("target", target, get_args(FitTarget))
    if max_lag < FEWEST_LAGS:
        raise ValueError(f"max_lag must be at least {FEWEST_LAGS}, got {max_lag}")
    if corpus is None:
        if target == "information" or target == "correlation":
            return _law(Aim(PUBLISHED_BETA if beta is None else beta, target, kernel, lag), max_lag)
        given = f"beta {beta:g}" if beta is not None else "no corpus"
        raise ValueError(
            f"target {target!r} is measured on a corpus, got {given}: name one with --corpus, or use target "
            "'information' or 'correlation'"
        )
    if beta is not None:
        raise ValueError(f"beta {beta:g} and corpus {corpus!r}: give one of the two")
    if target == "predictive":
        return _predictive(corpus, Reading(kernel, lag), max_lag)
    return _measured(corpus, target, Reading(kernel, lag), max_lag)


def _law(aim: Aim, max_lag: int, measured: dict[str, Any] | None = None, told: tuple[str, ...] = ()) -> Wanted:
    fall = aim.power * aim.exponent * np.log(max_lag)
    if fall < FLATTEST_TARGET:
        raise ValueError(
            f"beta {aim.beta:g} leaves t**-beta flat up to max_lag {max_lag}: use a larger beta or max_lag"
        )
    if fall > -np.log(SMALLEST_VALUE):
        raise ValueError(
            f"beta {aim.beta:g} makes max_lag**-beta smaller than {SMALLEST_VALUE:g} at max_lag {max_lag}: "
            "use a smaller beta or max_lag"
        )
    return Wanted(power_law_target(aim.exponent, max_lag), aim, measured, told)


def _measured(corpus: str, target: FitTarget, reading: Reading, max_lag: int) -> Wanted:
    """One exponent of what `measure` finds, or the curve in the shape of its verdict; its root where so named."""
    from plkernel.analysis.information.measurement import measure_corpus

    loaded = corpora.load(corpus)
    with cli.progress_bar(corpus) as progress:
        found = measure_corpus(loaded, loaded.bytes, threads=os.cpu_count() or 1, progress=progress)
    law, verdict = found.law, found.verdict
    if law is None or verdict.kind == "none":
        raise ValueError(f"corpus {corpus!r}: no exponent to fit, {verdict.sentence}; give --beta")
    shown = {"corpus": loaded.to_dict(), "law": law.to_dict(), "verdict": verdict.sentence}
    shown["estimator"] = found.estimator
    lines = [
        f"{corpus}: beta {law.beta:.3f} (95 % {law.low:.3f} to {law.high:.3f}) on lags {law.first_lag}..{law.last_lag}",
        f"{corpus}: {verdict.sentence}",
    ]
    if target == "information" or target == "correlation":
        if not verdict.is_power_law:
            lines.append(f"{corpus}: fitted is that one exponent all the same; --target curve fits what was found")
        return _law(Aim(law.beta, target, reading.kernel, reading.lag), max_lag, shown, tuple(lines))
    kernel = verdict_target(verdict, found.information, max_lag).raised(0.5 if target == "correlation-curve" else 1)
    beyond = f"; beyond lag {verdict.last_lag} it goes on as judged" if kernel.max_lag > verdict.last_lag else ""
    lines.append(f"{corpus}: the kernel is {kernel.label} on lags {kernel.lags[0]:g}..{kernel.max_lag:g}{beyond}")
    if kernel.beta is not None:
        return _law(Aim(kernel.beta, "information", reading.kernel, reading.lag), max_lag, shown, tuple(lines))
    return Wanted(kernel, reading, shown, tuple(lines))


def _predictive(corpus: str, reading: Reading, max_lag: int) -> Wanted:
    """The weights of the best linear predictor, in bands of lags, as far as they stand out from noise."""
    from plkernel.analysis.prediction import predictive_weights

    loaded = corpora.load(corpus)
    with cli.progress_bar(corpus) as progress:
        found = predictive_weights(loaded.bytes, max_lag, threads=os.cpu_count() or 1, progress=progress)
    bands = found.bands(1, max_lag)
    used = bands.clear()
    if used.size < FEWEST_LAGS:
        raise ValueError(
            f"corpus {corpus!r}: predictive weights stand out from noise at {used.size} bands of lags, a fit needs "
            f"{FEWEST_LAGS}; use more data, or target 'information'"
        )
    errors = bands.standard_errors()
    kernel = lag_target(bands.lags[used], bands.values[used], (errors / bands.values)[used], "predictive weights")
    reach = used[-1] + 1
    lines = [
        f"{corpus}: predictive weights stand out from noise on lags 1..{bands.edges[reach] - 1}, "
        f"{found.values[0]:.4g} at lag 1"
    ]
    slope, last = None, min(SLOPE_TO, int(bands.edges[reach]) - 1)
    if used.size == reach and last > SLOPE_FROM * FEWEST_LAGS:
        slope = found.slope(SLOPE_FROM, last)
        lines.append(
            f"{corpus}: they fall as d**-{slope.beta:.3f} (95 % {slope.low:.3f} to {slope.high:.3f}) on lags "
            f"{SLOPE_FROM}..{last}"
        )
    if used.size < reach:
        left = np.setdiff1d(np.arange(reach), used)
        ranges = ", ".join(f"{bands.edges[at]}..{bands.edges[at + 1] - 1}" for at in left)
        lines.append(
            f"{corpus}: left out are lags {ranges}, where they are negative or not told from zero, which no sum of "
            "exponentials with positive weights follows"
        )
    shown = {
        "corpus": loaded.to_dict(),
        "ridge": found.ridge,
        "slope": slope and {**asdict(slope), "first_lag": SLOPE_FROM, "last_lag": last},
        "bands": {"edges": bands.edges.tolist(), "weights": bands.values.tolist(), "errors": errors.tolist()},
    }
    return Wanted(kernel, reading, shown, tuple(lines))
