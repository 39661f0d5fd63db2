"""Between two evaluations a run asks no device for a number; what it reads then is what it would have read."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from plkernel.config.reading import load_spec
from plkernel.data.windows import StepWindows, training_windows
from plkernel.training.loop import MOST_UNREAD, Training, prepare

SpecWriter = Callable[..., Path]
MODELS = {
    "ssm": "",
    "patches": '[model.patching]\nsize = 2\nmode = "causal"\n',
    "finch": '[model]\nkind = "rwkv6"\nhead_size = 8\n',
}
READING = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__", "__array__")
"""Methods of a tensor that wait for its device."""
READS = ("_local_scalar_dense", "is_nonzero", "nonzero", "equal", "masked_select", "unique", "_unique2")
"""Operators that do, whatever calls them; an index by a mask is a nonzero."""


class Waits(TorchDispatchMode):
    """Counts what would have the host wait for a GPU, were the tensors there: values read, and copies to the host.

    Not what our own kernels do within: those for a CPU read its memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.within = False

    def note(self, name: str) -> None:
        if not self.within:
            self.found.append(name)

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operator._schema.name.removeprefix("aten::")
        masks = name.startswith("index") and any(isinstance(x, list) and _masked(x) for x in args)
        if name in READS or masks:
            self.note(name)
        self.within = name.startswith("plkernel::")
        try:
            return operator(*args, **(kwargs or {}))
        finally:
            self.within = False


def _masked(indices: list[Any]) -> bool:
    return any(isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in indices)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], list[str]]:
    """What a call waits for."""

    def count(call: Callable[[], object]) -> list[str]:
        with monkeypatch.context() as patch, Waits() as mode:
            for name in READING:
                patch.setattr(torch.Tensor, name, _noted(name, mode))
            call()
        return mode.found

    return count


def _noted(name: str, mode: Waits) -> Any:
    method = getattr(torch.Tensor, name)

    def noting(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        mode.note(name)
        return method(self, *args, **kwargs)

    return noting


def opened(tiny_spec: SpecWriter, kind: str, out: Path, seed: int = 0, **train: object) -> Training:
    path = tiny_spec(**train)
    text = path.read_text()
    if kind == "finch":
        text = text.replace("[model]\n", MODELS[kind]).replace('projection = "published"\n', "")
    else:
        text += MODELS[kind]
    path.write_text(text)
    return Training(prepare(load_spec(path), "uniform", seed, out))


@pytest.mark.parametrize("kind", MODELS)
def test_no_step_waits(tiny_spec: SpecWriter, tmp_path: Path, kind: str, waits: Callable[..., list[str]]) -> None:
    training = opened(tiny_spec, kind, tmp_path / "out", l2wrap=1e-4)
    training.step()
    assert waits(lambda: [training.step() for _ in range(3)]) == []
    assert waits(training.settle) == ["tolist"], "all losses at once"
    assert training.progress.loss_count == 4


def test_what_waits_is_counted(waits: Callable[..., list[str]]) -> None:
    x = torch.arange(3.0)
    for call in (
        lambda: x.sum().item(),
        lambda: float(x.sum()),
        lambda: x.cpu(),
        lambda: x.numpy(),
        lambda: x[x > 1],
        lambda: bool(x.any()),
        lambda: torch.equal(x, x),
    ):
        assert waits(call), call


def test_losses_are_added_as_if_each_had_been_read(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    training = opened(tiny_spec, "ssm", tmp_path / "out", steps=MOST_UNREAD + 10)
    values = torch.rand(MOST_UNREAD + 3, generator=torch.Generator().manual_seed(0))
    for value in values:
        training.stepped(value)
    assert len(training.unread) < 10
    training.settle()
    total = 0.0
    for value in values.tolist():
        total += value
    assert training.progress.loss_sum == total
    assert (training.progress.step, training.progress.loss_count) == (len(values),) * 2
    training.settle()
    assert training.progress.loss_sum == total


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_first_loss_that_is_no_number_is_named(tiny_spec: SpecWriter, tmp_path: Path, value: float) -> None:
    training = opened(tiny_spec, "ssm", tmp_path / "out")
    for loss in (1.0, 2.0, value, math.nan, 3.0):
        training.stepped(torch.tensor(loss))
    with pytest.raises(FloatingPointError, match=f"diverged: {value} at step 3; lower train.learning_rate"):
        training.settle()


def test_windows_drawn_ahead_are_those_of_their_step() -> None:
    data = np.random.default_rng(0).integers(0, 256, 300, np.uint8)
    windows = StepWindows(data, 16, 3, 7, torch.device("cpu"), ahead=4)
    for step in (5, 6, 7, 8, 9, 20, 3, 4, 2):
        found = windows.at(step)
        assert found.dtype == torch.int64
        assert torch.equal(found, training_windows(data, 16, 3, 7, step))
