"""Kernels to fit that are measured on a corpus: its exponent, the curve of its information, its predictive weights."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, cast

from plkernel.analysis.exponentials import FEWEST_LAGS, Target, lag_target, power_law_target, verdict_target
from plkernel.analysis.information.counts import Bytes
from plkernel.analysis.information.laws import measure_corpus
from plkernel.analysis.nodes import Aim, AimTarget, Reading
from plkernel.analysis.prediction import predictive_weights

SLOPE_FROM, SLOPE_TO = 2, 256
"""The lags, as far as they are asked for, of the slope that is stated of predictive weights."""


class Kernel(NamedTuple):
    """A kernel to fit; `aim` says how channels are read as it, an `Aim` where it is one power law.

    told: lines about its measurement. measured: the same as values for JSON.
    """

    target: Target
    aim: Aim | Reading
    told: Sequence[str] = ()
    measured: dict[str, Any] | None = None


def law(beta: float, target: AimTarget, reading: Reading, max_lag: int, *measurement: Any) -> Kernel:
    """Return t**-beta, or for correlation t**-(beta/2), on lags 1..max_lag."""
    aim = Aim(beta, target, reading.kernel, reading.lag)
    return Kernel(power_law_target(aim.exponent, max_lag), aim, *measurement)


def information(
    corpus: Any,
    data: Bytes,
    target: str,
    reading: Reading,
    max_lag: int,
    threads: int = 1,
    progress: Callable[[float], Any] | None = None,
) -> Kernel:
    """Return the one exponent that `measure_corpus` finds, the curve in the shape of its verdict, or the root of that.

    Raises ValueError for a corpus whose information does not decay as any power.
    """
    found = measure_corpus(corpus, data, threads=threads, progress=progress)
    fitted, verdict = found.law, found.verdict
    if fitted is None or verdict.kind == "none":
        raise ValueError(f"corpus {corpus.name!r}: no exponent to fit, {verdict.sentence}; give --beta")
    measured = {"law": fitted.to_dict(), "verdict": verdict.sentence, "estimator": found.estimator}
    interval = f"(95 % {fitted.low:.3f} to {fitted.high:.3f}) on lags {fitted.first_lag}..{fitted.last_lag}"
    told = [f"beta {fitted.beta:.3f} {interval}", verdict.sentence]
    if target in ("information", "correlation"):
        if not verdict.is_power_law:
            told.append("fitted is that one exponent all the same; --target curve fits what was found")
        return law(fitted.beta, cast(AimTarget, target), reading, max_lag, told, measured)
    curve = verdict_target(verdict, found.information, max_lag).raised(0.5 if target == "correlation-curve" else 1)
    beyond = f"; beyond lag {verdict.last_lag} it goes on as judged" if curve.max_lag > verdict.last_lag else ""
    told.append(f"the kernel is {curve.label} on lags {curve.lags[0]:g}..{curve.max_lag:g}{beyond}")
    if curve.beta is not None:
        return law(curve.beta, "information", reading, max_lag, told, measured)
    return Kernel(curve, reading, told, measured)


def predictive(corpus: Any, data: Bytes, _: str, reading: Reading, max_lag: int, **options: Any) -> Kernel:
    """Return the weights of the best linear predictor in bands of lags, as far as they stand out from noise."""
    weights = predictive_weights(data, max_lag, **options)
    bands = weights.bands(1, max_lag)
    used, edges, errors = bands.clear(), bands.edges, bands.standard_errors()
    if used.size < FEWEST_LAGS:
        raise ValueError(
            f"corpus {corpus.name!r}: predictive weights stand out from noise at {used.size} bands of lags, a fit "
            f"needs {FEWEST_LAGS}; use more data, or target 'information'"
        )
    kernel = lag_target(bands.lags[used], bands.values[used], (errors / bands.values)[used], "predictive weights")
    reach = used[-1] + 1
    last = min(SLOPE_TO, int(edges[reach]) - 1)
    told = [f"predictive weights stand out from noise on lags 1..{edges[reach] - 1}, {weights.values[0]:.4g} at lag 1"]
    slope = weights.slope(SLOPE_FROM, last) if used.size == reach and last > SLOPE_FROM * FEWEST_LAGS else None
    if slope:
        interval = f"(95 % {slope.low:.3f} to {slope.high:.3f}) on lags {SLOPE_FROM}..{last}"
        told.append(f"they fall as d**-{slope.beta:.3f} {interval}")
    if left := ", ".join(f"{edges[at]}..{edges[at + 1] - 1}" for at in range(reach) if at not in used):
        told.append(f"left out are lags {left}, where they are negative or not told from zero")
    measured = {
        "ridge": weights.ridge,
        "slope": slope and {**asdict(slope), "first_lag": SLOPE_FROM, "last_lag": last},
        "bands": {"edges": edges.tolist(), "weights": bands.values.tolist(), "errors": errors.tolist()},
    }
    return Kernel(kernel, reading, told, measured)
