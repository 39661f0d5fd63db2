"""Runs of plkernel, inspected: the figures of their records, at initialisation and at the end."""

import json
import operator
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plkernel import evaluate, load_run
from plkernel.commands.inspect import command as inspect
from plkernel.common.files import load_json, read_lines
from plkernel.config.condition import resolve
from plkernel.config.reading import load_spec, parse_spec
from plkernel.config.schema import ModelSpec, TrainSpec
from plkernel.config.spec import Spec
from plkernel.data.corpora import load
from plkernel.decays.memory import Memory
from plkernel.probing.runs import (
    View,
    at_initialisation,
    held_out_windows,
    of_run,
    render,
    validation_text,
)
from plkernel.study.schedule import _ending
from plkernel.study.status import states_of
from plkernel.training.checkpoint import open_model, save_checkpoint
from plkernel.training.folder import RunFolder, RunProgress
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
    assert found["findings"] == []
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


def a_time(**values: Any) -> dict[str, Any]:
    """The figures of two blocks at one time."""
    lives = {"shortest": 1.25, "median": 99.94, "longest": 1000.4}
    seen = {
        "loss": 2.5,
        "logit_min": -3.25,
        "logit_max": 4.0,
        "largest_probability": 0.25,
        "peak_probability": 0.75,
        "entropy": 1.5,
        "saturated_share": 0.125,
    }
    return {
        "half_lives": [lives, {**lives, "longest": 999.6}],
        "kernel": {"exponents": [1.0, 2.0], "exponents_over_lags": [4.0, 32.0]},
        "bits_per_byte": 3.5,
        "saturation": seen,
        **values,
    }


def a_view(values: dict[str, Any]) -> View:
    lags = 2.0 ** np.arange(6)
    return View(Memory(np.ones((1, 2, 7)), lags, np.ones((1, 2, 6))), values)


def rows_of(part: str) -> list[list[str]]:
    return [re.split(r" {2,}", line.strip()) for line in part.splitlines()]


def test_a_run_is_shown_block_by_block_and_as_a_whole() -> None:
    before = a_time(bits_per_byte=8.0, amplification=[1.0, 4.0])
    said = render(a_view(before), a_view(a_time()), ", as published")
    blocks, slopes, summary = said.split("\n\n")
    assert blocks.startswith("half-lives in bytes: shortest / median / longest\n")
    assert rows_of(blocks)[3:] == [
        ["0", "1.25 / 99.9 / 1000", "1.25 / 99.9 / 1000", "1.000", "-"],
        ["1", "1.25 / 99.9 / 1e+03", "1.25 / 99.9 / 1e+03", "4.000", "-"],
    ]
    title, _, _, *rows = slopes.splitlines()
    assert title == "kernels fall as t**-x over lags 4 to 32 bytes:"
    assert [row.split() for row in rows] == [["0", "1.000", "1.000"], ["1", "2.000", "2.000"]]
    table = {row[0]: row[1:] for row in rows_of(summary)[2:]}
    assert table == {
        "bits per byte, as published": ["8.0000", "3.5000"],
        "loss in nats (uniform: 5.545)": ["2.500", "2.500"],
        "logits": ["-3.2 .. +4.0", "-3.2 .. +4.0"],
        "largest probability, mean": ["0.250", "0.250"],
        "largest probability, maximum": ["0.750", "0.750"],
        "entropy in nats (uniform: 5.545)": ["1.500", "1.500"],
        "saturated positions": ["12.5%", "12.5%"],
        "amplification per block, geometric mean": ["2.000", "-"],
    }


def test_a_run_without_its_initialisation_has_dashes() -> None:
    now = a_time()
    now["kernel"] = {"exponents": [], "exponents_over_lags": None}
    blocks, summary = render(None, a_view(now)).split("\n\n")
    lives = "1.25 / 99.9 / 1000"
    assert rows_of(blocks)[3] == ["0", "-", lives], "amplification is not known of this model"
    assert rows_of(blocks)[4][1] == "-"
    assert {row[1] for row in rows_of(summary)[2:]} == {"-"}
    assert "amplification" not in summary
    none = render(None, a_view(a_time()))
    assert "x at initialisation" in none
    assert [row[1] for row in rows_of(none.split("\n\n")[1])[3:]] == ["-", "-"]


def test_exponents_that_are_no_numbers_are_dashes() -> None:
    now = a_time(kernel={"exponents": [np.nan, np.inf], "exponents_over_lags": [4.0, 32.0]})
    _, slopes, _ = render(None, a_view(now)).split("\n\n")
    assert [row[2] for row in rows_of(slopes)[3:]] == ["-", "-"]


