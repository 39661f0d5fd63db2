"""Other people's ways to count pairs of symbols, or to take their mutual information, on the bytes of a corpus.

A contender takes data (n,) uint8 and the lags (L,). Those of "tables" return the pair tables (L, 256, 256), those of
"information" the plug-in mutual information (L,) in nats. A contender that is not installed raises ImportError.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from plkernel.analysis.information import counts
from plkernel.analysis.information.counts import SYMBOLS, Bytes, PairCounts, count_pairs
from plkernel.analysis.information.estimate import mutual_information

Lags = Sequence[int]
Work = Literal["tables", "information"]


@dataclass(frozen=True)
class Contender:
    """What it computes, how, and on how many bytes from the start of the corpus: a slow one gets fewer."""

    work: Work
    run: Callable[[Bytes, Lags], Any]
    most_bytes: int = 1 << 25


def bincount(data: Bytes, lags: Lags) -> NDArray[np.int64]:
    """The line one would write: np.bincount of the code of every pair. What all others are checked against."""
    tables = [
        np.bincount(data[:-lag].astype(np.int64) * SYMBOLS + data[lag:], minlength=SYMBOLS * SYMBOLS) for lag in lags
    ]
    return np.reshape(tables, (len(lags), SYMBOLS, SYMBOLS))


def with_threads(threads: int) -> Callable[[Bytes, Lags], PairCounts]:
    """This project's pair tables."""
    return lambda data, lags: count_pairs(data, lags, threads=threads)


def with_numpy(data: Bytes, lags: Lags) -> PairCounts:
    """This project's pair tables where nothing is compiled."""
    with patch.object(counts, "counter", lambda: counts.count_with_numpy), patch.object(counts, "FEW", 0):
        return count_pairs(data, lags)


def ours(data: Bytes, lags: Lags) -> NDArray[np.float64]:
    """This project's pair tables and their plug-in mutual information, one thread."""
    return np.array([mutual_information(table) for table in count_pairs(data, lags).tables[:, 0]])


def pyinform(data: Bytes, lags: Lags) -> NDArray[np.float64]:
    """pyinform, whose unit is the bit. It converts both series to 32-bit integers: that is part of its call."""
    from pyinform import mutual_info

    return np.log(2) * np.array([mutual_info(data[:-lag], data[lag:]) for lag in lags])


def sklearn(data: Bytes, lags: Lags) -> NDArray[np.float64]:
    """scikit-learn's score of two clusterings."""
    from sklearn.metrics import mutual_info_score

    return np.array([mutual_info_score(data[:-lag], data[lag:]) for lag in lags])


def infomeasure(data: Bytes, lags: Lags) -> NDArray[np.float64]:
    """infomeasure's discrete estimator, in nats unless asked otherwise."""
    from infomeasure import mutual_information

    return np.array([mutual_information(data[:-lag], data[lag:], approach="discrete", base="e") for lag in lags])


def dense(result: PairCounts | NDArray[Any]) -> NDArray[np.int64]:
    """Tables of the symbols that occur, in one block, as those of all bytes: (L, 256, 256)."""
    if not isinstance(result, PairCounts):
        return result
    tables = np.zeros((result.lags.size, SYMBOLS, SYMBOLS), np.int64)
    tables[:, result.symbols[:, None].astype(np.intp), result.symbols] = result.tables[:, 0]
    return tables


BINCOUNT, PYINFORM, SKLEARN, INFOMEASURE = "np.bincount", "pyinform", "scikit-learn", "infomeasure"
PEERS: dict[str, Contender] = {
    BINCOUNT: Contender("tables", bincount),
    PYINFORM: Contender("information", pyinform),
    SKLEARN: Contender("information", sklearn, 1 << 20),
    INFOMEASURE: Contender("information", infomeasure, 1 << 20),
}
PACKAGES = ("pyinform", "scikit-learn", "infomeasure")
