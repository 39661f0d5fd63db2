"""python -m plkernel.bench scan: the scan against its peers, forward plus backward with a fixed decay."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plkernel.benchmarks import contest, scan_peers
from plkernel.benchmarks import threads as two_threads
from plkernel.benchmarks.contest import OURS, Spread, Timing, by_x, peak_bytes, progress
from plkernel.benchmarks.scan_peers import Contender
from plkernel.benchmarks.threads import Threads
from plkernel.common.cli import text_table
from plkernel.common.files import check_folder
from plkernel.kernels.scan import reference

Shape = tuple[int, int, int]
COPY = "copy"
SHAPES: dict[str, tuple[Shape, ...]] = {
    "cpu": ((8, 1024, 256), (4, 4096, 256), (1, 65536, 64)),
    "cuda": ((8, 1024, 256), (8, 4096, 1024), (8, 4096, 1536), (32, 4096, 1024), (1, 65536, 1024)),
}
TARGETS = {"mambapy": 5.0, "associative_scan": 10.0, "loop": 10.0}
LARGEST_ERROR = {"cpu": 1e-5, "cuda": 1e-3}  # of ours
LARGEST_PEER_ERROR = 1e-2  # peers sum the gradient of a in float32: a channel where it cancels shows it
MEMORY_SHAPE = (2, 2048, 64)
LENGTHS = (4096, 16384, 65536, 262144)
LENGTH_SHAPE = (4, 64)  # batch and channels while the length varies
PASSES = 5  # forward reads b and writes h; backward reads grad_h and h and writes grad_b


@dataclass(frozen=True)
class ScanTiming(Timing):
    """With what the contender moves, forward and backward."""

    gigabytes_per_second: float | None = None


@dataclass(frozen=True)
class ScanResults:
    """What the benchmark measured; `memory` in tensors (B,T,D), `lengths` as nanoseconds per step and channel.

    `threads` are two against one, on a CPU."""

    environment: dict[str, Any]
    rows: list[ScanTiming] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)
    lengths: dict[int, Spread] = field(default_factory=dict)
    threads: list[Threads] = field(default_factory=list)


def run(
    threads: int, shapes: tuple[Shape, ...], rounds: int, device: str | None, compiled: bool, out: Path | None
) -> None:
    """Check every contender against float64, then time forward plus backward with a fixed decay, taken in turns."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    contest.check(rounds, 1, threads, device)
    for shape in shapes:
        if min(shape) < 1:
            raise ValueError(f"shapes has {shape}; batch, time and channels must be 1 or more")
    check_folder(out, "out")
    with contest.threads_set(threads):
        results = measure(shapes or SHAPES[device], rounds, device, compiled, threads)
    contest.show(render(results), asdict(results), out, "scan")


def measure(shapes: tuple[Shape, ...], rounds: int, device: str, compiled: bool, threads: int) -> ScanResults:
    """Every row of the benchmark; progress goes to standard error."""
    contenders = {OURS: scan_peers.ours, **(scan_peers.CPU if device == "cpu" else scan_peers.GPU)}
    if compiled:
        contenders |= scan_peers.COMPILED
    results = ScanResults(contest.place(threads, scan_peers.PACKAGES, device=device))
    for shape in shapes:
        results.rows.extend(compare(shape, contenders, rounds, device))
    results.memory.update(measure_memory(contenders, device))
    batch, channels = LENGTH_SHAPE
    results.lengths.update(
        contest.measure_lengths(
            lambda n: scan_peers.ours(*problem((batch, n, channels), device)), LENGTHS, batch * channels, rounds, device
        )
    )
    if device == "cpu":
        results.threads.extend(two_threads.measure("scan", rounds))
    return results


def problem(shape: Shape, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Decays of half-lives from 1 to 2048 steps, and normal b and grad_h from a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    half_lives = torch.logspace(0, 11, shape[2], base=2.0, dtype=torch.float64)
    a = torch.exp2(-1 / half_lives).float()
    b, grad_h = (torch.randn(shape, generator=generator) for _ in range(2))
    return a.to(device), b.to(device), grad_h.to(device)


def compare(shape: Shape, contenders: Mapping[str, Contender], rounds: int, device: str) -> list[ScanTiming]:
    """Check all at one shape, then time those that are right, beside a copy."""
    given = problem(shape, device)
    b, target = given[1], torch.empty_like(given[1])
    limits = {name: LARGEST_ERROR[device] if name == OURS else LARGEST_PEER_ERROR for name in contenders}
    copy, repeat = {COPY: lambda: target.copy_(b)}, 10 if device == "cuda" else 1
    rows = []
    for row in contest.compare(shape, contenders, given, _truth(*given), limits, rounds, device, copy, repeat):
        moved = b.nbytes * (2 if row.contender == COPY else PASSES)
        rate = moved / row.seconds.median / 1e9 if row.seconds else None
        rows.append(ScanTiming(**vars(row), gigabytes_per_second=rate))
    return rows


def _truth(a: Tensor, b: Tensor, grad_h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a, b, grad_h = a.double().cpu(), b.double().cpu(), grad_h.double().cpu()
    zero = b.new_zeros(b.shape[0], b.shape[2])
    h, _ = reference.forward(a, b, zero)
    grad_a, grad_b, _ = reference.backward(a, zero, h, grad_h, zero)
    return h, grad_a, grad_b


def measure_memory(contenders: Mapping[str, Contender], device: str) -> dict[str, float]:
    """Peak of forward plus backward beyond inputs and incoming gradient, in tensors (B,T,D), results included."""
    progress("memory")
    a, b, grad_h = problem(MEMORY_SHAPE, device)
    peaks = {}
    for name, make in contenders.items():
        if name in scan_peers.COMPILED:
            continue
        try:
            peaks[name] = peak_bytes(make(a, b, grad_h), device) / b.nbytes
        except Exception as reason:
            progress(f"memory of {name}: {type(reason).__name__}")
    return peaks


def render(results: ScanResults) -> str:
    """The tables for the terminal."""
    header = ["shape", "contender", "error", "ms", "times ours", "quartiles", "wanted", "GB/s", "note"]
    tables = [text_table(header, [_cells(row) for row in results.rows])]
    memory = [[name, f"{peak:.2f}"] for name, peak in results.memory.items()]
    tables.append(text_table(["peak memory beyond the inputs", "tensors (B,T,D)"], memory))
    tables.append(contest.lengths_table(results.lengths, "channel", 3))
    if results.threads:
        tables.append(text_table(two_threads.HEADER, two_threads.render(results.threads)))
    return "\n\n".join(tables)


def _cells(row: ScanTiming) -> list[str]:
    cells = [by_x(row.shape), row.contender, "" if row.error is None else f"{row.error:.1e}", *row.cells()]
    cells.append(f"{TARGETS[row.contender]:g}" if row.contender in TARGETS else "")
    return [*cells, f"{row.gigabytes_per_second:.1f}" if row.gigabytes_per_second else "", row.note]
