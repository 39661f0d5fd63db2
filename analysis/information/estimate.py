"""Estimates from pair tables: information, its value without memory, correlation; intervals.

Information is in nats. A table is (..., S, S) of counts, rows the first symbol of a pair, columns
the second. A decay curve is made of the tables of many lags, with its floor and a jackknife over
blocks.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, repeat
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, xlogy

from plkernel.analysis.information.counts import (
    SYMBOLS,
    Bytes,
    block_edges,
    check_counts,
    check_data,
    check_different,
    check_lags,
    count_pairs,
    histogram,
)
from plkernel.analysis.intervals import critical_value
from plkernel.analysis.results import Result

PairEstimator = Literal["jackknife", "shuffle", "plugin"]
ESTIMATORS: tuple[PairEstimator, ...] = get_args(PairEstimator)
"""Of the information in pair tables; 'repeats' (`repeat_curves`) has none."""
Estimator = Literal["jackknife", "shuffle", "plugin", "repeats"]

EXPANDED_ABOVE = 100.0
"""Mean count from which a cell's expectation is expanded about the mean: the next term is under
2e-5 of the result.
"""
POOLED_BELOW = 1e-3
"""Share of the counts below which symbols are taken as one in a correlation."""
BLOCKS = 40
"""Of a jackknife, unless another number is given."""
CELLS_AT_ONCE = 1 << 14
"""Cells of tables of shuffled corpora that are summed in step; more would not stay in the cache."""
MAX_LAG = 1000
LAGS = 64
"""The last lag, and how many there are, unless others are given."""
TABLE_BYTES = 1 << 26
"""Limit of the tables of one pass; lags beyond that wait for another pass."""

Unit = Literal["byte", "token", "symbol"]
Floats = NDArray[np.float64]
Counts = NDArray[Any]


def mutual_information(tables: Counts) -> Floats:
    """I(X;Y) = H(X) + H(Y) - H(X,Y) in nats of pair tables (..., S, S).

    H = -sum_i (n_i/n) ln(n_i/n). The plug-in estimate; its bias is about (S-1)^2 / 2n upwards, and
    `decay_curves` corrects it. Raises ValueError for counts that are negative or not finite.
    """
    check_counts(tables)
    return _information(tables)


def _information(tables: Counts) -> Floats:
    """`mutual_information` of tables that were counted here, which are not checked."""
    exact = np.result_type(tables, np.int64)
    rows = tables.sum(axis=-1, dtype=exact)
    columns = tables.sum(axis=-2, dtype=exact)
    cells = tables.reshape(*tables.shape[:-2], -1)
    return information_of_sums(
        rows.sum(axis=-1),
        cells=sum_of_logarithms(cells),
        rows=sum_of_logarithms(rows),
        columns=sum_of_logarithms(columns),
    )


def information_of_sums(
    total: ArrayLike, *, cells: ArrayLike, rows: ArrayLike, columns: ArrayLike
) -> Floats:
    """`mutual_information` of `total` pairs from sums of k ln k over counts k, H = ln n - sum / n.

    The sums are over the cells of a table, over the sums of its rows and over those of its columns.
    """

    def entropy(sums: ArrayLike) -> Floats:
        return np.asarray(np.log(total) - np.asarray(sums) / total)

    return entropy(rows) + entropy(columns) - entropy(cells)


def sum_of_logarithms(counts: Counts) -> Floats:
    """Sum of k ln k over the last axis of counts k (..., S), which may be expected ones."""
    are_integers = np.issubdtype(counts.dtype, np.integer)
    if not are_integers or counts.max() >= counts.size:
        return np.asarray(xlogy(counts, counts).sum(axis=-1))
    # The same few counts occur again and again, and logarithms are most of the work.
    k = np.arange(counts.max() + 1.0)
    return np.asarray(xlogy(k, k)[counts].sum(axis=-1))


def expected_information(counts: Counts) -> float:
    """Mean plug-in mutual information, in nats, of a corpus over all its shuffles.

    `counts` (S,) is how often each symbol occurs, n = sum. Over all ways of pairing n firsts with n
    seconds the count of a cell is hypergeometric, hence

        E[I] = ln n + (1/n) sum_ij E[N_ij ln N_ij] - (2/n) sum_i n_i ln n_i ,  N_ij ~
        Hypergeometric(n, n_i, n_j)

    (Vinh, Epps & Bailey, JMLR 11:2837, 2010, eq. 24a): the limit of averaging over ever more
    shuffled copies, without their noise. Cells of mean count above 100 use the expansion of x ln x
    about the mean to fourth order. Raises ValueError for counts that are negative or not finite.

    >>> found = expected_information(np.array([5000, 3000, 2000]))  # S = 3 symbols, n = 10,000
    >>> round(found / ((3 - 1) ** 2 / (2 * 10_000)), 3)
    1.0
    """
    (expected,) = expected_informations(counts[None])
    return float(expected)


def expected_informations(counts: Counts) -> Floats:
    """`expected_information` of each of several corpora, (G,) from counts (G, S)."""
    check_counts(counts)
    shuffled = [_Shuffled.of_counts(one) for one in counts]
    expected: list[float] = []
    # The sums of `_summed` are in step for all cells of several corpora: most of their time goes
    # to calls, not to numbers, where a corpus has few cells.
    at_once = max(1, CELLS_AT_ONCE // max(1, *(one.row.size for one in shuffled)))
    for first in range(0, len(shuffled), at_once):
        some = shuffled[first : first + at_once]
        sizes = [one.row.size for one in some]
        row = np.concatenate([one.row for one in some])
        column = np.concatenate([one.column for one in some])
        n = np.repeat([one.n for one in some], sizes)
        means = np.split(_mean_logarithms(row, column, n), np.cumsum(sizes)[:-1])
        expected += [one.information(cells) for one, cells in zip(some, means, strict=True)]
    return np.array(expected)


class _Shuffled(NamedTuple):
    """The pair table of a corpus over its shuffles: each unordered pair of counts once.

    n            symbols of the corpus
    row, column  (cells,) how often the two symbols of a cell occur
    weight       (cells,) cells of the whole table that have these counts
    singles      sum_i n_i ln n_i
    """

    n: float
    row: Floats
    column: Floats
    weight: Floats
    singles: float

    @classmethod
    def of_counts(cls, counts: Counts) -> "_Shuffled":
        """Take the table apart; counts (S,) may hold zeros."""
        occurring = np.sort(counts[counts > 0].astype(np.float64))
        alike = np.ones(occurring.size)
        if occurring.size > SYMBOLS:  # rare symbols of a large alphabet have few different counts
            occurring, times = np.unique(occurring, return_counts=True)
            alike = times.astype(np.float64)
        upper, left = np.triu_indices(occurring.size)
        return cls(
            n=float(occurring @ alike),
            row=occurring[upper],
            column=occurring[left],
            weight=np.where(upper == left, 1.0, 2.0) * alike[upper] * alike[left],
            singles=float(alike @ xlogy(occurring, occurring)),
        )

    def information(self, cells: Floats) -> float:
        """E[I] from E[N ln N] of each cell."""
        expected = np.log(self.n) + (self.weight @ cells - 2 * self.singles) / self.n
        return float(max(0.0, expected))


def _mean_logarithms(row: Floats, column: Floats, n: Floats) -> Floats:
    """E[N ln N] of cells (cells,) whose counts are hypergeometric."""
    mean = row * column / n
    large = mean > EXPANDED_ABOVE
    cells = np.empty_like(mean)
    cells[large] = _expanded(row[large], column[large], n[large])
    cells[~large] = _summed(row[~large], column[~large], n[~large])
    return cells


def _expanded(row: Floats, column: Floats, n: Floats) -> Floats:
    """E[N ln N] for large means m: f(m) + v f''(m)/2 + s f'''(m)/6 + 3 v^2 f''''(m)/24.

    f = x ln x, v the variance and s the third central moment of N.
    """
    mean = row * column / n
    variance = mean * (1 - row / n) * (1 - column / n) * n / np.maximum(n - 1, 1)
    skew = variance * (1 - 2 * row / n) * (1 - 2 * column / n) * n / np.maximum(n - 2, 1)
    return (
        xlogy(mean, mean)
        + variance / (2 * mean)
        - skew / (6 * mean**2)
        + variance**2 / (4 * mean**3)
    )


def _summed(row: Floats, column: Floats, n: Floats) -> Floats:
    """E[N ln N] by the sum over k, in step for all cells; `active` shrinks as their tails end."""
    order = np.argsort(row * column)
    row = row[order]
    column = column[order]
    n = n[order]
    mean = row * column / n
    k = np.maximum(0.0, row + column - n)
    last = np.minimum(np.minimum(row, column), np.ceil(mean + 12 * np.sqrt(mean) + 40))
    chosen = gammaln(column + 1) - gammaln(k + 1) - gammaln(column - k + 1)
    others = gammaln(n - column + 1) - gammaln(row - k + 1) - gammaln(n - column - row + k + 1)
    p = np.exp(chosen + others - (gammaln(n + 1) - gammaln(row + 1) - gammaln(n - row + 1)))
    result = np.zeros_like(mean)
    active = np.arange(mean.size)
    while active.size:
        result[active] += p[active] * xlogy(k[active], k[active])
        active = active[k[active] < last[active]]
        j = k[active]
        p[active] *= (
            (row[active] - j)
            * (column[active] - j)
            / ((j + 1) * (n[active] - row[active] - column[active] + j + 1))
        )
        k[active] = j + 1
    unsorted = np.empty_like(result)
    unsorted[order] = result
    return unsorted


def drift_table(parts: Counts) -> Floats:
    """Pair table (S, S) of a corpus with each block shuffled: sum_g n_g p_g p_g^T.

    parts: (G, S) counts, from which the n_g and the shares p_g come. Its information comes from
    blocks that differ in composition, and stands at every lag shorter than a block.
    """
    size = parts.sum(axis=1, keepdims=True)
    shares = np.divide(parts, np.sqrt(size), out=np.zeros(parts.shape), where=size > 0)
    return shares.T @ shares


def pools(counts: Counts) -> NDArray[np.int64]:
    """Pool of each symbol (S,) for `correlation`: its own, but one for all rarer than POOLED_BELOW.

    Without that a pair of two symbols seen once would count as perfect correlation.
    """
    common = counts >= POOLED_BELOW * counts.sum()
    return np.where(common, np.cumsum(common) - 1, common.sum()).astype(np.int64)


def correlation(tables: Counts, pool: NDArray[np.int64], beside: Counts | None = None) -> Floats:
    """Largest non-trivial singular value of P_ij / sqrt(p_i q_j), from pair tables (G, S, S).

    G >= 2 is the number of blocks. It is the largest correlation that functions of
    the two symbols can have (Hirschfeld 1935, Gebelein 1941, Renyi 1959); for small I it falls with
    half the exponent of I. Symbols of one pool (S,) are taken as one. The largest singular value of
    a noisy table is too large, so the singular vectors of the even blocks are applied to the odd
    ones and the other way round, and the two results averaged: zero on average where there is no
    memory.

    beside: tables of a sequence that has the layout of the data alone; P_ij is what exceeds theirs.

    Returns (1 + G,): the estimate, and the estimate with each block left out, the vectors staying
    as they are. Errors from these are somewhat small where several singular values lie close
    together, and no jackknife removes the bias that noisy vectors leave: on mixtures of lags up to
    18 % too small just above the floor. Where memory is longer than a block the halves share their
    noise and the value is too large, on the leaves of trees up to 1.6 times where the information
    is right (runs/records/measure/coverage.json).
    """
    pooled = _pooled(tables, pool)
    others = None if beside is None else _pooled(beside, pool)

    def excess(start: int) -> Floats:
        own = _normalised(pooled[start::2].sum(axis=0))
        return own if others is None else own - _normalised(others[start::2].sum(axis=0))

    result = np.zeros(1 + len(tables))
    for index in (0, 1):
        vectors, _, more = np.linalg.svd(excess(1 - index))
        left = vectors[:, 0]
        right = more[0]
        found = _projected(_whole_and_rests(pooled[index::2]), left, right)
        if others is not None:
            found -= _projected(_whole_and_rests(others[index::2]), left, right)
        whole, *rests = 0.5 * found
        result += whole
        result[1 + index :: 2] += rests - whole
    return result


def _pooled(tables: Counts, pool: NDArray[np.int64]) -> Floats:
    """Sum the tables (..., S, S) over pools, (..., P, P)."""
    rows = _pooled_rows(tables, pool)
    return _pooled_rows(rows.swapaxes(-1, -2), pool).swapaxes(-1, -2)


def _pooled_rows(tables: Counts, pool: NDArray[np.int64]) -> Floats:
    """Sum the rows of tables (..., S, S) over pools, (..., P, S); most pools have one symbol."""
    _, first, sizes = np.unique(pool, return_index=True, return_counts=True)
    rows = tables[..., first, :].astype(np.float64)
    for index in np.flatnonzero(sizes > 1):
        rows[..., index, :] = tables[..., pool == index, :].sum(axis=-2)
    return rows


def _whole_and_rests(tables: Floats) -> Floats:
    """The sum of tables (G, P, P), and the sum without each: (1 + G, P, P)."""
    whole = tables.sum(axis=0)
    return np.concatenate([whole[None], whole - tables])


def _projected(tables: Floats, left: Floats, right: Floats) -> Floats:
    """u^T M v of M = `_normalised` of each table (..., P, P), which is not made."""
    p = tables / tables.sum(axis=(-2, -1), keepdims=True)
    rows = np.sqrt(p.sum(axis=-1))
    columns = np.sqrt(p.sum(axis=-2))
    from_left = np.divide(left, rows, out=np.zeros_like(rows), where=rows > 0)
    from_right = np.divide(right, columns, out=np.zeros_like(columns), where=columns > 0)
    ratios = np.sum(from_left * (p @ from_right[..., None])[..., 0], axis=-1)
    return np.asarray(ratios - (rows @ left) * (columns @ right))


def _normalised(pooled: Floats) -> Floats:
    """P_ij / sqrt(p_i q_j) of tables (..., S, S) less its trivial singular value.

    That is 1, of the vectors sqrt(p) and sqrt(q).
    """
    p = pooled / pooled.sum(axis=(-2, -1), keepdims=True)
    rows = np.sqrt(p.sum(axis=-1))
    columns = np.sqrt(p.sum(axis=-2))
    trivial = rows[..., :, None] * columns[..., None, :]
    return np.divide(p, trivial, out=np.zeros_like(p), where=trivial > 0) - trivial


def each_left_out(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sum of counts by block (..., G), and the sum without each block: (..., 1 + G)."""
    total = counts.sum(axis=-1, keepdims=True)
    return np.concatenate([total, total - counts], axis=-1)


