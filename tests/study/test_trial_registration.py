"""The registration of a trial: before the first run, once, and only of what is declared."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plkernel.common.files import REGISTERED
from plkernel.study import trial


@pytest.mark.parametrize(
    ("hypotheses", "is_registered", "expected"),
    [
        (["one"], False, ["register", "run"]),
        (["one"], True, ["run"]),
        ([], False, ["run"]),
        ([], True, ["run"]),
    ],
)
def test_hypotheses_are_registered_before_the_first_run_and_not_again(
    hypotheses: list[str],
    is_registered: bool,
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = list[str]()

    def ran(spec: Any, out: Path) -> list[str]:
        done.append("run")
        return ["a run that did not finish"]

    def registered(*given: Any, answers: Any) -> None:
        assert answers == {}
        done.append("register")

    monkeypatch.setattr(trial, "register", registered)
    monkeypatch.setattr("plkernel.study.schedule.run_experiment", ran)
    if is_registered:
        (tmp_path / REGISTERED).touch()
    spec = SimpleNamespace(hypotheses=hypotheses, gates=())
    planned: Any = SimpleNamespace(spec=spec, out=tmp_path)
    assert trial.run_trial(planned) == ["a run that did not finish"]
    assert done == expected
