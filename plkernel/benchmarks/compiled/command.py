"""Registers, spills, shared memory and occupancy of every Triton kernel on three chips, read from its machine code."""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from plkernel.benchmarks import contest
from plkernel.benchmarks.compiled import gpu_kernels as kernels
from plkernel.benchmarks.compiled.gpu_kernels import Compiled, cuobjdump
from plkernel.common.cli import text_table
from plkernel.common.files import check_folder

REGISTERS = 2**16
"""Of a multiprocessor; a warp has them in parts of 256."""
SYSTEM = 1024
"""Bytes of shared memory that each block takes beside its own."""
HEAD = (64, 64)
DTYPE = "bf16"


@dataclass(frozen=True)
class Chip:
    """A multiprocessor: warps, blocks and bytes of shared memory that it holds at once; bytes that a block may have."""

    name: str
    warps: int
    blocks: int
    shared: int
    block: int


CHIPS = {
    80: Chip("A100", 64, 32, 164 << 10, 163 << 10),
    86: Chip("RTX 30", 48, 16, 100 << 10, 99 << 10),
    90: Chip("H100", 64, 32, 228 << 10, 227 << 10),
}
"""By compute capability, of the CUDA programming guide."""


@dataclass(frozen=True)
class Usage:
    """What a thread or block of a kernel takes.

    spilled: bytes of a thread that did not fit into registers; local: instructions that store or load such, among
    `instructions`, and of these `innermost` in loops that hold no other loop; occupancy: estimated share of the
    warps of a multiprocessor that can be there at once
    """

    kernel: str
    chip: int
    registers: int
    spilled: int
    shared: int
    warps: int
    occupancy: float
    instructions: int
    local: int
    innermost: int


def usage(compiled: Compiled) -> Usage:
    """As `cuobjdump` reads it; FileNotFoundError without it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(compiled.cubin)
        told, code = (
            subprocess.run([cuobjdump(), option, file], capture_output=True, text=True, check=True).stdout
            for option in ("-res-usage", "-sass")
        )
    ((registers, stack),) = re.findall(r"REG:(\d+) STACK:(\d+)", told)
    found = [(int(place, 16), text) for place, text in re.findall(r"/\*([0-9a-f]{4,})\*/\s+(.*?);", code)]
    inner = list(innermost(found))
    local = [place for place, text in found if re.search(r"\b(STL|LDL)\b", text)]
    return Usage(
        compiled.kernel,
        compiled.chip,
        int(registers),
        int(stack),
        compiled.shared,
        compiled.warps,
        occupancy(CHIPS[compiled.chip], int(registers), compiled.shared, compiled.warps),
        len(found),
        len(local),
        sum(any(start <= place <= end for start, end in inner) for place in local),
    )


def innermost(code: list[tuple[int, str]]) -> Iterator[tuple[int, int]]:
    """First and last place of every loop that holds no other: of jumps back, but not to themselves."""
    jumps = [(int(to, 16), place) for place, text in code for to in re.findall(r"BRA.* 0x([0-9a-f]+)", text)]
    loops = [(start, end) for start, end in jumps if start < end]
    for start, end in loops:
        if not any(start <= first and last <= end for first, last in loops if (first, last) != (start, end)):
            yield start, end


def occupancy(chip: Chip, registers: int, shared: int, warps: int) -> float:
    """Estimated share of a multiprocessor's warps, of blocks of `warps` warps.

    >>> occupancy(CHIPS[90], registers=255, shared=29696, warps=8)
    0.125
    """
    of_a_warp = -(-registers * 32 // 256) * 256
    blocks = min(chip.blocks, chip.warps // warps, REGISTERS // of_a_warp // warps, chip.shared // (shared + SYSTEM))
    return blocks * warps / chip.warps


def launched(chip: int) -> Iterator[Compiled]:
    """The kernels of models with heads of 64 under bfloat16: Finch and Goose, and the scan with both kinds of decay."""
    for name in ("chunk_ends", "chunk_starts", "_forward", "_backward"):
        yield kernels.wkv(name, chip, DTYPE, False, HEAD)
    yield kernels.wkv7("_forward", chip, DTYPE, HEAD, keep=False)
    yield kernels.wkv7("_forward", chip, DTYPE, HEAD)
    yield kernels.wkv7("_backward", chip, DTYPE, HEAD)
    yield kernels.scan("_chunk_starts", chip, DTYPE, True)
    for fixed in (True, False):
        for name in ("_chunk_ends", "_forward", "_backward"):
            yield kernels.scan(name, chip, DTYPE, fixed)


def run(out: Path | None) -> None:
    """Compile every kernel for every chip, and tell what it takes."""
    check_folder(out, "out")
    rows = [usage(compiled) for chip in CHIPS for compiled in launched(chip)]
    contest.show(
        render(rows), {"environment": contest.place(1, ()), "rows": [asdict(row) for row in rows]}, out, "compiled"
    )


def render(rows: list[Usage]) -> str:
    """The table for the terminal."""
    header = ["kernel", "chip", "registers", "spilled bytes", "in inner loops", "shared bytes", "warps", "occupancy"]
    return text_table(header, [_cells(row) for row in rows])


def _cells(row: Usage) -> list[str]:
    numbers = (row.registers, row.spilled, row.innermost, row.shared, row.warps)
    return [row.kernel, f"sm_{row.chip}", *map(str, numbers), f"{row.occupancy:.0%}"]
