"""Windows of bytes: random or successive ones for training, fixed ones for evaluation."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Bytes = NDArray[np.uint8]
OF_A_SPEC = "use a larger corpus, a larger share for it, or a smaller train.context"
"""What a spec can change where its corpus is too short."""


def training_windows(data: Bytes, context: int, batch: int, seed: int, step: int) -> Tensor:
    """`batch` windows of context + 1 bytes, shape (batch, context + 1), int64.

    Starts are uniform and depend on (seed, step) alone, so arms of one seed read the same bytes in
    the same order and a resumed run goes on where it stopped.
    """
    generator = stream(seed, step)
    return _windows(data, generator.integers(0, data.size - context, size=batch), context)


def carried_windows(data: Bytes, context: int, batch: int, seed: int, step: int) -> Tensor:
    """As `training_windows`, but every row follows that of the step before.

    Row b begins at byte o + b N / batch of N, o drawn from the seed, and reads on, after the last
    byte from the first: in N / (batch * context) steps every byte is predicted once.
    """
    origin = int(stream(seed, 0).integers(data.size))
    rows = origin + np.arange(batch) * data.size // batch + step * context  # where each begins
    places = (rows[:, None] + np.arange(context + 1)) % data.size
    return torch.from_numpy(data[places].astype(np.int64))


def fixed_windows(data: NDArray[Any], context: int, count: int) -> Tensor:
    """Up to `count` disjoint windows of context + 1 bytes or tokens, (n, context + 1), int64.

    They are evenly spaced over `data`.
    """
    return spread_windows(data, context, min(count, data.size // (context + 1)))


def predicted_bytes(ends: NDArray[np.int64], context: int, count: int) -> NDArray[np.int64]:
    """Bytes (n,) of the `context` predicted tokens of each of `fixed_windows`.

    ends: (N,) bytes of the text up to the end of each token. The first token of a window is given.
    """
    reached = fixed_windows(ends, context, count)
    return np.asarray((reached[:, -1] - reached[:, 0]).numpy())


def spread_windows(data: NDArray[Any], context: int, count: int) -> Tensor:
    """Up to `count` windows as `fixed_windows` gives them, overlapping where disjoint ones would be
    fewer.

    No two end on the same byte.
    """
    count = min(count, data.size - context)
    starts = np.linspace(0, data.size - context - 1, count).astype(np.int64)
    return _windows(data, starts, context)


def check_holds_window(size: int, context: int, name: str, hint: str = OF_A_SPEC) -> None:
    """Raise ValueError unless `size` bytes hold at least one window of context + 1.

    hint: what to do about it, for the message
    """
    if size < context + 1:
        raise ValueError(
            f"{name} must hold one window of context + 1 = {context + 1} bytes or more, got"
            f" {size}; {hint}"
        )


def stream(seed: int, step: int) -> np.random.Generator:
    """Random numbers of one step of a seed; ValueError unless that is from 0 to 2**64 - 1."""
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed must lie between 0 and {2**64 - 1}, got {seed}")
    # Philox has a stream for every key: step n needs none of the draws before it. A list with a
    # seed from 2**63 on would become floats, in which neighbouring seeds are one.
    key = np.array([seed, step], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def _windows(data: NDArray[Any], starts: NDArray[np.int64], context: int) -> Tensor:
    """The windows that begin at `starts` (n,), (n, context + 1), int64."""
    rows = np.stack([data[start : start + context + 1] for start in starts.tolist()])
    return torch.from_numpy(rows.astype(np.int64))
