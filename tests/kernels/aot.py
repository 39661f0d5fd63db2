"""The Triton kernels compiled ahead of time, as the operators launch them, for chips that need not be here."""

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHARED = {80: 163 << 10, 86: 99 << 10, 90: 227 << 10}
"""Bytes of shared memory of a block, by compute capability (CUDA programming guide)."""


@dataclass(frozen=True)
class Compiled:
    """A kernel in machine code: bytes of shared memory, intermediate code with PTX, cubin."""

    operator: str
    label: str
    chip: int
    shared: int
    text: str
    cubin: bytes

    def spilled(self) -> int:
        """Bytes of a thread that did not fit into registers."""
        import triton

        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "kernel.cubin"
            file.write_bytes(self.cubin)
            told = subprocess.run([tool, "-res-usage", file], capture_output=True, text=True, check=True).stdout
        return int(re.findall(r"STACK:(\d+)", told)[0])


def scan(name: str, chip: int, dtype: str, fixed: bool, reverse: bool = False, channels: int = 16) -> Compiled:
    """A kernel of the scan, for a number of channels."""
    from plkernel.kernels.scan import gpu

    lanes = gpu.FEW_LANES if name == "_chunk_starts" else gpu.LANES
    rows = gpu.BACKWARD_ROWS if name == "_backward" else gpu.ROWS
    types = dict.fromkeys(("T", "LENGTH", "chunks"), "i32")
    types |= dict.fromkeys(("x", "b", "h", "grad_h", "grad_b"), f"*{dtype}")
    types |= dict.fromkeys(("first", "state", "last", "grad_state"), "*fp32")
    types |= dict.fromkeys(("ends", "products", "starts"), "*fp64")
    types |= {"a": "*fp32" if fixed else f"*{dtype}", "grad_a": "*fp64" if fixed else f"*{dtype}"}
    constants = {"FIXED": fixed, "REVERSE": reverse, "LANES": lanes, "ROWS": rows}
    return _compiled(getattr(gpu, name), chip, types, constants, {"D": channels}, gpu.OPTIONS)


def wkv(name: str, chip: int, dtype: str, fixed: bool, sizes: tuple[int, int], reverse: bool = False) -> Compiled:
    """A kernel of WKV for heads of `sizes`, keys and values."""
    from plkernel.kernels.wkv import gpu

    keys, values = gpu.tiles(*sizes)
    types = dict.fromkeys(("T", "H", "chunks"), "i32")
    types |= dict.fromkeys(("x", "y", "r", "k", "v", "out", "grad_out", "grad_r", "grad_k", "grad_v"), f"*{dtype}")
    types |= dict.fromkeys(("log_decay", "u", "first", "starts", "ends", "last", "grad_state"), "*fp32")
    types |= {"factors": "*fp64", "grad_u": "*fp64", "grad_w": "*fp64" if fixed else "*fp32"}
    constants = {"FIXED": fixed, "REVERSE": reverse, "KEYS": keys, "VALUES": values}
    constants |= {key: getattr(gpu, key) for key in ("CHUNK", "ROWS", "LANES", "GROUP")}
    return _compiled(getattr(gpu, name), chip, types, constants, dict(zip("KV", sizes, strict=True)), gpu.OPTIONS)


def wkv7(name: str, chip: int, dtype: str, sizes: tuple[int, int], keep: bool = True) -> Compiled:
    """A kernel of WKV-7 for heads of `sizes`; keep: the forward pass that the backward pass takes."""
    from plkernel.kernels.wkv7 import gpu

    keys, values = gpu.tiles(*sizes)
    halves = ("r", "k", "v", "a", "b", "out", "grad_out", "grad_r", "grad_k", "grad_v", "grad_a", "grad_b")
    wide = ("log_decay", "factor", "state", "last", "kept", "inside", "grad_last", "grad_w", "grad_state")
    types = {"T": "i32", "H": "i32"} | dict.fromkeys(halves, f"*{dtype}") | dict.fromkeys(wide, "*fp32")
    constants = {"KEEP": keep, "CHUNK": gpu.CHUNK, "KEYS": keys, "VALUES": values}
    return _compiled(getattr(gpu, name), chip, types, constants, dict(zip("KV", sizes, strict=True)), gpu.OPTIONS)


def _compiled(
    kernel: Any,
    chip: int,
    types: Mapping[str, str],
    constants: Mapping[str, Any],
    sizes: Mapping[str, int],
    options: Mapping[str, Any],
) -> Compiled:
    """sizes: of a launch; Triton makes a size of one a constant and knows of multiples of 16, as of all pointers."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    given = {**constants, **{key: 1 for key, size in sizes.items() if size == 1}}
    given = {key: value for key, value in given.items() if key in names}
    types = {**types, **dict.fromkeys(sizes, "i32")}
    signature = {key: "constexpr" if key in given else types[key] for key in names}
    whole = [key for key, size in sizes.items() if size % 16 == 0]
    aligned = [key for key in names if signature[key].startswith("*") or key in whole]
    attributes = {(names.index(key),): [["tt.divisibility", 16]] for key in aligned}
    source = ASTSource(kernel, signature, given, attributes)
    binary = triton.compile(source, target=GPUTarget("cuda", chip, 32), options=dict(options))
    label = f"{kernel.__name__} sm_{chip} {sizes}"
    return Compiled(
        kernel.__module__.split(".")[-2],
        label,
        chip,
        binary.metadata.shared,
        binary.asm["ttgir"] + binary.asm["ptx"],
        binary.asm["cubin"],
    )
