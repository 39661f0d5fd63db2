"""Sums of decaying exponentials, the kernels they are fitted to, and scores of their distance."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plkernel.analysis.printing import whole

Floats = NDArray[np.float64]

MAX_DESIGN_ENTRIES = 50_000_000
"""Numbers of the matrix of a linear fit: 400 MB."""
INVISIBLE = 1e-8
"""Share of the largest weight from which down a term is left out."""
JUDGED = 4096
"""Lags of a continuous target on which fits are judged."""
ACCURACY_FLOOR = 1e-9
"""The relative error below which float64 cannot tell sums of exponentials apart; more terms are
refused.
"""
FEWEST_LAGS = 3
"""Lags of a target: two lie on any exponential."""
SMALLEST_VALUE = 1e-300
"""The least value of a target: below it float64 loses relative accuracy."""
LARGEST_VALUE = 1e300
"""The largest value of a target: beyond it sums of weights overflow."""
FLATTEST = 1e-6
"""The least fall of ln(power law) over its lags."""


@dataclass(frozen=True)
class Scores:
    """Closeness of a kernel k(t) to a target y(t), both positive, on the same lags.

    r0                  log-log R² of the kernel as it stands
    r1                  the same with both divided by their value at the first lag
    r_star              the same after the best common scale
    e_log               half the range of ln(k/y), the error in e-folds that no scale removes
    r_linear            R² of k against y as they are
    max_relative_error  max |k/y - 1|, reached at `worst_lag`
    """

    r0: float
    r1: float
    r_star: float
    e_log: float
    r_linear: float
    max_relative_error: float
    worst_lag: float


@dataclass(frozen=True)
class ExponentialSum:
    """k(t) = sum_i weights_i exp(-rates_i t).

    Rates are per step, the fastest first, and weights non-negative.
    """

    rates: tuple[float, ...]
    weights: tuple[float, ...]

    def log_kernel(self, lags: ArrayLike) -> Floats:
        """ln k(t) at `lags` (T,), computed without underflow; -inf where every weight is zero."""
        from scipy.special import logsumexp

        weights = np.asarray(self.weights)
        active = weights > 0
        if not active.any():
            return np.full(np.shape(lags), -np.inf)
        exponents = np.outer(np.asarray(lags, dtype=float), np.asarray(self.rates)[active])
        return np.asarray(logsumexp(np.log(weights[active]) - exponents, axis=1))

    def kernel(self, lags: ArrayLike) -> Floats:
        """k(t) at `lags` (T,)."""
        return np.asarray(np.exp(self.log_kernel(lags)))

    def active(self) -> "ExponentialSum":
        """The terms whose weight exceeds INVISIBLE times the largest weight."""
        weights = np.asarray(self.weights)
        kept = weights > INVISIBLE * weights.max()
        return exponential_sum(np.asarray(self.rates)[kept], weights[kept])

    def errors(self, target: "Target") -> Floats:
        """k / target - 1 at `target.judged_lags()`."""
        lags = target.judged_lags()
        return np.asarray(np.expm1(self.log_kernel(lags) - np.log(target.value(lags))))

    def half_lives(self) -> Floats:
        """ln 2 / rate of every term, in steps."""
        return np.log(2) / np.asarray(self.rates)


def exponential_sum(rates: Floats, weights: Floats) -> ExponentialSum:
    """An `ExponentialSum` from arrays."""
    return ExponentialSum(tuple(rates.tolist()), tuple(weights.tolist()))


def power_law(lags: ArrayLike, beta: float) -> Floats:
    """t**-beta at `lags`."""
    return np.asarray(lags, dtype=float) ** -beta


def integer_lags(max_lag: int) -> Floats:
    """1, 2, ..., max_lag as floats."""
    return np.arange(1, max_lag + 1, dtype=float)


def score(log_kernel: ArrayLike, target: ArrayLike, lags: ArrayLike) -> Scores:
    """Scores of a kernel, given by its logarithm, against `target` on `lags`.

    All are of shape (T,), and the target is positive. Raises ValueError for a target of one value.
    """
    log_k = np.asarray(log_kernel, dtype=float)
    y = np.asarray(target, dtype=float)
    t = np.asarray(lags, dtype=float)
    if np.all(y == y[0]):
        raise ValueError(
            f"values must change with the lag, got {y[0]:g} at all {y.size}; a kernel without decay"
            " needs no fit"
        )
    log_y = np.log(y)
    with np.errstate(over="ignore", invalid="ignore"):
        kernel = np.exp(log_k)
        difference = log_k - log_y
        total = float(np.sum((log_y - log_y.mean()) ** 2))

        def r_squared(shift: float) -> float:
            return 1 - float(np.sum((difference - shift) ** 2)) / total

        r0 = r_squared(0.0)
        r1 = r_squared(difference[0])
        r_star = r_squared(difference.mean())
        r_linear = 1 - float(np.sum((kernel - y) ** 2) / np.sum((y - y.mean()) ** 2))
        relative = np.abs(np.expm1(difference))
        worst = int(np.argmax(relative))
        return Scores(
            r0,
            r1,
            r_star,
            float(np.ptp(difference)) / 2,
            r_linear,
            float(relative[worst]),
            float(t[worst]),
        )


def check_design(max_lag: int, nodes: int, option: str | None = None) -> None:
    """ValueError when the matrix of a linear fit, max_lag x nodes, would not fit in memory.

    option: what the number of nodes was asked for by; it is named where there are more of them.
    """
    if nodes * max_lag > MAX_DESIGN_ENTRIES:
        if option is not None and nodes > max_lag:
            raise ValueError(
                f"{option} must be at most {MAX_DESIGN_ENTRIES // max_lag:,} on {max_lag:,} lags,"
                f" got {whole(nodes)}"
            )
        raise ValueError(
            f"max_lag must be at most {MAX_DESIGN_ENTRIES // nodes:,} with {whole(nodes)} nodes,"
            f" got {whole(max_lag)}; use a smaller max_lag or fewer nodes"
        )


@dataclass(frozen=True)
class Target:
    """A positive kernel between a first and a last lag, known at every lag between or at some.

    label      its name in messages and figures
    lags       (L,) ascending, in steps: where it is known, or where the pieces of a continuous one
               join
    values     (L,) positive
    exponents  (L-1,) of a continuous target: value(lags[i]) (t / lags[i])**-exponents[i] between
               lags i and i+1; None: the target is known at `lags` only
    errors     (L,) relative standard errors of the values, the weights of a fit; None: all lags
               count the same
    """

    label: str
    lags: tuple[float, ...]
    values: tuple[float, ...]
    exponents: tuple[float, ...] | None = None
    errors: tuple[float, ...] | None = None

    @property
    def beta(self) -> float | None:
        """The exponent of a target that is one power law throughout, else None."""
        return self.exponents[0] if self.exponents and len(set(self.exponents)) == 1 else None

    @property
    def max_lag(self) -> float:
        """The last lag."""
        return self.lags[-1]

    def value(self, lags: ArrayLike) -> Floats:
        """The target at `lags`, any shape; a power law continues beyond its ends.

        Raises ValueError at lags where the target is not known.
        """
        t = np.asarray(lags, dtype=float)
        knots = np.asarray(self.lags)
        values = np.asarray(self.values)
        if self.exponents is not None:
            exponents = np.asarray(self.exponents)
            piece = np.clip(np.searchsorted(knots, t, side="right") - 1, 0, exponents.size - 1)
            return np.asarray(values[piece] * (t / knots[piece]) ** -exponents[piece])
        at = np.minimum(np.searchsorted(knots, t), knots.size - 1)
        if (knots[at] != t).any():
            raise ValueError(
                f"lags must be among the {knots.size} of target {self.label!r}, which is not known"
                f" between them, got {t[knots[at] != t][0]:g}"
            )
        return np.asarray(values[at])

    def integer_lags(self) -> Floats:
        """The integers among the lags of a continuous target; the lags of any other."""
        if self.exponents is None:
            return np.asarray(self.lags)
        return np.arange(np.ceil(self.lags[0]), np.floor(self.max_lag) + 1)

    def count_lags(self) -> int:
        """How many `integer_lags` there are; none of them is made."""
        if self.exponents is None:
            return len(self.lags)
        return math.floor(self.max_lag) - math.ceil(self.lags[0]) + 1

    def judged_lags(self) -> Floats:
        """The lags on which fits are judged: all of a discrete target; of a continuous one JUDGED
        and its knots.
        """
        if self.exponents is None:
            return np.asarray(self.lags)
        spread, _ = self.spread_lags(JUDGED)
        return np.asarray(np.union1d(spread, self.lags))

    def spread_lags(self, count: int, evenly: float = 0.0) -> tuple[Floats, Floats]:
        """Lags from first to last, Chebyshev-Lobatto in ln t, with their weights.

        A weight is the number of the `count` points that a lag stands for. A target that is not
        continuous takes, for each point, the nearest of its lags.

        evenly  0: Chebyshev-Lobatto; 1: evenly spaced in ln t; between: the mean of both, so
                weighted
        """
        low = np.log(self.lags[0])
        high = np.log(self.max_lag)
        even = np.arange(count) / (count - 1)
        chebyshev = np.sin(np.pi / 2 * even) ** 2
        logs = low + (high - low) * (evenly * even + (1 - evenly) * chebyshev)
        if self.exponents is None:
            known = np.log(self.lags)
            middles = (known[1:] + known[:-1]) / 2
            at, counts = np.unique(np.searchsorted(middles, logs), return_counts=True)
            return np.asarray(self.lags)[at], counts.astype(float)
        lags = np.exp(logs)
        lags[0] = self.lags[0]  # without rounding
        lags[-1] = self.max_lag
        return lags, np.ones(count)

    def raised(self, power: float) -> "Target":
        """The target to a positive power, with its relative errors to first order."""
        if power == 1:
            return self
        if self.beta is not None:
            return power_law_target(power * self.beta, self.max_lag)

        def times_power(given: tuple[float, ...] | None) -> tuple[float, ...] | None:
            return None if given is None else tuple(power * value for value in given)

        return Target(
            f"({self.label})**{power:g}",
            self.lags,
            tuple((np.asarray(self.values) ** power).tolist()),
            times_power(self.exponents),
            times_power(self.errors),
        )


def power_law_target(
    beta: float, max_lag: float, beta_2: float | None = None, break_lag: float | None = None
) -> Target:
    """t**-beta on every real lag from 1 to max_lag.

    With beta_2 it goes on in proportion to t**-beta_2 from break_lag on; both are given, or
    neither. Raises ValueError unless all exponents are positive, max_lag is at least 3 and
    break_lag between 1 and max_lag, and where the law is flat or vanishes in float64.
    """
    if (beta_2 is None) != (break_lag is None):
        raise ValueError(
            f"beta_2 and break_lag must be given together, got {beta_2} and {break_lag}"
        )
    for name, exponent in {"beta": beta, "beta_2": beta_2}.items():
        if exponent is not None and not (np.isfinite(exponent) and exponent > 0):
            raise ValueError(f"{name} must be a positive number, got {exponent:g}")
    if not FEWEST_LAGS <= max_lag < np.inf:
        raise ValueError(f"max_lag must be finite and at least {FEWEST_LAGS}, got {max_lag:g}")
    label = f"t**-{beta:g}"
    betas = [float(beta)]
    lags = [1.0, float(max_lag)]
    if beta_2 is not None and break_lag is not None:
        if not 1 < break_lag < max_lag:
            raise ValueError(
                f"break_lag must lie between 1 and max_lag {max_lag:g}, got {break_lag:g}"
            )
        label = f"t**-{beta:.4g} to {break_lag:.4g}, then t**-{beta_2:.4g}"
        betas = [float(beta), float(beta_2)]
        lags = [1.0, float(break_lag), float(max_lag)]
    with np.errstate(over="ignore"):  # an infinite fall is refused below
        falls = np.array(betas) * np.diff(np.log(lags))
    if falls.sum() < FLATTEST:
        raise ValueError(
            f"{label} must fall before max_lag {max_lag:g}, got a flat curve; use a larger beta or"
            " max_lag"
        )
    if falls.sum() > -np.log(SMALLEST_VALUE):
        raise ValueError(
            f"{label} must stay above {SMALLEST_VALUE:g} up to max_lag {max_lag:g}, got"
            f" {np.exp(-falls.sum()):.3g} there; use a smaller beta or max_lag"
        )
    values = np.exp(-np.concatenate([[0.0], np.cumsum(falls)]))
    return Target(label, tuple(lags), tuple(values.tolist()), tuple(betas))


def array_target(values: ArrayLike, label: str = "array") -> Target:
    """Values (T,) at the lags t = 1..T, known there only.

    Raises ValueError unless they are positive and finite and T >= 3.
    """
    _check_unmasked("values", values)
    try:
        held = _as_numpy_takes(values)
        if np.iscomplexobj(held):
            raise TypeError  # of arrays numpy would drop the imaginary part
        numbers = np.asarray(held, dtype=float)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # of torch on meta, RuntimeError
        shown = " ".join(repr(values).split())
        raise ValueError(f"values must be real numbers, got {shown:.80}") from None
    if numbers.ndim != 1 or numbers.size < FEWEST_LAGS:
        raise ValueError(
            f"values must be a vector of three or more numbers, got shape {numbers.shape}"
        )
    return lag_target(integer_lags(numbers.size), numbers, label=label)


def _check_unmasked(name: str, values: Any) -> None:
    """ValueError for a masked array of numpy, which would be taken without its mask."""
    if np.ma.is_masked(values):
        raise ValueError(
            f"{name} must not be masked, got an array with a mask, which has no effect"
        )


def _as_numpy_takes(values: Any) -> Any:
    """A tensor of torch without its gradient, on the CPU, floats in float64; else the values.

    numpy takes no tensor with a gradient, on another device or in bfloat16.
    """
    if not hasattr(values, "detach"):
        return values
    held = values.detach().cpu()
    return held.double() if held.is_floating_point() else held


def lag_target(
    lags: ArrayLike, values: ArrayLike, errors: ArrayLike | None = None, label: str = "values"
) -> Target:
    """Values (L,) at ascending lags (L,), known there only.

    errors (L,) are relative, and the weights of a fit. Raises ValueError for fewer than three lags,
    values below SMALLEST_VALUE or above LARGEST_VALUE and anything that is not positive and finite.
    """
    given = {"lags": lags, "values": values}
    if errors is not None:
        given["errors"] = errors
    for name, numbers in given.items():
        _check_unmasked(name, numbers)
    arrays = {name: np.asarray(numbers, dtype=float) for name, numbers in given.items()}
    shapes = [array.shape for array in arrays.values()]
    t = arrays["lags"]
    if t.ndim != 1 or len(set(shapes)) > 1:
        raise ValueError(
            "lags, values and errors must be of one length, got shapes"
            f" {', '.join(map(str, shapes))}"
        )
    if t.size < FEWEST_LAGS:
        raise ValueError(f"target {label!r}: lags must be at least {FEWEST_LAGS}, got {t.size}")
    for name, array in arrays.items():
        bad = array[~(np.isfinite(array) & (array > 0))]
        if bad.size:
            raise ValueError(
                f"target {label!r}: {name} must be positive and finite, got {bad[0]:g} among them"
            )
    least = arrays["values"].min()
    if least < SMALLEST_VALUE:
        raise ValueError(
            f"target {label!r}: values must be at least {SMALLEST_VALUE:g}, got {least:g}"
        )
    most = arrays["values"].max()
    if most > LARGEST_VALUE:
        raise ValueError(
            f"target {label!r}: values must be at most {LARGEST_VALUE:g}, got {most:g}; scale them"
        )
    steps = np.diff(t)
    if (steps <= 0).any():
        worst = steps.argmin()
        raise ValueError(
            f"target {label!r}: lags must ascend, got {t[worst]:g} before {t[worst + 1]:g}; sort"
            " them"
        )
    return Target(label, **{name: tuple(array.tolist()) for name, array in arrays.items()})
