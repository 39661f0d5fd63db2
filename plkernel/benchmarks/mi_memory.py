"""Memory for counting pairs in a mapped file: a process of its own counts while its parent watches its memory.

That process imports nothing but the analysis, so its baseline is what any program of a user's starts from.
"""

import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from plkernel.analysis.information.counts import count_pairs
from plkernel.analysis.information.curve import BLOCKS, decay_curves, log_lags
from plkernel.common.process_memory import anonymous_bytes, ready, watch

LAGS = log_lags(1000, 82)
"""64 different ones: rounding to integers makes the shortest coincide."""
WORKS = {
    "count_pairs": lambda data: count_pairs(data, LAGS),
    f"decay_curves, {BLOCKS} blocks": lambda data: decay_curves(data, LAGS, blocks=BLOCKS),
}


@dataclass(frozen=True)
class Usage:
    """Seconds of one work on a file of so many bytes, and the most anonymous memory beyond that after the imports."""

    work: str
    bytes: int
    seconds: float
    peak_bytes: int


def measure_memory(corpus: Path, megabytes: Iterable[int]) -> list[Usage]:
    """Each work on files of each size, made by repeating the corpus; nothing where the system has no /proc."""
    if anonymous_bytes("self") is None:
        print("memory: left out, /proc/self/status does not tell the anonymous memory here", file=sys.stderr)
        return []
    usages = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.bin"
        for size in megabytes:
            _repeat(corpus, path, size * 1_000_000)
            for work in WORKS:
                print(f"memory: {work}, {size} MB", file=sys.stderr, flush=True)
                usages.append(watched(work, path))
    return usages


def watched(work: str, path: Path) -> Usage:
    """Run one work in a fresh process, which prints its seconds at the end."""
    peak, seconds = watch("plkernel.benchmarks.mi_memory", work, str(path))
    return Usage(work, path.stat().st_size, float(seconds), peak)


def _repeat(source: Path, target: Path, size: int) -> None:
    data = source.read_bytes()[:size]
    with target.open("wb") as out:
        for start in range(0, size, len(data)):
            out.write(data[: size - start])


def _work(name: str, path: str) -> None:
    """In the fresh process. Compiling is watched but not timed: it does not grow with the file."""
    ready()
    data = np.memmap(path, np.uint8, mode="r")
    WORKS[name](data[: 2 * max(LAGS)])
    start = time.perf_counter()
    WORKS[name](data)
    print(time.perf_counter() - start)


if __name__ == "__main__":
    _work(*sys.argv[1:])
