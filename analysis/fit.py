"""Fits of exponential sums to a target, on given half-lives or with K free terms.

minimax        K terms with the least largest relative error, by Remez exchanges; `certificate`
               proves it
least-squares  K terms with the least sum of squared logarithmic errors, for targets with errors
nnls           weights on the published half-lives, on the linear scale: the published fit

Free terms have the parameters (ln rates, ln weights), shape (2K,), so that both stay positive;
rates are per first lag of the target. Their errors are ln(kernel / target): near 0 they are the
relative error, and they grow without end as a kernel vanishes, which relative errors do not.
"""

import numbers
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plkernel.analysis.exponentials import (
    ACCURACY_FLOOR,
    ExponentialSum,
    Floats,
    Scores,
    Target,
    array_target,
    check_design,
    exponential_sum,
    power_law_target,
    score,
)
from plkernel.analysis.figures.style import INK, line_style
from plkernel.analysis.nodes import (
    BETA,
    HALF_LIVES,
    POWERS,
    Aim,
    Gain,
    Lag,
    Nodes,
    Placement,
    Summation,
    check_numbers_or_none,
    check_rates,
    half_lives_of,
    log_kernel,
    node_scores,
    place,
    smooth_nodes,
    warn_not_followed,
    warn_outlasting,
)
from plkernel.analysis.results import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Method = Literal["minimax", "least-squares", "nnls"]
Places = NDArray[np.intp]

PUBLISHED_MAX_LAG = 512
PUBLISHED_HALF_LIVES = (1.0, 2048.0, 256)
"""Shortest, longest, and how many, evenly spaced in their logarithm."""
FEWEST_POINTS = 40
POINTS_PER_TERM = 6
"""Points of the least squares: six for each term, and no fewer than 40."""
EVENLY = 0.3
"""Weight with which points of the least squares lean from Chebyshev's to even spacing in ln t.
Chebyshev's alone leave the ends with half the error of the middle."""
TOLERANCE = 1e-6
EVALUATIONS = 200
"""Tolerance and evaluations of the least squares."""
SETTLED = 1e-14
PATIENT_EVALUATIONS = 2000
"""The same where those end too early, in the long valleys of short targets with many terms."""
WORTHWHILE = 1e-6
"""A further term is refused when it lowers the sum of squares by no more than this, relative."""
SEED_SHARE = 0.05
"""The largest share of the kernel that an inserted term starts with."""
INSERTED_RATES = 400
"""Rates, evenly spaced in their logarithm, among which that of an inserted term is chosen."""
LEAST_LOG_RATE = -100.0
MOST_LOG_RATE = 6.0
"""Per first lag. A term that the target does not need may drift off; beyond these it changes no
more, and its weight stays a number."""
UNSEEN = 1e-14
"""A term is left out when it is nowhere more than this share of the kernel."""

EXCHANGES = 60
"""Exchanges end after so many."""
PATIENCE = 5
"""They also end when so many in a row have not lowered the largest error."""
NEWTON_STEPS = 8
"""Steps within which Newton's method arrives, or has failed."""
SHARES = (1.0, 0.5, 0.25, 0.1, 0.05)
"""Parts of the way to level errors that one exchange tries, until Newton's method arrives."""
ARRIVED = 0.01
"""Share of the largest error by which Newton's method may miss."""
LARGEST_LOG = 300.0
"""Newton's method has failed where a parameter is larger."""
LEVEL_RATIO = 0.999
"""The errors of a sum count as level from this ratio of the smallest to the largest of 2K + 1
alternating extrema on: then no sum of K exponentials has an error that is smaller by more than 0.1
%."""
LEVEL = 1e-6
"""Exchanges end when the alternating extrema of ln(kernel / target) differ by no more, relative."""
NEARLY_LEVEL = 0.05
"""When they end with a larger difference, linear programs take over."""
PROGRAM_WORTHWHILE = 1e-4
"""Linear programs end when the next lowers the largest error by no more than this share."""
PROGRAMS = 60
"""Linear programs, at most."""
PROGRAM_POINTS = 150
"""Lags that a linear program sees beside the extrema."""
FIRST_RADIUS = 0.1
LEAST_RADIUS = 1e-8
"""First bound on the step of a linear program, and the bound at which it is given up."""

