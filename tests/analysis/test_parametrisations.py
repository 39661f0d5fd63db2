"""Rates of parameters against the decays of the papers, their inverses and their limits."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

from plkernel.analysis.parametrisations import (
    FORMS,
    channel_ramp,
    half_open_rate,
    lightning_rates,
    position_exponents,
    retnet_rates,
    rwkv7_levels,
    rwkv_levels,
)

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


def test_exponents_by_rank_and_level_are_those_of_the_theorem() -> None:
    """Number by number: alpha_k = (N-1-k)/(N-1) + (c_k - k c_{N-1}/(N-1)) / ln T, cut at 0 and 1.

    Levels 1, 2, 4 and 7 have c = 0, 1, 3 and 6: (2/3 + (1 - 2) / ln T) and (1/3 + (3 - 4) / ln T).
    """
    log_length = 10.0
    rising = [1.0, 2 / 3 - 1 / log_length, 1 / 3 - 1 / log_length, 0.0]
    found = position_exponents(np.array([4.0, 1.0, 7.0, 2.0]), log_length)
    expected = [rising[2], rising[0], rising[3], rising[1]]
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-15)
    cut = position_exponents(np.array([1.0, 2.0, 4.0, 7.0]), 1.0)
    assert cut.tolist() == [1.0, 0.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="levels must be 2 or more for decays by position, got 1;"):
        position_exponents(np.array([1.0]), log_length)


def test_initial_decays_are_those_of_the_papers() -> None:
    """Number by number, from the formulas."""
    np.testing.assert_allclose(
        lightning_rates(4, 3, 1),
        [2.0**-power * (1 - 1 / (2 + 1e-5) + 1e-5) for power in (2, 4, 6, 8)],
        rtol=1e-14,
    )
    assert lightning_rates(2, 3, 0) == pytest.approx([2.0**-4 * 1.00001, 2.0**-8 * 1.00001])
    np.testing.assert_allclose(np.exp(-retnet_rates(3)), [31 / 32, 63 / 64, 127 / 128], rtol=1e-14)
    np.testing.assert_allclose(np.exp(-half_open_rate(np.array([0.0, 0.5, 1.0]))), [0.5, 0.75, 1])
    np.testing.assert_allclose(channel_ramp(3, 2.0), [0.0, 0.25, 1.0])
    assert channel_ramp(1, 2.0).tolist() == [0.0]
    np.testing.assert_allclose(rwkv_levels(3, 0.5), [-6, -6 + 5 * 0.5**1.35, -1])
    np.testing.assert_allclose(rwkv_levels(3, 0.0, -8.0, 2.0), [-8, -8 + 10 * 0.5**0.7, 2])


@pytest.mark.parametrize("head_size", [3, 5])
def test_levels_of_rwkv7_rise_and_turn_along_each_head(head_size: int) -> None:
    channels = 2 * head_size
    found = rwkv7_levels(channels, 0.25, head_size)
    for channel in range(channels):
        x = channel / (channels - 1)
        z = 2 * (channel % head_size) / (head_size - 1) - 1
        expected = -5.5 + 6 * x ** (1 + 0.25**0.3) + 2.5 * z * abs(z)
        assert found[channel] == pytest.approx(expected, rel=1e-13)
