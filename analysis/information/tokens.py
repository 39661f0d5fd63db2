"""The bytes of a token: the factor between lags in tokens and lags in bytes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plkernel.analysis.information.counts import block_edges
from plkernel.analysis.information.estimate import BLOCKS, each_left_out, half_width

FEWEST_IN_BLOCK = 50
"""Tokens of a block from which on its mean says something of the text; fewer give no interval."""


@dataclass(frozen=True)
class TokenLength:
    """Bytes of a token of one text, by one tokenizer.

    bytes_per_token  all bytes over all tokens
    low, high        95 % interval of a text of the same kind: of this one it is known. None where
                     the text is too short for one
    tokens           number of tokens
    tokenizer        where it comes from
    """

    bytes_per_token: float
    low: float | None
    high: float | None
    tokens: int
    tokenizer: str

    def __str__(self) -> str:
        interval = "" if self.low is None else f" ({self.low:.3f} to {self.high:.3f})"
        return f"{self.bytes_per_token:.3f} bytes a token{interval}"

    def in_tokens(self, lags: ArrayLike) -> NDArray[np.float64]:
        """Lags in bytes as lags in tokens."""
        return np.asarray(lags, dtype=np.float64) / self.bytes_per_token

    def in_bytes(self, lags: ArrayLike) -> NDArray[np.float64]:
        """Lags in tokens as lags in bytes."""
        return np.asarray(lags, dtype=np.float64) * self.bytes_per_token


def token_length(ends: ArrayLike, tokenizer: str) -> TokenLength:
    """Mean length of the tokens that end at the bytes `ends` (n,) of a text, ascending from 0.

    The interval is that of a jackknife over BLOCKS of equally many tokens, as a stretch of a text
    has tokens of its own kind, and as many as its neighbours. ValueError without a token.
    """
    last = np.asarray(ends)
    if not last.size:
        raise ValueError("text must have a token, got none")
    mean = float(last[-1] / last.size)
    if last.size < BLOCKS * FEWEST_IN_BLOCK:
        return TokenLength(mean, None, None, int(last.size), tokenizer)
    edges = block_edges(last.size, 0, BLOCKS)
    starts = np.concatenate([[0], last])[edges]
    left = each_left_out(np.diff(starts))[1:] / each_left_out(np.diff(edges))[1:]
    half = float(half_width(left))
    return TokenLength(mean, mean - half, mean + half, int(last.size), tokenizer)
