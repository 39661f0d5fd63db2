"""Rates of parameters against the decays of the papers, their inverses and their limits."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

from plkernel.analysis.parametrisations import FORMS

EPS = float(np.finfo(np.float64).eps)
XS = np.linspace(-3.0, 3.0, 25)


def sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


class Law(NamedTuple):
    """The decay a of a parameter x as a paper writes it, and the limits of -ln a."""

    decay: Callable[[Any], Any]
    given: Mapping[str, float] = {}
    limits: tuple[float, float] = (0.0, math.inf)


STEP = math.log1p(math.exp(-1.5))
"""softplus(-1.5)."""
LAWS = {
    "log_rate": Law(lambda x: np.exp(-np.exp(x))),
    "exp_exp": Law(lambda x: np.exp(-np.exp(x))),
    "sigmoid": Law(sigmoid),
    "sigmoid_root": Law(lambda x: sigmoid(x) ** (1 / 16)),
    "a_log": Law(lambda x: np.exp(-np.exp(x) * STEP), {"dt_bias": -1.5}),
    "dt_bias": Law(lambda x: np.exp(-2.0 * np.log1p(np.exp(x))), {"a_log": math.log(2.0)}),
    "exp_sigmoid": Law(
        lambda x: np.exp(-math.exp(-0.5) * sigmoid(x)), limits=(0.0, math.exp(-0.5))
    ),
    "bounded": Law(lambda x: np.exp(-5.0 * sigmoid(x)), {"bound": 5.0}, (0.0, 5.0)),
    "rg_lru": Law(lambda x: sigmoid(-x) ** (8.0 * sigmoid(0.7)), {"gate_bias": 0.7}),
    "real_part": Law(lambda x: np.exp(x * 0.25), {"log_step": math.log(0.25)}),
    "log_real_part": Law(lambda x: np.exp(-np.exp(x) * 0.25), {"log_step": math.log(0.25)}),
}
CAP = 2.0
WITH_OPTIONS = {
    "bounded": Law(
        lambda x: np.exp(-5.0 * sigmoid(3.0 * x)),
        {"bound": 5.0, "a_log": math.log(3.0)},
        (0.0, 5.0),
    ),
    "sigmoid": Law(
        lambda x: sigmoid(CAP * np.tanh(x / CAP)),
        {"cap": CAP},
        (math.log1p(math.exp(-CAP)), math.log1p(math.exp(CAP))),
    ),
}
CASES = [*LAWS.items(), *WITH_OPTIONS.items()]


def filled(given: Mapping[str, float], like: Any) -> dict[str, Any]:
    return {name: np.full_like(like, value) for name, value in given.items()}


def test_every_form_has_a_law() -> None:
    assert LAWS.keys() == FORMS.keys()


@pytest.mark.parametrize(("name", "law"), CASES, ids=[f"{n} {[*law.given]}" for n, law in CASES])
def test_rates_are_those_of_the_papers_and_are_inverted(name: str, law: Law) -> None:
    """To the rounding of a decay a, which -ln a takes over as it is, and of a few operations.

    The inverse has the rounding of the rate times its condition, rate / (x' rate), at most
    e**9 here.
    """
    form = FORMS[name]
    xs = -np.exp(XS) if name == "real_part" else XS
    rates = form.rate(xs, **filled(law.given, xs))
    np.testing.assert_allclose(rates, -np.log(law.decay(xs)), rtol=16 * EPS, atol=8 * EPS)
    found = form.inverse(rates, **filled(law.given, xs))
    np.testing.assert_allclose(found, xs, rtol=0, atol=16 * EPS * math.exp(9))


@pytest.mark.parametrize(("name", "law"), CASES, ids=[f"{n} {[*law.given]}" for n, law in CASES])
def test_rates_come_near_their_limits_and_stay_between(name: str, law: Law) -> None:
    form = FORMS[name]
    slowest, fastest = form.limits(**filled(law.given, np.zeros(1)))
    assert np.ravel(slowest) == pytest.approx(law.limits[0], rel=8 * EPS)
    assert np.ravel(fastest) == pytest.approx(law.limits[1], rel=8 * EPS)
    xs = -np.geomspace(1e-12, 1e12, 50) if name == "real_part" else np.linspace(-30.0, 30.0, 50)
    rates = form.rate(xs, **filled(law.given, xs))
    assert (rates >= np.ravel(slowest) * (1 - 8 * EPS)).all()
    assert (rates <= np.ravel(fastest) * (1 + 8 * EPS)).all()
    assert rates.min() == pytest.approx(law.limits[0], rel=1e-9, abs=1e-3)
    wide = law.limits[1] == math.inf
    assert rates.max() > 1.0 if wide else rates.max() == pytest.approx(law.limits[1], rel=1e-9)
