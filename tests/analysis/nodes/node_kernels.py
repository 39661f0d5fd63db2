"""What tests read off the kernels of node sets."""

import numpy as np
from numpy.typing import ArrayLike

from plkernel.analysis.exponentials import Floats
from plkernel.analysis.nodes import Lag, Nodes, Summation, falling_exponent, log_kernel


def rms_kernel(nodes: Nodes, lags: ArrayLike, lag: Lag = "state") -> Floats:
    """sqrt(E k(t)**2) for random signs."""
    return np.asarray(np.exp(log_kernel(nodes, "rms", lags, lag)))


def kernel_exponent(
    nodes: Nodes, kernel: Summation = "coherent", first: float = 4.0, last: float = 512.0, lag: Lag = "state"
) -> float:
    """-d ln k / d ln t, by least squares over 200 log-spaced lags from `first` to `last`: 1.15 for t**-1.15."""
    lags = np.geomspace(first, last, 200)
    return float(falling_exponent(lags, log_kernel(nodes, kernel, lags, lag)))
