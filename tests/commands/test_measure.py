"""python -m plkernel.measure: what is shown before the next work, and where files go."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plkernel.commands import measure


def test_measure_shows_each_corpus_before_the_next_and_all_before_figures(
    pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


def test_a_file_in_the_place_of_the_folder_is_refused_before_any_work(
    blocked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_read", lambda *_, **__: pytest.fail("work"))
    with pytest.raises(OSError, match=r"out .*cannot be written"):
        measure.command(("stdlib",), out=blocked)


def test_figures_of_long_names_are_named_by_their_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where these are equal, by a number behind them."""
    names: list[str] = []
    monkeypatch.setattr(measure, "save_figure", lambda _, name, *__: names.append(name))
    paths = [f"{folder}/{'n' * 251}.txt" for folder in ("one", "two")]
    results = [
        SimpleNamespace(corpus=SimpleNamespace(name=name), plot=None)
        for name in (*paths, "ä\udcff")
    ]
    measure.save_figures(results, tmp_path, ("png",))  # type: ignore[arg-type]
    end = f"{'n' * 196}.txt"
    assert names == [end, f"{end}-2", "ä", "comparison"]


def test_a_file_that_is_read_is_not_written(tmp_path: Path) -> None:
    text = tmp_path / "measure.json"
    text.write_text("mine")
    with pytest.raises(ValueError, match="out must be another file than those that are read"):
        measure.command((str(text),), out=tmp_path)
    assert text.read_text() == "mine"
