"""python -m plkernel.bench wkv: the recurrence of RWKV-6 against its peers, forward plus backward, with its memory."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from plkernel.benchmarks import contest, threads, wkv_peers
from plkernel.benchmarks.contest import OURS, Spread, Timing, by_x, peak_bytes, progress
from plkernel.benchmarks.threads import Threads
from plkernel.benchmarks.wkv_peers import LOOP, STRONG_SHAPE, Contender, Problem, Shape, problem, strong_problem
from plkernel.common.cli import text_table
from plkernel.common.environment import anonymous_bytes, watch
from plkernel.common.files import check_folder

SHAPES: tuple[Shape, ...] = ((2, 1024, 4, 64), (2, 256, 4, 64))
LARGEST_SIZE = max(wkv_peers.SIZES)
LARGEST_ERROR = {"cpu": 2e-5, "cuda": 1e-4}  # of ours
LARGEST_PEER_ERROR = 1e-3
ROUNDED = 2.0**-8  # allowed to ours in bfloat16, which rounds what is stored
PEER_ROUNDED = 3e-2  # to peers, which also multiply in it
COPY = "copy"
LOOP_TARGET, CHUNKS_TARGET = 20.0, 1.5
MEMORY_TARGET = 0.2  # of what the loop takes
MEMORY_CONTENDERS = (OURS, LOOP, wkv_peers.LEAN_LOOP, f"{wkv_peers.CHUNKED} 32", f"{wkv_peers.SAFE} 32")
LENGTHS = (256, 1024, 4096, 16384)
LENGTH_SHAPE = (1, 4, 64)  # batch, heads and size while the length varies
MEGABYTE = 1e6


@dataclass(frozen=True)
class WkvTiming(Timing):
    """With the error under strong decays, and on a GPU the share of the roofline: of a copy's bytes per second."""

    strong_error: float | None = None
    roofline: float | None = None


@dataclass(frozen=True)
class WkvResults:
    """What the benchmark measured.

    `threads` are two against one, `memory` the peak of forward plus backward in bytes beyond
    what was there with the inputs, `lengths` nanoseconds of ours per step and head.
    """

    environment: dict[str, Any]
    rows: list[WkvTiming] = field(default_factory=list)
    threads: list[Threads] = field(default_factory=list)
    memory_shape: Shape = SHAPES[0]
    memory: dict[str, int] = field(default_factory=dict)
    lengths: dict[int, Spread] = field(default_factory=dict)


