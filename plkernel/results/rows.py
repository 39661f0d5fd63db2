"""The row files of a run, metrics.jsonl and timing.jsonl: rows are added, and cut back to a checkpoint."""

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plkernel.common.files import naming, open_own


def expected_steps(every: int, last: int) -> list[int]:
    """The steps of a run's rows up to step `last`: at the start, every `every` steps, and at the end."""
    return sorted({*range(0, last + 1, every), last})


def append(path: Path, row: Mapping[str, Any], crc: int) -> tuple[int, int]:
    """Add a row, flushed to disk; return the file's length in bytes and its CRC-32, which was `crc` before."""
    line = json.dumps(row, allow_nan=False).encode() + b"\n"
    with naming(path), os.fdopen(open_own(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as handle:
        handle.write(line)
        handle.flush()
        os.fsync(handle.fileno())
        return handle.tell(), zlib.crc32(line, crc)


def check(path: Path, length: int, crc: int | None, steps: list[int]) -> int:
    """CRC-32 of the first `length` bytes, which must be the rows of `steps`, with CRC-32 `crc` if that is known.

    Raises ValueError naming the file and the fault.
    """
    kept = path.read_bytes()[:length] if path.exists() else b""
    present = [_step(line) for line in kept.split(b"\n") if line]
    faults = {
        "it is missing": not path.exists(),
        f"{len(kept):,} of {length:,} bytes are there": len(kept) < length,
        "its line ends have been changed": b"\r" in kept,
        f"its rows are of steps {_few(present)}, expected {_few(steps)}": present != steps or kept[-1:] != b"\n",
        "its content has been changed": crc not in (None, zlib.crc32(kept)),
    }
    if length and (fault := next((fault for fault, true in faults.items() if true), None)):
        raise ValueError(
            f"{path} is not as the run left it at the step {steps[-1]} of its last evaluation ({fault}): "
            f"bring it back, or remove {path.parent} to start over"
        )
    return zlib.crc32(kept)


def cut(path: Path, length: int) -> None:
    """Drop all but the first `length` bytes."""
    if path.exists():
        with os.fdopen(open_own(path, os.O_RDWR), "rb+") as handle:
            handle.truncate(length)


def _step(line: bytes) -> Any:
    try:
        return json.loads(line)["step"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return "unreadable"


def _few(steps: list[Any]) -> str:
    return ", ".join(map(str, steps if len(steps) <= 6 else [*steps[:3], "...", *steps[-2:]])) or "none"
