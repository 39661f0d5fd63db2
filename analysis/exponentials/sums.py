"""Sums of decaying exponentials held against a power law t**-beta."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from plkernel.analysis.exponentials.targets import Target

Floats = NDArray[np.float64]

ACTIVE_WEIGHT = 1e-8
MAX_DESIGN_ENTRIES = 50_000_000
SHORTEST_COLUMN = 1e-100
"""Columns of a design that are no longer than this are taken as nothing."""
ACCURACY_FLOOR = 1e-9
"""The relative error below which float64 cannot tell sums of exponentials apart, and more terms are refused."""


@dataclass(frozen=True)
class Scores:
    """How close a kernel k(t) is to a target y(t), both positive, on the same lags.

    r0: log-log R² of the kernel as it stands; r1: with both divided by their value at the first lag; r_star: after
    the best common scale; e_log: half the range of ln(k/y), the error in e-folds that no scale removes; r_linear: R²
    of k against y as they are; max_relative_error: max |k/y - 1|, reached at `worst_lag`.
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
    """k(t) = sum_i weights_i exp(-rates_i t), with rates per step and non-negative weights, fastest rate first."""

    rates: tuple[float, ...]
    weights: tuple[float, ...]

    def log_kernel(self, lags: ArrayLike) -> Floats:
        """ln k(t) at `lags` (shape (T,)), computed without underflow; -inf where every weight is zero."""
        from scipy.special import logsumexp

        weights = np.asarray(self.weights)
        active = weights > 0
        if not active.any():
            return np.full(np.shape(lags), -np.inf)
        rates = np.asarray(self.rates)[active]
        return np.asarray(logsumexp(np.log(weights[active]) - np.outer(np.asarray(lags, dtype=float), rates), axis=1))

    def kernel(self, lags: ArrayLike) -> Floats:
        """k(t) at `lags`, shape (T,)."""
        return np.asarray(np.exp(self.log_kernel(lags)))

    def active(self, threshold: float = ACTIVE_WEIGHT) -> "ExponentialSum":
        """The terms whose weight exceeds `threshold` times the largest weight."""
        weights = np.asarray(self.weights)
        kept = weights > threshold * weights.max()
        return ExponentialSum(tuple(np.asarray(self.rates)[kept].tolist()), tuple(weights[kept].tolist()))

    def largest_relative_error(self, target: "Target") -> float:
        """max |k(t) / target(t) - 1| over the target's lags; over 4096 of them when it is continuous."""
        lags = target.judged_lags()
        return float(np.abs(np.expm1(self.log_kernel(lags) - target.log_value(lags))).max())

    def half_lives(self) -> Floats:
        """ln 2 / rate of every term, in steps."""
        return np.log(2) / np.asarray(self.rates)

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that JSON keeps exactly; `from_dict` gives back an equal object."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Sequence[float]]) -> Self:
        """The inverse of `to_dict`."""
        return cls(tuple(values["rates"]), tuple(values["weights"]))


def power_law(lags: ArrayLike, beta: float) -> Floats:
    """t**-beta at `lags`.

    >>> power_law([1, 2, 4], 1.0).tolist()
    [1.0, 0.5, 0.25]
    """
    return np.asarray(lags, dtype=float) ** -beta


def integer_lags(max_lag: int) -> Floats:
    """1, 2, ..., max_lag as floats."""
    return np.arange(1, max_lag + 1, dtype=float)


def score(log_kernel: ArrayLike, target: ArrayLike, lags: ArrayLike) -> Scores:
    """Scores of a kernel given by its logarithm against `target` on `lags`; all of shape (T,), target positive."""
    log_k, y, t = (np.asarray(values, dtype=float) for values in (log_kernel, target, lags))
    log_y = np.log(y)
    with np.errstate(over="ignore", invalid="ignore"):
        kernel = np.exp(log_k)
        difference = log_k - log_y
        total = float(np.sum((log_y - log_y.mean()) ** 2))
        relative = np.abs(np.expm1(difference))
        return Scores(
            r0=1 - float(np.sum(difference**2)) / total,
            r1=1 - float(np.sum((difference - difference[0]) ** 2)) / total,
            r_star=1 - float(np.sum((difference - difference.mean()) ** 2)) / total,
            e_log=float(np.ptp(difference)) / 2,
            r_linear=1 - float(np.sum((kernel - y) ** 2) / np.sum((y - y.mean()) ** 2)),
            max_relative_error=float(relative.max()),
            worst_lag=float(t[np.argmax(relative)]),
        )


