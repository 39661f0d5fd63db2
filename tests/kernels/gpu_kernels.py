"""The Triton kernels, compiled ahead of time for a chip that need not be here, as the operators launch them."""

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Chip:
    """Name of a GPU, and the bytes of shared memory that one of its blocks may have."""

    name: str
    block: int


CHIPS = {80: Chip("A100", 163 << 10), 86: Chip("RTX 30", 99 << 10), 90: Chip("H100", 227 << 10)}
"""By compute capability, of the CUDA programming guide."""


@dataclass(frozen=True)
class Compiled:
    """A kernel in machine code.

    kernel: its name and variant; chip: compute capability, 90 for 9.0; shared: bytes of shared memory of a block;
    warps: those of a block; text: Triton's intermediate code and PTX; cubin: machine code
    """

    kernel: str
    chip: int
    shared: int
    warps: int
    text: str
    cubin: bytes


def scan(name: str, chip: int, dtype: str, fixed: bool, reverse: bool = False, channels: str = "aligned") -> Compiled:
    """A kernel of the scan. channels: aligned (a multiple of 16), odd or single; one channel is a constant."""
    from plkernel.kernels.scan import gpu

    lanes = gpu.FEW_LANES if name == "_chunk_starts" else gpu.LANES
    rows = gpu.BACKWARD_ROWS if name == "_backward" else gpu.ROWS
    constants = {"FIXED": fixed, "REVERSE": reverse, "LANES": lanes, "ROWS": rows}
    constants |= {"D": 1} if channels == "single" else {}
    types = dict.fromkeys(("T", "D", "LENGTH", "chunks"), "i32")
    types |= dict.fromkeys(("x", "b", "h", "grad_h", "grad_b"), f"*{dtype}")
    types |= dict.fromkeys(("first", "state", "last", "grad_state"), "*fp32")
    types |= dict.fromkeys(("ends", "products", "starts"), "*fp64")
    types |= {"a": "*fp32" if fixed else f"*{dtype}", "grad_a": "*fp64" if fixed else f"*{dtype}"}
    label = f"scan {name} {dtype} {'fixed' if fixed else 'varying'} {channels}"
    aligned = ["D"] if channels == "aligned" else []
    return _compiled(getattr(gpu, name), label, chip, types, constants, aligned, gpu.OPTIONS)


def wkv(name: str, chip: int, dtype: str, fixed: bool, sizes: tuple[int, int], reverse: bool = False) -> Compiled:
    """A kernel of WKV for heads of `sizes`, keys and values."""
    from plkernel.kernels.wkv import gpu, gpu_chunks

    keys, values = gpu_chunks.tiles(*sizes)
    constants = {"FIXED": fixed, "REVERSE": reverse, "KEYS": keys, "VALUES": values}
    constants |= {key: getattr(gpu_chunks, key) for key in ("CHUNK", "ROWS", "LANES", "GROUP")}
    types = dict.fromkeys(("T", "H", "K", "V", "chunks"), "i32")
    types |= dict.fromkeys(("x", "y", "r", "k", "v", "out", "grad_out", "grad_r", "grad_k", "grad_v"), f"*{dtype}")
    types |= dict.fromkeys(("log_decay", "u", "first", "starts", "ends", "last", "grad_state"), "*fp32")
    types |= {"factors": "*fp64", "grad_u": "*fp64", "grad_w": "*fp64" if fixed else "*fp32"}
    label = f"wkv {name} {dtype} {'fixed' if fixed else 'varying'} {sizes[0]}x{sizes[1]}"
    kernel = getattr(gpu if name.startswith("_") else gpu_chunks, name)
    return _compiled(kernel, label, chip, types, constants | _ones(sizes), _whole(sizes), gpu_chunks.OPTIONS)


def wkv7(name: str, chip: int, dtype: str, sizes: tuple[int, int], keep: bool = True) -> Compiled:
    """A kernel of WKV-7 for heads of `sizes`, keys and values. keep: the forward pass that the backward pass takes."""
    from plkernel.kernels.wkv7 import gpu

    keys, values = gpu.tiles(*sizes)
    constants = {"KEEP": keep, "CHUNK": gpu.CHUNK, "KEYS": keys, "VALUES": values}
    types = dict.fromkeys(("T", "H", "K", "V"), "i32")
    given = ("r", "k", "v", "a", "b", "out", "grad_out", "grad_r", "grad_k", "grad_v", "grad_a", "grad_b")
    types |= dict.fromkeys(given, f"*{dtype}")
    wide = ("log_decay", "factor", "state", "last", "kept", "inside", "grad_last", "grad_w", "grad_state")
    types |= dict.fromkeys(wide, "*fp32")
    label = f"wkv7 {name} {dtype} {sizes[0]}x{sizes[1]}{' keeping states' if keep and name == '_forward' else ''}"
    kernel = getattr(gpu, name)
    return _compiled(kernel, label, chip, types, constants | _ones(sizes), _whole(sizes), gpu.OPTIONS)


def spilled(compiled: Compiled) -> int:
    """Bytes of a thread that did not fit into registers, as cuobjdump, which comes with Triton, reads them."""
    import triton

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(compiled.cubin)
        command = [Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump", "-res-usage", file]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (stack,) = re.findall(r"STACK:(\d+)", told)
    return int(stack)


def _ones(sizes: tuple[int, int]) -> dict[str, int]:
    """Triton makes a size of one a constant at a launch."""
    return {key: 1 for key, size in zip("KV", sizes, strict=True) if size == 1}


def _whole(sizes: tuple[int, int]) -> list[str]:
    return [key for key, size in zip("KV", sizes, strict=True) if size % 16 == 0]


def _compiled(
    kernel: Any,
    label: str,
    chip: int,
    types: Mapping[str, str],
    constants: Mapping[str, Any],
    whole: Sequence[str],
    options: Mapping[str, Any],
) -> Compiled:
    """whole: arguments that are multiples of 16, beside all pointers."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    constants = {key: value for key, value in constants.items() if key in names}
    signature = {key: "constexpr" if key in constants else types[key] for key in names}
    aligned = [key for key in names if signature[key].startswith("*") or key in whole]
    attributes = {(names.index(key),): [["tt.divisibility", 16]] for key in aligned}
    source = ASTSource(kernel, signature, constants, attributes)
    binary = triton.compile(source, target=GPUTarget("cuda", chip, 32), options=dict(options))
    asm, metadata = binary.asm, binary.metadata
    return Compiled(label, chip, metadata.shared, metadata.num_warps, asm["ttgir"] + asm["ptx"], asm["cubin"])