def jackknife_error(replicates: NDArray[Any]) -> Floats:
    """sqrt((G-1)/G sum_g (v_(-g) - mean)^2): errors (...) from delete-one replicates (..., G).

    Source: Kunsch (Annals of Statistics 17:1217, 1989), section 2.
    Blocks must be longer than the memory of the observations: what two blocks have in common is
    neither in the errors nor in the correction of `without_bias`.
    """
    return np.sqrt((replicates.shape[-1] - 1) * replicates.var(axis=-1))


def half_width(replicates: NDArray[Any], confidence: float = 0.95) -> Floats:
    """Half the interval (...) of a jackknife: t_{G-1} standard errors of replicates (..., G)."""
    return critical_value(replicates.shape[-1], confidence) * jackknife_error(replicates)


def without_bias(estimates: Floats, sizes: NDArray[Any]) -> Floats:
    """v_J = G v - sum_g (1 - m_g/n) v_(-g), and its replicates.

    The replicates leave each block out; both are (..., 1 + G). `estimates` (..., 1 + G) are an
    estimate v of n observations in G blocks of m_g, `sizes` (..., G), and the v_(-g) with block g
    left out. With equal blocks this is Quenouille's G v - (G-1) mean_g v_(-g); with any, a bias of
    c/n is removed entirely (Busing, Meijer & van der Leeden, Statistics and Computing 9:3, 1999,
    eq. 6). v_J is the mean, weighted by m_g, of the pseudo-values h_g v - (h_g - 1) v_(-g), h_g =
    n/m_g; a replicate is that mean without one of them, v_(-g) + (v_J - v) h_g / (h_g - 1), so that
    `jackknife_error` of the replicates is the error of v_J.
    """
    shares = sizes / sizes.sum(axis=-1, keepdims=True)
    value = estimates[..., :1]
    left = estimates[..., 1:]
    shift = np.sum((1 - shares) * (value - left), axis=-1, keepdims=True)
    return np.concatenate([value + shift, left + shift / (1 - shares)], axis=-1)


