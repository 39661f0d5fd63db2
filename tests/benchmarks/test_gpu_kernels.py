"""What the GPU kernels take of a chip: the committed table, its arithmetic, and the same from kernels compiled anew."""

import importlib.util
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from plkernel.benchmarks.compiled.command import CHIPS, innermost, launched, occupancy, usage

RECORD = json.loads((Path(__file__).parents[2] / "runs/records/bench/compiled.json").read_text())
SPILLS = "wkv _backward bf16 varying 64x64"
MOST = 400
"""Bytes that a thread of it may spill: 256 with one version of Triton, 376 with another."""


def assert_claims(rows: list[dict[str, Any]]) -> None:
    """What docs/speed.md says of the kernels."""
    assert {row["kernel"] for row in rows if row["spilled"]} == {SPILLS}
    assert max(row["spilled"] for row in rows) <= MOST
    assert not any(row["innermost"] for row in rows)
    assert all(row["shared"] <= CHIPS[row["chip"]].block and row["occupancy"] >= 0.125 for row in rows)


def test_the_table_has_every_kernel_on_every_chip_and_one_that_spills_outside_inner_loops() -> None:
    rows = RECORD["rows"]
    kernels = {row["kernel"] for row in rows}
    assert len(rows) == len(kernels) * len(CHIPS) == 14 * 3
    assert {(row["kernel"], row["chip"]) for row in rows} == {(kernel, chip) for kernel in kernels for chip in CHIPS}
    assert_claims(rows)


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "blocks"),
    [
        (32, 0, 8, 8),  # 64 warps are all that there is
        (32, 0, 1, 32),  # of one warp each: no more blocks than 32
        (33, 0, 8, 6),  # 40 registers, in parts of 256 for a warp: 6.4 blocks
        (255, 0, 8, 1),
        (32, 100 << 10, 8, 2),  # with what the system takes three would need 303 kB
    ],
)
def test_occupancy_is_that_of_what_runs_out_first(registers: int, shared: int, warps: int, blocks: int) -> None:
    assert occupancy(CHIPS[90], registers, shared, warps) == blocks * warps / 64


def test_an_inner_loop_holds_no_other_and_a_jump_to_itself_is_none() -> None:
    code = [(0x10, "NOP"), (0x20, "LDL R1"), (0x30, "@P0 BRA 0x20"), (0x40, "@P1 BRA `(.L_1) 0x10"), (0x50, "BRA 0x50")]
    assert list(innermost(code)) == [(0x20, 0x30)]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_kernels_compiled_anew_take_what_the_table_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import triton

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    rows = [asdict(usage(compiled)) for chip in CHIPS for compiled in launched(chip)]
    assert_claims(rows)
    if triton.__version__ == RECORD["environment"]["versions"]["triton"]:
        assert rows == RECORD["rows"]
