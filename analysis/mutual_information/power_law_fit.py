"""The exponent of a decay curve: least squares on logarithms, jackknife intervals, local slopes, curvature."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr

from plkernel.analysis.intervals import critical_value
from plkernel.analysis.mutual_information.curve import DecayCurve
from plkernel.analysis.mutual_information.jackknife import jackknife_error

Floats = NDArray[np.float64]

FLOOR_MULTIPLE = 1.0
DRIFT_MULTIPLE = 2.0
"""The default range of a fit ends where the curve first falls below so many floors, or so many times its drift."""
FEWEST_LAGS = 3
WINDOW = 2.0
"""A local slope at d uses the lags from d / WINDOW to d * WINDOW."""


@dataclass(frozen=True)
class PowerLaw:
    """amplitude * d**-beta, fitted to a decay curve.

    beta, standard_error, low, high  exponent, its jackknife error and its interval of the given confidence
    amplitude     value at d = 1, in the unit of the curve
    used          how many lags were fitted, first_lag and last_lag the first and last of them
    dropped       lags of the range left out because the corrected value is zero or negative
    r_squared     of the logarithms; near 1 for curves far from a power law too, so it says little
    curvature     c of ln I = a - beta ln d + c (ln d)^2, with its jackknife error and two-sided p of c = 0;
                  positive: the decay slows down. NaN with three lags
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

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that JSON keeps exactly (NaN as null); `from_dict` gives back the same law."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`; ValueError unless `values` has exactly the fields of a power law."""
        expected = [field.name for field in fields(cls)]
        if not isinstance(values, dict) or set(values) != set(expected):
            raise ValueError(f"not a power law: needs exactly {', '.join(expected)}")
        numbers: dict[str, Any] = {k: float("nan") if value is None else value for k, value in values.items()}
        return cls(**{**numbers, "dropped": tuple(values["dropped"])})


@dataclass(frozen=True)
class Points:
    """What of a curve enters a fit: lags (m,), ln I (m,), and ln I with each block left out (m, G), to first order."""

    lags: NDArray[np.int64]
    logs: Floats
    replicates: Floats
    dropped: tuple[int, ...]

    @property
    def x(self) -> Floats:
        """ln d."""
        return np.log(self.lags)

    @property
    def errors(self) -> Floats:
        """Jackknife standard errors of ln I."""
        return jackknife_error(self.replicates)


def clear_until(curve: DecayCurve) -> int:
    """The last lag before `curve` falls below its floor or twice its drift; 0 when it never stands out from them."""
    return curve.last_above(np.maximum(FLOOR_MULTIPLE * np.asarray(curve.floor), DRIFT_MULTIPLE * curve.drift))


def points(curve: DecayCurve, lags: tuple[int, int] | None = None) -> Points:
    """The positive values of `curve` on first..last inclusive; on 1 .. `clear_until` unless given.

    Raises ValueError when fewer than three remain.
    """
    first, last = (curve.lags[0], clear_until(curve)) if lags is None else lags
    if lags is not None and not 1 <= first < last:
        raise ValueError(f"lags: a range must ascend from 1 or more, got {first} to {last}")
    at, values = np.asarray(curve.lags), np.asarray(curve.values)
    inside = (at >= first) & (at <= last)
    used = inside & (values > 0)
    if used.sum() < FEWEST_LAGS:
        where = f"lags {first} to {last}" if lags else "the lags with values above the floor"
        raise ValueError(f"{where}: {used.sum()} usable values, a fit needs {FEWEST_LAGS}; measure more data or lags")
    logs = np.log(values[used])
    replicates = logs[:, None] + np.asarray(curve.replicates)[used] / values[used, None] - 1
    return Points(at[used], logs, replicates, tuple(at[inside & ~used].tolist()))


