"""Mutual information from a pair table: estimators, what a corpus without memory would show, correlation.

Everything in nats. A table is (..., S, S) of counts, rows the first symbol of a pair, columns the second.
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, psi, xlogy

Estimator = Literal["jackknife", "shuffle", "plugin", "miller-madow", "grassberger"]
ESTIMATORS: tuple[Estimator, ...] = ("jackknife", "shuffle", "plugin", "miller-madow", "grassberger")

EXPANDED_ABOVE = 100.0
"""Mean count from which a cell's expectation is expanded about the mean: the next term is under 2e-5 of the result."""
POOLED_BELOW = 1e-3

Floats = NDArray[np.float64]
Table = NDArray[Any]


def mutual_information(tables: Table, estimator: Estimator = "plugin") -> Floats:
    """I(X;Y) = H(X) + H(Y) - H(X,Y) in nats of pair tables (..., S, S), every entropy by the same estimator.

    plugin        H = -sum_i (n_i/n) ln(n_i/n); its bias is about (S-1)^2 / 2n upwards in I
    miller-madow  plugin + (m - 1)/2n with m the cells that occur (Miller 1955)
    grassberger   H = ln n - (1/n) sum_i n_i G(n_i), G(k) = psi(k) + (-1)^k/2 [psi((k+1)/2) - psi(k/2)]
                  (Grassberger, arXiv physics/0307138, eq. 30)
    shuffle       plugin; what the curve subtracts is `expected_information` of the corpus
    jackknife     as shuffle; the curve then takes off what becomes of it without each block (`decay_curves`)
    """
    entropy, exact = ENTROPIES[estimator], np.result_type(tables, np.int64)
    rows, columns = tables.sum(axis=-1, dtype=exact), tables.sum(axis=-2, dtype=exact)
    total = rows.sum(axis=-1)
    joint = tables.reshape(*tables.shape[:-2], -1)
    return entropy(rows, total) + entropy(columns, total) - entropy(joint, total)


