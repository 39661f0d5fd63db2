"""python -m plkernel.bench scan: the scan against its peers, forward plus backward with a fixed decay."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plkernel.bench import scan_peers
from plkernel.bench import threads as two_threads
from plkernel.bench.contest import Spread, checked, interleave, peak_bytes, progress
from plkernel.bench.scan_peers import Contender
from plkernel.bench.threads import Threads
from plkernel.kernels.scan import reference
from plkernel.tools.cli import text_table
from plkernel.tools.environment import environment, installed
from plkernel.tools.files import check_folder, save_json

Shape = tuple[int, int, int]
OURS, COPY = "plkernel", "copy"
SHAPES: dict[str, tuple[Shape, ...]] = {
    "cpu": ((8, 1024, 256), (4, 4096, 256), (1, 65536, 64)),
    "cuda": ((8, 1024, 256), (8, 4096, 1024), (32, 4096, 1024), (1, 65536, 1024)),
}
TARGETS = {"mambapy": 5.0, "associative_scan": 10.0, "loop": 10.0}
LARGEST_ERROR = {"cpu": 1e-5, "cuda": 1e-3}  # of ours
LARGEST_PEER_ERROR = 1e-2  # peers sum the gradient of a in float32: a channel where it cancels shows it
MEMORY_SHAPE = (2, 2048, 64)
LENGTHS = (4096, 16384, 65536, 262144)
LENGTH_SHAPE = (4, 64)  # batch and channels while the length varies
PASSES = 5  # forward reads b and writes h; backward reads grad_h and h and writes grad_b


@dataclass(frozen=True)
class ScanTiming:
    """One contender at one shape. Seconds are of forward plus backward, the ratio is to ours, round by round."""

    shape: Shape
    contender: str
    error: float | None = None
    seconds: Spread | None = None
    ratio: Spread | None = None
    gigabytes_per_second: float | None = None
    note: str = ""


@dataclass(frozen=True)
class ScanResults:
    """What the benchmark measured; `memory` in tensors (B,T,D), `lengths` as nanoseconds per step and channel.

    `threads` are two against one, on a CPU."""

    environment: dict[str, Any]
    rows: list[ScanTiming] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)
    lengths: dict[int, Spread] = field(default_factory=dict)
    threads: list[Threads] = field(default_factory=list)


def scan(
    threads: int = 1,
    shapes: tuple[Shape, ...] = (),
    rounds: int = 15,
    device: str | None = None,
    compiled: bool = False,
    out: Path | None = None,
) -> None:
    """Check every contender against float64, then time forward plus backward with a fixed decay, taken in turns.

    A contender that is wrong or not installed is reported and not timed. On a GPU the same command also times a copy on
    the device: the scan moves five tensors, two forward and three backward, a copy two.

    Args:
        threads: threads of torch and of the CPU backend.
        shapes: batch, time and channels, one triple after another; left out, three for a CPU and four for a GPU.
        rounds: how often each contender is timed; a slow one less often.
        device: cpu or cuda; left out, cuda where there is one.
        compiled: also time associative_scan compiled, which first compiles for minutes.
        out: a folder for scan.json.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    _check(threads, shapes, rounds, device)
    check_folder(out, "out")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        results = measure(shapes or SHAPES[device], rounds, device, compiled, threads)
    finally:
        torch.set_num_threads(before)
    print(render(results))
    if out is not None:
        save_json(out / "scan.json", asdict(results))
        print(f"\nwritten: {out / 'scan.json'}")


