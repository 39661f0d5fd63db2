"""When an arm reaches the baseline's final value: straight lines, noise, and what must not be claimed."""

import math

import numpy as np
import pytest

from plkernel.analysis.statistics.reaching import speedup, steps_to_reach


def test_a_straight_line_is_read_between_its_points():
    curve = {0: 8.0, 100: 4.0, 200: 2.0}
    assert steps_to_reach(curve, 6.0) == 50.0
    assert steps_to_reach(curve, 3.0) == 150.0
    assert steps_to_reach(curve, 4.0) == 100.0
    assert steps_to_reach(curve, 2.0) == 200.0
    assert steps_to_reach(curve, 9.0) == 0.0
    assert steps_to_reach(curve, 1.9) is None


def test_a_crossing_that_is_undone_does_not_count():
    curve = {0: 8.0, 10: 4.0, 20: 6.0, 30: 3.0, 40: 4.5}
    assert steps_to_reach(curve, 5.0) == pytest.approx(20 + 10 / 3)
    assert steps_to_reach(curve, 4.0) is None


def test_the_rule_does_not_favour_the_noisier_of_two_curves():
    """First crossings come earlier the more noise there is; the last do not."""
    rng = np.random.default_rng(0)
    positions = np.arange(0, 1001, 10)
    last, first = {}, {}
    for noise in (0.0, 0.05, 0.2):
        runs = 3.0 - positions / 1000 + rng.normal(0, noise, (300, len(positions)))
        runs[:, -1] = 2.0
        last[noise] = np.mean([steps_to_reach(dict(zip(positions.tolist(), run, strict=True)), 2.5) for run in runs])
        first[noise] = np.mean([positions[np.argmax(run <= 2.5)] for run in runs])
    assert first[0.2] < first[0.05] < first[0.0] - 20
    assert last[0.2] > last[0.05] > last[0.0]


def test_values_that_are_not_finite_count_as_above():
    assert steps_to_reach({0: math.inf, 10: 2.0}, 3.0) == 10.0
    assert steps_to_reach({0: 4.0, 10: math.nan, 20: 2.0}, 3.0) == 20.0
    assert steps_to_reach({0: 4.0, 10: 2.0, 20: math.nan}, 3.0) is None
    assert steps_to_reach({0: 4.0, 10: 2.0}, math.nan) is None


def test_an_arm_twice_as_fast_arrives_at_half_time():
    positions = range(0, 401, 5)
    baseline = {seed: {at: 8.0 - at / (100 + seed) for at in positions} for seed in range(4)}
    arm = {seed: {at: 8.0 - 2 * at / (100 + seed) for at in positions} for seed in range(4)}
    found = speedup(arm, baseline)
    assert list(found.per_seed.values()) == pytest.approx([0.5] * 4, rel=1e-12)
    assert found.mean is not None
    assert (found.mean.n, found.reached) == (4, 4)
    assert (found.mean.mean, found.mean.low) == pytest.approx((0.5, 0.5), rel=1e-12)
    assert speedup(baseline, baseline).per_seed == dict.fromkeys(range(4), 0.0)


def test_an_arm_that_never_arrives_has_no_mean():
    baseline = {0: {0: 8.0, 100: 4.0}, 1: {0: 8.0, 100: 4.0}}
    found = speedup({0: {0: 8.0, 100: 2.0}, 1: {0: 8.0, 100: 4.1}, 2: {0: 1.0}}, baseline)
    assert found.per_seed == {0: pytest.approx(1 / 3), 1: None}
    assert (found.mean, found.reached) == (None, 1)


def test_an_arm_that_ran_longer_may_arrive_later():
    baseline = {0: {0: 8.0, 100: 4.0}}
    assert speedup({0: {0: 8.0, 100: 5.0, 200: 3.0}}, baseline).per_seed == {0: pytest.approx(-0.5)}


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="curve: got no values"):
        steps_to_reach({}, 1.0)
    with pytest.raises(ValueError, match="have none in common"):
        speedup({0: {0: 1.0}}, {1: {0: 1.0}})
    with pytest.raises(ValueError, match="baseline: its last position is 0"):
        speedup({0: {0: 1.0}}, {0: {0: 1.0}})
