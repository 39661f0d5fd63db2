"""Projections fitted to a target of any shape: as good as those known for a power law, and positive throughout."""

import numpy as np
import pytest

from plkernel.analysis.exponentials.sums import ExponentialSum
from plkernel.analysis.exponentials.targets import (
    array_target,
    broken_power_law_target,
    lag_target,
    power_law_target,
)
from plkernel.analysis.nodes.moments import node_scores, target_scores
from plkernel.analysis.nodes.node_set import Aim, Gain, Lag, Nodes, Reading, Summation, gain_at
from plkernel.analysis.nodes.placement import (
    concentrated,
    local_spacing,
    log_spaced,
    projection_weights,
    rates_from_half_lives,
)
from plkernel.analysis.nodes.smooth import smooth_nodes

WIDE = rates_from_half_lives(log_spaced(256, 0.2, 8000.0))


@pytest.mark.parametrize("half_lives", [log_spaced(96), concentrated(96), log_spaced(256, 0.2, 8000.0)])
@pytest.mark.parametrize(("kernel", "lag"), [("coherent", "state"), ("rms", "distance")])
def test_of_a_power_law_it_is_as_good_as_the_closed_form(half_lives: np.ndarray, kernel: Summation, lag: Lag) -> None:
    rates, reading = rates_from_half_lives(half_lives), Reading(kernel, lag)
    aim = Aim(1.15, "information", kernel, lag)
    known = projection_weights(rates, 1.15, "gain-corrected", "ema", aim)
    corrected = Nodes(tuple(rates.tolist()), tuple(known.tolist()), "ema")
    found = smooth_nodes(rates, power_law_target(1.15, 512), "ema", reading)
    assert target_scores(found, reading, power_law_target(1.15, 512)) == node_scores(found, aim, 512)
    assert node_scores(found, aim, 512).e_log < max(0.02, node_scores(corrected, aim, 512).e_log)
    assert min(found.projection) > 0
    assert np.mean(found.projection) == pytest.approx(1)


@pytest.mark.parametrize("name", ["none", "ema", "lru", "clamp"])
def test_the_density_of_a_power_law_is_a_power_law_under_every_gain(name: Gain) -> None:
    """In the middle of the rates; the ends make up for those that are missing."""
    nodes = smooth_nodes(WIDE, power_law_target(0.8, 2048), name, Reading())
    density = np.asarray(nodes.projection) * gain_at(WIDE, name) / local_spacing(WIDE)
    middle = (WIDE > 1 / 500) & (WIDE < 0.3)
    assert np.polyfit(np.log(WIDE[middle]), np.log(density[middle]), 1)[0] == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize("lag", ["state", "distance", "bonus"])
def test_other_shapes_are_followed(lag: Lag) -> None:
    reading, t = Reading("coherent", lag), np.arange(1.0, 513)
    broken = broken_power_law_target(0.5, 1.0, 50, 512)
    stretched = array_target(np.exp(-(t**0.3)))
    noisy = np.exp(0.05 * np.random.default_rng(0).standard_normal(512))
    measured = lag_target(t, broken.value(t) * noisy, np.full(512, 0.05))
    for target in (broken, stretched, measured):
        assert target_scores(smooth_nodes(WIDE, target, "lru", reading), reading, target).r_star > 0.99
    from_noise = smooth_nodes(WIDE, measured, "lru", reading)
    assert target_scores(from_noise, reading, broken).r_star > 0.999, "the noise is not followed"


def test_the_terms_of_an_exponential_sum_are_found_again() -> None:
    """A sum whose own density is smooth: the fitted kernel is the same within a few per cent."""
    rates = rates_from_half_lives(log_spaced(64, 1.0, 300.0))
    sums = ExponentialSum(tuple(rates.tolist()), tuple((rates**1.3).tolist()))
    target = array_target(sums.kernel(np.arange(1, 257)))
    assert target_scores(smooth_nodes(rates, target, "ema", Reading()), Reading(), target).e_log < 0.01


def test_decays_that_cannot_follow_are_refused() -> None:
    steep = array_target(np.exp(-5.0 * np.arange(1, 60)))
    with pytest.raises(ValueError, match=r"cannot follow array: use nodes 'terms'"):
        smooth_nodes(rates_from_half_lives(log_spaced(16, 500.0, 2000.0)), steep, "none", Reading())
