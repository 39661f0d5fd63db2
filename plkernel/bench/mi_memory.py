"""What counting pairs takes from a mapped file: a process of its own counts while its parent watches its memory.

That process imports nothing but the analysis, so its baseline is what any program of a user's starts from.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from plkernel.analysis.mutual_information import BLOCKS, decay_curves, log_lags
from plkernel.analysis.pair_counts import count_pairs

LAGS = log_lags(1000, 82)
"""64 different ones: rounding to integers makes the shortest coincide."""
WORKS = {
    "count_pairs": lambda data: count_pairs(data, LAGS),
    f"decay_curves, {BLOCKS} blocks": lambda data: decay_curves(data, LAGS, blocks=BLOCKS),
}
INTERVAL = 0.002
"""Seconds between two looks. A page takes about half a microsecond to touch first, so less than 20 MB slip by."""


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
                usages.append(watch(work, path))
    return usages


def watch(work: str, path: Path) -> Usage:
    """Run one work in a fresh process, which waits for a line before it starts and prints its seconds at the end.

    The parent looks, since the process itself may hold its interpreter lock throughout. RssAnon and not the kernel's
    own peak, VmHWM, which counts the pages of the mapped file too: those go when the machine needs them.
    """
    command = [sys.executable, "-m", "plkernel.bench.mi_memory", work, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        before = peak = anonymous_bytes(process.pid) or 0
        process.stdin.write("\n")
        process.stdin.flush()
        while process.poll() is None:
            peak = max(peak, anonymous_bytes(process.pid) or 0)
            time.sleep(INTERVAL)
        seconds = process.stdout.read()
    if process.returncode:
        raise OSError(f"counting a file of {path.stat().st_size:,} bytes in a process of its own failed")
    return Usage(work, path.stat().st_size, float(seconds), peak - before)


def anonymous_bytes(process: int | str) -> int | None:
    """Memory of a process that no file backs, in bytes; None where that cannot be read."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), None)


def _repeat(source: Path, target: Path, size: int) -> None:
    data = source.read_bytes()[:size]
    with target.open("wb") as out:
        for start in range(0, size, len(data)):
            out.write(data[: size - start])


def _work(name: str, path: str) -> None:
    """In the fresh process. Compiling is watched but not timed: it does not grow with the file."""
    print("ready", flush=True)
    sys.stdin.readline()
    data = np.memmap(path, np.uint8, mode="r")
    WORKS[name](data[: 2 * max(LAGS)])
    start = time.perf_counter()
    WORKS[name](data)
    print(time.perf_counter() - start)


if __name__ == "__main__":
    _work(*sys.argv[1:])
