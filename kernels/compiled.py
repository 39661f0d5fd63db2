"""Compilation of the CPU kernels, which keeps its results.

numba keeps machine code for as long as the file of its function is what it was; the files of what was compiled into it
may have changed since. Here it lies in a folder named after the sources of all kernels, so that code of other sources
is never found: not after a change anywhere, nor while another version runs.
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
from filelock import FileLock

VERSIONS = 3  # of the sources whose machine code stays on disk

_config: Any = numba.config


def jit(function: Callable[..., Any]) -> Any:
    """Compile without the interpreter lock; keep the machine code on disk where some folder can be written."""
    options: Any = {"nogil": True, "error_model": "numpy"}
    try:
        folder = code_folder(Path(numba.njit(cache=True, **options)(function).stats.cache_path))
    except RuntimeError:  # nowhere
        return numba.njit(**options)(function)
    before, _config.CACHE_DIR = _config.CACHE_DIR, str(folder)
    try:
        kept = numba.njit(cache=True, **options)(function)
    finally:
        _config.CACHE_DIR = before
    if folder not in Path(kept.stats.cache_path).parents or not hasattr(kept, "_cache"):
        return numba.njit(**options)(function)  # sources in an archive, or a numba that keeps things in another way
    save = kept._cache.save_overload

    def in_turn(*overload: Any) -> None:
        """Save one after another: numba would let two processes give one file to two signatures."""
        with suppress(OSError, NotImplementedError):  # full disk, or one without locks: the next process compiles again
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / "lock"):
                save(*overload)

    kept._cache.save_overload = in_turn
    return kept


@cache
def code_folder(parent: Path, sources: Path = Path(__file__).parent) -> Path:
    """Return the folder in `parent` for the present sources, once older ones are removed."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(sources.glob("**/*.py")):
        digest.update(f"{path.name} {path.stat().st_size} ".encode() + path.read_bytes())
    folder = parent / f"kernels-{digest.hexdigest()[:16]}"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        known = sorted(parent.glob("kernels-*"), key=lambda path: path.stat().st_mtime)
        for old in known[:-VERSIONS]:
            shutil.rmtree(old, ignore_errors=True)
    return folder
