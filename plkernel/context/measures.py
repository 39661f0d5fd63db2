"""Numbers that say how a model uses its context: influence, truncation, n-grams, memory over
runs.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plkernel.analysis.results import Result

Floats = NDArray[np.float64]
Tokens = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Table = tuple[NDArray[np.uint64], NDArray[np.int64]]
"""Different keys (k,), ascending, and how often each was seen (k,), or its running total."""
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Levels of the half-lives of a block's channels that a run records."""
OUTLASTING = 10
"""Contexts: a channel with a half-life longer than this many hardly decays while a window is read.
"""
SLOPE_LAGS = (4.0, 128.0)
"""Lags in bytes over which slopes of kernels are taken, or up to the longest known lag."""
INFORMED = 40
"""Blocks of a text from which the errors of its I(d) are estimated."""
FEWEST_PLACES = 4
"""Replaced tokens in a window from which on every lag has a reading."""
AT_ONCE = 2**22
"""Bytes that are counted, or judged, at a time."""


class Curve(Result):
    """Base of the dataclasses whose fields are columns."""

    _figure = "plkernel.context.curve_figures:curve_figure"

    def _title(self) -> str:
        return str(self.__doc__).partition("\n")[0]

    def _table(self) -> Any:
        return {name: column for name, column in vars(self).items() if isinstance(column, tuple)}

    def to_dict(self) -> dict[str, Any]:
        """Fields for JSON: columns as lists, null for numbers that are not finite, no field that is
        None.
        """
        values = {name: value for name, value in vars(self).items() if value is not None}
        for name, column in values.items():
            if isinstance(column, tuple):
                values[name] = [
                    value if math.isfinite(value) else None for value in np.asarray(column).tolist()
                ]
        return values


@dataclass(frozen=True, repr=False)
class Means(Curve):
    """Mean bits per byte, or per token, (L,), with at most `given` (L,) bytes known before the
    predicted one.
    """

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
    """Mean change of the prediction of x[t+1] when x[t+1-d] is another token, at lags d = `lags`
    (L,), ascending.

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
    """1, 2, 4, 8 .. and `context` itself, restricted to those that leave whole patches of `step`
    bytes.

    >>> lengths(12)
    [1, 2, 4, 8, 12]
    """
    powers = [2**power for power in range(context.bit_length()) if 2**power < context]
    return [length for length in (*powers, context) if (context - length) % step == 0]


def moments(values: Floats) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Means of rows (L,n), and their standard errors, NaN for n = 1."""
    count = values.shape[1]
    spread = (
        values.std(axis=1, ddof=1) / np.sqrt(count) if count > 1 else np.full(len(values), np.nan)
    )
    return tuple(values.mean(axis=1).tolist()), tuple(spread.tolist())


def by_position(losses: ArrayLike) -> Means:
    """Means over positions of losses (n,T) in bits, by the number of bytes given: 1, 2, 3..4, 5..8
    and so on up to T.

    Positions of one window share its text: the error is that of n means of windows.
    """
    values = np.asarray(losses, dtype=np.float64)
    given = lengths(values.shape[1])
    windows = [
        values[:, start:end].mean(axis=1) for start, end in zip([0, *given], given, strict=False)
    ]
    return Means(tuple(given), *moments(np.stack(windows)))


def truncation_of(
    given: list[int], losses: ArrayLike, floor: ArrayLike | None = None
) -> Truncation:
    """Truncation from losses (L,n) in bits at n bytes of text, and from those of the best
    predictor.
    """
    values = np.asarray(losses, dtype=np.float64)
    least = (
        None if floor is None else tuple(np.asarray(floor, dtype=np.float64).mean(axis=1).tolist())
    )
    bits = tuple(values.mean(axis=1).tolist())
    return Truncation(values.shape[1], tuple(given), bits, *moments(values - values[-1]), least)


