"""Pair counts on a Ray cluster: stretches of a corpus are counted wherever there is a free core, and added up here.

The driver sends each stretch to the task that counts it. A path would send less, but only where all machines share a
file system, and a file of the same name and size need not hold the same bytes; and what is counted need not be a file
at all (words are not). Sending is cheap beside counting: one core counts about 1 GB per second and lag, so 64 lags
read 20 MB per second, and a link of 1 GB per second keeps some fifty cores busy.

Memory. Stretches are cut and sent as earlier ones are done, so the driver holds no more than a few per core, whatever
the size of the corpus, and the tables.

Lost machines. Ray counts a stretch again, elsewhere, when the worker or the machine that had it dies.
"""

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plkernel.analysis.mutual_information.curve import Counting
from plkernel.analysis.mutual_information.pair_counts import (
    SYMBOLS,
    Bytes,
    PairCounts,
    check_data,
    check_lags,
    count_pairs,
    table_dtype,
)

Engine = Literal["local", "ray"]
Edges = NDArray[np.int64]

STRETCH = 1 << 23
"""About the most first positions of a task, whatever the number of shards asked for."""
PER_CORE = 2
"""Tasks under way per core: one is counted while the next one's stretch arrives."""
TASKS_PER_CORE = 4
"""Tasks of a small corpus per core, so that cores of different speed end together."""
CONNECT_SECONDS = 5.0
RETRIES = 3
"""How often a stretch is counted again after the worker that had it died."""


@dataclass(frozen=True, eq=False)
class Shard:
    """A stretch of the data, to be counted on its own.

    start, stop  the bytes that it needs: its first positions and what follows them up to the longest lag
    edges        (K + 1,) of the blocks that it touches, counted from `start`
    blocks       which of the tables those K are
    """

    start: int
    stop: int
    edges: Edges
    blocks: slice


def split(size: int, longest: int, edges: Edges, shards: int) -> Iterator[Shard]:
    """Stretches of `size` symbols with about equally many first positions, each of which is in exactly one.

    They cross the edges of blocks, so neither few nor long blocks keep a core idle or a stretch long. There are
    `shards` of them, fewer where that would leave one without a pair at lag `longest`.
    """
    first, last = int(edges[0]), int(edges[-1])
    paired = max(first + 1, min(last, size - longest))
    cuts = np.unique(np.linspace(first, paired, shards + 1).astype(np.int64))
    cuts[-1] = last  # positions with pairs at shorter lags only
    for start, stop in pairwise(cuts.tolist()):
        low, high = np.searchsorted(edges, start, side="right") - 1, np.searchsorted(edges, stop)
        inner = np.clip(edges[low : high + 1], start, stop) - start
        yield Shard(start, min(stop + longest, size), inner, slice(int(low), int(high)))


@contextmanager
def counting(engine: Engine = "local", shards: int | None = None) -> Iterator[Counting]:
    """What counts pairs on `engine`, with the signature and result of `count_pairs`.

    'local'  this process
    'ray'    the cluster at $RAY_ADDRESS, else all cores of this machine, which are let go of at the end. Every
             machine needs plkernel. A task takes one core, so `threads` does nothing here
    shards   tasks of a count; four per core unless given, more where a stretch would exceed 8 MiB

    Raises ValueError for another engine, fewer shards than 1 and Ray not installed, OSError when the cluster does not
    answer, cannot import plkernel, or lost a stretch more than three times.
    """
    if engine not in ("local", "ray"):
        raise ValueError(f"engine {engine!r}: must be 'local' or 'ray'")
    if shards is not None and shards < 1:
        raise ValueError(f"shards must be at least 1, got {shards}")
    if engine == "local":
        yield count_pairs
        return
    with connected() as ray:
        yield _counter(ray, shards)


@contextmanager
def connected(address: str | None = None) -> Iterator[Any]:
    """The module ray, connected to the cluster at `address`, else at $RAY_ADDRESS, else to the cores of this machine.

    What was connected here is disconnected at the end, what was started, stopped. Raises ValueError where Ray is not
    installed, OSError when no cluster answers.
    """
    try:
        import ray
    except ImportError:
        raise ValueError("engine 'ray': Ray is not installed; pip install \"plkernel[dist]\"") from None
    if ray.is_initialized():
        yield ray
        return
    name = "RAY_ADDRESS" if address is None else "ray_address"
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    _reach(address, name)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # what is counted here concerns nobody else
    try:
        try:
            ray.init(address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except RuntimeError as error:  # another version of Ray or Python there, no room for Ray here
            raise OSError(f"engine 'ray': {error}") from None
        yield ray
    finally:
        ray.shutdown()


def _reach(address: str, name: str) -> None:
    """OSError when nothing answers at HOST:PORT, for which Ray itself would wait many minutes."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        except OSError as error:
            raise OSError(f"{name}={address}: no cluster answers ({error}); leave it out to stay here") from None


def _counter(ray: Any, shards: int | None) -> Counting:
    """`count_pairs`, by tasks of the connected cluster."""
    task = ray.remote(max_retries=RETRIES)(count_pairs)

    def count(
        data: Bytes,
        lags: ArrayLike,
        *,
        symbols: Bytes | None = None,
        edges: Edges | None = None,
        threads: int = 1,
        progress: Callable[[int], Any] | None = None,
    ) -> PairCounts:
        lags = check_lags(lags)
        longest = int(lags[-1])
        check_data(data, longest, 1)
        data = np.asarray(data)
        edges = np.array([0, data.size]) if edges is None else edges
        symbols = np.arange(SYMBOLS, dtype=np.uint8) if symbols is None else symbols
        tables = np.zeros((lags.size, edges.size - 1, symbols.size, symbols.size), table_dtype(edges))
        cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
        number = max(shards or TASKS_PER_CORE * cores, -(-int(edges[-1] - edges[0]) // STRETCH))
        tasks = (
            (task.remote(data[shard.start : shard.stop], lags, symbols=symbols, edges=shard.edges), shard.blocks)
            for shard in split(data.size, longest, edges, number)
        )
        for part, blocks in _results(ray, tasks, PER_CORE * cores):
            tables[:, blocks] += part.tables
            if progress is not None:
                progress(int(part.tables.sum(dtype=np.int64)))
        return PairCounts(lags, symbols, tables)

    return count


def _results(ray: Any, tasks: Iterator[tuple[Any, slice]], most: int) -> Iterator[tuple[PairCounts, slice]]:
    """The results of lazily submitted tasks as they come, with at most `most` of them under way."""
    under_way: dict[Any, slice] = {}
    try:
        while True:
            under_way.update(islice(tasks, most - len(under_way)))
            if not under_way:
                return
            done = ray.wait(list(under_way))[0][0]
            yield ray.get(done), under_way.pop(done)
    except ray.exceptions.RayTaskError as error:
        raise failure(error) from None
    except ray.exceptions.RayError as error:
        raise OSError(f"engine 'ray': {error}") from None


def failure(error: Any) -> Exception:
    """The error of a task in one line, bad input as if it had been found here."""
    if isinstance(error.cause, ValueError):
        return error.cause
    reason = str(error.cause).strip().splitlines()[-1:]
    return OSError(f"engine 'ray': a task failed, {''.join(reason)}; every machine needs plkernel")
