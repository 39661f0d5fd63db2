"""Student t intervals of a mean."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Floats = NDArray[np.float64]


def critical_value(n: int, confidence: float = 0.95) -> float:
    """t such that the interval of n values is mean +- t * sd / sqrt(n).

    12.7 at n = 2, 2.78 at n = 5; NaN for n < 2.
    """
    return float(stdtrit(n - 1, 0.5 + confidence / 2)) if n > 1 else math.nan


def student_interval(values: Floats, confidence: float = 0.95) -> tuple[Floats, ...]:
    """Mean, standard deviation and half width of the t interval of each column of values (n, S).

    The last two are NaN where n = 1.
    """
    n = len(values)
    mean = values.mean(axis=0)
    spread = values.std(axis=0, ddof=1) if n > 1 else np.full(mean.shape, math.nan)
    return mean, spread, critical_value(n, confidence) * spread / math.sqrt(n)
