"""What a causal model, given as a callable, makes of its context: influence of a token, bits by what is given."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plkernel.analysis.trained.context import by_position, lengths
from plkernel.analysis.trained.influence import (
    FEWEST_PLACES,
    Influence,
    Probe,
    influence_of,
    is_read,
    others,
    places,
)
from plkernel.run.evaluate import Predict, token_losses, truncation
from plkernel.run.objective import NATS_PER_BIT

ROUNDING = 1e-4
"""Of the largest logit: how far those before a replaced token may move, as by a convolution through FFTs."""
PLACES = 8


def check_causal(predict: Predict, windows: Tensor, batch: int = 4, seed: int = 0) -> None:
    """ValueError that names the place unless logits before a replaced token stay as they are.

    Of the first `batch` of `windows` (n,T+1), the last token that is given is replaced, the one before it, and two in
    the middle. Logits that are not numbers are refused too.
    """
    inputs = windows[:batch, :-1]
    length = inputs.shape[1]
    known = _logits(predict, inputs)
    if bool(known.isnan().any()):
        raise ValueError("the logits of the model are not numbers: has its training diverged?")
    limit = ROUNDING * max(float(row[row.isfinite()].abs().max()) for row in known)
    rng = np.random.default_rng(seed)
    for place in sorted({length - 1, length - 2, length // 2, length // 2 - 1} & set(range(1, length)), reverse=True):
        changed = _replaced(inputs, place, others(windows.numpy(), inputs[:, place].numpy(), rng))
        difference = _logits(predict, changed)[:, :place] - known[:, :place]
        moved = difference.nan_to_num_().abs_().amax(dim=(0, 2))
        if bool((moved > limit).any()):
            at = int(torch.nonzero(moved > limit)[-1])
            raise ValueError(
                f"the model is not causal: replacing the token at position {place} of {length} moves the logits at "
                f"position {at} by {float(moved[at]):.2g}; give a model that predicts each token from those before it"
            )


def influence(
    predict: Predict,
    windows: Tensor,
    lags: Sequence[int] | None = None,
    batch: int = 4,
    count: int = PLACES,
    seed: int = 0,
) -> Influence:
    """Mean KL divergence in bits of the prediction of x[t+1] from what it is when x[t+1-d] is another token.

    windows  (n,T+1) of text. In each, `count` tokens are replaced one at a time, at least FEWEST_PLACES or all, the
             same places in every window, by tokens drawn by their frequency in `windows`. All lags are read from one
             pass, where half of the window or more is given: a far lag has fewer readings, lag T a single one
    lags     ascending, 1 to T; 1, 2, 4 .. T unless given
    batch    windows in a call of `predict`. Memory: three arrays of batch x T x V floats, V the alphabet

    The result does not depend on `batch`, but for rounding.
    """
    inputs = windows[:, :-1]
    length = inputs.shape[1]
    known = check_lags(lags, length)
    if count < FEWEST_PLACES:
        raise ValueError(
            f"count must be at least {FEWEST_PLACES} replaced tokens, so that every lag has one, got {count}"
        )
    rng = np.random.default_rng(seed)
    chosen = places(length, min(count, length), rng)
    drawn = torch.from_numpy(others(windows.numpy(), inputs[:, torch.from_numpy(chosen)].numpy(), rng))
    found = np.full((len(inputs), len(chosen), len(known)), np.nan)
    for start in range(0, len(inputs), batch):
        rows = slice(start, start + batch)
        before = _logits(predict, inputs[rows])
        for index, place in enumerate(chosen.tolist()):
            read = is_read(known, place, length)
            at = torch.from_numpy(place + np.asarray(known)[read] - 1).to(before.device)
            after = _logits(predict, _replaced(inputs[rows], place, drawn[rows, index]))
            found[rows, index, read] = _divergence(before[:, at], after[:, at]).cpu().numpy()
    return influence_of(known, found)


def probe(
    predict: Predict,
    windows: Tensor,
    lags: Sequence[int] | None = None,
    *,
    batch: int = 4,
    seed: int = 0,
    step: int = 1,
    unit: str = "token",
    bytes_per_token: float = 1.0,
    progress: Callable[[float], Any] | None = None,
) -> Probe:
    """All that `influence`, `token_losses` and `truncation` say of `windows` (n,T+1), once `check_causal` has passed.

    progress  called with shares of the work, which add up to 1
    """
    count, length = len(windows), windows.shape[1] - 1
    known = check_lags(lags, length)
    work = length * (count * (2 + min(PLACES, length)) + 5 * min(batch, count)) + count * sum(lengths(length, step))

    def counted(tokens: Tensor) -> Tensor:
        logits = predict(tokens)
        if progress is not None:
            progress(tokens.numel() / work)
        return logits

    check_causal(counted, windows, batch, seed)
    losses = token_losses(counted, windows, batch)
    return Probe(
        unit=unit,
        windows=count,
        context=length,
        bytes_per_token=bytes_per_token,
        influence=influence(counted, windows, known, batch, seed=seed),
        positions=by_position(losses),
        truncation=truncation(counted, windows, batch, step=step),
        bits_per_token=float(losses.mean(dtype=np.float64)),
    )


def check_lags(lags: Sequence[int] | None, length: int) -> list[int]:
    """`lags`, or 1, 2, 4 .. `length`; ValueError unless they ascend from 1 or more to `length` at most."""
    known = lengths(length) if not lags else list(lags)
    if known != sorted(set(known)) or not 1 <= known[0] <= known[-1] <= length:
        raise ValueError(f"lags must ascend and lie between 1 and the context, {length}, got {known}")
    return known


def _replaced(tokens: Tensor, place: int, by: Any) -> Tensor:
    """`tokens` (B,T) with `by` (B,) at `place`."""
    changed = tokens.clone()
    changed[:, place] = torch.as_tensor(by)
    return changed


def _logits(predict: Predict, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return predict(tokens)


def _divergence(before: Tensor, after: Tensor) -> Tensor:
    """KL of softmax(before) from softmax(after) in bits, (..., V) to (...); in float64, as far lags move little."""
    log_p, log_q = (logits.double().log_softmax(-1) for logits in (before, after))
    p = log_p.exp()
    return torch.where(p > 0, p * (log_p - log_q), 0.0).sum(-1) / NATS_PER_BIT
