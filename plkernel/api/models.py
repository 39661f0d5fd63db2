"""Models from Python: power laws written into them, what they predict, and how far back they read."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plkernel.analysis.nodes import Nodes
from plkernel.analysis.trained.context import Truncation
from plkernel.analysis.trained.influence import Influence
from plkernel.api.text import Text, read_text
from plkernel.checkpoints.show import Shown, shown
from plkernel.common.files import load_json, read_lines
from plkernel.data.windows import fixed_windows, spread_windows
from plkernel.models.init.power_law import Parametrisation, decays_, projection_
from plkernel.probing.measures import influence as influence_of
from plkernel.records.layout import CONFIG, METRICS
from plkernel.training.build import Model
from plkernel.training.checkpoint import open_model
from plkernel.training.evaluate import Predict, patch_of, predictor, token_losses
from plkernel.training.evaluate import truncation as truncation_of
from plkernel.training.view import validation_text

CONTEXT, BATCH = 512, 4


@dataclass(frozen=True)
class Evaluation:
    """bits_per_byte: the mean of losses (n,T), bits at every predicted symbol; error: its standard error over windows,
    NaN of a single one."""

    bits_per_byte: float
    error: float
    losses: NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Run:
    """A trained model with what its run has written: the folder of a run, or of plkernel.load.

    evaluate, truncation and influence are the functions of those names, with this model, the context of the run and,
    where no text is given, its validation split.
    """

    path: Path

    @cached_property
    def model(self) -> Model:
        """The model, on the CPU and in evaluation mode: bytes (B,T) int64 to logits (B,T,256)."""
        return open_model(self.path)

    @property
    def config(self) -> dict[str, Any]:
        """What config.json says: corpus, model, arm, training."""
        values: dict[str, Any] = load_json(self._folder / CONFIG)
        return values

    @property
    def metrics(self) -> NDArray[Any]:
        """The numbers of every evaluation, a row each, by name: metrics["step"], metrics["val_bpb"]; NaN where none is.

        Of nested figures the name is dotted, saturation.entropy; lists are left out, and stand in metrics.jsonl.
        `pandas.DataFrame(metrics)` takes it. Raises ValueError where the file is damaged; empty where there is none.
        """
        return table([dict(_numbers(row)) for row in read_lines(self._folder / METRICS)])

    def evaluate(self, text: Text | None = None, **options: Any) -> Evaluation:
        """`evaluate` of this model."""
        return evaluate(self, text, **options)

    def truncation(self, text: Text | None = None, **options: Any) -> Truncation:
        """`truncation` of this model."""
        return truncation(self, text, **options)

    def influence(self, text: Text | None = None, **options: Any) -> Influence:
        """`influence` of this model."""
        return influence(self, text, **options)

    @property
    def _folder(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent


def load_run(path: str | Path) -> Run:
    """The run in the folder STUDY/ARM/seed-K, or the model in one of plkernel.load; ValueError where there is none."""
    run = Run(Path(path))
    if not (run._folder / CONFIG).is_file():
        raise ValueError(f"{run._folder}: holds no {CONFIG}; give the folder of a run, STUDY/ARM/seed-K")
    return run


def apply(
    nodes: Nodes,
    decays: Tensor,
    projection: Tensor | None = None,
    *,
    parametrisation: Parametrisation = "log_rate",
    dt_bias: Tensor | float | None = None,
    dim: int = -1,
    match: Nodes | None = None,
) -> None:
    """Write nodes into a layer in place: its decays a = exp(-rate), and slice i of its projection times multiplier i.

    decays           (N,), or with N as its last dimension: filled as `parametrisation` says, log_rate, exp_exp, sigmoid
                     or a_log, which needs dt_bias (`plkernel.models.init.decays_`)
    projection       the matrix that reads the N states, (out, N) as in torch.nn.Linear; None leaves it as it is
    dim              the dimension of `projection` that counts the states
    match            scale so that the output is as large as with these nodes

    Raises ValueError where sizes differ, and where a decay is 0 or 1 in the type of the tensor; the projection is only
    touched after the decays.
    """
    decays_(decays, nodes, parametrisation, dt_bias=dt_bias)
    if projection is not None:
        projection_(projection, nodes, dim=dim, match=match)


def evaluate(
    model: "Run | Model | Predict", text: Text | None = None, *, context: int | None = None, windows: int = 64,
    batch: int = BATCH,
) -> Evaluation:  # fmt: skip
    """Mean of -log2 p(byte | those before it in its window), over disjoint windows evenly spaced over a text.

    model    a `Run`, a model of plkernel, or any callable from tokens (B,T) int64 to logits (B,T,V); causal
    text     bytes, a vector of integers from 0 to 255, or the name of a corpus; of a `Run` its validation split if None
    context  T: a window has T + 1 bytes; that of the run, or 512
    windows  how many at most

    Raises ValueError for a model that sees ahead by its configuration, and a text shorter than a window.
    """
    predict, _, data, length = _opened(model, text, context, windows, batch)
    losses = token_losses(predict, fixed_windows(data, length, windows), batch)
    means = losses.mean(axis=1, dtype=np.float64)
    error = float(means.std(ddof=1) / np.sqrt(means.size)) if means.size > 1 else float("nan")
    return Evaluation(float(means.mean()), error, losses)


def truncation(
    model: "Run | Model | Predict", text: Text | None = None, *, context: int | None = None, windows: int = 256,
    batch: int = BATCH,
) -> Truncation:  # fmt: skip
    """Bits per byte at the same bytes when only the last 1, 2, 4 .. context are given: what far context is worth.

    Arguments as in `evaluate`. Of the result, given (L,) bytes, bpb (L,) and cost (L,) against the whole context.
    """
    predict, step, data, length = _opened(model, text, context, windows, batch)
    return truncation_of(predict, spread_windows(data, length, windows), batch, step=step)


def influence(
    model: "Run | Model | Predict", text: Text | None = None, *, lags: Sequence[int] | None = None,
    context: int | None = None, windows: int = 64, batch: int = BATCH, seed: int = 0,
) -> Influence:  # fmt: skip
    """KL divergence in bits of a prediction from what it is when the token d steps back is another, at lags d.

    lags: ascending, 1 to the context; 1, 2, 4 .. unless given. Other arguments as in `evaluate`. Of the result, lags
    (L,) and bits (L,). As plkernel.probe does; with integer arrays of other alphabets, `plkernel.probing.measures`.
    """
    predict, _, data, length = _opened(model, text, context, windows, batch)
    return influence_of(predict, fixed_windows(data, length, windows), lags, batch, seed=seed)


def read_checkpoint(path: str | Path) -> Shown:
    """The decays of anybody's checkpoint, found by name and read alone: nothing of it is executed.

    path: a folder as on the Hugging Face hub, a .safetensors or .pth file, or hf:OWNER/NAME. Of the result, `layers`
    have rates = -ln a per token, `kernels` (L,T) what an input weighs later, `findings` what is wrong with them.
    Raises ValueError where no decays are known. As plkernel.inspect does.
    """
    return shown(str(path))


def table(rows: Sequence[dict[str, float]]) -> NDArray[Any]:
    """Rows of numbers by name as a structured array (n,) of float64, NaN where a row has none; step and bytes int64."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    kinds = [(name, np.int64 if all(isinstance(row.get(name), int) for row in rows) else np.float64) for name in names]
    return np.array([tuple(row.get(name, np.nan) for name in names) for row in rows], dtype=kinds)


