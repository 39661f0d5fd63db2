"""Commands show what they know before they go on: a pipe gets a table while figures are drawn."""

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plkernel.commands import experiment, fit, gallery, judge, measure, report
from plkernel.config.reading import load_spec


class Pipe:
    """Standard output into a pipe, which gets what a program has flushed."""

    def __init__(self) -> None:
        self.bytes = io.BytesIO()
        self.stream = io.TextIOWrapper(self.bytes, encoding="utf-8")
        self.arrived: dict[str, str] = {}

    def look(self, name: str, result: Any = None) -> Callable[..., Any]:
        """A function that notes what has arrived when it is called first."""

        def noting(*_: Any, **__: Any) -> Any:
            self.arrived.setdefault(name, self.bytes.getvalue().decode())
            return result

        return noting


@pytest.fixture
def pipe() -> Pipe:
    return Pipe()


def test_fit_shows_its_table_before_it_writes_and_draws(
    pipe: Pipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", pipe.stream)
    monkeypatch.setattr(fit, "save_json", pipe.look("json"))
    monkeypatch.setattr(fit, "save_figure", pipe.look("figure"))
    fit.command(max_lag=32, terms=2, channels=4, out=tmp_path)
    assert "Channels written: 4 log-spaced" in pipe.arrived["json"]
    assert "\nwritten: " not in pipe.arrived["json"]
    assert pipe.arrived["figure"].endswith(f"\nwritten: {tmp_path / 'fit.json'}\n")


def test_fit_says_what_it_measured_before_it_fits(
    pipe: Pipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", pipe.stream)
    text = tmp_path / "text.txt"
    text.write_bytes(bytes(range(97, 123)) * 400)
    found = fit.prediction.law(1.15, "information", "coherent", "state", 32)
    told = found._replace(told=("it decays",), measured=None)
    monkeypatch.setattr(fit.prediction, "information", lambda *_, **__: told)
    monkeypatch.setattr(fit, "fit", pipe.look("fit", fit.fit(1.15, terms=2)))
    fit.command(corpus=str(text), max_lag=32, channels=4, out=tmp_path / "out", figure=False)
    assert pipe.arrived["fit"] == f"{text}: it decays\n\n"


def test_the_gallery_shows_its_table_before_it_writes_and_draws(
    pipe: Pipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", pipe.stream)
    monkeypatch.setattr(gallery, "save_json", pipe.look("json"))
    monkeypatch.setattr(gallery, "save_figure", pipe.look("figure"))
    gallery.gallery(max_lag=64, out=tmp_path)
    assert "kernels at initialisation against" in pipe.arrived["json"]
    assert pipe.arrived["figure"].endswith(f"\nwritten: {tmp_path / 'gallery.json'}\n")


def test_measure_shows_each_corpus_before_the_next_and_all_before_figures(
    pipe: Pipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", pipe.stream)
    names = []
    for name in ("one", "two"):
        path = tmp_path / name
        path.write_bytes(bytes(range(97, 123)) * 400 + name.encode())
        names.append(str(path))
    arrived: list[str] = []
    monkeypatch.setattr(
        measure, "save_json", lambda *_: arrived.append(pipe.bytes.getvalue().decode())
    )
    monkeypatch.setattr(measure, "comparison_table", lambda _: "all of them")
    monkeypatch.setattr(measure, "save_figures", pipe.look("figures"))
    measure.command(tuple(names), max_lag=8, lags=(1, 8), blocks=4, out=tmp_path / "out")
    assert [text.count("verdict: ") for text in arrived] == [1, 2]
    written = f"\nwritten: {tmp_path / 'out' / 'measure.json'}\n"
    assert pipe.arrived["figures"].endswith(f"all of them\n{written}")


def test_judge_shows_its_verdict_before_it_writes(
    pipe: Pipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", pipe.stream)
    rows = tmp_path / "rows.csv"
    rows.write_text("arm,seed,value\na,0,1.5\nb,0,2.5\na,1,1.6\nb,1,2.6\n")
    monkeypatch.setattr(judge, "save_json", pipe.look("json"))
    judge.command(rows, out=tmp_path / "out")
    assert pipe.arrived["json"].count("\n") > 3
    assert "written" not in pipe.arrived["json"]


def test_the_report_shows_its_text_before_it_draws(
    pipe: Pipe,
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


def test_an_experiment_says_what_it_took_from_a_record_before_it_trains(
    pipe: Pipe, tiny_spec: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", pipe.stream)
    spec = load_spec(tiny_spec())
    monkeypatch.setattr(experiment, "restore", lambda *_: 3)
    monkeypatch.setattr(experiment, "_train", pipe.look("train"))
    record = tmp_path / "record"
    experiment.command(spec, out=tmp_path / "out", record=record)
    assert pipe.arrived["train"] == f"tiny: 3 runs taken from {record}\n"
