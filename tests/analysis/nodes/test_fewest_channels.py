"""The fewest channels that a placement takes."""

import pytest

from plkernel.analysis.nodes import half_lives_of


def test_two_channels_take_both_ends() -> None:
    half_lives = half_lives_of("log-spaced", 2, shortest=3.0, longest=700.0)
    assert half_lives == pytest.approx([3.0, 700.0], rel=1e-14)


def test_one_channel_has_no_two_ends() -> None:
    with pytest.raises(ValueError, match="channels must be at least 2, got 1"):
        half_lives_of("log-spaced", 1)


@pytest.mark.parametrize("channels", range(5, 30))
def test_five_channels_are_enough_for_all_groups(channels: int) -> None:
    assert half_lives_of("concentrated", channels).size == channels


@pytest.mark.parametrize("channels", [1, 4])
def test_fewer_leave_a_group_without_one(channels: int) -> None:
    message = f"channels must be at least 5, got {channels}, for concentrated half-lives"
    with pytest.raises(ValueError, match=message):
        half_lives_of("concentrated", channels)
