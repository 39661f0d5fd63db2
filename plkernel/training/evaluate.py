"""Objective and evaluation: bits per byte, and what a model does with its context.

Bits by position, with context taken away and beyond the length of training; the influence of single
tokens, and the saturation of logits.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from numbers import Integral
from operator import add
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plkernel.analysis.nodes import check_numbers
from plkernel.common.files import brief
from plkernel.config.schema import TrainSpec
from plkernel.context.measures import (
    BATCH,
    FEWEST_PLACES,
    Influence,
    Means,
    Truncation,
    by_position,
    influence_of,
    is_read,
    lengths,
    moments,
    others,
    places,
    truncation_of,
)
from plkernel.data.names import known_sequence
from plkernel.data.windows import fixed_windows, spread_windows
from plkernel.decays.memory import QUANTILES
from plkernel.models import NOT_CAUSAL
from plkernel.models.layers import BYTES
from plkernel.models.rwkv import RWKV
from plkernel.models.sampling import check_seed
from plkernel.training.build import AnyModel
from plkernel.training.recall_task import Asked

Losses = Callable[[np.ndarray, int | None, int], np.ndarray]
"""Bits (n,T) of the best predictor at the bytes of windows (n,T+1), given so many bytes before
them, from a byte on.
"""
Predict = Callable[[Tensor], Tensor]
"""Tokens (B,T), int64 on the CPU, to logits (B,T,V), float32: those at t predict the token after t
from all up to t.
"""
PLACES = 16
"""Tokens replaced in each window, unless asked otherwise: with half as many, most errors at far
lags are too small.
"""
NATS_PER_BIT = math.log(2)
"""Losses of torch are in nats."""
ROUNDING = 1e-4
"""Share of the largest logit by which logits may move for no reason, as by a convolution through
FFTs.
"""
GPU_ROUNDING = 2.0**-6
"""The same share on a GPU: two units of rounding of bfloat16, in which it computes. Sums may be in
another order each time.
"""
SATURATED = 0.99
"""A position is saturated if its largest probability exceeds this."""
CACHED = 256
"""Rows of logits at a time, which stay in the cache of a CPU."""
LEAST_EXPONENT = -746.0
"""exp of it is 0 in float64."""


def next_byte_loss(
    model: Callable[[Tensor], Tensor],
    windows: Tensor,
    l2wrap: float = 0.0,
    asked: Asked | None = None,
) -> Tensor:
    """Cross-entropy in nats of bytes 1..T of each window (B,T+1) given the bytes before them.

    Where something is `asked` in the windows, it is the cross-entropy of the answers instead.

    `l2wrap` acts on the gradient alone: at each position it adds l2wrap * z / (B T) to that of the
    largest logit z, which keeps the logits from drifting (the L2Wrap of the official RWKV code).
    """
    logits = model(windows[:, :-1]).float()
    targets = windows[:, 1:]
    if asked is not None:
        logits = asked.logits(logits)
        targets = asked.answers
    loss = F.cross_entropy(logits.reshape(-1, BYTES), targets.reshape(-1))
    if l2wrap:
        pull = 0.5 * l2wrap * logits.max(dim=-1).values.square().mean()
        loss = loss + (pull - pull.detach())
    return loss


def bits_per_byte(
    model: nn.Module,
    windows: Tensor,
    batch: int,
    device: torch.device,
    watch: Callable[[Tensor, Tensor], object] | None = None,
    asked: Asked | None = None,
) -> float:
    """Mean -log2 p(byte) over every predicted byte of `windows` (n, context + 1).

    Where something is `asked`, the answers (n,K) are predicted in their place. Leaves the model in
    eval mode. `watch` is called with the logits (B,T,256) and the target bytes (B,T) of every
    batch, or those of the answers.
    """
    model.eval()
    nats = torch.zeros((), dtype=torch.float64, device=device)
    count = windows[:, 1:].numel() if asked is None else asked.answers.numel()
    with torch.no_grad():
        for start in range(0, len(windows), batch):
            chunk = windows[start : start + batch]
            inputs = chunk[:, :-1].to(device)
            targets = chunk[:, 1:].to(device)
            with autocast(device):
                logits = model(inputs).float()
                if asked is not None:
                    here = asked.rows(start, start + batch).to(device)
                    logits = here.logits(logits)
                    targets = here.answers
                nats += F.cross_entropy(
                    logits.reshape(-1, BYTES), targets.reshape(-1), reduction="sum"
                )
            if watch is not None:
                watch(logits, targets)
    return nats.item() / count / NATS_PER_BIT


def losses_per_byte(logits: Tensor, targets: Tensor) -> Tensor:
    """-log2 p(target) of logits (B,T,V) and targets (B,T), in bits; shape (B,T).

    Targets are bytes, or tokens of any alphabet.
    """
    return F.cross_entropy(logits.transpose(1, 2), targets, reduction="none") / NATS_PER_BIT


def autocast(device: torch.device) -> AbstractContextManager[Any]:
    """bfloat16 autocast on a GPU, nothing on a CPU."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()


