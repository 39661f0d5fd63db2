"""Exponential sums whose rates are free: their errors, derivatives, and least squares grown term by term.

The parameters of K terms are (ln rates, ln weights), shape (2K,), so that both stay positive; rates are per first lag
of the target. Errors are ln(kernel / target): near 0 they are the relative error, and they grow without end as a kernel
vanishes, which relative errors do not.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plkernel.analysis.exponentials.sums import ACCURACY_FLOOR, ExponentialSum, check_design, check_terms
from plkernel.analysis.exponentials.targets import Target

Floats = NDArray[np.float64]

FEWEST_POINTS = 40
POINTS_PER_TERM = 6
EVENLY = 0.3
"""How far the points of the least squares lean from Chebyshev's towards evenly spaced in ln t. Chebyshev's alone leave
the ends with half the error of the middle."""
TOLERANCE = 1e-6
EVALUATIONS = 200
SETTLED, PATIENT_EVALUATIONS = 1e-14, 2000
"""Tolerance and evaluations where the above end too early, in the long valleys of short targets with many terms."""
WORTHWHILE = 1e-6
"""A further term is refused when it lowers the sum of squares by no more than this, relative."""
CANDIDATES = 400
SEED_SHARE = 0.05
"""What a term inserted where it lowers the sum of squares starts with, as its largest share of the kernel."""
LEAST_LOG_RATE, MOST_LOG_RATE = -100.0, 6.0
"""Per first lag. A term that the target does not need may drift off; beyond these it changes no more, and its weight
stays a number."""
UNSEEN = 1e-14
"""A term is left out when it is nowhere more than this share of the kernel."""


@dataclass(frozen=True)
class Lags:
    """Where errors are taken: lags (T,) per first lag of the target, ln target (T,), and what errors count (T,)."""

    lags: Floats
    logs: Floats
    scale: Floats

    def at(self, places: NDArray[np.intp]) -> "Lags":
        """Those at `places`."""
        return Lags(self.lags[places], self.logs[places], self.scale[places])

    def errors(self, parameters: Floats) -> Floats:
        """(T,): ln(kernel / target) * scale."""
        return self._errors_and_shares(parameters)[0] * self.scale

    def jacobian(self, parameters: Floats) -> Floats:
        """(T, 2K): derivatives of the errors."""
        shares = self.shares(parameters)
        by_rate = shares * np.outer(self.lags, bounded_rates(parameters[: shares.shape[1]]))
        return np.asarray(np.concatenate([-by_rate, shares], axis=1) * self.scale[:, None])

    def shares(self, parameters: Floats) -> Floats:
        """(T, K): each term over the kernel."""
        return self._errors_and_shares(parameters)[1]

    def _errors_and_shares(self, parameters: Floats) -> tuple[Floats, Floats]:
        log_rates, log_weights = parameters.reshape(2, -1)
        exponents = log_weights - np.outer(self.lags, bounded_rates(log_rates)) - self.logs[:, None]
        highest = exponents.max(axis=1)
        parts = np.exp(exponents - highest[:, None])  # neither overflows nor vanishes altogether
        total = parts.sum(axis=1)
        return highest + np.log(total), parts / total[:, None]


def judged(target: Target) -> Lags:
    """The lags at which fits of `target` are judged, all of the same scale."""
    lags = target.judged_lags()
    return Lags(lags / target.lags[0], target.log_value(lags), np.ones(lags.size))


def least_squares_terms(target: Target, terms: int) -> ExponentialSum:
    """`terms` free exponentials with the least sum of squares of ln(kernel / target) over the target's errors.

    A target without errors counts alike all along ln t. Raises ValueError for more terms than lower the sum, naming the
    largest number that does: noise supports few.

    >>> from plkernel.analysis.exponentials.targets import array_target
    >>> t = np.arange(1, 101)
    >>> least_squares_terms(array_target(0.7 * np.exp(-t / 3) + 0.3 * np.exp(-t / 50)), 2).half_lives().round(6)
    array([ 2.079442, 34.657359])
    """
    check_terms(terms)
    check_design(int(target.judged_lags().size), terms)
    stages = list(grow(target, terms))
    refuse_beyond(len(stages), terms, target)
    return as_sum(stages[-1], target)


def refuse_beyond(supported: int, terms: int, target: Target) -> None:
    """ValueError when `terms` exceeds the number that the target supports."""
    if terms > supported:
        raise ValueError(f"terms {terms}: {target.label} supports at most {supported}, more do not come nearer to it")


def grow(target: Target, terms: int) -> Iterator[Floats]:
    """Least-squares parameters (2k,) for k = 1, 2, ... terms, each started from the last; fewer when no more help.

    They no longer help when the error is at the accuracy of float64, or when no term lowers the sum of squares.

    A start from scratch stalls from about eight terms on. Source of the test for one more term: Lindsay, Ann. Statist.
    11 (1983), the gradient of a mixture.
    """
    span = target.max_lag / target.lags[0]
    heights = np.log([target.values[0], target.values[-1]])
    rate = max((heights[0] - heights[1]) / (span - 1), 1 / span)
    parameters = np.array([np.log(rate), heights[0] + rate])
    for k in range(1, terms + 1):
        lags = _fitted(target, k)
        if k == 1:
            parameters = _least_squares(parameters, lags)
        else:
            spread = np.array([0.0, -np.log(span), *(heights + 0.5)])
            further = _one_more(parameters, spread if k == 2 else _stretched(parameters), lags)
            if further is None:
                return
            parameters = further
        yield parameters
        if np.ptp(lags.errors(parameters)) < 2 * ACCURACY_FLOOR:
            return


def as_sum(parameters: Floats, target: Target, scale: float = 1.0) -> ExponentialSum:
    """`scale` times the sum with these parameters, fastest rate first, without the terms that are nowhere seen."""
    shares = judged(target).shares(parameters)
    seen = parameters.reshape(2, -1)[:, shares.max(axis=0) > UNSEEN]
    log_rates, log_weights = seen[:, np.argsort(-seen[0])]
    rates = bounded_rates(log_rates) / target.lags[0]
    return ExponentialSum(tuple(rates.tolist()), tuple((scale * np.exp(log_weights)).tolist()))


def bounded_rates(log_rates: Floats) -> Floats:
    """exp(log_rates), within what the lags can tell."""
    return np.asarray(np.exp(np.clip(log_rates, LEAST_LOG_RATE, MOST_LOG_RATE)))


def _fitted(target: Target, terms: int) -> Lags:
    """All lags of a target that has errors; of others lags spread in ln t, each counting for all that it stands for."""
    if target.errors is not None:
        lags, scale = np.asarray(target.lags), 1 / np.asarray(target.errors)
    else:
        lags, counts = target.spread_lags(max(FEWEST_POINTS, POINTS_PER_TERM * terms), EVENLY)
        scale = np.sqrt(counts)
    return Lags(lags / target.lags[0], target.log_value(lags), scale)


def settled(parameters: Floats, target: Target) -> Floats:
    """The least squares of `grow` carried on for as long as they fall."""
    return _least_squares(parameters, _fitted(target, parameters.size // 2), SETTLED, PATIENT_EVALUATIONS)


def _least_squares(start: Floats, lags: Lags, tolerance: float = TOLERANCE, evaluations: int = EVALUATIONS) -> Floats:
    from scipy.optimize import least_squares

    stop = {name: tolerance for name in ("ftol", "xtol", "gtol")}
    return np.asarray(
        least_squares(lags.errors, start, lags.jacobian, method="lm", max_nfev=evaluations, **stop).x, np.float64
    )


def _one_more(parameters: Floats, start: Floats, lags: Lags) -> Floats | None:
    """The fit with a term more, from `start` or else from where a new term lowers the squares; None when none does."""
    enough = (1 - WORTHWHILE) * np.sum(lags.errors(parameters) ** 2)
    found = _least_squares(start, lags)
    if np.sum(lags.errors(found) ** 2) < enough:
        return found
    inserted = _inserted(parameters, lags)
    if inserted is None:
        return None
    found = _least_squares(inserted, lags)
    return found if np.sum(lags.errors(found) ** 2) < enough else None


def _inserted(parameters: Floats, lags: Lags) -> Floats | None:
    """With a small term at the rate where the sum of squares falls fastest with its share; None when it never falls."""
    errors = lags.errors(parameters) * lags.scale
    log_rates = np.linspace(-np.log(10 * lags.lags[-1]), 3.0, CANDIDATES)
    log_kernel = lags.errors(parameters) / lags.scale + lags.logs
    shapes = -np.outer(lags.lags, np.exp(log_rates)) - log_kernel[:, None]
    peaks = shapes.max(axis=0)
    gradient = errors @ np.exp(shapes - peaks)
    best = int(np.argmin(gradient))
    if gradient[best] >= 0:
        return None
    term = [log_rates[best], np.log(SEED_SHARE) - peaks[best]]
    return np.concatenate([parameters.reshape(2, -1), np.array(term)[:, None]], axis=1).ravel()


def _stretched(parameters: Floats) -> Floats:
    """One term more: the terms, evenly numbered, are read off at one more place on the same range, a little beyond.

    Each weight shrinks by K / (K + 1).
    """
    terms = parameters.size // 2
    order = np.argsort(-parameters[:terms])
    old, new = ((np.arange(k) + 0.5) / k for k in (terms, terms + 1))

    def read(logs: Floats) -> Floats:
        slopes = (logs[[1, -1]] - logs[[0, -2]]) * terms
        values = np.interp(new, old, logs)
        values[[0, -1]] += slopes * (new[[0, -1]] - old[[0, -1]])
        return np.asarray(values)

    rates, weights = (read(logs[order]) for logs in parameters.reshape(2, -1))
    return np.concatenate([rates, weights + np.log(terms / (terms + 1))])
