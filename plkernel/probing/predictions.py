"""How far back the predictions of any causal model read: `probe`, from the predictions alone."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from plkernel.analysis.intervals import critical_value
from plkernel.common import cli
from plkernel.common.files import shown
from plkernel.context.measures import (
    BATCH,
    INFORMED,
    Influence,
    Means,
    Probe,
    Truncation,
    by_position,
    others,
    ratio_error,
)
from plkernel.training import evaluate
from plkernel.training.evaluate import (
    PLACES,
    Losses,
    Predict,
    as_windows,
    check_context,
    check_counts,
    check_draws,
    check_repeats,
    kept_logits,
    lags_within,
    logits_of,
    moved_by,
    rounding_of,
    token_losses,
)
from plkernel.training.foreign import are_probabilities


def check_causal(predict: Predict, windows: Tensor, batch: int = BATCH, seed: int = 0) -> None:
    """Raise ValueError unless `predict` gives logits that depend on no later token.

    Refused are logits that are not numbers, or random, or probabilities, and those that move when
    a token after them, or another window of the batch, is replaced. Of the first `batch` of
    `windows` (n,T+1), the last token that is given is replaced, the one before it, and two in the
    middle: of two neighbours one is not the first of its patch.
    """
    windows = as_windows(windows)
    check_draws(seed)
    check_repeats(predict, windows, batch)
    inputs = windows[:batch, :-1]
    length = inputs.shape[1]
    known = kept_logits(predict, inputs)
    _check_no_probabilities(known)
    limit = rounding_of(known)
    _check_windows_apart(predict, inputs, known, limit)
    rng = np.random.default_rng(seed)
    middle = length // 2
    wanted = {length - 1, length - 2, middle, middle - 1}
    places = [place for place in sorted(wanted, reverse=True) if 1 <= place < length]
    for place in places:
        changed = inputs.clone()
        replaced = inputs[:, place].cpu().numpy()
        changed[:, place] = torch.as_tensor(others(windows.cpu().numpy(), replaced, rng))
        moved = moved_by(known, logits_of(predict, changed))[:, :place].amax(dim=(0, 2))
        seen = torch.nonzero(moved > limit)
        if len(seen):
            last = int(seen[-1])
            raise ValueError(
                f"the model is not causal: replacing the token at position {place} of {length}"
                f" moves the logits at position {last} by {float(moved[last]):.2g};"
                " give a model that predicts each token from those before it"
            )


def _check_windows_apart(predict: Predict, inputs: Tensor, known: Tensor, limit: float) -> None:
    """ValueError where other tokens in the last of `inputs` (B,T) move the logits of another."""
    if len(inputs) < 2:
        return
    changed = inputs.clone()
    changed[-1] = changed[-1].flip(0)
    moved = moved_by(known, logits_of(predict, changed))[:-1].amax(dim=(1, 2))
    if bool((moved > limit).any()):
        window = int(moved.argmax())
        raise ValueError(
            "the logits of a window must not change with the other windows of its batch, got"
            f" {float(moved[window]):.2g} of change in window {window}; give batch=1, or a model"
            " in evaluation mode that looks at each window alone"
        )


def _check_no_probabilities(logits: Tensor) -> None:
    """ValueError for probabilities in the place of `logits` (B,T,V).

    Their softmax is nearly uniform, so that all measures would give numbers, which say nothing.
    """
    if are_probabilities(logits):
        raise ValueError(
            "the model must return logits, got probabilities, which sum to 1 at every position;"
            " leave its softmax out, or give their logarithm"
        )


def influence(
    predict: Predict,
    windows: Tensor,
    lags: Sequence[int] | None = None,
    batch: int = BATCH,
    count: int = PLACES,
    seed: int = 0,
) -> Influence:
    """Mean KL divergence in bits of a prediction when the token d steps back is another.

    windows  (n,T+1) tokens
    lags     d, ascending, 1 to T; 1, 2, 4 .. T unless given
    batch    windows in a call of `predict`
    count    tokens that are replaced in each window, one at a time
    seed     of their places, and of the tokens that are put there

    `plkernel.training.evaluate.influence` says how it is estimated. Raises ValueError for a model
    that sees ahead, is random, or returns something else than logits (`check_causal`).
    """
    windows = as_windows(windows)
    known = lags_within(lags, windows.shape[1] - 1)
    check_causal(predict, windows, batch, seed)
    return evaluate.influence(predict, windows, known, batch, count, seed)


def truncation(
    predict: Predict, windows: Tensor, batch: int, floor: Losses | None = None, step: int = 1
) -> Truncation:
    """Bits at the last token of every window (n,T+1) when only the last 1, 2, 4 .. T are given.

    batch  windows of T tokens in a call of `predict`, and more of the shorter ones
    floor  bits of the best predictor at the same tokens; None where it is unknown
    step   tokens of a patch: the model starts anew at multiples of so many only

    Raises ValueError for a model that sees ahead, is random, or returns something else than logits
    (`check_causal`).
    """
    check_causal(predict, windows, batch)
    return evaluate.truncation(predict, windows, batch, floor, step)


def beyond(
    predict: Predict, windows: Tensor, context: int, batch: int = BATCH, step: int = 1
) -> tuple[Means, Means]:
    """Compare predictions with all tokens before and with the last `context` alone.

    windows  (n,T+1), of more than `context` tokens
    context  the length of training
    batch    windows in a call of `predict`
    step     tokens of a patch: the model starts anew at multiples of so many only

    Returns two means by position in `windows`, from `context` on: bits with all tokens less bits
    with the last alone, and KL(all || last alone) in bits; `plkernel.training.evaluate.beyond` says
    which predictions count. Raises ValueError for a model that sees ahead, is random, or returns
    something else than logits (`check_causal`).
    """
    windows = as_windows(windows)
    check_context(context, windows)
    check_causal(predict, windows, batch)
    return evaluate.beyond(predict, windows, context, batch, step)


def probe(
    predict: Predict,
    windows: Tensor,
    lags: Sequence[int] | None = None,
    *,
    batch: int = BATCH,
    seed: int = 0,
    step: int = 1,
    unit: str = "token",
    window_bytes: ArrayLike | None = None,
) -> Probe:
    """`influence`, `token_losses` and `truncation` on `windows` (n,T+1), of a causal model.

    lags          of the influence, ascending, 1 to T; 1, 2, 4 .. T unless given
    batch         windows in a call of `predict`
    seed          of the tokens that are put in place of others
    step          tokens of a patch: the model starts anew at multiples of so many only
    unit          what a token is called in tables; 'byte' where each is one
    window_bytes  (n,) bytes of the T predicted tokens of each window. Bits per byte are all bits
                  over all these bytes; without them they are unknown, unless `unit` is 'byte'

    Raises ValueError for a model that sees ahead, is random, or returns something else than logits
    (`check_causal`).
    """
    windows = as_windows(windows)
    context = windows.shape[1] - 1
    read_lags = lags_within(lags, context)
    check_counts(step=step)
    if window_bytes is None and unit == "byte":
        window_bytes = np.full(len(windows), context)
    sizes = None if window_bytes is None else _window_sizes(window_bytes, len(windows))
    check_causal(predict, windows, batch, seed)
    losses = token_losses(predict, windows, batch)
    bytes_per_token = None
    error_per_byte = None
    if sizes is not None:
        bytes_per_token = float(sizes.sum()) / (len(windows) * context)
        error_per_byte = ratio_error(losses.sum(axis=1, dtype=np.float64), sizes)
    return Probe(
        unit=unit,
        windows=len(windows),
        context=context,
        bytes_per_token=bytes_per_token,
        bits_per_token=float(losses.mean(dtype=np.float64)),
        influence=evaluate.influence(predict, windows, read_lags, batch, seed=seed),
        positions=by_position(losses),
        truncation=evaluate.truncation(predict, windows, batch, step=step),
        bits_per_byte_error=error_per_byte,
    )


def _window_sizes(window_bytes: ArrayLike, windows: int) -> NDArray[np.float64]:
    """Bytes (n,) of the predicted tokens of each window.

    ValueError unless they are finite numbers from 0, one for each window, and not all 0.
    """
    try:
        sizes = np.asarray(window_bytes, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"window_bytes must be numbers, got {shown(window_bytes)}") from None
    if sizes.shape != (windows,):
        raise ValueError(
            f"window_bytes must be of shape ({windows},), one for each window, got {sizes.shape}"
        )
    if not np.isfinite(sizes).all() or (sizes < 0).any() or not sizes.any():
        raise ValueError(
            f"window_bytes must be finite, at least 0 and not all 0, got {shown(window_bytes)}"
        )
    return sizes


def _interval(result: Probe) -> str:
    """The 95 % interval of the bits per byte over windows; empty for one window."""
    if result.bits_per_byte_error is None:
        return ""
    return f" (+- {critical_value(result.windows) * result.bits_per_byte_error:.4f})"


class _Column(NamedTuple):
    """A quantity at some lags or positions, with standard errors over a sample of this size."""

    name: str
    places: Sequence[int]
    values: Sequence[float]
    form: str
    errors: ArrayLike
    sample: int

    def texts(self) -> dict[int, str]:
        """The values by place, with half of their 95 % intervals where these are known."""
        reaches = critical_value(self.sample) * np.asarray(self.errors)
        texts = {}
        for at, value, reach in zip(self.places, self.values, reaches, strict=True):
            texts[at] = f"{value:{self.form}}"
            if reach > 0:
                texts[at] += f" +- {reach:{self.form.lstrip('+')}}"
        return texts


def _columns(result: Probe) -> list[_Column]:
    """The columns of the table; of longer windows and of the text where these were measured."""
    count = result.windows
    near = result.influence
    along = result.positions
    cut = result.truncation
    unknown = np.zeros(len(cut.bpb))
    columns = [
        _Column("influence", near.lags, near.bits, ".2e", near.standard_error, count),
        _Column("by position", along.given, along.bpb, ".4f", along.standard_error, count),
        _Column("given alone", cut.given, cut.bpb, ".4f", unknown, count),
        _Column("cost", cut.given, cut.cost, "+.4f", cut.standard_error, count),
    ]
    far = result.cost
    if far:
        columns.append(_Column("reading on", far.given, far.bpb, "+.4f", far.standard_error, count))
    apart = result.divergence
    if apart:
        unknown = np.zeros(len(apart.bpb))
        columns.append(_Column("KL", apart.given, apart.bpb, ".2e", unknown, count))
    text = result.information
    if text:
        columns.append(
            _Column("I(d) of the text", text.lags, text.bits, ".2e", text.standard_error, INFORMED)
        )
    return columns


def render(result: Probe) -> str:
    """The quantities measured, their units, and a table with a row for every lag."""
    unit = result.unit
    columns = _columns(result)
    cells: dict[int, dict[str, str]] = {}
    for column in columns:
        for at, text in column.texts().items():
            cells.setdefault(at, {})[column.name] = text
    head = [column.name for column in columns]
    rows = []
    for at in sorted(cells):
        rows.append([f"{at:,}", *(cells[at].get(name, "-") for name in head)])
    whole = (
        f"{result.windows:,} windows of {result.context:,} {unit}s: {result.bits_per_token:.4f}"
        f" bits per {unit}"
    )
    if unit != "byte" and result.bytes_per_token is not None:
        whole += (
            f", {result.bits_per_byte:.4f} bits per byte{_interval(result)}; a token of them is"
            f" {result.bytes_per_token:.2f} bytes"
        )
    reading_on = ""
    if result.cost:
        reading_on = (
            f"reading on: bits with all before less those with the last {result.trained} alone;"
            " KL: of both\n"
        )
    return f"""{whole}
influence: how far the prediction moves (KL, bits) when the {unit} so many before it is another
by position: bits per {unit} where so many {unit}s of the window come before, since the row above
given alone: bits at the last {unit} of each window when only so many are given; cost: against all
{reading_on}+-: 95 % intervals over windows, and of I(d) over blocks of the text

{cli.text_table([f"{unit}s", *head], rows)}"""
