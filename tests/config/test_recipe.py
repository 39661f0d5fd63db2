"""Runs with the options of recipe = "blinkdl" and dropout: masks, evaluation and resume."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from plkernel.config.reading import load_spec
from plkernel.config.study import Spec
from plkernel.training.evaluate import bits_per_byte
from plkernel.training.loop import Training, prepare, run_training

CPU = torch.device("cpu")


@pytest.fixture
def rwkv_spec(tiny_spec: Callable[..., Path]) -> Callable[..., Spec]:
    """The tiny spec with a Finch of one arm; keyword arguments replace values of [train]."""

    def make(**train: object) -> Spec:
        path = tiny_spec(**train)
        text = path.read_text().replace("[model]", '[model]\nkind = "rwkv6"\nhead_size = 8')
        path.write_text(text.partition("[arms.power-law]")[0])
        return load_spec(path)

    return make


def metrics(spec: Spec, out: Path) -> bytes:
    run_training(prepare(spec, "uniform", 0, out), progress_bar=False)
    return (out / "uniform" / "seed-0" / "metrics.jsonl").read_bytes()


def test_a_run_with_recipe_and_dropout_resumes_to_the_same_bytes(
    rwkv_spec: Callable[..., Spec], tmp_path: Path, stopped: Callable[..., Path]
) -> None:
    spec = rwkv_spec(recipe="blinkdl", dropout=0.2, warmup=2)
    whole = metrics(spec, tmp_path / "whole")
    stopped(spec, "uniform", tmp_path / "cut", 6)
    torch.rand(7)  # the state of the global generator does not matter
    assert metrics(spec, tmp_path / "cut") == whole
    assert metrics(rwkv_spec(recipe="blinkdl", warmup=2), tmp_path / "without") != whole
    rows = [json.loads(line) for line in whole.splitlines()]
    assert rows[-1]["val_bpb"] < rows[0]["val_bpb"] - 0.5


def test_evaluation_drops_nothing(rwkv_spec: Callable[..., Spec], tmp_path: Path) -> None:
    plain, dropping = (
        Training(prepare(rwkv_spec(dropout=share), "uniform", 0, tmp_path / str(share))) for share in (0.0, 0.5)
    )
    scores = [bits_per_byte(run.model.train(), run.validation, 2, CPU) for run in (plain, dropping)]
    assert scores[0] == scores[1]
    for run in (plain, dropping):
        run.step()
        run.settle()
        assert run.model.training
    assert plain.progress.loss_sum != dropping.progress.loss_sum
