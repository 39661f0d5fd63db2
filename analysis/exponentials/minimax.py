"""The K exponentials whose largest relative error is the least that K exponentials allow, and the proof that it is.

Exchanges in the manner of Remez level the errors of a least-squares fit; `certificate` shows how near to the least
possible error any sum is.
"""

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from plkernel.analysis.exponentials.free_terms import Lags, as_sum, grow, judged, refuse_beyond, settled
from plkernel.analysis.exponentials.sums import ACCURACY_FLOOR, ExponentialSum, check_design, check_terms, most_terms
from plkernel.analysis.exponentials.targets import Target

Floats = NDArray[np.float64]

EXCHANGES = 60
PATIENCE = 5
"""Exchanges end when so many in a row have not lowered the largest error."""
NEWTON_STEPS = 8
SHARES = (1.0, 0.5, 0.25, 0.1, 0.05)
"""Parts of the way to level errors that one exchange tries, until Newton's method arrives."""
ARRIVED = 0.01
"""What Newton's method may be off, as a share of the largest error."""
LARGEST_LOG = 300.0
"""Newton's method has failed when the logarithm of a rate or weight exceeds this."""
LEVEL_RATIO = 0.999
"""The errors of a sum count as level from this ratio of the smallest to the largest of 2K + 1 alternating extrema on:
then no sum of K exponentials has an error that is smaller by more than 0.1 %."""
LEVEL, NEARLY_LEVEL = 1e-6, 0.05
"""Exchanges end when the alternating extrema of ln(kernel / target) differ by no more than LEVEL, relative; when they
end with more than NEARLY_LEVEL, linear programs take over."""
WORTHWHILE = 1e-4
"""Linear programs end when the next would lower the largest error by no more than this, relative."""
PROGRAMS, PROGRAM_POINTS = 60, 150
FIRST_RADIUS, LEAST_RADIUS = 0.1, 1e-8


@dataclass(frozen=True)
class Certificate:
    """How near a sum of K exponentials is to the best: its errors k/target - 1 change sign from extremum to extremum.

    alternations  how many extrema alternate in sign; the best sum of K has at least 2K + 1 ("equi-oscillation")
    needed        2K + 1
    largest       the largest relative error
    smallest      the smallest of `needed` alternating extrema; 0 when there are fewer. By de la Vallee Poussin's
                  theorem no sum of K exponentials, whatever its signs, has a smaller largest error, up to rounding

    Source: Braess, "Nonlinear Approximation Theory" (Springer 1986), on exponential sums.
    """

    alternations: int
    needed: int
    largest: float
    smallest: float

    @property
    def ratio(self) -> float:
        """smallest / largest: 1 for the best sum."""
        return self.smallest / self.largest if self.largest else 1.0

    @property
    def level(self) -> bool:
        """Whether the sum is the best, to `LEVEL_RATIO`."""
        return self.ratio >= LEVEL_RATIO

    def to_dict(self) -> dict[str, float]:
        """Everything, for JSON."""
        return {**asdict(self), "ratio": self.ratio, "level": self.level}


def minimax(target: Target, terms: int, exchanges: int = EXCHANGES) -> ExponentialSum:
    """The k(t) of `terms` exponentials with the least max |k(t) / target(t) - 1| over the target's lags.

    exchanges  at most so many after the least squares, until the errors are level; 0 leaves the least squares, within
               1.2 of the least error for power laws of moderate length. There 3 are enough, steep and long ones take
               6, and the steepest (beta 8 up to 1e12) 30

    `certificate` of the result says whether it is level (`Certificate.level`), and how far from the least error it can
    be. Kinks and noise set a floor that no number of terms passes, and near it the errors of the best sum need not
    alternate: linear programs take over from the exchanges, and `certificate` cannot tell how near they came.
    Deterministic, and nothing is kept between calls. Raises ValueError for targets with errors, whose noise it would
    follow, and for more terms than float64 or the target supports, naming the largest number that works.
    Source: Hackbusch, "Computation of best L-infinity exponential sums for 1/x by Remez' algorithm", Comput. Vis. Sci.
    20 (2019), for the exchanges.

    >>> from plkernel.analysis.exponentials.targets import power_law_target
    >>> law = power_law_target(1.15, 512)
    >>> round(minimax(law, 6).largest_relative_error(law), 5)
    0.00486
    """
    _check(target, terms)
    lags, stages = judged(target), list(grow(target, terms))
    refuse_beyond(len(stages), terms, target)
    start = stages[-1]
    if exchanges and _alternating(start, lags) is None:
        start = settled(start, target)
    best, level = _exchanged(start, lags, exchanges)
    if exchanges and not level and np.ptp(lags.errors(best)) > 2 * ACCURACY_FLOOR:
        best, _ = _exchanged(_descended(best, lags), lags, exchanges)
    errors = lags.errors(best)  # of the logarithm; the scale makes the largest relative errors of both signs equal
    return as_sum(best, target, scale=2 / float(np.exp(errors.max()) + np.exp(errors.min())))


def certificate(kernel: ExponentialSum, target: Target) -> Certificate:
    """The alternating extrema of `kernel` / `target` - 1, and the bound on every other sum that follows from them."""
    lags = target.judged_lags()
    errors = np.expm1(kernel.log_kernel(lags) - target.log_value(lags))
    needed = 2 * len(kernel.rates) + 1
    at = _reference(errors, needed)
    smallest = 0.0 if at is None else float(np.abs(errors[at]).min())
    return Certificate(_extrema(errors).size, needed, float(np.abs(errors).max()), smallest)