CHANNEL_TEMPERING = 0.5
"""Of channels that carry a fit, unless another is given."""
FIGURE_LAGS = 200
"""Lags of a figure, at most."""
LONGEST_HALF_LIFE = 1000.0
"""In multiples of the last lag, up to which such a channel loses 0.07 % and cannot be told from one
that keeps all.
"""


@dataclass(frozen=True)
class Certificate:
    """Distance of a sum of K exponentials from the best.

    Its errors k/target - 1 alternate from extremum to extremum.

    alternations  how many extrema alternate in sign; the best sum of K has at least 2K + 1
                  ("equi-oscillation")
    needed        2K + 1
    largest       the largest relative error
    smallest      the smallest of `needed` alternating extrema; 0 when there are fewer. By de la
                  Vallee Poussin's theorem no sum of K exponentials, of any signs, has a smaller
                  largest error, up to rounding
    ratio         smallest / largest: 1 for the best sum
    level         the sum is the best, to `LEVEL_RATIO`; or `is_exact`

    Source: Braess, "Nonlinear Approximation Theory" (Springer 1986), on exponential sums.
    """

    alternations: int
    needed: int
    largest: float
    smallest: float
    ratio: float
    level: bool

    @property
    def is_exact(self) -> bool:
        """True if all errors are rounding, whose extrema say nothing."""
        return self.largest <= ACCURACY_FLOOR


@dataclass(frozen=True, repr=False)
class FitResult(Result):
    """`optimal` against `uniform` weights on the same decays.

    Both are scored against `target` on its integer lags.
    """

    target: Target
    method: Method
    optimal: ExponentialSum
    uniform: ExponentialSum
    optimal_scores: Scores
    uniform_scores: Scores
    certificate: Certificate | None = None
    """Of method minimax."""
    _figure = "plkernel.analysis.fit:fit_figure"

    def _title(self) -> str:
        scores = self.optimal_scores
        span = f"t = {self.target.lags[0]:g}..{self.target.max_lag:.0f}"
        error = (
            f"largest relative error {scores.max_relative_error:.2%} at t = {scores.worst_lag:.0f}"
        )
        return (
            f"{self.target.label} on {span} by {self.method}: {len(self.active.rates)} half-lives,"
            f" {error}"
        )

    def _table(self) -> Any:
        terms = self.active
        weights = np.asarray(self.active.weights)
        columns = {"half_life": terms.half_lives(), "rate": terms.rates, "weight": weights}
        return {**columns, "share": weights / weights.sum()}

    @property
    def active(self) -> ExponentialSum:
        """The terms that carry more than 1e-8 of the largest weight."""
        return self.optimal.active()

    @property
    def fastest_share(self) -> float:
        """The share of the total weight on the shortest half-life, in [0, 1]."""
        return self.optimal.weights[0] / sum(self.optimal.weights)

    @property
    def uniform_excess(self) -> float:
        """Uniform kernel over true kernel at the last lag, both 1 at the first."""
        ends = [self.target.lags[0], self.target.max_lag]
        first, last = self.uniform.kernel(ends)
        true_first, true_last = self.target.value(ends)
        return float(last / first * true_first / true_last)


