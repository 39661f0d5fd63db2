"""Hypotheses and gates are measured by windows, target bytes and runs that ended as planned."""

from pathlib import Path
from typing import Any

import pytest
from studies import BASELINE, write_study

from plkernel.config.schema import Gate, Hypothesis
from plkernel.results.measurements import (
    Basis,
    answers_of_runs,
    basis_of,
    values,
)
from plkernel.results.study import as_planned, read_study, train_options

TRAIN = {
    "context": 10,
    "eval_windows": 3,
    "final_windows": 5,
    "test_windows": 7,
    "truncation_windows": 11,
}


def gate(**values: Any) -> Gate:
    return Gate.model_validate({"name": "g", "arm": "a", "at_most": 1.0, **values})


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ({}, 5 * 10),
        ({"step": 20}, 3 * 10),
        ({"metric": "excess_bpb"}, 3 * 10),
        ({"metric": "test_bpb"}, 7 * 10),
        ({"metric": "truncation_cost", "bytes": 4}, 11),
    ],
)
def test_target_bytes_are_those_of_the_windows_of_the_metric(
    measured: dict[str, Any], expected: int
) -> None:
    spec = {"train": TRAIN, "arms": {"a": {}}}
    assert basis_of(spec, gate(**measured)) == Basis(expected)
    large = {"size": 10**6, "validation": 0.1, "test": 0.1}
    assert basis_of(spec, gate(**measured), large) == Basis(expected)


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ({}, 3 * 10),  # 40 bytes hold three windows of 10 bytes and the one before
        ({"metric": "test_bpb"}, 1 * 10),
        ({"metric": "truncation_cost", "bytes": 4}, 20 - 10),
    ],
)
def test_windows_beyond_the_text_do_not_exist(measured: dict[str, Any], expected: int) -> None:
    many = {**TRAIN, "final_windows": 99, "test_windows": 99, "truncation_windows": 99}
    corpus = {"size": 200, "validation": 0.2, "test": 0.1}
    spec = {"train": many, "arms": {"a": {}}}
    assert basis_of(spec, gate(**measured), corpus) == Basis(expected)


def test_an_arm_changes_the_training_of_all() -> None:
    spec = {"train": {"context": 10, "batch": 2}, "arms": {"a": {"train": {"batch": 3}}}}
    assert train_options(spec, "a") == {"context": 10, "batch": 3}
    assert train_options(spec, "unknown") == {"context": 10, "batch": 2}
    assert train_options({"arms": {}}, "a") == {}


@pytest.mark.parametrize(
    ("train", "planned"),
    [
        ({"steps": 40}, True),
        ({"steps": 41}, False),
        ({"steps": 39}, False),
        ({"bytes": 40 * 64 + 63, "batch": 4, "context": 16}, True),
        ({"bytes": 41 * 64, "batch": 4, "context": 16}, False),
        ({"bytes": 40, "batch": None}, True),
        ({}, True),
    ],
)
def test_a_run_is_as_planned_if_it_took_the_steps_of_the_spec(
    tmp_path: Path, train: dict[str, Any], planned: bool
) -> None:
    study = read_study(write_study(tmp_path, spec={"train": train}))
    assert {as_planned(study, run) for run in study.runs} == {planned}
    unfinished = tmp_path / "concentrated/seed-0/result.json"
    unfinished.unlink()
    study = read_study(tmp_path)
    (run,) = [run for run in study.runs if run.result is None]
    assert not as_planned(study, run)


def test_a_number_at_times_the_context_needs_the_context_of_the_run(tmp_path: Path) -> None:
    study = read_study(write_study(tmp_path))
    measured = Hypothesis(
        name="h", arm=BASELINE, metric="persistence", times=2, claim="lower", against="concentrated"
    )
    message = f"{tmp_path}: the configuration of run {BASELINE}/seed-0 must have train.context"
    with pytest.raises(ValueError, match=message):
        values(study, BASELINE, measured, [0])
    with pytest.raises(ValueError, match=message):
        answers_of_runs(study, measured, [BASELINE], [0])
