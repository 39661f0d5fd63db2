"""Bytes of a token: the mean, and an interval that holds that of other texts of the same kind."""

import numpy as np
import pytest

from plkernel.analysis.information.tokens import token_length


def test_the_interval_holds_the_mean_of_the_source() -> None:
    """Tokens of 1 and 5 bytes in runs, 3 bytes on average: of 400 texts as many as it says, within
    three errors of that share.
    """
    held = []
    for seed in range(400):
        rng = np.random.default_rng(seed)
        kinds = np.repeat(rng.integers(0, 2, 2_000), rng.integers(1, 9, 2_000))
        found = token_length(np.cumsum(1 + 4 * kinds), "made")
        assert found.low is not None
        assert found.high is not None
        held.append(found.low < 3 < found.high)
    assert abs(np.mean(held) - 0.95) < 3 * np.sqrt(0.95 * 0.05 / len(held))


def test_it_is_all_bytes_over_all_tokens() -> None:
    found = token_length([3, 3, 7, 8], "made")
    assert (found.bytes_per_token, found.tokens) == (2.0, 4)
    assert (found.low, found.high) == (None, None), "too short for an interval"
    assert found.in_tokens([4, 10]).tolist() == [2, 5]
    assert found.in_bytes(found.in_tokens([4, 10])).tolist() == [4, 10]
    assert str(found) == "2.000 bytes a token"


def test_equal_tokens_have_no_error() -> None:
    found = token_length(4 * np.arange(1, 4_001), "made")
    assert found.low == pytest.approx(4, rel=1e-12)
    assert found.high == pytest.approx(4, rel=1e-12)


def test_no_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="must have a token, got none"):
        token_length([], "made")