def fit_power_law(
    curve: DecayCurve,
    lags: tuple[int, int] | None = None,
    *,
    weights: ArrayLike | None = None,
    confidence: float = 0.95,
) -> PowerLaw:
    """ln I(d) = ln amplitude - beta ln d by least squares, on the lags first..last of `curve`.

    lags     inclusive; left out, from the first lag to the last before the curve falls below its floor or twice its
             drift (`clear_until`)
    weights  (L,) of the squared residuals, one for each lag of the curve. Unless given, each lag counts for the stretch
             of ln d that it stands for (`octave_weights`), so that every octave counts the same and beta hardly
             depends on which lags were measured. Equal weights make it depend on that: on curved data by half

    The error of beta is that of the delete-a-block jackknife, so it knows that neighbouring lags share their noise; it
    says nothing about curves that are no power law: see `curvature`, `local_slopes` and `compare_models`. Raises
    ValueError for fewer than three positive values in the range and for weights that are not finite and positive.
    """
    chosen = points(curve, lags)
    w = octave_weights(chosen.lags) if weights is None else _checked(curve, weights)[np.isin(curve.lags, chosen.lags)]
    line = _projector(chosen.x, 1, w)
    (constant, slope), betas = line @ chosen.logs, -(line @ chosen.replicates)[1]
    error = float(jackknife_error(betas))
    half = critical_value(betas.size, confidence) * error
    residual = chosen.logs - constant - slope * chosen.x
    spread = chosen.logs - np.average(chosen.logs, weights=w)
    bend, bend_error, p = _curvature(chosen, w)
    return PowerLaw(
        beta=float(-slope),
        standard_error=error,
        low=float(-slope - half),
        high=float(-slope + half),
        confidence=confidence,
        amplitude=float(np.exp(constant)),
        first_lag=int(chosen.lags[0]),
        last_lag=int(chosen.lags[-1]),
        used=int(chosen.lags.size),
        dropped=chosen.dropped,
        r_squared=float(1 - (w @ residual**2) / (w @ spread**2)) if np.any(spread) else float("nan"),
        curvature=bend,
        curvature_error=bend_error,
        curvature_p=p,
    )


def log_log_slope(lags: ArrayLike, values: ArrayLike) -> float:
    """beta of the least-squares line through (ln d, ln I) with octave weights: `fit_power_law` of exact values.

    NaN where one of them is not positive.

    >>> round(log_log_slope([1, 2, 4, 8], [1, 0.5, 0.25, 0.125]), 12)
    1.0
    """
    x, y = np.log(np.asarray(lags, dtype=np.float64)), np.asarray(values, dtype=np.float64)
    return float(-(_projector(x, 1, octave_weights(lags)) @ np.log(y))[1]) if np.all(y > 0) else np.nan


def octave_weights(lags: ArrayLike) -> Floats:
    """The stretch of ln d that each of `lags` (m,) stands for, (m,): the weights of the trapezoid rule.

    >>> (octave_weights([1, 2, 4, 16]) / np.log(2)).round(12).tolist()
    [0.5, 1.0, 1.5, 1.0]
    """
    steps = np.diff(np.log(np.asarray(lags, dtype=np.float64)))
    return (np.append(steps, 0.0) + np.append(0.0, steps)) / 2


def local_slopes(curve: DecayCurve) -> tuple[NDArray[np.int64], Floats, Floats]:
    """-d ln I / d ln d at each lag with its jackknife error: lags, slopes, errors, each (m,).

    A line through the positive values from d / 2 to 2 d; lags with fewer than three of them are left out.
    """
    at, slopes, errors = [], [], []
    values = np.asarray(curve.values)
    for lag in np.asarray(curve.lags)[values > 0].tolist():
        try:
            window = points(curve, (max(1, int(np.ceil(lag / WINDOW))), int(lag * WINDOW)))
        except ValueError:
            continue
        line = _projector(window.x, 1, octave_weights(window.lags))[1]
        at.append(lag)
        slopes.append(-line @ window.logs)
        errors.append(jackknife_error(line @ window.replicates))
    return np.array(at, np.int64), np.array(slopes), np.array(errors)


def _curvature(chosen: Points, weights: Floats) -> tuple[float, float, float]:
    if chosen.lags.size <= FEWEST_LAGS:
        return (float("nan"),) * 3
    row = _projector(chosen.x, 2, weights)[2]
    bend, error = float(row @ chosen.logs), float(jackknife_error(row @ chosen.replicates))
    blocks = chosen.replicates.shape[1]
    return bend, error, float(2 * stdtr(blocks - 1, -abs(bend) / error)) if error else float("nan")


def _projector(x: Floats, degree: int, weights: Floats) -> Floats:
    """(degree + 1, m): takes values at x to the coefficients of their weighted least-squares polynomial."""
    root = np.sqrt(weights)
    design: Floats = root[:, None] * x[:, None] ** np.arange(degree + 1)
    return np.asarray(np.linalg.pinv(design) * root, np.float64)


def _checked(curve: DecayCurve, weights: ArrayLike) -> Floats:
    values = np.asarray(weights, dtype=np.float64)
    if values.shape != (len(curve.lags),):
        raise ValueError(f"weights must be one for each of the {len(curve.lags)} lags, got shape {values.shape}")
    if not (np.isfinite(values) & (values > 0)).all():
        bad = values[~(np.isfinite(values) & (values > 0))][0]
        raise ValueError(f"weights must be finite and positive, got {bad} among them")
    return values