def label(causal: bool) -> str:
    """The words after the bits per byte of a model that is not causal; nothing for one that is."""
    return "" if causal else f" [{NOT_CAUSAL}]"


class NotNumbersError(ValueError):
    """Logits of a model that are not numbers."""


@dataclass(frozen=True)
class Diagnosis:
    """The figures of one pass over windows.

    losses         (n,T) bits at every predicted byte
    saturation     see `saturation`
    amplification  growth of the residual stream over every block; None for an SSM
    accuracy       share of the answers that had the largest logit, where something was asked; None
                   for a text
    """

    bits_per_byte: float
    losses: np.ndarray
    saturation: dict[str, float]
    amplification: tuple[float, ...] | None
    accuracy: float | None = None

    @property
    def finite(self) -> bool:
        """True unless a figure is NaN or infinite, as after a divergence."""
        growth = self.amplification or ()
        figures = (self.bits_per_byte, *self.saturation.values(), *growth)
        return all(math.isfinite(one) for one in figures)

    def to_row(self) -> dict[str, Any]:
        """The entries of a row of metrics.jsonl beside the bits per byte."""
        row: dict[str, Any] = {"saturation": self.saturation}
        if self.amplification:
            row["amplification"] = list(self.amplification)
        row["window_bpb"] = self.losses.mean(axis=1, dtype=np.float64).tolist()
        if self.accuracy is not None:
            return {**row, "val_accuracy": self.accuracy}
        return {**row, "positions": by_position(self.losses).to_dict()}


def saturation(logits: Tensor, targets: Tensor) -> dict[str, float]:
    """Figures of logits (..., V) with targets (...), integers in 0..V-1, in float64.

    With p = softmax(logits):

    positions                how many predictions
    loss                     mean of -ln p(target), nats
    logit_min, logit_max     over all positions and symbols
    largest_probability      mean over positions of max p
    peak_probability         maximum over positions of max p
    entropy                  mean of -sum p ln p, nats; ln V for equal logits
    saturated_share          share of positions with max p > 0.99

    A softmax with logits far apart puts all probability on one symbol; its gradient vanishes there,
    or is large where the symbol is wrong. A good initialisation predicts nearly uniformly: entropy
    ln 256 = 5.545 nats for bytes. A logit of -inf is a probability of 0 (and infinite loss at the
    target); NaN gives NaN figures.
    """
    z = logits.reshape(-1, logits.shape[-1])
    symbols = targets.reshape(-1, 1)
    rows = CACHED if z.device.type == "cpu" else max(1, len(z))
    parts = []
    for block, symbol in zip(z.split(rows), symbols.split(rows), strict=True):
        peak = block.amax(1, keepdim=True)
        below = block.double() - peak
        of_target = below.gather(1, symbol)
        weights = below.clamp_(min=LEAST_EXPONENT).exp()
        total = weights.sum(1, keepdim=True)
        largest = 1 / total
        log_total = total.log()
        saturated = (largest > SATURATED).double()
        figures = {
            "loss": (log_total - of_target).mean(),
            "logit_min": block.amin(),
            "logit_max": peak.amax(),
            "largest_probability": largest.mean(),
            "peak_probability": largest.amax(),
            "entropy": (log_total - (weights * below).sum(1, keepdim=True) / total).mean(),
            "saturated_share": torch.where(largest.isnan(), largest, saturated).mean(),
        }
        values = torch.stack([figure.double() for figure in figures.values()]).tolist()
        parts.append({"positions": len(block), **dict(zip(figures, values, strict=True))})
    return merged(parts)


