"""Runs of plkernel, inspected: the figures of their records, at initialisation and at the end."""

import json
import operator
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from plkernel import evaluate, load_run
from plkernel.commands.inspect import command as inspect
from plkernel.common.files import load_json, read_lines
from plkernel.config.reading import load_spec, parse_spec
from plkernel.config.spec import Spec
from plkernel.probing.runs import validation_text
from plkernel.study.schedule import _ending
from plkernel.study.status import states_of
from plkernel.training.checkpoint import open_model
from plkernel.training.folder import RunFolder
from plkernel.training.loop import prepare, run_training, summary

SpecWriter = Callable[..., Path]


def train(spec: Spec, out: Path, arm: str = "uniform") -> Path:
    run_training(prepare(spec, arm, 0, out), progress_bar=False)
    return out / arm / "seed-0"


@pytest.fixture
def trained(tiny_spec: SpecWriter, tmp_path: Path) -> Callable[[str], Path]:
    """The folder of a run of the tiny spec, of any kind of model."""

    def make(kind: str) -> Path:
        path = tiny_spec()
        options = "" if kind == "ssm" else f'kind = "{kind}"\nhead_size = 8\n'
        text = path.read_text().replace("[model]\n", f"[model]\n{options}")
        path.write_text(text.replace('projection = "published"', ""))
        return train(load_spec(path), tmp_path / "out")

    return make


@pytest.mark.parametrize("kind", [pytest.param("rwkv6", marks=pytest.mark.slow), "rwkv7", "ssm"])
def test_figures_are_those_of_the_run(
    kind: str, trained: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The initialisation rebuilt from seed and spec is the one that was trained, to the last digit
    of its record.
    """
    folder = trained(kind)
    before = (folder / "checkpoint.safetensors").read_bytes()
    picture = tmp_path / "memory.png" if kind == "ssm" else None
    inspect(folder, windows=4, json=tmp_path / "figures.json", figure=picture)
    assert (folder / "checkpoint.safetensors").read_bytes() == before
    assert not open_model(folder)[0].training
    assert picture is None or picture.read_bytes().startswith(b"\x89PNG")
    found, rows = load_json(tmp_path / "figures.json"), read_lines(folder / "metrics.jsonl")
    assert (found["step"], found["windows"], found["context"], found["causal"]) == (12, 4, 32, True)
    for time, row in (("initialisation", rows[0]), ("now", rows[-1])):
        assert found[time]["bits_per_byte"] == row["val_bpb"]
        assert found[time]["saturation"] == row["saturation"]
        assert found[time].get("amplification") == row.get("amplification")
        assert {name: found[time]["kernel"][name] for name in ("lags", "blocks")} == row["kernel"]
        assert found[time]["kernel"]["exponents_over_lags"] == [4, 32]
        for block, quantiles in zip(
            found[time]["half_lives"], row["half_life_quantiles"], strict=True
        ):
            assert list(block.values()) == [quantiles[0], quantiles[3], quantiles[-1]]
    assert ("amplification" in rows[0]) == (kind != "ssm")
    text = capsys.readouterr().out
    starting, now = (found[time]["kernel"] for time in ("initialisation", "now"))
    assert ("measured_exponents" in now) == (kind == "rwkv7")
    for block in range(2):
        names = ["exponents", *(["measured_exponents"] if kind == "rwkv7" else [])]
        slopes = [f"{time[name][block]:.3f}" for name in names for time in (starting, now)]
        assert re.search(rf"^{block} +{' +'.join(slopes)}$", text, re.MULTILINE)
    if kind == "rwkv7":
        assert all(map(operator.gt, starting["measured_exponents"], starting["exponents"])), (
            "erasing forgets faster"
        )
    assert f"{rows[-1]['val_bpb']:.4f}" in text
    assert "step 12; 4 validation windows of 32 bytes" in text


def test_mistakes_are_one_line(
    trained: Callable[[str], Path], tmp_path: Path, refused: Callable[..., str]
) -> None:
    folder = trained("ssm")
    shutil.copytree(folder, tmp_path / "changed")
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "changed" / "config.json").write_text(json.dumps({**config, "seed": 1}))
    (tmp_path / "empty").mkdir()
    text = Path(config["corpus"]["name"])
    text.write_text(text.read_text() + "one line more\n")
    for arguments, message in [
        ([tmp_path / "empty"], "give the folder of a run that has saved one"),
        ([tmp_path], "changed/checkpoint.safetensors"),
        ([folder, "--windows", "0"], "windows must be at least 1, got 0"),
        ([folder, "--corpus", "missing.txt"], "missing.txt"),
        ([folder], "must be what the run was trained on"),
        ([tmp_path / "changed"], "must be of this run, got another: seed was 0, is now 1"),
    ]:
        assert message in refused(inspect, *arguments)


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        ({"name": 3, "sha256": ""}, "corpus: name"),
        ({"name": "stdlib", "validation": "x"}, "corpus: validation"),
        ([1], "corpus must be a table"),
    ],
)
def test_a_damaged_corpus_of_a_run_is_told_in_our_words(corpus: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        validation_text({"corpus": corpus}, None)
    assert "pydantic" not in str(caught.value)


def test_losses_of_a_run_on_recall_are_called_those_of_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Inspected, it is evaluated as it was in training: on its sequences, answers alone."""
    values = {
        "name": "tiny",
        "baseline": "uniform",
        "seeds": [0],
        "corpus": {"name": "synthetic:recall,pairs=4,length=16,bytes=20k"},
        "model": {"dim": 16},
        "train": {"context": 16, "batch": 4, "steps": 4, "eval_windows": 5, "test_windows": 2},
        "arms": {"uniform": {}},
    }
    spec = parse_spec(values, "here")
    folder = train(spec, tmp_path / "out")
    run = RunFolder(folder)
    assert run.result is not None
    told = capsys.readouterr().err
    told += summary("run", run.result) + _ending(run) + repr(load_run(folder))
    told += states_of(spec, tmp_path / "out", None)[0].note
    inspect(folder, windows=5, json=tmp_path / "figures.json")
    told += capsys.readouterr().out
    assert told.count("bits per answer") == 6
    assert "bits per byte" not in told

    found, rows = load_json(tmp_path / "figures.json"), read_lines(folder / "metrics.jsonl")
    assert (found["windows"], found["context"]) == (5, 16)
    for time, row in (("initialisation", rows[0]), ("now", rows[-1])):
        assert "bits_per_byte" not in found[time]
        assert found[time]["bits_per_answer"] == row["val_bpb"]
        assert found[time]["val_accuracy"] == row["val_accuracy"]
        assert found[time]["saturation"] == row["saturation"]
    with pytest.raises(ValueError, match="text must be given for a run on recall"):
        evaluate(load_run(folder))
    assert evaluate(load_run(folder), bytes(range(200)), windows=2).losses.shape == (2, 16)