def fit(
    beta: float | None = None,
    *,
    values: ArrayLike | Target | None = None,
    max_lag: float | None = None,
    terms: int | None = None,
) -> FitResult:
    """Fit sum_k w_k exp(-lambda_k t), all w_k >= 0, to t**-beta on t = 1..max_lag, or to values.

    beta        of t**-beta, 1.15 unless given
    values      (T,) positive values of a kernel at t = 1..T instead of beta, or a `Target`, such as
                a measured curve
    max_lag     512 unless given; with values it is theirs. The sum is scored on all integers up to
                there: at most 50 million over the number of half-lives, `terms` or 256
    terms       K exponentials, with the least largest relative error (minimax) over the real lags
                1..max_lag; over the integers alone, values=np.arange(1.0, max_lag + 1) ** -beta, it
                can be a third of that for many terms. Of a target with errors the weighted least
                squares. Without, the published fit by nnls

    Of the result, `active` has rates (K,) per step and weights (K,), `active.half_lives()` in
    steps, `optimal_scores` how close they are. place(N, placement="terms", terms=result.active)
    shares them among channels. Warns if most half-lives are longer than max_lag, and if the sum is
    wrong by a factor of more than e either way at the best scale. Raises ValueError for options
    that contradict each other. Published fit: Lawson & Hanson, chapter 23; minimax: Braess &
    Hackbusch (2005).

    >>> [len(fit(1.15, terms=count).active.rates) for count in (4, 6)]
    [4, 6]
    """
    check_numbers_or_none(beta=beta, max_lag=max_lag)
    check_numbers_or_none(numbers.Integral, terms=terms)
    if values is not None and (beta is not None or max_lag is not None):
        raise ValueError(
            "beta and max_lag must be left out beside values, which are the kernel at their own"
            f" lags, got beta {beta} and max_lag {max_lag}"
        )
    if isinstance(values, Target):
        target = values
    elif values is not None:
        target = array_target(values)
    else:
        exponent = BETA if beta is None else float(beta)
        reach = PUBLISHED_MAX_LAG if max_lag is None else float(max_lag)
        target = power_law_target(exponent, reach)
    terms = None if terms is None else int(terms)  # small integers of numpy would overflow
    _check_size(target, terms)
    method: Method
    if terms is None:
        method = "nnls"
        optimal = nnls(target)
    elif target.errors is None:
        method = "minimax"
        optimal = minimax(target, terms)
    else:
        method = "least-squares"
        optimal = least_squares_terms(target, terms)
    uniform = ExponentialSum(optimal.rates, (1.0,) * len(optimal.rates))
    lags = target.integer_lags()
    known = target.value(lags)
    best = score(optimal.log_kernel(lags), known, lags)
    even = score(uniform.log_kernel(lags), known, lags)
    proof = certificate(optimal, target) if method == "minimax" else None
    is_law = target.beta is not None
    warn_outlasting(optimal.active().half_lives(), target.max_lag, by_beta=is_law)
    _warn_of_distance(best, target, method)
    return FitResult(target, method, optimal, uniform, best, even, proof)


def _check_size(target: Target, terms: int | None) -> None:
    """Raise ValueError where there are too many lags to fit, or to score, half-lives on."""
    lags = max(target.count_lags(), target.judged_lags().size)
    if terms is None:
        check_design(lags, PUBLISHED_HALF_LIVES[2])
    else:
        check_design(lags, terms, "terms")


def _warn_of_distance(scores: Scores, target: Target, method: Method) -> None:
    """Warn where a fit does not follow the kernel: then its relative errors mean nothing."""
    if method == "nnls":
        remedy = (
            f"half-lives begin at {PUBLISHED_HALF_LIVES[0]:g} and least squares see the first lags"
            " alone; give terms, such as 6, or a smaller beta"
        )
    else:
        remedy = "give more terms, or a smaller beta or max_lag"
    warn_not_followed(target.label, "this fit", scores.e_log, remedy)