def _numbers(row: dict[str, Any], head: str = "") -> list[tuple[str, float]]:
    """Every number in nested objects, by its dotted name; null is NaN."""
    found: list[tuple[str, float]] = []
    for name, value in row.items():
        if isinstance(value, dict):
            found += _numbers(value, f"{head}{name}.")
        elif value is None or isinstance(value, int | float):
            found.append((f"{head}{name}", np.nan if value is None else value))
    return found


def _opened(
    model: "Run | Model | Predict", text: Text | None, context: int | None, windows: int, batch: int
) -> tuple[Predict, int, NDArray[np.uint8], int]:
    """The model as a callable, the bytes of its patches, the text, and the context."""
    run = model if isinstance(model, Run) else None
    found: Model | Predict = model.model if isinstance(model, Run) else model
    config = run.config if run else {}
    if text is not None:
        data = read_text(text)[1]
    elif run is not None:
        data = validation_text(config, None, "text")[1]
    else:
        raise ValueError("text must be given: bytes, an array, or the name of a corpus such as 'stdlib'")
    length = config.get("train", {}).get("context", CONTEXT) if context is None else context
    for name, value in (("context", length), ("windows", windows), ("batch", batch)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if data.size < length + 1:
        raise ValueError(
            f"text has {data.size:,} bytes, fewer than one window of context + 1 = {length + 1:,}: give a longer one "
            "or a smaller context"
        )
    if isinstance(found, Model):
        return predictor(found, torch.device("cpu")), patch_of(found), data, length
    return found, 1, data, length
