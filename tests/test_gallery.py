"""python -m plkernel.gallery: the table, the JSON behind it, and one line for every mistake."""

import json
from pathlib import Path

import pytest

from plkernel.analysis.figures import style
from plkernel.analysis.gallery import initialisations
from plkernel.commands.gallery import gallery

Capture = pytest.CaptureFixture[str]


def test_the_table_names_every_source_and_holds_the_figures(
    tmp_path: Path, capsys: Capture
) -> None:
    gallery(max_lag=512, out=tmp_path, figure=False)
    text = capsys.readouterr().out
    assert text.endswith(f"\nwritten: {tmp_path / 'gallery.json'}\n")
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert all(rows[item.name].split()[-1] in item.origin["source"] for item in initialisations())
    assert "slopes on lags 4..128; t**-1.15 itself falls to 1% at lag 55" in text
    assert (rows["gla"].split()[1], rows["gla"].split()[7]) == ("16", "107")


def test_json_holds_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs give the same bytes."""
    monkeypatch.setattr(style, "rendered", lambda figure, kinds: dict.fromkeys(kinds, b"drawn"))
    for folder in ("one", "two"):
        gallery(
            beta=1.0,
            max_lag=256,
            out=tmp_path / folder,
            figure=folder == "one",
            formats=("pdf", "svg"),
        )
    one, two = (tmp_path / folder for folder in ("one", "two"))
    assert {path.suffix for path in one.glob("gallery.*")} == {".json", ".pdf", ".svg"}
    assert (one / "gallery.json").read_bytes() == (two / "gallery.json").read_bytes()
    values = json.loads((one / "gallery.json").read_text())
    assert (values["beta"], values["max_lag"], values["slope_lags"]) == (1.0, 256, [4.0, 64.0])
    starts = {
        entry["initialisation"]["name"]: entry["initialisation"] for entry in values["entries"]
    }
    assert starts["lru"]["half_lives"] == [0.0, None], "endless"
    assert "layers 1, 13 and 24" in starts["rwkv-first"]["origin"]["assumed"]
