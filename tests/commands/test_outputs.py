"""What a command writes is not put where it reads its corpus from."""

from collections.abc import Callable
from pathlib import Path

import pytest

import plkernel
from plkernel.commands import experiment, fit, inspect, measure, probe, train, trial
from plkernel.config.reading import load_spec


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "text.txt").write_text("some words " * 500)
    return folder


def test_results_are_not_written_into_the_folder_that_is_read(
    corpus: Path, tmp_path: Path, tiny_spec: Callable[..., Path]
) -> None:
    """The next call would measure or train on them."""
    spec = load_spec(tiny_spec(corpus=str(corpus)))
    inside = corpus / "results"
    name = str(corpus)
    calls: tuple[Callable[[], object], ...] = (
        lambda: measure.command((name,), out=inside),
        lambda: fit.command(corpus=name, out=inside),
        lambda: probe.probe(tmp_path, text=name, json=inside / "probe.json"),
        lambda: inspect.command(tmp_path, text=name, figure=inside / "inspect.png"),
        lambda: inspect.command(tmp_path, corpus=name, json=inside / "inspect.json"),
        lambda: train.command(spec, out=inside),
        lambda: experiment.command(spec, out=inside),
        lambda: trial.command(name, out=inside),
        lambda: plkernel.run_study(spec, inside),
        lambda: plkernel.trial(name, inside),
    )
    for call in calls:
        with pytest.raises(ValueError, match="must lie outside of the corpus"):
            call()
    assert [item.name for item in corpus.iterdir()] == ["text.txt"]


def test_a_folder_is_measured_from_within(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(corpus)
    printed = []
    for _ in range(2):
        measure.command((".",), max_lag=20)
        printed.append(capsys.readouterr().out)
    assert "5,500 bytes" in printed[0]
    assert printed[0] == printed[1]
