"""Kernels measured on a corpus: its exponent, its information, or its best linear predictor.

With e_t the indicator vector of the symbol at t and p its mean, the predictor with one number for
each lag,

    e_t - p  =  sum_{k=1..L} w(k) (e_{t-k} - p)

solves

    sum_k w(k) q(|d - k|) = q(d) ,  d = 1..L ,  q(0) = 1 ,

q(d) being the correlation of `repeat_correlations`. Of a mixture of lags, where a byte copies the
one k before it with probability w(k), they are exactly those probabilities, and the predictor is
the true conditional distribution. So a kernel that predicts follows w, neither the information nor
q, which falls more slowly since copies are copied.

Source: Yule (1927) and Walker (1931); Raftery (JRSS B 47:528, 1985) for mixtures, equation of their
correlations.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plkernel.analysis.exponentials import (
    FEWEST_LAGS,
    SMALLEST_VALUE,
    Target,
    array_target,
    integer_lags,
    lag_target,
    power_law_target,
)
from plkernel.analysis.information.counts import (
    Bytes,
    block_edges,
    check_data,
    check_different,
    count_repeats,
    histogram,
)
from plkernel.analysis.information.estimate import (
    BLOCKS,
    MAX_LAG,
    DecayCurve,
    Floats,
    each_left_out,
    half_width,
    jackknife_error,
    without_bias,
)
from plkernel.analysis.information.laws import (
    BY_CHANCE,
    Verdict,
    fit_power_law,
    measure_corpus,
    points,
    simplest,
)
from plkernel.analysis.nodes import Aim, AimTarget, Lag, Summation

REACH = 4
"""The predictor sees so many times the lags that are asked for: the weights near its end stand in
for all beyond it.
"""
PER_OCTAVE = 4
"""Bands of lags in an octave."""
Progress = Callable[[float], Any]


class Kernel(NamedTuple):
    """A kernel to fit, and the same as an `Aim` where it is one power law.

    told      lines about its measurement
    measured  the same as values for JSON
    """

    target: Target
    law: Aim | None = None
    told: Sequence[str] = ()
    measured: dict[str, Any] | None = None


def law(
    beta: float,
    target: AimTarget,
    kernel: Summation,
    lag: Lag,
    max_lag: int,
    told: Sequence[str] = (),
    measured: dict[str, Any] | None = None,
) -> Kernel:
    """Return t**-beta, or for correlation t**-(beta/2), on lags 1..max_lag.

    told, measured: as of `Kernel`
    """
    aim = Aim(beta, target, kernel, lag)
    return Kernel(power_law_target(aim.exponent, max_lag), aim, told, measured)


def information(
    corpus: Any,
    data: Bytes,
    target: str,
    kernel: Summation,
    lag: Lag,
    max_lag: int,
    threads: int = 1,
    progress: Progress | None = None,
) -> Kernel:
    """Return the exponent that `measure_corpus` finds, or the curve in the shape of its verdict.

    target: information, correlation or curve. Raises ValueError for a corpus whose information does
    not decay as any power.
    """
    try:
        found = measure_corpus(corpus, data, threads=threads, progress=progress)
    except ValueError as error:
        remedy = ""
        if data.size < MAX_LAG + BLOCKS:
            remedy = (
                "; to fit fewer lags, measure with plkernel.measure --max-lag and give its exponent"
                " as --beta"
            )
        raise ValueError(f"corpus {corpus.name!r}: {error}{remedy}") from error
    fitted = found.law
    verdict = found.verdict
    if fitted is None or verdict.kind == "none":
        raise ValueError(
            f"corpus {corpus.name!r}: no exponent to fit, {verdict.sentence}; give --beta"
        )
    measured = {"law": asdict(fitted), "verdict": verdict.sentence, "estimator": found.estimator}
    interval = (
        f"(95 % {fitted.low:.3f} to {fitted.high:.3f}) on lags"
        f" {fitted.first_lag}..{fitted.last_lag}"
    )
    told = [f"beta {fitted.beta:.3f} {interval}", verdict.sentence]
    if target in ("information", "correlation"):
        if not fitted.beta > 0:
            raise ValueError(
                f"corpus {corpus.name!r}: its information must fall to fit an exponent, got"
                f" {told[0]}, {verdict.sentence}; give --beta, or --target curve"
            )
        if verdict.kind != "power law":
            told.append(
                "the fit uses that one exponent nevertheless; --target curve fits what was found"
            )
        return law(fitted.beta, cast(AimTarget, target), kernel, lag, max_lag, told, measured)
    curve = verdict_target(verdict, found.information, max_lag)
    sides = []
    if curve.lags[0] < verdict.first_lag:
        sides.append(f"below lag {verdict.first_lag}")
    if curve.max_lag > verdict.last_lag:
        sides.append(f"beyond lag {verdict.last_lag}")
    outside = f"; {' and '.join(sides)} it goes on as judged" if sides else ""
    told.append(
        f"the kernel is {curve.label} on lags {curve.lags[0]:g}..{curve.max_lag:g}{outside}"
    )
    if curve.beta is not None:
        return law(curve.beta, "information", kernel, lag, max_lag, told, measured)
    return Kernel(curve, None, told, measured)


def verdict_target(verdict: Verdict, curve: DecayCurve, max_lag: int) -> Target:
    """The shape that `judge` found `curve` to have, on t = 1..max_lag.

    It is 1 at t = 1, and continued beyond the judged lags. A power law, or a broken one, on every
    real lag; an exponential or stretched exponential at the integers up to where it vanishes in
    float64. Where the correlation alone is exponential (`with_correlation`) it is the shape of the
    information. A curve too short to have a shape is its own values up to `laws.clear_until`, with
    their relative jackknife errors. Raises ValueError for a shape that does not fall.
    """
    if verdict.kind == "too short":
        chosen = points(curve, None)
        return lag_target(
            chosen.lags, np.exp(chosen.logs), chosen.errors, f"{curve.quantity} per byte"
        )
    if verdict.kind == "power law":
        found = fit_power_law(curve, (verdict.first_lag, verdict.last_lag))
        return power_law_target(found.beta, max_lag)
    kind = verdict.kind
    if kind == "exponential":
        kind = simplest(verdict.models).name
    shape = next(model.parameters for model in verdict.models if model.name == kind)
    has_break = kind == "broken power law" and shape["break"] < max_lag
    falling = ["beta_1"] if kind == "broken power law" else ["tau"]
    if has_break:
        falling.append("beta_2")
    for name in falling:
        if not (np.isfinite(shape[name]) and shape[name] > 0):
            raise ValueError(
                f"curve of {curve.quantity}: its {kind} must fall, got"
                f" {name.replace('_', ' ')} {shape[name]:g}; measure more data or longer lags"
            )
    if has_break:
        return power_law_target(shape["beta_1"], max_lag, shape["beta_2"], shape["break"])
    if kind == "broken power law":
        return power_law_target(shape["beta_1"], max_lag)
    tau = shape["tau"]
    gamma = shape.get("gamma", 1.0)
    logs = (1 - integer_lags(max_lag) ** gamma) / tau**gamma
    label = f"exp(-(t/{tau:.3g})**{gamma:.3g})" if gamma != 1 else f"exp(-t/{tau:.3g})"
    return array_target(np.exp(logs[logs > np.log(SMALLEST_VALUE)]), label)


def predictive(
    corpus: Any, data: Bytes, max_lag: int, threads: int = 1, progress: Progress | None = None
) -> Kernel:
    """Return the weights of the best linear predictor in those bands of lags where they stand out
    from noise.
    """
    weights, ridge = predictive_weights(data, max_lag, threads=threads, progress=progress)
    edges, lags, values, replicates = bands(weights)
    used = np.flatnonzero(values > half_width(replicates))
    errors = jackknife_error(replicates)
    least = max(FEWEST_LAGS, math.ceil(BY_CHANCE * values.size))
    if used.size < least:
        raise ValueError(
            f"corpus {corpus.name!r}: predictive weights must stand out from noise in {least} of"
            f" {values.size} bands of lags, got {used.size}; use more data, or target 'information'"
        )
    target = lag_target(lags[used], values[used], (errors / values)[used], "predictive weights")
    reach = used[-1] + 1
    told = [
        f"predictive weights stand out from noise in {used.size} of {values.size} bands of lags,"
        f" the last at {edges[reach - 1]}..{edges[reach] - 1}; one band in forty does by chance. At"
        f" lag 1 the weight is {weights[0, 0]:.4g}"
    ]
    left = ", ".join(f"{edges[at]}..{edges[at + 1] - 1}" for at in range(reach) if at not in used)
    if left:
        told.append(
            f"left out are lags {left}, where they are negative or cannot be distinguished from"
            " zero"
        )
    columns = {"edges": edges.tolist(), "weights": values.tolist(), "errors": errors.tolist()}
    return Kernel(target, None, told, {"ridge": ridge, "bands": columns})


def predictive_weights(
    data: Bytes, lags: int, *, threads: int = 1, progress: Progress | None = None
) -> tuple[Floats, float]:
    """Measure the weights at d = 1..lags of the best predictor of `data` (n,) uint8.

    It predicts from `REACH` times as many symbols. Returns them, (lags, 1 + G) as
    `repeat_correlations`, from which they come, and the ridge in all of them, that of
    `noise_ridge`. Raises ValueError as these do.
    """
    correlations = repeat_correlations(data, REACH * lags, threads=threads, progress=progress)
    ridge = noise_ridge(correlations[:, 0], jackknife_error(correlations[:, 1:]))
    columns = [yule_walker(column, ridge)[:lags] for column in correlations.T]
    return np.stack(columns, axis=1), ridge


def repeat_correlations(
    data: Bytes,
    longest: int,
    *,
    blocks: int = BLOCKS,
    threads: int = 1,
    progress: Progress | None = None,
) -> Floats:
    """r(d) = (P(x_t = x_{t+d}) - sum p_i^2) / (1 - sum p_i^2) at every d = 1..longest.

    Returns (longest, 1 + G). It is the autocorrelation E<e_t - p, e_{t+d} - p> / E|e_t -
    p|^2 of the indicator vectors e_t of the symbols. Where P_ij = (1 - q) p_i p_j + q p_i [i = j],
    as in a Potts sequence and a mixture of lags, it is q(d). Its sign is free and it is 0 on
    average without memory: there is no floor to subtract. The first column is the estimate, the
    others the estimate with each block left out, all less the bias of order 1/n (`without_bias`).

    Takes `longest` comparisons for each symbol of `data` (n,) uint8, some 0.3 s for 1 MB at longest
    1024, and memory that does not grow with n. Raises ValueError for data too short, and for data
    of one symbol.
    """
    check_data(data, longest, blocks)
    data = np.asarray(data)  # a mapped file as a plain array
    edges = block_edges(data.size, longest, blocks)
    lags = np.arange(1, longest + 1)
    parts = np.stack([histogram(data[start:stop]) for start, stop in pairwise(edges)])
    check_different(int(np.count_nonzero(parts.sum(axis=0))))
    repeated = count_repeats(data, lags, edges, threads=threads, progress=progress)
    sizes = np.diff(np.minimum(edges, (data.size - lags)[:, None]))
    chance = np.sum((each_left_out(parts.T) / each_left_out(parts.sum(axis=1))) ** 2, axis=0)
    equal = each_left_out(repeated) / each_left_out(sizes)
    return without_bias((equal - chance) / (1 - chance), sizes)


def yule_walker(correlations: ArrayLike, ridge: float = 0.0) -> Floats:
    """w (L,) from the correlations q(1..L), with q(0) = 1 + ridge, by Levinson's recursion.

    Raises ValueError where these are the correlations of no sequence, so that the equations have no
    solution.

    >>> abs(yule_walker([0.5, 0.25, 0.125])).round(12).tolist()
    [0.5, 0.0, 0.0]
    """
    from scipy.linalg import solve_toeplitz

    q = np.asarray(correlations, dtype=np.float64)
    try:
        return np.asarray(solve_toeplitz(np.append(1 + ridge, q[:-1]), q))
    except np.linalg.LinAlgError as error:
        raise ValueError(
            f"correlations must have a Yule-Walker solution, got none for {q.size} lags ({error});"
            " give a larger ridge"
        ) from error


def noise_ridge(correlations: ArrayLike, errors: ArrayLike) -> float:
    """The least ridge that lifts every eigenvalue of the measured equations out of noise.

    None is then below the noise of their spectrum. The eigenvalues lie within the spectrum
    f(x) = 1 + 2 sum_d q(d) cos(d x), whose noise, as a root mean square over x, is
    sqrt(2 sum_d errors(d)^2) for independent errors. A spectrum that stays above its noise needs no
    ridge, and more data make the ridge vanish. q and errors (L,).
    """
    q = np.asarray(correlations, dtype=np.float64)
    spectrum = 2 * np.fft.rfft(np.append(0.5, q), 8 * q.size).real
    noise = np.sqrt(2 * np.sum(np.asarray(errors) ** 2))
    return float(max(0.0, noise - spectrum.min()))


def bands(weights: Floats) -> tuple[NDArray[np.int64], Floats, Floats, Floats]:
    """Means of `weights` (L, 1 + G) over bands of the lags 1..L.

    The bands are evenly wide in ln d, where noise averages out. Returns the edges (B + 1,), band b
    holding the lags edges[b] <= d < edges[b + 1]; the harmonic means of these lags, where weights ~
    1/d, close to which they are, have their mean; the values (B,) and their replicates (B, G).
    """
    last = len(weights)
    count = max(2, 1 + round(PER_OCTAVE * np.log2(last + 1)))
    edges = np.unique(np.geomspace(1, last + 1, count).round().astype(np.int64))
    widths = np.diff(edges)
    starts = edges[:-1] - 1
    lags = widths / np.add.reduceat(1 / integer_lags(last), starts)
    values = np.add.reduceat(weights[:, 0], starts) / widths
    replicates = np.add.reduceat(weights[:, 1:], starts, axis=0) / widths[:, None]
    return edges, lags, values, replicates
