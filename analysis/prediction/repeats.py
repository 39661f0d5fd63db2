"""How much more often than by chance a symbol returns d later: the correlation of the symbols as indicator vectors."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plkernel.analysis.mutual_information.curve import BLOCKS
from plkernel.analysis.mutual_information.jackknife import without_bias
from plkernel.analysis.mutual_information.pair_counts import Bytes, block_edges, check_data, histogram

Floats = NDArray[np.float64]

FEWEST_BLOCKS = 4


def repeat_correlations(
    data: Bytes,
    longest: int,
    *,
    blocks: int = BLOCKS,
    threads: int = 1,
    progress: Callable[[float], Any] | None = None,
) -> Floats:
    """r(d) = (P(x_t = x_{t+d}) - sum p_i^2) / (1 - sum p_i^2) at every d = 1..longest, (longest, 1 + G).

    The autocorrelation E<e_t - p, e_{t+d} - p> / E|e_t - p|^2 of the indicator vectors e_t of the symbols. Where
    P_ij = (1 - q) p_i p_j + q p_i [i = j], as in a Potts sequence and a mixture of lags, it is q(d). Its sign is free
    and it is 0 on average without memory: there is no floor to take off. The first column is the estimate, the others
    what it becomes with each block left out, all less the bias of order 1/n (`without_bias`).

    Takes `longest` comparisons for each symbol of `data` (n,) uint8, some 0.3 s for 1 MB at longest 1024, and memory
    that does not grow with n. Raises ValueError for data too short, and for data of one symbol.
    """
    if blocks < FEWEST_BLOCKS:
        raise ValueError(f"blocks must be at least {FEWEST_BLOCKS} for a jackknife, got {blocks}")
    check_data(data, longest, blocks)
    data = np.asarray(data)  # a mapped file as the plain array that it is
    edges, lags = block_edges(data.size, longest, blocks), np.arange(1, longest + 1)
    parts = np.stack([histogram(data[start:stop]) for start, stop in pairwise(edges)])
    if np.count_nonzero(parts.sum(axis=0)) < 2:
        raise ValueError(f"data holds one symbol only, {data[0]}: there is nothing to predict")

    def repeats(ends: tuple[int, int]) -> NDArray[np.int64]:
        start, stop = ends
        found = [np.count_nonzero(data[start : min(stop, data.size - d)] == data[start + d : stop + d]) for d in lags]
        if progress is not None:
            progress((stop - start) / data.size)
        return np.array(found)

    with ThreadPoolExecutor(threads) as workers:
        repeated = np.stack(list(workers.map(repeats, pairwise(edges.tolist()))), axis=1)
    sizes = np.diff(np.minimum(edges, (data.size - lags)[:, None]))
    chance = np.sum((_each_left_out(parts.T) / _each_left_out(parts.sum(axis=1))) ** 2, axis=0)
    return without_bias((_each_left_out(repeated) / _each_left_out(sizes) - chance) / (1 - chance), sizes)


def _each_left_out(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of counts by block (..., G) the sum, and the sum without each block: (..., 1 + G)."""
    total = counts.sum(axis=-1, keepdims=True)
    return np.concatenate([total, total - counts], axis=-1)