def _exchanged(parameters: Floats, lags: Lags, exchanges: int) -> tuple[Floats, bool]:
    """The best parameters met while the errors are levelled on their extrema, then on the extrema of the result.

    Also whether they are nearly level.
    """
    best, least, level, idle = parameters, np.inf, False, 0
    for remaining in range(exchanges, -1, -1):
        errors = lags.errors(parameters)
        at = _reference(errors, parameters.size + 1)
        ratio = 0.0 if at is None else np.abs(errors[at]).min() / np.abs(errors).max()
        idle += 1
        if np.ptp(errors) < least:
            best, least, level, idle = parameters, float(np.ptp(errors)), ratio > 1 - NEARLY_LEVEL, 0
        if not remaining or at is None or ratio > 1 - LEVEL or idle == PATIENCE:
            break
        further = _levelled(parameters, lags.at(at))
        if further is None:
            break
        parameters = further
    return best, level


def _alternating(parameters: Floats, lags: Lags) -> NDArray[np.intp] | None:
    """The extrema to level the errors on."""
    return _reference(lags.errors(parameters), parameters.size + 1)


def _descended(parameters: Floats, lags: Lags) -> Floats:
    """Linear programs for the step that lowers the largest error most, within a radius that follows their success.

    Slower than exchanges, but needs no alternation to start from.
    Source: Madsen, "An algorithm for minimax solution of overdetermined systems", J. Inst. Maths Applics 16 (1975).
    """
    from scipy.optimize import linprog

    radius, least = FIRST_RADIUS, float(np.abs(lags.errors(parameters)).max())
    cost = np.append(np.zeros(parameters.size), 1.0)
    for _ in range(PROGRAMS):
        errors = lags.errors(parameters)
        evenly = np.linspace(0, errors.size - 1, PROGRAM_POINTS).astype(int)
        near = lags.at(np.union1d(evenly, _extrema(errors)))
        now, slope = near.errors(parameters) / least, near.jacobian(parameters) / least
        level = -np.ones((near.lags.size, 1))
        found = linprog(
            cost,
            A_ub=np.block([[slope, level], [-slope, level]]),
            b_ub=np.concatenate([-now, now]),
            bounds=[(-radius, radius)] * parameters.size + [(0, None)],
        )
        if found.x is None or found.x[-1] > 1 - WORTHWHILE or radius < LEAST_RADIUS:
            break
        tried = parameters + found.x[:-1]
        largest = float(np.abs(lags.errors(tried)).max())
        gained = (1 - largest / least) / (1 - found.x[-1])
        if gained > 0:
            parameters, least = tried, largest
        radius *= 2.0 if gained > 0.5 else 1.0 if gained > 0.1 else 0.3
    return parameters


def _levelled(parameters: Floats, lags: Lags) -> Floats | None:
    """Parameters whose errors at 2K + 1 lags are level, +E, -E, +E ..., or as far on the way there as can be reached.

    None where not even the first of `SHARES` is.
    """
    reached = (_newton(parameters, lags, share) for share in SHARES)
    return next((found for found in reached if found is not None), None)


def _newton(parameters: Floats, lags: Lags, share: float) -> Floats | None:
    """Newton's method for errors (1 - share) e + share E s, e being those at the start and s their signs, in the
    parameters and E. None where it does not arrive.

    The steps are not damped: the first overshoots many times over, since it leaves a curved valley, and the next come
    back; steps that never exceed the old errors take hundreds.
    """
    found, start = parameters, lags.errors(parameters)
    kept, signs = (1 - share) * start, share * np.sign(start)
    for _ in range(NEWTON_STEPS):
        matrix = np.column_stack([lags.jacobian(found), -signs])
        try:
            step = np.linalg.solve(matrix, kept - lags.errors(found))
        except np.linalg.LinAlgError:
            return None
        found = found + step[:-1]
        if not np.abs(found).max() < LARGEST_LOG:
            return None
    missed = np.abs(lags.errors(found) - kept - step[-1] * signs).max()
    return found if missed < ARRIVED * np.abs(start).max() else None


def _extrema(errors: Floats) -> NDArray[np.intp]:
    """The place of the largest error in each run of one sign."""
    runs = np.split(np.arange(errors.size), np.flatnonzero(np.diff(errors >= 0)) + 1)
    return np.array([run[np.argmax(np.abs(errors[run]))] for run in runs])


def _reference(errors: Floats, count: int) -> NDArray[np.intp] | None:
    """`count` alternating extrema, the large ones; None when there are fewer."""
    at = _extrema(errors)
    while at.size > count:
        sizes = np.abs(errors[at])
        if at.size == count + 1:
            at = at[1:] if sizes[0] < sizes[-1] else at[:-1]
        else:
            pair = int(np.argmin(np.maximum(sizes[1:], sizes[:-1])))
            at = np.delete(at, [pair, pair + 1])
    return at if at.size == count else None


def _check(target: Target, terms: int) -> None:
    check_terms(terms)
    if target.errors is not None:
        raise ValueError(
            f"minimax: {target.label} has errors, and its noise would be followed; use least-squares or nnls-relative"
        )
    if target.beta is not None:
        most = most_terms(target.beta, target.max_lag / target.lags[0])
        reason = f"where its error reaches {ACCURACY_FLOOR:g}, the least that float64 can tell"
    else:
        most = terms if target.exponents else (len(target.lags) - 1) // 2
        reason = f"half its {len(target.lags)} lags"
    if terms > most:
        raise ValueError(
            f"terms {terms}: {target.label} up to lag {target.max_lag:g} supports at most {most}, {reason}"
        )
    check_design(int(target.judged_lags().size), terms)
