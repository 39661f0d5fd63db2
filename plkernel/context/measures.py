"""Numbers that say how a model uses its context: influence, truncation, loss by position."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plkernel.analysis.results import Result

Floats = NDArray[np.float64]
TokenArray = NDArray[np.int64]
Bytes = NDArray[np.uint8]
UNTRAINED_CONTEXT = 512
"""Tokens of a window of a model that was not trained here, unless asked otherwise."""
BATCH = 4
"""Windows that a model reads at once, unless asked otherwise."""
INFORMED = 40
"""Blocks of a text from which the errors of its I(d) are estimated."""
FEWEST_PLACES = 4
"""Replaced tokens in a window from which on every lag has a reading."""


class Curve(Result):
    """Base of the dataclasses whose fields are columns."""

    _figure = "plkernel.context.curve_figures:curve_figure"

    def _title(self) -> str:
        return str(self.__doc__).partition("\n")[0]

    def _table(self) -> Any:
        return {name: column for name, column in vars(self).items() if isinstance(column, tuple)}

    def to_dict(self) -> dict[str, Any]:
        """Fields for JSON: columns as lists, null for numbers that are not finite.

        Fields that are None are left out.
        """
        values = {name: value for name, value in vars(self).items() if value is not None}
        for name, column in values.items():
            if isinstance(column, tuple):
                numbers = np.asarray(column).tolist()
                values[name] = [one if math.isfinite(one) else None for one in numbers]
        return values


@dataclass(frozen=True, repr=False)
class Means(Curve):
    """Mean bits per byte or token, (L,), with at most `given` (L,) known before the predicted."""

    given: tuple[int, ...]
    bpb: tuple[float, ...]
    standard_error: tuple[float, ...]


@dataclass(frozen=True, repr=False)
class Truncation(Curve):
    """Bits per byte, or per token, where the model sees only the last `given` of them.

    cost   loss against the last entry, the whole context: bpb - bpb[-1], with the standard error of
           these paired differences
    floor  bits per byte of the best possible predictor, if the source of the text is known
    """

    windows: int
    given: tuple[int, ...]
    bpb: tuple[float, ...]
    cost: tuple[float, ...]
    standard_error: tuple[float, ...]
    floor: tuple[float, ...] | None = None


@dataclass(frozen=True, repr=False)
class Influence(Curve):
    """Mean change of the prediction of x[t+1] when x[t+1-d] is another token, at lags d.

    lags: (L,), ascending.

    bits            (L,) KL(P(. | x) || P(. | x with the other token)) in bits
    standard_error  (L,) over windows and what is replaced in them, if windows are independent:
                    readings in one are not. Few readings, at times one, carry most of the mean at
                    far lags: the root mean square of such errors is right, and where most draws
                    miss these readings, most errors are half of what they should be
    """

    lags: tuple[int, ...]
    bits: tuple[float, ...]
    standard_error: tuple[float, ...]


def lengths(context: int, step: int = 1) -> list[int]:
    """1, 2, 4, 8 .. and `context`, of those that leave whole patches of `step` bytes.

    >>> lengths(12)
    [1, 2, 4, 8, 12]
    """
    powers = [2**power for power in range(context.bit_length()) if 2**power < context]
    return [length for length in (*powers, context) if (context - length) % step == 0]


def moments(values: Floats) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Means of rows (L,n), and their standard errors, NaN for n = 1."""
    count = values.shape[1]
    errors = np.full(len(values), np.nan)
    if count > 1:
        errors = values.std(axis=1, ddof=1) / np.sqrt(count)
    return tuple(values.mean(axis=1).tolist()), tuple(errors.tolist())


def ratio_error(parts: ArrayLike, sizes: ArrayLike) -> float | None:
    """Standard error of sum(parts) / sum(sizes) over n windows; None for n = 1.

    Both vary over windows, so it is linearised: that of the mean of parts - ratio * sizes, over the
    mean of sizes (Cochran, Sampling Techniques, 1977, chapter 6).
    """
    values = np.asarray(parts, dtype=np.float64)
    weights = np.asarray(sizes, dtype=np.float64)
    if values.size < 2:
        return None
    rest = values - values.sum() / weights.sum() * weights
    return float(rest.std(ddof=1) / np.sqrt(rest.size) / weights.mean())


def by_position(losses: ArrayLike) -> Means:
    """Means over positions of losses (n,T) in bits, by the number of bytes given.

    Numbers are grouped as 1, 2, 3..4, 5..8 and so on up to T. Positions of one window share its
    text: the error is that of n means of windows.
    """
    values = np.asarray(losses, dtype=np.float64)
    ends = lengths(values.shape[1])
    windows = [values[:, start:end].mean(axis=1) for start, end in pairwise([0, *ends])]
    return Means(tuple(ends), *moments(np.stack(windows)))


