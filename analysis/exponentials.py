"""Sums of decaying exponentials held against a power law t**-beta."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

ACTIVE_WEIGHT = 1e-8
MAX_DESIGN_ENTRIES = 50_000_000


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


def fit_nnls(rates: ArrayLike, beta: float, max_lag: int) -> ExponentialSum:
    """Weights w >= 0 that minimise sum over t = 1..max_lag of (sum_i w_i exp(-rates_i t) - t**-beta)**2.

    This is the published fit: linear least squares on the linear scale, so the first lags decide. `rates` has shape
    (N,). Raises ValueError on a problem too large for memory or one that does not converge.
    Source: Lawson & Hanson, "Solving Least Squares Problems" (1974), chapter 23, as in scipy.optimize.nnls.
    """
    from scipy.optimize import nnls

    rates = np.asarray(rates, dtype=float)
    check_design(max_lag, rates.size)
    lags = integer_lags(max_lag)
    try:
        weights, _ = nnls(np.exp(-np.outer(lags, rates)), power_law(lags, beta), maxiter=30 * rates.size)
    except RuntimeError as error:
        raise ValueError(f"non-negative least squares did not converge ({error}): use fewer nodes") from error
    if not weights.any():
        raise ValueError("no node helps: every half-life is too short to be seen at lag 1, use longer ones")
    return ExponentialSum(tuple(rates.tolist()), tuple(weights.tolist()))
