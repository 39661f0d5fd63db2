"""Is it a power law? Four shapes of decay compared on one curve, and the sentence that follows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from plkernel.analysis.mutual_information import DecayCurve
from plkernel.analysis.power_law_fit import Points, PowerLaw, clear_until, fit_power_law, points

Floats = NDArray[np.float64]
Kind = Literal["power law", "broken power law", "stretched exponential", "exponential", "too short", "none"]

CANDIDATES = 64
SHORTEST_SPAN = 10.0
"""A range that covers less than this factor of lags decides nothing."""
DECISIVE = 2.0
"""A model with a criterion so much above the best is still as good (Burnham & Anderson 2002, section 2.6)."""
SIGNIFICANT = 0.01


@dataclass(frozen=True)
class ModelFit:
    """One shape of decay, fitted to ln I by weights 1 / standard error^2.

    parameters   by name; lags in symbols, exponents as positive numbers
    chi_squared  sum of squared residuals over standard errors; near the degrees of freedom for a shape that fits
    freedom      degrees of freedom: lags less parameters
    aicc         chi^2 + 2 k + 2 k (k + 1) / (m - k - 1), k parameters and m lags
    excess       aicc less that of the best of the models compared
    """

    name: str
    parameters: dict[str, float]
    chi_squared: float
    freedom: int
    aicc: float
    excess: float


@dataclass(frozen=True)
class Verdict:
    """What a curve shows on the lags that stand clear of floor and drift: a kind, and a sentence for the reader."""

    kind: Kind
    sentence: str
    first_lag: int
    last_lag: int
    models: tuple[ModelFit, ...]

    @property
    def is_power_law(self) -> bool:
        """Whether one exponent describes the curve within its errors."""
        return self.kind == "power law"


def compare_models(curve: DecayCurve, lags: tuple[int, int] | None = None) -> tuple[ModelFit, ...]:
    """Four shapes by corrected Akaike criterion (Hurvich & Tsai 1989), best first, on a range as in `fit_power_law`.

        power law              ln I = a - beta ln d
        exponential            ln I = a - d / tau
        stretched exponential  ln I = a - (d / tau)^gamma, 0.05 <= gamma <= 1
        broken power law       ln I = a - beta_1 ln d up to the break, slope -beta_2 beyond it, continuous

    The residuals are weighted by jackknife errors lag by lag. Errors of neighbouring lags are positively correlated,
    which this leaves out: differences of the criterion are smaller than independent errors would make them. Raises
    ValueError for fewer than six usable lags.
    """
    chosen = points(curve, lags)
    if chosen.lags.size < 6:
        raise ValueError(f"lags: {chosen.lags.size} usable values, four models need at least 6")
    fits = [shape(chosen) for shape in (_power_law, _exponential, _stretched, _broken)]
    best = min(fit.aicc for fit in fits)
    ranked = sorted(fits, key=lambda fit: fit.aicc)
    return tuple(ModelFit(**{**vars(fit), "excess": fit.aicc - best}) for fit in ranked)


def judge(curve: DecayCurve) -> Verdict:
    """Whether the part of `curve` that stands clear of floor and drift is a power law, and what it is if not.

    It is called one only when it spans a decade of lags, no other shape is better by the criterion, and ln I against
    ln d is not bent (p of the jackknife at 0.01).
    """
    last = clear_until(curve)
    usable = [lag for lag in curve.lags if lag <= last]
    if len(usable) < 3:
        sentence = "no memory that stands out from a shuffled corpus" + (f" beyond lag {last}" if last else "")
        return Verdict("none", sentence, curve.lags[0], last, ())
    span = f"lags {usable[0]} to {last}"
    if len(usable) < 6 or last < SHORTEST_SPAN * usable[0]:
        sentence = f"only {span} stand out from a shuffled corpus: too few to tell a power law from other decays"
        return Verdict("too short", sentence, usable[0], last, ())
    models = compare_models(curve, (usable[0], last))
    law = fit_power_law(curve, (usable[0], last))
    kind, sentence = _decide(models, law)
    return Verdict(kind, f"{span}: {sentence}", usable[0], last, models)


def _decide(models: tuple[ModelFit, ...], law: PowerLaw) -> tuple[Kind, str]:
    best = models[0]
    excess = next(fit.excess for fit in models if fit.name == "power law")
    bent = law.curvature_p < SIGNIFICANT
    if excess <= DECISIVE and not bent:
        interval = f"{law.beta:.2f} ({law.low:.2f} to {law.high:.2f})"
        return "power law", f"a single power law describes the curve, beta {interval}"
    if best.name != "power law":
        name: Any = best.name
        how = "poorly too" if best.chi_squared > 3 * best.freedom else "within the errors"
        reason = f"not a single power law: {name} ({describe(best)}) is better by {excess:.0f} in AICc and fits {how}"
        return name, reason
    how = "slows down" if law.curvature > 0 else "speeds up"
    reason = f"not a single power law: the decay {how} with the lag (curvature p {law.curvature_p:.1g})"
    return "broken power law", reason


def describe(fit: ModelFit) -> str:
    """The parameters of a fit in words.

    >>> describe(ModelFit("exponential", {"amplitude": 1.0, "tau": 12.3}, 1.0, 5, 5.0, 0.0))
    'tau 12.3'
    """
    shown = {name.replace("_", " "): value for name, value in fit.parameters.items() if name != "amplitude"}
    return ", ".join(f"{name} {value:.3g}" for name, value in shown.items())


def _power_law(data: Points) -> ModelFit:
    (a, beta), chi = _linear(data, -data.x)
    return _fit("power law", data, {"amplitude": np.exp(a), "beta": beta}, chi)


def _exponential(data: Points) -> ModelFit:
    (a, rate), chi = _linear(data, -data.lags.astype(float))
    return _fit("exponential", data, {"amplitude": np.exp(a), "tau": _inverse(rate)}, chi)


def _stretched(data: Points) -> ModelFit:
    def at(log_gamma: float) -> tuple[Floats, float]:
        return _linear(data, -(data.lags ** np.exp(log_gamma)))

    gamma = np.exp(_profile(lambda value: at(value)[1], np.log(0.05), 0.0))
    (a, scale), chi = at(np.log(gamma))
    tau = scale ** (-1 / gamma) if scale > 0 else float("inf")
    return _fit("stretched exponential", data, {"amplitude": np.exp(a), "tau": tau, "gamma": gamma}, chi)


def _broken(data: Points) -> ModelFit:
    def at(place: float) -> tuple[Floats, float]:
        return _linear(data, -np.minimum(data.x, place), -np.maximum(0.0, data.x - place))

    place = _profile(lambda value: at(value)[1], data.x[1], data.x[-2])
    (a, first, second), chi = at(place)
    named = {"amplitude": np.exp(a), "beta_1": first, "beta_2": second, "break": np.exp(place)}
    return _fit("broken power law", data, named, chi)


def _linear(data: Points, *columns: Floats) -> tuple[Floats, float]:
    """Weighted least squares of ln I on 1 and the columns: coefficients and chi squared."""
    design = np.stack([np.ones_like(data.x), *columns], axis=1) / data.errors[:, None]
    target = data.logs / data.errors
    coefficients: Floats = np.linalg.lstsq(design, target)[0].astype(np.float64)
    return coefficients, float(np.sum((target - design @ coefficients) ** 2))


def _profile(cost: Callable[[float], float], low: float, high: float) -> float:
    """The least cost over low..high: the best of a grid, then polished between its neighbours."""
    grid = np.linspace(low, high, CANDIDATES)
    best = int(np.argmin([cost(value) for value in grid]))
    bounds = (grid[max(best - 1, 0)], grid[min(best + 1, CANDIDATES - 1)])
    return float(minimize_scalar(cost, bounds=bounds, method="bounded").x)


def _fit(name: str, data: Points, parameters: dict[str, float], chi: float) -> ModelFit:
    k, m = len(parameters), data.lags.size
    aicc = chi + 2 * k + 2 * k * (k + 1) / (m - k - 1)
    return ModelFit(name, {key: float(value) for key, value in parameters.items()}, chi, m - k, aicc, 0.0)


def _inverse(value: float) -> float:
    return float(1 / value) if value else float("inf")
