"""What a causal model, given as a callable, makes of its context: influence of a token, bits by what is given."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plkernel.analysis.trained.context import by_position, lengths
from plkernel.analysis.trained.influence import Probe, others
from plkernel.training.evaluate import (
    PLACES,
    Predict,
    check_lags,
    influence,
    logits_of,
    replaced,
    token_losses,
    truncation,
)

ROUNDING = 1e-4
"""Of the largest logit: how far those before a replaced token may move, as by a convolution through FFTs."""


def check_causal(predict: Predict, windows: Tensor, batch: int = 4, seed: int = 0) -> None:
    """ValueError that names the place unless logits before a replaced token stay as they are.

    Of the first `batch` of `windows` (n,T+1), the last token that is given is replaced, the one before it, and two in
    the middle. Logits that are not numbers are refused too.
    """
    inputs = windows[:batch, :-1]
    length = inputs.shape[1]
    known = logits_of(predict, inputs)
    if bool(known.isnan().any()):
        raise ValueError("the logits of the model are not numbers: has its training diverged?")
    limit = ROUNDING * max(float(row[row.isfinite()].abs().max()) for row in known)
    rng = np.random.default_rng(seed)
    for place in sorted({length - 1, length - 2, length // 2, length // 2 - 1} & set(range(1, length)), reverse=True):
        changed = replaced(inputs, place, others(windows.numpy(), inputs[:, place].numpy(), rng))
        difference = logits_of(predict, changed)[:, :place] - known[:, :place]
        moved = difference.nan_to_num_().abs_().amax(dim=(0, 2))
        if bool((moved > limit).any()):
            at = int(torch.nonzero(moved > limit)[-1])
            raise ValueError(
                f"the model is not causal: replacing the token at position {place} of {length} moves the logits at "
                f"position {at} by {float(moved[at]):.2g}; give a model that predicts each token from those before it"
            )


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