def influence_of(lags: Sequence[int], divergences: ArrayLike) -> Influence:
    """Influence from divergences (n,P,L) in bits: n windows, P replaced tokens in each, NaN at lags
    that are not read.

    The mean of all readings at a lag is the ratio of their sum to their number, both of which vary
    over windows; its error is linearised.
    """
    values = np.asarray(divergences, dtype=np.float64)
    sums, counts = np.nansum(values, axis=1), (~np.isnan(values)).sum(axis=1)
    bits, n = sums.sum(axis=0) / counts.sum(axis=0), len(values)
    with np.errstate(invalid="ignore", divide="ignore"):  # infinite readings; NaN for one window
        squares = np.square(sums - bits * counts).sum(axis=0) * np.divide(n, n - 1)
    errors = np.sqrt(squares) / counts.sum(axis=0)
    return Influence(tuple(lags), tuple(bits.tolist()), tuple(errors.tolist()))


def places(windows: int, length: int, count: int, rng: np.random.Generator) -> Tokens:
    """Tokens of each window (length,) to replace, (windows,count): the first, and one from each
    further of the strata.

    Every window has draws of its own: in a place that all share, readings would vary together.
    """
    edges = np.arange(count + 1) * length // count
    drawn = rng.integers(edges[:-1], edges[1:], (windows, count))
    drawn[:, 0] = 0
    return drawn


