"""python -m plkernel.report and judge: where files go, their formats, and their rows."""

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plkernel.commands import judge, report
from plkernel.common.files import load_json
from plkernel.results.comparison import compare, table
from plkernel.results.study import read_study

Shown = pytest.CaptureFixture[str]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Nothing is drawn: the kinds that were asked for of each figure."""
    asked: list[list[str]] = []

    def rendered(figure: Any, kinds: list[str]) -> dict[str, bytes]:
        asked.append(kinds)
        return {kind: b"<svg/>" if kind == "svg" else kind.encode() for kind in kinds}

    monkeypatch.setattr("plkernel.analysis.figures.style.rendered", rendered)
    one = SimpleNamespace(name="curves", figure=None, caption="", alt="", title="")
    monkeypatch.setattr("plkernel.results.figures.drawings", lambda _: [one])
    monkeypatch.setattr(report, "page", lambda comparison, drawings: f"{len(drawings)} figures")
    return asked


def test_the_page_has_every_figure_and_files_are_of_the_formats_asked_for(
    drawn: list[list[str]], declared_study: Callable[..., Path], tmp_path: Path
) -> None:
    comparison = compare(read_study(declared_study()))
    out = tmp_path / "out"
    assert report.write_comparison(comparison, out, ("png", "pdf", "png")) == out / "report.html"
    assert drawn == [["svg", "png", "pdf"]]
    names = {path.name for path in out.iterdir()}
    assert names == {"report.html", "table.json", "curves.png", "curves.pdf"}
    assert (out / "curves.png").read_bytes() == b"png"
    assert (out / "report.html").read_text() == "1 figures"
    numbers = load_json(out / "table.json")
    assert {"answer", "summary", "warnings"} < numbers.keys()
    assert numbers["answer"].startswith("So far, on stdlib")
    assert any("6 not started" in line for line in numbers["warnings"])


def test_the_report_of_a_record_leaves_it_as_it_is(
    drawn: list[list[str]], declared_study: Callable[..., Path], tmp_path: Path, capsys: Shown
) -> None:
    folder = declared_study()
    assert report._place(folder) == Path(f"runs/out/{folder.name}-record")
    (folder / "rows.jsonl").rename(tmp_path / "away")
    assert report._place(folder) == folder / "report"
    (tmp_path / "away").rename(folder / "rows.jsonl")
    report.report(folder, out=tmp_path / "out")
    assert capsys.readouterr().out.endswith(f"\n\nreport: {tmp_path / 'out' / 'report.html'}\n")
    assert not (tmp_path / "out" / "rows.csv").exists()
    assert sorted(path.name for path in folder.iterdir()) == ["rows.jsonl", "spec.json"]


def test_a_record_of_a_study_that_goes_on_is_written_without_a_report(
    drawn: list[list[str]],
    declared_study: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Shown,
) -> None:
    saved: list[Any] = []
    is_finished = False
    study = SimpleNamespace(finished=lambda: is_finished)
    monkeypatch.setattr(report, "read_study", lambda _: study)
    monkeypatch.setattr(report, "save_record", lambda *given: saved.append(given))
    monkeypatch.setattr(report, "compare", lambda _: pytest.fail("it goes on"))
    record = tmp_path / "record"
    report.report(declared_study(), record=record, out=tmp_path / "out")
    assert saved == [(study, record)]
    assert capsys.readouterr().out == f"record: {record}\n"


def test_rows_that_only_the_record_has_stay_and_are_named(
    drawn: list[list[str]], declared_study: Callable[..., Path], tmp_path: Path, capsys: Shown
) -> None:
    record = tmp_path / "record"
    report.report(declared_study(), record=record, out=tmp_path / "out")
    assert capsys.readouterr().err == ""
    fewer = declared_study(seeds=4, name="fewer")
    report.report(fewer, record=record, out=tmp_path / "out")
    assert capsys.readouterr().err == (
        f"note: 6 rows stay in {record}, of runs that are not among those of the study in {fewer}:"
        " base/seed-4, base/seed-5, better/seed-4, better/seed-5 and 2 more; remove"
        f" {record} first to give them up\n"
    )
    lines = (record / "rows.jsonl").read_text().splitlines()
    assert len(lines) == 18
    report.report(record, out=tmp_path / "out")
    cautions = load_json(tmp_path / "out/table.json")["warnings"]
    assert [one for one in cautions if one.startswith("The folder has")] == [
        "The folder has 6 finished runs of seed 4 and 5, left out as the spec has seed 0, 1, 2 and"
        " 3 alone; plkernel.experiment with --seeds 0 1 2 3 4 5 takes all in."
    ]


def test_tables_have_a_line_for_each_run_and_each_measure_of_an_arm(
    drawn: list[list[str]], declared_study: Callable[..., Path], tmp_path: Path
) -> None:
    folder = declared_study()
    report.report(folder, out=tmp_path, csv=True)
    comparison = compare(read_study(folder))
    numbers = table(comparison)
    with (tmp_path / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    wanted = [
        (arm["arm"], arm["against"] or "", measure)
        for arm in numbers["arms"]
        for measure in arm["measures"]
    ]
    assert [(row["arm"], row["against"], row["measure"]) for row in rows] == wanted
    corrected = {arm["arm"]: arm["p_corrected"] for arm in numbers["arms"]}
    for row in rows:
        expected = corrected[row["arm"]] if row["measure"] == numbers["primary"] else None
        assert row["p_corrected"] == ("" if expected is None else str(expected))
    with (tmp_path / "rows.csv").open() as file:
        runs = list(csv.DictReader(file))
    assert len(runs) == len(comparison.study.ended) == 18
    assert not any(value.startswith("[") for run in runs for value in run.values())
    assert {run["arm"] for run in runs} == {"base", "better", "same"}


def test_rows_have_no_options_of_other_kinds_of_models(
    drawn: list[list[str]], declared_study: Callable[..., Path], tmp_path: Path
) -> None:
    comparison = compare(read_study(declared_study()))
    for run in comparison.study.runs:
        run.config["model"] = {"kind": "mymodel:build", "dim": 96, "config": {"dim": 32}}
    report.save_csv(comparison, tmp_path)
    with (tmp_path / "rows.csv").open() as file:
        [first, *_] = csv.DictReader(file)
    told = {name: value for name, value in first.items() if name.startswith("config.model.")}
    assert told == {"config.model.kind": "mymodel:build", "config.model.config.dim": "32"}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text("arm,seed,value\na,0,1.5\nb,0,2.5\na,1,1.6\nb,1,2.7\n")
    return path


@pytest.mark.parametrize("hope", [0.0, float("inf"), float("nan")])
def test_a_hope_is_a_finite_difference(hope: float, rows: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="hope must be a finite number other than 0"):
        judge.command(rows, hope=hope, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("hope", [-0.5, 0.5, 1.0])
def test_a_hope_may_have_either_sign(
    hope: float, rows: Path, tmp_path: Path, drawn: list[list[str]], capsys: Shown
) -> None:
    judge.command(rows, hope=hope, out=tmp_path / "out", formats=("png", "svg", "png"))
    assert drawn == [["png", "svg"]]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"judge.json", "forest.png", "forest.svg"}
    assert capsys.readouterr().out.endswith(f"\n\nwritten: {tmp_path / 'out'}\n")


def test_a_judgement_has_a_folder_of_the_name_of_its_rows(
    rows: Path, tmp_path: Path, drawn: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    judge.command(Path("rows.csv"))
    assert (tmp_path / "runs/out/judge-rows/judge.json").is_file()
    assert (tmp_path / "runs/out/judge-rows/forest.svg").is_file()
    long = rows.rename(tmp_path / f"{'n' * 251}.csv")
    judge.command(long)
    assert (tmp_path / f"runs/out/judge-{'n' * 200}/judge.json").is_file()


def test_the_report_shows_its_text_before_it_draws(
    pipe: Any,
    declared_study: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdout", pipe.stream)
    folder = declared_study()
    compared = report.compare(report.read_study(folder))
    monkeypatch.setattr(report, "save_record", lambda *_: None)
    monkeypatch.setattr(report, "compare", pipe.look("compare", compared))
    monkeypatch.setattr(report, "write_comparison", pipe.look("page", "the page"))
    report.report(folder, record=tmp_path / "record", out=tmp_path / "out")
    record = f"record: {tmp_path / 'record'}\n"
    assert pipe.arrived["compare"] == record
    assert pipe.arrived["page"] == f"{record}{report.text_report(compared)}\n"
    pipe.stream.flush()
    assert pipe.bytes.getvalue().decode().endswith("\n\nreport: the page\n")


@pytest.mark.parametrize("name", ["out", "record"])
def test_a_file_in_the_place_of_a_folder_is_refused_before_any_work(
    name: str,
    declared_study: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    folder = declared_study()
    monkeypatch.setattr(report, "compare", lambda *_: pytest.fail("work"))
    monkeypatch.setattr(report, "save_record", lambda *_: pytest.fail("work"))
    given: dict[str, Any] = {"out": tmp_path / "out", name: path}
    with pytest.raises(OSError, match=rf"{name} .*cannot be written"):
        report.report(folder, **given)
    assert path.read_text() == "mine"
