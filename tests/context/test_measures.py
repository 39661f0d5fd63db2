"""Measures of the use of context against their definitions: curves over windows."""

import json

import numpy as np
import pytest

from plkernel.context.measures import (
    Probe,
    by_position,
    influence_of,
    is_read,
    lengths,
    moments,
    others,
    places,
    ratio_error,
    truncation_of,
)


def test_losses_are_grouped_by_the_bytes_given_and_errors_are_those_of_windows() -> None:
    """Losses equal to the number of bytes given: the mean of 3..4 is 3.5, that of 9..12 is 10.5."""
    assert (lengths(12), lengths(12, step=4), lengths(8, step=2)) == (
        [1, 2, 4, 8, 12],
        [4, 8, 12],
        [2, 4, 8],
    )
    means = by_position(np.tile(np.arange(1.0, 13.0), (3, 1)) + np.array([[-1.0], [0.0], [1.0]]))
    assert means.given == (1, 2, 4, 8, 12)
    assert means.bpb == pytest.approx((1, 2, 3.5, 6.5, 10.5))
    assert means.standard_error == pytest.approx([1 / np.sqrt(3)] * 5)
    windows = np.random.default_rng(0).normal(size=(50, 1))
    expected = windows.std(ddof=1) / np.sqrt(50)
    assert by_position(np.repeat(windows, 64, axis=1)).standard_error == pytest.approx(
        [expected] * 7
    )
    readings = np.tile(windows[..., None], (1, 8, 3))
    readings[:, 2:, 1] = np.nan  # lags that are not read leave the mean alone
    influence = influence_of([1, 2, 4], readings)
    assert influence.bits == pytest.approx([windows.mean()] * 3)
    assert influence.standard_error == pytest.approx([expected] * 3)


def test_the_cost_of_truncation_is_paired() -> None:
    """A loss that all lengths share is no error of their difference."""
    rng = np.random.default_rng(1)
    shared, noise = rng.normal(5, 2, 400), rng.normal(0, 0.1, 400)
    curve = truncation_of(
        [1, 2], np.stack([shared + 0.5 + noise, shared]), floor=np.full((2, 400), 1.5)
    )
    assert curve.cost == (pytest.approx(0.5, abs=0.02), 0.0)
    assert curve.standard_error == (pytest.approx(noise.std(ddof=1) / 20), 0.0)
    assert (curve.floor, curve.windows) == ((1.5, 1.5), 400)


def test_another_token_comes_by_its_frequency() -> None:
    """Without the one that stands there: in AAAABBC, for B, A in 4 of 5 and C in 1."""
    text = np.array([7, 7, 7, 7, 3, 3, 9])
    drawn = others(text, np.repeat([7, 3, 9], 20_000), np.random.default_rng(0)).reshape(3, -1)
    shares = np.array([[(row == token).mean() for token in (7, 3, 9)] for row in drawn])
    assert shares == pytest.approx(
        np.array([[0, 2 / 3, 1 / 3], [4 / 5, 0, 1 / 5], [4 / 6, 2 / 6, 0]]), abs=0.015
    )
    assert np.diag(shares).tolist() == [0, 0, 0]


@pytest.mark.parametrize("length", [4, 7, 16, 37])
def test_half_of_the_window_is_given_and_every_lag_read(length: int) -> None:
    lags = np.arange(1, length + 1)
    for seed in range(50):
        chosen = places(3, length, 4, np.random.default_rng(seed))
        read = is_read(lags, chosen, length)
        given = (chosen[..., None] + lags)[read]
        assert read.any(axis=1).all()
        assert not chosen[:, 0].any()
        assert given.min() >= length / 2
        assert given.max() <= length


def test_json_has_no_nan() -> None:
    """One window has no standard error: null."""
    curves = (
        influence_of([1, 2], np.ones((1, 1, 2))),
        by_position(np.ones((1, 2))),
        truncation_of([1, 2], np.ones((2, 1))),
    )
    kept = json.loads(
        json.dumps(Probe("token", 1, 2, 4.0, 1.0, *curves).to_dict(), allow_nan=False)
    )
    assert kept["influence"] == {"lags": [1, 2], "bits": [1, 1], "standard_error": [None, None]}
    assert kept["truncation"] == {
        "given": [1, 2],
        "bits": [1, 1],
        "cost": [0, 0],
        "standard_error": [None, None],
    }
    assert "information" not in kept
    assert list(curves[2].to_dict()) == ["windows", "given", "bpb", "cost", "standard_error"]


def test_two_windows_have_an_error_and_one_has_none() -> None:
    means, errors = moments(np.array([[1.0, 3.0], [2.0, 2.0]]))
    assert (means, errors) == ((2.0, 2.0), (1.0, 0.0))
    assert np.isnan(moments(np.ones((2, 1)))[1]).all()
    assert ratio_error([1.0], [2.0]) is None
    # Parts 1 and 3 of sizes 1 and 2: the ratio is 4/3, and what is left is -1/3 and 1/3.
    assert ratio_error([1.0, 3.0], [1.0, 2.0]) == pytest.approx((1 / 3) / 1.5)
    assert np.isnan(influence_of([1], np.ones((1, 2, 1))).standard_error).all()


def test_the_error_of_readings_that_differ_in_number_is_that_of_a_ratio() -> None:
    """Two windows with 2 and 1 readings: parts 3 and 4 of sizes 2 and 1."""
    readings = np.array([[[1.0], [2.0]], [[4.0], [np.nan]]])
    found = influence_of([1], readings)
    assert found.bits == pytest.approx((7 / 3,))
    assert found.standard_error == pytest.approx((ratio_error([3.0, 4.0], [2.0, 1.0]),))


@pytest.mark.parametrize("length", [8, 9])
def test_a_lag_is_read_where_half_of_the_window_is_given(length: int) -> None:
    """At place 0: all lags from half of the window, rounded up, to its length."""
    read = is_read(np.arange(1, length + 2), 0, length)
    assert np.flatnonzero(read).tolist() == list(range((length + 1) // 2 - 1, length))


def test_one_kind_of_token_has_no_other() -> None:
    with pytest.raises(ValueError, match="text must hold two different tokens or more, got 5 only"):
        others(np.array([5, 5]), np.array([5]), np.random.default_rng(0))
    drawn = others(np.array([5, 6]), np.array([5, 6]), np.random.default_rng(0))
    assert drawn.tolist() == [6, 5]


def test_bits_per_byte_are_those_of_a_token_over_its_bytes() -> None:
    curves = (
        influence_of([1, 2], np.ones((1, 1, 2))),
        by_position(np.ones((1, 2))),
        truncation_of([1, 2], np.ones((2, 1))),
    )
    found = Probe("token", 1, 2, 4.0, 3.0, *curves)
    assert found.bits_per_byte == found.to_dict()["bits_per_byte"] == 0.75
    assert list(found.to_dict()["positions"]) == ["given", "bits", "standard_error"]
