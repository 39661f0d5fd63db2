"""Blocks of bytes become one flat file: whole or absent, by one builder at a time."""

import errno
import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from plkernel.common.files import atomic_file
from plkernel.data.files import Blocks

try:
    import fcntl
except ImportError:  # no such locks on this system: two builders then repeat each other's work, and no more
    fcntl = None  # type: ignore[assignment]

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
BAR_AFTER = 2.0


@dataclass(frozen=True)
class Flat:
    """What was written: bytes, their sha256, and how many documents they hold."""

    size: int
    sha256: str
    documents: int


def write_flat(path: Path, blocks: Blocks, max_bytes: int | None, total: int | None, name: str) -> Flat:
    """Write the blocks to `path`, separators between documents only, at most `max_bytes`; atomic.

    A bar appears on a terminal's standard error after two seconds; `total` is the expected number of bytes.
    Raises ValueError when there is no text at all, OSError when the disk is full; `path` is then as it was.
    """
    from tqdm import tqdm

    digest, size, documents = hashlib.sha256(), 0, 0
    total = min((value for value in (total, max_bytes) if value is not None), default=None)
    bar = tqdm(
        desc=name, total=total, unit="B", unit_scale=True, delay=BAR_AFTER, leave=False, disable=None, file=sys.stderr
    )
    with closing(blocks), bar, _room(path.parent), atomic_file(path) as out:
        for data, count in _joined(blocks, max_bytes):
            out.write(data)
            digest.update(data)
            size, documents = size + len(data), documents + count
            bar.update(len(data))
        if size < max(documents, 1):  # nothing, or separators only
            raise ValueError(f"corpus {name!r} is empty: no text in {documents} documents")
    return Flat(size, digest.hexdigest(), documents)


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of the flat file `path`.

    Gives False when another process holds it and `wait` is off, or when locks cannot be had here.
    """
    lock = path.with_name(f".{path.stem}.lock")
    handle, held = None, False
    try:
        while fcntl is not None:
            handle = lock.open("a")
            held = _flock(handle.fileno(), wait)
            # A holder removes the file before it lets go: what we get then is not the lock of that name.
            if not held or _same_file(handle.fileno(), lock):
                break
            handle.close()
        yield held
    finally:
        if held:
            lock.unlink(missing_ok=True)
        if handle is not None:
            handle.close()


def remove_remains(path: Path) -> None:
    """Delete what dead builds left in the folder of `path`, whose lock we hold: no lock, no living build."""
    for remains in path.parent.glob(f".*-{'[0-9a-f]' * 16}.*.????????"):
        target = path.with_name(remains.stem[1:]).with_suffix(path.suffix)
        if target == path:
            remains.unlink(missing_ok=True)
            continue
        with locked(target, wait=False) as dead:
            if dead:
                remains.unlink(missing_ok=True)


def _joined(blocks: Blocks, max_bytes: int | None) -> Iterator[tuple[memoryview, int]]:
    """Bytes, and how many documents begin in them, without the first separator, cut at `max_bytes`."""
    left, first = max_bytes, 1
    for data, starts in blocks:
        if not len(data):
            continue
        keep = len(data) if left is None else min(len(data), left + first)
        yield data[first:keep].data, int(np.searchsorted(starts, keep))
        if left is not None:
            left -= keep - first
            if not left:
                return
        first = 0


@contextmanager
def _room(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        hint = "free some space, set PLKERNEL_CACHE to a folder with more, or ask for fewer bytes"
        raise OSError(f"no room for the corpus in {folder}: {hint}") from error


def _flock(descriptor: int, wait: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # taken, or a file system without locks
        return False
    return True


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False