@dataclass(frozen=True, repr=False)
class DecayCurve(Result):
    """Decay of a dependence with the lag, and how far it can be trusted.

    quantity    'information' in nats, or 'correlation' (largest non-trivial singular value of the
                pair matrix)
    estimator   of the information; 'plugin' for the correlation, and 'repeats' for that of
                `repeat_curves`
    size        symbols in the corpus
    symbols     different symbols in the corpus
    lags        (L,) ascending
    values      (L,)
    floor       (L,) mean of the plug-in estimate over all shuffles of the corpus, which have no
                memory; of 'repeats' what noise gives once in a thousand lags
    drift       value that remains when each block of the jackknife is shuffled on its own: blocks
                of different composition, such as texts by several authors, show it at every lag
    replicates  (L, G) the values with block g of the corpus left out; of 'jackknife' corrected by
                `without_bias`
    unit        what a symbol is, in which lags count
    """

    quantity: Literal["information", "correlation"]
    estimator: Estimator
    size: int
    symbols: int
    lags: tuple[int, ...]
    values: tuple[float, ...]
    floor: tuple[float, ...]
    drift: float
    replicates: tuple[tuple[float, ...], ...]
    unit: Unit = "byte"
    _figure = "plkernel.analysis.figures.decay:decay_figure"

    @classmethod
    def of_columns(
        cls,
        quantity: Literal["information", "correlation"],
        estimator: Estimator,
        size: int,
        symbols: int,
        lags: NDArray[np.int64],
        values: Floats,
        floor: Floats,
        drift: float,
    ) -> "DecayCurve":
        """The curve of values (L, 1 + G): of all blocks, and of all but one."""
        return cls(
            quantity,
            estimator,
            size,
            symbols,
            tuple(lags.tolist()),
            tuple(values[:, 0].tolist()),
            tuple(floor.tolist()),
            drift,
            tuple(map(tuple, values[:, 1:].tolist())),
        )

    def _title(self) -> str:
        name = "information in bits" if self.quantity == "information" else self.quantity
        of_repeats = " of repeats" if self.estimator == "repeats" else ""
        return (
            f"{name}{of_repeats} at {len(self.lags)} lags, of {self.size:,} {self.unit}s,"
            f" {self.symbols:,} different"
        )

    def _table(self) -> Any:
        scale = np.log(2) if self.quantity == "information" else 1.0
        columns: dict[str, Any] = {
            self.quantity: self.values,
            "error": self.standard_errors(),
            "floor": self.floor,
        }
        return {
            "lag": self.lags,
            **{name: np.divide(values, scale) for name, values in columns.items()},
        }

    def standard_errors(self) -> Floats:
        """(L,) by the delete-a-block jackknife (`jackknife_error`)."""
        return jackknife_error(np.asarray(self.replicates))

    def interval(self, confidence: float = 0.95) -> tuple[Floats, Floats]:
        """Lower and upper bounds (L,): value -+ t_{G-1} standard errors, at each lag on its own."""
        half = half_width(np.asarray(self.replicates), confidence)
        values = np.asarray(self.values)
        return values - half, values + half

    def last_above(self, limit: ArrayLike, first: int = 1) -> int:
        """The last lag, from `first` on, before a value is below `limit`; 0 if there is none.

        limit: a number, or one for each lag (L,).
        """
        last = 0
        limits = np.broadcast_to(np.asarray(limit), len(self.lags))
        for lag, value, least in zip(self.lags, self.values, limits, strict=True):
            if lag < first:
                continue
            if value < least:
                break
            last = lag
        return last


