"""python -m plkernel.judge: what is shown before the next work, and where files go."""

import sys
from pathlib import Path
from typing import Any

import pytest

from plkernel.commands import judge


def test_judge_shows_its_verdict_before_it_writes(
    pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", pipe.stream)
    rows = tmp_path / "rows.csv"
    rows.write_text("arm,seed,value\na,0,1.5\nb,0,2.5\na,1,1.6\nb,1,2.6\n")
    monkeypatch.setattr(judge, "save_json", pipe.look("json"))
    judge.command(rows, out=tmp_path / "out")
    assert pipe.arrived["json"].count("\n") > 3
    assert "written" not in pipe.arrived["json"]


def test_a_file_in_the_place_of_the_folder_is_refused_before_any_work(
    blocked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "read_rows", lambda *_, **__: pytest.fail("work"))
    with pytest.raises(OSError, match=r"out .*cannot be written"):
        judge.command(tmp_path / "file", out=blocked)


def test_a_file_that_is_read_is_not_written(tmp_path: Path) -> None:
    rows = tmp_path / "judge.json"
    rows.write_text("mine")
    with pytest.raises(ValueError, match="out must be another file than those that are read"):
        judge.command(rows, out=tmp_path)
    assert rows.read_text() == "mine"
