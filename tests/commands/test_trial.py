"""python -m plkernel.trial: exits, and what is printed when."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plkernel.commands import trial
from plkernel.study.trial import NoMemoryError

Shown = pytest.CaptureFixture[str]


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Nothing is measured or trained; what was asked for, and what did not finish."""
    state: dict[str, Any] = {"failed": [], "is_finished": True, "asked": [], "ran": 0}

    def plan(text: str, out: Path | None, options: Any, say: Any) -> Any:
        state["asked"].append((text, out, options))
        if "error" in state:
            raise state["error"]
        say("measured")
        return SimpleNamespace(out=tmp_path)

    def run(_: Any) -> list[str]:
        state["ran"] += 1
        return list(state["failed"])

    declared = SimpleNamespace(headline="one of two holds")
    compared = SimpleNamespace(declared=declared)
    state["compared"] = compared
    study = SimpleNamespace(finished=lambda: state["is_finished"])
    monkeypatch.setattr(trial, "plan_trial", plan)
    monkeypatch.setattr(trial, "run_trial", run)
    monkeypatch.setattr(trial, "read_study", lambda _: study)
    monkeypatch.setattr(trial, "compare", lambda _: compared)
    monkeypatch.setattr(trial, "answer", lambda _: "the answer")
    monkeypatch.setattr(trial, "advice", lambda _: "the advice")
    monkeypatch.setattr(
        "plkernel.commands.report.write_comparison", lambda _, out: out / "report.html"
    )
    return state


def test_a_trial_ends_in_its_verdicts_its_answer_and_its_page(
    planned: dict[str, Any], tmp_path: Path, capsys: Shown
) -> None:
    trial.command("text", minutes=2.0, seeds=4, short=True, out=tmp_path)
    page = tmp_path / "report" / "report.html"
    end = f"the answer\n\nthe advice\n\npage: {page}\n"
    assert capsys.readouterr() == (f"measured\n\none of two holds\n\n{end}", "")
    ((text, out, options),) = planned["asked"]
    assert (text, out, options.minutes, options.seeds) == ("text", tmp_path, 2.0, 4)
    assert (options.frozen, options.short, options.control) == (True, True, True)
    planned["compared"].declared = None
    trial.command("text")
    assert capsys.readouterr().out == f"measured\n\n{end}"


def test_a_dry_run_trains_nothing(planned: dict[str, Any], capsys: Shown) -> None:
    trial.command("text", dry_run=True)
    assert planned["ran"] == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("nothing was trained; without --dry")


@pytest.mark.parametrize("is_finished", [True, False])
def test_runs_that_did_not_finish_end_in_exit_1_behind_the_page(
    is_finished: bool, planned: dict[str, Any], capsys: Shown
) -> None:
    planned.update(failed=["a/seed-0", "b/seed-1"], is_finished=is_finished)
    with pytest.raises(SystemExit) as stop:
        trial.command("text")
    assert stop.value.code == 1
    out, error = capsys.readouterr()
    assert ("page: " in out) == is_finished
    assert error == "did not finish: a/seed-0, b/seed-1; log.txt of each says why\n"


def test_a_text_without_memory_is_an_answer_and_exit_1(
    planned: dict[str, Any], capsys: Shown
) -> None:
    planned["error"] = NoMemoryError("no memory here")
    with pytest.raises(SystemExit) as stop:
        trial.command("text")
    assert (stop.value.code, planned["ran"]) == (1, 0)
    assert capsys.readouterr().out == "no memory here\n"


def test_a_model_of_ones_own_is_told_what_takes_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"got 'mymodel:build'; .* python -m plkernel.new FOLDER"):
        trial.command("stdlib", model="mymodel:build", out=tmp_path / "trial")
