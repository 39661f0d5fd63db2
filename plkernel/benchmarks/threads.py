"""The gain of a second thread, each time in a fresh process: alone, beside other work, and with AVX2 alone."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llvmlite import binding

from plkernel.benchmarks.contest import Spread, progress
from plkernel.common.environment import cpu_name

LEAST, LEAST_WKV = 0.95, 1.4
WIDER = ("avx512", "avx10", "amx")
AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "NUMBA_CPU_NAME": "haswell",
}
"""What has the libraries compute as if the processor had nothing wider; the compiled kernels also need the features."""
PROCESS = "plkernel.benchmarks.threads_process"


@dataclass(frozen=True)
class Threads:
    """Seconds of a call with one thread and with two, and how many times as fast two are, round by round.

    processor: its name, with what it was told to be; neighbours: processes beside it that keep a core each busy.
    """

    work: str
    processor: str
    neighbours: int
    one: Spread
    two: Spread
    speedup: Spread


def measure(name: str, rounds: int, spec: Path | None = None) -> list[Threads]:
    """One against two threads of "scan", "wkv" or "train" (of a spec): alone, beside one process, and with AVX2."""
    own = cpu_name()
    found = [_row(name, own, neighbours, rounds, spec, {}) for neighbours in (0, 1)]
    narrow = as_avx2()
    return found + ([_row(name, f"{own}, as one with AVX2", 0, rounds, spec, narrow)] if narrow else [])


def as_avx2() -> dict[str, str]:
    """Variables with which a processor computes as one with AVX2 does; none where it has nothing wider."""
    features = binding.get_host_cpu_features()
    if not features.get("avx512f"):
        return {}
    kept = [f"{'+' if has and not name.startswith(WIDER) else '-'}{name}" for name, has in features.items()]
    return {**AVX2, "NUMBA_CPU_FEATURES": ",".join(kept)}


def render(rows: Sequence[Threads]) -> list[list[str]]:
    """Cells below `HEADER`."""
    cells = []
    for row in rows:
        milliseconds = f"{row.one.median * 1e3:.1f}"
        cells.append([row.work, row.processor, str(row.neighbours), milliseconds, *row.speedup.cells(), _wanted(row)])
    return cells


HEADER = ["two threads of ours", "processor", "beside", "ms of one", "times as fast", "quartiles", "wanted"]


def _wanted(row: Threads) -> str:
    least = LEAST_WKV if row.work == "wkv" and not row.neighbours else LEAST
    return f"at least {least:g}" if not (row.work not in ("wkv", "scan") and row.neighbours) else ""


def _row(
    name: str, processor: str, neighbours: int, rounds: int, spec: Path | None, variables: Mapping[str, str]
) -> Threads:
    progress(f"threads: {spec or name}, {processor}{', beside another process' if neighbours else ''}")
    command = [sys.executable, "-m", PROCESS, name, str(neighbours), str(rounds)]
    command += [str(spec)] if spec else []
    done = subprocess.run(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise OSError(f"{PROCESS} {name}: failed in a process of its own")
    spreads = {key: Spread(**value) for key, value in json.loads(done.stdout).items()}
    return Threads(f"train {spec}" if spec else name, processor, neighbours, **spreads)