def measure(shapes: tuple[Shape, ...], rounds: int, device: str, compiled: bool, threads: int) -> ScanResults:
    """Every row of the benchmark; progress goes to standard error."""
    contenders = {OURS: scan_peers.ours, **(scan_peers.CPU if device == "cpu" else scan_peers.GPU)}
    if compiled:
        contenders |= scan_peers.COMPILED
    peers = {name: version for name in scan_peers.PACKAGES if (version := installed(name))}
    results = ScanResults({**environment(threads), "device": device, "peers": peers})
    for shape in shapes:
        results.rows.extend(compare(shape, contenders, rounds, device))
    results.memory.update(measure_memory(contenders, device))
    results.lengths.update(measure_lengths(rounds, device))
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
    """Check all at one shape, then time those that are right."""
    name = "x".join(map(str, shape))
    progress(f"{name}: checking {len(contenders)} contenders against float64")
    a, b, grad_h = problem(shape, device)
    steps: dict[str, Any] = {}
    errors, notes = {}, {}
    truth = _truth(a, b, grad_h)
    for contender, make in contenders.items():
        limit = LARGEST_ERROR[device] if contender == OURS else LARGEST_PEER_ERROR
        errors[contender], notes[contender], step = checked(make, limit, truth, a, b, grad_h)
        if step is not None:
            steps[contender] = step
    del truth
    progress(f"{name}: timing {', '.join(steps)}")
    target = torch.empty_like(b)
    steps[COPY] = lambda: target.copy_(b)
    times = interleave(steps, rounds, device=device, repeat=10 if device == "cuda" else 1)
    rows = []
    for contender in (*contenders, COPY):
        row = ScanTiming(shape, contender, errors.get(contender), note=notes.get(contender, ""))
        if contender in steps:
            seconds = times.spread(contender)
            moved = b.nbytes * (2 if contender == COPY else PASSES)
            ratio = times.ratio(contender, OURS) if OURS in steps else None
            row = ScanTiming(shape, contender, row.error, seconds, ratio, moved / seconds.median / 1e9, row.note)
        rows.append(row)
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


def measure_lengths(rounds: int, device: str) -> dict[int, Spread]:
    """Nanoseconds per step and channel of ours at each length, taken in turns."""
    progress("lengths")
    batch, channels = LENGTH_SHAPE
    steps = {str(n): scan_peers.ours(*problem((batch, n, channels), device)) for n in LENGTHS}
    times = interleave(steps, rounds, device=device)
    return {n: times.spread(str(n)).scaled(1e9 / (batch * n * channels)) for n in LENGTHS}


def render(results: ScanResults) -> str:
    """The tables for the terminal."""
    header = ["shape", "contender", "error", "ms", "times ours", "quartiles", "wanted", "GB/s", "note"]
    tables = [text_table(header, [_cells(row) for row in results.rows])]
    memory = [[name, f"{peak:.2f}"] for name, peak in results.memory.items()]
    tables.append(text_table(["peak memory beyond the inputs", "tensors (B,T,D)"], memory))
    first = results.lengths[LENGTHS[0]].median
    lengths = [[f"{n}", f"{s.median:.3f}", f"{s.median / first:.2f}"] for n, s in results.lengths.items()]
    tables.append(text_table(["length T", "ns per step and channel", f"against T = {LENGTHS[0]}"], lengths))
    if results.threads:
        tables.append(text_table(two_threads.HEADER, two_threads.render(results.threads)))
    return "\n\n".join(tables)


def _cells(row: ScanTiming) -> list[str]:
    cells = ["x".join(map(str, row.shape)), row.contender, "" if row.error is None else f"{row.error:.1e}"]
    cells.append(f"{row.seconds.median * 1e3:.2f}" if row.seconds else "")
    cells.append(f"{row.ratio.median:.2f}" if row.ratio else "")
    cells.append(f"{row.ratio.low:.2f} to {row.ratio.high:.2f}" if row.ratio else "")
    cells.append(f"{TARGETS[row.contender]:g}" if row.contender in TARGETS else "")
    cells.append(f"{row.gigabytes_per_second:.1f}" if row.gigabytes_per_second else "")
    return [*cells, row.note]


def _check(threads: int, shapes: tuple[Shape, ...], rounds: int, device: str) -> None:
    if threads < 1:
        raise ValueError(f"threads is {threads}; it must be 1 or more")
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}; it must be 1 or more")
    if device not in SHAPES or (device == "cuda" and not torch.cuda.is_available()):
        here = "cpu or cuda" if torch.cuda.is_available() else "cpu"
        raise ValueError(f"device is {device!r}; here it must be {here}")
    for shape in shapes:
        if min(shape) < 1:
            raise ValueError(f"shapes has {shape}; batch, time and channels must be 1 or more")
