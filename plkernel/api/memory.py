"""The memory of data: without torch."""

import os

from plkernel.analysis.mutual_information.curve import MAX_LAG
from plkernel.analysis.mutual_information.information import Estimator
from plkernel.analysis.mutual_information.measurement import STATED, Measurement, Range, measure_corpus
from plkernel.api.text import Text, read_text


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