def nnls(target: Target) -> ExponentialSum:
    """Weights >= 0 of PUBLISHED_HALF_LIVES with the least sum of (k - target)**2.

    The sum is over the integer lags, or those of a discrete target: the first lags decide. A target
    with errors is fitted at all its lags, each difference over its error. Source: Lawson & Hanson,
    "Solving Least Squares Problems" (1974), chapter 23, as in scipy.optimize.nnls.
    """
    from scipy.optimize import nnls as solve

    rates = np.log(2) / np.geomspace(*PUBLISHED_HALF_LIVES)
    lags = target.integer_lags()
    values = target.value(lags)
    scale = np.ones(1) if target.errors is None else 1 / (values * target.errors)
    design = np.exp(-np.outer(lags, rates)) * scale[:, None]
    weights, _ = solve(design, values * scale, maxiter=30 * rates.size)
    if not weights.any():
        raise ValueError(
            f"{target.label}: first lag must be one that a half-life of"
            f" {PUBLISHED_HALF_LIVES[1]:g} reaches, got {lags[0]:g}; give shorter lags, or scale"
            " them"
        )
    return exponential_sum(rates, weights)


@dataclass(frozen=True)
class Lags:
    """Where errors are taken.

    lags   (T,) over the first lag of the target
    logs   (T,) ln target
    scale  (T,) the weight of each error
    """

    lags: Floats
    logs: Floats
    scale: Floats

    def at(self, places: Places) -> "Lags":
        """The lags at `places`."""
        return Lags(self.lags[places], self.logs[places], self.scale[places])

    def errors(self, parameters: Floats) -> Floats:
        """(T,): ln(kernel / target) * scale."""
        logs, _ = self.logs_and_shares(parameters)
        return logs * self.scale

    def squares(self, parameters: Floats) -> float:
        """The sum of the squared errors."""
        return float(np.sum(self.errors(parameters) ** 2))

    def jacobian(self, parameters: Floats) -> Floats:
        """(T, 2K): derivatives of the errors."""
        _, shares = self.logs_and_shares(parameters)
        log_rates, _ = parameters.reshape(2, -1)
        by_rate = shares * np.outer(self.lags, _bounded_rates(log_rates))
        return np.asarray(np.concatenate([-by_rate, shares], axis=1) * self.scale[:, None])

    def logs_and_shares(self, parameters: Floats) -> tuple[Floats, Floats]:
        """ln(kernel / target), (T,), and each term over the kernel, (T, K)."""
        log_rates, log_weights = parameters.reshape(2, -1)
        decayed = np.outer(self.lags, _bounded_rates(log_rates))
        exponents = log_weights - decayed - self.logs[:, None]
        # The largest is taken out: the sum neither overflows nor vanishes altogether.
        highest = exponents.max(axis=1)
        parts = np.exp(exponents - highest[:, None])
        total = parts.sum(axis=1)
        return highest + np.log(total), parts / total[:, None]

    def least_squares(
        self, start: Floats, tolerance: float = TOLERANCE, evaluations: int = EVALUATIONS
    ) -> Floats:
        """The parameters with the least sum of squared errors, from `start`."""
        from scipy.optimize import least_squares

        stop = dict.fromkeys(("ftol", "xtol", "gtol"), tolerance)
        solved = least_squares(
            self.errors, start, self.jacobian, method="lm", max_nfev=evaluations, **stop
        )
        return np.asarray(solved.x, np.float64)


def _bounded_rates(log_rates: Floats) -> Floats:
    """exp(log_rates), within what the lags can tell."""
    return np.asarray(np.exp(np.clip(log_rates, LEAST_LOG_RATE, MOST_LOG_RATE)))


def judged_lags(target: Target) -> Lags:
    """The lags on which fits of `target` are judged, all of the same weight."""
    lags = target.judged_lags()
    return Lags(lags / target.lags[0], np.log(target.value(lags)), np.ones(lags.size))


def _fitted(target: Target, terms: int) -> Lags:
    """The lags of a fit, and their weights.

    All lags of a target that has errors, each weighted by 1 / error; of others lags spread in ln t,
    each weighted by its number of points.
    """
    if target.errors is not None:
        lags = np.asarray(target.lags)
        scale = 1 / np.asarray(target.errors)
    else:
        lags, counts = target.spread_lags(max(FEWEST_POINTS, POINTS_PER_TERM * terms), EVENLY)
        scale = np.sqrt(counts)
    return Lags(lags / target.lags[0], np.log(target.value(lags)), scale)


