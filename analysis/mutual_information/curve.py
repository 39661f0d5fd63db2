"""From bytes to a decay curve: mutual information against lag, with its floor and a jackknife over blocks."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plkernel.analysis.intervals import critical_value
from plkernel.analysis.mutual_information.information import (
    ESTIMATORS,
    Estimator,
    Floats,
    correlation,
    correlation_drift,
    correlation_floor,
    drift_table,
    expected_information,
    mutual_information,
    pools,
)
from plkernel.analysis.mutual_information.jackknife import jackknife_error, without_bias
from plkernel.analysis.mutual_information.pair_counts import (
    Bytes,
    PairCounts,
    block_edges,
    check_data,
    check_lags,
    count_pairs,
    histogram,
)

Quantity = Literal["information", "correlation"]
Counting = Callable[..., PairCounts]

BLOCKS = 40
FEWEST_BLOCKS = 4
MAX_LAG = 1000
LAGS = 64
CORRECTED: tuple[Estimator, ...] = ("jackknife", "shuffle")
"""The estimators that take the floor off."""
TABLE_BYTES = 1 << 26
"""What the tables of one pass may take; lags beyond that wait for another pass."""
COUNTING = 0.5
"""The share of the work, as progress tells it, that is counting; the rest is estimating from the tables."""


@dataclass(frozen=True)
class DecayCurve:
    """How a dependence decays with the lag, and how far it can be trusted.

    quantity    'information' in nats, or 'correlation' (largest non-trivial singular value of the pair matrix)
    estimator   of the information; 'plugin' for the correlation
    unit        what a lag counts: 'byte' or 'word'
    size        symbols in the corpus
    symbols     different symbols in the corpus
    lags        (L,) ascending
    values      (L,)
    floor       (L,) what the plug-in estimate would show without any memory: its mean over all shuffles of the corpus
    drift       what remains when each block of the jackknife is shuffled on its own: blocks of different composition,
                such as texts by several authors, show it at every lag
    replicates  (L, G) the values with block g of the corpus left out; of 'jackknife' corrected by `without_bias`
    """

    quantity: Quantity
    estimator: Estimator
    unit: str
    size: int
    symbols: int
    lags: tuple[int, ...]
    values: tuple[float, ...]
    floor: tuple[float, ...]
    drift: float
    replicates: tuple[tuple[float, ...], ...]

    def standard_errors(self) -> Floats:
        """(L,) by the delete-a-block jackknife (`jackknife_error`)."""
        return jackknife_error(np.asarray(self.replicates))

    def interval(self, confidence: float = 0.95) -> tuple[Floats, Floats]:
        """Lower and upper bounds (L,): value -+ t_{G-1} standard errors, at each lag on its own."""
        half = critical_value(len(self.replicates[0]), confidence) * self.standard_errors()
        return np.asarray(self.values) - half, np.asarray(self.values) + half

    def at(self, lags: Sequence[int]) -> Self:
        """The curve on those of its lags that are among `lags`."""
        keep = [index for index, lag in enumerate(self.lags) if lag in set(lags)]
        names = ("lags", "values", "floor", "replicates")
        columns: dict[str, Any] = {name: tuple(getattr(self, name)[i] for i in keep) for name in names}
        return replace(self, **columns)

    def last_above(self, limit: ArrayLike) -> int:
        """The last lag before the values first fall below `limit`, a number or (L,); 0 when the first lag does."""
        below = np.asarray(self.values) < limit
        count = int(np.argmax(below)) if below.any() else len(self.lags)
        return self.lags[count - 1] if count else 0

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that JSON keeps exactly; `from_dict` gives back an equal object."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`; ValueError unless `values` has exactly the fields of a curve."""
        expected = [field.name for field in fields(cls)]
        if not isinstance(values, dict) or set(values) != set(expected):
            raise ValueError(f"not a decay curve: needs exactly {', '.join(expected)}")
        arrays: dict[str, Any] = {name: tuple(values[name]) for name in ("lags", "values", "floor")}
        return cls(**{**values, **arrays, "replicates": tuple(map(tuple, values["replicates"]))})


def log_lags(max_lag: int = MAX_LAG, count: int = LAGS) -> NDArray[np.int64]:
    """At most `count` different integers from 1 to max_lag, as evenly spaced in the logarithm as integers can be."""
    if max_lag < 2 or count < 2:
        raise ValueError(f"max_lag and count must be at least 2, got {max_lag} and {count}")
    return np.unique(np.geomspace(1, max_lag, count).round().astype(np.int64))


