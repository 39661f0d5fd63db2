"""Four shapes of decay, each least squares on ln I once one parameter is fixed, and what noise makes of such fits."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar

from plkernel.analysis.mutual_information.power_law_fit import Points

Floats = NDArray[np.float64]

CANDIDATES = 64
FLATTEST_STRETCH = 0.05
DRAWS = 999
"""The least chance that so many draws can give is one in a thousand."""


@dataclass(frozen=True)
class Shape:
    """ln I = a + sum_j b_j column_j(d; place): linear but for `place`, which is searched on `grid` and polished.

    columns     (data, place) -> the columns, (m,) each
    grid        candidates of place; one where the shape has no such parameter
    parameters  (coefficients a, b_1, ..; place) -> the parameters by name
    count       how many parameters
    """

    count: int
    columns: Callable[[Points, float], list[Floats]]
    grid: Callable[[Points], Floats]
    parameters: Callable[[Floats, float], dict[str, float]]

    def design(self, data: Points, place: float) -> Floats:
        """(m, 1 + columns) in standard errors of ln I."""
        return np.stack([np.ones_like(data.x), *self.columns(data, place)], axis=1) / data.errors[:, None]

    def least(self, data: Points, targets: Floats) -> Floats:
        """The least chi squared (B,) over the grid for each of `targets` (m, B), values in standard errors."""
        explained = np.zeros(targets.shape[1])
        for place in self.grid(data):
            basis = np.linalg.qr(self.design(data, place))[0]
            explained = np.maximum(explained, np.sum((basis.T @ targets) ** 2, axis=0))
        return np.asarray(np.sum(targets**2, axis=0) - explained)

    def fit(self, data: Points) -> tuple[dict[str, float], Floats, float]:
        """Parameters by name, fitted values (m,) in standard errors, and chi squared."""
        target = data.logs / data.errors

        def at(place: float) -> tuple[Floats, Floats, float]:
            design = self.design(data, place)
            coefficients: Floats = np.linalg.lstsq(design, target)[0].astype(np.float64)
            fitted = design @ coefficients
            return coefficients, fitted, float(np.sum((target - fitted) ** 2))

        place = _least(lambda value: at(value)[2], self.grid(data))
        coefficients, fitted, chi_squared = at(place)
        named = {key: float(value) for key, value in self.parameters(coefficients, place).items()}
        return named, fitted, chi_squared


def _least(cost: Callable[[float], float], grid: Floats) -> float:
    """The best of a grid, then polished between its neighbours."""
    best = int(np.argmin([cost(value) for value in grid]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, grid.size - 1)]
    return float(minimize_scalar(cost, bounds=(low, high), method="bounded").x) if low < high else float(low)


def _inverse(value: float) -> float:
    return float(1 / value) if value else float("inf")


def _stretched(found: Floats, log_gamma: float) -> dict[str, float]:
    gamma, (a, scale) = np.exp(log_gamma), found
    tau = scale ** (-1 / gamma) if scale > 0 else float("inf")
    return {"amplitude": np.exp(a), "tau": tau, "gamma": gamma}


def _broken(found: Floats, place: float) -> dict[str, float]:
    return {"amplitude": np.exp(found[0]), "beta_1": found[1], "beta_2": found[2], "break": np.exp(place)}


SHAPES = {
    "power law": Shape(
        2, lambda d, _: [-d.x], lambda _: np.zeros(1), lambda c, _: {"amplitude": np.exp(c[0]), "beta": c[1]}
    ),
    "exponential": Shape(
        2,
        lambda d, _: [-d.lags.astype(float)],
        lambda _: np.zeros(1),
        lambda c, _: {"amplitude": np.exp(c[0]), "tau": _inverse(c[1])},
    ),
    "stretched exponential": Shape(
        3,
        lambda d, log_gamma: [-(d.lags ** np.exp(log_gamma))],
        lambda _: np.linspace(np.log(FLATTEST_STRETCH), 0.0, CANDIDATES),
        _stretched,
    ),
    "broken power law": Shape(
        4,
        lambda d, place: [-np.minimum(d.x, place), -np.maximum(0.0, d.x - place)],
        lambda d: np.linspace(d.x[1], d.x[-2], CANDIDATES),
        _broken,
    ),
}


def corrected_akaike(chi_squared: ArrayLike, count: int, lags: int) -> Floats:
    """chi^2 + 2 k + 2 k (k + 1) / (m - k - 1) of k parameters and m lags (Hurvich & Tsai 1989)."""
    return np.asarray(np.asarray(chi_squared) + 2 * count + 2 * count * (count + 1) / (lags - count - 1))


def noise(data: Points) -> Floats:
    """(m, DRAWS) of noise of ln I in standard errors, with the covariance that the replicates have.

    Normal with the jackknife's covariance of the m lags, which has rank G - 1 and need not be inverted, times
    sqrt((G-1) / chi^2_{G-1}): any one contrast over its own jackknife error is then Student's t, as the measured one.
    """
    blocks, rng = data.replicates.shape[1], np.random.default_rng(0)
    away = data.replicates - data.replicates.mean(axis=1, keepdims=True)
    scale = np.sqrt((blocks - 1) ** 2 / blocks / rng.chisquare(blocks - 1, DRAWS))
    return np.asarray(away @ rng.standard_normal((blocks, DRAWS)) * scale / data.errors[:, None])


def chances(data: Points, name: str, fitted: Floats, targets: Floats) -> tuple[float, float]:
    """Were the shape `name` with its `fitted` values (m,) true: p of its chi squared, and p of its excess.

    The excess is its criterion less the least of the others. `targets` (m, B) is noise; fitted + noise is fitted by
    every shape as the data are, so that searching for the best break or stretch is in p as well.
    """
    all_of_them = np.column_stack([data.logs / data.errors, fitted[:, None] + targets])
    chi = {key: shape.least(data, all_of_them) for key, shape in SHAPES.items()}
    criterion = {key: corrected_akaike(chi[key], shape.count, data.lags.size) for key, shape in SHAPES.items()}
    excess = criterion.pop(name) - np.min(list(criterion.values()), axis=0)
    return _upper_tail(chi[name]), _upper_tail(excess)


def _upper_tail(values: Floats) -> float:
    """The share of all `values` that are as large as the first."""
    return float(np.mean(values >= values[0]))
