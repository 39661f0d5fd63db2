"""plkernel.probe and plkernel.generate on a run of somebody else's model: after consent, and never before."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from plkernel.commands.generate import generate
from plkernel.commands.probe import probe
from plkernel.common import cli
from plkernel.common.files import read_lines
from plkernel.config.reading import load_spec
from plkernel.memory.foreign import Foreign
from plkernel.training import check
from plkernel.training.checkpoint import open_any_model
from plkernel.training.generation import Rereading
from plkernel.training.loop import prepare, run_training

KIND = "somebodys.models:Recurrent"
CONTEXT = 32


@pytest.fixture
def run(foreign_spec: Callable[..., Path], package: Path, tmp_path: Path) -> Path:
    """The folder of a run, whose module is imported but has left no trace yet."""
    task = prepare(load_spec(foreign_spec(steps=6, eval_every=3), check, trusted=True), "uniform", 0, tmp_path / "out")
    run_training(task, progress_bar=False)
    (package / "imported").unlink()
    return task.folder.path


@pytest.mark.parametrize("command", [probe, generate])
def test_without_consent_it_is_one_line(
    command: Callable[..., None], run: Path, package: Path, forgotten: Callable[[], None], capsys: Any
) -> None:
    forgotten()
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        cli.main(command, [str(run)])
    output, error = capsys.readouterr()
    assert (stop.value.code, output, error.count("\n")) == (cli.EXIT_BAD_INPUT, "", 1)
    assert f"its model needs other people's code, kind '{KIND}'" in error
    assert error.strip().endswith("read it, then say --trust-code")
    assert not (package / "imported").exists()


def test_it_is_probed_after_consent(run: Path, tmp_path: Path) -> None:
    """On the windows of its last evaluation it has the bits per byte of its last row."""
    cli.main(probe, [str(run), "--trust-code", "--windows", "4", "--json", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text())
    last = read_lines(run / "metrics.jsonl")[-1]
    assert found["bits_per_token"] == pytest.approx(last["val_bpb"], rel=1e-6)
    assert (found["unit"], found["context"]) == ("byte", CONTEXT)


def test_it_speaks_after_consent(run: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """At temperature 0 every byte is the likeliest after the last 32, longer ago than which nothing counts."""
    model, text = open_any_model(run, True), list(b"def f(")
    with torch.no_grad():
        for _ in range(40):
            text.append(int(model(torch.tensor([text[-CONTEXT:]]))[0, -1].argmax()))
    capfdbinary.readouterr()
    options = ["--prompt", "def f(", "--bytes", "40", "--temperature", "0", "--trust-code"]
    cli.main(generate, [str(run), *options])
    assert capfdbinary.readouterr() == (bytes(text[6:]), b"")


def test_a_patch_that_is_not_full_is_filled_up() -> None:
    """A model that takes multiples of 4 bytes alone: its logits after 1, 3, 4 and 9 of them."""

    class Quads(nn.Module):
        patch = 4

        def forward(self, x: Tensor) -> Tensor:
            return x.unflatten(1, (-1, 4)).flatten(1).cumsum(1)[..., None].expand(-1, -1, 256).float()

    reader = Rereading(Foreign("somebodys:Quads", Quads()), 8)
    state, sums = reader.initial_state(1), []
    for part in ([1], [1, 1], [1], [1] * 5):
        logits, state = reader.resume(torch.tensor([part]), state)
        sums.append(float(logits[0, -1, 0]))
    assert logits.shape == (1, 1, 256)
    assert sums == [1, 3, 4, 8]
