"""What context is worth, in numbers: which lengths, which means, which errors."""

import numpy as np
import pytest

from plkernel.memory.diagnostics import by_position, lengths, truncation_of


def test_lengths_are_powers_of_two_and_the_context() -> None:
    assert lengths(1) == [1]
    assert lengths(8) == [1, 2, 4, 8]
    assert lengths(12) == [1, 2, 4, 8, 12]
    assert lengths(12, step=4) == [4, 8, 12]
    assert lengths(8, step=2) == [2, 4, 8]


def test_positions_are_grouped_by_what_is_given() -> None:
    """Losses that are the number of bytes given: the mean of 3..4 is 3.5, that of 9..12 is 10.5."""
    losses = np.tile(np.arange(1.0, 13.0), (3, 1)) + np.array([[-1.0], [0.0], [1.0]])
    found = by_position(losses)
    assert found.given == (1, 2, 4, 8, 12)
    assert found.bpb == pytest.approx((1, 2, 3.5, 6.5, 10.5))
    assert found.standard_error == pytest.approx([1 / np.sqrt(3)] * 5)


def test_the_error_is_that_of_windows_not_of_bytes() -> None:
    """Bytes of one window that are all alike count as one: the error does not shrink with the length of windows."""
    windows = np.random.default_rng(0).normal(size=(50, 1))
    short, long = (by_position(np.repeat(windows, length, axis=1)) for length in (64, 256))
    expected = windows.std(ddof=1) / np.sqrt(50)
    assert short.standard_error == pytest.approx([expected] * 7)
    assert long.standard_error == pytest.approx([expected] * 9)
    assert by_position(np.ones((1, 4))).to_dict()["standard_error"] == [None, None, None]


def test_the_cost_of_truncation_is_paired() -> None:
    """What all lengths share is no error of their difference."""
    rng = np.random.default_rng(1)
    shared, noise = rng.normal(5, 2, 400), rng.normal(0, 0.1, 400)
    found = truncation_of([1, 2], np.stack([shared + 0.5 + noise, shared]), floor=np.full((2, 400), 1.5))
    assert found.cost == (pytest.approx(0.5, abs=0.02), 0.0)
    assert found.standard_error == (pytest.approx(noise.std(ddof=1) / 20), 0.0)
    assert found.floor == (1.5, 1.5)
    assert found.windows == 400
    assert "floor" not in truncation_of([1], np.ones((1, 3))).to_dict()
