"""Bits per byte beyond the length of training: by position, and of reading on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plkernel.commands.experiment import forecast
from plkernel.config.reading import load_spec, parse_spec
from plkernel.config.schema import TrainSpec
from plkernel.data.windows import fixed_windows
from plkernel.models.ssm import SSM
from plkernel.study.schedule import search_of
from plkernel.training import check
from plkernel.training.checkpoint import load_checkpoint
from plkernel.training.evaluate import bits_per_byte, reach
from plkernel.training.loop import prepare, run_training

SpecWriter = Callable[..., Path]
CPU = torch.device("cpu")
ROUNDING = 256 * 2.0**-23
"""Of a sum of 256 numbers in float32, as in a softmax over bytes, and of means of fewer."""


def test_a_run_states_bits_by_position_to_train_beyond(
    tiny_spec: SpecWriter, tmp_path: Path
) -> None:
    """Of windows of four contexts: the mean over positions is that of one pass over them."""
    spec = load_spec(tiny_spec(beyond=4, test_windows=7))
    task = prepare(spec, "uniform", 0, tmp_path / "out")
    found = run_training(task, progress_bar=False)["beyond"]
    assert (found["windows"], found["context"]) == (2, 32), "as many bytes as seven windows"
    positions = found["positions"]
    assert positions["given"] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert found["reading_on"]["given"] == [64, 128]

    model = SSM(task.prepared.config)  # type: ignore[arg-type]
    load_checkpoint(task.folder.checkpoint, model)
    windows = fixed_windows(task.splits.test, 128, 2)
    sizes = np.diff([0, *positions["given"]])
    mean = np.sum(sizes * positions["bpb"]) / 128
    assert mean == pytest.approx(bits_per_byte(model, windows, 1, CPU), rel=ROUNDING)
    near = fixed_windows(task.splits.test, 128, 2)[:, :33]
    inside = np.sum(sizes[:6] * positions["bpb"][:6]) / 32
    assert inside == pytest.approx(bits_per_byte(model, near, 1, CPU), rel=ROUNDING)


def test_reading_on_is_the_loss_less_that_of_a_model_that_starts_anew() -> None:
    """A model that knows the number of bytes before it and is worse by a bit behind the context.

    Started anew it never gets there, so that reading on costs one bit at every position.
    """
    context = 8

    def predict(tokens: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(*tokens.shape, 256)
        # One symbol of 256 is right with 1/2, 1/4 behind the context.
        for lead, columns in ((255.0, slice(0, context)), (255 / 3, slice(context, None))):
            logits[:, columns, 7] = float(np.log(lead))
        return logits

    text = np.full(500, 7, np.uint8)
    train = TrainSpec(steps=1, context=context, beyond=4, test_windows=10)
    found = reach(predict, text, train, 4)
    assert found["windows"] == 3
    assert found["positions"]["bpb"] == pytest.approx([1.0] * 4 + [2.0] * 2, rel=ROUNDING)
    assert found["reading_on"]["bpb"] == pytest.approx([1.0, 1.0], rel=ROUNDING)


def test_nothing_is_measured_unless_asked_for(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    """And what is measured changes neither rows nor the other figures."""
    found = []
    for beyond in (None, 1, 2):
        spec = load_spec(tiny_spec(beyond=beyond))
        task = prepare(spec, "uniform", 0, tmp_path / str(beyond))
        result = run_training(task, progress_bar=False)
        assert ("beyond" in result) == (beyond == 2)
        rows = (task.folder.path / "metrics.jsonl").read_bytes()
        found.append((rows, {name: result[name] for name in ("test_bpb", "final_val_bpb")}))
    assert found[0] == found[1] == found[2]


def test_a_search_measures_nothing_beyond(tiny_spec: SpecWriter) -> None:
    head = "[tuning]\nrates = [1e-3, 1e-2]\n"
    spec = load_spec(tiny_spec(head=head, learning_rate=None, beyond=4))
    assert search_of(spec).train.beyond == 1
    plain = load_spec(tiny_spec(head=head, learning_rate=None))
    assert search_of(plain).train.beyond is None, "folders of earlier searches go on"


def test_a_test_split_that_is_too_short_is_refused_before_anything_runs(
    tiny_spec: SpecWriter, tmp_path: Path
) -> None:
    spec = load_spec(tiny_spec(beyond=1024))
    message = r"the test split of corpus .* must hold one window of context \* beyond \+ 1 = 32769"
    with pytest.raises(ValueError, match=message):
        prepare(spec, "uniform", 0, tmp_path / "out")
    with pytest.raises(ValueError, match=message):
        forecast(spec, [], 1)
    assert not (tmp_path / "out").exists()


class Bounded(torch.nn.Module):
    """Logits from the byte and its position, of at most so many positions."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.bytes = torch.nn.Embedding(256, 256)
        self.positions = torch.nn.Embedding(config["positions"], 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.bytes(tokens)
        return logits + self.positions(torch.arange(tokens.shape[1]))


@pytest.mark.parametrize(
    ("positions", "beyond", "corpus", "is_refused"),
    [
        (32, None, "stdlib", False),
        (32, 2, "stdlib", True),
        (64, 2, "stdlib", False),
        (64, None, "synthetic:recall,pairs=8,length=32", True),
        (256, None, "synthetic:recall,pairs=8,length=32", False),
    ],
)
def test_a_model_of_somebody_else_must_take_the_longest_windows(
    positions: int, beyond: int | None, corpus: str, is_refused: bool
) -> None:
    values = {
        "name": "bounded",
        "baseline": "a",
        "seeds": [0],
        "corpus": {"name": corpus},
        "model": {"kind": f"{__name__}:Bounded", "config": {"positions": positions}},
        "train": {"context": 32, "batch": 2, "steps": 2, "beyond": beyond, "device": "cpu"},
        "arms": {"a": {}},
    }
    spec = parse_spec(values, "here", trusted=True)
    if not is_refused:
        check(spec.condition("a"))
        return
    longest = 32 * (beyond or 8)
    with pytest.raises(ValueError, match=f"a window of {longest} bytes, as train.beyond asks"):
        check(spec.condition("a"))