def _plugin(counts: Table, total: Table) -> Floats:
    cells = np.ascontiguousarray(counts).ravel()
    occurring = np.flatnonzero(cells)  # few of a joint table, and the logarithms are most of the work
    values = cells[occurring].astype(np.float64)
    rows = occurring // counts.shape[-1]
    sums = np.bincount(rows, values * np.log(values), minlength=max(1, cells.size // counts.shape[-1]))
    return np.log(total) - sums.reshape(np.shape(total)) / total


def _miller_madow(counts: Table, total: Table) -> Floats:
    return _plugin(counts, total) + ((counts > 0).sum(axis=-1) - 1) / (2 * total)


def _grassberger(counts: Table, total: Table) -> Floats:
    values, places = np.unique(counts, return_inverse=True)
    k = values[values > 0].astype(np.float64)
    g = psi(k) + np.where(values[values > 0] % 2, -0.5, 0.5) * (psi((k + 1) / 2) - psi(k / 2))
    terms = np.concatenate([np.zeros(values.size - k.size), k * g])[places].reshape(counts.shape)
    return np.log(total) - terms.sum(axis=-1) / total


ENTROPIES: dict[str, Callable[[Table, Table], Floats]] = {
    "jackknife": _plugin,
    "shuffle": _plugin,
    "plugin": _plugin,
    "miller-madow": _miller_madow,
    "grassberger": _grassberger,
}


def expected_information(counts: Table) -> float:
    """The plug-in mutual information, in nats, that remains between the symbols of a corpus once it is shuffled.

    `counts` (S,) is how often each symbol occurs, n = sum. Over all ways of pairing n firsts with n seconds the count
    of a cell is hypergeometric, hence the mean over all shuffles is

        E[I] = ln n + (1/n) sum_ij E[N_ij ln N_ij] - (2/n) sum_i n_i ln n_i ,  N_ij ~ Hypergeometric(n, n_i, n_j)

    (Vinh, Epps & Bailey, JMLR 11:2837, 2010, eq. 24a). This is the limit of averaging over ever more shuffled copies,
    without their noise. Cells of mean count above 100 use the expansion of x ln x about the mean to fourth order.

    >>> round(expected_information(np.array([5000, 3000, 2000])) * 2 * 10_000 / (3 - 1) ** 2, 3)  # (S-1)^2 / 2n
    1.0
    """
    occurring = np.sort(counts[counts > 0].astype(np.float64))
    n = float(occurring.sum())
    if not n:
        raise ValueError("counts must hold at least one symbol")
    upper, left = np.triu_indices(occurring.size)
    row, column = occurring[upper], occurring[left]
    weight = np.where(upper == left, 1.0, 2.0)
    mean = row * column / n
    large = mean > EXPANDED_ABOVE
    cells = np.empty_like(mean)
    cells[large] = _expanded(row[large], column[large], n)
    cells[~large] = _summed(row[~large], column[~large], n)
    return float(max(0.0, np.log(n) + (weight @ cells - 2 * xlogy(occurring, occurring).sum()) / n))


def _expanded(row: Floats, column: Floats, n: float) -> Floats:
    """E[N ln N] for large means: f(m) + v f''(m)/2 + s f'''(m)/6 + 3 v^2 f''''(m)/24, f = x ln x."""
    mean = row * column / n
    variance = mean * (1 - row / n) * (1 - column / n) * n / max(n - 1, 1)
    skew = variance * (1 - 2 * row / n) * (1 - 2 * column / n) * n / max(n - 2, 1)
    return xlogy(mean, mean) + variance / (2 * mean) - skew / (6 * mean**2) + variance**2 / (4 * mean**3)


def _summed(row: Floats, column: Floats, n: float) -> Floats:
    """E[N ln N] by the sum over k, in step for all cells; `active` shrinks as their tails end."""
    order = np.argsort(row * column)
    row, column = row[order], column[order]
    mean = row * column / n
    k = np.maximum(0.0, row + column - n)
    last = np.minimum(np.minimum(row, column), np.ceil(mean + 12 * np.sqrt(mean) + 40))
    p = np.exp(_log_probability(k, row, column, n))
    result = np.zeros_like(mean)
    active = np.arange(mean.size)
    while active.size:
        result[active] += p[active] * xlogy(k[active], k[active])
        active = active[k[active] < last[active]]
        j = k[active]
        p[active] *= (row[active] - j) * (column[active] - j) / ((j + 1) * (n - row[active] - column[active] + j + 1))
        k[active] = j + 1
    unsorted = np.empty_like(result)
    unsorted[order] = result
    return unsorted


def _log_probability(k: Floats, row: Floats, column: Floats, n: float) -> Floats:
    """ln P(N = k) of the hypergeometric distribution."""
    chosen = gammaln(column + 1) - gammaln(k + 1) - gammaln(column - k + 1)
    others = gammaln(n - column + 1) - gammaln(row - k + 1) - gammaln(n - column - row + k + 1)
    return chosen + others - (gammaln(n + 1) - gammaln(row + 1) - gammaln(n - row + 1))


def drift_table(parts: Table) -> Floats:
    """The pair table (S, S) of a corpus once each of its blocks is shuffled: sum_g n_g p_g p_g^T, parts (G, S) counts.

    What information it has comes from blocks that differ in composition, and stands at every lag shorter than a block.
    """
    size = parts.sum(axis=1, keepdims=True)
    shares = np.divide(parts, np.sqrt(size), out=np.zeros(parts.shape), where=size > 0)
    return shares.T @ shares


def pools(counts: Table) -> NDArray[np.int64]:
    """The pool of each symbol (S,) for `correlation`: its own, but one for all rarer than `POOLED_BELOW` of counts.

    Without it a pair of two symbols seen once would count as perfect correlation.
    """
    common = counts >= POOLED_BELOW * counts.sum()
    return np.where(common, np.cumsum(common) - 1, common.sum()).astype(np.int64)


def correlation(tables: Table, pool: NDArray[np.int64]) -> Floats:
    """The largest non-trivial singular value of P_ij / sqrt(p_i q_j), from the pair tables (G, S, S) of G >= 2 blocks.

    It is the largest correlation that functions of the two symbols can have (Hirschfeld 1935, Gebelein 1941, Renyi
    1959); for small I it falls with half the exponent of I. Symbols of one pool (S,) are taken as one. The largest
    singular value of a noisy table is too large, so the singular vectors of the even blocks are applied to the odd ones
    and the other way round, and the two results averaged: zero on average where there is no memory.

    Returns (1 + G,): the estimate, and what it becomes with each block left out, the vectors staying as they are, so
    that errors from these are somewhat small where several singular values lie close together, and no jackknife can
    take off the bias that noisy vectors leave: on mixtures of lags up to 18 % too small just above the floor. Where
    memory is longer than a block the halves share their noise and it comes out too large, on the leaves of trees up
    to 1.6 times where the information is right (runs/records/measure/coverage.json).
    """
    pooled = _pooled(tables, pool)
    halves = [pooled[0::2].sum(axis=0), pooled[1::2].sum(axis=0)]
    vectors = [_leading(_normalised(half)) for half in halves]
    result = np.zeros(1 + len(tables))
    for index, half in enumerate(halves):
        left, right = vectors[1 - index]
        weight = 0.5 * left[:, None] * right
        whole = np.sum(weight * _normalised(half))
        result += whole
        result[1 + index :: 2] += np.sum(weight * _normalised(half - pooled[index::2]), axis=(-2, -1)) - whole
    return result


def _pooled(tables: Table, pool: NDArray[np.int64]) -> Floats:
    """The tables (..., P, P) of pools."""
    order = np.argsort(pool, kind="stable")
    starts = np.searchsorted(pool[order], np.arange(pool.max() + 1))
    rows = np.add.reduceat(tables[..., order, :], starts, axis=-2, dtype=np.float64)
    return np.add.reduceat(rows[..., order], starts, axis=-1)


def _normalised(pooled: Floats) -> Floats:
    """P_ij / sqrt(p_i q_j) of tables (..., S, S) less its trivial singular value 1, of vectors sqrt(p) and sqrt(q)."""
    p = pooled / pooled.sum(axis=(-2, -1), keepdims=True)
    rows, columns = np.sqrt(p.sum(axis=-1)), np.sqrt(p.sum(axis=-2))
    trivial = rows[..., :, None] * columns[..., None, :]
    return np.divide(p, trivial, out=np.zeros_like(p), where=trivial > 0) - trivial


def _leading(matrix: Floats) -> tuple[Floats, Floats]:
    left, _, right = np.linalg.svd(matrix)
    return left[:, 0], right[0]


def correlation_drift(table: Floats, pool: NDArray[np.int64]) -> float:
    """The largest non-trivial singular value of one table (S, S) without noise, such as `drift_table`."""
    return float(np.linalg.norm(_normalised(_pooled(table, pool)), ord=2))


def correlation_floor(pool: NDArray[np.int64], pairs: int) -> float:
    """2 sqrt(S / (n/2)) for S pools and n pairs: under about half of it the halves show singular vectors of noise.

    The edge of the Marchenko-Pastur law for the square table of half the pairs.
    """
    return 2 * float(np.sqrt(2 * pool.max() / pairs))
