"""Targets for sums of exponentials: power laws on every real lag, measured curves and arrays on theirs."""

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plkernel.analysis.information.curve import DecayCurve
from plkernel.analysis.information.laws import fit_power_law, points

if TYPE_CHECKING:
    from plkernel.analysis.information.laws import Verdict

Floats = NDArray[np.float64]

FEWEST_LAGS = 3
SMALLEST_VALUE = 1e-300
"""The least value a target may take: below it float64 loses relative accuracy."""
FLATTEST = 1e-6
"""The least fall of the logarithm of a power law over its lags that can be told from none."""
DENSE_POINTS = 4096


@dataclass(frozen=True)
class Target:
    """A positive kernel on the lags from the first to the last, known at every lag between or at some only.

    label      what messages and figures call it
    lags       (L,) ascending, in steps: where it is known, or where the pieces of a continuous one join
    values     (L,) positive
    exponents  (L-1,) of a continuous target: value(lags[i]) (t / lags[i])**-exponents[i] between lags i and i+1;
               None: the target is known at `lags` only
    errors     (L,) relative standard errors of the values, the weights of a fit; None: all lags count the same
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

    def log_value(self, lags: ArrayLike) -> Floats:
        """ln of the target at `lags`, any shape. A power law continues beyond its ends.

        Raises ValueError at lags where the target is not known.
        """
        return np.asarray(np.log(self.value(lags)))

    def value(self, lags: ArrayLike) -> Floats:
        """The target at `lags`, any shape; as `log_value`."""
        t, knots, values = np.asarray(lags, dtype=float), np.asarray(self.lags), np.asarray(self.values)
        if self.exponents is None:
            at = np.minimum(np.searchsorted(knots, t), knots.size - 1)
            if (knots[at] != t).any():
                raise ValueError(f"target {self.label!r} is known at its own {knots.size} lags only, not between them")
            return np.asarray(values[at])
        piece = np.clip(np.searchsorted(knots, t, side="right") - 1, 0, len(self.exponents) - 1)
        return np.asarray(values[piece] * (t / knots[piece]) ** -np.asarray(self.exponents)[piece])

    def integer_lags(self) -> Floats:
        """The integers among the lags of a continuous target; the lags of any other."""
        if self.exponents is None:
            return np.asarray(self.lags)
        return np.arange(np.ceil(self.lags[0]), np.floor(self.max_lag) + 1)

    def judged_lags(self) -> Floats:
        """Where fits are judged: the lags of a discrete target; of a continuous one 4096 of them and its knots."""
        if self.exponents is None:
            return np.asarray(self.lags)
        return np.union1d(self.spread_lags()[0], self.lags)

    def spread_lags(self, count: int = DENSE_POINTS, evenly: float = 0.0) -> tuple[Floats, Floats]:
        """Lags from first to last, Chebyshev-Lobatto in ln t, and how many of the `count` points each stands for.

        A target that is not continuous takes, for each point, the nearest of its lags.

        evenly  0: Chebyshev-Lobatto; 1: evenly spaced in ln t; between: the mean of both, so weighted
        """
        low, high = np.log(self.lags[0]), np.log(self.max_lag)
        even = np.arange(count) / (count - 1)
        logs = low + (high - low) * (evenly * even + (1 - evenly) * np.sin(np.pi / 2 * even) ** 2)
        if self.exponents is None:
            known = np.log(self.lags)
            at, counts = np.unique(np.searchsorted((known[1:] + known[:-1]) / 2, logs), return_counts=True)
            return np.asarray(self.lags)[at], counts.astype(float)
        lags = np.exp(logs)
        lags[[0, -1]] = self.lags[0], self.max_lag
        return lags, np.ones(count)

    def raised(self, power: float) -> "Target":
        """The target to a positive power, with the relative errors that it then has, to first order."""
        if power == 1:
            return self
        if self.beta is not None:
            return power_law_target(power * self.beta, self.max_lag)
        values = tuple((np.asarray(self.values) ** power).tolist())
        exponents, errors = (
            given and tuple(power * value for value in given) for given in (self.exponents, self.errors)
        )
        return Target(f"({self.label})**{power:g}", self.lags, values, exponents, errors)

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that JSON keeps exactly; `from_dict` gives back an equal object."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        tuples = {name: value and tuple(value) for name, value in values.items() if name != "label"}
        return cls(label=values["label"], **tuples)


def power_law_target(beta: float, max_lag: float) -> Target:
    """t**-beta on every real lag from 1 to max_lag.

    Raises ValueError unless beta is positive and max_lag at least 3, and where the law is flat or vanishes in float64.

    >>> power_law_target(1.0, 512).value([1, 2.5, 10]).tolist()
    [1.0, 0.4, 0.1]
    """
    return _pieces(f"t**-{beta:g}", (beta,), (1.0, float(max_lag)), ("beta",), ("max_lag",))


def broken_power_law_target(beta_1: float, beta_2: float, break_lag: float, max_lag: float) -> Target:
    """t**-beta_1 up to break_lag and proportional to t**-beta_2 from there: continuous, 1 at t = 1.

    Raises ValueError as `power_law_target` does, and unless 1 < break_lag < max_lag.

    >>> broken_power_law_target(0.5, 1.5, 100, 1000).value([1, 25, 100, 400]).round(6).tolist()
    [1.0, 0.2, 0.1, 0.0125]
    """
    label = f"t**-{beta_1:.4g} to {break_lag:.4g}, then t**-{beta_2:.4g}"
    names = (("beta_1", "beta_2"), ("break_lag", "max_lag"))
    return _pieces(label, (beta_1, beta_2), (1.0, float(break_lag), float(max_lag)), *names)


def curve_target(
    curve: DecayCurve,
    lags: tuple[int, int] | None = None,
    *,
    correlation_exponent: bool = False,
    weighted: bool = True,
) -> Target:
    """The positive values of a measured curve on the lags first..last, with their relative jackknife errors.

    lags                  inclusive; from the first lag to `power_law_fit.clear_until` unless given
    correlation_exponent  take the square root of an information curve. Information is quadratic in correlation, so
                          a kernel that correlates like the data has half the exponent
    weighted              keep the errors, as weights of a fit

    Raises ValueError for fewer than three positive values, and for the square root of a correlation curve.
    """
    if correlation_exponent and curve.quantity != "information":
        raise ValueError(f"correlation_exponent: needs a curve of information, got one of {curve.quantity}")
    power = 0.5 if correlation_exponent else 1.0
    chosen = points(curve, lags)
    errors = power * chosen.errors
    if weighted and not (np.isfinite(errors) & (errors > 0)).all():
        raise ValueError("weighted: the curve has lags without error, pass weighted=False")
    name = f"{'root of ' if correlation_exponent else ''}{curve.quantity} per {curve.unit}"
    values = np.exp(power * chosen.logs)
    return _checked(name, chosen.lags.astype(float), values, errors if weighted else None)


def verdict_target(verdict: "Verdict", curve: DecayCurve, max_lag: int) -> Target:
    """The shape that `judge` found `curve` to have, 1 at t = 1, on t = 1..max_lag; it goes on beyond what was judged.

    A power law, or a broken one, on every real lag; an exponential or stretched exponential at the integers up to where
    it vanishes in float64. A curve too short to have a shape is its own values (`curve_target`). Raises ValueError for
    a curve without memory, and for a shape that does not fall.
    """
    if verdict.kind == "none":
        raise ValueError(f"curve of {curve.quantity}: {verdict.sentence}, so it has no shape")
    if verdict.kind == "too short":
        return curve_target(curve)
    if verdict.kind == "power law":
        return power_law_target(fit_power_law(curve, (verdict.first_lag, verdict.last_lag)).beta, max_lag)
    found = next(model.parameters for model in verdict.models if model.name == verdict.kind)
    if verdict.kind == "broken power law":
        if found["break"] >= max_lag:
            return power_law_target(found["beta_1"], max_lag)
        return broken_power_law_target(found["beta_1"], found["beta_2"], found["break"], max_lag)
    tau, gamma = found["tau"], found.get("gamma", 1.0)
    if not (np.isfinite(tau) and tau > 0):
        raise ValueError(f"curve of {curve.quantity}: its {verdict.kind} does not fall (tau {tau:g})")
    logs = (1 - np.arange(1.0, max_lag + 1) ** gamma) / tau**gamma
    label = f"exp(-(t/{tau:.3g})**{gamma:.3g})" if gamma != 1 else f"exp(-t/{tau:.3g})"
    return array_target(np.exp(logs[logs > np.log(SMALLEST_VALUE)]), label)


def array_target(values: ArrayLike, label: str = "array") -> Target:
    """Values (T,) at the lags t = 1..T, known there only. Raises ValueError unless positive, finite and T >= 3."""
    array = np.asarray(values, dtype=float)
    if array.ndim != 1:
        raise ValueError(f"values must be one-dimensional, the value at lag 1 first, got shape {array.shape}")
    return _checked(label, np.arange(1.0, array.size + 1), array, None)


def lag_target(lags: ArrayLike, values: ArrayLike, errors: ArrayLike | None = None, label: str = "values") -> Target:
    """Values (L,) at ascending lags (L,), known there only, with relative errors (L,) as the weights of a fit."""
    t, y = np.asarray(lags, dtype=float), np.asarray(values, dtype=float)
    e = None if errors is None else np.asarray(errors, dtype=float)
    shapes = [array.shape for array in (t, y, e) if array is not None]
    if t.ndim != 1 or len(set(shapes)) > 1:
        raise ValueError(f"lags, values and errors must be of one length, got shapes {', '.join(map(str, shapes))}")
    return _checked(label, t, y, e)


def _pieces(
    label: str, betas: tuple[float, ...], lags: tuple[float, ...], beta_names: tuple[str, ...], names: tuple[str, ...]
) -> Target:
    for name, beta in zip(beta_names, betas, strict=True):
        if not (np.isfinite(beta) and beta > 0):
            raise ValueError(f"{name} must be positive and finite, got {beta}")
    if not (np.isfinite(lags[-1]) and lags[-1] >= FEWEST_LAGS):
        raise ValueError(f"max_lag must be finite and at least {FEWEST_LAGS}, got {lags[-1]:g}")
    if not all(a < b for a, b in pairwise(lags)):
        raise ValueError(f"{names[0]} must lie between 1 and {names[-1]} {lags[-1]:g}, got {lags[1]:g}")
    falls = np.asarray(betas) * np.diff(np.log(lags))
    if falls.sum() < FLATTEST:
        raise ValueError(f"{label} is flat up to max_lag {lags[-1]:g}: use a larger exponent or max_lag")
    if falls.sum() > -np.log(SMALLEST_VALUE):
        raise ValueError(
            f"{label} falls below {SMALLEST_VALUE:g} before max_lag {lags[-1]:g}: use a smaller exponent or max_lag"
        )
    values = np.exp(-np.concatenate([[0.0], np.cumsum(falls)]))
    return Target(label, lags, tuple(values.tolist()), tuple(map(float, betas)))


def _checked(label: str, lags: Floats, values: Floats, errors: Floats | None) -> Target:
    if lags.size < FEWEST_LAGS:
        raise ValueError(f"target {label!r}: {lags.size} lags, at least {FEWEST_LAGS} are needed")
    for name, array in {"lags": lags, "values": values, "errors": errors}.items():
        if array is not None and not (np.isfinite(array) & (array > 0)).all():
            bad = array[~(np.isfinite(array) & (array > 0))][0]
            raise ValueError(f"target {label!r}: {name} must be positive and finite, got {bad:g} among them")
    if (values < SMALLEST_VALUE).any():
        raise ValueError(f"target {label!r}: values must be at least {SMALLEST_VALUE:g}, got {values.min():g}")
    if (np.diff(lags) <= 0).any():
        raise ValueError(f"target {label!r}: lags must ascend, got {lags[:-1][np.diff(lags) <= 0][0]:g} out of order")
    kept = None if errors is None else tuple(errors.tolist())
    return Target(label, tuple(lags.tolist()), tuple(values.tolist()), errors=kept)