def _as_sum(parameters: Floats, target: Target, scale: float = 1.0) -> ExponentialSum:
    """`scale` times the sum with these parameters, fastest first, without invisible terms."""
    _, shares = judged_lags(target).logs_and_shares(parameters)
    seen = parameters.reshape(2, -1)[:, shares.max(axis=0) > UNSEEN]
    log_rates, log_weights = seen[:, np.argsort(-seen[0])]
    return exponential_sum(_bounded_rates(log_rates) / target.lags[0], scale * np.exp(log_weights))


def least_squares_terms(target: Target, terms: int) -> ExponentialSum:
    """`terms` free exponentials with the least sum of squares of relative errors.

    The error is ln(kernel / target), over the target's own error. A target without errors counts
    alike all along ln t. Raises ValueError for more terms than lower the sum, naming the largest
    number that does: noise supports few.
    """
    return _as_sum(_grown(target, terms), target)


def minimax(target: Target, terms: int) -> ExponentialSum:
    """The k(t) of `terms` exponentials with the least max |k(t) / target(t) - 1| over the lags.

    `certificate` of the result bounds its distance from the least error. Kinks and noise set a
    floor that no number of terms passes, and near it the errors of the best sum need not alternate:
    linear programs take over from the exchanges, and the certificate cannot tell how near they
    came. The lags of a continuous target are real: the least error on integers alone,
    `array_target`, is smaller. Deterministic. Raises ValueError for more terms than float64 or the
    target supports, naming the largest number that works.
    Source: Hackbusch, "Computation of best L-infinity exponential sums for 1/x by Remez'
    algorithm", Comput. Vis. Sci. 20 (2019), for the exchanges.

    >>> law = power_law_target(1.15, 512)
    >>> round(certificate(minimax(law, 6), law).largest, 5)
    0.00486
    """
    most = (len(target.lags) - 1) // 2
    if target.exponents is None and terms > most:
        raise ValueError(
            f"terms must be at most {most}, half the {len(target.lags)} lags of {target.label} up"
            f" to lag {target.max_lag:g}, got {terms}"
        )
    start = _grown(target, terms)
    lags = judged_lags(target)
    if _reference(lags.errors(start), start.size + 1) is None:
        start = _fitted(target, terms).least_squares(start, SETTLED, PATIENT_EVALUATIONS)
    best, level = _exchanged(start, lags)
    if not level and np.ptp(lags.errors(best)) > 2 * ACCURACY_FLOOR:
        best, _ = _exchanged(_descended(best, lags), lags)
    # Errors are of the logarithm: the scale makes the largest relative ones of both signs equal.
    errors = lags.errors(best)
    return _as_sum(best, target, scale=2 / float(np.exp(errors.max()) + np.exp(errors.min())))


def certificate(kernel: ExponentialSum, target: Target) -> Certificate:
    """The alternating extrema of `kernel` / `target` - 1, and their bound on every other sum."""
    errors = kernel.errors(target)
    needed = 2 * len(kernel.rates) + 1
    at = _reference(errors, needed)
    largest = float(np.abs(errors).max())
    smallest = 0.0 if at is None else float(np.abs(errors[at]).min())
    ratio = smallest / largest if largest else 1.0
    level = ratio >= LEVEL_RATIO or largest <= ACCURACY_FLOOR
    return Certificate(_extrema(errors).size, needed, largest, smallest, ratio, level)


