"""python -m plkernel.gallery: the table, the JSON behind it, and one line for every mistake."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from plkernel.analysis.gallery import initialisations
from plkernel.commands.gallery import gallery, select
from plkernel.common import cli

ENTRIES = initialisations(1.15, 2048)


def test_table_shows_every_initialisation_with_its_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gallery(out=tmp_path, figure=False)
    text = capsys.readouterr().out
    for item in ENTRIES:
        row = next(line for line in text.splitlines() if line.split()[:1] == [item.name])
        assert row.endswith(item.origin.paper)
    assert "slopes on lags 4..512; t**-1.15 itself falls to 1% at lag 55" in text
    assert "formula" not in text


def test_rows_hold_the_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gallery(max_lag=512, only=("exp013-2-ema", "gla"), out=tmp_path, figure=False)
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert rows["exp013-2-ema"][1:6] == ["1..2000", "-1.12", "-1.12", "0.320", "0.997"]
    assert rows["gla"][1] == "16"
    assert rows["gla"][7] == "107"


def test_json_holds_the_table_and_the_channels(tmp_path: Path) -> None:
    """Two runs give the same bytes; a kernel summed from the written channels is that of the entry."""
    for folder in ("one", "two"):
        gallery(beta=1.0, max_lag=256, only=("lru", "mamba", "s5"), out=tmp_path / folder, figure=False)
    for name in ("gallery.json", "channels.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    values = json.loads((tmp_path / "one" / "gallery.json").read_text())
    assert (values["beta"], values["max_lag"], values["slope_lags"]) == (1.0, 256, [4.0, 64.0])
    channels = json.loads((tmp_path / "one" / "channels.json").read_text())
    starts = [entry["initialisation"] for entry in values["entries"]]
    assert (
        sorted(channels) == sorted(start["name"] for start in starts) == ["lru", *(f"mamba-{n}" for n in "123"), "s5"]
    )
    assert {start["half_lives"][1] is None for start in starts if start["name"] == "lru"} == {True}, "endless"
    for item in initialisations(1.0, 256):
        if item.name in channels:
            assert channels[item.name] == {key: list(getattr(item, key)) for key in ("rates", "gains", "shares")}


def test_only_tells_formula_assumptions_and_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gallery(only=("rwkv-first",), out=tmp_path)
    text = capsys.readouterr().out
    assert "rwkv-first (layer 1 of 24): a = exp(-exp(-6 + 5" in text
    assert "assumed: L = 24 layers" in text
    assert "BlinkDL/RWKV-LM: RWKV-v5/src/model.py" in text
    assert {path.name for path in tmp_path.glob("gallery.*")} == {f"gallery.{k}" for k in ("json", "pdf", "png", "svg")}


def test_names_and_their_beginnings_select() -> None:
    names = [item.name for item in select(ENTRIES, ("lru", "mamba", "exp013-1"))]
    assert names == ["mamba-1", "mamba-2", "mamba-3", "lru", "exp013-1-none", "exp013-1-lru", "exp013-1-ema"]
    assert select(ENTRIES, ()) == ENTRIES


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "retnt"], "no initialisation called 'retnt', did you mean 'retnet'?"),
        (["--only", "mamba", "rwkv-fist"], "did you mean 'rwkv-first'?"),
        (["--beta", "0"], "beta must be a positive number"),
        (["--beta", "nan"], "beta must be a positive number"),
        (["--beta", "200"], "falls below 1e-300"),
        (["--max-lag", "31"], "max_lag must be at least 32"),
        (["--max-lag", "65537"], "max_lag must be at most 65536"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        cli.main(gallery, args=arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir()), "nothing is written"


def test_the_command_runs_from_any_folder_and_loads_nothing_heavy(tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "plkernel.gallery", "--only", "mamba", "--no-figure"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert "mamba-2" in result.stdout
    assert (tmp_path / "runs/out/gallery/gallery.json").exists()
    loaded = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "plkernel.analysis.gallery" in loaded
    assert not loaded & {"torch", "matplotlib", "pydantic"}
