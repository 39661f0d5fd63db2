"""The benchmark of WKV-7: contenders checked, then timed in turns, their memory, and time by length."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from plkernel.benchmarks import contest
from plkernel.benchmarks.contest import OURS, Spread, by_x, progress
from plkernel.benchmarks.wkv import WkvTiming
from plkernel.benchmarks.wkv7 import peers
from plkernel.benchmarks.wkv7.peers import CHUNKED, LOOP
from plkernel.benchmarks.wkv_peers import SIZES, STRONG_SHAPE, Shape
from plkernel.common.cli import text_table
from plkernel.common.environment import anonymous_bytes, watch
from plkernel.common.files import check_folder

SHAPES: tuple[Shape, ...] = ((2, 1024, 4, 64),)
LARGEST_ERROR = {"cpu": 2e-5, "cuda": 1e-4}  # of ours
LARGEST_PEER_ERROR = 1e-3
TARGETS = {LOOP: 12.0} | {f"{CHUNKED} {size}": 1.5 for size in SIZES}
MEMORY_TARGET = 0.2  # of what the loop takes
MEMORY_CONTENDERS = (OURS, LOOP, f"{CHUNKED} 32", peers.FLA_CHUNKS)
LENGTHS = (256, 1024, 4096, 16384)
LENGTH_SHAPE = (1, 4, 64)  # batch, heads and size while the length varies
MEGABYTE = 1e6


@dataclass(frozen=True)
class Results:
    """What the benchmark measured; `memory` in bytes beyond the inputs, `lengths` nanoseconds per step and head."""

    environment: dict[str, Any]
    rows: list[WkvTiming] = field(default_factory=list)
    memory_shape: Shape = SHAPES[0]
    memory: dict[str, int] = field(default_factory=dict)
    lengths: dict[int, Spread] = field(default_factory=dict)


def run(shapes: tuple[Shape, ...], rounds: int, device: str | None, out: Path | None) -> None:
    """Check every contender against float64, then time forward plus backward through all inputs, taken in turns."""
    shapes = shapes or SHAPES
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    contest.check(rounds, device=device)
    for shape in shapes:
        if min(shape) < 1 or shape[1] % max(SIZES):
            raise ValueError(f"shapes has {shape}; all four must be 1 or more and time a multiple of {max(SIZES)}")
    check_folder(out, "out")
    with contest.threads_set(1):
        results = measure(shapes, rounds, device)
    contest.show(render(results), asdict(results), out, "wkv7")


def measure(shapes: tuple[Shape, ...], rounds: int, device: str) -> Results:
    """Everything the benchmark measures; progress goes to standard error."""
    contenders = peers.CONTENDERS | (peers.GPU if device == "cuda" else {})
    results = Results(contest.place(1, peers.PACKAGES, device=device), memory_shape=shapes[0])
    limits = {name: LARGEST_ERROR[device] if name == OURS else LARGEST_PEER_ERROR for name in contenders}
    progress(f"{by_x(STRONG_SHAPE)}: errors under strong decays")
    given = peers.strong_problem(device)
    truth = peers.reference(given)()
    strong = {name: contest.checked_step(make, torch.inf, truth, [given])[0] for name, make in contenders.items()}
    for shape in shapes:
        given = peers.problem(shape, device)
        rows = contest.compare(shape, contenders, (given,), peers.reference(given)(), limits, rounds, device)
        results.rows.extend(WkvTiming(**vars(row), strong_error=strong[row.contender]) for row in rows)
    if device == "cpu" and anonymous_bytes("self") is not None:
        right = [row.contender for row in results.rows if row.error is not None]
        for name in (one for one in MEMORY_CONTENDERS if one in right):
            progress(f"memory: {name}")
            results.memory[name] = watch("plkernel.benchmarks.wkv7.peers", name, *map(str, shapes[0]))[0]
    batch, heads, size = LENGTH_SHAPE
    results.lengths.update(
        contest.measure_lengths(
            lambda n: peers.ours(peers.problem((batch, n, heads, size), device)), LENGTHS, batch * heads, rounds, device
        )
    )
    return results


def render(results: Results) -> str:
    """The tables for the terminal."""
    header = ["shape", "contender", "error", "strong decays", "ms", "times ours", "quartiles", "wanted", "note"]
    tables = [text_table(header, [_cells(row) for row in results.rows])]
    if LOOP in results.memory:
        loop = results.memory[LOOP]
        wanted = {OURS: f"at most {MEMORY_TARGET:g}"}
        rows = [
            [name, f"{peak / MEGABYTE:.0f}", f"{peak / loop:.3f}", wanted.get(name, "")]
            for name, peak in results.memory.items()
        ]
        unit = f"forward plus backward at {by_x(results.memory_shape)}"
        tables.append(text_table([unit, "MB at most", "of the loop's", "wanted"], rows))
    tables.append(contest.lengths_table(results.lengths, "head", 0))
    return "\n\n".join(tables)


def _cells(row: WkvTiming) -> list[str]:
    errors = ["" if error is None else f"{error:.1e}" for error in (row.error, row.strong_error)]
    wanted = f"at least {TARGETS[row.contender]:g}" if row.contender in TARGETS else ""
    return [by_x(row.shape), row.contender, *errors, *row.cells(), wanted, row.note]