def merged(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The figures of `saturation` of all sets of positions together."""
    whole, *rest = parts
    for part in rest:
        whole = _joined(whole, part)
    return dict(whole)


def _joined(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """The figures of two sets of positions together: means, but for those in JOIN."""
    total = one["positions"] + other["positions"]
    share = one["positions"] / total
    rest = other["positions"] / total
    figures = {}
    for name, value in one.items():
        if name in JOIN:
            figures[name] = JOIN[name](value, other[name])
        else:
            figures[name] = share * value + rest * other[name]
    return figures


def _least(one: float, other: float) -> float:
    """The lower number; NaN if one of them is, which `min` gives by their order."""
    return math.nan if math.isnan(one) or math.isnan(other) else min(one, other)


def _most(one: float, other: float) -> float:
    """The higher number; NaN if one of them is."""
    return -_least(-one, -other)


JOIN: dict[str, Callable[[float, float], float]] = {
    "positions": add,
    "logit_min": _least,
    "logit_max": _most,
    "peak_probability": _most,
}
"""Figures of `saturation` that are no means over positions, and how two of them are joined."""


class Hits:
    """Counts how often the target has the largest logit; a `watch` of `bits_per_byte`."""

    def __init__(self) -> None:
        self.right = 0
        self.count = 0

    def __call__(self, logits: Tensor, targets: Tensor) -> None:
        self.right += int((logits.argmax(-1) == targets).sum())
        self.count += targets.numel()

    @property
    def accuracy(self) -> float:
        """Share of targets, 0 to 1."""
        return self.right / self.count


def diagnose(
    model: nn.Module,
    windows: Tensor,
    batch: int,
    device: torch.device,
    asked: Asked | None = None,
) -> Diagnosis:
    """The figures of one pass over `windows` (n, context + 1).

    Where something is `asked`, they are of the answers (n,K). It leaves the model in eval mode,
    without hooks. Of an RWKV the residual stream (B,T,D) is measured before the first block and
    after each.
    """
    parts: list[dict[str, float]] = []
    losses: list[Tensor] = []
    hits = Hits()

    def watch(logits: Tensor, targets: Tensor) -> None:
        parts.append(saturation(logits, targets))
        losses.append(losses_per_byte(logits, targets))
        if asked is not None:
            hits(logits, targets)

    with _stream_noted(model) as stream:
        bpb = bits_per_byte(model, windows, batch, device, watch, asked)
    growth = None
    if stream:
        sizes = [_root_mean(batches) for batches in stream]
        ratios = [after / before if before else math.nan for before, after in pairwise(sizes)]
        growth = tuple(ratios)
    accuracy = None if asked is None else hits.accuracy
    return Diagnosis(bpb, torch.cat(losses).cpu().numpy(), merged(parts), growth, accuracy)


Batches = list[tuple[Tensor, int]]
"""Of each batch the mean of the squares, and how many numbers it is of."""


@contextmanager
def _stream_noted(model: nn.Module) -> Iterator[list[Batches]]:
    """Sizes of the residual stream of an RWKV that runs, before the first block and after each.

    Empty for any other model.
    """

    def note(batches: Batches, _: nn.Module, __: Any, output: Any) -> None:
        values = output[0] if isinstance(output, tuple) else output
        batches.append((values.float().square().mean(), values.numel()))

    modules: list[nn.Module] = []
    if isinstance(model, RWKV):
        modules = [model.get_submodule("blocks.0.ln0"), *model.blocks]
    stream: list[Batches] = [[] for _ in modules]
    with ExitStack() as hooks:
        for module, batches in zip(modules, stream, strict=True):
            hooks.callback(module.register_forward_hook(partial(note, batches)).remove)
        yield stream


def _root_mean(batches: Batches) -> float:
    """The root of the mean over all numbers of batches, each given by its mean and its count."""
    means = torch.stack([mean for mean, _ in batches]).tolist()
    counts = [count for _, count in batches]
    total = sum(mean * count for mean, count in zip(means, counts, strict=True))
    return math.sqrt(total / sum(counts))


def predictor(model: AnyModel, device: torch.device) -> Predict:
    """`model` in evaluation mode as a callable; ValueError for one that is not causal."""
    if not model.config.causal:
        raise ValueError("model must be causal, got patching mode 'published', which sees ahead")
    model.eval()

    def predict(tokens: Tensor) -> Tensor:
        with autocast(device):
            return model(tokens.to(device)).float()

    return predict


def patch_of(model: AnyModel) -> int:
    """Bytes in a patch of `model`, 1 where it has none.

    It starts anew at a border of patches only.
    """
    return model.config.patch


def token_losses(predict: Predict, windows: Tensor, batch: int, first: int = 0) -> np.ndarray:
    """Bits (n,T-first) at tokens `first` + 1 .. T of `windows` (n,T+1), given those before."""
    windows = as_windows(windows)
    check_predict(predict)
    check_counts(batch=batch)
    # One array for all: arrays that are kept batch by batch would split the heap.
    losses = np.empty((len(windows), windows.shape[1] - 1 - first))
    for start in range(0, len(windows), batch):
        chunk = windows[start : start + batch]
        logits = logits_of(predict, chunk[:, :-1], start)[:, first:]
        targets = chunk[:, 1 + first :].to(logits.device)
        losses[start : start + batch] = losses_per_byte(logits, targets).cpu().numpy()
    return losses


def truncation(
    predict: Predict, windows: Tensor, batch: int, floor: Losses | None = None, step: int = 1
) -> Truncation:
    """Bits at the last token of every window when only the last 1, 2, 4 .. are given.

    Windows are (n, context + 1); the most that is given is `context`. The same tokens are predicted
    each time, so that differences are paired. The model starts anew, with a multiple of `step`
    fewer tokens than `context` (`patch_of`). A call of `predict` gets at most `batch` x `context`
    tokens.
    """
    windows = as_windows(windows)
    check_counts(step=step)
    check_repeats(predict, windows, batch)
    context = windows.shape[1] - 1
    given = lengths(context, step)
    cut = [windows[:, context - length :] for length in given]
    losses = [
        token_losses(predict, part, batch * context // length, length - 1)[:, 0]
        for length, part in zip(given, cut, strict=True)
    ]
    if floor is None:
        return truncation_of(given, np.stack(losses), None)
    least = [
        floor(part.cpu().numpy(), length, length - 1)[:, 0]
        for length, part in zip(given, cut, strict=True)
    ]
    return truncation_of(given, np.stack(losses), np.stack(least))


def influence(
    predict: Predict,
    windows: Tensor,
    lags: Sequence[int] | None = None,
    batch: int = BATCH,
    count: int = PLACES,
    seed: int = 0,
) -> Influence:
    """Mean KL divergence in bits of a prediction from its value without one token.

    The prediction is that of x[t+1], and x[t+1-d] is another token.

    windows  (n,T+1) of text. In each, `count` tokens are replaced one at a time, at least
             FEWEST_PLACES or all, at places of its own, by tokens drawn by their frequency in
             `windows`. All lags are read from one pass, where half of the window or more is given:
             a far lag has fewer readings, lag T a single one
    lags     ascending, 1 to T; 1, 2, 4 .. T unless given
    batch    windows in a call of `predict`. Memory: three arrays of batch x T x V floats, V the
             alphabet

    The seed draws places and replacements. The standard error is that over other windows of the
    text and other seeds: over seeds alone, with the same windows, results differ by less. The
    result does not depend on `batch`, but for rounding.
    """
    windows = as_windows(windows)
    check_numbers(Integral, count=count)
    check_draws(seed)
    check_repeats(predict, windows, batch)
    inputs = windows[:, :-1]
    length = inputs.shape[1]
    known = lags_within(lags, length)
    if count < FEWEST_PLACES:
        raise ValueError(
            f"count must be at least {FEWEST_PLACES} replaced tokens, so that every lag has one,"
            f" got {count}"
        )
    rng = np.random.default_rng(seed)
    chosen = places(len(inputs), length, min(count, length), rng)
    own = np.take_along_axis(inputs.cpu().numpy(), chosen, 1)
    drawn = others(windows.cpu().numpy(), own, rng)
    read = is_read(known, chosen, length)
    at = chosen[..., None] + np.asarray(known) - 1
    bits = np.full(read.shape, np.nan)
    for start in range(0, len(inputs), batch):
        rows = np.arange(start, min(start + batch, len(inputs)))
        before = kept_logits(predict, inputs[rows], start)
        for index in range(chosen.shape[1]):
            changed = inputs[rows]
            changed[rows - start, chosen[rows, index]] = torch.from_numpy(drawn[rows, index])
            after = logits_of(predict, changed, start)
            row, lag = np.nonzero(read[rows, index])
            position = at[start + row, index, lag]
            read_at = (torch.from_numpy(row), torch.from_numpy(position))
            moved = divergence(before[read_at], after[read_at])
            bits[start + row, index, lag] = moved.cpu().numpy()
    return influence_of(known, bits)


def divergence(before: Tensor, after: Tensor) -> Tensor:
    """KL(P || Q) in bits (..), of logits (..,V) of P and Q; in float64, as far lags move little.

    NaN where a logit is.
    """
    log_p = before.double().log_softmax(-1)
    log_q = after.double().log_softmax(-1)
    p = log_p.exp()
    return torch.where(p == 0, 0.0, p * (log_p - log_q)).sum(-1) / NATS_PER_BIT


def worth_of_context(
    predict: Predict,
    text: np.ndarray,
    train: TrainSpec,
    batch: int,
    corpus: str,
    floor: Losses | None = None,
    step: int = 1,
) -> dict[str, Any]:
    """`truncation` and `influence` on windows of `text`, for JSON, as far as `train` asks for them.

    batch   windows at a time
    corpus  the name of that of `text`; where its law is known, I(d) in bits stands beside the
            influence
    floor   bits of the best predictor, None where it is unknown
    step    tokens of a patch
    """
    worth: dict[str, Any] = {}
    if train.truncation_windows:
        windows = spread_windows(text, train.context, train.truncation_windows)
        worth["truncation"] = truncation(predict, windows, batch, floor, step).to_dict()
    if train.probe_windows:
        windows = fixed_windows(text, train.context, train.probe_windows)
        law = known_sequence(corpus)
        near = influence(predict, windows, batch=batch)
        worth["influence"] = {"windows": len(windows), **near.to_dict()}
        if law is not None:
            bits = law.mutual_information(near.lags) / NATS_PER_BIT
            worth["influence"]["information"] = bits.tolist()
    return worth


def check_context(context: int, windows: Tensor) -> None:
    """ValueError unless windows (n,T+1) reach beyond a context of 1 token or more."""
    check_numbers(Integral, context=context)
    length = windows.shape[1] - 1
    if not 1 <= context < length:
        raise ValueError(
            f"context must lie between 1 and below the tokens of a window, {length}, got {context}"
        )


def beyond(
    predict: Predict, windows: Tensor, context: int, batch: int = BATCH, step: int = 1
) -> tuple[Means, Means]:
    """Compare predictions with all tokens before and with the last `context` alone.

    windows  (n,T+1), of more than `context` tokens
    context  the length of training
    step     the model starts anew at multiples of so many tokens only (`patch_of`)

    For the last alone the model starts anew every half = context / 2 tokens, and those of its
    predictions count that have half to `context` tokens before them:

        start                start + context
        |-- given --|-- counts --|
                    |-- given --|-- counts --|

    Returns two means by position in `windows`, from `context` on: bits with all tokens less bits
    with the last alone, paired by token, and KL(all || last alone) of the predictions in bits.
    Memory: batch x T x V floats, V the alphabet.
    """
    windows = as_windows(windows)
    check_context(context, windows)
    check_counts(step=step)
    check_repeats(predict, windows, batch)
    length = windows.shape[1] - 1
    half = max(step, context // 2 // step * step)
    rows: list[Tensor] = []
    for first in range(0, len(windows), batch):
        chunk = windows[first : first + batch]
        whole = kept_logits(predict, chunk[:, :-1], first)
        targets = chunk[:, 1:]
        found = torch.zeros(2, *targets.shape, dtype=torch.float64)
        for start in range(half, length - context + half, half):
            counted = slice(start + context - half, min(start + context, length))
            given = chunk[:, start : counted.stop]
            alone = logits_of(predict, given, first)[:, context - half :]
            with_all = whole[:, counted]
            wanted = targets[:, counted].to(alone.device)
            cost = losses_per_byte(with_all, wanted) - losses_per_byte(alone, wanted)
            found[0, :, counted] = cost.cpu()
            found[1, :, counted] = divergence(with_all, alone).cpu()
        rows.append(found)
    edges = [context, *(one for one in lengths(length) if one > context)]
    costs, divergences = torch.cat(rows, dim=1).numpy()
    return _means_between(edges, costs), _means_between(edges, divergences)


def _means_between(edges: Sequence[int], values: np.ndarray) -> Means:
    """Means over windows and positions of `values` (n,T), between edges that follow one another."""
    by_window = np.stack([values[:, low:high].mean(axis=1) for low, high in pairwise(edges)])
    return Means(tuple(edges[1:]), *moments(by_window))


def reach(
    predict: Predict, text: np.ndarray, train: TrainSpec, batch: int, step: int = 1
) -> dict[str, Any]:
    """The loss beyond the length of training, for JSON.

    In windows of `train.beyond` times the context, with as many bytes as the windows of the test
    figure have: bits by position, and what reading on is worth (`beyond`). Positions are other
    places of the text, so that the latter alone says whether the model holds.
    """
    times = train.beyond or 1
    count = math.ceil(train.test_windows / times)
    windows = fixed_windows(text, times * train.context, count)
    rows = max(1, batch // times)
    along = by_position(token_losses(predict, windows, rows))
    reading_on, _ = beyond(predict, windows, train.context, rows, step)
    return {
        "windows": len(windows),
        "context": train.context,
        "positions": along.to_dict(),
        "reading_on": reading_on.to_dict(),
    }


def lags_within(lags: Sequence[int] | Tensor | np.ndarray | None, length: int) -> list[int]:
    """`lags`, or 1, 2, 4 .. `length`.

    Raises ValueError unless they ascend from 1 or more to `length` at most.
    """
    if lags is None:
        return lengths(length)
    given: Any = lags
    if isinstance(lags, np.ndarray) or (isinstance(lags, Tensor) and not lags.is_meta):
        given = lags.tolist()
    if isinstance(given, str | Tensor) or not isinstance(given, Iterable):
        raise ValueError(f"lags must be whole numbers in ascending order, got {lags!r}")
    known = list(given)
    if not known:
        return lengths(length)
    if not all(isinstance(lag, Integral) and not isinstance(lag, bool) for lag in known):
        raise ValueError(f"lags must be whole numbers in ascending order, got {known}")
    known = [int(lag) for lag in known]
    if known != sorted(set(known)) or not 1 <= known[0] <= known[-1] <= length:
        raise ValueError(
            f"lags must ascend and lie between 1 and the context, {length}, got {known}"
        )
    return known


def as_windows(windows: Tensor) -> Tensor:
    """`windows` (n,T+1) as int64; ValueError unless they are tokens from 0, two or more in each."""
    if not isinstance(windows, Tensor):
        raise _no_windows(type(windows).__name__)
    if windows.is_meta:
        raise _no_windows("a tensor on the meta device")
    has_fractions = windows.is_floating_point() or windows.is_complex()
    is_of_integers = not has_fractions and windows.dtype != torch.bool
    if windows.ndim != 2 or not is_of_integers or len(windows) < 1:
        raise _no_windows(f"{windows.dtype} of shape {tuple(windows.shape)}")
    if windows.shape[1] < 2:
        raise _no_windows(f"windows of {windows.shape[1]}, in which nothing can be predicted")
    tokens = windows.long()
    smallest = int(tokens.min())
    if smallest < 0:
        raise ValueError(f"windows must hold tokens from 0 on, got {smallest}")
    return tokens


def _no_windows(got: str) -> ValueError:
    """The error of what stands in the place of windows."""
    return ValueError(
        f"windows must be a tensor (n,T+1) of integers, T and n at least 1, got {got}"
    )


def check_counts(**given: Any) -> None:
    """ValueError unless all that is `given` are whole numbers of at least 1."""
    check_numbers(Integral, **given)
    for name, value in given.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def check_draws(seed: Any) -> None:
    """ValueError for a seed that is no whole number, or outside 0 to 2**63 - 1."""
    check_numbers(Integral, seed=seed)
    check_seed(seed)


def check_predict(predict: Any) -> None:
    """ValueError for what cannot be called with tokens, such as the class of a model."""
    if isinstance(predict, type):
        raise ValueError(
            f"predict must be a function or a model, got the class {predict.__name__}; build one of"
            " it"
        )
    if not callable(predict):
        raise ValueError(f"predict must be a function or a model, got {brief(predict)}")


def check_repeats(predict: Predict, windows: Tensor, batch: int = BATCH) -> None:
    """ValueError where the same tokens, of the first `batch` of `windows`, give other logits.

    windows: those of `as_windows`
    """
    check_predict(predict)
    check_counts(batch=batch)
    inputs = windows[:batch, :-1]
    first = kept_logits(predict, inputs)
    moved = moved_by(first, logits_of(predict, inputs)).amax(dim=2)
    if bool((moved > rounding_of(first)).any()):
        window, place = divmod(int(moved.argmax()), moved.shape[1])
        raise ValueError(
            "the model is random: the same tokens give other logits each time, by up to"
            f" {float(moved.max()):.2g} at position {place} of window {window}; switch dropout off"
            " with model.eval(), and give a model that neither samples nor keeps a state from call"
            " to call"
        )


def moved_by(before: Tensor, after: Tensor) -> Tensor:
    """Distances of logits; 0 between equal infinite ones."""
    return torch.where(before == after, 0.0, (before - after).abs())


def rounding_of(logits: Tensor) -> float:
    """The distance by which logits may move for no reason on the device of these."""
    share = ROUNDING if logits.device.type == "cpu" else GPU_ROUNDING
    return share * largest_logit(logits)


def largest_logit(logits: Tensor) -> float:
    """Size of the largest of the logits that are finite."""
    return float(logits.abs().masked_fill(logits.isinf(), 0.0).amax())


def logits_of(predict: Predict, tokens: Tensor, window: int = 0) -> Tensor:
    """Logits without a graph of gradients, those of half types as float32.

    They may be a buffer of the model that its next call overwrites (`kept_logits`). The model gets
    tokens of its own, as it may write into them.

    window: number of the first row of `tokens` (B,T), for messages. Raises ValueError that says
    where the first logits are which give no probabilities: NaN, +inf, or -inf for all tokens.
    """
    logits = _given_logits(predict, tokens, window)
    return logits.to(_wide(logits.dtype))


def kept_logits(predict: Predict, tokens: Tensor, window: int = 0) -> Tensor:
    """`logits_of` that stay as they are when `predict` is called again.

    A replayed CUDA graph, and other software with buffers bound to its output, writes those of
    every call to the same memory.
    """
    logits = _given_logits(predict, tokens, window)
    return logits.to(_wide(logits.dtype), copy=True)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which logits are read: float32 for half types."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def _given_logits(predict: Predict, tokens: Tensor, window: int) -> Tensor:
    """Logits in the type and memory in which `predict` gives them; ValueError as `logits_of`."""
    with torch.no_grad():
        logits = as_logits(predict(tokens.clone()), tokens, "predict")
    peak = logits.amax(dim=2)
    if not bool(peak.isfinite().all()):
        row, place = (~peak.isfinite()).nonzero()[0].tolist()
        found = float(peak[row, place])
        kind = "NaN"
        hint = ": has its training diverged?"
        if found > 0:
            kind = "+inf"
            hint = "; in float16 numbers above 65,504 are infinite"
        elif found < 0:
            kind = "all -inf"
        raise NotNumbersError(
            f"the logits of the model are not numbers: {kind} at position {place} of window"
            f" {window + row}{hint}"
        )
    return logits


def as_logits(given: Any, tokens: Tensor, name: str) -> Tensor:
    """The logits (B,T,V) in what a model returns for tokens (B,T).

    Taken are a tensor or an array of numpy, as it is, as `.logits`, as the entry "logits" of a
    dictionary, or as the first of a tuple or list. Raises ValueError, headed by `name`, for
    anything else.
    """
    found = given
    if isinstance(found, Mapping):
        found = found.get("logits", found)
    found = getattr(found, "logits", found)
    if isinstance(found, tuple | list) and found:
        found = found[0]
    if isinstance(found, np.ndarray) and found.dtype.kind == "f":
        found = torch.tensor(found)
    if not isinstance(found, Tensor):
        raise ValueError(
            f"{name} must return logits, a tensor or .logits, got {type(found).__name__}"
        )
    shape = tuple(tokens.shape)
    highest = int(tokens.max())
    fits = found.ndim == 3 and found.shape[:2] == shape and found.shape[2] > highest
    if not fits or not found.is_floating_point() or found.is_meta:
        wanted = f"floating logits (B,T,V), V above {highest}, for tokens (B,T) of shape {shape}"
        held = f"{found.dtype} of shape {tuple(found.shape)}{' on meta' if found.is_meta else ''}"
        raise ValueError(f"{name} must return {wanted}, got {held}")
    return found


def memory(model: AnyModel, half_lives: Sequence[np.ndarray], context: int) -> dict[str, Any]:
    """The entries of a row of metrics.jsonl on the memory of the blocks, as far as it is known.

    These are QUANTILES of the `half_lives` of every block (L,7), and the weight of an input in it
    (L,T) 1, 2, 4 .. `context` bytes later.
    """
    lags = [2**power for power in range(context.bit_length())]
    with np.errstate(invalid="ignore"):  # between infinite ones they are NaN
        quantiles = [np.quantile(values, QUANTILES).tolist() for values in half_lives]
    blocks = [block.tolist() for block in model.kernels(torch.tensor(lags))]
    entries: dict[str, Any] = {}
    if quantiles:
        entries["half_life_quantiles"] = quantiles
    if blocks:
        entries["kernel"] = {"lags": lags, "blocks": blocks}
    return entries
