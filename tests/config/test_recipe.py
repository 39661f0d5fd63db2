"""A run with the options of recipe = "blinkdl" and dropout goes on where it stopped."""

import json
from collections.abc import Callable
from pathlib import Path

import torch

from plkernel.config.reading import load_spec
from plkernel.config.study import Spec
from plkernel.training.loop import prepare, run_training


def test_a_run_with_recipe_and_dropout_resumes_to_the_same_bytes(
    tiny_spec: Callable[..., Path], tmp_path: Path, stopped: Callable[..., Path]
) -> None:
    def finch(**train: object) -> Spec:
        path = tiny_spec(recipe="blinkdl", warmup=2, **train)
        text = path.read_text().replace("[model]", '[model]\nkind = "rwkv6"\nhead_size = 8')
        path.write_text(text.partition("[arms.power-law]")[0])
        return load_spec(path)

    def metrics(spec: Spec, out: Path) -> bytes:
        run_training(prepare(spec, "uniform", 0, out), progress_bar=False)
        return (out / "uniform" / "seed-0" / "metrics.jsonl").read_bytes()

    spec = finch(dropout=0.2)
    whole = metrics(spec, tmp_path / "whole")
    stopped(spec, "uniform", tmp_path / "cut", 6)
    torch.rand(7)  # the state of the global generator does not matter
    assert metrics(spec, tmp_path / "cut") == whole
    assert metrics(finch(), tmp_path / "without") != whole
    rows = [json.loads(line) for line in whole.splitlines()]
    assert rows[-1]["val_bpb"] < rows[0]["val_bpb"] - 0.5
