"""Which projection weight belongs to which input gain, and the published node sets."""

import json
from typing import Any

import numpy as np
import pytest

from plkernel.analysis.exponentials.sums import ExponentialSum, integer_lags, power_law, score
from plkernel.analysis.nodes.node_set import Nodes, gain_at
from plkernel.analysis.nodes.placement import (
    chrono,
    concentrated,
    inverse_gamma,
    local_spacing,
    log_spaced,
    place,
    projection_weights,
)

LAGS = integer_lags(512)
TARGET = power_law(LAGS, 1.15)

# (placement, projection, gain): R1, R*, log-log slope over t = 4..128, with the decimals they are known to.
CONDITIONS = {
    ("log-spaced", "uniform", "none"): ("-17.98", ".51", "-.24"),
    ("log-spaced", "uniform", "ema"): ("-.85", ".985", "-.98"),
    ("log-spaced", "uniform", "lru"): ("-8.49", ".79", "-.54"),
    ("log-spaced", "published", "none"): ("-15.19", ".59", "-.32"),
    ("log-spaced", "published", "ema"): (".32", ".9975", "-1.12"),
    ("log-spaced", "published", "lru"): ("-5.69", ".87", "-.67"),
    ("concentrated", "published", "none"): ("-12.03", ".62", "-.39"),
    ("concentrated", "published", "ema"): (".71", ".93", "-1.24"),
    ("concentrated", "published", "lru"): ("-1.67", ".96", "-.80"),
    ("concentrated", "uniform", "none"): ("-16.21", ".48", "-.28"),
    ("concentrated", "uniform", "ema"): (".955", ".98", "-1.10"),
    ("concentrated", "uniform", "lru"): ("-4.23", ".88", "-.67"),
    ("log-spaced", "gain-corrected", "none"): (".53", ".998", "-1.15"),
}


@pytest.mark.parametrize("condition", CONDITIONS, ids="/".join)
def test_conditions_have_the_known_kernel(condition: tuple[str, str, str]) -> None:
    placement, projection, gain = condition
    nodes = place(256, placement=placement, projection=projection, gain=gain)
    scores = score(nodes.kernel().log_kernel(LAGS), TARGET, LAGS)
    lags = np.geomspace(4, 128, 200)
    slope = np.polyfit(np.log(lags), nodes.kernel().log_kernel(lags), 1)[0]
    for value, text in zip((scores.r1, scores.r_star, slope), CONDITIONS[condition], strict=True):
        digits = len(text.split(".")[1])
        assert value == pytest.approx(float(text), abs=0.55 * 10**-digits)


@pytest.mark.parametrize("right", ["none", "ema", "lru"])
def test_a_weighting_carries_the_power_law_under_its_own_gain_only(right: str) -> None:
    """The slope over t = 4..128 is -1.15 within 0.01 for the pair that belongs together and off by 0.3 for no gain."""
    rates = place(256, longest=65536.0).rates
    weights = tuple(projection_weights(rates, 1.15, "gain-corrected", right).tolist())
    lags = np.geomspace(4, 128, 200)

    def slope(name: str) -> float:
        return float(np.polyfit(np.log(lags), Nodes(rates, weights, name).kernel().log_kernel(lags), 1)[0])

    assert slope(right) == pytest.approx(-1.15, abs=0.01)
    for wrong in {"none", "ema", "lru"} - {right}:
        assert abs(slope(wrong) + 1.15) > 0.3


def test_published_weight_spans_a_factor_of_three() -> None:
    weights = place(256, projection="published").projection
    assert max(weights) / min(weights) == pytest.approx(3.13, abs=5e-3)
    assert np.mean(weights) == pytest.approx(1.0)


def test_untreated_weight_without_gain_spans_thousands() -> None:
    rates = place(256).rates
    weights = np.array(rates) ** 1.15
    assert weights.max() / weights.min() == pytest.approx(6300, rel=0.01)


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("none", lambda a: 1.0),
        ("ema", lambda a: 1 - a),
        ("lru", lambda a: (1 - a * a) ** 0.5),
        ("clamp", lambda a: min(1, -np.log(a))),
    ],
)
def test_gain_formulas(name: str, formula) -> None:
    assert gain_at([0.5, 2.0], name) == pytest.approx([formula(np.exp(-0.5)), formula(np.exp(-2.0))])


def test_gains_of_slow_nodes_keep_their_digits() -> None:
    """1 - exp(-1e-12) loses four digits when computed as written."""
    assert gain_at([1e-12], "ema")[0] == pytest.approx(1e-12, rel=1e-9)
    assert gain_at([1e-12], "lru")[0] == pytest.approx((2e-12) ** 0.5, rel=1e-9)


def test_group_sizes_of_the_concentrated_set() -> None:
    half_lives = concentrated(256)
    sizes = [int(((half_lives >= a / 2) & (half_lives <= 2 * a)).sum()) for a in (1, 10, 80, 2000)]
    assert sizes == [102, 64, 51, 39]


