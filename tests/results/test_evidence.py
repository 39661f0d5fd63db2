"""What speaks for one difference."""

import math

import numpy as np
import pytest

from plkernel.analysis.statistics.differences import paired_difference
from plkernel.analysis.statistics.power import power_of
from plkernel.results.evidence import detectable, weigh


def evidence(values, corrected=0.01, curves=None):
    arm = {seed: 2.0 + value for seed, value in enumerate(values)}
    base = dict.fromkeys(arm, 2.0)
    difference = paired_difference(arm, base)
    curves = curves or {seed: {0: 8.0, 100: 2.0} for seed in arm}
    return weigh(difference, corrected, curves, curves)


def test_a_clear_difference_speaks_by_every_test():
    found = evidence([-0.05, -0.06, -0.04, -0.055, -0.045, -0.052])
    assert found.excludes_zero
    assert found.survives
    assert found.flips == (2 / 2**6, 2 / 2**6, True)
    assert found.effect.d_z < -5
    assert not evidence([-0.05, -0.06, -0.04], corrected=0.06).survives


def test_none_is_not_claimed():
    found = evidence([0.02, -0.03, 0.01, -0.01, 0.005], corrected=1.0)
    assert not found.excludes_zero
    assert not found.survives
    assert found.flips.p_value > 0.5


@pytest.mark.parametrize(("seeds", "shown"), [(9, False), (10, True)])
def test_a_bootstrap_interval_needs_ten_seeds(seeds, shown):
    values = np.random.default_rng(0).normal(0.0, 0.01, seeds)
    assert (evidence(values).bootstrap is not None) == shown


def test_one_seed_and_one_that_is_not_finite_make_no_claim():
    for values in ([0.1], [0.1, math.nan, 0.2], [math.nan] * 12):
        found = evidence(values, corrected=math.nan)
        assert not found.excludes_zero
        assert not found.survives
        assert found.bootstrap is None
        assert math.isnan(found.detectable)
        assert math.isnan(found.effect.d_z)
    assert evidence([0.1]).flips is None


def test_the_detectable_difference_has_its_power_at_its_level():
    difference = paired_difference({0: 0.01, 1: -0.02, 2: 0.03, 3: 0.0, 4: 0.01}, dict.fromkeys(range(5), 0.0))
    sd = difference.standard_deviation
    assert power_of(detectable(difference), sd, 5) == pytest.approx(0.8)
    assert power_of(detectable(difference, 28), sd, 5, alpha=0.05 / 28) == pytest.approx(0.8)


def test_how_much_earlier_the_baselines_end_is_reached():
    base = {0: {0: 8.0, 50: 4.0, 100: 2.0}, 1: {0: 8.0, 100: 2.0}}
    arm = {0: {0: 8.0, 50: 2.0, 100: 1.9}, 1: {0: 8.0, 50: 2.0, 100: 1.5}}
    difference = paired_difference({0: 1.9, 1: 1.5}, {0: 2.0, 1: 2.0})
    assert weigh(difference, 1.0, arm, base).earlier.mean.mean == pytest.approx(0.5)
    assert weigh(difference, 1.0, arm, {0: {0: 8.0}, 1: {}}).earlier is None
