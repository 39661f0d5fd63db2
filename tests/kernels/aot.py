"""The Triton kernels compiled ahead of time, as the operators launch them, for chips that need not
be here.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from plkernel.kernels.scan import gpu as scan_gpu
from plkernel.kernels.scan.look_back import LookBack
from plkernel.kernels.scan.tiles import Tiles
from plkernel.kernels.wkv import gpu as wkv_gpu
from plkernel.kernels.wkv7 import gpu as wkv7_gpu

Types = dict[str, Any]
Compiled = tuple[str, int, int, str, bytes]
"""Kernel and chip, compute capability, bytes of shared memory, intermediate code with PTX, cubin.
"""

SHARED = {80: 163 << 10, 86: 99 << 10, 90: 227 << 10}
"""Bytes of shared memory of a block, by compute capability (CUDA programming guide)."""

VARIANTS = [name for name, plan in scan_gpu.VARIANTS.items() if plan is not None]
"""The variants of the scan with one kernel for each direction."""


def spilled(cubin: bytes) -> int:
    """Bytes of a thread that did not fit into registers."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    return int(re.findall(r"STACK:(\d+)", told)[0])


def scan(
    name: str, chip: int, dtype: str, fixed: bool, reverse: bool = False, channels: int = 16
) -> Compiled:
    """A kernel of the scan, for a number of channels."""
    lanes = scan_gpu.FEW_LANES if name == "_chunk_starts" else scan_gpu.LANES
    rows = scan_gpu.BACKWARD_ROWS if name == "_backward" else scan_gpu.ROWS
    types = dict.fromkeys(("T", "LENGTH", "chunks"), "i32")
    types |= dict.fromkeys(("x", "b", "h", "grad_h", "grad_b"), f"*{dtype}")
    types |= dict.fromkeys(("first", "state", "last", "grad_state"), "*fp32")
    types |= dict.fromkeys(("ends", "products", "starts"), "*fp64")
    types |= {"a": "*fp32" if fixed else f"*{dtype}", "grad_a": "*fp64" if fixed else f"*{dtype}"}
    constants = {"FIXED": fixed, "REVERSE": reverse, "LANES": lanes, "ROWS": rows}
    return _compiled(scan_gpu, name, chip, types, constants, {"D": channels})


def scan_variant(
    variant: str, name: str, chip: int, dtype: str, fixed: bool, channels: int = 16
) -> Compiled:
    """A kernel of a variant of the scan that has one kernel for each direction."""
    plan = scan_gpu.VARIANTS[variant]
    assert plan is not None
    module = sys.modules[type(plan).__module__]
    types = dict.fromkeys(("B", "T", "chunks", "group", "length"), "i32")
    types |= dict.fromkeys(("b", "h", "grad_h", "grad_b"), f"*{dtype}")
    types |= dict.fromkeys(("state", "last", "grad_last", "grad_state"), "*fp32")
    types |= {"exchange": "*i64", "parts": "*fp64" if fixed else f"*{dtype}"}
    summed = "*fp32" if isinstance(plan, LookBack) else "*fp64"
    types |= {"a": "*fp32" if fixed else f"*{dtype}", "grad_a": summed if fixed else f"*{dtype}"}
    tensors = 1 + (not fixed) + (name == "_backward")
    size = 4 if dtype == "fp32" else 2
    constants = {"FIXED": fixed} | plan.constants(tensors, size)
    if isinstance(plan, Tiles):
        constants["D"] = channels
    return _compiled(
        module,
        name,
        chip,
        types,
        constants,
        {"D": channels, "stride": channels},
        plan.options,
        variant,
    )


def wkv(
    name: str, chip: int, dtype: str, fixed: bool, sizes: tuple[int, int], reverse: bool = False
) -> Compiled:
    """A kernel of WKV for heads of `sizes`, keys and values."""
    keys, values = wkv_gpu.tiles(*sizes)
    types = dict.fromkeys(("T", "H", "chunks"), "i32")
    types |= dict.fromkeys(
        ("x", "y", "r", "k", "v", "out", "grad_out", "grad_r", "grad_k", "grad_v"), f"*{dtype}"
    )
    types |= dict.fromkeys(
        ("log_decay", "u", "first", "starts", "ends", "last", "grad_state"), "*fp32"
    )
    types |= {"factors": "*fp64", "grad_u": "*fp64", "grad_w": "*fp64" if fixed else "*fp32"}
    constants = {"FIXED": fixed, "REVERSE": reverse, "KEYS": keys, "VALUES": values}
    constants |= {key: getattr(wkv_gpu, key) for key in ("CHUNK", "ROWS", "LANES", "GROUP")}
    return _compiled(wkv_gpu, name, chip, types, constants, dict(zip("KV", sizes, strict=True)))


def wkv7(name: str, chip: int, dtype: str, sizes: tuple[int, int], keep: bool = True) -> Compiled:
    """A kernel of WKV-7 for heads of `sizes`; keep: the forward pass that the backward pass
    takes.
    """
    keys, values = wkv7_gpu.tiles(*sizes)
    halves = (
        "r",
        "k",
        "v",
        "a",
        "b",
        "out",
        "grad_out",
        "grad_r",
        "grad_k",
        "grad_v",
        "grad_a",
        "grad_b",
    )
    wide = (
        "log_decay",
        "factor",
        "state",
        "last",
        "kept",
        "inside",
        "grad_last",
        "grad_w",
        "grad_state",
    )
    types = (
        {"T": "i32", "H": "i32"} | dict.fromkeys(halves, f"*{dtype}") | dict.fromkeys(wide, "*fp32")
    )
    constants = {"KEEP": keep, "CHUNK": wkv7_gpu.CHUNK, "KEYS": keys, "VALUES": values}
    return _compiled(wkv7_gpu, name, chip, types, constants, dict(zip("KV", sizes, strict=True)))


def _compiled(
    gpu: Any,
    name: str,
    chip: int,
    types: Types,
    constants: Types,
    sizes: dict[str, int],
    options: dict[str, Any] | None = None,
    variant: str = "",
) -> Compiled:
    """sizes: of a launch; Triton makes a size of one a constant and knows of multiples of 16, as of
    all pointers.
    """
    kernel = getattr(gpu, name)
    names = kernel.arg_names
    given = {key: 1 for key, size in sizes.items() if size == 1} | constants
    given = {key: value for key, value in given.items() if key in names}
    sizes = {key: size for key, size in sizes.items() if key in names and key not in constants}
    types = types | dict.fromkeys(sizes, "i32")
    signature = {key: "constexpr" if key in given else types[key] for key in names}
    aligned = [
        key for key in names if signature[key].startswith("*") or sizes.get(key, 1) % 16 == 0
    ]
    attributes = {(names.index(key),): [["tt.divisibility", 16]] for key in aligned}
    source = ASTSource(kernel, signature, given, attributes)
    options = dict(gpu.OPTIONS) if options is None else options
    binary = triton.compile(source, target=GPUTarget("cuda", chip, 32), options=options)
    text = binary.asm["ttgir"] + binary.asm["ptx"]
    return (
        f"{gpu.__name__} {variant} {name} sm_{chip} {sizes}",
        chip,
        binary.metadata.shared,
        text,
        binary.asm["cubin"],
    )
