"""Compilation of the CPU kernels, which keeps its results.

numba keeps machine code for as long as the file of its function is what it was; the files of what was compiled into it
may have changed since. Here it lies in a folder named after all sources of an operator, so that code of other sources
is never found: not after a change anywhere, nor while another version runs.
"""

import hashlib
import inspect
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
from filelock import FileLock

VERSIONS = 3  # of the sources of an operator, whose machine code stays on disk

_config: Any = numba.config


def jit(function: Callable[..., Any]) -> Any:
    """Compile without the interpreter lock; keep the machine code on disk where some folder can be written."""
    options: Any = {"nogil": True, "error_model": "numpy"}
    try:
        where = numba.njit(cache=True, **options)(function).stats.cache_path
    except RuntimeError:  # nowhere
        return numba.njit(**options)(function)
    folder = _folder(Path(where), Path(inspect.getfile(function)).parent)
    before, _config.CACHE_DIR = _config.CACHE_DIR, str(folder)
    try:
        kept = numba.njit(cache=True, **options)(function)
    finally:
        _config.CACHE_DIR = before
    if folder not in Path(kept.stats.cache_path).parents or not hasattr(kept, "_cache"):
        return numba.njit(**options)(function)  # sources in an archive, or a numba that keeps things in another way
    _save_in_turn(kept, folder)
    return kept


@cache
def _folder(parent: Path, package: Path) -> Path:
    """The folder in `parent` for the present sources of `package`, once older ones are removed."""
    folder = parent / f"kernels-{_fingerprint(package)}"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        known = sorted(parent.glob("kernels-*"), key=lambda path: path.stat().st_mtime)
        for old in known[:-VERSIONS]:
            shutil.rmtree(old, ignore_errors=True)
    return folder


def _fingerprint(package: Path) -> str:
    """Of the sources in the folder of an operator and in this one, and of numba."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted([*package.glob("*.py"), *Path(__file__).parent.glob("*.py")]):
        digest.update(f"{path.name} {path.stat().st_size} ".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _save_in_turn(dispatcher: Any, folder: Path) -> None:
    """Processes write one after another: numba would let two of them give one file to two signatures."""
    kept = dispatcher._cache
    save = kept.save_overload

    def in_turn(*overload: Any) -> None:
        with suppress(OSError, NotImplementedError):  # full disk, or one without locks: the next process compiles again
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / "lock"):
                save(*overload)

    kept.save_overload = in_turn
