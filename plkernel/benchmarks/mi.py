"""python -m plkernel.bench mi: pair counting against its peers, with its memory and its threads."""

from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plkernel.analysis.information.counts import Bytes, check_data, check_lags
from plkernel.analysis.information.estimate import mutual_information
from plkernel.benchmarks import contest, mi_peers
from plkernel.benchmarks.contest import Spread, Times, interleave, progress
from plkernel.benchmarks.mi_memory import LAGS as MEMORY_LAGS
from plkernel.benchmarks.mi_memory import Usage, measure_memory
from plkernel.benchmarks.mi_peers import BINCOUNT, INFOMEASURE, PYINFORM, Contender, Work
from plkernel.common.cli import text_table
from plkernel.common.files import check_folder
from plkernel.data import corpora

OURS: dict[Work, str] = {"tables": "plkernel, threads: 1", "information": "plkernel, tables and information"}
NUMPY = "plkernel, nothing compiled"
TARGETS = {BINCOUNT: 6.0, PYINFORM: 20.0, INFOMEASURE: 300.0}
TWO_THREADS = 1.3  # times one
MEMORY = 200.0  # MB beyond the imports
LARGEST_ERROR = 1e-9  # of an information, relative; of a table, none
MEGABYTE = 1e6


@dataclass(frozen=True)
class CountTiming:
    """One contender. `rate` in MB of corpus per second and lag; `ratio` is its time over ours for the same work.

    `error` is the largest difference of a count, or the largest relative one of an information.
    """

    contender: str
    work: Work
    bytes: int
    error: float | None = None
    seconds: Spread | None = None
    rate: float | None = None
    ratio: Spread | None = None
    note: str = ""


@dataclass(frozen=True)
class CountResults:
    """What the benchmark measured; `speedup` is the time of one thread over that of so many, round by round."""

    environment: dict[str, Any]
    corpus: dict[str, Any]
    lags: list[int]
    rows: list[CountTiming]
    speedup: dict[int, Spread] = field(default_factory=dict)
    memory: list[Usage] = field(default_factory=list)


def run(
    corpus: str, lags: tuple[int, ...], threads: tuple[int, ...], rounds: int, sizes: tuple[int, ...], out: Path | None
) -> None:
    """Check every contender's pair tables or mutual information, then time those that are right, taken in turns."""
    contest.check(rounds, threads=min(threads, default=0))
    if min(sizes, default=1) < 1:
        raise ValueError(f"sizes must be 1 MB or more, got {sizes}")
    check_folder(out, "out")
    found = corpora.load(corpus)
    data = np.asarray(found.bytes)
    check_data(data, int(check_lags(lags)[-1]), 1)
    rows, speedup = compare(data, list(lags), sorted({1, *threads}), rounds)
    described = {"name": found.name, "source": found.source, "size": found.size, "sha256": found.sha256}
    place = contest.place(max(threads), mi_peers.PACKAGES)
    results = CountResults(place, described, list(lags), rows, speedup, measure_memory(found.path, sizes))
    contest.show(render(results), asdict(results), out, "mi")


def counting(threads: int) -> str:
    """The name of ours with so many threads."""
    return f"plkernel, threads: {threads}"


def contenders(threads: list[int]) -> dict[str, Contender]:
    """Ours and the peers, by name."""
    return {
        **{counting(n): Contender("tables", mi_peers.with_threads(n)) for n in threads},
        NUMPY: Contender("tables", mi_peers.with_numpy),
        OURS["information"]: Contender("information", mi_peers.ours),
        **mi_peers.PEERS,
    }


def compare(
    data: Bytes, lags: list[int], threads: list[int], rounds: int
) -> tuple[list[CountTiming], dict[int, Spread]]:
    """A row for each contender, and how many times as fast ours is with more threads."""
    everyone = contenders(threads)
    progress(f"checking {len(everyone)} contenders against np.bincount at lags {', '.join(map(str, lags))}")
    parts = {name: data[: max(one.most_bytes, lags[-1] + 1)] for name, one in everyone.items()}
    checked = {name: check(one, parts[name], lags) for name, one in everyone.items()}
    right = [name for name in everyone if not checked[name][1]]
    progress(f"timing {', '.join(right)}")
    times = interleave({name: partial(everyone[name].run, parts[name], lags) for name in right}, rounds)
    rows = [_row(name, one.work, parts, checked[name], len(lags), times) for name, one in everyone.items()]
    timed = [n for n in threads if {counting(n), counting(1)} <= set(right)]
    return rows, {n: times.ratio(counting(1), counting(n)) for n in timed}


