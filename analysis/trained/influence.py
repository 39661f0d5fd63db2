"""What one token of the context is to a model: how far its prediction moves when that token is another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plkernel.analysis.information.curve import DecayCurve
from plkernel.analysis.trained.context import Means, Truncation, moments

Tokens = NDArray[np.int64]

FEWEST_PLACES = 4
"""Replaced tokens in a window from which on every lag has one."""


@dataclass(frozen=True)
class Influence:
    """Mean change of the prediction of x[t+1] when x[t+1-d] is another token, at lags d = `lags` (L,), ascending.

    bits (L,): KL(P(. | x) || P(. | x with the other token)) in bits. standard_error (L,): windows are independent, what
    is read in one window is not.
    """

    lags: tuple[int, ...]
    bits: tuple[float, ...]
    standard_error: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON; a standard error of one window is null."""
        return {"lags": list(self.lags), **_columns(bits=self.bits, standard_error=self.standard_error)}


def influence_of(lags: Sequence[int], divergences: ArrayLike) -> Influence:
    """The curve of divergences (n,P,L) in bits: n windows, P replaced tokens in each, NaN where a lag is not read.

    P and the NaN are those of every window, so that the mean of windows is that of all readings.
    """
    windows = np.nanmean(np.asarray(divergences, dtype=np.float64), axis=1)
    return Influence(tuple(lags), *moments(windows.T))


def places(length: int, count: int, rng: np.random.Generator) -> Tokens:
    """Which tokens of a window (length,) to replace: the first, and one drawn from each further of `count` strata."""
    edges = np.arange(count + 1) * length // count
    drawn = rng.integers(edges[:-1], edges[1:])
    drawn[0] = 0
    return drawn


def is_read(lags: ArrayLike, place: int, length: int) -> NDArray[np.bool_]:
    """Which lags (L,) to read when `place` is replaced: those at which half of the window or more is given.

    A lag d is read at the prediction that place + d tokens are given to. Every lag from 1 to `length` is read at one
    of the `places`, if these are FEWEST_PLACES or more, or all.
    """
    given = place + np.asarray(lags)
    return (given >= length - length // 2) & (given <= length)


def others(text: ArrayLike, tokens: ArrayLike, rng: np.random.Generator) -> Tokens:
    """For each of `tokens`, which `text` holds, another one, drawn by how often it stands in `text`.

    Raises ValueError for a text of one token only.
    """
    known, counts = np.unique(np.asarray(text), return_counts=True)
    if known.size < 2:
        raise ValueError(f"text: repeats one token, {known[0]}, only, which no other can replace; give a longer text")
    ends, at = counts.cumsum(), np.searchsorted(known, tokens)
    drawn = rng.integers(0, ends[-1] - counts[at])
    drawn += np.where(drawn >= ends[at] - counts[at], counts[at], 0)
    return np.asarray(known[np.searchsorted(ends, drawn, side="right")], dtype=np.int64)


@dataclass(frozen=True)
class Probe:
    """What a causal model makes of its context, found on `windows` windows of `context` tokens.

    unit             what a token is: 'byte', or 'token' of an alphabet of the model's own
    bytes_per_token  of the text: bits per byte are bits per token over that
    positions        bits per token by how many tokens of the window come before
    truncation       bits per token at the last token when only the last so many before it are given
    information      of the text, where tokens are bytes and there are enough, at the lags of `influence` in nats
    """

    unit: str
    windows: int
    context: int
    bytes_per_token: float
    influence: Influence
    positions: Means
    truncation: Truncation
    bits_per_token: float
    information: DecayCurve | None = None

    def information_bits(self) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """The text's own I(d) in bits and its standard error, (L,) each."""
        if self.information is None:
            return None
        return np.asarray(self.information.values) / np.log(2), self.information.standard_errors() / np.log(2)

    def to_dict(self) -> dict[str, Any]:
        """For JSON, all bits per token; a standard error of one window is null."""
        known = self.information_bits()
        lags = list(self.influence.lags)
        text = (
            {} if known is None else {"information": {"lags": lags, **_columns(bits=known[0], standard_error=known[1])}}
        )
        found, position, cut = self.influence, self.positions, self.truncation
        curves = {
            "influence": found.to_dict(),
            "positions": {
                "given": list(position.given),
                **_columns(bits=position.bpb, standard_error=position.standard_error),
            },
            "truncation": {
                "given": list(cut.given),
                **_columns(bits=cut.bpb, cost=cut.cost, standard_error=cut.standard_error),
                **({} if cut.floor is None else {"floor": list(cut.floor)}),
            },
        }
        names = ("unit", "windows", "context", "bytes_per_token", "bits_per_token")
        return {**{name: getattr(self, name) for name in names}, **curves, **text}


def _columns(**columns: ArrayLike) -> dict[str, list[float | None]]:
    """Lists of numbers, null where there is none."""
    return {
        name: [value if np.isfinite(value) else None for value in np.asarray(values, dtype=np.float64).tolist()]
        for name, values in columns.items()
    }
