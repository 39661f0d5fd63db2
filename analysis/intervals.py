"""Student's interval of the mean, the one statistic that measurements and reports share."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit


def critical_value(n: int, confidence: float = 0.95) -> float:
    """t such that the interval of n values is mean +- t * sd / sqrt(n): 12.7 at n = 2, 2.78 at n = 5.

    NaN for n < 2. Raises ValueError unless 0 < confidence < 1.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence: got {confidence}, give a number between 0 and 1, such as 0.95")
    return float(stdtrit(n - 1, 0.5 + confidence / 2)) if n > 1 else math.nan


def student_interval(values: NDArray[np.float64], confidence: float = 0.95) -> tuple[NDArray[np.float64], ...]:
    """Mean, standard deviation and half width of the t interval of each column of values (n, S); NaN where n = 1."""
    n = len(values)
    mean = values.mean(axis=0)
    spread = values.std(axis=0, ddof=1) if n > 1 else np.full(mean.shape, math.nan)
    return mean, spread, critical_value(n, confidence) * spread / math.sqrt(n)
