"""Files that are whole or absent: atomic writes, and JSON that reads back equal."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`; on success fsync it and rename it to `path`, else remove it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def atomic_write(path: Path, data: bytes | str) -> None:
    """Write `data` to `path` so that a reader sees the old content or the new, never a part."""
    with atomic_file(path) as handle:
        handle.write(data.encode() if isinstance(data, str) else data)


def atomic_save(path: Path, save: Callable[[Path], Any]) -> None:
    """Let `save` write a temporary path of the same suffix, then rename it to `path`.

    The temporary name is always the same, so one that a killed process left is overwritten: one writer at a time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.partial{path.suffix}")
    try:
        save(temporary)
        with temporary.open("rb+") as handle:
            os.fsync(handle.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def save_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically; NaN and infinity become null (JSON has neither)."""
    atomic_write(path, json.dumps(_finite(value), indent=2, allow_nan=False) + "\n")


def load_json(path: Path) -> Any:
    """Read JSON; a missing or damaged file raises ValueError naming it."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such file") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not readable as JSON ({error})") from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file; an unfinished last line (a killed writer) is left out.

    Raises ValueError naming the file when another line is damaged.
    """
    if not path.exists():
        return []
    whole = path.read_bytes()
    try:
        return [json.loads(line) for line in whole[: whole.rfind(b"\n") + 1].splitlines()]
    except ValueError as error:
        raise ValueError(f"{path}: not readable as JSON lines ({error})") from error


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0.0 else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
