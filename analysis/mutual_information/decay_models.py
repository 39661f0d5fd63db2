"""Is it a power law? Four shapes of decay compared on one curve, and the sentence that follows."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from plkernel.analysis.mutual_information.curve import DecayCurve
from plkernel.analysis.mutual_information.decay_shapes import SHAPES, Floats, Shape, chances, corrected_akaike, noise
from plkernel.analysis.mutual_information.power_law_fit import Points, PowerLaw, clear_until, fit_power_law, points

Kind = Literal["power law", "broken power law", "stretched exponential", "exponential", "too short", "none"]

SHORTEST_SPAN = 10.0
"""A range that covers less than this factor of lags decides nothing."""
SIGNIFICANT = 0.01


@dataclass(frozen=True)
class ModelFit:
    """One shape of decay, fitted to ln I by weights 1 / standard error^2.

    parameters   by name; lags in symbols, exponents as positive numbers
    chi_squared  sum of squared residuals over standard errors; near the degrees of freedom for a shape that fits
                 independent lags, and rarely so for lags that share their noise: see chi_squared_p
    freedom      degrees of freedom: lags less parameters
    aicc         chi^2 + 2 k + 2 k (k + 1) / (m - k - 1), k parameters and m lags
    excess       aicc less that of the best of the models compared
    chi_squared_p, excess_p  the chance of a chi squared, and of a lead of the best other model, as large, were this
                 model true and the noise of the lags correlated as the replicates are (`decay_shapes.chances`)
    """

    name: str
    parameters: dict[str, float]
    chi_squared: float
    freedom: int
    aicc: float
    excess: float
    chi_squared_p: float
    excess_p: float


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

    The residuals are weighted by jackknife errors lag by lag. Errors of neighbouring lags are positively correlated, so
    chi squared falls short of its degrees of freedom while its differences exceed theirs; both are therefore held
    against draws of noise with the replicates' own covariance, in `chi_squared_p` and `excess_p`. The draws are the
    same at every call. Raises ValueError for fewer than six usable lags.
    """
    chosen = points(curve, lags)
    if chosen.lags.size < 6:
        raise ValueError(f"lags: {chosen.lags.size} usable values, four models need at least 6")
    drawn = noise(chosen)
    fits = [_fit(name, shape, chosen, drawn) for name, shape in SHAPES.items()]
    best = min(fit.aicc for fit in fits)
    return tuple(replace(fit, excess=fit.aicc - best) for fit in sorted(fits, key=lambda fit: fit.aicc))


def _fit(name: str, shape: Shape, data: Points, drawn: Floats) -> ModelFit:
    parameters, fitted, chi = shape.fit(data)
    aicc = float(corrected_akaike(chi, shape.count, data.lags.size))
    return ModelFit(name, parameters, chi, data.lags.size - shape.count, aicc, 0.0, *chances(data, name, fitted, drawn))


def judge(curve: DecayCurve) -> Verdict:
    """Whether the part of `curve` that stands clear of floor and drift is a power law, and what it is if not.

    It is called one when it spans a decade of lags, unless another shape is better by more than noise explains, or ln I
    against ln d is bent; each at p = 0.01, with the correlation between lags in both.
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
    best, straight = models[0], next(fit for fit in models if fit.name == "power law")
    if straight.excess_p >= SIGNIFICANT and not law.curvature_p < SIGNIFICANT:
        interval = f"{law.beta:.2f} ({law.low:.2f} to {law.high:.2f})"
        return "power law", f"a single power law describes the curve, beta {interval}"
    if best.name != "power law":
        name: Any = best.name
        how = "poorly too" if best.chi_squared_p < SIGNIFICANT else "within the errors"
        lead = f"better by {straight.excess:.0f} in AICc (p {straight.excess_p:.1g})"
        return name, f"not a single power law: {name} ({describe(best)}) is {lead} and fits {how}"
    how = "slows down" if law.curvature > 0 else "speeds up"
    reason = f"not a single power law: the decay {how} with the lag (curvature p {law.curvature_p:.1g})"
    return "broken power law", reason


def describe(fit: ModelFit) -> str:
    """The parameters of a fit in words.

    >>> describe(ModelFit("exponential", {"amplitude": 1.0, "tau": 12.3}, 1.0, 5, 5.0, 0.0, 0.5, 0.5))
    'tau 12.3'
    """
    shown = {name.replace("_", " "): value for name, value in fit.parameters.items() if name != "amplitude"}
    return ", ".join(f"{name} {value:.3g}" for name, value in shown.items())