def check(contender: Contender, data: Bytes, lags: list[int]) -> tuple[float | None, str]:
    """The error of a contender on `data`, and why it is not timed: empty if it is."""
    truth = mi_peers.bincount(data, lags)

    def attempt() -> tuple[float, None]:
        result = contender.run(data, lags)
        if contender.work == "tables":
            return float(np.abs(mi_peers.dense(result) - truth).max()), None
        return relative_error(result, mutual_information(truth)), None

    return contest.checked(attempt, 0.0 if contender.work == "tables" else LARGEST_ERROR)[:2]


def relative_error(values: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    """max |value - truth| / truth over the lags."""
    return float(np.max(np.nan_to_num(np.abs(values - truth) / truth, nan=np.inf)))


def _row(
    name: str, work: Work, parts: dict[str, Bytes], checked: tuple[float | None, str], lags: int, times: Times
) -> CountTiming:
    (error, note), size = checked, parts[name].size
    if note:
        return CountTiming(name, work, size, error, note=note)
    seconds, base = times.spread(name), OURS[work]
    rate = size * lags / seconds.median / MEGABYTE
    ratio = times.ratio(name, base).scaled(parts[base].size / size) if base in times.seconds else None
    return CountTiming(name, work, size, error, seconds, rate, ratio)


def render(results: CountResults) -> str:
    """The tables for the terminal."""
    title = f"{results.corpus['name']}, lags {', '.join(map(str, results.lags))}; times ours: time for the same work"
    header = ["contender", "work", "MB", "error", "ms", "MB/s and lag", "times ours", "quartiles", "wanted", "note"]
    tables = [f"{title}\n{text_table(header, [_cells(row) for row in results.rows])}"]
    rates = {row.contender: row.rate for row in results.rows}
    scaling = [_scaling_cells(n, rates[counting(n)], speedup) for n, speedup in results.speedup.items()]
    tables.append(text_table(["threads", "MB/s and lag", "times one", "quartiles", "wanted"], scaling))
    if results.memory:
        header = ["mapped file", "MB", "seconds", f"MB/s and lag, {MEMORY_LAGS.size} lags", "MB at most", "wanted"]
        tables.append(text_table(header, [_memory_cells(usage) for usage in results.memory]))
        tables.append("MB at most: anonymous memory beyond what is there after the imports")
    return "\n\n".join(tables)


def _cells(row: CountTiming) -> list[str]:
    cells = [row.contender, row.work, f"{row.bytes / MEGABYTE:.1f}"]
    cells.append("" if row.error is None else f"{row.error:.1e}")
    cells.append(f"{row.seconds.median * 1e3:.1f}" if row.seconds else "")
    cells.append(f"{row.rate:.1f}" if row.rate else "")
    cells += contest.cells(row.ratio)
    cells.append(f"at least {TARGETS[row.contender]:g}" if row.contender in TARGETS else "")
    return [*cells, row.note]


def _scaling_cells(threads: int, rate: float | None, speedup: Spread) -> list[str]:
    return [str(threads), f"{rate:.1f}", *speedup.cells(), f"at least {TWO_THREADS:g}" if threads == 2 else ""]


def _memory_cells(usage: Usage) -> list[str]:
    rate = usage.bytes * MEMORY_LAGS.size / usage.seconds / MEGABYTE
    cells = [usage.work, f"{usage.bytes / MEGABYTE:.0f}", f"{usage.seconds:.2f}", f"{rate:.0f}"]
    return [*cells, f"{usage.peak_bytes / MEGABYTE:.0f}", f"under {MEMORY:g}"]
