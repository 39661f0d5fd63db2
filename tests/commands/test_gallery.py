"""python -m plkernel.gallery: what is shown before the next work, and where files go."""

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


def test_a_file_in_the_place_of_the_folder_is_refused_before_any_work(
    blocked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "initialisations", lambda *_, **__: pytest.fail("work"))
    with pytest.raises(OSError, match=r"out .*cannot be written"):
        gallery.gallery(out=blocked)
