"""python -m plkernel.fit: what is shown before the next work, and where files go."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from plkernel.commands import fit


def test_fit_shows_its_table_before_it_writes_and_draws(
    pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", pipe.stream)
    monkeypatch.setattr(fit, "save_json", pipe.look("json"))
    monkeypatch.setattr(fit, "save_figure", pipe.look("figure"))
    fit.command(max_lag=32, terms=2, channels=4, out=tmp_path)
    (told,) = re.findall("Channels written: (.*)", pipe.arrived["json"])
    assert told.startswith("4 log-spaced, gain 'none', coherent kernel t**-1.15 seen by state:")
    # Without a gain the projection is rate**beta: 2000**1.15 is 6254.
    assert ": half-lives 1 to 2000, projection range 6254, R1 / R* / Elog 0." in told
    assert "\nwritten: " not in pipe.arrived["json"]
    assert pipe.arrived["figure"].endswith(f"\nwritten: {tmp_path / 'fit.json'}\n")


def test_fit_says_what_it_measured_before_it_fits(
    pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


def test_a_file_in_the_place_of_the_folder_is_refused_before_any_work(
    blocked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "fit", lambda *_, **__: pytest.fail("work"))
    with pytest.raises(OSError, match=r"out .*cannot be written"):
        fit.command(out=blocked)


def test_a_file_that_is_read_is_not_written(tmp_path: Path) -> None:
    text = tmp_path / "fit.json"
    text.write_text("mine")
    with pytest.raises(ValueError, match="out must be another file than those that are read"):
        fit.command(corpus=str(text), out=tmp_path)
    assert text.read_text() == "mine"
