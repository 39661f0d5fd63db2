"""python -m plkernel.gallery: what is shown before the next work, and where files go."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from plkernel.commands import gallery


def test_the_gallery_shows_its_table_before_it_writes_and_draws(
    pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", pipe.stream)
    monkeypatch.setattr(gallery, "save_json", pipe.look("json"))
    monkeypatch.setattr(gallery, "save_figure", pipe.look("figure"))
    gallery.gallery(max_lag=64, out=tmp_path)
    assert "kernels at initialisation against" in pipe.arrived["json"]
    assert pipe.arrived["figure"].endswith(f"\nwritten: {tmp_path / 'gallery.json'}\n")


def test_the_numbers_of_the_file_stand_under_their_headings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gallery.gallery(max_lag=64, out=tmp_path, figure=False)
    _, table, _, _ = capsys.readouterr().out.split("\n\n")
    header, _, *rows = [re.split(r" {2,}", line.strip()) for line in table.splitlines()]
    entries = json.loads((tmp_path / "gallery.json").read_text())["entries"]
    for row, entry in zip(rows, entries, strict=True):
        shown = dict(zip(header, row, strict=True))
        scores = entry["scores"]
        assert shown.pop("initialisation") == entry["initialisation"]["name"]
        del shown["half-lives"]  # a range in words, which the file has as numbers
        assert shown == {
            "slope": f"{entry['slope']:.2f}",
            "rms": f"{entry['slope_rms']:.2f}",
            "R1": f"{scores['r1']:.3f}",
            "R*": f"{scores['r_star']:.3f}",
            "Elog": f"{scores['e_log']:.2f}",
            "1%": f"{entry['memory']:.0f}",
            "source": entry["initialisation"]["origin"]["source"].split(";")[0],
        }


def test_a_file_in_the_place_of_the_folder_is_refused_before_any_work(
    blocked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "initialisations", lambda *_, **__: pytest.fail("work"))
    with pytest.raises(OSError, match=r"out .*cannot be written"):
        gallery.gallery(out=blocked)