def truncation_of(
    given: list[int], losses: ArrayLike, floor: ArrayLike | None = None
) -> Truncation:
    """Truncation from losses (L,n) in bits at n bytes, with the last L of `given` known.

    floor: (L,n), the losses of the best possible predictor; None where it is unknown.
    """
    values = np.asarray(losses, dtype=np.float64)
    least = None
    if floor is not None:
        least = tuple(np.asarray(floor, dtype=np.float64).mean(axis=1).tolist())
    bits = tuple(values.mean(axis=1).tolist())
    return Truncation(values.shape[1], tuple(given), bits, *moments(values - values[-1]), least)


def influence_of(lags: Sequence[int], divergences: ArrayLike) -> Influence:
    """Influence from divergences (n,P,L) in bits: n windows, P replaced tokens in each.

    divergences: NaN at lags that are not read.

    The mean of all readings at a lag is the ratio of their sum to their number, both of which vary
    over windows; its error is linearised.
    """
    values = np.asarray(divergences, dtype=np.float64)
    n = len(values)
    sums = np.nansum(values, axis=1)
    counts = (~np.isnan(values)).sum(axis=1)
    bits = sums.sum(axis=0) / counts.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):  # infinite readings; NaN for one window
        squares = np.square(sums - bits * counts).sum(axis=0) * np.divide(n, n - 1)
    errors = np.sqrt(squares) / counts.sum(axis=0)
    return Influence(tuple(lags), tuple(bits.tolist()), tuple(errors.tolist()))


def places(windows: int, length: int, count: int, rng: np.random.Generator) -> TokenArray:
    """Places of the tokens to replace in each window of `length` tokens, (windows,count).

    A window is parted into `count` strata; replaced are its first token, and one drawn from each
    further stratum.

    Every window has draws of its own: in a place that all share, readings would vary together.
    """
    edges = np.arange(count + 1) * length // count
    drawn = rng.integers(edges[:-1], edges[1:], (windows, count))
    drawn[:, 0] = 0
    return drawn


def is_read(lags: ArrayLike, places: ArrayLike, length: int) -> NDArray[np.bool_]:
    """Mask (..,L) of the lags (L,) to read when places (..) are replaced.

    Read are predictions with half of the window or more given. A lag d is read at the prediction
    that place + d tokens are given to. In every window each lag from 1 to `length` is read at one
    of its `places`, if these are FEWEST_PLACES or more, or all.
    """
    given = np.asarray(places)[..., None] + np.asarray(lags)
    return (given >= length - length // 2) & (given <= length)


def others(text: ArrayLike, tokens: ArrayLike, rng: np.random.Generator) -> TokenArray:
    """For each of `tokens` a different one, drawn by its frequency in `text`.

    All of `tokens` occur in `text`.
    """
    known, counts = np.unique(np.asarray(text), return_counts=True)
    if known.size < 2:
        raise ValueError(
            f"text must hold two different tokens or more, got {known[0]} only, which no other can"
            " replace; give a longer one"
        )
    ends = counts.cumsum()
    at = np.searchsorted(known, tokens)
    # A place in the sorted text without the token's own occurrences, which are then skipped.
    drawn = rng.integers(0, ends[-1] - counts[at])
    drawn += np.where(drawn >= ends[at] - counts[at], counts[at], 0)
    return np.asarray(known[np.searchsorted(ends, drawn, side="right")], dtype=np.int64)


@dataclass(frozen=True)
class Probe:
    """Use of the context by a causal model, from `windows` windows of `context` tokens.

    unit                 'byte', or 'token' of an alphabet of the model's own
    bytes_per_token      of the tokens that are predicted in the windows; None where unknown
    influence            of a token on the prediction of a later one, by their distance
    positions            bits per token by the number of tokens before it in the window
    truncation           bits per token at the last token when only the last so many before it are
                         given
    information          I(d) of the text in bits, at the lags of `influence`, from INFORMED blocks;
                         None unless its tokens are bytes, and enough
    trained              context of training, where windows are longer
    cost, divergence     those of `plkernel.training.evaluate.beyond`, where windows are longer
    bits_per_byte_error  standard error of `bits_per_byte` over windows; None for one window, and
                         where bytes are unknown
    """

    unit: str
    windows: int
    context: int
    bytes_per_token: float | None
    bits_per_token: float
    influence: Influence
    positions: Means
    truncation: Truncation
    information: Influence | None = None
    trained: int | None = None
    cost: Means | None = None
    divergence: Means | None = None
    bits_per_byte_error: float | None = None

    @property
    def bits_per_byte(self) -> float | None:
        """All bits of the windows over all bytes of the tokens that they predict.

        None where these are unknown.
        """
        return None if self.bytes_per_token is None else self.bits_per_token / self.bytes_per_token

    def to_dict(self) -> dict[str, Any]:
        """All curves in bits per token, for JSON."""
        given = {**vars(self), "bits_per_byte": self.bits_per_byte}
        values = {name: value for name, value in given.items() if value is not None}
        for name, value in values.items():
            if isinstance(value, Curve):
                columns = value.to_dict()
                columns.pop("windows", None)
                renamed = {"bpb": "bits"}
                values[name] = {renamed.get(key, key): one for key, one in columns.items()}
        return values