def run(shapes: tuple[Shape, ...], dtype: str, rounds: int, device: str | None, out: Path | None) -> None:
    """Check every contender against float64, then time forward plus backward through all inputs, taken in turns."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    contest.check(rounds, device=device)
    for shape in shapes:
        if min(shape) < 1 or shape[1] % LARGEST_SIZE:
            raise ValueError(f"shapes has {shape}; all four must be 1 or more and time a multiple of {LARGEST_SIZE}")
    check_folder(out, "out")
    with contest.threads_set(1):
        results = measure(shapes or SHAPES, getattr(torch, dtype), rounds, device)
    contest.show(render(results), asdict(results), out, "wkv" if dtype == "float32" else f"wkv-{dtype}")


def measure(shapes: tuple[Shape, ...], dtype: torch.dtype, rounds: int, device: str) -> WkvResults:
    """Everything the benchmark measures; progress goes to standard error."""
    contenders = wkv_peers.CONTENDERS | (wkv_peers.GPU if device == "cuda" else {})
    results = WkvResults(contest.place(1, wkv_peers.PACKAGES, device=device), memory_shape=shapes[0])
    whole = dtype == torch.float32
    strong = strong_errors(contenders, device) if whole else {}
    for shape in shapes:
        results.rows.extend(compare(shape, contenders, strong, rounds, device, dtype))
    if not whole:
        return results
    if device == "cpu":
        results.threads.extend(threads.measure("wkv", rounds))
    results.memory.update(measure_memory(shapes[0], contenders, device))
    batch, heads, size = LENGTH_SHAPE
    results.lengths.update(
        contest.measure_lengths(
            lambda n: wkv_peers.ours(problem((batch, n, heads, size), device)), LENGTHS, batch * heads, rounds, device
        )
    )
    return results


def strong_errors(contenders: Mapping[str, Contender], device: str) -> dict[str, float | None]:
    """The error of each contender where some decays are strong; infinite where it overflows."""
    progress(f"{by_x(STRONG_SHAPE)}: errors under strong decays")
    given = strong_problem(device)
    truth = wkv_peers.reference(given)()
    return {name: contest.checked_step(make, torch.inf, truth, [given])[0] for name, make in contenders.items()}


def compare(
    shape: Shape,
    contenders: Mapping[str, Contender],
    strong: Mapping[str, float | None],
    rounds: int,
    device: str,
    dtype: torch.dtype = torch.float32,
) -> list[WkvTiming]:
    """Check all at one shape, then time those that are right, on a GPU beside a copy."""
    given = problem(shape, device, dtype)
    target, repeat = torch.empty_like(given.r), 10 if device == "cuda" else 1
    copy = {COPY: lambda: target.copy_(given.r)} if device == "cuda" else {}
    rounded = (0.0, 0.0) if dtype == torch.float32 else (ROUNDED, PEER_ROUNDED)
    own, others = LARGEST_ERROR[device] + rounded[0], LARGEST_PEER_ERROR + rounded[1]
    limits = {name: own if name == OURS else others for name in contenders}
    truth = wkv_peers.reference(given)()
    found = contest.compare(shape, contenders, (given,), truth, limits, rounds, device, copy, repeat)
    copied = next((row.seconds.median for row in found if row.contender == COPY and row.seconds), None)
    least = copied and moved_bytes(given) / (2 * given.r.nbytes) * copied
    return [
        WkvTiming(
            **vars(row),
            strong_error=strong.get(row.contender),
            roofline=least / row.seconds.median if least and row.seconds and row.contender != COPY else None,
        )
        for row in found
    ]


def moved_bytes(given: Problem) -> int:
    """What must be moved: r, k, v and w are read forward and backward, o written, its gradient read, four written."""
    return 3 * sum(x.nbytes for x in given[:4]) + 2 * given.grad_out.nbytes


def measure_memory(shape: Shape, contenders: Mapping[str, Contender], device: str) -> dict[str, int]:
    """Peak of forward plus backward in bytes, each in a fresh process; on a GPU that of its allocator, in this one."""
    if device == "cuda":
        given = problem(shape, device)
        return {name: peak_bytes(contenders[name](given), device) for name in MEMORY_CONTENDERS}
    if anonymous_bytes("self") is None:
        print("memory: left out, /proc/self/status does not tell the anonymous memory here", file=sys.stderr)
        return {}
    peaks = {}
    for name in MEMORY_CONTENDERS:
        progress(f"memory: {name}")
        peaks[name] = watch("plkernel.benchmarks.wkv_peers", name, *map(str, shape))[0]
    return peaks


def render(results: WkvResults) -> str:
    """The tables for the terminal."""
    header = ["shape", "contender", "error", "strong decays", "ms", "times ours", "quartiles", "wanted"]
    header += ["roofline", "note"]
    tables = [text_table(header, [_cells(row) for row in results.rows])]
    if results.threads:
        tables.append(text_table(threads.HEADER, threads.render(results.threads)))
    if results.memory:
        unit = f"forward plus backward at {by_x(results.memory_shape)}"
        tables.append(text_table([unit, "MB at most", "of the loop's", "wanted"], _memory_cells(results.memory)))
    if results.lengths:
        tables.append(contest.lengths_table(results.lengths, "head", 0))
    return "\n\n".join(tables)


def _cells(row: WkvTiming) -> list[str]:
    errors = ["" if error is None else f"{error:.1e}" for error in (row.error, row.strong_error)]
    share = "" if row.roofline is None else f"{row.roofline:.0%}"
    return [by_x(row.shape), row.contender, *errors, *row.cells(), _wanted(row.contender), share, row.note]


def _wanted(contender: str) -> str:
    if contender == LOOP:
        return f"at least {LOOP_TARGET:g}"
    return f"at least {CHUNKS_TARGET:g}" if contender.startswith((wkv_peers.CHUNKED, wkv_peers.SAFE)) else ""


def _memory_cells(memory: Mapping[str, int]) -> list[list[str]]:
    share = {name: peak / memory[LOOP] for name, peak in memory.items()}
    wanted = {OURS: f"at most {MEMORY_TARGET:g}"}
    return [[name, f"{memory[name] / MEGABYTE:.0f}", f"{share[name]:.3f}", wanted.get(name, "")] for name in memory]