def _grown(target: Target, terms: int) -> Floats:
    """Least-squares parameters of `terms` terms, grown from one, term by term.

    A term more begins from the others, read at one more place (`_stretched`); where that does not
    help, from a small one beside them (`_inserted`). Raises ValueError, with their number, when no
    more help.
    """
    if terms < 1:
        raise ValueError(f"terms must be at least 1, got {terms}")
    span = target.max_lag / target.lags[0]
    heights = np.log([target.values[0], target.values[-1]])
    rate = max((heights[0] - heights[1]) / (span - 1), 1 / span)
    lags = _fitted(target, 1)
    parameters = lags.least_squares(np.array([np.log(rate), heights[0] + rate]))
    for k in range(2, terms + 1):
        further = None
        if np.ptp(lags.errors(parameters)) >= 2 * ACCURACY_FLOOR:
            lags = _fitted(target, k)
            enough = (1 - WORTHWHILE) * lags.squares(parameters)
            if k == 2:  # a term at either end of the lags
                start = np.array([0.0, -np.log(span), *(heights + 0.5)])
            else:
                start = _stretched(parameters)
            further = lags.least_squares(start)
            if not lags.squares(further) < enough:
                inserted = _inserted(parameters, lags)
                further = None if inserted is None else lags.least_squares(inserted)
        if further is None or not lags.squares(further) < enough:
            raise ValueError(
                f"terms must be at most {k - 1} for {target.label}, got {terms}; more terms do not"
                " reduce the error"
            )
        parameters = further
    return parameters


def _inserted(parameters: Floats, lags: Lags) -> Floats | None:
    """With a small term at the rate where the sum of squares falls fastest with its share.

    None when it never falls. Rates are looked at from a tenth of the last lag's to exp(3).
    """
    errors = lags.errors(parameters) * lags.scale
    log_rates = np.linspace(-np.log(10 * lags.lags[-1]), 3.0, INSERTED_RATES)
    log_kernel = lags.errors(parameters) / lags.scale + lags.logs
    shapes = -np.outer(lags.lags, np.exp(log_rates)) - log_kernel[:, None]
    peaks = shapes.max(axis=0)
    gradient = errors @ np.exp(shapes - peaks)
    best = int(np.argmin(gradient))
    if gradient[best] >= 0:
        return None
    term = [log_rates[best], np.log(SEED_SHARE) - peaks[best]]
    return np.column_stack([parameters.reshape(2, -1), term]).ravel()


def _stretched(parameters: Floats) -> Floats:
    """One term more, read off the given ones.

    The terms, evenly numbered, are read at one more place on a slightly longer range.
    """
    log_rates, log_weights = parameters.reshape(2, -1)
    terms = log_rates.size
    order = np.argsort(-log_rates)
    old = (np.arange(terms) + 0.5) / terms
    new = (np.arange(terms + 1) + 0.5) / (terms + 1)
    ends = [0, -1]

    def read(logs: Floats) -> Floats:
        slopes = (logs[[1, -1]] - logs[[0, -2]]) * terms
        values = np.interp(new, old, logs)
        values[ends] += slopes * (new[ends] - old[ends])  # where interp gives the end itself
        return np.asarray(values)

    shared = np.log(terms / (terms + 1))  # the weight of all stays what it was
    return np.concatenate([read(log_rates[order]), read(log_weights[order]) + shared])


def _exchanged(parameters: Floats, lags: Lags) -> tuple[Floats, bool]:
    """The best parameters met in exchanges, and True if their errors are nearly level.

    An exchange levels the errors at 2K + 1 of their extrema, +E, -E, +E ..., or goes as far on the
    way there as Newton's method arrives; the next takes the extrema of the result.
    """
    best = parameters
    least = np.inf
    level = False
    idle = 0
    for remaining in range(EXCHANGES, -1, -1):
        errors = lags.errors(parameters)
        at = _reference(errors, parameters.size + 1)
        ratio = 0.0 if at is None else np.abs(errors[at]).min() / np.abs(errors).max()
        idle += 1
        if np.ptp(errors) < least:
            best = parameters
            least = float(np.ptp(errors))
            level = ratio > 1 - NEARLY_LEVEL
            idle = 0
        if not remaining or at is None or ratio > 1 - LEVEL or idle == PATIENCE:
            break
        tried = (_newton(parameters, lags.at(at), share) for share in SHARES)
        further = next((one for one in tried if one is not None), None)
        if further is None:
            break
        parameters = further
    return best, level


