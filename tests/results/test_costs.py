"""What runs cost."""

from dataclasses import replace

import pytest

from plkernel.records.layout import DIVERGED
from plkernel.records.study import Run, read_study
from plkernel.results.costs import cost_of, hardware, search_cost


@pytest.fixture
def study(blocked_study):
    return read_study(blocked_study(lambda levels, name: 0.0, seeds=2))


def test_hours_and_speed_of_the_finished_runs(study):
    cost = cost_of(study.runs)
    assert (cost.runs, cost.seconds) == (40, 9.0)
    assert cost.hours == pytest.approx(40 * 9 / 3600)
    assert cost.core_hours == pytest.approx(2 * cost.hours)
    assert cost.bytes_per_second == pytest.approx(40 * 2048 / 9.0)


def test_what_is_not_known_is_not_guessed(study):
    run = study.runs[0]
    on_gpu = replace(run, environment={**run.environment, "hardware": {"gpu": "a GPU", "cpu": "a processor"}})
    assert cost_of([run, on_gpu]).core_hours is None
    assert cost_of([replace(run, environment={})]).core_hours is None
    assert cost_of([replace(run, result=replace(run.result, seconds=0.0))]).bytes_per_second is None
    assert cost_of([Run("a", 0, DIVERGED, {}, {}, error="nan")]) is None
    assert hardware([run, on_gpu]) == {"a processor, 2 threads": 1, "a GPU, 2 threads": 1}
    assert search_cost(study) is None