def test_chrono_gates_are_uniform_in_their_odds() -> None:
    """a / (1 - a) at the quantiles of U(1, T - 1), mean T / 2; the memory of the paper, 1 / (1 - a), from 2 to T."""
    decays = np.exp(-np.array(place(64, placement="chrono", max_lag=100.0).rates))
    odds = decays / (1 - decays)
    assert odds == pytest.approx(np.sort(odds))
    assert np.diff(odds) == pytest.approx(98 / 64)
    assert odds.mean() == pytest.approx(50)
    assert (1 / (1 - decays) > 2).all()
    assert (1 / (1 - decays) < 100).all()
    assert place(64, placement="chrono") == place(64, placement="chrono", max_lag=2048.0)


def test_inverse_gamma_time_scales_carry_their_power_law_without_gain() -> None:
    """(1 + t)**-0.56 in the mean over T; sampled from scipy's own distribution too, whose median they share."""
    from scipy.stats import invgamma

    t = np.array([1.0, 10, 100, 1000])
    for channels, error in ((256, 0.06), (4096, 0.005)):
        kernel = np.exp(-np.outer(t, np.log(2) / inverse_gamma(channels))).mean(axis=1)
        assert kernel == pytest.approx((1 + t) ** -0.56, rel=error)
    assert np.median(inverse_gamma(255)) == pytest.approx(np.log(2) * invgamma.median(0.56))
    rates = np.array(place(256, placement="inverse-gamma", step=2).rates)
    assert np.log(2) / rates * 2 == pytest.approx(inverse_gamma(256))


@pytest.mark.parametrize("max_lag", [2.0, -5.0, float("inf")])
def test_chrono_needs_lags(max_lag: float) -> None:
    with pytest.raises(ValueError, match=f"max_lag must be above 2 under placement 'chrono', got {max_lag:g}"):
        chrono(8, max_lag)


def test_local_spacing_of_log_spaced_nodes_is_constant() -> None:
    spacing = local_spacing(1 / log_spaced(9, 1, 256))
    assert spacing == pytest.approx(np.log(2))


def test_patches_make_a_step_longer() -> None:
    assert np.array(place(8, step=2).rates) == pytest.approx(2 * np.array(place(8).rates))


def test_nodes_round_trip() -> None:
    nodes = place(16, projection="published", gain="lru")
    assert Nodes.from_dict(json.loads(json.dumps(nodes.to_dict()))) == nodes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 0.0}, "beta must be a positive number"),
        ({"beta": float("nan")}, "beta must be a positive number"),
        ({"shortest": 10.0, "longest": 1.0}, "0 < shortest < longest"),
        ({"shortest": 0.0}, "0 < shortest < longest"),
        ({"placement": "logspaced"}, "placement must be one of"),
        ({"projection": "power"}, "projection must be one of"),
        ({"gain": "sqrt", "projection": "gain-corrected"}, "gain must be one of"),
    ],
)
def test_bad_input_names_the_parameter(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        place(16, **options)


def test_too_few_channels() -> None:
    with pytest.raises(ValueError, match="channels must be at least 2"):
        place(1)
    with pytest.raises(ValueError, match="channels must be large enough"):
        concentrated(2)


@pytest.mark.parametrize(
    ("placement", "options", "message"),
    [
        (
            "log-spaced",
            {"tempering": 1.0},
            "tempering 1 belongs to placement 'quantile' or 'terms', got placement 'log-s",
        ),
        ("concentrated", {"loss": 0.05}, "loss 0.05 belongs to placement 'quantile', got placement 'concentrated'"),
        ("log-spaced", {"max_lag": 2048}, "max_lag 2048 belongs to placement 'quantile'"),
        ("inverse-gamma", {"max_lag": 9}, "max_lag 9 belongs to placement 'quantile' or 'chrono', got placement 'inv"),
        ("chrono", {"tempering": 1.0}, "tempering 1 belongs to placement 'quantile' or 'terms', got placement 'chr"),
        ("quantile", {"longest": 2000.0}, "longest 2000 belongs to placement 'log-spaced', got placement 'quantile'"),
        ("concentrated", {"shortest": 1.0}, "shortest 1 belongs to placement 'log-spaced'"),
        (
            "quantile",
            {"terms": ExponentialSum((1.0,), (1.0,))},
            "terms an exponential sum belongs to placement 'terms'",
        ),
    ],
)
def test_an_option_of_another_placement_is_refused(placement: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        place(16, placement=placement, **options)


@pytest.mark.parametrize("projection", ["published", "gain-corrected"])
def test_weights_that_are_no_numbers_are_refused(projection: Any) -> None:
    """0.69**beta: the largest of all weights is 0 from beta 2000 on."""
    assert np.isfinite(place(16, projection=projection, beta=87.0).projection).all()
    with pytest.raises(ValueError, match=r"beta 1e\+38 takes the projection's weights, .* use a beta up to 87.9"):
        place(16, projection=projection, beta=1e38)