def log_lags(max_lag: int = MAX_LAG, count: int = LAGS) -> NDArray[np.int64]:
    """At most `count` different integers from 1 to max_lag, about evenly spaced in ln d."""
    return np.unique(np.geomspace(1, max_lag, count).round().astype(np.int64))


def corrected(
    information: Floats, floors: Floats, parts: Any, sizes: Any, estimator: Estimator
) -> tuple[Floats, Floats]:
    """The plug-in information less the bias that `estimator` removes, and the floor.

    information  (lags, 1 + blocks), with all blocks and with each left out
    floors       (1 + blocks,) expected information without memory
    parts        (blocks, K) counts of symbols
    sizes        (lags, blocks) numbers of pairs
    """
    floor = floors * each_left_out(parts.sum(axis=1)) / each_left_out(sizes)
    if estimator in ("jackknife", "shuffle"):
        information = information - floor
    if estimator == "jackknife":
        information = without_bias(information, sizes)
    return information, floor


def decay_curves(
    data: Bytes,
    lags: ArrayLike | None = None,
    *,
    estimator: PairEstimator = "jackknife",
    blocks: int = BLOCKS,
    threads: int = 1,
    progress: Callable[[float], Any] | None = None,
    beside: Bytes | None = None,
) -> tuple[DecayCurve, DecayCurve]:
    """Information and correlation of `data` (n,) uint8 at each of `lags`, from one count.

    lags       ascending, 1 or more; `log_lags(1000)` unless given
    estimator  how the bias of the plug-in estimate is treated. It is the floor, which is the bias
               of a corpus without memory, times about 1 + 2 sum_k q(k)^2, where symbols k apart
               correlate by q(k)
               'shuffle': minus the floor, which is exact for independent symbols and too little for
               others: far lags of slowly decaying memory come out too high by more than their
               error, whatever the size of the corpus
               'jackknife': also minus what remains beyond the floor, as the jackknife estimates it
               (`without_bias`). It is not applied to the plug-in estimate itself, whose bias does
               not fall as 1/n with many rare symbols; what remains beyond the floor does
               'plugin': as it is (`mutual_information`)
    blocks     of the jackknife. They must be longer than the memory, for its errors to be honest
               and for the correction to be whole: memory that a block is short beside stays in the
               values
    threads    lags counted at the same time; the curves do not depend on it
    progress   called with the share of the work done since the last call; the shares add up to 1
    beside     (n,) uint8, a sequence of the same symbols that has the layout of the data alone:
               both curves are what the data have beyond it

    Memory does not grow with n. Raises ValueError for unknown estimators, unusable lags, and data
    that are too short or hold one symbol only.

    >>> from plkernel.analysis.information.laws import fit_power_law
    >>> from plkernel.analysis.sequences import PottsCorpus
    >>> data = np.concatenate(list(PottsCorpus(beta=1.0, size=500_000).blocks()))
    >>> information, _ = decay_curves(data, log_lags(100))
    >>> law = fit_power_law(information)
    >>> bool(law.low < law.beta < law.high)
    True
    """
    lags = log_lags() if lags is None else check_lags(lags)
    counts = _checked_counts(data, int(lags[-1]), estimator, blocks)
    symbols = np.flatnonzero(counts).astype(np.uint8)
    pool = pools(counts[symbols])
    edges = block_edges(data.size, int(lags[-1]), blocks)
    information, correlations, *layout = _estimates(
        data, beside, lags, symbols, edges, pool, threads, progress
    )
    parts = np.stack([histogram(data[start:stop]) for start, stop in pairwise(edges)])[:, symbols]
    whole = counts[symbols]
    floors = expected_informations(np.concatenate([whole[None], whole - parts]))
    sizes = np.diff(np.minimum(edges, (data.size - lags)[:, None]))
    information, floor = corrected(information, floors, parts, sizes, estimator)
    if layout:
        information = information - corrected(layout[0], floors, parts, sizes, estimator)[0]
        doubted = half_width(information[:, 1:])[:, None]
        floor = np.maximum(floor, doubted)
    drift = drift_table(parts)
    rest = np.linalg.norm(_normalised(_pooled(drift, pool)), ord=2)
    # The edge of the Marchenko-Pastur law for half the pairs; below half of it the singular vectors
    # are noise.
    noise = 2 * np.sqrt(2 * pool.max() / (data.size - lags))
    curve = partial(
        DecayCurve.of_columns, size=int(data.size), symbols=int(symbols.size), lags=lags
    )
    shared = float(mutual_information(drift))
    return (
        curve("information", estimator, values=information, floor=floor[:, 0], drift=shared),
        curve("correlation", "plugin", values=correlations, floor=noise, drift=float(rest)),
    )