def _newton(parameters: Floats, lags: Lags, share: float) -> Floats | None:
    """Newton's method, in the parameters and E, for levelled errors.

    They are (1 - share) e + share E sign(e) of those at the start, e. None where it does not
    arrive. The steps are not damped: the first overshoots many times over, since it leaves a curved
    valley, and the next come back; steps that never exceed the old errors take hundreds.
    """
    moved = parameters
    start = lags.errors(parameters)
    kept = (1 - share) * start
    signs = share * np.sign(start)
    for _ in range(NEWTON_STEPS):
        equations = np.column_stack([lags.jacobian(moved), -signs])
        try:
            step = np.linalg.solve(equations, kept - lags.errors(moved))
        except np.linalg.LinAlgError:
            return None
        moved = moved + step[:-1]
        if not np.abs(moved).max() < LARGEST_LOG:
            return None
    level = step[-1]  # E, of which the equations are linear
    missed = np.abs(lags.errors(moved) - kept - level * signs).max()
    return moved if missed < ARRIVED * np.abs(start).max() else None


def _descended(parameters: Floats, lags: Lags) -> Floats:
    """Linear programs for the step that lowers the largest error most.

    The step stays within a radius that follows their success. Slower than exchanges, but needs no
    alternation to start from. Source: Madsen, "An algorithm for minimax solution of overdetermined
    systems", J. Inst. Maths Applics 16 (1975).
    """
    from scipy.optimize import linprog

    radius = FIRST_RADIUS
    least = float(np.abs(lags.errors(parameters)).max())
    for _ in range(PROGRAMS):
        errors = lags.errors(parameters)
        evenly = np.linspace(0, errors.size - 1, PROGRAM_POINTS).astype(int)
        near = lags.at(np.union1d(evenly, _extrema(errors)))
        # The variables are the step and E; |now + slope step| <= E at every lag, over `least`.
        now = near.errors(parameters) / least
        slope = near.jacobian(parameters) / least
        level = -np.ones((near.lags.size, 1))
        solved = linprog(
            np.append(np.zeros(parameters.size), 1.0),
            A_ub=np.block([[slope, level], [-slope, level]]),
            b_ub=np.concatenate([-now, now]),
            bounds=[(-radius, radius)] * parameters.size + [(0, None)],
        )
        if solved.x is None or solved.x[-1] > 1 - PROGRAM_WORTHWHILE or radius < LEAST_RADIUS:
            break
        promised = 1 - solved.x[-1]
        tried = parameters + solved.x[:-1]
        largest = float(np.abs(lags.errors(tried)).max())
        kept_promise = (1 - largest / least) / promised
        if kept_promise > 0:
            parameters = tried
            least = largest
        radius *= _radius_factor(kept_promise)
    return parameters


def _radius_factor(kept_promise: float) -> float:
    """Factor on the radius, from the gain of a step over that of its linear program."""
    if kept_promise > 0.5:
        return 2.0
    if kept_promise > 0.1:
        return 1.0
    return 0.3


def _extrema(errors: Floats) -> Places:
    """The place of the largest error in each run of one sign."""
    runs = np.split(np.arange(errors.size), np.flatnonzero(np.diff(errors >= 0)) + 1)
    return np.array([run[np.argmax(np.abs(errors[run]))] for run in runs])


def _reference(errors: Floats, count: int) -> Places | None:
    """`count` alternating extrema, the large ones; None when there are fewer."""
    at = _extrema(errors)
    while at.size > count:
        sizes = np.abs(errors[at])
        # One too many is taken from an end, more as pairs of neighbours: signs go on alternating.
        if at.size == count + 1:
            at = at[1:] if sizes[0] < sizes[-1] else at[:-1]
        else:
            pair = int(np.argmin(np.maximum(sizes[1:], sizes[:-1])))
            at = np.delete(at, [pair, pair + 1])
    return at if at.size == count else None


