"""Repeats: how much more often than by chance the symbol d places on is the same one.

With m(d) the share of equal symbols among pairs d apart and c that among pairs without memory,

    r(d) = (m - c) / (1 - c) ,   I_r(d) = m ln(m / c) + (1 - m) ln((1 - m) / (1 - c)) .

Neither needs a table of pairs, so that the alphabet may be as large as one likes. I_r is a lower
bound of the mutual information I(d), as no function of a pair tells joint and independent symbols
better apart than the pair itself does (the data processing inequality). It equals I(d) where
agreement is all that memory changes: in a Potts sequence and in a mixture of lags of equally likely
symbols, of any number.

The c of a shuffled sequence would hold the memory itself: of n symbols whose r adds up to R over
all lags it is too large by 2 R / n, which may be many times c where the alphabet is large. Here c
is counted between blocks that are not neighbours, and is right for memory shorter than a block.

Source: Kullback & Leibler (Annals of Mathematical Statistics 22:79, 1951), theorem 4.1, for the
bound.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, vstack
from scipy.special import gammaincinv, pdtrik, xlogy

from plkernel.analysis.information.counts import (
    Symbols,
    block_edges,
    check_data,
    check_different,
    check_lags,
    count_repeats,
)
from plkernel.analysis.information.estimate import (
    BLOCKS,
    DecayCurve,
    Floats,
    each_left_out,
    half_width,
    jackknife_error,
    log_lags,
    without_bias,
)
from plkernel.analysis.intervals import critical_value

BELOW_FLOOR = 0.999
"""Of what noise gives, the share that lies below the floor."""
APART = 2
"""Blocks that are so far apart share no memory."""
FEW_PAIRS = 100
"""Equal pairs up to which a Poisson number has other limits than a normal one."""
COVERED = 0.95
"""Of intervals by those limits."""
ENDS = 3
"""The first and the last of so many parts of a block show what it is composed of."""


def repeat_curves(
    data: Symbols,
    lags: ArrayLike | None = None,
    *,
    blocks: int = BLOCKS,
    threads: int = 1,
    progress: Callable[[float], Any] | None = None,
    parts: csr_array | None = None,
    beside: Symbols | None = None,
) -> tuple[DecayCurve, DecayCurve]:
    """I_r(d) in nats and r(d) of `data` (n,), numbers of symbols, at each of `lags`.

    Other arguments as of `decay_curves`. Both are less their bias of order 1/n: without memory r is
    0 and, before the correction, I_r is 1 / 2n on average. The floor of I_r is what noise exceeds
    once in a thousand lags; that of r is the size of such an r. Where symbols follow one another
    less often than by chance r is negative, and I_r is not. The drift is what the first and the
    last third of each block share, beyond the reach of a memory shorter than a third.

    parts   `block_counts`, where they are known
    beside  (n,) a sequence that has the layout of `data` alone: chance is its share of equal pairs

    The errors are at least those of a Poisson number of equal pairs, where these are few.

    Raises ValueError for data that are too short, that hold one symbol only, and of which no symbol
    occurs twice.
    """
    lags = log_lags() if lags is None else check_lags(lags)
    check_data(data, int(lags[-1]), blocks, wide=True)
    data = np.asarray(data)
    edges = block_edges(data.size, int(lags[-1]), blocks)
    parts = block_counts(data, edges) if parts is None else parts
    symbols = int(np.count_nonzero(parts.sum(axis=0)))
    chance = _checked_chance(parts, symbols, data.size)
    drifting = chance[0]
    repeated = count_repeats(data, lags, edges, threads=threads, progress=progress)
    sizes = np.diff(np.minimum(edges, (data.size - lags)[:, None]))
    pairs = each_left_out(sizes)
    share = each_left_out(repeated) / pairs
    if beside is not None:
        alike = count_repeats(beside, lags, edges, threads=threads)
        chance = np.maximum(each_left_out(alike), 0.5) / pairs
    chance = np.broadcast_to(chance, share.shape)
    agreement = without_bias((share - chance) / (1 - chance), sizes)
    information = without_bias(agreement_information(share, chance), sizes)
    at_random = chance[:, 0]
    poissonian = _exceeded_by_chance(at_random, pairs[:, 0])
    if beside is not None:
        poissonian = np.sqrt(2) * poissonian
    noise = np.maximum(poissonian / (1 - at_random), half_width(agreement[:, 1:], BELOW_FLOOR))
    by_chance = at_random + (1 - at_random) * np.minimum(noise, 1.0)
    floor = agreement_information(by_chance, at_random)
    least, least_information = least_errors(repeated.sum(axis=1), pairs[:, 0], at_random, blocks)
    agreement = with_error(agreement, least)
    information = with_error(information, least_information)
    mixed = max(drifting, agreement_of_ends(data, edges))
    drift = float(agreement_information(mixed, drifting))
    drift_agreement = float((mixed - drifting) / (1 - drifting))
    curve = partial(
        DecayCurve.of_columns,
        estimator="repeats",
        size=int(data.size),
        symbols=symbols,
        lags=lags,
    )
    return (
        curve("information", values=information, floor=floor, drift=drift),
        curve("correlation", values=agreement, floor=noise, drift=drift_agreement),
    )


def _checked_chance(parts: csr_array, symbols: int, size: int) -> Floats:
    """`left_out_chance` of blocks that hold `size` symbols; ValueError where it is 0 or 1."""
    check_different(symbols)
    chance = left_out_chance(parts)
    if not chance.min() > 0:
        raise ValueError(
            "data must hold symbols that occur twice, so that there is something to count, got"
            f" {size:,} symbols, {symbols:,} different; give more data"
        )
    if not chance.max() < 1:
        raise ValueError(
            "data must hold two different symbols in more than one block, got one symbol only"
            " in all but one"
        )
    return chance


def _exceeded_by_chance(chance: Floats, pairs: NDArray[np.int64]) -> Floats:
    """The excess over `chance` (L,) that the share of equal pairs has once in a thousand lags."""
    expected = chance * pairs
    return np.asarray(pdtrik(0.5 + BELOW_FLOOR / 2, expected) / pairs - chance)


def least_errors(
    equal: NDArray[np.int64], pairs: NDArray[np.int64], chance: Floats, blocks: int
) -> tuple[Floats, Floats]:
    """The least errors (L,) of r and of I_r where `equal` (L,) of the `pairs` are few: else 0.

    Few are up to FEW_PAIRS.

    With these errors the interval of a jackknife reaches the exact limits of a Poisson number
    (Garwood, Biometrika 28:437, 1936). A jackknife of few equal pairs alone is too narrow, and of
    none it has no width.
    """
    low = np.where(equal > 0, gammaincinv(np.maximum(equal, 1), (1 - COVERED) / 2), 0.0)
    high = gammaincinv(equal + 1, (1 + COVERED) / 2)
    width = critical_value(blocks, COVERED)
    is_few = equal <= FEW_PAIRS
    away = np.maximum(high - equal, equal - low) / pairs
    values = [agreement_information(one / pairs, chance) for one in (low, equal, high)]
    information = np.maximum(np.abs(values[0] - values[1]), np.abs(values[2] - values[1]))
    return (
        np.where(is_few, away / (1 - chance) / width, 0.0),
        np.where(is_few, information / width, 0.0),
    )


def with_error(estimates: Floats, least: Floats) -> Floats:
    """Estimates (L, 1 + G), the replicates spread so that their error (L,) is at least `least`."""
    left = estimates[:, 1:]
    mean = left.mean(axis=1, keepdims=True)
    error = jackknife_error(left)
    alternating = np.resize([1.0, -1.0], left.shape[1])
    alternating -= alternating.mean()
    alternating /= jackknife_error(alternating)
    wider = np.maximum(1.0, np.divide(least, error, out=np.ones_like(least), where=error > 0))
    spread = mean + (left - mean) * wider[:, None]
    even = left + least[:, None] * alternating
    return np.concatenate([estimates[:, :1], np.where(error[:, None] > 0, spread, even)], axis=1)


def block_counts(data: Symbols, edges: NDArray[np.int64]) -> csr_array:
    """The counts of each number 0..K-1 in each block, (G, K): most numbers in few blocks."""
    size = int(data.max()) + 1
    rows = [
        csr_array(np.bincount(data[start:stop], minlength=size)[None])
        for start, stop in pairwise(edges.tolist())
    ]
    return csr_array(vstack(rows))


def left_out_chance(parts: NDArray[np.int64] | csr_array) -> Floats:
    """Share of equal pairs between blocks APART, and that without each block, (1 + G,).

    parts: (G, K) counts. 0 where no two symbols of such blocks are equal.

    >>> parts = np.array([[2, 0], [1, 1], [1, 1], [0, 2]])
    >>> left_out_chance(parts)[0].round(4).tolist()  # of blocks 0 and 2, 0 and 3, 1 and 3
    0.3333
    """
    counts = csr_array(parts, dtype=np.float64)
    sizes = counts.sum(axis=1)
    place = np.arange(sizes.size)
    far = np.abs(place[:, None] - place) >= APART
    equal = far * (counts @ counts.T).toarray()
    pairs = far * np.outer(sizes, sizes)
    left = np.array([table.sum() - 2 * table.sum(axis=1) for table in (equal, pairs)])
    whole = np.array([[equal.sum()], [pairs.sum()]])
    matches, all_pairs = np.hstack([whole, left])
    return np.asarray(matches / all_pairs)


def agreement_of_ends(data: Symbols, edges: NDArray[np.int64]) -> float:
    """Share of equal pairs of a symbol in the first and one in the last third of a same block."""
    size = int(data.max()) + 1
    matches = 0.0
    pairs = 0.0
    for start, stop in pairwise(edges.tolist()):
        length = (stop - start) // ENDS
        first = np.bincount(data[start : start + length], minlength=size).astype(np.float64)
        last = np.bincount(data[stop - length : stop], minlength=size)
        matches += float(first @ last)
        pairs += length**2
    return matches / pairs if pairs else 0.0


def agreement_information(share: ArrayLike, chance: ArrayLike) -> Floats:
    """m ln(m / c) + (1 - m) ln((1 - m) / (1 - c)) in nats of shares m and c of equal pairs.

    >>> agreement_information([0.25, 0.5], 0.25).round(4).tolist()
    [0.0, 0.1438]
    """
    m = np.asarray(share, dtype=np.float64)
    c = np.asarray(chance, dtype=np.float64)
    return np.asarray(xlogy(m, m / c) + xlogy(1 - m, (1 - m) / (1 - c)))
