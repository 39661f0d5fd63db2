"""The memory kernel that a layer starts with: coherent and rms, held against a power law.

A channel with decay a and input gain g holds the input of t steps ago with weight g a**t. With equal projections the
layer's kernel is the sum of these; with random signs of mean zero, as models start, the root of the sum of squares.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from plkernel.analysis.exponentials.sums import Floats, Scores, integer_lags, power_law, score
from plkernel.analysis.nodes.node_set import check_beta

LEFT = 0.01
"""What is left of a kernel at the end of its effective memory, as a share of its value at lag 1."""
MIN_LAG = 32
FALLS = (1e-6, 690.0)
"""e-folds by which a target may fall over its lags: more than none, and short of the smallest float64."""
SLOPE_POINTS = 200
BLOCK_ENTRIES = 1 << 18


@dataclass(frozen=True)
class Origin:
    """Where decays come from: `paper` states them, `code` is the file they were read from.

    formula and gain are the decay a and the input gain g in words; `assumed` is what had to be fixed to get numbers,
    `layer` which layer of a model it is where they differ.
    """

    formula: str
    gain: str
    assumed: str
    paper: str
    code: str
    layer: str = "all"


@dataclass(frozen=True)
class Initialisation:
    """The decays that a layer starts with, one entry of `rates`, `gains` and `shares` for each node.

    rates       decay rates -ln a per step
    gains       what a channel's input is multiplied by, the shape of the projection included
    shares      the share of the layer's channels that a node stands for; they add up to 1
    half_lives  shortest and longest that the formula allows, in steps

    Random parameters are nodes at quantiles of their distribution, weighted by the share, so that both kernels are
    expectations over the draw: what a wide layer has on average.
    """

    name: str
    family: str
    origin: Origin
    half_lives: tuple[float, float]
    rates: tuple[float, ...]
    gains: tuple[float, ...]
    shares: tuple[float, ...]

    def log_coherent(self, lags: ArrayLike) -> Floats:
        """ln sum_i share_i g_i a_i**t at `lags`, shape (T,): equal projections."""
        return _log_sum(self.rates, np.multiply(self.shares, self.gains), lags)

    def log_rms(self, lags: ArrayLike) -> Floats:
        """ln sqrt(sum_i share_i g_i**2 a_i**(2t)) at `lags`, shape (T,): random projections of mean zero."""
        return _log_sum(2 * np.asarray(self.rates), np.multiply(self.shares, np.square(self.gains)), lags) / 2

    def memory(self, left: float = LEFT) -> float:
        """The real lag t at which the coherent kernel is `left` times its value at lag 1."""
        floor = self.log_coherent([1.0])[0] + np.log(left)
        low, high = 1.0, 1.0 - float(np.log(left)) / min(self.rates)  # nothing decays slower than the slowest
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self.log_coherent([middle])[0] > floor else (low, middle)
        return high

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that JSON keeps, where an endless half-life becomes null."""
        return asdict(self)


def initialisation(
    name: str,
    family: str,
    origin: Origin,
    rates: ArrayLike,
    gains: ArrayLike = 1.0,
    shares: ArrayLike = 1.0,
    fastest_slowest: tuple[float, float] | None = None,
) -> Initialisation:
    """An `Initialisation` from arrays of any one shape; gains and shares broadcast to `rates`.

    fastest_slowest: the rates that the formula allows, where `rates` are quantiles that stay inside; inf and 0 too.
    """
    flat = np.asarray(rates, dtype=float).ravel()
    spread, parts = (np.broadcast_to(np.ravel(values), flat.shape) for values in (gains, shares))
    fastest, slowest = fastest_slowest or (float(flat.max()), float(flat.min()))
    arrays = [tuple(values.tolist()) for values in (flat, spread, parts / parts.sum())]
    half_lives = (math.log(2) / fastest, math.log(2) / slowest if slowest else math.inf)
    return Initialisation(name, family, origin, half_lives, *arrays)


@dataclass(frozen=True)
class Profile:
    """An initialisation against t**-beta on t = 1..max_lag.

    scores         of the coherent kernel
    slope, _rms    log-log slopes of the coherent and the rms kernel over `slope_lags`
    memory         lag at which 1 % of the coherent kernel's value at lag 1 is left
    """

    initialisation: Initialisation
    scores: Scores
    slope: float
    slope_rms: float
    memory: float

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that JSON keeps."""
        return asdict(self)


def _log_sum(rates: ArrayLike, weights: ArrayLike, lags: ArrayLike) -> Floats:
    """ln sum_i weights_i exp(-rates_i t): the slowest decay is taken out, so that nothing underflows.

    `ExponentialSum.log_kernel` gives the same; layers have thousands of channels, and this takes a fifth of its time.
    """
    rates, weights, t = (np.asarray(values, dtype=float) for values in (rates, weights, lags))
    slowest = rates.min()
    block = max(1, BLOCK_ENTRIES // rates.size)
    sums = [np.exp(np.outer(t[i : i + block], slowest - rates)) @ weights for i in range(0, t.size, block)]
    return np.log(np.concatenate(sums)) - slowest * t


def slope_lags(max_lag: int) -> tuple[float, float]:
    """First and last lag of the slopes: 4 and max_lag / 4, clear of the first steps and of the end."""
    return 4.0, max_lag / 4


def profile(initialisation: Initialisation, beta: float, max_lag: int) -> Profile:
    """Scores on every lag 1..max_lag, slopes on 200 log-spaced real lags, and the effective memory.

    Raises ValueError for a target that `check_target` refuses.
    """
    check_target(beta, max_lag)
    lags = integer_lags(max_lag)
    grid = np.geomspace(*slope_lags(max_lag), SLOPE_POINTS)
    kernels = (initialisation.log_coherent(grid), initialisation.log_rms(grid))
    coherent, rms = (float(np.polyfit(np.log(grid), values, 1)[0]) for values in kernels)
    log_kernel = initialisation.log_coherent(lags)
    scores = score(log_kernel - log_kernel[0], power_law(lags, beta), lags)
    return Profile(initialisation, scores, coherent, rms, initialisation.memory())


def check_target(beta: float, max_lag: int) -> None:
    """Raise ValueError unless t**-beta on 1..max_lag is a target: beta positive, 32 lags, a fall that float64 holds."""
    check_beta(beta)
    if max_lag < MIN_LAG:
        raise ValueError(f"max_lag must be at least {MIN_LAG} so that slopes have a range of lags, got {max_lag}")
    fall = beta * math.log(max_lag)
    if not FALLS[0] < fall < FALLS[1]:
        raise ValueError(f"beta {beta:g} to lag {max_lag}: t**-beta falls by {fall:.3g} e-folds, outside {FALLS}")


def families(found: Sequence[Profile]) -> dict[str, list[Profile]]:
    """Profiles by the family of their initialisation, in the order they come."""
    groups: dict[str, list[Profile]] = {}
    for item in found:
        groups.setdefault(item.initialisation.family, []).append(item)
    return groups
