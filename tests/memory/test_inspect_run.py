"""python -m plkernel.inspect on a run: its figures are those the run recorded, and every mistake is one line."""

import inspect as standard_inspect
import json
import operator
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from plkernel.commands.inspect import inspect
from plkernel.common import cli
from plkernel.common.files import load_json, read_lines
from plkernel.common.layout import METRICS
from plkernel.config.reading import load_spec
from plkernel.models.init import initialise_ as initialise_by_scheme_
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.training.checkpoint import open_model, save_model
from plkernel.training.loop import prepare, run_training

LIBRARY = str(Path(standard_inspect.__file__))


@pytest.fixture
def trained(tiny_spec: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """The folder of a run of the tiny spec, of any kind of model and with any lines in its first arm."""

    def make(kind: str = "rwkv6", arm: str = "") -> Path:
        path = tiny_spec()
        options = "" if kind == "ssm" else f'kind = "{kind}"\nhead_size = 8\n'
        text = path.read_text().replace("[model]\n", f"[model]\n{options}").replace('projection = "published"', "")
        path.write_text(text.replace("[arms.uniform]\n", f"[arms.uniform]\n{arm}\n"))
        run_training(prepare(load_spec(path), "uniform", 0, tmp_path / "out"), progress_bar=False)
        return tmp_path / "out" / "uniform" / "seed-0"

    return make


NAIVE = pytest.param("rwkv5", 'scheme = "rwkv_naive"', marks=pytest.mark.slow)


@pytest.mark.parametrize(("kind", "arm"), [("rwkv6", ""), ("rwkv7", ""), ("ssm", ""), NAIVE])
def test_figures_are_those_of_the_run(
    kind: str, arm: str, trained: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The initialisation rebuilt from seed and spec is the one that was trained, to the last digit of its record."""
    folder = trained(kind, arm)
    before = (folder / "checkpoint.safetensors").read_bytes()
    inspect(folder, windows=4, json=tmp_path / "figures.json", figure=tmp_path / "memory.png")
    assert (folder / "checkpoint.safetensors").read_bytes() == before
    assert not open_model(folder).training
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
    found, rows = load_json(tmp_path / "figures.json"), read_lines(folder / METRICS)
    assert (found["step"], found["windows"], found["context"], found["causal"]) == (12, 4, 32, True)
    for time, row in (("initialisation", rows[0]), ("now", rows[-1])):
        assert found[time]["bits_per_byte"] == row["val_bpb"]
        assert found[time]["saturation"] == row["saturation"]
        assert found[time].get("amplification") == row.get("amplification")
        assert {name: found[time]["kernel"][name] for name in ("lags", "blocks")} == row["kernel"]
        assert found[time]["kernel"]["exponents_over_lags"] == [4, 32]
        for block, quantiles in zip(found[time]["half_lives"], row["half_life_quantiles"], strict=True):
            assert list(block.values()) == [quantiles[0], quantiles[3], quantiles[-1]]
    assert found["truncation"]["given"] == [1, 2, 4, 8, 16, 32]
    assert ("amplification" in rows[0]) == (kind != "ssm")
    text = capsys.readouterr().out
    starting, trained_ = (found[time]["kernel"] for time in ("initialisation", "now"))
    assert ("measured_exponents" in trained_) == (kind == "rwkv7")
    for block in range(2):
        names = ["exponents", *(["measured_exponents"] if kind == "rwkv7" else [])]
        slopes = [f"{time[name][block]:.3f}" for name in names for time in (starting, trained_)]
        assert re.search(rf"^{block} +{' +'.join(slopes)}$", text, re.MULTILINE)
    if kind == "rwkv7":
        assert all(map(operator.gt, starting["measured_exponents"], starting["exponents"])), "erasing forgets faster"
    assert f"{rows[-1]['val_bpb']:.4f}" in text
    assert "step 12; 4 validation windows of 32 bytes" in text


@pytest.mark.parametrize("kind", ["rwkv6", "ssm"])
def test_half_lives_on_a_text(
    kind: str, trained: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, files = trained(kind), [tmp_path / f"found.{ending}" for ending in ("json", "svg")]
    capsys.readouterr()
    options = {"windows": 1, "truncation": 0, "text": LIBRARY, "tokens": 64}
    inspect(folder / "checkpoint.safetensors", json=files[0], figure=files[1], **options)  # type: ignore[arg-type]
    found, said = load_json(files[0]), capsys.readouterr().out
    assert (found["observed"]["unit"], found["observed"]["windows"], found["observed"]["context"]) == ("byte", 2, 32)
    assert ("black: on the text" in files[1].read_text()) == (kind == "rwkv6")
    if kind == "ssm":
        assert f"observed on {LIBRARY}: its decays do not depend on the input" in said
        return
    assert f"in 2 windows of 32 of {LIBRARY}:" in said
    for layer, block in zip(found["observed"]["layers"], found["now"]["half_lives"], strict=True):
        assert layer["static"]["0.5"] == pytest.approx(block["median"], rel=0.2)
        assert layer["static"] != layer["observed"]


def test_a_model_brought_in_has_no_initialisation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = initialise_by_scheme_(RWKV(RWKVConfig(6, 16, 2, 8)), "rwkv_blinkdl", 0)
    save_model(tmp_path / "model", model, "somewhere")
    with pytest.raises(ValueError, match="corpus must be given for a model that was not trained here"):
        inspect(tmp_path / "model")
    inspect(tmp_path / "model", corpus=LIBRARY, windows=2, truncation=0)
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    cells = [[cell.strip() for cell in row if cell] for row in rows]
    assert ["0", "-", "1.88 / 13 / 280", "-", "1.000"] in cells
    assert [row[1] for row in cells if len(row) == 3 and row[0] in ("0", "1")] == ["-", "-"]


def test_mistakes_are_one_line(
    trained: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained("ssm")
    shutil.copytree(folder, tmp_path / "changed")
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "changed" / "config.json").write_text(json.dumps({**config, "seed": 1}))
    (tmp_path / "changed" / "notes.txt").write_text("not a checkpoint")
    text = Path(config["corpus"]["name"])
    text.write_text(text.read_text() + "one line more\n")
    capsys.readouterr()
    for arguments, message in [
        ([tmp_path], "no such file; give the folder of a run"),
        ([folder, "--windows", "0"], "windows must be at least 1, got 0"),
        ([folder, "--corpus", "missing.txt"], "missing.txt"),
        ([folder], "is not what the run was trained on"),
        ([tmp_path / "changed"], "belongs to another run (seed was 0, is now 1)"),
        ([tmp_path / "changed" / "notes.txt"], "name the folder of a run, or a checkpoint in one"),
    ]:
        with pytest.raises(SystemExit) as stop:
            cli.main(inspect, list(map(str, arguments)))
        error = capsys.readouterr().err
        assert (stop.value.code, error.count("\n")) == (2, 1)
        assert message in error
        assert "remove it" not in error