def check_design(max_lag: int, nodes: int) -> None:
    """ValueError when the matrix of a linear fit, max_lag x nodes, would be too large for memory."""
    if nodes * max_lag > MAX_DESIGN_ENTRIES:
        raise ValueError(
            f"max_lag {max_lag} times {nodes} nodes exceeds {MAX_DESIGN_ENTRIES:,} matrix entries: "
            "use a smaller max_lag or fewer nodes"
        )


def nonnegative(
    rates: ArrayLike, lags: ArrayLike, values: ArrayLike, scale: ArrayLike = 1.0, *, balanced: bool = False
) -> ExponentialSum:
    """Weights w >= 0 of `rates` (N,) that minimise sum over lags of (scale (sum_i w_i exp(-rates_i t) - values))**2.

    `lags` and `values` have shape (T,), `scale` too unless it is a number. balanced: solve for columns of equal length;
    the solution is the same but for rounding, and is found where columns of very unequal length lead nowhere. Raises
    ValueError on a problem too large for memory, one that does not converge, and one that no rate helps.
    """
    from scipy.optimize import nnls

    rates, lags = np.asarray(rates, dtype=float), np.asarray(lags, dtype=float)
    check_design(lags.size, rates.size)
    factors = np.broadcast_to(np.asarray(scale, dtype=float), lags.shape)
    try:
        design = np.exp(-np.outer(lags, rates)) * factors[:, None]
        lengths = np.maximum(np.linalg.norm(design, axis=0), SHORTEST_COLUMN) if balanced else 1.0
        weights, _ = nnls(design / lengths, np.asarray(values) * factors, maxiter=30 * rates.size)
        weights = weights / lengths
    except RuntimeError as error:
        raise ValueError(f"non-negative least squares did not converge ({error}): use fewer nodes") from error
    if not weights.any():
        raise ValueError("no node helps: every half-life is too short to be seen at the first lag, use longer ones")
    return ExponentialSum(tuple(rates.tolist()), tuple(weights.tolist()))


def check_terms(terms: int) -> None:
    """ValueError unless there is at least one term."""
    if terms < 1:
        raise ValueError(f"terms must be at least 1, got {terms}")


def closed_form_error(beta: float, max_lag: float, terms: int) -> float:
    """2 |Gamma(beta + 2 pi i K / ln(4 T))| / Gamma(beta): about the least max |k / t**-beta - 1| of K terms on [1, T].

    Twice the first Fourier coefficient of the ripple of evenly log-spaced terms, at the spacing ln(4 T) / K that fits
    the lags. Found by comparison, not proved: for beta from 0.5 to 2, T from 64 and K from 2 the least error is 0.48 to
    0.98 of it, never more (`runs/minimax_table.py`); below beta 0.5 it can be more, by 18 % at beta 0.05.

    >>> round(closed_form_error(1.15, 512, 6), 5)
    0.00644
    """
    from scipy.special import loggamma

    check_terms(terms)
    _check_law(beta, max_lag)
    ripple = loggamma(beta + 2j * np.pi * terms / np.log(4 * max_lag)).real - loggamma(beta)
    return float(2 * np.exp(ripple))


def terms_for(beta: float, max_lag: float, tolerance: float) -> int:
    """The least number of terms whose closed-form error for t**-beta on [1, max_lag] is at most `tolerance`.

    A safe choice for beta from 0.5 to 2, where the best sum has that error or less. Raises ValueError for a tolerance
    that is not between the accuracy of float64 and 1.

    >>> terms_for(1.15, 512, 1e-3)
    8
    """
    if not ACCURACY_FLOOR <= tolerance < 1:
        raise ValueError(
            f"tolerance must be from {ACCURACY_FLOOR:g}, what float64 can tell, to below 1, got {tolerance:g}"
        )
    terms = 1
    while closed_form_error(beta, max_lag, terms) > tolerance:
        terms += 1
    return terms


def most_terms(beta: float, max_lag: float) -> int:
    """The largest number of terms whose error float64 can tell from none."""
    terms = 1
    while closed_form_error(beta, max_lag, terms + 1) > ACCURACY_FLOOR:
        terms += 1
    return terms


def _check_law(beta: float, max_lag: float) -> None:
    if not (np.isfinite(beta) and beta > 0):
        raise ValueError(f"beta must be positive and finite, got {beta}")
    if not (np.isfinite(max_lag) and max_lag > 1):
        raise ValueError(f"max_lag must be finite and above 1, got {max_lag}")
