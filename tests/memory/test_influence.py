"""Influence in numbers: errors of windows, another token by its frequency, and lags that are all read."""

import json

import numpy as np
import pytest

from plkernel.memory.diagnostics import Probe, by_position, influence_of, is_read, others, places, truncation_of


def test_the_error_is_that_of_windows() -> None:
    """Readings of a window that are all alike count as one; lags that are not read leave the mean alone."""
    window = np.random.default_rng(0).normal(size=50)
    readings = np.tile(window[:, None, None], (1, 8, 3))
    readings[:, 2:, 1] = np.nan
    found = influence_of([1, 2, 4], readings)
    assert found.bits == pytest.approx([window.mean()] * 3)
    assert found.standard_error == pytest.approx([window.std(ddof=1) / np.sqrt(50)] * 3)


def test_another_token_comes_by_its_frequency() -> None:
    """Without the one that stands there: in AAAABBC, for B, A in 4 of 5 and C in 1."""
    text = np.array([7, 7, 7, 7, 3, 3, 9])
    drawn = others(text, np.repeat([7, 3, 9], 20_000), np.random.default_rng(0)).reshape(3, -1)
    shares = [[(row == token).mean() for token in (7, 3, 9)] for row in drawn]
    expected = [[0, 2 / 3, 1 / 3], [4 / 5, 0, 1 / 5], [4 / 6, 2 / 6, 0]]
    assert np.array(shares) == pytest.approx(np.array(expected), abs=0.015)
    assert [row[place] for place, row in enumerate(shares)] == [0, 0, 0]


@pytest.mark.parametrize("length", [4, 7, 16, 37])
def test_half_of_the_window_is_given_and_every_lag_read(length: int) -> None:
    lags = np.arange(1, length + 1)
    for seed in range(50):
        chosen = places(length, 4, np.random.default_rng(seed))
        read = np.stack([is_read(lags, place, length) for place in chosen])
        given = chosen[:, None] + lags
        assert read.any(axis=0).all()
        assert (given[read] >= length / 2).all()
        assert (given[read] <= length).all()


def test_json_has_no_nan() -> None:
    """One window has no standard error: null."""
    found = Probe(
        "token", 1, 2, 4.0, influence_of([1, 2], np.ones((1, 1, 2))), by_position(np.ones((1, 2))),
        truncation_of([1, 2], np.ones((2, 1))), 1.0,
    )  # fmt: skip
    kept = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert kept["influence"] == {"lags": [1, 2], "bits": [1, 1], "standard_error": [None, None]}
    assert kept["truncation"] == {"given": [1, 2], "bits": [1, 1], "cost": [0, 0], "standard_error": [None, None]}
    assert "information" not in kept