def decay_curves(
    data: Bytes,
    lags: ArrayLike | None = None,
    *,
    estimator: Estimator = "jackknife",
    unit: str = "byte",
    blocks: int = BLOCKS,
    threads: int = 1,
    count: Counting = count_pairs,
    progress: Callable[[float], Any] | None = None,
) -> tuple[DecayCurve, DecayCurve]:
    """Information and correlation of the symbols of `data` (n,) uint8 at each of `lags`, from one count.

    lags       ascending, 1 or more; `log_lags(1000)` unless given
    estimator  what is done about the plug-in's bias, which is that of a corpus without memory, the floor, times about
               1 + 2 sum_k q(k)^2 where symbols k apart correlate by q(k):
               'shuffle': the floor taken off: exact for independent symbols, too little for any others; far lags of
               slowly decaying memory come out too high by more than their error, whatever the size of the corpus
               'jackknife': what remains beyond the floor taken off too, as the jackknife finds it (`without_bias`).
               Not from the plug-in at once: with many rare symbols its bias does not fall as 1/n, that of the rest does
               'plugin', 'miller-madow', 'grassberger': the entropies as they are (`mutual_information`)
    blocks     of the jackknife. They must be longer than what is remembered, for its errors to be honest and for the
               correction to be whole: memory that a block is short beside stays in the values
    threads    lags counted at the same time; the curves do not depend on it
    count      counts pairs in place of `count_pairs`, with the same signature and result
    progress   called with the share of the work done since the last call; the shares add up to 1

    Memory does not grow with n. Raises ValueError for unknown estimators, unusable lags, and data that are too short
    or hold one symbol only.

    >>> from plkernel.analysis.sequences.potts import PottsCorpus
    >>> from plkernel.analysis.mutual_information.power_law_fit import fit_power_law
    >>> data = np.concatenate(list(PottsCorpus(beta=1.0, size=500_000).blocks()))
    >>> information, _ = decay_curves(data, log_lags(100))
    >>> law = fit_power_law(information)
    >>> bool(law.low < law.beta < law.high)
    True
    """
    if estimator not in ESTIMATORS:
        raise ValueError(f"estimator {estimator!r}: must be one of {', '.join(ESTIMATORS)}")
    lags = log_lags() if lags is None else check_lags(lags)
    longest = int(lags[-1])
    if blocks < FEWEST_BLOCKS:
        raise ValueError(f"blocks must be at least {FEWEST_BLOCKS} for a jackknife of either half, got {blocks}")
    check_data(data, longest, blocks)
    edges, counts = block_edges(data.size, longest, blocks), histogram(data)
    symbols = np.flatnonzero(counts).astype(np.uint8)
    if symbols.size < 2:
        raise ValueError(f"data holds one symbol only, {symbols[0]}: there is no information to share between lags")
    parts = np.stack([histogram(data[start:stop]) for start, stop in pairwise(edges)])[:, symbols]
    floors = np.array([expected_information(part) for part in (counts, *(counts[symbols] - parts))])
    drift, pool = drift_table(parts), pools(counts[symbols])
    report = progress or (lambda share: None)
    pairs = float(np.sum(data.size - lags))

    def estimate(tables: NDArray[Any]) -> tuple[Floats, Floats]:
        total = tables.sum(axis=0, dtype=np.int64)
        left = np.concatenate([total[None], total - tables])
        report((1 - COUNTING) / lags.size)
        return mutual_information(left, estimator), correlation(tables, pool)

    def one_pass(group: NDArray[np.int64]) -> list[tuple[Floats, Floats]]:
        def counted_some(pairs_done: int) -> None:
            report(COUNTING * pairs_done / pairs)

        counted = count(data, group, symbols=symbols, edges=edges, threads=threads, progress=counted_some)
        with ThreadPoolExecutor(threads) as workers:
            return list(workers.map(estimate, counted.tables))

    estimates = [item for group in _passes(lags, blocks, symbols.size) for item in one_pass(group)]
    information, correlations = (np.array(values) for values in zip(*estimates, strict=True))
    sizes = np.diff(np.minimum(edges, (data.size - lags)[:, None]))
    floor = floors * _left(parts.sum(axis=1)) / _left(sizes)
    values = information - (floor if estimator in CORRECTED else 0.0)
    if estimator == "jackknife":
        values = without_bias(values, sizes)
    noise = np.array([correlation_floor(pool, data.size - int(lag)) for lag in lags])
    common: dict[str, Any] = {
        "unit": unit,
        "size": int(data.size),
        "symbols": int(symbols.size),
        "lags": tuple(lags.tolist()),
    }
    return (
        DecayCurve(
            quantity="information",
            estimator=estimator,
            **common,
            **_columns(values, floor[:, 0]),
            drift=float(mutual_information(drift)),
        ),
        DecayCurve(
            quantity="correlation",
            estimator="plugin",
            **common,
            **_columns(correlations, noise),
            drift=correlation_drift(drift, pool),
        ),
    )


def _left(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """What all blocks (..., G) hold, and what remains without each: (..., 1 + G)."""
    total = sizes.sum(axis=-1, keepdims=True)
    return np.concatenate([total, total - sizes], axis=-1)


def _columns(values: Floats, floor: Floats) -> dict[str, Any]:
    replicates = tuple(tuple(row) for row in values[:, 1:].tolist())
    return {"values": tuple(values[:, 0].tolist()), "floor": tuple(floor.tolist()), "replicates": replicates}


def _passes(lags: NDArray[np.int64], blocks: int, symbols: int) -> Iterator[NDArray[np.int64]]:
    """Groups of lags whose tables fit into TABLE_BYTES."""
    size = max(1, TABLE_BYTES // (blocks * symbols**2 * np.dtype(np.uint32).itemsize))
    for start in range(0, lags.size, size):
        yield lags[start : start + size]
