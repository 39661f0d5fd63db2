"""The comparisons of the forest, and what several of them say together.

Each is an arm of a study against another one, paired by seed. comparisons.py names them and pools
effects; sentences.py and forest.py read the rows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit


class Compared(NamedTuple):
    """An arm and the one that it is held against.

    against  its baseline in the study if None
    seeds    the first and the last seed that count, as in "7-11"; all if empty
    minimum  whether the minima of their curves over learning rates are compared
    """

    group: str
    label: str
    study: str
    arm: str
    against: str | None = None
    seeds: str = ""
    minimum: bool = False


FROZEN = "Frozen short half-lives"
FAR = "All memory is far"
NEAR = "Memory within 256 bytes"
CODE = "Source code, by size"
BEST = "Source code, at best rates"
LOW = "Learning rate too low"
RWKV = "RWKV, at best rates"
GOOSE = "RWKV-7, source code"
MAMBA = "Mamba-2, source code"

COMPARISONS = (
    Compared(FROZEN, "copies from 1 to 256 bytes back", "memory-lags", "short-frozen_lags-0.7"),
    Compared(FROZEN, "nearer copies (exponent 1.3)", "memory-lags", "short-frozen_lags-1.3"),
    Compared(FROZEN, "copies from 512 to 2,048 back", "memory-far", "short-frozen"),
    Compared(FAR, "short, learnt", "memory-far", "short"),
    Compared(FAR, "long, learnt", "memory-far", "long"),
    Compared(NEAR, "short, learnt", "memory-lags", "short_lags-0.7"),
    Compared(NEAR, "power law", "memory-lags", "law_lags-0.7"),
    Compared(NEAR, "long, learnt", "memory-lags", "long_lags-0.7"),
    Compared(CODE, "0.08 M, EMA: short", "memory-text", "short_ema"),
    Compared(CODE, "0.08 M, EMA: concentrated", "memory-text", "concentrated_ema"),
    Compared(CODE, "0.08 M, LRU: short", "memory-shortness", "8_lru"),
    Compared(CODE, "0.08 M, LRU: concentrated", "memory-text", "concentrated_lru"),
    Compared(CODE, "0.08 M, 16 MB: short", "memory-length", "short_good"),
    Compared(CODE, "0.08 M, 16 MB: concentrated", "memory-length", "concentrated-published_good"),
    Compared(CODE, "0.08 M, GPU: concentrated", "ladder-gpu", "concentrated-published_0.1M"),
    Compared(CODE, "0.36 M, GPU: concentrated", "ladder-gpu", "concentrated-published_0.4M"),
    Compared(CODE, "1.7 M, GPU: concentrated", "ladder-gpu", "concentrated-published_1.7M"),
    Compared(CODE, "9.7 M, GPU: short", "published-gpu", "short_good"),
    Compared(CODE, "9.7 M, GPU: concentrated", "published-gpu", "concentrated-published_good"),
    Compared(BEST, "0.08 M, 1.2 MB: short", "rates", "short-matched", minimum=True),
    Compared(BEST, "0.08 M, 1.2 MB: concentrated", "rates", "concentrated", minimum=True),
    Compared(BEST, "0.08 M, 1.2 MB, again: concentrated", "rates-parts", "both", minimum=True),
    Compared(BEST, "0.08 M, 4.9 MB: short", "rates-longer", "short-matched", minimum=True),
    Compared(BEST, "0.08 M, 4.9 MB: concentrated", "rates-longer", "concentrated", minimum=True),
    Compared(BEST, "0.08 M, 1.2 MB, LRU: short", "rates-lru", "short-matched", minimum=True),
    Compared(BEST, "0.08 M, 1.2 MB, LRU: concentrated", "rates-lru", "concentrated", minimum=True),
    Compared(BEST, "0.08 M, 4.9 MB, LRU: short", "rates-lru-longer", "short-matched", minimum=True),
    Compared(
        BEST, "0.08 M, 4.9 MB, LRU: concentrated", "rates-lru-longer", "concentrated", minimum=True
    ),
    Compared(BEST, "0.92 M, 1.2 MB: short", "rates-wide", "short-matched", minimum=True),
    Compared(BEST, "0.92 M, 1.2 MB: concentrated", "rates-wide", "concentrated", minimum=True),
    Compared(BEST, "0.92 M, 4.9 MB: short", "rates-wide-longer", "short-matched", minimum=True),
    Compared(LOW, "0.08 M, 1e-3: short", "memory-length", "short_low"),
    Compared(LOW, "0.08 M, 1e-3: concentrated", "memory-length", "concentrated-published_low"),
    Compared(LOW, "9.7 M, 3e-4: short", "published-gpu", "short_low"),
    Compared(LOW, "9.7 M, 3e-4: concentrated", "published-gpu", "concentrated-published_low"),
    Compared(RWKV, "RWKV-6, 1.2 MB: short", "rates-finch", "short", "official", minimum=True),
    Compared(RWKV, "RWKV-6, 4.9 MB: short", "rates-finch-longer", "short", minimum=True),
    Compared(RWKV, "RWKV-7, 1.2 MB: short", "rates-goose", "short", "official", minimum=True),
    Compared(RWKV, "RWKV-7, 4.9 MB: short", "rates-goose-longer", "short", minimum=True),
    Compared(GOOSE, "power law", "models-goose", "power-law"),
    Compared(GOOSE, "its half-lives alone", "models-goose", "power-law-decays"),
    Compared(MAMBA, "1.2 MB, at best rates: short", "rates-mamba2", "short", minimum=True),
    Compared(MAMBA, "power law at 4e-3", "models-mamba2-rates", "power-law_4e-3"),
    Compared(MAMBA, "A = 1 at 4e-3", "models-mamba2-rates", "unit-A_4e-3"),
    Compared(MAMBA, "A = 1 at 8e-3", "models-mamba2-rates", "unit-A_8e-3"),
)
"""The rows of the forest, those of a group together."""

# Seeds 0 to 6 of memory-shortness under LRU are runs of memory-text again.
SHORT_LRU = (
    Compared(CODE, "0.08 M, LRU: short, first seeds", "memory-text", "short_lru"),
    Compared(CODE, "0.08 M, LRU: short, new seeds", "memory-shortness", "8_lru", seeds="7-11"),
)


def _of_code(word: str) -> list[Compared]:
    """Return the comparisons on source code of the SSM whose labels end in a word."""
    groups = (CODE, BEST, LOW)
    return [one for one in COMPARISONS if one.group in groups and one.label.endswith(word)]


POOLED = {
    "concentrated": _of_code("concentrated"),
    "short": [*SHORT_LRU, *(one for one in _of_code("short") if one.arm != "8_lru")],
}
"""Comparisons on source code that are pooled, against log-spaced half-lives; no run counts twice
in a pool."""


class Lowest(NamedTuple):
    """The minimum of a parabola, with its 95 % interval; None for ends that are not bounded."""

    at: float
    low: float | None
    high: float | None


def lowest(levels: ArrayLike, values: ArrayLike) -> Lowest:
    """Return the lowest point of the parabola through values (n,L) of n seeds at levels (L,).

    a + b x + c x^2 is fitted to each seed by least squares; the point is -b/2c of the means, and
    its interval holds every x with |b + 2 c x| at most t_{n-1} standard errors (Fieller 1954).
    """
    x = np.asarray(levels, dtype=np.float64)
    y = np.asarray(values, dtype=np.float64)
    fits = np.linalg.lstsq(np.stack([np.ones_like(x), x, x**2], axis=1), y.T, rcond=None)[0]
    slopes, curvatures = fits[1], 2.0 * fits[2]
    slope, curvature = slopes.mean(), curvatures.mean()
    t = float(stdtrit(len(y) - 1, 0.975))
    spread = t**2 * np.cov(slopes, curvatures, ddof=1) / len(y)
    leading = curvature**2 - spread[1, 1]
    middle = slope * curvature - spread[0, 1]
    last = slope**2 - spread[0, 0]
    root = middle**2 - leading * last
    at = float(-slope / curvature)
    if leading <= 0 or root < 0:
        return Lowest(at, None, None)
    half = float(np.sqrt(root))
    return Lowest(at, float((-middle - half) / leading), float((-middle + half) / leading))


class PooledEffect(NamedTuple):
    """The mean of a distribution of effects, with its 95 % interval.

    low, high    by Hartung and Knapp
    least, most  the same where their variance is not taken below that of DerSimonian and Laird
    deviation    standard deviation of the effects of studies, tau
    negative     the number of studies whose mean is below zero
    studies      their number
    """

    mean: float
    low: float
    high: float
    least: float
    most: float
    deviation: float
    negative: int
    studies: int


def random_effects(differences: Sequence[ArrayLike]) -> PooledEffect:
    """Return what studies say together, from the paired differences of each.

    y_i ~ N(mu, s_i^2 / n_i + tau^2), tau^2 by moments (DerSimonian and Laird 1986), and the
    interval mu +- t_{k-1} sqrt(q / sum w), q = sum w_i (y_i - mu)^2 / (k - 1) (Hartung and Knapp
    2001).
    """
    data = [np.asarray(one, dtype=np.float64) for one in differences]
    effects = np.array([one.mean() for one in data])
    variances = np.array([one.var(ddof=1) / one.size for one in data])
    studies = len(data)
    weights = 1.0 / variances
    common = np.average(effects, weights=weights)
    excess = float((weights * (effects - common) ** 2).sum()) - (studies - 1)
    scale = weights.sum() - (weights**2).sum() / weights.sum()
    between = max(0.0, excess / scale)
    weights = 1.0 / (variances + between)
    mean = float(np.average(effects, weights=weights))
    q = float((weights * (effects - mean) ** 2).sum()) / (studies - 1)
    t = float(stdtrit(studies - 1, 0.975))
    half = t * float(np.sqrt(q / weights.sum()))
    wider = t * float(np.sqrt(max(q, 1.0) / weights.sum()))
    return PooledEffect(
        mean=mean,
        low=mean - half,
        high=mean + half,
        least=mean - wider,
        most=mean + wider,
        deviation=float(np.sqrt(between)),
        negative=int((effects < 0).sum()),
        studies=studies,
    )
