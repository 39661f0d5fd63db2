"""A measured corpus: exponents with jackknife intervals, local slopes, the shape of the decay.

Four shapes of decay are compared on one curve, each by least squares on ln I; a sentence says which
describes it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtri, stdtr

from plkernel.analysis.information.alphabets import symbol_curves
from plkernel.analysis.information.copies import Copies, copied_length, copies_within
from plkernel.analysis.information.counts import Symbols, check_data
from plkernel.analysis.information.estimate import (
    BLOCKS,
    MAX_LAG,
    DecayCurve,
    Estimator,
    Floats,
    Unit,
    half_width,
    jackknife_error,
    log_lags,
)
from plkernel.analysis.information.periods import UNITS, Period, find_period
from plkernel.analysis.information.records import (
    SHARE,
    Records,
    common_symbols,
    line_starts,
    shuffled_phases,
    shuffled_records,
)
from plkernel.analysis.information.repeats import BELOW_FLOOR
from plkernel.analysis.information.tokens import TokenLength
from plkernel.analysis.results import Result

Range = tuple[int, int]

STATED: Range = (1, 500)
"""The range of the published figures, and of the exponent that `fit --corpus` takes."""
CORRELATED: Range = (1, 100)
"""The range on which the exponent of the correlation is stated."""
OTHER_RANGES: tuple[Range, ...] = (CORRELATED, (100, 1000))
"""Ranges of lags on which the exponent of the information is told beside the stated one."""
CONFIDENCE = 0.95
"""Of every interval."""
DRIFT_MULTIPLE = 2.0
"""The default range of a fit ends where the curve first falls below its floor, or so many times its
drift.
"""
FEWEST_VALUES = 3
"""Values of a fit: two lie on any line."""
BY_CHANCE = 0.1
"""Share of the lags above which values beyond the floor are no noise."""
FEWEST_COMPARED = 6
"""Values of a comparison of shapes, of which the largest has four parameters."""
WINDOW = 2.0
"""A local slope at d uses the lags from d / WINDOW to d * WINDOW."""
CANDIDATES = 64
"""Breaks, or stretches, that are tried before the best is polished."""
DRAWS = 999
"""Draws of noise; the least chance that they can give is one in a thousand."""
SHORTEST_SPAN = 10.0
"""A range that covers less than this factor of lags decides nothing."""
SIGNIFICANT = 0.01
"""p below which one shape is called better than another."""


@dataclass(frozen=True)
class PowerLaw:
    """amplitude * d**-beta, fitted to a decay curve.

    beta                exponent
    standard_error      its jackknife error
    low, high           its interval of this `confidence`
    amplitude           value at d = 1, in the unit of the curve
    first_lag, last_lag the first and the last of the lags fitted
    used                number of lags fitted
    dropped             lags of the range left out because the corrected value is zero or negative
    r_squared           of the logarithms; near 1 for curves far from a power law too, so it says
                        little
    curvature           c of ln I = a - beta ln d + c (ln d)^2, with its jackknife error and
                        two-sided p of c = 0. If positive, the decay slows down. NaN with three lags
    """

    beta: float
    standard_error: float
    low: float
    high: float
    confidence: float
    amplitude: float
    first_lag: int
    last_lag: int
    used: int
    dropped: tuple[int, ...]
    r_squared: float
    curvature: float
    curvature_error: float
    curvature_p: float

    def values(self, lags: ArrayLike) -> Floats:
        """amplitude * d**-beta at `lags`."""
        return self.amplitude * np.asarray(lags, dtype=np.float64) ** -self.beta


LabelledLaw = tuple[str, PowerLaw, float | None]
"""Label of a range of lags, the law fitted there, and the exact exponent where it is known."""


class Points(NamedTuple):
    """Lags (m,) of a fit and what is known there.

    x           ln d
    logs        ln I
    errors      of ln I
    replicates  (m, G) ln I with each block left out, to first order
    dropped     lags that are left out
    """

    lags: NDArray[np.int64]
    x: Floats
    logs: Floats
    errors: Floats
    replicates: Floats
    dropped: tuple[int, ...]


def clear_from(curve: DecayCurve) -> int:
    """The lag from which a decay may be judged: the first, or of repeats where they are most.

    The symbols that grammar forbids or asks for at the next few places say nothing about the decay:
    a word seldom follows itself, and r(d) passes through 0 before it rises. A value below its own
    floor is no peak, however large: a period of one block enlarges both.
    """
    values = np.asarray(curve.values)
    stands_out = values >= np.asarray(curve.floor)
    if curve.estimator != "repeats" or not stands_out.any():
        return curve.lags[0]
    return curve.lags[int(np.argmax(np.where(stands_out, values, -np.inf)))]


def clear_until(curve: DecayCurve) -> int:
    """The last lag before `curve`, from `clear_from` on, falls below its floor or twice its drift.

    0 when it never stands out from them.
    """
    limit = np.maximum(curve.floor, DRIFT_MULTIPLE * curve.drift)
    return curve.last_above(limit, clear_from(curve))


def points(curve: DecayCurve, lags: Range | None = None) -> Points:
    """The positive values of `curve` on first..last inclusive; on 1 .. `clear_until` unless given.

    Raises ValueError when fewer than three remain.
    """
    if lags is None:
        first = clear_from(curve)
        last = clear_until(curve)
    else:
        first, last = lags
        if not 1 <= first < last:
            raise ValueError(f"lags must ascend from 1 or more, got {first} to {last}")
    at = np.asarray(curve.lags)
    values = np.asarray(curve.values)
    inside = (at >= first) & (at <= last)
    used = inside & (values > 0)
    if used.sum() < FEWEST_VALUES:
        where = f"lags {first} to {last}" if lags else "the lags with values above the floor"
        raise ValueError(
            f"{where} must have {FEWEST_VALUES} usable values or more for a fit, got {used.sum()};"
            " measure more data or lags"
        )
    logs = np.log(values[used])
    replicates = logs[:, None] + np.asarray(curve.replicates)[used] / values[used, None] - 1
    return Points(
        lags=at[used],
        x=np.log(at[used]),
        logs=logs,
        errors=jackknife_error(replicates),
        replicates=replicates,
        dropped=tuple(at[inside & ~used].tolist()),
    )


def fit_power_law(curve: DecayCurve, lags: Range | None = None) -> PowerLaw:
    """Fit ln I(d) = ln amplitude - beta ln d by least squares, on the lags first..last of `curve`.

    lags: inclusive; left out, from the first lag to the last before the curve falls below its floor
    or twice its drift (`clear_until`). Each lag counts for the stretch of ln d that it stands for
    (`octave_weights`), so that every octave counts the same and beta hardly depends on which lags
    were measured; with equal weights it would, by half.

    The error of beta is that of the delete-a-block jackknife, so it knows that neighbouring lags
    share their noise; it says nothing about curves that are no power law: see `curvature`,
    `local_slopes` and `compare_models`. Raises ValueError for fewer than three positive values in
    the range.
    """
    chosen = points(curve, lags)
    x = chosen.x
    w = octave_weights(chosen.lags)
    line = _projector(x, 1, w)
    constant, slope = line @ chosen.logs
    betas = -(line @ chosen.replicates)[1]
    half = half_width(betas, CONFIDENCE)
    residual = chosen.logs - constant - slope * x
    spread = chosen.logs - np.average(chosen.logs, weights=w)
    r_squared = math.nan
    if np.any(spread):
        r_squared = float(1 - (w @ residual**2) / (w @ spread**2))
    bend, bend_error, bend_p = _curvature(chosen, w)
    return PowerLaw(
        beta=float(-slope),
        standard_error=float(jackknife_error(betas)),
        low=float(-slope - half),
        high=float(-slope + half),
        confidence=CONFIDENCE,
        amplitude=float(np.exp(constant)),
        first_lag=int(chosen.lags[0]),
        last_lag=int(chosen.lags[-1]),
        used=x.size,
        dropped=chosen.dropped,
        r_squared=r_squared,
        curvature=bend,
        curvature_error=bend_error,
        curvature_p=bend_p,
    )


def _curvature(data: Points, weights: Floats) -> tuple[float, float, float]:
    """The coefficient of (ln d)^2 in a parabola through ln I, its error, and p against 0.

    NaN for as many values as a line needs; p is NaN where the error is 0.
    """
    if data.x.size <= FEWEST_VALUES:
        return math.nan, math.nan, math.nan
    row = _projector(data.x, 2, weights)[2]
    bend = float(row @ data.logs)
    error = float(jackknife_error(row @ data.replicates))
    freedom = data.replicates.shape[1] - 1
    p = float(2 * stdtr(freedom, -abs(bend) / error)) if error else math.nan
    return bend, error, p


def log_log_slope(lags: ArrayLike, values: ArrayLike) -> float:
    """beta of the least-squares line through (ln d, ln I) with octave weights.

    It is the beta of `fit_power_law` of exact values. NaN where one of them is not positive.

    >>> round(log_log_slope([1, 2, 4, 8], [1, 0.5, 0.25, 0.125]), 12)
    1.0
    """
    x = np.log(np.asarray(lags, dtype=np.float64))
    y = np.asarray(values, dtype=np.float64)
    if not np.all(y > 0):
        return math.nan
    _, slope = _projector(x, 1, octave_weights(lags)) @ np.log(y)
    return float(-slope)


def octave_weights(lags: ArrayLike) -> Floats:
    """The stretch of ln d that each of `lags` (m,) stands for, (m,): weights of the trapezoid rule.

    >>> (octave_weights([1, 2, 4, 16]) / np.log(2)).round(12).tolist()
    [0.5, 1.0, 1.5, 1.0]
    """
    steps = np.diff(np.log(np.asarray(lags, dtype=np.float64)))
    return (np.append(steps, 0.0) + np.append(0.0, steps)) / 2


def local_slopes(curve: DecayCurve) -> tuple[NDArray[np.int64], Floats, Floats]:
    """-d ln I / d ln d at each lag with its jackknife error: lags, slopes, errors, each (m,).

    A line through the positive values from d / 2 to 2 d; lags with fewer than three of them are
    left out.
    """
    at = []
    slopes = []
    errors = []
    for lag, value in zip(curve.lags, curve.values, strict=True):
        if value <= 0:
            continue
        first = max(1, math.ceil(lag / WINDOW))
        last = int(lag * WINDOW)
        try:
            window = points(curve, (first, last))
        except ValueError:
            continue
        line = _projector(window.x, 1, octave_weights(window.lags))[1]
        at.append(lag)
        slopes.append(-line @ window.logs)
        errors.append(jackknife_error(line @ window.replicates))
    return np.array(at, np.int64), np.array(slopes), np.array(errors)


def _projector(x: Floats, degree: int, weights: Floats) -> Floats:
    """(degree + 1, m): takes values at x to the coefficients of their least-squares polynomial."""
    root = np.sqrt(weights)
    design: Floats = root[:, None] * x[:, None] ** np.arange(degree + 1)
    return np.asarray(np.linalg.pinv(design) * root, np.float64)


def _no_place(data: Points) -> Floats:
    """The one candidate of a shape that is linear."""
    return np.zeros(1)


class Shape(NamedTuple):
    """ln I = a + sum_j b_j column_j(d; place): linear but for `place`.

    That is searched on `grid` and polished.

    size        number of parameters
    columns     (data, place) -> the columns, (m,) each
    parameters  (a, b_1, ..; place) -> the parameters by name
    values      (parameters by name, lags (m,)) -> I(d), (m,)
    grid        candidates of place; one where the shape has no such parameter
    """

    size: int
    columns: Callable[[Points, float], list[Floats]]
    parameters: Callable[[Floats, float], dict[str, float]]
    values: Callable[[Mapping[str, float], Floats], Floats]
    grid: Callable[[Points], Floats] = _no_place

    def design(self, data: Points, place: float) -> Floats:
        """(m, 1 + columns) in standard errors of ln I."""
        columns = [np.ones_like(data.x), *self.columns(data, place)]
        return np.stack(columns, axis=1) / data.errors[:, None]

    def least(self, data: Points, targets: Floats) -> Floats:
        """The least chi squared (B,) over the grid for each of `targets` (m, B).

        Values are in standard errors.
        """
        explained = np.zeros(targets.shape[1])
        for place in self.grid(data):
            basis = np.linalg.qr(self.design(data, place))[0]
            explained = np.maximum(explained, np.sum((basis.T @ targets) ** 2, axis=0))
        return np.asarray(np.sum(targets**2, axis=0) - explained)

    def fit(self, data: Points) -> tuple[dict[str, float], Floats, float]:
        """Parameters by name, fitted values (m,) in standard errors, and chi squared."""
        from scipy.optimize import minimize_scalar

        target = data.logs / data.errors

        def at(place: float) -> tuple[Floats, Floats, float]:
            design = self.design(data, place)
            coefficients: Floats = np.linalg.lstsq(design, target)[0].astype(np.float64)
            fitted = design @ coefficients
            return coefficients, fitted, float(np.sum((target - fitted) ** 2))

        grid = self.grid(data)
        best = int(np.argmin([at(place)[2] for place in grid]))
        place = grid[best]
        low = grid[max(best - 1, 0)]
        high = grid[min(best + 1, grid.size - 1)]
        if low < high:
            place = minimize_scalar(
                lambda value: at(value)[2], bounds=(low, high), method="bounded"
            ).x
        coefficients, fitted, chi_squared = at(float(place))
        named = self.parameters(coefficients, float(place))
        return {key: float(value) for key, value in named.items()}, fitted, chi_squared


def _power_law_columns(data: Points, place: float) -> list[Floats]:
    return [-data.x]


def _power_law_parameters(c: Floats, place: float) -> dict[str, float]:
    return {"amplitude": np.exp(c[0]), "beta": c[1]}


def _power_law_values(given: Mapping[str, float], lags: Floats) -> Floats:
    return np.asarray(given["amplitude"] * lags ** -given["beta"])


def _exponential_columns(data: Points, place: float) -> list[Floats]:
    return [-data.lags.astype(float)]


def _exponential_parameters(c: Floats, place: float) -> dict[str, float]:
    return {"amplitude": np.exp(c[0]), "tau": 1 / c[1] if c[1] else math.inf}


def _exponential_values(given: Mapping[str, float], lags: Floats) -> Floats:
    return np.asarray(given["amplitude"] * np.exp(-(lags / given["tau"])))


def _stretched_columns(data: Points, log_gamma: float) -> list[Floats]:
    return [-(data.lags ** np.exp(log_gamma))]


def _stretched_parameters(c: Floats, log_gamma: float) -> dict[str, float]:
    gamma = np.exp(log_gamma)
    tau = c[1] ** (-1 / gamma) if c[1] > 0 else math.inf
    return {"amplitude": np.exp(c[0]), "tau": tau, "gamma": gamma}


def _stretched_values(given: Mapping[str, float], lags: Floats) -> Floats:
    stretched = (lags / given["tau"]) ** given["gamma"]
    return np.asarray(given["amplitude"] * np.exp(-stretched))


def _stretched_grid(data: Points) -> Floats:
    """ln gamma, of gamma from 0.05 to 1."""
    return np.linspace(np.log(0.05), 0.0, CANDIDATES)


def _broken_columns(data: Points, log_break: float) -> list[Floats]:
    near = np.minimum(data.x, log_break)
    far = np.maximum(0.0, data.x - log_break)
    return [-near, -far]


def _broken_parameters(c: Floats, log_break: float) -> dict[str, float]:
    return {
        "amplitude": np.exp(c[0]),
        "beta_1": c[1],
        "beta_2": c[2],
        "break": np.exp(log_break),
    }


def _broken_values(given: Mapping[str, float], lags: Floats) -> Floats:
    near = np.minimum(lags, given["break"])
    far = np.maximum(lags / given["break"], 1.0)
    return np.asarray(given["amplitude"] * near ** -given["beta_1"] * far ** -given["beta_2"])


def _broken_grid(data: Points) -> Floats:
    """ln of the break, which two lags or more lie on either side of."""
    return np.linspace(data.x[1], data.x[-2], CANDIDATES)


SHAPES = {
    "power law": Shape(
        size=2,
        columns=_power_law_columns,
        parameters=_power_law_parameters,
        values=_power_law_values,
    ),
    "exponential": Shape(
        size=2,
        columns=_exponential_columns,
        parameters=_exponential_parameters,
        values=_exponential_values,
    ),
    "stretched exponential": Shape(
        size=3,
        columns=_stretched_columns,
        parameters=_stretched_parameters,
        values=_stretched_values,
        grid=_stretched_grid,
    ),
    "broken power law": Shape(
        size=4,
        columns=_broken_columns,
        parameters=_broken_parameters,
        values=_broken_values,
        grid=_broken_grid,
    ),
}


@dataclass(frozen=True)
class ModelFit:
    """One shape of decay, fitted to ln I by weights 1 / standard error^2.

    parameters   by name; lags in symbols, exponents as positive numbers
    chi_squared  sum of squared residuals over standard errors; near the degrees of freedom for a
                 shape that fits independent lags, and rarely so for lags that share their noise:
                 see chi_squared_p
    freedom      degrees of freedom: lags less parameters
    aicc         chi^2 + 2 k + 2 k (k + 1) / (m - k - 1), k parameters and m lags
    excess       aicc less that of the best of the models compared
    chi_squared_p, excess_p  the chance of a chi squared, and of a lead of the best other model, as
                 large, were this model true and the noise of the lags correlated as the replicates
                 are
    """

    name: str
    parameters: dict[str, float]
    chi_squared: float
    freedom: int
    aicc: float
    excess: float
    chi_squared_p: float
    excess_p: float

    def values(self, lags: ArrayLike) -> Floats:
        """I(d) of the fitted shape at `lags` (m,), in the unit of the curve."""
        return SHAPES[self.name].values(self.parameters, np.asarray(lags, np.float64))

    def __str__(self) -> str:
        numbers = (
            f"{key.replace('_', ' ')} {value:.3g}"
            for key, value in self.parameters.items()
            if key != "amplitude"
        )
        return f"{self.name} ({', '.join(numbers)})"


@dataclass(frozen=True)
class Verdict:
    """Shape of a curve on the lags that stand clear of floor and drift.

    kind                 the name of a shape, 'power law' if one exponent describes the curve within
                         its errors, 'too short' or 'none'
    sentence             the same for the reader
    first_lag, last_lag  the lags that stand clear
    models               the shapes compared, the best first; empty where they are too few
    """

    kind: str
    sentence: str
    first_lag: int
    last_lag: int
    models: tuple[ModelFit, ...]


def compare_models(curve: DecayCurve, lags: Range | None = None) -> tuple[ModelFit, ...]:
    """Compare four shapes by the corrected Akaike criterion (Hurvich & Tsai 1989), best first.

    Lags are as in `fit_power_law`.

        power law              ln I = a - beta ln d
        exponential            ln I = a - d / tau
        stretched exponential  ln I = a - (d / tau)^gamma, 0.05 <= gamma <= 1
        broken power law       ln I = a - beta_1 ln d up to the break, slope -beta_2 beyond it,
                               continuous

    The residuals are weighted by jackknife errors lag by lag. Errors of neighbouring lags are
    positively correlated, so chi squared falls short of its degrees of freedom while its
    differences exceed theirs; both are therefore held against draws of noise with the replicates'
    own covariance, in `chi_squared_p` and `excess_p`. Every shape is fitted to fitted + noise as to
    the data, so that the search for the best break or stretch is in p as well. The draws are the
    same at every call. Raises ValueError for fewer than six usable lags.
    """
    data = points(curve, lags)
    size = data.lags.size
    if size < FEWEST_COMPARED:
        raise ValueError(
            f"lags must have {FEWEST_COMPARED} usable values or more to compare four models, got"
            f" {size}"
        )
    drawn = noise(data)
    target = data.logs / data.errors

    def criterion(chi_squared: Any, k: int) -> Any:
        return chi_squared + 2 * k + 2 * k * (k + 1) / (size - k - 1)

    fits = []
    for name, shape in SHAPES.items():
        parameters, fitted, chi_squared = shape.fit(data)
        samples = np.column_stack([target, fitted[:, None] + drawn])
        chi = {key: other.least(data, samples) for key, other in SHAPES.items()}
        others = [criterion(chi[key], other.size) for key, other in SHAPES.items() if key != name]
        excess = criterion(chi[name], shape.size) - np.min(others, axis=0)
        chances = [float(np.mean(values >= values[0])) for values in (chi[name], excess)]
        aicc = float(criterion(chi_squared, shape.size))
        fits.append(ModelFit(name, parameters, chi_squared, size - shape.size, aicc, 0.0, *chances))
    fits.sort(key=lambda fit: fit.aicc)
    return tuple(replace(fit, excess=fit.aicc - fits[0].aicc) for fit in fits)


def simplest(models: tuple[ModelFit, ...]) -> ModelFit:
    """The shape to be named: the best, or one with fewer parameters that is no worse than noise.

    Of those with the fewest parameters, the best. `models` are sorted, the best first.
    """
    best = models[0]
    fewer = [
        fit
        for fit in models
        if SHAPES[fit.name].size < SHAPES[best.name].size and fit.excess_p >= SIGNIFICANT
    ]
    return min(fewer, key=lambda fit: (SHAPES[fit.name].size, fit.aicc), default=best)


def noise(data: Points) -> Floats:
    """(m, DRAWS) of noise of ln I in standard errors, with the covariance of the replicates.

    Normal with the jackknife's covariance of the m lags, which has rank G - 1 and need not be
    inverted, times sqrt((G-1) / chi^2_{G-1}): any one contrast over its own jackknife error is then
    Student's t, as the measured one.
    """
    blocks = data.replicates.shape[1]
    rng = np.random.default_rng(0)
    away = data.replicates - data.replicates.mean(axis=1, keepdims=True)
    scale = np.sqrt((blocks - 1) ** 2 / blocks / rng.chisquare(blocks - 1, DRAWS))
    return np.asarray(away @ rng.standard_normal((blocks, DRAWS)) * scale / data.errors[:, None])


def outstanding(curve: DecayCurve, last: int) -> list[int]:
    """Lags beyond `last` at which the values are above the floor; none where noise gives as many.

    Of noise alone about one in forty is above a floor of a 95 % interval.
    """
    columns = zip(curve.lags, curve.values, curve.floor, strict=True)
    found = [lag for lag, value, floor in columns if lag > last and value > floor]
    return found if len(found) >= max(FEWEST_VALUES, BY_CHANCE * len(curve.lags)) else []


def apart(curve: DecayCurve, last: int) -> list[int]:
    """The `outstanding` lags beyond `last` at which blocks of other composition do not explain I.

    These are `DRIFT_MULTIPLE` above the drift; none where they are as few as noise gives.
    """
    limit = DRIFT_MULTIPLE * curve.drift
    values = dict(zip(curve.lags, curve.values, strict=True))
    found = [lag for lag in outstanding(curve, last) if values[lag] > limit]
    return found if len(found) >= max(FEWEST_VALUES, BY_CHANCE * len(curve.lags)) else []


def drift_from(curve: DecayCurve) -> int | None:
    """The last lag, or 0, beyond which blocks of different composition are half of I or more.

    None where they are not. What blocks of one composition differ by, as samples do, shows in the
    drift too, the more so the longer the memory is; but then I itself is zero at far lags, and it
    is no less than the drift where that is one. So I must be as much on average.
    """
    clear = curve.last_above(DRIFT_MULTIPLE * curve.drift, clear_from(curve))
    if clear == curve.lags[-1]:
        return None
    following = curve.lags.index(clear) + 1 if clear else 0
    errors = curve.standard_errors()
    is_noise = curve.drift < errors[following]
    beyond = float(np.mean(curve.values[following:]))
    return None if is_noise or beyond < curve.drift / DRIFT_MULTIPLE else clear


def _hidden_by(curve: DecayCurve, last: int) -> str:
    """The noise that the values beyond lag `last` do not stand out from.

    That is the drift where it is large beside the floor and most of them are above the floor.
    """
    beyond = [lag for lag in curve.lags if lag > last]
    is_drift = curve.drift > DRIFT_MULTIPLE * max(curve.floor)
    if is_drift and len(outstanding(curve, last)) > len(beyond) / 2:
        return "blocks of different composition"
    return "a shuffled corpus"


def _is_beyond_noise(curve: DecayCurve, last: int) -> bool:
    """True if I, up to lag `last`, is more than pairs without memory give once in a thousand times.

    The plug-in estimate of n such pairs of K symbols is chi squared with (K - 1)^2 degrees of
    freedom over 2n. Of few symbols it is often more than twice its mean, which is the floor.
    """
    if curve.estimator == "repeats":  # whose floor is this limit
        return True
    freedom = (curve.symbols - 1) ** 2
    limit = np.asarray(curve.floor) * (chdtri(freedom, 1 - BELOW_FLOOR) / freedom - 1)
    return curve.last_above(limit, clear_from(curve)) >= last


def judge(curve: DecayCurve) -> Verdict:
    """Decide whether `curve`, clear of floor and drift, is a power law, and its shape if not.

    It is called one when it spans a decade of lags, unless another shape is better by more than
    noise explains, or ln I against ln d is bent; each at p = 0.01, with the correlation between
    lags in both.
    """
    start = clear_from(curve)
    last = clear_until(curve)
    usable = [lag for lag in curve.lags if start <= lag <= last]
    if len(usable) < FEWEST_VALUES:
        if last and not _is_beyond_noise(curve, last):
            last = 0
        beyond = f" beyond lag {last}" if last else ""
        sentence = f"no memory that stands out from {_hidden_by(curve, last)}{beyond}"
        return Verdict("none", sentence, start, last, ())
    first = usable[0]
    span = f"lags {first} to {last}"
    if len(usable) < FEWEST_COMPARED or last < SHORTEST_SPAN * first:
        sentence = (
            f"only {span} stand out from a shuffled corpus: too few to tell a power law from other"
            " decays"
        )
        return Verdict("too short", sentence, first, last, ())
    models = compare_models(curve, (first, last))
    law = fit_power_law(curve, (first, last))
    if law.low <= 0:
        sentence = (
            f"{span}: no decay of the information is significant, beta {law.beta:.2g}"
            f" ({law.low:.2g} to {law.high:.2g})"
        )
        return Verdict("none", sentence, first, last, models)
    kind, told = _decided(models, law)
    return Verdict(kind, f"{span}: {told}", first, last, models)


def _decided(models: tuple[ModelFit, ...], law: PowerLaw) -> tuple[str, str]:
    """The kind of a decay that is significant, and what tells it from the other shapes."""
    best = simplest(models)
    straight = next(fit for fit in models if fit.name == "power law")
    bent = law.curvature_p < SIGNIFICANT
    if straight.excess_p >= SIGNIFICANT and not bent:
        return straight.name, (
            f"a single power law describes the curve, beta {law.beta:.2f} ({law.low:.2f} to"
            f" {law.high:.2f})"
        )
    if best is straight:
        how = "slows down" if law.curvature > 0 else "speeds up"
        return "broken power law", (
            f"not a single power law: the decay {how} with the lag (curvature p"
            f" {law.curvature_p:.1g})"
        )
    how = "poorly too" if best.chi_squared_p < SIGNIFICANT else "within the errors"
    better = straight.aicc - best.aicc
    lead = f"better by {better:.0f} in AICc (p {straight.excess_p:.1g})"
    return best.name, f"not a single power law: {best} is {lead} and fits {how}"


def with_correlation(verdict: Verdict, correlation: DecayCurve) -> Verdict:
    """The verdict on a curve of information, beside the correlation of the same corpus.

    Information is quadratic in weak correlations and not in strong ones: where a correlation
    decays exponentially from a high value, as in a renewal process, the information looks
    stretched. Where an exponential describes the correlation, the decay is called exponential.
    """
    if verdict.kind != "stretched exponential":
        return verdict
    try:
        models = compare_models(correlation, (verdict.first_lag, verdict.last_lag))
    except ValueError:  # too few positive values
        return verdict
    named = simplest(models)
    if named.name != "exponential" or named.chi_squared_p < SIGNIFICANT:
        return verdict
    stretched = next(fit for fit in verdict.models if fit.name == verdict.kind)
    sentence = (
        f"lags {verdict.first_lag} to {verdict.last_lag}: the correlation decays exponentially, tau"
        f" {named.parameters['tau']:.3g}; the information, which is not quadratic in strong"
        f" correlations, looks stretched: {stretched}"
    )
    return replace(verdict, kind="exponential", sentence=sentence)


@dataclass(frozen=True)
class Named:
    """Origin of the symbols; `plkernel.data.corpora.Corpus` is another."""

    name: str
    source: str


@dataclass(frozen=True, repr=False)
class Measurement(Result):
    """Result of `measure_corpus`; `law` is that on the stated range, None where nothing decays.

    rows     label of a range of lags, the law fitted there, and the exact exponent where the corpus
             tells it
    exact    (L,) the true information in nats, where it is known
    period   of a text whose composition depends on the phase
    records  of a text whose composition depends on the place in lines of nearly the same length
    copies   of a text much of which stands in it more than once; they are part of the curves

    What period and records explain is not part of the curves; `structure` says so in sentences.
    """

    corpus: Any
    estimator: Estimator
    information: DecayCurve
    correlation: DecayCurve
    law: PowerLaw | None
    rows: tuple[LabelledLaw, ...]
    verdict: Verdict
    exact: tuple[float, ...] | None
    period: Period | None = None
    tokens: TokenLength | None = None
    records: Records | None = None
    copies: Copies | None = None
    _figure = "plkernel.analysis.figures.decay:measurement_figure"

    def _title(self) -> str:
        law = self.law
        data = self.information
        beta = f"beta {law.beta:.3f} ({law.low:.3f} to {law.high:.3f}); " if law else ""
        of_repeats = " of repeats" if self.estimator == "repeats" else ""
        parts = [f"{beta}{self.verdict.sentence}"]
        if self.period is not None:
            parts.append(self.period.brief(data.unit))
        if self.records is not None:
            parts.append(self.records.brief())
        if self.copies is not None:
            parts.append(self.copies.brief())
        if self.tokens is not None:
            parts.append(str(self.tokens))
        return (
            f"{self.corpus.name}, {data.size:,} {data.unit}s, information{of_repeats} in bits:"
            f" {'; '.join(parts)}"
        )

    @property
    def structure(self) -> tuple[str, ...]:
        """A sentence each on the period, the records and the copies of the text, if it has them."""
        curve = self.information
        sentences = []
        if self.period is not None:
            sentences.append(self.period.sentence(curve.unit, curve.lags))
        if self.records is not None:
            sentences.append(self.records.sentence(apart(curve, self.verdict.last_lag)))
        if self.copies is not None:
            sentences.append(self.copies.sentence(curve.unit))
        return tuple(sentences)

    def other_lags(self) -> tuple[str, Floats] | None:
        """The unit, tokens or bytes, that lags are not counted in, and the lags (L,) in it.

        None without a tokenizer.
        """
        if self.tokens is None:
            return None
        lags = self.information.lags
        if self.information.unit == "token":
            return "bytes", self.tokens.in_bytes(lags)
        return "tokens", self.tokens.in_tokens(lags)

    def _table(self) -> Any:
        columns = self.information._table()
        other = self.other_lags()
        if other is not None:
            unit, lags = other
            columns = {"lag": columns.pop("lag"), f"lag_{unit}": lags, **columns}
        exact = {} if self.exact is None else {"exact": np.divide(self.exact, np.log(2))}
        return {**columns, **exact, "correlation": self.correlation.values}

    def to_dict(self) -> dict[str, Any]:
        """A dictionary for JSON."""
        columns = zip(("lags", "slopes", "errors"), local_slopes(self.information), strict=True)
        return {
            "corpus": asdict(self.corpus),
            "law": self.law and asdict(self.law),
            "fits": [
                {"label": label, **asdict(law), "exact": exact} for label, law, exact in self.rows
            ],
            "verdict": {**asdict(self.verdict), "is_power_law": self.verdict.kind == "power law"},
            "local_slopes": {name: values.tolist() for name, values in columns},
            "information": asdict(self.information),
            "correlation": asdict(self.correlation),
            "exact_information": self.exact and list(self.exact),
            "period": self.period and asdict(self.period),
            "records": self.records and asdict(self.records),
            "copies": self.copies and asdict(self.copies),
            **self._both_units(),
        }

    def _both_units(self) -> dict[str, Any]:
        """The length of a token, and the lags in the other unit; empty without a tokenizer."""
        other = self.other_lags()
        if self.tokens is None or other is None:
            return {}
        unit, lags = other
        return {"tokens": asdict(self.tokens), f"lags_in_{unit}": lags.tolist()}


def check_range(lags: object, max_lag: int) -> Range:
    """Return a first and a last lag, STATED for None.

    Raises ValueError unless they ascend from 1 or more to `max_lag`.
    """
    if max_lag < 2:
        raise ValueError(f"max_lag must be at least 2, got {max_lag}")
    if lags is None:
        return 1, min(STATED[1], max_lag)
    pair = tuple(lags) if isinstance(lags, tuple | list) else ()
    are_two_integers = len(pair) == 2 and all(isinstance(lag, Integral) for lag in pair)
    if not are_two_integers or not 1 <= pair[0] < pair[1] <= max_lag:
        raise ValueError(
            f"lags must be the first and the last, ascending from 1 or more to max_lag {max_lag} at"
            f" most, such as (1, {max_lag}), got {lags!r}"
        )
    first, last = pair
    return int(first), int(last)


@dataclass(frozen=True)
class Counting:
    """How the curves of a measurement are counted.

    estimator, blocks, threads  as of `symbol_curves`
    """

    estimator: Estimator | None
    blocks: int
    threads: int

    def curves(
        self,
        data: Symbols,
        lags: NDArray[np.int64],
        *,
        beside: Symbols | None = None,
        progress: Callable[[float], Any] | None = None,
    ) -> tuple[DecayCurve, DecayCurve]:
        """`symbol_curves` of `data` (n,) at `lags` (L,)."""
        return symbol_curves(
            data,
            lags,
            estimator=self.estimator,
            blocks=self.blocks,
            threads=self.threads,
            progress=progress,
            beside=beside,
        )


class Layout(NamedTuple):
    """Structure of a text that is no memory: lines of nearly the same length, or a period.

    sequence  (n,) symbols that have this layout alone

    All are None of a text without one.
    """

    records: Records | None = None
    period: Period | None = None
    sequence: Symbols | None = None


def measure_corpus(
    corpus: Any,
    data: Symbols,
    *,
    estimator: Estimator | None = None,
    stated: Range = STATED,
    max_lag: int = MAX_LAG,
    blocks: int = BLOCKS,
    exact: Callable[[Any], Any] | None = None,
    unit: Unit = "byte",
    tokens: TokenLength | None = None,
    threads: int = 1,
    progress: Callable[[float], Any] | None = None,
) -> Measurement:
    """Measure the symbols `data` (n,) of `corpus` on log-spaced lags up to `max_lag`.

    data    unsigned integers, as `numbered` gives them; up to 256 different ones are uint8
    exact   gives the true information in nats at an array of lags, where it is known
    unit    what a symbol is
    tokens  how long tokens of the same text are; lags are told in both units then

    Other options as of `symbol_curves`, which raises ValueError; of bytes pairs are counted unless
    the estimator says otherwise. A period is looked for in the most frequent symbols.
    """
    if estimator is None and unit == "byte" and data.dtype == np.uint8:
        estimator = "jackknife"
    counting = Counting(estimator, blocks, threads)
    lags = _measured_lags(stated, max_lag)
    check_data(data, int(lags[-1]), blocks, wide=True)
    layout = Layout()
    copies = None
    if exact is None:  # a law that is known has no layout and no copies
        layout = _layout(data, lags, unit, counting)
        _check_copied(data, layout.period, unit)
        copies = copies_within(data)
    curves = _beyond_layout(data, lags, layout, counting, progress)
    information, correlation = (replace(curve, unit=unit) for curve in curves)
    verdict = _verdict(information, correlation, layout.records)
    law, rows = _laws(information, correlation, stated, verdict, max_lag, exact)
    return Measurement(
        corpus=corpus,
        estimator=information.estimator,
        information=information,
        correlation=correlation,
        law=law,
        rows=rows,
        verdict=verdict,
        exact=None if exact is None else tuple(np.asarray(exact(lags)).tolist()),
        period=layout.period,
        tokens=tokens,
        records=layout.records,
        copies=copies,
    )


def _layout(data: Symbols, lags: NDArray[np.int64], unit: Unit, counting: Counting) -> Layout:
    """The lines of nearly the same length of a text of bytes; where it has none, its period."""
    lines = _lines(data, lags, counting) if unit == "byte" else None  # only bytes have lines
    if lines is not None:
        return lines
    period = find_period(common_symbols(data), lags)
    if period is None:
        return Layout()
    return Layout(period=period, sequence=shuffled_phases(data, period.length))


def _lines(data: Symbols, lags: NDArray[np.int64], counting: Counting) -> Layout | None:
    """The lines of a text that are of nearly the same length; None where they explain little."""
    if data.dtype != np.uint8 or counting.estimator == "repeats":
        return None
    starts = line_starts(data)
    if starts is None:
        return None
    shuffled = shuffled_records(data, starts)
    lengths = np.diff(starts)
    mean = float(lengths.mean())
    nearest = lags[[int(np.argmin(np.abs(lags - mean)))]]
    alone, _ = counting.curves(shuffled, nearest)
    whole, _ = counting.curves(data, nearest)
    explained = alone.values[0]
    if explained < max(SHARE * whole.values[0], alone.floor[0]):
        return None
    low, high = np.quantile(lengths, (0.05, 0.95))
    records = Records(mean, int(low), int(high), float(explained))
    return Layout(records=records, sequence=shuffled)


def _check_copied(data: Symbols, period: Period | None, unit: Unit) -> None:
    """Raise ValueError for a text that is given several times over.

    Its pairs would count as often, so that intervals would be too narrow and the bias of few pairs
    would stay. A short period that `find_period` finds is taken off instead.
    """
    length = copied_length(data)
    if length is None or (period is not None and period.length == length):
        return
    raise ValueError(
        f"text must not be copies of one text, got {data.size / length:.3g} times the same"
        f" {length:,} {unit}s, whose pairs would count as often; measure the first {length:,} alone"
    )


def _beyond_layout(
    data: Symbols,
    lags: NDArray[np.int64],
    layout: Layout,
    counting: Counting,
    progress: Callable[[float], Any] | None,
) -> tuple[DecayCurve, DecayCurve]:
    """Curves of information and correlation without what the layout of `data` (n,) tells."""
    information, correlation = counting.curves(
        data, lags, beside=layout.sequence, progress=progress
    )
    period = layout.period
    if period is None or information.estimator == "repeats":
        return information, correlation
    whole, _ = counting.curves(data, lags)
    return beyond_period(whole, period), at_whole_symbols(correlation, period)


def _verdict(information: DecayCurve, correlation: DecayCurve, records: Records | None) -> Verdict:
    """The verdict on both curves; of records without memory, that far lags may stand out yet."""
    verdict = with_correlation(judge(information), correlation)
    is_apart = bool(apart(information, verdict.last_lag))
    if records and verdict.kind == "none" and not verdict.last_lag and is_apart:
        sentence = "no memory that stands out at the shortest lags; some farther lags do"
        verdict = replace(verdict, sentence=sentence)
    return verdict


def _begun_at(first: int, limits: Range) -> Range:
    """A range of lags without those before `first`."""
    start, end = limits
    return max(start, first), end


def _laws(
    information: DecayCurve,
    correlation: DecayCurve,
    stated: Range,
    verdict: Verdict,
    max_lag: int,
    exact: Callable[[Any], Any] | None,
) -> tuple[PowerLaw | None, tuple[LabelledLaw, ...]]:
    """The law on the `stated` range, and those of all ranges.

    These are the stated and OTHER_RANGES up to `max_lag`, the lags that stand out, and those of the
    correlation. Ranges with too few positive values are left out; None for the stated one then.
    """
    first = clear_from(information)
    begun = [_begun_at(first, limits) for limits in (stated, *OTHER_RANGES)]
    ranges = [limits for limits in dict.fromkeys(begun) if limits[0] < limits[1] <= max_lag]
    laws = {limits: _law_or_none(information, limits) for limits in ranges}
    found = [(_label(limits), law) for limits, law in laws.items()]
    if verdict.last_lag > verdict.first_lag:
        above = (verdict.first_lag, verdict.last_lag)
        law = _law_or_none(information, above)
        found.append((f"{_label(above)}, what stands out", law))
    rows: list[LabelledLaw] = []
    for label, law in found:
        if law is not None:
            rows.append((label, law, _exact_slope(exact, law, information.lags)))
    near = _begun_at(first, CORRELATED)
    if near in ranges:
        law = _law_or_none(correlation, near)
        if law is not None:
            rows.append((f"correlation, {_label(near)}", law, None))
    return laws.get(begun[0]), tuple(rows)


def _law_or_none(curve: DecayCurve, limits: Range) -> PowerLaw | None:
    """`fit_power_law`; None for too few positive values, where a range shows nothing."""
    try:
        return fit_power_law(curve, limits)
    except ValueError:
        return None


def _measured_lags(stated: Range, max_lag: int) -> NDArray[np.int64]:
    """Log-spaced lags up to `max_lag`, and the ends of the ranges that a law is stated on.

    A stated range is thus measured from end to end.
    """
    ends: list[int] = []
    for limits in (stated, *OTHER_RANGES):
        ends += [end for end in limits if end <= max_lag]
    return np.union1d(log_lags(max_lag), ends)


def _exact_slope(
    exact: Callable[[Any], Any] | None, law: PowerLaw, lags: Sequence[int]
) -> float | None:
    """The exponent of the true information on the lags that `law` was fitted to.

    None where the truth is not known, and where it has no exponent.
    """
    if exact is None:
        return None
    inside = [lag for lag in lags if law.first_lag <= lag <= law.last_lag]
    used = [lag for lag in inside if lag not in law.dropped]
    slope = log_log_slope(used, exact(np.array(used)))
    return slope if np.isfinite(slope) else None


def beyond_period(curve: DecayCurve, period: Period) -> DecayCurve:
    """The information of `curve` that its period does not explain, `at_whole_symbols`.

    What it explains is an estimate too, so the floor is at least two standard errors.
    """
    explained = np.asarray(period.information)
    floor = np.maximum(curve.floor, 2 * curve.standard_errors())
    values = np.asarray(curve.values) - explained
    replicates = np.asarray(curve.replicates) - explained[:, None]
    rest = replace(
        curve,
        values=tuple(values.tolist()),
        floor=tuple(floor.tolist()),
        replicates=tuple(map(tuple, replicates.tolist())),
    )
    return at_whole_symbols(rest, period)


def at_whole_symbols(curve: DecayCurve, period: Period) -> DecayCurve:
    """The multiples of a period of up to UNITS bytes, every lag of a longer one.

    At other lags a part of one symbol is compared with another part of another symbol.
    """
    chosen = [at for at, lag in enumerate(curve.lags) if lag % period.length == 0]
    if period.length > UNITS or len(chosen) < FEWEST_VALUES:
        return curve
    return replace(
        curve,
        lags=tuple(curve.lags[at] for at in chosen),
        values=tuple(curve.values[at] for at in chosen),
        floor=tuple(curve.floor[at] for at in chosen),
        replicates=tuple(curve.replicates[at] for at in chosen),
    )


def _label(limits: Range) -> str:
    """A range of lags in words."""
    first, last = limits
    return f"lags {first}..{last}"
