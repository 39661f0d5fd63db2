"""What a trained model does: its losses, its use of context, its continuations, its decays."""

import numbers
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from plkernel.analysis.nodes import check_numbers, check_numbers_or_none
from plkernel.analysis.results import Result
from plkernel.api.texts import Text, path_of, read_text
from plkernel.common import cli
from plkernel.common.files import CONFIG, METRICS, brief, load_object, read_lines, refuse_study
from plkernel.context.measures import BATCH, UNTRAINED_CONTEXT

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame
    from torch import Tensor

    from plkernel.context.measures import Influence, Means, Truncation
    from plkernel.decays.findings import Finding
    from plkernel.decays.inspection import Shown
    from plkernel.decays.own import Decays
    from plkernel.decays.rates import Layer
    from plkernel.training.build import Model
    from plkernel.training.evaluate import Predict

    Subject: TypeAlias = "TrainedRun | Model | Predict"

WRAPPED = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Parts of the modules that FSDP and activation checkpointing put around a model."""


@dataclass(frozen=True, repr=False)
class TextLosses(Result):
    """Mean of the losses, its standard error over windows, and losses (n,T) in bits.

    The error is NaN for one window.
    """

    bits_per_byte: float
    error: float
    losses: NDArray[np.floating[Any]]

    def _title(self) -> str:
        count, context = self.losses.shape
        windows = cli.counted(count, "window", "windows")
        length = cli.counted(context, "byte", "bytes")
        return f"{self.bits_per_byte:.4f} +- {self.error:.4f} bits per byte, {windows} of {length}"

    @property
    def positions(self) -> "Means":
        """Bits per byte by how many bytes of the window come before."""
        from plkernel.context.measures import by_position

        return by_position(self.losses)

    def _table(self) -> Any:
        return self.positions._table()

    def _draw(self) -> "Figure":
        return self.positions.plot()


def evaluate(
    model: "Subject",
    text: Text | None = None,
    *,
    context: int | None = None,
    windows: int = 64,
    batch: int = BATCH,
) -> TextLosses:
    """Mean of -log2 p(byte | those before it in its window), over windows of a text.

    Windows are disjoint and evenly spaced.

    model    causal: a `TrainedRun`, a model of plkernel, or any callable from tokens (B,T) int64 to
             logits (B,T,V)
    text     bytes, a vector of integers from 0 to 255, or the name of a corpus; unless given, the
             validation split of a `TrainedRun`
    context  T: a window has T + 1 bytes; that of the run, or 512
    windows  largest number of windows

    A torch module is in evaluation mode meanwhile; what it returns may hold the logits as
    `.logits`, or first in a tuple. Of a model of plkernel in torch.compile, DataParallel or DDP it
    is the model inside that runs: uncompiled, on one device, without hooks of the wrapper. In FSDP
    the wrapper runs, since it gathers the shards, and so must the same call in every process. Any
    other callable is called as it is. Raises ValueError for a model that sees ahead, is random or
    returns something else, for logits that are not numbers, and a text shorter than a window.
    """
    from plkernel.context.measures import moments
    from plkernel.training.evaluate import token_losses

    with _opened(model, text, context, windows, batch) as (predict, data, _):
        losses = token_losses(predict, data, batch)
    (mean,), (error,) = moments(losses.mean(axis=1, dtype=np.float64)[None])
    return TextLosses(mean, error, losses)


def truncation(
    model: "Subject",
    text: Text | None = None,
    *,
    context: int | None = None,
    windows: int = 256,
    batch: int = BATCH,
) -> "Truncation":
    """Bits per byte at the same bytes when only the last 1, 2, 4 .. context are given.

    It is the worth of far context.

    Arguments and wrapped models as in `evaluate`. The result has given (L,) bytes, bpb (L,) and
    cost (L,) against the whole context.
    """
    from plkernel.training import evaluate as measures

    with _opened(model, text, context, windows, batch, disjoint=False) as (predict, data, step):
        return measures.truncation(predict, data, batch, step=step)


def influence(
    model: "Subject",
    text: Text | None = None,
    *,
    lags: Sequence[int] | None = None,
    context: int | None = None,
    windows: int = 64,
    batch: int = BATCH,
    seed: int = 0,
) -> "Influence":
    """KL divergence in bits of a prediction when the token d steps back is another.

    lags: ascending, 1 to the context; 1, 2, 4 .. unless given. Other arguments and wrapped models
    as in `evaluate`. The result has lags (L,) and bits (L,). For integer arrays of other alphabets:
    `plkernel.probing.predictions`.
    """
    from plkernel.training import evaluate as measures

    with _opened(model, text, context, windows, batch) as (predict, data, _):
        return measures.influence(predict, data, lags, batch, seed=seed)


def generate(
    model: "TrainedRun | Model",
    prompt: bytes | str = b"",
    *,
    count: int = 512,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
) -> bytes:
    """`count` bytes that follow the prompt, drawn from the model one after the other.

    model        a `TrainedRun`, or a model of plkernel, which may be compiled or in a DataParallel:
                 it must take and return a state
    prompt       bytes, or a text in UTF-8; a newline if empty
    temperature  divides the logits; 0 always takes the likeliest byte
    top_p        draw only from the likeliest bytes that together have this probability
    seed         of the random numbers, one for each byte

    Memory and time for a byte do not grow with their number. One by one, without end:
    `plkernel.models.sampling.continuation`. Raises ValueError for arguments of another kind, and
    FloatingPointError for a model whose logits are not finite, as after a divergence. As
    plkernel.generate.
    """
    from itertools import islice

    from plkernel.models.layers import evaluating
    from plkernel.models.sampling import Sampling, continuation

    check_numbers(numbers.Integral, count=count, seed=seed)
    check_numbers(temperature=temperature, top_p=top_p)
    if count < 0:
        raise ValueError(f"count must be at least 0, got {count}")
    if count > sys.maxsize:
        raise ValueError(f"count must be at most {sys.maxsize}, got {count}")
    opened: Any = model.model if isinstance(model, TrainedRun) else model
    if not hasattr(opened, "initial_state"):
        opened = _unwrapped(opened)
    if isinstance(opened, type) or not hasattr(opened, "initial_state"):
        raise ValueError(
            "model must be a run or a model of plkernel (plkernel.load_run opens one), got"
            f" {brief(model)}; others carry no state"
        )
    text = _prompt_bytes(prompt)
    sampling = Sampling(temperature, top_p, seed)
    with evaluating(opened):
        return bytes(islice(continuation(opened, text, sampling), count))


def _prompt_bytes(prompt: bytes | str) -> bytes:
    """The bytes of a prompt; those that a shell could not decode are escaped in a text."""
    if isinstance(prompt, bytes | bytearray):
        return bytes(prompt)
    if not isinstance(prompt, str):
        raise ValueError(f"prompt must be bytes or a text, got {type(prompt).__name__}")
    try:
        return prompt.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"prompt must be a text in UTF-8, got {prompt[error.start]!r} at character"
            f" {error.start}; give bytes"
        ) from None


@dataclass(frozen=True, repr=False)
class TrainedRun(Result):
    """A trained model with the files of its run: the folder of a run, or of plkernel.load.

    evaluate, truncation, influence and generate are the functions of those names, with this model;
    the first three with the context of the run and, unless a text is given, its validation split.
    """

    path: Path
    evaluate = evaluate
    truncation = truncation
    influence = influence
    generate = generate

    def _title(self) -> str:
        from plkernel.training.folder import loss_unit

        number = cli.counted(len(self.metrics), "evaluation", "evaluations")
        title = f"{self.path}: {number}"
        if self.metrics.empty:
            return title
        last = self.metrics.iloc[-1]
        step = int(last["step"])
        after = f"after {step:,} {'step' if step == 1 else 'steps'}"
        return f"{title}, {last['val_bpb']:.4f} {loss_unit(last)} {after}"

    def _table(self) -> Any:
        columns = ["step", "bytes", "train_bpb", "val_bpb", "excess_bpb", "val_accuracy"]
        return self.metrics.filter(columns)

    def plot(self, text: str | Path | None = None) -> "Figure":
        """Draw the figure that the command of the same purpose writes.

        text: name of a corpus whose validation split is predicted; that of the run unless given.
        Raises ValueError where the run's text is not here, or there is none.
        """
        return self._shown_in_notebooks(self._drawn_on(text))

    def _draw(self) -> "Figure":
        return self._drawn_on(None)

    def _drawn_on(self, text: str | Path | None) -> "Figure":
        from plkernel.decays.memory_figures import model_figure
        from plkernel.probing.runs import of_run

        if text is not None and not isinstance(text, str | Path):
            raise ValueError(f"text must be the name of a corpus, got {brief(text)}")
        name = None if text is None else str(text)
        *_, (before, now), title = of_run(self.path, name, 4, "text", in_python=True)
        return model_figure(before, now, title)

    @cached_property
    def model(self) -> "Model":
        """The model, on the CPU and in evaluation mode: bytes (B,T) int64 to logits (B,T,256)."""
        from plkernel.training.checkpoint import open_model

        return open_model(self.path)[0]

    @cached_property
    def _shown(self) -> "Shown":
        """The decays in its checkpoint, as `inspect` reads those of other software."""
        from plkernel.decays.inspection import inspected
        from plkernel.decays.own import UnknownDecays, with_lines
        from plkernel.training.checkpoint import foreign_code

        try:
            return inspected(str(self.path))
        except UnknownDecays as error:
            if foreign_code(self.path) is None:  # plkernel's own has no decays to state
                raise
            raise with_lines(error, "plkernel.inspect(path, decays=decays)") from None

    @property
    def layers(self) -> "tuple[Layer, ...]":
        """Layers with decays, as `inspect` finds them in any checkpoint; ValueError if none are.

        Their rates are -ln a per step of the recurrence, which is a byte or a patch of bytes.
        """
        return self._shown.layers

    @property
    def kernels(self) -> NDArray[np.float64]:
        """The kernel of every layer, (L,T), at the lags of `inspect`, in steps."""
        return self._shown.kernels

    @property
    def findings(self) -> "tuple[Finding, ...]":
        """Faults of its decays, and what is notable of them."""
        return self._shown.findings

    @property
    def config(self) -> dict[str, Any]:
        """Content of config.json: corpus, model, arm, training."""
        return load_object(self.path / CONFIG)

    @property
    def metrics(self) -> "DataFrame":
        """A row for every evaluation, a column for every number: step, val_bpb ..

        Names of nested figures are dotted, saturation.entropy; lists are left out, and stand in
        metrics.jsonl. Raises ValueError for a damaged file; empty if there is none.
        """
        from pandas import json_normalize

        return json_normalize(read_lines(self.path / METRICS)).select_dtypes("number")


def load_run(path: str | Path) -> TrainedRun:
    """Open the run in a folder STUDY/ARM/seed-K, or the model in one of plkernel.load.

    Raises ValueError if there is none.
    """
    run = TrainedRun(cli.existing(path_of(path, "path"), "path"))
    refuse_study(run.path, "path")
    if not (run.path / CONFIG).is_file():
        raise ValueError(
            f"path {run.path}: holds no {CONFIG}; give the folder of a run, STUDY/ARM/seed-K"
        )
    return run


def inspect(path: str | Path, *, decays: "Decays | None" = None) -> "Shown | TrainedRun":
    """Read the decays of anybody's checkpoint, found by name; nothing of it is executed.

    path    a folder as on the Hugging Face hub, a .safetensors, .pth or .gguf file, or
            hf:OWNER/NAME; a run of plkernel is opened as by `load_run`
    decays  how those of a layer of your own follow from its parameters, by pattern of their names:
            {"*.decay": "sigmoid"}; as for `watch`. With them a run whose model code of your own
            builds is read as a checkpoint, and that code is not imported

    In the result, `layers` have rates = -ln a per token, `kernels` (L,T) the later weights of an
    input, `findings` what is wrong with them; a `TrainedRun` has the three too. Raises ValueError
    if no decays are known, and if `decays` fits none of the tensors. As plkernel.inspect.
    """
    from plkernel.decays.inspection import inspected, is_other_software
    from plkernel.decays.own import UnknownDecays, statements, with_lines

    if hasattr(path, "state_dict"):
        raise ValueError(
            f"path must be a path, got {brief(path)}; plkernel.watch(model) reads a live model"
        )
    if isinstance(path, Mapping):
        raise ValueError(
            f"path must be a path, got {brief(path)}; write tensors to a file with"
            " safetensors.torch.save_file(tensors, path), and give that"
        )
    place = path_of(path, "path")
    refuse_study(place, "path")
    statements(decays)
    if not is_other_software(place):
        if decays is None:
            return load_run(place)
        from plkernel.training.checkpoint import foreign_code

        if foreign_code(place) is None:
            raise ValueError(f"decays must be left out for a run of plkernel, which {path} is")
    try:
        return inspected(str(path), decays)
    except UnknownDecays as error:
        raise with_lines(error, "plkernel.inspect(path, decays=decays)") from None


@contextmanager
def _opened(
    model: "Subject",
    text: Text | None,
    context: int | None,
    windows: int,
    batch: int,
    disjoint: bool = True,
) -> "Iterator[tuple[Predict, Tensor, int]]":
    """The model as a callable, windows of the text (n, context + 1), and the bytes of a patch.

    disjoint: windows do not overlap. The model is in evaluation mode meanwhile.
    """
    from plkernel.models.layers import modes_kept
    from plkernel.probing.predictions import check_causal
    from plkernel.training.build import Model
    from plkernel.training.evaluate import patch_of, predictor

    # Opened first, which holds the configuration of a run against its checkpoint.
    opened: Any = model.model if isinstance(model, TrainedRun) else model
    taken = _taken_windows(model, text, context, windows, batch, disjoint)
    inner = _unwrapped(opened)
    is_own = isinstance(_held(inner), Model)
    if is_own:
        opened = inner
    with modes_kept(opened), _parameters_told(opened):
        if is_own:
            device = next(opened.parameters()).device
            yield predictor(opened, device), taken, patch_of(opened)
        else:
            predict = _checked(opened)
            check_causal(predict, taken, batch)
            yield predict, taken, 1


@contextmanager
def _parameters_told(model: Any) -> Iterator[None]:
    """Say of logits that are not numbers that the parameters of `model` are NaN, if they are."""
    from plkernel.models.sampling import nan_hint
    from plkernel.training.evaluate import NotNumbersError

    try:
        yield
    except NotNumbersError as error:
        hint = nan_hint(model)
        if not hint:
            raise
        raise NotNumbersError(f"{str(error).partition(': has its training')[0]}; {hint}") from None


def _unwrapped(model: Any) -> Any:
    """The model inside what torch.compile, DataParallel and DDP return; any other as it is."""
    from torch import nn

    while isinstance(model, nn.Module):
        parallel = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
        inner = model._modules.get("module" if parallel else "_orig_mod")
        if inner is None:
            break
        model = inner
    return model


def _held(model: Any) -> Any:
    """The model that FSDP or activation checkpointing has wrapped; any other as it is.

    Such a wrapper hands on the attributes of the model, but is what must be called: FSDP gathers
    the shards of the parameters then. The wrappers are told by their parts, as torch.distributed
    is slow to import.
    """
    from torch import nn

    while isinstance(model, nn.Module):
        wrapped = [model._modules[name] for name in WRAPPED if name in model._modules]
        if not wrapped:
            break
        model = _unwrapped(wrapped[0])
    return model


def _taken_windows(
    model: "Subject",
    text: Text | None,
    context: int | None,
    windows: int,
    batch: int,
    disjoint: bool,
) -> "Tensor":
    """Windows (n, context + 1) of a text, or of the validation split of a run.

    Raises ValueError for sizes below 1, and where there is no text, or one that is too short.
    """
    from plkernel.common.corpus_names import is_recall
    from plkernel.data.windows import check_holds_window, fixed_windows, spread_windows
    from plkernel.probing.runs import validation_text

    check_numbers(numbers.Integral, windows=windows, batch=batch)
    check_numbers_or_none(numbers.Integral, context=context)
    config = model.config if isinstance(model, TrainedRun) else {}
    if text is None and not isinstance(model, TrainedRun):
        raise ValueError(
            "text must be given: bytes, an array, or the name of a corpus such as 'stdlib'"
        )
    corpus = config.get("corpus") or {}
    if text is None and is_recall(str(corpus.get("name"))):
        raise ValueError(
            "text must be given for a run on recall, which predicts answers alone; python -m"
            " plkernel.inspect evaluates these"
        )
    if text is None:
        _, data, _ = validation_text(config, None, "text", in_python=True)
    else:
        data = read_text(text)[1]
    trained = config.get("train") or {}
    length = trained.get("context", UNTRAINED_CONTEXT) if context is None else context
    if min(length, windows, batch) < 1:
        raise ValueError(
            f"context, windows and batch must be at least 1, got {length}, {windows} and {batch}"
        )
    check_holds_window(data.size, length, "text", "give a longer text or a smaller context")
    draw = fixed_windows if disjoint else spread_windows
    return draw(data, length, windows)


def _checked(model: Any) -> "Predict":
    """A callable that returns the logits of `model`; ValueError where it does not give them."""
    import torch

    from plkernel.probing.state_checks import check_model
    from plkernel.training.evaluate import as_logits

    if not callable(model):
        wanted = (
            "a callable from tokens (B,T) int64 to logits (B,T,256), a model of plkernel or a"
            " TrainedRun"
        )
        raise ValueError(
            f"model must be {wanted} (plkernel.load_run opens one), got"
            f" {cli.shortened(repr(model), 60)}"
        )
    check_model(model)
    parameters = list(model.eval().parameters()) if isinstance(model, torch.nn.Module) else []
    device = parameters[0].device if parameters else torch.device("cpu")

    def predict(tokens: "Tensor") -> "Tensor":
        try:
            given = model(tokens.to(device))
        except Exception as error:
            raise ValueError(
                f"model: given tokens of shape {tuple(tokens.shape)}, int64, it raised"
                f" {cli.told(error)}"
            ) from error
        return as_logits(given, tokens, "model").detach()

    return predict
