"""The fewest channels that a placement takes."""

import pytest

from plkernel.analysis.nodes import half_lives_of


def test_two_channels_take_both_ends() -> None:
    half_lives = half_lives_of("log-spaced", 2, shortest=3.0, longest=700.0)
    assert half_lives == pytest.approx([3.0, 700.0], rel=1e-14)


def test_one_channel_has_no_two_ends() -> None:
    with pytest.raises(ValueError, match="channels must be at least 2, got 1"):
        half_lives_of("log-spaced", 1)
