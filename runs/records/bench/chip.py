"""Registers, memory and loads of the kernels of WKV and WKV-7 on tensor cores and of the scan.

They are compiled ahead of time; no GPU is needed.

`python runs/records/bench/chip.py [FILE]` prints tables for sm_90 and writes their rows to FILE
(chip.json beside this script, if left out). One row is one kernel: registers of a thread, bytes
spilled, bytes of shared memory, the widest loads and stores of the tensors in bytes of a thread,
and programs that fit into a multiprocessor; of a scan also the bytes of the tensors that one
program has on their way.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import triton

sys.path.append(str(Path(__file__).parents[3] / "tests" / "kernels"))

import aot
import test_wkv7_tensor
import test_wkv_tensor

from plkernel.common.environment import environment
from plkernel.common.files import save_json
from plkernel.kernels.scan import gpu
from plkernel.kernels.scan.look_back import LookBack
from plkernel.kernels.wkv import tensor as wkv_tensor

CHIP = 90
REGISTERS = 65536  # of a multiprocessor, handed out to warps in units of 256
WARPS = 64
PROGRAMS = 32
SHARED = 228 << 10  # of which each program takes 1 KB more than it asks for
CHANNELS = 1024


def told(cubin: bytes, *options: str) -> str:
    """What cuobjdump says of a compiled kernel."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [tool, *options, file.name], capture_output=True, text=True, check=True
        )
    return done.stdout


def widest(code: str, names: str) -> int:
    """Bytes of a thread in the widest access to global memory, of which there are several."""
    widths = {"U16": 2, "64": 8, "128": 16}
    found = re.findall(rf"\b(?:{names})\.E(?:\.(U16|64|128))?(?:\.BYPASS)?\s", code)
    counts = {width: found.count(width) for width in set(found)}
    return max((widths.get(width, 4) for width, many in counts.items() if many >= 8), default=0)


def resident(registers: int, warps: int, shared: int) -> int:
    """Programs that fit into a multiprocessor at once."""
    of_warp = 256 * -(-registers * 32 // 256)
    return min(REGISTERS // (of_warp * warps), WARPS // warps, PROGRAMS, SHARED // (shared + 1024))


def in_flight(plan: Any, tensors: int, backward: bool, size: int) -> int:
    """Bytes of the tensors that a program asks for before it uses the first of them."""
    constants = plan.constants(tensors, size)
    if isinstance(plan, LookBack):
        at_once = tensors - backward  # the backward pass asks for h later
        return at_once * constants["STEPS"] * constants["LANES"] * size
    rows = constants["ROWS"] * constants.get("WARPS", 1)
    return tensors * (constants["STAGES"] - 1) * rows * constants["LANES"] * size


HEADS = (64, 64)
FORMS = (("bf16", "bf16"), ("fp32", "tf32x3"))
"""Dtypes of the inputs, and the precision that the tensor forms take for them by themselves."""
WKV = {
    "_increments": ("_increments", False),
    "_increments back": ("_increments", True),
    "_carry": ("_carry", False),
    "_carry back": ("_carry", True),
    "_outputs": ("_outputs", False),
    "_outputs back": ("_outputs", True),
    "_gradients": ("_gradients", False),
}


def taken(cubin: bytes, warps: int, shared: int) -> dict[str, int]:
    """What a compiled kernel takes."""
    usage = told(cubin, "-res-usage")
    code = told(cubin, "-sass")
    registers = int(re.findall(r"REG:(\d+)", usage)[0])
    return {
        "registers": registers,
        "spilled": int(re.findall(r"STACK:(\d+)", usage)[0]),
        "shared": shared,
        "warps": warps,
        "load": widest(code, "LDG|LDGSTS"),
        "store": widest(code, "STG"),
        "programs": resident(registers, warps, shared),
    }


def of_tensor_cores() -> Iterator[dict[str, Any]]:
    """One row for each kernel of WKV and WKV-7 on tensor cores, for heads of 64."""
    for dtype, precision in FORMS:
        for label, (name, back) in WKV.items():
            *_, shared, _, cubin = test_wkv_tensor.compiled(
                name, CHIP, dtype, precision, HEADS, back=back
            )
            named = {"kernel": f"wkv {label} {dtype} {precision}", "chip": CHIP}
            yield named | taken(cubin, wkv_tensor.WARPS, shared)
        for name in test_wkv7_tensor.KERNELS:
            binary = test_wkv7_tensor.compiled(name, CHIP, dtype, precision, HEADS)
            named = {"kernel": f"wkv7 {name} {dtype} {precision}", "chip": CHIP}
            yield named | taken(
                binary.asm["cubin"], binary.metadata.num_warps, binary.metadata.shared
            )


def of_the_scan() -> Iterator[dict[str, Any]]:
    """One row for each variant, direction, layout and dtype."""
    kernels = product(("_forward", "_backward"), (True, False), ("fp32", "bf16"))
    for variant, (name, fixed, dtype) in product(aot.VARIANTS, list(kernels)):
        if variant == "chain":  # the kernels of look_back
            continue
        plan = gpu.VARIANTS[variant]
        assert plan is not None
        tensors = 1 + (not fixed) + (name == "_backward")
        size = 4 if dtype == "fp32" else 2
        _, _, shared, _, cubin = aot.scan_variant(variant, name, CHIP, dtype, fixed, CHANNELS)
        constants = plan.constants(tensors, size)
        yield {
            "kernel": f"{variant} {name} {'fixed' if fixed else 'varying'} {dtype}",
            "chip": CHIP,
            **taken(cubin, plan.options["num_warps"], shared),
            "lanes": constants["LANES"],
            "steps": constants.get("STEPS", constants["ROWS"]),
            "in_flight": in_flight(plan, tensors, name == "_backward", size),
        }


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("chip.json")
    described = {"environment": environment(1)}
    tables: dict[str, list[dict[str, Any]]] = {"tensor": [], "scan": []}
    for table, made in (("tensor", of_tensor_cores()), ("scan", of_the_scan())):
        for row in made:
            if not tables[table]:
                print(" | ".join(row))
            tables[table].append(row)
            print(" | ".join(map(str, row.values())), flush=True)
            save_json(target, described | tables)


if __name__ == "__main__":
    main()
