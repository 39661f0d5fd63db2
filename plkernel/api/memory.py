"""The memory of data, and the exponentials that carry it: without torch."""

import os

from numpy.typing import ArrayLike

from plkernel.analysis.exponentials.fits import Method
from plkernel.analysis.exponentials.sums import terms_for
from plkernel.analysis.exponentials.targets import array_target, power_law_target
from plkernel.analysis.information.curve import MAX_LAG
from plkernel.analysis.information.estimate import Estimator
from plkernel.analysis.information.measurement import STATED, Measurement, Range, measure_corpus
from plkernel.analysis.nodes.fit import FitResult, fit_exponentials
from plkernel.api.text import Text, read_text

PUBLISHED_BETA, PUBLISHED_MAX_LAG = 1.15, 512


def measure(
    text: Text,
    *,
    lags: Range = STATED,
    max_lag: int = MAX_LAG,
    estimator: Estimator = "jackknife",
    threads: int | None = None,
) -> Measurement:
    """Mutual information I(d) of symbols d apart, its exponent in I(d) ~ d**-beta, and whether it is a power law.

    text     bytes, a vector (n,) of integers from 0 to 255, or the name of a corpus; a string is a name or a path
    lags     first and last lag, in symbols, of the exponent `law`
    max_lag  the longest lag of the curve

    Of the result, `information` has lags (L,), values (L,) in nats and intervals; `law.beta`, `law.low` and `law.high`
    are the exponent with its 95 % interval, None in place of `law` where nothing decays; `verdict.sentence` says what
    the curve is. Raises ValueError for a text that is too short for `max_lag`. As plkernel.measure does.

    >>> import numpy as np
    >>> measure(np.random.default_rng(0).integers(0, 4, 50_000), max_lag=20, lags=(1, 20)).verdict.kind
    'none'
    """
    corpus, data = read_text(text)
    return measure_corpus(
        corpus, data, stated=lags, max_lag=max_lag, estimator=estimator, threads=threads or os.cpu_count() or 1
    )


def fit(
    beta: float | None = None,
    *,
    values: ArrayLike | None = None,
    max_lag: int | None = None,
    terms: int | None = None,
    tolerance: float | None = None,
    method: Method | None = None,
) -> FitResult:
    """sum_k w_k exp(-lambda_k t), all w_k >= 0, for t**-beta on t = 1..max_lag, or for the values of another kernel.

    beta       of t**-beta, 1.15 unless given
    values     (T,) positive values of a kernel at t = 1..T, instead of beta
    max_lag    512 unless given; with values it is T
    terms      K exponentials, with the least largest relative error (minimax); without, the published fit
    tolerance  largest relative error instead of K
    method     as plkernel.fit has it: nnls, nnls-relative, minimax, least-squares, quadrature, trapezoid

    Of the result, `active` has rates (K,) per step and weights (K,), `active.half_lives()` in steps, `optimal_scores`
    how close they are. place(N, placement="terms", terms=result.active) shares them among channels. Raises ValueError
    for options that contradict each other. Published fit: Lawson & Hanson, chapter 23; minimax: Braess & Hackbusch
    (2005).

    >>> [len(fit(1.15, terms=count).active.rates) for count in (4, 6)]
    [4, 6]
    """
    if values is not None:
        if beta is not None or max_lag is not None or tolerance is not None:
            raise ValueError("values: are the kernel at t = 1..T; leave out beta, max_lag and tolerance, or values")
        target = array_target(values)
    else:
        target = power_law_target(PUBLISHED_BETA if beta is None else beta, max_lag or PUBLISHED_MAX_LAG)
    if tolerance is not None:
        if terms is not None:
            raise ValueError(f"terms {terms} and tolerance {tolerance:g}: give one of the two")
        terms = terms_for(PUBLISHED_BETA if beta is None else beta, target.max_lag, tolerance)
    return fit_exponentials(target, method or ("nnls" if terms is None else "minimax"), terms)