def _checked_counts(
    data: Bytes, longest: int, estimator: PairEstimator, blocks: int
) -> NDArray[np.int64]:
    """Counts (256,) of the bytes of data whose pairs can be estimated; ValueError for others."""
    if estimator not in ESTIMATORS:
        raise ValueError(f"estimator must be one of {', '.join(ESTIMATORS)}, got {estimator!r}")
    check_data(data, longest, blocks)
    counts = histogram(data)
    check_different(int(np.count_nonzero(counts)))
    return counts


def _estimates(
    data: Bytes,
    beside: Bytes | None,
    lags: NDArray[np.int64],
    symbols: Bytes,
    edges: NDArray[np.int64],
    pool: NDArray[np.int64],
    threads: int,
    progress: Callable[[float], Any] | None,
) -> list[Floats]:
    """Plug-in information and correlation at each lag, (L, 1 + G), and with `beside` its own too.

    The first column is of all blocks, the others leave one out. As many lags are counted at a time
    as TABLE_BYTES leaves room for.
    """
    report = progress or (lambda share: None)
    pairs = float(np.sum(data.size - lags))

    def counted(pairs_done: float) -> None:
        report(0.5 * pairs_done / pairs)

    def estimate(tables: NDArray[Any], others: NDArray[Any] | None) -> tuple[Floats, ...]:
        report(0.5 / lags.size)  # counting is the other half of the work
        found = _left_out(tables), correlation(tables, pool, others)
        return found if others is None else (*found, _left_out(others))

    count = partial(count_pairs, symbols=symbols, edges=edges, threads=threads)
    estimates: list[tuple[Floats, ...]] = []
    blocks = edges.size - 1
    at_once = max(1, TABLE_BYTES // (blocks * symbols.size**2 * np.dtype(np.uint32).itemsize))
    for first in range(0, lags.size, at_once):
        some = lags[first : first + at_once]
        tables = count(data, some, progress=counted)
        others: Any = repeat(None, some.size) if beside is None else count(beside, some)
        with ThreadPoolExecutor(threads) as workers:
            estimates += workers.map(estimate, tables, others)
    return [np.array(values) for values in zip(*estimates, strict=True)]


def _left_out(tables: NDArray[Any]) -> Floats:
    """Plug-in information of the tables of all blocks (G, S, S), and without each, (1 + G,)."""
    total = tables.sum(axis=0, dtype=np.int64)
    return _information(np.concatenate([total[None], total - tables]))