def is_read(lags: ArrayLike, places: ArrayLike, length: int) -> NDArray[np.bool_]:
    """Mask (..,L) of the lags (L,) to read when places (..) are replaced: those with half of the
    window or more given.

    A lag d is read at the prediction that place + d tokens are given to. In every window each lag
    from 1 to `length` is read at one of its `places`, if these are FEWEST_PLACES or more, or all.
    """
    given = np.asarray(places)[..., None] + np.asarray(lags)
    return (given >= length - length // 2) & (given <= length)


def others(text: ArrayLike, tokens: ArrayLike, rng: np.random.Generator) -> Tokens:
    """For each of `tokens`, all of which occur in `text`, a different one, drawn by its frequency
    in `text`.
    """
    known, counts = np.unique(np.asarray(text), return_counts=True)
    if known.size < 2:
        raise ValueError(
            f"text: repeats one token, {known[0]}, only, which no other can replace; give a longer"
            " text"
        )
    ends, at = counts.cumsum(), np.searchsorted(known, tokens)
    drawn = rng.integers(0, ends[-1] - counts[at])
    drawn += np.where(drawn >= ends[at] - counts[at], counts[at], 0)
    return np.asarray(known[np.searchsorted(ends, drawn, side="right")], dtype=np.int64)


@dataclass(frozen=True)
class Probe:
    """Use of the context by a causal model, from `windows` windows of `context` tokens.

    unit             'byte', or 'token' of an alphabet of the model's own
    bytes_per_token  of the text: bits per byte are bits per token over that
    positions        bits per token by the number of tokens before it in the window
    truncation       bits per token at the last token when only the last so many before it are given
    information      I(d) of the text in bits, at the lags of `influence`, from INFORMED blocks;
                     None unless its tokens are bytes, and enough
    trained          context of training, where windows are longer; `cost` and `divergence` are
    those of `beyond` then
    """

    unit: str
    windows: int
    context: int
    bytes_per_token: float
    bits_per_token: float
    influence: Influence
    positions: Means
    truncation: Truncation
    information: Influence | None = None
    trained: int | None = None
    cost: Means | None = None
    divergence: Means | None = None

    def to_dict(self) -> dict[str, Any]:
        """All curves in bits per token, for JSON."""
        values = {name: value for name, value in vars(self).items() if value is not None}
        for name, value in values.items():
            if isinstance(value, Curve):
                columns = value.to_dict().items()
                values[name] = {
                    "bits" if key == "bpb" else key: column
                    for key, column in columns
                    if key != "windows"
                }
        return values


@dataclass(frozen=True)
class Memory:
    """Blocks at one time of their training, S runs of L blocks each.

    half_lives  (S, L, 7) QUANTILES of every block's half-lives, in bytes; (0, 0, 7) if unknown
    lags        (T,) bytes; empty if kernels are unknown
    kernels     (S, L, T) weight of an input that many bytes later, in units of its own for every
    block
    """

    half_lives: Floats
    lags: Floats
    kernels: Floats

    @property
    def blocks(self) -> int:
        """L."""
        return max(self.half_lives.shape[1], self.kernels.shape[1])

    def log_kernels(self) -> Floats:
        """ln k(t) / k(t of the first lag) of every block, mean over runs, (L, T); -inf after a
        kernel has vanished.

        The mean of logarithms is a geometric mean: its slope is the mean of the slopes.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(self.kernels)
            return np.asarray((logs - logs[..., :1]).mean(axis=0))

    def half_life_quantiles(self) -> Floats:
        """Geometric mean over runs of every block's quantiles, (L, 7); of the two ends the
        outermost of all runs.
        """
        quantiles = np.exp(np.log(self.half_lives).mean(axis=0))
        quantiles[:, 0], quantiles[:, -1] = (
            self.half_lives[..., 0].min(axis=0),
            self.half_lives[..., -1].max(axis=0),
        )
        return quantiles

    def exponents(self) -> Floats:
        """x of the law t**-x that every run's kernels follow on `slope_range`, (S, L)."""
        return kernel_exponents(self.lags, self.kernels)


def slope_range(lags: ArrayLike) -> tuple[float, float] | None:
    """First and last of the known lags over which slopes are taken; None if there are fewer than
    two.
    """
    known = np.asarray(lags, dtype=float)
    inside = known[(known >= SLOPE_LAGS[0]) & (known <= SLOPE_LAGS[1])]
    return (float(inside.min()), float(inside.max())) if inside.size > 1 else None


def kernel_exponents(lags: ArrayLike, kernels: ArrayLike) -> Floats:
    """x of the law t**-x that kernels (..., T) follow on `slope_range` of `lags` (T,); ValueError
    for too few lags.
    """
    from plkernel.analysis.nodes import falling_exponent  # loads scipy

    known, span = np.asarray(lags, dtype=float), slope_range(lags)
    if span is None:
        first, last = SLOPE_LAGS
        raise ValueError(
            f"lags must hold two of {first:g} to {last:g} for a slope, got {known.tolist()}"
        )
    inside = (known >= span[0]) & (known <= span[1])
    with np.errstate(divide="ignore"):
        return falling_exponent(
            known[inside], np.log(np.asarray(kernels, dtype=float)[..., inside])
        )


def memory_of(states: Sequence[Mapping[str, Any]]) -> Memory:
    """Memory of several runs of one arm at one time; a quantity that some run lacks is unknown for
    all.
    """
    kernels = [state.get("kernel") or {} for state in states]
    lags = [kernel.get("lags") for kernel in kernels]
    same = bool(lags) and lags[0] and all(one == lags[0] for one in lags)
    known = np.asarray(lags[0] if same else [], dtype=float)
    half_lives = _stacked([state.get("half_life_quantiles") for state in states], len(QUANTILES))
    return Memory(
        half_lives,
        known,
        _stacked([one.get("blocks") for one in kernels] if same else [], len(known)),
    )


def _stacked(rows: Sequence[Any], length: int) -> Floats:
    """The rows of every run as (S, L, length); empty unless all of them have such rows, and equally
    many.
    """
    shapes: set[tuple[int, ...]] = {np.shape(one) if one else () for one in rows}
    if len(shapes) != 1 or shapes.pop()[1:] != (length,):
        return np.empty((0, 0, length))
    return np.asarray(rows, dtype=float)


def outlasting(half_lives: ArrayLike, context: int) -> str | None:
    """Caution for a start of which half or more of the half-lives exceed OUTLASTING windows; None
    for any other.

    half_lives: those of its channels, or QUANTILES of them, in bytes; context: the bytes of a
    window of training.

    >>> print(outlasting([200, 40_000, 1_000_000], 512))
    half or more of its half-lives, 200 to 1,000,000 bytes, are longer than 10 windows of 512 bytes
    >>> outlasting([1, 40, 1_000_000], 512)
    """
    shortest, median, longest = np.quantile(np.asarray(half_lives, dtype=float), (0.0, 0.5, 1.0))
    if median <= OUTLASTING * context:
        return None
    span = f"{shortest:,.0f} to {longest:,.0f} bytes"
    return (
        f"half or more of its half-lives, {span}, are longer than {OUTLASTING} windows of"
        f" {context:,} bytes"
    )


def n_grams(blocks: Iterable[Bytes], orders: int = 5) -> tuple[Table, ...]:
    """Count the n-grams of blocks of windows (n, T + 1): T targets each, all after the first byte.

    Of every order 1 .. orders, at most 7, the n-grams as numbers to the base 256 (k,), ascending,
    and before each how many of all that were counted have a smaller one (k + 1,), with their number
    at the end. None reaches beyond its window, and repeated windows count repeatedly.
    """
    counted: list[list[Table]] = [
        [(np.empty(0, np.uint64), np.empty(0, np.int64))] for _ in range(orders)
    ]
    for block in blocks:
        rows = max(1, AT_ONCE // block.shape[1])
        for start in range(0, len(block), rows):
            for order, parts in enumerate(counted, start=1):
                parts.append(
                    np.unique(_keys(block[start : start + rows], order), return_counts=True)
                )
                if (
                    sum(keys.size for keys, _ in parts[1:]) >= parts[0][0].size
                ):  # each key is merged a few times
                    parts[:] = [_merged(parts)]
    return tuple((keys, np.r_[0, np.cumsum(counts)]) for keys, counts in map(_merged, counted))


def n_gram_losses(tables: Sequence[Table], windows: Bytes) -> Floats:
    """-log2 P_n of the targets of windows (n, T + 1), in bits: (orders, n, T), for tables of
    `n_grams`.

    P_n(x|h) = (c(h,x) + N1+(h) P_{n-1}(x|h')) / (c(h) + N1+(h)), P_0 = 1/256: h are the n - 1 bytes
    before x, or as many as the window has, h' the same without the first of them, N1+(h) the number
    of different bytes seen after h; if h was never seen, P_n = P_{n-1}. Witten and Bell 1991
    (method C), interpolated as in Chen and Goodman 1999.
    """
    targets = len(windows), windows.shape[1] - 1
    losses = np.empty((len(tables), *targets))
    probability = np.full(targets, 1 / 256)
    for order, (known, before) in enumerate(tables, start=1):
        keys = _keys(windows, order)
        history = keys & ~np.uint64(255)
        first, end = (np.searchsorted(known, edge) for edge in (history, history + np.uint64(256)))
        this, after = (np.searchsorted(known, keys, side) for side in ("left", "right"))
        seen, different = before[end] - before[first], end - first
        lower = probability[:, targets[1] - keys.shape[1] :]
        mixed = before[after] - before[this] + different * lower
        np.divide(mixed, seen + different, out=lower, where=seen > 0)
        losses[order - 1] = -np.log2(probability)
    return losses


def _keys(windows: Bytes, order: int) -> NDArray[np.uint64]:
    """The n-grams that end at a target and begin in its window, as numbers: (n, T), or fewer at the
    start.
    """
    width = windows.shape[1]
    start = min(max(order - 1, 1), width)
    keys = np.zeros((len(windows), width - start), np.uint64)
    for back in range(order - 1, -1, -1):
        keys <<= np.uint64(8)
        keys |= windows[:, start - back : width - back]
    return keys


def _merged(tables: Sequence[Table]) -> Table:
    """Sum of tables of counts."""
    keys, at = np.unique(np.concatenate([keys for keys, _ in tables]), return_inverse=True)
    return keys, np.bincount(
        at, np.concatenate([counts for _, counts in tables]), keys.size
    ).astype(np.int64)