@pytest.mark.parametrize(("number", "kind"), [(np.nan, "NaN"), (-np.inf, "-inf")])
def test_a_diverged_run_says_in_which_tensors_it_is_no_number(
    trained: Callable[[str], Path], number: float, kind: str, recwarn: pytest.WarningsRecorder
) -> None:
    folder = trained("ssm")
    model, config, _ = open_model(folder)
    rates = model.recurrences()[0].log_rate
    rates.data.fill_(number)
    save_checkpoint(folder / "checkpoint.safetensors", model, None, RunProgress(), config)
    parts, values, *_ = of_run(folder, None, 2)
    name = "model.blocks.0.ssm.log_rate"
    seen = f"{rates.numel()} of {rates.numel()} numbers; training has diverged"
    assert parts[-1] == f"wrong: {kind}: {name}: {seen}"
    assert [(one["name"], one["tensor"]) for one in values["findings"]] == [(kind, name)]
    assert not recwarn.list


def test_a_run_on_recall_is_told_by_its_answers() -> None:
    now = a_time(bits_per_answer=1.25, val_accuracy=0.875, half_lives_at=512.0)
    del now["bits_per_byte"]
    now["kernel"]["measured_exponents"] = [3.0, 4.0]
    said = render(None, a_view(now), ", no mean")
    assert "half-lives and kernels are those at byte 512: decays slow down" in said
    assert "; measured with erasing, which kernels leave out:" in said
    summary = {row[0]: row[1:] for row in rows_of(said.rpartition("\n\n")[2])[2:]}
    assert summary["bits per answer, no mean"] == ["-", "1.2500"]
    assert summary["answers right"] == ["-", "87.5%"]
    assert summary["saturated answers"] == ["-", "12.5%"]
    assert "bits per byte" not in said


def test_windows_of_a_text_are_those_of_a_run_and_of_recall_whole_sequences() -> None:
    text = np.arange(100, dtype=np.uint8)
    windows, asked = held_out_windows("stdlib", text, 9, 3)
    assert (windows.shape, asked) == ((3, 10), None)
    name = "synthetic:recall,pairs=2,length=8"
    windows, asked = held_out_windows(name, text, 9, 3)
    assert windows.shape == (3, 9)
    assert asked is not None
    assert held_out_windows(name, text, 9, 999)[0].shape == (12, 9), "as many as there are"


def test_the_validation_text_is_that_of_the_run_or_another(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(250)) * 80)
    corpus = load(path)
    config = {
        "corpus": {"name": str(path), "sha256": corpus.sha256, "validation": 0.1, "test": 0.2},
        "train": {"context": 32},
    }
    name, data, context = validation_text(config, None)
    assert (name, context) == (str(path), 32)
    assert data.tolist() == corpus.splits(0.1, 0.2).validation.tolist()
    name, data, context = validation_text({}, str(path))
    assert (data.size, context) == (1000, 512)
    with pytest.raises(
        ValueError, match="text must be given for a model that was not trained here"
    ):
        validation_text({}, None, "text")
    with pytest.raises(ValueError, match=r"as in --corpus stdlib$"):
        validation_text({}, None)
    with pytest.raises(ValueError, match=r'as in text="stdlib"$'):
        validation_text({}, None, "text", in_python=True)
    other = {**config, "corpus": {**config["corpus"], "sha256": "0"}}
    with pytest.raises(ValueError, match="must be what the run was trained on, got one with"):
        validation_text(other, None)
    assert validation_text(other, str(path))[1].size == 1000
    long = {**config, "train": {"context": 2000}}
    with pytest.raises(ValueError, match=r"the validation split of corpus .* must hold one window"):
        validation_text(long, None)
    away = {**config, "corpus": {**config["corpus"], "name": "text.txt"}}
    with pytest.raises(
        ValueError, match=r"where the run was trained: .* another text with --text$"
    ):
        validation_text(away, None, "text")
    for name in ("stdlibs:", str(tmp_path / "none.txt")):
        with pytest.raises(ValueError, match="corpus") as told:
            validation_text(config, name)
        assert "where the run was trained" not in str(told.value)


def test_a_window_of_recall_is_a_sequence_whatever_the_context_of_the_run(tmp_path: Path) -> None:
    """A twentieth of 2,000 bytes is one sequence of 100 bytes, and none of 102."""
    config = {"train": {"context": 512}}
    name = "synthetic:recall,pairs=2,length=100,bytes=2000"
    _, data, length = validation_text(config, name)
    assert (data.size, length) == (100, 100)
    with pytest.raises(ValueError, match=r"must hold one sequence of length = 102 bytes or more"):
        validation_text(config, name.replace("length=100", "length=102"))


def test_a_model_is_begun_again_unless_others_had_a_part_in_it() -> None:
    condition = resolve(ModelSpec(dim=8, layers=1), train=TrainSpec(steps=1))
    config = condition.config
    assert at_initialisation(config) is None, "it has no seed"
    first, again, other = (at_initialisation({**config, "seed": seed}) for seed in (0, 0, 1))
    assert first is not None
    assert again is not None
    assert other is not None
    weights = [one.embedding.weight for one in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    code = {**config, "seed": 0, "arm_options": {**config["arm_options"], "init": "other:init"}}
    assert at_initialisation(code) is None