def place_channels(
    channels: int,
    placement: Placement,
    target: Target,
    law: Aim | None,
    gain: Gain,
    kernel: Summation,
    lag: Lag,
    *,
    terms: ExponentialSum,
    tempering: float | None = None,
    loss: float | None = None,
) -> tuple[Nodes, Scores]:
    """`channels` nodes that carry `target` under `gain`, and their scores.

    law          the target as an `Aim`, where it is a power law: placements but terms are quantile
                 or gain-corrected for it, and for other targets fitted (`smooth_nodes`)
    kernel, lag  how the channels are read, as in an `Aim`
    terms        of the target to the power that adds up, for placement terms. A plateau is fitted
                 by a half-life without end; channels get `LONGEST_HALF_LIFE` times max_lag at most,
                 or the longest that float32 holds
    tempering    of placements quantile and terms, CHANNEL_TEMPERING if left out
    loss         of placement quantile, `nodes.LOSS` if left out

    Raises ValueError for quantile nodes without a law, and for decays that float32 does not hold.
    """
    tempering = CHANNEL_TEMPERING if tempering is None else tempering
    options: dict[str, Any] = {"placement": placement, "gain": gain, "kernel": kernel, "lag": lag}
    if placement == "terms":
        longest = min(LONGEST_HALF_LIFE * target.max_lag, HALF_LIVES[1])
        rates = np.maximum(terms.rates, POWERS[kernel] * np.log(2) / longest)
        nodes = place(
            channels,
            terms=replace(terms, rates=tuple(rates.tolist())),
            tempering=tempering,
            **options,
        )
    elif law is not None:
        quantile = {"tempering": tempering, "loss": loss, "max_lag": target.max_lag}
        shape = quantile if placement == "quantile" else {"projection": "gain-corrected"}
        nodes = place(channels, beta=law.beta, target=law.target, **shape, **options)
    elif placement == "quantile":
        raise ValueError(
            f"nodes must be 'terms' or 'log-spaced' for {target.label}, which is no power law, got"
            " 'quantile'"
        )
    else:
        nodes = smooth_nodes(
            np.log(2) / half_lives_of(placement, channels), target, gain, kernel, lag
        )
    check_rates("nodes: half-lives", nodes.rates, 1)
    if placement != "quantile":  # of which `place` warns
        warn_outlasting(nodes.half_lives(), target.max_lag, by_beta=target.beta is not None)
    return nodes, node_scores(nodes, target, kernel, lag)


def fit_figure(
    result: FitResult,
    nodes: Nodes | None = None,
    kernel: Summation = "coherent",
    lag: Lag = "state",
) -> "Figure":
    """Kernels of target, optimum and channels at the left, weight over half-life at the right.

    Kernels are 1 at the first lag; channels are drawn if given. kernel, lag: how channels are read.
    With rms, all three are squares of kernels.
    """
    from plkernel.analysis.figures.decay import kernels_figure

    active = result.active
    known = result.target.integer_lags()
    numbers_of_lags = np.geomspace(1, known.size, min(FIGURE_LAGS, known.size)).round().astype(int)
    lags = known[np.unique(numbers_of_lags) - 1]
    label = f"target {result.target.label}"
    look: dict[str, Any] = {"label": label, "color": INK, "lw": 3, "alpha": 0.25}
    drawn: list[tuple[Callable[[Floats], Floats], dict[str, Any]]] = [(result.target.value, look)]
    look = {"label": f"optimal weights ({result.method})", "color": INK, "lw": 1}
    drawn.append((result.optimal.kernel, look))
    if nodes is not None:
        squared = ", squared" if kernel == "rms" else ""
        label = f"channels written{squared}, gain '{nodes.gain}'"
        look = {"label": label, "lw": 1.1, **line_style(1)}
        drawn.append((lambda at: np.exp(POWERS[kernel] * log_kernel(nodes, kernel, at, lag)), look))
    shares = np.asarray(active.weights) / sum(active.weights)
    return kernels_figure(drawn, lags, active.half_lives(), shares, "share of weight")
