"""The choice of a search for learning rates, and how sure it is."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from plkernel.results.tuning import Choice, _choice

LOSSES = {1e-3: 2.0, 2e-3: 1.5, 4e-3: 1.6, 8e-3: 1.51}


def choice(rate: float = 2e-3, **changes: Any) -> Choice:
    return Choice(rate, **({"losses": LOSSES, "seeds": 4} | changes))


@pytest.mark.parametrize(
    ("rate", "is_edge"), [(1e-3, True), (2e-3, False), (4e-3, False), (8e-3, True)]
)
def test_the_edge_is_the_lowest_and_the_highest_rate(rate: float, is_edge: bool) -> None:
    assert choice(rate).at_edge is is_edge


@pytest.mark.parametrize(
    ("rate", "noise", "may_be"),
    [
        (2e-3, 0.0, True),
        (4e-3, 0.25, True),
        (4e-3, 0.19, False),
        (8e-3, 0.03, True),
        (8e-3, 0.01, False),
        (16e-3, 100.0, False),
    ],
)
def test_a_rate_may_be_the_best_within_noise_over_the_root_of_the_seeds(
    rate: float, noise: float, may_be: bool
) -> None:
    assert choice().may_be(rate, noise) is may_be


def test_rivals_are_not_neighbours_of_the_chosen_rate() -> None:
    assert choice().rivals(1.0) == [8e-3]
    assert choice().rivals(0.01) == []
    assert choice(8e-3).rivals(10.0) == [1e-3, 2e-3]
    assert choice(8e-3).rivals(0.0) == [2e-3], "it has the smaller loss"


def test_choices_are_apart_where_one_may_be_right_for_both() -> None:
    other = choice(8e-3, losses={2e-3: 1.9, 4e-3: 1.7, 8e-3: 1.0})
    assert choice().apart(other, 0.03)
    assert other.apart(choice(), 0.03)
    assert not choice().apart(other, 0.01)
    assert not choice().apart(choice(seeds=1), 9.0)


def run(loss: float | None, status: str = "finished") -> Any:
    result = None if loss is None else SimpleNamespace(final_val_bpb=loss)
    return SimpleNamespace(status=status, result=result)


@pytest.mark.parametrize(
    ("runs", "rate", "seeds"),
    [
        ({1e-3: [run(2.0), run(3.0)], 2e-3: [run(2.0), run(2.5)]}, 2e-3, 2),
        ({1e-3: [run(2.0), run(2.0)], 2e-3: [run(None, "diverged"), run(1.0)]}, 1e-3, 2),
        ({1e-3: [run(2.0), run(3.0)], 2e-3: [run(2.0)]}, 2e-3, 1),
        ({1e-3: [run(math.nan)], 2e-3: [run(2.0)], 4e-3: [run(1.9)]}, 4e-3, 1),
        ({1e-3: [run(2.0)], 2e-3: [run(None, "running")]}, None, 0),
        ({1e-3: [run(2.0)], 2e-3: [run(None, "failed")]}, None, 0),
        ({1e-3: [run(2.0)], 2e-3: []}, None, 0),
        ({1e-3: [run(None, "diverged")]}, None, 0),
        ({}, None, 0),
    ],
)
def test_the_smallest_mean_is_chosen_once_all_runs_have_ended(
    runs: Any, rate: float | None, seeds: int
) -> None:
    found = _choice(runs)
    if rate is None:
        assert found is None
    else:
        assert found is not None
        assert (found.rate, found.seeds) == (rate, seeds)
        assert not math.isnan(found.losses[rate])
