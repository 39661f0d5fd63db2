"""What sequences of a known law give, and what may be asked of them."""

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]
Windows = NDArray[np.integer[Any]]

BLOCK = 1 << 17
"""Bytes generated at a time."""


class Predictor(Protocol):
    """The prediction of each next byte by the law that the bytes were drawn from: no model is better on average."""

    def losses(self, windows: Windows, given: int | None = None) -> Floats:
        """-log2 P(x[t+1] | x[t], x[t-1] .. x[t+1-c]) in bits, (n, T), for `windows` x (n, T + 1), t = 0..T-1.

        c is `given`, but at most the t + 1 bytes that the window has; None for all of them. A byte in the context that
        is no symbol, such as a separator, counts as not known. ValueError where one is to be predicted.
        """

    def bits_per_byte(self) -> float:
        """The mean loss in the long run, the whole past given."""


def known_bytes(windows: Windows, symbols: int, given: int | None) -> int:
    """`given`, at most what windows (n, T + 1) have; ValueError for what `Predictor.losses` refuses."""
    if windows.ndim != 2 or windows.shape[1] < 2:
        raise ValueError(f"windows of shape {windows.shape}: must be (n, T + 1), T at least 1")
    if windows.shape[0] and (most := int(windows[:, 1:].max())) >= symbols:
        raise ValueError(f"windows hold byte {most}: must be of this corpus, whose bytes are 0..{symbols - 1}")
    if given is not None:
        check_whole("given", given, 0)
    steps = windows.shape[1] - 1
    return steps if given is None else min(given, steps)


def check(good: bool | np.bool, name: str, value: object, wanted: str) -> None:
    """ValueError that `name` must be `wanted`, unless it is `good`."""
    if not good:
        raise ValueError(f"{name} = {value}: must be {wanted}")


def check_whole(name: str, value: int, least: int, most: float = math.inf) -> None:
    """ValueError unless `value` is a whole number within the limits."""
    wanted = f"a whole number of at least {least}" if most == math.inf else f"a whole number from {least} to {most}"
    check(isinstance(value, int) and least <= value <= most, name, value, wanted)


def check_common(symbols: int, size: int, seed: int) -> None:
    """ValueError unless a sequence can have these."""
    check_whole("symbols", symbols, 2, 256)
    check_whole("size", size, 1)
    check_whole("seed", seed, 0)
